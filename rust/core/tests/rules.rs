//! Golden vectors of the rules over events: `read_log`, `verify_log` and their mutations, the last stage of `scan`, and
//! what the fold of `surface` refuses. Spec 00 §5, 30; the vectors' README.
//!
//! `DSH_VECTORS` names the folder; without it, the shared one beside the repository is used if it is there.
#![allow(
    clippy::unwrap_used,
    clippy::print_stderr,
    reason = "a test, helpers included"
)]

use std::collections::BTreeMap;
use std::path::PathBuf;

use dsh_codec_core::bulk::check_bytes;
use dsh_codec_core::json::{Node, Tape};
use dsh_codec_core::row::{Envelope, Header, Mode, ScanOptions};
use dsh_codec_core::rules::{Level, RuleCheck};
use dsh_codec_core::{Error, ErrorKind, Limits};

/// The texts of the vectors know no depth limit.
const DEEP: u32 = 1_000_000;

fn text(value: Option<Node<'_>>) -> String {
    String::from_utf8_lossy(&value.and_then(|value| value.text()).unwrap_or_default()).into_owned()
}

fn decode_base64(text: &str) -> Vec<u8> {
    const ALPHABET: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let (mut out, mut bits, mut count) = (Vec::new(), 0u32, 0);
    for byte in text.bytes().filter(|&b| b != b'=') {
        let value = ALPHABET.iter().position(|&letter| letter == byte).unwrap();
        bits = bits << 6 | u32::try_from(value).unwrap();
        count += 6;
        if count >= 8 {
            count -= 8;
            out.push(u8::try_from(bits >> count & 0xff).unwrap());
        }
    }
    out
}

/// Kind of a refusal while a log is read. Spec 00 §5, the table.
fn kind_of(error: &Error) -> &'static str {
    if matches!(
        error.kind(),
        ErrorKind::Unsupported | ErrorKind::NewerFormat { .. }
    ) {
        return "unsupported";
    }
    match error.rule().unwrap_or_default() {
        "A1" | "A2" | "A3" | "A4" | "A5" | "B" | "C2" | "C3" | "C4" | "D" | "E" | "F" => "format_error",
        // At the end of the log it is the marker rule, on a row the shape of a marker.
        "10 §4.4" if error.location().line.is_none() => "format_error",
        rule if rule.starts_with("L2") || rule.starts_with('R') => "format_error",
        rule if rule.starts_with("L4") || rule.starts_with("L5") => "error",
        _ => "corrupt",
    }
}

/// Whether a header is refused that has one of the members that were retired. Spec 10 §4.1 step 5.
fn is_retired(error: &Error, log: &[u8]) -> bool {
    let mut tape = Tape::new();
    let line = log.split(|&b| b == b'\n').next().unwrap_or_default();
    let header = tape.read_text(line, DEEP as usize).ok();
    let has = |key| header.is_some_and(|header| header.member(key).is_some());
    matches!(error.kind(), ErrorKind::Header) && (has("sandboxMode") || has("approvalPolicy"))
}

/// How a log is refused at a level, if it is.
fn judge(log: &[u8], mode: Mode, level: Level, allowed: fn(&Error) -> bool) -> Option<String> {
    let limits = Limits {
        max_depth: DEEP,
        ..Limits::default()
    };
    let options = ScanOptions {
        mode,
        generation: Some(4),
        check_streams: true,
        keeps_records: false,
        limits,
    };
    match check_bytes(log, options, level) {
        Err(error) if is_retired(&error, log) => Some("error".to_owned()),
        Err(error) => Some(kind_of(&error).to_owned()),
        Ok(file) if level == Level::Full && file.truncate_to.is_some() => Some("corrupt".to_owned()),
        Ok(file) => {
            let findings = &file.scan.findings;
            assert_eq!(findings.kept.is_empty(), findings.count == 0);
            findings
                .kept
                .iter()
                .find(|error| allowed(error))
                .map(|error| kind_of(error).to_owned())
        }
    }
}

fn is_relationship(error: &Error) -> bool {
    error
        .rule()
        .is_some_and(|rule| rule.starts_with("L2") || rule.starts_with('R'))
}

/// How the fold of a list of logical events refuses them, if it does. L2 does not take part.
fn judge_surface(input: Node<'_>) -> Option<String> {
    let line = br#"{"version":4,"id":"surface","createdAt":0,"isSeeded":false,"delegationDepth":0}"#;
    let header = Header {
        generation: 4,
        line: line.to_vec(),
        is_seeded: false,
        declared_cut: None,
    };
    let mut check = RuleCheck::new(&header, Level::Restore);
    for (seq, event) in (0..).zip(input.member("events").unwrap().elements()) {
        let Some(row) = Envelope::of(event) else {
            return Some("error".to_owned());
        };
        check.feed(seq, &row);
    }
    let cut = input
        .member("inheritedEventCount")
        .and_then(|cut| cut.count())
        .unwrap_or(0);
    let findings = check.finish(cut);
    findings
        .kept
        .iter()
        .any(|error| !is_relationship(error))
        .then(|| "error".to_owned())
}

fn run(op: &str, input: Node<'_>) -> Option<String> {
    let log = || decode_base64(&text(input.member("log_b64")));
    match op {
        "scan" => {
            let mode = if text(input.member("mode")) == "strict" {
                Mode::Strict
            } else {
                Mode::Recoverable
            };
            judge(&log(), mode, Level::Read, is_relationship)
        }
        "read_log" => judge(&log(), Mode::Recoverable, Level::Read, |_| true),
        "verify_log" => judge(&log(), Mode::Strict, Level::Full, |_| true),
        _ => judge_surface(input),
    }
}

#[test]
fn golden_vectors_are_refused_or_accepted_alike() {
    let beside = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../shared/vectors");
    let folder = std::env::var_os("DSH_VECTORS").map_or_else(|| PathBuf::from(beside), PathBuf::from);
    if !folder.is_dir() {
        eprintln!("skipped: there are no vectors in {}", folder.display());
        return;
    }
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    let mut failures = Vec::new();
    for name in [
        "read_log",
        "read_log_mutations",
        "verify_log",
        "verify_log_mutations",
        "scan",
        "surface",
    ] {
        let lines = std::fs::read(folder.join(name).with_extension("jsonl")).unwrap();
        for line in lines.split(|&b| b == b'\n').filter(|line| !line.is_empty()) {
            let mut tape = Tape::new();
            let case = tape.read_text(line, DEEP as usize).unwrap();
            let expected = case
                .member("expect")
                .unwrap()
                .member("error")
                .map(|error| text(error.member("kind")));
            let found = run(&text(case.member("op")), case.member("input").unwrap());
            *counts.entry(name.to_owned()).or_default() += 1;
            if found != expected {
                failures.push(format!(
                    "{}: expected {expected:?}, found {found:?}",
                    text(case.member("id"))
                ));
            }
        }
    }
    assert!(counts.values().all(|&count| count > 50), "{counts:?}");
    assert!(
        failures.is_empty(),
        "{} of {counts:?}:\n{}",
        failures.len(),
        failures.join("\n")
    );
}
