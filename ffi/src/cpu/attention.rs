//! Causal attention over a cache of keys and values in blocks of 64 positions.
//!
//! Owns the block's layout: keys transposed, so that 64 scores are computed side by side, values by
//! row. A row's result is an online softmax over its blocks in order, in one fixed sequence of
//! operations, so it depends only on its query and the cache, not on the other rows of the call.

use super::lanes::{LANES, Lanes, lanes};
use super::norm;
use super::pool::{Pool, Shared1};

/// Positions of a block.
pub const KV_BLOCK: usize = 64;
/// Queries that read a block together.
const TILE: usize = 4;

/// How cached keys and values are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KvType {
    F32,
    F16,
}

#[derive(Clone)]
enum Store {
    F32(Vec<f32>),
    F16(Vec<u16>),
}

/// Keys and values of 64 positions of one layer.
#[derive(Clone)]
pub struct KvBlock {
    kv_heads: usize,
    head_dim: usize,
    /// `[kv_head][dim][64]`.
    keys: Store,
    /// `[kv_head][64][dim]`.
    values: Store,
}

impl Store {
    fn zeroed(kind: KvType, len: usize) -> Store {
        match kind {
            KvType::F32 => Store::F32(vec![0.0; len]),
            KvType::F16 => Store::F16(vec![0; len]),
        }
    }

    fn set(&mut self, at: usize, v: f32) {
        match self {
            Store::F32(s) => s[at] = v,
            Store::F16(s) => s[at] = half::f16::from_f32(v).to_bits(),
        }
    }
}

impl KvBlock {
    /// An empty block; `head_dim` is a multiple of 16.
    pub fn new(kv_heads: usize, head_dim: usize, kind: KvType) -> KvBlock {
        assert!(
            head_dim.is_multiple_of(16) && head_dim <= DIM_MAX,
            "head dimension {head_dim}: multiples of 16 up to {DIM_MAX}"
        );
        let len = kv_heads * head_dim * KV_BLOCK;
        KvBlock { kv_heads, head_dim, keys: Store::zeroed(kind, len), values: Store::zeroed(kind, len) }
    }

    /// Stores position `slot` (0..64): `k` and `v` are `[kv_heads, head_dim]`.
    pub fn write(&mut self, slot: usize, k: &[f32], v: &[f32]) {
        let dim = self.head_dim;
        assert!(slot < KV_BLOCK && k.len() == self.kv_heads * dim && v.len() == k.len(), "a row of the cache");
        for (i, x) in k.iter().enumerate() {
            self.keys.set(i * KV_BLOCK + slot, *x);
        }
        for (i, x) in v.iter().enumerate() {
            self.values.set((i / dim * KV_BLOCK + slot) * dim + i % dim, *x);
        }
    }

    /// Bytes of memory.
    pub fn bytes(&self) -> usize {
        let width = if matches!(self.keys, Store::F32(_)) { 4 } else { 2 };
        2 * self.kv_heads * self.head_dim * KV_BLOCK * width
    }
}

/// Largest head dimension.
const DIM_MAX: usize = 256;

/// Heads of a layer.
#[derive(Clone, Copy, Debug)]
pub struct AttentionShape {
    pub heads: usize,
    /// Divides `heads`; query head h reads KV head h / (heads / kv_heads).
    pub kv_heads: usize,
    pub head_dim: usize,
    /// Factor of the scores, usually 1/√head_dim.
    pub scale: f32,
}

/// Consecutive rows of one sequence.
pub struct AttentionSpan<'a> {
    /// First row of the span in `q` and `out`, and number of rows.
    pub start: usize,
    pub len: usize,
    /// Position of the first row; row i sees positions 0..=position + i, all written to `blocks`.
    pub position: usize,
    pub blocks: Vec<&'a KvBlock>,
}

