//! Calls of generations 2 to 4, collected while rows are scanned. Spec 80 §3 to §5.
#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "clippy.toml allows them in tests, but not in their helpers"
)]

use dsh_codec_core::Limits;
use dsh_codec_core::calls::{Call, CallOptions, CallScanner, Outcome, Place};
use dsh_codec_core::row::{Mode, ScanOptions};

const HEADER: &str =
    r#"{"type":"session","version":4,"id":"s","createdAt":0,"isSeeded":false,"delegationDepth":0}"#;

fn scan(events: &[(i64, &str, &str)]) -> CallScanner {
    let scan = ScanOptions {
        mode: Mode::Strict,
        generation: Some(4),
        check_streams: false,
        keeps_records: false,
        limits: Limits::default(),
    };
    let calls = CallOptions {
        times: true,
        tools: true,
        gaps: true,
        auxiliary: false,
    };
    let mut scanner = CallScanner::new(scan, calls);
    scanner.feed(format!("{HEADER}\n").as_bytes()).unwrap();
    for (seq, (time, kind, data)) in events.iter().enumerate() {
        let surface = if matches!(*kind, "assistant/message" | "tool/result") {
            r#","surfaceOp":"append""#
        } else {
            ""
        };
        let row = format!(r#"{{"type":"{kind}","seq":{seq},"time":{time},"data":{data}{surface}}}"#);
        scanner.feed(format!("{row}\n").as_bytes()).unwrap();
    }
    scanner.finish().unwrap();
    scanner
}

fn attempt(turn: &str, stream: &str) -> String {
    format!(r#"{{"turn":{turn},"step":1,"stream":[{stream}]}}"#)
}

fn only(stream: &str) -> Call {
    let scanner = scan(&[(9, "assistant/attempt", &attempt("1", stream))]);
    let [call] = scanner.rows().calls() else {
        panic!("one call")
    };
    call.clone()
}

#[test]
fn attempts_start_where_the_log_says() {
    let place = r#"{"turn":1,"step":1}"#;
    let route = r#"{"provider":"p","model":"m"}"#;
    let run = r#"{"type":"text-chunks","time0":20,"index":0,"dt":[3],"texts":["a","b"]}"#;
    let stream = attempt("1", run);
    let scanner = scan(&[
        (10, "step/start", place),
        (12, "request/context", route),
        (30, "assistant/attempt", &stream),
        (13, "llm/retry-started", place),
        (30, "assistant/attempt", &stream),
        (25, "request/context", r#"{"provider":"q"}"#),
        (19, "request/context", r#"{"provider":"r"}"#),
        (30, "assistant/attempt", &stream),
        (30, "assistant/attempt", &stream),
        (30, "assistant/attempt", &attempt("7", run)),
    ]);
    let calls = scanner.rows().calls();
    let starts: Vec<_> = calls.iter().map(|call| call.times.start).collect();
    assert_eq!(starts, [Some(10), Some(13), Some(19), None, Some(19)]);
    let numbers: Vec<_> = calls.iter().map(|call| call.attempt).collect();
    assert_eq!(numbers, [Some(1), Some(2), Some(3), Some(4), Some(1)]);
    let providers: Vec<_> = calls.iter().map(|call| call.provider.as_deref()).collect();
    let (p, r) = (Some(&b"p"[..]), Some(&b"r"[..]));
    assert_eq!(providers, [p, p, r, r, r]);
    assert_eq!(calls[0].times.ttft, Some(10));
    assert_eq!(calls[0].times.generation, Some(3));
}

#[test]
fn usage_of_the_stream_goes_before_that_of_the_message() {
    let usage = |n: i32| {
        format!(r#"{{"type":"chunk","time":1,"chunk":{{"type":"usage","usage":{{"inputTokens":{n}}}}}}}"#)
    };
    for (stream, input) in [
        (format!("{},{}", usage(1), usage(2)), Some(2)),
        (
            r#"{"type":"chunk","time":1,"chunk":{"type":"usage","usage":null}}"#.to_owned(),
            Some(9),
        ),
        (
            r#"{"type":"chunk","time":1,"chunk":{"type":"usage","usage":3}}"#.to_owned(),
            None,
        ),
        (String::new(), Some(9)),
    ] {
        let data = format!(
            r#"{{"turn":1,"step":1,"message":{{"id":"m","role":"assistant","content":[]}},"usage":{{"inputTokens":9.0,"outputTokens":1.5}},"stream":[{stream}]}}"#
        );
        let scanner = scan(&[(9, "assistant/message", &data)]);
        let [call] = scanner.rows().calls() else {
            panic!("one call")
        };
        assert_eq!((call.outcome, call.tokens.input), (Outcome::Message, input));
        assert_eq!((call.tokens.output, call.tokens.total), (None, None));
    }
}

#[test]
fn what_cannot_be_read_is_unknown() {
    let run = |time0: &str, dt: &str, texts: &str| {
        format!(r#"{{"type":"text-chunks","time0":{time0},"index":0,"dt":{dt},"texts":{texts}}}"#)
    };
    let call = only(&run("5", "[1,-3]", r#"["","a",""]"#));
    let times = call.times;
    assert_eq!(
        (times.first_token, times.last_token, times.end),
        (Some(6), Some(6), Some(3))
    );
    assert_eq!((times.generation, call.gaps), (None, vec![]));
    // An escaped quote at the end is no empty string.
    let call = only(&run("5", "[1,2]", r#"["a","","\""]"#));
    assert_eq!((call.times.last_token, call.gaps), (Some(8), vec![3]));
    let call = only(&run("5", "[1.5]", r#"["a","b"]"#));
    assert_eq!((call.times.first_token, call.times.last_token), (Some(5), None));
    assert_eq!(call.times.end, None);
    let call = only(&run("9007199254740990", "[1,1,-2]", r#"["a","b","c","d"]"#));
    assert_eq!((call.times.end, call.gaps), (None, vec![1]));
    let call = only("7,[],{}");
    assert_eq!(
        (call.times.first_token, call.times.end, call.finish),
        (None, None, None)
    );
}

#[test]
fn a_repeated_id_is_paired_in_log_order() {
    let place = r#""turn":1,"step":1"#;
    let block = r#"{"type":"tool-call","id":"c","name":"n","arguments":"{}"}"#;
    let message = format!(
        r#"{{{place},"message":{{"id":"m","role":"assistant","content":[{block},{block},{block}]}},"stream":[]}}"#
    );
    let start = format!(r#"{{{place},"callId":"c","name":"n","arguments":"{{}}"}}"#);
    let answer = format!(
        r#"{{{place},"message":{{"id":"r","role":"tool","toolCallId":"c","content":[],"source":{{"kind":"tool","callId":"c"}}}}}}"#
    );
    let scanner = scan(&[
        (0, "assistant/message", &message),
        (10, "tool/call", &start),
        (20, "tool/call", &start),
        (31, "tool/result", &answer),
        (42, "tool/result", &answer),
    ]);
    let rows = scanner.rows();
    let tools: Vec<_> = rows
        .tools_of(&rows.calls()[0])
        .iter()
        .map(|tool| tool.ms)
        .collect();
    assert_eq!(tools, [Some(21), Some(22), None]);
    assert_eq!(
        rows.calls()[0].place,
        Place {
            turn: Some(1),
            step: Some(1)
        }
    );
}
