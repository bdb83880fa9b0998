//! One pass over a whole file: container, rows, seqs, every stream record. Spec 10 §8.2, §8.3.

mod frames;
mod parts;

use std::fs::File;
use std::io::{Seek, SeekFrom};
use std::num::NonZero;
use std::ops::{ControlFlow, Range};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;
use std::time::Duration;

use crate::error::{Error, ErrorKind, Location, Result};
use crate::frame::{FrameReader, FrameScanner, MAX_PIECE_BYTES, Step};
use crate::row::{Accept, Mode, RowScanner, ScanOptions, ScanResult, Unseen};
use crate::rules::Level;

use frames::{Ahead, Input, Next, Run, add_frame, read_at, shrank};
use parts::{Parts, Plan};

/// First bytes of a Zstandard frame. Spec 10 §7.3.
const MAGIC: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];

/// Bytes that are read from a file at once.
const READ_BYTES: usize = 1 << 20;

/// A file of which no more is known than that it ends so soon is taken for a regular one: devices end nowhere or later,
/// and reading a directory fails in any case.
const MAX_SMALL_BYTES: u64 = 1 << 16;

/// Block contents of at least this size are skipped by seeking.
const SEEK_BYTES: u64 = 1 << 16;

/// How a file is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compression {
    /// The file is the text.
    None,
    /// Zstandard frames.
    Zstd,
}

/// A scan of a whole file.
#[derive(Debug)]
pub struct FileScan {
    /// What the rows hold.
    pub scan: ScanResult,
    /// How the file is stored.
    pub compression: Compression,
    /// Size of the file.
    pub file_bytes: u64,
    /// Plaintext bytes of all complete frames, or of the plain file.
    pub plain_bytes: u64,
    /// Complete frames.
    pub frame_count: Option<u64>,
    /// File offset of a torn last frame.
    pub torn_start: Option<u64>,
    /// File offset behind everything that is committed and not torn, if that is not the whole file.
    pub truncate_to: Option<u64>,
    /// Events accepted from a torn frame.
    pub recovered_count: u64,
}

/// How far the threads of one call are, and whether they shall stop.
#[derive(Debug, Default)]
struct Work {
    done_bytes: AtomicU64,
    is_cancelled: AtomicBool,
}

impl Work {
    fn done_bytes(&self) -> u64 {
        self.done_bytes.load(Ordering::Relaxed)
    }

    fn add(&self, bytes: u64) {
        self.done_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    fn is_cancelled(&self) -> bool {
        self.is_cancelled.load(Ordering::Relaxed)
    }

    /// Fails once the call is cancelled; nobody sees that error.
    fn go_on(&self) -> Result<()> {
        if self.is_cancelled() {
            Err(std::io::Error::from(std::io::ErrorKind::Interrupted).into())
        } else {
            Ok(())
        }
    }
}

/// Tells the others if a thread panics, which then wait for it no longer.
struct OnPanic<F: Fn()>(F);

impl<F: Fn()> Drop for OnPanic<F> {
    fn drop(&mut self) {
        if thread::panicking() {
            (self.0)();
        }
    }
}

/// Room that a thread keeps from file to file. All files have the same limits.
#[derive(Default)]
pub struct Buffers {
    /// Bytes of the file.
    stored: Vec<u8>,
    frames: FrameBuffers,
}

/// Room for frames, a decompression context and plaintext, and for rows.
#[derive(Default)]
struct FrameBuffers {
    reader: Option<FrameReader>,
    plain: Vec<u8>,
    scanner: Option<Box<RowScanner>>,
}

impl FrameBuffers {
    /// A scanner at the start of a text; it is given back with [`FrameBuffers::keep`].
    fn scanner(&mut self, options: ScanOptions, level: Level) -> Box<RowScanner> {
        match self.scanner.take() {
            Some(mut scanner) => {
                scanner.restart(options, level);
                scanner
            }
            None => Box::new(RowScanner::at_level(options, level)),
        }
    }

    fn keep(&mut self, scanner: Box<RowScanner>) {
        self.scanner = Some(scanner);
    }

