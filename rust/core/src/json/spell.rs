//! String literals and packed arrays in the canonical spelling of the writer, copied where the text has it already.
//!
//! A literal that a reader has accepted is canonical if it is well-formed UTF-8 and every escape in it is one of
//! `\" \\ \b \f \n \r \t`, or of a control character without one of these, in lower case: the writer makes exactly
//! these, and no character that stands for itself is written otherwise (spec 10 §1.1; halves of characters are left to
//! it). `bench_text` shows what copying pays.

use super::blocks::{Blocks, Task, dispatch, escaped_bytes};
use super::tape::Node;
use super::text::{decode_string, write_string};

/// Appends a string literal, given with its quotes.
#[inline]
pub(crate) fn push_literal(literal: &[u8], out: &mut Vec<u8>) {
    if std::str::from_utf8(literal).is_ok() {
        push_well_formed(literal, out);
    } else {
        rewrite(literal, out);
    }
}

/// Appends a string literal of well-formed UTF-8, given with its quotes.
#[inline]
fn push_well_formed(literal: &[u8], out: &mut Vec<u8>) {
    if has_own_escapes_only(literal) {
        out.extend_from_slice(literal);
    } else {
        rewrite(literal, out);
    }
}

/// Whether the writer would make every escape of an accepted literal in the same way.
fn has_own_escapes_only(literal: &[u8]) -> bool {
    let mut rest = literal;
    while let Some(at) = memchr::memchr(b'\\', rest) {
        let escape = rest.get(at + 1..).unwrap_or_default();
        if !is_own_escape(escape) {
            return false;
        }
        rest = escape.get(1..).unwrap_or_default();
    }
    true
}

/// Whether the writer would make the escape whose backslash stands before some text.
#[inline]
fn is_own_escape(text: &[u8]) -> bool {
    // `\/` stands for itself, and other `\u` may spell anything.
    matches!(
        text,
        [b'"' | b'\\' | b'b' | b'f' | b'n' | b'r' | b't', ..]
            | [b'u', b'0', b'0', b'0', b'0'..=b'7' | b'b' | b'e' | b'f', ..]
            | [b'u', b'0', b'0', b'1', b'0'..=b'9' | b'a'..=b'f', ..]
    )
}

/// Whether the writer would make every escape of a text in the same way; nothing else in it may hold a backslash.
pub(super) fn has_own_escapes(text: &[u8]) -> bool {
    dispatch(Look(text)).0
}

/// Whether the string literals in some text are canonical; nothing else in it may hold a backslash.
pub(crate) fn is_canonical(literals: &[u8]) -> bool {
    let (own_escapes, is_ascii) = dispatch(Look(literals));
    own_escapes && (is_ascii || std::str::from_utf8(literals).is_ok())
}

/// Whether the writer would make every escape of a text in the same way, and whether the text is ASCII.
struct Look<'b>(&'b [u8]);

impl Task for Look<'_> {
    type Output = (bool, bool);

    #[inline(always)]
    fn run<B: Blocks>(self, blocks: B) -> Self::Output {
        let Self(text) = self;
        let (chunks, rest) = text.as_chunks::<64>();
        let mut spare = [0; 64];
        for (to, from) in spare.iter_mut().zip(rest) {
            *to = *from;
        }
        let mut is_ascii = true;
        let mut carry = 0; // the first byte of the block is escaped
        for (at, block) in chunks.iter().chain([&spare]).enumerate() {
            is_ascii &= !blocks.long(block).high;
            let backslash = blocks.strings(block).backslash;
            if backslash | carry == 0 {
                continue;
            }
            let escaped = escaped_bytes(backslash, &mut carry);
            let letters = blocks.escapes(block);
            // `\/` stands for itself, and `\u` may spell anything.
            let mut unsure = escaped & (letters.unicode | !letters.letter | letters.slash);
            while unsure != 0 {
                let place = 64 * at + unsure.trailing_zeros() as usize;
                if !is_own_escape(text.get(place..).unwrap_or_default()) {
                    return (false, is_ascii);
                }
                unsure &= unsure - 1;
            }
        }
        (true, is_ascii)
    }
}

/// Whether an array of integers holds white space. All bytes are looked at, which takes many at once.
#[inline]
pub(super) fn has_space(integers: &[u8]) -> bool {
    integers.iter().fold(u8::MAX, |least, &byte| least.min(byte)) <= b' '
}

