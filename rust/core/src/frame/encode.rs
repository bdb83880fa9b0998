//! One batch, one frame. Spec 10 §7.2, 70 §1.

use std::io;

use zstd_safe::zstd_sys::ZSTD_EndDirective;
use zstd_safe::{CCtx, CParameter, InBuffer, OutBuffer, ResetDirective};

use super::decode::library_error;
use crate::error::{Error, Result};

/// Binary logarithm of the window of every frame that the harness writes. Spec 70 §1.
pub(super) const WINDOW_LOG: u32 = 21;

/// The frame of an empty batch: magic number, checksum flag, window, an empty last block, checksum.
const EMPTY_FRAME: [u8; 13] = [
    0x28, 0xb5, 0x2f, 0xfd, 0x04, 0x58, 0x01, 0x00, 0x00, 0x99, 0xe9, 0xd8, 0x51,
];

/// Room for output that is made at a time, in bytes.
const OUTPUT_STEP: usize = 64 << 10;

/// Encoder of batches, one frame each, byte for byte as the harness does; one compression context for all of them.
///
/// A frame has a checksum and a window of 2 MiB, no content size, no dictionary, and is not a single segment. What was
/// encoded before does not change it.
pub struct FrameEncoder {
    context: CCtx<'static>,
    level: i32,
}

impl FrameEncoder {
    /// Prepares an encoder. `level` is the effort, 3 in the harness; other levels keep the other parameters, and a level
    /// that libzstd does not have becomes the nearest that it has.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Io`](crate::ErrorKind::Io) when there is not enough memory.
    pub fn new(level: i32) -> Result<Self> {
        let mut context =
            CCtx::try_create().ok_or_else(|| Error::from(io::Error::from(io::ErrorKind::OutOfMemory)))?;
        for parameter in [
            CParameter::CompressionLevel(level),
            CParameter::WindowLog(WINDOW_LOG),
            CParameter::ChecksumFlag(true),
            CParameter::ContentSizeFlag(false),
        ] {
            context.set_parameter(parameter).map_err(library_error)?;
        }
        Ok(Self { context, level })
    }

    /// The level that it was made for.
    pub fn level(&self) -> i32 {
        self.level
    }

    /// Bytes that it holds: about 4 MiB at level 3, more at higher ones.
    pub fn size_bytes(&self) -> usize {
        self.context.sizeof()
    }

    /// Appends the frame of one batch to `frame`.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Io`](crate::ErrorKind::Io) when there is not enough memory. The encoder can be used again; `frame`
    /// may hold a part of the frame.
    ///
    /// # Source
    ///
    /// Spec 10 §7.2, 70 §1.
    pub fn encode(&mut self, data: &[u8], frame: &mut Vec<u8>) -> Result<()> {
        if data.is_empty() {
            // Without a byte of input the encoder would know the input's length at its end, and choose another window.
            frame.extend_from_slice(&EMPTY_FRAME);
            return Ok(());
        }
        let outcome = self.stream(data, frame);
        if outcome.is_err() {
            // Ending a session cannot fail; if it did, the context would go on refusing to encode.
            let _ = self.context.reset(ResetDirective::SessionOnly);
        }
        outcome
    }

    fn stream(&mut self, data: &[u8], frame: &mut Vec<u8>) -> Result<()> {
        let mut input = InBuffer::around(data);
        // The end is announced only once all input is taken. Announced with the input it would give the encoder the
        // input's length, from which it would derive other parameters than the harness's stream has (spec 70 §1).
        while input.pos() < data.len() {
            self.step(frame, &mut input, ZSTD_EndDirective::ZSTD_e_continue)?;
        }
        while self.step(frame, &mut input, ZSTD_EndDirective::ZSTD_e_end)? != 0 {}
        Ok(())
    }

    fn step(
        &mut self,
        frame: &mut Vec<u8>,
        input: &mut InBuffer<'_>,
        directive: ZSTD_EndDirective,
    ) -> Result<usize> {
        if frame.capacity() - frame.len() < OUTPUT_STEP / 2 {
            frame.reserve(OUTPUT_STEP);
        }
        let start = frame.len();
        let mut output = OutBuffer::around_pos(frame, start);
        self.context
            .compress_stream2(&mut output, input, directive)
            .map_err(library_error)
    }
}

/// Compresses one batch as one frame: a [`FrameEncoder`] for one use.
///
/// # Errors
///
/// As for [`FrameEncoder`].
pub fn encode_frame(data: &[u8], level: i32) -> Result<Vec<u8>> {
    let mut frame = Vec::new();
    FrameEncoder::new(level)?.encode(data, &mut frame)?;
    Ok(frame)
}

#[cfg(test)]
mod tests {
    use super::super::{FrameDecoder, scan_frames};
    use super::*;

    #[test]
    fn encode_parameters_are_those_of_the_harness_at_every_level() {
        // Spec 70 §1: checksum, 2 MiB window, no content size, no dictionary, not a single segment.
        for level in [i32::MIN, -5, 0, 1, 3, 19, 22, i32::MAX] {
            let frame = encode_frame(b"{}\n", level).unwrap();
            assert_eq!(frame[..6], [0x28, 0xb5, 0x2f, 0xfd, 0x04, 0x58], "level {level}");
        }
    }

    #[test]
    fn encode_small_batch_gives_the_bytes_of_the_harness() {
        // A last raw block of 3 bytes, and the checksum.
        let expected = [
            0x28, 0xb5, 0x2f, 0xfd, 0x04, 0x58, 0x19, 0x00, 0x00, b'{', b'}', b'\n', 0xba, 0xd3, 0x11, 0x9c,
        ];
        assert_eq!(encode_frame(b"{}\n", 3).unwrap(), expected);
    }

    #[test]
    fn encode_batch_of_any_length_decodes_to_itself() {
        let text: Vec<u8> = (0..200_000_u32)
            .flat_map(|n| (n.wrapping_mul(2_654_435_761) >> 21).to_le_bytes())
            .collect();
        let mut decoder = FrameDecoder::new(u64::MAX).unwrap();
        let mut plain = vec![];
        for len in [0, 1, 131_071, 131_072, 131_073, 262_144, 800_000] {
            let frame = encode_frame(&text[..len], 3).unwrap();
            assert_eq!(
                scan_frames(&frame, None).unwrap().frames,
                [(0, frame.len() as u64)]
            );
            decoder.decode(&frame, &mut plain).unwrap();
            assert!(plain == text[..len], "{len} bytes");
        }
    }

    #[test]
    fn encode_frame_does_not_depend_on_the_frames_before() {
        // Spec 70 §1: the harness makes a context for every batch.
        let text: Vec<u8> = (0..90_000_u32)
            .flat_map(|n| {
                format!("{{\"seq\":{n},\"x\":{}}}\n", n.wrapping_mul(2_654_435_761) >> 21).into_bytes()
            })
            .collect();
        for level in [-5, 1, 3, 9, 19] {
            let mut encoder = FrameEncoder::new(level).unwrap();
            let mut frame = vec![];
            let mut random = 7_u32;
            for round in 0..40 {
                random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                let len = if round % 10 == 9 {
                    400_000
                } else {
                    usize::try_from(random >> 18).unwrap()
                };
                let batch = &text[usize::try_from(random % 1_000_000).unwrap()..][..len];
                frame.clear();
                encoder.encode(batch, &mut frame).unwrap();
                assert!(
                    frame == encode_frame(batch, level).unwrap(),
                    "level {level}, round {round}"
                );
            }
        }
    }
}
