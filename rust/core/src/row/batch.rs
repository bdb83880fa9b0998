//! A batch of rows that come as text. Spec 10 §5.1, §11.2.

use super::admission::admit;
use super::envelope::{Envelope, decode_native};
use super::header::syntax_error;
use super::notes::Wanted;
use super::quick_event::{DEPTH, Scratch, event_row, spelled_row};
use super::seq_ranges::respell_seqs;
use crate::error::{Error, ErrorKind, Location, Result};
use crate::json::{Fault, FaultKind, Node, Tape, write_node};
use crate::limits::Limits;
use crate::stream::Value;

/// Rows of generation 4 that may be appended.
#[derive(Debug, PartialEq, Eq)]
pub struct Batch {
    /// The rows as the writer spells them; None if that is how they were given.
    pub respelled: Option<Vec<u8>>,
    /// How many rows they are.
    pub count: u64,
    /// Whether a row ends the inherited events. Spec 10 §4.4.
    pub has_marker: bool,
}

/// Room for the check of rows, used again from batch to batch.
#[derive(Default)]
pub struct BatchRoom {
    tape: Tape,
    scratch: Scratch,
}

impl BatchRoom {
    /// Gives back memory beyond so many words of a tape.
    pub fn shrink(&mut self, words: usize) {
        self.tape.shrink(words);
    }
}

/// Checks rows with a line feed behind each, which the last may lack; `seq` is what the first has to have.
///
/// # Errors
/// The first row that is refused decides; its seq is in the location. `Syntax`: it is no JSON. `Unsupported` or `Row`:
/// row admission (spec 30 §6). `Row` or `SeqGap`: its members (10 §5.1, §6). `Row`: a number in it is −0 or infinite
/// (10 §11.2). `Limit`: it nests too deep or, as the writer spells it, is too long.
///
/// # Cost
/// One pass. Rows that are spelled as the writer spells them are not copied, and most of them not parsed either.
pub fn check_rows(text: &[u8], seq: u64, limits: &Limits, room: &mut BatchRoom) -> Result<Batch> {
    let BatchRoom { tape, scratch } = room;
    tape.spell_records();
    let mut check = Check {
        text,
        limits,
        tape,
        scratch,
        at: 0,
        out: None,
        has_marker: false,
    };
    let mut next = seq;
    while check.at < text.len() {
        if !check.written_row(next) {
            check.row(next).map_err(|error| {
                error.located(Location {
                    seq: Some(next),
                    ..Location::default()
                })
            })?;
        }
        next += 1;
    }
    Ok(Batch {
        respelled: check.out,
        count: next - seq,
        has_marker: check.has_marker,
    })
}

/// Applies row admission (spec 30 §6) to a line of generation 4 that its caller has written, line feed included.
///
/// # Errors
/// `Unsupported` or `Row`, with the rule. `Row`: the line has 4 GiB or more.
pub fn admit_line(line: &[u8], max_depth: usize, room: &mut BatchRoom) -> Result<()> {
    let BatchRoom { tape, scratch } = room;
    if max_depth >= DEPTH && event_row(line, max_depth, scratch, |_| Wanted::Judged).is_some() {
        return Ok(());
    }
    tape.read_row(line, max_depth)
        .map_err(|_| Error::new(ErrorKind::Row, "the value is larger than 4 GiB"))?;
    let may_be_retired = tape.may_be_retired();
    Envelope::of(tape.root(line)).map_or(Ok(()), |envelope| admit(&envelope, may_be_retired))
}

struct Check<'a> {
    text: &'a [u8],
    limits: &'a Limits,
    tape: &'a mut Tape,
    scratch: &'a mut Scratch,
    /// Where the next row starts.
    at: usize,
    /// The rows before it, if they are not what the text has before it.
    out: Option<Vec<u8>>,
    has_marker: bool,
}

