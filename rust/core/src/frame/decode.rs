//! Bounded decoding of complete frames, with one reused context. Spec 10 §7.2, §7.3.

use std::io;

use zstd_safe::{DCtx, DParameter, InBuffer, OutBuffer, ResetDirective, WriteBuf, get_error_name};

use super::header::{Fault, FrameHeader, MAX_HEADER_LEN, check_header};
use crate::error::{Error, ErrorKind, Location, Result};
use crate::limits::MAX_WINDOW_LOG;

/// Room that makes [`FrameReader::read`] return the largest pieces that the kernel interface has, in bytes.
pub const MAX_PIECE_BYTES: usize = 1 << 20;

/// Room for output that is made at a time where it grows, in bytes.
pub(super) const OUTPUT_STEP: usize = 128 << 10;

/// A decompression context that refuses windows above the limit.
pub(super) fn new_context() -> Result<DCtx<'static>> {
    let mut context =
        DCtx::try_create().ok_or_else(|| Error::from(io::Error::from(io::ErrorKind::OutOfMemory)))?;
    context
        .set_parameter(DParameter::WindowLogMax(MAX_WINDOW_LOG))
        .map_err(library_error)?;
    Ok(context)
}

/// Whether libzstd could not get memory: the file is not to blame.
pub(super) fn is_out_of_memory(code: usize) -> bool {
    // libzstd returns an error as its negated number; 64 is memory_allocation.
    code.wrapping_neg() == 64
}

/// An error of libzstd that says nothing about the input: the only one that can happen is lack of memory.
#[cold]
pub(super) fn library_error(code: usize) -> Error {
    let error = if is_out_of_memory(code) {
        io::Error::from(io::ErrorKind::OutOfMemory)
    } else {
        io::Error::other(get_error_name(code))
    };
    Error::from(error)
}

#[cold]
fn decoding_error(code: usize) -> Error {
    if is_out_of_memory(code) {
        return library_error(code);
    }
    let reason = get_error_name(code);
    Error::new(ErrorKind::Frame, format!("the frame does not decode: {reason}"))
}

#[cold]
fn frame_error(fault: Fault) -> Error {
    Error::new(ErrorKind::Frame, fault)
}

#[cold]
fn limit_error(max_frame_plain_bytes: u64) -> Error {
    Error::limit(
        "max_frame_plain_bytes",
        max_frame_plain_bytes,
        format!(
            "the frame holds more than {max_frame_plain_bytes} bytes of plaintext; raise max_frame_plain_bytes"
        ),
    )
}

/// Decoder of frames that are in memory as a whole; one decompression context for all of them.
pub struct FrameDecoder {
    context: DCtx<'static>,
    max_frame_plain_bytes: u64,
    /// Bytes of plaintext of the current frame so far, and what it declares.
    plain_bytes: u64,
    content_size: Option<u64>,
}

impl FrameDecoder {
    /// Prepares a decoder; a frame may hold `max_frame_plain_bytes` of plaintext.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Io`] when there is not enough memory.
    pub fn new(max_frame_plain_bytes: u64) -> Result<Self> {
        Ok(Self {
            context: new_context()?,
            max_frame_plain_bytes,
            plain_bytes: 0,
            content_size: None,
        })
    }

    /// Replaces the content of `out` by the plaintext of `frame`, which is exactly one complete frame.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Frame`] as for [`FrameReader::read`], and when `frame` ends too early or too late;
    /// [`ErrorKind::Limit`] `max_frame_plain_bytes`; [`ErrorKind::Io`] when there is not enough memory. The errors
    /// have no place: the caller knows it. The decoder can be used again.
    ///
    /// # Cost
    ///
    /// Room in `out` grows with what is decoded. The decoder keeps its window, at most 128 MiB.
    ///
    /// # Source
    ///
    /// Spec 10 §7.2, §7.3.
    pub fn decode(&mut self, frame: &[u8], out: &mut Vec<u8>) -> Result<()> {
        out.clear();
        let incomplete = || frame_error("the frame is incomplete".into());
        let header = check_header(frame).map_err(frame_error)?.ok_or_else(incomplete)?;
        let mut rest = self.begin(frame, header)?;
        loop {
            out.reserve(OUTPUT_STEP);
            let start = out.len();
            if self.advance(&mut rest, &mut OutBuffer::around_pos(out, start))? {
                break;
            }
            // With room left, the decoder has given all that its input holds.
            if rest.is_empty() && out.len() < out.capacity() {
                self.reset();
                return Err(incomplete());
            }
        }
        if rest.is_empty() {
            Ok(())
        } else {
            Err(frame_error("bytes follow the frame".into()))
        }
    }

