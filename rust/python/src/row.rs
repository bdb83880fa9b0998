//! Headers, rows, seqs, and the incremental scan. Spec 10 §4 to §6, §8.

#![expect(
    clippy::needless_pass_by_value,
    reason = "an argument is made for its call, which owns it"
)]

use std::sync::{Mutex, MutexGuard};

use dsh_codec_core::json::{Node, Tape};
use dsh_codec_core::row as core;
use dsh_codec_core::{Error, ErrorKind, Limits};
use pyo3::exceptions::PyValueError;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::{MutexExt, PyOnceLock};
use pyo3::types::{PyBytes, PyDict, PyInt, PyList, PyString, PyTuple, PyType};

use crate::buffer::InputBytes;
use crate::errors::KernelResult;
use crate::header::header_tuple;
use crate::json::parse_bytes;
use crate::object::{KeyCache, with_scratch};
use crate::pybuild::TupleClass;
use crate::pystring;
use crate::write::{Spelling, ValueWriter, write_value};

/// Seqs that the free-standing decoder gives back at most; its own limit is 2^53.
const MAX_DECODED_SEQS: u64 = 16_777_216;

/// A class of `dsh_codec._types`.
pub(crate) fn class<'py>(
    py: Python<'py>,
    cell: &'static PyOnceLock<Py<PyType>>,
    name: &str,
) -> PyResult<Bound<'py, PyType>> {
    cell.import(py, "dsh_codec._types", name).cloned()
}

/// [`class`] for one that is a named tuple, of which instances are made without a call of it.
pub(crate) fn tuple_class(
    py: Python<'_>,
    cell: &'static PyOnceLock<TupleClass>,
    name: &str,
) -> PyResult<&'static TupleClass> {
    cell.get_or_try_init(py, || {
        let class = py.import("dsh_codec._types")?.getattr(name)?;
        TupleClass::new(class.cast::<PyType>()?)
    })
}

/// Makes the options of a scan out of keyword arguments.
pub(crate) fn scan_options(
    mode: &str,
    generation: Option<Generation>,
    check_streams: bool,
    limits: Limits,
) -> PyResult<core::ScanOptions> {
    let mode = match mode {
        "strict" => core::Mode::Strict,
        "recoverable" => core::Mode::Recoverable,
        _ => return Err(PyValueError::new_err("mode must be 'strict' or 'recoverable'")),
    };
    let generation = generation.map(|generation| generation.0);
    Ok(core::ScanOptions {
        mode,
        generation,
        check_streams,
        keeps_records: false,
        limits,
    })
}

/// The argument `generation`.
#[derive(Clone, Copy)]
pub(crate) struct Generation(u8);

impl Generation {
    pub(crate) const CURRENT: Self = Self(core::CURRENT_GENERATION);

    /// The number, 0 to 4.
    pub(crate) fn number(self) -> u8 {
        self.0
    }
}

impl FromPyObject<'_, '_> for Generation {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, '_, PyAny>) -> PyResult<Self> {
        let refuse = || PyValueError::new_err("generation must be None or an integer from 0 to 4");
        // A bool is an int to Python, but no generation.
        let number = object.cast_exact::<PyInt>().map_err(|_| refuse())?;
        let number = number.extract::<u8>().map_err(|_| refuse())?;
        if number > core::CURRENT_GENERATION {
            Err(refuse())
        } else {
            Ok(Self(number))
        }
    }
}

/// Gives a value that came from Python to the core as JSON.
pub(crate) fn with_node<R>(
    value: &Bound<'_, PyAny>,
    f: impl FnOnce(Node<'_>) -> KernelResult<R>,
) -> KernelResult<R> {
    let max_depth = Limits::default().max_depth as usize;
    let mut text = Vec::with_capacity(256);
    write_value(value, max_depth, Spelling::Exact, &mut text)?;
    f(read_back(&text, &mut Tape::new())?)
}

/// Reads what a writer has written.
fn read_back<'a>(text: &'a [u8], tape: &'a mut Tape) -> KernelResult<Node<'a>> {
    // The writer has kept to its depth.
    let node = tape
        .read_text(text, usize::MAX)
        .map_err(|_| Error::new(ErrorKind::Row, "the value is larger than 4 GiB"))?;
    Ok(node)
}

/// Return the range form of `sourceEventSeqs`. See the stub.
#[pyfunction]
#[pyo3(signature = (values, /))]
pub(crate) fn encode_seqs<'py>(
    py: Python<'py>,
    values: &Bound<'py, PyAny>,
) -> KernelResult<Bound<'py, PyAny>> {
    with_node(values, |node| {
        let mut out = Vec::new();
        core::encode_seqs(node, &mut out)?;
        with_scratch(|scratch| parse_bytes(py, &out, 8, scratch))
    })
}

