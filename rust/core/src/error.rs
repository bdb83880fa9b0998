//! The one error type of this crate: a kind, a place, and the rule that refused.

use std::borrow::Cow;
use std::fmt;
use std::io;

/// Result with this crate's [`Error`].
pub type Result<T> = std::result::Result<T, Error>;

/// What kind of refusal an error is. Spec 00 §5.
#[derive(Debug)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The version in the header is above the highest supported one.
    NewerFormat {
        /// Version found; infinite if its literal overflows.
        found: f64,
    },
    /// Intact, but not interpretable by this version.
    Unsupported,
    /// The header row is missing or breaks a rule.
    Header,
    /// A Zstandard frame is damaged or not allowed here.
    Frame,
    /// A row breaks a rule.
    Row,
    /// The text is not JSON.
    Syntax,
    /// A row does not carry the next seq.
    SeqGap {
        /// The seq that the row should have.
        expected: u64,
        /// What it has instead, as JSON text; empty if it has none.
        got: String,
    },
    /// A chunk or record of an embedded stream breaks a rule.
    Stream {
        /// Index of the record or pushed chunk, if known.
        record: Option<u64>,
    },
    /// The type of a chunk is not one that packing or assembly knows.
    UnknownChunk {
        /// Index of the pushed chunk, if known.
        record: Option<u64>,
    },
    /// A row of a replay sidecar is damaged, or does not fit its log. Spec 60 §7.
    Sidecar,
    /// An input exceeds a limit.
    Limit {
        /// Keyword argument that sets the limit.
        which: &'static str,
        /// Its value.
        value: u64,
    },
    /// The operating system refused.
    Io(io::Error),
}

/// Where in a log an error is; each part is absent where it does not apply.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Location {
    /// Line of the text, from 1; the header is line 1.
    pub line: Option<u64>,
    /// Byte, from 0: of the plaintext for rows, of the file for frames.
    pub offset: Option<u64>,
    /// Event, from 0.
    pub seq: Option<u64>,
    /// Zstandard frame, from 0.
    pub frame: Option<u64>,
}

#[derive(Debug)]
struct Inner {
    kind: ErrorKind,
    message: Cow<'static, str>,
    location: Location,
    rule: Option<&'static str>,
}

/// A refusal: what is wrong, where, and by which rule.
#[derive(Debug)]
pub struct Error(Box<Inner>);

impl Error {
    /// Makes an error without a place.
    #[cold]
    pub fn new(kind: ErrorKind, message: impl Into<Cow<'static, str>>) -> Self {
        Self(Box::new(Inner {
            kind,
            message: message.into(),
            location: Location::default(),
            rule: None,
        }))
    }

    /// Makes a limit error; `which` is the keyword argument that sets the limit.
    #[cold]
    pub fn limit(which: &'static str, value: u64, message: impl Into<Cow<'static, str>>) -> Self {
        Self::new(ErrorKind::Limit { which, value }, message)
    }

    /// Names the rule of the spec.
    #[must_use]
    pub fn with_rule(mut self, rule: &'static str) -> Self {
        self.0.rule = Some(rule);
        self
    }

    /// Fills in the parts of the place that are not known yet.
    #[must_use]
    pub fn located(mut self, place: Location) -> Self {
        let known = &mut self.0.location;
        known.line = known.line.or(place.line);
        known.offset = known.offset.or(place.offset);
        known.seq = known.seq.or(place.seq);
        known.frame = known.frame.or(place.frame);
        self
    }

    /// Puts another place in the stead of the one that is known.
    #[must_use]
    pub fn moved(mut self, place: Location) -> Self {
        self.0.location = place;
        self
    }

    /// Moves a byte offset that counts from the start of a row to the start of the text.
    #[must_use]
    pub fn shifted(mut self, by: u64) -> Self {
        if let Some(offset) = &mut self.0.location.offset {
            *offset += by;
        }
        self
    }

    /// The kind.
    pub fn kind(&self) -> &ErrorKind {
        &self.0.kind
    }

    /// What is wrong and what was expected.
    pub fn message(&self) -> &str {
        &self.0.message
    }

    /// The place.
    pub fn location(&self) -> Location {
        self.0.location
    }

    /// The rule of the spec, if one is named.
    pub fn rule(&self) -> Option<&'static str> {
        self.0.rule
    }

    /// A copy, for a state machine that must raise the same error again. An operating system error keeps its
    /// number or kind.
    #[must_use]
    pub fn replica(&self) -> Self {
        let kind = match &self.0.kind {
            ErrorKind::NewerFormat { found } => ErrorKind::NewerFormat { found: *found },
            ErrorKind::Unsupported => ErrorKind::Unsupported,
            ErrorKind::Header => ErrorKind::Header,
            ErrorKind::Frame => ErrorKind::Frame,
            ErrorKind::Row => ErrorKind::Row,
            ErrorKind::Syntax => ErrorKind::Syntax,
            ErrorKind::Sidecar => ErrorKind::Sidecar,
            ErrorKind::SeqGap { expected, got } => ErrorKind::SeqGap {
                expected: *expected,
                got: got.clone(),
            },
            ErrorKind::Stream { record } => ErrorKind::Stream { record: *record },
            ErrorKind::UnknownChunk { record } => ErrorKind::UnknownChunk { record: *record },
            ErrorKind::Limit { which, value } => ErrorKind::Limit { which, value: *value },
            ErrorKind::Io(error) => ErrorKind::Io(
                error
                    .raw_os_error()
                    .map_or_else(|| error.kind().into(), io::Error::from_raw_os_error),
            ),
        };
        Self(Box::new(Inner {
            kind,
            message: self.0.message.clone(),
            location: self.0.location,
            rule: self.0.rule,
        }))
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.message)
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match &self.0.kind {
            ErrorKind::Io(error) => Some(error),
            _ => None,
        }
    }
}

impl From<io::Error> for Error {
    fn from(error: io::Error) -> Self {
        let message = error.to_string();
        Self::new(ErrorKind::Io(error), message)
    }
}
