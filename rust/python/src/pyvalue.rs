//! Python objects as JSON values for the rules of spec 20. Exact types only, as everywhere in format code.

use std::borrow::Cow;
use std::collections::HashSet;

use dsh_codec_core::json::number::{double, is_negative_zero, is_safe, safe_integer};
use dsh_codec_core::json::{IntegerShape, Kind};
use dsh_codec_core::stream::{Value, Word};
use dsh_codec_core::{Error, ErrorKind, Result};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::iter::{BoundDictIterator, BoundListIterator, BoundTupleIterator};
use pyo3::types::{PyBool, PyDict, PyFloat, PyInt, PyList, PyString, PyTuple};

use crate::pystring;

/// Longest word of the spec.
const MAX_WORD_LEN: usize = 16;

/// A Python object as a JSON value.
#[derive(Clone)]
pub(crate) struct PyValue<'py>(pub(crate) Bound<'py, PyAny>);

/// The `str` objects of all words, in their order.
#[inline]
fn words(py: Python<'_>) -> &'static [Py<PyString>] {
    static WORDS: PyOnceLock<Vec<Py<PyString>>> = PyOnceLock::new();
    WORDS.get_or_init(py, || {
        Word::ALL
            .iter()
            .map(|word| PyString::intern(py, word.as_str()).unbind())
            .collect()
    })
}

/// The `str` of a word, always the same object.
#[inline]
pub(crate) fn word(py: Python<'_>, word: Word) -> Bound<'_, PyString> {
    match words(py).get(word as usize) {
        Some(text) => text.bind(py).clone(),
        None => PyString::intern(py, word.as_str()),
    }
}

impl<'py> PyValue<'py> {
    #[inline]
    fn string(&self) -> Option<&Bound<'py, PyString>> {
        self.0.cast_exact().ok()
    }

    #[inline]
    fn dict(&self) -> Option<&Bound<'py, PyDict>> {
        self.0.cast_exact().ok()
    }

    #[inline]
    fn walk(&self) -> Walk<'py> {
        if let Ok(list) = self.0.cast_exact::<PyList>() {
            Walk::List(list.iter())
        } else if let Ok(tuple) = self.0.cast_exact::<PyTuple>() {
            Walk::Tuple(tuple.iter())
        } else if let Some(dict) = self.dict() {
            Walk::Dict(dict.iter())
        } else {
            Walk::Nothing
        }
    }

    /// Whether the value is an array or object.
    #[inline]
    fn is_container(&self) -> bool {
        self.0.is_exact_instance_of::<PyDict>()
            || self.0.is_exact_instance_of::<PyList>()
            || self.0.is_exact_instance_of::<PyTuple>()
    }

    /// Whether a value without children is JSON and loses nothing when it is written. Spec 10 §1.2.
    #[inline]
    fn is_lossless_scalar(&self) -> bool {
        match self.kind() {
            Some(Kind::Number) => {
                self.safe_integer().is_some_and(|value| value != 0)
                    || self
                        .number()
                        .is_some_and(|value| value.is_finite() && !is_negative_zero(value))
            }
            kind => kind.is_some(),
        }
    }
}

