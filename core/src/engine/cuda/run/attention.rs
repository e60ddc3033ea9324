//! Attention's stages of a pass: queries, keys and values, the cache and what is read from it, each by the kernel for so
//! many rows.

use std::ops::Range;

use super::{Run, with_targets};
use crate::engine::cuda::adapters::Target;
use crate::engine::cuda::memory::LayerState;
use crate::engine::cuda::weights::OnDevice;
use crate::engine::model::weights::{Attention as AttentionWeights, Mixer};
use chimere_ffi::gpu::{Buffer, GpuError};
use chimere_ffi::kernels::{attention, attention_prefill, norm};

impl<'a> Run<'a> {
    pub(super) fn attention_project(&mut self, i: usize) -> Result<(), GpuError> {
        let layer = self.layer(i);
        let Mixer::Attention(w) = &layer.mixer else { return Ok(()) };
        self.norm(&layer.norm)?;
        let m = &self.c.memory;
        let products = [(&w.q, &m.query_gate), (&w.k, &m.k), (&w.v, &m.v)];
        self.product(self.input(), &products, false)?;
        self.adapt(i, self.input(), &with_targets([Target::Q, Target::K, Target::V], products))
    }

    fn attention_parts(&self, i: usize) -> Option<(&'a AttentionWeights<OnDevice>, &'a Buffer, &'a Buffer)> {
        match (&self.layer(i).mixer, &self.c.states.layers[i]) {
            (Mixer::Attention(w), LayerState::Kv { keys, values }) => Some((w, keys, values)),
            _ => None,
        }
    }

    pub(super) fn attention_cache(&mut self, i: usize) -> Result<(), GpuError> {
        if self.few() && self.settled() {
            return Ok(());
        }
        self.cache(i).map_or(Ok(()), |a| attention::cache(&self.c.device, &a, self.rows))
    }

    /// Norm, rotation and cache of every row.
    pub(in crate::engine::cuda) fn cache(&self, i: usize) -> Option<attention::Cache> {
        let (w, keys, values) = self.attention_parts(i)?;
        let (m, p, s) = (&self.c.memory, &self.c.hp.attention, &self.c.sizes);
        Some(attention::Cache {
            query_gate: m.query_gate.at(),
            k: m.k.at(),
            v: m.v.at(),
            q_norm: w.q_norm.at(),
            k_norm: w.k_norm.at(),
            angles: m.angles.at(),
            q: m.q.at(),
            keys: keys.at(),
            values: values.at(),
            pages: self.c.states.table.at(),
            slot: m.plan.from(self.list),
            position: m.plan.from(2 * self.list),
            heads: p.heads as u32,
            kv_heads: p.kv_heads as u32,
            dim: p.head_dim as u32,
            rope_dims: p.rope_dims as u32,
            pages_max: s.pages as u32,
            halves: u32::from(s.kv_bytes == 2),
            eps: self.c.hp.rms_eps,
            pad: 0.0,
        })
    }

    pub(super) fn attention_mix(&mut self, i: usize) -> Result<(), GpuError> {
        if self.few() {
            let few = self.attend_few(i);
            return few.map_or(Ok(()), |(a, join)| attention::few(&self.c.device, &a, &join, self.rows));
        }
        let mut done = 0;
        for (n, span) in self.long.iter().enumerate() {
            self.attend(i, done..span.start)?;
            self.attend_long(i, self.spans + n, span.rows())?;
            done = span.start + span.len;
        }
        self.attend(i, done..self.rows)
    }

    /// Attention of the rows of the span at `index` of the plan.
    fn attend_long(&self, i: usize, index: usize, rows: Range<usize>) -> Result<(), GpuError> {
        let Some((_, keys, values)) = self.attention_parts(i) else { return Ok(()) };
        let (m, p) = (&self.c.memory, &self.c.hp.attention);
        let width = p.heads * p.head_dim;
        let a = attention_prefill::Prefill {
            q: m.q.at(),
            keys: keys.at(),
            values: values.at(),
            pages: self.c.states.table.at(),
            spans: m.plan.from(4 * self.list + 16 * index),
            query_gate: m.query_gate.at(),
            y: m.mixed.x.at(),
            heads: p.heads as u32,
            kv_heads: p.kv_heads as u32,
            dim: p.head_dim as u32,
            pages_max: self.c.sizes.pages as u32,
            scale: 1.0 / (p.head_dim as f32).sqrt(),
            pad: 0.0,
        };
        attention_prefill::launch(&self.c.device, &a, 1, rows.len())?;
        let at = rows.start * width;
        norm::halve(&self.c.device, m.mixed.x.from(4 * at), rows.len(), width, m.mixed.halves.from(2 * at))
    }

