//! LoRA adapters: what one holds, what base model it fits, and the file it comes from.
//!
//! y += (alpha / rank) · B·(A·x) for each matrix that the adapter names. An adapter is input from outside like a
//! model file. Names, shapes, rank and values are checked against the base model before a backend sees any of it. A
//! digest inside the file covers everything that has a meaning.

mod candidate;
mod file;
mod random;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::model::weights::FUSED_GATE_UP;
use crate::gguf::Gguf;
pub use candidate::{Candidate, Sides};
pub use file::{read, sha256_of};
pub use random::Recipe;

/// Largest rank.
pub const RANK_MAX: usize = 64;
/// Largest adapter file, bytes.
pub const FILE_BYTES_MAX: u64 = 256 << 20;
/// Largest alpha.
pub const ALPHA_MAX: f32 = 65_536.0;

/// Matrices that an adapter may change, without `blk.N.` and `.weight`. Not among them: the router and the gate of
/// the shared expert, where a small change sends tokens to other experts.
pub const TARGETS: [&str; 15] = [
    "attn_q",
    "attn_k",
    "attn_v",
    "attn_output",
    "attn_qkv",
    "attn_gate",
    "ssm_alpha",
    "ssm_beta",
    "ssm_out",
    "ffn_gate_shexp",
    "ffn_up_shexp",
    "ffn_down_shexp",
    "ffn_gate_exps",
    "ffn_up_exps",
    "ffn_down_exps",
];
/// The output matrix, which an adapter may change where the file has one of its own.
pub use super::model::weights::HEAD;

#[derive(Debug, thiserror::Error)]
pub enum AdapterError {
    #[error("cannot read the adapter {path}: {source}")]
    Read { path: String, source: std::io::Error },
    #[error("the adapter has {found} bytes, over the limit of {FILE_BYTES_MAX}")]
    TooLarge { found: u64 },
    #[error("the adapter is no valid GGUF file: {0}")]
    File(#[from] crate::gguf::Error),
    #[error("the adapter's {key} is {found}, but it must be {wanted}")]
    Value { key: String, found: String, wanted: String },
    #[error("the adapter was made for the base model {found}, but this one is {wanted}: train it anew")]
    Base { found: String, wanted: String },
    #[error("the adapter's tensor \"{name}\" cannot be used: {reason}")]
    Tensor { name: String, reason: String },
    #[error("the adapter names no matrix")]
    Empty,
    #[error("the adapter's content has the digest {found}, but the file says {wanted}: it was changed or damaged")]
    Digest { found: String, wanted: String },
}

/// Extents of a matrix, or of a stack of them: one for each expert.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    pub inputs: usize,
    pub outputs: usize,
    /// 1 for a plain matrix.
    pub experts: usize,
}

impl Shape {
    /// Values of A and B together at this rank.
    pub fn parameters(&self, rank: usize) -> usize {
        self.experts * rank * (self.inputs + self.outputs)
    }
}

/// What adapters must fit: the matrices of one base model that may be changed.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct BaseModel {
    pub architecture: String,
    /// As the engine names its weights.
    pub hash: String,
    matrices: BTreeMap<String, Shape>,
}

impl BaseModel {
    /// Reads the shapes from the header of a model file. Prediction blocks are left out: no reply is made by them.
    pub fn new(header: &Gguf, hash: &str) -> BaseModel {
        let architecture = header.architecture().unwrap_or_default().to_owned();
        let mut matrices = BTreeMap::new();
        for tensor in header.tensors() {
            let block = block_of(&tensor.name);
            if block.is_some_and(|b| header.find(&format!("blk.{b}.nextn.eh_proj.weight")).is_some()) {
                continue;
            }
            let Some(shape) = shape_of(tensor.dims()) else { continue };
            if is_target(&tensor.name) {
                matrices.insert(tensor.name.clone(), shape);
            } else if let (Some(block), Some(FUSED_GATE_UP)) = (block, target_of(&tensor.name)) {
                // Each of the two is a matrix of its own here, as in files that have them apart.
                for name in ["ffn_gate_exps", "ffn_up_exps"] {
                    matrices
                        .insert(format!("blk.{block}.{name}.weight"), Shape { outputs: shape.outputs / 2, ..shape });
                }
            }
        }
        BaseModel { architecture, hash: hash.to_owned(), matrices }
    }

    /// Shape of the matrix `name`, if an adapter may change it.
    pub fn shape(&self, name: &str) -> Option<Shape> {
        self.matrices.get(name).copied()
    }

    /// Every matrix that an adapter may change, by name.
    pub fn matrices(&self) -> impl Iterator<Item = (&str, Shape)> {
        self.matrices.iter().map(|(name, shape)| (name.as_str(), *shape))
    }
}

/// `N` of `blk.N.…`.
pub fn block_of(name: &str) -> Option<usize> {
    name.strip_prefix("blk.")?.split_once('.')?.0.parse().ok()
}

