//! Every bound on what an input may demand, with its default, in one place.

/// Bounds on what an input may demand of memory and time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes in one row, line feed included.
    pub max_row_bytes: u64,
    /// Bytes of plaintext in one Zstandard frame.
    pub max_frame_plain_bytes: u64,
    /// Nested arrays and objects in one JSON value.
    pub max_depth: u32,
    /// Events that one packed row of generations 0 and 1 may stand for.
    pub max_packed_events: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            max_row_bytes: 256 << 20,
            max_frame_plain_bytes: 1 << 30,
            max_depth: 1024,
            max_packed_events: 16_777_216,
        }
    }
}

/// Binary logarithm of the largest Zstandard window, in bytes. Spec 10 §7.2.
pub const MAX_WINDOW_LOG: u32 = 27;

/// Largest integer that a double holds exactly together with its neighbours. Spec 10, intro.
pub const MAX_SAFE_INTEGER: i64 = (1 << 53) - 1;

/// Stream faults that a scan keeps; the rest is only counted.
pub const MAX_KEPT_FAULTS: usize = 100;

/// Findings that a check of rules keeps for each layer; the rest is only counted.
pub const MAX_KEPT_FINDINGS: usize = 100;
