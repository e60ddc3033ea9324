//! Row operations: norms, gates and activations. Serial; a row is a few kilobytes at most.
//! Shapes are in the arguments; sums run in sixteen lanes and one fixed order.

use super::lanes::{LANES, Lanes, lanes};

/// Sum of 16 lanes in the fixed order (i, i+8), (i, i+4), then neighbours: that of the library, whose sums run in 32
/// lanes of which the upper half is added first.
#[inline(always)]
pub(super) fn lane_sum(l: [f32; 16]) -> f32 {
    let eight: [f32; 8] = std::array::from_fn(|i| l[i] + l[i + 8]);
    let four: [f32; 4] = std::array::from_fn(|i| eight[i] + eight[i + 4]);
    (four[0] + four[1]) + (four[2] + four[3])
}

/// Sixteen values at a time through `f`, the last part of a row included.
macro_rules! each_part {
    ($len:expr, |$i:ident, $n:ident| $body:block) => {
        let len = $len;
        let mut $i = 0;
        while $i < len {
            let $n = LANES.min(len - $i);
            $body
            $i += LANES;
        }
    };
}

/// Σ x², each square rounded to f32 and summed in f64, where the order no longer matters.
#[inline(always)]
fn sum_squares(x: &[f32]) -> f64 {
    let mut acc = [0f64; LANES];
    let (whole, rest) = x.as_chunks::<LANES>();
    for part in whole {
        for (acc, v) in acc.iter_mut().zip(part) {
            *acc += f64::from(v * v);
        }
    }
    for (acc, v) in acc.iter_mut().zip(rest) {
        *acc += f64::from(v * v);
    }
    acc.iter().sum()
}

/// 1 / sqrt(mean(x²) + eps).
#[inline(always)]
fn rms_scale(x: &[f32], eps: f32) -> f32 {
    1.0 / ((sum_squares(x) / x.len() as f64) as f32 + eps).sqrt()
}

#[inline(always)]
unsafe fn rms_norm_body<L: Lanes>(x: *const f32, weight: &[f32], eps: f32, out: *mut f32) {
    // SAFETY: `x` and `out` have the length of `weight` (checked by the callers); in place, each part is
    // read before it is written.
    unsafe {
        let len = weight.len();
        let scale = rms_scale(std::slice::from_raw_parts(x, len), eps);
        each_part!(len, |i, n| {
            let v = L::load_part(x.wrapping_add(i), n, 0.0).mul(L::splat(scale));
            v.mul(L::load_part(weight.as_ptr().wrapping_add(i), n, 0.0)).store_part(out.wrapping_add(i), n);
        });
    }
}

lanes! { unsafe fn rms_norm_on(x: *const f32, weight: &[f32], eps: f32, out: *mut f32) = rms_norm_body }

/// out = x / sqrt(mean(x²) + eps) · weight. All slices have the same length.
pub fn rms_norm_into(x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) {
    assert!(x.len() == weight.len() && out.len() == weight.len(), "rows of one length");
    // SAFETY: the lengths are equal.
    unsafe { rms_norm_on(x.as_ptr(), weight, eps, out.as_mut_ptr()) }
}

/// x = x / sqrt(mean(x²) + eps) · weight.
pub fn rms_norm(x: &mut [f32], weight: &[f32], eps: f32) {
    assert_eq!(x.len(), weight.len(), "rows of one length");
    // SAFETY: the lengths are equal.
    unsafe { rms_norm_on(x.as_ptr(), weight, eps, x.as_mut_ptr()) }
}

#[inline(always)]
unsafe fn l2_norm_body<L: Lanes>(x: &mut [f32], eps: f32) {
    // SAFETY: parts of the row.
    unsafe {
        let n = x.len() as f32;
        let (scale, factor) = (L::splat(rms_scale(x, eps / n)), L::splat(1.0 / n.sqrt()));
        each_part!(x.len(), |i, n| {
            let at = x.as_mut_ptr().wrapping_add(i);
            L::load_part(at, n, 0.0).mul(scale).mul(factor).store_part(at, n);
        });
    }
}

