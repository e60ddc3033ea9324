//! From a model file to something the step loop can run: the architecture in the header picks the implementation.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use sha2::{Digest, Sha256};

use super::adapter::BaseModel;
use super::backend::{Backend, BackendError};
use super::cpu::CpuOptions;
use super::cuda::CudaOptions;
use super::grammar::holds_calls;
use super::prefix::Keeper;
use super::protocol::Hosted;
use super::template::{self, ChatTemplate, TemplateError};
use super::thought::ThoughtMarks;
use super::tool_prompt::ToolWays;
use super::validate::{self, EMBEDS, Validated};
use super::vocab::{TOOL_TEMPLATE, Vocab, fingerprint};
use crate::gguf::{Files, Gguf};
use chimere_ffi::{CacheTypes, KvType};

/// Which implementation runs the model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Kind {
    /// Native where there is one, on a card where one serves, else the library.
    #[default]
    Auto,
    /// Our own forward pass on the CPU (architectures qwen35moe and qwen35).
    Cpu,
    /// Our own forward pass on an NVIDIA card (architectures qwen35moe and qwen35).
    Cuda,
    /// libllama.
    Llama,
}

#[derive(Clone, Debug)]
pub struct LoadOptions {
    pub backend: Kind,
    pub threads: usize,
    pub context_tokens: usize,
    pub sequences_max: usize,
    /// The prediction block is loaded too, if a native model has one.
    pub prediction: bool,
    /// Numbers before speed: keys and values in f32 where nobody says otherwise, and in the library no rearranged weights.
    pub exact: bool,
    /// What native models keep keys, values and states as.
    pub cache: CacheTypes,
    pub card: CardOptions,
    /// The program of ours that judges the chat template in a throw-away process (`engine --vet`); absent: judged in
    /// this process.
    pub vet_with: Option<PathBuf>,
}

impl LoadOptions {
    /// As the backend of the processor wants them.
    pub(super) fn cpu(&self) -> CpuOptions {
        CpuOptions {
            threads: self.threads,
            context_tokens: self.context_tokens,
            sequences_max: self.sequences_max,
            kv: self.cache.kv.unwrap_or(KvType::F32),
            state: self.cache.state,
            prediction: self.prediction,
        }
    }

    /// As the backend of a card wants them.
    pub fn cuda(&self) -> CudaOptions {
        let card = self.card.clone();
        CudaOptions {
            threads: self.threads,
            context_tokens: self.context_tokens,
            sequences_max: self.sequences_max,
            kv: self.cache.kv.unwrap_or(if self.exact { KvType::F32 } else { KvType::F16 }),
            state: self.cache.state,
            memory_bytes_max: card.memory_bytes_max,
            pinned_bytes_max: card.pinned_bytes_max,
            resident_percent_min: if self.backend == Kind::Auto { AUTO_RESIDENT_PERCENT_MIN } else { 0 },
            adapters: card.adapters,
            prediction: self.prediction,
            cache: card.cache,
            shipped: card.shipped,
            emulated: card.emulated,
            fault: card.fault,
        }
    }
}

/// What is said of an NVIDIA card, if one is used.
#[derive(Clone, Debug, Default)]
pub struct CardOptions {
    /// Folder for kernels compiled for the card; absent: compiled at each start.
    pub cache: Option<PathBuf>,
    /// Folder of kernels that came with the program.
    pub shipped: Option<PathBuf>,
    /// Device memory that may be used; 0 = what is free.
    pub memory_bytes_max: u64,
    /// Memory of the host that may be pinned for it; 0 = three quarters of what is available.
    pub pinned_bytes_max: u64,
    /// Adapters will be put on the model: a card without room for some is refused.
    pub adapters: bool,
    /// The card belongs to another engine: [`Kind::Auto`] stays on the processor.
    pub spared: bool,
    /// For tests: the kernels compiled for the processor, in place of a card, and the file whose presence fails it.
    pub emulated: Option<PathBuf>,
    pub fault: Option<PathBuf>,
}