    /// A reader at the start of a file, and room for its plaintext. All files have the same limit.
    fn start(&mut self, max_frame_plain_bytes: u64) -> Result<(&mut FrameReader, &mut [u8])> {
        grow(&mut self.plain, MAX_PIECE_BYTES);
        let reader = match self.reader.take() {
            Some(mut reader) => {
                reader.restart();
                reader
            }
            None => FrameReader::new(max_frame_plain_bytes)?,
        };
        Ok((self.reader.insert(reader), &mut self.plain))
    }
}

/// Makes a buffer at least `len` bytes long.
fn grow(buffer: &mut Vec<u8>, len: usize) {
    if buffer.len() < len {
        buffer.resize(len, 0);
    }
}

/// Bytes of a log, front to back, any part again.
trait Source {
    /// Size in bytes.
    fn len(&self) -> u64;
    /// The first bytes, at least those that tell frames from rows.
    fn head(&mut self) -> Result<&[u8]>;
    /// Calls `take` with consecutive pieces of the range.
    fn read(&mut self, from: u64, to: u64, take: &mut dyn FnMut(&[u8]) -> Result<()>) -> Result<()>;
    /// Runs a frame scanner over everything.
    fn scan_frames(&mut self, scanner: &mut FrameScanner, seen: &mut Vec<(u64, u64)>) -> Result<Frames>;
    /// A file that threads can read at any place while this is read, too.
    fn shared(&self) -> Option<File> {
        None
    }
    /// Counts the bytes before `end` as done, each once.
    fn count(&mut self, _end: u64) {}
}

#[derive(Default)]
struct Frames {
    count: u64,
    /// End of the last complete frame.
    end: u64,
    runs: Vec<Run>,
}

impl Frames {
    fn note(&mut self, seen: &mut Vec<(u64, u64)>) {
        for frame in seen.drain(..) {
            add_frame(&mut self.runs, frame, self.count);
            self.count += 1;
            self.end = frame.1;
        }
    }
}

struct Memory<'a>(&'a [u8]);

impl Source for Memory<'_> {
    fn len(&self) -> u64 {
        self.0.len() as u64
    }

    fn head(&mut self) -> Result<&[u8]> {
        Ok(self.0)
    }

    fn read(&mut self, from: u64, to: u64, take: &mut dyn FnMut(&[u8]) -> Result<()>) -> Result<()> {
        let at = |offset| usize::try_from(offset).unwrap_or(usize::MAX).min(self.0.len());
        take(self.0.get(at(from)..at(to)).unwrap_or_default())
    }

    fn scan_frames(&mut self, scanner: &mut FrameScanner, seen: &mut Vec<(u64, u64)>) -> Result<Frames> {
        let mut frames = Frames::default();
        scanner.feed(self.0, seen)?;
        frames.note(seen);
        Ok(frames)
    }
}

struct Disk<'a> {
    file: File,
    len: u64,
    /// Bytes that were read last, and where they stand in the file.
    buffer: &'a mut Vec<u8>,
    start: u64,
    filled: usize,
    work: &'a Work,
    /// Bytes that are counted as done.
    counted: u64,
}

/// The size of an open file that can be read at any place.
fn len_of(mut file: &File) -> Result<u64> {
    // The end of a small file is found in less time than all that its metadata say.
    if let Ok(len @ 1..=MAX_SMALL_BYTES) = file.seek(SeekFrom::End(0)) {
        return Ok(len);
    }
    let metadata = file.metadata()?;
    if !metadata.is_file() {
        // A pipe says so here, before anything is taken from it.
        file.rewind()?;
    }
    Ok(metadata.len())
}

impl<'a> Disk<'a> {
    /// Opens a file; bytes that are appended to it from now on are not looked at.
    fn open(path: &Path, buffer: &'a mut Vec<u8>, work: &'a Work) -> Result<Self> {
        let file = File::open(path)?;
        let len = len_of(&file)?;
        grow(
            buffer,
            usize::try_from(len).unwrap_or(READ_BYTES).clamp(1, READ_BYTES),
        );
        Ok(Self {
            file,
            len,
            buffer,
            start: 0,
            filled: 0,
            work,
            counted: 0,
        })
    }

