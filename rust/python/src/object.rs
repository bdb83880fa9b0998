//! A sink that builds Python objects, and its key cache.
#![allow(
    clippy::inline_always,
    reason = "a sink is part of the reader's loop; bench_parse"
)]

use std::sync::Mutex;

use dsh_codec_core::json::number::{is_integer_literal, parse_double};
use dsh_codec_core::json::text::{decode_ascii_into, decode_string_into};
use dsh_codec_core::json::{Flow, IntegerShape, Sink, Span, Stopped, StringShape};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyDict, PyFloat, PyInt, PyList, PyString};

use crate::header::HeaderModel;
use crate::pystring;

/// Keys that are kept; a power of two.
const CACHED_KEYS: usize = 1024;
/// Longer keys are not kept.
const CACHED_KEY_BYTES: usize = 32;

/// A key and its `str`.
type CachedKey = (Box<[u8]>, Py<PyString>);

/// `str` objects of short ASCII keys that were met lately. Bounded: a new key takes the place of an old one.
pub(crate) struct KeyCache {
    slots: Vec<Option<CachedKey>>,
}

impl KeyCache {
    pub(crate) const fn new() -> Self {
        Self { slots: Vec::new() }
    }

    /// A `str` of any text that is likely to come again, such as an event type.
    pub(crate) fn text<'py>(&mut self, py: Python<'py>, wtf8: &[u8]) -> PyResult<Bound<'py, PyString>> {
        if wtf8.len() <= CACHED_KEY_BYTES && wtf8.is_ascii() {
            self.get(py, wtf8)
        } else {
            pystring::to_python(py, wtf8)
        }
    }

    #[inline]
    fn get<'py>(&mut self, py: Python<'py>, key: &[u8]) -> PyResult<Bound<'py, PyString>> {
        if self.slots.is_empty() {
            self.slots.resize_with(CACHED_KEYS, || None);
        }
        let place = place_of(key);
        let Some(slot) = self.slots.get_mut(place) else {
            return pystring::from_ascii(py, key);
        };
        match slot {
            Some((known, text)) if **known == *key => Ok(text.bind(py).clone()),
            _ => {
                let text = pystring::from_ascii(py, key)?;
                *slot = Some((key.into(), text.clone().unbind()));
                Ok(text)
            }
        }
    }
}

/// The place of a key in the cache, by its length and its first and last bytes.
#[inline]
fn place_of(key: &[u8]) -> usize {
    let ends = if let (Some(first), Some(last)) = (key.first_chunk::<8>(), key.last_chunk::<8>()) {
        u64::from_le_bytes(*first) ^ u64::from_le_bytes(*last).rotate_left(29)
    } else if let (Some(first), Some(last)) = (key.first_chunk::<4>(), key.last_chunk::<4>()) {
        u64::from(u32::from_le_bytes(*first)) | u64::from(u32::from_le_bytes(*last)) << 32
    } else {
        key.iter().fold(0, |ends, &byte| ends << 8 | u64::from(byte))
    };
    let hash = (ends ^ key.len() as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    // The top bits are the best mixed ones.
    usize::try_from(hash >> (64 - CACHED_KEYS.trailing_zeros())).unwrap_or_default()
}

/// What parses use again: the key cache and buffers.
pub(crate) struct Scratch {
    keys: KeyCache,
    /// Finished values of the open arrays and objects; keys and values alternate in objects.
    values: Vec<Py<PyAny>>,
    /// Where the values of each open array or object start.
    open: Vec<usize>,
    /// The text of a string with escapes.
    decoded: Vec<u8>,
    /// The header that was made last.
    header: Option<HeaderModel>,
}

/// Entries and bytes of buffers that are kept between parses.
const KEPT_VALUES: usize = 1 << 17;
const KEPT_BYTES: usize = 1 << 18;

impl Scratch {
    const fn new() -> Self {
        Self {
            keys: KeyCache::new(),
            values: Vec::new(),
            open: Vec::new(),
            decoded: Vec::new(),
            header: None,
        }
    }

    /// The key cache.
    pub(crate) fn keys(&mut self) -> &mut KeyCache {
        &mut self.keys
    }

    /// The header that was made last.
    pub(crate) fn header(&mut self) -> &mut Option<HeaderModel> {
        &mut self.header
    }
}

static SCRATCH: Mutex<Scratch> = Mutex::new(Scratch::new());

/// Runs with the module's scratch space, or with an empty one while somebody else has it: another thread, or a parse
/// that a finalizer starts inside another one.
pub(crate) fn with_scratch<R>(f: impl FnOnce(&mut Scratch) -> R) -> R {
    let Ok(mut scratch) = SCRATCH.try_lock() else {
        return f(&mut Scratch::new());
    };
    let result = f(&mut scratch);
    scratch.values.clear();
    scratch.open.clear();
    if scratch.values.capacity() > KEPT_VALUES {
        scratch.values = Vec::new();
    }
    if scratch.decoded.capacity() > KEPT_BYTES {
        scratch.decoded = Vec::new();
    }
    result
}

/// Builds the Python value of one JSON text.
pub(crate) struct ObjectSink<'py, 'a> {
    py: Python<'py>,
    bytes: &'a [u8],
    scratch: &'a mut Scratch,
    /// Why the sink stopped.
    failure: Option<PyErr>,
}

impl<'py, 'a> ObjectSink<'py, 'a> {
    pub(crate) fn new(py: Python<'py>, bytes: &'a [u8], scratch: &'a mut Scratch) -> Self {
        scratch.values.clear();
        scratch.open.clear();
        Self {
            py,
            bytes,
            scratch,
            failure: None,
        }
    }

    /// The value, once the reader is done.
    pub(crate) fn into_value(self) -> Option<Bound<'py, PyAny>> {
        self.scratch.values.pop().map(|value| value.into_bound(self.py))
    }

    /// The exception that stopped the sink.
    pub(crate) fn into_failure(self) -> Option<PyErr> {
        self.failure
    }

    #[inline]
    fn add(&mut self, value: Bound<'py, PyAny>) {
        self.scratch.values.push(value.unbind());
    }

    #[inline]
    fn push<T>(&mut self, value: PyResult<Bound<'py, T>>) -> Flow {
        match value {
            Ok(value) => {
                self.add(value.into_any());
                Ok(())
            }
            Err(error) => {
                self.failure = Some(error);
                Err(Stopped)
            }
        }
    }

    #[inline]
    fn text(&mut self, span: Span, raw: &[u8]) -> PyResult<Bound<'py, PyString>> {
        if span.escaped {
            let decoded = &mut self.scratch.decoded;
            decoded.clear();
            if !span.high && decode_ascii_into(raw, decoded) {
                return pystring::from_ascii(self.py, decoded);
            }
            decoded.clear();
            decode_string_into(raw, decoded);
            pystring::to_python(self.py, decoded)
        } else if span.high {
            pystring::from_utf8_lossy(self.py, raw)
        } else {
            pystring::from_ascii(self.py, raw)
        }
    }
}

