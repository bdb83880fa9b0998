//! Header rows of every generation. Spec 10 §4.

use std::borrow::Cow;

use crate::error::{Error, ErrorKind, Location, Result};
use crate::json::number::{double, show_double};
use crate::json::{BlockTask, Blocks, Cursor, Fault, FaultKind, Kind, Node, Tape, run_blocks};
use crate::limits::Limits;

/// The highest generation that is read.
pub const CURRENT_GENERATION: u8 = 4;

/// A header row that keeps every rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    /// Format generation, 0 to 4.
    pub generation: u8,
    /// The row as it stands in the text, without its line feed.
    pub line: Vec<u8>,
    /// `isSeeded`; in generations 0 and 1 whether `seedLength` is there.
    pub is_seeded: bool,
    /// `seedLength` as written, generations 0 and 1.
    pub declared_cut: Option<u64>,
}

/// Where the header row starts.
const START: Location = Location {
    line: Some(1),
    offset: Some(0),
    seq: None,
    frame: None,
};

#[cold]
fn refuse(message: impl Into<Cow<'static, str>>) -> Error {
    Error::new(ErrorKind::Header, message)
        .with_rule("10 §4")
        .located(START)
}

#[cold]
fn newer(found: f64) -> Error {
    let message = format!(
        "the log has format version {}; the highest supported one is {CURRENT_GENERATION}",
        show_double(found)
    );
    Error::new(ErrorKind::NewerFormat { found }, message).located(Location {
        line: Some(1),
        offset: Some(0),
        ..Location::default()
    })
}

/// The error for a row that is not JSON; `what` names it and `offset` is where it starts.
#[cold]
pub(crate) fn syntax_error(what: &str, fault: Fault, offset: u64, limits: &Limits) -> Error {
    let at = offset + fault.at as u64;
    match fault.kind {
        FaultKind::Unexpected(expected) => Error::new(
            ErrorKind::Syntax,
            format!("the {what} is not JSON: expected {expected} at byte {at}"),
        )
        .with_rule("10 §1"),
        FaultKind::End => {
            let message = format!("the {what} is not JSON: it ends inside a value");
            Error::new(ErrorKind::Syntax, message).with_rule("10 §1")
        }
        FaultKind::TooDeep => Error::limit(
            "max_depth",
            u64::from(limits.max_depth),
            format!(
                "the row nests deeper than {} levels at byte {at}; raise max_depth to read it",
                limits.max_depth
            ),
        ),
        FaultKind::Stopped => Error::limit(
            "max_row_bytes",
            u64::from(u32::MAX),
            "the row is longer than 4 GiB",
        ),
    }
}

/// Whether the path is absolute by the rules of this host. Spec 10 §4.1.
fn is_absolute(path: &[u8], windows: bool) -> bool {
    match path {
        [b'/', ..] => true,
        [b'\\', ..] => windows,
        [drive, b':', b'/' | b'\\', ..] => windows && drive.is_ascii_alphabetic(),
        _ => false,
    }
}

/// Parses a header row.
///
/// `wanted` is 4 for a native scan (10 §4.1), None to let the version decide (10 §4.3), else the one generation that is
/// accepted.
///
/// # Errors
/// `NewerFormat`: the version is above 4. `Unsupported`: `wanted` is 4 and the version is smaller. `Header`: any other
/// rule of 10 §4.
pub fn parse_header(line: &[u8], wanted: Option<u8>, limits: &Limits) -> Result<Header> {
    read_header(line, wanted, limits, &mut Tape::new())
}

/// [`parse_header`] with the room of a tape.
pub(super) fn read_header(
    line: &[u8],
    wanted: Option<u8>,
    limits: &Limits,
    tape: &mut Tape,
) -> Result<Header> {
    let Some(text) = line
        .strip_suffix(b"\n")
        .filter(|text| memchr::memchr(b'\n', text).is_none())
    else {
        return Err(refuse("the header row must end with its only line feed"));
    };
    let is_current = wanted.is_none_or(|wanted| wanted == CURRENT_GENERATION);
    if is_current
        && limits.max_depth > 0
        && let Some(is_seeded) = run_blocks(Recognise(text))
    {
        return Ok(Header {
            generation: CURRENT_GENERATION,
            line: text.to_vec(),
            is_seeded,
            declared_cut: None,
        });
    }
    read_text(text, wanted, limits, tape)
}

