//! The stream of one attempt as JSON text. Spec 20 §3, §4.

use dsh_codec_core::stream as core;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::buffer::InputBytes;
use crate::columns::{StoredStream, rows_of};
use crate::errors::KernelResult;

/// Write the timed chunks of an attempt as JSON lines. See the stub.
#[pyfunction]
#[pyo3(
    signature = (rows, /, *, prefix = None, max_depth = 1024),
    text_signature = "(rows, /, *, prefix=b'', max_depth=1024)"
)]
#[expect(
    clippy::needless_pass_by_value,
    reason = "an argument is made for its call, which owns it"
)]
pub(crate) fn expand_lines<'py>(
    rows: &Bound<'py, PyAny>,
    prefix: Option<InputBytes>,
    max_depth: usize,
) -> KernelResult<Bound<'py, PyBytes>> {
    let py = rows.py();
    let prefix: &[u8] = prefix.as_deref().unwrap_or_default();
    let lines = if let Ok(stored) = rows.cast::<StoredStream>() {
        let stream = &stored.get().stream;
        py.detach(|| stream.expand_lines(prefix))
    } else {
        let rows = rows_of(rows)?;
        py.detach(|| core::expand_lines(&rows, prefix, max_depth))
    };
    Ok(PyBytes::new(py, &lines?))
}

/// Write the records of an attempt as a JSON array. See the stub.
#[pyfunction]
#[pyo3(signature = (rows, /, *, max_depth = 1024))]
pub(crate) fn pack_lines<'py>(
    rows: &Bound<'py, PyAny>,
    max_depth: usize,
) -> KernelResult<Bound<'py, PyBytes>> {
    let py = rows.py();
    let text = if let Ok(stored) = rows.cast::<StoredStream>() {
        let stream = &stored.get().stream;
        py.detach(|| stream.pack_lines())
    } else {
        let rows = rows_of(rows)?;
        py.detach(|| core::pack_lines(&rows, max_depth))
    };
    Ok(PyBytes::new(py, &text?))
}
