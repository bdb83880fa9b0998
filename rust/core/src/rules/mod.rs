//! The rules over the events of a generation 4 log, layer by layer, all in one pass. Spec 00 §6, 30 §7 to §10.
//!
//! State machines over accepted rows: they see each row once, keep what later rules need, and report instead of
//! stopping.

mod agreement;
mod assembly;
mod compaction;
pub(crate) mod equality;
mod event;
mod findings;
mod joined;
mod keep;
mod lifecycle;
mod nodes;
mod relationships;
mod restore;
mod sources;
mod surface;
mod tools;
mod vocabulary;

use std::collections::HashSet;

use crate::json::Tape;
use crate::row::{Envelope, Header, NotedRow};
use crate::stream::{RecordFault, StreamCounts};

pub(crate) use agreement::agrees;
pub(crate) use event::wanted_for;
pub use findings::Findings;

use event::{Event, EventType};
use findings::Layer;
use keep::Scalar;
use relationships::Relationships;
use restore::Restore;
use tools::HeaderTools;

/// How far a check goes. Spec 00 §6.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum Level {
    /// Layers L0 and L1: what a scan checks.
    #[default]
    Scan,
    /// Also L2 and L3: what the harness checks on an ordinary read.
    Read,
    /// Also L4: what it checks before it resumes a session.
    Restore,
    /// Also L5: every stream agrees with its settlement.
    Full,
}

/// All rules of a level over a log, for rows that a scan has accepted.
///
/// The first of the findings is what the harness would refuse the log for: layers come in their order, and V1 and V2
/// before V3 to V7. Memory: some 100 bytes for each current surface node, a few words for each human message, command,
/// dispatch, retry, child and request header, and at most [`MAX_KEPT_FINDINGS`](crate::limits::MAX_KEPT_FINDINGS) findings for each layer.
#[derive(Debug)]
pub struct RuleCheck {
    rows: RowRules,
    headers: HeaderTools,
    relationships: Relationships,
    restore: Restore,
    /// L2.
    second: Layer,
    /// L4.
    fourth: Layer,
}