    /// Takes the header at the start of `bytes` and returns what follows it.
    ///
    /// The decoder gets headers by themselves. One that sees a whole frame with a content size and room for it takes
    /// a short cut, on which other malformed frames pass than otherwise: the outcome would depend on how the
    /// file is cut into pieces.
    fn begin<'a>(&mut self, bytes: &'a [u8], header: FrameHeader) -> Result<&'a [u8]> {
        let (mut head, rest) = bytes.split_at_checked(header.len).unwrap_or((bytes, &[]));
        self.content_size = header.content_size;
        self.advance(&mut head, &mut OutBuffer::around([].as_mut_slice()))?;
        Ok(rest)
    }

    /// Decodes until the frame ends (true), the input is used up, or the output is full.
    ///
    /// Whatever happens, the context is at the start of a frame or inside a sound one afterwards.
    fn advance<B: WriteBuf + ?Sized>(
        &mut self,
        input: &mut &[u8],
        out: &mut OutBuffer<'_, B>,
    ) -> Result<bool> {
        let start = out.pos();
        let mut buffer = InBuffer::around(input);
        let outcome = self.context.decompress_stream(out, &mut buffer);
        *input = input.get(buffer.pos()..).unwrap_or_default();
        let hint = match outcome {
            Ok(hint) => hint,
            Err(code) => {
                self.reset();
                return Err(decoding_error(code));
            }
        };
        self.plain_bytes += u64::try_from(out.pos() - start).unwrap_or(u64::MAX);
        if self.plain_bytes > self.max_frame_plain_bytes {
            self.reset();
            return Err(limit_error(self.max_frame_plain_bytes));
        }
        if let Some(declared) = self.content_size
            && self.plain_bytes > declared
        {
            // The streaming decoder notices this at once or later, depending on what it decoded before.
            self.reset();
            let fault = format!("the frame declares {declared} bytes of plaintext and holds more");
            return Err(frame_error(fault.into()));
        }
        // The decoder returns 0 when a frame is complete, its checksum verified, its plaintext handed over.
        let is_complete = hint == 0;
        if is_complete {
            let plain_bytes = std::mem::take(&mut self.plain_bytes);
            // The streaming decoder does not look at the content size when the last block is empty.
            if let Some(declared) = self.content_size
                && declared != plain_bytes
            {
                let fault =
                    format!("the frame declares {declared} bytes of plaintext and holds {plain_bytes}");
                return Err(frame_error(fault.into()));
            }
        }
        Ok(is_complete)
    }

    /// Gives the current frame up.
    fn reset(&mut self) {
        self.plain_bytes = 0;
        // Ending a session cannot fail; if it did, the context would go on refusing to decode.
        let _ = self.context.reset(ResetDirective::SessionOnly);
    }
}

/// What [`FrameReader::read`] did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Step {
    /// All input is used up and there is no plaintext: give more.
    NeedInput,
    /// There is plaintext.
    Piece {
        /// The frame, from 0.
        frame: u64,
        /// Bytes at the start of the output that are its plaintext; 0 only with `last`.
        len: usize,
        /// Whether the frame ends with it. Its checksum, if it has one, is then verified.
        last: bool,
    },
}

/// Incremental decoder of complete frames; one decompression context for all of them.
///
/// What comes out does not depend on how the file is cut into pieces, except for where the plaintext is cut.
pub struct FrameReader {
    decoder: FrameDecoder,
    /// The part of a frame header that has arrived, while it is incomplete.
    held: Vec<u8>,
    is_inside_frame: bool,
    /// The output was full, so that the decoder may hold more.
    may_hold_output: bool,
    frame: u64,
    frame_start: u64,
    /// Bytes of the file taken.
    offset: u64,
    max_window_bytes: u64,
    is_too_wide: bool,
    failure: Option<Error>,
}

