//! Products with F32, F16 and BF16 matrices. Activations stay f32. Sums are f32 in 32 lanes along the
//! inputs, as the library's `ggml_vec_dot_f32`, in one order for every tile shape.

use super::lanes::{LANES, Lanes, lanes};
use super::pack::{GROUP, Kind};
use super::product::{TILE, Tile};

/// Matrix rows, and activation rows, of one inner block: its sums fill half the vector registers.
const BLOCK: usize = 4;

/// Sums of a block: `[activation row][matrix row]`.
type Sums = [[f32; BLOCK]; BLOCK];

/// Computes `count` (≤ 16) matrix rows stored in `bytes` for the activation rows `rows`.
///
/// # Safety
/// Every index in `rows` is a row of `cols` floats of `x`; `bytes` holds `count` rows of `cols` values.
pub(super) unsafe fn tile(
    kind: &Kind,
    bytes: &[u8],
    count: usize,
    cols: usize,
    x: *const f32,
    rows: &[u32],
    out: &mut Tile,
) {
    debug_assert!(rows.len() <= TILE);
    let width = if matches!(kind, Kind::F32) { 4 } else { 2 } * cols;
    let row = |t: u32| x.wrapping_add(t as usize * cols);
    for first in (0..count).step_by(BLOCK) {
        // Rows past the end repeat the last one; their results are dropped.
        let ws = std::array::from_fn(|r| bytes.as_ptr().wrapping_add((first + r).min(count - 1) * width));
        for (values, ts) in out.chunks_mut(BLOCK).zip(rows.chunks(BLOCK)) {
            let xs: [*const f32; BLOCK] = std::array::from_fn(|i| row(ts[i.min(ts.len() - 1)]));
            let mut sums: Sums = [[0.0; BLOCK]; BLOCK];
            // SAFETY: all pointers are rows of `cols` values of their type.
            unsafe {
                match (kind, ts.len()) {
                    (Kind::F32, 1) => one_f32(&ws, &xs, cols, &mut sums),
                    (Kind::F16, 1) => one_f16(&ws, &xs, cols, &mut sums),
                    (_, 1) => one_bf16(&ws, &xs, cols, &mut sums),
                    (Kind::F32, _) => block_f32(&ws, &xs, cols, &mut sums),
                    (Kind::F16, _) => block_f16(&ws, &xs, cols, &mut sums),
                    _ => block_bf16(&ws, &xs, cols, &mut sums),
                }
            }
            for (values, sums) in values.iter_mut().zip(&sums).take(ts.len()) {
                let n = BLOCK.min(GROUP - first);
                values[first..first + n].copy_from_slice(&sums[..n]);
            }
        }
    }
}

/// How a weight is stored.
trait Weight {
    const BYTES: usize;
    /// # Safety
    /// See [`Lanes`]; `at` points at sixteen stored values.
    unsafe fn read<L: Lanes>(at: *const u8) -> L;
}

struct F32;
struct F16;
struct BF16;

impl Weight for F32 {
    const BYTES: usize = 4;
    #[inline(always)]
    unsafe fn read<L: Lanes>(at: *const u8) -> L {
        // SAFETY: passed on.
        unsafe { L::load(at.cast()) }
    }
}

impl Weight for F16 {
    const BYTES: usize = 2;
    #[inline(always)]
    unsafe fn read<L: Lanes>(at: *const u8) -> L {
        // SAFETY: passed on.
        unsafe { L::load_f16(at.cast()) }
    }
}

impl Weight for BF16 {
    const BYTES: usize = 2;
    #[inline(always)]
    unsafe fn read<L: Lanes>(at: *const u8) -> L {
        // SAFETY: passed on.
        unsafe { L::load_bf16(at.cast()) }
    }
}

/// Sums of four matrix rows times the first `N` activation rows.
///
/// # Safety
/// All pointers are rows of `cols` values; see [`Lanes`].
#[inline(always)]
unsafe fn sums<L: Lanes, W: Weight, const N: usize>(
    ws: &[*const u8; BLOCK],
    xs: &[*const f32; BLOCK],
    cols: usize,
    out: &mut Sums,
) {
    // SAFETY: reads stay inside the rows; the tail goes through zero-filled arrays.
    unsafe {
        // Lanes 16..32 of each 32 inputs in a pass of their own: all sums at once would not fit the registers.
        let mut acc = [[[L::splat(0.0); BLOCK]; N]; 2];
        let whole = cols / LANES * LANES;
        for (half, acc) in acc.iter_mut().enumerate() {
            for k in (half * LANES..whole).step_by(2 * LANES) {
                let w: [L; BLOCK] = std::array::from_fn(|r| W::read(ws[r].wrapping_add(k * W::BYTES)));
                for (acc, x) in acc.iter_mut().zip(xs) {
                    let x = L::load(x.wrapping_add(k));
                    for (acc, w) in acc.iter_mut().zip(w) {
                        *acc = w.fma(x, *acc);
                    }
                }
            }
        }
        if whole < cols {
            let rest = cols - whole;
            let w: [L; BLOCK] = std::array::from_fn(|r| {
                let mut tail = [0u8; LANES * 4];
                let from = ws[r].wrapping_add(whole * W::BYTES);
                std::ptr::copy_nonoverlapping(from, tail.as_mut_ptr(), rest * W::BYTES);
                W::read(tail.as_ptr())
            });
            for (acc, x) in acc[0].iter_mut().zip(xs) {
                let mut tail = [0f32; LANES];
                std::ptr::copy_nonoverlapping(x.wrapping_add(whole), tail.as_mut_ptr(), rest);
                let x = L::load(tail.as_ptr());
                for (acc, w) in acc.iter_mut().zip(w) {
                    *acc = w.fma(x, *acc);
                }
            }
        }
        let [low, high] = acc;
        for ((out, low), high) in out.iter_mut().zip(low).zip(high) {
            *out = std::array::from_fn(|r| low[r].add(high[r]).sum());
        }
    }
}

macro_rules! kernels {
    ($weight:ident: $one:ident = $one_body:ident, $block:ident = $block_body:ident) => {
        #[inline(always)]
        unsafe fn $one_body<L: Lanes>(ws: &[*const u8; BLOCK], xs: &[*const f32; BLOCK], cols: usize, out: &mut Sums) {
            // SAFETY: passed on from the caller.
            unsafe { sums::<L, $weight, 1>(ws, xs, cols, out) }
        }
        #[inline(always)]
        unsafe fn $block_body<L: Lanes>(ws: &[*const u8; BLOCK], xs: &[*const f32; BLOCK], cols: usize, out: &mut Sums) {
            // SAFETY: passed on from the caller.
            unsafe { sums::<L, $weight, BLOCK>(ws, xs, cols, out) }
        }
        lanes! { unsafe fn $one(ws: &[*const u8; BLOCK], xs: &[*const f32; BLOCK], cols: usize, out: &mut Sums) = $one_body }
        lanes! { unsafe fn $block(ws: &[*const u8; BLOCK], xs: &[*const f32; BLOCK], cols: usize, out: &mut Sums) = $block_body }
    };
}

kernels!(F32: one_f32 = one_f32_body, block_f32 = block_f32_body);
kernels!(F16: one_f16 = one_f16_body, block_f16 = block_f16_body);
kernels!(BF16: one_bf16 = one_bf16_body, block_bf16 = block_bf16_body);
