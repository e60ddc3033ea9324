//! Hyper-parameters, read from the file's metadata. Each is bounded and all relations are checked. So nothing
//! later divides by zero or allocates what a hostile file asks for.

use super::ModelError;
use crate::gguf::Gguf;
use chimere_ffi::cpu::{Rope, Stretch};

/// Names under which converters have written this architecture.
pub const ARCHITECTURES: [&str; 7] =
    ["qwen35moe", "qwen3.5moe", "qwen35", "qwen3.5", "qwen3_5", "qwen3next", "qwen3.5next"];

/// Largest number of main layers.
pub const LAYERS_MAX: usize = 512;
/// Largest width of the residual stream.
pub const WIDTH_MAX: usize = 32_768;
/// Largest vocabulary.
pub const VOCAB_MAX: usize = 4 << 20;
/// Largest number of heads of any kind.
pub const HEADS_MAX: usize = 512;
/// Largest size of one head.
pub const HEAD_DIM_MAX: usize = 512;
/// Largest number of experts in a layer.
pub const EXPERTS_MAX: usize = 4_096;
/// Largest number of experts that one token uses.
pub const EXPERTS_USED_MAX: usize = 64;
/// Largest inner width of an expert.
pub const FFN_MAX: usize = 65_536;
/// Longest context that a file may claim.
pub const CONTEXT_MAX: usize = 16 << 20;

/// What tells a dense model: the gate of its first layer.
pub(super) const DENSE_GATE: &str = "blk.0.ffn_gate.weight";

/// What mixes positions in a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LayerKind {
    /// Gated DeltaNet: a fixed-size recurrent state.
    Gdn,
    /// Full attention over a KV cache.
    Attention,
}

/// Shape of the attention layers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AttentionParams {
    /// Query heads.
    pub heads: usize,
    /// Key and value heads; divides `heads`.
    pub kv_heads: usize,
    /// Values of one head, the same for queries, keys and values.
    pub head_dim: usize,
    /// Leading values of a head that are rotated; even, at most `head_dim`.
    pub rope_dims: usize,
    /// θ_i = rope_base^(−2i / rope_dims).
    pub rope_base: f32,
    /// How the angles of far positions are brought near.
    pub stretch: Stretch,
}

impl AttentionParams {
    pub fn rope(&self) -> Rope {
        Rope::new(self.rope_dims, f64::from(self.rope_base), self.stretch)
    }
}

/// Shape of the GDN layers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GdnParams {
    /// Query and key heads; divides `value_heads`. Value head h uses key head h mod `key_heads`.
    pub key_heads: usize,
    pub value_heads: usize,
    /// Values of one head, the same for keys and values.
    pub head_dim: usize,
    /// Taps of the depthwise causal convolution.
    pub conv_kernel: usize,
}

impl GdnParams {
    /// Channels of the convolution: queries, keys and values side by side.
    pub fn channels(&self) -> usize {
        (2 * self.key_heads + self.value_heads) * self.head_dim
    }

    /// Values of all value heads of one position.
    pub fn value_dim(&self) -> usize {
        self.value_heads * self.head_dim
    }
}

/// Shape of the mixture of experts, present in every layer. A dense model has no experts, and the shared width is that of its
/// feed-forward part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MoeParams {
    pub experts: usize,
    /// Experts a token is sent to; at most `experts`.
    pub used: usize,
    /// Inner width of a routed expert.
    pub width: usize,
    /// Inner width of the shared expert.
    pub shared_width: usize,
}

/// Everything that the forward pass must know besides the weights.
#[derive(Clone, Debug, PartialEq)]
pub struct HParams {
    /// As written in the file; also the prefix of its keys.
    pub architecture: String,
    /// Width of the residual stream.
    pub width: usize,
    pub vocab: usize,
    /// Kind of each main layer, in order.
    pub layers: Vec<LayerKind>,
    /// Index of the multi-token-prediction block, if the file has one: it follows the main layers.
    pub mtp: Option<usize>,
    pub rms_eps: f32,
    /// Positions that the model was trained for, or stretched to.
    pub trained_context_tokens: usize,
    pub attention: AttentionParams,
    pub gdn: GdnParams,
    pub moe: MoeParams,
}

