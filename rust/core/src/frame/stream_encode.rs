//! One frame whose plaintext comes in pieces. Spec 10 §7.2, 70 §1.

use std::io;

use zstd_safe::zstd_sys::ZSTD_EndDirective;
use zstd_safe::{CCtx, CParameter, InBuffer, OutBuffer};

use super::decode::library_error;
use super::encode::{WINDOW_LOG, encode_frame};
use crate::error::{Error, Result};

/// Room for output that is made at a time, in bytes.
const OUTPUT_STEP: usize = 64 << 10;

/// Effort of the harness. Spec 70 §1.
const LEVEL: i32 = 3;

/// Makes one frame out of pieces: the bytes are those that [`encode_frame`] gives of all pieces joined.
pub struct FrameWriter {
    context: CCtx<'static>,
    is_empty: bool,
}

impl FrameWriter {
    /// A frame without content yet, at the level of the harness.
    ///
    /// # Errors
    /// [`ErrorKind::Io`](crate::ErrorKind::Io) when there is not enough memory.
    pub fn new() -> Result<Self> {
        let mut context =
            CCtx::try_create().ok_or_else(|| Error::from(io::Error::from(io::ErrorKind::OutOfMemory)))?;
        for parameter in [
            CParameter::CompressionLevel(LEVEL),
            CParameter::WindowLog(WINDOW_LOG),
            CParameter::ChecksumFlag(true),
            CParameter::ContentSizeFlag(false),
        ] {
            context.set_parameter(parameter).map_err(library_error)?;
        }
        Ok(Self {
            context,
            is_empty: true,
        })
    }

    /// Takes the next bytes, and appends what is made of the frame to `out`.
    ///
    /// # Errors
    /// [`ErrorKind::Io`](crate::ErrorKind::Io) when there is not enough memory.
    ///
    /// # Cost
    /// Output lags behind by a block; memory is that of the context, whatever the frame's size.
    pub fn write(&mut self, data: &[u8], out: &mut Vec<u8>) -> Result<()> {
        self.is_empty = self.is_empty && data.is_empty();
        let mut input = InBuffer::around(data);
        while input.pos() < data.len() {
            self.step(&mut input, ZSTD_EndDirective::ZSTD_e_continue, out)?;
        }
        Ok(())
    }

    /// Ends the frame, and appends the rest of it to `out`. What is written later starts a new frame.
    ///
    /// # Errors
    /// [`ErrorKind::Io`](crate::ErrorKind::Io) when there is not enough memory.
    pub fn finish(&mut self, out: &mut Vec<u8>) -> Result<()> {
        if self.is_empty {
            out.extend_from_slice(&encode_frame(&[], LEVEL)?);
            return Ok(());
        }
        self.is_empty = true;
        let mut input = InBuffer::around(&[]);
        while self.step(&mut input, ZSTD_EndDirective::ZSTD_e_end, out)? != 0 {}
        Ok(())
    }

    fn step(
        &mut self,
        input: &mut InBuffer<'_>,
        directive: ZSTD_EndDirective,
        out: &mut Vec<u8>,
    ) -> Result<usize> {
        if out.capacity() - out.len() < OUTPUT_STEP / 2 {
            out.reserve(OUTPUT_STEP);
        }
        let start = out.len();
        let mut output = OutBuffer::around_pos(out, start);
        self.context
            .compress_stream2(&mut output, input, directive)
            .map_err(library_error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_of_any_size_give_the_bytes_of_the_whole() {
        let text: Vec<u8> = (0..300_000_u32)
            .flat_map(|n| (n.wrapping_mul(2_654_435_761) >> 21).to_le_bytes())
            .collect();
        for len in [0, 1, 131_072, 131_073, 1_200_000] {
            let whole = encode_frame(&text[..len], LEVEL).unwrap();
            for size in [1_000, 131_071, 131_072, 131_073, 5_000_000] {
                let mut writer = FrameWriter::new().unwrap();
                // Twice: a frame leaves nothing behind.
                for _ in 0..2 {
                    let mut frame = vec![];
                    for piece in text[..len].chunks(size) {
                        writer.write(piece, &mut frame).unwrap();
                        writer.write(&[], &mut frame).unwrap();
                    }
                    writer.finish(&mut frame).unwrap();
                    assert!(frame == whole, "{len} bytes in pieces of {size}");
                }
            }
        }
    }
}