lanes! { unsafe fn l2_norm_on(x: &mut [f32], eps: f32) = l2_norm_body }

/// x = x / sqrt(Σ x² + eps), computed as the library does: RMSNorm with eps/n, then times 1/√n.
pub fn l2_norm(x: &mut [f32], eps: f32) {
    // SAFETY: any slice will do.
    unsafe { l2_norm_on(x, eps) }
}

/// 1 / (1 + e^−x), by the exponential of the C library.
pub fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + (-x).exp())
}

/// x · sigmoid(x).
pub fn silu(x: f32) -> f32 {
    x / (1.0 + (-x).exp())
}

/// ln(1 + e^x); x itself above 20, where they are equal.
pub fn softplus(x: f32) -> f32 {
    if x > 20.0 { x } else { (1.0 + x.exp()).ln() }
}

/// Elementwise rows: `out[i] = f(x[i], y[i])`, where `out` may be `x`.
macro_rules! elementwise {
    ($body:ident, $on:ident, |$x:ident: $l:ident, $y:ident, $c:ident| $value:expr) => {
        #[inline(always)]
        unsafe fn $body<$l: Lanes>(x: *const f32, y: &[f32], $c: f32, out: *mut f32) {
            // SAFETY: `x` and `out` have the length of `y` (checked by the callers).
            unsafe {
                let $c = $l::splat($c);
                each_part!(y.len(), |i, n| {
                    let $x = $l::load_part(x.wrapping_add(i), n, 0.0);
                    let $y = $l::load_part(y.as_ptr().wrapping_add(i), n, 0.0);
                    let _ = $c;
                    $value.store_part(out.wrapping_add(i), n);
                });
            }
        }
        lanes! { unsafe fn $on(x: *const f32, y: &[f32], c: f32, out: *mut f32) = $body }
    };
}

elementwise!(silu_mul_body, silu_mul_on, |x: L, y, c| x.silu().mul(y));
elementwise!(mul_silu_body, mul_silu_on, |x: L, y, c| x.mul(y.silu()));
elementwise!(mul_silu_slope_body, mul_silu_slope_on, |x: L, y, c| x.mul(y.silu_slope()));
elementwise!(add_body, add_on, |x: L, y, c| x.add(y));
elementwise!(add_scaled_body, add_scaled_on, |x: L, y, c| x.add(c.mul(y)));

/// out = silu(gate) · up.
pub fn silu_mul(gate: &[f32], up: &[f32], out: &mut [f32]) {
    assert!(gate.len() == up.len() && out.len() == up.len(), "rows of one length");
    // SAFETY: the lengths are equal.
    unsafe { silu_mul_on(gate.as_ptr(), up, 0.0, out.as_mut_ptr()) }
}

/// x = x · silu(gate).
pub fn mul_silu(x: &mut [f32], gate: &[f32]) {
    assert_eq!(x.len(), gate.len(), "rows of one length");
    // SAFETY: the lengths are equal.
    unsafe { mul_silu_on(x.as_ptr(), gate, 0.0, x.as_mut_ptr()) }
}

/// x = x · silu'(gate).
pub fn mul_silu_slope(x: &mut [f32], gate: &[f32]) {
    assert_eq!(x.len(), gate.len(), "rows of one length");
    // SAFETY: the lengths are equal.
    unsafe { mul_silu_slope_on(x.as_ptr(), gate, 0.0, x.as_mut_ptr()) }
}

/// x = silu(x).
pub fn silu_row(x: &mut [f32]) {
    let ones = [1f32; 256];
    for part in x.chunks_mut(256) {
        // SAFETY: `ones` is cut to the part's length.
        unsafe { silu_mul_on(part.as_ptr(), &ones[..part.len()], 0.0, part.as_mut_ptr()) }
    }
}

