//! Routing and the experts, and the feed-forward part of layers that have none.

use super::buffers::set_len;
use super::run::Run;
use crate::engine::model::weights::Ffn;
use chimere_ffi::cpu::{FactorsOf, Forms, Moe, Product, Routes, Shared, matmul, moe_adapted, route, sigmoid, silu_mul};

impl Run<'_> {
    pub(super) fn route(&mut self, i: usize) {
        let layer = self.layer(i);
        let Ffn::Moe(m) = &layer.ffn else { return };
        let (b, p) = (&mut *self.b, &self.hp.moe);
        b.input.rms_norm(self.pool, &b.x, &layer.post_norm, self.hp.rms_eps, self.forms[i].ffn);
        set_len(&mut b.router, self.rows * (p.experts + 1));
        set_len(&mut b.shared, self.rows);
        set_len(&mut b.experts, self.rows * p.used);
        set_len(&mut b.weights, self.rows * p.used);
        let router = Product { weight: &m.router, out: &mut b.router, add: false };
        matmul(self.pool, &b.input, &mut [router]);
        let rows = b.router.chunks_exact(p.experts + 1).zip(&mut b.shared);
        let chosen = b.experts.chunks_exact_mut(p.used).zip(b.weights.chunks_exact_mut(p.used));
        for ((logits, shared), (experts, weights)) in rows.zip(chosen) {
            route(&logits[..p.experts], experts, weights, &mut b.probabilities);
            *shared = sigmoid(logits[p.experts]);
        }
    }

    pub(super) fn experts(&mut self, i: usize) {
        let Ffn::Moe(m) = &self.layer(i).ffn else { return };
        let b = &mut *self.b;
        let shape = Moe {
            gate: &m.gate,
            up: &m.up,
            down: &m.down,
            shared: Some(Shared { gate: &m.shared_gate, up: &m.shared_up, down: &m.shared_down }),
        };
        let routes = Routes { k: self.hp.moe.used, experts: &b.experts, weights: &b.weights, shared: &b.shared };
        let who = &self.who;
        let of = |t: usize| who.layer(t, i)?.experts();
        let rows = 0..self.rows;
        let factors: Option<&FactorsOf<'_>> =
            if who.any() && rows.into_iter().any(|t| of(t).is_some()) { Some(&of) } else { None };
        moe_adapted(self.pool, &shape, &b.input, &routes, factors, &mut b.moe_scratch, &mut b.x);
    }

    pub(super) fn dense(&mut self, i: usize) {
        let layer = self.layer(i);
        let Ffn::Dense(m) = &layer.ffn else { return };
        let (b, width) = (&mut *self.b, self.hp.moe.shared_width);
        b.input.rms_norm(self.pool, &b.x, &layer.post_norm, self.hp.rms_eps, self.forms[i].ffn);
        set_len(&mut b.gate, self.rows * width);
        set_len(&mut b.up, self.rows * width);
        let gate = Product { weight: &m.gate, out: &mut b.gate, add: false };
        let up = Product { weight: &m.up, out: &mut b.up, add: false };
        matmul(self.pool, &b.input, &mut [gate, up]);
        b.inner.set_rows(self.rows);
        let (gate, up) = (&b.gate, &b.up);
        b.inner.produce(self.pool, Forms::of(&[&m.down]), |t, out| {
            let row = t * width..(t + 1) * width;
            silu_mul(&gate[row.clone()], &up[row], out);
        });
        matmul(self.pool, &b.inner, &mut [Product { weight: &m.down, out: &mut b.x, add: true }]);
    }
}