/// Recognises a header of the current generation in the spelling that the harness gives it, keys in the order of the
/// table, and says whether it is seeded. It keeps every rule; all others are for [`read_text`].
struct Recognise<'b>(&'b [u8]);

impl BlockTask for Recognise<'_> {
    type Output = Option<bool>;

    #[expect(clippy::inline_always, reason = "it is compiled for each instruction set")]
    #[inline(always)]
    fn run<B: Blocks>(self, blocks: B) -> Self::Output {
        let mut cursor = Cursor {
            blocks,
            bytes: self.0,
            at: 0,
        };
        cursor.literal(b"{\"type\":\"session\",\"version\":4,\"id\":\"")?;
        cursor.span()?;
        cursor.literal(b",\"createdAt\":")?;
        u64::try_from(cursor.integer()?).ok()?;
        if cursor.literal(b",\"cwd\":\"").is_some() {
            let path = cursor.span().filter(|path| !path.escaped)?;
            let path = self.0.get(path.start..path.end)?;
            is_absolute(path, cfg!(windows)).then_some(())?;
        }
        if cursor.literal(b",\"parentSession\":\"").is_some() {
            cursor.span()?;
        }
        cursor.literal(b",\"isSeeded\":")?;
        let is_seeded = cursor.literal(b"true").is_some();
        if !is_seeded {
            cursor.literal(b"false")?;
        }
        if cursor.literal(b",\"origin\":\"").is_some() {
            cursor.literal(b"subagent\"")?;
        }
        cursor.literal(b",\"delegationDepth\":")?;
        u64::try_from(cursor.integer()?).ok()?;
        if cursor.literal(b",\"agentPreset\":\"").is_some() {
            cursor.span()?;
        }
        cursor.literal(b"}")?;
        (cursor.at == self.0.len()).then_some(is_seeded)
    }
}

/// Reads any header row, without its line feed.
fn read_text(text: &[u8], wanted: Option<u8>, limits: &Limits, tape: &mut Tape) -> Result<Header> {
    let header = tape
        .read_text(text, limits.max_depth as usize)
        .map_err(|fault| match fault.kind {
            FaultKind::TooDeep | FaultKind::Stopped => {
                syntax_error("header row", fault, 0, limits).located(START)
            }
            _ => refuse(syntax_error("header row", fault, 0, limits).message().to_owned()),
        })?;
    if !header.is_object() {
        return Err(refuse("the header row is no JSON object"));
    }
    let members = Members::of(header);
    let version = members.version;
    let number = version.and_then(|version| version.number());
    let current = double(i64::from(CURRENT_GENERATION));
    if let Some(found) = number.filter(|&found| found > current) {
        return Err(newer(found));
    }
    let generation = match (wanted, number) {
        (Some(CURRENT_GENERATION), Some(found)) if found < current => {
            let message = format!(
                "the log has format version {}, which a native read of version 4 does not take; migrate it",
                show_double(found)
            );
            return Err(Error::new(ErrorKind::Unsupported, message).located(Location {
                line: Some(1),
                offset: Some(0),
                ..Location::default()
            }));
        }
        (Some(CURRENT_GENERATION), None) => {
            members.check_retired()?;
            return Err(refuse("`version` of the header is missing or no number"));
        }
        _ => version
            .and_then(|version| version.count())
            .and_then(|count| u8::try_from(count).ok())
            .ok_or_else(|| refuse("`version` of the header is no count"))?,
    };
    if wanted.is_some_and(|wanted| wanted != generation) {
        return Err(refuse(format!(
            "the header has version {generation}, expected {}",
            wanted.unwrap_or_default()
        )));
    }
    let (is_seeded, declared_cut) = check_members(&members, generation)?;
    Ok(Header {
        generation,
        line: text.to_vec(),
        is_seeded,
        declared_cut,
    })
}

