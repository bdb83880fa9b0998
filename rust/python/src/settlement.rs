//! The event that settles an attempt, written from what a packer holds. Spec 30 §4, §10; key order of 70 §1.

use dsh_codec_core::Limits;
use dsh_codec_core::row::Admission;
use dsh_codec_core::stream as core;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyList, PyTuple};

use crate::encode::{Encoder, encode_events};
use crate::errors::KernelResult;
use crate::pyvalue::PyValue;
use crate::quick_write::QuickWriter;
use crate::stream::{Assembler, Packing, block_object, replay_object};

type Object<'py> = Bound<'py, PyAny>;

/// What the stream does not tell of a settlement.
#[derive(FromPyObject)]
pub(crate) struct Given<'py>(
    /// Turn.
    Object<'py>,
    /// Step.
    Object<'py>,
    /// Time.
    Object<'py>,
    /// Id, provider and model of the message, if there is one.
    Option<(Object<'py>, Object<'py>, Object<'py>)>,
    /// Whether it was interrupted.
    Object<'py>,
);

impl Given<'_> {
    /// Whether a message was interrupted. The value may run code that says so.
    pub(crate) fn is_interrupted(&self) -> PyResult<bool> {
        Ok(self.3.is_some() && self.4.is_truthy()?)
    }
}

/// What the stream tells of a message.
struct Message<'py> {
    content: Vec<Object<'py>>,
    replay_state: Option<Object<'py>>,
    usage: Option<Object<'py>>,
}

impl<'py> Message<'py> {
    fn of(py: Python<'py>, records: &[core::Packed<Py<PyAny>>], is_interrupted: bool) -> KernelResult<Self> {
        let mut assembler = core::Assembler::new();
        assembler.push_packed(records, |kept| PyValue(kept.bind(py).clone()))?;
        let replay_state = replay_object(py, assembler.replay_state()?)?;
        let blocks = if is_interrupted {
            assembler.interrupted_blocks()?
        } else {
            assembler.blocks()?
        };
        let content = blocks.into_iter().map(|block| block_object(py, block));
        Ok(Self {
            content: content.collect::<PyResult<_>>()?,
            replay_state,
            usage: assembler.usage().map(|usage| usage.bind(py).clone()),
        })
    }
}

/// Writes the event of a usual settlement. None: it is left to [`encode_event`], which says what is wrong if anything is.
///
/// # Errors
/// The chunks cannot be assembled.
pub(crate) fn settle<'py>(
    py: Python<'py>,
    packing: &mut Packing,
    given: &Given<'py>,
    is_interrupted: bool,
    seq: u64,
    max_row_bytes: u64,
) -> KernelResult<Option<Object<'py>>> {
    let records = packing.packer.records();
    let told = match &given.3 {
        Some(_) => Some(Message::of(py, records, is_interrupted)?),
        None => None,
    };
    packing
        .text
        .follow(py, records, Limits::default().max_depth as usize);
    let mut encoder = Encoder::new(max_row_bytes);
    let rows = encoder.write(py, Admission::IfRetired, |row| {
        write_event(row, given, told.as_ref(), is_interrupted, packing, seq)
    });
    Ok(match rows {
        Some(()) => Some(encoder.finish(py, 1)?),
        None => None,
    })
}

fn write_event(
    row: &mut QuickWriter<'_, '_>,
    Given(turn, step, time, message, _): &Given<'_>,
    told: Option<&Message<'_>>,
    is_interrupted: bool,
    packing: &Packing,
    seq: u64,
) -> Option<()> {
    let (event_type, end) = match told {
        Some(_) => ("message", "},\"surfaceOp\":\"append\"}\n"),
        None => ("attempt", "}}\n"),
    };
    row.literal("{\"type\":\"assistant/");
    row.literal(event_type);
    row.literal("\",\"seq\":");
    row.seq(seq)?;
    row.literal("\"time\":");
    row.time(time)?;
    row.literal("\"data\":{\"turn\":");
    row.element(turn)?;
    row.literal("\"step\":");
    row.element(step)?;
    if let (Some((id, provider, model)), Some(told)) = (message, told) {
        row.literal("\"message\":{\"role\":\"assistant\",\"content\":[");
        for block in &told.content {
            row.element(block)?;
        }
        row.close(b'[', b']');
        row.literal("\"source\":{\"kind\":\"model\",\"provider\":");
        row.element(provider)?;
        row.literal("\"model\":");
        row.element(model)?;
        if let Some(state) = &told.replay_state {
            row.literal("\"replayState\":");
            row.element(state)?;
        }
        row.close(b'{', b'}');
        row.literal("\"id\":");
        row.element(id)?;
        row.close(b'{', b'}');
        if let Some(usage) = &told.usage {
            row.literal("\"usage\":");
            row.element(usage)?;
        }
        if is_interrupted {
            row.literal("\"interrupted\":true,");
        }
    }
    row.literal("\"stream\":");
    row.packed(&packing.text, packing.packer.records())?;
    row.literal(end);
    Some(())
}

/// Writes the event of a settlement, whatever it is made of.
///
/// # Errors
/// As for `encode_events`, and if the chunks cannot be assembled.
pub(crate) fn encode_event<'py>(
    py: Python<'py>,
    records: Bound<'py, PyList>,
    Given(turn, step, time, message, _): Given<'py>,
    is_interrupted: bool,
    seq: u64,
    max_row_bytes: u64,
) -> KernelResult<Object<'py>> {
    static MAKE: PyOnceLock<Py<PyAny>> = PyOnceLock::new();

    let make = MAKE.import(py, "dsh_codec.settlement", "settlement_event")?;
    let event = make.call1((
        Assembler::new(),
        records,
        seq,
        turn,
        step,
        time,
        message,
        is_interrupted,
    ))?;
    encode_events(py, PyTuple::new(py, [event])?.as_any(), seq, max_row_bytes)
}
