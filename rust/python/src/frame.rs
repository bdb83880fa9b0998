//! The Zstandard container. Spec 10 §7.

#![expect(
    clippy::needless_pass_by_value,
    reason = "an argument is made for its call, which owns it"
)]
#![expect(
    clippy::doc_markdown,
    reason = "these are Python docstrings, the same as in the stub"
)]

use std::cell::Cell;
use std::sync::{Mutex, MutexGuard, PoisonError};

use dsh_codec_core::frame as core;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::sync::{MutexExt, PyOnceLock};
use pyo3::types::{PyBytes, PyType};

use crate::buffer::InputBytes;
use crate::errors::KernelResult;

/// Levels that libzstd has. Spec 10 §7.2 leaves the choice free.
const LEVELS: std::ops::RangeInclusive<i32> = -131_072..=22;

/// Bytes of which the structure is scanned in less time than it may take to get the GIL back.
const QUICK_SCAN_BYTES: usize = 1 << 20;

/// Bytes of plaintext that are decoded in less time than it may take to get the GIL back: one block.
const QUICK_PLAIN_BYTES: usize = 128 << 10;

/// Bytes that are encoded at levels up to `QUICK_LEVEL` in less time than it may take to get the GIL back.
const QUICK_BATCH_BYTES: usize = 64 << 10;
const QUICK_LEVEL: i32 = 4;

/// An encoder that holds more is not kept.
const KEPT_BYTES: usize = 16 << 20;

/// What a thread keeps from batch to batch: making a compression context costs more than encoding a small batch.
struct Encoding {
    encoder: core::FrameEncoder,
    frame: Vec<u8>,
}

thread_local! {
    static ENCODER: Cell<Option<Encoding>> = const { Cell::new(None) };
}

/// Find the frames of a Zstandard file by structure, without decoding.
///
/// Args:
///     data: The file's bytes.
///     max_frames: Stop after this many complete frames; what follows is not looked at.
///
/// Raises:
///     FrameError: A frame is malformed, or the bytes are no frame; `.offset` is the start of
///         the frame, `.frame` its number. Spec: 10 §7.3.
#[pyfunction]
#[pyo3(signature = (data, /, *, max_frames = None))]
pub(crate) fn scan_frames(
    py: Python<'_>,
    data: InputBytes,
    max_frames: Option<usize>,
) -> KernelResult<Bound<'_, PyAny>> {
    static CLASS: PyOnceLock<Py<PyType>> = PyOnceLock::new();

    let bytes: &[u8] = &data;
    let scan = if bytes.len() <= QUICK_SCAN_BYTES {
        core::scan_frames(bytes, max_frames)?
    } else {
        py.detach(|| core::scan_frames(bytes, max_frames))?
    };
    let class = CLASS.import(py, "dsh_codec._types", "FrameScan")?;
    Ok(class.call1((scan.frames, scan.torn_start))?)
}

/// `scan_frames` for a file that arrives in pieces. Keeps no input.
#[pyclass(frozen, module = "dsh_codec._native")]
pub(crate) struct FrameScanner(Mutex<core::FrameScanner>);

#[pymethods]
impl FrameScanner {
    #[new]
    #[pyo3(signature = ())]
    fn new() -> Self {
        Self(Mutex::new(core::FrameScanner::new()))
    }

    /// Take the next bytes and return the ranges of the frames that they complete.
    ///
    /// Raises:
    ///     FrameError: As for `scan_frames`.
    #[pyo3(signature = (data, /))]
    fn feed(&self, py: Python<'_>, data: InputBytes) -> KernelResult<Vec<(u64, u64)>> {
        let mut guard = lock(&self.0, py);
        let scanner = &mut *guard;
        let bytes: &[u8] = &data;
        let mut frames = Vec::new();
        if bytes.len() <= QUICK_SCAN_BYTES {
            scanner.feed(bytes, &mut frames)?;
        } else {
            py.detach(|| scanner.feed(bytes, &mut frames))?;
        }
        Ok(frames)
    }

    /// Return the offset of a torn last frame, or None.
    #[pyo3(signature = ())]
    fn finish(&self, py: Python<'_>) -> Option<u64> {
        lock(&self.0, py).finish()
    }
}

/// A reader and the bytes of the file that it has been given.
struct Reading {
    reader: core::FrameReader,
    /// The last bytes given, while there may be pieces in them, and how many of them are taken.
    input: Option<InputBytes>,
    taken: usize,
    /// Room for one piece.
    room: Vec<u8>,
}

/// Incremental decoder of complete frames; one decompression context for all of them.
#[pyclass(frozen, module = "dsh_codec._native")]
pub(crate) struct FrameReader(Mutex<Reading>);

#[pymethods]
impl FrameReader {
    #[new]
    #[pyo3(signature = (*, max_frame_plain_bytes = 1_073_741_824))]
    fn new(max_frame_plain_bytes: u64) -> KernelResult<Self> {
        Ok(Self(Mutex::new(Reading {
            reader: core::FrameReader::new(max_frame_plain_bytes)?,
            input: None,
            taken: 0,
            room: vec![0; core::MAX_PIECE_BYTES],
        })))
    }

    /// Give the next bytes of the file. All pieces of the last ones must have been read.
    #[pyo3(signature = (data, /))]
    fn feed(&self, py: Python<'_>, data: InputBytes) -> PyResult<()> {
        let mut reading = lock(&self.0, py);
        if reading.input.is_some() {
            return Err(PyValueError::new_err(
                "there are pieces left: call read() until it returns None",
            ));
        }
        reading.input = Some(data);
        reading.taken = 0;
        Ok(())
    }