/// The keys of one file, with the architecture as prefix.
struct Keys<'a> {
    file: &'a Gguf,
    prefix: &'a str,
}

impl Keys<'_> {
    fn name(&self, key: &str) -> String {
        format!("{}.{key}", self.prefix)
    }

    /// A required count between `low` and `high`.
    fn count(&self, key: &str, low: usize, high: usize) -> Result<usize, ModelError> {
        let key = self.name(key);
        let found: u64 = self.file.required(&key)?;
        bounded(key, found, low, high)
    }

    fn count_or(&self, key: &str, default: usize, low: usize, high: usize) -> Result<usize, ModelError> {
        match self.file.get(&self.name(key)) {
            Some(_) => self.count(key, low, high),
            None => Ok(default),
        }
    }

    /// A factor of what the file scales; 0 stands for none said.
    fn number_or(&self, key: &str, default: f32) -> Result<f32, ModelError> {
        match self.file.get(&self.name(key)) {
            Some(_) => match self.float(key, -f32::MIN_POSITIVE, 1e6, "0 to 1e6")? {
                0.0 => Ok(default),
                found => Ok(found),
            },
            None => Ok(default),
        }
    }

    /// Positions of the training before they were stretched.
    fn original_context(&self) -> Result<usize, ModelError> {
        let said = self.count("context_length", 1, CONTEXT_MAX)?;
        self.count_or("rope.scaling.original_context_length", said, 1, CONTEXT_MAX)
    }

    /// A finite float above `low` and at most `high`.
    fn float(&self, key: &str, low: f32, high: f32, wanted: &'static str) -> Result<f32, ModelError> {
        let key = self.name(key);
        let found = self.file.f32(&key)?;
        if found > low && found <= high {
            return Ok(found);
        }
        Err(ModelError::Value { key, found: found.to_string(), wanted })
    }
}

fn bounded(key: String, found: u64, low: usize, high: usize) -> Result<usize, ModelError> {
    match usize::try_from(found) {
        Ok(n) if (low..=high).contains(&n) => Ok(n),
        _ => Err(ModelError::Limit { key, found, low: low as u64, high: high as u64 }),
    }
}

impl HParams {
    /// Whether files of this architecture can be tried with a native backend.
    pub fn accepts(architecture: &str) -> bool {
        ARCHITECTURES.contains(&architecture)
    }

    /// Reads and checks the hyper-parameters of a file.
    pub fn read(file: &Gguf) -> Result<HParams, ModelError> {
        let architecture = file.architecture()?;
        if !HParams::accepts(architecture) {
            return Err(ModelError::Architecture(architecture.into()));
        }
        let keys = Keys { file, prefix: architecture };
        let (layers, mtp) = read_layers(&keys)?;
        Ok(HParams {
            architecture: architecture.into(),
            width: keys.count("embedding_length", 1, WIDTH_MAX)?,
            vocab: read_vocab(file)?,
            layers,
            mtp,
            rms_eps: keys.float("attention.layer_norm_rms_epsilon", 0.0, 1.0, "above 0 and at most 1")?,
            trained_context_tokens: read_context(&keys)?,
            attention: read_attention(&keys)?,
            gdn: read_gdn(&keys)?,
            moe: read_moe(&keys)?,
        })
    }

    /// Without the prediction block, unless it is wanted.
    pub fn with_prediction(self, wanted: bool) -> HParams {
        HParams { mtp: self.mtp.filter(|_| wanted), ..self }
    }

    /// Whether a tensor of the file is part of what is hosted.
    pub fn reads(&self, name: &str) -> bool {
        let block = name.strip_prefix("blk.").and_then(|rest| rest.split_once('.')?.0.parse::<usize>().ok());
        block.is_none_or(|block| block < self.layers.len() + usize::from(self.mtp.is_some()))
    }

    /// Whether its layers have one feed-forward part each, and no experts.
    pub fn is_dense(&self) -> bool {
        self.moe.experts == 0
    }

    /// Attention layers whose KV cache a sequence fills, the prediction block not counted.
    pub fn attention_layers(&self) -> usize {
        self.layers.iter().filter(|k| **k == LayerKind::Attention).count()
    }
}

