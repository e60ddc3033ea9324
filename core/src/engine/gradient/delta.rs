//! The gated delta rule of one head, token by token, forward and backward.
//!
//! State S `[d, d]` (key × value): S' = e^g·S; u = S'ᵀk; δ = β·(v − u); S = S' + k·δᵀ; o = Sᵀq (q already divided by
//! √d). The backward pass runs the same steps from the end: the states of a segment are computed again from the one
//! kept at its start, so memory grows with T / SEGMENT states instead of T.

use super::ops::{axpy, dot};
use chimere_ffi::cpu::{Wide, wide};

/// Tokens between two kept states.
const SEGMENT: usize = 32;

/// Inputs of one head over one sequence: q, k, v `[T, d]`, log decay g and β `[T]`; q and k normalised.
#[derive(Clone, Debug, Default)]
pub(super) struct Head {
    pub(super) d: usize,
    pub(super) q: Vec<f32>,
    pub(super) k: Vec<f32>,
    pub(super) v: Vec<f32>,
    pub(super) g: Vec<f32>,
    pub(super) beta: Vec<f32>,
    /// States at the start of every segment, `[segments, d, d]`: filled by `forward`.
    pub(super) kept: Vec<f32>,
}

impl Head {
    /// Outputs `[T, d]`.
    pub(super) fn forward(&mut self) -> Vec<f32> {
        wide(Forward(self))
    }

    #[inline(always)]
    fn forward_plain(&mut self) -> Vec<f32> {
        let (d, t_max) = (self.d, self.g.len());
        let mut out = vec![0.0; t_max * d];
        let (mut state, mut u, mut delta) = (vec![0.0; d * d], vec![0.0; d], vec![0.0; d]);
        self.kept.clear();
        for t in 0..t_max {
            if t % SEGMENT == 0 {
                self.kept.extend_from_slice(&state);
            }
            self.step(t, &mut state, &mut u, &mut delta);
            let o = &mut out[t * d..][..d];
            for (row, q) in state.chunks_exact(d).zip(&self.q[t * d..][..d]) {
                axpy(o, *q, row);
            }
        }
        out
    }

    /// S of t − 1 → S of t; leaves u and δ of the step.
    #[inline(always)]
    fn step(&self, t: usize, state: &mut [f32], u: &mut [f32], delta: &mut [f32]) {
        let (d, k, decay) = (self.d, &self.k[t * self.d..][..self.d], self.g[t].exp());
        u.fill(0.0);
        for (row, k) in state.chunks_exact_mut(d).zip(k) {
            for (s, u) in row.iter_mut().zip(u.iter_mut()) {
                *s *= decay;
                *u += k * *s;
            }
        }
        for ((delta, v), u) in delta.iter_mut().zip(&self.v[t * d..]).zip(u.iter()) {
            *delta = self.beta[t] * (v - u);
        }
        for (row, k) in state.chunks_exact_mut(d).zip(k) {
            axpy(row, *k, delta);
        }
    }

    /// Gradients of the inputs (`kept` unused) from those of the outputs, `[T, d]`.
    pub(super) fn backward(&self, dout: &[f32]) -> Head {
        wide(Backward(self, dout))
    }

    #[inline(always)]
    fn backward_plain(&self, dout: &[f32]) -> Head {
        let (d, t_max) = (self.d, self.g.len());
        let zeros = |n| vec![0.0; n];
        let mut grad = Head {
            d,
            q: zeros(t_max * d),
            k: zeros(t_max * d),
            v: zeros(t_max * d),
            g: zeros(t_max),
            beta: zeros(t_max),
            kept: Vec::new(),
        };
        let mut dstate = zeros(d * d);
        let mut states = zeros(SEGMENT * d * d);
        let (mut us, mut deltas) = (zeros(SEGMENT * d), zeros(SEGMENT * d));
        for segment in (0..t_max.div_ceil(SEGMENT)).rev() {
            let start = segment * SEGMENT;
            let len = SEGMENT.min(t_max - start);
            let mut state = self.kept[segment * d * d..][..d * d].to_vec();
            for i in 0..len {
                self.step(start + i, &mut state, &mut us[i * d..][..d], &mut deltas[i * d..][..d]);
                states[i * d * d..][..d * d].copy_from_slice(&state);
            }
            for i in (0..len).rev() {
                let at = Step {
                    t: start + i,
                    state: &states[i * d * d..][..d * d],
                    u: &us[i * d..][..d],
                    delta: &deltas[i * d..][..d],
                };
                self.step_back(&at, &dout[at.t * d..][..d], &mut dstate, &mut grad);
            }
        }
        grad
    }