/// Iterator over the children of an array or object.
enum Walk<'py> {
    List(BoundListIterator<'py>),
    Tuple(BoundTupleIterator<'py>),
    Dict(BoundDictIterator<'py>),
    Nothing,
}

impl<'py> Walk<'py> {
    /// The next child, with its key if it is a member of an object.
    #[inline]
    fn next_child(&mut self) -> Option<(Option<Bound<'py, PyAny>>, PyValue<'py>)> {
        match self {
            Self::List(elements) => Some((None, PyValue(elements.next()?))),
            Self::Tuple(elements) => Some((None, PyValue(elements.next()?))),
            Self::Dict(members) => members.next().map(|(key, value)| (Some(key), PyValue(value))),
            Self::Nothing => None,
        }
    }
}

/// Containers that are open while a value is walked through. One that is open already would never end.
///
/// Nesting as such is not limited: nothing recurses. A value that contains itself passes any depth, so containers are
/// remembered only from a depth on that ordinary values do not have.
struct Path<T> {
    open: Vec<(usize, T)>,
    deep: HashSet<usize>,
}

impl<T> Path<T> {
    const REMEMBERED_FROM: usize = 64;

    fn new(outermost: &PyValue<'_>, state: T) -> Self {
        Self {
            open: vec![(outermost.0.as_ptr().addr(), state)],
            deep: HashSet::new(),
        }
    }

    #[inline]
    fn innermost(&mut self) -> Option<&mut T> {
        self.open.last_mut().map(|(_, state)| state)
    }

    /// Enters a container; false if it is open already.
    fn enter(&mut self, container: &PyValue<'_>, state: T) -> bool {
        let identity = container.0.as_ptr().addr();
        self.open.push((identity, state));
        self.open.len() <= Self::REMEMBERED_FROM || self.deep.insert(identity)
    }

    fn leave(&mut self) {
        if let Some((identity, _)) = self.open.pop()
            && !self.deep.is_empty()
        {
            self.deep.remove(&identity);
        }
    }
}

impl Value for PyValue<'_> {
    type Kept = Py<PyAny>;

    #[inline]
    fn kind(&self) -> Option<Kind> {
        let value = &self.0;
        if value.is_exact_instance_of::<PyDict>() {
            Some(Kind::Object)
        } else if value.is_exact_instance_of::<PyString>() {
            Some(Kind::Text)
        } else if value.is_exact_instance_of::<PyInt>() || value.is_exact_instance_of::<PyFloat>() {
            Some(Kind::Number)
        } else if value.is_exact_instance_of::<PyList>() || value.is_exact_instance_of::<PyTuple>() {
            Some(Kind::Array)
        } else if value.is_none() {
            Some(Kind::Null)
        } else if value.is_exact_instance_of::<PyBool>() {
            Some(Kind::Boolean)
        } else {
            None
        }
    }

    fn number(&self) -> Option<f64> {
        if let Ok(float) = self.0.cast_exact::<PyFloat>() {
            return Some(float.value());
        }
        let integer = self.0.cast_exact::<PyInt>().ok()?;
        match integer.extract::<i64>() {
            Ok(small) if is_safe(small) => Some(double(small)),
            // Python raises where the integer is beyond every double.
            _ => Some(integer.extract().unwrap_or(f64::INFINITY)),
        }
    }

    fn is_true(&self) -> bool {
        self.0.cast_exact::<PyBool>().is_ok_and(PyBoolMethods::is_true)
    }

    #[inline]
    fn safe_integer(&self) -> Option<i64> {
        if let Ok(integer) = self.0.cast_exact::<PyInt>() {
            return integer.extract().ok().filter(|&value| is_safe(value));
        }
        safe_integer(self.0.cast_exact::<PyFloat>().ok()?.value())
    }

    #[inline]
    fn text(&self) -> Option<Cow<'_, [u8]>> {
        pystring::to_wtf8(self.string()?).ok()
    }

    #[inline]
    fn word(&self) -> Option<Word> {
        let string = self.string()?;
        // A longer string, which may be a long text, is not looked at.
        if string.len().ok()? > MAX_WORD_LEN {
            return None;
        }
        Word::from_bytes(&pystring::to_wtf8(string).ok()?)
    }

    #[inline]
    fn is_word(&self, word: Word) -> bool {
        // Keys of literals and of parsed texts are mostly the interned object itself.
        words(self.0.py())
            .get(word as usize)
            .is_some_and(|text| text.as_ptr() == self.0.as_ptr())
            || self.word() == Some(word)
    }

    #[inline]
    fn is_nonempty_text(&self) -> bool {
        self.string()
            .is_some_and(|string| string.len().is_ok_and(|len| len > 0))
    }

    #[inline]
    fn is_text_of(&self, kept: &Py<PyAny>) -> bool {
        if self.0.as_ptr() == kept.as_ptr() {
            return self.0.is_exact_instance_of::<PyString>();
        }
        let kept = PyValue(kept.bind(self.0.py()).clone());
        matches!((self.text(), kept.text()), (Some(own), Some(kept)) if own == kept)
    }

    #[inline]
    fn members(&self) -> impl Iterator<Item = (Self, Self)> {
        let members = self.dict().map(PyDictMethods::iter);
        members
            .into_iter()
            .flatten()
            .map(|(key, value)| (PyValue(key), PyValue(value)))
    }

    #[inline]
    fn member(&self, key: Word) -> Option<Self> {
        let dict = self.dict()?;
        dict.get_item(word(dict.py(), key)).ok()?.map(PyValue)
    }

    /// A tuple stands for an array where a chunk is copied; a parsed text has none.
    #[inline]
    fn is_array(&self) -> bool {
        self.0.is_exact_instance_of::<PyList>()
    }

    #[inline]
    fn elements(&self) -> impl Iterator<Item = Self> {
        let list = self.0.cast_exact::<PyList>().ok();
        list.map(PyListMethods::iter).into_iter().flatten().map(PyValue)
    }

    #[inline]
    fn len(&self) -> usize {
        self.0.cast_exact::<PyList>().map_or(0, PyListMethods::len)
    }

    #[inline]
    fn is_text_array(&self) -> bool {
        self.is_array()
            && self
                .elements()
                .all(|element| element.0.is_exact_instance_of::<PyString>())
    }

    #[inline]
    fn integer_shape(&self) -> Option<IntegerShape> {
        None
    }

    fn is_lossless(&self) -> bool {
        if !self.is_container() {
            return self.is_lossless_scalar();
        }
        let mut path = Path::new(self, self.walk());
        while let Some(children) = path.innermost() {
            let Some((key, child)) = children.next_child() else {
                path.leave();
                continue;
            };
            if key.is_some_and(|key| !key.is_exact_instance_of::<PyString>()) {
                return false;
            }
            let is_fine = if child.is_container() {
                let children = child.walk();
                path.enter(&child, children)
            } else {
                child.is_lossless_scalar()
            };
            if !is_fine {
                return false;
            }
        }
        true
    }

    fn keep(&self) -> Py<PyAny> {
        self.0.clone().unbind()
    }

    fn keep_text(&self) -> Py<PyAny> {
        self.keep()
    }

    fn detach(&self) -> Result<Py<PyAny>> {
        deep_copy(&self.0).map(Bound::unbind)
    }
}