/// A row for the rules that depend on earlier ones.
#[expect(clippy::large_enum_variant, reason = "one at a time, taken where it is made")]
pub(crate) enum RuleRow<'a> {
    /// Which was parsed.
    Parsed(Envelope<'a>),
    /// Of which is noted what they ask for; it keeps the rules that look at one row alone.
    Noted(NotedRow<'a>),
}

/// The rules that look at one row alone: L3, and at level `Full` L5. Where a log is read in parts, those of a part do
/// not wait for what stands before it.
#[derive(Debug)]
pub(crate) struct RowRules {
    level: Level,
    /// L3 but for V1 and V2.
    third: Layer,
    /// V1 and V2.
    unsupported: Layer,
    /// L5.
    fifth: Layer,
}

impl RowRules {
    pub(crate) fn new(level: Level) -> Self {
        Self {
            level,
            third: Layer::default(),
            unsupported: Layer::default(),
            fifth: Layer::default(),
        }
    }

    /// Takes a row, as [`RuleCheck::feed_counting`] does.
    pub(crate) fn feed(
        &mut self,
        seq: u64,
        row: &Envelope<'_>,
        on_fault: &mut dyn FnMut(i64, RecordFault),
    ) -> Option<StreamCounts> {
        self.take(&Event::of(seq, row), on_fault)
    }

    fn take(
        &mut self,
        event: &Event<'_, '_>,
        on_fault: &mut dyn FnMut(i64, RecordFault),
    ) -> Option<StreamCounts> {
        vocabulary::check(event, &mut self.unsupported, &mut self.third);
        let is_compared = self.level == Level::Full && event.kind.is_settlement();
        is_compared.then(|| agreement::check(event, on_fault, &mut self.fifth))
    }

    /// Moves the findings on rows that stand behind all others here.
    fn append(&mut self, behind: &mut Self) {
        self.third.append(&mut behind.third);
        self.unsupported.append(&mut behind.unsupported);
        self.fifth.append(&mut behind.fifth);
    }
}

impl RuleCheck {
    /// A check before the first event. At [`Level::Scan`] it checks nothing.
    pub fn new(header: &Header, level: Level) -> Self {
        let mut tape = Tape::new();
        // The line was parsed before, within the limit of the scan.
        let row = tape.read_text(&header.line, usize::MAX).ok();
        let id = row.and_then(|row| row.member("id"));
        let has_parent = row.is_some_and(|row| row.member("parentSession").is_some());
        // All that spec 30 §9 demands of a header, 10 §4.1 demands too, and a scan has checked.
        Self {
            rows: RowRules::new(level),
            headers: HeaderTools::new(),
            relationships: Relationships::new(Scalar::of(id), has_parent, header.is_seeded),
            restore: Restore::new(header.is_seeded),
            second: Layer::default(),
            fourth: Layer::default(),
        }
    }

    /// Takes the next accepted row; `seq` is its position, which the row's own seq equals.
    pub fn feed(&mut self, seq: u64, row: &Envelope<'_>) {
        self.feed_counting(seq, row, &mut |_, _| {});
    }

    /// [`RuleCheck::feed`] that also does the work of [`check_stream`](crate::stream::check_stream) where the level
    /// demands most of it anyway: a settlement at [`Level::Full`]. None for any other row.
    pub fn feed_counting(
        &mut self,
        seq: u64,
        row: &Envelope<'_>,
        on_fault: &mut dyn FnMut(i64, RecordFault),
    ) -> Option<StreamCounts> {
        if self.rows.level == Level::Scan {
            return None;
        }
        let event = Event::of(seq, row);
        self.take_in_order(&event);
        self.rows.take(&event, on_fault)
    }

    /// Takes the rows of a part, which its own rules have taken before.
    pub(crate) fn append<'a>(
        &mut self,
        rules: &mut RowRules,
        rows: impl Iterator<Item = (u64, RuleRow<'a>)>,
    ) {
        self.rows.append(rules);
        for (seq, row) in rows {
            match row {
                RuleRow::Parsed(row) => self.take_in_order(&Event::of(seq, &row)),
                RuleRow::Noted(row) => self.feed_noted(seq, &row),
            }
        }
    }

    /// [`RuleCheck::feed`] for a row that keeps the rules that look at it alone.
    pub(crate) fn feed_noted(&mut self, seq: u64, row: &NotedRow<'_>) {
        self.take_in_order(&Event::of_noted(seq, &row.envelope(), row));
    }

    /// The rules that depend on rows before this one.
    fn take_in_order(&mut self, event: &Event<'_, '_>) {
        if event.kind == EventType::RequestHeader {
            self.headers.add(event.seq, event.data);
        }
        self.relationships.feed(event, &self.headers, &mut self.second);
        if self.rows.level >= Level::Restore {
            self.restore.feed(event, &self.headers, &mut self.fourth);
        }
    }

    /// Ends the log. `cut` is the inherited cut, that of the last inherited marker if the session is seeded.
    pub fn finish(mut self, cut: u64) -> Findings {
        let level = self.rows.level;
        if level >= Level::Read {
            self.relationships.finish(&mut self.second);
        }
        if level >= Level::Restore {
            self.restore.finish(cut, &mut self.fourth);
        }
        let RowRules {
            third,
            unsupported,
            fifth,
            ..
        } = self.rows;
        let mut findings = Findings::default();
        let mut seen = HashSet::new();
        for layer in [self.second, unsupported, third, self.fourth, fifth] {
            let (kept, count) = layer.finish();
            findings.count += count;
            findings
                .kept
                .extend(kept.filter(|error| seen.insert((error.rule(), error.location().seq))));
        }
        findings
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Error;

    /// Rule and seq of every finding on some events, given as type and further members; `seq` and `time` are added.
    fn check(header: &str, level: Level, cut: u64, events: &[(&str, &str)]) -> (Vec<String>, u64) {
        let line = format!(
            r#"{{"type":"session","version":4,"id":"s","createdAt":0,"delegationDepth":0,"isSeeded":{header}}}"#
        );
        let is_seeded = header.starts_with("true");
        let header = Header {
            generation: 4,
            line: line.into_bytes(),
            is_seeded,
            declared_cut: None,
        };
        let mut check = RuleCheck::new(&header, level);
        for (seq, (kind, members)) in (0..).zip(events) {
            let row = format!(r#"{{"type":"{kind}","seq":{seq},"time":1,{members}}}"#);
            let mut tape = Tape::new();
            check.feed(
                seq,
                &Envelope::of(tape.read_text(row.as_bytes(), 99).unwrap()).unwrap(),
            );
        }
        let findings = check.finish(cut);
        let place = |error: &Error| {
            error
                .location()
                .seq
                .map_or_else(String::new, |seq| seq.to_string())
        };
        let kept = findings
            .kept
            .iter()
            .map(|error| format!("{} {}", error.rule().unwrap(), place(error)));
        (kept.collect(), findings.count)
    }

    fn found(level: Level, events: &[(&str, &str)]) -> Vec<String> {
        check("false", level, 0, events).0
    }

    const TURN: (&str, &str) = ("turn/start", r#""data":{"turn":1}"#);
    const STEP: (&str, &str) = ("step/start", r#""data":{"turn":1,"step":1}"#);

    #[test]
    fn the_decisive_finding_is_first() {
        // Spec 30 §7 before §8, and there V1 before V3 to V7.
        let events = [
            (
                "user/message",
                r#""data":{"role":"user","content":[],"source":{"kind":"user"}},"surfaceOp":"append""#,
            ),
            ("x/unknown", r#""data":0"#),
            ("turn/end", r#""data":{"turn":1}"#),
        ];
        assert_eq!(found(Level::Read, &events), ["L2.turn-end 2", "V1 1", "V7 0"]);
        assert_eq!(found(Level::Scan, &events), [""; 0]);
        let surface = [("todo/write", r#""data":0,"surfaceOp":"append""#)];
        assert_eq!(
            check("false", Level::Restore, 0, &surface),
            (vec!["V3 0".to_owned()], 2)
        );
    }

    #[test]
    fn findings_are_bounded_and_counted() {
        let events = vec![("turn/end", r#""data":{"turn":7}"#); 250];
        let (kept, count) = check("false", Level::Read, 0, &events);
        assert_eq!((kept.len(), count), (100, 250));
    }

    #[test]
    fn what_depends_on_the_cut_waits_for_it() {
        // Spec 30 §7.1, R3 and R4; 10 §4.4: the last inherited marker sets the cut.
        let child = (
            "subagent/catalog",
            r#""data":{"version":0,"mode":"one-shot","childId":"c","childCreatedAt":1}"#,
        );
        let delivery = (
            "session-log-deepseek/delivery-accepted",
            r#""data":{"sessionFormatVersion":4,"throughSeq":0,"sessionId":"parent"}"#,
        );
        let marker = ("session/end-seed", r#""data":{"inherited":true}"#);
        let end = ("turn/end", r#""data":{"turn":1}"#);
        let parent = r#"true,"parentSession":"parent""#;
        let log = [child, delivery, child, marker, child, delivery, child, end];
        assert_eq!(
            check(parent, Level::Read, 3, &log).0,
            ["R3 5", "R4 6", "L2.turn-end 7"]
        );
        assert_eq!(
            check("true", Level::Read, 3, &log).0,
            ["R3 1", "R3 5", "R4 6", "L2.turn-end 7"]
        );
        assert_eq!(found(Level::Read, &[child, delivery, child]), ["R3 1", "R4 2"]);
    }

    #[test]
    fn turns_may_cross_only_a_compaction_that_a_marker_drops() {
        // Spec 30 §7.2, preparation and rule 2.
        let start = ("compaction/start", r#""data":{"compactionId":"c","turn":1}"#);
        let end = (
            "compaction/end",
            r#""data":{"compactionId":"c","turn":1,"error":"x"}"#,
        );
        let turn_end = ("turn/end", r#""data":{"turn":1}"#);
        let marker = ("session/end-seed", r#""data":{}"#);
        assert_eq!(found(Level::Read, &[TURN, start, turn_end, marker]), [""; 0]);
        assert_eq!(found(Level::Read, &[TURN, start, end, turn_end]), [""; 0]);
        assert_eq!(
            found(Level::Read, &[TURN, start, turn_end, end]),
            ["L2.compaction-owner 3", "L2.compaction-crossed 2"]
        );
        assert_eq!(
            found(Level::Read, &[TURN, start, turn_end]),
            ["L2.compaction-crossed 2"]
        );
    }

    /// An answer with two calls, the second of them started.
    const ANSWER: (&str, &str) = (
        "assistant/message",
        r#""surfaceOp":"append","data":{"turn":1,"step":1,"stream":[],"message":{"id":"m","role":"assistant","source":{"kind":"model","provider":"p","model":"m"},"content":[{"type":"tool-call","id":"a","name":"n","arguments":"{\"k\":1}"},{"type":"tool-call","id":"b","name":"n"}]}}"#,
    );

    #[test]
    fn calls_are_started_and_answered_once() {
        let call = (
            "tool/call",
            r#""data":{"turn":1,"step":1,"callId":"a","name":"n","arguments":"{\u0022k\u0022:1}"}"#,
        );
        let other = (
            "tool/call",
            r#""data":{"turn":1,"step":1,"callId":"b","name":"n","arguments":""}"#,
        );
        let result = (
            "tool/result",
            r#""surfaceOp":"append","data":{"turn":1,"step":1,"message":{"id":"r","role":"tool","toolCallId":"a","source":{"kind":"tool","callId":"a"},"content":[]}}"#,
        );
        let end = ("step/end", r#""data":{"turn":1,"step":1}"#);
        assert_eq!(
            found(
                Level::Read,
                &[TURN, STEP, ANSWER, call, result, result, other, end]
            ),
            ["L2.tool-result 5", "L2.tool-call 6", "L2.pending-tools 7"]
        );
        assert_eq!(
            found(Level::Read, &[TURN, STEP, ANSWER, result]),
            ["L2.not-started 3"]
        );
    }

    #[test]
    fn a_result_is_rewritten_only_in_its_content() {
        // Spec 30 §5.1.
        let result = |content: &str, meta: &str, op: &str| {
            format!(
                r#""surfaceOp":{op},"data":{{"turn":1,"meta":{meta},"message":{{"id":"r","role":"tool","toolCallId":"a","source":{{"kind":"tool","callId":"a"}},"content":{content}}}}}"#
            )
        };
        let replace = r#"{"op":"replace","startSeq":0,"endSeq":0},"sourceEventSeqs":[0]"#;
        let first = result("[1]", "0", r#""append""#);
        for (second, rules) in [
            (result("[2]", "-0.0", replace), vec![]),
            (result("[2]", "1", replace), vec!["L4.rewrite 1"]),
        ] {
            let all = found(
                Level::Restore,
                &[("tool/result", &first), ("tool/result", &second)],
            );
            let rewrite: Vec<_> = all.iter().filter(|rule| rule.starts_with("L4")).collect();
            assert_eq!(rewrite, rules);
        }
    }

    #[test]
    fn images_are_offloaded_once() {
        // Spec 30 §5.3.
        let message = r#""surfaceOp":"append","data":{"id":"m","role":"user","source":{"kind":"user"},"content":[{"type":"image"},{"type":"text"},{"type":"image"}]}"#;
        let offload = |targets: &str| format!(r#""data":{{"targets":{targets}}}"#);
        for (targets, is_sound) in [
            (r#"[{"seq":0,"imageIndexes":[0,1]}]"#, true),
            (r#"[{"seq":0,"imageIndexes":[1,1]}]"#, false),
            (r#"[{"seq":0,"imageIndexes":[2]}]"#, false),
            (
                r#"[{"seq":0,"imageIndexes":[0]},{"seq":0,"imageIndexes":[1]}]"#,
                false,
            ),
            (r#"[{"seq":0,"imageIndexes":[]}]"#, false),
            ("[]", false),
        ] {
            let row = offload(targets);
            let rules = found(
                Level::Restore,
                &[("user/message", message), ("image/offload", &row)],
            );
            assert_eq!(rules.is_empty(), is_sound, "{targets}");
        }
        let one = offload(r#"[{"seq":0,"imageIndexes":[0]}]"#);
        let twice = [
            ("user/message", message),
            ("image/offload", &one),
            ("image/offload", &one),
        ];
        assert_eq!(found(Level::Restore, &twice), ["L4.offload 2"]);
    }

    /// L5 findings on one answer; `settled` are members of its data, `message` of its message.
    fn agreement(stream: &str, settled: &str, content: &str, source: &str) -> Vec<String> {
        let row = format!(
            r#""surfaceOp":"append","data":{{"turn":1,"step":1,"stream":[{stream}]{settled},"message":{{"id":"m","role":"assistant","source":{{"kind":"model","provider":"p","model":"m"{source}}},"content":{content}}}}}"#
        );
        found(Level::Full, &[TURN, STEP, ("assistant/message", &row)])
    }

    const RUN: &str = r#"{"type":"text-chunks","time0":1,"index":0,"dt":[1],"texts":["a\ud83d","\ude00"]}"#;

    #[test]
    fn a_settlement_says_what_its_stream_says() {
        // Spec 30 §10, 20 §6.
        let chunk = |chunk: &str| format!(r#"{{"type":"chunk","time":1,"chunk":{chunk}}}"#);
        let end = chunk(r#"{"type":"block-end","index":0,"block":{"type":"text","text":"Z"}}"#);
        let open = chunk(r#"{"type":"block-start","index":9,"blockType":"odd"}"#);
        let call = r#"{"type":"tool-call-chunks","time0":1,"index":1,"dt":[],"id":"c","args":["{}"]}"#;
        let cut = chunk(
            r#"{"type":"finish","reason":{"kind":"max-tokens"},"replayState":{"response":1,"blocks":[2,3],"x":4}}"#,
        );
        let usage = chunk(r#"{"type":"usage","usage":{"inputTokens":1}}"#);
        let text = r#"[{"text":"a😀","type":"text"}]"#;
        let none = [""; 0];
        assert_eq!(agreement(RUN, "", text, ""), none);
        assert_eq!(
            agreement(RUN, "", r#"[{"text":"a","type":"text"}]"#, ""),
            ["L5.3 2"]
        );
        assert_eq!(
            agreement(&format!("{RUN},{end}"), "", r#"[{"type":"text","text":"Z"}]"#, ""),
            none
        );
        assert_eq!(
            agreement(
                &format!("{RUN},{usage}"),
                r#","usage":{"inputTokens":1.0}"#,
                text,
                ""
            ),
            none
        );
        assert_eq!(
            agreement(RUN, r#","usage":{"inputTokens":1}"#, text, ""),
            ["L5.4 2"]
        );
        let pruned = r#","replayState":{"blocks":[2],"response":1}"#;
        assert_eq!(agreement(&format!("{RUN},{call},{cut}"), "", text, pruned), none);
        assert_eq!(
            agreement(&format!("{RUN},{call},{cut}"), "", text, ""),
            ["L5.5 2"]
        );
        assert_eq!(
            agreement(&format!("{RUN},{open}"), "", text, ""),
            ["L5.3 2", "L5.5 2"]
        );
        assert_eq!(
            agreement(&format!("{RUN},{open}"), r#","interrupted":true"#, text, ""),
            ["L5.5 2"]
        );
        assert_eq!(agreement(&chunk(r#"{"type":"odd"}"#), "", "[]", ""), ["L5.1 2"]);
        assert_eq!(agreement("", "", r#"[{"type":"text","text":"any"}]"#, ""), none);
    }
}
