//! Embedded assistant streams. Spec 20.

#![expect(
    clippy::doc_markdown,
    reason = "these are Python docstrings, the same as in the stub"
)]

use dsh_codec_core::Limits;
use dsh_codec_core::stream::{
    self as core, Block, CallId, Packed, PackedRun, Record, ReplayState, Run, Word,
};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyInt, PyIterator, PyList, PyString, PyTuple, PyType};

use crate::errors::KernelResult;
use crate::owned::Owned;
use crate::packed_text::PackedText;
use crate::pybuild::{CollectorPause, TupleClass};
use crate::pystring;
use crate::pyvalue::{PyValue, deep_copy, word};
use crate::settlement::{Given, encode_event, settle};

type Kept = Py<PyAny>;

/// A list of records as a value. The list itself may be a tuple.
pub(crate) fn records_value<'py>(records: &Bound<'py, PyAny>) -> PyValue<'py> {
    match records.cast_exact::<PyTuple>() {
        Ok(tuple) => PyValue(tuple.to_list().into_any()),
        Err(_) => PyValue(records.clone()),
    }
}

/// Joins fragments to one string; a surrogate pair that was split becomes one character. Spec 20 §8.2.
fn join<'py>(
    py: Python<'py>,
    fragments: impl IntoIterator<Item = Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, PyString>> {
    static EMPTY: PyOnceLock<Py<PyString>> = PyOnceLock::new();
    let empty = EMPTY.get_or_init(py, || PyString::new(py, "").unbind()).bind(py);
    let fragments = PyList::new(py, fragments.into_iter().collect::<Vec<_>>())?;
    let joined = empty
        .call_method1(pyo3::intern!(py, "join"), (fragments,))?
        .cast_into::<PyString>()?;
    // Only strings with lone halves cannot be encoded. Encoding here keeps no second copy, as borrowing it would.
    if joined.call_method0(pyo3::intern!(py, "isascii"))?.is_truthy()? || joined.encode_utf8().is_ok() {
        return Ok(joined);
    }
    pystring::to_python(py, &pystring::to_wtf8(&joined)?)
}

fn join_kept<'py>(py: Python<'py>, fragments: &[Kept]) -> PyResult<Bound<'py, PyString>> {
    join(py, fragments.iter().map(|fragment| fragment.bind(py).clone()))
}

// --- expansion ---

/// Makes `TimedChunk` objects.
struct ChunkBuilder<'py> {
    py: Python<'py>,
    class: &'static TupleClass,
}

impl<'py> ChunkBuilder<'py> {
    fn new(py: Python<'py>) -> PyResult<Self> {
        static CLASS: PyOnceLock<TupleClass> = PyOnceLock::new();
        let class = CLASS.get_or_try_init(py, || {
            let class = py.import("dsh_codec._types")?.getattr("TimedChunk")?;
            TupleClass::new(class.cast::<PyType>()?)
        })?;
        Ok(Self { py, class })
    }

    /// Appends the chunks of a record.
    fn expand(&self, record: &Record<PyValue<'py>>, out: &mut Vec<Bound<'py, PyAny>>) -> PyResult<()> {
        match record {
            Record::Raw { time, chunk } => {
                out.push(
                    self.class
                        .make(self.py, [PyInt::new(self.py, *time).into_any(), chunk.0.clone()])?,
                );
                Ok(())
            }
            Record::Run(run) => self.expand_run(run, out),
        }
    }

    fn expand_run(&self, run: &Run<PyValue<'py>>, out: &mut Vec<Bound<'py, PyAny>>) -> PyResult<()> {
        let py = self.py;
        let key = word(py, run.kind.fragment_key());
        let head = PyDict::new(py);
        head.set_item(word(py, Word::Type), word(py, run.kind.delta_type()))?;
        head.set_item(word(py, Word::Index), run.index)?;
        for (key, value) in [(Word::Id, &run.id), (Word::Name, &run.name)] {
            if let Some(value) = value {
                head.set_item(word(py, key), &value.0)?;
            }
        }
        let members = run.members.0.cast::<PyList>()?;
        for (time, member) in run.times().zip(members.iter()) {
            // Copying a dictionary is faster than setting its members one by one (benches/bench_stream.py).
            let chunk = head.copy()?;
            chunk.set_item(&key, member)?;
            out.push(
                self.class
                    .make(py, [PyInt::new(py, time).into_any(), chunk.into_any()])?,
            );
        }
        Ok(())
    }
}

