//! Matrix products: several weight matrices times the rows of one activation, in one dispatch.
//!
//! Owns the cutting into tasks and the choice of kernel. The unit of work is a group of 16 outputs times up to [`TILE`]
//! rows. Every kernel computes a row's sum in the same order whatever the tile, so a row's numbers depend neither on T
//! nor on its neighbours. The orders, the same for all instruction sets:
//!
//! - Q4_K, Q5_K and Q6_K, the types that most files consist of, in the order of the library's AVX2 form: an integer sum s
//!   for each of the eight quads of 32 inputs, acc[quad] = fma(s, d_w·d_x, acc[quad]). The eight are added as a tree,
//!   mins last.
//! - The rest of family K, a block of 256: s = Σ_sub fma(dot, scale, s) from 0, acc = fma(s, d_w·d_x, acc),
//!   acc = fma(Σ min·sum, −(dmin·d_x), acc).
//! - Family B, a block of 32: acc = fma(dot, d_w·d_x, acc), acc = fma(m, d_x·sum, acc).
//! - Floats: sixteen lanes along the inputs, then [`lane_sum`](super::norm::lane_sum).
//!
//! Integer dot products are exact.

use super::act::{Act, View};
use super::lora::{Narrow, Pick, Plus, narrow};
use super::pack::{GROUP, Kind, Layout, Matrix};
use super::pool::{Pool, Shared1};
use super::{float, isa, kernel};

/// Most rows of activations in one kernel call.
pub(super) const TILE: usize = 8;

/// Weight bytes times rows below which a product stays on the calling thread.
const INLINE_BYTES: usize = 32 << 10;

/// Outputs of one group for each row of a tile.
pub(super) type Tile = [[f32; GROUP]; TILE];

/// One matrix of a product and where its results go.
pub struct Product<'a> {
    pub weight: &'a Matrix,
    /// `[T, rows]`.
    pub out: &'a mut [f32],
    /// Adds to `out` (a residual) instead of replacing it.
    pub add: bool,
}

/// What a kernel reads of the activations: floats or one 8-bit form.
#[derive(Clone, Copy)]
pub(super) enum Input {
    Float { rows: *const f32, cols: usize },
    Coded(View),
}

// SAFETY: a view is only read while the `Act` it comes from is borrowed by the product.
unsafe impl Send for Input {}
// SAFETY: as above.
unsafe impl Sync for Input {}

impl Input {
    /// What `weight` needs of `x`; panics when it was not made.
    pub(super) fn of(x: &Act, weight: &Matrix) -> Input {
        assert_eq!(x.cols(), weight.cols(), "the activations do not fit {weight:?}");
        match weight.kind() {
            Kind::Packed(l) => Input::Coded(x.form(l.format.block)),
            _ => Input::Float { rows: x.data().as_ptr(), cols: x.cols() },
        }
    }
}

/// One group of a packed matrix, as the kernels take it.
#[derive(Clone, Copy)]
pub(super) struct Group<'a> {
    pub(super) layout: &'a Layout,
    pub(super) bytes: &'a [u8],
}

/// Computes group `g` of `weight` for the rows `rows` (at most [`TILE`]) of `x`.
///
/// # Safety
/// Every index in `rows` is a row of the activations that `x` views.
pub(super) unsafe fn tile(weight: &Matrix, g: usize, x: &Input, rows: &[u32], out: &mut Tile) {
    debug_assert!(rows.len() <= TILE);
    match (weight.kind(), x) {
        (Kind::Packed(layout), Input::Coded(view)) => {
            let bytes = &weight.data()[g * layout.group_bytes..(g + 1) * layout.group_bytes];
            let group = Group { layout, bytes };
            // SAFETY: the caller vouches for `rows`; the group has the bytes of its layout.
            unsafe { kernel::tile(isa::isa(), &group, view, rows, out) }
        }
        (kind, Input::Float { rows: data, cols }) => {
            let first = g * GROUP;
            let count = GROUP.min(weight.rows() - first);
            let width = weight.dtype().block_bytes() * cols;
            let bytes = &weight.data()[first * width..(first + count) * width];
            // SAFETY: the caller vouches for `rows`; `bytes` holds `count` rows of `cols` values.
            unsafe { float::tile(kind, bytes, count, *cols, *data, rows, out) }
        }
        _ => unreachable!("the input was chosen for this matrix"),
    }
}

