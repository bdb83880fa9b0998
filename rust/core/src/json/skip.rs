//! Values that are checked and of which nothing is kept.

use super::blocks::{Blocks, Task, dispatch};
use super::reader::{Open, read_value};
use super::records::{KeyRoom, Lossless, Places, ReadRecords, Records, Spelled, Values as _};
use super::sink::{Flow, Sink, Span};
use super::tape::may_be_retired;

/// Room for what is nested, used again from value to value.
#[derive(Default)]
pub(crate) struct Nesting {
    open: Vec<Open>,
    keys: KeyRoom,
}

/// A value that is JSON.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Skipped {
    /// Byte behind it.
    pub(crate) end: usize,
    /// As [`Tape::may_be_retired`](super::Tape::may_be_retired), of what is inside.
    pub(crate) may_be_retired: bool,
    /// Whether a key inside may be `system` or `deferLoading`, which rules A5 and C2 of spec 30 §6 look for.
    pub(crate) may_be_ruled: bool,
}

struct Skip<'t, 'b> {
    bytes: &'b [u8],
    start: usize,
    max_depth: usize,
    nesting: &'t mut Nesting,
}

impl Task for Skip<'_, '_> {
    type Output = Option<Skipped>;

    #[inline(always)]
    fn run<B: Blocks>(self, blocks: B) -> Self::Output {
        let mut seen = Seen {
            may_be_retired: false,
            may_be_ruled: false,
        };
        let open = &mut self.nesting.open;
        let end =
            read_value::<B, Seen, true>(blocks, self.bytes, self.start, &mut seen, open, self.max_depth);
        Some(Skipped {
            end: end.ok()?,
            may_be_retired: seen.may_be_retired,
            may_be_ruled: seen.may_be_ruled,
        })
    }
}

/// Reads the value at a byte of a row; None if there is none of so many levels.
#[inline(never)]
pub(crate) fn skip_value(
    bytes: &[u8],
    start: usize,
    max_depth: usize,
    nesting: &mut Nesting,
) -> Option<Skipped> {
    dispatch(Skip {
        bytes,
        start,
        max_depth,
        nesting,
    })
}

/// Reads the array at a byte of a row if it is a stream of valid records, as the harness spells them.
#[inline(never)]
pub(crate) fn skip_records<P: Places>(
    bytes: &[u8],
    start: usize,
    max_depth: usize,
    nesting: &mut Nesting,
    places: P,
) -> Option<Records> {
    let open = &mut nesting.open;
    (max_depth > 1).then_some(())?;
    dispatch(ReadRecords {
        bytes,
        start,
        max_depth: max_depth - 1,
        open,
        values: Lossless::of(places),
    })
}

/// As [`Skip`], of a value that is spelled as the writer spells it.
struct SkipSpelled<'t, 'b>(Skip<'t, 'b>);

impl Task for SkipSpelled<'_, '_> {
    type Output = Option<Skipped>;

    #[inline(always)]
    fn run<B: Blocks>(self, blocks: B) -> Self::Output {
        let Skip {
            bytes,
            start,
            max_depth,
            nesting: Nesting { open, keys },
        } = self.0;
        let mut spelled = Spelled::new(bytes, keys);
        spelled.start();
        let end = read_value::<B, _, true>(blocks, bytes, start, &mut spelled, open, max_depth).ok()?;
        spelled.end(start, end).ok()?;
        Some(Skipped {
            end,
            may_be_retired: spelled.may_be_retired,
            may_be_ruled: spelled.may_be_ruled,
        })
    }
}

/// As [`skip_value`]; None, too, if it may be spelled as the writer does not, but for bytes that are no UTF-8.
#[inline(never)]
pub(crate) fn skip_spelled_value(
    bytes: &[u8],
    start: usize,
    max_depth: usize,
    nesting: &mut Nesting,
) -> Option<Skipped> {
    dispatch(SkipSpelled(Skip {
        bytes,
        start,
        max_depth,
        nesting,
    }))
}

/// As [`skip_records`]; None, too, if they may be spelled as the writer does not, but for bytes that are no UTF-8.
#[inline(never)]
pub(crate) fn skip_spelled_records(
    bytes: &[u8],
    start: usize,
    max_depth: usize,
    nesting: &mut Nesting,
) -> Option<Records> {
    (max_depth > 1).then_some(())?;
    dispatch(ReadRecords {
        bytes,
        start,
        max_depth: max_depth - 1,
        open: &mut nesting.open,
        values: Spelled::new(bytes, &mut nesting.keys),
    })
}

/// Whether a key may be `system` or `deferLoading`.
#[inline(always)]
pub(super) fn may_be_ruled(span: Span, raw: &[u8]) -> bool {
    let head = raw.first_chunk().map_or(0, |head| u32::from_le_bytes(*head));
    span.escaped | (head == u32::from_le_bytes(*b"syst")) | (head == u32::from_le_bytes(*b"defe"))
}

struct Seen {
    may_be_retired: bool,
    may_be_ruled: bool,
}

impl Sink for Seen {
    const PACKED: bool = true;

    #[inline(always)]
    fn string(&mut self, span: Span, raw: &[u8]) -> Flow {
        self.may_be_retired |= may_be_retired(span, raw);
        Ok(())
    }

    #[inline(always)]
    fn key(&mut self, span: Span, raw: &[u8]) -> Flow {
        self.may_be_ruled |= may_be_ruled(span, raw);
        Ok(())
    }
}
