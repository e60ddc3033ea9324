//! Adapters of random numbers: a testing aid that moves a model by a chosen amount and teaches it nothing.

use super::{Adapter, AdapterError, BaseModel, Factors, RANK_MAX, block_of, target_of};

/// How to make one.
#[derive(Clone, Debug)]
pub struct Recipe {
    pub rank: usize,
    /// Root mean square of the values of (alpha / rank)·B·A, relative to 1/√inputs, the usual size of a weight.
    pub scale: f32,
    pub seed: u64,
    /// Which matrices, as in [`super::TARGETS`] (`output` for the head); empty = all.
    pub targets: Vec<String>,
    /// Only the last so many layers; 0 = all.
    pub last_layers: usize,
}

impl Recipe {
    /// Fills A and B with numbers that depend on seed, rank and shapes alone.
    pub fn make(&self, base: &BaseModel) -> Result<Adapter, AdapterError> {
        let wrong = |key: &str, found: String, wanted: &str| AdapterError::Value {
            key: key.into(),
            found,
            wanted: wanted.into(),
        };
        if self.rank == 0 || self.rank > RANK_MAX {
            return Err(wrong("rank", self.rank.to_string(), "between 1 and 64"));
        }
        if !self.scale.is_finite() {
            return Err(wrong("scale", self.scale.to_string(), "a finite number"));
        }
        let blocks = base.matrices().filter_map(|(name, _)| block_of(name)).max().map_or(0, |b| b + 1);
        let first = if self.last_layers == 0 { 0 } else { blocks.saturating_sub(self.last_layers) };
        let wanted = |name: &str| {
            let target = target_of(name).unwrap_or_default();
            let chosen = self.targets.is_empty() || self.targets.iter().any(|t| t == target);
            chosen && block_of(name).is_none_or(|b| b >= first)
        };
        let mut random = Uniform(self.seed ^ 0x6c6f_7261);
        let mut factors = Vec::new();
        for (name, shape) in base.matrices().filter(|(name, _)| wanted(name)) {
            // Σ over the rank of products of two such values has the wanted size.
            let (a, b) = ((shape.inputs as f32).sqrt().recip(), self.scale / (self.rank as f32).sqrt());
            let mut fill = |n: usize, size: f32| (0..n).map(|_| size * random.next()).collect::<Vec<f32>>();
            factors.push(Factors {
                tensor: name.to_owned(),
                shape,
                a: fill(shape.experts * self.rank * shape.inputs, a),
                b: fill(shape.experts * self.rank * shape.outputs, b),
            });
        }
        if factors.is_empty() {
            return Err(AdapterError::Empty);
        }
        Ok(Adapter {
            architecture: base.architecture.clone(),
            base_hash: base.hash.clone(),
            rank: self.rank,
            alpha: self.rank as f32,
            factors,
        })
    }
}

/// Numbers of variance 1, uniform, from SplitMix64 (Steele, Lea and Flood, 2014).
struct Uniform(u64);

impl Uniform {
    fn next(&mut self) -> f32 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let z = (self.0 ^ self.0 >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ z >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        let bits = (z ^ z >> 31) >> 40;
        (bits as f32 / (1u32 << 23) as f32 - 1.0) * 3f32.sqrt()
    }
}
