//! What the rules of spec 20 need to know of a JSON value, wherever it lives: in the bytes of a log or outside Rust.

use std::borrow::Cow;
use std::collections::HashMap;

use crate::error::Result;
use crate::json::number::is_negative_zero;
use crate::json::text::has_visible;
use crate::json::{IntegerShape, Kind, Node, write_node};

/// The text of a literal.
const fn ascii(literal: &'static [u8]) -> &'static str {
    match std::str::from_utf8(literal) {
        Ok(text) => text,
        Err(_) => "",
    }
}

macro_rules! words {
    ($($word:ident $text:literal)*) => {
        /// The keys and type names of spec 20.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Word {
            $(#[doc = concat!("`", stringify!($text), "`")] $word,)*
        }

        impl Word {
            /// Every word, in the order of the enum.
            pub const ALL: &[Word] = &[$(Word::$word,)*];

            /// The word that the bytes spell.
            #[inline]
            pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
                match bytes {
                    $($text => Some(Self::$word),)*
                    _ => None,
                }
            }

            /// The word as it is written.
            #[inline]
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$word => const { ascii($text) },)*
                }
            }
        }
    };
}

words! {
    Type b"type"
    Time b"time"
    Time0 b"time0"
    Index b"index"
    Dt b"dt"
    Texts b"texts"
    Args b"args"
    Id b"id"
    Name b"name"
    Chunk b"chunk"
    Text b"text"
    Arguments b"arguments"
    ArgumentsDelta b"argumentsDelta"
    BlockType b"blockType"
    Block b"block"
    Blocks b"blocks"
    Usage b"usage"
    Reason b"reason"
    Kind b"kind"
    ReplayState b"replayState"
    Response b"response"
    TextDelta b"text-delta"
    ReasoningDelta b"reasoning-delta"
    ToolCallDelta b"tool-call-delta"
    BlockStart b"block-start"
    BlockEnd b"block-end"
    Finish b"finish"
    TextChunks b"text-chunks"
    ReasoningChunks b"reasoning-chunks"
    ToolCallChunks b"tool-call-chunks"
    Reasoning b"reasoning"
    ToolCall b"tool-call"
    Stop b"stop"
    MaxTokens b"max-tokens"
}

/// A JSON value as the rules of spec 20 see it.
///
/// Cloning is cheap: a value is a handle. The methods for one kind of value say "no" or "nothing" for every other.
pub trait Value: Clone {
    /// A detached handle that may outlive the value: of a text, or of any value as it is.
    type Kept;

    /// The kind of the value; None if it is no JSON value.
    fn kind(&self) -> Option<Kind>;

    /// The value of a number.
    fn number(&self) -> Option<f64>;

    /// Whether the value is `true`.
    fn is_true(&self) -> bool;

    /// A number that is a safe integer; −0 gives 0. Spec 20 §8.1.
    fn safe_integer(&self) -> Option<i64>;

    /// A string as WTF-8.
    fn text(&self) -> Option<Cow<'_, [u8]>>;

    /// The word of the spec that a string is, if it is one.
    fn word(&self) -> Option<Word>;

    /// Whether the value is the string of a word.
    fn is_word(&self, word: Word) -> bool;

    /// Whether the value is a string of at least one code unit.
    fn is_nonempty_text(&self) -> bool;

    /// Whether the value is the string that was kept.
    fn is_text_of(&self, kept: &Self::Kept) -> bool;

    /// Members of an object; a repeated key counts with its last value.
    fn members(&self) -> impl Iterator<Item = (Self, Self)>;

    /// The value of a member of an object.
    fn member(&self, key: Word) -> Option<Self>;

    /// Elements of an array (see [`Value::is_array`]).
    fn elements(&self) -> impl Iterator<Item = Self>;

    /// Number of elements of an array (see [`Value::is_array`]).
    fn len(&self) -> usize;

    /// Whether the value is an array of strings.
    fn is_text_array(&self) -> bool;

    /// What is known of an array of integers without reading them.
    fn integer_shape(&self) -> Option<IntegerShape>;

    /// Whether every number in the value is finite and not −0. Spec 10 §1.2.
    /// A part that is no JSON value makes it false.
    fn is_lossless(&self) -> bool;

    /// A handle of the value as it is.
    fn keep(&self) -> Self::Kept;

    /// A handle of a string.
    fn keep_text(&self) -> Self::Kept;

    /// A handle of a copy that later changes of the value do not reach.
    ///
    /// # Errors
    /// A stream error if a part of the value is no JSON, or the value contains itself.
    fn detach(&self) -> Result<Self::Kept>;

    /// Whether [`Value::len`] is 0.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether the value is an object.
    #[inline]
    fn is_object(&self) -> bool {
        self.kind() == Some(Kind::Object)
    }

    /// Whether the value is an array, as a parsed text has it.
    #[inline]
    fn is_array(&self) -> bool {
        self.kind() == Some(Kind::Array)
    }

    /// Whether the value is a string.
    #[inline]
    fn is_text(&self) -> bool {
        self.kind() == Some(Kind::Text)
    }

    /// Whether the value is a string with a code unit that is not white space. Spec 20 §5, §8.3.
    #[inline]
    fn is_visible_text(&self) -> bool {
        self.text().is_some_and(|text| has_visible(&text))
    }

