//! One large plain file on several threads.
//!
//! Threads take whole rows in the order of the file, read them at their place and scan them apart; whoever has the next
//! part in hand when it is due joins it to what stands before it. A part that does not fit there is fed instead, as the
//! only thread would have fed it, so that the result is the same whatever the file holds. A row that is longer than a
//! part is fed, too.

use std::collections::BTreeMap;
use std::fs::File;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use super::frames::{MAX_DECODERS, read_at};
use super::{FileScan, OnPanic, Work, grow, plain_scan};
use crate::error::{Error, Result};
use crate::row::{Header, Part, RowScanner, ScanOptions, Unseen};
use crate::rules::Level;

/// How a file is divided. Other values than the default are for tests.
#[derive(Clone, Copy, Debug)]
pub(super) struct Plan {
    /// A shorter file is not divided.
    pub(super) min_file_bytes: u64,
    /// Bytes that are read for a part.
    pub(super) part_bytes: usize,
    /// Bytes that are looked at first for the end of a row, from the end of a part; then twice as many.
    pub(super) window_bytes: usize,
    /// A part is made longer to hold whole rows, up to this.
    pub(super) max_part_bytes: usize,
    /// Parts in memory at once.
    pub(super) max_parts: usize,
    /// A shorter Zstandard file is not decoded ahead of the scan.
    pub(super) min_stored_bytes: u64,
    /// Threads that decode ahead of the scan; 0: the thread that scans decodes, too.
    pub(super) decoders: usize,
}

impl Default for Plan {
    fn default() -> Self {
        // Six parts with their parsed rows take 13 MiB at worst, some 5 MiB mostly. A thread has little to gain from
        // more than one part in advance.
        Self {
            min_file_bytes: 4 << 20,
            part_bytes: 1 << 18,
            window_bytes: 1 << 14,
            max_part_bytes: 1 << 20,
            max_parts: 6,
            min_stored_bytes: 1 << 20,
            decoders: 0,
        }
    }
}

impl Plan {
    /// The plan for a file that so many threads have time for.
    pub(super) fn with_threads(self, threads: usize) -> Self {
        let decoders = if threads > 1 { threads.min(MAX_DECODERS) } else { 0 };
        Self { decoders, ..self }
    }
}

/// Where the parts of a file are.
struct Input {
    /// Start of the next part.
    at: u64,
    end: u64,
    /// Room to look for the end of a row.
    window: Vec<u8>,
    /// Whether what comes next goes on with a row that a part ends in.
    is_inside_row: bool,
    /// Parts so far.
    count: u64,
}

/// Bytes of a file that are a part of it.
struct Place {
    start: u64,
    len: usize,
    /// Whether they are whole rows.
    is_whole: bool,
}

impl Input {
    /// The place of the next part, if there is one. Its bytes are read later, by whoever scans them: of most parts only
    /// the last few are read here, to find the end of a row.
    fn next(&mut self, file: &File, plan: &Plan) -> Result<Option<Place>> {
        let start = self.at;
        let mut len = 0;
        let mut is_whole = false;
        loop {
            let from = start + len as u64;
            let more = self.end.saturating_sub(from).min(plan.part_bytes as u64);
            let to = from + more;
            if more == 0 {
                // The end, perhaps inside a row.
                break;
            }
            // Of a row that goes on, which is scanned in order, bytes are not looked at twice.
            let least = if self.is_inside_row {
                to.saturating_sub(plan.window_bytes as u64).max(from)
            } else {
                from
            };
            let found = self.last_row_end(file, least, to, plan.window_bytes)?;
            if self.end < to {
                // The file has shrunk.
                continue;
            }
            if let Some(end) = found {
                len = usize::try_from(end - start).unwrap_or(usize::MAX);
                is_whole = !std::mem::take(&mut self.is_inside_row);
                break;
            }
            len = usize::try_from(to - start).unwrap_or(usize::MAX);
            if self.is_inside_row || len >= plan.max_part_bytes {
                self.is_inside_row = true;
                break;
            }
        }
        self.at = start + len as u64;
        Ok((len > 0).then_some(Place { start, len, is_whole }))
    }

