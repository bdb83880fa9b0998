//! Streams as `NumPy` arrays, and streams that stay bytes. Spec 20.

#![expect(
    clippy::needless_pass_by_value,
    reason = "an argument is made for its call, which owns it"
)]

use std::sync::{Mutex, MutexGuard, PoisonError};

use dsh_codec_core::Limits;
use dsh_codec_core::json::Node;
use dsh_codec_core::stream as core;
use numpy::{Element, IntoPyArray, PyReadonlyArray1, PyReadwriteArray1};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyInt, PyList, PyString, PyTuple, PyType};

use crate::buffer::InputBytes;
use crate::errors::KernelResult;
use crate::json::parse_bytes;
use crate::object::with_scratch;
use crate::pystring;
use crate::pyvalue::PyValue;
use crate::row::{Generation, class, scan_options, scan_tuple};
use crate::stream::records_value;

/// The core's own loops serve Python values, too.
impl core::Unpack for PyValue<'_> {}

/// A `NumPy` array that takes over the memory of a vector.
fn array<T: Element>(py: Python<'_>, values: Vec<T>) -> Bound<'_, PyAny> {
    values.into_pyarray(py).into_any()
}

/// Says that `NumPy` is about to be used: a missing one is an `ImportError` here, and a panic later.
fn import_numpy(py: Python<'_>) -> PyResult<()> {
    py.import("numpy").map(drop)
}

fn stream_columns_tuple(py: Python<'_>, columns: core::Columns) -> PyResult<Bound<'_, PyAny>> {
    static CLASS: PyOnceLock<Py<PyType>> = PyOnceLock::new();

    import_numpy(py)?;
    class(py, &CLASS, "StreamColumns")?.call1((
        array(py, columns.time),
        array(py, columns.kind),
        array(py, columns.record),
        array(py, columns.offset),
        array(py, columns.text),
        array(py, columns.record_index),
        array(py, columns.record_named),
    ))
}

fn attempt_columns_tuple(py: Python<'_>, columns: core::Columns) -> PyResult<Bound<'_, PyAny>> {
    static CLASS: PyOnceLock<Py<PyType>> = PyOnceLock::new();

    import_numpy(py)?;
    class(py, &CLASS, "AttemptColumns")?.call1((
        array(py, columns.time),
        array(py, columns.kind),
        array(py, columns.record),
        array(py, columns.offset),
        array(py, columns.text),
        array(py, columns.record_index),
        array(py, columns.record_named),
        array(py, columns.attempt),
        array(py, columns.attempt_record),
    ))
}

/// Flatten the records of one stream into columns. See the stub.
#[pyfunction]
#[pyo3(signature = (records, /))]
pub(crate) fn stream_columns<'py>(records: &Bound<'py, PyAny>) -> KernelResult<Bound<'py, PyAny>> {
    let stream = records_value(records);
    // Refuses what is no list.
    let _checked = core::records(&stream)?;
    let mut builder = core::ColumnsBuilder::new();
    builder.push_stream(&stream)?;
    Ok(stream_columns_tuple(records.py(), builder.finish())?)
}

/// The items of a list or tuple; None for anything else.
fn items_of<'py>(object: &Bound<'py, PyAny>) -> Option<Vec<Bound<'py, PyAny>>> {
    if let Ok(list) = object.cast::<PyList>() {
        Some(list.iter().collect())
    } else {
        let tuple = object.cast::<PyTuple>().ok()?;
        Some(tuple.iter().collect())
    }
}

/// One row, or the rows of a list or tuple.
pub(crate) fn rows_of(object: &Bound<'_, PyAny>) -> PyResult<Vec<InputBytes>> {
    match items_of(object) {
        Some(rows) => rows.iter().map(PyAnyMethods::extract).collect(),
        None => Ok(vec![object.extract()?]),
    }
}

/// Flatten the chunks that rows of a log hold into columns. See the stub.
#[pyfunction]
#[pyo3(signature = (rows, /, *, max_depth = 1024))]
pub(crate) fn row_columns<'py>(
    rows: &Bound<'py, PyAny>,
    max_depth: usize,
) -> KernelResult<Bound<'py, PyAny>> {
    let py = rows.py();
    let attempts: Vec<Vec<InputBytes>> = match items_of(rows) {
        Some(attempts) => attempts.iter().map(rows_of).collect::<PyResult<_>>()?,
        None => vec![rows_of(rows)?],
    };
    let columns = py.detach(|| core::row_columns(&attempts, max_depth))?;
    Ok(attempt_columns_tuple(py, columns)?)
}

