//! The parts of a frame that tell its structure: descriptor, header, block headers. Spec 10 §7.3.

use std::borrow::Cow;

use crate::limits::MAX_WINDOW_LOG;

/// First four bytes of a frame, as a little-endian number. Spec 10 §7.3.
pub(super) const MAGIC: u32 = 0xFD2F_B528;

/// Bytes of the longest header: magic number, descriptor, window, dictionary id, content size.
pub(super) const MAX_HEADER_LEN: usize = 18;

/// Why bytes are not a frame that a log may hold.
pub(super) type Fault = Cow<'static, str>;

#[cold]
pub(super) fn not_a_frame(found: u32) -> Fault {
    let [a, b, c, d] = found.to_le_bytes();
    if found & 0xFFFF_FFF0 == 0x184D_2A50 {
        // Spec 10 §7.2: skippable frames are not allowed.
        return format!("a skippable frame ({a:02x} {b:02x} {c:02x} {d:02x}); a log must not hold one")
            .into();
    }
    format!("not a Zstandard frame: expected the bytes 28 b5 2f fd, found {a:02x} {b:02x} {c:02x} {d:02x}")
        .into()
}

/// The frame header descriptor, the byte behind the magic number.
#[derive(Clone, Copy, Debug)]
pub(super) struct Descriptor(u8);

impl Descriptor {
    /// Takes the byte; both unused bits must be 0.
    pub(super) fn new(byte: u8) -> Result<Self, Fault> {
        if byte & 0x18 == 0 {
            Ok(Self(byte))
        } else {
            Err("a reserved bit of the frame header is set".into())
        }
    }

    pub(super) fn has_checksum(self) -> bool {
        self.0 & 0x04 != 0
    }

    fn is_single_segment(self) -> bool {
        self.0 & 0x20 != 0
    }

    fn window_len(self) -> u8 {
        u8::from(!self.is_single_segment())
    }

    fn dictionary_len(self) -> u8 {
        // Lengths for the flag values 0 to 3.
        match self.0 & 3 {
            3 => 4,
            flag => flag,
        }
    }

    fn content_size_len(self) -> u8 {
        match self.0 >> 6 {
            0 => u8::from(self.is_single_segment()),
            flag => 1 << flag,
        }
    }

    /// Bytes of the header that follow the descriptor.
    pub(super) fn rest_len(self) -> u8 {
        self.window_len() + self.dictionary_len() + self.content_size_len()
    }
}

/// A block header. Spec 10 §7.3.
#[derive(Clone, Copy, Debug)]
pub(super) struct BlockHeader {
    pub(super) is_last: bool,
    /// Bytes of the file that the block takes behind its header.
    pub(super) stored_bytes: u32,
}

impl BlockHeader {
    /// Takes the three bytes as a little-endian number.
    pub(super) fn new(bytes: u32) -> Result<Self, Fault> {
        let size = bytes >> 3;
        let stored_bytes = match (bytes >> 1) & 3 {
            // A repeated byte is stored once.
            1 => 1,
            3 => return Err("a block of the reserved type".into()),
            _ => size,
        };
        Ok(Self {
            is_last: bytes & 1 != 0,
            stored_bytes,
        })
    }
}

/// A frame header that a log may hold.
#[derive(Clone, Copy, Debug)]
pub(super) struct FrameHeader {
    /// Bytes of the header, magic number included.
    pub(super) len: usize,
    /// Bytes of plaintext that the frame declares.
    pub(super) content_size: Option<u64>,
    /// Bytes that the decoder has to look back.
    pub(super) window_bytes: u64,
}

/// Checks the frame header at the start of `bytes`; `None` when more bytes are needed.
///
/// Everything that a log must not use is refused here, because the decoder passes some of it over in silence.
/// Spec 10 §7.2.
pub(super) fn check_header(bytes: &[u8]) -> Result<Option<FrameHeader>, Fault> {
    let Some((magic, rest)) = bytes.split_first_chunk() else {
        return Ok(None);
    };
    let magic = u32::from_le_bytes(*magic);
    if magic != MAGIC {
        return Err(not_a_frame(magic));
    }
    let Some((&descriptor, rest)) = rest.split_first() else {
        return Ok(None);
    };
    let descriptor = Descriptor::new(descriptor)?;
    let rest_len = usize::from(descriptor.rest_len());
    let Some(fields) = rest.get(..rest_len) else {
        return Ok(None);
    };
    let (window, fields) = fields.split_at(usize::from(descriptor.window_len()));
    let (dictionary, content_size) = fields.split_at(usize::from(descriptor.dictionary_len()));
    // Id 0 says that there is no dictionary.
    if dictionary.iter().any(|&byte| byte != 0) {
        return Err("the frame needs a dictionary; a log must not use one".into());
    }
    let content_size = match content_size {
        [] => None,
        // Two bytes count from 256, because one byte holds what is below.
        [_, _] => Some(little_endian(content_size) + 256),
        _ => Some(little_endian(content_size)),
    };
    let window = match window {
        [byte] => {
            let base = 1_u64 << (10 + (byte >> 3));
            base + base / 8 * u64::from(byte & 7)
        }
        // A single segment has no window of its own: it reaches back to its start.
        _ => content_size.unwrap_or(0),
    };
    if window > 1 << MAX_WINDOW_LOG {
        let allowed = 1_u64 << MAX_WINDOW_LOG;
        return Err(
            format!("the frame needs a window of {window} bytes; at most {allowed} are allowed").into(),
        );
    }
    Ok(Some(FrameHeader {
        len: 5 + rest_len,
        content_size,
        window_bytes: window,
    }))
}

fn little_endian(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .rev()
        .fold(0, |value, &byte| value << 8 | u64::from(byte))
}
