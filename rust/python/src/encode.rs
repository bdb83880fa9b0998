//! A batch of events as the rows of generation 4. Spec 10 §5.1, §11.2.

use std::cell::Cell;

use dsh_codec_core::json::number::is_negative_zero;
use dsh_codec_core::json::{Room, Tape};
use dsh_codec_core::row as core;
use dsh_codec_core::stream::Value;
use dsh_codec_core::{Error, ErrorKind, Limits, Location};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBool, PyBytes, PyDict, PyFloat, PyInt, PyList, PyString};

use crate::buffer::InputBytes;
use crate::errors::{KernelError, KernelResult};
use crate::json::too_deep;
use crate::pybuild::TupleClass;
use crate::pystring;
use crate::pyvalue::PyValue;
use crate::quick_write::QuickWriter;
use crate::row::{tuple_class, with_node};
use crate::write::{Spelling, ValueWriter, loss_error};

const END_SEED: &[u8] = b"session/end-seed";

/// A member as it begins in a row.
const SOURCES: &str = "\"sourceEventSeqs\":";

/// Texts up to this length are checked in less time than it may take to get the GIL back.
const QUICK_BYTES: usize = 64 << 10;

/// A text that is longer is not kept for the next batch.
const KEPT_BYTES: usize = 4 << 20;

/// Words of a tape that is kept.
const KEPT_WORDS: usize = 1 << 16;

thread_local! {
    /// Room for the text of a batch: new memory costs more than writing into it.
    static TEXT: Cell<Room> = Cell::default();
    /// The same for rows that are checked.
    static ROOM: Cell<Option<Box<core::BatchRoom>>> = const { Cell::new(None) };
}

/// Write a batch of logical events as rows of generation 4. See the stub.
#[pyfunction]
#[pyo3(signature = (events, seq, /, *, max_row_bytes = 268_435_456))]
pub(crate) fn encode_events<'py>(
    py: Python<'py>,
    events: &Bound<'py, PyAny>,
    seq: u64,
    max_row_bytes: u64,
) -> KernelResult<Bound<'py, PyAny>> {
    let mut encoder = Encoder::new(max_row_bytes);
    let mut next = seq;
    let mut add = |event: &Bound<'py, PyAny>| -> KernelResult<()> {
        encoder.add(event, next).map_err(|error| located(error, next))?;
        next += 1;
        Ok(())
    };
    if let Ok(list) = events.cast_exact::<PyList>() {
        list.iter().try_for_each(|event| add(&event))?;
    } else {
        events.try_iter()?.try_for_each(|event| add(&event?))?;
    }
    encoder.finish(py, next - seq)
}

/// Room for the check of rows, which [`keep_room`] takes back.
fn take_room() -> Box<core::BatchRoom> {
    ROOM.take().unwrap_or_default()
}

fn keep_room(mut room: Box<core::BatchRoom>) {
    room.shrink(KEPT_WORDS);
    ROOM.set(Some(room));
}

/// Check rows that come as text, and respell those that the harness would spell otherwise. See the stub.
#[pyfunction]
#[pyo3(signature = (rows, seq, /, *, max_row_bytes = 268_435_456))]
pub(crate) fn encode_rows<'py>(
    py: Python<'py>,
    rows: &Bound<'py, PyAny>,
    seq: u64,
    max_row_bytes: u64,
) -> KernelResult<Bound<'py, PyAny>> {
    let input: InputBytes = rows.extract()?;
    let text: &[u8] = &input;
    let limits = Limits {
        max_row_bytes,
        ..Limits::default()
    };
    let mut room = take_room();
    let batch = if text.len() <= QUICK_BYTES {
        core::check_rows(text, seq, &limits, &mut room)
    } else {
        py.detach(|| core::check_rows(text, seq, &limits, &mut room))
    }?;
    keep_room(room);
    let text = match (&batch.respelled, rows.cast_exact::<PyBytes>()) {
        (Some(respelled), _) => PyBytes::new(py, respelled),
        (None, Ok(own)) => own.clone(),
        (None, Err(_)) => PyBytes::new(py, text),
    };
    encoded_rows(text.into_any(), batch.count, batch.has_marker)
}

