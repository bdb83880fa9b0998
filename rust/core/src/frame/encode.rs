//! One batch, one frame. Spec 10 §7.2, 70 §1.

use std::io;

use zstd_safe::zstd_sys::ZSTD_EndDirective;
use zstd_safe::{CCtx, CParameter, InBuffer, OutBuffer};

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

/// Compresses one batch as one frame, byte for byte as the harness does.
///
/// The frame has a checksum and a window of 2 MiB, no content size, no dictionary, and is not a single segment.
/// `level` is the effort, 3 in the harness; other levels keep these parameters, and a level that libzstd does not
/// have becomes the nearest that it has.
///
/// # Errors
///
/// [`ErrorKind::Io`](crate::ErrorKind::Io) when there is not enough memory.
///
/// # Cost
///
/// A compression context per call: about 4 MiB at level 3, more at higher ones.
///
/// # Source
///
/// Spec 10 §7.2, 70 §1.
pub fn encode_frame(data: &[u8], level: i32) -> Result<Vec<u8>> {
    if data.is_empty() {
        // Without a byte of input the encoder would know the input's length at its end, and choose another window.
        return Ok(EMPTY_FRAME.to_vec());
    }
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
    let mut frame = Vec::new();
    let mut input = InBuffer::around(data);
    // The end is announced only once all input is taken. Announced with the input it would give the encoder the
    // input's length, from which it would derive other parameters than the harness's stream has (spec 70 §1).
    while input.pos() < data.len() {
        step(
            &mut context,
            &mut frame,
            &mut input,
            ZSTD_EndDirective::ZSTD_e_continue,
        )?;
    }
    while step(
        &mut context,
        &mut frame,
        &mut input,
        ZSTD_EndDirective::ZSTD_e_end,
    )? != 0
    {}
    Ok(frame)
}

fn step(
    context: &mut CCtx<'_>,
    frame: &mut Vec<u8>,
    input: &mut InBuffer<'_>,
    directive: ZSTD_EndDirective,
) -> Result<usize> {
    if frame.capacity() - frame.len() < OUTPUT_STEP / 2 {
        frame.reserve(OUTPUT_STEP);
    }
    let start = frame.len();
    let mut output = OutBuffer::around_pos(frame, start);
    context
        .compress_stream2(&mut output, input, directive)
        .map_err(library_error)
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
}
