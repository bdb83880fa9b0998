//! The integers that the interpreter makes once, and their text with a comma behind it.

use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyInt;

/// Integers that the usual interpreter has one object of each for. Where it has not, nothing is found.
const NUMBERS: std::ops::RangeInclusive<i16> = -5..=256;

/// Places of the table. Objects are some multiple of 16 bytes apart.
const PLACES: usize = 1024;

#[derive(Default)]
struct Place {
    /// It is held, so no other has its address.
    object: Option<Py<PyInt>>,
    text: [u8; 4],
    len: u8,
}

/// Text of small integers by their identity: neither type nor value is looked at.
pub(crate) struct SmallInts(Vec<Place>);

impl SmallInts {
    pub(crate) fn get(py: Python<'_>) -> &'static Self {
        static TABLE: PyOnceLock<SmallInts> = PyOnceLock::new();
        TABLE.get_or_init(py, || Self::new(py))
    }

    fn new(py: Python<'_>) -> Self {
        let mut places: Vec<_> = (0..PLACES).map(|_| Place::default()).collect();
        for number in NUMBERS {
            let object = PyInt::new(py, number);
            let digits = format!("{number},");
            if let Some(place) = places.get_mut(place_of(object.as_ptr()))
                && let Ok(len) = u8::try_from(digits.len())
            {
                let mut text = [0; 4];
                text.iter_mut()
                    .zip(digits.bytes())
                    .for_each(|(place, byte)| *place = byte);
                let object = Some(object.unbind());
                *place = Place { object, text, len };
            }
        }
        Self(places)
    }

    /// The digits of such an integer and a comma, and how many bytes they are.
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "a call costs more than the look")]
    pub(crate) fn text_of(&self, object: *mut ffi::PyObject) -> Option<([u8; 4], usize)> {
        let place = self.0.get(place_of(object))?;
        let is_same = place.object.as_ref().is_some_and(|held| held.as_ptr() == object);
        is_same.then_some((place.text, usize::from(place.len)))
    }
}

#[inline(always)]
#[expect(clippy::inline_always, reason = "a call costs more than the look")]
fn place_of(object: *mut ffi::PyObject) -> usize {
    object.addr() / 16 % PLACES
}