/// Makes an `EncodedRows`.
fn encoded_rows(
    text: Bound<'_, PyAny>,
    event_count: u64,
    has_marker: bool,
) -> KernelResult<Bound<'_, PyAny>> {
    static CLASS: PyOnceLock<TupleClass> = PyOnceLock::new();

    let py = text.py();
    let count = PyInt::new(py, event_count).into_any();
    let has_marker = PyBool::new(py, has_marker).to_owned().into_any();
    Ok(tuple_class(py, &CLASS, "EncodedRows")?.make(py, [text, count, has_marker])?)
}

/// The error of an event, with its seq.
fn located(error: KernelError, seq: u64) -> KernelError {
    match error {
        KernelError::Core { error, path } => {
            let place = Location {
                seq: Some(seq),
                ..Location::default()
            };
            KernelError::Core {
                error: error.located(place),
                path,
            }
        }
        other @ KernelError::Python(_) => other,
    }
}

#[cold]
fn malformed<T>(rule: &'static str, message: impl Into<std::borrow::Cow<'static, str>>) -> KernelResult<T> {
    Err(Error::new(ErrorKind::Row, message).with_rule(rule).into())
}

/// The members of an event that the envelope's rules ask for.
#[derive(Default)]
struct Members<'py> {
    event_type: Option<Bound<'py, PyAny>>,
    seq: Option<Bound<'py, PyAny>>,
    time: Option<Bound<'py, PyAny>>,
    data: Option<Bound<'py, PyAny>>,
    ignorable: Option<Bound<'py, PyAny>>,
    sources: Option<Bound<'py, PyAny>>,
}

pub(crate) struct Encoder {
    max_depth: usize,
    max_row_bytes: u64,
    /// Taken where a row has to be looked at.
    room: Option<Box<core::BatchRoom>>,
    text: Room,
    has_marker: bool,
}

/// Members of an event, each with the text that it begins with in its row.
type RowMembers<'py> = Vec<(&'static str, Bound<'py, PyAny>)>;

impl Encoder {
    pub(crate) fn new(max_row_bytes: u64) -> Self {
        let mut text = TEXT.take();
        text.truncate(0);
        Self {
            max_depth: Limits::default().max_depth as usize,
            max_row_bytes,
            room: None,
            text,
            has_marker: false,
        }
    }