/// Expand records into timed chunks, checking every rule of 20 §4.
///
/// Returns:
///     The chunks in order; times in milliseconds. Fresh objects, but for the chunks of raw
///     `chunk` records, which are those of the records.
///
/// Raises:
///     StreamError: A record breaks a rule (`.record` is its index), or `records` is no list.
#[pyfunction]
#[pyo3(signature = (records, /))]
pub(crate) fn expand<'py>(records: &Bound<'py, PyAny>) -> KernelResult<Bound<'py, PyList>> {
    let py = records.py();
    let mut valid = Vec::new();
    let mut count = 0;
    for record in core::records(&records_value(records))? {
        let record = record?;
        count += record.chunk_count();
        valid.push(record);
    }
    let builder = ChunkBuilder::new(py)?;
    let mut chunks = Vec::with_capacity(count);
    // Every new object is kept, so a collection meanwhile would find nothing.
    let pause = CollectorPause::new(py);
    for record in &valid {
        builder.expand(record, &mut chunks)?;
    }
    let chunks = PyList::new(py, chunks)?;
    drop(pause);
    Ok(chunks)
}

/// Yield what `expand` returns, one record at a time.
///
/// Raises:
///     StreamError: When a bad record is reached, after the chunks of those before it.
#[pyfunction]
#[pyo3(signature = (records, /))]
pub(crate) fn iter_expand(records: &Bound<'_, PyAny>) -> KernelResult<ExpandIterator> {
    // Refuses at once what is no list.
    let list = records_value(records);
    let _checked = core::records(&list)?;
    let records = records.try_iter()?.unbind();
    Ok(ExpandIterator(Owned::new(Some(Expansion {
        records,
        next: 0,
        chunks: Vec::new(),
    }))))
}

struct Expansion {
    records: Py<PyIterator>,
    /// Number of the record that comes next.
    next: usize,
    /// Chunks of the record before it that were not yet taken, the next one last.
    chunks: Vec<Kept>,
}

/// Iterator over the timed chunks of records.
#[pyclass(frozen, module = "dsh_codec._native")]
pub(crate) struct ExpandIterator(Owned<Option<Expansion>>);

#[pymethods]
impl ExpandIterator {
    fn __iter__(this: PyRef<'_, Self>) -> PyRef<'_, Self> {
        this
    }

    fn __next__(&self, py: Python<'_>) -> KernelResult<Option<Kept>> {
        let mut state = self.0.lock(py)?;
        let result = state.as_mut().map_or(Ok(None), |expansion| expansion.advance(py));
        if !matches!(result, Ok(Some(_))) {
            *state = None;
        }
        result
    }
}

impl Expansion {
    fn advance(&mut self, py: Python<'_>) -> KernelResult<Option<Kept>> {
        while self.chunks.is_empty() {
            let Some(record) = self.records.bind(py).clone().next() else {
                return Ok(None);
            };
            let record = core::validate_nth(self.next, &PyValue(record?))?;
            self.next += 1;
            let mut chunks = Vec::with_capacity(record.chunk_count());
            let pause = CollectorPause::new(py);
            ChunkBuilder::new(py)?.expand(&record, &mut chunks)?;
            drop(pause);
            self.chunks = chunks.into_iter().rev().map(Bound::unbind).collect();
        }
        Ok(self.chunks.pop())
    }
}

// --- packing ---

/// Takes the items of an iterable one by one.
fn timed_chunks<'py>(
    timed: &Bound<'py, PyAny>,
    mut take: impl FnMut(&Bound<'py, PyAny>) -> KernelResult<()>,
) -> KernelResult<()> {
    if let Ok(list) = timed.cast_exact::<PyList>() {
        return list.iter().try_for_each(|item| take(&item));
    }
    timed.try_iter()?.try_for_each(|item| take(&item?))
}

fn extend_packer(packer: &mut core::Packer<Kept>, item: &Bound<'_, PyAny>) -> KernelResult<()> {
    match item.cast::<PyTuple>() {
        Ok(pair) if pair.len() == 2 => {
            let (time, chunk) = (PyValue(pair.get_item(0)?), PyValue(pair.get_item(1)?));
            Ok(packer.push(Some(&time), Some(&chunk))?)
        }
        _ => Ok(packer.push_timed(&PyValue(item.clone()))?),
    }
}

fn snapshot<'py>(py: Python<'py>, packer: &core::Packer<Kept>) -> KernelResult<Bound<'py, PyList>> {
    let records = packer.records().iter().map(|record| match record {
        Packed::Run(run) => Ok(packed_run(py, run)?),
        Packed::Raw { time, chunk } => {
            let record = PyDict::new(py);
            record.set_item(word(py, Word::Type), word(py, Word::Chunk))?;
            record.set_item(word(py, Word::Time), time)?;
            record.set_item(word(py, Word::Chunk), deep_copy(chunk.bind(py))?)?;
            Ok(record)
        }
    });
    let records: Vec<_> = records.collect::<KernelResult<_>>()?;
    Ok(PyList::new(py, records)?)
}

