//! The models `qwen35moe` and `qwen35` as every native backend sees them. Each has hyper-parameters, read and bounded once, and weights
//! by name and shape. There is the forward pass as a list of stages, and the bookkeeping of open sequences. All of it
//! is plain data and arithmetic: what a backend computes with (threads, devices, packed weights) lives in the
//! backend.

mod check;
pub mod hparams;
pub mod passes;
pub mod stages;
pub mod state;
#[cfg(test)]
pub(crate) mod tiny;
pub mod weights;

pub use check::check;
pub use hparams::HParams;

/// Whether a native backend can run the file: the architecture's name is ours and the tensors are laid out as it
/// says. Relatives under the same names (fused projections) are left to the library.
pub fn is_native(file: &crate::gguf::Gguf) -> bool {
    why_not_native(file).is_none()
}

/// Why no native backend can run the file, for people.
pub fn why_not_native(file: &crate::gguf::Gguf) -> Option<String> {
    let architecture = file.architecture().unwrap_or_default();
    if !HParams::accepts(architecture) {
        return Some(format!("architecture \"{architecture}\" has no native implementation"));
    }
    let has = |name: &str| file.find(&format!("blk.0.{name}.weight")).is_some();
    if !has("ffn_gate_exps") && !has(weights::FUSED_GATE_UP) && file.find(hparams::DENSE_GATE).is_none() {
        return Some("its first layer has no feed-forward part that the native implementation reads".into());
    }
    if !has("ssm_alpha") && !has("attn_q") {
        return Some("its first layer has fused projections, which the native implementation does not read".into());
    }
    let scale = file.tensors().iter().find(|t| t.name.ends_with(".scale") || t.name.ends_with(".input_scale"));
    if let Some(t) = scale {
        return Some(format!(
            "its tensor \"{}\" scales a matrix, which the native implementation does not read",
            t.name
        ));
    }
    let foreign = file.tensors().iter().find(|t| !t.dtype.is_native())?;
    let (name, kind) = (&foreign.name, foreign.dtype.name());
    Some(format!("its tensor \"{name}\" has type {kind}, which only the library computes"))
}

/// Why a file cannot be run natively.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gguf::Gguf;
    use tiny::Tiny;

    #[test]
    fn a_file_that_is_not_native_is_told_why() {
        let why = |tiny: Tiny| why_not_native(&Gguf::open(&tiny.write().path).unwrap());
        assert_eq!(why(Tiny::default()), None);
        assert_eq!(why(Tiny { fused: true, ..Tiny::default() }), None);
        assert_eq!(why(Tiny { dense: true, ..Tiny::default() }), None);
        let bare = why(Tiny { without: Some("blk.0.ffn_gate_exps.weight"), ..Tiny::default() }).unwrap();
        assert!(bare.contains("no feed-forward part"), "{bare}");
        let fused = why(Tiny { without: Some("blk.0.ssm_alpha.weight"), ..Tiny::default() }).unwrap();
        assert!(fused.contains("fused projections"), "{fused}");
        let scaled = why(Tiny { scales: true, ..Tiny::default() }).unwrap();
        assert!(scaled.contains("\"blk.0.ffn_down_exps.scale\" scales a matrix"), "{scaled}");
    }
}