    /// The rows, of so many events.
    pub(crate) fn finish(self, py: Python<'_>, count: u64) -> KernelResult<Bound<'_, PyAny>> {
        let text = PyBytes::new(py, self.text.text()).into_any();
        if self.text.capacity() <= KEPT_BYTES {
            TEXT.set(self.text);
        }
        if let Some(room) = self.room {
            keep_room(room);
        }
        encoded_rows(text, count, self.has_marker)
    }

    /// Appends what is written as the row of an event, of a type of which row admission looks at these rows. None: the
    /// row may not be written, or the writer leaves it to another one.
    pub(crate) fn write(
        &mut self,
        py: Python<'_>,
        admission: core::Admission,
        write: impl FnOnce(&mut QuickWriter<'_, '_>) -> Option<()>,
    ) -> Option<()> {
        let start = self.text.len();
        let mut row = QuickWriter::new(py, &mut self.text);
        write(&mut row)?;
        if admission.looks(row.may_be_retired) {
            self.admit_text(start).ok()?;
        }
        self.check_len(start).ok()
    }

    /// Checks one event and appends its row.
    fn add(&mut self, event: &Bound<'_, PyAny>, seq: u64) -> KernelResult<()> {
        let start = self.text.len();
        let mut quick = QuickWriter::new(event.py(), &mut self.text);
        if let Some(admission) = quick.event(event, seq, self.max_depth) {
            if admission.looks(quick.may_be_retired) {
                self.admit_text(start)?;
            }
        } else {
            self.text.truncate(start);
            self.add_any(event, seq, start)?;
        }
        self.check_len(start)
    }

    /// Checks the length of the row that starts at `start`.
    fn check_len(&self, start: usize) -> KernelResult<()> {
        let len = (self.text.len() - start) as u64;
        let limit = self.max_row_bytes;
        if len <= limit {
            return Ok(());
        }
        let message = format!("the row has {len} bytes, more than max_row_bytes ({limit})");
        Err(Error::limit("max_row_bytes", limit, message).into())
    }

    /// [`Encoder::add`] of any event, but for the length of its row.
    fn add_any(&mut self, event: &Bound<'_, PyAny>, seq: u64, start: usize) -> KernelResult<()> {
        let Ok(dict) = event.cast_exact::<PyDict>() else {
            return malformed("10 §5.1", "a row has to be a JSON object");
        };
        let mut members = Members::default();
        let mut row = RowMembers::new();
        for (key, value) in dict.iter() {
            let name = key.cast::<PyString>().ok();
            // A `str` of another class is not kept as ASCII, whatever it spells.
            let name =
                name.and_then(|key| pystring::as_ascii(key).or_else(|| Some(key.to_str().ok()?.as_bytes())));
            let (name, place) = match name {
                Some(b"type") => ("\"type\":", &mut members.event_type),
                Some(b"seq") => ("\"seq\":", &mut members.seq),
                Some(b"time") => ("\"time\":", &mut members.time),
                Some(b"data") => ("\"data\":", &mut members.data),
                Some(b"ignorable") => ("\"ignorable\":", &mut members.ignorable),
                Some(b"sourceEventSeqs") => (SOURCES, &mut members.sources),
                Some(b"surfaceOp") => ("\"surfaceOp\":", &mut None),
                _ => return unknown_key(&key),
            };
            *place = Some(value.clone());
            row.push((name, value));
        }
        let ranges = self.check_envelope(&members, seq)?;
        let mut writer = ValueWriter::new(self.max_depth, 1, Spelling::JavaScript);
        self.write_row(row, ranges.as_deref(), &mut writer)?;
        self.admit(event, &members, start, &mut writer)?;
        match writer.take_loss() {
            Some(number) => Err(loss_error(&number).into()),
            None => Ok(()),
        }
    }

    /// Checks the members of an event; returns the range form of its `sourceEventSeqs`.
    fn check_envelope(&mut self, members: &Members<'_>, seq: u64) -> KernelResult<Option<Vec<u8>>> {
        let value = |member: &Option<_>| member.clone().map(PyValue);
        let event_type = value(&members.event_type);
        let Some(event_type) = event_type.as_ref().and_then(Value::text) else {
            return malformed("10 §5.1", "the type of a row has to be a string");
        };
        let own_seq = value(&members.seq);
        if own_seq.as_ref().and_then(Value::safe_integer) != i64::try_from(seq).ok() {
            return seq_gap(members.seq.as_ref(), seq);
        }
        if !value(&members.time).is_some_and(|time| is_sint(&time)) {
            let message = "the time of a row has to be a safe integer (milliseconds), and not -0";
            return malformed("10 §5.1", message);
        }
        let Some(data) = &members.data else {
            return malformed("10 §5.1", "a row has to have data");
        };
        if value(&members.ignorable).is_some_and(|ignorable| !ignorable.is_true()) {
            return malformed("10 §5.1", "ignorable is true or absent");
        }
        if &*event_type == END_SEED {
            let Ok(data) = data.cast_exact::<PyDict>() else {
                return malformed("10 §4.4", "the data of session/end-seed has to be an object");
            };
            let inherited = data.get_item("inherited")?.map(PyValue);
            self.has_marker |= inherited.is_some_and(|inherited| inherited.is_true());
        }
        let Some(sources) = &members.sources else {
            return Ok(None);
        };
        if !own_seq.is_some_and(|seq| is_sint(&seq)) {
            return malformed(
                "10 §6",
                "seq has to be a count, because the row has sourceEventSeqs",
            );
        }
        ranges_of(sources, seq).map(Some)
    }

    /// Appends the row of an event.
    fn write_row<'py>(
        &mut self,
        members: RowMembers<'py>,
        ranges: Option<&[u8]>,
        writer: &mut ValueWriter<'py>,
    ) -> KernelResult<()> {
        if self.max_depth == 0 {
            return Err(too_deep(self.max_depth, None).into());
        }
        self.text.with_vec(|text| {
            let mut before = b'{';
            for (name, value) in members {
                text.push(before);
                text.extend_from_slice(name.as_bytes());
                before = b',';
                match ranges {
                    Some(ranges) if name == SOURCES => text.extend_from_slice(ranges),
                    _ => writer.write(value, text)?,
                }
            }
            text.extend_from_slice(b"}\n");
            Ok(())
        })
    }

