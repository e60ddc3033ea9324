//! What lies on the device beside the weights: activations of a pass, states and caches of the sequences. Also
//! the plan that says how much of each there is.

mod snapshot;

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use chimere_ffi::cpu::Angles;
use chimere_ffi::gpu::{Buffer, Device, GpuError};
use chimere_ffi::kernels::attention::{self, PAGE};
use chimere_ffi::kernels::gdn::{WINDOW_FLOATS, state_bytes};
use chimere_ffi::kernels::{attention_prefill, grouped, lora, low, norm};
use chimere_ffi::{KvType, StateType};
use serde::Serialize;

use super::adapters::{Held, table_bytes};
use super::offload::Split;
use super::rows::Likely;
use super::{CudaOptions, PLAN_LISTS, ROWS_MAX, SHORT_ROWS_MAX};
use crate::engine::model::hparams::{HParams, LayerKind};
use crate::engine::model::state::SequenceState;

/// Rows of logits computed together.
pub(super) const HEAD_ROWS: usize = 64;
/// Bytes of attention's partial sums, unless one block's tokens need more: those of 32 rows of the 35B at the end of any
/// context. Rows are worked on in groups that fit.
const PARTS_BYTES: usize = 68 << 20;

/// Sizes that follow from a model and its options.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sizes {
    /// Rows of a pass.
    pub(super) rows: usize,
    /// Positions of one sequence, and pages of them.
    pub(super) context: usize,
    pub(super) pages: usize,
    pub(super) sequences: usize,
    /// Chunks of attention of the rows that have most.
    pub(super) chunks: usize,
    /// Rows whose partial sums fit at once, and floats of all sums.
    pub(super) attention_rows: usize,
    pub(super) parts: usize,
    /// What keys and values are kept as, and recurrent states.
    pub(super) kv: KvType,
    pub(super) state: StateType,
    /// Widest inner row of an expert.
    pub(super) inner: usize,
    /// Bytes that adapters have room in; 0: none can be loaded.
    pub(super) adapters: usize,
    /// How the experts are divided between card and host; absent: all lie on the card.
    pub(super) split: Option<Split>,
    /// Bytes of the embedding where it lies in the host's memory; 0: it lies on the card.
    pub(super) host_embedding: u64,
}

impl Sizes {
    /// `rows`: most rows of a pass; `adapters`: bytes of their room.
    pub(super) fn new(hp: &HParams, o: &CudaOptions, rows: usize, adapters: usize) -> Sizes {
        let context = if o.context_tokens == 0 { hp.trained_context_tokens } else { o.context_tokens };
        let chunks = attention::chunks_of(context);
        let rows = rows.min((context * o.sequences_max).next_multiple_of(PAGE)).max(SHORT_ROWS_MAX);
        let a = &hp.attention;
        let row = a.heads * chunks * (a.head_dim + 2);
        let attention_rows = (PARTS_BYTES / 4 / row).clamp(1, rows);
        let tile = attention_prefill::floats_min(a.heads, a.kv_heads, a.head_dim, context);
        Sizes {
            rows,
            context,
            pages: context.div_ceil(PAGE),
            sequences: o.sequences_max,
            chunks,
            attention_rows,
            parts: (attention_rows * row).max(tile),
            kv: o.kv,
            state: o.state,
            inner: hp.moe.width.max(hp.moe.shared_width),
            adapters,
            split: None,
            host_embedding: 0,
        }
    }

    /// Bytes of the keys, and of the values, of one layer.
    fn cache_bytes(&self, hp: &HParams) -> (usize, usize) {
        self.kv.bytes(self.sequences * self.pages * PAGE * hp.attention.kv_heads * hp.attention.head_dim)
    }

    /// Inner values of adapters: gate and up of every pair at most, or four matrices of every row.
    fn lora_rows(&self, hp: &HParams) -> usize {
        if self.adapters == 0 { 0 } else { self.rows * (2 * (hp.moe.used + 1)).max(lora::PARTS_MAX) }
    }

    /// Words of the inner values of adapters in tiles, and of what their launches count.
    fn low_words(&self, hp: &HParams) -> (usize, usize) {
        let counts = LOW_LAUNCHES * hp.layers.len() * low::words(self.rows);
        if self.adapters == 0 { (0, 0) } else { (self.rows * low::PARTS_MAX * low::RANK_MAX / 2, counts) }
    }
}

/// Launches of a pass that wait for inner values of adapters: at most so many a layer.
pub(super) const LOW_LAUNCHES: usize = 3;

