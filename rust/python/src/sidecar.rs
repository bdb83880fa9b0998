//! Scans that move the streams of a log to a sidecar and back, and canonical JSON. Spec 60.

#![expect(
    clippy::needless_pass_by_value,
    reason = "an argument is made for its call, which owns it"
)]

use std::sync::{Mutex, MutexGuard, PoisonError};

use dsh_codec_core::Limits;
use dsh_codec_core::sidecar as core;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyIterator};

use crate::buffer::InputBytes;
use crate::errors::{KernelError, KernelResult};
use crate::row::{Generation, scan_options, scan_tuple};

/// Return the canonical text of one JSON text. See the stub.
#[pyfunction]
#[pyo3(signature = (data, /, *, max_depth = 1024))]
pub(crate) fn canonicalize(
    py: Python<'_>,
    data: InputBytes,
    max_depth: usize,
) -> KernelResult<Bound<'_, PyBytes>> {
    let mut out = Vec::with_capacity(data.len());
    core::canonicalize(&data, max_depth, &mut out)?;
    Ok(PyBytes::new(py, &out))
}

/// Calls back for the causes of cut attempts. What the call raises is kept, and raised when the scan is back.
fn ask_cause<'c>(
    causes: &'c Py<PyAny>,
    raised: &'c Mutex<Option<PyErr>>,
) -> impl FnMut(u64) -> Vec<u8> + Send + 'c {
    move |seq| {
        let asked = Python::attach(|py| {
            let text = causes.call1(py, (seq,))?.extract::<InputBytes>(py)?;
            Ok(text.to_vec())
        });
        asked.unwrap_or_else(|error| {
            keep(raised, error);
            b"\"cause\":\"unknown\"".to_vec()
        })
    }
}

fn keep(raised: &Mutex<Option<PyErr>>, error: PyErr) {
    raised
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .get_or_insert(error);
}

fn raise(raised: Mutex<Option<PyErr>>) -> PyResult<()> {
    raised
        .into_inner()
        .unwrap_or_else(PoisonError::into_inner)
        .map_or(Ok(()), Err)
}

fn limits(max_row_bytes: u64, max_depth: u32) -> Limits {
    Limits {
        max_row_bytes,
        max_depth,
        ..Limits::default()
    }
}

/// Called without the GIL, so that waiting for another thread blocks nobody.
fn lock<T>(scanner: &Mutex<T>) -> MutexGuard<'_, T> {
    scanner.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Scan of a log that writes its assembled form and its attempt rows. See the stub.
#[pyclass(frozen, module = "dsh_codec._native")]
pub(crate) struct SplitScanner {
    scanner: Mutex<core::SplitScanner>,
    causes: Py<PyAny>,
}

impl SplitScanner {
    fn with<T: Send>(&self, py: Python<'_>, work: impl FnOnce(&mut core::SplitScanner) -> T + Send) -> T {
        py.detach(|| work(&mut lock(&self.scanner)))
    }
}

#[pymethods]
impl SplitScanner {
    #[new]
    #[pyo3(signature = (header, causes, *, allow_opaque = false, mode = "recoverable",
        max_row_bytes = 268_435_456, max_depth = 1024))]
    fn new(
        header: InputBytes,
        causes: Py<PyAny>,
        allow_opaque: bool,
        mode: &str,
        max_row_bytes: u64,
        max_depth: u32,
    ) -> KernelResult<Self> {
        let options = scan_options(
            mode,
            Some(Generation::CURRENT),
            false,
            limits(max_row_bytes, max_depth),
        )?;
        Ok(Self {
            scanner: Mutex::new(core::SplitScanner::new(&header, options, allow_opaque)?),
            causes,
        })
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

    /// Attempt rows so far.
    #[getter]
    fn attempt_count(&self, py: Python<'_>) -> u64 {
        self.with(py, |scanner| scanner.attempt_count())
    }

    /// Take the next bytes. See the stub.
    #[pyo3(signature = (data, /))]
    fn feed<'py>(
        &self,
        py: Python<'py>,
        data: InputBytes,
    ) -> KernelResult<(Bound<'py, PyBytes>, Bound<'py, PyBytes>)> {
        let bytes: &[u8] = &data;
        let raised = Mutex::new(None);
        let mut causes = ask_cause(&self.causes, &raised);
        let fed = self.with(py, |scanner| {
            scanner.feed(bytes, &mut causes, |assembled, rows| {
                Python::attach(|py| {
                    (
                        PyBytes::new(py, assembled).unbind(),
                        PyBytes::new(py, rows).unbind(),
                    )
                })
            })
        });
        drop(causes);
        raise(raised)?;
        let (assembled, rows) = fed?;
        Ok((assembled.into_bound(py), rows.into_bound(py)))
    }

    /// Say that a complete frame ends here. See the stub.
    #[pyo3(signature = ())]
    fn end_frame(&self, py: Python<'_>) -> KernelResult<()> {
        Ok(self.with(py, core::SplitScanner::end_frame)?)
    }

    /// Say that the last complete frame ended, before a torn one is fed. See the stub.
    #[pyo3(signature = ())]
    fn end_complete_frames(&self, py: Python<'_>) -> KernelResult<()> {
        Ok(self.with(py, core::SplitScanner::end_complete_frames)?)
    }

    /// End the scan. See the stub.
    #[pyo3(signature = ())]
    fn finish<'py>(&self, py: Python<'py>) -> KernelResult<Bound<'py, PyAny>> {
        let scan = self.with(py, core::SplitScanner::finish)?;
        scan_tuple(py, &scan)
    }

    /// Return the digests of the log and of its assembled form so far. See the stub.
    #[pyo3(signature = ())]
    fn digests(&self, py: Python<'_>) -> (String, String) {
        self.with(py, core::SplitScanner::digests)
    }
}

