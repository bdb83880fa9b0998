//! Arrays and objects that are not on a tape: what is in them is read from their bytes whenever somebody asks.
//!
//! A row of small values would make a tape several times as long as itself. From a bound on the tape's words on, all
//! that is nested deeper than the members of an event's `data` is only checked and kept as one word. The bytes have been
//! checked, so that nothing here has to ask whether they are JSON.

use super::number::{is_negative_zero, parse_double};
use super::reader::{Literal, read_number, skip_space};

/// Bytes of a string that are looked at one by one.
const SHORT: usize = 16;

/// The closing quote of a string whose inside starts at `start`, and whether it has an escape.
pub(super) fn closing_quote(bytes: &[u8], start: usize) -> Option<(usize, bool)> {
    let mut at = start;
    let mut escaped = false;
    // Most strings here are shorter than a search is worth.
    for byte in bytes.get(start..)?.iter().take(SHORT) {
        match byte {
            b'"' => return Some((at, false)),
            b'\\' => break,
            _ => at += 1,
        }
    }
    loop {
        at += memchr::memchr2(b'"', b'\\', bytes.get(at..)?)?;
        if bytes.get(at) == Some(&b'"') {
            return Some((at, escaped));
        }
        escaped = true;
        at += 2;
    }
}

/// The byte behind the array or object that starts at `start`. `known` may know it of one that starts somewhere, and is
/// asked about each that is not inside of one that it knew.
pub(super) fn behind_container(
    bytes: &[u8],
    start: usize,
    mut known: impl FnMut(usize) -> Option<usize>,
) -> Option<usize> {
    let mut at = start;
    let mut depth = 0usize;
    loop {
        match bytes.get(at)? {
            b'"' => at = closing_quote(bytes, at + 1)?.0,
            b'[' | b'{' => match known(at) {
                Some(behind) if depth == 0 => return Some(behind),
                Some(behind) => {
                    at = behind;
                    continue;
                }
                None => depth += 1,
            },
            b']' | b'}' => {
                depth = depth.checked_sub(1)?;
                if depth == 0 {
                    return Some(at + 1);
                }
            }
            _ => {}
        }
        at += 1;
    }
}

/// Where the next element, key or value starts: behind white space, and behind a comma or colon if there is one.
pub(super) fn next_start(bytes: &[u8], at: usize) -> usize {
    let at = skip_space::<false>(bytes, at);
    match bytes.get(at) {
        Some(b',' | b':') => skip_space::<false>(bytes, at + 1),
        _ => at,
    }
}