/// x = x · sigmoid(gate).
pub fn sigmoid_mul(x: &mut [f32], gate: &[f32]) {
    assert_eq!(x.len(), gate.len(), "rows of one length");
    x.iter_mut().zip(gate).for_each(|(x, gate)| *x *= sigmoid(*gate));
}

/// x = x + y.
pub fn add(x: &mut [f32], y: &[f32]) {
    assert_eq!(x.len(), y.len(), "rows of one length");
    // SAFETY: the lengths are equal.
    unsafe { add_on(x.as_ptr(), y, 0.0, x.as_mut_ptr()) }
}

/// x = x + factor · y, the product rounded before it is added.
pub fn add_scaled(x: &mut [f32], y: &[f32], factor: f32) {
    assert_eq!(x.len(), y.len(), "rows of one length");
    // SAFETY: the lengths are equal.
    unsafe { add_scaled_on(x.as_ptr(), y, factor, x.as_mut_ptr()) }
}

#[inline(always)]
unsafe fn maximum_body<L: Lanes>(x: &[f32]) -> f32 {
    // SAFETY: parts of the row.
    unsafe {
        let mut acc = [L::splat(f32::NEG_INFINITY); 2];
        each_part!(x.len(), |i, n| {
            let v = L::load_part(x.as_ptr().wrapping_add(i), n, f32::NEG_INFINITY);
            acc[i / LANES % 2] = v.max(acc[i / LANES % 2]);
        });
        acc[0].max(acc[1]).largest()
    }
}

lanes! { unsafe fn maximum_on(x: &[f32]) -> f32 = maximum_body }

/// Largest value; −∞ for an empty row; NaN is passed over.
pub fn maximum(x: &[f32]) -> f32 {
    // SAFETY: any slice will do.
    unsafe { maximum_on(x) }
}

/// x = e^(x − max), and the sum: groups of eight in f32, the groups in f64. What is left after the last whole group
/// goes through the exponential of the C library.
#[inline(always)]
unsafe fn exponentials_body<L: Lanes>(x: &mut [f32], max: f32) -> f64 {
    let whole = x.len() / 8 * 8;
    let (groups, rest) = x.split_at_mut(whole);
    // SAFETY: parts of the row.
    unsafe {
        each_part!(whole, |i, n| {
            let at = groups.as_mut_ptr().wrapping_add(i);
            L::load_part(at, n, 0.0).add(L::splat(-max)).exp().store_part(at, n);
        });
    }
    let mut total = 0f64;
    for g in groups.as_chunks::<8>().0 {
        total += f64::from((g[4] + g[0] + (g[6] + g[2])) + (g[5] + g[1] + (g[7] + g[3])));
    }
    for x in rest {
        *x = (*x - max).exp();
        total += f64::from(*x);
    }
    total
}

lanes! { unsafe fn exponentials_on(x: &mut [f32], max: f32) -> f64 = exponentials_body }

/// x = e^(x − max); returns the sum.
pub(super) fn exponentials(x: &mut [f32], max: f32) -> f64 {
    // SAFETY: any slice will do.
    unsafe { exponentials_on(x, max) }
}

/// x = e^(x − max) / sum, in place.
pub fn softmax(x: &mut [f32]) {
    let max = maximum(x);
    let scale = (1.0 / exponentials(x, max)) as f32;
    x.iter_mut().for_each(|x| *x *= scale);
}

