//! Whole files in one pass, without the GIL.

#![expect(
    clippy::needless_pass_by_value,
    reason = "an argument is made for its call, which owns it"
)]
#![expect(
    clippy::too_many_arguments,
    reason = "these are keyword arguments, each with a default"
)]

use std::num::NonZero;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::time::Duration;

use dsh_codec_core::bulk::{self as core, Compression};
use dsh_codec_core::row::ScanOptions;
use dsh_codec_core::rules::Level;
use dsh_codec_core::{Limits, Result};
use pyo3::exceptions::{PyBaseException, PyTypeError, PyValueError};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyInt, PyList, PyString, PyTuple};

use crate::buffer::InputBytes;
use crate::errors::{KernelError, KernelResult};
use crate::pybuild::TupleClass;
use crate::row::{Generation, optional_int, scan_options, scan_tuple, tuple_class};

/// Time between two looks at signals.
const WATCH_INTERVAL: Duration = Duration::from_millis(20);

/// `progress` is called at every third look, every 60 ms.
const LOOKS_PER_PROGRESS: u32 = 3;

fn file_tuple<'py>(py: Python<'py>, file: &core::FileScan) -> KernelResult<Bound<'py, PyAny>> {
    static CLASS: PyOnceLock<TupleClass> = PyOnceLock::new();

    let findings: Vec<Py<PyBaseException>> = file
        .scan
        .findings
        .kept
        .iter()
        .map(|found| PyErr::from(KernelError::from(found.replica())).into_value(py))
        .collect();
    let compression = match file.compression {
        Compression::None => intern!(py, "none"),
        Compression::Zstd => intern!(py, "zstd"),
    };
    let number = |value: u64| PyInt::new(py, value).into_any();
    let fields = [
        scan_tuple(py, &file.scan)?,
        compression.clone().into_any(),
        number(file.file_bytes),
        number(file.plain_bytes),
        optional_int(py, file.frame_count),
        optional_int(py, file.torn_start),
        optional_int(py, file.truncate_to),
        number(file.recovered_count),
        PyTuple::new(py, findings)?.into_any(),
        number(file.scan.findings.count),
    ];
    Ok(tuple_class(py, &CLASS, "FileScan")?.make(py, fields)?)
}

fn parse_level(level: &str) -> PyResult<Level> {
    match level {
        "scan" => Ok(Level::Scan),
        "read" => Ok(Level::Read),
        "restore" => Ok(Level::Restore),
        "full" => Ok(Level::Full),
        _ => Err(PyValueError::new_err("level is one of scan, read, restore, full")),
    }
}

/// The argument `threads`: as many as there are processors if it is None.
fn thread_count(threads: Option<i64>) -> PyResult<NonZero<usize>> {
    match threads {
        None => Ok(std::thread::available_parallelism().unwrap_or(NonZero::<usize>::MIN)),
        Some(threads) => usize::try_from(threads)
            .ok()
            .and_then(NonZero::new)
            .ok_or_else(|| PyValueError::new_err("threads is None or at least 1")),
    }
}

fn run<'py>(
    py: Python<'py>,
    mode: &str,
    level: &str,
    generation: Option<Generation>,
    limits: Limits,
    check: impl FnOnce(ScanOptions, Level) -> Result<core::FileScan> + Send,
) -> KernelResult<Bound<'py, PyAny>> {
    let options = scan_options(mode, generation, true, limits)?;
    let level = parse_level(level)?;
    let file = py.detach(|| check(options, level))?;
    file_tuple(py, &file)
}

/// Scan a whole log in memory. See the stub.
#[pyfunction]
#[pyo3(signature = (data, /, *, mode = "recoverable", level = "scan", generation = None, max_row_bytes = 268_435_456,
    max_frame_plain_bytes = 1_073_741_824, max_depth = 1024, max_packed_events = 16_777_216))]
