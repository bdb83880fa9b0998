//! One frame whose plaintext comes in pieces. Spec 10 §7.2.

#![expect(
    clippy::needless_pass_by_value,
    reason = "an argument is made for its call, which owns it"
)]

use std::sync::{Mutex, PoisonError};

use dsh_codec_core::frame as core;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::buffer::InputBytes;
use crate::errors::KernelResult;

/// Encoder of one frame whose plaintext comes in pieces. See the stub.
#[pyclass(frozen, module = "dsh_codec._native")]
pub(crate) struct FrameWriter(Mutex<core::FrameWriter>);

impl FrameWriter {
    /// Called without the GIL, so that waiting for another thread blocks nobody.
    fn with(
        &self,
        py: Python<'_>,
        work: impl FnOnce(&mut core::FrameWriter, &mut Vec<u8>) -> dsh_codec_core::Result<()> + Send,
    ) -> KernelResult<Py<PyBytes>> {
        let made = py.detach(|| {
            let mut out = Vec::new();
            let mut writer = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            work(&mut writer, &mut out).map(|()| out)
        })?;
        Ok(PyBytes::new(py, &made).unbind())
    }
}

#[pymethods]
impl FrameWriter {
    #[new]
    #[pyo3(signature = ())]
    fn new() -> KernelResult<Self> {
        Ok(Self(Mutex::new(core::FrameWriter::new()?)))
    }

    /// Take the next bytes and return what is made of the frame. See the stub.
    #[pyo3(signature = (data, /))]
    fn write(&self, py: Python<'_>, data: InputBytes) -> KernelResult<Py<PyBytes>> {
        let bytes: &[u8] = &data;
        self.with(py, |writer, out| writer.write(bytes, out))
    }

    /// End the frame and return the rest of it. See the stub.
    #[pyo3(signature = ())]
    fn finish(&self, py: Python<'_>) -> KernelResult<Py<PyBytes>> {
        self.with(py, core::FrameWriter::finish)
    }
}
