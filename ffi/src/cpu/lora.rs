//! Low-rank additions to matrix products: y += scale · B·(A·x) for the rows that have a pair of factors, each row
//! with its own.
//!
//! Owns the packed factors and the order of their sums: h = A·x as every F32 product, then y = fma(B[·][r],
//! scale·h[r], y) for r ascending. A row's numbers depend on that row and its factors alone; a row without factors
//! is neither read nor written.

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
    /// Bᵀ `[rank, outputs]`: a row is what one inner value adds to.
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
        let mut transposed = vec![0.0; b.len()];
        for (o, row) in b.chunks_exact(rank).enumerate() {
            row.iter().enumerate().for_each(|(r, v)| transposed[r * outputs + o] = *v);
        }
        Ok(LowRank { a, b: transposed, rank, outputs, scale })
    }

    /// Bytes of both factors.
    pub fn bytes(&self) -> usize {
        self.a.bytes() + 4 * self.b.len()
    }
}

/// Which factors an output row has.
pub type Pick<'a> = dyn Fn(usize) -> Option<&'a LowRank> + Sync + 'a;

/// One addition over the rows of a step.
pub struct Addition<'a> {
    /// `[_, inputs]`; output row t reads row t / `fan`.
    pub x: &'a [f32],
    pub fan: usize,
    /// `[T, outputs]`.
    pub out: &'a mut [f32],
    pub outputs: usize,
    pub pick: &'a Pick<'a>,
}

/// Rows of one task: few, so that the handful of rows of a decode step keeps more than one thread busy.
const ROWS_A_TASK: usize = BLOCK;

