//! Arguments that hold bytes: bytes, bytearray, memoryview, mmap, and every other contiguous buffer.

use std::ops::{Deref, Range};

use pyo3::buffer::PyUntypedBuffer;
use pyo3::exceptions::{PyBufferError, PyTypeError};
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::{PyBytes, PyMemoryView};

/// The bytes of an argument. They stay what they are while the GIL is released.
///
/// `bytes`, and a `memoryview` of them, are borrowed: a reference to the object is kept. Anything else could be
/// changed by another thread and is copied. Drop it while attached to the interpreter.
pub(crate) struct InputBytes {
    bytes: PyBackedBytes,
    range: Range<usize>,
}

impl InputBytes {
    fn whole(bytes: Bound<'_, PyBytes>) -> Self {
        let bytes = PyBackedBytes::from(bytes);
        let range = 0..bytes.len();
        Self { bytes, range }
    }
}

impl Deref for InputBytes {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        self.bytes.get(self.range.clone()).unwrap_or_default()
    }
}

impl FromPyObject<'_, '_> for InputBytes {
    type Error = PyErr;

    #[inline]
    fn extract(object: Borrowed<'_, '_, PyAny>) -> PyResult<Self> {
        match object.cast::<PyBytes>() {
            Ok(bytes) => Ok(Self::whole(bytes.to_owned())),
            Err(_) => from_buffer(&object),
        }
    }
}

fn from_buffer(object: &Bound<'_, PyAny>) -> PyResult<InputBytes> {
    let view = PyMemoryView::from(object).map_err(|error| {
        if error.is_instance_of::<PyTypeError>(object.py()) {
            let name = object
                .get_type()
                .name()
                .map_or_else(|_| "object".to_owned(), |name| name.to_string());
            PyTypeError::new_err(format!("a bytes-like object is required, not '{name}'"))
        } else {
            error
        }
    })?;
    let buffer = PyUntypedBuffer::get(&view)?;
    if !buffer.is_c_contiguous() {
        return Err(PyBufferError::new_err("the buffer is not contiguous"));
    }
    if let Ok(owner) = view.getattr("obj")?.cast_into::<PyBytes>() {
        let bytes = PyBackedBytes::from(owner);
        // The view lies within its owner, which cannot change.
        let start = buffer.buf_ptr().addr().wrapping_sub(bytes.as_ptr().addr());
        let range = start..start.saturating_add(buffer.len_bytes());
        if bytes.get(range.clone()).is_some() {
            return Ok(InputBytes { bytes, range });
        }
    }
    let copy = view.call_method0("tobytes")?.cast_into::<PyBytes>()?;
    Ok(InputBytes::whole(copy))
}