/// An array of `AttemptColumns`.
fn column<'py, T: Element>(columns: &Bound<'py, PyAny>, name: &str) -> PyResult<PyReadonlyArray1<'py, T>> {
    columns.getattr(name)?.extract()
}

/// Values of attempts, and an array with a place for each of their chunks.
type OfAttempts<'py> = (PyReadonlyArray1<'py, i64>, PyReadwriteArray1<'py, i64>);

/// Write columns that follow from others. See the stub.
#[pyfunction]
#[pyo3(signature = (columns, start, end, last_token, /, *, index = None, gap = None, byte_len = None,
    of_attempts = None))]
#[expect(clippy::too_many_arguments, reason = "each column is asked for or not")]
pub(crate) fn derive_columns<'py>(
    columns: &Bound<'py, PyAny>,
    start: usize,
    end: usize,
    last_token: Option<i64>,
    mut index: Option<PyReadwriteArray1<'py, i64>>,
    mut gap: Option<PyReadwriteArray1<'py, i64>>,
    mut byte_len: Option<PyReadwriteArray1<'py, i64>>,
    mut of_attempts: Option<Vec<OfAttempts<'py>>>,
) -> PyResult<Bound<'py, PyAny>> {
    static CLASS: PyOnceLock<Py<PyType>> = PyOnceLock::new();

    let py = columns.py();
    import_numpy(py)?;
    let (time, record, offset) = (
        column(columns, "time")?,
        column(columns, "record")?,
        column(columns, "offset")?,
    );
    let record_index = column(columns, "record_index")?;
    let record_named = column(columns, "record_named")?;
    let (attempt, attempt_record) = (column(columns, "attempt")?, column(columns, "attempt_record")?);
    let slices = core::ColumnSlices {
        time: time.as_slice()?,
        record: record.as_slice()?,
        offset: offset.as_slice()?,
        record_index: record_index.as_slice()?,
        record_named: record_named.as_slice()?,
        attempt: attempt.as_slice()?,
        attempt_record: attempt_record.as_slice()?,
    };
    let out = core::DerivedColumns {
        index: index.as_mut().map(|array| array.as_slice_mut()).transpose()?,
        gap: gap.as_mut().map(|array| array.as_slice_mut()).transpose()?,
        byte_len: byte_len.as_mut().map(|array| array.as_slice_mut()).transpose()?,
        of_attempts: of_attempts
            .iter_mut()
            .flatten()
            .map(|(values, out)| {
                let (values, out) = (values.as_slice()?, out.as_slice_mut()?);
                Ok(core::OfAttempts { values, out })
            })
            .collect::<PyResult<_>>()?,
    };
    // With the GIL, so that nobody writes to the arrays meanwhile: it takes less than a millisecond for a batch.
    let Some(marks) = slices.derive(start, end, last_token, out) else {
        let message = "there are no such chunks, or an array has another number of places";
        return Err(PyValueError::new_err(message));
    };
    let bits = |bits: core::ChunkBits| (array(py, bits.bytes), bits.ones);
    let (indexed, token, gap) = (bits(marks.indexed), bits(marks.token), bits(marks.gap));
    class(py, &CLASS, "DerivedColumns")?.call1((indexed, token, gap, marks.last_token))
}

/// The stream of one attempt, read from the bytes of its rows. See the stub.
#[pyclass(frozen, module = "dsh_codec._native")]
pub(crate) struct StoredStream {
    pub(crate) stream: core::StoredStream<InputBytes>,
    max_depth: usize,
}

impl StoredStream {
    fn value<'py>(&self, py: Python<'py>, node: Option<Node<'_>>) -> KernelResult<Bound<'py, PyAny>> {
        let Some(node) = node else {
            return Ok(py.None().into_bound(py));
        };
        match node.raw() {
            Some(text) => with_scratch(|scratch| parse_bytes(py, text, self.max_depth, scratch)),
            // Only a short integer has no text of its own.
            None => Ok(PyInt::new(py, node.safe_integer().unwrap_or_default()).into_any()),
        }
    }
}

#[pymethods]
impl StoredStream {
    #[new]
    #[pyo3(signature = (rows, *, max_depth = 1024))]
    fn new(rows: &Bound<'_, PyAny>, max_depth: usize) -> KernelResult<Self> {
        let stream = core::StoredStream::new(rows_of(rows)?, max_depth)?;
        Ok(Self { stream, max_depth })
    }