/// Return the seqs of a range form. See the stub.
#[pyfunction]
#[pyo3(signature = (value, /, *, codec = "v2", max_entries = 9_007_199_254_740_991))]
pub(crate) fn decode_seqs<'py>(
    py: Python<'py>,
    value: &Bound<'py, PyAny>,
    codec: &str,
    max_entries: u64,
) -> KernelResult<Bound<'py, PyList>> {
    let codec = match codec {
        "session" => core::SeqCodec::Session,
        "v2" => core::SeqCodec::V2,
        "v0" => core::SeqCodec::V0,
        _ => return Err(PyValueError::new_err("codec must be 'session', 'v2' or 'v0'").into()),
    };
    with_node(value, |node| {
        let total = core::decode_seqs(node, codec, max_entries, None)?;
        if total > MAX_DECODED_SEQS {
            let message =
                format!("the ranges name {total} events; set max_entries to the seq of the owning event");
            return Err(Error::limit("max_entries", MAX_DECODED_SEQS, message).into());
        }
        let mut seqs = Vec::new();
        core::decode_seqs(node, codec, max_entries, Some(&mut |seq| seqs.push(seq)))?;
        Ok(PyList::new(py, seqs)?)
    })
}

/// Check row admission of generation 4. See the stub.
#[pyfunction]
#[pyo3(signature = (event, /))]
pub(crate) fn admit(event: &Bound<'_, PyAny>) -> KernelResult<()> {
    // Most types have no rule, and what is no event has none.
    let event_type = match event.cast_exact::<PyDict>() {
        Ok(event) => event.get_item(intern!(event.py(), "type"))?,
        Err(_) => None,
    };
    let event_type = event_type
        .as_ref()
        .and_then(|text| text.cast_exact::<PyString>().ok());
    let text = event_type.map(pystring::to_wtf8).transpose()?.unwrap_or_default();
    if core::Admission::of(&text) == core::Admission::Never {
        return Ok(());
    }
    // How deep the event nests is its reader's affair.
    let mut row = Vec::with_capacity(256);
    ValueWriter::cut_at(core::Admission::DEPTH).write(event.clone(), &mut row)?;
    let mut tape = Tape::new();
    Ok(core::admit_event(read_back(&row, &mut tape)?)?)
}

/// Write one logical event as a row of generation 4. See the stub.
#[pyfunction]
#[pyo3(signature = (event, /))]
pub(crate) fn encode_event<'py>(
    py: Python<'py>,
    event: &Bound<'py, PyAny>,
) -> KernelResult<Bound<'py, PyBytes>> {
    with_node(event, |node| {
        let mut out = Vec::with_capacity(256);
        core::encode_event(node, &mut out)?;
        Ok(PyBytes::new(py, &out))
    })
}

fn issue_tuple<'py>(py: Python<'py>, issue: &core::Issue) -> PyResult<Bound<'py, PyAny>> {
    static CLASS: PyOnceLock<Py<PyType>> = PyOnceLock::new();
    class(py, &CLASS, "RowIssue")?.call1((issue.row, issue.offset, issue.error.message()))
}

/// An `int`, or None.
pub(crate) fn optional_int<'py, T>(py: Python<'py>, value: Option<T>) -> Bound<'py, PyAny>
where
    T: IntoPyObject<'py, Target = PyInt, Output = Bound<'py, PyInt>, Error = std::convert::Infallible>,
{
    value.map_or_else(
        || py.None().into_bound(py),
        |value| PyInt::new(py, value).into_any(),
    )
}

/// Makes the `ScanResult` of a scan that ended.
pub(crate) fn scan_tuple<'py>(py: Python<'py>, scan: &core::ScanResult) -> KernelResult<Bound<'py, PyAny>> {
    static RESULT: PyOnceLock<TupleClass> = PyOnceLock::new();
    static FAULT: PyOnceLock<Py<PyType>> = PyOnceLock::new();

    let totals = &scan.totals;
    let fault = class(py, &FAULT, "StreamFault")?;
    let faults = totals
        .stream_faults
        .iter()
        .map(|found| fault.call1((found.seq, found.record, found.message.as_str())))
        .collect::<PyResult<Vec<_>>>()?;
    let number = |value: u64| PyInt::new(py, value).into_any();
    let fields = [
        header_tuple(py, &scan.header)?,
        number(scan.inherited_event_count),
        number(totals.event_count),
        number(totals.row_count),
        number(totals.committed_bytes),
        number(totals.fed_bytes),
        match &scan.issue {
            Some(issue) => issue_tuple(py, issue)?,
            None => py.None().into_bound(py),
        },
        number(totals.stream_count),
        number(totals.record_count),
        number(totals.chunk_count),
        number(totals.stream_fault_count),
        PyTuple::new(py, faults)?.into_any(),
        optional_int(py, totals.first_time),
        optional_int(py, totals.last_time),
    ];
    Ok(tuple_class(py, &RESULT, "ScanResult")?.make(py, fields)?)
}