/// How the memory is divided, for people.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Placement {
    /// Bytes, as all others: experts on the card and everything else.
    pub weights: u64,
    /// Of it the experts that stay, and the slots that the others come to.
    pub experts: u64,
    pub slots: u64,
    /// Experts whose home is the host's memory, pinned there; no part of the total.
    pub host: u64,
    /// The embedding where it lies in the host's memory, pinned too; 0: it is among the weights.
    pub host_embedding: u64,
    /// Experts of a layer: all, those that stay on the card, and the slots for the others.
    pub experts_a_layer: usize,
    pub resident_a_layer: usize,
    pub slots_a_layer: usize,
    /// Positions of a sequence, and sequences, that this is for.
    pub context_tokens: usize,
    pub sequences: usize,
    /// Keys and values, and what they are kept as; so the recurrent states.
    pub kv: u64,
    pub kv_type: &'static str,
    pub states: u64,
    pub state_type: &'static str,
    /// Room for adapters.
    pub adapters: u64,
    pub scratch: u64,
    pub free: u64,
}

impl Placement {
    pub(super) fn new(hp: &HParams, sizes: &Sizes, (experts, dense): (u64, u64), free: u64) -> Placement {
        let attention = hp.attention_layers() + usize::from(hp.mtp.is_some());
        let recurrent = hp.layers.len() - hp.attention_layers();
        let state = (state_bytes(sizes.state) + 4 * WINDOW_FLOATS) * hp.gdn.value_heads;
        let (keys, values) = sizes.cache_bytes(hp);
        let count = hp.moe.experts;
        let split = sizes.split.unwrap_or(Split { kept: count, slots: 0 });
        let share = |n: usize| experts / count.max(1) as u64 * n as u64;
        Placement {
            weights: dense - sizes.host_embedding + share(split.held()),
            experts: share(split.kept),
            slots: share(split.slots),
            host: share(count - split.kept),
            host_embedding: sizes.host_embedding,
            experts_a_layer: count,
            resident_a_layer: split.kept,
            slots_a_layer: split.slots,
            context_tokens: sizes.context,
            sequences: sizes.sequences,
            kv_type: sizes.kv.name(),
            kv: (attention * (keys + values)) as u64,
            state_type: sizes.state.name(),
            states: (recurrent * sizes.sequences * state) as u64,
            adapters: (sizes.adapters + table_bytes(hp.layers.len(), sizes.sequences)) as u64,
            scratch: scratch_bytes(hp, sizes) as u64,
            free,
        }
    }

    pub fn total(&self) -> u64 {
        self.weights + self.kv + self.states + self.adapters + self.scratch
    }
}

impl fmt::Display for Placement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let gib = |n: u64| n as f64 / f64::from(1 << 30);
        write!(
            f,
            "{:.2} GiB of device memory: weights {:.2}, KV cache {:.2} ({}), states {:.2} ({}), adapters {:.2}, activations {:.2}; {:.2} free",
            gib(self.total()),
            gib(self.weights),
            gib(self.kv),
            self.kv_type,
            gib(self.states),
            self.state_type,
            gib(self.adapters),
            gib(self.scratch),
            gib(self.free)
        )?;
        if self.host_embedding > 0 {
            write!(f, "; the embedding lies in {:.2} GiB of the host's memory", gib(self.host_embedding))?;
        }
        if self.host == 0 {
            return Ok(());
        }
        write!(
            f,
            "; of {} experts a layer {} stay on the card ({:.2} GiB), {} slots ({:.2} GiB) are for the others, which lie in {:.2} GiB of the host's memory",
            self.experts_a_layer,
            self.resident_a_layer,
            gib(self.experts),
            self.slots_a_layer,
            gib(self.slots),
            gib(self.host)
        )
    }
}

/// Floats, and the same as halves.
pub(super) struct Activation {
    pub(super) x: Buffer,
    pub(super) halves: Buffer,
}

impl Activation {
    fn new(d: &Device, rows: usize, width: usize) -> Result<Activation, GpuError> {
        let padded = rows * width.next_multiple_of(32);
        Ok(Activation { x: d.zeroed(4 * rows * width)?, halves: d.zeroed(2 * padded)? })
    }

    pub(super) fn out(&self, stride: usize) -> norm::Out {
        norm::Out { n: self.x.at(), stride, halves: self.halves.at() }
    }
}