/// Writes or adds a tile's valid outputs to rows of `[_, stride]`, starting at column `at`.
///
/// # Safety
/// `out` is valid for each row `to[i]` and no other thread writes these columns of it.
pub(super) unsafe fn store(tile: &Tile, to: &[u32], out: Shared1<f32>, stride: usize, at: usize, add: bool) {
    let count = GROUP.min(stride - at);
    for (values, t) in tile.iter().zip(to) {
        // SAFETY: vouched for by the caller.
        let row = unsafe { std::slice::from_raw_parts_mut(out.at(*t as usize * stride + at), count) };
        if add {
            row.iter_mut().zip(values).for_each(|(o, v)| *o += v);
        } else {
            row.copy_from_slice(&values[..count]);
        }
    }
}

/// Groups a task takes, so that there are about `per_thread` tasks a thread and none is tiny.
pub(super) fn groups_per_task(groups: usize, group_bytes: usize, rows: usize, threads: usize) -> usize {
    // Work of a group in byte-rows; a task below ~24 kB costs as much to hand out as to do.
    let least = (24_576 / (group_bytes * rows).max(1)).max(1);
    let fair = groups.div_ceil(threads * 6).max(1);
    fair.max(least).min(groups.div_ceil(threads).max(1))
}

/// One product as its tasks see it.
struct Job<'a> {
    first: usize,
    per_task: usize,
    weight: &'a Matrix,
    input: Input,
    out: Shared1<f32>,
    add: bool,
    plus: Option<Plus<'a>>,
}