/// A record with the keys in the order of spec 20 §2.
fn packed_run<'py>(py: Python<'py>, run: &PackedRun<Kept>) -> PyResult<Bound<'py, PyDict>> {
    let record = PyDict::new(py);
    record.set_item(word(py, Word::Type), word(py, run.kind.record_type()))?;
    record.set_item(word(py, Word::Time0), run.time0)?;
    record.set_item(word(py, Word::Index), run.index)?;
    record.set_item(word(py, Word::Dt), PyList::new(py, &run.dt)?)?;
    for (key, value) in [(Word::Id, &run.id), (Word::Name, &run.name)] {
        if let Some(value) = value {
            record.set_item(word(py, key), value)?;
        }
    }
    record.set_item(word(py, run.kind.members_key()), PyList::new(py, &run.members)?)?;
    Ok(record)
}

/// A packer, and the text of its records.
#[derive(Default)]
pub(crate) struct Packing {
    pub(crate) packer: core::Packer<Kept>,
    pub(crate) text: PackedText,
}

/// Accumulator that packs timed chunks into records as they arrive. Spec: 20 §3.
///
/// It also keeps the JSON text of what was pushed, for `encode_settlement`.
#[pyclass(frozen, module = "dsh_codec._native")]
pub(crate) struct Packer(Owned<Packing>);

#[pymethods]
impl Packer {
    #[new]
    #[pyo3(signature = ())]
    fn new() -> Self {
        Self(Owned::default())
    }

    /// Add one chunk.
    ///
    /// Args:
    ///     time: Milliseconds since the Unix epoch, a safe integer (`10.0` is one).
    ///     chunk: The chunk; copied where it is kept.
    ///
    /// Raises:
    ///     UnknownChunkError: The chunk's type is not one of 20 §1, or `chunk` is a string,
    ///         number, boolean or array.
    ///     StreamError: Any other rule of 20 §3. Nothing has changed then; `.record` is the
    ///         number of chunks accepted so far.
    #[pyo3(signature = (time, chunk, /))]
    fn push(&self, time: Bound<'_, PyAny>, chunk: Bound<'_, PyAny>) -> KernelResult<()> {
        let py = time.py();
        let packing = &mut *self.0.lock(py)?;
        packing.packer.push(Some(&PyValue(time)), Some(&PyValue(chunk)))?;
        // So a settlement has nothing left to write but what it adds.
        let max_depth = Limits::default().max_depth as usize;
        packing.text.follow(py, packing.packer.records(), max_depth);
        Ok(())
    }

