//! Python values as JSON text, in one walk and without recursion.

use dsh_codec_core::json::number::{self, is_safe, write_double};
use dsh_codec_core::json::text::write_string;
use dsh_codec_core::json::{Room, is_retired, order_keys};
use dsh_codec_core::{Error, ErrorKind};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::iter::{BoundListIterator, BoundTupleIterator};
use pyo3::types::{PyBool, PyDict, PyFloat, PyInt, PyList, PyString, PyTuple};

use crate::errors::KernelResult;
use crate::json::too_deep;
use crate::pystring;
use crate::quick_write::QuickWriter;

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
    ValueWriter::new(max_depth, 0, spelling).write(value.clone(), out)
}

/// A member of an object that is still to be written.
type Member<'py> = (Bound<'py, PyString>, Bound<'py, PyAny>);

enum Open<'py> {
    List(BoundListIterator<'py>),
    Tuple(BoundTupleIterator<'py>),
    /// Members of the objects around it.
    Dict(usize),
}

/// What a walk has met.
struct Notes<'py> {
    spelling: Spelling,
    loss: Option<Bound<'py, PyAny>>,
    may_be_retired: bool,
}

/// Writer of any number of values.
pub(crate) struct ValueWriter<'py> {
    max_depth: usize,
    /// Whether what nests deeper is written as if it were empty, and not refused.
    cuts: bool,
    outer: usize,
    open: Vec<Open<'py>>,
    /// Members of all open objects, the next one last.
    members: Vec<Member<'py>>,
    notes: Notes<'py>,
}

impl<'py> ValueWriter<'py> {
    /// A writer of values that stand inside `outer` arrays or objects.
    pub(crate) fn new(max_depth: usize, outer: usize, spelling: Spelling) -> Self {
        Self {
            max_depth,
            cuts: false,
            outer,
            open: Vec::new(),
            members: Vec::new(),
            notes: Notes {
                spelling,
                loss: None,
                may_be_retired: false,
            },
        }
    }

    /// A writer for who looks no deeper than `depth`: the arrays and objects there are written empty.
    pub(crate) fn cut_at(depth: usize) -> Self {
        Self {
            cuts: true,
            ..Self::new(depth, 0, Spelling::Exact)
        }
    }

    /// Whether a number was written that would be read back as another one.
    pub(crate) fn has_loss(&self) -> bool {
        self.notes.loss.is_some()
    }

