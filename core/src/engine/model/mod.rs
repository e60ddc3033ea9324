//! The model `qwen35moe` as every native backend sees it: hyper-parameters read and bounded once, weights by name and
//! shape, the forward pass as a list of stages, and the bookkeeping of open sequences. Plain data and arithmetic:
//! what a backend computes with (threads, devices, packed weights) lives in the backend.

pub mod hparams;
pub mod passes;
pub mod stages;
pub mod state;
#[cfg(test)]
pub(crate) mod tiny;
pub mod weights;

pub use hparams::HParams;

/// Whether a native backend can run the file: the architecture's name is ours and the tensors are laid out as it
/// says. Relatives under the same names (dense ones, fused projections) are left to the library.
pub fn is_native(file: &crate::gguf::Gguf) -> bool {
    let ours = file.architecture().is_ok_and(HParams::accepts);
    let has = |name: &str| file.find(name).is_some();
    ours && has("blk.0.ffn_gate_exps.weight") && (has("blk.0.ssm_alpha.weight") || has("blk.0.attn_q.weight"))
}

/// Why a file cannot be run as a `qwen35moe` model.
#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    #[error(transparent)]
    File(#[from] crate::gguf::Error),
    #[error("architecture \"{0}\" has no native implementation; use the llama backend for it")]
    Architecture(String),
    #[error("{key} is {found}, but it must be between {low} and {high}")]
    Limit { key: String, found: u64, low: u64, high: u64 },
    #[error("{key} is {found}, but it must be {wanted}")]
    Value { key: String, found: String, wanted: &'static str },
    #[error("the hyper-parameters contradict each other: {0}")]
    Contradiction(String),
    #[error("tensor \"{name}\" of shape {wanted:?} is missing; the file is not a complete model of this architecture")]
    Missing { name: String, wanted: Vec<u64> },
    #[error("tensor \"{name}\" has shape {found:?} where {wanted:?} is needed")]
    Shape { name: String, wanted: Vec<u64>, found: Vec<u64> },
    #[error("tensor \"{name}\" cannot be used: {reason}")]
    Tensor { name: String, reason: String },
}