/// Index of the largest value, the lowest one among equals; 0 for an empty row.
pub fn argmax(x: &[f32]) -> usize {
    let max = maximum(x);
    x.iter().position(|v| *v == max).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::samples::Random;

    #[inline(always)]
    unsafe fn exp_body<L: Lanes>(x: f32) -> f32 {
        let mut lanes = [0f32; LANES];
        // SAFETY: sixteen floats.
        unsafe { L::splat(x).exp().store(lanes.as_mut_ptr()) };
        lanes[0]
    }

    lanes! { unsafe fn exp_on(x: f32) -> f32 = exp_body }

    fn vector_exp(x: f32) -> f32 {
        // SAFETY: any number will do.
        unsafe { exp_on(x) }
    }

    #[test]
    fn exponentials_are_accurate_everywhere() {
        for i in -8730..=8830 {
            let x = i as f32 / 100.0;
            let want = f64::from(x).exp();
            assert!((f64::from(vector_exp(x)) / want - 1.0).abs() < 3e-7, "{x}");
        }
        assert!(sigmoid(-200.0) >= 0.0 && sigmoid(-200.0) < 1e-37 && sigmoid(200.0) == 1.0);
        assert_eq!(silu(0.0), 0.0);
        assert_eq!(softplus(100.0), 100.0);
        assert!(softplus(-100.0) < 1e-40);
    }

    #[test]
    fn norms_follow_their_formulas_on_odd_lengths() {
        for n in [1, 7, 16, 33, 512] {
            let x = Random(n as u64).normals(n);
            let w = Random(99).normals(n);
            let square: f64 = x.iter().map(|v| f64::from(*v).powi(2)).sum();
            let mut out = vec![0.0; n];
            rms_norm_into(&x, &w, 1e-6, &mut out);
            for i in 0..n {
                let want = f64::from(x[i]) / (square / n as f64 + 1e-6).sqrt() * f64::from(w[i]);
                assert!((f64::from(out[i]) - want).abs() < 1e-5 * want.abs().max(0.1));
            }
            let mut y = x.clone();
            rms_norm(&mut y, &w, 1e-6);
            assert_eq!(y, out);
            let mut y = x.clone();
            l2_norm(&mut y, 1e-6);
            assert!((y.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>() - 1.0).abs() < 1e-5);
        }
        let mut zero = [0.0f32; 4];
        l2_norm(&mut zero, 1e-6);
        assert_eq!(zero, [0.0; 4]);
    }

    #[test]
    fn softmax_sums_to_one_and_argmax_takes_the_first() {
        let mut x = Random(5).normals(37);
        let copy = x.clone();
        softmax(&mut x);
        assert!((x.iter().sum::<f32>() - 1.0).abs() < 1e-6);
        let total: f64 = copy.iter().map(|v| f64::from(*v).exp()).sum();
        for (p, v) in x.iter().zip(&copy) {
            assert!((f64::from(*p) - f64::from(*v).exp() / total).abs() < 1e-7);
        }
        assert_eq!(argmax(&[1.0, 3.0, 3.0, 2.0]), 1);
        assert_eq!(argmax(&[]), 0);
    }

    #[test]
    fn elementwise_forms_match_the_scalar_ones() {
        let (g, u) = (Random(1).normals(50), Random(2).normals(50));
        let mut out = vec![0.0; 50];
        silu_mul(&g, &u, &mut out);
        for i in 0..50 {
            let want = f64::from(g[i]) / (1.0 + (-f64::from(g[i])).exp()) * f64::from(u[i]);
            assert!((f64::from(out[i]) - want).abs() < 1e-6);
        }
        let (mut x, h) = (u.clone(), 1e-4);
        mul_silu_slope(&mut x, &g);
        for i in 0..50 {
            let silu = |x: f64| x / (1.0 + (-x).exp());
            let want = f64::from(u[i]) * (silu(f64::from(g[i]) + h) - silu(f64::from(g[i]) - h)) / (2.0 * h);
            assert!((f64::from(x[i]) - want).abs() < 2e-6);
        }
        let mut x = u.clone();
        sigmoid_mul(&mut x, &g);
        add(&mut x, &g);
        add_scaled(&mut x, &u, 0.5);
        for i in 0..50 {
            let want = f64::from(u[i]) * (1.0 / (1.0 + (-f64::from(g[i])).exp()) + 0.5) + f64::from(g[i]);
            assert!((f64::from(x[i]) - want).abs() < 2e-6);
        }
    }
}
