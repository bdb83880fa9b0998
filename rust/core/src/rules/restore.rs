//! Layer L4: what a harness demands before it resumes a session. Spec 30 §9.

use super::event::{Event, EventType, array, count, is_filled, is_word, object, pick, refuse};
use super::findings::Layer;
use super::surface::Surface;
use super::tools::HeaderTools;
use crate::error::Error;
use crate::json::Node;

/// L4, event by event. V4 to V7, which belong to it, are those of L3; the header's rules are checked apart.
///
/// After a fault of the surface, which later events build on, the fold stops; the rules for each event alone go on.
#[derive(Debug)]
pub(super) struct Restore {
    surface: Option<Surface>,
    is_seeded: bool,
    event_count: u64,
    markers: Vec<u64>,
}

impl Restore {
    pub(super) fn new(is_seeded: bool) -> Self {
        Self {
            surface: Some(Surface::new()),
            is_seeded,
            event_count: 0,
            markers: Vec::new(),
        }
    }

    /// Takes the next event. Its request header, if it is one, is in `headers` already.
    pub(super) fn feed(&mut self, event: &Event<'_, '_>, headers: &HeaderTools, layer: &mut Layer) {
        self.event_count = event.seq + 1;
        layer.push_some(check_envelope(event));
        layer.push_some(check_payload(event));
        if let Some(surface) = &mut self.surface
            && let Err(fault) = surface.feed(event, headers)
        {
            self.surface = None;
            layer.push(fault);
        }
        if event.is_inherited_marker() {
            self.markers.push(event.seq);
        }
    }

    /// Checks the inherited cut.
    pub(super) fn finish(&self, cut: u64, layer: &mut Layer) {
        let is_marker = self.markers.binary_search(&cut).is_ok();
        let fault = if !self.is_seeded && cut != 0 {
            Some("the inherited cut of a session that is not seeded must be 0".to_owned())
        } else if cut > self.event_count {
            Some(format!("the inherited cut {cut} lies behind the last event"))
        } else if is_marker && self.markers.last() != Some(&cut) {
            Some("an inherited end-seed marker follows the one at the inherited cut".to_owned())
        } else {
            None
        };
        layer.push_some(fault.map(|text| refuse("L4.cut", cut, text)));
    }
}

/// The envelope of an event.
fn check_envelope(event: &Event<'_, '_>) -> Option<Error> {
    let row = event.row;
    let text = if row.has_other {
        "a member is not allowed in an event"
    } else if !row.event_type.is_some_and(|name| name.is_text()) {
        "type is no string"
    } else if count(row.seq) != Some(event.seq) {
        "seq is not the event's position in the log"
    } else if row.time.and_then(|time| time.safe_integer()).is_none() {
        "time is no safe integer"
    } else if row.data.is_none() {
        "data is missing"
    } else if row.ignorable.is_some() && !row.is_ignorable() {
        "ignorable may only be true"
    } else {
        return None;
    };
    Some(event.refuse("L4.envelope", text))
}

/// What no other layer sees of a request header or a settlement.
fn check_payload(event: &Event<'_, '_>) -> Option<Error> {
    if event.kind == EventType::RequestHeader {
        return check_request_header(event.data).map(|text| event.refuse("L4.request-header", text));
    }
    let is_sound = || {
        let has_stream = || event.noted.is_some() || array(event.member("stream")).is_some();
        count(event.turn).is_some() && count(event.step).is_some() && has_stream()
    };
    if !event.kind.is_settlement() || is_sound() {
        return None;
    }
    let text = format!(
        "{} needs turn and step as counts and a stream array",
        event.kind.name()
    );
    Some(event.refuse("L4.settlement", text))
}

fn check_request_header(data: Option<Node<'_>>) -> Option<&'static str> {
    let [header, reason, starts] =
        data.map_or([None; 3], |data| pick(data, ["header", "reason", "startsSeries"]));
    let [config, defaults] =
        object(header).map_or([None; 2], |header| pick(header, ["config", "adapterDefaults"]));
    let Some(config) = object(config) else {
        return Some("request/header has no header.config object");
    };
    let [provider, model, effort] = pick(config, ["provider", "model", "reasoningEffort"]);
    if !(is_filled(provider) && is_filled(model)) {
        return Some("request/header must name provider and model");
    }
    if effort.is_some() && !is_filled(effort) {
        return Some("reasoningEffort of request/header must be a non-empty string");
    }
    if defaults.is_some_and(|defaults| !are_defaults(defaults, config)) {
        return Some("adapterDefaults may only mark reasoningEffort and maxTokens that config has as true");
    }
    if !["initial", "resume", "change", "series"]
        .iter()
        .any(|name| is_word(reason, name))
    {
        return Some("reason of request/header must be initial, resume, change or series");
    }
    if starts.is_some_and(|value| !value.is_true()) {
        return Some("startsSeries of request/header may only be true");
    }
    None
}

fn are_defaults(defaults: Node<'_>, config: Node<'_>) -> bool {
    const NAMES: [&str; 2] = ["reasoningEffort", "maxTokens"];
    let is_known = |key: Node<'_>| NAMES.iter().any(|name| key.text_is(name));
    let marks = |name| {
        defaults
            .member(name)
            .is_none_or(|value| value.is_true() && config.member(name).is_some())
    };
    defaults.is_object() && defaults.members().all(|(key, _)| is_known(key)) && NAMES.into_iter().all(marks)
}