pub(crate) fn check_bytes<'py>(
    py: Python<'py>,
    data: InputBytes,
    mode: &str,
    level: &str,
    generation: Option<Generation>,
    max_row_bytes: u64,
    max_frame_plain_bytes: u64,
    max_depth: u32,
    max_packed_events: u64,
) -> KernelResult<Bound<'py, PyAny>> {
    let limits = Limits {
        max_row_bytes,
        max_frame_plain_bytes,
        max_depth,
        max_packed_events,
    };
    let bytes: &[u8] = &data;
    run(py, mode, level, generation, limits, |options, level| {
        core::check_bytes(bytes, options, level)
    })
}

/// `check_bytes` for a file, in bounded memory. See the stub.
#[pyfunction]
#[pyo3(signature = (path, /, *, threads = None, mode = "recoverable", level = "scan", generation = None, max_row_bytes = 268_435_456,
    max_frame_plain_bytes = 1_073_741_824, max_depth = 1024, max_packed_events = 16_777_216))]
pub(crate) fn check_file<'py>(
    py: Python<'py>,
    path: PathBuf,
    threads: Option<i64>,
    mode: &str,
    level: &str,
    generation: Option<Generation>,
    max_row_bytes: u64,
    max_frame_plain_bytes: u64,
    max_depth: u32,
    max_packed_events: u64,
) -> KernelResult<Bound<'py, PyAny>> {
    let limits = Limits {
        max_row_bytes,
        max_frame_plain_bytes,
        max_depth,
        max_packed_events,
    };
    let threads = thread_count(threads)?;
    run(py, mode, level, generation, limits, |options, level| {
        core::check_file(&path, options, level, threads)
    })
    .map_err(|error: KernelError| error.with_path(&path))
}

/// `check_file` for many files on several threads. See the stub.
#[pyfunction]
#[pyo3(signature = (paths, /, *, threads = None, progress = None, mode = "recoverable", level = "scan",
    generation = None, max_row_bytes = 268_435_456, max_frame_plain_bytes = 1_073_741_824, max_depth = 1024,
    max_packed_events = 16_777_216))]
pub(crate) fn check_many<'py>(
    py: Python<'py>,
    paths: &Bound<'py, PyAny>,
    threads: Option<i64>,
    progress: Option<Py<PyAny>>,
    mode: &str,
    level: &str,
    generation: Option<Generation>,
    max_row_bytes: u64,
    max_frame_plain_bytes: u64,
    max_depth: u32,
    max_packed_events: u64,
) -> KernelResult<Bound<'py, PyList>> {
    let limits = Limits {
        max_row_bytes,
        max_frame_plain_bytes,
        max_depth,
        max_packed_events,
    };
    let options = scan_options(mode, generation, true, limits)?;
    let level = parse_level(level)?;
    let threads = thread_count(threads)?;
    if paths.is_instance_of::<PyString>() {
        return Err(PyTypeError::new_err("paths is a series of paths, not one of them").into());
    }
    let paths = paths
        .try_iter()?
        .map(|path| path?.extract())
        .collect::<PyResult<Vec<PathBuf>>>()?;

    let mut failure = None;
    let mut looks: u32 = 0;
    let many = py.detach(|| {
        let mut watch = |done_bytes: u64| {
            looks = looks.wrapping_add(1);
            let outcome = Python::attach(|py| {
                py.check_signals()?;
                match &progress {
                    Some(progress) if looks.is_multiple_of(LOOKS_PER_PROGRESS) => {
                        progress.call1(py, (done_bytes,)).map(drop)
                    }
                    _ => Ok(()),
                }
            });
            match outcome {
                Ok(()) => ControlFlow::Continue(()),
                Err(error) => {
                    failure = Some(error);
                    ControlFlow::Break(())
                }
            }
        };
        core::check_many(&paths, options, level, threads, WATCH_INTERVAL, &mut watch)
    })?;
    if let Some(error) = failure {
        return Err(error.into());
    }
    if let Some(progress) = &progress {
        progress.call1(py, (many.done_bytes,))?;
    }
    let found = PyList::empty(py);
    for (result, path) in many.results.into_iter().flatten().zip(&paths) {
        match result {
            Ok(file) => found.append(file_tuple(py, &file)?)?,
            Err(error) => {
                found.append(PyErr::from(KernelError::from(error).with_path(path)).into_value(py))?;
            }
        }
    }
    Ok(found)
}
