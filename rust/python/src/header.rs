//! Headers as Python objects.

#![expect(
    clippy::needless_pass_by_value,
    reason = "an argument is made for its call, which owns it"
)]

use dsh_codec_core::Limits;
use dsh_codec_core::row as core;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBool, PyDict, PyFloat, PyInt, PyString};

use crate::buffer::InputBytes;
use crate::errors::KernelResult;
use crate::json::parse_bytes;
use crate::object::{Scratch, with_scratch};
use crate::pybuild::TupleClass;
use crate::pystring;
use crate::row::{Generation, optional_int, tuple_class};

/// Parse a header row. See the stub.
#[pyfunction]
#[pyo3(signature = (line, /, *, generation = None))]
pub(crate) fn parse_header(
    py: Python<'_>,
    line: InputBytes,
    generation: Option<Generation>,
) -> KernelResult<Bound<'_, PyAny>> {
    let generation = generation.map(Generation::number);
    let header = core::parse_header(&line, generation, &Limits::default())?;
    header_tuple(py, &header)
}

/// Makes the `Header` of a header row.
pub(crate) fn header_tuple<'py>(py: Python<'py>, header: &core::Header) -> KernelResult<Bound<'py, PyAny>> {
    static CLASS: PyOnceLock<TupleClass> = PyOnceLock::new();

    let fields = with_scratch(|scratch| fields_of(py, header, scratch))?;
    let elements = [
        PyInt::new(py, header.generation).into_any(),
        fields.into_any(),
        optional_int(py, header.declared_cut),
    ];
    Ok(tuple_class(py, &CLASS, "Header")?.make(py, elements)?)
}

fn fields_of<'py>(
    py: Python<'py>,
    header: &core::Header,
    scratch: &mut Scratch,
) -> KernelResult<Bound<'py, PyDict>> {
    if header.generation < 2 {
        let fields = parse_fields(py, header, scratch)?;
        if header.declared_cut.is_some() {
            fields.del_item("seedLength")?;
        }
        fields.set_item("isSeeded", header.is_seeded)?;
        return Ok(fields);
    }
    let model = scratch.header();
    if let Some(model) = model
        && let Some(fields) = model.fields_like(py, &header.line)?
    {
        model.has_missed = false;
        return Ok(fields);
    }
    // Where two kinds of headers alternate, one of them keeps its model.
    let is_due = model
        .as_mut()
        .is_none_or(|model| std::mem::replace(&mut model.has_missed, true));
    let fields = parse_fields(py, header, scratch)?;
    if is_due && let Some(model) = HeaderModel::of(&header.line, &fields)? {
        *scratch.header() = Some(model);
    }
    Ok(fields)
}

/// The members of the row but for its type.
fn parse_fields<'py>(
    py: Python<'py>,
    header: &core::Header,
    scratch: &mut Scratch,
) -> KernelResult<Bound<'py, PyDict>> {
    let max_depth = Limits::default().max_depth as usize;
    let fields = parse_bytes(py, &header.line, max_depth, scratch)?;
    let fields = fields.cast_into::<PyDict>().map_err(PyErr::from)?;
    fields.del_item(intern!(py, "type"))?;
    let counts = [
        intern!(py, "version"),
        intern!(py, "createdAt"),
        intern!(py, "delegationDepth"),
    ];
    for name in counts {
        // `3.0` and `3` are the same count (spec 10 §1).
        if let Some(count) = fields.get_item(name)?
            && count.is_exact_instance_of::<PyFloat>()
        {
            fields.set_item(name, count.call_method0("__int__")?)?;
        }
    }
    Ok(fields)
}

/// A header row and its fields, of which a copy is made for the next row with the same members: the headers of a root
/// mostly differ in two or three values. The benchmark `bench_check`, small logs, shows what it pays.
pub(crate) struct HeaderModel {
    members: Vec<Member>,
    /// Nobody else has this dictionary, and no value in it can be changed.
    fields: Py<PyDict>,
    /// Whether the last row had other members.
    has_missed: bool,
}

/// A member of a header row.
struct Member {
    /// What stands before the value: the brace or comma, the key, and the colon.
    before: Box<[u8]>,
    value: Box<[u8]>,
    key: Py<PyString>,
}