/// Where copied children go.
enum Target<'py> {
    List(Bound<'py, PyList>),
    Dict(Bound<'py, PyDict>),
}

impl<'py> Target<'py> {
    fn of(source: &PyValue<'py>) -> Self {
        let py = source.0.py();
        if source.0.is_exact_instance_of::<PyDict>() {
            Self::Dict(PyDict::new(py))
        } else {
            Self::List(PyList::empty(py))
        }
    }

    fn as_any(&self) -> &Bound<'py, PyAny> {
        match self {
            Self::List(list) => list.as_any(),
            Self::Dict(dict) => dict.as_any(),
        }
    }

    fn add(&self, key: Option<&Bound<'py, PyAny>>, value: &Bound<'py, PyAny>) -> PyResult<()> {
        match (self, key) {
            (Self::Dict(dict), Some(key)) => dict.set_item(key, value),
            (Self::Dict(_), None) => Ok(()),
            (Self::List(list), _) => list.append(value),
        }
    }
}

/// Copies arrays and objects; strings and numbers cannot change and are shared. A tuple becomes a list.
///
/// # Errors
/// A stream error if a part of the value is no JSON, or the value contains itself.
pub(crate) fn deep_copy<'py>(value: &Bound<'py, PyAny>) -> Result<Bound<'py, PyAny>> {
    let value = PyValue(value.clone());
    if !value.is_container() {
        return Ok(value.0);
    }
    let copy = Target::of(&value);
    let result = copy.as_any().clone();
    let mut path = Path::new(&value, (value.walk(), copy));
    while let Some((children, target)) = path.innermost() {
        let Some((key, child)) = children.next_child() else {
            path.leave();
            continue;
        };
        if key
            .as_ref()
            .is_some_and(|key| !key.is_exact_instance_of::<PyString>())
            || child.kind().is_none()
        {
            return Err(no_json());
        }
        if child.is_container() {
            let copy = Target::of(&child);
            target.add(key.as_ref(), copy.as_any()).map_err(|_| no_json())?;
            let children = child.walk();
            if !path.enter(&child, (children, copy)) {
                return Err(no_json());
            }
        } else {
            target.add(key.as_ref(), &child.0).map_err(|_| no_json())?;
        }
    }
    Ok(result)
}

#[cold]
fn no_json() -> Error {
    let message = "a chunk has to be made of JSON values, and may not contain itself";
    Error::new(ErrorKind::Stream { record: None }, message)
}
