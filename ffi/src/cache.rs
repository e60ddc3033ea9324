//! What a sequence's keys, values and recurrent states are kept as, and the blocks of 32 in plain arithmetic.
//! On a card `kernels/blocks.cuh` gives the same numbers.

use std::fmt;
use std::str::FromStr;

use half::{bf16, f16};

/// Values of a block.
const BLOCK: usize = 32;

/// How cached keys and values are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KvType {
    F32,
    F16,
    /// Keys as q8_0 of mixed heads ([`mix_head`]), values as q4_0. Read as halves.
    Q8Q4,
}

/// How recurrent states are kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StateType {
    #[default]
    F32,
    /// Rounded behind every token.
    Bf16,
}

/// What was chosen of both.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheTypes {
    /// Absent: what suits the device.
    pub kv: Option<KvType>,
    pub state: StateType,
}

impl KvType {
    pub const ALL: [KvType; 3] = [KvType::F32, KvType::F16, KvType::Q8Q4];

    pub const fn name(self) -> &'static str {
        match self {
            KvType::F32 => "f32",
            KvType::F16 => "f16",
            KvType::Q8Q4 => "q8_0/q4_0",
        }
    }

    /// Bytes of so many keys, and of so many values; a multiple of 32 of them.
    pub const fn bytes(self, values: usize) -> (usize, usize) {
        match self {
            KvType::F32 => (4 * values, 4 * values),
            KvType::F16 => (2 * values, 2 * values),
            KvType::Q8Q4 => (values / BLOCK * 34, values / BLOCK * 18),
        }
    }
}

impl StateType {
    pub const ALL: [StateType; 2] = [StateType::F32, StateType::Bf16];

    pub const fn name(self) -> &'static str {
        match self {
            StateType::F32 => "f32",
            StateType::Bf16 => "bf16",
        }
    }

    /// Bytes of a value.
    pub const fn bytes(self) -> usize {
        match self {
            StateType::F32 => 4,
            StateType::Bf16 => 2,
        }
    }
}

impl fmt::Display for KvType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl fmt::Display for StateType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for KvType {
    type Err = String;

    fn from_str(name: &str) -> Result<KvType, String> {
        let found = KvType::ALL.into_iter().find(|t| t.name() == name);
        found.ok_or_else(|| "keys and values are kept as f32, f16 or q8_0/q4_0".to_owned())
    }
}

impl FromStr for StateType {
    type Err = String;

    fn from_str(name: &str) -> Result<StateType, String> {
        let found = StateType::ALL.into_iter().find(|t| t.name() == name);
        found.ok_or_else(|| "recurrent states are kept as f32 or bf16".to_owned())
    }
}

/// Hadamard's matrix times a head, over the largest power of two that divides it: spreads over all values what one has
/// too much, and leaves the products of two heads what they were.
pub fn mix_head(x: &mut [f32]) {
    let size = 1 << x.len().trailing_zeros();
    let scale = 1.0 / (size as f32).sqrt();
    for part in x.chunks_exact_mut(size) {
        let mut step = 1;
        while step < size {
            for pair in part.chunks_exact_mut(2 * step) {
                let (low, high) = pair.split_at_mut(step);
                for (a, b) in low.iter_mut().zip(high) {
                    (*a, *b) = (*a + *b, *a - *b);
                }
            }
            step *= 2;
        }
        part.iter_mut().for_each(|v| *v *= scale);
    }
}

/// A block as the reader of a cache sees it: code times scale, rounded to a half.
fn seen(scale: f32, code: f32) -> f32 {
    f16::from_f32(f16::from_f32(scale).to_f32() * code).to_f32()
}

/// What is left of a mixed key as q8_0.
pub fn as_q8_0(x: &mut [f32]) {
    for block in x.chunks_mut(BLOCK) {
        let top = block.iter().fold(0.0_f32, |m, v| m.max(v.abs()));
        let by = if top > 0.0 { 127.0 / top } else { 0.0 };
        block.iter_mut().for_each(|v| *v = seen(top / 127.0, (*v * by).round()));
    }
}

/// What is left of a value as q4_0: the one that is farthest from zero becomes -8, of two that are the positive one.
pub fn as_q4_0(x: &mut [f32]) {
    for block in x.chunks_mut(BLOCK) {
        let high = block.iter().fold(f32::MIN, |m, v| m.max(*v));
        let low = block.iter().fold(f32::MAX, |m, v| m.min(*v));
        let top = if high >= -low { high } else { low };
        let by = if top == 0.0 { 0.0 } else { -8.0 / top };
        block.iter_mut().for_each(|v| *v = seen(top / -8.0, v.mul_add(by, 8.5).min(15.0).trunc() - 8.0));
    }
}

/// What is left of a state as bf16.
pub fn as_bf16(state: &mut [f32]) {
    state.iter_mut().for_each(|v| *v = bf16::from_f32(*v).to_f32());
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samples::Random;

    #[test]
    fn mixing_twice_is_the_head_again_and_products_stay() {
        for dim in [32, 96, 128, 256] {
            let (a, b) = (Random(1).normals(dim), Random(2).normals(dim));
            let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| f64::from(a * b)).sum::<f64>();
            let (mut ma, mut mb) = (a.clone(), b.clone());
            mix_head(&mut ma);
            mix_head(&mut mb);
            assert!((dot(&a, &b) - dot(&ma, &mb)).abs() < 1e-4);
            assert!(ma.iter().zip(&a).any(|(m, a)| (m - a).abs() > 0.1));
            mix_head(&mut ma);
            assert!(ma.iter().zip(&a).all(|(m, a)| (m - a).abs() < 1e-5));
        }
    }

    #[test]
    fn blocks_are_as_near_as_their_codes() {
        let x = Random(3).normals(256);
        let (mut eight, mut four) = (x.clone(), x.clone());
        as_q8_0(&mut eight);
        as_q4_0(&mut four);
        for (at, block) in x.chunks(BLOCK).enumerate() {
            let top = block.iter().fold(0.0_f32, |m, v| m.max(v.abs()));
            let far = |y: &[f32]| block.iter().zip(&y[BLOCK * at..]).fold(0.0_f32, |m, (a, b)| m.max((a - b).abs()));
            // Half a step of rounding, and one where the other sign has no code for the largest.
            assert!(far(&eight) <= top / 127.0 * 0.51 + 1e-3 * top && far(&four) <= top / 8.0 * 1.01, "{at}");
        }
        let mut zeros = [0.0; 64];
        as_q8_0(&mut zeros);
        as_q4_0(&mut zeros);
        assert!(zeros.iter().all(|v| *v == 0.0));
        assert_eq!((KvType::Q8Q4.bytes(256), KvType::F16.bytes(256)), ((272, 144), (512, 512)));
    }

    #[test]
    fn names_are_read_back() {
        assert!(KvType::ALL.into_iter().all(|t| t.to_string().parse() == Ok(t)));
        assert!(StateType::ALL.into_iter().all(|t| t.to_string().parse() == Ok(t)));
        assert!("q4_0".parse::<KvType>().unwrap_err().contains("q8_0/q4_0") && "f16".parse::<StateType>().is_err());
    }
}