    /// The byte behind the last line feed between two places, looked for in `want` bytes first.
    fn last_row_end(&mut self, file: &File, from: u64, to: u64, mut want: usize) -> Result<Option<u64>> {
        let mut end = to;
        while end > from {
            let start = end.saturating_sub(want as u64).max(from);
            want = usize::try_from(end - start).unwrap_or(usize::MAX);
            let count = read_all_at(file, &mut self.window, start, want)?;
            if count < want {
                self.end = start + count as u64;
                return Ok(None);
            }
            let read = self.window.get(..count).unwrap_or_default();
            if let Some(place) = memchr::memrchr(b'\n', read) {
                return Ok(Some(start + place as u64 + 1));
            }
            end = start;
            want *= 2;
        }
        Ok(None)
    }
}

/// Reads up to `want` bytes at a place to the start of a buffer, and returns how many there were.
fn read_all_at(file: &File, buffer: &mut Vec<u8>, at: u64, want: usize) -> Result<usize> {
    grow(buffer, want);
    let mut filled = 0;
    while filled < want {
        match read_at(
            file,
            buffer.get_mut(filled..want).unwrap_or_default(),
            at + filled as u64,
        )? {
            0 => break,
            count => filled += count,
        }
    }
    Ok(filled)
}

/// Room for a part.
#[derive(Default)]
struct Room {
    /// The thread that used it last, whose cache may hold it.
    user: usize,
    buffer: Vec<u8>,
    /// Bytes of the buffer that are text.
    len: usize,
    /// Whether the file has shrunk and ends here.
    is_last: bool,
    /// What was found in the text, if it was scanned.
    part: Part,
    is_scanned: bool,
    /// Why there is no text.
    refusal: Option<Error>,
}

impl Room {
    fn text(&self) -> &[u8] {
        self.buffer.get(..self.len).unwrap_or_default()
    }

    /// Reads a part.
    fn fill(&mut self, file: &File, place: &Place) -> Result<()> {
        self.len = 0;
        self.len = read_all_at(file, &mut self.buffer, place.start, place.len)?;
        self.is_last = self.len < place.len;
        Ok(())
    }
}

/// Which part is whose turn.
#[derive(Default)]
struct Turns {
    /// Rooms that nobody uses, and how many there are in all.
    free: Vec<Room>,
    rooms: usize,
    /// Parts that wait for those before them.
    ready: BTreeMap<u64, Room>,
    /// The part that is joined next.
    next: u64,
    is_joining: bool,
    /// Number of parts, once it is known.
    end: Option<u64>,
    failure: Option<Error>,
}

/// What the parts were joined to.
struct Joined {
    scanner: RowScanner,
    counted: u64,
}

/// A file that threads scan together.
pub(super) struct Parts<'w> {
    plan: Plan,
    options: ScanOptions,
    level: Level,
    work: &'w Work,
    file: File,
    file_bytes: u64,
    /// None if the file ends before its header does.
    header: Option<Header>,
    input: Mutex<Input>,
    turns: Mutex<Turns>,
    joined: Mutex<Joined>,
    /// Turns changed.
    change: Condvar,
    /// Whether nothing can be joined any more, so that no part is worth a scan.
    is_fed: AtomicBool,
    /// Threads that have taken part.
    users: AtomicUsize,
}

impl<'w> Parts<'w> {
    /// Reads the start of the file, until its header is known.
    pub(super) fn new(
        file: File,
        file_bytes: u64,
        options: ScanOptions,
        level: Level,
        plan: Plan,
        work: &'w Work,
    ) -> Self {
        let input = Input {
            at: 0,
            end: file_bytes,
            window: Vec::new(),
            is_inside_row: false,
            count: 0,
        };
        let joined = Joined {
            scanner: RowScanner::at_level(options, level),
            counted: 0,
        };
        let mut parts = Self {
            plan,
            options,
            level,
            work,
            file,
            file_bytes,
            header: None,
            input: Mutex::new(input),
            turns: Mutex::default(),
            joined: Mutex::new(joined),
            change: Condvar::new(),
            is_fed: AtomicBool::new(false),
            users: AtomicUsize::new(0),
        };
        let failure = parts.read_header().err();
        lock(&parts.turns).failure = failure;
        parts
    }

    fn read_header(&mut self) -> Result<()> {
        let input = self.input.get_mut().unwrap_or_else(PoisonError::into_inner);
        let joined = self.joined.get_mut().unwrap_or_else(PoisonError::into_inner);
        let mut room = Room::default();
        while joined.scanner.header().is_none() && !room.is_last {
            self.work.go_on()?;
            let Some(place) = input.next(&self.file, &self.plan)? else {
                return Ok(());
            };
            room.fill(&self.file, &place)?;
            joined.scanner.feed_to(room.text(), &mut Unseen)?;
            joined.counted += room.len as u64;
            self.work.add(room.len as u64);
        }
        self.header = joined.scanner.header().cloned();
        Ok(())
    }

