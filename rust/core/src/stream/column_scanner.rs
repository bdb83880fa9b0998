//! Columns of all attempts of a log, filled while its rows are scanned. Spec 10 §8, 20 §4.

use std::ops::Deref;

use super::columns::{Columns, ColumnsBuilder, RowKind};
use super::stored::StoredStream;
use crate::error::{Error, Result};
use crate::json::Node;
use crate::row::{Row, RowScanner, ScanOptions, ScanResult};

/// A JSON value that outlives its row.
#[derive(Debug, PartialEq, Eq)]
pub enum KeptValue {
    /// A short integer.
    Integer(i64),
    /// Anything else, as it stands in the row.
    Text(Vec<u8>),
}

/// Where a settlement stands: what its columns do not tell. Spec 80 §3.
#[derive(Debug, PartialEq, Eq)]
pub struct Settlement {
    /// Its seq.
    pub seq: u64,
    /// Its time in milliseconds, if it is a safe integer.
    pub time: Option<i64>,
    /// `message`, `interrupted` or `failed`.
    pub outcome: &'static str,
    /// `turn` of its data.
    pub turn: Option<KeptValue>,
    /// `step` of its data.
    pub step: Option<KeptValue>,
}

impl Settlement {
    /// Place of its outcome in the order in which the field names them.
    pub fn outcome_code(&self) -> i8 {
        match self.outcome {
            "message" => 0,
            "interrupted" => 1,
            _ => 2,
        }
    }

    fn of(row: &Row<'_>, event_type: Node<'_>) -> Self {
        let data = event_type.root().member("data");
        let member = |key| data.and_then(|data| data.member(key));
        let outcome = if event_type.text_is("assistant/attempt") {
            "failed"
        } else if member("interrupted").is_some_and(|flag| flag.is_true()) {
            "interrupted"
        } else {
            "message"
        };
        let keep = |value: Node<'_>| match value.raw() {
            Some(text) => KeptValue::Text(text.to_vec()),
            // Only a short integer has no text of its own.
            None => KeptValue::Integer(value.safe_integer().unwrap_or_default()),
        };
        Self {
            seq: row.seq,
            time: row.time,
            outcome,
            turn: member("turn").map(keep),
            step: member("step").map(keep),
        }
    }
}

/// [`RowScanner`] that keeps of the accepted rows the chunks of their settlements, as columns.
///
/// In generations 0 and 1 attempts are groups of chunk rows, which a scan does not find: their columns stay empty.
pub struct ColumnScanner {
    scanner: RowScanner,
    builder: ColumnsBuilder,
    settlements: Vec<Settlement>,
    /// Why a stream was refused.
    fault: Option<Error>,
}

impl ColumnScanner {
    /// A scanner at the start of a text. Streams are checked whatever the options say; the text of fragments is kept if
    /// `keeps_text` says so.
    pub fn new(options: ScanOptions, keeps_text: bool) -> Self {
        Self {
            scanner: RowScanner::new(ScanOptions {
                check_streams: false, // filling columns checks every record
                keeps_records: true,
                ..options
            }),
            builder: if keeps_text {
                ColumnsBuilder::new()
            } else {
                ColumnsBuilder::without_text()
            },
            settlements: Vec::new(),
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
            settlements,
            fault,
        } = self;
        let fed = scanner.feed(data, &mut |row| {
            let Some(event_type) = row.event_type.filter(|_| fault.is_none()) else {
                return;
            };
            if RowKind::of_type(event_type) == Some(RowKind::Settlement) {
                match builder.push_row(event_type.root()) {
                    Ok(()) => {
                        builder.end_attempt();
                        settlements.push(Settlement::of(row, event_type));
                    }
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

    /// The settlements that the scan found since they were last taken.
    pub fn take_settlements(&mut self) -> Vec<Settlement> {
        std::mem::take(&mut self.settlements)
    }

    /// The columns so far; what is fed later starts new ones.
    pub fn take_columns(&mut self) -> Columns {
        let next = ColumnsBuilder::with_room_of(&self.builder);
        std::mem::replace(&mut self.builder, next).finish()
    }
}
