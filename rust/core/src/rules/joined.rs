//! Fragments of a stream against the text that they should join to. Spec 20 §8.2.

use super::equality::text_is;
use crate::json::Node;
use crate::json::text::push_wtf8;

/// The inside of a string literal as it stands in the text.
fn inside(text: Node<'_>) -> Option<&[u8]> {
    text.raw()
        .filter(|_| text.is_text())
        .and_then(|raw| raw.get(1..raw.len().saturating_sub(1)))
}

/// The strings of a piece: of an array of strings all, of a string itself.
pub(super) fn fragments(piece: Node<'_>) -> impl Iterator<Item = Node<'_>> {
    let own = piece.is_text().then_some(piece);
    own.into_iter().chain(piece.elements())
}

/// Whether the fragments of some pieces (strings or arrays of strings), joined by spec 20 §8.2, are this string.
///
/// # Cost
/// One comparison of bytes if fragments and text are spelled alike, else both are decoded.
pub(super) fn is_joined(pieces: &[Node<'_>], text: Node<'_>) -> bool {
    let Some(whole) = inside(text) else { return false };
    if pieces
        .iter()
        .try_fold(whole, |rest, &piece| strip_piece(piece, rest))
        == Some(b"")
    {
        return true;
    }
    let mut joined = Vec::new();
    for fragment in pieces.iter().flat_map(|&piece| fragments(piece)) {
        push_wtf8(&mut joined, &fragment.text().unwrap_or_default());
    }
    text_is(text, &joined)
}

/// The rest of a literal's inside that begins with the fragments of a piece, spelled alike; None if it does not.
fn strip_piece<'t>(piece: Node<'_>, whole: &'t [u8]) -> Option<&'t [u8]> {
    let array = piece.raw().filter(|_| piece.is_text_array());
    let rest = array.and_then(|array| strip_compact(array, whole));
    rest.or_else(|| {
        fragments(piece).try_fold(whole, |rest, fragment| strip_fragment(inside(fragment)?, rest))
    })
}

/// Joined literals are the literal of the joined text, halves of a surrogate pair included. Only an ill-formed sequence
/// could be well-formed when joined, and then the second part starts with a continuation byte.
fn may_be_joined(fragment: &[u8]) -> bool {
    !matches!(fragment.first(), Some(0x80..=0xbf))
}

fn strip_fragment<'t>(fragment: &[u8], rest: &'t [u8]) -> Option<&'t [u8]> {
    rest.strip_prefix(fragment).filter(|_| may_be_joined(fragment))
}

/// [`strip_piece`] for an array of strings without white space, which is nearly every one: fragments are a few bytes
/// long, so finding their ends costs more than comparing them (`bench_check` at level full).
///
/// The literal has no quote that is not escaped, so where it is equal up to a quote of the array that closes a string,
/// it differs there. Where it differs at an escaped quote of the array, it has another letter behind the backslash:
/// taken for the end of a string, what follows in the array would be a quote, a comma or a bracket in that place, which
/// no escape has.
fn strip_compact<'t>(array: &[u8], whole: &'t [u8]) -> Option<&'t [u8]> {
    let mut strings = array.strip_prefix(b"[\"")?;
    let mut rest = whole;
    loop {
        let same = common_prefix(strings, rest);
        if !may_be_joined(strings) {
            return None;
        }
        (strings, rest) = (strings.get(same..)?, rest.get(same..)?);
        match strings.strip_prefix(b"\",\"") {
            Some(next) => strings = next,
            None => return (strings == b"\"]").then_some(rest),
        }
    }
}

