//! The attention stages.

use super::buffers::set_len;
use super::run::Run;
use super::weights::Packed;
use crate::engine::model::passes::Span;
use crate::engine::model::weights::{Attention, Mixer};
use chimere_ffi::KvType;
use chimere_ffi::cache::mix_head;
use chimere_ffi::cpu::{
    Act, Angles, AttentionShape, AttentionSpan, Forms, Pool, Product, attention, matmul_adapted, rms_norm, sigmoid_mul,
};

/// Rows that one thread prepares at a time.
const ROWS_A_TASK: usize = 16;

/// Rows of queries and keys to normalise and rotate.
struct Rotation<'a> {
    query_gate: &'a [f32],
    q: &'a mut [f32],
    k: &'a mut [f32],
    angles: &'a [Angles],
}

impl Run<'_> {
    pub(super) fn attention_project(&mut self, i: usize) {
        let layer = self.layer(i);
        let Mixer::Attention(w) = &layer.mixer else { return };
        let (b, p) = (&mut *self.b, &self.hp.attention);
        b.input.rms_norm(self.pool, &b.x, &layer.norm, self.hp.rms_eps, self.forms[i].input);
        set_len(&mut b.query_gate, self.rows * 2 * p.heads * p.head_dim);
        set_len(&mut b.k, self.rows * p.kv_heads * p.head_dim);
        set_len(&mut b.v, self.rows * p.kv_heads * p.head_dim);
        let mut products = [
            Product { weight: &w.q, out: &mut b.query_gate, add: false },
            Product { weight: &w.k, out: &mut b.k, add: false },
            Product { weight: &w.v, out: &mut b.v, add: false },
        ];
        let who = &self.who;
        let (q, k, v) = (
            |t: usize| who.layer(t, i)?.q.as_ref(),
            |t: usize| who.layer(t, i)?.k.as_ref(),
            |t: usize| who.layer(t, i)?.v.as_ref(),
        );
        matmul_adapted(self.pool, &b.input, &mut products, who.picks(&[&q, &k, &v]));
    }

    pub(super) fn attention_cache(&mut self, i: usize) {
        let Mixer::Attention(w) = &self.layer(i).mixer else { return };
        self.rotate(w);
        let kv = self.kv.heads * self.kv.head_dim;
        for span in &self.pass.spans {
            let sequence = self.slots.state_mut(span.slot);
            let rows = self.b.k.chunks_exact(kv).zip(self.b.v.chunks_exact(kv)).skip(span.start).take(span.len);
            for (position, (k, v)) in (span.position..).zip(rows) {
                sequence.write(i, self.kv, position, k, v);
            }
        }
    }

    /// Normalises and rotates queries (into `q`) and keys (in place), and mixes both for a cache of blocks.
    fn rotate(&mut self, w: &Attention<Packed>) {
        let (p, eps, rope, b) = (&self.hp.attention, self.hp.rms_eps, self.rope, &mut *self.b);
        let (h, width, mixed) = (p.head_dim, p.heads * p.head_dim, self.kv.kv == KvType::Q8Q4);
        set_len(&mut b.q, self.rows * width);
        let one = |r: &mut Rotation<'_>| {
            for (row, angles) in r.angles.iter().enumerate() {
                let q = r.q[row * width..][..width].chunks_exact_mut(h);
                for (q, qg) in q.zip(r.query_gate[2 * row * width..].chunks_exact(2 * h)) {
                    q.copy_from_slice(&qg[..h]);
                    rms_norm(q, &w.q_norm, eps);
                    rope.apply(q, angles);
                    if mixed {
                        mix_head(q);
                    }
                }
                for k in r.k[row * p.kv_heads * h..][..p.kv_heads * h].chunks_exact_mut(h) {
                    rms_norm(k, &w.k_norm, eps);
                    rope.apply(k, angles);
                    if mixed {
                        mix_head(k);
                    }
                }
            }
        };
        let angles = &b.angles[..self.rows];
        if self.rows <= ROWS_A_TASK {
            one(&mut Rotation { query_gate: &b.query_gate, q: &mut b.q, k: &mut b.k, angles });
            return;
        }
        let n = ROWS_A_TASK;
        let parts = b.query_gate.chunks(2 * n * width).zip(b.q.chunks_mut(n * width));
        let parts = parts.zip(b.k.chunks_mut(n * p.kv_heads * h)).zip(angles.chunks(n));
        let mut tasks: Vec<_> =
            parts.map(|(((query_gate, q), k), angles)| Rotation { query_gate, q, k, angles }).collect();
        self.pool.each(&mut tasks, |_, r, _| one(r));
    }

    pub(super) fn attention_mix(&mut self, i: usize) {
        let p = &self.hp.attention;
        let (heads, kv_heads, head_dim) = (p.heads, p.kv_heads, p.head_dim);
        let shape = AttentionShape { heads, kv_heads, head_dim, scale: 1.0 / (head_dim as f32).sqrt() };
        let spans = self.query_spans();
        let slots = &*self.slots;
        let span = |s: &Span| AttentionSpan {
            start: s.start,
            len: s.len,
            position: s.position,
            blocks: slots.state(s.slot).blocks(i).iter().collect(),
        };
        let list: Vec<AttentionSpan<'_>> = spans.iter().map(span).collect();
        let width = self.rows * heads * head_dim;
        set_len(&mut self.b.mixed, width);
        attention(self.pool, &shape, &list, &self.b.q[..width], &mut self.b.mixed);
    }

    /// The spans whose rows are still computed: those of the pass, or after narrowing the runs of wanted rows.
    fn query_spans(&self) -> Vec<Span> {
        if self.rows == self.pass.rows {
            return self.pass.spans.clone();
        }
        let mut list: Vec<Span> = Vec::new();
        for (to, w) in self.pass.wanted.iter().enumerate() {
            let s = &self.pass.spans[w.span];
            let position = s.position + (w.row - s.start);
            match list.last_mut() {
                Some(l) if l.chunk == s.chunk && l.position + l.len == position => l.len += 1,
                _ => list.push(Span { start: to, len: 1, position, ..*s }),
            }
        }
        list
    }
}

/// Attention's output times the sigmoid of its gates, quantised for the output projection.
pub(super) fn gated(pool: &Pool, act: &mut Act, mixed: &[f32], query_gate: &[f32], head_dim: usize, forms: Forms) {
    let width = act.cols();
    act.set_rows(mixed.len() / width);
    act.produce(pool, forms, |t, row| {
        row.copy_from_slice(&mixed[t * width..][..width]);
        let gates = query_gate[2 * t * width..][..2 * width].chunks_exact(2 * head_dim);
        for (y, gate) in row.chunks_exact_mut(head_dim).zip(gates) {
            sigmoid_mul(y, &gate[head_dim..]);
        }
    });
}
