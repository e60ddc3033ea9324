//! The chunked form of the gated delta rule: 64 tokens of one head as small matrix products.
//!
//! With G_t the sum of log decays up to t and S₀ the state before the chunk:
//!
//! d_t = β_t (v_t − e^{G_t} S₀ᵀk_t) − Σ_{s<t} β_t e^{G_t−G_s} (k_t·k_s) d_s,
//! o_t = e^{G_t} S₀ᵀq_t + Σ_{s≤t} e^{G_t−G_s} (q_t·k_s) d_s,
//! S = e^{G_C} S₀ + Σ_s e^{G_C−G_s} k_s d_sᵀ.
//!
//! All exponents are ≤ 0, so nothing overflows. Source: the gated DeltaNet paper's WY form, solved by
//! forward substitution instead of an explicit inverse.

use super::gdn::{Buffers, CHUNK, COLUMNS, DIM};
use super::lanes::{LANES, Lanes, lanes};

/// Rows that share the loads of the right-hand matrix.
const ROWS: usize = 8;

/// Intermediate matrices of one chunk.
pub(super) struct ChunkScratch {
    /// kᵀ by column blocks of tokens `[2][128][32]`.
    keys: Vec<f32>,
    /// The same scaled by e^{G_C−G_s}.
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

/// Vectors of a row of 32 columns.
const VECTORS: usize = COLUMNS / LANES;

lanes! {
    unsafe fn product_on(a: &[f32], stride: usize, k: usize, b: &[f32], c: &mut [f32], add: bool) = product_body
}

/// c `[m, 32]` (+)= a `[m, k]` · b `[k, 32]`; `a` has row stride `stride`, `m` is a multiple of 8.
fn product(a: &[f32], stride: usize, k: usize, b: &[f32], c: &mut [f32], add: bool) {
    let m = c.len() / COLUMNS;
    assert!(
        m.is_multiple_of(ROWS) && k <= stride && m * stride <= a.len() && k * COLUMNS <= b.len(),
        "shapes of a product"
    );
    // SAFETY: the lengths were checked.
    unsafe { product_on(a, stride, k, b, c, add) }
}

#[inline(always)]
unsafe fn product_body<L: Lanes>(a: &[f32], stride: usize, k: usize, b: &[f32], c: &mut [f32], add: bool) {
    for (i, c) in c.chunks_exact_mut(ROWS * COLUMNS).enumerate() {
        let a = a[i * ROWS * stride..].as_ptr();
        // SAFETY: row r of this block of `a` has k values, row j of `b` and row r of `c` 32 (checked by `product`).
        unsafe {
            let mut acc = [[L::splat(0.0); VECTORS]; ROWS];
            if add {
                for (r, acc) in acc.iter_mut().enumerate() {
                    *acc = std::array::from_fn(|v| L::load(c.as_ptr().wrapping_add(r * COLUMNS + v * LANES)));
                }
            }
            for j in 0..k {
                let b: [L; VECTORS] =
                    std::array::from_fn(|v| L::load(b.as_ptr().wrapping_add(j * COLUMNS + v * LANES)));
                for (r, acc) in acc.iter_mut().enumerate() {
                    let x = L::splat(*a.wrapping_add(r * stride + j));
                    for (acc, b) in acc.iter_mut().zip(b) {
                        *acc = x.fma(b, *acc);
                    }
                }
            }
            for (r, acc) in acc.into_iter().enumerate() {
                for (v, acc) in acc.into_iter().enumerate() {
                    acc.store(c.as_mut_ptr().wrapping_add(r * COLUMNS + v * LANES));
                }
            }
        }
    }
}

lanes! {
    unsafe fn substitute_on(lower: &[f32], d: &mut [f32]) = substitute_body
}

/// d_t −= Σ_{s<t} lower[t][s] d_s, row after row.
fn substitute(lower: &[f32], d: &mut [f32]) {
    assert!(lower.len() == CHUNK * CHUNK && d.len() == CHUNK * COLUMNS, "shapes of a substitution");
    // SAFETY: the lengths were checked.
    unsafe { substitute_on(lower, d) }
}

#[inline(always)]
unsafe fn substitute_body<L: Lanes>(lower: &[f32], d: &mut [f32]) {
    let d = d.as_mut_ptr();
    let row = |t: usize, v: usize| d.wrapping_add(t * COLUMNS + v * LANES);
    for t in 1..CHUNK {
        // SAFETY: rows 0..64 of 32 floats (checked by `substitute`).
        unsafe {
            // Two partial sums: even and odd rows.
            let mut acc = [[L::splat(0.0); VECTORS]; 2];
            for s in 0..t {
                let x = L::splat(lower[t * CHUNK + s]);
                for (v, acc) in acc[s % 2].iter_mut().enumerate() {
                    *acc = x.fma(L::load(row(s, v)), *acc);
                }
            }
            for v in 0..VECTORS {
                let sum = acc[0][v].add(acc[1][v]);
                sum.fma(L::splat(-1.0), L::load(row(t, v))).store(row(t, v));
            }
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
        for (decayed, d) in s.decayed.chunks(DIM * COLUMNS).zip(s.d.chunks(COLUMNS * COLUMNS)) {
            product(decayed, COLUMNS, COLUMNS, d, block, true);
        }
        for (t, from) in s.o.as_chunks::<COLUMNS>().0.iter().enumerate() {
            o[t * DIM + c * COLUMNS..][..COLUMNS].copy_from_slice(from);
        }
    }
}

/// Fills `keys`, `decayed`, `lower` and `mix`.
fn coefficients(q: &[f32], k: &[f32], beta: &[f32; CHUNK], total: &[f32; CHUNK], s: &mut ChunkScratch) {
    let last = total[CHUNK - 1];
    let decay: [f32; CHUNK] = std::array::from_fn(|t| (last - total[t]).exp());
    for half in 0..CHUNK / COLUMNS {
        let keys = &mut s.keys[half * DIM * COLUMNS..][..DIM * COLUMNS];
        for (t, k) in k.as_chunks::<DIM>().0[half * COLUMNS..][..COLUMNS].iter().enumerate() {
            for (i, x) in k.iter().enumerate() {
                keys[i * COLUMNS + t] = *x;
            }
        }
        product(k, DIM, DIM, keys, &mut s.d, false);
        product(q, DIM, DIM, keys, &mut s.o, false);
        let decay = &decay[half * COLUMNS..][..COLUMNS];
        let decayed = &mut s.decayed[half * DIM * COLUMNS..][..DIM * COLUMNS];
        for (to, from) in decayed.as_chunks_mut::<COLUMNS>().0.iter_mut().zip(keys.as_chunks::<COLUMNS>().0) {
            for ((to, from), decay) in to.iter_mut().zip(from).zip(decay) {
                *to = from * decay;
            }
        }
        // SAFETY: the matrices have 64 rows, of 32 values here and 64 there.
        unsafe { ratios(half, beta, total, &s.d, &s.o, &mut s.lower, &mut s.mix) }
    }
}

/// 64 ones and 64 zeros: 64 values from 64 − n are n ones, then zeros.
static FIRST: [f32; 2 * CHUNK] = {
    let mut mask = [0.0; 2 * CHUNK];
    let mut i = 0;
    while i < CHUNK {
        mask[i] = 1.0;
        i += 1;
    }
    mask
};

lanes! {
    /// Columns 32·half.. of `mix` = ratio·(q·k) for s ≤ t and of `lower` = β·ratio·(k·k) for s < t, ratio = e^{G_t−G_s}.
    unsafe fn ratios(half: usize, beta: &[f32; CHUNK], total: &[f32; CHUNK], kk: &[f32], qk: &[f32], lower: &mut [f32], mix: &mut [f32]) = ratios_body
}

#[inline(always)]
unsafe fn ratios_body<L: Lanes>(
    half: usize,
    beta: &[f32; CHUNK],
    total: &[f32; CHUNK],
    kk: &[f32],
    qk: &[f32],
    lower: &mut [f32],
    mix: &mut [f32],
) {
    for t in 0..CHUNK {
        for v in 0..VECTORS {
            let (column, from) = (half * COLUMNS + v * LANES, t * COLUMNS + v * LANES);
            // SAFETY: 16 values inside each row; the mask has 128.
            unsafe {
                // Above the diagonal the ratio may be huge, but `exp` is bounded and the mask makes it zero.
                let others = L::load(total.as_ptr().wrapping_add(column));
                let ratio = L::splat(-1.0).fma(others, L::splat(total[t])).exp();
                let seen = |n: usize| L::load(FIRST.as_ptr().wrapping_add(CHUNK - n + column));
                let at = t * CHUNK + column;
                let qk = L::load(qk.as_ptr().wrapping_add(from));
                qk.mul(ratio.mul(seen(t + 1))).store(mix.as_mut_ptr().wrapping_add(at));
                let kk = L::load(kk.as_ptr().wrapping_add(from)).mul(L::splat(beta[t]));
                kk.mul(ratio.mul(seen(t))).store(lower.as_mut_ptr().wrapping_add(at));
            }
        }
    }
}
