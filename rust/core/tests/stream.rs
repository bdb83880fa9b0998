//! Spec 20: records, packing, expansion, readers, assembly, on values in the bytes of a text.
#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "clippy.toml allows them in tests, but not in their helpers"
)]

use dsh_codec_core::json::{Node, Tape};
use dsh_codec_core::stream::{
    Assembler, Block, CallId, Packed, Packer, ReplayState, check_stream, chunk_has_visible_text,
    expand_to_json, first_token_time, has_visible_content, has_visible_text, is_token_delta,
    is_visible_chunk, last_chunk, records, run_first_token_time, run_first_visible_time, text_fragments,
    validate_record,
};
use dsh_codec_core::{ErrorKind, Result};

fn with<R>(text: &str, f: impl FnOnce(Node<'_>) -> R) -> R {
    let mut tape = Tape::new();
    f(tape.read_text(text.as_bytes(), 100_000).unwrap())
}

fn text(kept: &[u8]) -> String {
    String::from_utf8_lossy(kept).into_owned()
}

// --- packing, §3 ---

fn show(record: &Packed<Vec<u8>>) -> String {
    match record {
        Packed::Raw { time, chunk } => format!("raw {time} {}", text(chunk)),
        Packed::Run(run) => {
            let members: Vec<String> = run.members.iter().map(|member| text(member)).collect();
            let id = run
                .id
                .as_ref()
                .map(|id| format!(" {}", text(id)))
                .unwrap_or_default();
            let name = run
                .name
                .as_ref()
                .map(|name| format!(" {}", text(name)))
                .unwrap_or_default();
            format!(
                "{} {} {} {:?}{id}{name} {members:?}",
                run.kind.record_type().as_str(),
                run.time0,
                run.index,
                run.dt
            )
        }
    }
}

fn pack(timed: &[&str]) -> (Vec<String>, Vec<ErrorKind>) {
    let mut packer = Packer::new();
    let mut refusals = Vec::new();
    for line in timed {
        if let Err(error) = with(line, |value| packer.push_timed(&value)) {
            refusals.push(match error.kind() {
                ErrorKind::Stream { record } => ErrorKind::Stream { record: *record },
                ErrorKind::UnknownChunk { record } => ErrorKind::UnknownChunk { record: *record },
                kind => panic!("{kind:?}"),
            });
        }
    }
    (packer.records().iter().map(show).collect(), refusals)
}

fn delta(time: &str, index: &str, text: &str) -> String {
    format!(r#"{{"time":{time},"chunk":{{"type":"text-delta","index":{index},"text":"{text}"}}}}"#)
}

#[test]
fn packing_merges_neighbours_of_one_block() {
    let [a, b, c] = [
        delta("10", "0", "a"),
        delta("15.0", "0.0", "b"),
        delta("12", "0", "c"),
    ];
    assert_eq!(
        pack(&[&a, &b, &c]).0,
        [r#"text-chunks 10 0 [5, -3] ["a", "b", "c"]"#]
    );
    let b = delta("15", "1", "b");
    assert_eq!(pack(&[&a, &b, &c]).0.len(), 3);
}

#[test]
fn packing_keeps_tool_calls_apart_by_id_and_name() {
    let call = |rest: &str| {
        format!(r#"{{"time":1,"chunk":{{"type":"tool-call-delta","index":0,{rest},"argumentsDelta":"x"}}}}"#)
    };
    let (named, bare, empty) = (
        call(r#""id":"c1","name":"n""#),
        call(r#""id":"c1""#),
        call(r#""id":"""#),
    );
    assert_eq!(
        pack(&[&named, &bare, &bare, &named]).0,
        [
            r#"tool-call-chunks 1 0 [] c1 n ["x"]"#,
            r#"tool-call-chunks 1 0 [0] c1 ["x", "x"]"#,
            r#"tool-call-chunks 1 0 [] c1 n ["x"]"#,
        ]
    );
    assert_eq!(
        pack(&[&empty]).0,
        [r#"raw 1 {"type":"tool-call-delta","index":0,"id":"","argumentsDelta":"x"}"#]
    );
}

#[test]
fn packing_refuses_by_kind_and_goes_on() {
    let good = delta("-0", "0", "a");
    let (records, refusals) = pack(&[
        &good,
        &delta("1.5", "0", "a"),
        &delta("1", "-0", "a"),
        r#"{"time":1,"chunk":{"type":"nope"}}"#,
        r#"{"time":1,"chunk":"text-delta"}"#,
        r#"{"time":1,"chunk":null}"#,
        r#"{"time":1}"#,
        "5",
        &good,
    ]);
    assert_eq!(records, [r#"text-chunks 0 0 [0] ["a", "a"]"#]);
    let unknown: Vec<bool> = refusals
        .iter()
        .map(|kind| matches!(kind, ErrorKind::UnknownChunk { record: Some(1) }))
        .collect();
    assert_eq!(unknown, [false, false, true, true, false, false, false]);
}

// --- validation and expansion, §4 ---

fn expand(stream: &str) -> Result<String> {
    with(stream, |stream| {
        let mut out = Vec::new();
        for record in records(&stream)? {
            expand_to_json(&record?, &mut out);
        }
        Ok(text(&out))
    })
}

#[test]
fn expansion_adds_up_times() {
    let stream = r#"[{"type":"tool-call-chunks","time0":-0,"index":1.0,"dt":[5,-7e0],"id":"c","name":"n","args":["{","\"","}"]},
        {"type":"chunk","time":9,"chunk":{"b":1,"type":"any","0":"x"}}]"#;
    let head = r#""chunk":{"type":"tool-call-delta","index":1,"id":"c","name":"n","argumentsDelta":"#;
    let expected = format!(
        "{{\"time\":0,{head}\"{{\"}}}}\n{{\"time\":5,{head}\"\\\"\"}}}}\n{{\"time\":-2,{head}\"}}\"}}}}\n{}\n",
        r#"{"time":9,"chunk":{"0":"x","b":1,"type":"any"}}"#
    );
    assert_eq!(expand(stream).unwrap(), expected);
}

#[test]
fn expansion_names_the_first_bad_record() {
    let good = r#"{"type":"text-chunks","time0":1,"index":0,"dt":[],"texts":[""]}"#;
    let error = expand(&format!("[{good},{{}},5]")).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Stream { record: Some(1) }));
    assert!(matches!(
        expand("{}").unwrap_err().kind(),
        ErrorKind::Stream { record: None }
    ));
}

#[test]
fn every_rule_of_a_record_is_checked() {
    let text = |fields: &str| format!(r#"{{"type":"text-chunks",{fields}}}"#);
    let tool = |fields: &str| {
        format!(r#"{{"type":"tool-call-chunks","time0":1,"index":0,"dt":[],"args":["a"],{fields}}}"#)
    };
    let raw = |fields: &str| format!(r#"{{"type":"chunk",{fields}}}"#);
    let refused = [
        "null".to_owned(),
        "[]".to_owned(),
        r#"{"type":"text-delta"}"#.to_owned(),
        text(r#""time0":1,"index":0,"dt":[]"#),
        text(r#""time0":1,"index":0,"dt":[],"texts":["a"],"x":1"#),
        text(r#""time0":1,"index":0,"dt":[],"texts":[]"#),
        text(r#""time0":1,"index":0,"dt":[],"texts":"a""#),
        text(r#""time0":1,"index":0,"dt":[],"texts":[1]"#),
        text(r#""time0":1,"index":0,"dt":[1],"texts":["a"]"#),
        text(r#""time0":1,"index":0,"dt":{},"texts":["a"]"#),
        text(r#""time0":1,"index":0,"dt":[1.5],"texts":["a","b"]"#),
        text(r#""time0":1,"index":0,"dt":["1"],"texts":["a","b"]"#),
        text(r#""time0":1.5,"index":0,"dt":[],"texts":["a"]"#),
        text(r#""time0":9007199254740992,"index":0,"dt":[],"texts":["a"]"#),
        text(r#""time0":9007199254740991,"index":0,"dt":[1],"texts":["a","b"]"#),
        text(r#""time0":9007199254740990,"index":0,"dt":[2,-2],"texts":["a","b","c"]"#),
        text(r#""time0":1,"index":-0,"dt":[],"texts":["a"]"#),
        text(r#""time0":1,"index":-1,"dt":[],"texts":["a"]"#),
        tool(r#""id":"""#),
        tool(r#""id":1"#),
        tool(r#""name":"n""#),
        tool(r#""id":"c","name":null"#),
        tool(r#""id":"c","name":"""#),
        raw(r#""time":1"#),
        raw(r#""time":1,"chunk":[]"#),
        raw(r#""time":1,"chunk":null"#),
        raw(r#""time":"1","chunk":{}"#),
        raw(r#""time":1,"chunk":{"a":[1,-0]}"#),
        raw(r#""time":1,"chunk":{"a":1e400}"#),
        raw(r#""time":1,"chunk":{},"x":1"#),
    ];
    for record in &refused {
        assert!(
            with(record, |record| validate_record(&record).is_err()),
            "{record}"
        );
    }
    let accepted = [
        text(r#""time0":-0,"index":0,"dt":[-0,1e0],"texts":["a","","\ud800"]"#),
        text(
            r#""texts":["a","b"],"dt":[-9007199254740991],"index":9007199254740991,"time0":9007199254740991"#,
        ),
        text(r#""time0":null,"index":0,"dt":[],"texts":["a"],"time0":1"#),
        tool(r#""id":"c""#),
        tool(r#""id":"c","name":"n""#),
        raw(r#""time":-0.0,"chunk":{"a":-0,"a":{"b":0}}"#),
        raw(&format!(
            r#""time":1,"chunk":{{"a":{}{}}}"#,
            "[".repeat(90_000),
            "]".repeat(90_000)
        )),
    ];
    for record in &accepted {
        assert!(
            with(record, |record| validate_record(&record).is_ok()),
            "{record:.100}"
        );
    }
}

#[test]
fn check_stream_counts_and_reports() {
    let mut faults = Vec::new();
    let counts = with(
        r#"[{"type":"text-chunks","time0":1,"index":0,"dt":[1,2],"texts":["a","b","c"]},7,{"type":"chunk","time":1,"chunk":{}}]"#,
        |stream| check_stream(Some(&stream), &mut |record, _| faults.push(record)),
    );
    assert_eq!((counts.records, counts.chunks), (3, 4));
    let missing = check_stream(None, &mut |record, _| faults.push(record));
    assert_eq!((missing.records, missing.chunks), (0, 0));
    with("{}", |value| {
        check_stream(Some(&value), &mut |record, _| faults.push(record))
    });
    assert_eq!(faults, [1, -1, -1]);
}

// --- readers, §5 ---

#[test]
fn readers_judge_fragments() {
    let run =
        r#"{"type":"reasoning-chunks","time0":10,"index":0,"dt":[5,7],"texts":[""," \u00a0","\u0085"]}"#;
    let call = r#"{"type":"tool-call-chunks","time0":3,"index":0,"dt":[],"id":"c","name":"","args":[""]}"#;
    with(run, |run| {
        assert_eq!(run_first_token_time(&run).unwrap(), Some(15));
        assert_eq!(run_first_visible_time(&run).unwrap(), Some(22));
    });
    with(call, |call| {
        assert_eq!(run_first_token_time(&call).unwrap(), Some(3));
        assert_eq!(run_first_visible_time(&call).unwrap(), None);
    });
    let raw = r#"{"type":"chunk","time":99,"chunk":{"type":"text-delta","index":0,"text":"\ude00!"}}"#;
    let half = r#"{"type":"text-chunks","time0":50,"index":0,"dt":[],"texts":["\ud83d"]}"#;
    with(&format!("[{half},{raw},{run}]"), |stream| {
        assert_eq!(first_token_time(&stream).unwrap(), Some(50));
        assert!(has_visible_content(&stream).unwrap());
        assert!(has_visible_text(&stream).unwrap());
        assert_eq!(text_fragments(&stream).unwrap().len(), 2);
        assert!(last_chunk(&stream, b"text-delta").unwrap().is_some());
        assert!(last_chunk(&stream, b"usage").unwrap().is_none());
    });
    assert!(with(raw, |raw| run_first_token_time(&raw).is_err()));
    assert!(with("[1]", |stream| has_visible_content(&stream).is_err()));
}

#[test]
fn chunks_are_tokens_or_visible() {
    for (chunk, is_token, is_visible, is_text) in [
        (r#"{"type":"text-delta","text":"a"}"#, true, true, true),
        (r#"{"type":"reasoning-delta","text":" "}"#, true, false, false),
        (r#"{"type":"text-delta","text":5}"#, false, false, false),
        (
            r#"{"type":"tool-call-delta","name":"","argumentsDelta":""}"#,
            true,
            false,
            false,
        ),
        (
            r#"{"type":"tool-call-delta","argumentsDelta":""}"#,
            false,
            false,
            false,
        ),
        (
            r#"{"type":"block-start","blockType":"image"}"#,
            false,
            true,
            false,
        ),
        (
            r#"{"type":"block-start","blockType":"tool-call"}"#,
            false,
            false,
            false,
        ),
        (
            r#"{"type":"block-end","block":{"type":"text","text":"a"}}"#,
            false,
            true,
            true,
        ),
        (
            r#"{"type":"block-end","block":{"type":"text","text":"\ufeff"}}"#,
            false,
            false,
            false,
        ),
        (
            r#"{"type":"block-end","block":{"type":"image"}}"#,
            false,
            true,
            false,
        ),
        (
            r#"{"type":"block-end","block":{"type":"tool-call"}}"#,
            false,
            false,
            false,
        ),
        (r#"{"type":"usage"}"#, false, false, false),
        ("5", false, false, false),
    ] {
        with(chunk, |value| {
            let found = (
                is_token_delta(&value),
                is_visible_chunk(&value),
                chunk_has_visible_text(&value),
            );
            assert_eq!(found, (is_token, is_visible, is_text), "{chunk}");
        });
    }
}

// --- assembly, §6 ---

fn assemble(chunks: &[&str]) -> Assembler<Vec<u8>> {
    let mut assembler = Assembler::new();
    for chunk in chunks {
        with(chunk, |chunk| assembler.push(&chunk)).unwrap();
    }
    assembler
}

fn show_blocks(blocks: Result<Vec<Block<'_, Vec<u8>>>>) -> Vec<String> {
    let joined = |fragments: &[Vec<u8>]| text(&fragments.concat());
    let show = |block: Block<'_, Vec<u8>>| match block {
        Block::Closed(block) => text(block),
        Block::Text(fragments) => format!("text {}", joined(fragments)),
        Block::Reasoning(fragments) => format!("reasoning {}", joined(fragments)),
        Block::ToolCall { id, name, arguments } => {
            let id = match id {
                CallId::Given(id) => text(id),
                CallId::Derived(id) => text(&id),
            };
            format!(
                "call {id} {} {}",
                name.map(|name| text(name)).unwrap_or_default(),
                joined(arguments)
            )
        }
    };
    blocks.unwrap().into_iter().map(show).collect()
}

#[test]
fn blocks_come_in_order_of_first_appearance() {
    let assembler = assemble(&[
        r#"{"type":"text-delta","index":5,"text":"a"}"#,
        r#"{"type":"text-delta","index":2,"text":"b"}"#,
        r#"{"type":"text-delta","index":5.0,"text":"c"}"#,
        r#"{"type":"block-start","index":3,"blockType":"tool-call"}"#,
        r#"{"type":"tool-call-delta","index":0,"id":"a","name":"n","argumentsDelta":"{"}"#,
        r#"{"type":"tool-call-delta","index":0,"id":"b","name":"","argumentsDelta":"}"}"#,
    ]);
    assert_eq!(
        show_blocks(assembler.blocks()),
        ["text ac", "text b", "call call-3  ", "call b n {}"]
    );
}

#[test]
fn the_first_close_wins() {
    let assembler = assemble(&[
        r#"{"type":"text-delta","index":0,"text":"a"}"#,
        r#"{"type":"block-end","index":0,"block":{"type":"text","text":"Z"}}"#,
        r#"{"type":"text-delta","index":0,"text":5}"#,
        r#"{"type":"block-end","index":0,"block":{"type":"text","text":"Y"}}"#,
    ]);
    assert_eq!(show_blocks(assembler.blocks()), [r#"{"type":"text","text":"Z"}"#]);
}

#[test]
fn a_cut_answer_loses_its_tool_calls() {
    let assembler = assemble(&[
        r#"{"type":"text-delta","index":0,"text":"a"}"#,
        r#"{"type":"tool-call-delta","index":1,"id":"c","argumentsDelta":""}"#,
        r#"{"type":"text-delta","index":2,"text":" "}"#,
        r#"{"type":"finish","reason":{"kind":"max-tokens"},"replayState":{"response":"r","blocks":[1,2,3],"x":0}}"#,
    ]);
    assert_eq!(show_blocks(assembler.blocks()), ["text a", "text  "]);
    assert_eq!(show_blocks(assembler.interrupted_blocks()), ["text a"]);
    match assembler.replay_state().unwrap() {
        ReplayState::Pruned { response, blocks } => {
            assert_eq!(response.map(|response| text(response)), Some(r#""r""#.to_owned()));
            assert_eq!(blocks, [b"1", b"3"]);
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_replay_state_that_does_not_fit_is_absent() {
    let assembler = assemble(&[
        r#"{"type":"text-delta","index":0,"text":"a"}"#,
        r#"{"type":"finish","reason":{"kind":"stop"},"replayState":{"response":1,"blocks":[1,2]}}"#,
    ]);
    assert!(matches!(assembler.replay_state().unwrap(), ReplayState::Absent));
}

#[test]
fn malformed_chunks_are_refused_or_kept() {
    // Spec 20 §8.5.
    let mut assembler = assemble(&[
        r#"{"type":"block-end","index":"0","block":["x"]}"#,
        r#"{"type":"text-delta","index":0,"text":"a"}"#,
        r#"{"type":"block-start","blockType":"tool-call"}"#,
        r#"{"type":"usage"}"#,
    ]);
    assert_eq!(
        show_blocks(assembler.blocks()),
        [r#"["x"]"#, "text a", "call call-nothing  "]
    );
    assert!(assembler.usage().is_none());
    for (chunk, is_unknown) in [
        (r#"{"type":"mystery"}"#, true),
        ("[]", true),
        ("null", false),
        (r#"{"type":"text-delta","index":0}"#, false),
        (r#"{"type":"block-end","index":9,"block":null}"#, false),
    ] {
        let error = with(chunk, |chunk| assembler.push(&chunk)).unwrap_err();
        assert_eq!(
            matches!(error.kind(), ErrorKind::UnknownChunk { .. }),
            is_unknown,
            "{chunk}"
        );
    }
    assert_eq!(assembler.blocks().unwrap().len(), 3);
}

#[test]
fn runs_assemble_as_one_delta() {
    let mut assembler = Assembler::new();
    let stream = r#"[{"type":"text-chunks","time0":0,"index":0,"dt":[1],"texts":["a","b"]},{"type":"chunk","chunk":{"type":"x"}}]"#;
    let error = with(stream, |stream| assembler.push_records(&stream)).unwrap_err();
    assert!(matches!(
        error.kind(),
        ErrorKind::UnknownChunk { record: Some(1) }
    ));
    assert_eq!(show_blocks(assembler.blocks()), ["text ab"]);
}