    /// Scans parts until there are none left. Any number of threads may do this.
    pub(super) fn help(&self) {
        let Some(header) = &self.header else {
            return;
        };
        let _alarm = OnPanic(|| {
            lock(&self.turns).failure = Some(std::io::Error::other("a thread of the check broke off").into());
            self.change.notify_all();
        });
        let user = self.users.fetch_add(1, Ordering::Relaxed);
        let mut scanner = RowScanner::for_parts(header.clone(), self.options, self.level);
        while let Some(mut room) = self.take_room(user) {
            let Some((number, is_whole)) = self.read(&mut room) else {
                return;
            };
            room.is_scanned = is_whole && !self.is_fed.load(Ordering::Relaxed);
            if room.is_scanned {
                let part = std::mem::take(&mut room.part);
                room.part = scanner.scan_part(room.text(), part);
            }
            self.hand_in(number, room);
        }
    }

    /// Takes part in the scan, waits for all others, and ends it.
    pub(super) fn finish(&self) -> Result<FileScan> {
        self.help();
        let mut turns = lock(&self.turns);
        while self.header.is_some()
            && turns.failure.is_none()
            && (turns.end != Some(turns.next) || turns.is_joining)
        {
            turns = self.wait(turns);
        }
        let failure = turns.failure.take();
        drop(turns);
        let mut joined = lock(&self.joined);
        self.work.add(self.file_bytes.saturating_sub(joined.counted));
        joined.counted = self.file_bytes;
        match failure {
            Some(failure) => Err(failure),
            None => plain_scan(&mut joined.scanner, self.file_bytes),
        }
    }

