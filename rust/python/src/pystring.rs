//! Text to and from Python: the one module that makes `str` objects out of bytes.
#![allow(
    unsafe_code,
    reason = "strings with lone surrogates and fast ASCII strings have no safe door"
)]

use std::borrow::Cow;
use std::ffi::CStr;

use dsh_codec_core::json::text::fuse_wtf8;
use pyo3::exceptions::PyOverflowError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyString};

/// Takes over a new reference that an interpreter call returned.
#[inline]
fn owned(py: Python<'_>, object: *mut ffi::PyObject) -> PyResult<Bound<'_, PyString>> {
    // SAFETY: the callers pass a new reference, or null with an exception set, which the call below checks for.
    let object = unsafe { Bound::from_owned_ptr_or_err(py, object) }?;
    // SAFETY: every call that the callers make returns a `str`.
    Ok(unsafe { object.cast_into_unchecked() })
}

fn size(bytes: &[u8]) -> PyResult<ffi::Py_ssize_t> {
    ffi::Py_ssize_t::try_from(bytes.len()).map_err(|_| PyOverflowError::new_err("the string is too long"))
}

/// Makes a `str` from bytes that are all ASCII.
#[inline]
pub(crate) fn from_ascii<'py>(py: Python<'py>, ascii: &[u8]) -> PyResult<Bound<'py, PyString>> {
    debug_assert!(ascii.is_ascii());
    let len = size(ascii)?;
    if len < 2 {
        // These strings exist already; the call finds them.
        let kind = ffi::PyUnicode_1BYTE_KIND.cast_signed();
        // SAFETY: the pointer and length describe bytes, which are copied; kind 1 takes any byte.
        let object = unsafe { ffi::PyUnicode_FromKindAndData(kind, ascii.as_ptr().cast(), len) };
        return owned(py, object);
    }
    // SAFETY: a plain call; a failure is null with an exception set.
    let object = unsafe { ffi::PyUnicode_New(len, 0x7f) };
    let text = owned(py, object)?;
    // SAFETY: the object was just made with one byte for each character.
    let data = unsafe { ffi::PyUnicode_1BYTE_DATA(object) };
    // SAFETY: `data` has room for `len` bytes, nobody else has seen the object, and every byte is ASCII as promised.
    unsafe { std::ptr::copy_nonoverlapping(ascii.as_ptr(), data, ascii.len()) };
    Ok(text)
}

fn decode<'py>(py: Python<'py>, bytes: &[u8], errors: &CStr) -> PyResult<Bound<'py, PyString>> {
    let len = size(bytes)?;
    // SAFETY: the pointer and length describe bytes, which are copied; `errors` ends with a null byte.
    let object = unsafe { ffi::PyUnicode_DecodeUTF8(bytes.as_ptr().cast(), len, errors.as_ptr()) };
    owned(py, object)
}

/// Makes a `str` from WTF-8; lone surrogates stay what they are.
pub(crate) fn to_python<'py>(py: Python<'py>, wtf8: &[u8]) -> PyResult<Bound<'py, PyString>> {
    if wtf8.is_ascii() {
        from_ascii(py, wtf8)
    } else {
        decode(py, wtf8, c"surrogatepass")
    }
}

/// Longest text, in bytes, that is decoded here and not by the interpreter, which makes the string twice as long at
/// first and then shrinks it.
const SHORT_BYTES: usize = 64;

/// Makes a `str` from bytes of a text; each maximal ill-formed part becomes U+FFFD. Spec 10 §1.
pub(crate) fn from_utf8_lossy<'py>(py: Python<'py>, bytes: &[u8]) -> PyResult<Bound<'py, PyString>> {
    let mut units = [0u16; SHORT_BYTES];
    let Some(text) = (bytes.len() <= SHORT_BYTES)
        .then(|| std::str::from_utf8(bytes).ok())
        .flatten()
    else {
        return decode(py, bytes, c"replace");
    };
    let mut len = 0;
    for (unit, char) in units.iter_mut().zip(text.chars()) {
        let Ok(code) = u16::try_from(u32::from(char)) else {
            return decode(py, bytes, c"replace");
        };
        *unit = code;
        len += 1;
    }
    let kind = ffi::PyUnicode_2BYTE_KIND.cast_signed();
    // SAFETY: the first `len` units are initialised and copied; none is a surrogate, and kind 2 takes any other.
    let object = unsafe { ffi::PyUnicode_FromKindAndData(kind, units.as_ptr().cast(), len) };
    owned(py, object)
}

/// Whether a string is stored as others are. Before Python 3.12 old calls made strings that are not yet.
///
/// # Safety
/// The object is a live `str`.
#[inline]
pub(crate) unsafe fn is_ready(object: *mut ffi::PyObject) -> bool {
    #[cfg(Py_3_12)]
    {
        !object.is_null()
    }
    #[cfg(not(Py_3_12))]
    {
        // SAFETY: the caller's.
        unsafe { ffi::PyUnicode_IS_READY(object) != 0 }
    }
}

/// The characters of a string that is all ASCII and stored behind its head; None for any other, and for the few strings
/// of ASCII that are stored otherwise.
///
/// # Safety
/// The object is a `str` that lives, and does not change, as long as the characters are used.
#[inline]
pub(crate) unsafe fn ascii_of<'a>(object: *mut ffi::PyObject) -> Option<&'a [u8]> {
    let head: *mut ffi::PyASCIIObject = object.cast();
    #[cfg(not(Py_3_14))]
    {
        // SAFETY: the caller's.
        if unsafe { ffi::PyUnicode_IS_COMPACT_ASCII(object) } == 0 {
            return None;
        }
    }
    #[cfg(Py_3_14)]
    {
        // Others have a longer head, or their data elsewhere.
        // SAFETY: the caller's.
        let data = unsafe { ffi::PyUnicode_DATA(object) };
        if data != head.wrapping_add(1).cast() {
            return None;
        }
    }
    // SAFETY: the caller's.
    let len = unsafe { ffi::PyUnicode_GET_LENGTH(object) };
    // SAFETY: an ASCII string has one byte for each character behind its head.
    Some(unsafe { std::slice::from_raw_parts(head.wrapping_add(1).cast(), len.cast_unsigned()) })
}

/// The bytes of a text that is all ASCII.
#[inline]
pub(crate) fn as_ascii<'a>(text: &'a Bound<'_, PyString>) -> Option<&'a [u8]> {
    // SAFETY: the object is a `str`, and alive as long as `text` is borrowed; strings do not change.
    unsafe { ascii_of(text.as_ptr()) }
}

/// The text as WTF-8: halves that stand side by side are one character, others are three bytes.
#[inline]
pub(crate) fn to_wtf8<'a>(text: &'a Bound<'_, PyString>) -> PyResult<Cow<'a, [u8]>> {
    match as_ascii(text) {
        Some(ascii) => Ok(Cow::Borrowed(ascii)),
        None => other_to_wtf8(text),
    }
}

fn other_to_wtf8<'a>(text: &'a Bound<'_, PyString>) -> PyResult<Cow<'a, [u8]>> {
    if let Ok(text) = text.to_str() {
        return Ok(Cow::Borrowed(text.as_bytes()));
    }
    let encoded = text
        .call_method1("encode", ("utf-8", "surrogatepass"))?
        .cast_into::<PyBytes>()?;
    Ok(Cow::Owned(fuse_wtf8(encoded.as_bytes())))
}