    /// Return the next piece of plaintext, at most 1 MiB; None when more bytes are needed.
    ///
    /// Raises:
    ///     FrameError: Bad block, bad checksum, a window above 2^27 bytes, a skippable frame,
    ///         a dictionary, or no frame at all; `.offset` is the frame's start.
    ///     LimitExceededError: A frame holds more than `max_frame_plain_bytes`.
    #[pyo3(signature = ())]
    fn read<'py>(&self, py: Python<'py>) -> KernelResult<Option<Bound<'py, PyAny>>> {
        static CLASS: PyOnceLock<Py<PyType>> = PyOnceLock::new();

        let mut guard = lock(&self.0, py);
        let Reading {
            reader,
            input,
            taken,
            room,
        } = &mut *guard;
        let bytes = input.as_deref().unwrap_or_default();
        let mut rest = bytes.get(*taken..).unwrap_or_default();
        let step = next_piece(py, reader, &mut rest, room);
        *taken = bytes.len() - rest.len();
        let (frame, len, last) = match step {
            Ok(core::Step::Piece { frame, len, last }) => (frame, len, last),
            Ok(_) => {
                *input = None;
                return Ok(None);
            }
            Err(error) => {
                *input = None;
                return Err(error.into());
            }
        };
        // A full piece may be followed by another without more input.
        if *taken == bytes.len() && (last || len < room.len()) {
            *input = None;
        }
        let data = PyBytes::new(py, room.get(..len).unwrap_or_default());
        let class = CLASS.import(py, "dsh_codec._types", "PlainPiece")?;
        Ok(Some(class.call1((frame, data, last))?))
    }

    /// Frames decoded to their end.
    #[getter]
    fn frame_count(&self, py: Python<'_>) -> u64 {
        lock(&self.0, py).reader.frame_count()
    }
}

/// Compress one batch as one frame, byte for byte as the harness does.
///
/// Returns:
///     A frame with checksum and 2 MiB window, without content size (70 §1); other levels keep
///     these parameters.
#[pyfunction]
#[pyo3(signature = (data, /, *, level = 3))]
pub(crate) fn encode_frame(py: Python<'_>, data: InputBytes, level: i32) -> KernelResult<Bound<'_, PyBytes>> {
    if !LEVELS.contains(&level) {
        let (least, most) = LEVELS.into_inner();
        return Err(PyValueError::new_err(format!("level must be from {least} to {most}")).into());
    }
    let bytes: &[u8] = &data;
    let mut kept = match ENCODER.take() {
        Some(kept) if kept.encoder.level() == level => kept,
        _ => Encoding {
            encoder: core::FrameEncoder::new(level)?,
            frame: Vec::new(),
        },
    };
    let Encoding { encoder, frame } = &mut kept;
    frame.clear();
    if bytes.len() <= QUICK_BATCH_BYTES && level <= QUICK_LEVEL {
        encoder.encode(bytes, frame)?;
    } else {
        py.detach(|| encoder.encode(bytes, frame))?;
    }
    let result = PyBytes::new(py, frame);
    if encoder.size_bytes() + frame.capacity() <= KEPT_BYTES {
        ENCODER.set(Some(kept));
    }
    Ok(result)
}

/// Return the plaintext that a torn last frame still yields.
///
/// Args:
///     data: The file's bytes from the start of the torn frame.
///     max_plain_bytes: Bytes of plaintext that are allowed.
///
/// Returns:
///     All that a streaming decoder gives; empty if it reports an error. Spec: 10 §7.4.
///
/// Raises:
///     LimitExceededError: There is more than `max_plain_bytes`.
#[pyfunction]
#[pyo3(signature = (data, /, *, max_plain_bytes = 1_073_741_824))]
pub(crate) fn recover_tail(
    py: Python<'_>,
    data: InputBytes,
    max_plain_bytes: u64,
) -> KernelResult<Bound<'_, PyBytes>> {
    let bytes: &[u8] = &data;
    let plain = py.detach(|| core::recover_tail(bytes, max_plain_bytes))?;
    Ok(PyBytes::new(py, &plain))
}

/// Reads a piece; lets the GIL go only for what is longer than a block.
fn next_piece(
    py: Python<'_>,
    reader: &mut core::FrameReader,
    rest: &mut &[u8],
    room: &mut [u8],
) -> dsh_codec_core::Result<core::Step> {
    let (quick, long) = room.split_at_mut(QUICK_PLAIN_BYTES.min(room.len()));
    match reader.read(rest, quick)? {
        core::Step::Piece {
            frame,
            len,
            last: false,
        } if len == quick.len() => Ok(match py.detach(|| reader.read(rest, long))? {
            core::Step::Piece { len: more, last, .. } => core::Step::Piece {
                frame,
                len: len + more,
                last,
            },
            _ => core::Step::Piece {
                frame,
                len,
                last: false,
            },
        }),
        step => Ok(step),
    }
}

/// Locks without holding up the thread that has the lock and waits for the GIL.
fn lock<'a, T>(mutex: &'a Mutex<T>, py: Python<'_>) -> MutexGuard<'a, T> {
    // Nothing panics while the lock is held, and every error leaves a state that goes on failing.
    mutex.lock_py_attached(py).unwrap_or_else(PoisonError::into_inner)
}
