//! Rotary position embedding, NeoX pairs (i, i + dims/2) on the first `dims` values of a head.
//! For text, interleaved M-RoPE has equal positions in every section and equals this.
//! θ_i = position · base^(−2i/dims), in f32 by repeated multiplication as the library does: rounded otherwise, the
//! angles of late positions would differ from its by more than everything else together.

use super::lanes::{LANES, Lanes, lanes};

/// The frequencies of a model.
#[derive(Clone, Debug)]
pub struct Rope {
    dims: usize,
    /// base^(−2/dims).
    ratio: f32,
}

/// Cosines and sines of one position, `dims/2` each.
#[derive(Clone, Debug, Default)]
pub struct Angles {
    cos: Vec<f32>,
    sin: Vec<f32>,
}

impl Rope {
    /// Rotation of the first `dims` (even) values with frequencies from `base`.
    pub fn new(dims: usize, base: f64) -> Rope {
        Rope { dims, ratio: (base as f32).powf(-2.0 / dims as f32) }
    }

    /// The angles of `position`, into reusable storage.
    pub fn angles(&self, position: usize, out: &mut Angles) {
        out.cos.clear();
        out.sin.clear();
        let mut theta = position as f32;
        for _ in 0..self.dims / 2 {
            out.cos.push(theta.cos());
            out.sin.push(theta.sin());
            theta *= self.ratio;
        }
    }

    /// Rotates one head in place; values past `dims` stay.
    pub fn apply(&self, head: &mut [f32], angles: &Angles) {
        let (low, high) = head[..self.dims].split_at_mut(self.dims / 2);
        assert!(angles.cos.len() == low.len() && angles.sin.len() == low.len(), "angles of this rotation");
        // SAFETY: all four have dims/2 values.
        unsafe { rotate(low, high, &angles.cos, &angles.sin) }
    }
}

lanes! {
    /// (a, b) = (a·cos − b·sin, a·sin + b·cos), the products with b rounded before they are added.
    ///
    /// # Safety
    /// All slices have the length of `a`.
    unsafe fn rotate(a: &mut [f32], b: &mut [f32], cos: &[f32], sin: &[f32]) = rotate_body
}

#[inline(always)]
unsafe fn rotate_body<L: Lanes>(a: &mut [f32], b: &mut [f32], cos: &[f32], sin: &[f32]) {
    for i in (0..a.len()).step_by(LANES) {
        let n = LANES.min(a.len() - i);
        // SAFETY: n values from i on are inside every slice.
        unsafe {
            let part = |row: &[f32]| L::load_part(row.as_ptr().wrapping_add(i), n, 0.0);
            let (x, y, cos, sin) = (part(a), part(b), part(cos), part(sin));
            x.fma(cos, y.mul(sin).mul(L::splat(-1.0))).store_part(a.as_mut_ptr().wrapping_add(i), n);
            x.fma(sin, y.mul(cos)).store_part(b.as_mut_ptr().wrapping_add(i), n);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_rotate_by_their_angle_and_the_rest_stays() {
        let rope = Rope::new(8, 1e4);
        let mut angles = Angles::default();
        // Angles of 3,000 radians in f32 are good to about 2e-4.
        rope.angles(3000, &mut angles);
        let mut head: Vec<f32> = (1..=10).map(|v| v as f32).collect();
        rope.apply(&mut head, &angles);
        for i in 0..4 {
            let a = 3000.0 * 1e4f64.powf(-(i as f64) / 4.0);
            let (x, y) = ((i + 1) as f64, (i + 5) as f64);
            assert!((f64::from(head[i]) - (x * a.cos() - y * a.sin())).abs() < 2e-3);
            assert!((f64::from(head[i + 4]) - (x * a.sin() + y * a.cos())).abs() < 2e-3);
        }
        assert_eq!(head[8..], [9.0, 10.0]);
    }
}
