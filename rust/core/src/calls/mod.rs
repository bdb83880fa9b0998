//! Model calls of a log, one row for each, made while its rows are scanned: no values, and nothing per chunk. Spec 80.
//!
//! For generations 2 to 4, where each settlement is an attempt with its stream in it. Those of generations 0 and 1 are
//! groups of rows, which no scan finds.

mod collect;
mod pace;
mod scanner;
mod sums;
mod tools;

pub use collect::{Call, CallOptions, CallRows, CallTimes, Outcome, Tokens};
pub use scanner::CallScanner;
pub use sums::{TokenRows, TokenSums};
pub use tools::ToolTime;

/// Turn and step of an event; `None` where it names none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Place {
    /// `turn`
    pub turn: Option<i64>,
    /// `step`
    pub step: Option<i64>,
}
