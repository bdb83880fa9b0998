//! Columns of all attempts of a log, filled while its rows are scanned. Spec 10 §8, 20 §4.

use std::ops::Deref;

use super::columns::{Columns, ColumnsBuilder, RowKind};
use super::stored::StoredStream;
use crate::error::{Error, Result};
use crate::row::{RowScanner, ScanOptions, ScanResult};

/// [`RowScanner`] that keeps of the accepted rows the chunks of their settlements, as columns.
///
/// In generations 0 and 1 attempts are groups of chunk rows, which a scan does not find: their columns stay empty.
pub struct ColumnScanner {
    scanner: RowScanner,
    builder: ColumnsBuilder,
    /// Why a stream was refused.
    fault: Option<Error>,
}

impl ColumnScanner {
    /// A scanner at the start of a text. Streams are checked whatever the options say.
    pub fn new(options: ScanOptions) -> Self {
        Self {
            scanner: RowScanner::new(ScanOptions {
                check_streams: false, // filling columns checks every record
                ..options
            }),
            builder: ColumnsBuilder::new(),
            fault: None,
        }
    }

    /// The scan.
    pub fn scanner(&self) -> &RowScanner {
        &self.scanner
    }

    /// Takes the next bytes.
    ///
    /// # Errors
    /// As for [`RowScanner::feed`]; `Stream` with seq and record where a stream breaks a rule of spec 20 §4. Every later
    /// call fails with the same error.
    pub fn feed(&mut self, data: &[u8]) -> Result<()> {
        if let Some(fault) = &self.fault {
            return Err(fault.replica());
        }
        let Self {
            scanner,
            builder,
            fault,
        } = self;
        let fed = scanner.feed(data, &mut |row| {
            let Some(event_type) = row.event_type.filter(|_| fault.is_none()) else {
                return;
            };
            if RowKind::of_type(event_type) == Some(RowKind::Settlement) {
                match builder.push_row(event_type.root()) {
                    Ok(()) => builder.end_attempt(),
                    Err(error) => {
                        builder.drop_attempt();
                        *fault = Some(error);
                    }
                }
            }
        });
        match fault {
            Some(fault) => Err(fault.replica()),
            None => fed,
        }
    }

    /// Adds an attempt that the scan does not find.
    ///
    /// # Errors
    /// As for [`StoredStream::push_columns`].
    pub fn add_attempt<B: Deref<Target = [u8]>>(&mut self, stream: &StoredStream<B>) -> Result<()> {
        stream.push_columns(&mut self.builder)
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

    /// The columns so far; what is fed later starts new ones.
    pub fn take_columns(&mut self) -> Columns {
        std::mem::take(&mut self.builder).finish()
    }
}
