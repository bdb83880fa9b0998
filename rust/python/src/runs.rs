//! Chunk rows of generations 0 and 1 that stay together. Spec 50 §5.3, §5.5.

#![expect(
    clippy::needless_pass_by_value,
    reason = "an argument is made for its call, which owns it"
)]

use std::sync::{Mutex, MutexGuard, PoisonError};

use dsh_codec_core::Limits;
use dsh_codec_core::row::Row;
use dsh_codec_core::stream as core;
use pyo3::prelude::*;
use pyo3::sync::{MutexExt, PyOnceLock};
use pyo3::types::{PyBytes, PyList, PyType};

use crate::buffer::InputBytes;
use crate::columns::rows_of;
use crate::errors::KernelResult;
use crate::json::parse_bytes;
use crate::object::{Scratch, with_scratch};
use crate::pybuild::TupleClass;
use crate::pystring::to_python;
use crate::row::{Generation, class, row_tuple, scan_options, scan_tuple, tuple_class};

/// Scan that gives the chunk rows of an attempt together. See the stub.
#[pyclass(frozen, module = "dsh_codec._native")]
pub(crate) struct RunScanner(Mutex<core::RunScanner>);

impl RunScanner {
    fn lock(&self, py: Python<'_>) -> MutexGuard<'_, core::RunScanner> {
        self.0
            .lock_py_attached(py)
            .unwrap_or_else(PoisonError::into_inner)
    }
}

#[pymethods]
impl RunScanner {
    #[new]
    #[pyo3(signature = (*, mode = "recoverable", generation = None, max_row_bytes = 268_435_456, max_depth = 1024,
        max_packed_events = 16_777_216))]
    fn new(
        mode: &str,
        generation: Option<Generation>,
        max_row_bytes: u64,
        max_depth: u32,
        max_packed_events: u64,
    ) -> PyResult<Self> {
        let limits = Limits {
            max_row_bytes,
            max_depth,
            max_packed_events,
            ..Limits::default()
        };
        let options = scan_options(mode, generation, false, limits)?;
        Ok(Self(Mutex::new(core::RunScanner::new(options))))
    }

    /// Accepted events.
    #[getter]
    fn event_count(&self, py: Python<'_>) -> u64 {
        self.lock(py).scanner().totals().event_count
    }

    /// Plaintext bytes fed.
    #[getter]
    fn fed_bytes(&self, py: Python<'_>) -> u64 {
        self.lock(py).scanner().totals().fed_bytes
    }

    /// Take the next bytes and return the rows and runs that they complete. See the stub.
    #[pyo3(signature = (data, /))]
    fn feed<'py>(&self, py: Python<'py>, data: InputBytes) -> KernelResult<Bound<'py, PyList>> {
        static ROW: PyOnceLock<TupleClass> = PyOnceLock::new();
        static RUN: PyOnceLock<Py<PyType>> = PyOnceLock::new();
        static COMMON: PyOnceLock<Py<PyType>> = PyOnceLock::new();

        let row_class = tuple_class(py, &ROW, "Row")?;
        let run_class = class(py, &RUN, "ChunkRun")?;
        let common_class = class(py, &COMMON, "CommonRow")?;
        let mut units = Vec::new();
        let mut failure = None;
        let fed = with_scratch(|scratch| {
            self.lock(py).feed(&data, &mut |unit| {
                let made = match unit {
                    core::Unit::Row(row) => row_tuple(py, row_class, scratch.keys(), row),
                    core::Unit::Common(common, row) => common_tuple(py, &common_class, scratch, &common, row),
                    core::Unit::Run(run) => run_tuple(py, &run_class, &run),
                };
                match made {
                    Ok(tuple) => units.push(tuple),
                    Err(error) => failure = failure.take().or(Some(error)),
                }
            })
        });
        if let Some(error) = failure {
            return Err(error.into());
        }
        // What stands before a refusal is not lost: the scanner fails again at the next call.
        if units.is_empty() {
            fed?;
        }
        Ok(PyList::new(py, units)?)
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

    /// End the scan. See the stub.
    #[pyo3(signature = ())]
    fn finish<'py>(&self, py: Python<'py>) -> KernelResult<Bound<'py, PyAny>> {
        let scan = self.lock(py).finish()?;
        scan_tuple(py, &scan)
    }
}

fn common_tuple<'py>(
    py: Python<'py>,
    class: &Bound<'py, PyType>,
    scratch: &mut Scratch,
    common: &core::CommonRow<'_>,
    row: &Row<'_>,
) -> PyResult<Bound<'py, PyAny>> {
    let kind = scratch.keys().text(py, common.kind.as_bytes())?;
    let id = common.id.as_deref().map(|id| to_python(py, id)).transpose()?;
    let sources = match common.sources.and_then(|seqs| seqs.raw()) {
        // Pairs in an array.
        Some(text) => Some(parse_bytes(py, text, 2, scratch).map_err(PyErr::from)?),
        None => None,
    };
    class.call1((
        kind,
        row.seq,
        common.time,
        PyBytes::new(py, row.raw),
        row.offset,
        row.row,
        common.turn,
        common.step,
        id,
        sources,
        PyBytes::new(py, &common.data),
    ))
}

fn run_tuple<'py>(
    py: Python<'py>,
    class: &Bound<'py, PyType>,
    run: &core::ChunkRun,
) -> PyResult<Bound<'py, PyAny>> {
    class.call1((
        run.seq,
        run.count,
        run.turn,
        run.step,
        run.time,
        run.has_events,
        run.is_terminal,
        PyBytes::new(py, &run.raw),
        run.offset,
        run.row,
    ))
}

/// Pack the rows of runs into the stream of an attempt. See the stub.
#[pyfunction]
#[pyo3(signature = (runs, /, *, max_depth = 1024))]
pub(crate) fn pack_runs<'py>(runs: &Bound<'py, PyAny>, max_depth: usize) -> KernelResult<Bound<'py, PyAny>> {
    static CLASS: PyOnceLock<Py<PyType>> = PyOnceLock::new();

    let py = runs.py();
    let runs = rows_of(runs)?;
    let packed = py.detach(|| core::pack_runs(&runs, max_depth))?;
    let text = PyBytes::new(py, &packed.text);
    Ok(class(py, &CLASS, "StreamText")?.call1((text, packed.has_plain_blocks))?)
}