#[cold]
fn rewrite(literal: &[u8], out: &mut Vec<u8>) {
    let inside = literal
        .get(1..literal.len().saturating_sub(1))
        .unwrap_or_default();
    write_string(&decode_string(inside), out);
}

impl<'a> Node<'a> {
    /// The bytes of an array that the tape holds as one, if they are compact and canonical as they stand. `is_plain` says
    /// that all string literals of the text are known to be canonical.
    pub(crate) fn canonical_array(&self, is_plain: bool) -> Option<&'a [u8]> {
        let raw = self.raw()?;
        let is_canonical = if let Some(shape) = self.integer_shape() {
            // Integers of at most 15 digits have one spelling, but for −0, which is written as 0.
            !shape.negative_zero && !has_space(raw)
        } else {
            self.is_compact_text_array() && (is_plain || is_canonical(raw))
        };
        is_canonical.then_some(raw)
    }

    /// The bytes of a string, quotes included, if they are canonical as they stand; `is_plain` as above.
    #[inline]
    pub(crate) fn canonical_literal(&self, is_plain: bool) -> Option<&'a [u8]> {
        self.raw()
            .filter(|raw| self.is_text() && (is_plain || is_canonical(raw)))
    }

    /// Appends a string as a canonical literal; nothing for any other value.
    pub(crate) fn push_text_literal(&self, out: &mut Vec<u8>) {
        if self.is_text() {
            push_literal(self.raw().unwrap_or_default(), out);
        }
    }

    /// Appends the strings of an array as canonical literals, and calls `before` with the output ahead of each.
    /// Elements that are no strings are left out.
    pub(crate) fn push_text_literals<F: FnMut(&mut Vec<u8>)>(&self, out: &mut Vec<u8>, mut before: F) {
        let array = self.raw().unwrap_or_default();
        // The quotes of an array of strings are the strings' own only if nothing else is in it.
        if self.is_text_array() && std::str::from_utf8(array).is_ok() {
            dispatch(PushLiterals { array, out, before });
            return;
        }
        for element in self.elements().filter(Node::is_text) {
            before(out);
            push_literal(element.raw().unwrap_or_default(), out);
        }
    }

    /// Appends an array that the tape holds as one, compact and canonical, and says whether it is one.
    pub(crate) fn push_packed_array(&self, out: &mut Vec<u8>) -> bool {
        if let Some(raw) = self.canonical_array(false) {
            out.extend_from_slice(raw);
            return true;
        }
        if self.is_text_array() {
            out.reserve(self.raw().unwrap_or_default().len());
            out.push(b'[');
            let mut is_first = true;
            self.push_text_literals(out, |out| {
                if !is_first {
                    out.push(b',');
                }
                is_first = false;
            });
            out.push(b']');
            return true;
        }
        false
    }
}

struct PushLiterals<'b, 'o, F> {
    /// A well-formed array of strings, brackets included.
    array: &'b [u8],
    out: &'o mut Vec<u8>,
    before: F,
}

/// Appends `bytes[start..end]`.
#[inline(always)]
fn push_piece(bytes: &[u8], start: usize, end: usize, out: &mut Vec<u8>) {
    const SHORT: usize = 16;
    let len = end.wrapping_sub(start);
    match bytes.get(start..).and_then(|rest| rest.first_chunk::<SHORT>()) {
        // A copy of fixed length is one instruction; nearly all fragments are shorter.
        Some(chunk) if len <= SHORT => {
            let before = out.len();
            out.extend_from_slice(chunk);
            out.truncate(before + len);
        }
        _ => out.extend_from_slice(bytes.get(start..end).unwrap_or_default()),
    }
}

impl<F: FnMut(&mut Vec<u8>)> Task for PushLiterals<'_, '_, F> {
    type Output = ();