/// Buffers of a pass; letters as in `model::stages`, T = `Sizes::rows`, K = experts used.
pub(super) struct Memory {
    /// Words: tokens, slots, positions, wanted rows [T each], spans [T, 4], groups of rows under one adapter, and adapters of groups
    /// [T each].
    pub(super) plan: Buffer,
    pub(super) x: Buffer,
    /// The rows that somebody asked for.
    pub(super) narrow: Buffer,
    /// Sums of the squares of each 16 values of the residual stream, of a single row.
    pub(super) squares: Buffer,
    pub(super) input: Activation,
    pub(super) mixed: Activation,
    pub(super) combined: Activation,
    pub(super) qkv: Buffer,
    pub(super) z: Buffer,
    pub(super) alpha: Buffer,
    pub(super) beta: Buffer,
    pub(super) query_gate: Buffer,
    pub(super) k: Buffer,
    pub(super) v: Buffer,
    pub(super) q: Buffer,
    pub(super) parts: Buffer,
    pub(super) router: Buffer,
    pub(super) weight: Buffer,
    pub(super) chosen: Buffer,
    /// Blocks that others of their kernel wait for: none, between the kernels.
    pub(super) arrived: Buffer,
    pub(super) active: Buffer,
    pub(super) start: Buffer,
    pub(super) pairs: Buffer,
    /// What the experts have to do, for many tokens.
    pub(super) work: Buffer,
    /// The recurrent mix of many tokens: inputs after the convolution, and gates.
    pub(super) convolved: Buffer,
    pub(super) gates: Buffer,
    /// Inner values of the experts [T·(K+1), inner], and their results [T·(K+1), D].
    pub(super) h: Activation,
    pub(super) y: Buffer,
    /// Inner values of adapters [rows][`lora::RANK_MAX`].
    pub(super) inner: Buffer,
    /// The same as halves, of those in tiles [parts][T][`lora::RANK_MAX`], and what their launches count.
    pub(super) low_inner: Buffer,
    pub(super) low_arrived: Buffer,
    pub(super) logits: Buffer,
    pub(super) likely: Likely,
    /// Cosines and sines [positions, rope_dims].
    pub(super) angles: Buffer,
}

/// Bytes of [`Memory`], by the same sums.
fn scratch_bytes(hp: &HParams, s: &Sizes) -> usize {
    let (t, d, g, a, m) = (s.rows, hp.width, &hp.gdn, &hp.attention, &hp.moe);
    let mixed = g.value_dim().max(a.heads * a.head_dim);
    let activation = |rows: usize, width: usize| rows * (4 * width + 2 * width.next_multiple_of(32));
    let floats = t * (2 * d + g.channels() + g.value_dim() + 2 * g.value_heads)
        + t * (3 * a.heads + 2 * a.kv_heads) * a.head_dim
        + t * (m.experts + 4 * m.used + 4)
        + 4 * (1 + grouped::lists_max(t, m.used, m.experts))
        + t * (g.channels() + 8 * g.value_heads)
        + t * (m.used + 1) * d
        + HEAD_ROWS * (hp.vocab + Likely::WORDS)
        + s.lora_rows(hp) * lora::RANK_MAX
        + s.low_words(hp).0
        + s.low_words(hp).1
        + s.context * a.rope_dims
        + d.div_ceil(16)
        + 2;
    4 * floats
        + activation(t, d)
        + activation(t, mixed)
        + activation(t, 2 * d)
        + activation(t * (m.used + 1), s.inner)
        + 4 * s.parts
}

impl Memory {
    pub(super) fn new(d: &Device, hp: &HParams, s: &Sizes) -> Result<Memory, GpuError> {
        let (t, g, a, m) = (s.rows, &hp.gdn, &hp.attention, &hp.moe);
        let floats = |n: usize| d.zeroed(4 * n);
        let mixed = g.value_dim().max(a.heads * a.head_dim);
        let pairs = t * (m.used + 1);
        Ok(Memory {
            plan: floats(PLAN_LISTS * ROWS_MAX)?,
            x: floats(t * hp.width)?,
            narrow: floats(t * hp.width)?,
            squares: floats(hp.width.div_ceil(16))?,
            input: Activation::new(d, t, hp.width)?,
            mixed: Activation::new(d, t, mixed)?,
            combined: Activation::new(d, t, 2 * hp.width)?,
            qkv: floats(t * g.channels())?,
            z: floats(t * g.value_dim())?,
            alpha: floats(t * g.value_heads)?,
            beta: floats(t * g.value_heads)?,
            query_gate: floats(2 * t * a.heads * a.head_dim)?,
            k: floats(t * a.kv_heads * a.head_dim)?,
            v: floats(t * a.kv_heads * a.head_dim)?,
            q: floats(t * a.heads * a.head_dim)?,
            parts: floats(s.parts)?,
            router: floats(t * (m.experts + 1))?,
            weight: floats(pairs)?,
            chosen: floats(t * m.used)?,
            arrived: floats(2)?,
            active: floats(m.experts + 1)?,
            start: floats(m.experts + 1)?,
            pairs: floats(t * m.used)?,
            work: floats(4 * (1 + grouped::lists_max(t, m.used, m.experts)))?,
            convolved: floats(t * g.channels())?,
            gates: floats(8 * t * g.value_heads)?,
            h: Activation::new(d, pairs, s.inner)?,
            y: floats(pairs * hp.width)?,
            inner: floats(s.lora_rows(hp) * lora::RANK_MAX)?,
            low_inner: floats(s.low_words(hp).0)?,
            low_arrived: floats(s.low_words(hp).1)?,
            logits: floats(HEAD_ROWS * hp.vocab)?,
            likely: Likely::new(d)?,
            angles: angles(d, hp, s.context)?,
        })
    }
}