impl Check<'_> {
    /// Takes the next row if it is known without a tape that it may stand as it is; otherwise nothing changes.
    fn written_row(&mut self, seq: u64) -> bool {
        let rest = self.text.get(self.at..).unwrap_or_default();
        let max_depth = self.limits.max_depth as usize;
        if max_depth < DEPTH {
            return false;
        }
        let Some(row) = spelled_row(rest, max_depth, self.scratch) else {
            return false;
        };
        if row.seq != seq || row.len as u64 > self.limits.max_row_bytes {
            return false;
        }
        if let Some(out) = &mut self.out {
            out.extend_from_slice(rest.get(..row.len).unwrap_or_default());
        }
        self.at += row.len;
        true
    }

    /// Checks the next row.
    fn row(&mut self, seq: u64) -> Result<()> {
        let rest = self.text.get(self.at..).unwrap_or_default();
        let end = self
            .tape
            .read_row(rest, self.limits.max_depth as usize)
            .and_then(|end| end_of_line(rest, end))
            .map_err(|fault| syntax_error("row", fault, self.at as u64, self.limits))?;
        let line = rest.get(..end).unwrap_or_default();
        let row = self.tape.root(line);
        let Some(envelope) = Envelope::of(row) else {
            return Err(Error::new(ErrorKind::Row, "the row is no JSON object").with_rule("10 §5.1"));
        };
        admit(&envelope, self.tape.may_be_retired())?;
        decode_native(&envelope, seq)?;
        self.has_marker |= envelope.is_inherited_marker();
        let mut ranges = Vec::new();
        if let Some(seqs) = envelope.source_event_seqs {
            respell_seqs(seqs, &mut ranges);
        }
        let has_own_ranges = envelope
            .source_event_seqs
            .is_none_or(|seqs| seqs.raw() == Some(&ranges));
        let is_canonical = self.tape.is_canonical(line);
        if !is_canonical && !Value::is_lossless(&row) {
            let message = "a number of the row is -0 or too large, and would be read back as another one";
            return Err(Error::new(ErrorKind::Row, message).with_rule("10 §11.2"));
        }
        let is_as_written = is_canonical && has_own_ranges && end < rest.len();
        let len = if is_as_written {
            let whole = rest.get(..=end).unwrap_or_default();
            if let Some(out) = &mut self.out {
                out.extend_from_slice(whole);
            }
            whole.len()
        } else {
            let before = self.text.get(..self.at).unwrap_or_default();
            let out = self.out.get_or_insert_with(|| before.to_vec());
            let start = out.len();
            write_row(row, &ranges, out);
            out.len() - start
        };
        self.at += end + 1;
        let limit = self.limits.max_row_bytes;
        if len as u64 > limit {
            let message = format!("the row has {len} bytes, more than max_row_bytes ({limit})");
            return Err(Error::limit("max_row_bytes", limit, message));
        }
        Ok(())
    }
}

/// Appends a row with its line feed.
fn write_row(row: Node<'_>, ranges: &[u8], out: &mut Vec<u8>) {
    write_node(row, out, &|key, out| {
        let is_replaced = key == b"sourceEventSeqs";
        if is_replaced {
            out.extend_from_slice(ranges);
        }
        is_replaced
    });
    out.push(b'\n');
}