    /// A number that is a count: a safe integer from 0, not −0. Spec 10, intro.
    #[inline]
    fn count(&self) -> Option<i64> {
        let value = self.safe_integer()?;
        if value > 0 {
            return Some(value);
        }
        (value == 0 && !self.number().is_some_and(is_negative_zero)).then_some(0)
    }

    /// The word that a member of an object is.
    #[inline]
    fn member_word(&self, key: Word) -> Option<Word> {
        self.member(key)?.word()
    }
}

/// The members of an object that a rule asks for, found in one pass.
pub(crate) struct Picked<V, const N: usize> {
    keys: &'static [Word; N],
    values: [Option<V>; N],
    /// Bit *i* says whether key *i* was found.
    found: u32,
    has_others: bool,
    /// Place of the key that is expected next.
    next: usize,
}

/// The bits of keys by their places.
pub(crate) const fn bits(places: &[usize]) -> u32 {
    let mut bits = 0;
    let mut rest = places;
    while let [place, behind @ ..] = rest {
        bits |= 1 << *place;
        rest = behind;
    }
    bits
}

impl<V: Value, const N: usize> Picked<V, N> {
    /// Nothing picked yet. Members are found faster when they come in the order of the keys.
    #[inline]
    pub(crate) fn empty(keys: &'static [Word; N]) -> Self {
        Self {
            keys,
            values: [const { None }; N],
            found: 0,
            has_others: false,
            next: 0,
        }
    }

    /// Looks at the members of an object.
    #[inline]
    pub(crate) fn add_members(&mut self, object: &V) {
        for (key, value) in object.members() {
            self.add(&key, value);
        }
    }

    /// Looks at one member; the last one of a key counts.
    #[inline]
    pub(crate) fn add(&mut self, key: &V, value: V) {
        let place = match self.keys.get(self.next) {
            Some(&expected) if key.is_word(expected) => Some(self.next),
            _ => key
                .word()
                .and_then(|word| self.keys.iter().position(|&known| known == word)),
        };
        let Some(place) = place else {
            self.has_others = true;
            return;
        };
        if let Some(slot) = self.values.get_mut(place) {
            *slot = Some(value);
        }
        self.found |= 1 << place;
        self.next = place + 1;
    }

    /// The value of a key, by the key's place.
    #[inline]
    pub(crate) fn get(&self, place: usize) -> Option<&V> {
        self.values.get(place)?.as_ref()
    }

    /// Whether exactly these keys were found.
    #[inline]
    pub(crate) fn is_exactly(&self, bits: u32) -> bool {
        self.found == bits && !self.has_others
    }
}

/// Texts are kept as WTF-8, other values as compact JSON.
impl Value for Node<'_> {
    type Kept = Vec<u8>;

    #[inline]
    fn kind(&self) -> Option<Kind> {
        Some(self.kind())
    }

    #[inline]
    fn number(&self) -> Option<f64> {
        self.number()
    }

    #[inline]
    fn is_true(&self) -> bool {
        self.is_true()
    }

    #[inline]
    fn safe_integer(&self) -> Option<i64> {
        self.safe_integer()
    }

    #[inline]
    fn count(&self) -> Option<i64> {
        self.sint().filter(|&value| value >= 0)
    }

    #[inline]
    fn text(&self) -> Option<Cow<'_, [u8]>> {
        self.text()
    }

    #[inline]
    fn word(&self) -> Option<Word> {
        Word::from_bytes(&self.text()?)
    }

    #[inline]
    fn is_word(&self, word: Word) -> bool {
        self.text_is(word.as_str())
    }

    #[inline]
    fn is_nonempty_text(&self) -> bool {
        self.is_nonempty_text()
    }

    #[inline]
    fn is_text_of(&self, kept: &Vec<u8>) -> bool {
        self.text().is_some_and(|text| *text == **kept)
    }

    #[inline]
    fn members(&self) -> impl Iterator<Item = (Self, Self)> {
        self.members()
    }

    #[inline]
    fn member(&self, key: Word) -> Option<Self> {
        self.member(key.as_str())
    }

    #[inline]
    fn elements(&self) -> impl Iterator<Item = Self> {
        self.elements()
    }

    #[inline]
    fn len(&self) -> usize {
        self.len()
    }

    #[inline]
    fn is_text_array(&self) -> bool {
        self.is_text_array()
    }

    #[inline]
    fn integer_shape(&self) -> Option<IntegerShape> {
        self.integer_shape()
    }

    #[inline]
    fn is_lossless(&self) -> bool {
        self.is_lossless() || is_lossless_without_replaced(*self)
    }

    fn keep(&self) -> Vec<u8> {
        let mut out = Vec::new();
        write_node(*self, &mut out, &|_, _| false);
        out
    }

    fn keep_text(&self) -> Vec<u8> {
        self.text().unwrap_or_default().into_owned()
    }

    fn detach(&self) -> Result<Vec<u8>> {
        Ok(self.keep())
    }
}

/// [`Node::is_lossless`] without the values that a repeated key replaces: those are not part of the value.
#[cold]
fn is_lossless_without_replaced(node: Node<'_>) -> bool {
    let mut pending = vec![node];
    while let Some(node) = pending.pop() {
        if node.is_object() {
            let last: HashMap<_, _> = node.members().map(|(key, value)| (key.text(), value)).collect();
            pending.extend(last.into_values());
        } else if node.is_array() {
            pending.extend(node.elements().filter(|element| !element.is_text()));
        } else if node
            .number()
            .is_some_and(|value| !value.is_finite() || is_negative_zero(value))
        {
            return false;
        }
    }
    true
}