    /// Up to `want` bytes from `at`, as a range of the buffer; a file that shrinks meanwhile gives fewer.
    fn fill(&mut self, at: u64, want: u64) -> Result<Range<usize>> {
        self.work.go_on()?;
        // What was read last is not read again: a small file is read once.
        let behind = self.start + self.filled as u64;
        if self.start <= at && at + want <= behind {
            let inside = |place: u64| usize::try_from(place - self.start).unwrap_or(usize::MAX);
            return Ok(inside(at)..inside(at + want));
        }
        self.start = at;
        self.filled = 0;
        let want = usize::try_from(want).unwrap_or(usize::MAX).min(self.buffer.len());
        while self.filled < want {
            let room = self.buffer.get_mut(self.filled..want).unwrap_or_default();
            match read_at(&self.file, room, at + self.filled as u64)? {
                0 => break,
                count => self.filled += count,
            }
        }
        Ok(0..self.filled)
    }
}

impl Source for Disk<'_> {
    fn len(&self) -> u64 {
        self.len
    }

    // Of a file that fits into the buffer, all bytes.
    fn head(&mut self) -> Result<&[u8]> {
        let least = MAGIC.len() as u64;
        let is_small = self.len <= self.buffer.len() as u64;
        let filled = self.fill(0, if is_small { self.len.max(least) } else { least })?;
        Ok(self.buffer.get(filled).unwrap_or_default())
    }

    fn shared(&self) -> Option<File> {
        if cfg!(unix) {
            self.file.try_clone().ok()
        } else {
            None
        }
    }

    fn count(&mut self, end: u64) {
        if end > self.counted {
            self.work.add(end - self.counted);
            self.counted = end;
        }
    }

    fn read(&mut self, from: u64, to: u64, take: &mut dyn FnMut(&[u8]) -> Result<()>) -> Result<()> {
        let mut at = from;
        while at < to {
            let filled = self.fill(at, to - at)?;
            if filled.is_empty() {
                break;
            }
            at += filled.len() as u64;
            take(self.buffer.get(filled).unwrap_or_default())?;
            self.count(at);
        }
        Ok(())
    }

    fn scan_frames(&mut self, scanner: &mut FrameScanner, seen: &mut Vec<(u64, u64)>) -> Result<Frames> {
        let mut frames = Frames::default();
        let mut at = 0;
        while at < self.len {
            if scanner.skippable() >= SEEK_BYTES {
                at += scanner.skip(self.len - at, seen);
            } else {
                let filled = self.fill(at, self.len - at)?;
                if filled.is_empty() {
                    break;
                }
                at += filled.len() as u64;
                scanner.feed(self.buffer.get(filled).unwrap_or_default(), seen)?;
            }
            frames.note(seen);
        }
        Ok(frames)
    }
}

/// Scans a whole log in memory. What the rules of a level above `Scan` refuse is in `scan.findings`.
///
/// # Errors
/// The first refusal of the scan, with its place; findings of rules are none.
///
/// # Source
/// Spec 00 §6, 10 §8.
pub fn check_bytes(data: &[u8], options: ScanOptions, level: Level) -> Result<FileScan> {
    check(
        &mut Memory(data),
        options,
        level,
        &Plan::default(),
        &mut FrameBuffers::default(),
        &Work::default(),
        &mut Unseen,
    )
}

/// [`check_bytes`] for a file, on up to so many threads if it is a large one.
///
/// # Errors
/// `Io`, or as for [`check_bytes`].
///
/// # Cost
/// Memory: buffers of 1 MiB, the window of a frame, the longest row, and above level `Scan` that of
/// [`RuleCheck`](crate::rules::RuleCheck). On several threads also six parts of 256 KiB with their parsed rows; for frames
/// a window of at most 8 MiB and 2 MiB of text, for each of at most three threads.
///
/// # Source
/// Spec 00 §6, 10 §8.
pub fn check_file(
    path: &Path,
    options: ScanOptions,
    level: Level,
    threads: NonZero<usize>,
) -> Result<FileScan> {
    check_alone(path, options, level, threads, Plan::default())
}

fn check_alone(
    path: &Path,
    options: ScanOptions,
    level: Level,
    threads: NonZero<usize>,
    plan: Plan,
) -> Result<FileScan> {
    let work = Work::default();
    let mut buffers = Buffers::default();
    let together = |file, len| {
        let parts = Parts::new(file, len, options, level, plan, &work);
        thread::scope(|scope| {
            for _ in 1..threads.get().min(plan.max_parts) {
                let helper = thread::Builder::new().spawn_scoped(scope, || parts.help());
                if helper.is_err() {
                    // This thread can do without.
                    break;
                }
            }
            parts.finish()
        })
    };
    let together: Option<&Together<'_>> = (threads.get() > 1).then_some(&together);
    let plan = plan.with_threads(threads.get());
    check_path(path, options, level, &plan, &mut buffers, &work, together)
}

