//! The gated delta rule (GDN) layer between its projections: causal convolution with SiLU, L2 norms,
//! gates, the recurrent state of 128 × 128 a value head, and the gated norm.
//!
//! Owns the state of a sequence and the order of its numbers. Full chunks of [`CHUNK`] rows of a span
//! use the chunked form ([`super::gdn_chunk`]), the rest the recurrent step; both are functions of the
//! span and the state alone. Per token, head h with key head h mod key_heads:
//! S ← a·S; r = Sᵀk; d = β(v − r); S ← S + k dᵀ; o = Sᵀq; y = RMSNorm(o)·weight·SiLU(z),
//! with a = exp(softplus(α + dt)·A), β = σ(b), q and k L2-normalised, q scaled by 1/√dim.

use super::gdn_chunk::{self, ChunkScratch};
use super::lanes::{LANES, Lanes, lanes};
use super::norm;
use super::pool::{Pool, Shared1};

/// Dimension of keys and values of a head.
pub(super) const DIM: usize = 128;
/// Columns of the state that are stored together: 16 kB, which stays in the first cache.
pub(super) const COLUMNS: usize = 32;
/// Rows of the chunked form; prefill is cut at multiples of it.
pub const CHUNK: usize = 64;
/// Inputs of the convolution.
const TAPS: usize = 4;

/// Why a layer could not be described.
#[derive(Debug, thiserror::Error, PartialEq)]
pub enum GdnError {
    #[error("head dimension {0}; this build handles {DIM}")]
    HeadDim(usize),
    #[error("{what} has {got} values, {need} needed")]
    Length { what: &'static str, need: usize, got: usize },
    #[error("{values} value heads are no multiple of {keys} key heads")]
    Heads { keys: usize, values: usize },
}

/// Heads of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GdnShape {
    pub key_heads: usize,
    pub value_heads: usize,
    /// 128.
    pub head_dim: usize,
}

impl GdnShape {
    /// Channels of the convolution: q, k and v.
    pub fn channels(&self) -> usize {
        (2 * self.key_heads + self.value_heads) * self.head_dim
    }
}

/// The small parameters of a layer, in f32.
#[derive(Clone)]
pub struct Gdn {
    shape: GdnShape,
    /// `[4, channels]`: tap-major, oldest first.
    conv: Vec<f32>,
    a: Vec<f32>,
    dt_bias: Vec<f32>,
    norm: Vec<f32>,
    eps: f32,
}

fn check(what: &'static str, got: usize, need: usize) -> Result<(), GdnError> {
    if got == need { Ok(()) } else { Err(GdnError::Length { what, need, got }) }
}

impl Gdn {
    /// `conv` is `[channels, 4]` as in the file, `a` (−exp(A_log)) and `dt_bias` `[value_heads]`, `norm` `[head_dim]`.
    pub fn new(
        shape: GdnShape,
        conv: &[f32],
        a: &[f32],
        dt_bias: &[f32],
        norm: &[f32],
        eps: f32,
    ) -> Result<Gdn, GdnError> {
        if shape.head_dim != DIM {
            return Err(GdnError::HeadDim(shape.head_dim));
        }
        if shape.key_heads == 0 || !shape.value_heads.is_multiple_of(shape.key_heads) {
            return Err(GdnError::Heads { keys: shape.key_heads, values: shape.value_heads });
        }
        let channels = shape.channels();
        check("the convolution", conv.len(), channels * TAPS)?;
        check("ssm_a", a.len(), shape.value_heads)?;
        check("ssm_dt", dt_bias.len(), shape.value_heads)?;
        check("ssm_norm", norm.len(), DIM)?;
        let conv = (0..TAPS * channels).map(|i| conv[i % channels * TAPS + i / channels]).collect();
        Ok(Gdn { shape, conv, a: a.to_vec(), dt_bias: dt_bias.to_vec(), norm: norm.to_vec(), eps })
    }

