//! What a start would find wrong with a model file, found without its weights. `check`, a start and a change of the model
//! all judge by this, so they give the same reasons.

use std::ffi::OsString;
use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::apart;
use super::defaults::ModelDefaults;
use super::load::{Kind, LoadError, LoadOptions, chat_template, hash, hex, vocabulary};
use super::machine;
use super::model;
use super::template::ChatTemplate;
use super::vocab::{Vocab, fingerprint};
use crate::gguf::{Files, Gguf, TensorInfo};
use chimere_ffi::DType;

/// Of tensors up to so many bytes every value is looked at: norms, biases, routers.
const VALUES_BYTES_MAX: u64 = 4 << 20;
/// What a native model takes beside its file: caches as they grow, and buffers.
const NATIVE_SPARE_BYTES: u64 = 512 << 20;

/// A header of hundreds of megabytes from a slow disk.
const APART_TIMEOUT: Duration = Duration::from_secs(120);

/// Why a model is not served though it can be hosted.
pub const EMBEDS: &str =
    "it is an embedding model and writes no text: name it as `embed.model`, and here a model that writes text";

/// What was found out about a model that can be hosted.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Judged {
    pub architecture: String,
    /// It makes embeddings and writes no text.
    pub embedding_only: bool,
    /// Hosted by libllama, not by a native implementation.
    pub library: bool,
    pub tensors: usize,
    pub files: usize,
    pub file_bytes: u64,
    /// Positions of a sequence; 0: as many as the model was trained for, where a backend decides while it loads.
    pub context_tokens: usize,
    pub sequences: usize,
    /// Memory that it takes, the weights included.
    pub needs_bytes: u64,
    /// Memory that there was; absent: the system did not say.
    pub available_bytes: Option<u64>,
    /// Why its weights learn nothing at night; absent: they learn.
    pub frozen: Option<String>,
    /// Why the file of defaults beside the weights is passed over, if one is.
    pub defaults_unused: Option<String>,
    /// The tokenizer's fingerprint, hexadecimal: things made of token ids carry it. Absent: the vocabulary cannot be read.
    pub tokenizer: Option<String>,
}

impl fmt::Display for Judged {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let gb = |bytes: u64| bytes as f64 / 1e9;
        let Judged { architecture, tensors, file_bytes, .. } = self;
        write!(out, "{architecture}, {tensors} tensors, {file_bytes} bytes")?;
        if self.files > 1 {
            write!(out, " in {} files", self.files)?;
        }
        if self.library {
            write!(out, "; by libllama, {} sequences of {} tokens", self.sequences, self.context_tokens)?;
        }
        write!(out, "; needs about {:.1} GB of memory", gb(self.needs_bytes))?;
        self.available_bytes.map_or(Ok(()), |bytes| write!(out, ", {:.1} GB are free", gb(bytes)))
    }
}

/// A model that passed.
pub(super) struct Validated {
    pub(super) gguf: Gguf,
    pub(super) files: Files,
    /// Why no native backend can run it, or one can.
    pub(super) foreign: Option<String>,
    /// Absent: the library's, which comes with the weights.
    pub(super) vocab: Option<Arc<dyn Vocab>>,
    pub(super) template: Option<ChatTemplate>,
    pub(super) defaults: ModelDefaults,
    pub(super) model_hash: String,
    pub(super) judged: Judged,
}

/// Judges the model at `path` as [`super::load::load`] would. `freed_bytes`: memory that will be free before it is loaded.
pub fn validate(path: &Path, options: &LoadOptions, freed_bytes: u64) -> Result<Judged, LoadError> {
    let Validated { gguf, vocab, judged, .. } = opened(path, options, freed_bytes)?;
    let vocab = vocab.or_else(|| vocabulary(path, &gguf, options.backend).ok().filter(|_| !judged.embedding_only));
    Ok(Judged { tokenizer: vocab.map(|vocab| hex(&fingerprint(vocab.as_ref()))), ..judged })
}

/// Judges in a throw-away engine: `program` with `arguments`, which are those of an engine, but its model. What the file does
/// to the code that reads it, it does there.
pub fn validate_apart(
    program: &Path,
    mut arguments: Vec<OsString>,
    path: &Path,
    freed_bytes: u64,
) -> Result<Judged, String> {
    let freed = freed_bytes.to_string();
    arguments.extend(["--validate", "--freed", &freed, "--model"].map(OsString::from));
    arguments.push(path.into());
    let unjudged = |error: &dyn fmt::Display| format!("the file could not be judged: {error}");
    let answer = apart::ask(program, &arguments, Vec::new(), APART_TIMEOUT).map_err(|error| unjudged(&error))?;
    match answer {
        None => Err(format!("reading its header took over {} s", APART_TIMEOUT.as_secs())),
        Some((status, said)) if status.success() => serde_json::from_str(&said).map_err(|error| unjudged(&error)),
        // What the library cannot bear ends its process without a word.
        Some((status, said)) if said.is_empty() => {
            Err(format!("what reads it ended with {status}: it is damaged, or of no known kind"))
        }
        Some((_, said)) => Err(said),
    }
}

