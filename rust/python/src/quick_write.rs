//! Usual Python values as JSON text, without a reference to any part of them.
#![allow(
    unsafe_code,
    reason = "looks at objects, through which no code of Python runs"
)]
#![allow(
    clippy::inline_always,
    reason = "a call costs as much as most values (benches/bench_writer.py)"
)]

use dsh_codec_core::json::number::{is_negative_zero, is_safe};
use dsh_codec_core::json::{Room, SHORT_ROOM, put_short_ascii};
use dsh_codec_core::row::Admission;
use dsh_codec_core::stream::Packed;
use pyo3::prelude::*;

use crate::packed_text::PackedText;
use crate::small_int::SmallInts;
use crate::view::{AsciiView, MembersView, Seen, TextView, Units, View};

const END_SEED: &[u8] = b"session/end-seed";

/// Whether a thread that holds on to the interpreter is the only one that runs code of Python.
const IS_ALONE: bool = cfg!(not(any(Py_GIL_DISABLED, PyPy, GraalPy)));

/// Deeper values are left to a writer that does not recurse.
const MAX_LEVELS: usize = 24;

/// Writer of values that are made of the very classes of JSON values, with keys that stand in their order, and with
/// numbers that lose nothing. Anything else is left to who can tell what it is.
///
/// No code of Python runs meanwhile.
pub(crate) struct QuickWriter<'py, 'r> {
    py: Python<'py>,
    room: &'r mut Room,
    small_ints: &'static SmallInts,
    /// Whether a string was written that may be one that row admission asks for.
    pub(crate) may_be_retired: bool,
}

/// The words that row admission asks for (spec 30 §6), or how they begin if they are longer than eight characters.
const RETIRED: [u64; 5] = [
    u64::from_le_bytes(*b"plugin  "),
    u64::from_le_bytes(*b"develope"),
    u64::from_le_bytes(*b"tool-res"),
    u64::from_le_bytes(*b"tool-add"),
    u64::from_le_bytes(*b"tool-rem"),
];

/// Whether a text of more than eight characters may be one of them.
#[inline(always)]
fn begins_retired(text: &[u8]) -> bool {
    let head = text.first_chunk().map_or(0, |head| u64::from_le_bytes(*head));
    text.len() <= 16 && RETIRED.contains(&head)
}

/// A seq as it stands in a row.
fn safe_seq(seq: u64) -> Option<i64> {
    i64::try_from(seq).ok().filter(|&seq| is_safe(seq))
}

impl<'py, 'r> QuickWriter<'py, 'r> {
    pub(crate) fn new(py: Python<'py>, room: &'r mut Room) -> Self {
        Self {
            py,
            room,
            small_ints: SmallInts::get(py),
            may_be_retired: false,
        }
    }

    /// Appends a value that nests up to `levels`. None: it is left to another writer, and what was written is to be
    /// taken back.
    pub(crate) fn value(&mut self, value: &Bound<'_, PyAny>, levels: usize) -> Option<()> {
        if !IS_ALONE {
            return None;
        }
        // SAFETY: nothing in this module runs code of Python, changes an object or gives one back for good; and no other
        // thread does.
        let value = unsafe { View::of(value) };
        self.nested(value, levels.min(MAX_LEVELS))?;
        self.room.truncate(self.room.len() - 1);
        Some(())
    }

    /// Appends a value and a comma; None as for `value`.
    pub(crate) fn element(&mut self, value: &Bound<'_, PyAny>) -> Option<()> {
        self.value(value, MAX_LEVELS)?;
        self.room.byte(b',');
        Some(())
    }

    /// Appends text of JSON.
    pub(crate) fn literal(&mut self, text: &str) {
        self.room.literal(text.as_bytes());
    }

    /// Closes what `opening` opened, behind elements with a comma each; and appends a comma.
    pub(crate) fn close(&mut self, opening: u8, bracket: u8) {
        self.room.close(opening, bracket, b',');
    }

    /// Appends a seq and a comma.
    pub(crate) fn seq(&mut self, seq: u64) -> Option<()> {
        self.room.integer(safe_seq(seq)?, b',');
        Some(())
    }

