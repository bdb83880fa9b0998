//! Whole files in one pass, without the GIL.

#![expect(
    clippy::needless_pass_by_value,
    reason = "an argument is made for its call, which owns it"
)]
#![expect(
    clippy::too_many_arguments,
    reason = "these are keyword arguments, each with a default"
)]

use std::path::PathBuf;

use dsh_codec_core::bulk::{self as core, Compression};
use dsh_codec_core::row::ScanOptions;
use dsh_codec_core::rules::Level;
use dsh_codec_core::{Limits, Result};
use pyo3::exceptions::{PyBaseException, PyValueError};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyTuple, PyType};

use crate::buffer::InputBytes;
use crate::errors::{KernelError, KernelResult};
use crate::row::{Generation, class, scan_options, scan_tuple};

fn file_tuple<'py>(py: Python<'py>, file: &core::FileScan) -> KernelResult<Bound<'py, PyAny>> {
    static CLASS: PyOnceLock<Py<PyType>> = PyOnceLock::new();

    let findings: Vec<Py<PyBaseException>> = file
        .scan
        .findings
        .kept
        .iter()
        .map(|found| PyErr::from(KernelError::from(found.replica())).into_value(py))
        .collect();
    let compression = match file.compression {
        Compression::None => "none",
        Compression::Zstd => "zstd",
    };
    Ok(class(py, &CLASS, "FileScan")?.call1((
        scan_tuple(py, &file.scan)?,
        compression,
        file.file_bytes,
        file.plain_bytes,
        file.frame_count,
        file.torn_start,
        file.truncate_to,
        file.recovered_count,
        PyTuple::new(py, findings)?,
        file.scan.findings.count,
    ))?)
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
    let level = match level {
        "scan" => Level::Scan,
        "read" => Level::Read,
        "restore" => Level::Restore,
        "full" => Level::Full,
        _ => return Err(PyValueError::new_err("level is one of scan, read, restore, full").into()),
    };
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
#[pyo3(signature = (path, /, *, mode = "recoverable", level = "scan", generation = None, max_row_bytes = 268_435_456,
    max_frame_plain_bytes = 1_073_741_824, max_depth = 1024, max_packed_events = 16_777_216))]
pub(crate) fn check_file<'py>(
    py: Python<'py>,
    path: PathBuf,
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
    run(py, mode, level, generation, limits, |options, level| {
        core::check_file(&path, options, level)
    })
    .map_err(|error: KernelError| error.with_path(&path))
}