/// Whether every number is finite and not −0. Spec 10 §1.2.
#[inline(never)]
pub(super) fn is_lossless(bytes: &[u8]) -> bool {
    let mut at = 0;
    while let Some(byte) = bytes.get(at) {
        match byte {
            b'"' => match closing_quote(bytes, at + 1) {
                Some((close, _)) => at = close + 1,
                None => return true,
            },
            b'-' | b'0'..=b'9' => match read_number(bytes, at) {
                Ok((Literal::Integer(_), end)) => at = end,
                Ok((Literal::Other, end)) => {
                    let value = parse_double(bytes.get(at..end).unwrap_or_default());
                    if !value.is_finite() || is_negative_zero(value) {
                        return false;
                    }
                    at = end;
                }
                Err(_) => return true,
            },
            _ => at += 1,
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use crate::chance::Chance;
    use std::fmt::Write as _;

    use super::super::{Node, Tape};
    use super::behind_container;

    fn value(chance: &mut Chance, depth: usize, out: &mut String) {
        let strings = [
            r#""""#,
            r#""a""#,
            r#""tool-result""#,
            r#""é\"}]""#,
            r#""\\""#,
            r#""[{,:\u0061""#,
            r#""a rather long text, which has no escape, and then one: \n""#,
        ];
        let numbers = [
            "0",
            "-1",
            "-0",
            "-0.0",
            "1.50",
            "1e999",
            "123456789012345",
            "12345678901234567890",
        ];
        let kind = chance.below(if depth == 0 { 5 } else { 9 });
        match kind {
            0 => out.push_str(chance.of(&["null", "true", "false"])),
            1 | 2 => out.push_str(chance.of(&numbers)),
            3 | 4 => out.push_str(chance.of(&strings)),
            _ => {
                let is_object = kind > 6;
                out.push_str(if is_object { "{" } else { "[" });
                let space = chance.of(&["", "", "", " ", "\t\r "]);
                out.push_str(space);
                for number in 0..chance.below(5) {
                    if number > 0 {
                        write!(out, ",{space}").unwrap();
                    }
                    if is_object {
                        write!(out, "{}{space}:{space}", chance.of(&strings)).unwrap();
                    }
                    value(chance, depth - 1, out);
                    out.push_str(space);
                }
                out.push_str(if is_object { "}" } else { "]" });
            }
        }
    }

    /// All that can be asked of a value and of everything in it.
    fn describe(node: Node<'_>, out: &mut String) {
        let text = node.text();
        write!(
            out,
            "{:?} {} {} {} {:?} {:?} {:?} {} {} {} {} {} {:?}",
            node.kind(),
            node.is_object(),
            node.is_array(),
            node.is_true(),
            node.number().map(f64::to_bits),
            node.sint(),
            text,
            node.is_nonempty_text(),
            ["tool-result", "a", "[{,:a"]
                .iter()
                .any(|text| node.text_is(text)),
            node.len(),
            node.is_text_array(),
            node.is_lossless(),
            node.raw().map(String::from_utf8_lossy),
        )
        .unwrap();
        out.push('[');
        for element in node.elements() {
            describe(element, out);
        }
        out.push('{');
        for (key, value) in node.members() {
            describe(key, out);
            describe(value, out);
        }
        let found = node.member("a").map(|found| found.raw().map(<[u8]>::to_vec));
        writeln!(out, "{found:?}").unwrap();
    }

    #[test]
    fn what_is_not_on_the_tape_reads_the_same() {
        let mut chance = Chance(0x1a2);
        let mut lazy_rows = 0;
        for case in 0..1_500 {
            let mut text = String::new();
            for start in [r#"{"a":"#, r#","data":{"x":"#, r#","a":"#, r#"},"y":"#] {
                text.push_str(start);
                value(&mut chance, 4, &mut text);
            }
            text.push('}');
            let (mut whole, mut lean) = (Tape::new(), Tape::of_words(2 + chance.below(20)));
            let end = whole.read_row(text.as_bytes(), 99).unwrap();
            assert_eq!(lean.read_row(text.as_bytes(), 99), Ok(end));
            let (mut expected, mut found) = (String::new(), String::new());
            describe(whole.root(text.as_bytes()), &mut expected);
            describe(lean.root(text.as_bytes()), &mut found);
            assert_eq!(found, expected, "case {case}: {text}");
            assert_eq!(lean.may_be_retired(), whole.may_be_retired());
            lazy_rows += usize::from(lean.is_lean());
        }
        assert!(lazy_rows > 300, "{lazy_rows}");
    }

    #[test]
    fn deep_values_that_are_not_on_the_tape_read_the_same() {
        let mut chance = Chance(0x1a4);
        for case in 0..20 {
            let mut text = String::from(r#"{"data":{"a":"#);
            let mut closers = Vec::new();
            for _ in 0..20 + chance.below(60) {
                for _ in 0..chance.below(3) {
                    text.push_str(if closers.last() == Some(&"}") {
                        r#""x":"#
                    } else {
                        ""
                    });
                    text.push_str(chance.of(&["[[1],{}]", r#"{"a":["]",0]}"#, r#""[""#]));
                    text.push_str(if closers.is_empty() { r#","a":"# } else { "," });
                }
                let is_object = chance.below(2) == 0;
                text.push_str(if closers.last() == Some(&"}") {
                    r#""a": "#
                } else {
                    ""
                });
                text.push_str(if is_object { "{" } else { "[" });
                closers.push(if is_object { "}" } else { "]" });
            }
            for (place, closer) in closers.iter().rev().enumerate() {
                let more = [r#","b":[[],"a long text, so that this is not short"]"#, ",[2,[]]"];
                if place > 0 && chance.below(2) == 0 {
                    text.push_str(more[usize::from(*closer == "]")]);
                }
                text.push_str(closer);
            }
            text.push_str("}}");
            let (mut whole, mut lean) = (Tape::new(), Tape::of_words(2));
            let end = whole.read_row(text.as_bytes(), 99).unwrap();
            assert_eq!(lean.read_row(text.as_bytes(), 99), Ok(end), "{text}");
            let (mut expected, mut found) = (String::new(), String::new());
            describe(whole.root(text.as_bytes()), &mut expected);
            describe(lean.root(text.as_bytes()), &mut found);
            assert_eq!(found, expected, "case {case}: {text}");
        }
    }

    #[test]
    fn skipping_a_deep_value_reads_few_of_its_levels() {
        let depth = 900;
        let text = format!(
            "{}{}{}",
            "[".repeat(depth),
            "1,".repeat(300) + "1",
            "]".repeat(depth)
        );
        let mut tape = Tape::of_words(2);
        tape.read_row(text.as_bytes(), 1024).unwrap();
        let mut node = tape.root(text.as_bytes());
        for level in 0..depth - 1 {
            let mut asked = 0;
            let behind = behind_container(text.as_bytes(), level, |at| {
                asked += 1;
                node.known_behind(at)
            });
            assert_eq!(behind, Some(text.len() - level));
            assert!(asked <= 17, "level {level}: {asked}");
            node = node.elements().next().unwrap();
        }
    }

    #[test]
    fn faults_are_the_same_without_room() {
        let mut chance = Chance(0x1a3);
        for _ in 0..1_500 {
            let mut text = String::from("[0,");
            value(&mut chance, 4, &mut text);
            text.push(']');
            let mut bytes = text.into_bytes();
            let place = chance.below(bytes.len());
            match chance.below(3) {
                0 => bytes.truncate(place),
                1 => bytes[place] = b",]}\"x\n"[chance.below(6)],
                _ => {
                    bytes.remove(place);
                }
            }
            let (mut whole, mut lean) = (Tape::new(), Tape::of_words(2 + chance.below(9)));
            assert_eq!(
                lean.read_row(&bytes, 3),
                whole.read_row(&bytes, 3),
                "{}",
                String::from_utf8_lossy(&bytes)
            );
        }
    }
}
