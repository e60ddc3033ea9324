//! Low-rank additions to matrix products: y += scale · B·(A·x) for the rows that have a pair of factors, each row
//! with its own.
//!
//! Owns the packed factors and the order of their sums. First h = scale · (A·x), with A·x as every F32 product. Then y
//! = fma(B[·][r], h[r], y) for r ascending, before a residual is added. The few values of h are computed for all
//! products of a stage in one dispatch. B joins each group of outputs where the product itself leaves it, so it is
//! spread over the threads like the weights. A row's numbers depend on that row and its factors alone.

use super::lanes::{LANES, Lanes, lanes};
use super::pack::{GROUP, Matrix, PackError};
use super::pool::{Pool, Shared1};
use super::product::{self, Input, TILE, Tile};
use crate::DType;

/// Largest rank.
pub const LORA_RANK_MAX: usize = 64;

/// The two factors of one addition.
#[derive(Clone)]
pub struct LowRank {
    /// `[rank, inputs]`.
    a: Matrix,
    /// `[groups, rank, GROUP]`: what a group of outputs needs lies together; zeros after the last output.
    b: Vec<f32>,
    rank: usize,
    outputs: usize,
    scale: f32,
}

impl LowRank {
    /// Packs `a` `[rank, inputs]` and `b` `[outputs, rank]`, both row-major. An error if a length or the rank is wrong.
    pub fn new(
        rank: usize,
        inputs: usize,
        outputs: usize,
        a: &[f32],
        b: &[f32],
        scale: f32,
    ) -> Result<Self, PackError> {
        if rank == 0 || rank > LORA_RANK_MAX {
            return Err(PackError::TooLarge { rows: rank, cols: inputs });
        }
        if b.len() != outputs * rank {
            return Err(PackError::Output { need: outputs * rank, got: b.len() });
        }
        let bytes: Vec<u8> = a.iter().flat_map(|v| v.to_ne_bytes()).collect();
        let a = Matrix::pack(DType::F32, rank, inputs, &bytes)?;
        let mut grouped = vec![0.0; outputs.div_ceil(GROUP) * rank * GROUP];
        for (o, row) in b.chunks_exact(rank).enumerate() {
            let group = &mut grouped[o / GROUP * rank * GROUP..][..rank * GROUP];
            row.iter().enumerate().for_each(|(r, v)| group[r * GROUP + o % GROUP] = *v);
        }
        Ok(LowRank { a, b: grouped, rank, outputs, scale })
    }

    /// Bytes of both factors.
    pub fn bytes(&self) -> usize {
        self.a.bytes() + 4 * self.b.len()
    }

    /// The part of B that group `g` of the outputs needs.
    fn group(&self, g: usize) -> &[f32] {
        &self.b[g * self.rank * GROUP..][..self.rank * GROUP]
    }
}

/// Which factors an output row has.
pub type Pick<'a> = dyn Fn(usize) -> Option<&'a LowRank> + 'a;

/// What the rows of one product have added: their factors, and h once [`narrow`] has run.
pub(super) struct Plus<'a> {
    factors: Vec<Option<&'a LowRank>>,
    /// `[rows, width]`, width being the largest rank among them.
    inner: Vec<f32>,
    width: usize,
}

impl<'a> Plus<'a> {
    /// The additions to a product of `rows` rows from `inputs` to `outputs` values; `None` where no row has any.
    pub(super) fn of<P>(rows: usize, inputs: usize, outputs: usize, pick: &P) -> Option<Plus<'a>>
    where
        P: Fn(usize) -> Option<&'a LowRank> + ?Sized,
    {
        let factors: Vec<_> = (0..rows).map(pick).collect();
        let width = factors.iter().flatten().map(|f| f.rank).max()?;
        let fits = |f: &&LowRank| f.a.cols() == inputs && f.outputs == outputs;
        assert!(factors.iter().flatten().all(fits), "the factors do not fit the product");
        Some(Plus { factors, inner: vec![0.0; rows * width], width })
    }

    /// Adds to group `g` of the rows `rows` of a tile.
    pub(super) fn join(&self, g: usize, rows: &[u32], tile: &mut Tile) {
        let of = |row: u32| self.factors[row as usize];
        let mut at = 0;
        while at < rows.len() {
            let Some(f) = of(rows[at]) else {
                at += 1;
                continue;
            };
            // Neighbours with the same factors share their reads.
            let same = |row: &&u32| of(**row).is_some_and(|other| std::ptr::eq(other, f));
            let n = 1 + rows[at + 1..].iter().take(BLOCK - 1).take_while(same).count();
            let h: [&[f32]; BLOCK] = std::array::from_fn(|i| {
                let row = rows[at + i.min(n - 1)] as usize;
                &self.inner[row * self.width..][..f.rank]
            });
            // SAFETY: a group has `rank` times GROUP values, h `rank` each.
            unsafe { spread(f.group(g), &h, &mut tile[at..at + n]) };
            at += n;
        }
    }
}