    /// Add many chunks: `TimedChunk`, pairs, or objects with `time` and `chunk`.
    ///
    /// Raises:
    ///     StreamError: As for `push`; the chunks before the refused one have been added.
    #[pyo3(signature = (timed, /))]
    fn extend(&self, timed: &Bound<'_, PyAny>) -> KernelResult<()> {
        let py = timed.py();
        timed_chunks(timed, |item| extend_packer(&mut self.0.lock(py)?.packer, item))
    }

    /// Return the records so far, detached from the packer. Key order of 20 §2.
    #[pyo3(signature = ())]
    fn snapshot<'py>(&self, py: Python<'py>) -> KernelResult<Bound<'py, PyList>> {
        snapshot(py, &self.0.lock(py)?.packer)
    }

    /// Write the event that settles the attempt. See the stub.
    #[pyo3(signature = (given, seq, /, *, max_row_bytes = 268_435_456))]
    fn encode_settlement<'py>(
        &self,
        py: Python<'py>,
        given: Given<'py>,
        seq: u64,
        max_row_bytes: u64,
    ) -> KernelResult<Bound<'py, PyAny>> {
        let is_interrupted = given.is_interrupted()?;
        let records = {
            let packing = &mut *self.0.lock(py)?;
            let settled = settle(py, packing, &given, is_interrupted, seq, max_row_bytes)?;
            if let Some(rows) = settled {
                return Ok(rows);
            }
            snapshot(py, &packing.packer)?
        };
        // Without the lock: the event is made by code of Python.
        encode_event(py, records, given, is_interrupted, seq, max_row_bytes)
    }
}

/// Pack timed chunks into records: `Packer`, `extend`, `snapshot` in one call.
///
/// Raises:
///     StreamError: A chunk is refused; `.record` is its index.
#[pyfunction]
#[pyo3(signature = (timed, /))]
pub(crate) fn pack<'py>(timed: &Bound<'py, PyAny>) -> KernelResult<Bound<'py, PyList>> {
    let mut packer = core::Packer::new();
    timed_chunks(timed, |item| extend_packer(&mut packer, item))?;
    snapshot(timed.py(), &packer)
}

// --- readers ---

/// Return the time in milliseconds of the first token, or None. Spec: 20 §5.
#[pyfunction]
#[pyo3(signature = (records, /))]
pub(crate) fn first_token_time(records: &Bound<'_, PyAny>) -> KernelResult<Option<i64>> {
    Ok(core::first_token_time(&records_value(records))?)
}

/// Whether any chunk or run shows something. Spec: 20 §5.
#[pyfunction]
#[pyo3(signature = (records, /))]
pub(crate) fn has_visible_content(records: &Bound<'_, PyAny>) -> KernelResult<bool> {
    Ok(core::has_visible_content(&records_value(records))?)
}

/// Whether any answer text is more than white space. Spec: 20 §5.
#[pyfunction]
#[pyo3(signature = (records, /))]
pub(crate) fn has_visible_text(records: &Bound<'_, PyAny>) -> KernelResult<bool> {
    Ok(core::has_visible_text(&records_value(records))?)
}

/// Return all text deltas joined, split surrogate pairs fused. Spec: 20 §5, §8.2.
#[pyfunction]
#[pyo3(signature = (records, /))]
pub(crate) fn join_text<'py>(records: &Bound<'py, PyAny>) -> KernelResult<Bound<'py, PyString>> {
    let fragments = core::text_fragments(&records_value(records))?;
    Ok(join(
        records.py(),
        fragments.into_iter().map(|fragment| fragment.0),
    )?)
}

