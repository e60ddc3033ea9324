//! Seeded random numbers and weights, for the checks of kernels.

use crate::DType;

/// A small, seeded generator (SplitMix64).
pub struct Random(pub u64);

impl Random {
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let z = (self.0 ^ self.0 >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ z >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ z >> 31
    }

    /// About normal, variance 1 (sum of four uniforms).
    pub fn normal(&mut self) -> f32 {
        let s: f32 = (0..4).map(|_| (self.bits() >> 40) as f32 / (1u32 << 24) as f32).sum();
        (s - 2.0) * 1.732
    }

    pub fn normals(&mut self, n: usize) -> Vec<f32> {
        (0..n).map(|_| self.normal()).collect()
    }
}

/// Where half-precision numbers stand in a block: offset of each.
fn halves(dtype: DType) -> &'static [usize] {
    match dtype {
        DType::Q2_K => &[80, 82],
        DType::Q3_K => &[108],
        DType::Q6_K => &[208],
        DType::Q4_1 | DType::Q5_1 | DType::Q4_K | DType::Q5_K => &[0, 2],
        DType::F32 | DType::F16 | DType::BF16 | DType::MXFP4 => &[],
        _ => &[0],
    }
}

/// Blocks of random bits with sane scales: every code of every format occurs.
pub fn weights(dtype: DType, values: usize, seed: u64) -> Vec<u8> {
    let mut rng = Random(seed.wrapping_add((dtype as u64) << 32));
    let mut out = Vec::new();
    for _ in 0..values / dtype.block_len() {
        let at = out.len();
        match dtype {
            DType::F32 => out.extend(rng.normal().to_le_bytes()),
            DType::F16 => out.extend(half::f16::from_f32(rng.normal()).to_le_bytes()),
            DType::BF16 => out.extend(half::bf16::from_f32(rng.normal()).to_le_bytes()),
            _ => out.extend((0..dtype.block_bytes()).map(|_| rng.bits() as u8)),
        }
        for h in halves(dtype) {
            let d = half::f16::from_f32(rng.normal() * 0.01);
            out[at + h..at + h + 2].copy_from_slice(&d.to_le_bytes());
        }
        if dtype == DType::MXFP4 {
            out[at] = 120 + (rng.bits() % 8) as u8;
        }
    }
    out
}
