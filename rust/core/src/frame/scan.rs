//! Frame boundaries by structure, without decompression. Spec 10 §7.3.

use super::header::{BlockHeader, Descriptor, Fault, MAGIC, not_a_frame};
use crate::error::{Error, ErrorKind, Location, Result};

/// Frames of a file. Spec 10 §7.3.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct FrameScan {
    /// Byte ranges `(start, end)` of the complete frames, in order and without gaps.
    pub frames: Vec<(u64, u64)>,
    /// Byte where an incomplete last frame starts.
    pub torn_start: Option<u64>,
}

/// Finds the frames of a file in memory.
///
/// With `max_frames` the scan stops behind that many complete frames; what follows is not looked at.
///
/// # Errors
///
/// [`ErrorKind::Frame`] when a frame is malformed or the bytes are no frame; the location has the offset of the
/// frame's start and the frame's number.
///
/// # Cost
///
/// Reads headers of frames and blocks only. 16 bytes of memory per frame.
///
/// # Source
///
/// Spec 10 §7.3.
pub fn scan_frames(data: &[u8], max_frames: Option<usize>) -> Result<FrameScan> {
    let mut scanner = FrameScanner::new();
    let mut rest = data;
    let mut frames = Vec::new();
    while max_frames.is_none_or(|max| frames.len() < max) {
        match scanner.next_frame(&mut rest)? {
            Some(range) => frames.push(range),
            None => {
                return Ok(FrameScan {
                    frames,
                    torn_start: scanner.finish(),
                });
            }
        }
    }
    Ok(FrameScan {
        frames,
        torn_start: None,
    })
}

/// What the next bytes of the file are.
#[derive(Clone, Copy, Debug)]
enum State {
    Magic,
    Descriptor,
    HeaderRest,
    BlockHeader,
    Block { is_last: bool },
    Checksum,
}

/// [`scan_frames`] for a file that arrives in pieces. Keeps no input.
///
/// The result does not depend on how the file is cut into pieces. A reader that can seek need not read what is
/// [`skippable`](Self::skippable).
#[derive(Debug)]
pub struct FrameScanner {
    state: State,
    /// Little-endian number of which `held_len` bytes are known.
    held: u32,
    held_len: u8,
    /// Bytes to pass over in the states that do so.
    remaining: u32,
    has_checksum: bool,
    position: u64,
    frame_start: u64,
    frame: u64,
    failure: Option<Error>,
}

impl Default for FrameScanner {
    fn default() -> Self {
        Self::new()
    }
}

impl FrameScanner {
    /// Prepares a scan from the start of a file.
    pub fn new() -> Self {
        Self {
            state: State::Magic,
            held: 0,
            held_len: 0,
            remaining: 0,
            has_checksum: false,
            position: 0,
            frame_start: 0,
            frame: 0,
            failure: None,
        }
    }

    /// Takes the next bytes and appends the ranges of the frames that they complete to `out`.
    ///
    /// # Errors
    ///
    /// As for [`scan_frames`]; every further call fails with the same error. Frames before the malformed one
    /// have been appended.
    pub fn feed(&mut self, mut data: &[u8], out: &mut Vec<(u64, u64)>) -> Result<()> {
        while let Some(range) = self.next_frame(&mut data)? {
            out.push(range);
        }
        Ok(())
    }

    /// Takes bytes from the front of `data` up to the end of the next frame and returns its range; takes all
    /// of them and returns `None` when it is not complete.
    ///
    /// # Errors
    ///
    /// As for [`feed`](Self::feed).
    pub fn next_frame(&mut self, data: &mut &[u8]) -> Result<Option<(u64, u64)>> {
        if let Some(failure) = &self.failure {
            return Err(failure.replica());
        }
        self.advance(data).map_err(|fault| {
            let place = Location {
                offset: Some(self.frame_start),
                frame: Some(self.frame),
                ..Location::default()
            };
            let failure = Error::new(ErrorKind::Frame, fault).located(place);
            self.failure = Some(failure.replica());
            failure
        })
    }

    /// Bytes that come next and whose values do not matter; 0 where they do.
    pub fn skippable(&self) -> u64 {
        match self.state {
            State::HeaderRest | State::Block { .. } | State::Checksum => u64::from(self.remaining),
            State::Magic | State::Descriptor | State::BlockHeader => 0,
        }
    }

    /// Passes over [`skippable`](Self::skippable) bytes, `available` at most, and returns how many.
    ///
    /// `available` is what the file still has: a block whose end is missing makes its frame torn. The frame that
    /// ends here, if one does, is appended to `out`.
    pub fn skip(&mut self, available: u64, out: &mut Vec<(u64, u64)>) -> u64 {
        let Ok(count) = u32::try_from(self.skippable().min(available)) else {
            return 0;
        };
        self.remaining -= count;
        self.position += u64::from(count);
        // Without bytes to look at, the only thing that can happen is that the frame is complete.
        if let Ok(Some(range)) = self.next_frame(&mut [].as_slice()) {
            out.push(range);
        }
        u64::from(count)
    }

