//! Makers of small random models by our own writer, one for each kind of architecture.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use chimere::engine::llama::{self, Llama, LlamaOptions, LlamaVocab};
use chimere::engine::load::{CardOptions, Kind, LoadOptions};
use chimere::gguf::synthetic::{Fill, Qwen35Moe, Synthetic, Types};
use chimere::gguf::{Error, Strings};
use chimere_ffi::DType;

pub(crate) const VOCAB: usize = 512;
const WIDTH: u64 = 64;
/// Inner values of a feed-forward layer: a block of every type.
const INNER: u64 = 256;
const F32: DType = DType::F32;
/// Positions of the training of the stretched model.
pub(crate) const TRAINED: u32 = 64;

/// Holds off the other tests. An engine hosts one model; several that are loaded at the same moment by one process have
/// corrupted the library's heap (about one run in thirty of these tests).
pub(crate) fn alone() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Where the tensors of `bert/mean.gguf` begin, the end of the padding before them included.
const BERT_TENSORS: usize = 3_829;

/// A file of `bert/make.py`, by its pooling, `mean` or `cls`. Both have the same weights: one is kept, the other is made of it.
pub(crate) fn bert_file(pooling: &str) -> PathBuf {
    static CLS: OnceLock<PathBuf> = OnceLock::new();
    let kept = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/llama/bert/mean.gguf");
    if pooling == "mean" {
        return kept;
    }
    let made = || {
        let bytes = std::fs::read(&kept).unwrap();
        let (before, tensors) = bytes.split_at(BERT_TENSORS);
        // Behind a key stands the type of its value, in four bytes.
        let at = |key: &str| before.windows(key.len()).position(|w| w == key.as_bytes()).unwrap() + key.len() + 4;
        let (name, pooling) = (at("general.name"), at("bert.pooling_type"));
        let renamed = [&3u64.to_le_bytes()[..], b"cls", &before[name + 12..pooling]].concat();
        let bytes = [&before[..name], &renamed, &[2], &before[pooling + 1..], &[0], tensors].concat();
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("cls.gguf");
        std::fs::write(&path, bytes).unwrap();
        path
    };
    CLS.get_or_init(made).clone()
}

/// The architectures that write text.
pub(crate) const GENERATORS: [&str; 4] = ["qwen2", "mamba2", "nemotron_h_moe", "qwen35moe"];

/// Writes a model of `architecture` into `folder`.
pub(crate) fn make(folder: &Path, architecture: &str) -> PathBuf {
    let path = folder.join(format!("{architecture}.gguf"));
    let model = match architecture {
        "qwen2" => qwen2(),
        "qwen2-last" => qwen2_last(),
        "llama" | "phi-3" => llama_pieces(),
        "mamba2" => mamba2(),
        "nemotron_h_moe" => nemotron(),
        "bert" => bert(Some(1)), // the mean of all positions
        "bert-bare" => bert(None),
        "bert-rank" => bert(Some(4)),
        "qwen35" => Qwen35Moe { experts: 0, ..small() }.build(),
        "qwen35moe-yarn" => stretched(),
        _ => small().build(),
    };
    model.unwrap().write(&path, 7, |_, _| {}).unwrap();
    if architecture == "phi-3" {
        renamed(&path, "random llama", "random phi-3");
    }
    path
}

fn small() -> Qwen35Moe {
    Qwen35Moe::small(Types { experts: F32, dense: F32, embedding: F32, head: Some(F32) })
}

/// Trained for 64 positions, and stretched to four times as many.
fn stretched() -> Result<Synthetic, Error> {
    let mut m = small().build()?;
    m.set(".rope.scaling.type", "yarn")?;
    m.set(".rope.scaling.factor", 4.0_f32)?;
    m.set(".rope.scaling.original_context_length", TRAINED)?;
    Ok(m)
}

/// Puts a name of the same length in the place of a file's.
fn renamed(path: &Path, from: &str, to: &str) {
    let mut bytes = std::fs::read(path).unwrap();
    let at = bytes.windows(from.len()).position(|w| w == from.as_bytes()).unwrap();
    bytes[at..at + to.len()].copy_from_slice(to.as_bytes());
    std::fs::write(path, bytes).unwrap();
}

/// As [`make`], with the matrices that lead out of the feed-forward layers in another type.
pub(crate) fn make_with(folder: &Path, architecture: &str, down: DType) -> PathBuf {
    assert_eq!(architecture, "qwen2");
    let path = folder.join(format!("{architecture}-{down:?}.gguf"));
    qwen2_with(down).unwrap().write(&path, 7, |_, _| {}).unwrap();
    path
}

