//! A sink that builds Python objects, and its key cache.
#![allow(
    clippy::inline_always,
    reason = "a sink is part of the reader's loop; bench_parse"
)]

use std::sync::Mutex;

use dsh_codec_core::json::number::{is_integer_literal, parse_double};
use dsh_codec_core::json::text::{decode_ascii_into, decode_string_into};
use dsh_codec_core::json::{Flow, IntegerShape, Sink, Span, Stopped};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyDict, PyFloat, PyInt, PyList, PyString};

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
        // FNV-1a; keys are a few bytes long.
        let hash = key.iter().fold(0x811c_9dc5_u32, |hash, &byte| {
            (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193)
        });
        let place = (hash ^ hash >> 16) as usize & (CACHED_KEYS - 1);
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

static KEYS: Mutex<KeyCache> = Mutex::new(KeyCache::new());

/// Runs with the module's key cache, or with an empty one while another thread has it.
pub(crate) fn with_keys<R>(f: impl FnOnce(&mut KeyCache) -> R) -> R {
    match KEYS.try_lock() {
        Ok(mut keys) => f(&mut keys),
        Err(_) => f(&mut KeyCache::new()),
    }
}

/// Builds the Python value of one JSON text.
pub(crate) struct ObjectSink<'py, 'a> {
    py: Python<'py>,
    bytes: &'a [u8],
    keys: &'a mut KeyCache,
    /// Finished values of the open arrays and objects; keys and values alternate in objects.
    values: Vec<Bound<'py, PyAny>>,
    /// Where the values of each open array or object start.
    open: Vec<usize>,
    /// Scratch space for a string with escapes.
    decoded: Vec<u8>,
    /// Why the sink stopped.
    failure: Option<PyErr>,
}

impl<'py, 'a> ObjectSink<'py, 'a> {
    pub(crate) fn new(py: Python<'py>, bytes: &'a [u8], keys: &'a mut KeyCache) -> Self {
        Self {
            py,
            bytes,
            keys,
            values: Vec::with_capacity(64),
            open: Vec::with_capacity(16),
            decoded: Vec::new(),
            failure: None,
        }
    }

    /// The value, once the reader is done.
    pub(crate) fn into_value(mut self) -> Option<Bound<'py, PyAny>> {
        self.values.pop()
    }

    /// The exception that stopped the sink.
    pub(crate) fn into_failure(self) -> Option<PyErr> {
        self.failure
    }

    #[inline]
    fn push<T>(&mut self, value: PyResult<Bound<'py, T>>) -> Flow {
        match value {
            Ok(value) => {
                self.values.push(value.into_any());
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
            self.decoded.clear();
            if !span.high && decode_ascii_into(raw, &mut self.decoded) {
                return pystring::from_ascii(self.py, &self.decoded);
            }
            self.decoded.clear();
            decode_string_into(raw, &mut self.decoded);
            pystring::to_python(self.py, &self.decoded)
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
        self.values.push(self.py.None().into_bound(self.py));
        Ok(())
    }

    #[inline(always)]
    fn boolean(&mut self, value: bool, _at: usize) -> Flow {
        self.values
            .push(PyBool::new(self.py, value).to_owned().into_any());
        Ok(())
    }

    #[inline(always)]
    fn integer(&mut self, value: i64, _at: usize) -> Flow {
        self.values.push(PyInt::new(self.py, value).into_any());
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
        self.values.push(PyFloat::new(self.py, value).into_any());
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
            self.keys.get(self.py, raw)
        } else {
            self.text(span, raw)
        };
        self.push(key)
    }

    #[inline(always)]
    fn begin_array(&mut self, _at: usize) -> Flow {
        self.open.push(self.values.len());
        Ok(())
    }

    #[inline(always)]
    fn end_array(&mut self, _end: usize) -> Flow {
        let start = self.open.pop().unwrap_or_default();
        let list = PyList::new(self.py, self.values.drain(start..));
        self.push(list)
    }

    #[inline(always)]
    fn begin_object(&mut self, _at: usize) -> Flow {
        self.open.push(self.values.len());
        Ok(())
    }

    #[inline(always)]
    fn end_object(&mut self, _end: usize) -> Flow {
        let start = self.open.pop().unwrap_or_default();
        let dict = PyDict::new(self.py);
        let mut members = self.values.drain(start..);
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

    fn string_array(&mut self, _start: usize, _end: usize, _count: usize) -> Flow {
        Err(Stopped) // never called, see PACKED
    }

    fn integer_array(&mut self, _start: usize, _end: usize, _shape: IntegerShape) -> Flow {
        Err(Stopped) // never called, see PACKED
    }
}