/// A model ready to be hosted.
pub struct Loaded {
    pub backend: Box<dyn Backend>,
    pub vocab: Arc<dyn Vocab>,
    pub template: Option<ChatTemplate>,
    pub hosted: Hosted,
    /// What adapters must fit.
    pub base: BaseModel,
    /// As in [`LoadOptions`]: it also examines the forms that requests ask of their answers (`engine --vet-grammar`).
    pub vet_with: Option<PathBuf>,
    /// Where prompt prefixes outlive the engine, if they do.
    pub keeper: Option<Keeper>,
}

#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    #[error("cannot read the model {path}: {source}")]
    Gguf { path: PathBuf, source: crate::gguf::Error },
    #[error("cannot read the model {path}: {source}")]
    Read { path: PathBuf, source: std::io::Error },
    #[error("{path}: {source}")]
    Model { path: PathBuf, source: super::model::ModelError },
    #[error(
        "{path} is no model, but goes with one: it says that it is of the type `{kind}`; name the model that it is for"
    )]
    NoModel { path: PathBuf, kind: String },
    #[error("{0}: {EMBEDS}")]
    Embeds(PathBuf),
    #[error("{0} holds no tensors: it is a vocabulary or a header without its model")]
    NoTensors(PathBuf),
    #[error("{path}: value {at} of tensor \"{tensor}\" is {found}: download or convert the model again")]
    Value { path: PathBuf, tensor: String, at: usize, found: f32 },
    #[error(transparent)]
    Backend(#[from] BackendError),
    #[error(transparent)]
    Vocab(#[from] super::vocab::VocabError),
    #[error("the model's chat template is refused: {0}")]
    Template(#[from] TemplateError),
    #[error("{0}: run the file with the llama backend (engine.backend, --backend)")]
    NotNative(String),
    #[error(
        "this build has no libllama, and runs only what has a native implementation, not {0}: build it with the feature `llama`"
    )]
    NoLibrary(String),
}

/// Experts that must fit on a card for [`Kind::Auto`] to take it: with fewer, most of what a token reads comes over the
/// bus, which is no faster than the processor's own way to its memory.
const AUTO_RESIDENT_PERCENT_MIN: u64 = 25;

/// Bytes of each tensor's start that go into the model hash, beside the whole header.
const HASH_SAMPLE_BYTES: u64 = 4096;

/// Loads a model. `progress` is told 0 … 1.
pub fn load(path: &Path, options: &LoadOptions, progress: &mut dyn FnMut(f32)) -> Result<Loaded, LoadError> {
    let began = Instant::now();
    let Validated { gguf, files, foreign, vocab, template, defaults, model_hash, judged } =
        validate::opened(path, options, 0)?;
    let path = files.first();
    let frozen = judged.frozen;
    let (backend, vocab): Parts = match (options.backend, vocab) {
        (Kind::Cuda, Some(vocab)) => (native_cuda(path, options, progress)?, vocab),
        (Kind::Cpu, Some(vocab)) => (native_cpu(path, options, progress)?, vocab),
        (_, Some(vocab)) => (native_auto(path, options, progress)?, vocab),
        (_, None) => {
            let parts = library(path, foreign.clone(), options, judged.context_tokens, progress)?;
            if let (Kind::Auto, Some(reason)) = (options.backend, foreign) {
                tracing::info!(reason, "computing on the processor, with the library");
            }
            parts
        }
    };
    let template_hash = vocab.template().map(|source| hex(&Sha256::digest(source))).unwrap_or_default();
    let base = BaseModel::new(&gguf, &model_hash);
    if let Some(why) = &defaults.unused {
        tracing::warn!(why, "the defaults beside the weights cannot be used");
    }
    let ways = ToolWays::of(vocab.as_ref(), template.as_ref());
    if template.is_some() {
        tracing::info!("{}", ways.told());
    }
    let hosted = Hosted {
        calls: ways.format.name.to_owned(),
        holds_calls: holds_calls(vocab.as_ref()),
        model: backend.info().clone(),
        defaults,
        model_hash,
        template_hash,
        tokenizer_hash: hex(&fingerprint(vocab.as_ref())),
        thinks: ThoughtMarks::of(vocab.as_ref()).is_some(),
        steered_by: steered_by(vocab.as_ref(), template.as_ref()),
        chats: template.is_some(),
        frozen,
        load_ms: began.elapsed().as_millis() as u64,
    };
    Ok(Loaded { backend, vocab, template, hosted, base, vet_with: options.vet_with.clone(), keeper: None })
}

