//! Attention's stages of a pass: queries, keys and values, the cache and what is read from it, each by the kernel for so
//! many rows.

use std::ops::Range;

use super::{Long, Run, with_targets};
use crate::engine::cuda::adapters::Target;
use crate::engine::cuda::memory::LayerState;
use crate::engine::cuda::weights::OnDevice;
use crate::engine::model::weights::{Attention as AttentionWeights, Mixer};
use chimere_ffi::KvType;
use chimere_ffi::gpu::{Buffer, GpuError};
use chimere_ffi::kernels::attention;
use chimere_ffi::kernels::attention_prefill::{self, Reach};

impl<'a> Run<'a> {
    pub(super) fn attention_project(&mut self, i: usize) -> Result<(), GpuError> {
        let layer = self.layer(i);
        let Mixer::Attention(w) = &layer.mixer else { return Ok(()) };
        let m = &self.c.memory;
        let products = [(&w.q, &m.query_gate), (&w.k, &m.k), (&w.v, &m.v)];
        self.project(i, &with_targets([Target::Q, Target::K, Target::V], products))
    }

    fn attention_parts(&self, i: usize) -> Option<(&'a AttentionWeights<OnDevice>, &'a Buffer, &'a Buffer)> {
        match (&self.layer(i).mixer, &self.c.states.layers[i]) {
            (Mixer::Attention(w), LayerState::Kv { keys, values }) => Some((w, keys, values)),
            _ => None,
        }
    }

    pub(super) fn attention_cache(&mut self, i: usize) -> Result<(), GpuError> {
        if self.settled() {
            return Ok(());
        }
        self.cache(i).map_or(Ok(()), |a| attention::cache(&self.c.device, &a, self.rows))
    }

    /// Norm, rotation and cache of every row.
    fn cache(&self, i: usize) -> Option<attention::Cache> {
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
            kind: attention::kind(s.kv),
            eps: self.c.hp.rms_eps,
            pad: 0.0,
        })
    }

    pub(super) fn attention_mix(&mut self, i: usize) -> Result<(), GpuError> {
        let mut done = 0;
        for long in &self.long {
            self.attend(i, done..long.start)?;
            self.attend_long(i, long)?;
            done = long.start + long.len;
        }
        self.attend(i, done..self.rows)
    }

    fn attend_long(&self, i: usize, long: &Long) -> Result<(), GpuError> {
        let Some((_, keys, values)) = self.attention_parts(i) else { return Ok(()) };
        let (m, p, s) = (&self.c.memory, &self.c.hp.attention, &self.c.sizes);
        let a = attention_prefill::Prefill {
            q: m.q.at(),
            keys: keys.at(),
            values: values.at(),
            pages: self.c.states.table.at(),
            span: m.plan.from(4 * self.list + 16 * long.index),
            query_gate: m.query_gate.at(),
            y: m.mixed.x.at(),
            part: m.parts.at(),
            heads: p.heads as u32,
            kv_heads: p.kv_heads as u32,
            dim: p.head_dim as u32,
            pages_max: s.pages as u32,
            split: attention_prefill::SPLIT as u32,
            scale: 1.0 / (p.head_dim as f32).sqrt(),
            ..Default::default()
        };
        let join = self.join(long.start);
        let reach = match long.position {
            Some(position) => Reach::From(position),
            None => Reach::Context(s.context),
        };
        attention_prefill::launch(&self.c.device, s.kv, &a, &join, (reach, long.len), m.parts.len() / 4)
    }

    /// What joins the chunks of the rows from `first` on.
    fn join(&self, first: usize) -> attention::Join {
        let (m, p, s) = (&self.c.memory, &self.c.hp.attention, &self.c.sizes);
        let at = first * p.heads * p.head_dim;
        attention::Join {
            part: m.parts.at(),
            query_gate: m.query_gate.from(8 * at),
            position: m.plan.from(2 * self.list + 4 * first),
            y: m.mixed.x.from(4 * at),
            halves: m.mixed.halves.from(2 * at),
            heads: p.heads as u32,
            dim: p.head_dim as u32,
            chunk: 0,
            chunks_max: s.chunks as u32,
        }
    }

    /// Attention of some rows by the kernels for few of them, as many at a time as have room.
    fn attend(&self, i: usize, rows: Range<usize>) -> Result<(), GpuError> {
        let Some((_, keys, values)) = self.attention_parts(i) else { return Ok(()) };
        let (m, p, s) = (&self.c.memory, &self.c.hp.attention, &self.c.sizes);
        let width = p.heads * p.head_dim;
        let room = self.at_once();
        for first in rows.clone().step_by(room) {
            let count = room.min(rows.end - first);
            if s.kv != KvType::F32 {
                let few = self.attend_few(i, first);
                few.map_or(Ok(()), |(a, join)| attention::few(&self.c.device, s.kv, &a, &join, count))?;
                continue;
            }
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
                halves: 0,
                chunks_max: s.chunks as u32,
                scale: 1.0 / (p.head_dim as f32).sqrt(),
                ..Default::default()
            };
            attention::attend(&self.c.device, &a, &self.join(first), count)?;
        }
        Ok(())
    }

    /// Rows whose partial sums have room at once, of a cache that is read as halves as many as the kernel takes.
    fn at_once(&self) -> usize {
        let s = &self.c.sizes;
        if s.kv != KvType::F32 { s.attention_rows.min(attention::FEW) } else { s.attention_rows }
    }

    /// Whether the kernel for few rows makes their queries, keys and values itself: each row is the only one of its
    /// sequence, and one launch takes them all.
    fn settled(&self) -> bool {
        let few = self.c.sizes.kv != KvType::F32 && self.rows <= self.at_once();
        few && self.spans == self.rows && self.long.is_empty()
    }

    /// Attention of few rows from `first` on, and how its chunks are joined.
    fn attend_few(&self, i: usize, first: usize) -> Option<(attention::Attend, attention::Join)> {
        let (w, keys, values) = self.attention_parts(i)?;
        let (m, p, s) = (&self.c.memory, &self.c.hp.attention, &self.c.sizes);
        let at = 4 * first * p.head_dim;
        let position = m.plan.from(2 * self.list + 4 * first);
        let a = attention::Attend {
            q: m.q.from(p.heads * at),
            query_gate: m.query_gate.from(2 * p.heads * at),
            k: m.k.from(p.kv_heads * at),
            v: m.v.from(p.kv_heads * at),
            q_norm: w.q_norm.at(),
            k_norm: w.k_norm.at(),
            angles: m.angles.at(),
            keys: keys.at(),
            values: values.at(),
            pages: self.c.states.table.at(),
            slot: m.plan.from(self.list + 4 * first),
            position,
            part: m.parts.at(),
            heads: p.heads as u32,
            kv_heads: p.kv_heads as u32,
            dim: p.head_dim as u32,
            rope_dims: p.rope_dims as u32,
            pages_max: s.pages as u32,
            pad: 0,
            chunks_max: s.chunks as u32,
            settled: u32::from(self.settled()),
            scale: 1.0 / (p.head_dim as f32).sqrt(),
            eps: self.c.hp.rms_eps,
        };
        Some((a, self.join(first)))
    }
}