/// Scan of an assembled log that puts the streams of a sidecar back. See the stub.
#[pyclass(frozen, module = "dsh_codec._native")]
pub(crate) struct JoinScanner {
    scanner: Mutex<core::JoinScanner>,
    rows: Py<PyIterator>,
    causes: Py<PyAny>,
}

impl JoinScanner {
    fn with<T: Send>(&self, py: Python<'_>, work: impl FnOnce(&mut core::JoinScanner) -> T + Send) -> T {
        py.detach(|| work(&mut lock(&self.scanner)))
    }
}

#[pymethods]
impl JoinScanner {
    #[new]
    #[pyo3(signature = (header, rows, causes, *, mode = "recoverable", max_row_bytes = 268_435_456,
        max_depth = 1024))]
    fn new(
        header: InputBytes,
        rows: &Bound<'_, PyAny>,
        causes: Py<PyAny>,
        mode: &str,
        max_row_bytes: u64,
        max_depth: u32,
    ) -> KernelResult<Self> {
        let options = scan_options(
            mode,
            Some(Generation::CURRENT),
            false,
            limits(max_row_bytes, max_depth),
        )?;
        Ok(Self {
            scanner: Mutex::new(core::JoinScanner::new(&header, options)?),
            rows: rows.try_iter()?.unbind(),
            causes,
        })
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

    /// What is wrong with the sidecar; None so far.
    #[getter]
    fn fault<'py>(&self, py: Python<'py>) -> Option<Bound<'py, PyAny>> {
        let fault = self.with(py, |scanner| scanner.fault().map(dsh_codec_core::Error::replica));
        fault.map(|fault| {
            PyErr::from(KernelError::from(fault))
                .into_value(py)
                .into_bound(py)
                .into_any()
        })
    }

    /// Take the next bytes. See the stub.
    #[pyo3(signature = (data, /))]
    fn feed<'py>(&self, py: Python<'py>, data: InputBytes) -> KernelResult<Bound<'py, PyBytes>> {
        let bytes: &[u8] = &data;
        let raised = Mutex::new(None);
        let mut causes = ask_cause(&self.causes, &raised);
        let mut next_row = |buffer: &mut Vec<u8>| {
            Python::attach(|py| {
                let Some(row) = self.rows.bind(py).clone().next() else {
                    return false;
                };
                match row.and_then(|row| row.extract::<InputBytes>()) {
                    Ok(row) => {
                        buffer.extend_from_slice(&row);
                        true
                    }
                    Err(error) => {
                        keep(&raised, error);
                        false
                    }
                }
            })
        };
        let fed = self.with(py, |scanner| {
            scanner.feed(bytes, &mut next_row, &mut causes, |joined| {
                Python::attach(|py| PyBytes::new(py, joined).unbind())
            })
        });
        drop(causes);
        raise(raised)?;
        Ok(fed?.into_bound(py))
    }

    /// Say that a complete frame ends here. See the stub.
    #[pyo3(signature = ())]
    fn end_frame(&self, py: Python<'_>) -> KernelResult<()> {
        Ok(self.with(py, core::JoinScanner::end_frame)?)
    }

    /// Say that the last complete frame ended, before a torn one is fed. See the stub.
    #[pyo3(signature = ())]
    fn end_complete_frames(&self, py: Python<'_>) -> KernelResult<()> {
        Ok(self.with(py, core::JoinScanner::end_complete_frames)?)
    }

    /// End the scan. See the stub.
    #[pyo3(signature = ())]
    fn finish<'py>(&self, py: Python<'py>) -> KernelResult<Bound<'py, PyAny>> {
        let scan = self.with(py, core::JoinScanner::finish)?;
        scan_tuple(py, &scan)
    }

    /// Return the digests of the joined and of the assembled log so far. See the stub.
    #[pyo3(signature = ())]
    fn digests(&self, py: Python<'_>) -> (String, String) {
        self.with(py, core::JoinScanner::digests)
    }
}
