//! A GDN layer over the rows of a batch, forward with what the backward pass needs, and backward.

use super::delta::Head;
use super::dense::Dense;
use super::linear::{Changes, Tools};
use super::ops::{l2_norm_back, rms_norm_back, sigmoid, silu_slope};
use crate::engine::model::hparams::GdnParams;
use crate::engine::model::weights::Gdn;
use chimere_ffi::cpu::{l2_norm, rms_norm_into, silu, softplus};
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

impl Layer<'_> {
    /// The layer's contribution to the residual stream, of normed rows `n`.
    pub(super) fn forward(&self, n: &[f32]) -> (Vec<f32>, Kept) {
        let (p, d) = (self.p, self.p.head_dim);
        let mixed = self.tools.forward(&self.w.qkv, n);
        let convolved = self.convolve(&mixed);
        let mut kept = Kept {
            z: self.tools.forward(&self.w.gate, n),
            alpha: self.tools.forward(&self.w.alpha, n),
            beta: self.tools.forward(&self.w.beta, n),
            heads: Vec::new(),
            o: vec![0.0; mixed.len() / p.channels() * p.value_dim()],
            gated: Vec::new(),
            convolved,
        };
        let places: Vec<_> = self.spans.iter().flat_map(|s| (0..p.value_heads).map(move |h| (s.clone(), h))).collect();
        let mut work: Vec<_> = places.iter().map(|(span, h)| (self.head(&kept, span, *h), Vec::new())).collect();
        self.tools.pool.each(&mut work, |_, (head, out), _| *out = head.forward());
        for ((span, h), (head, out)) in places.iter().zip(work) {
            for (t, o) in span.clone().zip(out.chunks_exact(d)) {
                kept.o[t * p.value_dim() + h * d..][..d].copy_from_slice(o);
            }
            kept.heads.push(head);
        }
        kept.gated = vec![0.0; kept.o.len()];
        for ((y, o), z) in kept.gated.chunks_exact_mut(d).zip(kept.o.chunks_exact(d)).zip(kept.z.chunks_exact(d)) {
            rms_norm_into(o, &self.w.norm, self.eps, y);
            y.iter_mut().zip(z).for_each(|(y, z)| *y *= silu(*z));
        }
        (self.tools.forward(&self.w.out, &kept.gated), kept)
    }

    /// Depthwise causal convolution of four taps, sequence by sequence; tap 3 is the row itself.
    fn convolve(&self, mixed: &[f32]) -> Vec<f32> {
        let c = self.p.channels();
        let mut out = vec![0.0; mixed.len()];
        for span in self.spans {
            for t in span.clone() {
                for back in 0..=(t - span.start).min(3) {
                    let (from, to) = (&mixed[(t - back) * c..][..c], &mut out[t * c..][..c]);
                    for ((y, x), taps) in to.iter_mut().zip(from).zip(self.w.conv.chunks_exact(4)) {
                        *y += taps[3 - back] * x;
                    }
                }
            }
        }
        out
    }

    /// Columns of the queries, keys and values that value head `h` reads.
    fn columns(&self, h: usize) -> [usize; 3] {
        let (p, d) = (self.p, self.p.head_dim);
        let key = h % p.key_heads;
        [key * d, (p.key_heads + key) * d, (2 * p.key_heads + h) * d]
    }

    /// The inputs of value head `h` over one sequence.
    fn head(&self, kept: &Kept, span: &Range<usize>, h: usize) -> Head {
        let (p, d) = (self.p, self.p.head_dim);
        let [q, k, v] = self.columns(h);
        let mut head = Head { d, ..Head::default() };
        for t in span.clone() {
            let row = &kept.convolved[t * p.channels()..][..p.channels()];
            let part = |from: usize| row[from..from + d].iter().map(|x| silu(*x));
            head.q.extend(part(q));
            head.k.extend(part(k));
            head.v.extend(part(v));
            let at = head.q.len() - d;
            l2_norm(&mut head.q[at..], self.eps);
            l2_norm(&mut head.k[at..], self.eps);
            let scale = (d as f32).sqrt().recip();
            head.q[at..].iter_mut().for_each(|q| *q *= scale);
            head.g.push(self.w.a[h] * softplus(kept.alpha[t * p.value_heads + h] + self.w.dt_bias[h]));
            head.beta.push(sigmoid(kept.beta[t * p.value_heads + h]));
        }
        head
    }

    /// Gradient of the normed rows from that of the contribution.
    pub(super) fn backward(&self, n: &[f32], kept: &Kept, dy: &[f32], grads: &mut Changes) -> Vec<f32> {
        let (p, d) = (self.p, self.p.head_dim);
        let mut dgated = Vec::new();
        self.tools.backward(&self.w.out, &kept.gated, dy, &mut dgated, grads);
        let (dout, dz) = self.gate_back(kept, &dgated);
        let places: Vec<_> = self.spans.iter().flat_map(|s| (0..p.value_heads).map(move |h| (s.clone(), h))).collect();
        let mut work: Vec<_> =
            places.iter().zip(&kept.heads).map(|(place, head)| (place, head, Head::default())).collect();
        self.tools.pool.each(&mut work, |_, ((span, h), head, grad), _| {
            let rows = span.clone().flat_map(|t| &dout[t * p.value_dim() + *h * d..][..d]);
            *grad = head.backward(&rows.copied().collect::<Vec<f32>>());
        });
        let mut dconvolved = vec![0.0; kept.convolved.len()];
        let (mut dalpha, mut dbeta) = (vec![0.0; kept.alpha.len()], vec![0.0; kept.beta.len()]);
        for ((span, h), head, grad) in &work {
            for (i, t) in span.clone().enumerate() {
                self.head_back(kept, *h, t, grad, i, &mut dconvolved);
                let at = t * p.value_heads + h;
                // g = a·softplus(x), softplus' = sigmoid; β' = β·(1 − β).
                dalpha[at] = grad.g[i] * self.w.a[*h] * sigmoid(kept.alpha[at] + self.w.dt_bias[*h]);
                dbeta[at] = grad.beta[i] * head.beta[i] * (1.0 - head.beta[i]);
            }
        }
        let dmixed = self.convolve_back(&dconvolved);
        let mut dn = vec![0.0; n.len()];
        self.tools.backward(&self.w.qkv, n, &dmixed, &mut dn, grads);
        self.tools.backward(&self.w.gate, n, &dz, &mut dn, grads);
        self.tools.backward(&self.w.alpha, n, &dalpha, &mut dn, grads);
        self.tools.backward(&self.w.beta, n, &dbeta, &mut dn, grads);
        dn
    }

    /// Backward of y = norm(o)·silu(z).
    fn gate_back(&self, kept: &Kept, dgated: &[f32]) -> (Vec<f32>, Vec<f32>) {
        let d = self.p.head_dim;
        let (mut dout, mut dz) = (vec![0.0; kept.o.len()], vec![0.0; kept.z.len()]);
        let (mut normed, mut dnormed) = (vec![0.0; d], vec![0.0; d]);
        for at in (0..kept.o.len()).step_by(d) {
            let (o, z, dy) = (&kept.o[at..at + d], &kept.z[at..at + d], &dgated[at..at + d]);
            rms_norm_into(o, &self.w.norm, self.eps, &mut normed);
            for i in 0..d {
                dz[at + i] = dy[i] * normed[i] * silu_slope(z[i]);
                dnormed[i] = dy[i] * silu(z[i]);
            }
            rms_norm_back(o, &self.w.norm, self.eps, &dnormed, &mut dout[at..at + d]);
        }
        (dout, dz)
    }

    /// Gradients of one row of a head back to the convolution's outputs.
    fn head_back(&self, kept: &Kept, h: usize, t: usize, grad: &Head, i: usize, dconvolved: &mut [f32]) {
        let (c, d) = (self.p.channels(), self.p.head_dim);
        let [q, k, v] = self.columns(h);
        let row = &kept.convolved[t * c..][..c];
        let scale = (d as f32).sqrt().recip();
        let mut back = |from: usize, dy: &[f32], factor: Option<f32>| {
            let x: Vec<f32> = row[from..from + d].iter().map(|x| silu(*x)).collect();
            let mut dx = vec![0.0; d];
            match factor {
                Some(factor) => {
                    let dy: Vec<f32> = dy.iter().map(|v| v * factor).collect();
                    l2_norm_back(&x, self.eps, &dy, &mut dx);
                }
                None => dx.copy_from_slice(dy),
            }
            let to = &mut dconvolved[t * c + from..][..d];
            for ((to, dx), x) in to.iter_mut().zip(dx).zip(&row[from..]) {
                *to += dx * silu_slope(*x);
            }
        };
        back(q, &grad.q[i * d..][..d], Some(scale));
        back(k, &grad.k[i * d..][..d], Some(1.0));
        back(v, &grad.v[i * d..][..d], None);
    }

    fn convolve_back(&self, dconvolved: &[f32]) -> Vec<f32> {
        let c = self.p.channels();
        let taps: [Vec<f32>; 4] = std::array::from_fn(|j| self.w.conv.iter().skip(j).step_by(4).copied().collect());
        let mut out = vec![0.0; dconvolved.len()];
        for span in self.spans {
            for t in span.clone() {
                for back in 0..=(t - span.start).min(3) {
                    let (dy, dx) = (&dconvolved[t * c..][..c], &mut out[(t - back) * c..][..c]);
                    for ((dx, dy), tap) in dx.iter_mut().zip(dy).zip(&taps[3 - back]) {
                        *dx += tap * dy;
                    }
                }
            }
        }
        out
    }
}