/// [`check_file`] at level `Scan` that gives every accepted row to `accept`, those before a refusal, too.
///
/// # Errors
/// As for [`check_file`]; `Io` for what is no regular file, of which opening might wait for a writer.
///
/// # Cost
/// That of [`check_file`] on one thread and of `accept`; the buffers are kept for the next file.
///
/// # Source
/// Spec 10 §8.
pub fn read_rows(
    path: &Path,
    options: ScanOptions,
    buffers: &mut Buffers,
    accept: &mut impl Accept,
) -> Result<FileScan> {
    if !path.metadata()?.is_file() {
        let refusal = std::io::Error::new(std::io::ErrorKind::InvalidInput, "this is no regular file");
        return Err(refusal.into());
    }
    let work = Work::default();
    let mut disk = Disk::open(path, &mut buffers.stored, &work)?;
    let plan = Plan::default();
    let frames = &mut buffers.frames;
    check(&mut disk, options, Level::Scan, &plan, frames, &work, accept)
}

/// What [`check_many`] gives back.
#[derive(Debug)]
pub struct ManyScans {
    /// What [`check_file`] gives for each path, in the order of the paths; `None` if the call was cancelled.
    pub results: Option<Vec<Result<FileScan>>>,
    /// Bytes of files that were done.
    pub done_bytes: u64,
}

/// Threads that check many files.
#[derive(Default)]
struct Crew<'w> {
    state: Mutex<CrewState<'w>>,
    /// The state changed.
    change: Condvar,
}

#[derive(Default)]
struct CrewState<'w> {
    /// Large files that threads without a file of their own can help with.
    shared: Vec<Arc<Parts<'w>>>,
    /// Threads that may still share a file.
    busy: usize,
}

impl<'w> Crew<'w> {
    fn lock(&self) -> MutexGuard<'_, CrewState<'w>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Scans a large file together with whoever has the time.
    fn share(&self, parts: Parts<'w>) -> Result<FileScan> {
        let parts = Arc::new(parts);
        self.lock().shared.push(Arc::clone(&parts));
        self.change.notify_all();
        let scan = parts.finish();
        self.forget(&parts);
        scan
    }

    fn forget(&self, parts: &Arc<Parts<'w>>) {
        self.lock().shared.retain(|other| !Arc::ptr_eq(other, parts));
    }

    /// Says that a thread shares no more files.
    fn leave(&self, state: &mut CrewState<'w>) {
        state.busy -= 1;
        self.change.notify_all();
    }

