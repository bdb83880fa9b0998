//! Frames of one file, decoded by threads of their own ahead of the scan.
//!
//! Decoders take turns at runs of frames, each its own runs in order, so that the scan knows whose piece comes next.
//! What it gets, and every refusal, are in the order of the file: the result is that of one thread.

use std::fs::File;
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::thread::{Builder, Scope};

use super::{TakePiece, Work};
use crate::error::{Error, ErrorKind, Result};
use crate::frame::{FrameReader, Step};

/// Bytes of the file in a run, from which it gets no more frames.
const RUN_BYTES: u64 = if cfg!(test) { 100 } else { 128 << 10 };

/// Bytes that a decoder reads at once.
const STORED_BYTES: usize = if cfg!(test) { 40 } else { 128 << 10 };

/// Bytes of text in a piece, at most.
const PIECE_BYTES: usize = if cfg!(test) { 1_000 } else { 256 << 10 };

/// Pieces that wait for the scan, of each decoder; as many as a run mostly has.
const MAX_WAITING: usize = 4;

/// Decoders of one file: more would take memory, and the scan would not keep up with them.
pub(super) const MAX_DECODERS: usize = 3;

/// Window of a frame up to which decoders take it. Larger ones are left to the scan, so that only one is in memory.
const MAX_WINDOW_BYTES: u64 = 8 << 20;

/// Complete frames that follow each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Run {
    pub(super) start: u64,
    pub(super) end: u64,
    /// Number of its first frame, and of the one behind its last.
    pub(super) frame: u64,
    pub(super) end_frame: u64,
}

/// Adds a frame to the runs of a file. They are few, however small the frames are.
pub(super) fn add_frame(runs: &mut Vec<Run>, (start, end): (u64, u64), frame: u64) {
    let end_frame = frame + 1;
    match runs.last_mut() {
        Some(run) if run.end - run.start < RUN_BYTES => {
            run.end = end;
            run.end_frame = end_frame;
        }
        _ => runs.push(Run {
            start,
            end,
            frame,
            end_frame,
        }),
    }
}

/// The file, as decoders read it.
pub(super) struct Input<'a> {
    pub(super) file: File,
    pub(super) runs: &'a [Run],
    pub(super) max_frame_plain_bytes: u64,
    pub(super) work: &'a Work,
}

/// Text of frames that follow each other.
#[derive(Default)]
pub(super) struct Piece {
    room: Vec<u8>,
    len: usize,
    /// Where frames end in it.
    ends: Vec<usize>,
    /// Number of the frame of its first byte.
    frame: u64,
    is_last: bool,
}

impl Piece {
    /// Where the text of the frame that has not ended begins.
    fn open_at(&self) -> usize {
        self.ends.last().copied().unwrap_or_default()
    }

    /// Moves the text of the frame that has not ended to another piece, unless it is all there is.
    fn move_open(&mut self, next: &mut Self) {
        let start = self.open_at();
        if start > 0
            && let Some(open) = self.room.get(start..self.len)
            && let Some(room) = next.room.get_mut(..open.len())
        {
            room.copy_from_slice(open);
            next.len = open.len();
            self.len = start;
        }
    }

    /// Gives the text of each frame, its number, and whether the frame ends with it.
    pub(super) fn feed(&self, take: &mut TakePiece<'_>) -> Result<()> {
        let mut start = 0;
        let mut frame = self.frame;
        for &end in &self.ends {
            take(self.room.get(start..end).unwrap_or_default(), frame, true)?;
            start = end;
            frame += 1;
        }
        match self.room.get(start..self.len) {
            Some(rest) if !rest.is_empty() => take(rest, frame, false),
            _ => Ok(()),
        }
    }
}

/// What comes next in the order of the file.
pub(super) enum Next {
    Piece(Piece),
    /// The scan has to decode these frames of a run itself.
    Left(Run),
}

/// The side of the scan to one decoder.
struct Decoder {
    decoded: Receiver<Result<Next>>,
    used: Sender<Piece>,
}

/// Decoders at work. When it goes, they stop.
pub(super) struct Ahead<'a> {
    runs: &'a [Run],
    decoders: Vec<Decoder>,
    /// The run whose pieces come.
    run: usize,
}