/// Runs every addition in one dispatch.
pub fn low_rank(pool: &Pool, additions: &mut [Addition<'_>]) {
    let mut jobs = Vec::with_capacity(additions.len());
    let mut tasks = 0;
    for a in additions.iter_mut() {
        assert!(a.fan > 0 && a.out.len().is_multiple_of(a.outputs), "whole rows of output");
        let rows = a.out.len() / a.outputs;
        jobs.push((tasks, rows, a.x, a.fan, a.outputs, Shared1(a.out.as_mut_ptr()), a.pick));
        tasks += rows.div_ceil(ROWS_A_TASK);
    }
    pool.run(tasks, |task, _| {
        let (first, rows, x, fan, outputs, out, pick) = &jobs[jobs.partition_point(|job| job.0 <= task) - 1];
        let start = (task - first) * ROWS_A_TASK;
        let end = (start + ROWS_A_TASK).min(*rows);
        let mut t = start;
        while t < end {
            let Some(factors) = pick(t) else {
                t += 1;
                continue;
            };
            assert_eq!(factors.outputs, *outputs, "the factors do not fit the output");
            // Neighbours with the same factors share their reads.
            let same = |t: &usize| pick(*t).is_some_and(|other| std::ptr::eq(other, factors));
            let n = 1 + (t + 1..end).take(TILE - 1).take_while(same).count();
            // SAFETY: rows t..t+n of `out` belong to this task alone and lie inside it.
            unsafe { apply(factors, x, *fan, t, n, *out) };
            t += n;
        }
    });
}

/// Adds to rows `t..t + n` (n ≤ [`TILE`]) of `out`.
///
/// # Safety
/// The rows lie inside `out` and no other thread touches them.
unsafe fn apply(f: &LowRank, x: &[f32], fan: usize, t: usize, n: usize, out: Shared1<f32>) {
    let cols = f.a.cols();
    let mut from = [0u32; TILE];
    from.iter_mut().take(n).enumerate().for_each(|(i, row)| *row = ((t + i) / fan) as u32);
    assert!(((t + n - 1) / fan + 1) * cols <= x.len(), "an input row for each output row");
    let input = Input::Float { rows: x.as_ptr(), cols };
    let mut inner = [[0f32; LORA_RANK_MAX]; TILE];
    let mut values: Tile = [[0.0; GROUP]; TILE];
    for g in 0..f.a.groups() {
        // SAFETY: the rows of `from` are rows of `x`, checked above.
        unsafe { product::tile(&f.a, g, &input, &from[..n], &mut values) };
        let count = GROUP.min(f.rank - g * GROUP);
        for (inner, values) in inner.iter_mut().zip(&values).take(n) {
            let to = &mut inner[g * GROUP..][..count];
            to.iter_mut().zip(values).for_each(|(h, v)| *h = f.scale * v);
        }
    }
    // SAFETY: vouched for by the caller; B has `rank` rows of `outputs` values.
    unsafe { spread(&f.b, f.rank, &inner[..n], out.at(t * f.outputs), f.outputs) };
}

/// Output rows that share a read of B.
const BLOCK: usize = 4;

/// # Safety
/// `out` has `inner.len()` rows of `outputs` values; see [`Lanes`].
#[inline(always)]
unsafe fn spread_body<L: Lanes>(b: &[f32], rank: usize, inner: &[[f32; LORA_RANK_MAX]], out: *mut f32, outputs: usize) {
    debug_assert_eq!(b.len(), rank * outputs);
    for at in (0..outputs).step_by(LANES) {
        let n = LANES.min(outputs - at);
        for (block, inner) in inner.chunks(BLOCK).enumerate() {
            // Rows past the end repeat the last one; their results are dropped.
            let row = |i: usize| out.wrapping_add((block * BLOCK + i.min(inner.len() - 1)) * outputs + at);
            // SAFETY: `n` values of rows inside `out` and `b`.
            unsafe {
                let mut acc: [L; BLOCK] = std::array::from_fn(|i| L::load_part(row(i), n, 0.0));
                for r in 0..rank {
                    let w = L::load_part(b.as_ptr().wrapping_add(r * outputs + at), n, 0.0);
                    for (i, acc) in acc.iter_mut().enumerate() {
                        *acc = w.fma(L::splat(inner[i.min(inner.len() - 1)][r]), *acc);
                    }
                }
                for (i, acc) in acc.into_iter().enumerate().take(inner.len()) {
                    acc.store_part(row(i), n);
                }
            }
        }
    }
}

lanes! { unsafe fn spread(b: &[f32], rank: usize, inner: &[[f32; LORA_RANK_MAX]], out: *mut f32, outputs: usize) = spread_body }

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::samples::Random;

    fn factors(rank: usize, inputs: usize, outputs: usize, seed: u64) -> (LowRank, Vec<f32>, Vec<f32>) {
        let mut random = Random(seed);
        let (a, b) = (random.normals(rank * inputs), random.normals(outputs * rank));
        (LowRank::new(rank, inputs, outputs, &a, &b, 0.5).unwrap(), a, b)
    }

    #[test]
    fn rows_get_the_formula_and_others_nothing() {
        let pool = Pool::new(2).unwrap();
        for (rank, inputs, outputs) in [(1, 5, 3), (8, 64, 48), (17, 100, 33), (64, 32, 16)] {
            let (one, a1, b1) = factors(rank, inputs, outputs, 1);
            let (two, a2, b2) = factors(rank, inputs, outputs, 2);
            let (t, fan) = (45usize, 2);
            let x = Random(3).normals(t.div_ceil(fan) * inputs);
            let mut out = vec![0.25; t * outputs];
            let which = |t: usize| [Some((&one, &a1, &b1)), None, Some((&two, &a2, &b2))][t / 4 % 3];
            let pick = |t: usize| which(t).map(|w| w.0);
            low_rank(&pool, &mut [Addition { x: &x, fan, out: &mut out, outputs, pick: &pick }]);
            for (i, row) in out.chunks(outputs).enumerate() {
                let Some((_, a, b)) = which(i) else {
                    assert!(row.iter().all(|v| *v == 0.25));
                    continue;
                };
                let x = &x[i / fan * inputs..][..inputs];
                let dot =
                    |u: &[f32], v: &[f32]| u.iter().zip(v).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>();
                let h: Vec<f32> = a.chunks(inputs).map(|a| dot(a, x) as f32).collect();
                for (v, b) in row.iter().zip(b.chunks(rank)) {
                    let want = 0.25 + 0.5 * dot(b, &h);
                    assert!((f64::from(*v) - want).abs() < 1e-4 * (1.0 + want.abs()), "{v} {want}");
                }
            }
        }
    }

    #[test]
    fn a_row_has_the_same_bits_alone_and_among_others() {
        let pool = Pool::new(2).unwrap();
        let (rank, inputs, outputs, t) = (9, 70, 50, 37);
        let (one, ..) = factors(rank, inputs, outputs, 1);
        let (two, ..) = factors(rank, inputs, outputs, 2);
        let x = Random(3).normals(t * inputs);
        let run = |x: &[f32], rows: usize, every: usize| {
            let mut out = vec![0.1; rows * outputs];
            let pick = |t: usize| Some(if t.is_multiple_of(every) { &one } else { &two });
            low_rank(&pool, &mut [Addition { x, fan: 1, out: &mut out, outputs, pick: &pick }]);
            out
        };
        let all = run(&x, t, 1);
        let mixed = run(&x, t, 5);
        for i in 0..t {
            let alone = run(&x[i * inputs..][..inputs], 1, 1);
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