/// out = softmax(q·K·scale)·V for all spans; `q` and `out` are `[T, heads·head_dim]`.
pub fn attention(pool: &Pool, shape: &AttentionShape, spans: &[AttentionSpan<'_>], q: &[f32], out: &mut [f32]) {
    let group = shape.heads / shape.kv_heads;
    let width = shape.heads * shape.head_dim;
    assert_eq!(q.len(), out.len(), "a result for each query");
    // Heads of a group read a block together, as many as leave a task for each thread.
    let rows: usize = spans.iter().map(|s| s.len).sum();
    let fits = |n: &usize| group.is_multiple_of(*n) && (*n == 1 || rows * shape.heads / n >= pool.threads());
    let heads_per_task = (1..=TILE).rev().find(fits).unwrap_or(1);
    let rows_per_task = (TILE / heads_per_task).max(1) * 4;
    let mut tasks = Vec::new();
    for (s, span) in spans.iter().enumerate() {
        assert!((span.start + span.len) * width <= q.len(), "the span lies inside q");
        assert!((span.position + span.len).div_ceil(KV_BLOCK) <= span.blocks.len(), "the cache holds every position");
        assert!(
            span.blocks.iter().all(|b| b.kv_heads == shape.kv_heads && b.head_dim == shape.head_dim),
            "blocks of this layer's shape"
        );
        for first in (0..span.len).step_by(rows_per_task).rev() {
            for head in (0..shape.heads).step_by(heads_per_task) {
                tasks.push((s, first, head));
            }
        }
    }
    let to = Shared1(out.as_mut_ptr());
    pool.run(tasks.len(), |task, _| {
        let (s, first, head) = tasks[task];
        let span = &spans[s];
        let end = span.len.min(first + rows_per_task);
        let heads = head..(head + heads_per_task).min((head / group + 1) * group);
        let mut list = Vec::with_capacity(rows_per_task * heads_per_task);
        for row in first..end {
            for h in heads.clone() {
                list.push((row, h));
            }
        }
        for tile in list.chunks(TILE) {
            let mut state = Box::new([[0f32; DIM_MAX]; TILE]);
            let mut queries = [(&q[..0], 0usize); TILE];
            for ((row, h), query) in tile.iter().zip(&mut queries) {
                let at = (span.start + row) * width + h * shape.head_dim;
                *query = (&q[at..at + shape.head_dim], span.position + row + 1);
            }
            attend(&span.blocks, head / group, shape, &queries[..tile.len()], &mut state);
            for ((row, h), o) in tile.iter().zip(state.iter()) {
                let at = (span.start + row) * width + h * shape.head_dim;
                // SAFETY: the values of this row and head belong to this task alone, inside `out` (checked above).
                let to = unsafe { std::slice::from_raw_parts_mut(to.at(at), shape.head_dim) };
                to.copy_from_slice(&o[..shape.head_dim]);
            }
        }
    });
}

/// One tile of queries (with the number of positions each sees) over all blocks; `o` starts zero.
fn attend(
    blocks: &[&KvBlock],
    kv_head: usize,
    shape: &AttentionShape,
    queries: &[(&[f32], usize)],
    o: &mut [[f32; DIM_MAX]; TILE],
) {
    let dim = shape.head_dim;
    let (mut max, mut sum) = ([f32::NEG_INFINITY; TILE], [0f32; TILE]);
    let n = queries.len();
    let qs: [&[f32]; TILE] = std::array::from_fn(|i| queries[i.min(n - 1)].0);
    let seen = queries.iter().map(|q| q.1).max().unwrap_or(0);
    let span = kv_head * dim * KV_BLOCK..(kv_head + 1) * dim * KV_BLOCK;
    for (b, block) in blocks[..seen.div_ceil(KV_BLOCK)].iter().enumerate() {
        let mut p = [[0f32; KV_BLOCK]; TILE];
        // SAFETY: both kernels check the lengths they rely on; the block is of this shape (see `attention`).
        unsafe {
            match &block.keys {
                Store::F32(k) => scores_f32(&k[span.clone()], n, &qs, shape.scale, &mut p),
                Store::F16(k) => scores_f16(&k[span.clone()], n, &qs, shape.scale, &mut p),
            }
        }
        let mut shrink = [1f32; TILE];
        for (i, (_, n)) in queries.iter().enumerate() {
            let visible = n.saturating_sub(b * KV_BLOCK).min(KV_BLOCK);
            weights(&mut p[i], visible, &mut max[i], &mut sum[i], &mut shrink[i]);
        }
        // SAFETY: as above.
        unsafe {
            match &block.values {
                Store::F32(v) => mix_f32(&v[span.clone()], n, &p, &shrink, o),
                Store::F16(v) => mix_f16(&v[span.clone()], n, &p, &shrink, o),
            }
        }
    }
    for (o, sum) in o.iter_mut().zip(sum) {
        let scale = 1.0 / sum;
        o[..dim].iter_mut().for_each(|v| *v *= scale);
    }
}

lanes! {
    unsafe fn weights_on(p: &mut [f32; KV_BLOCK], visible: usize, max: &mut f32, sum: &mut f32, shrink: &mut f32) = weights_body
}

/// Scores to softmax weights relative to the running maximum; updates it, the sum, and the factor of
/// what came before.
fn weights(p: &mut [f32; KV_BLOCK], visible: usize, max: &mut f32, sum: &mut f32, shrink: &mut f32) {
    // SAFETY: the array has 64 floats.
    unsafe { weights_on(p, visible, max, sum, shrink) }
}

#[inline(always)]
unsafe fn weights_body<L: Lanes>(
    p: &mut [f32; KV_BLOCK],
    visible: usize,
    max: &mut f32,
    sum: &mut f32,
    shrink: &mut f32,
) {
    p[visible..].fill(f32::NEG_INFINITY);
    // SAFETY: four vectors of the array.
    unsafe {
        let at = |v: usize| p.as_ptr().wrapping_add(v * LANES);
        let most = L::load(at(0)).max(L::load(at(1))).max(L::load(at(2)).max(L::load(at(3))));
        let new = most.largest().max(*max);
        *shrink = if *max == new { 1.0 } else { norm::exp(*max - new) };
        for c in p.as_chunks_mut::<LANES>().0 {
            L::load(c.as_ptr()).add(L::splat(-new)).exp().store(c.as_mut_ptr());
        }
        p[visible..].fill(0.0);
        let at = |v: usize| p.as_ptr().wrapping_add(v * LANES);
        let total = L::load(at(0)).add(L::load(at(1))).add(L::load(at(2)).add(L::load(at(3)))).sum();
        *sum = sum.mul_add(*shrink, total);
        *max = new;
    }
}

/// Half precision to f32 for finite values, in operations that the compiler makes vectors of.
#[inline(always)]
pub(super) fn widen(h: u16) -> f32 {
    let magnitude = f32::from_bits(u32::from(h & 0x7fff) << 13) * f32::from_bits(0x7780_0000);
    f32::from_bits(magnitude.to_bits() | u32::from(h & 0x8000) << 16)
}

/// How a cached value is stored.
trait Cached {
    /// # Safety
    /// See [`Lanes`].
    unsafe fn read<L: Lanes>(at: *const Self) -> L;
}

impl Cached for f32 {
    #[inline(always)]
    unsafe fn read<L: Lanes>(at: *const f32) -> L {
        // SAFETY: passed on.
        unsafe { L::load(at) }
    }
}

impl Cached for u16 {
    #[inline(always)]
    unsafe fn read<L: Lanes>(at: *const u16) -> L {
        // SAFETY: passed on.
        unsafe { L::load_f16(at) }
    }
}

/// p[i][j] = scale · Σ_d q_i[d]·k[d][j], d ascending.
#[inline(always)]
unsafe fn scores<L: Lanes, T: Cached, const N: usize>(
    k: &[T],
    q: &[&[f32]; TILE],
    scale: f32,
    p: &mut [[f32; KV_BLOCK]; TILE],
) {
    const VECTORS: usize = KV_BLOCK / LANES;
    let dim = k.len() / KV_BLOCK;
    assert!(q.iter().all(|q| q.len() == dim), "queries of the block's dimension");
    // SAFETY: `k` has `dim` rows of 64 values, each query `dim`.
    unsafe {
        let mut acc = [[L::splat(0.0); VECTORS]; N];
        for d in 0..dim {
            let row: [L; VECTORS] = std::array::from_fn(|v| T::read(k.as_ptr().wrapping_add(d * KV_BLOCK + v * LANES)));
            for (acc, q) in acc.iter_mut().zip(q) {
                let q = L::splat(*q.get_unchecked(d));
                for (acc, k) in acc.iter_mut().zip(row) {
                    *acc = q.fma(k, *acc);
                }
            }
        }
        for (p, acc) in p.iter_mut().zip(acc) {
            for (v, acc) in acc.into_iter().enumerate() {
                acc.mul(L::splat(scale)).store(p[v * LANES..].as_mut_ptr());
            }
        }
    }
}

/// o_i[d] = o_i[d]·shrink_i + Σ_j p_i[j]·v[j][d], j ascending.
#[inline(always)]
unsafe fn mix<L: Lanes, T: Cached, const N: usize>(
    v: &[T],
    p: &[[f32; KV_BLOCK]; TILE],
    shrink: &[f32; TILE],
    o: &mut [[f32; DIM_MAX]; TILE],
) {
    let dim = v.len() / KV_BLOCK;
    let mut d = 0;
    while d < dim {
        // SAFETY: the width divides what is left of the 64 rows of `dim` values.
        unsafe {
            d += if dim - d >= 4 * LANES {
                mix_columns::<L, T, N, 4>(v, dim, d, p, shrink, o)
            } else {
                mix_columns::<L, T, N, 1>(v, dim, d, p, shrink, o)
            };
        }
    }
}

#[inline(always)]
unsafe fn mix_columns<L: Lanes, T: Cached, const N: usize, const V: usize>(
    values: &[T],
    dim: usize,
    d: usize,
    p: &[[f32; KV_BLOCK]; TILE],
    shrink: &[f32; TILE],
    o: &mut [[f32; DIM_MAX]; TILE],
) -> usize {
    // SAFETY: columns d..d + V·16 exist in every row (see `mix`).
    unsafe {
        let mut acc = [[L::splat(0.0); V]; N];
        for ((acc, o), s) in acc.iter_mut().zip(o.iter()).zip(shrink) {
            *acc = std::array::from_fn(|v| L::load(o.as_ptr().wrapping_add(d + v * LANES)).mul(L::splat(*s)));
        }
        for j in 0..KV_BLOCK {
            let row: [L; V] = std::array::from_fn(|v| T::read(values.as_ptr().wrapping_add(j * dim + d + v * LANES)));
            for (acc, p) in acc.iter_mut().zip(p) {
                let p = L::splat(p[j]);
                for (acc, x) in acc.iter_mut().zip(row) {
                    *acc = p.fma(x, *acc);
                }
            }
        }
        for (acc, o) in acc.into_iter().zip(o.iter_mut()) {
            for (v, acc) in acc.into_iter().enumerate() {
                acc.store(o.as_mut_ptr().wrapping_add(d + v * LANES));
            }
        }
    }
    V * LANES
}

macro_rules! block_kernels {
    ($ty:ty: $scores:ident = $scores_body:ident, $mix:ident = $mix_body:ident) => {
        #[inline(always)]
        unsafe fn $scores_body<L: Lanes>(k: &[$ty], n: usize, q: &[&[f32]; TILE], scale: f32, p: &mut [[f32; KV_BLOCK]; TILE]) {
            // SAFETY: passed on from the caller.
            unsafe {
                match n {
                    1 => scores::<L, $ty, 1>(k, q, scale, p),
                    _ => scores::<L, $ty, TILE>(k, q, scale, p),
                }
            }
        }
        #[inline(always)]
        unsafe fn $mix_body<L: Lanes>(v: &[$ty], n: usize, p: &[[f32; KV_BLOCK]; TILE], shrink: &[f32; TILE], o: &mut [[f32; DIM_MAX]; TILE]) {
            // SAFETY: passed on from the caller.
            unsafe {
                match n {
                    1 => mix::<L, $ty, 1>(v, p, shrink, o),
                    _ => mix::<L, $ty, TILE>(v, p, shrink, o),
                }
            }
        }
        lanes! { unsafe fn $scores(k: &[$ty], n: usize, q: &[&[f32]; TILE], scale: f32, p: &mut [[f32; KV_BLOCK]; TILE]) = $scores_body }
        lanes! { unsafe fn $mix(v: &[$ty], n: usize, p: &[[f32; KV_BLOCK]; TILE], shrink: &[f32; TILE], o: &mut [[f32; DIM_MAX]; TILE]) = $mix_body }
    };
}

block_kernels!(f32: scores_f32 = scores_f32_body, mix_f32 = mix_f32_body);
block_kernels!(u16: scores_f16 = scores_f16_body, mix_f16 = mix_f16_body);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::samples::Random;

    const SHAPE: AttentionShape = AttentionShape { heads: 6, kv_heads: 2, head_dim: 48, scale: 0.144 };

    struct Case {
        blocks: Vec<KvBlock>,
        k: Vec<f32>,
        v: Vec<f32>,
        q: Vec<f32>,
    }

    fn case(n: usize, kind: KvType, seed: u64) -> Case {
        let mut rng = Random(seed);
        let row = SHAPE.kv_heads * SHAPE.head_dim;
        let (k, v) = (rng.normals(n * row), rng.normals(n * row));
        let q = rng.normals(n * SHAPE.heads * SHAPE.head_dim);
        let mut blocks = vec![KvBlock::new(SHAPE.kv_heads, SHAPE.head_dim, kind); n.div_ceil(KV_BLOCK)];
        for t in 0..n {
            blocks[t / KV_BLOCK].write(t % KV_BLOCK, &k[t * row..(t + 1) * row], &v[t * row..(t + 1) * row]);
        }
        Case { blocks, k, v, q }
    }

    fn exact(c: &Case, t: usize, h: usize) -> Vec<f64> {
        let (dim, row) = (SHAPE.head_dim, SHAPE.kv_heads * SHAPE.head_dim);
        let kv = h / 3 * dim;
        let q = &c.q[(t * SHAPE.heads + h) * dim..][..dim];
        let s: Vec<f64> = (0..=t)
            .map(|j| {
                q.iter().zip(&c.k[j * row + kv..]).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>() * 0.144
            })
            .collect();
        let total: f64 = s.iter().map(|s| s.exp()).sum();
        (0..dim)
            .map(|d| s.iter().enumerate().map(|(j, s)| s.exp() / total * f64::from(c.v[j * row + kv + d])).sum())
            .collect()
    }

    #[test]
    fn rows_equal_the_formula_at_every_cut() {
        let n = 150;
        for (kind, limit) in [(KvType::F32, 2e-6), (KvType::F16, 2e-3)] {
            let c = case(n, kind, 1);
            let pool = Pool::new(2).unwrap();
            let width = SHAPE.heads * SHAPE.head_dim;
            let mut whole = vec![0.0; c.q.len()];
            let span = |start, len, position| AttentionSpan { start, len, position, blocks: c.blocks.iter().collect() };
            attention(&pool, &SHAPE, &[span(0, n, 0)], &c.q, &mut whole);
            for t in [0, 1, 63, 64, 65, 149] {
                for h in 0..SHAPE.heads {
                    let got = &whole[t * width + h * SHAPE.head_dim..];
                    for (a, b) in got.iter().zip(exact(&c, t, h)) {
                        assert!((f64::from(*a) - b).abs() < limit, "{kind:?} row {t} head {h}: {a} {b}");
                    }
                }
            }
            let mut parts = vec![0.0; c.q.len()];
            attention(&pool, &SHAPE, &[span(0, 7, 0), span(7, 100, 7), span(107, 43, 107)], &c.q, &mut parts);
            assert_eq!(parts, whole);
            for t in [3, 70, 149] {
                let mut one = vec![0.0; width];
                attention(&pool, &SHAPE, &[span(0, 1, t)], &c.q[t * width..(t + 1) * width], &mut one);
                assert_eq!(one, whole[t * width..(t + 1) * width]);
            }
        }
    }

    #[test]
    fn halves_widen_exactly() {
        for h in 0..=0xffffu16 {
            let want = half::f16::from_bits(h).to_f32();
            if want.is_finite() {
                assert_eq!(widen(h).to_bits(), want.to_bits(), "{h:04x}");
            }
        }
    }
}