/// The members of a header, found in one pass; the last value where a key is repeated.
#[derive(Default)]
struct Members<'a> {
    row_type: Option<Node<'a>>,
    version: Option<Node<'a>>,
    id: Option<Node<'a>>,
    created_at: Option<Node<'a>>,
    cwd: Option<Node<'a>>,
    is_seeded: Option<Node<'a>>,
    delegation_depth: Option<Node<'a>>,
    parent_session: Option<Node<'a>>,
    origin: Option<Node<'a>>,
    agent_preset: Option<Node<'a>>,
    seed_length: Option<Node<'a>>,
    sandbox_mode: Option<Node<'a>>,
    approval_policy: Option<Node<'a>>,
    has_other: bool,
}

impl<'a> Members<'a> {
    fn of(header: Node<'a>) -> Self {
        let mut members = Self::default();
        for (key, value) in header.members() {
            let member = match &*key.text().unwrap_or_default() {
                b"type" => &mut members.row_type,
                b"version" => &mut members.version,
                b"id" => &mut members.id,
                b"createdAt" => &mut members.created_at,
                b"cwd" => &mut members.cwd,
                b"isSeeded" => &mut members.is_seeded,
                b"delegationDepth" => &mut members.delegation_depth,
                b"parentSession" => &mut members.parent_session,
                b"origin" => &mut members.origin,
                b"agentPreset" => &mut members.agent_preset,
                b"seedLength" => &mut members.seed_length,
                b"sandboxMode" => &mut members.sandbox_mode,
                b"approvalPolicy" => &mut members.approval_policy,
                _ => {
                    members.has_other = true;
                    continue;
                }
            };
            *member = Some(value);
        }
        members
    }

    /// The retired field that is there.
    fn retired(&self) -> Option<&'static str> {
        let mode = self.sandbox_mode.map(|_| "sandboxMode");
        mode.or(self.approval_policy.map(|_| "approvalPolicy"))
    }

    /// Spec 10 §4.1 step 5: before every rule of the table.
    fn check_retired(&self) -> Result<()> {
        self.retired().map_or(Ok(()), |key| {
            Err(refuse(format!("the header has the retired field {key}")).with_rule("10 §4.1 step 5"))
        })
    }
}

