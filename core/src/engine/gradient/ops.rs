//! Small operations of the backward pass, a row at a time: each function beside the formula it differentiates. What is
//! inlined runs in wide registers where a loop of it stands under `wide`.

use chimere_ffi::cpu::{Wide, wide};

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
    // As a tree: one after another they would wait for each other.
    for half in [8, 4, 2, 1] {
        (0..half).for_each(|i| lanes[i] += lanes[i + half]);
    }
    lanes[0] + rest
}

/// y += factor·x.
#[inline(always)]
pub(super) fn axpy(y: &mut [f32], factor: f32, x: &[f32]) {
    for (y, x) in y.iter_mut().zip(x) {
        *y += factor * x;
    }
}

/// Backward of y = w·x·r with r = (mean(x²) + eps)^−½: dx = r·w·dy − x·(r³/n)·Σ dy·w·x, added to `dx`.
pub(super) fn rms_norm_back(x: &[f32], weight: &[f32], eps: f32, dy: &[f32], dx: &mut [f32]) {
    wide(RmsNormBack { x, weight, eps, dy, dx });
}

struct RmsNormBack<'a> {
    x: &'a [f32],
    weight: &'a [f32],
    eps: f32,
    dy: &'a [f32],
    dx: &'a mut [f32],
}

impl Wide for RmsNormBack<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let n = self.x.len() as f32;
        let r = (dot(self.x, self.x) / n + self.eps).sqrt().recip();
        let weighted: Vec<f32> = self.weight.iter().zip(self.dy).map(|(w, dy)| w * dy).collect();
        let back = r * r * r / n * dot(&weighted, self.x);
        for ((dx, x), dy) in self.dx.iter_mut().zip(self.x).zip(&weighted) {
            *dx += r * dy - back * x;
        }
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