/// The place of the line feed behind a value, or of the end of the text.
fn end_of_line(text: &[u8], end: usize) -> std::result::Result<usize, Fault> {
    let behind = text.get(end..).unwrap_or_default();
    let space = behind
        .iter()
        .take_while(|byte| matches!(byte, b' ' | b'\t' | b'\r'))
        .count();
    match behind.get(space) {
        None | Some(b'\n') => Ok(end + space),
        Some(_) => Err(Fault {
            at: end + space,
            kind: FaultKind::Unexpected("the end of the row"),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str) -> Batch {
        check_rows(text.as_bytes(), 4, &Limits::default(), &mut BatchRoom::default()).unwrap()
    }

    #[test]
    fn rows_in_the_writers_spelling_stand() {
        let text = concat!(
            r#"{"type":"x","seq":4,"time":1,"data":{"a":["b"]}}"#,
            "\n",
            r#"{"type":"y","seq":5,"time":1,"data":null,"sourceEventSeqs":[[0,2],4]}"#,
            "\n",
        );
        assert_eq!((check(text).respelled, check(text).count), (None, 2));
        assert_eq!(check("").count, 0);
    }

    #[test]
    fn others_are_respelled() {
        let first = r#"{"type":"x","seq":4,"time":1,"data":null}"#;
        let text = format!(
            "{first}\n{}\r\n{}",
            r#"{"type":"y", "seq":5.0,"time":1,"data":"\u0041","sourceEventSeqs":[0,[1,1],[2,3]]}"#,
            r#"{"type":"z","seq":6,"time":1,"data":{"b":1,"1":2},"sourceEventSeqs":[1,0]}"#,
        );
        let expected = format!(
            "{first}\n{}\n{}\n",
            r#"{"type":"y","seq":5,"time":1,"data":"A","sourceEventSeqs":[[0,3]]}"#,
            r#"{"type":"z","seq":6,"time":1,"data":{"1":2,"b":1},"sourceEventSeqs":[1,0]}"#,
        );
        assert_eq!(check(&text).respelled, Some(expected.into_bytes()));
    }

    /// Records of streams, most of them as the writer spells them.
    const RECORDS: [&str; 9] = [
        r#"{"type":"chunk","time":7,"chunk":{"type":"block-start","index":0,"blockType":"text"}}"#,
        r#"{"type":"text-chunks","time0":8,"index":0,"dt":[1,-2,0],"texts":["a","é\n\\","\u001b/",""]}"#,
        r#"{"type":"reasoning-chunks","time0":8,"index":0,"dt":[],"texts":["\ud83d"]}"#,
        r#"{"type":"tool-call-chunks","time0":8,"index":1,"dt":[12],"id":"c\t","name":"n","args":["{\"","a"]}"#,
        r#"{"type":"chunk","time":9,"chunk":{"type":"block-end","block":{"type":"text","text":"aé\n"},"n":{"type":[]}}}"#,
        r#"{"type":"chunk","time":9,"chunk":{"usage":{"n":[1,-2],"s":["a","é"],"x":[null,true,{},[[-5]]],"c":0.125}}}"#,
        r#"{"type":"chunk","time":9,"chunk":{"a":1,"b":2,"c":3,"d":4,"e":5,"f":6,"g":7,"h":8,"i":9,"j":0,"k":1,"l":2,"m":3}}"#,
        r#"{"type":"chunk","time":9,"chunk":{}}"#,
        r#"{"type":"chunk","time":9,"chunk":{"type":"finish","reason":{"kind":"stop"},"f":false}}"#,
    ];

    /// What may be put anywhere.
    const PIECES: [&str; 30] = [
        "",
        "",
        "\"",
        "\\",
        ",",
        "{",
        "}",
        "[",
        "]",
        "0",
        "-0",
        "1.50",
        "2.5",
        "1e999",
        " ",
        "\t",
        "null",
        "[ ]",
        "{}",
        "12345678",
        "\\u0041",
        "\\/",
        "\\n",
        "\\u001B",
        "é",
        "\"a\":1,",
        "\"1\":1,",
        "\"type\":2,",
        "[1, 2]",
        "[\"a\" ]",
    ];

    /// The rows as they are written if nothing is known of their spelling; None if they are refused.
    fn written(text: &[u8]) -> Option<Vec<u8>> {
        let mut tape = Tape::new();
        let end = tape.read_row(text, 64).ok()?;
        let row = tape.root(text.get(..end)?);
        let (mut ranges, mut out) = (Vec::new(), Vec::new());
        let envelope = Envelope::of(row)?;
        admit(&envelope, true).ok()?;
        decode_native(&envelope, 4).ok()?;
        if let Some(seqs) = envelope.source_event_seqs {
            respell_seqs(seqs, &mut ranges);
        }
        write_row(row, &ranges, &mut out);
        (row.is_lossless() && text.get(end..) == Some(b"\n")).then_some(out)
    }

    /// The row as it is written if it is parsed.
    fn by_tape(text: &[u8], room: &mut BatchRoom) -> Option<Vec<u8>> {
        let mut check = Check {
            text,
            limits: &Limits::default(),
            tape: &mut room.tape,
            scratch: &mut room.scratch,
            at: 0,
            out: None,
            has_marker: false,
        };
        check.row(4).ok()?;
        Some(check.out.unwrap_or_else(|| text.to_vec()))
    }

    #[test]
    fn streams_that_are_not_kept_are_written_as_all_others() {
        let mut state = 5u64;
        let mut next = |n: usize| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 33) as usize % n
        };
        let mut room = BatchRoom::default();
        let (mut taken, mut stood, mut recognised, mut counted) = (0, 0, 0, 0);
        for round in 0..20_000 {
            let records: Vec<_> = (0..next(4)).map(|_| RECORDS[next(RECORDS.len())]).collect();
            let mut row = format!(
                r#"{{"type":"assistant/attempt","seq":4,"time":1,"data":{{"turn":1,"step":2,"stream":[{}],"x":["a",{{}}]}}}}"#,
                records.join(",")
            );
            for _ in 0..next(3) {
                let boundary =
                    |row: &str, at: usize| (0..=at).rev().find(|&at| row.is_char_boundary(at)).unwrap();
                let start = boundary(&row, 50 + next(row.len() - 50));
                let end = boundary(&row, (start + next(4)).min(row.len()));
                row.replace_range(start..end, PIECES[next(PIECES.len())]);
            }
            let mut text = row.into_bytes();
            if round % 7 == 0
                && let Some(byte) = text.iter_mut().find(|byte| **byte == 0xc3)
            {
                *byte = 0xff;
            }
            text.push(b'\n');
            let limits = Limits::default();
            let found = check_rows(&text, 4, &limits, &mut room);
            let shown = String::from_utf8_lossy(&text);
            if let Ok(batch) = &found {
                recognised += usize::from(spelled_row(&text, 64, &mut room.scratch).is_some());
                taken += 1;
                stood += usize::from(batch.respelled.is_none());
            }
            let parsed = by_tape(&text, &mut room);
            counted += usize::from(
                parsed.is_some() && {
                    let data = room.tape.root(&text).member("data");
                    let stream = data.and_then(|data| data.member("stream"));
                    stream.is_some_and(|stream| stream.counted_records().is_some())
                },
            );
            assert_eq!(parsed, written(&text), "{shown}");
            let found = found
                .ok()
                .map(|batch| batch.respelled.unwrap_or_else(|| text.clone()));
            assert_eq!(found, written(&text), "{shown}");
        }
        assert!(
            stood > 4_000 && counted > 3_000 && recognised > 3_000 && taken > stood + 1_000,
            "{stood} {counted} {recognised} {taken}"
        );
    }

    #[test]
    fn the_first_row_that_is_refused_decides() {
        let text = b"{\"type\":\"x\",\"seq\":4,\"time\":1,\"data\":null}\n\n";
        let error = check_rows(text, 4, &Limits::default(), &mut BatchRoom::default()).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::Syntax));
        assert_eq!(error.location().seq, Some(5));
    }
}