    /// Offset of a torn last frame; `None` when the file ends with a complete one or is empty.
    ///
    /// After an error this is the start of the malformed frame.
    pub fn finish(&self) -> Option<u64> {
        let is_between_frames = matches!(self.state, State::Magic) && self.held_len == 0;
        (!is_between_frames).then_some(self.frame_start)
    }

    fn advance(&mut self, data: &mut &[u8]) -> std::result::Result<Option<(u64, u64)>, Fault> {
        loop {
            match self.state {
                State::Magic => {
                    let Some(magic) = self.collect(data, 4) else {
                        return Ok(None);
                    };
                    if magic != MAGIC {
                        // One to three bytes never get here: they are a torn tail whatever they are.
                        self.held_len = 4;
                        return Err(not_a_frame(magic));
                    }
                    self.state = State::Descriptor;
                }
                State::Descriptor => {
                    let Some((&byte, rest)) = data.split_first() else {
                        return Ok(None);
                    };
                    let descriptor = Descriptor::new(byte)?;
                    *data = rest;
                    self.position += 1;
                    self.has_checksum = descriptor.has_checksum();
                    self.remaining = u32::from(descriptor.rest_len());
                    self.state = State::HeaderRest;
                }
                State::HeaderRest => {
                    if !self.pass(data) {
                        return Ok(None);
                    }
                    self.state = State::BlockHeader;
                }
                State::BlockHeader => {
                    let Some(bytes) = self.collect(data, 3) else {
                        return Ok(None);
                    };
                    let block = BlockHeader::new(bytes)?;
                    self.remaining = block.stored_bytes;
                    self.state = State::Block {
                        is_last: block.is_last,
                    };
                }
                State::Block { is_last } => {
                    if !self.pass(data) {
                        return Ok(None);
                    }
                    self.state = if !is_last {
                        State::BlockHeader
                    } else if self.has_checksum {
                        self.remaining = 4;
                        State::Checksum
                    } else {
                        return Ok(Some(self.end_frame()));
                    };
                }
                State::Checksum => {
                    return Ok(if self.pass(data) {
                        Some(self.end_frame())
                    } else {
                        None
                    });
                }
            }
        }
    }

    fn end_frame(&mut self) -> (u64, u64) {
        let range = (self.frame_start, self.position);
        self.state = State::Magic;
        self.frame_start = self.position;
        self.frame += 1;
        range
    }

    /// Collects a little-endian number of `len` bytes, at most four.
    fn collect(&mut self, data: &mut &[u8], len: u8) -> Option<u32> {
        while self.held_len < len {
            let (&byte, rest) = data.split_first()?;
            *data = rest;
            self.held |= u32::from(byte) << (8 * self.held_len);
            self.held_len += 1;
            self.position += 1;
        }
        self.held_len = 0;
        Some(std::mem::take(&mut self.held))
    }

