//! Row operations: norms, gates and activations. Serial; a row is a few kilobytes at most.
//! Shapes are in the arguments; sums run in sixteen lanes and one fixed order.

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

/// Declares a function with a body compiled twice, once for AVX-512/AVX2 processors and once plain.
macro_rules! fast {
    ($(#[$doc:meta])* $vis:vis fn $name:ident($($arg:ident: $ty:ty),* $(,)?) $(-> $ret:ty)? $body:block) => {
        $(#[$doc])*
        $vis fn $name($($arg: $ty),*) $(-> $ret)? {
            #[inline(always)]
            fn body($($arg: $ty),*) $(-> $ret)? $body
            #[cfg(target_arch = "x86_64")]
            {
                #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,fma,avx2,f16c")]
                fn wide($($arg: $ty),*) $(-> $ret)? { body($($arg),*) }
                #[target_feature(enable = "fma,avx2,f16c")]
                fn middle($($arg: $ty),*) $(-> $ret)? { body($($arg),*) }
                if $crate::cpu::isa::avx512() {
                    // SAFETY: the processor has these instruction sets.
                    return unsafe { wide($($arg),*) };
                }
                if $crate::cpu::isa::avx2() {
                    // SAFETY: the processor has these instruction sets.
                    return unsafe { middle($($arg),*) };
                }
            }
            body($($arg),*)
        }
    };
}
#[allow(unused_imports)] // other modules of this folder take it from here
pub(super) use fast;

fast! {
    /// Sum of squares.
    pub fn sum_squares(x: &[f32]) -> f32 {
        let (chunks, rest) = x.as_chunks::<16>();
        let mut lanes = [0f32; 16];
        for c in chunks {
            for (l, v) in lanes.iter_mut().zip(c) {
                *l = v.mul_add(*v, *l);
            }
        }
        for (l, v) in lanes.iter_mut().zip(rest) {
            *l = v.mul_add(*v, *l);
        }
        lane_sum(lanes)
    }
}

fast! {
    /// out = x / sqrt(mean(x²) + eps) · weight. All slices have the same length.
    pub fn rms_norm_into(x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) {
        let scale = 1.0 / (sum_squares(x) / x.len() as f32 + eps).sqrt();
        for ((o, v), w) in out.iter_mut().zip(x).zip(weight) {
            *o = v * scale * w;
        }
    }
}

fast! {
    /// x = x / sqrt(mean(x²) + eps) · weight.
    pub fn rms_norm(x: &mut [f32], weight: &[f32], eps: f32) {
        let scale = 1.0 / (sum_squares(x) / x.len() as f32 + eps).sqrt();
        for (v, w) in x.iter_mut().zip(weight) {
            *v = *v * scale * w;
        }
    }
}

fast! {
    /// x = x / max(sqrt(sum x²), eps), the form of ggml.
    pub fn l2_norm(x: &mut [f32], eps: f32) {
        let scale = 1.0 / sum_squares(x).sqrt().max(eps);
        for v in x.iter_mut() {
            *v *= scale;
        }
    }
}

/// e^x to about one unit in the last place; written so that the compiler makes vectors of it.
/// Source: range reduction by ln 2 in two parts and the Cephes polynomial of degree 6.
#[inline(always)]
pub(super) fn exp(x: f32) -> f32 {
    let x = x.clamp(-87.3, 88.7);
    let n = x.mul_add(std::f32::consts::LOG2_E, 12_582_912.0) - 12_582_912.0;
    let r = n.mul_add(-0.693_359_4, x);
    let r = n.mul_add(2.121_944_4e-4, r);
    let mut p = 1.987_569_1e-4f32;
    for c in [1.398_199_9e-3f32, 8.333_452e-3, 4.166_579_6e-2, 1.666_666_5e-1, 0.5] {
        p = p.mul_add(r, c);
    }
    let y = p.mul_add(r * r, r) + 1.0;
    // n is in -126..=128: two factors keep each exponent in range.
    let half = (n as i32) >> 1;
    let a = f32::from_bits(((half + 127) as u32) << 23);
    let b = f32::from_bits((n as i32 - half + 127) as u32 * (1 << 23));
    y * a * b
}

/// 1 / (1 + e^−x).
#[inline(always)]
pub fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + exp(-x))
}

/// x · sigmoid(x).
#[inline(always)]
pub fn silu(x: f32) -> f32 {
    x / (1.0 + exp(-x))
}

/// ln(1 + e^x) in the stable form max(x, 0) + ln(1 + e^−|x|).
pub fn softplus(x: f32) -> f32 {
    x.max(0.0) + (-x.abs()).exp().ln_1p()
}

fast! {
    /// out = silu(gate) · up.
    pub fn silu_mul(gate: &[f32], up: &[f32], out: &mut [f32]) {
        for ((o, g), u) in out.iter_mut().zip(gate).zip(up) {
            *o = silu(*g) * u;
        }
    }
}

fast! {
    /// x = silu(x).
    pub fn silu_row(x: &mut [f32]) {
        for v in x.iter_mut() {
            *v = silu(*v);
        }
    }
}

fast! {
    /// x = x · sigmoid(gate).
    pub fn sigmoid_mul(x: &mut [f32], gate: &[f32]) {
        for (v, g) in x.iter_mut().zip(gate) {
            *v *= sigmoid(*g);
        }
    }
}

fast! {
    /// x = x + y.
    pub fn add(x: &mut [f32], y: &[f32]) {
        for (v, y) in x.iter_mut().zip(y) {
            *v += y;
        }
    }
}

fast! {
    /// x = x + factor · y.
    pub fn add_scaled(x: &mut [f32], y: &[f32], factor: f32) {
        for (v, y) in x.iter_mut().zip(y) {
            *v = factor.mul_add(*y, *v);
        }
    }
}

fast! {
    /// Largest value; −∞ for an empty row.
    pub fn maximum(x: &[f32]) -> f32 {
        let (chunks, rest) = x.as_chunks::<16>();
        let mut lanes = [f32::NEG_INFINITY; 16];
        for c in chunks {
            for (l, v) in lanes.iter_mut().zip(c) {
                *l = if *v > *l { *v } else { *l };
            }
        }
        rest.iter().chain(&lanes).fold(f32::NEG_INFINITY, |a, b| a.max(*b))
    }
}

fast! {
    /// x = e^(x − max) / sum, in place.
    pub fn softmax(x: &mut [f32]) {
        let max = maximum(x);
        let mut lanes = [0f32; 16];
        let (chunks, rest) = x.as_chunks_mut::<16>();
        for c in chunks {
            for (l, v) in lanes.iter_mut().zip(c) {
                *v = exp(*v - max);
                *l += *v;
            }
        }
        for (l, v) in lanes.iter_mut().zip(rest) {
            *v = exp(*v - max);
            *l += *v;
        }
        let scale = 1.0 / lane_sum(lanes);
        for v in x.iter_mut() {
            *v *= scale;
        }
    }
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
        for i in -8730..=8870 {
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