/// The tables of 10 §4.1 and §4.2: `isSeeded` and `seedLength`.
fn check_members(header: &Members<'_>, generation: u8) -> Result<(bool, Option<u64>)> {
    let old = generation < 2;
    if generation == CURRENT_GENERATION {
        header.check_retired()?;
    }
    let of_others = if old { header.is_seeded } else { header.seed_length };
    if header.has_other || header.retired().is_some() || of_others.is_some() {
        return Err(refuse(format!(
            "the header has a key that version {generation} does not know"
        )));
    }
    if !header.row_type.is_some_and(|value| value.text_is("session")) {
        return Err(refuse("`type` of the header must be session"));
    }
    if !header.id.is_some_and(|value| value.is_text()) {
        return Err(refuse("`id` of the header is missing or no string"));
    }
    for (key, value) in [
        ("createdAt", header.created_at),
        ("delegationDepth", header.delegation_depth),
    ] {
        if value.and_then(|value| value.count()).is_none() {
            return Err(refuse(format!("`{key}` of the header is missing or no count")));
        }
    }
    for (key, value) in [
        ("parentSession", header.parent_session),
        ("agentPreset", header.agent_preset),
    ] {
        if value.is_some_and(|value| !value.is_text()) {
            return Err(refuse(format!("`{key}` of the header is no string")));
        }
    }
    if let Some(cwd) = header.cwd
        && !cwd.text().is_some_and(|path| is_absolute(&path, cfg!(windows)))
    {
        return Err(refuse("`cwd` of the header is no absolute path"));
    }
    if header.origin.is_some_and(|value| !value.text_is("subagent")) {
        return Err(refuse("`origin` of the header may only be subagent"));
    }
    if old {
        let declared = header.seed_length.map(|value| value.count());
        if declared == Some(None) {
            return Err(refuse("`seedLength` of the header is no count"));
        }
        return Ok((declared.is_some(), declared.flatten()));
    }
    match header.is_seeded {
        Some(value) if value.kind() == Kind::Boolean => Ok((value.is_true(), None)),
        _ => Err(refuse("`isSeeded` of the header is missing or no boolean")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str, wanted: Option<u8>) -> Result<Header> {
        parse_header(text.as_bytes(), wanted, &Limits::default())
    }

    #[test]
    fn the_version_decides_before_the_table() {
        for version in ["5", "4.5", "9007199254740992", "1e400"] {
            let error = parse(&format!("{{\"version\":{version},\"x\":1}}\n"), Some(4)).unwrap_err();
            assert!(matches!(error.kind(), ErrorKind::NewerFormat { .. }), "{version}");
        }
        for version in ["3", "-1", "0.5", "-0"] {
            let error = parse(&format!("{{\"version\":{version},\"x\":1}}\n"), Some(4)).unwrap_err();
            assert!(matches!(error.kind(), ErrorKind::Unsupported), "{version}");
        }
        let error = parse("{\"version\":\"5\"}\n", Some(4)).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::Header));
    }

    #[test]
    fn what_is_recognised_is_what_is_read() {
        let limits = Limits::default();
        let optional = [
            r#","cwd":"/w é""#,
            r#","parentSession":"p\"q""#,
            r#","origin":"subagent""#,
            r#","agentPreset":"a""#,
        ];
        let (mut recognised, mut refused) = (0, 0);
        for which in 0..16 {
            let member = |index: usize| {
                if which >> index & 1 == 1 {
                    optional[index]
                } else {
                    ""
                }
            };
            let text = format!(
                r#"{{"type":"session","version":4,"id":"s","createdAt":12{}{},"isSeeded":{}{},"delegationDepth":0{}}}"#,
                member(0),
                member(1),
                which % 3 == 0,
                member(2),
                member(3)
            );
            assert_eq!(run_blocks(Recognise(text.as_bytes())), Some(which % 3 == 0));
            for at in 0..text.len() {
                for byte in *b"\"\\{}[],:/-.0e4s \x01\xff" {
                    // A byte in the place of another, before it, and a byte that is missing.
                    for (behind, with) in [(at + 1, &[byte][..]), (at, &[byte]), (at + 1, &[])] {
                        let changed = [&text.as_bytes()[..at], with, &text.as_bytes()[behind..]].concat();
                        let read = read_text(&changed, None, &limits, &mut Tape::new());
                        match run_blocks(Recognise(&changed)) {
                            Some(is_seeded) => {
                                let read = read.unwrap();
                                assert_eq!((read.generation, read.is_seeded), (4, is_seeded));
                                recognised += 1;
                            }
                            None => refused += usize::from(read.is_err()),
                        }
                    }
                }
            }
        }
        assert!(recognised > 1000 && refused > 1000, "{recognised} {refused}");
    }

    #[test]
    fn paths_are_judged_by_the_rules_of_the_host() {
        for (path, posix, windows) in [
            ("/a", true, true),
            ("\\a", false, true),
            ("C:/a", false, true),
            ("C:a", false, false),
            ("", false, false),
        ] {
            assert_eq!(is_absolute(path.as_bytes(), false), posix);
            assert_eq!(is_absolute(path.as_bytes(), true), windows);
        }
    }

    #[test]
    fn a_seed_length_of_zero_is_seeded() {
        let header = parse(
            "{\"type\":\"session\",\"version\":0,\"id\":\"s\",\"createdAt\":1,\"delegationDepth\":0,\"seedLength\":0}\n",
            None,
        );
        let header = header.unwrap();
        assert_eq!((header.is_seeded, header.declared_cut), (true, Some(0)));
    }
}