    /// Passes over bytes; whether none remain.
    fn pass(&mut self, data: &mut &[u8]) -> bool {
        let available = u32::try_from(data.len()).unwrap_or(u32::MAX);
        let count = self.remaining.min(available);
        *data = usize::try_from(count)
            .ok()
            .and_then(|count| data.get(count..))
            .unwrap_or_default();
        self.remaining -= count;
        self.position += u64::from(count);
        self.remaining == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// "aaa" in one raw block, without a checksum.
    const PLAIN: [u8; 12] = [
        0x28, 0xb5, 0x2f, 0xfd, 0x00, 0x07, 0x19, 0x00, 0x00, b'a', b'a', b'a',
    ];

    /// A single segment with a dictionary id and a two-byte size: an empty raw block, 16 times "b" as a
    /// repeated byte, and a checksum.
    const RICH: [u8; 19] = [
        0x28, 0xb5, 0x2f, 0xfd, 0x65, 0x07, 0x10, 0x00, 0x00, 0x00, 0x00, 0x83, 0x00, 0x00, b'b', 1, 2, 3, 4,
    ];

    fn refusal(data: &[u8]) -> Location {
        let error = scan_frames(data, None).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::Frame), "{error}");
        error.location()
    }

    fn at(offset: u64, frame: u64) -> Location {
        Location {
            offset: Some(offset),
            frame: Some(frame),
            ..Location::default()
        }
    }

    #[test]
    fn scan_every_cut_of_two_frames_is_torn_or_complete() {
        // Spec 10 §7.3.
        let file = [&PLAIN[..], &RICH].concat();
        for cut in 0..=file.len() {
            let scan = scan_frames(&file[..cut], None).unwrap();
            let (frames, torn_start) = match cut {
                0 => (vec![], None),
                1..12 => (vec![], Some(0)),
                12 => (vec![(0, 12)], None),
                13..31 => (vec![(0, 12)], Some(12)),
                _ => (vec![(0, 12), (12, 31)], None),
            };
            assert_eq!(scan, FrameScan { frames, torn_start }, "cut {cut}");
        }
    }

    #[test]
    fn scan_in_pieces_of_any_size_gives_the_same() {
        let file = [&PLAIN[..], &RICH, &PLAIN[..6]].concat();
        for size in 1..=file.len() {
            let mut scanner = FrameScanner::new();
            let mut frames = vec![];
            for piece in file.chunks(size) {
                scanner.feed(piece, &mut frames).unwrap();
            }
            assert_eq!(frames, [(0, 12), (12, 31)]);
            assert_eq!(scanner.finish(), Some(31));
        }
    }

    #[test]
    fn scan_by_skipping_gives_the_same_and_looks_at_structure_only() {
        let file = [&PLAIN[..], &RICH, &PLAIN[..11]].concat();
        let mut scanner = FrameScanner::new();
        let mut frames = vec![];
        let mut rest = &file[..];
        let mut looked_at = 0;
        while !rest.is_empty() {
            let skipped = scanner.skip(rest.len() as u64, &mut frames);
            if skipped == 0 {
                scanner.feed(&rest[..1], &mut frames).unwrap();
                rest = &rest[1..];
                looked_at += 1;
            } else {
                rest = &rest[usize::try_from(skipped).unwrap()..];
            }
        }
        assert_eq!(frames, [(0, 12), (12, 31)]);
        assert_eq!(scanner.finish(), Some(31));
        // The one byte of content that the last frame lacks.
        assert_eq!(scanner.skippable(), 1);
        assert_eq!(looked_at, 3 * 5 + 4 * 3);
    }

    #[test]
    fn scan_one_to_three_stray_bytes_are_a_torn_tail() {
        // Spec 10 §7.3, consequences.
        for stray in [&b"x"[..], b"xx", b"xxx"] {
            let scan = scan_frames(&[&PLAIN[..], stray].concat(), None).unwrap();
            assert_eq!(scan.torn_start, Some(12));
        }
        assert_eq!(refusal(&[&PLAIN[..], b"xxxx"].concat()), at(12, 1));
    }

    #[test]
    fn scan_malformed_frame_is_refused_at_its_start() {
        for descriptor in [0x08, 0x10, 0x18] {
            let mut frame = PLAIN;
            frame[4] = descriptor;
            assert_eq!(refusal(&[PLAIN, frame].concat()), at(12, 1));
        }
        let mut reserved_block = PLAIN;
        reserved_block[6] = 0x1f;
        assert_eq!(refusal(&reserved_block), at(0, 0));
        let skippable = [0x50, 0x2a, 0x4d, 0x18, 0, 0, 0, 0];
        assert_eq!(refusal(&[&PLAIN[..], &skippable].concat()), at(12, 1));
    }

    #[test]
    fn scan_refusal_is_repeated() {
        let mut scanner = FrameScanner::new();
        let mut frames = vec![];
        let file = [&PLAIN[..], &[0; 4]].concat();
        assert_eq!(
            scanner.feed(&file, &mut frames).unwrap_err().location(),
            at(12, 1)
        );
        assert_eq!(
            scanner.feed(&PLAIN, &mut frames).unwrap_err().location(),
            at(12, 1)
        );
        assert_eq!(frames, [(0, 12)]);
        assert_eq!(scanner.skip(10, &mut frames), 0);
        assert_eq!(scanner.finish(), Some(12));
    }

    #[test]
    fn scan_with_max_frames_does_not_look_at_the_rest() {
        let file = [&PLAIN[..], &PLAIN[..], b"not a frame"].concat();
        for (max, frames) in [(0, vec![]), (1, vec![(0, 12)]), (2, vec![(0, 12), (12, 24)])] {
            assert_eq!(
                scan_frames(&file, Some(max)).unwrap(),
                FrameScan {
                    frames,
                    torn_start: None
                }
            );
        }
        assert_eq!(scan_frames(&file, Some(3)).unwrap_err().location(), at(24, 2));
    }

    #[test]
    fn scan_file_of_empty_blocks_takes_constant_memory() {
        let mut scanner = FrameScanner::new();
        let mut frames = vec![];
        scanner
            .feed(&[0x28, 0xb5, 0x2f, 0xfd, 0x00, 0x07], &mut frames)
            .unwrap();
        for _ in 0..1000 {
            scanner.feed(&[0; 3 * 1024], &mut frames).unwrap();
        }
        scanner.feed(&[1, 0, 0], &mut frames).unwrap();
        assert_eq!(frames, [(0, 6 + 3 * 1024 * 1000 + 3)]);
    }
}