    /// `turn` of the first row, as it is written; None if it is absent.
    #[getter]
    fn turn<'py>(&self, py: Python<'py>) -> KernelResult<Bound<'py, PyAny>> {
        self.value(py, self.stream.data_member("turn"))
    }

    /// `step` of the first row, as it is written; None if it is absent.
    #[getter]
    fn step<'py>(&self, py: Python<'py>) -> KernelResult<Bound<'py, PyAny>> {
        self.value(py, self.stream.data_member("step"))
    }

    /// Whether `interrupted` of the first row is true.
    #[getter]
    fn is_interrupted(&self) -> bool {
        self.stream
            .data_member("interrupted")
            .is_some_and(|flag| flag.is_true())
    }

    /// Return the number of chunks; counted, not checked. See the stub.
    #[pyo3(signature = ())]
    fn chunk_count(&self) -> KernelResult<usize> {
        Ok(self.stream.chunk_count()?)
    }

    /// Return all text deltas joined. See the stub.
    #[pyo3(signature = ())]
    fn text<'py>(&self, py: Python<'py>) -> KernelResult<Bound<'py, PyString>> {
        Ok(pystring::to_python(py, &self.stream.text()?)?)
    }

    /// Return the time in milliseconds of the first token, or None. See the stub.
    #[pyo3(signature = ())]
    fn first_token_time(&self) -> KernelResult<Option<i64>> {
        Ok(self.stream.first_token_time()?)
    }

    /// Return the times of the first and the last chunk, or None. See the stub.
    #[pyo3(signature = ())]
    fn time_span(&self) -> KernelResult<Option<(i64, i64)>> {
        Ok(self.stream.time_span()?)
    }

    /// Whether any chunk shows something. See the stub.
    #[pyo3(signature = ())]
    fn has_visible_content(&self) -> KernelResult<bool> {
        Ok(self.stream.has_visible_content()?)
    }

    /// Return the last raw chunk of a type, or None. See the stub.
    #[pyo3(signature = (r#type, /))]
    fn last_chunk<'py>(
        &self,
        py: Python<'py>,
        r#type: &Bound<'py, PyString>,
    ) -> KernelResult<Option<Bound<'py, PyAny>>> {
        let wanted = pystring::to_wtf8(r#type)?;
        let parse = |text: &[u8]| with_scratch(|scratch| parse_bytes(py, text, self.max_depth, scratch));
        self.stream.last_chunk(&wanted, parse)?.transpose()
    }

    /// Return the columns of the attempt. See the stub.
    #[pyo3(signature = ())]
    fn columns<'py>(&self, py: Python<'py>) -> KernelResult<Bound<'py, PyAny>> {
        let columns = py.detach(|| self.stream.columns())?;
        Ok(stream_columns_tuple(py, columns)?)
    }
}

/// A value of a row that was scanned with the limits of its scanner; None if it is absent.
fn kept_value(py: Python<'_>, value: Option<core::KeptValue>) -> KernelResult<Bound<'_, PyAny>> {
    match value {
        None => Ok(py.None().into_bound(py)),
        Some(core::KeptValue::Integer(number)) => Ok(PyInt::new(py, number).into_any()),
        Some(core::KeptValue::Text(text)) => {
            with_scratch(|scratch| parse_bytes(py, &text, usize::MAX, scratch))
        }
    }
}

/// Scan of a log of generations 2 to 4 that keeps the chunks of its settlements as columns. See the stub.
#[pyclass(frozen, module = "dsh_codec._native")]
pub(crate) struct ColumnScanner(Mutex<core::ColumnScanner>);

impl ColumnScanner {
    /// Called without the GIL, so that waiting for another thread blocks nobody.
    fn lock(&self) -> MutexGuard<'_, core::ColumnScanner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn with<T: Send>(&self, py: Python<'_>, work: impl FnOnce(&mut core::ColumnScanner) -> T + Send) -> T {
        py.detach(|| work(&mut self.lock()))
    }
}

