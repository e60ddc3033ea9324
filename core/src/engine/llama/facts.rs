//! What the header tells about a model that the library hosts.

use std::path::Path;

use chimere_ffi::ggml::llama::{Model, system_info};

use crate::engine::backend::ModelInfo;
use crate::gguf::{Array, Gguf, TensorInfo, Value};

/// The integer under `ARCHITECTURE.key`, if there is one.
fn number(gguf: &Gguf, key: &str) -> Option<u64> {
    let architecture = gguf.architecture().ok()?;
    gguf.optional(&format!("{architecture}.{key}")).ok().flatten()
}

/// Layers, experts and sequence heads that the library has room for; beyond them it aborts.
const LAYERS_MAX: u64 = 512;
const EXPERTS_MAX: u64 = 512;

/// Checks the numbers that the library only asserts: a file that breaks them would end the process
/// instead of giving an error.
pub(super) fn check(gguf: &Gguf) -> Result<(), String> {
    let architecture = gguf.architecture().map_err(|e| e.to_string())?;
    let name = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    if architecture.is_empty() || !architecture.chars().all(name) {
        return Err("general.architecture is not the name of one".into());
    }
    // Some architectures give a list with a number for each layer; the largest counts.
    let value = |key: &str| -> Result<Option<u64>, String> {
        let key = format!("{architecture}.{key}");
        match gguf.get(&key) {
            Some(Value::Array(Array::I32(list))) => {
                Ok(list.iter().map(|v| u64::try_from(*v).unwrap_or(u64::MAX)).max())
            }
            Some(Value::Array(Array::U32(list))) => Ok(list.iter().map(|v| u64::from(*v)).max()),
            _ => gguf.optional(&key).map_err(|e| e.to_string()),
        }
    };
    let within = |key: &str, min: u64, max: u64| match value(key)? {
        Some(found) if !(min..=max).contains(&found) => {
            Err(format!("\"{architecture}.{key}\" is {found}; it must be between {min} and {max}"))
        }
        found => Ok(found),
    };
    let missing = || {
        format!("the number of layers (\"{architecture}.block_count\") is missing: the file is no model of that kind")
    };
    let layers = within("block_count", 1, LAYERS_MAX)?.ok_or_else(missing)?;
    within("nextn_predict_layers", 0, layers)?;
    within("embedding_length", 1, 1 << 20)?;
    within("context_length", 1, 1 << 30)?;
    let experts = within("expert_count", 0, EXPERTS_MAX)?.unwrap_or(0);
    within("expert_used_count", u64::from(experts > 0), experts)?;
    within("expert_group_count", 0, experts.saturating_sub(1))?;
    Ok(())
}

/// Multi-token-prediction layers that are really there: pruned files keep the count and drop the
/// tensors.
pub(super) fn mtp_layers(gguf: &Gguf) -> u64 {
    let said = number(gguf, "nextn_predict_layers").unwrap_or(0);
    let last = number(gguf, "block_count").unwrap_or(0).saturating_sub(1);
    let there = gguf.find(&format!("blk.{last}.nextn.eh_proj.weight")).is_some();
    if there { said } else { 0 }
}

/// Bytes of weights that one token reads at batch 1: of the experts those used, of the embedding a
/// row (unless it is the output matrix too), nothing of the multi-token-prediction layers.
fn bytes_per_token(gguf: &Gguf) -> u64 {
    let used = number(gguf, "expert_used_count").unwrap_or(1);
    let experts = number(gguf, "expert_count").unwrap_or(1).max(1);
    let tied = gguf.find("output.weight").is_none();
    let first_mtp = number(gguf, "block_count").unwrap_or(0).saturating_sub(mtp_layers(gguf));
    let layer = |t: &TensorInfo| t.name.strip_prefix("blk.")?.split('.').next()?.parse::<u64>().ok();
    let bytes = |t: &TensorInfo| match t.name.as_str() {
        _ if layer(t).is_some_and(|l| l >= first_mtp) => 0,
        "token_embd.weight" if !tied => t.bytes() / t.rows().max(1),
        name if name.contains("_exps.") => t.bytes() / experts * used,
        _ => t.bytes(),
    };
    gguf.tensors().iter().map(bytes).sum()
}

/// The instruction sets that the library was built for.
fn device() -> String {
    let info = system_info();
    let on: Vec<&str> =
        info.split(['|', ':']).filter_map(|part| part.trim().strip_suffix("= 1")).map(str::trim).collect();
    format!("libllama on the CPU ({})", on.join(" "))
}

/// Facts for the engine; those that depend on options are filled in by the caller.
pub(super) fn info(gguf: &Gguf, path: &Path, model: &Model) -> ModelInfo {
    let stem = || path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    ModelInfo {
        name: gguf.optional::<&str>("general.name").ok().flatten().map_or_else(stem, str::to_owned),
        architecture: gguf.architecture().unwrap_or_default().to_owned(),
        backend: "llama".to_owned(),
        device: device(),
        vocab: model.tokens(),
        width: model.width(),
        layers: model.layers(),
        context_tokens: 0,
        trained_context_tokens: model.trained_context(),
        sequences_max: 0,
        parameters: model.parameters(),
        bytes_per_token: bytes_per_token(gguf),
        mtp: false,
        embedding_only: false,
    }
}