    /// Takes the first number that was written and that would be read back as another one.
    pub(crate) fn take_loss(&mut self) -> Option<Bound<'py, PyAny>> {
        self.notes.loss.take()
    }

    /// Whether a string written since the last call may be one that row admission asks for.
    pub(crate) fn take_may_be_retired(&mut self) -> bool {
        std::mem::take(&mut self.notes.may_be_retired)
    }

    /// Appends a value. After an error the writer is of no more use.
    pub(crate) fn write(&mut self, value: Bound<'py, PyAny>, out: &mut Vec<u8>) -> KernelResult<()> {
        let start = out.len();
        let mut room = Room::from(std::mem::take(out));
        let mut quick = QuickWriter::new(value.py(), &mut room);
        let written = quick.value(&value, self.max_depth - self.outer.min(self.max_depth));
        let may_be_retired = quick.may_be_retired;
        *out = room.into();
        if written.is_some() {
            self.notes.may_be_retired |= may_be_retired;
            return Ok(());
        }
        out.truncate(start);
        self.write_any(value, out)
    }

    /// [`ValueWriter::write`] of what is no usual value, or an error.
    fn write_any(&mut self, value: Bound<'py, PyAny>, out: &mut Vec<u8>) -> KernelResult<()> {
        if !write_scalar(&value, &mut self.notes, out)? {
            self.enter(value, out)?;
        }
        while let Some(innermost) = self.open.last_mut() {
            let (inner, bracket) = match innermost {
                Open::List(elements) => (write_elements(elements, &mut self.notes, out)?, b']'),
                Open::Tuple(elements) => (write_elements(elements, &mut self.notes, out)?, b']'),
                Open::Dict(outer) => {
                    let outer = *outer;
                    (
                        write_members(&mut self.members, outer, &mut self.notes, out)?,
                        b'}',
                    )
                }
            };
            if let Some(inner) = inner {
                self.enter(inner, out)?;
            } else {
                out.push(bracket);
                self.open.pop();
            }
        }
        Ok(())
    }

    fn enter(&mut self, value: Bound<'py, PyAny>, out: &mut Vec<u8>) -> KernelResult<()> {
        if self.outer + self.open.len() >= self.max_depth {
            if self.cuts {
                let is_object = value.is_instance_of::<PyDict>();
                out.extend_from_slice(if is_object { b"{}" } else { b"[]" });
                return Ok(());
            }
            return Err(too_deep(self.max_depth, None).into());
        }
        let value = match value.cast_into::<PyDict>() {
            Ok(dict) => {
                let outer = self.members.len();
                self.take_members(&dict, outer)?;
                self.open.push(Open::Dict(outer));
                out.push(b'{');
                return Ok(());
            }
            Err(error) => error.into_inner(),
        };
        out.push(b'[');
        self.open.push(match value.cast_into::<PyList>() {
            Ok(list) => Open::List(list.into_iter()),
            Err(error) => match error.into_inner().cast_into::<PyTuple>() {
                Ok(tuple) => Open::Tuple(tuple.into_iter()),
                Err(error) => {
                    let name = type_name(&error.into_inner());
                    return Err(PyTypeError::new_err(format!("JSON has no value of type {name}")).into());
                }
            },
        });
        Ok(())
    }

    /// Puts the members of an object behind those that are there, in reverse of the order in which they are written.
    fn take_members(&mut self, dict: &Bound<'py, PyDict>, outer: usize) -> KernelResult<()> {
        for (key, value) in dict.iter() {
            let key = key.cast_into::<PyString>().map_err(|error| {
                let name = type_name(&error.into_inner());
                PyTypeError::new_err(format!("a JSON key must be a str, not {name}"))
            })?;
            self.members.push((key, value));
        }
        // Only now: a `str` of another class may run code, which the dictionary must not feel.
        let mut may_have_index = false;
        for (key, _) in self.members.get(outer..).unwrap_or_default() {
            may_have_index |= pystring::to_wtf8(key)?.first().is_some_and(u8::is_ascii_digit);
        }
        if may_have_index {
            let mut ordered = Vec::new();
            for member in self.members.drain(outer..) {
                ordered.push((pystring::to_wtf8(&member.0)?.into_owned(), member));
            }
            order_keys(&mut ordered);
            self.members.extend(ordered.into_iter().map(|(_, member)| member));
        }
        if let Some(own) = self.members.get_mut(outer..) {
            own.reverse();
        }
        Ok(())
    }
}

/// Writes elements up to one that has children, which is returned; None at the end.
fn write_elements<'py>(
    elements: &mut impl Iterator<Item = Bound<'py, PyAny>>,
    notes: &mut Notes<'py>,
    out: &mut Vec<u8>,
) -> KernelResult<Option<Bound<'py, PyAny>>> {
    for element in elements {
        // Strings end in a quote, so a bracket at the end is a bracket.
        if out.last() != Some(&b'[') {
            out.push(b',');
        }
        if !write_scalar(&element, notes, out)? {
            return Ok(Some(element));
        }
    }
    Ok(None)
}

/// Writes members up to one whose value has children, which is returned; None at the end.
fn write_members<'py>(
    members: &mut Vec<Member<'py>>,
    outer: usize,
    notes: &mut Notes<'py>,
    out: &mut Vec<u8>,
) -> KernelResult<Option<Bound<'py, PyAny>>> {
    while members.len() > outer
        && let Some((key, value)) = members.pop()
    {
        if out.last() != Some(&b'{') {
            out.push(b',');
        }
        write_string(&pystring::to_wtf8(&key)?, out);
        out.push(b':');
        if !write_scalar(&value, notes, out)? {
            return Ok(Some(value));
        }
    }
    Ok(None)
}

