//! The gated delta rule of one head, forward and backward, a chunk of tokens at a time.
//!
//! Token by token, with a state S `[d, d]` (key × value) and q already divided by √d:
//!   S' = e^g·S; w = v − S'ᵀk; δ = β·w; S = S' + k·δᵀ; o = Sᵀq.
//!
//! The same for a chunk that begins with S₀ (Yang et al., "Gated Delta Networks", 2024, section 3.3). Rows are its tokens,
//! γ_ts = e^(g_s+1 + … + g_t) for s ≤ t, and b_t = e^(g_1 + … + g_t).
//!
//!   L = (K·Kᵀ)∘γ below the diagonal, P = (Q·Kᵀ)∘γ with it;
//!   w = v − b·K·S₀ − L·Δ, Δ = β·w;   o = b·Q·S₀ + P·Δ;   S = b_c·S₀ + Kᵀ·(e·Δ) with e_t = γ_ct.
//!
//! That is products of matrices, which run near the speed of the processor, and one small triangle to solve. Each line of
//! the backward pass differentiates one term of these; memory grows with T / CHUNK states instead of T.

use super::ops::{axpy, dot};
use chimere_ffi::cpu::{Left, Panels, Pool, Wide, multiply, wide};

/// Tokens of a chunk.
const CHUNK: usize = 32;

/// Inputs of one head over one sequence: q, k, v `[T, d]`, log decay g and β `[T]`; q and k normalised.
#[derive(Clone, Debug, Default)]
pub(super) struct Head {
    pub(super) d: usize,
    pub(super) q: Vec<f32>,
    pub(super) k: Vec<f32>,
    pub(super) v: Vec<f32>,
    pub(super) g: Vec<f32>,
    pub(super) beta: Vec<f32>,
    /// Filled by `forward`: states at the start of every chunk, `[chunks, d, d]`, and w `[T, d]`.
    pub(super) states: Vec<f32>,
    pub(super) w: Vec<f32>,
}

impl Head {
    /// Outputs `[T, d]`.
    pub(super) fn forward(&mut self, pool: &Pool) -> Vec<f32> {
        let (d, tokens) = (self.d, self.g.len());
        let mut out = vec![0.0; tokens * d];
        let mut state = vec![0.0; d * d];
        self.states.clear();
        self.w = self.v.clone();
        for (i, out) in out.chunks_mut(CHUNK * d).enumerate() {
            self.states.extend_from_slice(&state);
            let mut w = std::mem::take(&mut self.w);
            Chunk::new(pool, self, i).forward(&mut w[i * CHUNK * d..][..out.len()], &mut state, out);
            self.w = w;
        }
        out
    }

    /// Gradients of the inputs (what `forward` keeps left out) from those of the outputs, `[T, d]`.
    pub(super) fn backward(&self, pool: &Pool, dout: &[f32]) -> Head {
        let d = self.d;
        let mut grad = Head { d, ..Head::default() };
        let mut dstate = vec![0.0; d * d];
        let mut parts = Vec::new();
        for (i, dout) in dout.chunks(CHUNK * d).enumerate().rev() {
            let (state, w) = (&self.states[i * d * d..][..d * d], &self.w[i * CHUNK * d..][..dout.len()]);
            parts.push(Chunk::new(pool, self, i).backward(state, w, dout, &mut dstate));
        }
        for part in parts.iter().rev() {
            grad.q.extend_from_slice(&part.q);
            grad.k.extend_from_slice(&part.k);
            grad.v.extend_from_slice(&part.v);
            grad.g.extend_from_slice(&part.g);
            grad.beta.extend_from_slice(&part.beta);
        }
        grad
    }
}

/// The inputs of one chunk of c tokens, and what both passes make of them.
struct Chunk<'a> {
    pool: &'a Pool,
    d: usize,
    /// `[c, d]` and `[c]`.
    q: &'a [f32],
    k: &'a [f32],
    beta: &'a [f32],
    /// γ `[c, c]`, zero above the diagonal; b `[c]`.
    gamma: Vec<f32>,
    b: Vec<f32>,
    /// P and L, `[c, c]`.
    p: Vec<f32>,
    l: Vec<f32>,
}