impl FrameReader {
    /// Prepares a reader at the start of a file; a frame may hold `max_frame_plain_bytes` of plaintext.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Io`] when there is not enough memory.
    pub fn new(max_frame_plain_bytes: u64) -> Result<Self> {
        Ok(Self {
            decoder: FrameDecoder::new(max_frame_plain_bytes)?,
            held: Vec::with_capacity(MAX_HEADER_LEN),
            is_inside_frame: false,
            may_hold_output: false,
            frame: 0,
            frame_start: 0,
            offset: 0,
            max_window_bytes: u64::MAX,
            is_too_wide: false,
            failure: None,
        })
    }

    /// Goes to the start of another file, with the same decompression context.
    pub fn restart(&mut self) {
        self.restart_at(0, 0, u64::MAX);
    }

    /// Goes to a frame that starts at `offset`, with the same decompression context. It and those behind it count from
    /// `frame`. One with a larger window than `max_window_bytes` is refused before it takes memory, see
    /// [`wide_frame`](Self::wide_frame).
    pub fn restart_at(&mut self, offset: u64, frame: u64, max_window_bytes: u64) {
        self.decoder.reset();
        self.held.clear();
        self.is_inside_frame = false;
        self.may_hold_output = false;
        self.frame = frame;
        self.frame_start = offset;
        self.offset = offset;
        self.max_window_bytes = max_window_bytes;
        self.is_too_wide = false;
        self.failure = None;
    }

    /// Start and number of the frame that was refused for its window alone, with the argument of
    /// [`restart_at`](Self::restart_at).
    pub fn wide_frame(&self) -> Option<(u64, u64)> {
        self.is_too_wide.then_some((self.frame_start, self.frame))
    }

