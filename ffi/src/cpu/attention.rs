//! Causal attention over a cache of keys and values in blocks of 64 positions.
//!
//! Owns the block's layout: keys transposed, so that scores are computed side by side, values by row. A
//! row's result is the scores of all positions, their softmax, then the mix of the values. Every sum is
//! in the library's order: 32 partial sums added as a tree (see [`super::gdn_step`]). So a row depends
//! only on its query and the cache, not on the other rows of the call.

use super::lanes::{LANES, Lanes, lanes};
use super::norm;
use super::pool::{Pool, Shared1};
use crate::cache::{KvType, as_q4_0, as_q8_0};

/// Positions of a block.
pub const KV_BLOCK: usize = 64;
/// Queries that read a block together.
const TILE: usize = 4;

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
    kind: KvType,
    /// `[kv_head][dim][64]`.
    keys: Store,
    /// `[kv_head][64][dim]`.
    values: Store,
}

impl Store {
    fn zeroed(kind: KvType, len: usize) -> Store {
        match kind {
            KvType::F32 => Store::F32(vec![0.0; len]),
            // What is left of blocks are halves.
            KvType::F16 | KvType::Q8Q4 => Store::F16(vec![0; len]),
        }
    }

    fn set(&mut self, at: usize, v: f32) {
        match self {
            Store::F32(s) => s[at] = v,
            Store::F16(s) => s[at] = half::f16::from_f32(v).to_bits(),
        }
    }

    fn save(&self, to: &mut Vec<u8>) {
        let at = to.len();
        match self {
            Store::F32(s) => {
                to.resize(at + 4 * s.len(), 0);
                to[at..].as_chunks_mut().0.iter_mut().zip(s).for_each(|(b, v)| *b = v.to_le_bytes());
            }
            Store::F16(s) => {
                to.resize(at + 2 * s.len(), 0);
                to[at..].as_chunks_mut().0.iter_mut().zip(s).for_each(|(b, v)| *b = v.to_le_bytes());
            }
        }
    }

    /// `bytes` holds exactly the values.
    fn restore(&mut self, bytes: &[u8]) {
        match self {
            Store::F32(s) => s.iter_mut().zip(bytes.as_chunks().0).for_each(|(v, b)| *v = f32::from_le_bytes(*b)),
            Store::F16(s) => s.iter_mut().zip(bytes.as_chunks().0).for_each(|(v, b)| *v = u16::from_le_bytes(*b)),
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
        KvBlock { kv_heads, head_dim, kind, keys: Store::zeroed(kind, len), values: Store::zeroed(kind, len) }
    }

    /// Stores position `slot` (0..64): `k` and `v` are `[kv_heads, head_dim]`, the heads of keys that are kept in blocks mixed
    /// before ([`crate::cache::mix_head`]).
    pub fn write(&mut self, slot: usize, k: &[f32], v: &[f32]) {
        let dim = self.head_dim;
        assert!(slot < KV_BLOCK && k.len() == self.kv_heads * dim && v.len() == k.len(), "a row of the cache");
        if self.kind == KvType::Q8Q4 {
            let (mut k, mut v) = (k.to_vec(), v.to_vec());
            k.chunks_exact_mut(dim).for_each(as_q8_0);
            v.chunks_exact_mut(dim).for_each(as_q4_0);
            return self.set(slot, &k, &v);
        }
        self.set(slot, k, v);
    }

    fn set(&mut self, slot: usize, k: &[f32], v: &[f32]) {
        let dim = self.head_dim;
        for (i, x) in k.iter().enumerate() {
            self.keys.set(i * KV_BLOCK + slot, *x);
        }
        for (i, x) in v.iter().enumerate() {
            self.values.set((i / dim * KV_BLOCK + slot) * dim + i % dim, *x);
        }
    }

    /// Bytes of memory of a block of this shape, and of its saved form.
    pub fn bytes_of(kv_heads: usize, head_dim: usize, kind: KvType) -> usize {
        let width = if kind == KvType::F32 { 4 } else { 2 };
        2 * kv_heads * head_dim * KV_BLOCK * width
    }

    /// Appends keys and values as bytes.
    pub fn save(&self, to: &mut Vec<u8>) {
        self.keys.save(to);
        self.values.save(to);
    }

    /// The block of this shape that [`KvBlock::save`] wrote; `None` if these are not as many bytes.
    pub fn restored(kv_heads: usize, head_dim: usize, kind: KvType, bytes: &[u8]) -> Option<KvBlock> {
        if bytes.len() != KvBlock::bytes_of(kv_heads, head_dim, kind) {
            return None;
        }
        let mut block = KvBlock::new(kv_heads, head_dim, kind);
        let (keys, values) = bytes.split_at(bytes.len() / 2);
        block.keys.restore(keys);
        block.values.restore(values);
        Some(block)
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
        let seen = (span.position + end).next_multiple_of(KV_BLOCK);
        let mut scores = vec![0f32; TILE * seen];
        for tile in list.chunks(TILE) {
            let mut queries = [(&q[..0], 0usize); TILE];
            for ((row, h), query) in tile.iter().zip(&mut queries) {
                let at = (span.start + row) * width + h * shape.head_dim;
                *query = (&q[at..at + shape.head_dim], span.position + row + 1);
            }
            let mut state = [[0f32; DIM_MAX]; TILE];
            attend(&span.blocks, head / group, shape, &queries[..tile.len()], &mut scores, &mut state);
            for ((row, h), o) in tile.iter().zip(state.iter()) {
                let at = (span.start + row) * width + h * shape.head_dim;
                // SAFETY: the values of this row and head belong to this task alone, inside `out` (checked above).
                let to = unsafe { std::slice::from_raw_parts_mut(to.at(at), shape.head_dim) };
                to.copy_from_slice(&o[..shape.head_dim]);
            }
        }
    });
}

