//! `parse` and `dump`.

#![expect(
    clippy::needless_pass_by_value,
    reason = "an argument is made for its call, which owns it"
)]

use dsh_codec_core::json::number::{is_safe, write_double};
use dsh_codec_core::json::text::write_string;
use dsh_codec_core::json::{self, Fault, FaultKind, order_keys};
use dsh_codec_core::{Error, ErrorKind, Location};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyBytes, PyDict, PyFloat, PyInt, PyList, PyString, PyTuple};

use crate::buffer::InputBytes;
use crate::errors::{KernelError, KernelResult};
use crate::object::{ObjectSink, Scratch, with_scratch};
use crate::pystring;

fn too_deep(max_depth: usize, at: Option<usize>) -> Error {
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

enum Open<'py> {
    List(Bound<'py, PyList>, usize),
    Tuple(Bound<'py, PyTuple>, usize),
    Dict(std::vec::IntoIter<(Vec<u8>, Bound<'py, PyAny>)>),
}

/// How −0 and numbers that are not finite are written.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Spelling {
    /// As JavaScript does: `0` and `null`.
    JavaScript,
    /// So that the core reads the same value again: `-0.0` and `1e999`.
    Exact,
}

/// Appends a Python value as compact JSON.
///
/// # Errors
/// `TypeError` for a value that JSON does not have, `LimitExceededError` where it nests deeper than `max_depth`.
pub(crate) fn write_value(
    value: &Bound<'_, PyAny>,
    max_depth: usize,
    spelling: Spelling,
    out: &mut Vec<u8>,
) -> KernelResult<()> {
    let mut open: Vec<Open<'_>> = Vec::new();
    let mut next = Some(value.clone());
    loop {
        if let Some(value) = next.take() {
            let scalar = write_scalar(&value, spelling, out)?;
            if !scalar {
                if open.len() >= max_depth {
                    return Err(too_deep(max_depth, None).into());
                }
                open.push(begin(value, out)?);
            }
        }
        // Strings end in a quote, so a bracket at the end is a bracket.
        let first = matches!(out.last(), Some(b'[' | b'{'));
        let Some(innermost) = open.last_mut() else {
            return Ok(());
        };
        next = match innermost {
            Open::List(list, at) => {
                *at += 1;
                // A list that shrinks meanwhile just ends.
                list.get_item(*at - 1).ok()
            }
            Open::Tuple(tuple, at) => {
                *at += 1;
                tuple.get_item(*at - 1).ok()
            }
            Open::Dict(members) => {
                let member = members.next();
                if let Some((key, _)) = &member {
                    if !first {
                        out.push(b',');
                    }
                    write_string(key, out);
                    out.push(b':');
                }
                member.map(|(_, value)| value)
            }
        };
        match (&next, innermost) {
            (None, Open::Dict(_)) => {
                out.push(b'}');
                open.pop();
            }
            (None, _) => {
                out.push(b']');
                open.pop();
            }
            (Some(_), Open::List(..) | Open::Tuple(..)) if !first => out.push(b','),
            (Some(_), _) => {}
        }
    }
}

/// Writes a value that has no children; false if it has.
fn write_scalar(value: &Bound<'_, PyAny>, spelling: Spelling, out: &mut Vec<u8>) -> KernelResult<bool> {
    if let Ok(text) = value.cast::<PyString>() {
        write_string(&pystring::to_wtf8(text)?, out);
    } else if value.is_none() {
        out.extend_from_slice(b"null");
    } else if let Ok(boolean) = value.cast::<PyBool>() {
        out.extend_from_slice(if boolean.is_true() { b"true" } else { b"false" });
    } else if let Ok(integer) = value.cast::<PyInt>() {
        write_integer(integer, spelling, out);
    } else if let Ok(float) = value.cast::<PyFloat>() {
        write_float(float.value(), spelling, out);
    } else {
        return Ok(false);
    }
    Ok(true)
}

fn write_integer(integer: &Bound<'_, PyInt>, spelling: Spelling, out: &mut Vec<u8>) {
    match integer.extract::<i64>() {
        Ok(small) if is_safe(small) => {
            let mut digits = [0; 20];
            let mut at = digits.len();
            let mut rest = small.unsigned_abs();
            loop {
                at -= 1;
                // The remainder is a digit.
                if let (Some(place), Ok(digit)) = (digits.get_mut(at), u8::try_from(rest % 10)) {
                    *place = b'0' + digit;
                }
                rest /= 10;
                if rest == 0 {
                    break;
                }
            }
            if small < 0 {
                out.push(b'-');
            }
            out.extend_from_slice(digits.get(at..).unwrap_or_default());
        }
        Ok(wide) => {
            // Between 2^53 and 2^63: the nearest double.
            #[expect(clippy::cast_precision_loss, reason = "the harness sees doubles, spec 10 §1")]
            write_float(wide as f64, spelling, out);
        }
        Err(_) => {
            // Python raises where the integer is beyond every double.
            let infinite = if integer.lt(0).unwrap_or(false) {
                f64::NEG_INFINITY
            } else {
                f64::INFINITY
            };
            write_float(integer.extract().unwrap_or(infinite), spelling, out);
        }
    }
}

fn write_float(value: f64, spelling: Spelling, out: &mut Vec<u8>) {
    match spelling {
        Spelling::Exact if value == 0.0 && value.is_sign_negative() => out.extend_from_slice(b"-0.0"),
        Spelling::Exact if value == f64::NEG_INFINITY => out.extend_from_slice(b"-1e999"),
        Spelling::Exact if !value.is_finite() => out.extend_from_slice(b"1e999"),
        Spelling::Exact | Spelling::JavaScript => write_double(value, out),
    }
}

fn begin<'py>(value: Bound<'py, PyAny>, out: &mut Vec<u8>) -> KernelResult<Open<'py>> {
    if let Ok(dict) = value.cast::<PyDict>() {
        let mut members = Vec::with_capacity(dict.len());
        for (key, value) in dict.iter() {
            let key = key.cast_into::<PyString>().map_err(|error| {
                PyTypeError::new_err(format!(
                    "a JSON key must be a str, not {}",
                    type_name(&error.into_inner())
                ))
            })?;
            members.push((pystring::to_wtf8(&key)?.into_owned(), value));
        }
        order_keys(&mut members);
        out.push(b'{');
        return Ok(Open::Dict(members.into_iter()));
    }
    out.push(b'[');
    match value.cast_into::<PyList>() {
        Ok(list) => Ok(Open::List(list, 0)),
        Err(error) => match error.into_inner().cast_into::<PyTuple>() {
            Ok(tuple) => Ok(Open::Tuple(tuple, 0)),
            Err(error) => {
                let name = type_name(&error.into_inner());
                Err(PyTypeError::new_err(format!("JSON has no value of type {name}")).into())
            }
        },
    }
}

fn type_name(value: &Bound<'_, PyAny>) -> String {
    value
        .get_type()
        .name()
        .map_or_else(|_| "object".to_owned(), |name| name.to_string())
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