/// One product's share of [`narrow`]: output row t reads row t / `fan` of `x` `[_, inputs]`.
pub(super) struct Narrow<'p, 'a> {
    pub(super) plus: &'p mut Plus<'a>,
    pub(super) x: &'p [f32],
    pub(super) fan: usize,
}

/// Output rows that share a read of a factor, and rows of one task: few, so that the handful of rows of a decode step
/// keeps more than one thread busy.
const BLOCK: usize = 4;

/// Multiply-adds of all products together that the caller does alone: to hand a job to a dozen threads costs about three
/// microseconds, and so little work is done in one or two.
const ALONE_MAX: usize = 1 << 17;

/// Computes h for every product, in one dispatch where that is worth its while.
pub(super) fn narrow(pool: &Pool, parts: &mut [Narrow<'_, '_>]) {
    let mut jobs = Vec::with_capacity(parts.len());
    let (mut tasks, mut work) = (0, 0);
    for Narrow { plus, x, fan } in parts.iter_mut() {
        work += plus.factors.iter().flatten().map(|f| f.rank * f.a.cols()).sum::<usize>();
        let to = Shared1(plus.inner.as_mut_ptr());
        jobs.push((tasks, &plus.factors[..], *x, *fan, to, plus.width));
        tasks += plus.factors.len().div_ceil(BLOCK);
    }
    let compute = |task: usize, _: usize| {
        let (first, factors, x, fan, to, width) = &jobs[jobs.partition_point(|job| job.0 <= task) - 1];
        let start = (task - first) * BLOCK;
        let end = (start + BLOCK).min(factors.len());
        let mut t = start;
        while t < end {
            let Some(f) = factors[t] else {
                t += 1;
                continue;
            };
            let same = |other: &&Option<&LowRank>| other.is_some_and(|other| std::ptr::eq(other, f));
            let n = 1 + factors[t + 1..end].iter().take_while(same).count();
            // SAFETY: rows t..t+n of `inner` belong to this task alone and are `width` ≥ rank values wide.
            unsafe { inner(f, x, *fan, t, n, *to, *width) };
            t += n;
        }
    };
    if work <= ALONE_MAX {
        (0..tasks).for_each(|task| compute(task, 0));
    } else {
        pool.run(tasks, compute);
    }
}

/// h of rows `t..t + n` (n ≤ [`TILE`]).
///
/// # Safety
/// `to` has these rows, `width` ≥ rank values each, and no other thread touches them.
unsafe fn inner(f: &LowRank, x: &[f32], fan: usize, t: usize, n: usize, to: Shared1<f32>, width: usize) {
    let cols = f.a.cols();
    let mut from = [0u32; TILE];
    from.iter_mut().take(n).enumerate().for_each(|(i, row)| *row = ((t + i) / fan) as u32);
    assert!(((t + n - 1) / fan + 1) * cols <= x.len(), "an input row for each output row");
    let input = Input::Float { rows: x.as_ptr(), cols };
    let mut values: Tile = [[0.0; GROUP]; TILE];
    for g in 0..f.a.groups() {
        // SAFETY: the rows of `from` are rows of `x`, checked above.
        unsafe { product::tile(&f.a, g, &input, &from[..n], &mut values) };
        let count = GROUP.min(f.rank - g * GROUP);
        for (i, values) in values.iter().take(n).enumerate() {
            // SAFETY: vouched for by the caller.
            let h = unsafe { std::slice::from_raw_parts_mut(to.at((t + i) * width + g * GROUP), count) };
            h.iter_mut().zip(values).for_each(|(h, v)| *h = f.scale * v);
        }
    }
}

/// # Safety
/// `b` holds `h[i].len()` times GROUP values; see [`Lanes`].
#[inline(always)]
unsafe fn spread_body<L: Lanes>(b: &[f32], h: &[&[f32]; BLOCK], tile: &mut [[f32; GROUP]]) {
    // SAFETY: passed on from the caller; the tile has as many rows as are named.
    unsafe {
        match tile.len() {
            1 => spread_rows::<L, 1>(b, h, tile),
            2 => spread_rows::<L, 2>(b, h, tile),
            3 => spread_rows::<L, 3>(b, h, tile),
            _ => spread_rows::<L, BLOCK>(b, h, tile),
        }
    }
}

/// # Safety
/// As [`spread_body`], for a tile of `N` rows.
#[inline(always)]
unsafe fn spread_rows<L: Lanes, const N: usize>(b: &[f32], h: &[&[f32]; BLOCK], tile: &mut [[f32; GROUP]]) {
    const { assert!(GROUP == LANES) };
    // SAFETY: sixteen values of a row of the tile or of `b`.
    unsafe {
        let mut acc: [L; N] = std::array::from_fn(|i| L::load(tile[i].as_ptr()));
        for (r, w) in b.chunks_exact(GROUP).enumerate() {
            let w = L::load(w.as_ptr());
            for (h, acc) in h.iter().zip(&mut acc) {
                *acc = w.fma(L::splat(h[r]), *acc);
            }
        }
        for (row, acc) in tile.iter_mut().zip(acc) {
            acc.store(row.as_mut_ptr());
        }
    }
}