/// How an engine loads it: exact numbers, 256 positions, four sequences, one thread.
pub(crate) fn options(backend: Kind) -> LoadOptions {
    LoadOptions {
        backend,
        threads: 1,
        context_tokens: 256,
        sequences_max: 4,
        prediction: false,
        exact: true,
        cache: Default::default(),
        card: CardOptions { spared: true, ..CardOptions::default() },
        vet_with: None,
    }
}

/// Loads it for exact numbers: 256 positions, four sequences, one thread.
pub(crate) fn load(path: &Path) -> (Llama, LlamaVocab) {
    load_for(path, 256)
}

pub(crate) fn load_for(path: &Path, context_tokens: usize) -> (Llama, LlamaVocab) {
    let options = LlamaOptions { threads: 1, context_tokens, sequences_max: 4, exact: true };
    llama::load(path, &options, &mut |_| {}).unwrap()
}

fn common(architecture: &str, layers: u32) -> Result<Synthetic, Error> {
    let mut m = Synthetic::new(architecture)?;
    m.set(".block_count", layers)?;
    m.set(".context_length", 1_024_u32)?;
    m.set(".embedding_length", WIDTH as u32)?;
    m.set(".attention.layer_norm_rms_epsilon", 1e-6_f32)?;
    m.tensor("token_embd.weight", F32, &[WIDTH, VOCAB as u64], Fill::Normal(0.0, 0.5))?;
    Ok(m)
}

fn head(m: &mut Synthetic) -> Result<(), Error> {
    m.norm("output_norm.weight", &[WIDTH])?;
    m.matrix("output.weight", F32, &[WIDTH, VOCAB as u64])
}

fn qwen2() -> Result<Synthetic, Error> {
    qwen2_with(F32)
}

fn qwen2_with(down: DType) -> Result<Synthetic, Error> {
    let mut m = common("qwen2", 2)?;
    m.byte_vocabulary("qwen2", VOCAB)?;
    m.set("tokenizer.chat_template", "{% for m in messages %}{{ m.content }}{% endfor %}")?;
    m.set(".feed_forward_length", INNER as u32)?;
    m.set(".attention.head_count", 4_u32)?;
    m.set(".attention.head_count_kv", 2_u32)?;
    m.set(".rope.freq_base", 1e6_f32)?;
    head(&mut m)?;
    for p in ["blk.0", "blk.1"] {
        m.norm(&format!("{p}.attn_norm.weight"), &[WIDTH])?;
        attention(&mut m, p, 64, 32)?;
        for (name, len) in [("attn_q", 64), ("attn_k", 32), ("attn_v", 32)] {
            m.tensor(&format!("{p}.{name}.bias"), F32, &[len], Fill::Normal(0.0, 0.1))?;
        }
        m.norm(&format!("{p}.ffn_norm.weight"), &[WIDTH])?;
        m.matrix(&format!("{p}.ffn_gate.weight"), F32, &[WIDTH, INNER])?;
        m.matrix(&format!("{p}.ffn_up.weight"), F32, &[WIDTH, INNER])?;
        m.matrix(&format!("{p}.ffn_down.weight"), down, &[INNER, WIDTH])?;
    }
    Ok(m)
}

fn attention(m: &mut Synthetic, p: &str, queries: u64, keys: u64) -> Result<(), Error> {
    m.matrix(&format!("{p}.attn_q.weight"), F32, &[WIDTH, queries])?;
    m.matrix(&format!("{p}.attn_k.weight"), F32, &[WIDTH, keys])?;
    m.matrix(&format!("{p}.attn_v.weight"), F32, &[WIDTH, keys])?;
    m.matrix(&format!("{p}.attn_output.weight"), F32, &[queries, WIDTH])
}

/// Inner width 128, state 16, 8 heads, one group.
fn ssm_metadata(m: &mut Synthetic) -> Result<(), Error> {
    m.set(".ssm.conv_kernel", 4_u32)?;
    m.set(".ssm.inner_size", 128_u32)?;
    m.set(".ssm.state_size", 16_u32)?;
    m.set(".ssm.time_step_rank", 8_u32)?;
    m.set(".ssm.group_count", 1_u32)
}

fn ssm(m: &mut Synthetic, p: &str) -> Result<(), Error> {
    let (inner, state, heads) = (128, 16, 8);
    let conv = inner + 2 * state;
    m.matrix(&format!("{p}.ssm_in.weight"), F32, &[WIDTH, inner + conv + heads])?;
    m.tensor(&format!("{p}.ssm_conv1d.weight"), F32, &[4, conv], Fill::Normal(0.0, 0.4))?;
    m.tensor(&format!("{p}.ssm_conv1d.bias"), F32, &[conv], Fill::Normal(0.0, 0.1))?;
    m.tensor(&format!("{p}.ssm_dt.bias"), F32, &[heads], Fill::Uniform(-4.0, -1.0))?;
    m.tensor(&format!("{p}.ssm_a"), F32, &[1, heads], Fill::Uniform(-8.0, -0.5))?;
    m.norm(&format!("{p}.ssm_d"), &[1, heads])?;
    m.norm(&format!("{p}.ssm_norm.weight"), &[inner, 1])?;
    m.matrix(&format!("{p}.ssm_out.weight"), F32, &[inner, WIDTH])
}