#[pymethods]
impl ColumnScanner {
    #[new]
    #[pyo3(signature = (*, mode = "recoverable", generation = None, text = true, max_row_bytes = 268_435_456,
        max_depth = 1024))]
    fn new(
        mode: &str,
        generation: Option<Generation>,
        text: bool,
        max_row_bytes: u64,
        max_depth: u32,
    ) -> PyResult<Self> {
        let limits = Limits {
            max_row_bytes,
            max_depth,
            ..Limits::default()
        };
        let options = scan_options(mode, generation, false, limits)?;
        Ok(Self(Mutex::new(core::ColumnScanner::new(options, text))))
    }

    /// Accepted events.
    #[getter]
    fn event_count(&self, py: Python<'_>) -> u64 {
        self.with(py, |scanner| scanner.scanner().totals().event_count)
    }

    /// Plaintext bytes fed.
    #[getter]
    fn fed_bytes(&self, py: Python<'_>) -> u64 {
        self.with(py, |scanner| scanner.scanner().totals().fed_bytes)
    }

    /// Take the next bytes. See the stub.
    #[pyo3(signature = (data, /))]
    fn feed(&self, py: Python<'_>, data: InputBytes) -> KernelResult<()> {
        let bytes: &[u8] = &data;
        Ok(self.with(py, |scanner| scanner.feed(bytes))?)
    }

    /// Add an attempt that the scan does not find. See the stub.
    #[pyo3(signature = (stream, /))]
    fn add_attempt(&self, py: Python<'_>, stream: &Bound<'_, StoredStream>) -> KernelResult<()> {
        let stream = &stream.get().stream;
        Ok(self.with(py, |scanner| scanner.add_attempt(stream))?)
    }

    /// Say that a complete frame ends here. See the stub.
    #[pyo3(signature = ())]
    fn end_frame(&self, py: Python<'_>) -> KernelResult<()> {
        Ok(self.with(py, core::ColumnScanner::end_frame)?)
    }

    /// Say that the last complete frame ended, before a torn one is fed. See the stub.
    #[pyo3(signature = ())]
    fn end_complete_frames(&self, py: Python<'_>) -> KernelResult<()> {
        Ok(self.with(py, core::ColumnScanner::end_complete_frames)?)
    }

    /// End the scan. See the stub.
    #[pyo3(signature = ())]
    fn finish<'py>(&self, py: Python<'py>) -> KernelResult<Bound<'py, PyAny>> {
        let scan = self.with(py, core::ColumnScanner::finish)?;
        scan_tuple(py, &scan)
    }

    /// Return the settlements since the last call. See the stub.
    #[pyo3(signature = ())]
    fn take_settlements<'py>(&self, py: Python<'py>) -> KernelResult<Bound<'py, PyList>> {
        static CLASS: PyOnceLock<Py<PyType>> = PyOnceLock::new();

        let class = class(py, &CLASS, "Settlement")?;
        let list = PyList::empty(py);
        for found in self.with(py, core::ColumnScanner::take_settlements) {
            let (turn, step) = (kept_value(py, found.turn)?, kept_value(py, found.step)?);
            let outcome = PyString::intern(py, found.outcome);
            list.append(class.call1((found.seq, found.time, outcome, turn, step))?)?;
        }
        Ok(list)
    }

    /// Return the settlements since the last call as arrays. See the stub.
    #[pyo3(signature = ())]
    fn take_settlement_columns<'py>(&self, py: Python<'py>) -> KernelResult<Bound<'py, PyAny>> {
        static CLASS: PyOnceLock<Py<PyType>> = PyOnceLock::new();

        import_numpy(py)?;
        let found = self.with(py, core::ColumnScanner::take_settlements);
        let seq: Vec<u64> = found.iter().map(|each| each.seq).collect();
        let outcome: Vec<i8> = found.iter().map(core::Settlement::outcome_code).collect();
        let (mut turns, mut steps) = (Vec::with_capacity(found.len()), Vec::with_capacity(found.len()));
        let others = PyList::empty(py);
        for (position, core::Settlement { turn, step, .. }) in found.into_iter().enumerate() {
            let (turn, step) = match (turn, step) {
                (Some(core::KeptValue::Integer(turn)), Some(core::KeptValue::Integer(step))) => (turn, step),
                (turn, step) => {
                    let (turn, step) = (kept_value(py, turn)?, kept_value(py, step)?);
                    if let (Ok(turn), Ok(step)) = (turn.cast_exact::<PyInt>(), step.cast_exact::<PyInt>()) {
                        // An integer in another spelling.
                        (turn.extract()?, step.extract()?)
                    } else {
                        others.append((position, turn, step))?;
                        (0, 0)
                    }
                }
            };
            turns.push(turn);
            steps.push(step);
        }
        let arrays = (
            array(py, seq),
            array(py, outcome),
            array(py, turns),
            array(py, steps),
            others,
        );
        Ok(class(py, &CLASS, "SettlementColumns")?.call1(arrays)?)
    }

    /// Return the columns so far, and start new ones. See the stub.
    #[pyo3(signature = ())]
    fn take_columns<'py>(&self, py: Python<'py>) -> KernelResult<Bound<'py, PyAny>> {
        let columns = self.with(py, core::ColumnScanner::take_columns);
        Ok(attempt_columns_tuple(py, columns)?)
    }
}
