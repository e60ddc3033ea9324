//! The mixture of experts over the rows of a batch, forward and backward. The choice of experts has no gradient; the
//! weights of the chosen ones have: they are a softmax over the chosen logits. The feed-forward part of a dense model is a shared
//! expert that nothing weighs.

use super::dense::Dense;
use super::linear::{Changes, Linear, Tools};
use super::ops::{axpy, dot, sigmoid};
use crate::engine::model::hparams::MoeParams;
use crate::engine::model::weights::{Ffn, Moe};
use chimere_ffi::cpu::{mul_silu, mul_silu_slope, route, silu_mul};

/// What `forward` leaves for `backward`.
pub(super) struct Kept {
    /// Of every routed expert with rows: which, and the weight of each.
    parts: Vec<Part>,
    shared: Part,
}

/// One expert's work.
struct Part {
    /// `None` = the shared expert.
    expert: Option<usize>,
    /// Rows of the batch that it saw, and the factor of its output in each.
    rows: Vec<usize>,
    factors: Vec<f32>,
    x: Vec<f32>,
    gate: Vec<f32>,
    up: Vec<f32>,
    /// silu(gate)·up, and the output before the factor.
    inner: Vec<f32>,
    out: Vec<f32>,
}

/// Rows of the batch, and the factor of each.
type Rows = (Vec<usize>, Vec<f32>);

pub(super) struct Layer<'a> {
    pub(super) tools: Tools<'a>,
    pub(super) p: &'a MoeParams,
    pub(super) w: &'a Ffn<Dense>,
}

