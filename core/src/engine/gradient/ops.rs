//! Small operations of the backward pass, a row at a time: each function beside the formula it differentiates. All of
//! them are inlined, so that a loop of them under `wide` runs in wide registers.

/// Lanes of a sum, so that it runs in vector registers; the order of a sum is the same on every machine.
const LANES: usize = 16;

/// Σ aᵢ·bᵢ.
#[inline(always)]
pub(super) fn dot(a: &[f32], b: &[f32]) -> f32 {
    let mut lanes = [0.0_f32; LANES];
    let (xs, ys) = (a.chunks_exact(LANES), b.chunks_exact(LANES));
    let rest: f32 = xs.remainder().iter().zip(ys.remainder()).map(|(x, y)| x * y).sum();
    for (x, y) in xs.zip(ys) {
        for ((lane, x), y) in lanes.iter_mut().zip(x).zip(y) {
            *lane += x * y;
        }
    }
    lanes.iter().sum::<f32>() + rest
}

/// y += factor·x.
#[inline(always)]
pub(super) fn axpy(y: &mut [f32], factor: f32, x: &[f32]) {
    for (y, x) in y.iter_mut().zip(x) {
        *y += factor * x;
    }
}

/// Backward of y = w·x·r with r = (mean(x²) + eps)^−½: dx = r·w·dy − x·(r³/n)·Σ dy·w·x, added to `dx`.
#[inline(always)]
pub(super) fn rms_norm_back(x: &[f32], weight: &[f32], eps: f32, dy: &[f32], dx: &mut [f32]) {
    let n = x.len() as f32;
    let r = (dot(x, x) / n + eps).sqrt().recip();
    let sum: f32 = x.iter().zip(weight).zip(dy).map(|((x, w), dy)| x * w * dy).sum();
    let back = r * r * r / n * sum;
    for (((dx, x), w), dy) in dx.iter_mut().zip(x).zip(weight).zip(dy) {
        *dx += r * w * dy - back * x;
    }
}

/// Backward of y = x·r with r = 1 / max(|x|, eps): dx = r·dy − x·r³·Σ dy·x, added to `dx`; below eps r is constant.
#[inline(always)]
pub(super) fn l2_norm_back(x: &[f32], eps: f32, dy: &[f32], dx: &mut [f32]) {
    let length = dot(x, x).sqrt();
    let r = length.max(eps).recip();
    let back = if length > eps { r * r * r * dot(dy, x) } else { 0.0 };
    for ((dx, x), dy) in dx.iter_mut().zip(x).zip(dy) {
        *dx += r * dy - back * x;
    }
}

/// 1 / (1 + e^−x).
#[inline(always)]
pub(super) fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + (-x).exp())
}

/// d silu(x)/dx = s·(1 + x·(1 − s)), s = sigmoid(x).
#[inline(always)]
pub(super) fn silu_slope(x: f32) -> f32 {
    let s = sigmoid(x);
    s * (1.0 + x * (1.0 - s))
}

/// Backward of y = silu(gate)·up: gives (dgate, dup).
#[inline(always)]
pub(super) fn swiglu_back(gate: f32, up: f32, dy: f32) -> (f32, f32) {
    (dy * up * silu_slope(gate), dy * gate * sigmoid(gate))
}
