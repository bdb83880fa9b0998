//! Calls of a log, collected while its text is fed. Spec 10 §8, 80.

use super::collect::{CallOptions, CallRows};
use crate::error::Result;
use crate::row::{RowScanner, ScanOptions, ScanResult};

/// [`RowScanner`] that collects the calls of the accepted rows. For generations 2 to 4.
pub struct CallScanner {
    scanner: RowScanner,
    rows: CallRows,
}

impl CallScanner {
    /// A scanner at the start of a text.
    pub fn new(scan: ScanOptions, calls: CallOptions) -> Self {
        Self {
            scanner: RowScanner::new(ScanOptions {
                keeps_records: calls.looks_into_records(),
                ..scan
            }),
            rows: CallRows::new(calls),
        }
    }

    /// The scan.
    pub fn scanner(&self) -> &RowScanner {
        &self.scanner
    }

    /// The calls so far.
    pub fn rows(&self) -> &CallRows {
        &self.rows
    }

    /// The calls so far, to take them out.
    pub fn rows_mut(&mut self) -> &mut CallRows {
        &mut self.rows
    }

    /// Takes the next bytes.
    ///
    /// # Errors
    /// As for [`RowScanner::feed`].
    pub fn feed(&mut self, data: &[u8]) -> Result<()> {
        let Self { scanner, rows } = self;
        scanner.feed_to(data, rows)
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
}
