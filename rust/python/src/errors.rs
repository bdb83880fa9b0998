//! The only place where exceptions are made: the core's errors become the classes of `dsh_codec.errors`.

use std::io;
use std::path::{Path, PathBuf};

use dsh_codec_core::{Error, ErrorKind};
use pyo3::exceptions::{PyMemoryError, PyOSError};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyFloat, PyTuple};

use crate::json::parse_bytes;
use crate::object::with_scratch;

/// Highest generation that this package reads. Spec 00 §4.2.
const SUPPORTED_GENERATION: u8 = 4;

/// Result of a binding.
pub(crate) type KernelResult<T> = Result<T, KernelError>;

/// Why a binding refused: the newtype between the core's error and `PyErr`.
#[derive(Debug)]
pub(crate) enum KernelError {
    /// A refusal of the core, with the file where one is known.
    Core {
        /// The refusal.
        error: Error,
        /// The file, as the caller gave it.
        path: Option<PathBuf>,
    },
    /// An exception that passed through, such as one of a caller's object.
    Python(PyErr),
}

impl KernelError {
    /// Names the file, unless it is named already.
    #[must_use]
    pub(crate) fn with_path(self, path: &Path) -> Self {
        match self {
            Self::Core { error, path: None } => Self::Core {
                error,
                path: Some(path.to_owned()),
            },
            named => named,
        }
    }
}

impl From<Error> for KernelError {
    fn from(error: Error) -> Self {
        Self::Core { error, path: None }
    }
}

impl From<PyErr> for KernelError {
    fn from(error: PyErr) -> Self {
        Self::Python(error)
    }
}

impl From<KernelError> for PyErr {
    #[cold]
    fn from(error: KernelError) -> Self {
        match error {
            KernelError::Python(error) => error,
            KernelError::Core { error, path } => {
                // An exception that cannot be made is replaced by the one that says why.
                Python::attach(|py| {
                    to_exception(py, &error, path.as_deref()).unwrap_or_else(|failure| failure)
                })
            }
        }
    }
}

fn to_exception(py: Python<'_>, error: &Error, path: Option<&Path>) -> PyResult<PyErr> {
    match error.kind() {
        ErrorKind::NewerFormat { found } => instance(
            py,
            "NewerFormatError",
            error,
            path,
            (number(py, *found)?, SUPPORTED_GENERATION),
        ),
        ErrorKind::Unsupported => instance(py, "UnsupportedError", error, path, ()),
        ErrorKind::Header => instance(py, "HeaderError", error, path, ()),
        ErrorKind::Frame => instance(py, "FrameError", error, path, ()),
        ErrorKind::Row => instance(py, "RowError", error, path, ()),
        ErrorKind::Syntax => instance(py, "JsonSyntaxError", error, path, ()),
        ErrorKind::SeqGap { expected, got } => {
            instance(py, "SeqGapError", error, path, (*expected, json_value(py, got)?))
        }
        ErrorKind::Stream { record } => instance(py, "StreamError", error, path, (*record,)),
        ErrorKind::UnknownChunk { record } => instance(py, "UnknownChunkError", error, path, (*record,)),
        ErrorKind::Sidecar => instance(py, "SidecarError", error, path, ("corrupt",)),
        ErrorKind::Limit { which, value } => {
            instance(py, "LimitExceededError", error, path, (*which, *value))
        }
        ErrorKind::Io(refusal) => os_error(py, refusal, path),
        // The enum may grow; its base class is right for whatever comes.
        _ => instance(py, "DshCodecError", error, path, ()),
    }
}

/// Makes an exception of a class of `dsh_codec.errors`: all fields by position, then those of the class.
fn instance<'py>(
    py: Python<'py>,
    class: &str,
    error: &Error,
    path: Option<&Path>,
    extra: impl IntoPyObject<'py, Target = PyTuple, Output = Bound<'py, PyTuple>, Error: Into<PyErr>>,
) -> PyResult<PyErr> {
    static MODULE: PyOnceLock<Py<PyModule>> = PyOnceLock::new();

    let module = MODULE.get_or_try_init(py, || py.import("dsh_codec.errors").map(Bound::unbind))?;
    let place = error.location();
    let fields = (
        error.message(),
        path.map(Path::as_os_str),
        place.line,
        place.offset,
        place.seq,
        place.frame,
        error.rule(),
    );
    let fields = fields.into_pyobject(py)?;
    let extra = extra.into_pyobject(py).map_err(Into::into)?;
    let args = fields.as_sequence().concat(extra.as_sequence())?.to_tuple()?;
    let exception = module.bind(py).getattr(class)?.call1(args)?;
    Ok(PyErr::from_value(exception))
}

/// A number of the JSON model (design §2.1): an integer up to 2^53 in size is an `int`.
fn number(py: Python<'_>, value: f64) -> PyResult<Bound<'_, PyAny>> {
    let float = PyFloat::new(py, value);
    if value.fract() == 0.0 && value.abs() <= 9_007_199_254_740_992.0 {
        float.call_method0("__int__")
    } else {
        Ok(float.into_any())
    }
}

/// The value of a JSON text; None if it is empty.
fn json_value<'py>(py: Python<'py>, text: &str) -> PyResult<Bound<'py, PyAny>> {
    if text.is_empty() {
        return Ok(py.None().into_bound(py));
    }
    let value = with_scratch(|scratch| parse_bytes(py, text.as_bytes(), usize::MAX, scratch));
    Ok(value.or_else(|_| text.into_pyobject(py).map(Bound::into_any))?)
}

/// `OSError(errno, strerror, filename)`, which picks the subclass for its number by itself.
fn os_error(py: Python<'_>, refusal: &io::Error, path: Option<&Path>) -> PyResult<PyErr> {
    if let Some(errno) = refusal.raw_os_error() {
        let text = py.import("os")?.call_method1("strerror", (errno,))?.unbind();
        return Ok(match path {
            Some(path) => PyOSError::new_err((errno, text, path.as_os_str().to_owned())),
            None => PyOSError::new_err((errno, text)),
        });
    }
    Ok(match refusal.kind() {
        io::ErrorKind::OutOfMemory => PyMemoryError::new_err("out of memory"),
        kind => io::Error::new(kind, refusal.to_string()).into(),
    })
}
