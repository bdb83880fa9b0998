//! Columns that follow from those of [`Columns`](super::Columns): one value for each chunk, written where a table has
//! them. Spec 20 §5, 80 §5.

/// Columns of attempts, as [`Columns`](super::Columns) has them.
#[derive(Clone, Copy, Debug)]
pub struct ColumnSlices<'a> {
    /// Times.
    pub time: &'a [i64],
    /// Positions of records in their stream.
    pub record: &'a [i32],
    /// Positions in the text.
    pub offset: &'a [i64],
    /// Block index of each record.
    pub record_index: &'a [i64],
    /// Whether each record's chunks are tokens even where they are empty.
    pub record_named: &'a [bool],
    /// First chunk of each attempt.
    pub attempt: &'a [i64],
    /// First record of each attempt.
    pub attempt_record: &'a [i64],
}

/// A value of each attempt, and where each of its chunks gets it.
#[derive(Debug)]
pub struct OfAttempts<'a> {
    /// One for each attempt.
    pub values: &'a [i64],
    /// One for each chunk.
    pub out: &'a mut [i64],
}

/// Where the columns of some consecutive chunks are written, as far as they are wanted; one place for each chunk.
#[derive(Debug, Default)]
pub struct DerivedColumns<'a> {
    /// Block index; -1 where a chunk has none.
    pub index: Option<&'a mut [i64]>,
    /// Milliseconds since the token before in the attempt; 0 where there is none, and for what is no token.
    pub gap: Option<&'a mut [i64]>,
    /// Bytes of the fragment.
    pub byte_len: Option<&'a mut [i64]>,
    /// What all chunks of an attempt have in common.
    pub of_attempts: Vec<OfAttempts<'a>>,
}

impl DerivedColumns<'_> {
    fn has_places(&self, count: usize) -> bool {
        let arrays = [&self.index, &self.gap, &self.byte_len];
        let is_other = |array: &[i64]| array.len() != count;
        !arrays.into_iter().flatten().any(|array| is_other(array))
            && !self.of_attempts.iter().any(|each| is_other(each.out))
    }
}

/// One bit for each of some chunks, the first one lowest in the first byte, as Arrow has them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChunkBits {
    /// The bits; those behind the last chunk are zero.
    pub bytes: Vec<u8>,
    /// How many are set.
    pub ones: usize,
}

impl ChunkBits {
    fn new(count: usize) -> Self {
        Self {
            bytes: vec![0; count.div_ceil(8)],
            ones: 0,
        }
    }

    /// Sets bits that are not set yet.
    fn set(&mut self, from: usize, to: usize) {
        if from >= to {
            return;
        }
        self.ones += to - from;
        let (first, last) = (from / 8, (to - 1) / 8);
        let (low, high) = (u8::MAX << (from % 8), u8::MAX >> (7 - (to - 1) % 8));
        match self.bytes.get_mut(first..=last) {
            Some([only]) => *only |= low & high,
            Some([head, middle @ .., tail]) => {
                *head |= low;
                middle.fill(u8::MAX);
                *tail |= high;
            }
            _ => {}
        }
    }
}

/// Which of some consecutive chunks are what.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChunkMarks {
    /// Chunks with a block index.
    pub indexed: ChunkBits,
    /// Token deltas. Spec 20 §5.
    pub token: ChunkBits,
    /// Token deltas but the first of each attempt.
    pub gap: ChunkBits,
    /// Time of the last token of the last chunk's attempt, if any of it is a token.
    pub last_token: Option<i64>,
}

impl ColumnSlices<'_> {
    /// Fills columns of the chunks from `start` to `end`. `last_token` is what this gave for the chunks before; it
    /// counts where they end inside an attempt.
    ///
    /// `None` if there are no such chunks, the columns do not fit together, or an array has another number of places.
    ///
    /// # Cost
    /// One pass over the chunks.
    pub fn derive(
        &self,
        start: usize,
        end: usize,
        last_token: Option<i64>,
        mut out: DerivedColumns<'_>,
    ) -> Option<ChunkMarks> {
        let count = end.checked_sub(start)?;
        if !out.has_places(count) {
            return None;
        }
        let mut run = Run {
            time: self.time.get(start..end)?,
            offset: self.offset.get(start..=end)?,
            marks: ChunkMarks {
                indexed: ChunkBits::new(count),
                token: ChunkBits::new(count),
                gap: ChunkBits::new(count),
                last_token,
            },
        };
        let record = self.record.get(start..end)?;
        let before = |&first: &i64| usize::try_from(first).is_ok_and(|first| first <= start);
        let mut attempt = self.attempt.partition_point(before).checked_sub(1)?;
        let mut at = 0;
        while at < count {
            let first = usize::try_from(*self.attempt.get(attempt)?).ok()?;
            let behind = usize::try_from(*self.attempt.get(attempt + 1)?).ok()?;
            let behind = behind.min(end).saturating_sub(start);
            if first == start + at {
                run.marks.last_token = None;
            }
            for OfAttempts { values, out } in &mut out.of_attempts {
                out.get_mut(at..behind.max(at))?.fill(*values.get(attempt)?);
            }
            let first_record = usize::try_from(*self.attempt_record.get(attempt)?).ok()?;
            while at < behind {
                let rest = record.get(at..behind)?;
                let number = *rest.first()?;
                let len = rest
                    .iter()
                    .position(|&other| other != number)
                    .unwrap_or(rest.len());
                let place = first_record.checked_add(usize::try_from(number).ok()?)?;
                let (index, is_named) = (*self.record_index.get(place)?, *self.record_named.get(place)?);
                run.fill(at, at + len, index, is_named, &mut out)?;
                at += len;
            }
            attempt += 1;
        }
        Some(run.marks)
    }
}