/// out = weight · x (or out += weight · x) for every product, all rows of `x`.
pub fn matmul(pool: &Pool, x: &Act, products: &mut [Product<'_>]) {
    matmul_adapted(pool, x, products, &[]);
}

/// As [`matmul`], with low-rank additions to the rows of each product for which its `Pick` has factors; the others keep
/// their bits.
pub fn matmul_adapted(pool: &Pool, x: &Act, products: &mut [Product<'_>], picks: &[&Pick<'_>]) {
    let rows: Vec<u32> = (0..x.rows() as u32).collect();
    let mut jobs = Vec::with_capacity(products.len());
    let mut tasks = 0;
    for (i, p) in products.iter_mut().enumerate() {
        let (weight, first) = (p.weight, tasks);
        assert_eq!(p.out.len(), rows.len() * weight.rows(), "the output does not fit {weight:?}");
        let groups = weight.groups();
        let per_task = groups_per_task(groups, weight.bytes() / groups, rows.len(), pool.threads());
        tasks += groups.div_ceil(per_task);
        let plus = picks.get(i).and_then(|pick| Plus::of(rows.len(), weight.cols(), weight.rows(), *pick));
        let (input, out) = (Input::of(x, weight), Shared1(p.out.as_mut_ptr()));
        jobs.push(Job { first, per_task, weight, input, out, add: p.add, plus });
    }
    let parts = jobs.iter_mut().filter_map(|job| Some(Narrow { plus: job.plus.as_mut()?, x: x.data(), fan: 1 }));
    narrow(pool, &mut parts.collect::<Vec<_>>());
    let work: usize = jobs.iter().map(|job| job.weight.bytes() * rows.len()).sum();
    let run = |task: usize, _: usize| {
        let job = &jobs[jobs.partition_point(|job| job.first <= task) - 1];
        let (weight, start) = (job.weight, (task - job.first) * job.per_task);
        let mut values: Tile = [[0.0; GROUP]; TILE];
        for g in start..weight.groups().min(start + job.per_task) {
            for chunk in rows.chunks(TILE) {
                // SAFETY: `rows` counts the rows of `x`; group g of this product belongs to this task alone.
                unsafe {
                    tile(weight, g, &job.input, chunk, &mut values);
                    if let Some(plus) = &job.plus {
                        plus.join(g, chunk, &mut values);
                    }
                    store(&values, chunk, job.out, weight.rows(), g * GROUP, job.add);
                }
            }
        }
    };
    // Less work than it costs to call the other threads.
    if work < INLINE_BYTES {
        (0..tasks).for_each(|task| run(task, 0));
    } else {
        pool.run(tasks, run);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::DType;
    use crate::cpu::act::Forms;
    use crate::cpu::samples::{Random, weights};

    /// Largest error against f64 sums of the dequantised weights, relative to the row's typical size.
    fn error(dtype: DType, rows: usize, cols: usize, t: usize) -> f64 {
        let pool = Pool::new(2).unwrap();
        let w = Matrix::pack(dtype, rows, cols, &weights(dtype, rows * cols, 1)).unwrap();
        let x = Random(2).normals(t * cols);
        let mut act = Act::new(cols);
        act.load(&pool, &x, Forms::of(&[&w]));
        let mut out = vec![0.0; t * rows];
        matmul(&pool, &act, &mut [Product { weight: &w, out: &mut out, add: false }]);
        let mut row = vec![0.0; cols];
        let (mut worst, mut size) = (0f64, 0f64);
        for r in 0..rows {
            w.dequantize_row(r, &mut row).unwrap();
            for i in 0..t {
                let want: f64 = row.iter().zip(&x[i * cols..]).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum();
                worst = worst.max((want - f64::from(out[i * rows + r])).abs());
                size += want * want / (rows * t) as f64;
            }
        }
        worst / size.sqrt()
    }

    #[test]
    fn every_type_is_close_to_the_exact_product() {
        for dtype in DType::ALL {
            let limit = if dtype.block_len() == 1 { 1e-5 } else { 0.06 };
            for (rows, cols, t) in [(16, 256, 1), (19, 512, 3), (33, 768, 11)] {
                let e = error(dtype, rows, cols, t);
                assert!(e < limit, "{dtype:?} {rows}x{cols} T={t}: {e}");
            }
        }
        for dtype in [DType::F32, DType::F16, DType::Q8_0, DType::Q5_1] {
            assert!(error(dtype, 5, 96, 2) < 0.04, "{dtype:?}");
        }
    }

    #[test]
    fn a_row_has_the_same_bits_at_every_batch_size() {
        let pool = Pool::new(2).unwrap();
        for dtype in DType::ALL {
            let (rows, cols, t) = (37, 512, 40);
            let w = Matrix::pack(dtype, rows, cols, &weights(dtype, rows * cols, 1)).unwrap();
            let x = Random(2).normals(t * cols);
            let forms = Forms::of(&[&w]);
            let mut act = Act::new(cols);
            act.load(&pool, &x, forms);
            let mut whole = vec![1.0; t * rows];
            matmul(&pool, &act, &mut [Product { weight: &w, out: &mut whole, add: true }]);
            for n in [1, 2, 3, 5, 8, 17] {
                let at = 40 - n;
                act.load(&pool, &x[at * cols..], forms);
                let mut part = vec![1.0; n * rows];
                matmul(&pool, &act, &mut [Product { weight: &w, out: &mut part, add: true }]);
                assert_eq!(part, whole[at * rows..], "{dtype:?} T={n}");
            }
        }
    }

    #[test]
    fn every_instruction_set_gives_the_bits_of_the_portable_kernel() {
        let pool = Pool::new(1).unwrap();
        for dtype in DType::ALL {
            let (rows, cols, t) = (16, 512, TILE);
            let w = Matrix::pack(dtype, rows, cols, &weights(dtype, rows * cols, 4)).unwrap();
            let Kind::Packed(layout) = w.kind() else { continue };
            let mut act = Act::new(cols);
            act.load(&pool, &Random(3).normals(t * cols), Forms::of(&[&w]));
            let Input::Coded(view) = Input::of(&act, &w) else { unreachable!() };
            let group = Group { layout, bytes: w.data() };
            for n in 1..=t {
                let rows: Vec<u32> = (0..n as u32).rev().collect();
                let mut want: Tile = [[0.0; GROUP]; TILE];
                // SAFETY: `rows` are rows of `act`, which lives on.
                unsafe { kernel::tile(isa::Isa::Portable, &group, &view, &rows, &mut want) };
                for set in isa::available() {
                    let mut got: Tile = [[0.0; GROUP]; TILE];
                    // SAFETY: as above, and the processor has `set`.
                    unsafe { kernel::tile(set, &group, &view, &rows, &mut got) };
                    assert_eq!(got[..n], want[..n], "{dtype:?} {set:?} {n} rows");
                }
            }
        }
    }

    #[cfg(feature = "llama")]
    #[test]
    fn the_types_of_most_files_give_the_bits_of_the_library() {
        let pool = Pool::new(1).unwrap();
        for dtype in [DType::Q4_K, DType::Q5_K, DType::Q6_K] {
            let (rows, cols) = (33, 768);
            let bytes = weights(dtype, rows * cols, 5);
            let w = Matrix::pack(dtype, rows, cols, &bytes).unwrap();
            let x = Random(6).normals(cols);
            let mut act = Act::new(cols);
            act.load(&pool, &x, Forms::of(&[&w]));
            let mut out = vec![0.0; rows];
            matmul(&pool, &act, &mut [Product { weight: &w, out: &mut out, add: false }]);
            let library = crate::ggml::quant::VecDot::of(dtype);
            let x = library.activations(&x).unwrap();
            for (row, got) in bytes.chunks(bytes.len() / rows).zip(&out) {
                assert_eq!(library.dot(cols, row, &x).unwrap(), *got, "{dtype:?}");
            }
        }
    }
}