    /// One step from the end: `dstate` is dS of t and becomes dS of t − 1.
    #[inline(always)]
    fn step_back(&self, at: &Step<'_>, dout: &[f32], dstate: &mut [f32], grad: &mut Head) {
        let (d, t) = (self.d, at.t);
        let (q, k, v) = (&self.q[t * d..][..d], &self.k[t * d..][..d], &self.v[t * d..][..d]);
        let mut ddelta = vec![0.0; d];
        for (i, (row, drow)) in at.state.chunks_exact(d).zip(dstate.chunks_exact_mut(d)).enumerate() {
            grad.q[t * d + i] = dot(row, dout);
            axpy(drow, q[i], dout);
            axpy(&mut ddelta, k[i], drow);
            grad.k[t * d + i] = dot(drow, at.delta);
        }
        grad.beta[t] = ddelta.iter().zip(v).zip(at.u).map(|((dd, v), u)| dd * (v - u)).sum();
        let du: Vec<f32> = ddelta.iter().map(|dd| -self.beta[t] * dd).collect();
        for (dv, du) in grad.v[t * d..][..d].iter_mut().zip(&du) {
            *dv = -du;
        }
        let decay = self.g[t].exp();
        let mut decayed = vec![0.0; d];
        for (i, (row, drow)) in at.state.chunks_exact(d).zip(dstate.chunks_exact_mut(d)).enumerate() {
            // S' of this row: what the step added is taken away again.
            for ((s, row), delta) in decayed.iter_mut().zip(row).zip(at.delta) {
                *s = row - k[i] * delta;
            }
            axpy(drow, k[i], &du);
            grad.k[t * d + i] += dot(&decayed, &du);
            grad.g[t] += dot(drow, &decayed);
            drow.iter_mut().for_each(|s| *s *= decay);
        }
    }
}

struct Forward<'a>(&'a mut Head);

impl Wide for Forward<'_> {
    type Output = Vec<f32>;

    #[inline(always)]
    fn run(self) -> Vec<f32> {
        self.0.forward_plain()
    }
}

struct Backward<'a>(&'a Head, &'a [f32]);

impl Wide for Backward<'_> {
    type Output = Head;

    #[inline(always)]
    fn run(self) -> Head {
        self.0.backward_plain(self.1)
    }
}

/// What one step left behind.
struct Step<'a> {
    t: usize,
    /// S of t.
    state: &'a [f32],
    u: &'a [f32],
    delta: &'a [f32],
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::model::tiny::Random;

    fn head(t: usize, d: usize) -> Head {
        let mut random = Random(7);
        let mut some = |n: usize, size: f32| (0..n).map(|_| size * random.next()).collect::<Vec<f32>>();
        Head {
            d,
            q: some(t * d, 0.4),
            k: some(t * d, 0.4),
            v: some(t * d, 1.0),
            g: some(t, 0.5).iter().map(|g| g - 0.6).collect(),
            beta: some(t, 0.4).iter().map(|b| b + 0.5).collect(),
            kept: Vec::new(),
        }
    }

    /// The gradients against central differences, in every kind of input, across segments.
    #[test]
    fn gradients_are_those_of_the_formula() {
        let (t, d) = (SEGMENT + 9, 8);
        let weight: Vec<f32> = (0..t * d).map(|i| ((i * 37) % 19) as f32 / 19.0 - 0.5).collect();
        let loss = |h: &Head| -> f64 {
            h.clone().forward().iter().zip(&weight).map(|(o, w)| f64::from(*o) * f64::from(*w)).sum()
        };
        let mut whole = head(t, d);
        whole.forward();
        let grad = whole.backward(&weight);
        type Field = fn(&mut Head) -> &mut Vec<f32>;
        let pick: [(Field, &Vec<f32>); 5] = [
            (|h| &mut h.q, &grad.q),
            (|h| &mut h.k, &grad.k),
            (|h| &mut h.v, &grad.v),
            (|h| &mut h.g, &grad.g),
            (|h| &mut h.beta, &grad.beta),
        ];
        for (field, grad) in pick {
            for i in (0..grad.len()).step_by(grad.len() / 20) {
                let at = |delta: f32| {
                    let mut h = head(t, d);
                    field(&mut h)[i] += delta;
                    loss(&h)
                };
                let wanted = (at(1e-2) - at(-1e-2)) / 2e-2;
                assert!((wanted - f64::from(grad[i])).abs() < 2e-3 * (1.0 + wanted.abs()), "{wanted} {}", grad[i]);
            }
        }
    }
}