/// The parameters that change a reply's thought: by the tokens around it, or by variables of the template.
fn steered_by(vocab: &dyn Vocab, template: Option<&ChatTemplate>) -> Vec<String> {
    let bounded = super::control::bounds_thought(vocab);
    let asks = |name: &str| template.is_some_and(|template| template.asks_for(name));
    let switched = bounded || ["enable_thinking", "thinking", "thinking_budget"].into_iter().any(asks);
    let parameters = [
        ("reasoning_effort", switched || asks("reasoning_effort")),
        ("enable_thinking", switched),
        ("thinking_budget", switched),
        ("chimere.thought", ThoughtMarks::of(vocab).is_some()),
    ];
    parameters.into_iter().filter(|(_, steers)| *steers).map(|(name, _)| name.to_owned()).collect()
}

/// A native model's tokenizer and chat template, without its weights. `vet_with` as in [`LoadOptions`].
pub fn text(gguf: &Gguf, vet_with: Option<PathBuf>) -> Result<(Arc<dyn Vocab>, Option<ChatTemplate>), LoadError> {
    if let Some(what) = super::model::why_not_native(gguf) {
        return Err(LoadError::NotNative(what));
    }
    let vocab = super::tokenizer::Bpe::from_gguf(gguf)?;
    let template = vocab.template().map(|source| chat_template(&source, gguf, vet_with.as_deref())).transpose()?;
    Ok((Arc::new(vocab), template))
}

/// A model's vocabulary as an engine of this backend reads it, without the weights: by the library where that hosts the model.
pub fn vocabulary(path: &Path, gguf: &Gguf, backend: Kind) -> Result<Arc<dyn Vocab>, LoadError> {
    if backend != Kind::Llama && super::model::is_native(gguf) {
        return Ok(Arc::new(super::tokenizer::Bpe::from_gguf(gguf)?));
    }
    by_library(path, gguf)
}

/// Templates come from a stranger: each is tried on probe conversations before anything depends on it. With one that takes
/// none of them a model is hosted all the same: a chat is refused with the template's own reason.
pub(super) fn chat_template(source: &str, gguf: &Gguf, vet_with: Option<&Path>) -> Result<ChatTemplate, TemplateError> {
    if source.trim().is_empty() {
        let why = "the file's `tokenizer.chat_template` is empty: convert the model again with its template, or without the key";
        return Err(TemplateError::Refused(why.to_owned()));
    }
    let good = |source: &str| {
        match vet_with {
            Some(program) => template::vet_apart(program, &["engine", "--vet"], source)?,
            None => template::vet(source)?,
        }
        ChatTemplate::load(source)
    };
    let tool_use = gguf.optional::<&str>(TOOL_TEMPLATE).ok().flatten().and_then(|source| {
        // Without it conversations with tools are shown by the other template, as if it were not there.
        let taken = good(source).and_then(|template| match template::takes_none(&template) {
            Some(why) => Err(TemplateError::Refused(format!("it takes none of the sample conversations: {why}"))),
            None => Ok(template),
        });
        taken.inspect_err(|error| tracing::warn!(%error, "the template for tools is not used")).ok()
    });
    let own = good(source)?;
    if let Some(why) = template::takes_none(&own) {
        tracing::warn!(
            why,
            "the chat template takes none of the sample conversations: chats are refused, completions are answered"
        );
    }
    Ok(own.with_tool_use(tool_use))
}

type Parts = (Box<dyn Backend>, Arc<dyn Vocab>);

/// On a card where one serves; where none does, one line says why.
fn native_auto(
    path: &Path,
    options: &LoadOptions,
    progress: &mut dyn FnMut(f32),
) -> Result<Box<dyn Backend>, LoadError> {
    let reason = match options.card.spared {
        true => "the card is left to the model that serves".to_owned(),
        false => match native_cuda(path, options, progress) {
            Ok(backend) => {
                let device = &backend.info().device;
                tracing::info!(device, "computing on the card, where the model is native and fits");
                return Ok(backend);
            }
            Err(error) => error.to_string(),
        },
    };
    tracing::info!(reason, "computing on the processor");
    native_cpu(path, options, progress)
}

