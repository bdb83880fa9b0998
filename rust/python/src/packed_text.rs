//! The records of a packer as JSON text, written while they come. Spec 20 §2.

use dsh_codec_core::json::is_retired;
use dsh_codec_core::json::number::write_integer;
use dsh_codec_core::json::text::write_string;
use dsh_codec_core::stream::{Packed, PackedRun, Word};
use pyo3::prelude::*;
use pyo3::types::PyString;

use crate::errors::KernelResult;
use crate::pystring;
use crate::write::{Spelling, ValueWriter, loss_error};

/// Levels of a row around a chunk that is kept as it is: row, data, stream, record.
const OUTER: usize = 4;

/// Text of the records that a packer holds, as far as it was asked for.
///
/// A run takes more members until another record follows it, and its `dt` stands before its members. So these are two
/// texts until then.
#[derive(Default)]
pub(crate) struct PackedText {
    /// Records that no chunk changes any more, with a comma behind each, and how many they are.
    whole: Vec<u8>,
    records: usize,
    /// The run behind them: members and their text, with a comma behind each; text of the gaps likewise.
    members: usize,
    texts: Vec<u8>,
    gaps: usize,
    dt: Vec<u8>,
    /// Whether a string in a whole record may be one that row admission asks for.
    may_be_retired: bool,
    /// Whether the text was given up, because something cannot be written.
    is_given_up: bool,
}

impl PackedText {
    /// Writes what has come since the last call. What cannot be written is left to who writes the records themselves.
    pub(crate) fn follow(&mut self, py: Python<'_>, records: &[Packed<Py<PyAny>>], max_depth: usize) {
        if !self.is_given_up && self.catch_up(py, records, max_depth).is_err() {
            *self = Self {
                is_given_up: true,
                ..Self::default()
            };
        }
    }

    /// Appends all records as an array; tells whether row admission may ask for a string in them. No code of Python
    /// runs. None: [`PackedText::follow`] has not come to their end, or something would need such code.
    pub(crate) fn write(
        &self,
        py: Python<'_>,
        records: &[Packed<Py<PyAny>>],
        out: &mut Vec<u8>,
    ) -> Option<bool> {
        let is_ascii = |name: &Option<Py<PyAny>>| {
            let name = name.as_ref().map(|name| name.bind(py));
            name.is_none_or(|name| {
                name.cast_exact()
                    .is_ok_and(|name| pystring::as_ascii(name).is_some())
            })
        };
        let is_complete = match records.get(self.records..)? {
            [] => true,
            [Packed::Run(run)] => {
                run.members.len() == self.members && is_ascii(&run.id) && is_ascii(&run.name)
            }
            _ => false,
        };
        if self.is_given_up || !is_complete {
            return None;
        }
        out.reserve(self.whole.len() + self.dt.len() + self.texts.len() + 256);
        out.push(b'[');
        out.extend_from_slice(&self.whole);
        let mut may_be_retired = self.may_be_retired;
        match records.get(self.records) {
            Some(Packed::Run(run)) => {
                may_be_retired |= write_run(py, run, &self.dt, &self.texts, out).ok()?;
            }
            _ => drop_comma(out),
        }
        out.push(b']');
        Some(may_be_retired)
    }

    fn catch_up(
        &mut self,
        py: Python<'_>,
        records: &[Packed<Py<PyAny>>],
        max_depth: usize,
    ) -> KernelResult<()> {
        while let Some(record) = records.get(self.records) {
            match record {
                Packed::Run(run) => {
                    self.take_members(py, run)?;
                    if self.records + 1 == records.len() {
                        break;
                    }
                    self.may_be_retired |= write_run(py, run, &self.dt, &self.texts, &mut self.whole)?;
                    self.texts.clear();
                    self.dt.clear();
                    (self.members, self.gaps) = (0, 0);
                }
                Packed::Raw { time, chunk } => {
                    self.whole.extend_from_slice(b"{\"type\":\"chunk\",\"time\":");
                    write_integer(*time, &mut self.whole);
                    self.whole.extend_from_slice(b",\"chunk\":");
                    let mut writer = ValueWriter::new(max_depth, OUTER, Spelling::JavaScript);
                    writer.write(chunk.bind(py).clone(), &mut self.whole)?;
                    if let Some(number) = writer.take_loss() {
                        return Err(loss_error(&number).into());
                    }
                    self.may_be_retired |= writer.take_may_be_retired();
                    self.whole.push(b'}');
                }
            }
            self.whole.push(b',');
            self.records += 1;
        }
        Ok(())
    }

    /// Writes the members of the last run that are not written yet.
    #[inline]
    fn take_members(&mut self, py: Python<'_>, run: &PackedRun<Py<PyAny>>) -> KernelResult<()> {
        for member in run.members.get(self.members..).unwrap_or_default() {
            push_text(py, member, &mut self.texts)?;
            self.texts.push(b',');
        }
        self.members = run.members.len();
        for gap in run.dt.get(self.gaps..).unwrap_or_default() {
            write_integer(*gap, &mut self.dt);
            self.dt.push(b',');
        }
        self.gaps = run.dt.len();
        Ok(())
    }
}

/// Appends a kept string; tells whether row admission may ask for it.
#[inline]
fn push_text(py: Python<'_>, kept: &Py<PyAny>, out: &mut Vec<u8>) -> KernelResult<bool> {
    let text = kept.bind(py).cast::<PyString>().map_err(PyErr::from)?;
    let text = pystring::to_wtf8(text)?;
    write_string(&text, out);
    Ok(is_retired(&text))
}

/// Appends a run whose gaps and members are text; tells whether row admission may ask for one of its names.
fn write_run(
    py: Python<'_>,
    run: &PackedRun<Py<PyAny>>,
    gaps: &[u8],
    members: &[u8],
    out: &mut Vec<u8>,
) -> KernelResult<bool> {
    let mut may_be_retired = false;
    out.extend_from_slice(b"{\"type\":\"");
    out.extend_from_slice(run.kind.record_type().as_str().as_bytes());
    out.extend_from_slice(b"\",\"time0\":");
    write_integer(run.time0, out);
    out.extend_from_slice(b",\"index\":");
    write_integer(run.index, out);
    out.extend_from_slice(b",\"dt\":[");
    out.extend_from_slice(gaps);
    drop_comma(out);
    out.push(b']');
    for (key, name) in [(Word::Id, &run.id), (Word::Name, &run.name)] {
        if let Some(name) = name {
            out.extend_from_slice(b",\"");
            out.extend_from_slice(key.as_str().as_bytes());
            out.extend_from_slice(b"\":");
            may_be_retired |= push_text(py, name, out)?;
        }
    }
    out.extend_from_slice(b",\"");
    out.extend_from_slice(run.kind.members_key().as_str().as_bytes());
    out.extend_from_slice(b"\":[");
    out.extend_from_slice(members);
    drop_comma(out);
    out.extend_from_slice(b"]}");
    Ok(may_be_retired)
}

/// Takes back the comma behind the last element, if there is one.
fn drop_comma(out: &mut Vec<u8>) {
    if out.last() == Some(&b',') {
        out.pop();
    }
}