impl<'a> Chunk<'a> {
    fn new(pool: &'a Pool, head: &'a Head, i: usize) -> Chunk<'a> {
        let (d, start) = (head.d, i * CHUNK);
        let c = CHUNK.min(head.g.len() - start);
        let [q, k] = [&head.q, &head.k].map(|rows| &rows[start * d..][..c * d]);
        let (mut gamma, mut b) = (vec![0.0; c * c], vec![0.0; c]);
        let mut whole = 1.0;
        for t in 0..c {
            let decay = head.g[start + t].exp();
            whole *= decay;
            b[t] = whole;
            for s in 0..t {
                gamma[t * c + s] = decay * gamma[(t - 1) * c + s];
            }
            gamma[t * c + t] = 1.0;
        }
        let keys = Panels::transposed(k, d);
        let of = |rows: &[f32]| {
            let mut out = product(pool, Left::of(rows, d), &keys);
            out.iter_mut().zip(&gamma).for_each(|(x, gamma)| *x *= gamma);
            out
        };
        let (p, mut l) = (of(q), of(k));
        (0..c).for_each(|t| l[t * c + t] = 0.0);
        Chunk { pool, d, q, k, beta: &head.beta[start..][..c], gamma, b, p, l }
    }

    /// e: how much of what each token adds to the state is left at the end.
    fn lasting(&self) -> &[f32] {
        &self.gamma[self.gamma.len() - self.b.len()..]
    }

    /// The rows, each times its factor.
    fn scaled(&self, rows: &[f32], factors: &[f32]) -> Vec<f32> {
        let mut out = rows.to_vec();
        self.scale(&mut out, factors);
        out
    }

    fn scale(&self, rows: &mut [f32], factors: &[f32]) {
        for (row, factor) in rows.chunks_exact_mut(self.d).zip(factors) {
            row.iter_mut().for_each(|x| *x *= factor);
        }
    }

    /// Row t of both, multiplied with each other: `[c]`.
    fn dots(&self, x: &[f32], y: &[f32]) -> Vec<f32> {
        x.chunks_exact(self.d).zip(y.chunks_exact(self.d)).map(|(x, y)| dot(x, y)).collect()
    }

    /// `w` holds v and becomes w; `state` is S₀ and becomes S; `out` becomes o.
    fn forward(&self, w: &mut [f32], state: &mut [f32], out: &mut [f32]) {
        let (d, c) = (self.d, self.b.len());
        let begun = Panels::of(state, d);
        let seen = self.scaled(&product(self.pool, Left::of(self.k, d), &begun), &self.b);
        axpy(w, -1.0, &seen);
        let factors = (0..c * c).map(|at| -self.l[at] * self.beta[at % c]).collect();
        wide(Triangle { factors, rows: w, d, from_end: false });
        let delta = self.scaled(w, self.beta);
        multiply(self.pool, Left::of(self.q, d), &begun, out, false);
        self.scale(out, &self.b);
        multiply(self.pool, Left::of(&self.p, c), &Panels::of(&delta, d), out, true);
        let whole = self.b[c - 1];
        state.iter_mut().for_each(|s| *s *= whole);
        let kept = Panels::of(&self.scaled(&delta, self.lasting()), d);
        multiply(self.pool, Left::transposed(self.k, d), &kept, state, true);
    }

    /// Gradients of the chunk's inputs. `dstate` is that of S and becomes that of S₀, which is `state`.
    fn backward(&self, state: &[f32], w: &[f32], dout: &[f32], dstate: &mut [f32]) -> Head {
        let (d, c, pool) = (self.d, self.b.len(), self.pool);
        let delta = self.scaled(w, self.beta);
        // Δ: from S = … + Kᵀ·(e·Δ) and o = … + P·Δ, then through the triangle.
        let mut ddelta = product(pool, Left::of(self.k, d), &Panels::of(dstate, d));
        self.scale(&mut ddelta, self.lasting());
        let ended = self.dots(&delta, &ddelta);
        multiply(pool, Left::transposed(&self.p, c), &Panels::of(dout, d), &mut ddelta, true);
        let factors = (0..c * c).map(|at| -self.l[at % c * c + at / c] * self.beta[at % c]).collect();
        wide(Triangle { factors, rows: &mut ddelta, d, from_end: true });
        let beta = self.dots(&ddelta, w);
        let v = self.scaled(&ddelta, self.beta);
        // P and L, times γ: what their products with K and Q take; and γ's own share, P∘dP + L∘dL.
        let deltas = Panels::transposed(&delta, d);
        let (mut dp, mut dl) = (product(pool, Left::of(dout, d), &deltas), product(pool, Left::of(&v, d), &deltas));
        let mut dg = vec![0.0; c];
        for t in 0..c {
            for s in 0..c {
                let at = t * c + s;
                let share = if s < t { dp[at] * self.p[at] - dl[at] * self.l[at] } else { 0.0 };
                dg[t] += share;
                dg[s] -= share;
                dp[at] *= self.gamma[at];
                dl[at] *= if s < t { -self.gamma[at] } else { 0.0 };
            }
        }
        // Through S₀: b·Q·S₀ and −b·K·S₀, products that come out as columns.
        let through = |rows: &[f32], sign: f32| {
            let columns = product(pool, Left::of(state, d), &Panels::transposed(rows, d));
            let value = |at: usize| sign * self.b[at / d] * columns[at % d * c + at / d];
            (0..c * d).map(value).collect::<Vec<f32>>()
        };
        let (mut q, mut k) = (through(dout, 1.0), through(&v, -1.0));
        dg.iter_mut().zip(self.dots(self.q, &q)).zip(self.dots(self.k, &k)).for_each(|((dg, q), k)| *dg += q + k);
        // Through the end: e·Δ·dSᵀ, and all decays up to there.
        let columns = product(pool, Left::of(dstate, d), &deltas);
        k.iter_mut().enumerate().for_each(|(at, k)| *k += self.lasting()[at / d] * columns[at % d * c + at / d]);
        dg.iter_mut().zip(&ended).for_each(|(dg, ended)| *dg -= ended);
        let whole = self.b[c - 1];
        dg[c - 1] += ended.iter().sum::<f32>() + whole * dot(state, dstate);
        // P = Q·Kᵀ and L = K·Kᵀ.
        let keys = Panels::of(self.k, d);
        multiply(pool, Left::of(&dp, c), &keys, &mut q, true);
        multiply(pool, Left::transposed(&dp, c), &Panels::of(self.q, d), &mut k, true);
        let both: Vec<f32> = (0..c * c).map(|at| dl[at] + dl[at % c * c + at / c]).collect();
        multiply(pool, Left::of(&both, c), &keys, &mut k, true);
        dstate.iter_mut().for_each(|s| *s *= whole);
        multiply(pool, Left::transposed(self.q, d), &Panels::of(&self.scaled(dout, &self.b), d), dstate, true);
        let taken: Vec<f32> = self.b.iter().map(|b| -b).collect();
        multiply(pool, Left::transposed(self.k, d), &Panels::of(&self.scaled(&v, &taken), d), dstate, true);
        // What was found belongs to g_1 + … + g_t.
        let mut sum = 0.0;
        for dg in dg.iter_mut().rev() {
            sum += *dg;
            *dg = sum;
        }
        Head { d, q, k, v, g: dg, beta, ..Head::default() }
    }
}