/// The vocabulary is what the embedding has rows for; the tokenizer must not name more.
fn read_vocab(file: &Gguf) -> Result<usize, ModelError> {
    let name = "token_embd.weight";
    let Some(t) = file.find(name) else {
        return Err(ModelError::Missing { name: name.into(), wanted: vec![] });
    };
    let vocab = bounded(format!("the number of rows of {name}"), t.rows(), 1, VOCAB_MAX)?;
    let tokens: Option<&crate::gguf::Strings> = file.optional("tokenizer.ggml.tokens")?;
    match tokens {
        Some(t) if t.len() > vocab => Err(ModelError::Contradiction(format!(
            "tokenizer.ggml.tokens has {} entries but {name} has {vocab} rows",
            t.len()
        ))),
        _ => Ok(vocab),
    }
}

/// Kinds of the main layers and the index of the prediction block. Pruned files keep `nextn_predict_layers` after
/// the block itself was removed, so the block counts only if its projection is there.
fn read_layers(keys: &Keys<'_>) -> Result<(Vec<LayerKind>, Option<usize>), ModelError> {
    let blocks = keys.count("block_count", 1, LAYERS_MAX + 1)?;
    let mtp = keys.file.find(&format!("blk.{}.nextn.eh_proj.weight", blocks - 1)).map(|_| blocks - 1);
    let main = mtp.unwrap_or(blocks);
    if main == 0 {
        return Err(ModelError::Contradiction("the file has a prediction block but no layer before it".into()));
    }
    let interval = keys.count_or("full_attention_interval", 4, 1, LAYERS_MAX)?;
    let listed: Option<&[bool]> = keys.file.optional(&keys.name("attention.recurrent_layers"))?;
    if listed.is_some_and(|l| l.len() < main) {
        return Err(ModelError::Contradiction(format!("attention.recurrent_layers is shorter than the {main} layers")));
    }
    let recurrent = |i: usize| match listed {
        Some(l) => l.get(i).copied().unwrap_or(false),
        None => !(i + 1).is_multiple_of(interval),
    };
    let kind = |i| if recurrent(i) { LayerKind::Gdn } else { LayerKind::Attention };
    Ok(((0..main).map(kind).collect(), mtp))
}

fn read_attention(keys: &Keys<'_>) -> Result<AttentionParams, ModelError> {
    let heads = keys.count("attention.head_count", 1, HEADS_MAX)?;
    let kv_heads = keys.count("attention.head_count_kv", 1, HEADS_MAX)?;
    let head_dim = keys.count("attention.key_length", 2, HEAD_DIM_MAX)?;
    let value_dim = keys.count_or("attention.value_length", head_dim, 2, HEAD_DIM_MAX)?;
    let rope_dims = keys.count("rope.dimension_count", 2, HEAD_DIM_MAX)?;
    if heads % kv_heads != 0 {
        return Err(ModelError::Contradiction(format!("{heads} query heads cannot share {kv_heads} KV heads")));
    }
    if value_dim != head_dim {
        return Err(ModelError::Contradiction(format!("keys have {head_dim} values and values {value_dim}")));
    }
    if rope_dims > head_dim || rope_dims % 2 != 0 {
        return Err(ModelError::Contradiction(format!("{rope_dims} rotated values in heads of {head_dim}")));
    }
    check_sections(keys, rope_dims)?;
    let rope_base = keys.float("rope.freq_base", 1.0, 1e12, "above 1 and at most 1e12")?;
    Ok(AttentionParams { heads, kv_heads, head_dim, rope_dims, rope_base, stretch: read_stretch(keys)? })
}

/// What the file says of far positions, by the keys and defaults of the library.
fn read_stretch(keys: &Keys<'_>) -> Result<Stretch, ModelError> {
    let key = |name: &str| format!("rope.scaling.{name}");
    let kind: &str = keys.file.optional(&keys.name(&key("type")))?.unwrap_or("linear");
    let factor = match keys.file.get(&keys.name(&key("factor"))) {
        Some(_) => keys.number_or(&key("factor"), 1.0)?,
        None => keys.number_or("rope.scale_linear", 1.0)?,
    };
    let magnitude = keys.number_or(&key("attn_factor"), 1.0)?;
    match kind {
        "none" => Ok(Stretch::None),
        "linear" if factor == 1.0 && magnitude == 1.0 => Ok(Stretch::None),
        "linear" => Ok(Stretch::Linear { factor, magnitude }),
        "yarn" => Ok(Stretch::Yarn {
            factor,
            trained: keys.original_context()?,
            fast: keys.number_or(&key("yarn_beta_fast"), 32.0)?,
            slow: keys.number_or(&key("yarn_beta_slow"), 1.0)?,
            magnitude,
        }),
        other => Err(ModelError::Value {
            key: keys.name(&key("type")),
            found: format!("\"{other}\""),
            wanted: "none, linear or yarn here; run the file with the llama backend (engine.backend, --backend)",
        }),
    }
}

