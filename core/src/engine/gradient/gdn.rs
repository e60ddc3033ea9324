//! A GDN layer over the rows of a batch, forward with what the backward pass needs, and backward.

use super::delta::Head;
use super::dense::Dense;
use super::linear::{Changes, Tools};
use super::ops::{axpy, l2_norm_back, rms_norm_back, sigmoid};
use crate::engine::model::hparams::GdnParams;
use crate::engine::model::weights::Gdn;
use chimere_ffi::cpu::{l2_norm, mul_silu, mul_silu_slope, rms_norm_into, silu_row, softplus};
use std::ops::Range;

/// What `forward` leaves for `backward`, of N rows.
pub(super) struct Kept {
    /// Outputs of the convolution before SiLU, `[N, channels]`.
    convolved: Vec<f32>,
    /// Output gates, `[N, value_dim]`.
    z: Vec<f32>,
    /// Inputs of the decay and of β, `[N, value_heads]`.
    alpha: Vec<f32>,
    beta: Vec<f32>,
    /// One for each sequence and value head, in that order.
    heads: Vec<Head>,
    /// Outputs of the heads `[N, value_dim]`, and what the output projection saw.
    o: Vec<f32>,
    gated: Vec<f32>,
}

pub(super) struct Layer<'a> {
    pub(super) tools: Tools<'a>,
    pub(super) p: &'a GdnParams,
    pub(super) w: &'a Gdn<Dense>,
    pub(super) eps: f32,
    /// Rows of each sequence.
    pub(super) spans: &'a [Range<usize>],
}

/// Gradients of the convolution's outputs and of the inputs of decay and β, in the shapes of `Kept`.
struct Back {
    convolved: Vec<f32>,
    alpha: Vec<f32>,
    beta: Vec<f32>,
}