    /// Helps with large files until all files are done.
    fn help(&self) {
        let mut state = self.lock();
        self.leave(&mut state);
        loop {
            if let Some(parts) = state.shared.last().cloned() {
                drop(state);
                parts.help();
                self.forget(&parts);
                state = self.lock();
            } else if state.busy == 0 {
                return;
            } else {
                state = self.change.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
        }
    }
}

/// [`check_file`] for many files on several threads. A log that is refused does not keep the others from being checked.
///
/// Each thread takes the next path; those that find none left help with large plain files.
///
/// While they work, `watch` is called in the calling thread, every `interval`, with the number of bytes of files that
/// are done, which never decreases. If it breaks, the threads stop before they read or decode the next MiB.
///
/// # Errors
/// `Io`: there is no thread to be had.
///
/// # Cost
/// That of [`check_file`] per thread; buffers are kept from file to file.
///
/// # Source
/// Spec 00 §6, 10 §8.
pub fn check_many<P: AsRef<Path> + Sync>(
    paths: &[P],
    options: ScanOptions,
    level: Level,
    threads: NonZero<usize>,
    interval: Duration,
    watch: &mut dyn FnMut(u64) -> ControlFlow<()>,
) -> Result<ManyScans> {
    let plan = Plan::default();
    check_all(paths, options, level, threads, plan, interval, watch)
}

fn check_all<P: AsRef<Path> + Sync>(
    paths: &[P],
    options: ScanOptions,
    level: Level,
    threads: NonZero<usize>,
    plan: Plan,
    interval: Duration,
    watch: &mut dyn FnMut(u64) -> ControlFlow<()>,
) -> Result<ManyScans> {
    let work = Work::default();
    let next = AtomicUsize::new(0);
    let scans: Vec<OnceLock<Result<FileScan>>> = paths.iter().map(|_| OnceLock::new()).collect();
    // More threads than that would find nothing to do.
    let threads = if paths.is_empty() {
        0
    } else {
        threads.get().min(paths.len() + plan.max_parts - 1)
    };
    // Threads without a file of their own do not decode; others do so in their place.
    let plan = plan.with_threads(threads / paths.len().max(1));
    let crew = Crew::default();
    crew.lock().busy = threads;
    let share = |file, len| crew.share(Parts::new(file, len, options, level, plan, &work));
    let together: Option<&(dyn Fn(File, u64) -> Result<FileScan> + Sync)> = (threads > 1).then_some(&share);
    let run = || {
        let mut buffers = Buffers::default();
        let alarm = OnPanic(|| crew.leave(&mut crew.lock()));
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            let (Some(path), Some(place), false) = (paths.get(index), scans.get(index), work.is_cancelled())
            else {
                break;
            };
            let path = path.as_ref();
            place.get_or_init(|| {
                check_path(
                    path,
                    options,
                    level,
                    &plan,
                    &mut buffers,
                    &work,
                    together.map(|together| together as _),
                )
            });
        }
        drop(alarm);
        crew.help();
    };
    thread::scope(|scope| {
        // Nothing is sent: the channel closes when the last thread ends.
        let (running, ended) = channel::<()>();
        for number in 0..threads {
            let running = running.clone();
            let run = &run;
            let spawned = thread::Builder::new().spawn_scoped(scope, move || {
                run();
                drop(running);
            });
            match spawned {
                Ok(_) => {}
                Err(refusal) if number == 0 => return Err(refusal.into()),
                Err(_) => {
                    crew.lock().busy -= threads - number;
                    crew.change.notify_all();
                    break;
                }
            }
        }
        drop(running);
        while ended.recv_timeout(interval) == Err(RecvTimeoutError::Timeout) {
            if watch(work.done_bytes()).is_break() {
                work.is_cancelled.store(true, Ordering::Relaxed);
                break;
            }
        }
        Ok::<_, Error>(())
    })?;
    let results =
        (!work.is_cancelled()).then(|| scans.into_iter().filter_map(OnceLock::into_inner).collect());
    Ok(ManyScans {
        results,
        done_bytes: work.done_bytes(),
    })
}

/// Scans a plain file of so many bytes together with other threads.
type Together<'t> = dyn Fn(File, u64) -> Result<FileScan> + 't;

fn check_path(
    path: &Path,
    options: ScanOptions,
    level: Level,
    plan: &Plan,
    buffers: &mut Buffers,
    work: &Work,
    together: Option<&Together<'_>>,
) -> Result<FileScan> {
    let mut disk = Disk::open(path, &mut buffers.stored, work)?;
    let scan = match (disk.head().map(is_zstandard), together) {
        (Ok(false), Some(together)) if disk.len >= plan.min_file_bytes => {
            return together(disk.file, disk.len);
        }
        (Ok(_), _) => check(
            &mut disk,
            options,
            level,
            plan,
            &mut buffers.frames,
            work,
            &mut Unseen,
        ),
        (Err(error), _) => Err(error),
    };
    disk.count(disk.len);
    scan
}

/// Whether these are the first bytes of frames.
fn is_zstandard(first: &[u8]) -> bool {
    // A skippable frame is not allowed, but it tells what the file is; the frame scan refuses it.
    let skippable = matches!(first, [0x50..=0x5f, 0x2a, 0x4d, 0x18, ..]);
    skippable || first.starts_with(&MAGIC)
}

fn check(
    source: &mut impl Source,
    options: ScanOptions,
    level: Level,
    plan: &Plan,
    buffers: &mut FrameBuffers,
    work: &Work,
    accept: &mut impl Accept,
) -> Result<FileScan> {
    if is_zstandard(source.head()?) {
        check_frames(source, options, level, plan, buffers, work, accept)
    } else {
        check_plain(source, options, level, buffers, accept)
    }
}

