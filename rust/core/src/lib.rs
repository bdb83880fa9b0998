//! DSH session logs: bytes to frames to rows to checked records. No Python in it.
//!
//! Layers, each may use what stands before it: [`error`] and [`limits`], [`json`], [`frame`], [`row`] with [`stream`]
//! and [`rules`], [`calls`], [`bulk`] and [`sidecar`].
#![deny(unsafe_code)] // allowed in json/blocks.rs and for one call in sidecar/sha256.rs, which have the SIMD

pub mod bulk;
pub mod calls;
pub mod error;
pub mod frame;
pub mod json;
pub mod limits;
pub mod row;
pub mod rules;
pub mod sidecar;
pub mod stream;

#[cfg(test)]
mod chance;

pub use error::{Error, ErrorKind, Location, Result};
pub use limits::Limits;
