//! The gated delta rule one token at a time: the convolution's row and the recurrent step of one head.
//!
//! Every sum runs in the order of the library's own step (`ggml_vec_dot_f32`: 32 partial sums, added as a tree).
//! The head's values lie side by side in the lanes instead of its keys.

use super::gdn::{COLUMNS, DIM, TAPS};
use super::lanes::{LANES, Lanes, lanes};

/// out = silu(Σ_j w_j·x_j) for one head's channels, the products rounded before they are added.
pub(super) fn convolve(x: &[&[f32]; TAPS], w: &[&[f32]; TAPS], out: &mut [f32]) {
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
                sum = sum.add(L::load(w.as_ptr().wrapping_add(i)).mul(L::load(x.as_ptr().wrapping_add(i))));
            }
            sum.silu().store(out.as_mut_ptr().wrapping_add(i));
        }
    }
}

lanes! {
    /// One token of one head; `state` is `[column block][128][32]`, the rows have 128 values; o = Sᵀq.
    ///
    /// # Safety
    /// Nothing beyond the lengths, which are checked.
    pub(super) unsafe fn step(state: &mut [f32], q: &[f32], k: &[f32], v: &[f32], decay: f32, beta: f32, o: &mut [f32]) = step_body
}

/// Vectors of a row of a column block.
const VECTORS: usize = COLUMNS / LANES;
type Row<L> = [L; VECTORS];

/// Σ over the 128 keys of `term(key, sum so far)`: 32 partial sums, each of every 32nd key, added as a tree
/// (r + 16, r + 8, r + 4, then neighbours). Eight of the sums are worked on at a time.
#[inline(always)]
unsafe fn over_keys<L: Lanes>(mut term: impl FnMut(usize, Row<L>) -> Row<L>) -> Row<L> {
    // SAFETY: see `Lanes`.
    unsafe {
        let add = |a: Row<L>, b: Row<L>| -> Row<L> { std::array::from_fn(|v| a[v].add(b[v])) };
        let mut eights = [[L::splat(0.0); VECTORS]; 4];
        for (first, eight) in eights.iter_mut().enumerate() {
            let mut sums = [[L::splat(0.0); VECTORS]; 8];
            for keys in (first..DIM).step_by(32) {
                for (j, sum) in sums.iter_mut().enumerate() {
                    *sum = term(keys + 4 * j, *sum);
                }
            }
            let two: [Row<L>; 4] = std::array::from_fn(|j| add(sums[j], sums[j + 4]));
            *eight = add(add(two[0], two[2]), add(two[1], two[3]));
        }
        add(add(eights[0], eights[1]), add(eights[2], eights[3]))
    }
}

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
        let at = |i: usize, j: usize| block.wrapping_add(i * COLUMNS + j * LANES);
        // SAFETY: the block has 128 rows of 32 floats, the rows 128 (checked above).
        unsafe {
            let decay = L::splat(decay);
            let r = over_keys::<L>(|i, sum| {
                let k = L::splat(*k.get_unchecked(i));
                std::array::from_fn(|j| decay.mul(L::load(at(i, j))).fma(k, sum[j]))
            });
            let d: Row<L> = std::array::from_fn(|j| {
                let v = L::load(v.as_ptr().wrapping_add(c * COLUMNS + j * LANES));
                L::splat(-1.0).fma(r[j], v).mul(L::splat(beta))
            });
            let y = over_keys::<L>(|i, sum| {
                let (k, q) = (L::splat(*k.get_unchecked(i)), L::splat(*q.get_unchecked(i)));
                std::array::from_fn(|j| {
                    // The next block, or the next head's first: the state is too large for the nearer caches.
                    L::prefetch(at(DIM + i, j));
                    let s = k.fma(d[j], decay.mul(L::load(at(i, j))));
                    s.store(at(i, j));
                    q.fma(s, sum[j])
                })
            });
            for (j, y) in y.into_iter().enumerate() {
                y.store(o.as_mut_ptr().wrapping_add(c * COLUMNS + j * LANES));
            }
        }
    }
}
