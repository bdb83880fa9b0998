//! Python objects that are looked at where they stand, without a reference of their own to each.
#![allow(
    unsafe_code,
    reason = "a reference to each part of a value costs more than to write the part (benches/bench_writer.py)"
)]
#![allow(
    clippy::inline_always,
    reason = "a call costs as much as most values (benches/bench_writer.py)"
)]

use std::marker::PhantomData;
use std::slice;

use pyo3::ffi;
use pyo3::prelude::*;

use crate::pystring::{ascii_of, is_ready};

/// An object that is held by another one, or by a [`Bound`].
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(crate) struct View<'a> {
    object: *mut ffi::PyObject,
    held: PhantomData<&'a ()>,
}

/// What an object is, if it is of one of the classes that JSON values are made of, and of no subclass.
pub(crate) enum Seen<'a> {
    Text(TextView<'a>),
    Integer,
    Dict(MembersView<'a>),
    /// Elements of a list or tuple.
    Array(&'a [View<'a>]),
    True,
    False,
    Null,
    Float(f64),
    Other,
}

impl<'a> View<'a> {
    /// Looks at an object.
    ///
    /// # Safety
    /// As long as the view is in use, or anything that was got from it, no code of Python runs, no object is changed or
    /// given back, and the thread stays attached.
    pub(crate) unsafe fn of(object: &'a Bound<'_, PyAny>) -> Self {
        Self {
            object: object.as_ptr(),
            held: PhantomData,
        }
    }

    /// The object itself; equal for no two that exist at the same time.
    #[inline(always)]
    pub(crate) fn identity(self) -> *mut ffi::PyObject {
        self.object
    }

    /// What it is.
    #[inline(always)]
    pub(crate) fn see(self) -> Seen<'a> {
        // SAFETY: the object is alive, which is what `of` asks for.
        let class = unsafe { ffi::Py_TYPE(self.object) };
        if class == &raw mut ffi::PyUnicode_Type {
            Seen::Text(TextView(self))
        } else if class == &raw mut ffi::PyLong_Type {
            Seen::Integer
        } else {
            self.see_others(class)
        }
    }

    #[inline]
    fn see_others(self, class: *mut ffi::PyTypeObject) -> Seen<'a> {
        if class == &raw mut ffi::PyDict_Type {
            return Seen::Dict(MembersView { dict: self, at: 0 });
        }
        if class == &raw mut ffi::PyList_Type {
            let list: *mut ffi::PyListObject = self.object.cast();
            // SAFETY: the object is a list, as its class says.
            let items = unsafe { (*list).ob_item };
            // SAFETY: as above.
            let len = unsafe { ffi::PyList_GET_SIZE(self.object) };
            // SAFETY: as above; nobody changes it while it is looked at.
            return Seen::Array(unsafe { views(items, len) });
        }
        if class == &raw mut ffi::PyTuple_Type {
            let tuple: *mut ffi::PyTupleObject = self.object.cast();
            // SAFETY: the object is a tuple, as its class says; its elements stand in it.
            let items = unsafe { &raw mut (*tuple).ob_item };
            // SAFETY: as above.
            let len = unsafe { ffi::PyTuple_GET_SIZE(self.object) };
            // SAFETY: as above.
            return Seen::Array(unsafe { views(items.cast(), len) });
        }
        // SAFETY: a plain look at an object that lives as long as the interpreter.
        if self.object == unsafe { ffi::Py_True() } {
            return Seen::True;
        }
        // SAFETY: as above.
        if self.object == unsafe { ffi::Py_False() } {
            return Seen::False;
        }
        // SAFETY: as above.
        if self.object == unsafe { ffi::Py_None() } {
            return Seen::Null;
        }
        if class == &raw mut ffi::PyFloat_Type {
            // SAFETY: the object is a float, as its class says.
            return Seen::Float(unsafe { ffi::PyFloat_AS_DOUBLE(self.object) });
        }
        Seen::Other
    }

    /// The value of an integer; None if it is none, or beyond 64 bits.
    #[inline]
    pub(crate) fn integer(self) -> Option<i64> {
        // SAFETY: the object is alive.
        if unsafe { ffi::Py_TYPE(self.object) } != &raw mut ffi::PyLong_Type {
            return None;
        }
        let mut overflow = 0;
        // SAFETY: the object is an `int`, of which the call runs no code; beyond 64 bits it says so and raises nothing.
        let value = unsafe { ffi::PyLong_AsLongLongAndOverflow(self.object, &raw mut overflow) };
        (overflow == 0).then_some(value)
    }
}

/// Elements of a list or tuple.
///
/// # Safety
/// `items` points to `len` objects, which are as [`View::of`] asks for; it may be null if there are none.
unsafe fn views<'a>(items: *mut *mut ffi::PyObject, len: ffi::Py_ssize_t) -> &'a [View<'a>] {
    if len <= 0 {
        return &[];
    }
    // SAFETY: as the caller promises; a view is nothing but the pointer.
    unsafe { slice::from_raw_parts(items.cast(), len.cast_unsigned()) }
}