/// `attn_q` of `blk.N.attn_q.weight`; `output` of the head.
pub fn target_of(name: &str) -> Option<&str> {
    let stem = name.strip_suffix(".weight")?;
    match stem.strip_prefix("blk.") {
        Some(rest) => rest.split_once('.').map(|(_, target)| target),
        None => Some(stem),
    }
}

fn is_target(name: &str) -> bool {
    name == HEAD || (block_of(name).is_some() && target_of(name).is_some_and(|t| TARGETS.contains(&t)))
}

fn shape_of(dims: &[u64]) -> Option<Shape> {
    let at = |i: usize| usize::try_from(dims.get(i).copied().unwrap_or(1)).ok();
    match dims.len() {
        2 | 3 => Some(Shape { inputs: at(0)?, outputs: at(1)?, experts: at(2)? }),
        _ => None,
    }
}

/// The two factors of one matrix.
#[derive(Clone, Debug, PartialEq)]
pub struct Factors {
    /// Name of the base matrix, e.g. `blk.3.attn_q.weight`.
    pub tensor: String,
    pub shape: Shape,
    /// `[experts][rank][inputs]`.
    pub a: Vec<f32>,
    /// `[experts][outputs][rank]`.
    pub b: Vec<f32>,
}

/// A whole adapter, checked against its base model.
#[derive(Clone, Debug, PartialEq)]
pub struct Adapter {
    pub architecture: String,
    pub base_hash: String,
    pub rank: usize,
    pub alpha: f32,
    /// By name, each matrix once.
    pub factors: Vec<Factors>,
}

/// What is told of an adapter.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct AdapterFacts {
    pub rank: usize,
    pub alpha: f32,
    pub tensors: usize,
    pub parameters: u64,
    /// Of the file, bytes.
    pub bytes: u64,
    /// Of the file.
    pub sha256: String,
    pub base_hash: String,
    /// √Σ‖(alpha / rank)·B·A‖²_F over all matrices: how far the weights are moved.
    pub norm: f64,
}

impl Adapter {
    /// What B·(A·x) is multiplied by.
    pub fn scale(&self) -> f32 {
        self.alpha / self.rank as f32
    }

    pub fn parameters(&self) -> u64 {
        self.factors.iter().map(|f| (f.a.len() + f.b.len()) as u64).sum()
    }

    /// See [`AdapterFacts::norm`].
    pub fn norm(&self) -> f64 {
        let squares: f64 = self.factors.iter().map(|f| f.square(self.rank)).sum();
        f64::from(self.scale()) * squares.sqrt()
    }

    /// SHA-256 over everything that has a meaning, in a fixed order.
    pub fn digest(&self) -> String {
        let mut hash = Sha256::new();
        let text = |hash: &mut Sha256, s: &str| {
            hash.update((s.len() as u64).to_le_bytes());
            hash.update(s);
        };
        text(&mut hash, "chimere.lora.1");
        text(&mut hash, &self.architecture);
        text(&mut hash, &self.base_hash);
        hash.update((self.rank as u64).to_le_bytes());
        hash.update(self.alpha.to_le_bytes());
        for f in &self.factors {
            text(&mut hash, &f.tensor);
            for extent in [f.shape.inputs, f.shape.outputs, f.shape.experts] {
                hash.update((extent as u64).to_le_bytes());
            }
            for values in [&f.a, &f.b] {
                hash.update(values.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<u8>>());
            }
        }
        hex(&hash.finalize())
    }

    pub fn facts(&self, bytes: u64, sha256: &str) -> AdapterFacts {
        AdapterFacts {
            rank: self.rank,
            alpha: self.alpha,
            tensors: self.factors.len(),
            parameters: self.parameters(),
            bytes,
            sha256: sha256.to_owned(),
            base_hash: self.base_hash.clone(),
            norm: self.norm(),
        }
    }
}

impl Factors {
    /// ‖B·A‖²_F = tr((BᵀB)(AAᵀ)), expert by expert.
    fn square(&self, rank: usize) -> f64 {
        let a = self.a.chunks_exact(rank * self.shape.inputs);
        let b = self.b.chunks_exact(rank * self.shape.outputs);
        a.zip(b).map(|(a, b)| square_of(a, b, rank, self.shape.inputs)).sum()
    }
}

fn square_of(a: &[f32], b: &[f32], rank: usize, inputs: usize) -> f64 {
    let row = |i: usize| &a[i * inputs..(i + 1) * inputs];
    let mut sum = 0.0;
    for i in 0..rank {
        for j in 0..rank {
            let left: f64 = b.chunks_exact(rank).map(|b| f64::from(b[i]) * f64::from(b[j])).sum();
            let right: f64 = row(i).iter().zip(row(j)).map(|(x, y)| f64::from(*x) * f64::from(*y)).sum();
            sum += left * right;
        }
    }
    sum
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}