    fn attend(&self, i: usize, rows: Range<usize>) -> Result<(), GpuError> {
        let Some((_, keys, values)) = self.attention_parts(i) else { return Ok(()) };
        let (m, p, s) = (&self.c.memory, &self.c.hp.attention, &self.c.sizes);
        let width = p.heads * p.head_dim;
        for first in rows.clone().step_by(s.attention_rows) {
            let count = s.attention_rows.min(rows.end - first);
            let (slot, position) = (m.plan.from(self.list + 4 * first), m.plan.from(2 * self.list + 4 * first));
            let a = attention::Attention {
                q: m.q.from(4 * first * width),
                keys: keys.at(),
                values: values.at(),
                pages: self.c.states.table.at(),
                slot,
                position,
                part: m.parts.at(),
                heads: p.heads as u32,
                kv_heads: p.kv_heads as u32,
                dim: p.head_dim as u32,
                pages_max: s.pages as u32,
                halves: u32::from(s.kv_bytes == 2),
                chunk: s.chunk as u32,
                chunks_max: s.chunks as u32,
                scale: 1.0 / (p.head_dim as f32).sqrt(),
                ..Default::default()
            };
            let join = attention::Join {
                part: m.parts.at(),
                query_gate: m.query_gate.from(8 * first * width),
                position,
                y: m.mixed.x.from(4 * first * width),
                halves: m.mixed.halves.from(2 * first * width),
                heads: p.heads as u32,
                dim: p.head_dim as u32,
                chunk: s.chunk as u32,
                chunks_max: s.chunks as u32,
            };
            attention::attend(&self.c.device, &a, &join, count)?;
        }
        Ok(())
    }

    /// Whether the kernel for few rows serves, and whether each of them is the only one of its sequence.
    fn few(&self) -> bool {
        let s = &self.c.sizes;
        s.kv_bytes == 2 && self.rows <= attention::FEW.min(s.attention_rows)
    }

    fn settled(&self) -> bool {
        self.spans == self.rows
    }

    /// Attention of few rows, and how its chunks are joined.
    pub(in crate::engine::cuda) fn attend_few(&self, i: usize) -> Option<(attention::Attend, attention::Join)> {
        let (w, keys, values) = self.attention_parts(i)?;
        let (m, p, s) = (&self.c.memory, &self.c.hp.attention, &self.c.sizes);
        let position = m.plan.from(2 * self.list);
        let a = attention::Attend {
            q: m.q.at(),
            query_gate: m.query_gate.at(),
            k: m.k.at(),
            v: m.v.at(),
            q_norm: w.q_norm.at(),
            k_norm: w.k_norm.at(),
            angles: m.angles.at(),
            keys: keys.at(),
            values: values.at(),
            pages: self.c.states.table.at(),
            slot: m.plan.from(self.list),
            position,
            part: m.parts.at(),
            heads: p.heads as u32,
            kv_heads: p.kv_heads as u32,
            dim: p.head_dim as u32,
            rope_dims: p.rope_dims as u32,
            pages_max: s.pages as u32,
            chunk: s.chunk as u32,
            chunks_max: s.chunks as u32,
            settled: u32::from(self.settled()),
            scale: 1.0 / (p.head_dim as f32).sqrt(),
            eps: self.c.hp.rms_eps,
        };
        let join = attention::Join {
            part: m.parts.at(),
            query_gate: m.query_gate.at(),
            position,
            y: m.mixed.x.at(),
            halves: m.mixed.halves.at(),
            heads: p.heads as u32,
            dim: p.head_dim as u32,
            chunk: s.chunk as u32,
            chunks_max: s.chunks as u32,
        };
        Some((a, join))
    }
}