fn check_plain(
    source: &mut impl Source,
    options: ScanOptions,
    level: Level,
    buffers: &mut FrameBuffers,
    accept: &mut impl Accept,
) -> Result<FileScan> {
    let mut scanner = buffers.scanner(options, level);
    source.read(0, source.len(), &mut |bytes| scanner.feed_to(bytes, accept))?;
    let scan = plain_scan(&mut scanner, source.len());
    buffers.keep(scanner);
    scan
}

/// Ends the scan of a plain log.
fn plain_scan(scanner: &mut RowScanner, file_bytes: u64) -> Result<FileScan> {
    let scan = scanner.finish()?;
    let (committed, plain_bytes) = (scan.totals.committed_bytes, scan.totals.fed_bytes);
    Ok(FileScan {
        scan,
        compression: Compression::None,
        file_bytes,
        plain_bytes,
        frame_count: None,
        torn_start: None,
        truncate_to: (committed < plain_bytes).then_some(committed),
        recovered_count: 0,
    })
}

fn check_frames(
    source: &mut impl Source,
    options: ScanOptions,
    level: Level,
    plan: &Plan,
    buffers: &mut FrameBuffers,
    work: &Work,
    accept: &mut impl Accept,
) -> Result<FileScan> {
    // Where the last complete frame ends has to be known before rows are accepted: a damaged frame that is complete is
    // corrupt, the same bytes in a torn one are just not recovered.
    let mut structure = FrameScanner::new();
    let frames = source.scan_frames(&mut structure, &mut Vec::new())?;
    let torn_start = structure.finish();

    let mut scanner = buffers.scanner(options, level);
    let (reader, piece) = buffers.start(options.limits.max_frame_plain_bytes)?;
    let mut take = |plain: &[u8], frame, last| {
        work.go_on()?;
        let place = Location {
            frame: Some(frame),
            ..Location::default()
        };
        scanner
            .feed_to(plain, accept)
            .map_err(|error| error.located(place))?;
        if last { scanner.end_frame() } else { Ok(()) }
    };
    let shared = (frames.end >= plan.min_stored_bytes && plan.decoders > 0).then(|| source.shared());
    let is_through = match shared.flatten() {
        Some(file) => {
            let input = Input {
                file,
                runs: &frames.runs,
                max_frame_plain_bytes: options.limits.max_frame_plain_bytes,
                work,
            };
            read_ahead(&input, plan.decoders, source, reader, piece, &mut take)?
        }
        None => false,
    };
    if !is_through {
        source.read(0, frames.end, &mut |bytes| {
            read_pieces(reader, bytes, piece, &mut take)
        })?;
        if reader.frame_count() < frames.count {
            return Err(shrank());
        }
    }
    scanner.end_complete_frames()?;
    let plain_bytes = scanner.totals().fed_bytes;
    let before = scanner.totals().event_count;
    if let (Some(start), Mode::Recoverable) = (torn_start, options.mode) {
        feed_torn_frame(source, start, &mut scanner, piece, work, accept)?;
    }
    let scan = scanner.finish()?;
    buffers.keep(scanner);
    let recovered_count = scan.totals.event_count - before;
    Ok(FileScan {
        scan,
        compression: Compression::Zstd,
        file_bytes: source.len(),
        plain_bytes,
        frame_count: Some(frames.count),
        torn_start,
        truncate_to: torn_start,
        recovered_count,
    })
}

/// Takes the text of all complete frames from threads that decode them; false if there are no threads to be had.
fn read_ahead(
    input: &Input<'_>,
    decoders: usize,
    source: &mut impl Source,
    reader: &mut FrameReader,
    piece: &mut [u8],
    take: &mut TakePiece<'_>,
) -> Result<bool> {
    thread::scope(|scope| {
        let decoders = decoders.min(input.runs.len());
        let Some(mut ahead) = Ahead::start(scope, input, decoders) else {
            return Ok(false);
        };
        while let Some((next, done)) = ahead.next()? {
            match next {
                Next::Piece(decoded) => {
                    decoded.feed(take)?;
                    ahead.give_back(decoded);
                }
                Next::Left(run) => {
                    reader.restart_at(run.start, run.frame, u64::MAX);
                    source.read(run.start, run.end, &mut |bytes| {
                        read_pieces(reader, bytes, piece, take)
                    })?;
                    if reader.frame_count() < run.end_frame {
                        return Err(shrank());
                    }
                }
            }
            if let Some(end) = done {
                source.count(end);
            }
        }
        Ok(true)
    })
}