/// Number of bytes that are the same at the start of both.
fn common_prefix(left: &[u8], right: &[u8]) -> usize {
    let mut same = 0;
    let word = |bytes: &[u8], at: usize| Some(u64::from_le_bytes(*bytes.get(at..)?.first_chunk()?));
    while let (Some(a), Some(b)) = (word(left, same), word(right, same)) {
        if a != b {
            return same + ((a ^ b).trailing_zeros() / 8) as usize;
        }
        same += 8;
    }
    let rest = left.iter().zip(right).skip(same);
    same + rest.take_while(|(a, b)| a == b).count()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::json::Tape;

    #[test]
    fn fragments_join_like_strings() {
        let joined = |pieces: &[u8], text: &[u8]| {
            let (mut a, mut b) = (Tape::new(), Tape::new());
            let (a, b) = (a.read_text(pieces, 9).unwrap(), b.read_text(text, 9).unwrap());
            is_joined(&[a], b)
        };
        assert!(joined(br#"["a","","b\n"]"#, br#""ab\n""#));
        assert!(joined(br#"["\ud83d","\ude00"]"#, br#""\ud83d\ude00""#));
        assert!(joined(br#"["\ud83d","\ude00"]"#, "\"😀\"".as_bytes()));
        assert!(joined(br#"["\u0061"]"#, br#""a""#));
        assert!(joined(br#""one""#, br#""one""#));
        assert!(!joined(br#"["a"]"#, br#""ab""#));
        assert!(!joined(br#"["ab"]"#, br#""a""#));
        assert!(!joined(br#"["ab"]"#, br"7"));
        // Two halves of a character that are ill-formed alone; spec 10 §1 makes U+FFFD of each.
        assert!(!joined(b"[\"\xf0\x9f\",\"\x98\x80\"]", "\"😀\"".as_bytes()));
        assert!(joined(
            b"[\"\xf0\x9f\",\"\x98\x80\"]",
            "\"\u{fffd}\u{fffd}\u{fffd}\"".as_bytes()
        ));
        assert!(joined(b"[\"\xf0\x9f\",\"a\"]", "\"\u{fffd}a\"".as_bytes()));
        assert!(joined(b"[\"\xe2\"]", b"\"\xe2\x80\""));
    }

    /// Random cuts of random literals, and changes of them: the fast form says yes only where decoding does, and always
    /// does where fragments are spelled like the text.
    #[test]
    fn the_fast_form_is_right() {
        let mut state = 11u64;
        let mut random = |below: usize| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            usize::try_from(state >> 33).unwrap() % below
        };
        let atoms = [
            "a",
            "b",
            ",",
            "]",
            "\\n",
            "\\\"",
            "\\\\",
            "\\u0061",
            "\\ud83d",
            "\\ude00",
            "é",
            "\u{fffd}",
            "long text, so",
        ];
        let mut hits = 0;
        for _ in 0..60_000 {
            let text: Vec<&str> = (0..random(12)).map(|_| atoms[random(atoms.len())]).collect();
            let mut cut = vec![String::new()];
            for atom in &text {
                if random(2) == 0 {
                    cut.push(String::new());
                }
                let changed = if random(30) == 0 {
                    atoms[random(atoms.len())]
                } else {
                    atom
                };
                cut.last_mut().unwrap().push_str(changed);
            }
            let comma = if random(8) == 0 { " , " } else { "," };
            let quoted: Vec<String> = cut.iter().map(|part| format!("\"{part}\"")).collect();
            let (array, literal) = (
                format!("[{}]", quoted.join(comma)),
                format!("\"{}\"", text.concat()),
            );
            let (mut a, mut b) = (Tape::new(), Tape::new());
            let array = a.read_text(array.as_bytes(), 9).unwrap();
            let literal = b.read_text(literal.as_bytes(), 9).unwrap();
            let mut joined = Vec::new();
            fragments(array).for_each(|part| push_wtf8(&mut joined, &part.text().unwrap()));
            let expected = text_is(literal, &joined);
            assert_eq!(is_joined(&[array], literal), expected);
            let fast = strip_piece(array, inside(literal).unwrap()) == Some(b"");
            assert!(expected || !fast);
            assert_eq!(fast, cut.concat() == text.concat());
            hits += usize::from(fast);
        }
        assert!(hits > 20_000);
    }
}
