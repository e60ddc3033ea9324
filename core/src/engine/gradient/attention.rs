//! A gated attention layer over the rows of a batch, forward and backward. Scores are not kept: the backward pass
//! works them out again row by row.

use super::dense::Dense;
use super::linear::{Changes, Tools};
use super::ops::{axpy, dot, rms_norm_back, sigmoid};
use crate::engine::model::hparams::AttentionParams;
use crate::engine::model::weights::Attention;
use chimere_ffi::cpu::{Angles, Wide, rms_norm, softmax, wide};
use std::ops::Range;

/// What `forward` leaves for `backward`, of N rows.
pub(super) struct Kept {
    /// Outputs of the three projections: queries with gates `[N, H·2h]`, keys and values `[N, G·h]`.
    query_gate: Vec<f32>,
    key: Vec<f32>,
    v: Vec<f32>,
    /// Queries `[N, H·h]` and keys, normalised and rotated.
    q: Vec<f32>,
    k: Vec<f32>,
    /// Outputs of the heads `[N, H·h]`, and what the output projection saw.
    mixed: Vec<f32>,
    gated: Vec<f32>,
}

pub(super) struct Layer<'a> {
    pub(super) tools: Tools<'a>,
    pub(super) p: &'a AttentionParams,
    pub(super) w: &'a Attention<Dense>,
    pub(super) eps: f32,
    pub(super) spans: &'a [Range<usize>],
}

/// Gradients of queries, keys and values of one sequence, `[T, …]`.
struct Mixed {
    q: Vec<f32>,
    k: Vec<f32>,
    v: Vec<f32>,
}