impl<'a> Ahead<'a> {
    /// Starts so many decoders; None if there are no threads to be had.
    pub(super) fn start<'scope>(
        scope: &'scope Scope<'scope, '_>,
        input: &'scope Input<'a>,
        count: usize,
    ) -> Option<Self> {
        let mut decoders = Vec::with_capacity(count);
        for number in 0..count {
            let (send, decoded) = sync_channel(MAX_WAITING);
            let (used, free) = channel();
            Builder::new()
                .spawn_scoped(scope, move || decode_runs(input, number, count, &send, &free))
                .ok()?;
            decoders.push(Decoder { decoded, used });
        }
        Some(Self {
            runs: input.runs,
            decoders,
            run: 0,
        })
    }

    /// Waits for what comes next; None at the end. With it comes the place in the file behind it, once a run ends.
    pub(super) fn next(&mut self) -> Result<Option<(Next, Option<u64>)>> {
        let Some(&Run { end, .. }) = self.runs.get(self.run) else {
            return Ok(None);
        };
        let decoder = self.decoders.get(self.run % self.decoders.len().max(1));
        let next = match decoder.map(|decoder| decoder.decoded.recv()) {
            Some(Ok(next)) => next?,
            _ => return Err(std::io::Error::other("a thread that decodes frames ended").into()),
        };
        let is_last = match &next {
            Next::Piece(piece) => piece.is_last,
            Next::Left(_) => true,
        };
        self.run += usize::from(is_last);
        Ok(Some((next, is_last.then_some(end))))
    }

    /// Gives the room of a piece of `next` back, before `next` is called again.
    pub(super) fn give_back(&self, piece: Piece) {
        // The run went on if that was its last piece.
        let run = self.run - usize::from(piece.is_last);
        if let Some(decoder) = self.decoders.get(run % self.decoders.len().max(1)) {
            // A decoder that is through needs no more room.
            let _ = decoder.used.send(piece);
        }
    }
}

fn decode_runs(
    input: &Input<'_>,
    number: usize,
    count: usize,
    send: &SyncSender<Result<Next>>,
    free: &Receiver<Piece>,
) {
    let mut stored = vec![0; STORED_BYTES];
    let mut reader = FrameReader::new(input.max_frame_plain_bytes);
    for run in input.runs.iter().skip(number).step_by(count) {
        let outcome = match &mut reader {
            Ok(reader) => decode_run(input, *run, reader, &mut stored, send, free),
            Err(error) => Err(error.replica()),
        };
        let is_wanted = match outcome {
            Ok(is_wanted) => is_wanted,
            Err(error) => {
                // Whether somebody still waits for it or not, this is the end.
                let _ = send.send(Err(error));
                false
            }
        };
        if !is_wanted {
            return;
        }
    }
}

/// Decodes a run and sends its pieces; false if nobody wants them any more.
fn decode_run(
    input: &Input<'_>,
    run: Run,
    reader: &mut FrameReader,
    stored: &mut [u8],
    send: &SyncSender<Result<Next>>,
    free: &Receiver<Piece>,
) -> Result<bool> {
    let new_piece = |frame| {
        let mut piece = free.try_recv().unwrap_or_default();
        piece.room.resize(PIECE_BYTES, 0);
        piece.ends.clear();
        Piece {
            len: 0,
            frame,
            is_last: false,
            ..piece
        }
    };
    reader.restart_at(run.start, run.frame, MAX_WINDOW_BYTES);
    let mut piece = new_piece(run.frame);
    let mut at = run.start;
    while at < run.end {
        input.work.go_on()?;
        let want = usize::try_from(run.end - at).map_or(stored.len(), |left| left.min(stored.len()));
        let room = stored.get_mut(..want).unwrap_or_default();
        let count = read_at(&input.file, room, at)?;
        if count == 0 {
            return Err(shrank());
        }
        at += count as u64;
        let mut bytes = stored.get(..count).unwrap_or_default();
        loop {
            if piece.len == piece.room.len() {
                // A frame that a piece can hold is in one, so that its damage is known before its rows are looked at.
                let mut next = new_piece(reader.frame_count());
                piece.move_open(&mut next);
                let full = std::mem::replace(&mut piece, next);
                if send.send(Ok(Next::Piece(full))).is_err() {
                    return Ok(false);
                }
            }
            match reader.read(&mut bytes, piece.room.get_mut(piece.len..).unwrap_or_default()) {
                Ok(Step::NeedInput) => break,
                Ok(Step::Piece { len, last, .. }) => {
                    piece.len += len;
                    if last {
                        piece.ends.push(piece.len);
                    }
                }
                Err(error) => {
                    let wide = reader.wide_frame();
                    // The frames before the refused one come first.
                    piece.len = piece.open_at();
                    if send.send(Ok(Next::Piece(piece))).is_err() {
                        return Ok(false);
                    }
                    let Some((start, frame)) = wide else {
                        return Err(error);
                    };
                    let left = Run { start, frame, ..run };
                    return Ok(send.send(Ok(Next::Left(left))).is_ok());
                }
            }
        }
    }
    piece.is_last = true;
    Ok(send.send(Ok(Next::Piece(piece))).is_ok())
}

/// The refusal of a file that has fewer bytes than before.
#[cold]
pub(super) fn shrank() -> Error {
    Error::new(
        ErrorKind::Frame,
        "the file shrank while it was read; read it again",
    )
}

/// Reads at a place, whoever else reads the file.
#[cfg(unix)]
pub(super) fn read_at(file: &File, room: &mut [u8], at: u64) -> Result<usize> {
    loop {
        match std::os::unix::fs::FileExt::read_at(file, room, at) {
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            outcome => return Ok(outcome?),
        }
    }
}