/// Incremental scan of the plaintext of a log: header, rows, seqs. Spec: 10 §8. See the stub.
#[pyclass(frozen, module = "dsh_codec._native")]
pub(crate) struct RowScanner(Mutex<core::RowScanner>);

impl RowScanner {
    fn lock(&self, py: Python<'_>) -> MutexGuard<'_, core::RowScanner> {
        self.0
            .lock_py_attached(py)
            .unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

#[pymethods]
impl RowScanner {
    #[new]
    #[pyo3(signature = (*, mode = "recoverable", generation = None, check_streams = false, max_row_bytes = 268_435_456,
        max_depth = 1024, max_packed_events = 16_777_216, first_seq = 0))]
    fn new(
        mode: &str,
        generation: Option<Generation>,
        check_streams: bool,
        max_row_bytes: u64,
        max_depth: u32,
        max_packed_events: u64,
        first_seq: u64,
    ) -> PyResult<Self> {
        let limits = Limits {
            max_row_bytes,
            max_depth,
            max_packed_events,
            ..Limits::default()
        };
        let options = scan_options(mode, generation, check_streams, limits)?;
        let mut scanner = core::RowScanner::new(options);
        scanner.begin_at(first_seq);
        Ok(Self(Mutex::new(scanner)))
    }

    /// The header, once its row is complete.
    #[getter]
    fn header<'py>(&self, py: Python<'py>) -> KernelResult<Option<Bound<'py, PyAny>>> {
        let header = self.lock(py).header().cloned();
        header.map(|header| header_tuple(py, &header)).transpose()
    }

    /// Accepted events.
    #[getter]
    fn event_count(&self, py: Python<'_>) -> u64 {
        self.lock(py).totals().event_count
    }

    /// Plaintext offset behind the last accepted row; 0 before the header.
    #[getter]
    fn committed_bytes(&self, py: Python<'_>) -> u64 {
        self.lock(py).totals().committed_bytes
    }

    /// Plaintext bytes fed.
    #[getter]
    fn fed_bytes(&self, py: Python<'_>) -> u64 {
        self.lock(py).totals().fed_bytes
    }

    /// Row of the recorded issue, from 1; None while there is none.
    #[getter]
    fn issue_row(&self, py: Python<'_>) -> Option<u64> {
        self.lock(py).issue().map(|issue| issue.row)
    }

    /// Take the next bytes and return the rows that they complete and that are accepted. See the stub.
    #[pyo3(signature = (data, /))]
    fn feed<'py>(&self, py: Python<'py>, data: InputBytes) -> KernelResult<Bound<'py, PyList>> {
        static CLASS: PyOnceLock<TupleClass> = PyOnceLock::new();

        let class = tuple_class(py, &CLASS, "Row")?;
        let mut rows = Vec::new();
        let mut failure = None;
        let fed = with_scratch(|scratch| {
            let keys = scratch.keys();
            self.lock(py)
                .feed(&data, &mut |row| match row_tuple(py, class, keys, row) {
                    Ok(tuple) => rows.push(tuple),
                    Err(error) => failure = failure.take().or(Some(error)),
                })
        });
        if let Some(error) = failure {
            return Err(error.into());
        }
        // Rows before a refusal are not lost: the scanner fails again at the next call.
        if rows.is_empty() {
            fed?;
        }
        Ok(PyList::new(py, rows)?)
    }

    /// Say that a complete frame ends here. The first must be exactly the header row. See the stub.
    #[pyo3(signature = ())]
    fn end_frame(&self, py: Python<'_>) -> KernelResult<()> {
        Ok(self.lock(py).end_frame()?)
    }

    /// Say that the last complete frame ended, before a torn one is fed. See the stub.
    #[pyo3(signature = ())]
    fn end_complete_frames(&self, py: Python<'_>) -> KernelResult<()> {
        Ok(self.lock(py).end_complete_frames()?)
    }

    /// End the scan. An unfinished last line is not a row and is ignored. See the stub.
    #[pyo3(signature = ())]
    fn finish<'py>(&self, py: Python<'py>) -> KernelResult<Bound<'py, PyAny>> {
        let scan = self.lock(py).finish()?;
        scan_tuple(py, &scan)
    }
}

/// Makes the `Row` of an accepted row.
pub(crate) fn row_tuple<'py>(
    py: Python<'py>,
    class: &TupleClass,
    keys: &mut KeyCache,
    row: &core::Row<'_>,
) -> PyResult<Bound<'py, PyAny>> {
    let event_type = match row.event_type.and_then(|node| node.text()) {
        Some(text) => keys.text(py, &text)?.into_any(),
        None => py.None().into_bound(py),
    };
    let fields = [
        event_type,
        PyInt::new(py, row.seq).into_any(),
        optional_int(py, row.time),
        PyBytes::new(py, row.raw).into_any(),
        PyInt::new(py, row.offset).into_any(),
        PyInt::new(py, row.row).into_any(),
        PyInt::new(py, row.count).into_any(),
    ];
    class.make(py, fields)
}