    /// Takes bytes of the file from the front of `input` and puts plaintext of one frame into `out`.
    ///
    /// `out` must have room; 128 KiB, the plaintext of a block, is enough to be fast, and more than
    /// [`MAX_PIECE_BYTES`] is of no use. Call again with what is left of `input`, until [`Step::NeedInput`].
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Frame`]: a bad block or checksum, a window above 2^27 bytes, a skippable frame, a dictionary, or
    /// no frame at all. [`ErrorKind::Limit`] `max_frame_plain_bytes`. Both with the offset of the frame's start and
    /// its number. [`ErrorKind::Io`] when there is not enough memory. Every further call fails with the same
    /// error.
    ///
    /// # Cost
    ///
    /// The decoder keeps its window, at most 128 MiB, and one block.
    ///
    /// # Source
    ///
    /// Spec 10 §7.2, §7.3.
    pub fn read(&mut self, input: &mut &[u8], out: &mut [u8]) -> Result<Step> {
        if let Some(failure) = &self.failure {
            return Err(failure.replica());
        }
        let available = input.len();
        let outcome = self.step(input, out);
        self.offset += u64::try_from(available - input.len()).unwrap_or(u64::MAX);
        match outcome {
            Ok(step) => {
                if matches!(step, Step::Piece { last: true, .. }) {
                    self.frame += 1;
                    self.frame_start = self.offset;
                }
                Ok(step)
            }
            Err(error) => {
                let place = Location {
                    offset: Some(self.frame_start),
                    frame: Some(self.frame),
                    ..Location::default()
                };
                let error = error.located(place);
                self.failure = Some(error.replica());
                Err(error)
            }
        }
    }

    /// Frames decoded to their end, and those before where it started.
    pub fn frame_count(&self) -> u64 {
        self.frame
    }

    /// Whether no frame has been begun but not ended: a file may end here.
    pub fn is_between_frames(&self) -> bool {
        !self.is_inside_frame && self.held.is_empty()
    }

    fn step(&mut self, input: &mut &[u8], out: &mut [u8]) -> Result<Step> {
        if !self.is_inside_frame {
            self.is_inside_frame = self.take_header(input)?;
            if !self.is_inside_frame {
                return Ok(Step::NeedInput);
            }
        }
        let mut out = OutBuffer::around(out);
        while out.pos() < out.capacity() && (self.may_hold_output || !input.is_empty()) {
            let is_complete = self.decoder.advance(input, &mut out)?;
            if is_complete {
                self.is_inside_frame = false;
                self.may_hold_output = false;
                return Ok(Step::Piece {
                    frame: self.frame,
                    len: out.pos(),
                    last: true,
                });
            }
            self.may_hold_output = out.pos() == out.capacity();
        }
        Ok(match out.pos() {
            0 => Step::NeedInput,
            len => Step::Piece {
                frame: self.frame,
                len,
                last: false,
            },
        })
    }

    /// Checks the next header before the decoder sees it; whether it is complete.
    fn take_header(&mut self, input: &mut &[u8]) -> Result<bool> {
        if self.held.is_empty()
            && let Some(header) = check_header(input).map_err(frame_error)?
        {
            self.check_window(header)?;
            *input = self.decoder.begin(input, header)?;
            return Ok(true);
        }
        while let Some((&byte, rest)) = input.split_first() {
            self.held.push(byte);
            *input = rest;
            if let Some(header) = check_header(&self.held).map_err(frame_error)? {
                self.check_window(header)?;
                self.decoder.begin(&self.held, header)?;
                self.held.clear();
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn check_window(&mut self, header: FrameHeader) -> Result<()> {
        self.is_too_wide = header.window_bytes > self.max_window_bytes;
        if self.is_too_wide {
            return Err(frame_error(
                "the frame has a larger window than its reader takes".into(),
            ));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::encode_frame;
    use super::*;

    /// "aaa" in one raw block, without a checksum.
    const PLAIN: [u8; 12] = [
        0x28, 0xb5, 0x2f, 0xfd, 0x00, 0x07, 0x19, 0x00, 0x00, b'a', b'a', b'a',
    ];

    /// A frame without plaintext, its size in one byte.
    const EMPTY: [u8; 9] = [0x28, 0xb5, 0x2f, 0xfd, 0x20, 0x00, 0x01, 0x00, 0x00];

    fn at(offset: u64, frame: u64) -> Location {
        Location {
            offset: Some(offset),
            frame: Some(frame),
            ..Location::default()
        }
    }

    /// Reads a file that arrives in pieces of `size` bytes: the plaintext of each complete frame.
    fn read_all(file: &[u8], size: usize, room: usize, max: u64) -> Result<Vec<Vec<u8>>> {
        let mut reader = FrameReader::new(max)?;
        let mut frames = vec![];
        let mut plain = vec![];
        let mut out = vec![0; room];
        for mut piece in file.chunks(size) {
            loop {
                match reader.read(&mut piece, &mut out)? {
                    Step::NeedInput => break,
                    Step::Piece { frame, len, last } => {
                        assert_eq!(frame, frames.len() as u64);
                        assert!(len > 0 || last);
                        plain.extend_from_slice(&out[..len]);
                        if last {
                            frames.push(std::mem::take(&mut plain));
                        }
                    }
                }
            }
            assert!(piece.is_empty());
        }
        assert_eq!(reader.frame_count(), frames.len() as u64);
        Ok(frames)
    }

    fn refusal(file: &[u8]) -> Location {
        let whole = read_all(file, file.len(), 1 << 16, u64::MAX).unwrap_err();
        let in_bytes = read_all(file, 1, 1, u64::MAX).unwrap_err();
        for error in [&whole, &in_bytes] {
            assert!(matches!(error.kind(), ErrorKind::Frame), "{error}");
        }
        assert_eq!(whole.location(), in_bytes.location());
        whole.location()
    }

    fn long_text() -> Vec<u8> {
        (0..100_000_u32)
            .flat_map(|n| (n.wrapping_mul(2_654_435_761) >> 20).to_le_bytes())
            .collect()
    }

    #[test]
    fn restarted_reader_is_like_a_new_one() {
        let torn = [&PLAIN[..], &EMPTY[..6]].concat();
        let damaged = [&PLAIN[..], b"no frame"].concat();
        let mut reader = FrameReader::new(1 << 20).unwrap();
        let mut out = vec![0; 64];
        for file in [&torn[..], &damaged, &PLAIN, &damaged, &torn, &PLAIN] {
            reader.restart();
            let mut fresh = FrameReader::new(1 << 20).unwrap();
            let (mut one, mut other) = (file, file);
            loop {
                match (reader.read(&mut one, &mut out), fresh.read(&mut other, &mut out)) {
                    (Ok(step), Ok(expected)) => {
                        assert_eq!(step, expected);
                        if step == Step::NeedInput {
                            break;
                        }
                    }
                    (Err(error), Err(expected)) => {
                        assert_eq!(error.location(), expected.location());
                        assert_eq!(error.message(), expected.message());
                        break;
                    }
                    (step, expected) => panic!("{step:?}, expected {expected:?}"),
                }
            }
            assert_eq!(reader.frame_count(), fresh.frame_count());
        }
    }

    #[test]
    fn read_frames_cut_anywhere_gives_the_same() {
        let file = [&PLAIN[..], &EMPTY, &encode_frame(b"header\n", 3).unwrap(), &PLAIN].concat();
        for size in 1..=file.len() {
            for room in [1, 2, 3, 4, 100] {
                let frames = read_all(&file, size, room, 7).unwrap();
                assert_eq!(frames, [&b"aaa"[..], b"", b"header\n", b"aaa"]);
            }
        }
    }

    #[test]
    fn read_long_frames_in_small_pieces_gives_the_same() {
        let text = long_text();
        let file = [
            encode_frame(&text, 3).unwrap(),
            encode_frame(&text[7..], 1).unwrap(),
        ]
        .concat();
        for (size, room) in [
            (1000, 1000),
            (1, 1 << 20),
            (file.len(), 131_072),
            (file.len(), MAX_PIECE_BYTES),
        ] {
            assert!(read_all(&file, size, room, u64::MAX).unwrap() == [&text[..], &text[7..]]);
        }
    }

    #[test]
    fn read_incomplete_frame_needs_input_and_is_inside_it() {
        let mut reader = FrameReader::new(100).unwrap();
        let mut out = [0; 8];
        assert!(reader.is_between_frames());
        let mut input = &PLAIN[..2];
        assert_eq!(reader.read(&mut input, &mut out).unwrap(), Step::NeedInput);
        assert!(!reader.is_between_frames());
        let mut input = &PLAIN[2..11];
        let step = reader.read(&mut input, &mut out).unwrap();
        assert_eq!(
            step,
            Step::Piece {
                frame: 0,
                len: 2,
                last: false
            }
        );
        assert_eq!(reader.read(&mut input, &mut out).unwrap(), Step::NeedInput);
        assert!(!reader.is_between_frames());
        let mut input = &PLAIN[11..];
        let step = reader.read(&mut input, &mut out).unwrap();
        assert_eq!(
            step,
            Step::Piece {
                frame: 0,
                len: 1,
                last: true
            }
        );
        assert!(reader.is_between_frames());
    }

    #[test]
    fn read_damage_is_refused_at_the_start_of_its_frame() {
        let good = encode_frame(b"a batch of rows, long enough to be a batch of rows\n", 3).unwrap();
        let mut bad_checksum = good.clone();
        *bad_checksum.last_mut().unwrap() ^= 1;
        assert_eq!(refusal(&[&PLAIN[..], &bad_checksum].concat()), at(12, 1));
        let mut reserved_bit = good.clone();
        reserved_bit[4] |= 0x10;
        assert_eq!(refusal(&[&PLAIN[..], &PLAIN, &reserved_bit].concat()), at(24, 2));
        let mut bad_block = good;
        bad_block[6] |= 6;
        assert_eq!(refusal(&[&PLAIN[..], &bad_block].concat()), at(12, 1));
        assert_eq!(refusal(&[&PLAIN[..], b"\0\0\0\0"].concat()), at(12, 1));
    }

    #[test]
    fn read_what_a_log_must_not_use_is_refused() {
        // Spec 10 §7.2: skippable frames and dictionaries.
        let skippable = [0x50, 0x2a, 0x4d, 0x18, 1, 0, 0, 0, 0];
        assert_eq!(refusal(&[&PLAIN[..], &skippable].concat()), at(12, 1));
        let dictionary = [
            0x28, 0xb5, 0x2f, 0xfd, 0x01, 0x07, 0x05, 0x19, 0x00, 0x00, b'a', b'a', b'a',
        ];
        assert_eq!(refusal(&dictionary), at(0, 0));
        let no_dictionary = [
            0x28, 0xb5, 0x2f, 0xfd, 0x01, 0x07, 0x00, 0x19, 0x00, 0x00, b'a', b'a', b'a',
        ];
        assert_eq!(read_all(&no_dictionary, 5, 9, 9).unwrap(), [b"aaa"]);
    }

    #[test]
    fn read_window_is_limited_to_2_to_the_27() {
        // Spec 10 §7.2.
        for (window, is_allowed) in [(0x88, true), (0x89, false), (0x90, false), (0xff, false)] {
            let mut frame = PLAIN;
            frame[5] = window;
            if is_allowed {
                assert_eq!(read_all(&frame, 12, 9, 9).unwrap(), [b"aaa"]);
            } else {
                assert_eq!(refusal(&frame), at(0, 0));
            }
        }
    }

    #[test]
    fn read_single_segment_of_hostile_size_is_refused_before_memory_is_taken() {
        let mut frame = vec![0x28, 0xb5, 0x2f, 0xfd, 0xa0];
        frame.extend_from_slice(&(1_u32 << 30).to_le_bytes());
        frame.extend_from_slice(&[0x19, 0, 0, b'a', b'a', b'a']);
        assert_eq!(refusal(&frame), at(0, 0));
        frame[4] = 0xe0;
        frame.splice(5..9, u64::MAX.to_le_bytes());
        assert_eq!(refusal(&frame), at(0, 0));
    }

    #[test]
    fn read_declared_size_that_is_wrong_is_refused() {
        let mut frame = EMPTY;
        frame[5] = 1;
        assert_eq!(refusal(&frame), at(0, 0));
        // An empty last block behind "a".
        let frame = [
            0x28, 0xb5, 0x2f, 0xfd, 0x20, 0x02, 0x08, 0x00, 0x00, b'a', 0x01, 0x00, 0x00,
        ];
        assert_eq!(refusal(&[&EMPTY[..], &frame].concat()), at(9, 1));
    }

    #[test]
    fn read_block_above_its_size_is_refused_however_the_file_is_cut() {
        // 131,073 times "a" as one repeated byte, with the content size.
        let frame = [
            0x28, 0xb5, 0x2f, 0xfd, 0xa0, 0x01, 0x00, 0x02, 0x00, 0x0b, 0x00, 0x10, b'a',
        ];
        assert_eq!(refusal(&frame), at(0, 0));
        let whole = read_all(&frame, frame.len(), 1 << 20, u64::MAX).unwrap_err();
        assert_eq!(whole.location(), at(0, 0));
    }

    #[test]
    fn read_frame_above_its_limit_is_refused() {
        let bomb = encode_frame(&vec![b'a'; 1 << 20], 3).unwrap();
        let file = [&PLAIN[..], &bomb].concat();
        for room in [1000, 1 << 21] {
            assert_eq!(read_all(&file, file.len(), room, 1 << 20).unwrap().len(), 2);
            let error = read_all(&file, file.len(), room, (1 << 20) - 1).unwrap_err();
            let limit = ErrorKind::Limit {
                which: "max_frame_plain_bytes",
                value: (1 << 20) - 1,
            };
            assert_eq!(format!("{:?}", error.kind()), format!("{limit:?}"));
            assert_eq!(error.location(), at(12, 1));
        }
    }

    #[test]
    fn read_refusal_is_repeated() {
        let mut reader = FrameReader::new(100).unwrap();
        let mut out = [0; 8];
        assert!(reader.read(&mut &b"\0\0\0\0"[..], &mut out).is_err());
        assert_eq!(
            reader.read(&mut &PLAIN[..], &mut out).unwrap_err().location(),
            at(0, 0)
        );
        assert_eq!(reader.frame_count(), 0);
    }

    #[test]
    fn decode_takes_exactly_one_frame_and_goes_on_after_a_refusal() {
        let mut decoder = FrameDecoder::new(500_000).unwrap();
        let mut out = b"before".to_vec();
        let text = long_text();
        let frame = encode_frame(&text, 3).unwrap();
        for refused in [
            &frame[..frame.len() - 1],
            &frame[..3],
            &[],
            &[frame.clone(), vec![0]].concat(),
        ] {
            let error = decoder.decode(refused, &mut out).unwrap_err();
            assert!(matches!(error.kind(), ErrorKind::Frame));
            assert_eq!(error.location(), Location::default());
            decoder.decode(&frame, &mut out).unwrap();
            assert!(out == text);
        }
        decoder.decode(&EMPTY, &mut out).unwrap();
        assert!(out.is_empty());
        let long = encode_frame(&vec![b'a'; 500_001], 3).unwrap();
        let error = decoder.decode(&long, &mut out).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::Limit { .. }));
        decoder.decode(&PLAIN, &mut out).unwrap();
        assert_eq!(out, b"aaa");
    }
}