    /// Appends the time of an event and a comma. None: it is none, or no `int`.
    pub(crate) fn time(&mut self, time: &Bound<'_, PyAny>) -> Option<()> {
        if !IS_ALONE {
            return None;
        }
        // SAFETY: as for `value`.
        self.time_of(unsafe { View::of(time) })
    }

    fn time_of(&mut self, time: View<'_>) -> Option<()> {
        let time = time.integer().filter(|&time| is_safe(time))?;
        self.room.integer(time, b',');
        Some(())
    }

    /// Appends the records of a packer whose text is complete. None: it is not.
    pub(crate) fn packed(&mut self, text: &PackedText, records: &[Packed<Py<PyAny>>]) -> Option<()> {
        let py = self.py;
        let written = self.room.with_vec(|out| text.write(py, records, out));
        self.may_be_retired |= written?;
        Some(())
    }

    /// Appends an event as a row of generation 4, with its line feed, and tells which rows of its type row admission
    /// looks at. None: as for `value`; an event that breaks a rule of the envelope (spec 10 §5.1) is among them.
    pub(crate) fn event(&mut self, event: &Bound<'_, PyAny>, seq: u64, levels: usize) -> Option<Admission> {
        if !IS_ALONE {
            return None;
        }
        // SAFETY: as for `value`.
        let event = unsafe { View::of(event) };
        let Seen::Dict(members) = event.see() else {
            return None;
        };
        let levels = levels.min(MAX_LEVELS).checked_sub(1)?;
        let seq = safe_seq(seq)?;
        let mut admission = None;
        let (mut has_seq, mut has_time, mut has_data) = (false, false, false);
        self.room.byte(b'{');
        for (key, value) in members {
            let Seen::Text(key) = key.see() else {
                return None;
            };
            let key = key.ascii()?;
            match (key.word(), key.bytes()) {
                (Some(word), _) => {
                    self.room.short_ascii(word, key.len(), b':');
                    match (key.len(), &word.to_le_bytes()) {
                        (4, b"type    ") => admission = Some(self.event_type(value)?),
                        (3, b"seq     ") => {
                            has_seq = value.integer()? == seq;
                            self.room.integer(seq, b',');
                        }
                        (4, b"time    ") => {
                            has_time = true;
                            self.time_of(value)?;
                        }
                        (4, b"data    ") => {
                            has_data = true;
                            self.nested(value, levels)?;
                        }
                        _ => return None,
                    }
                }
                (None, name @ b"surfaceOp") => {
                    self.room.ascii(name, b':');
                    self.nested(value, levels)?;
                }
                (None, name @ b"ignorable") if matches!(value.see(), Seen::True) => {
                    self.room.ascii(name, b':');
                    self.room.first_of(*b"true,", 5);
                }
                _ => return None,
            }
        }
        self.room.close(b'{', b'}', b'\n');
        (has_seq && has_time && has_data).then_some(admission?)
    }

    /// Appends the type of an event.
    fn event_type(&mut self, value: View<'_>) -> Option<Admission> {
        let Seen::Text(text) = value.see() else {
            return None;
        };
        let text = text.ascii().filter(|text| text.bytes() != END_SEED)?;
        self.ascii(text);
        Some(Admission::of(text.bytes()))
    }

    /// Appends a value and a comma.
    fn nested(&mut self, value: View<'_>, levels: usize) -> Option<()> {
        match value.see() {
            Seen::Text(text) => self.text(text)?,
            Seen::Integer => self.integer(value)?,
            Seen::Dict(members) => self.object(members, levels)?,
            Seen::Array(elements) => self.array(elements, levels)?,
            Seen::True => self.room.first_of(*b"true,", 5),
            Seen::False => self.room.first_of(*b"false,", 6),
            Seen::Null => self.room.first_of(*b"null,", 5),
            Seen::Float(value) if value.is_finite() && !is_negative_zero(value) => {
                self.room.double(value, b',');
            }
            Seen::Float(_) | Seen::Other => return None,
        }
        Some(())
    }