impl Layer<'_> {
    /// The layer's contribution to the residual stream, of normed rows `n`.
    pub(super) fn forward(&self, n: &[f32]) -> (Vec<f32>, Kept) {
        let (p, d, width) = (self.p, self.p.head_dim, self.p.value_dim());
        let convolved = self.convolve(&self.tools.forward(&self.w.qkv, n));
        let mut kept = Kept {
            z: self.tools.forward(&self.w.gate, n),
            alpha: self.tools.forward(&self.w.alpha, n),
            beta: self.tools.forward(&self.w.beta, n),
            heads: Vec::new(),
            o: vec![0.0; convolved.len() / p.channels() * width],
            gated: Vec::new(),
            convolved,
        };
        let mut active = kept.convolved.clone();
        self.tools.rows(p.channels(), &mut active, |_, row| silu_row(row));
        let mut work: Vec<_> = self.places().map(|place| (place, Head::default(), Vec::new())).collect();
        self.tools.pool.each(&mut work, |_, ((span, h), head, out), _| {
            *head = self.head(&kept, &active, span, *h);
            *out = head.forward(self.tools.pool);
        });
        for ((span, h), head, out) in work {
            for (t, o) in span.zip(out.chunks_exact(d)) {
                kept.o[t * width + h * d..][..d].copy_from_slice(o);
            }
            kept.heads.push(head);
        }
        let mut gated = vec![0.0; kept.o.len()];
        self.tools.rows(width, &mut gated, |t, row| {
            let (o, z) = (&kept.o[t * width..][..width], &kept.z[t * width..][..width]);
            for (y, o) in row.chunks_exact_mut(d).zip(o.chunks_exact(d)) {
                rms_norm_into(o, &self.w.norm, self.eps, y);
            }
            mul_silu(row, z);
        });
        kept.gated = gated;
        (self.tools.forward(&self.w.out, &kept.gated), kept)
    }

    /// Every head of every sequence, in the order of `Kept::heads`.
    fn places(&self) -> impl Iterator<Item = (Range<usize>, usize)> {
        self.spans.iter().flat_map(|span| (0..self.p.value_heads).map(move |h| (span.clone(), h)))
    }

    /// The sequence of every row.
    fn sequences(&self) -> Vec<usize> {
        self.spans.iter().enumerate().flat_map(|(i, span)| span.clone().map(move |_| i)).collect()
    }

    /// The convolution's four taps, each for all channels.
    fn taps(&self) -> [Vec<f32>; 4] {
        std::array::from_fn(|j| self.w.conv.iter().skip(j).step_by(4).copied().collect())
    }

    /// Depthwise causal convolution of four taps, sequence by sequence; tap 3 is the row itself.
    fn convolve(&self, mixed: &[f32]) -> Vec<f32> {
        let (c, taps, sequences) = (self.p.channels(), self.taps(), self.sequences());
        let mut out = vec![0.0; mixed.len()];
        self.tools.rows(c, &mut out, |t, y| {
            for back in 0..=(t - self.spans[sequences[t]].start).min(3) {
                let x = &mixed[(t - back) * c..][..c];
                for ((y, x), tap) in y.iter_mut().zip(x).zip(&taps[3 - back]) {
                    *y += tap * x;
                }
            }
        });
        out
    }

    /// Columns of the queries, keys and values that value head `h` reads.
    fn columns(&self, h: usize) -> [usize; 3] {
        let (p, d) = (self.p, self.p.head_dim);
        let key = h % p.key_heads;
        [key * d, (p.key_heads + key) * d, (2 * p.key_heads + h) * d]
    }

    /// The inputs of value head `h` over one sequence; `active`: the convolution's outputs after SiLU.
    fn head(&self, kept: &Kept, active: &[f32], span: &Range<usize>, h: usize) -> Head {
        let (p, d) = (self.p, self.p.head_dim);
        let [q, k, v] = self.columns(h);
        let scale = (d as f32).sqrt().recip();
        let mut head = Head { d, ..Head::default() };
        for t in span.clone() {
            let row = &active[t * p.channels()..][..p.channels()];
            head.q.extend_from_slice(&row[q..q + d]);
            head.k.extend_from_slice(&row[k..k + d]);
            head.v.extend_from_slice(&row[v..v + d]);
            let at = head.q.len() - d;
            l2_norm(&mut head.q[at..], self.eps);
            l2_norm(&mut head.k[at..], self.eps);
            head.q[at..].iter_mut().for_each(|q| *q *= scale);
            head.g.push(self.w.a[h] * softplus(kept.alpha[t * p.value_heads + h] + self.w.dt_bias[h]));
            head.beta.push(sigmoid(kept.beta[t * p.value_heads + h]));
        }
        head
    }

    /// Gradient of the normed rows from that of the contribution.
    pub(super) fn backward(&self, n: &[f32], kept: &Kept, dy: &[f32], grads: &mut Changes) -> Vec<f32> {
        let (p, d) = (self.p, self.p.head_dim);
        let mut dgated = vec![0.0; kept.gated.len()];
        self.tools.backward(&self.w.out, &kept.gated, dy, &mut dgated, grads);
        let (dout, dz) = self.gate_back(kept, &dgated);
        let mut heads: Vec<_> =
            self.places().zip(&kept.heads).map(|(place, head)| (place, head, Head::default())).collect();
        self.tools.pool.each(&mut heads, |_, ((span, h), head, grad), _| {
            let rows = span.clone().flat_map(|t| &dout[t * p.value_dim() + *h * d..][..d]);
            *grad = head.backward(self.tools.pool, &rows.copied().collect::<Vec<f32>>());
        });
        let heads: Vec<_> = heads.into_iter().map(|(_, head, grad)| (head, grad)).collect();
        let back = self.heads_back(kept, &heads);
        let dmixed = self.convolve_back(&back.convolved);
        let mut dn = vec![0.0; n.len()];
        self.tools.backward(&self.w.qkv, n, &dmixed, &mut dn, grads);
        self.tools.backward(&self.w.gate, n, &dz, &mut dn, grads);
        self.tools.backward(&self.w.alpha, n, &back.alpha, &mut dn, grads);
        self.tools.backward(&self.w.beta, n, &back.beta, &mut dn, grads);
        dn
    }

    /// Backward of y = norm(o)·silu(z).
    fn gate_back(&self, kept: &Kept, dgated: &[f32]) -> (Vec<f32>, Vec<f32>) {
        let (d, width) = (self.p.head_dim, self.p.value_dim());
        let (mut dout, mut dz) = (vec![0.0; kept.o.len()], vec![0.0; kept.z.len()]);
        let mut rows: Vec<_> = dout.chunks_exact_mut(width).zip(dz.chunks_exact_mut(width)).collect();
        self.tools.pool.each(&mut rows, |t, (dout, dz), _| {
            let mut dnormed = vec![0.0; d];
            for from in (0..width).step_by(d) {
                let at = t * width + from;
                let (o, z, dy) = (&kept.o[at..at + d], &kept.z[at..at + d], &dgated[at..at + d]);
                let dz = &mut dz[from..from + d];
                rms_norm_into(o, &self.w.norm, self.eps, dz);
                dz.iter_mut().zip(dy).for_each(|(dz, dy)| *dz *= dy);
                mul_silu_slope(dz, z);
                dnormed.copy_from_slice(dy);
                mul_silu(&mut dnormed, z);
                rms_norm_back(o, &self.w.norm, self.eps, &dnormed, &mut dout[from..from + d]);
            }
        });
        (dout, dz)
    }

    /// From the gradients of the heads' inputs back to what they were made of. `heads`: inputs and their gradients.
    fn heads_back(&self, kept: &Kept, heads: &[(&Head, Head)]) -> Back {
        let (c, values) = (self.p.channels(), self.p.value_heads);
        let zeros = |like: &[f32]| vec![0.0; like.len()];
        let mut back = Back { convolved: zeros(&kept.convolved), alpha: zeros(&kept.alpha), beta: zeros(&kept.beta) };
        let of_heads = back.alpha.chunks_exact_mut(values).zip(back.beta.chunks_exact_mut(values));
        let mut rows: Vec<_> = back.convolved.chunks_exact_mut(c).zip(of_heads).collect();
        let sequences = self.sequences();
        self.tools.pool.each(&mut rows, |t, (dconvolved, (dalpha, dbeta)), _| {
            let i = t - self.spans[sequences[t]].start;
            let row = &kept.convolved[t * c..][..c];
            let mut active = row.to_vec();
            silu_row(&mut active);
            for (h, (head, grad)) in heads[sequences[t] * values..][..values].iter().enumerate() {
                self.head_back(&active, h, grad, i, dconvolved);
                // g = a·softplus(x), softplus' = sigmoid; β' = β·(1 − β).
                dalpha[h] = grad.g[i] * self.w.a[h] * sigmoid(kept.alpha[t * values + h] + self.w.dt_bias[h]);
                dbeta[h] = grad.beta[i] * head.beta[i] * (1.0 - head.beta[i]);
            }
            mul_silu_slope(dconvolved, row);
        });
        back
    }

    /// Adds the gradients of row `i` of a head to those of the convolution's outputs after SiLU.
    fn head_back(&self, active: &[f32], h: usize, grad: &Head, i: usize, dactive: &mut [f32]) {
        let d = self.p.head_dim;
        let [q, k, v] = self.columns(h);
        let row = |of: &[f32]| of[i * d..][..d].to_vec();
        let scale = (d as f32).sqrt().recip();
        let mut dq = row(&grad.q);
        dq.iter_mut().for_each(|dq| *dq *= scale);
        l2_norm_back(&active[q..q + d], self.eps, &dq, &mut dactive[q..q + d]);
        l2_norm_back(&active[k..k + d], self.eps, &row(&grad.k), &mut dactive[k..k + d]);
        axpy(&mut dactive[v..v + d], 1.0, &grad.v[i * d..][..d]);
    }

    fn convolve_back(&self, dconvolved: &[f32]) -> Vec<f32> {
        let (c, taps, sequences) = (self.p.channels(), self.taps(), self.sequences());
        let mut out = vec![0.0; dconvolved.len()];
        self.tools.rows(c, &mut out, |t, dx| {
            for ahead in 0..(self.spans[sequences[t]].end - t).min(4) {
                let dy = &dconvolved[(t + ahead) * c..][..c];
                for ((dx, dy), tap) in dx.iter_mut().zip(dy).zip(&taps[3 - ahead]) {
                    *dx += tap * dy;
                }
            }
        });
        out
    }
}
