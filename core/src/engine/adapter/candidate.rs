//! A candidate adapter and its perturbations, for training without gradients. The engine keeps the parameters in f32.
//! It is told which directions to look along and how far to go.
//!
//! A direction is not stored: it is made again from its seed. Value j of tensor number t of direction s is +1 or −1, by
//! bit j mod 64 of `mix(s ⊕ mix(t + 1) + (j div 64 + 1)·0x9E3779B97F4A7C15)`. Tensors count in the order of their
//! names, A before B. The function mix is the finaliser of SplitMix64 (Steele, Lea and Flood, 2014). Any value can be
//! made without the ones before it, on any machine, in any order.

use serde::{Deserialize, Serialize};

use super::Adapter;

/// Which factors a direction moves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Sides {
    /// B alone: with A fixed, every perturbation is of the adapter's rank and half the values are made.
    #[default]
    Out,
    Both,
}

/// An adapter under way.
#[derive(Clone, Debug, PartialEq)]
pub struct Candidate {
    pub adapter: Adapter,
    pub sides: Sides,
}

impl Candidate {
    /// θ ← θ + by · z(seed), in place.
    pub fn step(&mut self, seed: u64, by: f32) {
        let both = self.sides == Sides::Both;
        for (t, factors) in self.adapter.factors.iter_mut().enumerate() {
            let t = 2 * t as u64;
            if both {
                add(&mut factors.a, seed, t, by);
            }
            add(&mut factors.b, seed, t + 1, by);
        }
    }

    /// The adapter at θ + size · z(seed).
    pub fn perturbed(&self, seed: u64, size: f32) -> Adapter {
        let mut other = self.clone();
        if size != 0.0 {
            other.step(seed, size);
        }
        other.adapter
    }
}

fn mix(z: u64) -> u64 {
    let z = (z ^ z >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let z = (z ^ z >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ z >> 31
}

fn add(values: &mut [f32], seed: u64, tensor: u64, by: f32) {
    let stream = seed ^ mix(tensor.wrapping_add(1));
    for (block, values) in values.chunks_mut(64).enumerate() {
        let signs = mix(stream.wrapping_add((block as u64 + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15)));
        for (bit, v) in values.iter_mut().enumerate() {
            *v += if signs >> bit & 1 == 1 { by } else { -by };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Factors, Shape};
    use super::*;

    fn candidate(sides: Sides) -> Candidate {
        let factors = |name: &str, inputs, outputs| Factors {
            tensor: name.to_owned(),
            shape: Shape { inputs, outputs, experts: 1 },
            a: vec![0.0; 4 * inputs],
            b: vec![0.0; 4 * outputs],
        };
        let list = vec![factors("blk.0.attn_k.weight", 500, 300), factors("blk.1.attn_k.weight", 500, 300)];
        let adapter =
            Adapter { architecture: String::new(), base_hash: String::new(), rank: 4, alpha: 4.0, factors: list };
        Candidate { adapter, sides }
    }

    #[test]
    fn a_step_and_its_opposite_leave_nothing() {
        let start = candidate(Sides::Both);
        let mut moved = start.clone();
        moved.step(7, 0.25);
        assert_eq!(moved.adapter, start.perturbed(7, 0.25));
        assert_ne!(moved, start);
        moved.step(8, 0.5);
        moved.step(7, -0.25);
        moved.step(8, -0.5);
        assert_eq!(moved, start);
    }

    #[test]
    fn directions_are_signs_without_correlation() {
        let values = |seed| {
            let adapter = candidate(Sides::Both).perturbed(seed, 1.0);
            adapter.factors.iter().flat_map(|f| f.a.iter().chain(&f.b).copied()).collect::<Vec<f32>>()
        };
        let (x, y) = (values(1), values(2));
        assert!(x.iter().all(|v| v.abs() == 1.0));
        let n = x.len() as f32;
        let bound = 4.0 * n.sqrt();
        let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f32>();
        assert!(x.iter().sum::<f32>().abs() < bound, "as many of each sign");
        assert!(dot(&x, &y).abs() < bound, "two seeds");
        assert!(dot(&x[1..], &x).abs() < bound, "neighbours");
        let half = x.len() / 2;
        assert!(dot(&x[..half], &x[half..]).abs() < bound, "two tensors of one shape");
        let one_sided = candidate(Sides::Out).perturbed(1, 1.0);
        assert!(one_sided.factors.iter().all(|f| f.a.iter().all(|v| *v == 0.0)));
        assert_eq!(one_sided.factors[1].b, candidate(Sides::Both).perturbed(1, 1.0).factors[1].b);
    }

    #[test]
    fn a_direction_is_the_documented_one() {
        // By the formula above, computed apart: tensor 1 (B of the first matrix), seed 5.
        let b = &candidate(Sides::Out).perturbed(5, 1.0).factors[0].b;
        let word = mix((5 ^ mix(2)).wrapping_add(0x9E37_79B9_7F4A_7C15));
        let second = mix((5 ^ mix(2)).wrapping_add(0x9E37_79B9_7F4A_7C15u64.wrapping_mul(2)));
        for j in 0..128 {
            let bit = if j < 64 { word >> j & 1 } else { second >> (j - 64) & 1 };
            assert_eq!(b[j], if bit == 1 { 1.0 } else { -1.0 });
        }
    }
}
