//! Routing and the experts.

use super::buffers::set_len;
use super::run::Run;
use chimere_ffi::cpu::{FactorsOf, Moe, Product, Routes, Shared, matmul, moe_adapted, route, sigmoid};

impl Run<'_> {
    pub(super) fn route(&mut self, i: usize) {
        let layer = self.layer(i);
        let (b, p) = (&mut *self.b, &self.hp.moe);
        b.input.rms_norm(self.pool, &b.x, &layer.post_norm, self.hp.rms_eps, self.forms[i].ffn);
        set_len(&mut b.router, self.rows * (p.experts + 1));
        set_len(&mut b.shared, self.rows);
        set_len(&mut b.experts, self.rows * p.used);
        set_len(&mut b.weights, self.rows * p.used);
        let router = Product { weight: &layer.moe.router, out: &mut b.router, add: false };
        matmul(self.pool, &b.input, &mut [router]);
        let rows = b.router.chunks_exact(p.experts + 1).zip(&mut b.shared);
        let chosen = b.experts.chunks_exact_mut(p.used).zip(b.weights.chunks_exact_mut(p.used));
        for ((logits, shared), (experts, weights)) in rows.zip(chosen) {
            route(&logits[..p.experts], experts, weights, &mut b.probabilities);
            *shared = sigmoid(logits[p.experts]);
        }
    }

    pub(super) fn experts(&mut self, i: usize) {
        let m = &self.layer(i).moe;
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
}