impl Layer<'_> {
    fn width(&self) -> usize {
        self.p.heads * self.p.head_dim
    }

    fn kv_width(&self) -> usize {
        self.p.kv_heads * self.p.head_dim
    }

    /// The layer's contribution to the residual stream, of normed rows `n`.
    pub(super) fn forward(&self, n: &[f32]) -> (Vec<f32>, Kept) {
        let h = self.p.head_dim;
        let query_gate = self.tools.forward(&self.w.q, n);
        let key = self.tools.forward(&self.w.k, n);
        let mut q: Vec<f32> = query_gate.chunks_exact(2 * h).flat_map(|qg| &qg[..h]).copied().collect();
        let mut k = key.clone();
        let places: Vec<usize> = self.spans.iter().flat_map(|s| 0..s.len()).collect();
        let placed = |values: &mut [f32], width: usize, norm: &[f32]| {
            self.tools.rows(width, values, |t, row| {
                let angles = self.angles(places[t]);
                for head in row.chunks_exact_mut(h) {
                    rms_norm(head, norm, self.eps);
                    rotate(head, &angles, 1.0);
                }
            });
        };
        placed(&mut q, self.width(), &self.w.q_norm);
        placed(&mut k, self.kv_width(), &self.w.k_norm);
        let v = self.tools.forward(&self.w.v, n);
        let mut kept = Kept { query_gate, key, v, mixed: vec![0.0; q.len()], gated: Vec::new(), q, k };
        let mut rows: Vec<_> = kept.mixed.chunks_exact_mut(self.width()).enumerate().collect();
        let (q, k, v) = (&kept.q, &kept.k, &kept.v);
        self.tools.pool.each(&mut rows, |_, (t, out), _| wide(Row { layer: self, q, k, v, t: *t, out }));
        kept.gated = kept.mixed.clone();
        let query_gate = &kept.query_gate;
        self.tools.rows(h, &mut kept.gated, |at, y| {
            y.iter_mut().zip(&query_gate[at * 2 * h + h..]).for_each(|(y, g)| *y *= sigmoid(*g));
        });
        (self.tools.forward(&self.w.out, &kept.gated), kept)
    }

    /// The key or value of row `t` that query head `head` reads.
    #[inline(always)]
    fn kv_row<'v>(&self, rows: &'v [f32], t: usize, head: usize) -> &'v [f32] {
        let h = self.p.head_dim;
        &rows[t * self.kv_width() + head / (self.p.heads / self.p.kv_heads) * h..][..h]
    }

    /// Softmax over the rows of its sequence up to `t`.
    #[inline(always)]
    fn probabilities(&self, q: &[f32], k: &[f32], t: usize, head: usize) -> Vec<f32> {
        let h = self.p.head_dim;
        let start = self.spans.iter().find(|s| s.contains(&t)).map_or(t, |s| s.start);
        let q = &q[t * self.width() + head * h..][..h];
        let scale = (h as f32).sqrt().recip();
        let mut p: Vec<f32> = (start..=t).map(|s| scale * dot(q, self.kv_row(k, s, head))).collect();
        softmax(&mut p);
        p
    }

    /// Cosine and sine of each rotated pair.
    fn angles(&self, place: usize) -> Vec<(f32, f32)> {
        let mut angles = Angles::default();
        self.p.rope().angles(place, &mut angles);
        angles.pairs().collect()
    }

    /// Gradient of the normed rows from that of the contribution.
    pub(super) fn backward(&self, n: &[f32], kept: &Kept, dy: &[f32], grads: &mut Changes) -> Vec<f32> {
        let h = self.p.head_dim;
        let mut dmixed = vec![0.0; kept.gated.len()];
        self.tools.backward(&self.w.out, &kept.gated, dy, &mut dmixed, grads);
        let mut dquery_gate = vec![0.0; kept.query_gate.len()];
        let width = self.width();
        let mut rows: Vec<_> = dquery_gate.chunks_exact_mut(2 * width).zip(dmixed.chunks_exact_mut(width)).collect();
        self.tools.pool.each(&mut rows, |t, (dquery_gate, dmixed), _| {
            for i in 0..width {
                let gate = i / h * 2 * h + h + i % h;
                let (s, dy) = (sigmoid(kept.query_gate[t * 2 * width + gate]), dmixed[i]);
                dquery_gate[gate] = dy * kept.mixed[t * width + i] * s * (1.0 - s);
                dmixed[i] = dy * s;
            }
        });
        let mut work: Vec<_> = self.spans.iter().map(|span| (span.clone(), None)).collect();
        self.tools.pool.each(&mut work, |_, (span, mixed), _| {
            *mixed = Some(wide(Back { layer: self, kept, span, dmixed: &dmixed }));
        });
        let (mut dkey, mut dv) = (vec![0.0; kept.key.len()], vec![0.0; kept.v.len()]);
        for (span, mixed) in work {
            let Some(mut mixed) = mixed else { continue };
            for (i, t) in span.enumerate() {
                let angles = self.angles(i);
                for (head, dq) in mixed.q[i * self.width()..][..self.width()].chunks_exact_mut(h).enumerate() {
                    rotate(dq, &angles, -1.0);
                    let at = (t * self.p.heads + head) * 2 * h;
                    let (x, dx) = (&kept.query_gate[at..at + h], &mut dquery_gate[at..at + h]);
                    rms_norm_back(x, &self.w.q_norm, self.eps, dq, dx);
                }
                for (head, dk) in mixed.k[i * self.kv_width()..][..self.kv_width()].chunks_exact_mut(h).enumerate() {
                    rotate(dk, &angles, -1.0);
                    let at = (t * self.p.kv_heads + head) * h;
                    rms_norm_back(&kept.key[at..at + h], &self.w.k_norm, self.eps, dk, &mut dkey[at..at + h]);
                }
                dv[t * self.kv_width()..][..self.kv_width()]
                    .copy_from_slice(&mixed.v[i * self.kv_width()..][..self.kv_width()]);
            }
        }
        let mut dn = vec![0.0; n.len()];
        self.tools.backward(&self.w.q, n, &dquery_gate, &mut dn, grads);
        self.tools.backward(&self.w.k, n, &dkey, &mut dn, grads);
        self.tools.backward(&self.w.v, n, &dv, &mut dn, grads);
        dn
    }

    /// Softmax attention backward: ds = p·(dp − Σ p·dp) with dp = do·v.
    #[inline(always)]
    fn mix_back(&self, kept: &Kept, span: &Range<usize>, dmixed: &[f32]) -> Mixed {
        let (h, width, kv) = (self.p.head_dim, self.width(), self.kv_width());
        let scale = (h as f32).sqrt().recip();
        let zeros = |n: usize| vec![0.0; span.len() * n];
        let mut out = Mixed { q: zeros(width), k: zeros(kv), v: zeros(kv) };
        for t in span.clone() {
            for head in 0..self.p.heads {
                let group = head / (self.p.heads / self.p.kv_heads) * h;
                let p = self.probabilities(&kept.q, &kept.k, t, head);
                let dout = &dmixed[t * width + head * h..][..h];
                let dp: Vec<f32> =
                    (0..p.len()).map(|s| dot(dout, self.kv_row(&kept.v, span.start + s, head))).collect();
                let mean = dot(&p, &dp);
                let q = &kept.q[t * width + head * h..][..h];
                for (s, (p, dp)) in p.iter().zip(&dp).enumerate() {
                    let ds = scale * p * (dp - mean);
                    let dq = &mut out.q[(t - span.start) * width + head * h..][..h];
                    axpy(dq, ds, self.kv_row(&kept.k, span.start + s, head));
                    axpy(&mut out.k[s * kv + group..][..h], ds, q);
                    axpy(&mut out.v[s * kv + group..][..h], *p, dout);
                }
            }
        }
        out
    }
}

/// Softmax attention of one row.
struct Row<'a> {
    layer: &'a Layer<'a>,
    q: &'a [f32],
    k: &'a [f32],
    v: &'a [f32],
    t: usize,
    out: &'a mut [f32],
}

impl Wide for Row<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let Row { layer, q, k, v, t, out } = self;
        for (head, out) in out.chunks_exact_mut(layer.p.head_dim).enumerate() {
            let p = layer.probabilities(q, k, t, head);
            let start = t + 1 - p.len();
            for (s, p) in p.iter().enumerate() {
                axpy(out, *p, layer.kv_row(v, start + s, head));
            }
        }
    }
}

/// [`Layer::mix_back`].
struct Back<'a> {
    layer: &'a Layer<'a>,
    kept: &'a Kept,
    span: &'a Range<usize>,
    dmixed: &'a [f32],
}

impl Wide for Back<'_> {
    type Output = Mixed;

    #[inline(always)]
    fn run(self) -> Mixed {
        self.layer.mix_back(self.kept, self.span, self.dmixed)
    }
}

/// Rotates the pairs (i, i + dims/2) by their angles; back with the direction −1.
fn rotate(head: &mut [f32], angles: &[(f32, f32)], direction: f32) {
    let (low, high) = head[..2 * angles.len()].split_at_mut(angles.len());
    for ((a, b), (cos, sin)) in low.iter_mut().zip(high).zip(angles) {
        let sin = direction * sin;
        (*a, *b) = (*a * cos - *b * sin, *a * sin + *b * cos);
    }
}
