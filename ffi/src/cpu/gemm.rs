//! Products of matrices of many rows on both sides, in f32: what training consists of.
//!
//! The products that serve (`product`) have few rows, so their lanes lie along the inputs and each sum ends with an
//! addition across a register. Here lanes lie along the outputs and nothing is added across. A block of sums stays in
//! registers while a panel of the right side comes from the nearest cache. Every sum runs over the depth in order,
//! fused, from what `out` holds or from zero. So the numbers depend neither on the instruction set nor on the threads.

use super::lanes::{LANES, Lanes, lanes};
use super::pool::{Pool, Shared1};

/// Columns of a panel.
const PANEL: usize = 2 * LANES;
/// Depth after which the sums are put down: that much of a panel fits the first cache beside the rows it meets.
const DEPTH: usize = 256;
/// Rows of the left side that are one task with a panel.
const TASK_ROWS: usize = 64;

/// The right side of products, `[depth, width]`, in panels of columns: `[panel][depth][PANEL]`, zeros behind the last.
pub struct Panels {
    depth: usize,
    width: usize,
    values: Vec<f32>,
}

impl Panels {
    /// Row-major `[depth, width]`; `width` at least 1.
    pub fn of(values: &[f32], width: usize) -> Panels {
        let mut panels = Panels::zeros(values.len() / width, width);
        let depth = panels.depth;
        for (at, to) in panels.values.chunks_exact_mut(PANEL).enumerate() {
            let (column, k) = (at / depth * PANEL, at % depth);
            let count = PANEL.min(width - column);
            to[..count].copy_from_slice(&values[k * width + column..][..count]);
        }
        panels
    }

    /// The transpose of row-major `[width, depth]`; `depth` at least 1.
    pub fn transposed(values: &[f32], depth: usize) -> Panels {
        let mut panels = Panels::zeros(depth, values.len() / depth);
        for (n, row) in values.chunks_exact(depth).enumerate() {
            let to = panels.values[n / PANEL * depth * PANEL + n % PANEL..].iter_mut().step_by(PANEL);
            to.zip(row).for_each(|(to, value)| *to = *value);
        }
        panels
    }

    fn zeros(depth: usize, width: usize) -> Panels {
        Panels { depth, width, values: vec![0.0; width.div_ceil(PANEL) * depth * PANEL] }
    }

    pub fn depth(&self) -> usize {
        self.depth
    }

    pub fn width(&self) -> usize {
        self.width
    }

    /// Bytes held.
    pub fn bytes(&self) -> usize {
        4 * self.values.len()
    }
}

/// The left side of a product, `[rows, depth]`: the value of row m at depth k is `values[m·row + k·step]`.
#[derive(Clone, Copy)]
pub struct Left<'a> {
    values: &'a [f32],
    rows: usize,
    depth: usize,
    row: usize,
    step: usize,
}

