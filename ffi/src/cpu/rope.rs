//! Rotary position embedding, NeoX pairs (i, i + dims/2) on the first `dims` values of a head. For text,
//! interleaved M-RoPE has equal positions in every section and equals this. θ_i = position · base^(−2i/dims), in
//! f32 by repeated multiplication as the library does. Rounded otherwise, the angles of late positions would
//! differ from the library's more than everything else together.

use super::lanes::{LANES, Lanes, lanes};

/// How angles are changed so that positions beyond those of the training can be used.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Stretch {
    #[default]
    None,
    /// Every angle is divided; what is rotated becomes so many times as large.
    Linear { factor: f32, magnitude: f32 },
    /// Angles of pairs that turn less than `slow` times within `trained` positions are divided, those that turn more than
    /// `fast` times stay, between them is a ramp. What is rotated becomes larger by 0.1·ln `factor`, and `magnitude` times as large.
    /// Source: Peng et al., "YaRN: Efficient Context Window Extension of Large Language Models" (2023).
    Yarn { factor: f32, trained: usize, fast: f32, slow: f32, magnitude: f32 },
}

/// The frequencies of a model.
#[derive(Clone, Debug)]
pub struct Rope {
    dims: usize,
    /// base^(−2/dims).
    ratio: f32,
    /// What angles are multiplied by, and the share of each pair's that is not; none: of no pair.
    scale: f32,
    kept: Vec<f32>,
    magnitude: f32,
}

/// Cosines and sines of one position, `dims/2` each.
#[derive(Clone, Debug, Default)]
pub struct Angles {
    cos: Vec<f32>,
    sin: Vec<f32>,
}

impl Rope {
    /// Rotation of the first `dims` (even) values with frequencies from `base`.
    pub fn new(dims: usize, base: f64, stretch: Stretch) -> Rope {
        let ratio = (base as f32).powf(-2.0 / dims as f32);
        let (scale, kept, magnitude) = match stretch {
            Stretch::None => (1.0, Vec::new(), 1.0),
            Stretch::Linear { factor, magnitude } => (1.0 / factor, Vec::new(), magnitude),
            Stretch::Yarn { factor, trained, fast, slow, magnitude } => {
                let kept = ramp(dims, base as f32, trained as f32, (fast, slow));
                (1.0 / factor, kept, magnitude * (1.0 + 0.1 * factor.ln()))
            }
        };
        Rope { dims, ratio, scale, kept, magnitude }
    }

    /// The angles of `position`, into reusable storage.
    pub fn angles(&self, position: usize, out: &mut Angles) {
        out.cos.clear();
        out.sin.clear();
        let mut theta = position as f32;
        for i in 0..self.dims / 2 {
            let scaled = theta * self.scale;
            let angle = self.kept.get(i).map_or(scaled, |kept| scaled * (1.0 - kept) + theta * kept);
            out.cos.push(angle.cos() * self.magnitude);
            out.sin.push(angle.sin() * self.magnitude);
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

impl Angles {
    /// Cosine and sine of each pair.
    pub fn pairs(&self) -> impl Iterator<Item = (f32, f32)> {
        self.cos.iter().copied().zip(self.sin.iter().copied())
    }
}

/// The share of each pair's angle that stays.
fn ramp(dims: usize, base: f32, trained: f32, (fast, slow): (f32, f32)) -> Vec<f32> {
    // The pair that turns so many times within the positions of the training.
    let pair = |turns: f32| dims as f32 * (trained / (turns * 2.0 * std::f32::consts::PI)).ln() / (2.0 * base.ln());
    let (low, high) = (pair(fast).floor().max(0.0), pair(slow).ceil().min(dims as f32 - 1.0));
    let at = |i: usize| (i as f32 - low) / (high - low).max(0.001);
    (0..dims / 2).map(|i| 1.0 - at(i).clamp(0.0, 1.0)).collect()
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
        let rope = Rope::new(8, 1e4, Stretch::None);
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

    #[test]
    fn stretched_angles_are_those_of_their_definitions() {
        let (dims, base, position) = (16, 1e4_f64, 9_000);
        let at = |stretch| {
            let mut angles = Angles::default();
            Rope::new(dims, base, stretch).angles(position, &mut angles);
            angles.pairs().collect::<Vec<_>>()
        };
        let turns = |i: usize| position as f64 * base.powf(-2.0 * i as f64 / dims as f64);
        for (i, (cos, sin)) in at(Stretch::Linear { factor: 8.0, magnitude: 1.5 }).into_iter().enumerate() {
            let angle = turns(i) / 8.0;
            assert!(
                (f64::from(cos) - 1.5 * angle.cos()).abs() < 2e-3 && (f64::from(sin) - 1.5 * angle.sin()).abs() < 2e-3
            );
        }
        let yarn = at(Stretch::Yarn { factor: 4.0, trained: 2_048, fast: 32.0, slow: 1.0, magnitude: 1.0 });
        // The pairs that turn 32 times and once are number 2.02 and 5.03: those below the first stay, those behind the
        // second are divided.
        let size = 1.0 + 0.1 * 4.0_f64.ln();
        for (i, (cos, sin)) in yarn.into_iter().enumerate() {
            let stays = 1.0 - ((i as f64 - 2.0) / 4.0).clamp(0.0, 1.0);
            let angle = turns(i) * (stays + (1.0 - stays) / 4.0);
            let found = (f64::from(cos) / size, f64::from(sin) / size);
            assert!(
                (found.0 - angle.cos()).abs() < 2e-3 && (found.1 - angle.sin()).abs() < 2e-3,
                "pair {i}: {found:?}"
            );
        }
    }
}