/// Cosines and sines as the processor makes them.
fn angles(d: &Device, hp: &HParams, context: usize) -> Result<Buffer, GpuError> {
    let (rope, mut angles) = (hp.attention.rope(), Angles::default());
    let mut values = Vec::with_capacity(context * hp.attention.rope_dims);
    for position in 0..context {
        rope.angles(position, &mut angles);
        values.extend(angles.pairs().flat_map(|(cos, sin)| [cos, sin]));
    }
    let buffer = d.allocate(4 * values.len())?;
    buffer.write_f32(0, &values)?;
    Ok(buffer)
}

/// States of a layer, for every slot.
pub(super) enum LayerState {
    /// [slots][value heads][128][128] of their type, and the windows of the convolution.
    Gdn { state: Buffer, window: Buffer },
    /// Pages of keys and of values.
    Kv { keys: Buffer, values: Buffer },
}

/// States of all sequences: main layers, then the prediction block.
pub(super) struct States {
    pub(super) layers: Vec<LayerState>,
    /// Pages of each slot [slots][pages].
    pub(super) table: Buffer,
    pub(super) free: FreePages,
    pages: usize,
    heads: usize,
    state: StateType,
}

/// Pages that no sequence holds.
pub(super) type FreePages = Arc<Mutex<Vec<u32>>>;

/// What the host knows of a slot's memory.
pub(super) struct Sequence {
    pages: Vec<u32>,
    free: FreePages,
    pub(super) adapter: Option<Arc<Held>>,
    /// Where the prompt ends that it begins with, if somebody said so.
    pub(super) prompt: usize,
}

impl SequenceState for Sequence {
    fn wipe(&mut self) {
        self.free.lock().unwrap_or_else(PoisonError::into_inner).append(&mut self.pages);
        (self.adapter, self.prompt) = (None, 0);
    }
}

impl States {
    pub(super) fn new(d: &Device, hp: &HParams, s: &Sizes) -> Result<States, GpuError> {
        let heads = s.sequences * hp.gdn.value_heads;
        let layer = |kind: &LayerKind| match kind {
            LayerKind::Gdn => Ok(LayerState::Gdn {
                state: d.zeroed(heads * state_bytes(s.state))?,
                window: d.zeroed(4 * heads * WINDOW_FLOATS)?,
            }),
            LayerKind::Attention => {
                let (keys, values) = s.cache_bytes(hp);
                Ok(LayerState::Kv { keys: d.zeroed(keys)?, values: d.zeroed(values)? })
            }
        };
        let kinds = hp.layers.iter().chain(hp.mtp.map(|_| &LayerKind::Attention));
        let pages = (s.sequences * s.pages) as u32;
        Ok(States {
            layers: kinds.map(layer).collect::<Result<_, GpuError>>()?,
            table: d.zeroed(4 * s.sequences * s.pages)?,
            free: Arc::new(Mutex::new((0..pages).rev().collect())),
            pages: s.pages,
            heads: hp.gdn.value_heads,
            state: s.state,
        })
    }

    pub(super) fn sequence(&self) -> Sequence {
        Sequence { pages: Vec::new(), free: Arc::clone(&self.free), adapter: None, prompt: 0 }
    }

    /// Zeroes the recurrent states of a slot, before its first token.
    pub(super) fn clear(&self, slot: usize) -> Result<(), GpuError> {
        for layer in &self.layers {
            if let LayerState::Gdn { state, window } = layer {
                for (buffer, bytes) in self.of_head(state, window) {
                    buffer.zero(self.of_slot(slot, bytes))?;
                }
            }
        }
        Ok(())
    }

    /// Gives a slot pages for `positions` positions.
    pub(super) fn grow(&self, slot: usize, sequence: &mut Sequence, positions: usize) -> Result<(), GpuError> {
        let held = sequence.pages.len();
        let wanted = positions.div_ceil(PAGE).min(self.pages);
        if held >= wanted {
            return Ok(());
        }
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        let at = free.len().saturating_sub(wanted - held);
        sequence.pages.extend(free.drain(at..).rev());
        self.table.write_u32(slot * self.pages + held, &sequence.pages[held..])
    }
}
