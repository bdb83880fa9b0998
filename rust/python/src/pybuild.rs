//! Fast constructors of Python objects that have no safe door.
#![allow(
    unsafe_code,
    reason = "a named tuple made by calling its class costs more than the rest of an expanded chunk (benches/bench_stream.py)"
)]

use pyo3::exceptions::PyTypeError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyTuple, PyType};

/// A class of named tuples: a subclass of `tuple` with nothing in its instances but the elements.
pub(crate) struct TupleClass(Py<PyType>);

impl TupleClass {
    /// Takes a class that is such a subclass.
    pub(crate) fn new(class: &Bound<'_, PyType>) -> PyResult<Self> {
        let tuple = class.py().get_type::<PyTuple>();
        let same = |name: &str| -> PyResult<bool> { class.getattr(name)?.eq(tuple.getattr(name)?) };
        if class.is_subclass(&tuple)?
            && same("__basicsize__")?
            && same("__itemsize__")?
            && same("__dictoffset__")?
            && same("__weakrefoffset__")?
        {
            Ok(Self(class.clone().unbind()))
        } else {
            Err(PyTypeError::new_err(
                "the class has to be a plain subclass of tuple",
            ))
        }
    }

    /// Makes an instance without running code of the class, which is asked for as many elements as it names.
    #[inline]
    pub(crate) fn make<'py, const N: usize>(
        &self,
        py: Python<'py>,
        elements: [Bound<'py, PyAny>; N],
    ) -> PyResult<Bound<'py, PyAny>> {
        let class = self.0.bind(py).as_type_ptr();
        let size = const { N.cast_signed() };
        // SAFETY: `class` is a live type whose instances are laid out as tuples (checked in `new`), so allocation needs
        // the number of elements only; all are null at first, which the collector and deallocation allow.
        let tuple = unsafe { ffi::PyType_GenericAlloc(class, size) };
        // SAFETY: the call above returns a new reference, or null with an exception set.
        let tuple = unsafe { Bound::from_owned_ptr_or_err(py, tuple) }?;
        for (place, element) in (0..size).zip(elements) {
            // SAFETY: `tuple` has `size` elements and nobody else has seen it; the call takes over the reference.
            unsafe { ffi::PyTuple_SetItem(tuple.as_ptr(), place, element.into_ptr()) };
        }
        Ok(tuple)
    }
}

/// A pause of the cyclic garbage collector, where it was running. Nothing but allocation may happen meanwhile.
pub(crate) struct CollectorPause<'py> {
    was_enabled: bool,
    _attached: Python<'py>,
}

impl<'py> CollectorPause<'py> {
    /// Stops automatic collection until the value is dropped.
    pub(crate) fn new(py: Python<'py>) -> Self {
        // SAFETY: the thread is attached to the interpreter.
        let was_enabled = unsafe { ffi::PyGC_Disable() } == 1;
        Self {
            was_enabled,
            _attached: py,
        }
    }
}

impl Drop for CollectorPause<'_> {
    fn drop(&mut self) {
        if self.was_enabled {
            // SAFETY: the thread is attached to the interpreter, as `_attached` shows.
            unsafe { ffi::PyGC_Enable() };
        }
    }
}
