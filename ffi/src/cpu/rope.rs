//! Rotary position embedding, NeoX pairs (i, i + dims/2) on the first `dims` values of a head.
//! For text, interleaved M-RoPE has equal positions in every section and equals this.
//! θ_i = base^(−2i/dims), computed in f64 and rounded once.

/// The frequencies of a model.
#[derive(Clone, Debug)]
pub struct Rope {
    dims: usize,
    theta: Vec<f64>,
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
        let theta = (0..dims / 2).map(|i| base.powf(-2.0 * i as f64 / dims as f64)).collect();
        Rope { dims, theta }
    }

    /// The angles of `position`, into reusable storage.
    pub fn angles(&self, position: usize, out: &mut Angles) {
        out.cos.clear();
        out.sin.clear();
        for theta in &self.theta {
            let (sin, cos) = (position as f64 * theta).sin_cos();
            out.cos.push(cos as f32);
            out.sin.push(sin as f32);
        }
    }

    /// Rotates one head in place; values past `dims` stay.
    pub fn apply(&self, head: &mut [f32], angles: &Angles) {
        let (low, high) = head[..self.dims].split_at_mut(self.dims / 2);
        for (((a, b), c), s) in low.iter_mut().zip(high).zip(&angles.cos).zip(&angles.sin) {
            (*a, *b) = (*a * c - *b * s, *a * s + *b * c);
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
        rope.angles(3000, &mut angles);
        let mut head: Vec<f32> = (1..=10).map(|v| v as f32).collect();
        rope.apply(&mut head, &angles);
        for i in 0..4 {
            let a = 3000.0 * 1e4f64.powf(-(i as f64) / 4.0);
            let (x, y) = ((i + 1) as f64, (i + 5) as f64);
            assert!((f64::from(head[i]) - (x * a.cos() - y * a.sin())).abs() < 1e-5);
            assert!((f64::from(head[i + 4]) - (x * a.sin() + y * a.cos())).abs() < 1e-5);
        }
        assert_eq!(head[8..], [9.0, 10.0]);
    }
}
