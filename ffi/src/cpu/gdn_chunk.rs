//! The chunked form of the gated delta rule: 64 tokens of one head as small matrix products.
//!
//! With G_t the sum of log decays up to t and S₀ the state before the chunk:
//! d_t = β_t (v_t − e^{G_t} S₀ᵀk_t) − Σ_{s<t} β_t e^{G_t−G_s} (k_t·k_s) d_s,
//! o_t = e^{G_t} S₀ᵀq_t + Σ_{s≤t} e^{G_t−G_s} (q_t·k_s) d_s,
//! S = e^{G_C} S₀ + Σ_s e^{G_C−G_s} k_s d_sᵀ.
//! All exponents are ≤ 0, so nothing overflows. Source: the gated DeltaNet paper's WY form, solved by
//! forward substitution instead of an explicit inverse.

use super::gdn::{Buffers, CHUNK, COLUMNS, DIM};
use super::norm;

/// Rows that share the loads of the right-hand matrix.
const ROWS: usize = 8;

/// Intermediate matrices of one chunk.
pub(super) struct ChunkScratch {
    /// kᵀ by column blocks of tokens `[2][128][32]`.
    keys: Vec<f32>,
    /// The same scaled by e^{G_C−G_s}, `[128][64]`.
    decayed: Vec<f32>,
    /// Coefficients of d in d and in o, `[64][64]`, zero above the diagonal.
    lower: Vec<f32>,
    mix: Vec<f32>,
    /// One block of columns of d and o, `[64][32]`.
    d: Vec<f32>,
    o: Vec<f32>,
}

impl ChunkScratch {
    pub(super) fn new() -> ChunkScratch {
        ChunkScratch {
            keys: vec![0.0; DIM * CHUNK],
            decayed: vec![0.0; DIM * CHUNK],
            lower: vec![0.0; CHUNK * CHUNK],
            mix: vec![0.0; CHUNK * CHUNK],
            d: vec![0.0; CHUNK * COLUMNS],
            o: vec![0.0; CHUNK * COLUMNS],
        }
    }
}

norm::fast! {
    /// c `[m, 32]` (+)= a `[m, k]` · b `[k, 32]`; `a` has row stride `stride`, `m` is a multiple of 8.
    fn product(a: &[f32], stride: usize, k: usize, b: &[f32], c: &mut [f32], add: bool) {
        let b = &b.as_chunks::<COLUMNS>().0[..k];
        for (i, c) in c.as_chunks_mut::<COLUMNS>().0.chunks_exact_mut(ROWS).enumerate() {
            let mut acc = [[0f32; COLUMNS]; ROWS];
            if add {
                acc.copy_from_slice(c);
            }
            let rows: [&[f32]; ROWS] = std::array::from_fn(|r| &a[(i * ROWS + r) * stride..][..k]);
            for (j, b) in b.iter().enumerate() {
                for (acc, row) in acc.iter_mut().zip(&rows) {
                    let x = row[j];
                    for (acc, b) in acc.iter_mut().zip(b) {
                        *acc = x.mul_add(*b, *acc);
                    }
                }
            }
            c.copy_from_slice(&acc);
        }
    }
}

norm::fast! {
    /// d_t −= Σ_{s<t} lower[t][s] d_s, row after row.
    fn substitute(lower: &[f32], d: &mut [f32]) {
        for t in 1..CHUNK {
            let (done, rest) = d.split_at_mut(t * COLUMNS);
            let mut acc = [0f32; COLUMNS];
            acc.copy_from_slice(&rest[..COLUMNS]);
            for (row, x) in done.as_chunks::<COLUMNS>().0.iter().zip(&lower[t * CHUNK..]) {
                for (acc, d) in acc.iter_mut().zip(row) {
                    *acc = (-x).mul_add(*d, *acc);
                }
            }
            rest[..COLUMNS].copy_from_slice(&acc);
        }
    }
}

/// Advances `state` (`[column block][128][32]`) by the 64 rows in `buffers` and writes their outputs.
pub(super) fn advance(state: &mut [f32], buffers: &mut Buffers) {
    let mut total = [0f32; CHUNK];
    let mut sum = 0f32;
    for (g, log) in total.iter_mut().zip(&buffers.log_decay) {
        sum += log;
        *g = sum;
    }
    let Buffers { q, k, v, o, beta, chunk: s, .. } = buffers;
    coefficients(q, k, beta, &total, s);
    for (c, block) in state.chunks_mut(DIM * COLUMNS).enumerate() {
        product(k, DIM, DIM, block, &mut s.d, false);
        product(q, DIM, DIM, block, &mut s.o, false);
        for t in 0..CHUNK {
            let grown = total[t].exp();
            let v = &v[t * DIM + c * COLUMNS..][..COLUMNS];
            for (d, v) in s.d[t * COLUMNS..][..COLUMNS].iter_mut().zip(v) {
                *d = beta[t] * (-grown).mul_add(*d, *v);
            }
            s.o[t * COLUMNS..][..COLUMNS].iter_mut().for_each(|o| *o *= grown);
        }
        substitute(&s.lower, &mut s.d);
        product(&s.mix, CHUNK, CHUNK, &s.d, &mut s.o, true);
        let grown = total[CHUNK - 1].exp();
        block.iter_mut().for_each(|x| *x *= grown);
        product(&s.decayed, CHUNK, CHUNK, &s.d, block, true);
        for (t, from) in s.o.as_chunks::<COLUMNS>().0.iter().enumerate() {
            o[t * DIM + c * COLUMNS..][..COLUMNS].copy_from_slice(from);
        }
    }
}

/// Fills `keys`, `decayed`, `lower` and `mix`.
fn coefficients(q: &[f32], k: &[f32], beta: &[f32; CHUNK], total: &[f32; CHUNK], s: &mut ChunkScratch) {
    let last = total[CHUNK - 1];
    for t in 0..CHUNK {
        let decay = (last - total[t]).exp();
        for i in 0..DIM {
            let x = k[t * DIM + i];
            s.keys[t / COLUMNS * DIM * COLUMNS + i * COLUMNS + t % COLUMNS] = x;
            s.decayed[i * CHUNK + t] = x * decay;
        }
    }
    for half in 0..CHUNK / COLUMNS {
        let keys = &s.keys[half * DIM * COLUMNS..][..DIM * COLUMNS];
        product(k, DIM, DIM, keys, &mut s.d, false);
        product(q, DIM, DIM, keys, &mut s.o, false);
        for t in 0..CHUNK {
            for j in 0..COLUMNS {
                let (at, from) = (t * CHUNK + half * COLUMNS + j, t * COLUMNS + j);
                let other = half * COLUMNS + j;
                let ratio = if other <= t { norm::exp(total[t] - total[other]) } else { 0.0 };
                s.mix[at] = ratio * s.o[from];
                s.lower[at] = if other < t { beta[t] * ratio * s.d[from] } else { 0.0 };
            }
        }
    }
}