    #[inline(never)]
    fn object(&mut self, members: MembersView<'_>, levels: usize) -> Option<()> {
        let levels = levels.checked_sub(1)?;
        self.room.byte(b'{');
        for (key, value) in members {
            self.key(key)?;
            match value.see() {
                Seen::Text(text) => self.text(text)?,
                Seen::Integer => self.integer(value)?,
                _ => self.nested(value, levels)?,
            }
        }
        self.room.close(b'{', b'}', b',');
        Some(())
    }

    #[inline(never)]
    fn array(&mut self, elements: &[View<'_>], levels: usize) -> Option<()> {
        let levels = levels.checked_sub(1)?;
        self.room.byte(b'[');
        let mut rest = elements;
        loop {
            let taken = self.short_elements(rest);
            rest = rest.get(taken..).unwrap_or_default();
            let Some((&element, behind)) = rest.split_first() else {
                break;
            };
            self.nested(element, levels)?;
            rest = behind;
        }
        self.room.close(b'[', b']', b',');
        Some(())
    }

    /// Appends what most elements are, short texts and small integers, up to one that is another; returns how many.
    #[inline(always)]
    fn short_elements(&mut self, elements: &[View<'_>]) -> usize {
        let Self {
            room,
            small_ints,
            may_be_retired,
            ..
        } = self;
        room.run(elements, |element, place: &mut [u8; SHORT_ROOM]| {
            match element.see() {
                Seen::Text(text) => {
                    let text = text.ascii()?;
                    let word = text.word()?;
                    *may_be_retired |= word == RETIRED[0];
                    put_short_ascii(word, text.len(), b',', place)
                }
                Seen::Integer => {
                    let (text, len) = small_ints.text_of(element.identity())?;
                    *place.first_chunk_mut()? = text;
                    Some(len)
                }
                _ => None,
            }
        })
    }

    /// Appends a key. One that may be the index of an array would have to stand before those that are not.
    #[inline(always)]
    fn key(&mut self, key: View<'_>) -> Option<()> {
        let Seen::Text(key) = key.see() else {
            return None;
        };
        let key = key.ascii()?;
        if let Some(word) = key.word()
            && !word.to_le_bytes()[0].is_ascii_digit()
            && self.room.short_ascii(word, key.len(), b':')
        {
            return Some(());
        }
        if key.bytes().first().is_some_and(u8::is_ascii_digit) {
            return None;
        }
        self.room.ascii(key.bytes(), b':');
        Some(())
    }

    #[inline(always)]
    fn text(&mut self, text: TextView<'_>) -> Option<()> {
        match text.ascii() {
            Some(ascii) => {
                self.ascii(ascii);
                Some(())
            }
            None => self.units(text),
        }
    }

    #[inline(always)]
    fn ascii(&mut self, text: AsciiView<'_>) {
        if let Some(word) = text.word() {
            self.may_be_retired |= word == RETIRED[0];
            if self.room.short_ascii(word, text.len(), b',') {
                return;
            }
        }
        self.long_ascii(text);
    }

    #[inline(never)]
    fn long_ascii(&mut self, text: AsciiView<'_>) {
        let text = text.bytes();
        self.may_be_retired |= begins_retired(text);
        self.room.ascii(text, b',');
    }

    #[inline(never)]
    fn units(&mut self, text: TextView<'_>) -> Option<()> {
        let is_text = match text.units() {
            Units::Latin(units) => self.room.units(units, b','),
            Units::Two(units) => self.room.units(units, b','),
            Units::Four(units) => self.room.units(units, b','),
            Units::Unknown => false,
        };
        is_text.then_some(())
    }

    #[inline(always)]
    fn integer(&mut self, value: View<'_>) -> Option<()> {
        if let Some((text, len)) = self.small_ints.text_of(value.identity()) {
            self.room.first_of(text, len);
            return Some(());
        }
        self.other_integer(value)
    }

    #[inline(never)]
    fn other_integer(&mut self, value: View<'_>) -> Option<()> {
        let value = value.integer().filter(|&value| is_safe(value))?;
        self.room.integer(value, b',');
        Some(())
    }
}
