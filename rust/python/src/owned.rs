//! State of an object that code of Python may ask for while it is in use.

use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::sync::MutexExt;

use crate::pybuild::CollectorPause;

/// A mutex that refuses a thread that has it already, and does not let it wait for itself.
#[derive(Default)]
pub(crate) struct Owned<T> {
    mutex: Mutex<T>,
    /// The thread that has it; 0: none.
    owner: AtomicUsize,
}

impl<T> Owned<T> {
    pub(crate) fn new(state: T) -> Self {
        Self {
            mutex: Mutex::new(state),
            owner: AtomicUsize::new(0),
        }
    }

    /// Waits for other threads.
    ///
    /// # Errors
    /// `RuntimeError` if this very thread has it: what it was given has run code, such as `__eq__` of a key, that asks
    /// for it.
    pub(crate) fn lock<'a, 'py>(&'a self, py: Python<'py>) -> PyResult<Locked<'a, 'py, T>> {
        let thread = this_thread();
        if self.owner.load(Ordering::Relaxed) == thread {
            return Err(PyRuntimeError::new_err(
                "the object is in use by this very thread: a part of what it was given has called it",
            ));
        }
        // Nothing panics while the lock is held, and every error leaves a state that can be used.
        let guard = self
            .mutex
            .lock_py_attached(py)
            .unwrap_or_else(PoisonError::into_inner);
        self.owner.store(thread, Ordering::Relaxed);
        Ok(Locked {
            guard,
            owner: &self.owner,
            _pause: CollectorPause::new(py),
        })
    }
}

/// A number of this thread that no other has at the same time.
fn this_thread() -> usize {
    thread_local! {
        static PLACE: u8 = const { 0 };
    }
    PLACE.with(|place| std::ptr::from_ref(place).addr())
}

/// The state, while nobody else has it. No collection runs meanwhile, whose finalizers could ask for it.
pub(crate) struct Locked<'a, 'py, T> {
    // Given back before collections go on.
    guard: MutexGuard<'a, T>,
    owner: &'a AtomicUsize,
    _pause: CollectorPause<'py>,
}

impl<T> Deref for Locked<'_, '_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        &self.guard
    }
}

impl<T> DerefMut for Locked<'_, '_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        &mut self.guard
    }
}

impl<T> Drop for Locked<'_, '_, T> {
    fn drop(&mut self) {
        self.owner.store(0, Ordering::Relaxed);
    }
}