    /// Applies row admission (spec 30 §6) to the row that starts at `start`.
    fn admit(
        &mut self,
        event: &Bound<'_, PyAny>,
        members: &Members<'_>,
        start: usize,
        writer: &mut ValueWriter<'_>,
    ) -> KernelResult<()> {
        let may_be_retired = writer.take_may_be_retired();
        let event_type = members.event_type.clone().map(PyValue);
        let event_type = event_type.as_ref().and_then(Value::text).unwrap_or_default();
        if !core::Admission::of(&event_type).looks(may_be_retired) {
            return Ok(());
        }
        if writer.has_loss() {
            // The row does not hold what the event does.
            let mut exact = Vec::new();
            ValueWriter::new(self.max_depth, 0, Spelling::Exact).write(event.clone(), &mut exact)?;
            let room = self.room.get_or_insert_with(take_room);
            return Ok(core::admit_line(&exact, self.max_depth, room)?);
        }
        self.admit_text(start)
    }

    /// Applies row admission to the row that starts at `start` and holds what its event does.
    fn admit_text(&mut self, start: usize) -> KernelResult<()> {
        let row = self.text.text().get(start..).unwrap_or_default();
        let room = self.room.get_or_insert_with(take_room);
        Ok(core::admit_line(row, self.max_depth, room)?)
    }
}

/// Whether a value is a safe integer other than −0. Spec 10 intro.
fn is_sint(value: &PyValue<'_>) -> bool {
    value.safe_integer().is_some() && !value.number().is_some_and(is_negative_zero)
}

#[cold]
fn unknown_key<T>(key: &Bound<'_, PyAny>) -> KernelResult<T> {
    let shown: String = key.repr()?.to_string_lossy().chars().take(64).collect();
    malformed("10 §5.1", format!("the key {shown} is not one of a row"))
}

#[cold]
fn seq_gap<T>(got: Option<&Bound<'_, PyAny>>, expected: u64) -> KernelResult<T> {
    let max_depth = Limits::default().max_depth as usize;
    let mut text = Vec::new();
    if let Some(got) = got {
        // What is no JSON value is shown as none.
        if crate::write::write_value(got, max_depth, Spelling::Exact, &mut text).is_err() {
            text.clear();
        }
        // A `float` stays one, also where it is an integer.
        if got.is_exact_instance_of::<PyFloat>() && text.iter().all(|b| b.is_ascii_digit() || *b == b'-') {
            text.extend_from_slice(b".0");
        }
    }
    let shown = core::show(Tape::new().read_text(&text, max_depth).ok());
    let got = String::from_utf8_lossy(&text).into_owned();
    let message =
        format!("expected seq {expected}, found {shown}: a row is missing, doubled or out of place");
    let kind = ErrorKind::SeqGap { expected, got };
    Err(Error::new(kind, message).with_rule("10 §5.1").into())
}

/// The range form of a list of seqs, which has to be one that a reader takes. Spec 10 §6.
fn ranges_of(sources: &Bound<'_, PyAny>, seq: u64) -> KernelResult<Vec<u8>> {
    let is_count = |value: Bound<'_, PyAny>| {
        let value = PyValue(value);
        is_sint(&value) && value.safe_integer().is_some_and(|count| count >= 0)
    };
    if !sources
        .cast_exact::<PyList>()
        .is_ok_and(|list| list.iter().all(is_count))
    {
        return malformed("10 §6", "sourceEventSeqs has to be a list of seqs");
    }
    let mut ranges = Vec::new();
    with_node(sources, |node| Ok(core::encode_seqs(node, &mut ranges)?))?;
    let mut tape = Tape::new();
    let node = tape
        .read_text(&ranges, Limits::default().max_depth as usize)
        .map_err(|_| Error::new(ErrorKind::Row, "the value is larger than 4 GiB"))?;
    core::decode_seqs(node, core::SeqCodec::V2, seq, None)?;
    Ok(ranges)
}