pub(super) fn opened(path: &Path, options: &LoadOptions, freed_bytes: u64) -> Result<Validated, LoadError> {
    let unreadable = |source| LoadError::Gguf { path: path.to_owned(), source };
    let (gguf, files) = Files::open(path).map_err(unreadable)?;
    let architecture = gguf.architecture().map_err(unreadable)?.to_owned();
    // An adapter, an imatrix, a projector.
    match gguf.optional::<&str>("general.type") {
        Ok(None | Some("model")) => {}
        kind => {
            let kind = kind.ok().flatten().unwrap_or_default().chars().filter(|c| !c.is_control()).take(64).collect();
            return Err(LoadError::NoModel { path: path.to_owned(), kind });
        }
    }
    if architecture == super::embedder::TABLE {
        return Err(LoadError::Embeds(path.to_owned()));
    }
    if gguf.tensors().is_empty() {
        return Err(LoadError::NoTensors(path.to_owned()));
    }
    let foreign = model::why_not_native(&gguf);
    if let (Kind::Cpu | Kind::Cuda, Some(what)) = (options.backend, &foreign) {
        return Err(LoadError::NotNative(what.clone()));
    }
    let library = foreign.is_some() || options.backend == Kind::Llama;
    finite(&gguf, &files)?;
    let available = machine::available_bytes().map(|bytes| bytes + freed_bytes);
    let (vocab, source, context_tokens, needs_bytes) = match library {
        false => native(path, &gguf, options)?,
        true => by_library(&files, &gguf, options, available)?,
    };
    let template = source.map(|source| chat_template(&source, &gguf, options.vet_with.as_deref())).transpose()?;
    let model_hash =
        hash(&files, &gguf).map_err(|source| LoadError::Read { path: files.first().to_owned(), source })?;
    let defaults = ModelDefaults::of(files.first(), &gguf, &architecture, &model_hash);
    let judged = Judged {
        architecture,
        frozen: super::learns::frozen(foreign.as_deref(), library),
        embedding_only: library && super::embedder::embeds(&gguf),
        library,
        tensors: gguf.tensors().len(),
        files: files.paths().len(),
        file_bytes: gguf.file_len(),
        context_tokens,
        sequences: options.sequences_max,
        needs_bytes,
        available_bytes: available,
        defaults_unused: defaults.unused.clone(),
        tokenizer: None,
    };
    Ok(Validated { gguf, files, foreign, vocab, template, defaults, model_hash, judged })
}

/// A vocabulary, if it is known, the source of a chat template, positions of a sequence, and memory.
type Found = (Option<Arc<dyn Vocab>>, Option<String>, usize, u64);

fn native(path: &Path, gguf: &Gguf, options: &LoadOptions) -> Result<Found, LoadError> {
    let vocab = super::tokenizer::Bpe::from_gguf(gguf)?;
    let unusable = |source| LoadError::Model { path: path.to_owned(), source };
    let hp = model::check(gguf, options.prediction).map_err(unusable)?;
    // Where there is a card, it says for itself what it cannot compute.
    if options.backend == Kind::Cpu || options.card.spared {
        super::cpu::supported(&hp, &options.cpu()).map_err(unusable)?;
    }
    let template = vocab.template();
    Ok((Some(Arc::new(vocab)), template, options.context_tokens, gguf.file_len() + NATIVE_SPARE_BYTES))
}

#[cfg(feature = "llama")]
fn by_library(files: &Files, gguf: &Gguf, options: &LoadOptions, available: Option<u64>) -> Result<Found, LoadError> {
    let (plan, template) = super::llama::examine(files.first(), &super::load::library_options(options), available)?;
    // What an embedding model kept of the model that it was made from is of no use.
    let template = template.filter(|_| !super::embedder::embeds(gguf));
    Ok((None, template, plan.context_tokens, plan.bytes.total()))
}

#[cfg(not(feature = "llama"))]
fn by_library(_: &Files, gguf: &Gguf, _: &LoadOptions, _: Option<u64>) -> Result<Found, LoadError> {
    Err(LoadError::NoLibrary(model::why_not_native(gguf).unwrap_or_default()))
}

/// Refuses a small tensor that holds what is no number: one of them makes every reply empty or endless.
fn finite(gguf: &Gguf, files: &Files) -> Result<(), LoadError> {
    let mut bytes = Vec::new();
    for tensor in gguf.tensors().iter().filter(|tensor| tensor.bytes() <= VALUES_BYTES_MAX) {
        bytes.resize(tensor.bytes() as usize, 0);
        files
            .read_at(&mut bytes, tensor.range.start)
            .map_err(|source| LoadError::Read { path: files.first().to_owned(), source })?;
        if let Some((at, found)) = broken(tensor, &bytes) {
            let (path, tensor) = (files.first().to_owned(), tensor.name.clone());
            return Err(LoadError::Value { path, tensor, at, found });
        }
    }
    Ok(())
}

/// The first value that is not finite.
fn broken(tensor: &TensorInfo, bytes: &[u8]) -> Option<(usize, f32)> {
    let first = |values: &mut dyn Iterator<Item = f32>| values.enumerate().find(|(_, value)| !value.is_finite());
    match tensor.dtype {
        DType::F32 => first(&mut bytes.as_chunks::<4>().0.iter().map(|raw| f32::from_le_bytes(*raw))),
        DType::F16 => first(&mut bytes.as_chunks::<2>().0.iter().map(|raw| half::f16::from_le_bytes(*raw).to_f32())),
        DType::BF16 => first(&mut bytes.as_chunks::<2>().0.iter().map(|raw| half::bf16::from_le_bytes(*raw).to_f32())),
        _ => None,
    }
}