impl<'a> Left<'a> {
    /// Row-major `[rows, depth]`; `depth` at least 1.
    pub fn of(values: &'a [f32], depth: usize) -> Left<'a> {
        Left { values, rows: values.len() / depth, depth, row: depth, step: 1 }
    }

    /// The transpose of row-major `[depth, rows]`; `rows` at least 1.
    pub fn transposed(values: &'a [f32], rows: usize) -> Left<'a> {
        Left { values, rows, depth: values.len() / rows, row: 1, step: rows }
    }

    pub fn rows(&self) -> usize {
        self.rows
    }
}

/// `out` `[rows, width]` = left · right, or `out` + left · right.
pub fn multiply(pool: &Pool, left: Left<'_>, right: &Panels, out: &mut [f32], add: bool) {
    let (width, depth) = (right.width, right.depth);
    assert_eq!(left.depth, depth, "the two sides do not fit each other");
    assert_eq!(left.values.len(), left.rows * depth, "the left side has whole rows");
    assert_eq!(out.len(), left.rows * width, "the output does not fit the two sides");
    if depth == 0 && !add {
        out.fill(0.0);
    }
    let (panels, to) = (width.div_ceil(PANEL), Shared1(out.as_mut_ptr()));
    // Panel after panel for the same rows: they are read again from a near cache.
    pool.run(left.rows.div_ceil(TASK_ROWS) * panels, |task, _| {
        let (first, panel) = (task / panels * TASK_ROWS, task % panels);
        let at = panel * PANEL;
        for from in (0..depth).step_by(DEPTH) {
            let part = Part {
                left: left.values.as_ptr().wrapping_add(first * left.row + from * left.step),
                row: left.row,
                step: left.step,
                rows: TASK_ROWS.min(left.rows - first),
                right: right.values.as_ptr().wrapping_add((panel * depth + from) * PANEL),
                columns: PANEL.min(width - at),
                depth: DEPTH.min(depth - from),
                out: to.at(first * width + at),
                stride: width,
                fresh: !add && from == 0,
            };
            // SAFETY: the lengths were checked above; this task alone writes these rows and columns.
            unsafe { part_on(&part) };
        }
    });
}

/// Rows of the left side times a panel, over a part of the depth.
struct Part {
    left: *const f32,
    row: usize,
    step: usize,
    rows: usize,
    right: *const f32,
    columns: usize,
    depth: usize,
    out: *mut f32,
    stride: usize,
    /// The sums begin with zero and not with what `out` holds.
    fresh: bool,
}

lanes! { unsafe fn part_on(part: &Part) = part_body }

/// # Safety
/// The pointers of `part` reach as far as its counts say, nobody else writes to its output; see [`Lanes`].
#[inline(always)]
unsafe fn part_body<L: Lanes>(part: &Part) {
    // SAFETY: blocks of the part.
    unsafe {
        if L::MANY {
            for first in (0..part.rows).step_by(8) {
                if part.columns > LANES { block::<L, 8, 2>(part, first, 0) } else { block::<L, 8, 1>(part, first, 0) }
            }
        } else {
            for first in (0..part.rows).step_by(4) {
                (0..part.columns).step_by(LANES).for_each(|column| block::<L, 4, 1>(part, first, column));
            }
        }
    }
}

/// `R` rows from `first` on (fewer at the end) and `V` vectors of columns from `column` on, of which the last may be cut.
///
/// # Safety
/// As [`part_body`]; `first` and the first column of every vector lie in the part.
#[inline(always)]
unsafe fn block<L: Lanes, const R: usize, const V: usize>(part: &Part, first: usize, column: usize) {
    let count = part.rows - first;
    // Rows past the end repeat the last one; their sums are dropped.
    let xs: [*const f32; R] = std::array::from_fn(|m| part.left.wrapping_add((first + m.min(count - 1)) * part.row));
    let right = part.right.wrapping_add(column);
    let out = part.out.wrapping_add(first * part.stride + column);
    // SAFETY: whole vectors of the panel; of the left side and the output only what is there.
    unsafe {
        let mut sums = [[L::splat(0.0); V]; R];
        if !part.fresh {
            for (m, sums) in sums.iter_mut().enumerate().filter(|(m, _)| *m < count) {
                for (v, sum) in sums.iter_mut().enumerate() {
                    let left = part.columns - column - v * LANES;
                    *sum = L::load_part(out.wrapping_add(m * part.stride + v * LANES), left, 0.0);
                }
            }
        }
        for k in 0..part.depth {
            let w: [L; V] = std::array::from_fn(|v| L::load(right.wrapping_add(k * PANEL + v * LANES)));
            for (sums, x) in sums.iter_mut().zip(xs) {
                let x = L::splat(*x.wrapping_add(k * part.step));
                for (sum, w) in sums.iter_mut().zip(w) {
                    *sum = x.fma(w, *sum);
                }
            }
        }
        for (m, sums) in sums.into_iter().enumerate().filter(|(m, _)| *m < count) {
            for (v, sum) in sums.into_iter().enumerate() {
                let left = part.columns - column - v * LANES;
                sum.store_part(out.wrapping_add(m * part.stride + v * LANES), left);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::samples::Random;

    /// Rows, depth, width: ones, and the neighbours of every border.
    const SHAPES: [(usize, usize, usize); 9] = [
        (1, 1, 1),
        (2, 255, 15),
        (3, 256, 16),
        (5, 257, 17),
        (9, 12, 33),
        (63, 40, 31),
        (64, 513, 32),
        (65, 9, 70),
        (130, 300, 48),
    ];

    /// The definition, sum by sum, in the order that is promised.
    fn plain(x: &[f32], w: &[f32], (rows, depth, width): (usize, usize, usize), out: &mut [f32]) {
        for m in 0..rows {
            for n in 0..width {
                let sum = &mut out[m * width + n];
                *sum = (0..depth).fold(*sum, |sum, k| x[m * depth + k].mul_add(w[k * width + n], sum));
            }
        }
    }

    #[test]
    fn products_are_those_of_the_definition_bit_for_bit() {
        for shape @ (rows, depth, width) in SHAPES {
            let mut random = Random(rows as u64);
            let (x, w) = (random.normals(rows * depth), random.normals(depth * width));
            let begun = random.normals(rows * width);
            let across: Vec<f32> = (0..rows * depth).map(|i| x[i % rows * depth + i / rows]).collect();
            let turned: Vec<f32> = (0..depth * width).map(|i| w[i % depth * width + i / depth]).collect();
            let (mut added, mut fresh) = (begun.clone(), vec![0.0; rows * width]);
            plain(&x, &w, shape, &mut added);
            plain(&x, &w, shape, &mut fresh);
            for threads in [1, 2, 3] {
                let pool = Pool::new(threads).unwrap();
                let sides = [
                    (Left::of(&x, depth), Panels::of(&w, width)),
                    (Left::transposed(&across, rows), Panels::transposed(&turned, depth)),
                ];
                for (left, right) in sides {
                    let mut got = begun.clone();
                    multiply(&pool, left, &right, &mut got, true);
                    assert_eq!(got, added, "{shape:?} {threads}");
                    multiply(&pool, left, &right, &mut got, false);
                    assert_eq!(got, fresh, "{shape:?} {threads}");
                }
            }
        }
    }

    /// The forms that this processor would not choose.
    #[test]
    fn every_instruction_set_gives_the_same_bits() {
        for shape @ (rows, depth, width) in SHAPES.into_iter().filter(|s| s.2 <= PANEL) {
            let mut random = Random(7);
            let (x, w) = (random.normals(rows * depth), random.normals(depth * width));
            let right = Panels::of(&w, width);
            let run = |on: unsafe fn(&Part)| {
                let mut out = vec![0.5; rows * width];
                let (left, to, right) = (x.as_ptr(), out.as_mut_ptr(), right.values.as_ptr());
                let (row, stride, columns) = (depth, width, width);
                // SAFETY: the vectors have these sizes, and the caller knows that the processor has the set.
                unsafe { on(&Part { left, row, step: 1, rows, right, columns, depth, out: to, stride, fresh: false }) };
                out
            };
            let mut want = vec![0.5; rows * width];
            plain(&x, &w, shape, &mut want);
            assert_eq!(run(part_body::<crate::cpu::lanes::Plain>), want, "{shape:?}");
            assert_eq!(run(part_on), want, "{shape:?}");
            #[cfg(target_arch = "x86_64")]
            if crate::cpu::isa::avx2() {
                #[target_feature(enable = "avx2,fma,f16c")]
                unsafe fn middle(part: &Part) {
                    // SAFETY: passed on.
                    unsafe { part_body::<crate::cpu::lanes::Pair>(part) }
                }
                assert_eq!(run(middle), want, "{shape:?}");
            }
        }
    }
}
