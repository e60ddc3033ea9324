//! What the CPU keeps for one sequence: a GDN state or a growing KV cache for each layer, and its adapter.

use super::adapter::Pairs;
use crate::engine::backend::{Kept, Saved, SavedSize};
use crate::engine::model::hparams::{HParams, LayerKind};
use crate::engine::model::passes::GRID;
use crate::engine::model::state::SequenceState;
use chimere_ffi::KvType;
use chimere_ffi::cpu::{GdnShape, GdnState, KV_BLOCK, KvBlock};
use std::ops::Range;
use std::sync::Arc;

const _: () = assert!(KV_BLOCK == GRID, "the cuts of a prefill fall between KV blocks");

/// State of one layer of one sequence.
pub(super) enum LayerState {
    Gdn(GdnState),
    /// Blocks of [`KV_BLOCK`] positions, allocated when the sequence reaches them.
    Kv(Vec<KvBlock>),
}

/// States of the main layers, then of the prediction block where there is one.
pub(super) struct Sequence {
    layers: Vec<LayerState>,
    /// Held here, so that a dropped adapter lives as long as the sequences under it.
    pub(super) adapter: Option<Arc<Pairs>>,
}

impl Sequence {
    pub(super) fn new(hp: &HParams) -> Sequence {
        let layer = |kind: &LayerKind| match kind {
            LayerKind::Gdn => LayerState::Gdn(GdnState::new(gdn_shape(hp))),
            LayerKind::Attention => LayerState::Kv(Vec::new()),
        };
        let mut layers: Vec<LayerState> = hp.layers.iter().map(layer).collect();
        layers.extend(hp.mtp.map(|_| LayerState::Kv(Vec::new())));
        Sequence { layers, adapter: None }
    }

    pub(super) fn layer_mut(&mut self, i: usize) -> &mut LayerState {
        &mut self.layers[i]
    }

    /// Blocks of attention layer `i`.
    pub(super) fn blocks(&self, i: usize) -> &[KvBlock] {
        match &self.layers[i] {
            LayerState::Kv(blocks) => blocks,
            LayerState::Gdn(_) => &[],
        }
    }

    /// Writes the key and value row of `position` in attention layer `i`.
    pub(super) fn write(&mut self, i: usize, kind: KvShape, position: usize, k: &[f32], v: &[f32]) {
        let LayerState::Kv(blocks) = &mut self.layers[i] else { return };
        while blocks.len() <= position / KV_BLOCK {
            blocks.push(KvBlock::new(kind.heads, kind.head_dim, kind.kv));
        }
        blocks[position / KV_BLOCK].write(position % KV_BLOCK, k, v);
    }
}

/// What is saved of a sequence: the states of the main layers, each block of keys and values by itself.
impl Sequence {
    pub(super) fn saved_size(hp: &HParams, kind: KvShape) -> SavedSize {
        let attention = hp.attention_layers();
        SavedSize {
            block: attention * KvBlock::bytes_of(kind.heads, kind.head_dim, kind.kv),
            state: (hp.layers.len() - attention) * GdnState::bytes_of(gdn_shape(hp)),
            // Every other number of a row is the same wherever a prompt is cut.
            grid: if attention < hp.layers.len() && gdn_shape(hp).chunked() { GRID } else { 1 },
        }
    }

    /// `size`: of [`Sequence::saved_size`]. Room for exactly that is taken, as it is what a budget is told of.
    pub(super) fn save(&self, layers: usize, blocks: Range<usize>, size: SavedSize) -> Saved {
        let mut saved = Saved {
            blocks: blocks.clone().map(|_| Vec::with_capacity(size.block)).collect(),
            state: Vec::with_capacity(size.state),
        };
        for layer in &self.layers[..layers] {
            match layer {
                LayerState::Gdn(state) => state.save(&mut saved.state),
                LayerState::Kv(held) => {
                    let held = held.get(blocks.clone()).unwrap_or_default();
                    saved.blocks.iter_mut().zip(held).for_each(|(to, block)| block.save(to));
                }
            }
        }
        saved
    }

    /// Takes what was saved, which is of the size of [`Sequence::saved_size`].
    pub(super) fn restore(&mut self, layers: usize, kind: KvShape, kept: &Kept<'_>) {
        let bytes = KvBlock::bytes_of(kind.heads, kind.head_dim, kind.kv);
        let (mut state, mut at) = (kept.state, 0);
        for layer in &mut self.layers[..layers] {
            match layer {
                LayerState::Gdn(to) => {
                    let (own, rest) = state.split_at(to.bytes());
                    to.restore(own);
                    state = rest;
                }
                LayerState::Kv(held) => {
                    let block =
                        |all: &&[u8]| KvBlock::restored(kind.heads, kind.head_dim, kind.kv, &all[at..at + bytes]);
                    *held = kept.blocks.iter().filter_map(block).collect();
                    at += bytes;
                }
            }
        }
    }
}

/// Heads of the GDN layers, as the kernels take them.
pub(super) fn gdn_shape(hp: &HParams) -> GdnShape {
    let g = &hp.gdn;
    GdnShape { key_heads: g.key_heads, value_heads: g.value_heads, head_dim: g.head_dim }
}

/// Shape and precision of KV blocks.
#[derive(Clone, Copy, Debug)]
pub(super) struct KvShape {
    pub(super) heads: usize,
    pub(super) head_dim: usize,
    pub(super) kv: KvType,
}

impl SequenceState for Sequence {
    fn wipe(&mut self) {
        self.adapter = None;
        for layer in &mut self.layers {
            match layer {
                LayerState::Gdn(state) => state.reset(),
                LayerState::Kv(blocks) => blocks.clear(),
            }
        }
    }
}