/// Chunks of one record, and what is known of them and those before.
struct Run<'a> {
    time: &'a [i64],
    offset: &'a [i64],
    marks: ChunkMarks,
}

impl Run<'_> {
    fn fill(
        &mut self,
        from: usize,
        to: usize,
        index: i64,
        is_named: bool,
        out: &mut DerivedColumns<'_>,
    ) -> Option<()> {
        if let Some(indices) = &mut out.index {
            indices.get_mut(from..to)?.fill(index);
        }
        if index >= 0 {
            self.marks.indexed.set(from, to);
        }
        let (starts, ends) = (self.offset.get(from..to)?, self.offset.get(from + 1..=to)?);
        let bounds = || starts.iter().zip(ends);
        if let Some(lens) = &mut out.byte_len {
            for (len, (start, end)) in lens.get_mut(from..to)?.iter_mut().zip(bounds()) {
                *len = end.wrapping_sub(*start);
            }
        }
        let gaps = match &mut out.gap {
            Some(gaps) => gaps.get_mut(from..to)?,
            None => &mut [],
        };
        // Nearly always none is empty. Counting all of them, the loop takes several chunks at once.
        if is_named || bounds().filter(|(start, end)| end <= start).count() == 0 {
            self.fill_tokens(from, to, gaps);
            return Some(());
        }
        for (at, (start, end)) in bounds().enumerate() {
            let place = gaps.get_mut(at..=at).unwrap_or_default();
            if end > start {
                self.fill_tokens(from + at, from + at + 1, place);
            } else {
                place.fill(0);
            }
        }
        Some(())
    }

    /// Chunks that are all tokens; `gaps` is empty if nobody wants them.
    fn fill_tokens(&mut self, from: usize, to: usize, gaps: &mut [i64]) {
        let Some(times @ ([first, .., last] | [first @ last])) = self.time.get(from..to) else {
            return;
        };
        let marks = &mut self.marks;
        marks.token.set(from, to);
        marks.gap.set(from + usize::from(marks.last_token.is_none()), to);
        if let [gap, gaps @ ..] = gaps {
            *gap = marks.last_token.map_or(0, |before| first.wrapping_sub(before));
            let behind = times.iter().skip(1);
            for (gap, (time, before)) in gaps.iter_mut().zip(behind.zip(times)) {
                *gap = time.wrapping_sub(*before);
            }
        }
        marks.last_token = Some(*last);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_are_set_from_the_lowest() {
        for (from, to) in [(0, 0), (0, 1), (3, 8), (7, 9), (8, 24), (5, 21)] {
            let mut bits = ChunkBits::new(24);
            bits.set(from, to);
            let expected: Vec<bool> = (0..24).map(|at| (from..to).contains(&at)).collect();
            let found: Vec<bool> = (0..24)
                .map(|at| bits.bytes[at / 8] >> (at % 8) & 1 == 1)
                .collect();
            assert_eq!(found, expected);
            assert_eq!(bits.ones, to - from);
        }
    }

    #[test]
    fn columns_that_do_not_fit_together_are_told() {
        let columns = ColumnSlices {
            time: &[5, 6],
            record: &[0, 0],
            offset: &[0, 1, 2],
            record_index: &[0],
            record_named: &[false],
            attempt: &[0, 2],
            attempt_record: &[0, 1],
        };
        let derive = |columns: ColumnSlices<'_>, start, end| {
            columns
                .derive(start, end, None, DerivedColumns::default())
                .is_some()
        };
        assert!(derive(columns, 0, 2) && derive(columns, 1, 1) && derive(columns, 2, 2));
        assert!(!derive(columns, 0, 3) && !derive(columns, 2, 1));
        for (attempt, record) in [
            (&[] as &[i64], 0),
            (&[0], 0),
            (&[-1, 2], 0),
            (&[1, 2], 0),
            (&[0, 2], 1),
            (&[0, 2], -1),
        ] {
            let record = &[record; 2];
            assert!(!derive(
                ColumnSlices {
                    record,
                    attempt,
                    ..columns
                },
                0,
                2
            ));
        }
        let mut short = [0];
        let out = DerivedColumns {
            gap: Some(&mut short),
            ..DerivedColumns::default()
        };
        assert!(columns.derive(0, 2, None, out).is_none());
    }
}