fn mamba2() -> Result<Synthetic, Error> {
    let mut m = common("mamba2", 2)?;
    m.byte_vocabulary("gpt-2", VOCAB)?;
    m.set(".feed_forward_length", 0_u32)?;
    m.set(".attention.head_count", 0_u32)?;
    ssm_metadata(&mut m)?;
    head(&mut m)?;
    for p in ["blk.0", "blk.1"] {
        m.norm(&format!("{p}.attn_norm.weight"), &[WIDTH])?;
        ssm(&mut m, p)?;
    }
    Ok(m)
}

/// A state-space layer, an attention layer, a layer of experts.
fn nemotron() -> Result<Synthetic, Error> {
    let mut m = common("nemotron_h_moe", 3)?;
    m.byte_vocabulary("qwen2", VOCAB)?;
    m.set(".attention.layer_norm_epsilon", 1e-5_f32)?;
    m.set(".feed_forward_length", vec![0, 0, 64])?;
    m.set(".attention.head_count", 4_u32)?;
    m.set(".attention.head_count_kv", vec![0, 2, 0])?;
    m.set(".attention.key_length", 16_u32)?;
    m.set(".attention.value_length", 16_u32)?;
    m.set(".expert_count", 4_u32)?;
    m.set(".expert_used_count", 2_u32)?;
    m.set(".expert_feed_forward_length", 64_u32)?;
    m.set(".expert_shared_feed_forward_length", 64_u32)?;
    m.set(".expert_shared_count", 1_u32)?;
    m.set(".expert_weights_norm", true)?;
    m.set(".expert_weights_scale", 2.5_f32)?;
    ssm_metadata(&mut m)?;
    head(&mut m)?;
    for layer in 0..3 {
        m.norm(&format!("blk.{layer}.attn_norm.weight"), &[WIDTH])?;
    }
    ssm(&mut m, "blk.0")?;
    attention(&mut m, "blk.1", 64, 32)?;
    m.matrix("blk.2.ffn_gate_inp.weight", F32, &[WIDTH, 4])?;
    m.tensor("blk.2.exp_probs_b.bias", F32, &[4], Fill::Normal(0.0, 0.1))?;
    m.matrix("blk.2.ffn_up_exps.weight", F32, &[WIDTH, 64, 4])?;
    m.matrix("blk.2.ffn_down_exps.weight", F32, &[64, WIDTH, 4])?;
    m.matrix("blk.2.ffn_up_shexp.weight", F32, &[WIDTH, 64])?;
    m.matrix("blk.2.ffn_down_shexp.weight", F32, &[64, WIDTH])?;
    Ok(m)
}

/// A transformer with a SentencePiece vocabulary; by its name the library knows which tokens take white space away.
fn llama_pieces() -> Result<Synthetic, Error> {
    let mut m = common("llama", 2)?;
    sentence_pieces(&mut m)?;
    m.set(".feed_forward_length", 128_u32)?;
    m.set(".attention.head_count", 4_u32)?;
    m.set(".attention.head_count_kv", 2_u32)?;
    head(&mut m)?;
    for p in ["blk.0", "blk.1"] {
        m.norm(&format!("{p}.attn_norm.weight"), &[WIDTH])?;
        attention(&mut m, p, 64, 32)?;
        m.norm(&format!("{p}.ffn_norm.weight"), &[WIDTH])?;
        m.matrix(&format!("{p}.ffn_gate.weight"), F32, &[WIDTH, 128])?;
        m.matrix(&format!("{p}.ffn_up.weight"), F32, &[WIDTH, 128])?;
        m.matrix(&format!("{p}.ffn_down.weight"), F32, &[128, WIDTH])?;
    }
    Ok(m)
}