    /// Heads of the layer.
    pub fn shape(&self) -> GdnShape {
        self.shape
    }
}

/// The recurrent state of one sequence in one layer.
#[derive(Clone)]
pub struct GdnState {
    /// The last three inputs of the convolution `[3, channels]`, oldest first.
    conv: Vec<f32>,
    /// `[value_head][column block][key 128][32 columns]`.
    heads: Vec<f32>,
}

impl GdnState {
    /// The state before the first token.
    pub fn new(shape: GdnShape) -> GdnState {
        GdnState { conv: vec![0.0; (TAPS - 1) * shape.channels()], heads: vec![0.0; shape.value_heads * DIM * DIM] }
    }

    /// Back to the state before the first token.
    pub fn reset(&mut self) {
        self.conv.fill(0.0);
        self.heads.fill(0.0);
    }

    /// Takes over the contents of `other`, of the same shape.
    pub fn copy_from(&mut self, other: &GdnState) {
        self.conv.copy_from_slice(&other.conv);
        self.heads.copy_from_slice(&other.heads);
    }

    /// Bytes of memory.
    pub fn bytes(&self) -> usize {
        4 * (self.conv.len() + self.heads.len())
    }
}

/// Rows of one sequence in a call.
pub struct GdnSpan<'a> {
    /// First row, and number of rows.
    pub start: usize,
    pub len: usize,
    pub state: &'a mut GdnState,
}

/// The projections of T rows.
#[derive(Clone, Copy)]
pub struct GdnRows<'a> {
    /// `[T, channels]`: q, k, v before the convolution.
    pub qkv: &'a [f32],
    /// `[T, value_heads·dim]`.
    pub z: &'a [f32],
    /// `[T, value_heads]`, as projected.
    pub alpha: &'a [f32],
    pub beta: &'a [f32],
}

/// Buffers of [`gdn`], one set a thread, reusable from layer to layer.
#[derive(Default)]
pub struct GdnScratch(Vec<Buffers>);

impl GdnScratch {
    /// Empty buffers; they grow to the number of threads.
    pub fn new() -> GdnScratch {
        GdnScratch::default()
    }
}

/// Rows of one head for up to [`CHUNK`] tokens.
pub(super) struct Buffers {
    pub(super) q: Vec<f32>,
    pub(super) k: Vec<f32>,
    pub(super) v: Vec<f32>,
    pub(super) o: Vec<f32>,
    /// Log of the decay, and β, of each token.
    pub(super) log_decay: [f32; CHUNK],
    pub(super) beta: [f32; CHUNK],
    pub(super) chunk: ChunkScratch,
}

impl Default for Buffers {
    fn default() -> Self {
        let rows = || vec![0.0; CHUNK * DIM];
        Buffers {
            q: rows(),
            k: rows(),
            v: rows(),
            o: rows(),
            log_decay: [0.0; CHUNK],
            beta: [0.0; CHUNK],
            chunk: ChunkScratch::new(),
        }
    }
}