/// A longer header row is no model.
const MAX_MODEL_BYTES: usize = 4096;

impl HeaderModel {
    /// The model that a valid row gives; None if it has blanks, escapes, arrays, objects, or the same key twice.
    fn of(line: &[u8], fields: &Bound<'_, PyDict>) -> PyResult<Option<Self>> {
        if line.len() > MAX_MODEL_BYTES {
            return Ok(None);
        }
        let mut members = Vec::new();
        let mut rest = line;
        while rest != b"}" {
            let open = if members.is_empty() { b'{' } else { b',' };
            let Some((before, value, behind)) = split_member(rest, open) else {
                return Ok(None);
            };
            // The key without the brace or comma, the quotes, and the colon.
            let key = before.get(2..before.len() - 2).unwrap_or_default();
            members.push(Member {
                before: before.into(),
                value: value.into(),
                key: pystring::to_python(fields.py(), key)?.unbind(),
            });
            rest = behind;
        }
        // The type of the row is no field.
        if members.len() != fields.len() + 1 {
            return Ok(None);
        }
        Ok(Some(Self {
            members,
            fields: fields.copy()?.unbind(),
            has_missed: false,
        }))
    }

    /// The fields of another valid row, if it has these members in this order and all values that differ are simple.
    fn fields_like<'py>(&self, py: Python<'py>, line: &[u8]) -> PyResult<Option<Bound<'py, PyDict>>> {
        let fields = self.fields.bind(py).copy()?;
        let mut rest = line;
        for member in &self.members {
            let Some(behind) = rest.strip_prefix(&*member.before) else {
                return Ok(None);
            };
            rest = if let Some(same @ [b',' | b'}', ..]) = behind.strip_prefix(&*member.value) {
                same
            } else {
                let Some((value, behind)) = split_value(py, behind)? else {
                    return Ok(None);
                };
                fields.set_item(&member.key, value)?;
                behind
            };
        }
        Ok((rest == b"}").then_some(fields))
    }
}

/// Bytes of the token at the start of valid JSON, if it is a string without escapes, a word, or a number of digits.
fn token_len(text: &[u8]) -> Option<usize> {
    if let Some(inside) = text.strip_prefix(b"\"") {
        let end = inside.iter().position(|byte| matches!(byte, b'"' | b'\\'))?;
        (inside.get(end) == Some(&b'"')).then_some(end + 2)
    } else {
        let end = text.iter().position(|byte| !byte.is_ascii_alphanumeric())?;
        (end > 0).then_some(end)
    }
}

/// What stands before the value of the next member, the value, and the rest.
fn split_member(text: &[u8], open: u8) -> Option<(&[u8], &[u8], &[u8])> {
    let key_len = text.strip_prefix(&[open]).and_then(token_len)?;
    let (before, rest) = text.split_at_checked(key_len + 2)?;
    let (value, rest) = rest.split_at_checked(token_len(rest)?)?;
    (before.last() == Some(&b':')).then_some((before, value, rest))
}

/// The simple value at the start of valid JSON, and the rest.
fn split_value<'py, 'a>(py: Python<'py>, text: &'a [u8]) -> PyResult<Option<(Bound<'py, PyAny>, &'a [u8])>> {
    // An integer of so many digits is exact in every model of numbers.
    const MAX_DIGITS: usize = 15;

    let Some((token, rest)) = token_len(text).and_then(|len| text.split_at_checked(len)) else {
        return Ok(None);
    };
    let value = match token {
        [b'"', inside @ .., b'"'] if inside.is_ascii() => pystring::from_ascii(py, inside)?.into_any(),
        b"true" | b"false" => PyBool::new(py, token == b"true").to_owned().into_any(),
        digits if digits.len() <= MAX_DIGITS && digits.iter().all(u8::is_ascii_digit) => {
            let number = digits
                .iter()
                .fold(0, |number, digit| number * 10 + i64::from(digit - b'0'));
            PyInt::new(py, number).into_any()
        }
        _ => return Ok(None),
    };
    Ok(Some((value, rest)))
}