/// A SentencePiece vocabulary with a token for each byte, in which the letters of `<s>` can be joined to the control token,
/// and with user-defined tokens as models that think have them.
fn sentence_pieces(m: &mut Synthetic) -> Result<(), Error> {
    let (unknown, control, user, byte, normal) = (2, 3, 4, 6, 1);
    let mut all: Vec<(String, i32)> =
        vec![("<unk>".into(), unknown), ("<s>".into(), control), ("</s>".into(), control)];
    all.extend((0..=255).map(|b| (format!("<0x{b:02X}>"), byte)));
    all.extend(["<|user|>", "<|assistant|>", "<|end|>", "<|endoftext|>"].map(|t| (t.into(), control)));
    all.extend(["<think>", "</think>", "<tool_call>", "\n\n"].map(|t| (t.into(), user)));
    all.extend(
        ["<s", "</", "</s", "th", "\u{2581}th", "the", "in", "ing", "\u{2581}\u{2581}"].map(|t| (t.into(), normal)),
    );
    all.push(("\u{2581}".into(), normal));
    all.extend((' '..='~').skip(1).map(|c| (c.to_string(), normal)));
    all.extend((all.len()..VOCAB).map(|i| (format!("filler {i}"), normal)));
    let scores: Vec<f32> = (0..all.len()).map(|i| if all[i].1 == normal { -(i as f32) } else { 0.0 }).collect();
    m.set("tokenizer.ggml.model", "llama")?;
    m.set("tokenizer.ggml.pre", "default")?;
    m.set("tokenizer.ggml.tokens", all.iter().map(|(text, _)| text).collect::<Strings>())?;
    m.set("tokenizer.ggml.token_type", all.iter().map(|(_, kind)| *kind).collect::<Vec<i32>>())?;
    m.set("tokenizer.ggml.scores", scores)?;
    m.set("tokenizer.ggml.bos_token_id", 1_u32)?;
    m.set("tokenizer.ggml.eos_token_id", 2_u32)?;
    m.set("tokenizer.ggml.unknown_token_id", 0_u32)?;
    m.set("tokenizer.ggml.add_bos_token", true)?;
    m.set("tokenizer.ggml.add_space_prefix", true)
}

/// The same weights, to embed by the last token, which is a mark of the end, as Qwen3-Embedding does.
fn qwen2_last() -> Result<Synthetic, Error> {
    let mut m = qwen2()?;
    m.set(".pooling_type", 3_u32)?;
    m.set("tokenizer.ggml.add_eos_token", true)?;
    Ok(m)
}

fn bert(pooling: Option<u32>) -> Result<Synthetic, Error> {
    let mut m = common("bert", 2)?;
    m.set(".attention.layer_norm_epsilon", 1e-12_f32)?;
    m.set(".attention.causal", false)?;
    pooling.map(|kind| m.set(".pooling_type", kind)).transpose()?;
    m.set(".feed_forward_length", 128_u32)?;
    m.set(".attention.head_count", 4_u32)?;
    word_pieces(&mut m)?;
    let plain = Fill::Normal(0.0, 0.1);
    m.tensor("token_types.weight", F32, &[WIDTH, 2], plain)?;
    m.tensor("position_embd.weight", F32, &[WIDTH, 1_024], plain)?;
    let norm = |m: &mut Synthetic, name: &str| {
        m.norm(&format!("{name}.weight"), &[WIDTH])?;
        m.tensor(&format!("{name}.bias"), F32, &[WIDTH], plain)
    };
    norm(&mut m, "token_embd_norm")?;
    for p in ["blk.0", "blk.1"] {
        attention(&mut m, p, 64, 64)?;
        norm(&mut m, &format!("{p}.attn_output_norm"))?;
        m.matrix(&format!("{p}.ffn_up.weight"), F32, &[WIDTH, 128])?;
        m.matrix(&format!("{p}.ffn_down.weight"), F32, &[128, WIDTH])?;
        norm(&mut m, &format!("{p}.layer_output_norm"))?;
    }
    Ok(m)
}

/// A vocabulary of word pieces: special tokens, then single letters at and after a word's start.
fn word_pieces(m: &mut Synthetic) -> Result<(), Error> {
    let specials = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"].map(String::from);
    // Converters write a word's start with U+2581 and its continuation bare.
    let starts = ('a'..='z').map(|c| format!("\u{2581}{c}"));
    let rest = ('a'..='z').map(String::from);
    let mut tokens: Vec<String> = specials.into_iter().chain(starts).chain(rest).collect();
    tokens.extend((tokens.len()..VOCAB).map(|i| format!("[unused{i}]")));
    let types: Vec<i32> = (0..VOCAB).map(|i| if i < 5 { 3 } else { 1 }).collect();
    m.set("tokenizer.ggml.model", "bert")?;
    m.set("tokenizer.ggml.pre", "bert")?;
    m.set("tokenizer.ggml.token_type_count", 2_u32)?;
    m.set("tokenizer.ggml.tokens", tokens.iter().collect::<Strings>())?;
    m.set("tokenizer.ggml.token_type", types)?;
    let ids = [("padding", 0_u32), ("unknown", 1), ("bos", 2), ("cls", 2), ("seperator", 3), ("eos", 3), ("mask", 4)];
    ids.into_iter().try_for_each(|(name, id)| m.set(&format!("tokenizer.ggml.{name}_token_id"), id))
}
