//! `parse` and `dump`.

#![expect(
    clippy::needless_pass_by_value,
    reason = "an argument is made for its call, which owns it"
)]

use dsh_codec_core::json::{self, Fault, FaultKind};
use dsh_codec_core::{Error, ErrorKind, Location};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::buffer::InputBytes;
use crate::errors::{KernelError, KernelResult};
use crate::object::{ObjectSink, Scratch, with_scratch};
use crate::write::{Spelling, write_value};

/// The error of a value that nests too deep.
pub(crate) fn too_deep(max_depth: usize, at: Option<usize>) -> Error {
    let message = format!("the value nests deeper than {max_depth} levels; raise max_depth to take it");
    let place = Location {
        offset: at.map(|at| at as u64),
        ..Location::default()
    };
    Error::limit("max_depth", max_depth as u64, message).located(place)
}

/// Parses one JSON text with some scratch space.
pub(crate) fn parse_bytes<'py>(
    py: Python<'py>,
    bytes: &[u8],
    max_depth: usize,
    scratch: &mut Scratch,
) -> KernelResult<Bound<'py, PyAny>> {
    let mut sink = ObjectSink::new(py, bytes, scratch);
    match json::parse(bytes, &mut sink, max_depth) {
        Ok(()) => sink
            .into_value()
            .ok_or_else(|| PyTypeError::new_err("no value").into()),
        Err(Fault { at, kind }) => {
            let expected = match kind {
                FaultKind::TooDeep => return Err(too_deep(max_depth, Some(at)).into()),
                FaultKind::Unexpected(expected) => expected,
                FaultKind::Stopped if let Some(error) = sink.into_failure() => return Err(error.into()),
                FaultKind::End | FaultKind::Stopped => "more: it ends inside a value",
            };
            let place = Location {
                offset: Some(at as u64),
                ..Location::default()
            };
            let message = format!("the text is not JSON: expected {expected}");
            Err(Error::new(ErrorKind::Syntax, message)
                .with_rule("10 §1")
                .located(place)
                .into())
        }
    }
}

/// Parse one JSON text. See the stub.
#[pyfunction]
#[pyo3(signature = (data, /, *, max_depth = 1024))]
pub(crate) fn parse(py: Python<'_>, data: InputBytes, max_depth: usize) -> KernelResult<Bound<'_, PyAny>> {
    with_scratch(|scratch| parse_bytes(py, &data, max_depth, scratch))
}

/// Write a value as compact JSON. See the stub.
#[pyfunction]
#[pyo3(signature = (value, /, *, max_depth = 1024))]
pub(crate) fn dump<'py>(
    py: Python<'py>,
    value: &Bound<'py, PyAny>,
    max_depth: usize,
) -> Result<Bound<'py, PyBytes>, KernelError> {
    let mut out = Vec::with_capacity(256);
    write_value(value, max_depth, Spelling::JavaScript, &mut out)?;
    Ok(PyBytes::new(py, &out))
}