lanes! { unsafe fn spread(b: &[f32], h: &[&[f32]; BLOCK], tile: &mut [[f32; GROUP]]) = spread_body }

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::act::{Act, Forms};
    use crate::cpu::product::{Product, matmul_adapted};
    use crate::cpu::samples::{Random, weights};

    fn factors(rank: usize, inputs: usize, outputs: usize, seed: u64) -> (LowRank, Vec<f32>, Vec<f32>) {
        let mut random = Random(seed);
        let (a, b) = (random.normals(rank * inputs), random.normals(outputs * rank));
        (LowRank::new(rank, inputs, outputs, &a, &b, 0.5).unwrap(), a, b)
    }

    /// 0.25 + W·x and what `pick` adds to it, W of `dtype`.
    fn run(w: &Matrix, x: &[f32], pick: &Pick<'_>) -> Vec<f32> {
        let pool = Pool::new(2).unwrap();
        let mut act = Act::new(w.cols());
        act.load(&pool, x, Forms::of(&[w]));
        let mut out = vec![0.25; x.len() / w.cols() * w.rows()];
        matmul_adapted(&pool, &act, &mut [Product { weight: w, out: &mut out, add: true }], &[pick]);
        out
    }

    fn matrix(dtype: DType, rows: usize, cols: usize) -> Matrix {
        Matrix::pack(dtype, rows, cols, &weights(dtype, rows * cols, 7)).unwrap()
    }

    #[test]
    fn rows_get_the_formula_and_others_nothing() {
        for (rank, inputs, outputs) in [(1, 5, 3), (8, 64, 48), (17, 100, 33), (64, 32, 16), (64, 128, 16)] {
            let (one, a1, b1) = factors(rank, inputs, outputs, 1);
            let (two, a2, b2) = factors(rank, inputs, outputs, 2);
            let (w, t) = (matrix(DType::F32, outputs, inputs), 45usize);
            let x = Random(3).normals(t * inputs);
            let which = |t: usize| [Some((&one, &a1, &b1)), None, Some((&two, &a2, &b2))][t / 3 % 3];
            let out = run(&w, &x, &|t| which(t).map(|w| w.0));
            let plain = run(&w, &x, &|_| None);
            for (i, (row, plain)) in out.chunks(outputs).zip(plain.chunks(outputs)).enumerate() {
                let Some((_, a, b)) = which(i) else {
                    assert_eq!(row, plain);
                    continue;
                };
                let x = &x[i * inputs..][..inputs];
                let dot =
                    |u: &[f32], v: &[f32]| u.iter().zip(v).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>();
                let h: Vec<f32> = a.chunks(inputs).map(|a| dot(a, x) as f32).collect();
                for ((v, plain), b) in row.iter().zip(plain).zip(b.chunks(rank)) {
                    let want = f64::from(*plain) + 0.5 * dot(b, &h);
                    assert!((f64::from(*v) - want).abs() < 1e-4 * (1.0 + want.abs()), "{v} {want}");
                }
            }
        }
    }

    #[test]
    fn a_row_has_the_same_bits_alone_and_among_others() {
        // Alone in place, together over the pool.
        let (rank, inputs, outputs, t) = (9, 96, 50, 157);
        assert!(rank * inputs <= ALONE_MAX && t * rank * inputs > ALONE_MAX);
        let (one, ..) = factors(rank, inputs, outputs, 1);
        let (two, ..) = factors(rank, inputs, outputs, 2);
        let w = matrix(DType::Q8_0, outputs, inputs);
        let x = Random(3).normals(t * inputs);
        let with = |x: &[f32], every: usize| run(&w, x, &|t| Some(if t.is_multiple_of(every) { &one } else { &two }));
        let (all, mixed) = (with(&x, 1), with(&x, 5));
        for i in 0..t {
            let alone = with(&x[i * inputs..][..inputs], 1);
            assert_eq!(alone, all[i * outputs..][..outputs]);
            if i % 5 == 0 {
                assert_eq!(alone, mixed[i * outputs..][..outputs]);
            }
        }
    }

    #[test]
    fn wrong_sizes_are_refused() {
        assert!(LowRank::new(0, 4, 4, &[], &[], 1.0).is_err());
        assert!(LowRank::new(65, 1, 1, &[0.0; 65], &[0.0; 65], 1.0).is_err());
        assert!(LowRank::new(2, 4, 4, &[0.0; 7], &[0.0; 8], 1.0).is_err());
        assert!(LowRank::new(2, 4, 4, &[0.0; 8], &[0.0; 9], 1.0).is_err());
    }
}