/// Writes a value that has no children; false if it has, or is no JSON value.
fn write_scalar<'py>(
    value: &Bound<'py, PyAny>,
    notes: &mut Notes<'py>,
    out: &mut Vec<u8>,
) -> KernelResult<bool> {
    // Subclasses count as what they are derived from, but for `bool`.
    if value.is_none() {
        out.extend_from_slice(b"null");
    } else if let Ok(boolean) = value.cast::<PyBool>() {
        out.extend_from_slice(if boolean.is_true() { b"true" } else { b"false" });
    } else if let Ok(float) = value.cast::<PyFloat>() {
        write_float(float.value(), value, notes, out);
    } else if let Ok(text) = value.cast::<PyString>() {
        write_text(text, notes, out)?;
    } else if let Ok(integer) = value.cast::<PyInt>() {
        write_integer(integer, notes, out)?;
    } else {
        return Ok(false);
    }
    Ok(true)
}

fn write_text(text: &Bound<'_, PyString>, notes: &mut Notes<'_>, out: &mut Vec<u8>) -> KernelResult<()> {
    let text = pystring::to_wtf8(text)?;
    notes.may_be_retired |= is_retired(&text);
    write_string(&text, out);
    Ok(())
}

fn write_integer<'py>(
    integer: &Bound<'py, PyInt>,
    notes: &mut Notes<'py>,
    out: &mut Vec<u8>,
) -> KernelResult<()> {
    match integer.extract::<i64>() {
        Ok(small) if is_safe(small) => number::write_integer(small, out),
        wide => write_wide(integer, wide.ok(), notes, out)?,
    }
    Ok(())
}

/// Writes an integer from 2^53 on: the nearest double, which is what the harness sees (spec 10 §1).
#[cold]
fn write_wide<'py>(
    integer: &Bound<'py, PyInt>,
    value: Option<i64>,
    notes: &mut Notes<'py>,
    out: &mut Vec<u8>,
) -> KernelResult<()> {
    #[expect(clippy::cast_precision_loss, reason = "the harness sees doubles, spec 10 §1")]
    let double = match value {
        Some(value) => value as f64,
        // Python raises where the integer is beyond every double.
        None => integer.extract().unwrap_or(if integer.lt(0)? {
            f64::NEG_INFINITY
        } else {
            f64::INFINITY
        }),
    };
    let is_same = double.is_finite() && PyFloat::new(integer.py(), double).as_any().eq(integer)?;
    if !is_same && notes.loss.is_none() {
        notes.loss = Some(integer.clone().into_any());
    }
    spell_float(double, notes.spelling, out);
    Ok(())
}

fn write_float<'py>(double: f64, value: &Bound<'py, PyAny>, notes: &mut Notes<'py>, out: &mut Vec<u8>) {
    let is_lost = !double.is_finite() || (double == 0.0 && double.is_sign_negative());
    if is_lost && notes.loss.is_none() {
        notes.loss = Some(value.clone());
    }
    spell_float(double, notes.spelling, out);
}

fn spell_float(value: f64, spelling: Spelling, out: &mut Vec<u8>) {
    match spelling {
        Spelling::Exact if value == 0.0 && value.is_sign_negative() => out.extend_from_slice(b"-0.0"),
        Spelling::Exact if value == f64::NEG_INFINITY => out.extend_from_slice(b"-1e999"),
        Spelling::Exact if !value.is_finite() => out.extend_from_slice(b"1e999"),
        Spelling::Exact | Spelling::JavaScript => write_double(value, out),
    }
}

fn type_name(value: &Bound<'_, PyAny>) -> String {
    value
        .get_type()
        .name()
        .map_or_else(|_| "object".to_owned(), |name| name.to_string())
}

/// The error of a number that would be read back as another one. Spec 10 §1.2, §11.2.
#[cold]
pub(crate) fn loss_error(number: &Bound<'_, PyAny>) -> Error {
    // Python does not spell integers of more than some thousand digits.
    let text = number
        .repr()
        .map_or_else(|_| "?".to_owned(), |text| text.to_string());
    let shown = text.get(..40).unwrap_or(&text);
    let message = format!("the number {shown} would be read back as another one");
    Error::new(ErrorKind::Row, message).with_rule("10 §11.2")
}