/// Members of a `dict`, in its order.
pub(crate) struct MembersView<'a> {
    dict: View<'a>,
    at: ffi::Py_ssize_t,
}

impl<'a> Iterator for MembersView<'a> {
    type Item = (View<'a>, View<'a>);

    #[inline(always)]
    fn next(&mut self) -> Option<Self::Item> {
        let (mut key, mut value) = (std::ptr::null_mut(), std::ptr::null_mut());
        // SAFETY: the object is a `dict`, which nobody changes meanwhile, and `at` is 0 or what the call left there.
        let is_more =
            unsafe { ffi::PyDict_Next(self.dict.object, &raw mut self.at, &raw mut key, &raw mut value) };
        let view = |object| View {
            object,
            held: PhantomData,
        };
        (is_more != 0).then(|| (view(key), view(value)))
    }
}

/// A `str`.
#[derive(Clone, Copy)]
pub(crate) struct TextView<'a>(View<'a>);

/// Code units of a `str` that is not all ASCII.
pub(crate) enum Units<'a> {
    Latin(&'a [u8]),
    Two(&'a [u16]),
    Four(&'a [u32]),
    /// An old call has made it, which has not stored it, or not as others of its characters are.
    Unknown,
}

impl<'a> TextView<'a> {
    /// The text, if it is all ASCII.
    #[inline(always)]
    pub(crate) fn ascii(self) -> Option<AsciiView<'a>> {
        // SAFETY: the object is a `str`, which lives and does not change as long as the view.
        let bytes = unsafe { ascii_of(self.0.object) }?;
        let head: *const ffi::PyASCIIObject = self.0.object.cast();
        Some(AsciiView {
            // Of the object, and not of the characters alone.
            start: head.wrapping_add(1).cast(),
            len: bytes.len(),
            held: PhantomData,
        })
    }

    /// What a text is made of that [`TextView::ascii`] does not know.
    #[inline]
    pub(crate) fn units(self) -> Units<'a> {
        let object = self.0.object;
        // SAFETY: the object is a `str`.
        if !unsafe { is_ready(object) } {
            return Units::Unknown;
        }
        // SAFETY: as above.
        let kind = unsafe { ffi::PyUnicode_KIND(object) };
        if ![
            ffi::PyUnicode_1BYTE_KIND,
            ffi::PyUnicode_2BYTE_KIND,
            ffi::PyUnicode_4BYTE_KIND,
        ]
        .contains(&kind)
        {
            return Units::Unknown;
        }
        // SAFETY: as above.
        let len = unsafe { ffi::PyUnicode_GET_LENGTH(object) }.cast_unsigned();
        // SAFETY: as above; a string that has a kind has its data.
        let data = unsafe { ffi::PyUnicode_DATA(object) };
        if kind == ffi::PyUnicode_1BYTE_KIND {
            // SAFETY: the data are `len` units of the size that the kind says, and do not change.
            let units: &[u8] = unsafe { slice::from_raw_parts(data.cast(), len) };
            if units.is_ascii() {
                Units::Unknown
            } else {
                Units::Latin(units)
            }
        } else if kind == ffi::PyUnicode_2BYTE_KIND {
            // SAFETY: as above.
            Units::Two(unsafe { slice::from_raw_parts(data.cast(), len) })
        } else {
            // SAFETY: as above.
            Units::Four(unsafe { slice::from_raw_parts(data.cast(), len) })
        }
    }
}

const SPACES: u64 = 0x2020_2020_2020_2020;

/// The bits of so many characters at the low end of a word.
const KEPT: [u64; 9] = {
    let mut kept = [u64::MAX; 9];
    let mut len = 0;
    while len < 8 {
        kept[len] = (1 << (8 * len)) - 1;
        len += 1;
    }
    kept
};

/// A `str` that is all ASCII.
#[derive(Clone, Copy)]
pub(crate) struct AsciiView<'a> {
    start: *const u8,
    len: usize,
    held: PhantomData<&'a ()>,
}

impl<'a> AsciiView<'a> {
    /// How many characters it has.
    #[inline(always)]
    pub(crate) fn len(self) -> usize {
        self.len
    }

    /// Its characters.
    #[inline(always)]
    pub(crate) fn bytes(self) -> &'a [u8] {
        // SAFETY: an ASCII string has one byte for each character, at `start`, and they do not change.
        unsafe { slice::from_raw_parts(self.start, self.len) }
    }

    /// Up to eight characters in the lowest bytes of a word, which has spaces above them; None if there are more.
    #[inline(always)]
    pub(crate) fn word(self) -> Option<u64> {
        let &kept = KEPT.get(self.len)?;
        // SAFETY: the characters stand behind the head of the object, which is longer than a word.
        let end = unsafe { self.start.add(self.len) };
        // SAFETY: as above.
        let place = unsafe { end.sub(8) };
        // SAFETY: so the word is within the object, and all of it has been given a value.
        let word = u64::from_le(unsafe { place.cast::<u64>().read_unaligned() });
        // The characters, which are at the high end, to the low end; what is before them goes out.
        let word = word.rotate_left(u32::try_from(8 * self.len).unwrap_or(0));
        Some(word & kept | SPACES & !kept)
    }
}
