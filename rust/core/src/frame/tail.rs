//! Plaintext of a torn last frame. Spec 10 §7.4.

use zstd_safe::{InBuffer, OutBuffer};

use super::decode::{OUTPUT_STEP, is_out_of_memory, library_error, new_context};
use crate::error::{Error, Result};

/// Returns the plaintext that a torn last frame still yields.
///
/// `data` are the file's bytes from the start of the torn frame. All that a streaming decoder gives is returned,
/// without requiring the end of the frame or its checksum: every complete block, and the present part of a block
/// that is stored raw. If the decoder reports an error, the result is empty.
///
/// # Errors
///
/// [`ErrorKind::Limit`](crate::ErrorKind::Limit) `max_plain_bytes` when there is more plaintext than that;
/// [`ErrorKind::Io`](crate::ErrorKind::Io) when there is not enough memory.
///
/// # Cost
///
/// A decompression context, the frame's window (at most 128 MiB) and the plaintext, which grows with what is
/// decoded.
///
/// # Source
///
/// Spec 10 §7.4.
pub fn recover_tail(data: &[u8], max_plain_bytes: u64) -> Result<Vec<u8>> {
    let mut context = new_context()?;
    let mut plain = Vec::new();
    let mut input = InBuffer::around(data);
    loop {
        plain.reserve(OUTPUT_STEP);
        let start = plain.len();
        let mut output = OutBuffer::around_pos(&mut plain, start);
        match context.decompress_stream(&mut output, &mut input) {
            Ok(_) => {}
            Err(code) if is_out_of_memory(code) => return Err(library_error(code)),
            Err(_) => return Ok(Vec::new()),
        }
        if u64::try_from(plain.len()).is_ok_and(|len| len > max_plain_bytes) {
            return Err(Error::limit(
                "max_plain_bytes",
                max_plain_bytes,
                format!(
                    "the torn frame holds more than {max_plain_bytes} bytes of plaintext; raise max_plain_bytes"
                ),
            ));
        }
        // Room left and no input: the decoder has given all it can. A full buffer may hide more.
        if plain.len() < plain.capacity() && input.pos() == data.len() {
            return Ok(plain);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::encode_frame;
    use super::*;
    use crate::error::ErrorKind;

    /// Two raw blocks, "abc" and "de", and a checksum.
    const FRAME: [u8; 21] = [
        0x28, 0xb5, 0x2f, 0xfd, 0x04, 0x58, 0x18, 0x00, 0x00, b'a', b'b', b'c', 0x11, 0x00, 0x00, b'd', b'e',
        0xd7, 0xd0, 0x9f, 0x9a,
    ];

    #[test]
    fn recover_every_cut_of_raw_blocks_gives_what_is_there() {
        // Spec 10 §7.4: a raw block yields its present part; the checksum is not required.
        for cut in 0..FRAME.len() {
            let expected = match cut {
                0..10 => &b""[..],
                10 => b"a",
                11 => b"ab",
                12..16 => b"abc",
                16 => b"abcd",
                _ => b"abcde",
            };
            assert_eq!(recover_tail(&FRAME[..cut], 5).unwrap(), expected, "cut {cut}");
        }
    }

    #[test]
    fn recover_compressed_blocks_gives_all_complete_ones() {
        let text: Vec<u8> = (0..100_000_u32)
            .flat_map(|n| (n.wrapping_mul(2_654_435_761) >> 20).to_le_bytes())
            .collect();
        let frame = encode_frame(&text, 3).unwrap();
        let plain = recover_tail(&frame[..frame.len() - 5], 1 << 20).unwrap();
        assert_eq!(plain.len() % (128 << 10), 0);
        assert!(!plain.is_empty() && text.starts_with(&plain));
        assert!(recover_tail(&frame[..frame.len() - 1], 1 << 20).unwrap() == text);
    }

    #[test]
    fn recover_gives_all_that_the_decoder_holds_back() {
        // One repeated byte, 128 KiB at a time: plaintext of exactly the room that is made, and more.
        for blocks in 1..20_usize {
            let mut torn = vec![0x28, 0xb5, 0x2f, 0xfd, 0x04, 0x58];
            for _ in 0..blocks {
                torn.extend_from_slice(&[0x02, 0x00, 0x10, b'x']);
            }
            let plain = recover_tail(&torn, u64::MAX).unwrap();
            assert!(plain == vec![b'x'; blocks * (128 << 10)], "{blocks} blocks");
        }
    }

    #[test]
    fn recover_from_what_does_not_decode_is_empty() {
        let mut bad_checksum = FRAME;
        bad_checksum[20] ^= 1;
        let mut bad_block = FRAME;
        bad_block[12] |= 6;
        let mut large_window = FRAME;
        large_window[5] = 0x90;
        for torn in [
            &bad_checksum[..],
            &bad_block,
            &large_window[..20],
            b"xyz",
            b"not a frame",
        ] {
            assert_eq!(recover_tail(torn, 100).unwrap(), b"");
        }
    }

    #[test]
    fn recover_more_than_the_limit_is_refused() {
        let error = recover_tail(&FRAME[..17], 4).unwrap_err();
        assert!(matches!(
            error.kind(),
            ErrorKind::Limit {
                which: "max_plain_bytes",
                value: 4
            }
        ));
    }
}
