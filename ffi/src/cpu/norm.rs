//! Row operations: norms, gates and activations. Serial; a row is a few kilobytes at most.
//! Shapes are in the arguments; sums run in sixteen lanes and one fixed order.

use super::lanes::{LANES, Lanes, lanes};

/// Sum of 16 lanes in the fixed order (i, i+8), (i, i+4), (i, i+2), (i, i+1).
#[inline(always)]
pub(super) fn lane_sum(mut l: [f32; 16]) -> f32 {
    for half in [8, 4, 2, 1] {
        for i in 0..half {
            l[i] += l[i + half];
        }
    }
    l[0]
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

/// Sum of f(part of x) over the row.
#[inline(always)]
unsafe fn sum_squares<L: Lanes>(x: &[f32]) -> f32 {
    // SAFETY: parts of the row.
    unsafe {
        let mut acc = [L::splat(0.0); 4];
        let mut turn = 0;
        each_part!(x.len(), |i, n| {
            let v = L::load_part(x.as_ptr().wrapping_add(i), n, 0.0);
            acc[turn % 4] = v.fma(v, acc[turn % 4]);
            turn += 1;
        });
        acc[0].add(acc[1]).add(acc[2].add(acc[3])).sum()
    }
}

#[inline(always)]
unsafe fn rms_norm_body<L: Lanes>(x: *const f32, weight: &[f32], eps: f32, out: *mut f32) {
    // SAFETY: `x` and `out` have the length of `weight` (checked by the callers); in place, each part is
    // read before it is written.
    unsafe {
        let len = weight.len();
        let scale = 1.0 / (sum_squares::<L>(std::slice::from_raw_parts(x, len)) / len as f32 + eps).sqrt();
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
unsafe fn l2_norm_body<L: Lanes>(x: &mut [f32], eps: f32, factor: f32) {
    // SAFETY: parts of the row.
    unsafe {
        let scale = factor / sum_squares::<L>(x).sqrt().max(eps);
        each_part!(x.len(), |i, n| {
            let at = x.as_mut_ptr().wrapping_add(i);
            L::load_part(at, n, 0.0).mul(L::splat(scale)).store_part(at, n);
        });
    }
}

lanes! { unsafe fn l2_norm_on(x: &mut [f32], eps: f32, factor: f32) = l2_norm_body }

/// x = x / max(sqrt(sum x²), eps), the form of ggml.
pub fn l2_norm(x: &mut [f32], eps: f32) {
    l2_norm_scaled(x, eps, 1.0);
}

/// x = factor · x / max(sqrt(sum x²), eps).
pub fn l2_norm_scaled(x: &mut [f32], eps: f32, factor: f32) {
    // SAFETY: any slice will do.
    unsafe { l2_norm_on(x, eps, factor) }
}

#[inline(always)]
unsafe fn exp_body<L: Lanes>(x: f32) -> f32 {
    let mut lanes = [0f32; LANES];
    // SAFETY: sixteen floats.
    unsafe { L::splat(x).exp().store(lanes.as_mut_ptr()) };
    lanes[0]
}

lanes! { unsafe fn exp_on(x: f32) -> f32 = exp_body }

/// e^x with the bits of the vector form.
pub(super) fn exp(x: f32) -> f32 {
    // SAFETY: any number will do.
    unsafe { exp_on(x) }
}

/// 1 / (1 + e^−x).
pub fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + exp(-x))
}

/// x · sigmoid(x).
pub fn silu(x: f32) -> f32 {
    x / (1.0 + exp(-x))
}

/// ln(1 + e^x) in the stable form max(x, 0) + ln(1 + e^−|x|).
pub fn softplus(x: f32) -> f32 {
    x.max(0.0) + (-x.abs()).exp().ln_1p()
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
elementwise!(mul_sigmoid_body, mul_sigmoid_on, |x: L, y, c| x.mul(y.sigmoid()));
elementwise!(add_body, add_on, |x: L, y, c| x.add(y));
elementwise!(add_scaled_body, add_scaled_on, |x: L, y, c| c.fma(y, x));

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
    // SAFETY: the lengths are equal.
    unsafe { mul_sigmoid_on(x.as_ptr(), gate, 0.0, x.as_mut_ptr()) }
}

/// x = x + y.
pub fn add(x: &mut [f32], y: &[f32]) {
    assert_eq!(x.len(), y.len(), "rows of one length");
    // SAFETY: the lengths are equal.
    unsafe { add_on(x.as_ptr(), y, 0.0, x.as_mut_ptr()) }
}

/// x = x + factor · y.
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

#[inline(always)]
unsafe fn softmax_body<L: Lanes>(x: &mut [f32]) {
    // SAFETY: parts of the row.
    unsafe {
        let max = L::splat(-maximum_body::<L>(x));
        let mut total = L::splat(0.0);
        each_part!(x.len(), |i, n| {
            let at = x.as_mut_ptr().wrapping_add(i);
            L::load_part(at, n, 0.0).add(max).exp().store_part(at, n);
            total = total.add(L::load_part(at, n, 0.0));
        });
        let scale = L::splat(1.0 / total.sum());
        each_part!(x.len(), |i, n| {
            let at = x.as_mut_ptr().wrapping_add(i);
            L::load_part(at, n, 0.0).mul(scale).store_part(at, n);
        });
    }
}

lanes! { unsafe fn softmax_on(x: &mut [f32]) = softmax_body }

/// x = e^(x − max) / sum, in place.
pub fn softmax(x: &mut [f32]) {
    // SAFETY: any slice will do.
    unsafe { softmax_on(x) }
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

    #[test]
    fn exponentials_are_accurate_everywhere() {
        for i in -8730..=8830 {
            let x = i as f32 / 100.0;
            let want = f64::from(x).exp();
            assert!((f64::from(exp(x)) / want - 1.0).abs() < 3e-7, "{x}");
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