/// Positions that the model was trained for, or that its angles are stretched to.
fn read_context(keys: &Keys<'_>) -> Result<usize, ModelError> {
    let said = keys.count("context_length", 1, CONTEXT_MAX)?;
    let original = keys.name("rope.scaling.original_context_length");
    match read_stretch(keys)? {
        Stretch::Linear { factor, .. } | Stretch::Yarn { factor, .. } if keys.file.get(&original).is_some() => {
            let stretched = keys.original_context()? as f64 * f64::from(factor);
            Ok(said.max((stretched as usize).min(CONTEXT_MAX)))
        }
        _ => Ok(said),
    }
}

/// Text has the same position in every section, so interleaved sections that cover all pairs equal plain rotation.
/// Sections that leave pairs out would not, and are refused.
fn check_sections(keys: &Keys<'_>, rope_dims: usize) -> Result<(), ModelError> {
    let sections: Option<&[i32]> = keys.file.optional(&keys.name("rope.dimension_sections"))?;
    let Some(sections) = sections else { return Ok(()) };
    let sum: i64 = sections.iter().map(|n| i64::from(*n)).sum();
    let text = sections.iter().take(3).map(|n| i64::from(*n)).sum::<i64>();
    if sections.iter().any(|n| *n < 0) || (sum != 0 && (sum != rope_dims as i64 / 2 || text != sum)) {
        return Err(ModelError::Contradiction(format!(
            "rope.dimension_sections {sections:?} do not cover the {} rotated pairs",
            rope_dims / 2
        )));
    }
    Ok(())
}

fn read_gdn(keys: &Keys<'_>) -> Result<GdnParams, ModelError> {
    let gdn = GdnParams {
        key_heads: keys.count("ssm.group_count", 1, HEADS_MAX)?,
        value_heads: keys.count("ssm.time_step_rank", 1, HEADS_MAX)?,
        head_dim: keys.count("ssm.state_size", 1, HEAD_DIM_MAX)?,
        conv_kernel: keys.count("ssm.conv_kernel", 2, 16)?,
    };
    let inner = keys.count("ssm.inner_size", 1, HEADS_MAX * HEAD_DIM_MAX)?;
    if !gdn.value_heads.is_multiple_of(gdn.key_heads) {
        return Err(ModelError::Contradiction(format!(
            "{} value heads cannot share {} key heads",
            gdn.value_heads, gdn.key_heads
        )));
    }
    if inner != gdn.value_dim() {
        return Err(ModelError::Contradiction(format!(
            "ssm.inner_size is {inner} but {} heads of {} are {}",
            gdn.value_heads,
            gdn.head_dim,
            gdn.value_dim()
        )));
    }
    Ok(gdn)
}

fn read_moe(keys: &Keys<'_>) -> Result<MoeParams, ModelError> {
    if keys.file.get(&keys.name("expert_count")).is_none() && keys.file.find(DENSE_GATE).is_some() {
        let shared_width = keys.count("feed_forward_length", 1, FFN_MAX)?;
        return Ok(MoeParams { experts: 0, used: 0, width: 0, shared_width });
    }
    let experts = keys.count("expert_count", 1, EXPERTS_MAX)?;
    let used = keys.count("expert_used_count", 1, EXPERTS_USED_MAX)?;
    if used > experts {
        return Err(ModelError::Contradiction(format!("{used} experts used of {experts}")));
    }
    let width = keys.count("expert_feed_forward_length", 1, FFN_MAX)?;
    let shared_width = keys.count_or("expert_shared_feed_forward_length", width, 1, FFN_MAX)?;
    Ok(MoeParams { experts, used, width, shared_width })
}