/// Other systems read from the position of the file, which its readers share: there nothing is decoded ahead, and who
/// shares a file holds a lock.
#[cfg(not(unix))]
pub(super) fn read_at(mut file: &File, room: &mut [u8], at: u64) -> Result<usize> {
    use std::io::{Read, Seek, SeekFrom};

    file.seek(SeekFrom::Start(at))?;
    Ok(file.read(room)?)
}

#[cfg(test)]
mod tests {
    use std::num::NonZero;

    use super::super::check_alone;
    use super::super::parts::Plan;
    use super::*;
    use crate::frame::encode_frame;
    use crate::limits::Limits;
    use crate::row::{Mode, ScanOptions};
    use crate::rules::Level;

    const HEADER: &str = "{\"type\":\"session\",\"version\":4,\"id\":\"s\",\"createdAt\":0,\"isSeeded\":false,\"delegationDepth\":0}\n";

    /// A window of 16 MiB, and one raw block.
    fn wide_frame(text: &[u8]) -> Vec<u8> {
        let block = u32::try_from(text.len()).unwrap() << 3 | 1;
        let [a, b, c, _] = block.to_le_bytes();
        [&[0x28, 0xb5, 0x2f, 0xfd, 0x00, 0x70, a, b, c], text].concat()
    }

    /// The next of a row of numbers below a limit.
    fn below(state: &mut u32, limit: usize) -> usize {
        *state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        usize::try_from(*state >> 8).unwrap() % limit
    }

    /// A log in frames of all kinds, most of them with damage; and whether a bit of it was changed.
    fn log(state: &mut u32) -> (Vec<u8>, bool) {
        let mut frames = vec![encode_frame(HEADER.as_bytes(), 3).unwrap()];
        let mut seq = 0;
        for _ in 0..below(state, 60) {
            let mut text = String::new();
            for _ in 0..below(state, 4) {
                let (kind, gap) = match below(state, 60) {
                    0 => ("turn/end", 0),
                    1 => ("x", 1),
                    _ => ("x", 0),
                };
                let data = "y".repeat(below(state, 150));
                let seq_text = seq + gap;
                text.extend(["{\"type\":\"", kind, "\",\"seq\":", &seq_text.to_string()]);
                text.extend([",\"time\":1,\"data\":\"", &data, "\"}\n"]);
                seq += 1;
            }
            // Frames may end inside a row.
            let middle = text.len() - below(state, text.len() + 1) / 4;
            for part in [&text[..middle], &text[middle..]] {
                frames.push(match below(state, 12) {
                    0 => wide_frame(part.as_bytes()),
                    _ => encode_frame(part.as_bytes(), 3).unwrap(),
                });
            }
        }
        let mut file = frames.concat();
        let damage = below(state, 4);
        match damage {
            0 => {
                let at = below(state, file.len());
                file[at] ^= 1 << below(state, 8);
            }
            1 => file.truncate(file.len() - below(state, file.len().min(90))),
            _ => {}
        }
        (file, damage == 0)
    }

    #[test]
    fn runs_cover_all_frames() {
        let mut runs = vec![];
        for (frame, start) in (0..12).map(|n| (n, n * 30)) {
            add_frame(&mut runs, (start, start + 30), frame);
        }
        let ends: Vec<_> = runs
            .iter()
            .map(|run| (run.start, run.end, run.frame, run.end_frame))
            .collect();
        assert_eq!(ends, [(0, 120, 0, 4), (120, 240, 4, 8), (240, 360, 8, 12)]);
    }

    #[test]
    fn decoders_give_what_one_thread_gives() {
        let path = std::env::temp_dir().join(format!("dsh-codec-frames-{}", std::process::id()));
        let mut state = 7;
        let mut outcomes = [0; 3];
        for case in 0..400 {
            let (file, is_changed) = log(&mut state);
            std::fs::write(&path, &file).unwrap();
            let options = ScanOptions {
                mode: if case % 3 == 0 {
                    Mode::Strict
                } else {
                    Mode::Recoverable
                },
                generation: None,
                check_streams: true,
                keeps_records: false,
                limits: Limits {
                    // Whether damage or the limit is met first in a frame depends on how it is read.
                    max_frame_plain_bytes: if case % 7 == 0 && !is_changed {
                        300
                    } else {
                        1 << 20
                    },
                    ..Limits::default()
                },
            };
            let plan = Plan {
                min_stored_bytes: 0,
                ..Plan::default()
            };
            let check = |threads| {
                let threads = NonZero::new(threads).unwrap();
                format!("{:?}", check_alone(&path, options, Level::Scan, threads, plan))
            };
            let one = check(1);
            assert_eq!(one, check(2 + case % 3), "case {case}");
            outcomes[if one.starts_with("Ok") {
                0
            } else {
                1 + usize::from(one.contains("kind: Frame"))
            }] += 1;
        }
        // Sound logs, refused rows and refused frames are among the cases.
        assert!(outcomes.iter().all(|&count| count > 20), "{outcomes:?}");
        std::fs::remove_file(path).unwrap();
    }
}