fn product(pool: &Pool, left: Left<'_>, right: &Panels) -> Vec<f32> {
    let mut out = vec![0.0; left.rows() * right.width()];
    multiply(pool, left, right, &mut out, false);
    out
}

/// Row i += Σ_j factors_ij · row j over the rows j that are done before it: a triangular system, solved in place.
struct Triangle<'a> {
    /// `[c, c]`.
    factors: Vec<f32>,
    /// `[c, d]`.
    rows: &'a mut [f32],
    d: usize,
    from_end: bool,
}

impl Wide for Triangle<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let (d, c) = (self.d, self.rows.len() / self.d);
        let place = |n: usize| if self.from_end { c - 1 - n } else { n };
        let mut row = vec![0.0; d];
        for n in 0..c {
            let i = place(n);
            row.copy_from_slice(&self.rows[i * d..][..d]);
            for j in (0..n).map(place) {
                axpy(&mut row, self.factors[i * c + j], &self.rows[j * d..][..d]);
            }
            self.rows[i * d..][..d].copy_from_slice(&row);
        }
    }
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
            ..Head::default()
        }
    }

    /// Lengths around the borders of chunks.
    const LENGTHS: [usize; 8] = [1, 2, 31, 32, 33, 63, 64, 65];

    /// The rule as it is written, token by token, in f64.
    fn by_tokens(h: &Head) -> Vec<f64> {
        let d = h.d;
        let of = |rows: &[f32], t: usize, i: usize| f64::from(rows[t * d + i]);
        let (mut state, mut out) = (vec![0.0; d * d], Vec::new());
        for t in 0..h.g.len() {
            state.iter_mut().for_each(|s| *s *= f64::from(h.g[t]).exp());
            for j in 0..d {
                let seen: f64 = (0..d).map(|i| of(&h.k, t, i) * state[i * d + j]).sum();
                let delta = f64::from(h.beta[t]) * (of(&h.v, t, j) - seen);
                (0..d).for_each(|i| state[i * d + j] += of(&h.k, t, i) * delta);
                out.push((0..d).map(|i| of(&h.q, t, i) * state[i * d + j]).sum());
            }
        }
        out
    }

    #[test]
    fn chunks_give_what_tokens_give() {
        let pool = Pool::new(1).unwrap();
        for t in LENGTHS {
            let mut h = head(t, 8);
            for (got, want) in h.forward(&pool).iter().zip(by_tokens(&h)) {
                assert!((f64::from(*got) - want).abs() < 1e-5 * (1.0 + want.abs()), "{t}: {got} {want}");
            }
            // A head that forgets everything at once: e^g is zero, and nothing may become infinite.
            h.g.fill(-200.0);
            for (got, want) in h.forward(&pool).iter().zip(by_tokens(&h)) {
                assert!((f64::from(*got) - want).abs() < 1e-5 * (1.0 + want.abs()), "{t}: {got} {want}");
            }
            let grad = h.backward(&pool, &vec![1.0; t * 8]);
            assert!(grad.q.iter().chain(&grad.k).chain(&grad.g).chain(&grad.beta).all(|x| x.is_finite()));
        }
    }

    /// The gradients against central differences of the rule in f64, in every kind of input.
    #[test]
    fn gradients_are_those_of_the_formula() {
        let pool = Pool::new(1).unwrap();
        let d = 8;
        for t in LENGTHS {
            let weight: Vec<f32> = (0..t * d).map(|i| ((i * 37) % 19) as f32 / 19.0 - 0.5).collect();
            let loss = |h: &Head| -> f64 { by_tokens(h).iter().zip(&weight).map(|(o, w)| o * f64::from(*w)).sum() };
            let mut whole = head(t, d);
            whole.forward(&pool);
            let grad = whole.backward(&pool, &weight);
            type Field = fn(&mut Head) -> &mut Vec<f32>;
            let pick: [(Field, &Vec<f32>); 5] = [
                (|h| &mut h.q, &grad.q),
                (|h| &mut h.k, &grad.k),
                (|h| &mut h.v, &grad.v),
                (|h| &mut h.g, &grad.g),
                (|h| &mut h.beta, &grad.beta),
            ];
            for (field, grad) in pick {
                assert_eq!(grad.len(), field(&mut whole).len());
                for i in (0..grad.len()).step_by(1 + grad.len() / 23) {
                    let at = |delta: f32| {
                        let mut h = head(t, d);
                        field(&mut h)[i] += delta;
                        (loss(&h), f64::from(field(&mut h)[i]))
                    };
                    let ((up, x), (down, y)) = (at(1e-3), at(-1e-3));
                    let wanted = (up - down) / (x - y);
                    assert!(
                        (wanted - f64::from(grad[i])).abs() < 1e-4 * (1.0 + wanted.abs()),
                        "{t}: {wanted} {}",
                        grad[i]
                    );
                }
            }
        }
    }
}