impl Layer<'_> {
    /// The layer's contribution to the residual stream, of normed rows `n`.
    pub(super) fn forward(&self, n: &[f32]) -> (Vec<f32>, Kept) {
        let d = self.matrices(None)[0].inputs();
        let (chosen, shared) = match self.w {
            Ffn::Moe(moe) => self.route(moe, n),
            Ffn::Dense(_) => (Vec::new(), ((0..n.len() / d).collect(), vec![1.0; n.len() / d])),
        };
        let shared = self.part(n, d, None, shared);
        let busy = chosen.into_iter().enumerate().filter(|(_, c)| !c.0.is_empty());
        let mut parts: Vec<_> = busy.map(|(expert, rows)| (expert, rows, None)).collect();
        // Side by side: the products of one expert are too small to share among threads.
        self.tools.pool.each(&mut parts, |_, (expert, rows, part), _| {
            *part = Some(self.part(n, d, Some(*expert), std::mem::take(rows)));
        });
        let parts: Vec<Part> = parts.into_iter().filter_map(|(.., part)| part).collect();
        let mut y = vec![0.0; n.len()];
        for part in [&shared].into_iter().chain(&parts) {
            for ((t, factor), out) in part.rows.iter().zip(&part.factors).zip(part.out.chunks_exact(d)) {
                axpy(&mut y[t * d..][..d], *factor, out);
            }
        }
        (y, Kept { parts, shared })
    }

    /// Of every expert the rows that chose it, and of the shared one.
    fn route(&self, moe: &Moe<Dense>, n: &[f32]) -> (Vec<Rows>, Rows) {
        let e = self.p.experts;
        let logits = self.tools.forward(&moe.router, n);
        let mut chosen: Vec<Rows> = vec![Default::default(); e];
        let mut shared = Rows::default();
        let (mut experts, mut weights) = (vec![0; self.p.used], vec![0.0; self.p.used]);
        let mut scratch = Vec::new();
        for (t, row) in logits.chunks_exact(e + 1).enumerate() {
            route(&row[..e], &mut experts, &mut weights, &mut scratch);
            for (expert, weight) in experts.iter().zip(&weights) {
                chosen[*expert as usize].0.push(t);
                chosen[*expert as usize].1.push(*weight);
            }
            shared.0.push(t);
            shared.1.push(sigmoid(row[e]));
        }
        (chosen, shared)
    }

    fn matrices(&self, expert: Option<usize>) -> [&Linear; 3] {
        match (self.w, expert) {
            (Ffn::Moe(w), Some(e)) => [&w.gate[e], &w.up[e], &w.down[e]],
            (Ffn::Moe(w), None) => [&w.shared_gate, &w.shared_up, &w.shared_down],
            (Ffn::Dense(w), _) => [&w.gate, &w.up, &w.down],
        }
    }

    fn part(&self, n: &[f32], d: usize, expert: Option<usize>, (rows, factors): Rows) -> Part {
        let [gate, up, down] = self.matrices(expert);
        let x: Vec<f32> = rows.iter().flat_map(|t| &n[t * d..][..d]).copied().collect();
        let (gate, up) = (self.tools.forward(gate, &x), self.tools.forward(up, &x));
        let mut inner = vec![0.0; gate.len()];
        silu_mul(&gate, &up, &mut inner);
        let out = self.tools.forward(down, &inner);
        Part { expert, rows, factors, x, gate, up, inner, out }
    }

    /// Gradient of the normed rows from that of the contribution.
    pub(super) fn backward(&self, n: &[f32], kept: &Kept, dy: &[f32], grads: &mut Changes) -> Vec<f32> {
        let e = self.p.experts;
        let d = self.matrices(None)[0].inputs();
        let mut dn = vec![0.0; n.len()];
        let mut dlogits = vec![0.0; n.len() / d * (e + 1)];
        // Of every row: expert, weight and gradient of the weight.
        let mut weights: Vec<Vec<(usize, f32, f32)>> = vec![Vec::new(); n.len() / d];
        let mut parts: Vec<_> = kept.parts.iter().map(|part| (part, Default::default())).collect();
        self.tools.pool.each(&mut parts, |_, (part, back), _| {
            // A routed expert takes no change: nothing is added to these.
            let mut none = Changes { rank: 0, scale: 0.0, slots: Vec::new() };
            *back = self.part_back(part, d, dy, &mut none);
        });
        parts.push((&kept.shared, self.part_back(&kept.shared, d, dy, grads)));
        for (part, (dfactors, dx)) in parts {
            for (t, dx) in part.rows.iter().zip(dx.chunks_exact(d)) {
                axpy(&mut dn[t * d..][..d], 1.0, dx);
            }
            for ((t, factor), dfactor) in part.rows.iter().zip(&part.factors).zip(dfactors) {
                match part.expert {
                    Some(expert) => weights[*t].push((expert, *factor, dfactor)),
                    None => dlogits[t * (e + 1) + e] = dfactor * factor * (1.0 - factor),
                }
            }
        }
        let Ffn::Moe(moe) = self.w else { return dn };
        for (row, weights) in dlogits.chunks_exact_mut(e + 1).zip(&weights) {
            let mean: f32 = weights.iter().map(|(_, w, dw)| w * dw).sum();
            for (expert, w, dw) in weights {
                row[*expert] = w * (dw - mean);
            }
        }
        self.tools.backward(&moe.router, n, &dlogits, &mut dn, grads);
        dn
    }

    /// Gradients of one expert's factors, and of the rows that it saw.
    fn part_back(&self, part: &Part, d: usize, dy: &[f32], grads: &mut Changes) -> (Vec<f32>, Vec<f32>) {
        let [gate, up, down] = self.matrices(part.expert);
        let dy: Vec<&[f32]> = part.rows.iter().map(|t| &dy[t * d..][..d]).collect();
        let dfactors = dy.iter().zip(part.out.chunks_exact(d)).map(|(dy, out)| dot(dy, out)).collect();
        let dout: Vec<f32> = dy.iter().zip(&part.factors).flat_map(|(dy, f)| dy.iter().map(move |v| v * f)).collect();
        let mut dinner = vec![0.0; part.inner.len()];
        self.tools.backward(down, &part.inner, &dout, &mut dinner, grads);
        // Of inner = silu(gate)·up.
        let mut dgate: Vec<f32> = dinner.iter().zip(&part.up).map(|(dy, up)| dy * up).collect();
        mul_silu_slope(&mut dgate, &part.gate);
        let mut dup = dinner;
        mul_silu(&mut dup, &part.gate);
        let mut dx = vec![0.0; part.x.len()];
        self.tools.backward(gate, &part.x, &dgate, &mut dx, grads);
        self.tools.backward(up, &part.x, &dup, &mut dx, grads);
        (dfactors, dx)
    }
}