/// One tile of queries, each with the number of positions it sees. `scores` has a row of whole blocks for each.
fn attend(
    blocks: &[&KvBlock],
    kv_head: usize,
    shape: &AttentionShape,
    queries: &[(&[f32], usize)],
    scores: &mut [f32],
    o: &mut [[f32; DIM_MAX]; TILE],
) {
    let dim = shape.head_dim;
    let span = kv_head * dim * KV_BLOCK..(kv_head + 1) * dim * KV_BLOCK;
    let row = scores.len() / TILE;
    let most = queries.iter().map(|q| q.1).max().unwrap_or(0).div_ceil(KV_BLOCK);
    // A block is read by all queries while it is near.
    for (b, block) in blocks[..most].iter().enumerate() {
        for ((q, seen), p) in queries.iter().zip(scores.chunks_mut(row)) {
            if *seen > b * KV_BLOCK {
                let p = &mut p[b * KV_BLOCK..(b + 1) * KV_BLOCK];
                // SAFETY: the kernels check the lengths they rely on.
                unsafe {
                    match &block.keys {
                        Store::F32(k) => scores_f32(&k[span.clone()], q, shape.scale, p),
                        Store::F16(k) => scores_f16(&k[span.clone()], q, shape.scale, p),
                    }
                }
            }
        }
    }
    let values: Vec<&Store> = blocks[..most].iter().map(|b| &b.values).collect();
    for (((_, seen), p), o) in queries.iter().zip(scores.chunks_mut(row)).zip(o) {
        // The softmax takes positions by eight, the kernel by 32.
        let (eights, whole) = (seen.next_multiple_of(8), seen.next_multiple_of(RESIDUES));
        p[*seen..eights].fill(f32::NEG_INFINITY);
        norm::softmax(&mut p[..eights]);
        p[*seen..whole].fill(0.0);
        let blocks = &values[..seen.div_ceil(KV_BLOCK)];
        // SAFETY: as above.
        unsafe {
            match blocks.first() {
                Some(Store::F32(_)) => mix_f32(blocks, span.start, &p[..whole], &mut o[..dim]),
                Some(Store::F16(_)) => mix_f16(blocks, span.start, &p[..whole], &mut o[..dim]),
                None => {}
            }
        }
    }
}

/// Half precision to f32 for finite values, in operations that the compiler makes vectors of.
#[inline(always)]
pub(super) fn widen(h: u16) -> f32 {
    let magnitude = f32::from_bits(u32::from(h & 0x7fff) << 13) * f32::from_bits(0x7780_0000);
    f32::from_bits(magnitude.to_bits() | u32::from(h & 0x8000) << 16)
}

/// How a cached value is stored.
trait Cached: Sized {
    /// # Safety
    /// See [`Lanes`].
    unsafe fn read<L: Lanes>(at: *const Self) -> L;

    /// The values, if they are stored so.
    fn of(store: &Store) -> &[Self];
}

impl Cached for f32 {
    #[inline(always)]
    unsafe fn read<L: Lanes>(at: *const f32) -> L {
        // SAFETY: passed on.
        unsafe { L::load(at) }
    }

    fn of(store: &Store) -> &[f32] {
        if let Store::F32(s) = store { s } else { &[] }
    }
}

impl Cached for u16 {
    #[inline(always)]
    unsafe fn read<L: Lanes>(at: *const u16) -> L {
        // SAFETY: passed on.
        unsafe { L::load_f16(at) }
    }

    fn of(store: &Store) -> &[u16] {
        if let Store::F16(s) = store { s } else { &[] }
    }
}

/// Partial sums of every sum.
const RESIDUES: usize = 32;
/// Vectors that are summed side by side: with eight partial sums each they fill half the registers.
const VECTORS: usize = 2;
type Part<L> = [L; VECTORS];