    #[inline(always)]
    fn run<B: Blocks>(self, blocks: B) {
        let Self {
            array,
            out,
            mut before,
        } = self;
        let mut at = 0;
        let mut carry = 0; // the first byte of the block is escaped
        let mut open: Option<usize> = None; // the opening quote of the string that goes on
        let mut has_escape = false; // that string has an escape in a block before this one
        while at < array.len() {
            let mut spare = [0; 64];
            let rest = array.get(at..).unwrap_or_default();
            let masks = if let Some(block) = rest.first_chunk::<64>() {
                blocks.strings(block)
            } else {
                for (to, from) in spare.iter_mut().zip(rest) {
                    *to = *from;
                }
                blocks.strings(&spare)
            };
            let mut quotes = masks.quote;
            if masks.backslash | carry != 0 {
                quotes &= !escaped_bytes(masks.backslash, &mut carry);
            }
            let mut own = u64::MAX; // the bits from the start of the open string on
            while quotes != 0 {
                let bit = quotes.trailing_zeros();
                quotes &= quotes - 1;
                let place = at + bit as usize;
                match open.take() {
                    None => {
                        open = Some(place);
                        own = u64::MAX << bit;
                        has_escape = false;
                    }
                    Some(start) => {
                        before(out);
                        if has_escape || masks.backslash & own & !(u64::MAX << bit) != 0 {
                            push_well_formed(array.get(start..=place).unwrap_or_default(), out);
                        } else {
                            push_piece(array, start, place + 1, out);
                        }
                    }
                }
            }
            has_escape |= open.is_some() && masks.backslash & own != 0;
            at += 64;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Tape;
    use super::*;

    fn rewritten(literal: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        rewrite(literal, &mut out);
        out
    }

    #[test]
    fn copied_literals_are_those_that_the_writer_makes() {
        // Every escape of one and of two bytes, and every ASCII character that stands for itself.
        let mut literals = vec![b"\"\"".to_vec()];
        for byte in (0x20..=0x7f).filter(|byte| !b"\"\\".contains(byte)) {
            literals.push(vec![b'"', byte, b'"']);
            literals.push(vec![b'"', b'\\', b'\\', byte, b'"']);
        }
        for letter in b"\"\\/bfnrt" {
            literals.push(vec![b'"', b'a', b'\\', *letter, b'z', b'"']);
        }
        for code in 0..=0xffff {
            literals.push(format!("\"\\u{code:04x}\"").into_bytes());
            literals.push(format!("\"\\u{code:04X}\\n\"").into_bytes());
            if let Some(char) = char::from_u32(code).filter(|char| *char > '\u{7f}') {
                literals.push(format!("\"{char}\"").into_bytes());
            }
        }
        literals.push(b"\"\xff\"".to_vec());
        literals.push(b"\"\xed\xa0\x80\"".to_vec());
        literals.push("\"😀\\ud83d\\ude00\\ud83d\"".as_bytes().to_vec());
        let mut copied = 0;
        for literal in literals {
            let mut out = Vec::new();
            push_literal(&literal, &mut out);
            assert_eq!(out, rewritten(&literal), "{}", String::from_utf8_lossy(&literal));
            copied += usize::from(out == literal);
        }
        assert!(copied > 60_000);
    }

    #[test]
    fn arrays_are_written_as_their_elements_would_be() {
        let mut state = 11u64;
        let mut next = |n: usize| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 33) as usize % n
        };
        let pieces = [
            "a", "é", "\\n", "\\\"", "\\\\", "\\ud83d", "\\ude00", ",", "[", "]", " ", "\\/", "\\u0041",
        ];
        for _ in 0..3_000 {
            let mut text = "[".to_owned();
            for i in 0..next(30) {
                if i > 0 {
                    text.push_str([",", " ,\t"][usize::from(next(9) == 0)]);
                }
                text.push('"');
                for _ in 0..[next(4), next(30), next(200)][next(3)] {
                    text.push_str(pieces[if next(4) == 0 { next(13) } else { 0 }]);
                }
                text.push('"');
            }
            text.push(']');
            let mut tape = Tape::new();
            let node = tape.read_text(text.as_bytes(), 9).unwrap();
            let expected: Vec<Vec<u8>> = node
                .elements()
                .map(|element| rewritten(element.raw().unwrap()))
                .collect();
            let mut out = b"!".to_vec();
            assert!(node.push_packed_array(&mut out));
            assert_eq!(out, [b"![", &*expected.join(&b','), b"]"].concat(), "{text}");
        }
    }

    #[test]
    fn integers_are_copied_only_in_their_one_spelling() {
        for (text, is_copied) in [
            ("[0,-1,123456789012345]", true),
            ("[1, 2]", false),
            ("[-0]", false),
            ("[1.0]", false),
            ("[1e2]", false),
            ("[1,\"a\"]", false),
        ] {
            let mut tape = Tape::new();
            let node = tape.read_text(text.as_bytes(), 9).unwrap();
            let mut out = Vec::new();
            assert_eq!(node.push_packed_array(&mut out), is_copied, "{text}");
            assert_eq!(out, if is_copied { text.as_bytes() } else { b"" });
        }
    }
}
