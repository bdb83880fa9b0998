//! Split: the assembled log and the attempt rows of a log, and the digests of both forms. Spec 60 §7.

use super::attempt::{AttemptRows, Causes, Settlement, count_chunks, digest_row, header_row, is_settlement};
use super::digest::Digests;
use super::empty;
use crate::error::{Error, Result};
use crate::json::Tape;
use crate::row::{Row, RowScanner, ScanOptions, ScanResult};

/// [`RowScanner`] that writes, for each accepted row, the row of the assembled log, and for each settlement its attempt
/// row. Generation 4 only.
pub struct SplitScanner {
    scanner: RowScanner,
    split: Split,
    /// Why a settlement was refused.
    fault: Option<Error>,
}

struct Split {
    digests: Digests,
    rows: AttemptRows,
    allow_opaque: bool,
    attempt_count: u64,
    assembled: Vec<u8>,
    sidecar: Vec<u8>,
}

impl SplitScanner {
    /// A scanner at the start of a text whose header row is given, too.
    ///
    /// # Errors
    /// `Header`: it is no JSON.
    pub fn new(header: &[u8], options: ScanOptions, allow_opaque: bool) -> Result<Self> {
        let mut digests = Digests::new();
        let mut tape = Tape::new();
        digests.push(&header_row(header, &mut tape, options.limits.max_depth)?)?;
        Ok(Self {
            scanner: RowScanner::new(ScanOptions {
                check_streams: false, // every settlement is checked here
                keeps_records: true,
                ..options
            }),
            split: Split {
                digests,
                rows: AttemptRows::default(),
                allow_opaque,
                attempt_count: 0,
                assembled: Vec::new(),
                sidecar: Vec::new(),
            },
            fault: None,
        })
    }

    /// The scan.
    pub fn scanner(&self) -> &RowScanner {
        &self.scanner
    }

    /// Attempt rows so far.
    pub fn attempt_count(&self) -> u64 {
        self.split.attempt_count
    }

    /// Takes the next bytes and gives `take` the text of the assembled log and the attempt rows that they make.
    ///
    /// # Errors
    /// As for [`RowScanner::feed`]; `Stream` with its seq where a settlement has no stream, or one that does not expand.
    /// Every later call fails with the same error.
    pub fn feed<T>(
        &mut self,
        data: &[u8],
        causes: &mut Causes<'_>,
        take: impl FnOnce(&[u8], &[u8]) -> T,
    ) -> Result<T> {
        let Self {
            scanner,
            split,
            fault,
        } = self;
        let fed = scanner.feed(data, &mut |row| {
            if fault.is_none() {
                *fault = split.push(row, causes).err();
            }
        });
        if let Some(fault) = fault {
            return Err(fault.replica());
        }
        fed?;
        let taken = take(&split.assembled, &split.sidecar);
        empty(&mut split.assembled);
        empty(&mut split.sidecar);
        Ok(taken)
    }

    /// Says that a complete frame ends here, see [`RowScanner::end_frame`].
    ///
    /// # Errors
    /// As there.
    pub fn end_frame(&mut self) -> Result<()> {
        self.scanner.end_frame()
    }

    /// Says that the last complete frame ended, see [`RowScanner::end_complete_frames`].
    ///
    /// # Errors
    /// As there.
    pub fn end_complete_frames(&mut self) -> Result<()> {
        self.scanner.end_complete_frames()
    }

    /// Ends the scan, see [`RowScanner::finish`].
    ///
    /// # Errors
    /// As there.
    pub fn finish(&mut self) -> Result<ScanResult> {
        self.scanner.finish()
    }

    /// The digests of the log and of its assembled form so far.
    pub fn digests(&mut self) -> (String, String) {
        self.split.digests.finish()
    }
}

impl Split {
    fn push(&mut self, row: &Row<'_>, causes: &mut Causes<'_>) -> Result<()> {
        if !is_settlement(row) {
            self.assembled.extend_from_slice(row.raw);
            self.assembled.push(b'\n');
            return self.digests.push(&digest_row(row));
        }
        let settlement = Settlement::of(row)?;
        let stream = settlement.stream;
        let chunks = match count_chunks(stream, row.seq) {
            Err(error) if !self.allow_opaque => return Err(error),
            counted => counted.ok(),
        };
        self.rows
            .push_head(&settlement, stream, chunks, causes, &mut self.sidecar);
        self.digests.push(&settlement.digest_row(None))?;
        settlement.push_stream(&self.digests, &mut self.sidecar);
        self.sidecar.extend_from_slice(b"}\n");
        self.attempt_count += 1;
        settlement.push_with_stream(None, &self.digests, &mut self.assembled);
        Ok(())
    }
}