/// Σ over terms 0..n, n a multiple of 32, of `term(i, sum so far)`, in the order of `gdn_step`.
#[inline(always)]
unsafe fn sum_all<L: Lanes>(n: usize, mut term: impl FnMut(usize, Part<L>) -> Part<L>) -> Part<L> {
    // SAFETY: see `Lanes`.
    unsafe {
        let add = |a: Part<L>, b: Part<L>| -> Part<L> { std::array::from_fn(|v| a[v].add(b[v])) };
        let mut eights = [[L::splat(0.0); VECTORS]; 4];
        for (first, eight) in eights.iter_mut().enumerate() {
            let mut sums = [[L::splat(0.0); VECTORS]; 8];
            for from in (first..n).step_by(RESIDUES) {
                for (j, sum) in sums.iter_mut().enumerate() {
                    *sum = term(from + 4 * j, *sum);
                }
            }
            let two: [Part<L>; 4] = std::array::from_fn(|j| add(sums[j], sums[j + 4]));
            *eight = add(add(two[0], two[2]), add(two[1], two[3]));
        }
        add(add(eights[0], eights[1]), add(eights[2], eights[3]))
    }
}

/// p[j] = scale · Σ_d q[d]·k[d][j] for the 64 positions of a block.
#[inline(always)]
unsafe fn scores<L: Lanes, T: Cached>(k: &[T], q: &[f32], scale: f32, p: &mut [f32]) {
    let dim = k.len() / KV_BLOCK;
    assert!(q.len() == dim && p.len() == KV_BLOCK, "a query of the block's dimension");
    let whole = dim / RESIDUES * RESIDUES;
    for first in (0..KV_BLOCK).step_by(VECTORS * LANES) {
        // SAFETY: `k` has `dim` rows of 64 values, the query `dim`.
        unsafe {
            let term = |d: usize, sum: Part<L>| -> Part<L> {
                let q = L::splat(*q.get_unchecked(d));
                let at = k.as_ptr().wrapping_add(d * KV_BLOCK + first);
                std::array::from_fn(|v| q.fma(T::read(at.wrapping_add(v * LANES)), sum[v]))
            };
            let mut sum = sum_all::<L>(whole, term);
            for d in whole..dim {
                sum = term(d, sum);
            }
            for (v, sum) in sum.into_iter().enumerate() {
                sum.mul(L::splat(scale)).store(p[first + v * LANES..].as_mut_ptr());
            }
        }
    }
}

/// o[d] = Σ_j p[j]·v[j][d] over the positions of `blocks`, whose values of this head start at `start`.
#[inline(always)]
unsafe fn mix<L: Lanes, T: Cached>(blocks: &[&Store], start: usize, p: &[f32], o: &mut [f32]) {
    let dim = o.len();
    let rows: Vec<&[T]> = blocks.iter().map(|b| &T::of(b)[start..start + dim * KV_BLOCK]).collect();
    assert!(p.len().is_multiple_of(RESIDUES) && p.len() <= rows.len() * KV_BLOCK, "positions of these blocks");
    for d in (0..dim).step_by(VECTORS * LANES) {
        // A dimension that is no multiple of 32 computes its last 16 columns twice.
        let columns: [usize; VECTORS] = std::array::from_fn(|v| (d + v * LANES).min(dim - LANES));
        // SAFETY: position j lies in block j / 64, whose rows have `dim` values (checked above).
        unsafe {
            let sum = sum_all::<L>(p.len(), |j, sum| {
                let p = L::splat(*p.get_unchecked(j));
                let row = rows.get_unchecked(j / KV_BLOCK).as_ptr().wrapping_add(j % KV_BLOCK * dim);
                std::array::from_fn(|v| p.fma(T::read(row.wrapping_add(columns[v])), sum[v]))
            });
            for (at, sum) in columns.into_iter().zip(sum) {
                sum.store(o[at..].as_mut_ptr());
            }
        }
    }
}

macro_rules! kernels {
    ($ty:ty: $scores:ident = $scores_body:ident, $mix:ident = $mix_body:ident) => {
        #[inline(always)]
        unsafe fn $scores_body<L: Lanes>(k: &[$ty], q: &[f32], scale: f32, p: &mut [f32]) {
            // SAFETY: passed on from the caller.
            unsafe { scores::<L, $ty>(k, q, scale, p) }
        }
        #[inline(always)]
        unsafe fn $mix_body<L: Lanes>(blocks: &[&Store], start: usize, p: &[f32], o: &mut [f32]) {
            // SAFETY: passed on from the caller.
            unsafe { mix::<L, $ty>(blocks, start, p, o) }
        }
        lanes! { unsafe fn $scores(k: &[$ty], q: &[f32], scale: f32, p: &mut [f32]) = $scores_body }
        lanes! { unsafe fn $mix(blocks: &[&Store], start: usize, p: &[f32], o: &mut [f32]) = $mix_body }
    };
}

kernels!(f32: scores_f32 = scores_f32_body, mix_f32 = mix_f32_body);
kernels!(u16: scores_f16 = scores_f16_body, mix_f16 = mix_f16_body);

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
