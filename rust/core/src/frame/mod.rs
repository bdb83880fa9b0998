//! The Zstandard container of a log: a concatenation of independent frames. Spec 10 §7.
//!
//! * [`scan`] finds where frames begin and end, without decoding them;
//! * [`decode`] decodes complete frames, bounded, and verifies their checksums;
//! * [`encode`] writes one batch as one frame;
//! * [`stream_encode`] does so while the batch is being made;
//! * [`tail`] recovers the plaintext of a torn last frame.

pub mod decode;
pub mod encode;
mod header;
pub mod scan;
pub mod stream_encode;
pub mod tail;

pub use decode::{FrameDecoder, FrameReader, MAX_PIECE_BYTES, Step};
pub use encode::{FrameEncoder, encode_frame};
pub use scan::{FrameScan, FrameScanner, scan_frames};
pub use stream_encode::FrameWriter;
pub use tail::recover_tail;
