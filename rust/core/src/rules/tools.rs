//! What `tool-addition` blocks may name in the request headers of a log. Spec 30 §5.4, §7.2.

use std::collections::{HashMap, HashSet};

use super::equality::{Digest, Hashers};
use super::event::{array, object, pick};
use super::keep::Id;
use crate::json::{Kind, Node};

/// The tools of one request header.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ToolTable {
    /// Names that exactly one tool has, with description, parameters and, if present, `deferLoading` as they must be.
    sound: HashSet<Id>,
    /// Whether an entry is null.
    pub(super) has_null: bool,
}

impl ToolTable {
    fn of(tools: Option<Node<'_>>) -> Self {
        let mut seen: HashMap<Id, bool> = HashMap::new();
        let mut has_null = false;
        for tool in tools.into_iter().flat_map(|tools| tools.elements()) {
            has_null |= tool.kind() == Kind::Null;
            let [name, description, parameters, defer] =
                pick(tool, ["name", "description", "parameters", "deferLoading"]);
            let Some(name) = name.and_then(|name| name.text()) else {
                continue;
            };
            let is_sound = description.is_some_and(|value| value.is_text())
                && object(parameters).is_some()
                && defer.is_none_or(|value| value.is_true());
            seen.entry(Id::of(&name))
                .and_modify(|sound| *sound = false)
                .or_insert(is_sound);
        }
        let sound = seen
            .into_iter()
            .filter_map(|(name, is_sound)| is_sound.then_some(name))
            .collect();
        Self { sound, has_null }
    }

    /// Whether exactly one sound tool has the name.
    pub(super) fn has_sound(&self, name: &[u8]) -> bool {
        self.sound.contains(&Id::of(name))
    }
}

/// The tool tables of all request headers so far. Equal neighbours share one.
#[derive(Debug)]
pub(super) struct HeaderTools {
    hashers: Hashers,
    tables: Vec<ToolTable>,
    /// Digest of the text of the last header's tools.
    last: Option<Digest>,
    /// Seq of each request header, rising, and its place in `tables`.
    headers: Vec<(u64, usize)>,
}

impl HeaderTools {
    pub(super) fn new() -> Self {
        Self {
            hashers: Hashers::new(),
            tables: Vec::new(),
            last: None,
            headers: Vec::new(),
        }
    }

    /// Remembers the tools of the `request/header` with this seq and data.
    pub(super) fn add(&mut self, seq: u64, data: Option<Node<'_>>) {
        let header = object(data.and_then(|data| data.member("header")));
        let tools = array(header.and_then(|header| header.member("tools")));
        // Equal text is the usual case by far; other spellings of equal tools get a table of their own or the last one.
        let digest = self
            .hashers
            .digest(tools.and_then(|tools| tools.raw()).unwrap_or_default());
        if self.last != Some(digest) {
            self.last = Some(digest);
            let table = ToolTable::of(tools);
            if self.tables.last() != Some(&table) {
                self.tables.push(table);
            }
        }
        self.headers.push((seq, self.tables.len().saturating_sub(1)));
    }

    /// The table of the `request/header` with this seq; None if there is none there.
    pub(super) fn get(&self, seq: u64) -> Option<&ToolTable> {
        let at = self.headers.binary_search_by_key(&seq, |&(seq, _)| seq).ok()?;
        let &(_, table) = self.headers.get(at)?;
        self.tables.get(table)
    }
}