/// Runs the layer for all spans: `out` `[T, value_heads·dim]` is ready for the output projection.
pub fn gdn(
    pool: &Pool,
    layer: &Gdn,
    rows: GdnRows<'_>,
    spans: &mut [GdnSpan<'_>],
    out: &mut [f32],
    scratch: &mut GdnScratch,
) {
    let shape = layer.shape;
    let (channels, width) = (shape.channels(), shape.value_heads * DIM);
    for s in spans.iter() {
        let end = s.start + s.len;
        assert!(
            end * channels <= rows.qkv.len() && end * width <= rows.z.len() && end * width <= out.len(),
            "the span lies inside the rows"
        );
        assert!(end * shape.value_heads <= rows.alpha.len().min(rows.beta.len()), "gates for each row");
        assert!(
            s.state.conv.len() == (TAPS - 1) * channels && s.state.heads.len() == width * DIM,
            "a state of this layer's shape"
        );
    }
    while scratch.0.len() < pool.threads() {
        scratch.0.push(Buffers::default());
    }
    let buffers = Shared1(scratch.0.as_mut_ptr());
    let to = Shared1(out.as_mut_ptr());
    let heads: Vec<Shared1<f32>> = spans.iter_mut().map(|s| Shared1(s.state.heads.as_mut_ptr())).collect();
    let spans_read = &*spans;
    pool.run(heads.len() * shape.value_heads, |task, thread| {
        let (s, h) = (task / shape.value_heads, task % shape.value_heads);
        // SAFETY: one buffer set a thread; the state and the outputs of this span and head belong to this task.
        let (buffers, state) = unsafe {
            (&mut *buffers.at(thread), std::slice::from_raw_parts_mut(heads[s].at(h * DIM * DIM), DIM * DIM))
        };
        let span = &spans_read[s];
        for first in (0..span.len).step_by(CHUNK) {
            let n = CHUNK.min(span.len - first);
            prepare(layer, &rows, span, h, first, n, buffers);
            if n == CHUNK {
                gdn_chunk::advance(state, buffers);
            } else {
                for t in 0..n {
                    let row = t * DIM..(t + 1) * DIM;
                    let (q, k, v) = (&buffers.q[row.clone()], &buffers.k[row.clone()], &buffers.v[row.clone()]);
                    let decay = buffers.log_decay[t].exp();
                    // SAFETY: `step` checks the lengths it relies on.
                    unsafe { step(state, q, k, v, decay, buffers.beta[t], &mut buffers.o[row]) };
                }
            }
            for t in 0..n {
                let at = (span.start + first + t) * width + h * DIM;
                // SAFETY: as above.
                let y = unsafe { std::slice::from_raw_parts_mut(to.at(at), DIM) };
                norm::rms_norm_into(&buffers.o[t * DIM..(t + 1) * DIM], &layer.norm, layer.eps, y);
                norm::mul_silu(y, &rows.z[at..at + DIM]);
            }
        }
    });
    for s in spans.iter_mut() {
        remember(s, rows.qkv, channels);
    }
}

/// Keeps the last three inputs of the convolution.
fn remember(span: &mut GdnSpan<'_>, qkv: &[f32], channels: usize) {
    let keep = TAPS - 1;
    let new = span.len.min(keep);
    span.state.conv.copy_within(new * channels.., 0);
    let end = (span.start + span.len) * channels;
    span.state.conv[(keep - new) * channels..].copy_from_slice(&qkv[end - new * channels..end]);
}

/// Convolution, norms and gates of `n` rows of head `h`, from row `first` of the span.
fn prepare(layer: &Gdn, rows: &GdnRows<'_>, span: &GdnSpan<'_>, h: usize, first: usize, n: usize, to: &mut Buffers) {
    let shape = layer.shape;
    let channels = shape.channels();
    let key = h % shape.key_heads;
    let parts = [key * DIM, (shape.key_heads + key) * DIM, (2 * shape.key_heads + h) * DIM];
    for t in 0..n {
        let row = t * DIM..(t + 1) * DIM;
        for (part, at) in [&mut to.q, &mut to.k, &mut to.v].into_iter().zip(parts) {
            let taps: [&[f32]; TAPS] = std::array::from_fn(|j| {
                let back = TAPS - 1 - j; // this tap looks `back` rows behind row first + t
                if back <= first + t {
                    &rows.qkv[(span.start + first + t - back) * channels + at..][..DIM]
                } else {
                    &span.state.conv[(TAPS - 1 + first + t - back) * channels + at..][..DIM]
                }
            });
            let weights: [&[f32]; TAPS] = std::array::from_fn(|j| &layer.conv[j * channels + at..][..DIM]);
            convolve(&taps, &weights, &mut part[row.clone()]);
        }
        let q = &mut to.q[row.clone()];
        norm::l2_norm_scaled(q, layer.eps, 1.0 / (DIM as f32).sqrt());
        norm::l2_norm(&mut to.k[row], layer.eps);
        let at = (span.start + first + t) * shape.value_heads + h;
        to.log_decay[t] = norm::softplus(rows.alpha[at] + layer.dt_bias[h]) * layer.a[h];
        to.beta[t] = norm::sigmoid(rows.beta[at]);
    }
}

/// out = silu(Σ_j w_j·x_j) for one head's channels.
fn convolve(x: &[&[f32]; TAPS], w: &[&[f32]; TAPS], out: &mut [f32]) {
    assert!(x.iter().chain(w).all(|row| row.len() == DIM) && out.len() == DIM, "channels of one head");
    // SAFETY: the lengths were checked.
    unsafe { convolve_on(x, w, out) }
}

lanes! { unsafe fn convolve_on(x: &[&[f32]; TAPS], w: &[&[f32]; TAPS], out: &mut [f32]) = convolve_body }

#[inline(always)]
unsafe fn convolve_body<L: Lanes>(x: &[&[f32]; TAPS], w: &[&[f32]; TAPS], out: &mut [f32]) {
    for i in (0..DIM).step_by(LANES) {
        // SAFETY: every row has 128 floats (checked by `convolve`).
        unsafe {
            let mut sum = L::splat(0.0);
            for (x, w) in x.iter().zip(w) {
                sum = L::load(w.as_ptr().wrapping_add(i)).fma(L::load(x.as_ptr().wrapping_add(i)), sum);
            }
            sum.silu().store(out.as_mut_ptr().wrapping_add(i));
        }
    }
}

lanes! {
    /// One token of one head; `state` is `[column block][128][32]`, the rows have 128 values.
    ///
    /// # Safety
    /// Nothing beyond the lengths, which are checked.
    unsafe fn step(state: &mut [f32], q: &[f32], k: &[f32], v: &[f32], decay: f32, beta: f32, o: &mut [f32]) = step_body
}

/// Vectors of a row of a column block.
const VECTORS: usize = COLUMNS / LANES;

#[inline(always)]
unsafe fn step_body<L: Lanes>(
    state: &mut [f32],
    q: &[f32],
    k: &[f32],
    v: &[f32],
    decay: f32,
    beta: f32,
    o: &mut [f32],
) {
    assert!(state.len() == DIM * DIM && [q.len(), k.len(), v.len(), o.len()] == [DIM; 4], "rows of one head");
    for c in 0..DIM / COLUMNS {
        let block = state[c * DIM * COLUMNS..].as_mut_ptr();
        // SAFETY: the block has 128 rows of 32 floats, the rows 128 (checked above).
        unsafe {
            // Four partial sums over the keys, added pairwise: the chains hide the latency of the products.
            let mut r = [[L::splat(0.0); VECTORS]; 4];
            for (i, k) in k.iter().enumerate() {
                let k = L::splat(*k);
                for (j, r) in r[i % 4].iter_mut().enumerate() {
                    *r = k.fma(L::load(block.wrapping_add(i * COLUMNS + j * LANES)), *r);
                }
            }
            let d: [L; VECTORS] = std::array::from_fn(|j| {
                let r = r[0][j].add(r[1][j]).add(r[2][j].add(r[3][j]));
                let v = L::load(v.as_ptr().wrapping_add(c * COLUMNS + j * LANES));
                L::splat(-decay).fma(r, v).mul(L::splat(beta))
            });
            let decay = L::splat(decay);
            let mut y = [[L::splat(0.0); VECTORS]; 4];
            for (i, (k, q)) in k.iter().zip(q).enumerate() {
                let (k, q) = (L::splat(*k), L::splat(*q));
                // The next block, or the next head's first: the state is too large for the nearer caches.
                (0..VECTORS).for_each(|j| L::prefetch(block.wrapping_add((DIM + i) * COLUMNS + j * LANES)));
                for (j, y) in y[i % 4].iter_mut().enumerate() {
                    let at = block.wrapping_add(i * COLUMNS + j * LANES);
                    let s = k.fma(d[j], decay.mul(L::load(at)));
                    s.store(at);
                    *y = q.fma(s, *y);
                }
            }
            for j in 0..VECTORS {
                let y = y[0][j].add(y[1][j]).add(y[2][j].add(y[3][j]));
                y.store(o.as_mut_ptr().wrapping_add(c * COLUMNS + j * LANES));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::samples::Random;

    const SHAPE: GdnShape = GdnShape { key_heads: 2, value_heads: 4, head_dim: DIM };

    struct Case {
        layer: Gdn,
        conv: Vec<f32>,
        qkv: Vec<f32>,
        z: Vec<f32>,
        alpha: Vec<f32>,
        beta: Vec<f32>,
    }

    impl Case {
        fn new(t: usize) -> Case {
            let mut rng = Random(11);
            let channels = SHAPE.channels();
            let conv = rng.normals(channels * TAPS);
            let a: Vec<f32> = (0..4).map(|i| -0.05 * (1 + 3 * i) as f32).collect();
            let layer = Gdn::new(SHAPE, &conv, &a, &rng.normals(4), &rng.normals(DIM), 1e-6).unwrap();
            Case {
                layer,
                conv,
                qkv: rng.normals(t * channels),
                z: rng.normals(t * 4 * DIM),
                alpha: rng.normals(t * 4),
                beta: rng.normals(t * 4),
            }
        }

        /// Runs rows cut into spans of these lengths, one call each.
        fn run(&self, pool: &Pool, cuts: &[usize]) -> (Vec<f32>, GdnState) {
            let mut out = vec![0.0; self.z.len()];
            let mut state = GdnState::new(SHAPE);
            let mut start = 0;
            let rows = GdnRows { qkv: &self.qkv, z: &self.z, alpha: &self.alpha, beta: &self.beta };
            for len in cuts {
                gdn(
                    pool,
                    &self.layer,
                    rows,
                    &mut [GdnSpan { start, len: *len, state: &mut state }],
                    &mut out,
                    &mut GdnScratch::new(),
                );
                start += len;
            }
            (out, state)
        }

        /// Head `h` of every row in f64, as the formula stands.
        fn exact(&self, h: usize) -> Vec<f64> {
            let channels = SHAPE.channels();
            let t_max = self.beta.len() / 4;
            let mut s = vec![0f64; DIM * DIM];
            let mut out = Vec::new();
            let part = |t: usize, at: usize| -> Vec<f64> {
                (0..DIM)
                    .map(|i| {
                        let c = at * DIM + i;
                        let sum: f64 = (0..TAPS)
                            .filter(|j| t + j >= 3)
                            .map(|j| {
                                f64::from(self.conv[c * TAPS + j]) * f64::from(self.qkv[(t + j - 3) * channels + c])
                            })
                            .sum();
                        sum / (1.0 + (-sum).exp())
                    })
                    .collect()
            };
            let unit = |x: Vec<f64>| {
                let n = x.iter().map(|v| v * v).sum::<f64>().sqrt();
                x.into_iter().map(|v| v / n).collect::<Vec<_>>()
            };
            for t in 0..t_max {
                let (q, k, v) = (unit(part(t, h % 2)), unit(part(t, 2 + h % 2)), part(t, 4 + h));
                let x = f64::from(self.alpha[t * 4 + h]) + f64::from(self.layer.dt_bias[h]);
                let decay = ((x.exp().ln_1p()) * f64::from(self.layer.a[h])).exp();
                let beta = 1.0 / (1.0 + (-f64::from(self.beta[t * 4 + h])).exp());
                s.iter_mut().for_each(|s| *s *= decay);
                let d: Vec<f64> =
                    (0..DIM).map(|j| beta * (v[j] - (0..DIM).map(|i| s[i * DIM + j] * k[i]).sum::<f64>())).collect();
                for i in 0..DIM {
                    for j in 0..DIM {
                        s[i * DIM + j] += k[i] * d[j];
                    }
                }
                let o: Vec<f64> = (0..DIM)
                    .map(|j| (0..DIM).map(|i| s[i * DIM + j] * q[i]).sum::<f64>() / (DIM as f64).sqrt())
                    .collect();
                let scale = 1.0 / (o.iter().map(|v| v * v).sum::<f64>() / DIM as f64 + 1e-6).sqrt();
                for j in 0..DIM {
                    let z = f64::from(self.z[(t * 4 + h) * DIM + j]);
                    out.push(o[j] * scale * f64::from(self.layer.norm[j]) * z / (1.0 + (-z).exp()));
                }
            }
            out
        }
    }

    #[test]
    fn steps_and_chunks_equal_the_formula() {
        let t = 2 * CHUNK + 5;
        let case = Case::new(t);
        let pool = Pool::new(2).unwrap();
        let (steps, _) = case.run(&pool, &vec![1; t]);
        let (whole, _) = case.run(&pool, &[t]);
        for h in 0..4 {
            let want = case.exact(h);
            for i in 0..t * DIM {
                let at = i / DIM * 4 * DIM + h * DIM + i % DIM;
                for (name, got) in [("steps", steps[at]), ("chunks", whole[at])] {
                    assert!(
                        (f64::from(got) - want[i]).abs() < 3e-5 * (1.0 + want[i].abs()),
                        "{name} head {h} row {}: {got} {}",
                        i / DIM,
                        want[i]
                    );
                }
            }
        }
    }

    #[test]
    fn cuts_at_chunk_borders_and_neighbours_change_no_bit() {
        let t = 3 * CHUNK + 9;
        let case = Case::new(t);
        let pool = Pool::new(2).unwrap();
        let (whole, state) = case.run(&pool, &[t]);
        let (cut, cut_state) = case.run(&pool, &[CHUNK, 2 * CHUNK, 9]);
        assert_eq!(whole, cut);
        assert_eq!((state.heads, state.conv), (cut_state.heads, cut_state.conv));
        // The same rows as two sequences in one call, against two calls.
        let (mut a, mut b) = (GdnState::new(SHAPE), GdnState::new(SHAPE));
        let mut out = vec![0.0; case.z.len()];
        let rows = GdnRows { qkv: &case.qkv, z: &case.z, alpha: &case.alpha, beta: &case.beta };
        let mut spans =
            [GdnSpan { start: 0, len: 100, state: &mut a }, GdnSpan { start: 100, len: t - 100, state: &mut b }];
        gdn(&pool, &case.layer, rows, &mut spans, &mut out, &mut GdnScratch::new());
        let (first, _) = case.run(&pool, &[100]);
        assert_eq!(out[..100 * 4 * DIM], first[..100 * 4 * DIM]);
    }

    #[test]
    fn wrong_shapes_are_refused_and_reset_forgets() {
        assert_eq!(
            Gdn::new(GdnShape { head_dim: 64, ..SHAPE }, &[], &[], &[], &[], 1e-6).err(),
            Some(GdnError::HeadDim(64))
        );
        assert!(matches!(Gdn::new(SHAPE, &[0.0], &[], &[], &[], 1e-6), Err(GdnError::Length { .. })));
        let case = Case::new(3);
        let pool = Pool::new(1).unwrap();
        let (_, mut state) = case.run(&pool, &[3]);
        assert!(state.heads.iter().any(|v| *v != 0.0));
        state.reset();
        let fresh = GdnState::new(SHAPE);
        assert_eq!((&state.heads, &state.conv), (&fresh.heads, &fresh.conv));
    }
}