/// Return the last raw chunk of a type, or None. Spec: 20 §5.
#[pyfunction]
#[pyo3(signature = (records, r#type, /))]
pub(crate) fn last_chunk<'py>(
    records: &Bound<'py, PyAny>,
    r#type: &Bound<'py, PyString>,
) -> KernelResult<Option<Bound<'py, PyAny>>> {
    let chunk = core::last_chunk(&records_value(records), &pystring::to_wtf8(r#type)?)?;
    Ok(chunk.map(|chunk| chunk.0))
}

/// Return all raw chunks of a type, in order. Spec: 20 §5.
#[pyfunction]
#[pyo3(signature = (records, r#type, /))]
pub(crate) fn chunks_of<'py>(
    records: &Bound<'py, PyAny>,
    r#type: &Bound<'py, PyString>,
) -> KernelResult<Vec<Bound<'py, PyAny>>> {
    let chunks = core::chunks_of(&records_value(records), &pystring::to_wtf8(r#type)?)?;
    Ok(chunks.into_iter().map(|chunk| chunk.0).collect())
}

/// Return the time in milliseconds of the first token of a run, or None. Spec: 20 §5.
#[pyfunction]
#[pyo3(signature = (record, /))]
pub(crate) fn run_first_token_time(record: Bound<'_, PyAny>) -> KernelResult<Option<i64>> {
    Ok(core::run_first_token_time(&PyValue(record))?)
}

/// Return the time in milliseconds of a run's first visible member, or None. Spec: 20 §5.
#[pyfunction]
#[pyo3(signature = (record, /))]
pub(crate) fn run_first_visible_time(record: Bound<'_, PyAny>) -> KernelResult<Option<i64>> {
    Ok(core::run_first_visible_time(&PyValue(record))?)
}

/// Whether the chunk is a token delta. Spec: 20 §5.
#[pyfunction]
#[pyo3(signature = (chunk, /))]
pub(crate) fn is_token_delta(chunk: Bound<'_, PyAny>) -> bool {
    core::is_token_delta(&PyValue(chunk))
}

/// Whether the chunk shows something. Spec: 20 §5.
#[pyfunction]
#[pyo3(signature = (chunk, /))]
pub(crate) fn is_visible_chunk(chunk: Bound<'_, PyAny>) -> bool {
    core::is_visible_chunk(&PyValue(chunk))
}

/// Whether the chunk holds answer text that is more than white space. Spec: 20 §5.
#[pyfunction]
#[pyo3(signature = (chunk, /))]
pub(crate) fn chunk_has_visible_text(chunk: Bound<'_, PyAny>) -> bool {
    core::chunk_has_visible_text(&PyValue(chunk))
}

// --- assembly ---

/// Block assembler. Spec: 20 §6.
#[pyclass(frozen, module = "dsh_codec._native")]
pub(crate) struct Assembler(Owned<core::Assembler<Kept>>);

/// Makes the object of a block, which is the block itself if it was closed by one.
pub(crate) fn block_object<'py>(py: Python<'py>, block: Block<'_, Kept>) -> PyResult<Bound<'py, PyAny>> {
    let object = PyDict::new(py);
    let (kind, text) = match block {
        Block::Closed(block) => return Ok(block.bind(py).clone()),
        Block::Text(text) => (Word::Text, text),
        Block::Reasoning(text) => (Word::Reasoning, text),
        Block::ToolCall { id, name, arguments } => {
            object.set_item(word(py, Word::Type), word(py, Word::ToolCall))?;
            match id {
                CallId::Given(id) => object.set_item(word(py, Word::Id), id)?,
                CallId::Derived(id) => object.set_item(word(py, Word::Id), pystring::to_python(py, &id)?)?,
            }
            match name {
                Some(name) => object.set_item(word(py, Word::Name), name)?,
                None => object.set_item(word(py, Word::Name), "")?,
            }
            object.set_item(word(py, Word::Arguments), join_kept(py, arguments)?)?;
            return Ok(object.into_any());
        }
    };
    object.set_item(word(py, Word::Type), word(py, kind))?;
    object.set_item(word(py, Word::Text), join_kept(py, text)?)?;
    Ok(object.into_any())
}

fn block_objects<'py>(py: Python<'py>, blocks: Vec<Block<'_, Kept>>) -> PyResult<Vec<Bound<'py, PyAny>>> {
    blocks.into_iter().map(|block| block_object(py, block)).collect()
}

#[pymethods]
impl Assembler {
    #[new]
    #[pyo3(signature = ())]
    pub(crate) fn new() -> Self {
        Self(Owned::new(core::Assembler::new()))
    }

    /// Add one chunk.
    ///
    /// Raises:
    ///     UnknownChunkError: The chunk's type is not one of 20 §1.
    ///     StreamError: The chunk cannot be assembled (20 §8.5).
    #[pyo3(signature = (chunk, /))]
    fn push(&self, chunk: Bound<'_, PyAny>) -> KernelResult<()> {
        let mut assembler = self.0.lock(chunk.py())?;
        Ok(assembler.push(&PyValue(chunk))?)
    }

    /// Add the chunks of records or of a `Packer`, each run as one delta. Records are not validated.
    ///
    /// Raises:
    ///     StreamError: As for `push`.
    #[pyo3(signature = (records, /))]
    fn push_records(&self, records: &Bound<'_, PyAny>) -> KernelResult<()> {
        let py = records.py();
        if let Ok(packer) = records.cast_exact::<Packer>() {
            let packing = packer.get().0.lock(py)?;
            let records = packing.packer.records();
            return Ok(self
                .0
                .lock(py)?
                .push_packed(records, |kept| PyValue(kept.bind(py).clone()))?);
        }
        Ok(self.0.lock(py)?.push_records(&records_value(records))?)
    }

    /// Return the kept blocks.
    ///
    /// Raises:
    ///     StreamError: A block of unknown type is still open.
    #[pyo3(signature = ())]
    fn blocks<'py>(&self, py: Python<'py>) -> KernelResult<Vec<Bound<'py, PyAny>>> {
        Ok(block_objects(py, self.0.lock(py)?.blocks()?)?)
    }

    /// Return the visible text and reasoning blocks of an interrupted attempt.
    #[pyo3(signature = ())]
    fn interrupted_blocks<'py>(&self, py: Python<'py>) -> KernelResult<Vec<Bound<'py, PyAny>>> {
        Ok(block_objects(py, self.0.lock(py)?.interrupted_blocks()?)?)
    }

    /// Return the last usage, or `default` if there was none.
    #[pyo3(signature = (default = None, /))]
    fn usage(&self, py: Python<'_>, default: Option<Kept>) -> PyResult<Option<Kept>> {
        let assembler = self.0.lock(py)?;
        Ok(assembler.usage().map(|usage| usage.clone_ref(py)).or(default))
    }

    /// Return the last finish reason, or `{"kind": "stop"}` if there was none.
    #[pyo3(signature = ())]
    fn finish(&self, py: Python<'_>) -> KernelResult<Kept> {
        if let Some(reason) = self.0.lock(py)?.finish() {
            return Ok(reason.clone_ref(py));
        }
        let (key, value) = core::DEFAULT_FINISH;
        let reason = PyDict::new(py);
        reason.set_item(word(py, key), word(py, value))?;
        Ok(reason.into_any().unbind())
    }

    /// Return the replay state aligned with the kept blocks, or `default` if absent.
    ///
    /// Raises:
    ///     StreamError: A block of unknown type is still open.
    #[pyo3(signature = (default = None, /))]
    fn replay_state(&self, py: Python<'_>, default: Option<Kept>) -> KernelResult<Option<Kept>> {
        let envelope = replay_object(py, self.0.lock(py)?.replay_state()?)?;
        Ok(envelope.map(Bound::unbind).or(default))
    }
}

/// Makes the object of a replay state; None if it is absent.
pub(crate) fn replay_object<'py>(
    py: Python<'py>,
    state: ReplayState<'_, Kept>,
) -> PyResult<Option<Bound<'py, PyAny>>> {
    match state {
        ReplayState::Absent => Ok(None),
        ReplayState::Whole(envelope) => Ok(Some(envelope.bind(py).clone())),
        ReplayState::Pruned { response, blocks } => {
            let envelope = PyDict::new(py);
            if let Some(response) = response {
                envelope.set_item(word(py, Word::Response), response)?;
            }
            envelope.set_item(word(py, Word::Blocks), PyList::new(py, blocks)?)?;
            Ok(Some(envelope.into_any()))
        }
    }
}