/// Takes a piece of plaintext, its frame, and whether the frame ends with it.
type TakePiece<'a> = dyn FnMut(&[u8], u64, bool) -> Result<()> + 'a;

/// Decodes bytes of frames and gives each piece of plaintext to `take`.
fn read_pieces(
    reader: &mut FrameReader,
    mut bytes: &[u8],
    piece: &mut [u8],
    take: &mut TakePiece<'_>,
) -> Result<()> {
    loop {
        match reader.read(&mut bytes, piece)? {
            Step::Piece { frame, len, last } => take(piece.get(..len).unwrap_or_default(), frame, last)?,
            Step::NeedInput => return Ok(()),
        }
    }
}

/// Feeds what a torn last frame still yields: everything, or nothing if the decoder refuses it. Spec 10 §7.4.
///
/// Decoded twice, so that its plaintext need not be kept.
fn feed_torn_frame(
    source: &mut impl Source,
    start: u64,
    scanner: &mut RowScanner,
    piece: &mut [u8],
    work: &Work,
    accept: &mut impl Accept,
) -> Result<()> {
    let limits_of = |scanner: &RowScanner| scanner.options().limits.max_frame_plain_bytes;
    let end = source.len();
    let mut trial = FrameReader::new(limits_of(scanner))?;
    let tried = source.read(start, end, &mut |bytes| {
        read_pieces(&mut trial, bytes, piece, &mut |_, _, _| work.go_on())
    });
    match tried {
        Ok(()) => {}
        Err(error) if matches!(error.kind(), ErrorKind::Frame) => return Ok(()),
        Err(error) => {
            let place = Location {
                offset: Some(start),
                ..Location::default()
            };
            return Err(error.moved(place));
        }
    }
    let mut reader = FrameReader::new(limits_of(scanner))?;
    source.read(start, end, &mut |bytes| {
        read_pieces(&mut reader, bytes, piece, &mut |plain, _, _| {
            work.go_on()?;
            scanner.feed_to(plain, accept)
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::{encode_frame, recover_tail};
    use crate::limits::Limits;

    const HEADER: &str = "{\"type\":\"session\",\"version\":4,\"id\":\"s\",\"createdAt\":0,\"isSeeded\":false,\"delegationDepth\":0}\n";

    fn options(mode: Mode) -> ScanOptions {
        ScanOptions {
            mode,
            generation: None,
            check_streams: true,
            keeps_records: false,
            limits: Limits::default(),
        }
    }

    fn rows(from: u64, count: u64) -> String {
        let rows: Vec<String> = (from..from + count)
            .map(|seq| format!("{{\"type\":\"x\",\"seq\":{seq},\"time\":1,\"data\":{{}}}}\n"))
            .collect();
        rows.concat()
    }

    #[test]
    fn every_cut_gives_the_complete_frames_and_what_the_torn_one_yields() {
        // Spec 10 §8.3, observed example.
        let frames: Vec<Vec<u8>> = [HEADER.to_owned(), rows(0, 5), rows(5, 4)]
            .iter()
            .map(|text| encode_frame(text.as_bytes(), 3).unwrap())
            .collect();
        let file = frames.concat();
        let ends = [frames[0].len(), frames[0].len() + frames[1].len(), file.len()];
        for cut in 0..=file.len() {
            let data = &file[..cut];
            let result = check_bytes(data, options(Mode::Recoverable), Level::Scan);
            if cut < ends[0] {
                assert!(matches!(result.unwrap_err().kind(), ErrorKind::Header));
                continue;
            }
            let found = result.unwrap();
            let complete = ends.iter().filter(|&&end| end <= cut).count();
            let torn = (!ends.contains(&cut)).then(|| ends[complete - 1]);
            assert_eq!(found.torn_start, torn.map(|at| at as u64));
            let recovered = torn
                .map(|at| recover_tail(&data[at..], 1 << 30).unwrap())
                .unwrap_or_default();
            let recovered = memchr::memchr_iter(b'\n', &recovered).count() as u64;
            assert_eq!(found.recovered_count, recovered);
            assert_eq!(found.scan.totals.event_count, [0, 5, 9][complete - 1] + recovered);
            let strict = check_bytes(data, options(Mode::Strict), Level::Scan).unwrap();
            assert_eq!(strict.scan.totals.event_count, [0, 5, 9][complete - 1]);
        }
    }

    #[test]
    fn an_issue_in_a_complete_frame_is_corrupt() {
        let file = [HEADER, "{}\n"]
            .map(|text| encode_frame(text.as_bytes(), 3).unwrap())
            .concat();
        assert!(matches!(
            check_bytes(&file, options(Mode::Recoverable), Level::Scan)
                .unwrap_err()
                .kind(),
            ErrorKind::Row
        ));
    }

    #[test]
    fn rows_in_the_first_frame_are_refused() {
        let file = encode_frame((HEADER.to_owned() + &rows(0, 1)).as_bytes(), 3).unwrap();
        assert!(matches!(
            check_bytes(&file, options(Mode::Recoverable), Level::Scan)
                .unwrap_err()
                .kind(),
            ErrorKind::Frame
        ));
    }

    /// Logs of several kinds in a directory of their own, which the caller removes.
    fn folder(name: &str) -> (std::path::PathBuf, Vec<std::path::PathBuf>) {
        let folder = std::env::temp_dir().join(format!("dsh-codec-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let frames = |texts: &[String]| -> Vec<u8> {
            let frames = texts.iter().map(|text| encode_frame(text.as_bytes(), 3).unwrap());
            frames.collect::<Vec<_>>().concat()
        };
        let zstd = frames(&[HEADER.to_owned(), rows(0, 50)]);
        let files = [
            (HEADER.to_owned() + &rows(0, 900)).into_bytes(),
            zstd[..zstd.len() - 2].to_vec(),
            frames(&[HEADER.to_owned(), "{}\n".to_owned()]),
            Vec::new(),
            zstd,
        ];
        let mut paths = vec![folder.join("none"), folder.clone()];
        for (number, file) in files.iter().enumerate() {
            paths.push(folder.join(number.to_string()));
            std::fs::write(paths.last().unwrap(), file).unwrap();
        }
        (folder, paths)
    }

    #[test]
    fn many_files_give_what_each_gives_in_their_order() {
        let (folder, paths) = folder("many");
        let paths = [paths.as_slice()].repeat(20).concat();
        let expected: Vec<String> = paths
            .iter()
            .map(|path| {
                format!(
                    "{:?}",
                    check_file(
                        path,
                        options(Mode::Recoverable),
                        Level::Scan,
                        NonZero::<usize>::MIN
                    )
                )
            })
            .collect();
        let files = paths.iter().filter_map(|path| path.metadata().ok());
        let file_bytes: u64 = files.map(|data| data.len()).sum();
        for threads in [1, 3, 500] {
            let found = check_many(
                &paths,
                options(Mode::Recoverable),
                Level::Scan,
                NonZero::new(threads).unwrap(),
                Duration::from_millis(50),
                &mut |_| ControlFlow::Continue(()),
            )
            .unwrap();
            let results = found.results.unwrap();
            let results: Vec<String> = results.iter().map(|result| format!("{result:?}")).collect();
            assert_eq!(results, expected);
            assert_eq!(found.done_bytes, file_bytes);
        }
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn a_break_ends_the_check_and_gives_no_results() {
        let (folder, paths) = folder("break");
        let paths = [paths.as_slice()].repeat(5000).concat();
        let mut seen = Vec::new();
        let found = check_many(
            &paths,
            options(Mode::Recoverable),
            Level::Scan,
            NonZero::<usize>::MIN,
            Duration::from_micros(100),
            &mut |bytes| {
                seen.push(bytes);
                if seen.len() > 3 {
                    ControlFlow::Break(())
                } else {
                    ControlFlow::Continue(())
                }
            },
        )
        .unwrap();
        assert!(found.results.is_none());
        assert!(seen.is_sorted());
        assert!(found.done_bytes >= seen[3]);
        std::fs::remove_dir_all(folder).unwrap();
    }
}