    fn wait<'g>(&self, turns: MutexGuard<'g, Turns>) -> MutexGuard<'g, Turns> {
        self.change.wait(turns).unwrap_or_else(PoisonError::into_inner)
    }

    /// Room for a part; None if there are no more parts.
    fn take_room(&self, user: usize) -> Option<Room> {
        let mut turns = lock(&self.turns);
        loop {
            if turns.failure.is_some() || turns.end.is_some() {
                return None;
            }
            let own = turns.free.iter().rposition(|room| room.user == user);
            if let Some(own) = own {
                return Some(turns.free.swap_remove(own));
            }
            if turns.rooms < self.plan.max_parts {
                turns.rooms += 1;
                return Some(Room {
                    user,
                    ..Room::default()
                });
            }
            if let Some(room) = turns.free.pop() {
                return Some(Room { user, ..room });
            }
            turns = self.wait(turns);
        }
    }

    /// Reads the next part and returns its number, and whether it is whole rows.
    fn read(&self, room: &mut Room) -> Option<(u64, bool)> {
        let mut input = lock(&self.input);
        let number = input.count;
        let place = self
            .work
            .go_on()
            .and_then(|()| input.next(&self.file, &self.plan));
        input.count += 1;
        // Where a file has no reads at a place, they take turns.
        let input = if cfg!(unix) {
            drop(input);
            None
        } else {
            Some(input)
        };
        let filled = match place {
            Ok(Some(place)) => room.fill(&self.file, &place).map(|()| place.is_whole),
            Ok(None) => {
                // Who asks again behind the end may come here first.
                let mut turns = lock(&self.turns);
                turns.end = Some(turns.end.map_or(number, |end| end.min(number)));
                drop(turns);
                self.change.notify_all();
                return None;
            }
            Err(error) => Err(error),
        };
        drop(input);
        let is_whole = filled.unwrap_or_else(|error| {
            // Whatever stands before it comes first.
            room.len = 0;
            room.refusal = Some(error);
            false
        });
        Some((number, is_whole))
    }

    /// Gives a part back, and joins those whose turn it is if nobody else does.
    fn hand_in(&self, number: u64, room: Room) {
        let mut turns = lock(&self.turns);
        turns.ready.insert(number, room);
        if turns.is_joining {
            return;
        }
        turns.is_joining = true;
        while turns.failure.is_none()
            && turns.end != Some(turns.next)
            && let next = turns.next
            && let Some(mut room) = turns.ready.remove(&next)
        {
            drop(turns);
            let joined = self.join(&mut room);
            turns = lock(&self.turns);
            turns.failure = joined.err();
            turns.next += 1;
            if room.is_last {
                turns.end = Some(turns.next);
            }
            turns.free.push(room);
            self.change.notify_all();
        }
        turns.is_joining = false;
        self.change.notify_all();
    }

    fn join(&self, room: &mut Room) -> Result<()> {
        if let Some(refusal) = room.refusal.take() {
            return Err(refusal);
        }
        let mut joined = lock(&self.joined);
        let Joined { scanner, counted } = &mut *joined;
        let len = room.len as u64;
        let text = room.buffer.get(..room.len).unwrap_or_default();
        if !room.is_scanned || !scanner.append(&mut room.part, text) {
            scanner.feed_to(text, &mut Unseen)?;
            if scanner.issue().is_some() {
                self.is_fed.store(true, Ordering::Relaxed);
            }
        }
        *counted += len;
        self.work.add(len);
        Ok(())
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use crate::chance::Chance;
    use std::fmt::Write as _;
    use std::num::NonZero;
    use std::ops::ControlFlow;
    use std::path::{Path, PathBuf};
    use std::time::Duration;

    use super::super::{check_all, check_alone};
    use super::*;
    use crate::limits::Limits;
    use crate::row::Mode;

    const UNSEEDED: &str = "{\"type\":\"session\",\"version\":4,\"id\":\"s\",\"createdAt\":0,\"isSeeded\":false,\"delegationDepth\":0}\n";

    fn header(chance: &mut Chance, generation: usize) -> String {
        let members = match generation {
            0 | 1 if chance.is(3) => r#","seedLength":3"#,
            0 | 1 => "",
            _ if chance.is(3) => r#","isSeeded":true"#,
            _ => r#","isSeeded":false"#,
        };
        format!(
            r#"{{"type":"session","version":{generation},"id":"s","createdAt":0,"delegationDepth":0{members}}}"#
        )
    }

    /// Rows that mostly follow from each other, of every kind whose effect reaches over rows.
    fn rows(chance: &mut Chance, generation: usize, count: usize) -> Vec<String> {
        let mut rows = Vec::new();
        let (mut seq, mut turn) = (0usize, 1usize);
        for number in 0..count {
            let time = 1_000 + seq;
            let place = format!(r#""turn":{turn},"step":1"#);
            let text = "x".repeat(chance.below(60));
            let (kind, data) = match chance.below(if generation < 2 { 12 } else { 10 }) {
                0 => ("turn/start", format!(r#"{{"turn":{turn}}}"#)),
                1 => {
                    turn += 1;
                    (
                        "turn/end",
                        format!(r#"{{"turn":{},"reason":{{"kind":"completed"}}}}"#, turn - 1),
                    )
                }
                2 => ("step/start", format!("{{{place}}}")),
                3 => ("step/end", format!("{{{place}}}")),
                4 => {
                    let gap = if chance.is(5) { "[]" } else { "[1]" };
                    let run = format!(
                        r#"{{"type":"text-chunks","time0":1,"index":0,"dt":{gap},"texts":["a","{text}"]}}"#
                    );
                    (
                        "assistant/attempt",
                        format!(r#"{{{place},"stream":[{run},{{"type":"odd"}}]}}"#),
                    )
                }
                5 => ("session/end-seed", format!(r#"{{"inherited":{}}}"#, chance.is(2))),
                6 => ("todo/write", format!(r#"{{"items":["{text}"]}}"#)),
                7 if generation == 4 => {
                    let call =
                        format!(r#"{{"type":"tool-call","id":"c{number}","name":"n","arguments":"{{}}"}}"#);
                    let end = format!(r#"{{"type":"block-end","index":0,"block":{call}}}"#);
                    let source = r#"{"kind":"model","provider":"p","model":"m"}"#;
                    let answer = format!(
                        r#"{{{place},"message":{{"role":"assistant","content":[{call}],"source":{source},"id":"a"}},"stream":[{{"type":"chunk","time":1,"chunk":{end}}}]}}"#
                    );
                    let result = format!(
                        r#"{{{place},"message":{{"role":"tool","source":{{"kind":"tool","callId":"c{number}"}},"toolCallId":"c{number}","content":[{{"type":"text","text":"{text}"}}],"id":"r"}}}}"#
                    );
                    let started =
                        format!(r#"{{{place},"callId":"c{number}","name":"n","arguments":"{{}}"}}"#);
                    for (kind, data, op) in [
                        ("assistant/message", answer, r#","surfaceOp":"append""#),
                        ("tool/call", started, ""),
                        ("tool/result", result, r#","surfaceOp":"append""#),
                    ] {
                        rows.push(format!(
                            r#"{{"type":"{kind}","seq":{seq},"time":{time},"data":{data}{op}}}"#
                        ));
                        seq += 1;
                    }
                    continue;
                }
                7 => (
                    "tool/call",
                    format!(r#"{{{place},"callId":"c{number}","name":"n","arguments":"{{}}"}}"#),
                ),
                8 => ("x/unknown", "null".to_owned()),
                9 => {
                    let message = r#"{"id":"m","role":"user","source":{"kind":"user"},"content":[]}"#;
                    let mut row =
                        format!(r#"{{"type":"user/message","seq":{seq},"time":{time},"data":{message}"#);
                    row.push_str(r#","surfaceOp":"append"}"#);
                    rows.push(row);
                    seq += 1;
                    continue;
                }
                10 => {
                    let data = format!(r#"{{{place},"index":0,"dt":[1,2],"texts":["a","b","{text}"]}}"#);
                    rows.push(format!(
                        r#"{{"type":"text-chunks","seq0":{seq},"time0":{time},"data":{data}}}"#
                    ));
                    seq += 3;
                    continue;
                }
                _ => {
                    let chunk = format!(r#"{{"type":"text-delta","index":0,"text":"{text}"}}"#);
                    ("assistant/chunk", format!(r#"{{{place},"chunk":{chunk}}}"#))
                }
            };
            rows.push(format!(
                r#"{{"type":"{kind}","seq":{seq},"time":{time},"data":{data}}}"#
            ));
            seq += 1;
        }
        rows
    }

    /// A log, sound as far as a scan goes or damaged somewhere.
    fn log(chance: &mut Chance) -> Vec<u8> {
        let generation = [4, 4, 4, 4, 4, 0, 0, 1, 2, 3][chance.below(10)];
        let count = chance.below(60);
        let mut rows = rows(chance, generation, count);
        for _ in 0..chance.below(3) {
            let place = chance.below(rows.len());
            match chance.below(12) {
                0 if !rows.is_empty() => rows.swap_remove(place).clear(),
                1 if !rows.is_empty() => rows.insert(place, rows[place].clone()),
                2 if !rows.is_empty() => {
                    let half = rows[place].len() / 2;
                    rows[place].truncate(half);
                }
                3 => rows.insert(place, String::new()),
                4 => rows.insert(place, "{}".to_owned()),
                5 if !rows.is_empty() => {
                    let spaces = " ".repeat(chance.below(700));
                    write!(rows[place], "{spaces}").unwrap();
                }
                _ => {}
            }
        }
        let mut text = header(chance, generation);
        for row in rows {
            text.push('\n');
            text.push_str(&row);
        }
        if !chance.is(4) {
            text.push('\n');
        }
        let mut bytes = text.into_bytes();
        match chance.below(12) {
            0 => bytes.truncate(chance.below(bytes.len())),
            1 => {
                let place = chance.below(bytes.len());
                bytes[place] ^= 1 << chance.below(8);
            }
            _ => {}
        }
        bytes
    }

    fn folder(name: &str) -> PathBuf {
        let folder = std::env::temp_dir().join(format!("dsh-codec-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        folder
    }

    fn plan(chance: &mut Chance) -> Plan {
        let part_bytes = 16 + chance.below(600);
        Plan {
            min_file_bytes: 0,
            part_bytes,
            window_bytes: 1 + chance.below(part_bytes),
            max_part_bytes: part_bytes + chance.below(1_000),
            max_parts: 1 + chance.below(5),
            ..Plan::default()
        }
    }

    fn number(threads: usize) -> NonZero<usize> {
        NonZero::new(threads).unwrap()
    }

    #[test]
    fn parts_give_what_one_thread_gives() {
        let folder = folder("parts");
        let path = folder.join("log");
        let mut chance = Chance(0x5eed);
        let mut ends = [0; 4];
        for case in 0..4_000 {
            let bytes = log(&mut chance);
            std::fs::write(&path, &bytes).unwrap();
            let level = [Level::Scan, Level::Read, Level::Restore, Level::Full][case % 4];
            let options = ScanOptions {
                mode: if chance.is(4) {
                    Mode::Strict
                } else {
                    Mode::Recoverable
                },
                generation: None,
                check_streams: true,
                keeps_records: false,
                limits: Limits {
                    max_row_bytes: if chance.is(4) { 600 } else { 1 << 20 },
                    ..Limits::default()
                },
            };
            let plan = plan(&mut chance);
            let check = |threads| check_alone(&path, options, level, number(threads), plan);
            let (one, many) = (check(1), check(2 + case % 3));
            assert_eq!(
                format!("{one:?}"),
                format!("{many:?}"),
                "case {case}, {level:?}, {plan:?}: {}",
                String::from_utf8_lossy(&bytes)
            );
            ends[match one {
                Err(_) => 0,
                Ok(file) if file.scan.issue.is_some() => 1,
                Ok(file) if file.scan.findings.count > 0 => 2,
                Ok(_) => 3,
            }] += 1;
        }
        // Every outcome is among the cases.
        assert!(ends.iter().all(|&count| count > 100), "{ends:?}");
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn sound_parts_are_joined_and_not_fed_again() {
        let rows = |seqs: std::ops::Range<u64>| {
            let rows = seqs.map(|seq| format!("{{\"type\":\"x\",\"seq\":{seq},\"time\":1,\"data\":0}}\n"));
            rows.collect::<Vec<_>>().concat()
        };
        let options = ScanOptions {
            mode: Mode::Recoverable,
            generation: None,
            check_streams: true,
            keeps_records: false,
            limits: Limits::default(),
        };
        let mut whole = RowScanner::at_level(options, Level::Read);
        whole.feed(UNSEEDED.as_bytes(), &mut |_| {}).unwrap();
        let header = whole.header().unwrap().clone();
        let mut scanner = RowScanner::for_parts(header, options, Level::Read);
        let texts = [rows(0..5), rows(5..9), rows(10..12)];
        let [mut first, mut second, mut third] = texts
            .each_ref()
            .map(|text| scanner.scan_part(text.as_bytes(), Part::default()));
        assert!(!whole.append(&mut second, texts[1].as_bytes()));
        assert!(whole.append(&mut first, texts[0].as_bytes()));
        assert!(whole.append(&mut second, texts[1].as_bytes()));
        assert!(!whole.append(&mut third, texts[2].as_bytes()));
        assert_eq!((whole.totals().event_count, whole.totals().row_count), (9, 9));
        // V1, for each of the events.
        assert_eq!(whole.finish().unwrap().findings.count, 9);
    }

    #[test]
    fn a_file_that_shrinks_ends_where_it_ends() {
        let folder = folder("shrunk");
        let path = folder.join("log");
        let mut chance = Chance(0xface);
        for case in 0..300 {
            std::fs::write(&path, log(&mut chance)).unwrap();
            let len = path.metadata().unwrap().len();
            let options = ScanOptions {
                mode: Mode::Recoverable,
                generation: None,
                check_streams: true,
                keeps_records: false,
                limits: Limits::default(),
            };
            let plan = plan(&mut chance);
            let found = |claimed_len| {
                let work = Work::default();
                let file = File::open(&path).unwrap();
                let parts = Parts::new(file, claimed_len, options, Level::Scan, plan, &work);
                let scan = std::thread::scope(|scope| {
                    scope.spawn(|| parts.help());
                    parts.finish()
                });
                format!("{:?}", scan.map(|file| file.scan))
            };
            assert_eq!(found(len + 1 + case), found(len), "case {case}, {plan:?}");
        }
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn many_files_share_the_threads_that_have_none() {
        let folder = folder("shared");
        let mut chance = Chance(77);
        let paths: Vec<PathBuf> = (0..40).map(|number| folder.join(number.to_string())).collect();
        for path in &paths {
            std::fs::write(path, log(&mut chance)).unwrap();
        }
        let options = ScanOptions {
            mode: Mode::Recoverable,
            generation: None,
            check_streams: true,
            keeps_records: false,
            limits: Limits::default(),
        };
        for case in 0..60 {
            let mut plan = plan(&mut chance);
            plan.min_file_bytes = if case % 2 == 0 { 0 } else { 1_500 };
            let some: &[PathBuf] = &paths[chance.below(38)..][..=case % 3];
            let found = |threads| {
                let mut watch = |_| ControlFlow::Continue(());
                let interval = Duration::from_millis(50);
                check_all(
                    some,
                    options,
                    Level::Read,
                    number(threads),
                    plan,
                    interval,
                    &mut watch,
                )
                .unwrap()
            };
            let (one, many) = (found(1), found(2 + case % 5));
            assert_eq!(format!("{one:?}"), format!("{many:?}"), "case {case}");
            let size = |path: &Path| path.metadata().unwrap().len();
            assert_eq!(many.done_bytes, some.iter().map(|path| size(path)).sum::<u64>());
        }
        std::fs::remove_dir_all(folder).unwrap();
    }
}