fn native_cpu(
    path: &Path,
    options: &LoadOptions,
    progress: &mut dyn FnMut(f32),
) -> Result<Box<dyn Backend>, LoadError> {
    Ok(Box::new(super::cpu::Cpu::load(path, &options.cpu(), progress)?))
}

fn native_cuda(
    path: &Path,
    options: &LoadOptions,
    progress: &mut dyn FnMut(f32),
) -> Result<Box<dyn Backend>, LoadError> {
    Ok(Box::new(super::cuda::Cuda::load(path, &options.cuda(), progress)?))
}

#[cfg(feature = "llama")]
pub(super) fn library_options(options: &LoadOptions) -> super::llama::LlamaOptions {
    super::llama::LlamaOptions {
        threads: options.threads,
        context_tokens: options.context_tokens,
        sequences_max: options.sequences_max,
        exact: options.exact,
    }
}

/// With a context that was found to fit.
#[cfg(feature = "llama")]
fn library(
    path: &Path,
    _: Option<String>,
    options: &LoadOptions,
    context_tokens: usize,
    progress: &mut dyn FnMut(f32),
) -> Result<Parts, LoadError> {
    let options = super::llama::LlamaOptions { context_tokens, ..library_options(options) };
    let (backend, vocab) = super::llama::load_planned(path, &options, progress)?;
    Ok((Box::new(backend), Arc::new(vocab)))
}

#[cfg(not(feature = "llama"))]
fn library(
    _: &Path,
    what: Option<String>,
    _: &LoadOptions,
    _: usize,
    _: &mut dyn FnMut(f32),
) -> Result<Parts, LoadError> {
    Err(LoadError::NoLibrary(what.unwrap_or_default()))
}

#[cfg(feature = "llama")]
fn by_library(path: &Path, _: &Gguf) -> Result<Arc<dyn Vocab>, LoadError> {
    Ok(Arc::new(super::llama::vocab(path)?))
}

#[cfg(not(feature = "llama"))]
fn by_library(_: &Path, gguf: &Gguf) -> Result<Arc<dyn Vocab>, LoadError> {
    Err(LoadError::NoLibrary(super::model::why_not_native(gguf).unwrap_or_default()))
}

/// SHA-256 over the headers and the first bytes of every tensor: tells two models apart without reading gigabytes.
pub fn model_hash(path: &Path, gguf: &Gguf) -> std::io::Result<String> {
    let (_, files) = Files::open(path).map_err(std::io::Error::other)?;
    hash(&files, gguf)
}

pub(super) fn hash(files: &Files, gguf: &Gguf) -> std::io::Result<String> {
    let mut hash = Sha256::new();
    for header in files.headers() {
        hash.update(header?);
    }
    hash.update(gguf.file_len().to_le_bytes());
    let mut buffer = Vec::new();
    for tensor in gguf.tensors() {
        buffer.resize(tensor.bytes().min(HASH_SAMPLE_BYTES) as usize, 0);
        files.read_at(&mut buffer, tensor.range.start)?;
        hash.update(&buffer);
    }
    Ok(hex(&hash.finalize()))
}

/// Lower-case hexadecimal.
pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::engine::protocol::ChatInput;
    use crate::gguf::Layout;

    #[test]
    fn the_files_template_for_tools_is_used_where_there_are_tools_and_it_is_good() {
        let never = "{{ raise_exception('never') }}";
        for (tool_use, expected) in [("tools {{ tools|length }}", "tools 1"), ("{% if %}", "plain"), (never, "plain")] {
            let mut layout = Layout::new();
            layout.set(TOOL_TEMPLATE, tool_use).unwrap();
            let header = layout.header();
            let gguf = Gguf::read(header.as_slice(), header.len() as u64).unwrap();
            let template = chat_template("plain", &gguf, None).unwrap();
            let shown = |tools: Vec<serde_json::Value>| {
                let chat = ChatInput { tools: tools.clone(), ..ChatInput::default() };
                template.of(&chat).render(json!({"tools": tools}), "").unwrap()
            };
            assert_eq!((shown(Vec::new()).as_str(), shown(vec![json!({})]).as_str()), ("plain", expected));
        }
    }
}