impl Sink for ObjectSink<'_, '_> {
    const PACKED: bool = false;

    #[inline(always)]
    fn null(&mut self, _at: usize) -> Flow {
        self.add(self.py.None().into_bound(self.py));
        Ok(())
    }

    #[inline(always)]
    fn boolean(&mut self, value: bool, _at: usize) -> Flow {
        self.add(PyBool::new(self.py, value).to_owned().into_any());
        Ok(())
    }

    #[inline(always)]
    fn integer(&mut self, value: i64, _at: usize) -> Flow {
        self.add(PyInt::new(self.py, value).into_any());
        Ok(())
    }

    fn number(&mut self, start: usize, end: usize) -> Flow {
        const LARGEST: f64 = 9_007_199_254_740_992.0;
        let literal = self.bytes.get(start..end).unwrap_or_default();
        let value = parse_double(literal);
        // Design §2.1: integer literals up to 2^53 are `int`, everything else and −0 is `float`.
        if value != 0.0 && value.abs() <= LARGEST && is_integer_literal(literal) {
            let exact = std::str::from_utf8(literal)
                .ok()
                .and_then(|text| text.parse::<i64>().ok());
            if let Some(exact) = exact.filter(|exact| exact.unsigned_abs() <= 1 << 53) {
                return self.integer(exact, start);
            }
        }
        self.add(PyFloat::new(self.py, value).into_any());
        Ok(())
    }

    #[inline(always)]
    fn string(&mut self, span: Span, raw: &[u8]) -> Flow {
        let text = self.text(span, raw);
        self.push(text)
    }

    #[inline(always)]
    fn key(&mut self, span: Span, raw: &[u8]) -> Flow {
        let key = if !span.escaped && !span.high && raw.len() <= CACHED_KEY_BYTES {
            self.scratch.keys.get(self.py, raw)
        } else {
            self.text(span, raw)
        };
        self.push(key)
    }

    #[inline(always)]
    fn begin_array(&mut self, _at: usize) -> Flow {
        self.scratch.open.push(self.scratch.values.len());
        Ok(())
    }

    #[inline(always)]
    fn end_array(&mut self, _end: usize) -> Flow {
        let start = self.scratch.open.pop().unwrap_or_default();
        let list = PyList::new(self.py, self.scratch.values.drain(start..));
        self.push(list)
    }

    #[inline(always)]
    fn begin_object(&mut self, _at: usize) -> Flow {
        self.scratch.open.push(self.scratch.values.len());
        Ok(())
    }

    #[inline(always)]
    fn end_object(&mut self, _end: usize) -> Flow {
        let start = self.scratch.open.pop().unwrap_or_default();
        let dict = PyDict::new(self.py);
        let mut members = self.scratch.values.drain(start..);
        let mut filled = Ok(());
        while let (Some(key), Some(value)) = (members.next(), members.next()) {
            // Setting a key again keeps its place, as in JavaScript.
            filled = dict.set_item(key, value);
            if filled.is_err() {
                break;
            }
        }
        drop(members);
        self.push(filled.map(|()| dict))
    }

    fn string_array(&mut self, _start: usize, _end: usize, _shape: StringShape) -> Flow {
        Err(Stopped) // never called, see PACKED
    }

    fn integer_array(&mut self, _start: usize, _end: usize, _shape: IntegerShape) -> Flow {
        Err(Stopped) // never called, see PACKED
    }
}
