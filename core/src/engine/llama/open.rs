//! From a file to a model that the library hosts: what can be judged without its weights first.

use std::path::Path;
use std::sync::Arc;

use chimere_ffi::ggml::llama::{self, Batch, Context, ContextOptions, Hidden, Model, ModelOptions};

use super::crew::Crew;
use super::plan::{self, Plan};
use super::{CALL_TOKENS_MAX, Held, Llama, LlamaOptions, LlamaVocab, embed, facts, log_line};
use crate::engine::backend::BackendError;
use crate::engine::embedder;
use crate::engine::machine;
use crate::gguf::Gguf;

fn load_error(error: impl std::fmt::Display) -> BackendError {
    BackendError::Load(error.to_string())
}

/// The model's header as the library will read it.
fn opened(path: &Path) -> Result<Gguf, BackendError> {
    llama::set_sink(log_line);
    let gguf = Gguf::open(path).map_err(load_error)?;
    facts::check(&gguf).map_err(BackendError::Load)?;
    Ok(gguf)
}

fn model(path: &Path, options: &ModelOptions, report: &mut dyn FnMut(f32) -> bool) -> Result<Arc<Model>, BackendError> {
    let model = Model::load(path, options, report).map_err(load_error)?;
    match model.has_encoder() {
        true => Err(BackendError::Load("models with an encoder and a decoder are not supported".into())),
        false => Ok(model),
    }
}

/// How the weights are loaded.
fn model_options(gguf: &Gguf, options: &LlamaOptions) -> ModelOptions {
    // Kernels for AMX crash in builds by GCC 12, so a library that has them keeps plain weights.
    let amx = llama::system_info().contains("AMX_INT8 = 1");
    let mtp = facts::mtp_layers(gguf) == 1;
    ModelOptions { use_extra_bufts: !options.exact && !amx, mtp, ..ModelOptions::default() }
}

fn context_options(gguf: &Gguf, model: &Model, options: &LlamaOptions) -> ContextOptions {
    let threads = options.threads.min(machine::physical_cores());
    let context = ContextOptions {
        positions: if options.context_tokens == 0 { model.trained_context() } else { options.context_tokens },
        sequences: options.sequences_max,
        batch: CALL_TOKENS_MAX.max(options.sequences_max),
        micro_batch: CALL_TOKENS_MAX.max(options.sequences_max),
        threads,
        threads_batch: threads,
        embeddings: false,
        mtp: false,
        hidden: Hidden::No,
        exact_cache: options.exact,
    };
    if embedder::embeds(gguf) { embed::fit(context, gguf, model) } else { context }
}

/// Checks the header and every tensor's shape as a load would, and plans the memory: of `available` bytes, if that is
/// known. Also gives the file's chat template.
pub fn examine(
    path: &Path,
    options: &LlamaOptions,
    available: Option<u64>,
) -> Result<(Plan, Option<String>), BackendError> {
    let gguf = opened(path)?;
    let weightless = ModelOptions { no_alloc: true, ..model_options(&gguf, options) };
    let model = model(path, &weightless, &mut |_| true)?;
    let context = context_options(&gguf, &model, options);
    let free_choice = options.context_tokens == 0 && !embedder::embeds(&gguf);
    let plan = plan::plan(&model, context, free_choice, available)?;
    Ok((plan, model.chat_template(None)))
}

/// Loads the model at `path`: the backend and its vocabulary.
pub fn load(
    path: &Path,
    options: &LlamaOptions,
    progress: &mut dyn FnMut(f32),
) -> Result<(Llama, LlamaVocab), BackendError> {
    let (plan, _) = examine(path, options, machine::available_bytes())?;
    load_planned(path, &LlamaOptions { context_tokens: plan.context_tokens, ..*options }, progress)
}

/// As [`load`], with a context that is known to fit.
pub fn load_planned(
    path: &Path,
    options: &LlamaOptions,
    progress: &mut dyn FnMut(f32),
) -> Result<(Llama, LlamaVocab), BackendError> {
    let gguf = opened(path)?;
    let model_options = model_options(&gguf, options);
    let mut report = |part: f32| {
        progress(part);
        true
    };
    let model = model(path, &model_options, &mut report)?;
    let embedding_only = embedder::embeds(&gguf);
    let context = context_options(&gguf, &model, options);
    let trunk = Context::new(&model, context).map_err(load_error)?;
    let mut info = facts::info(&gguf, path, &model);
    // The library rounds up, beyond what an embedding model has.
    info.context_tokens = if embedding_only { context.positions } else { trunk.positions() };
    info.sequences_max = options.sequences_max;
    info.mtp = model_options.mtp;
    info.embedding_only = embedding_only;
    if embedding_only {
        info.width = model.embedding_width();
    }
    let pooling = embedding_only.then(|| embedder::pooling(&gguf));
    let held = vec![Held::default(); options.sequences_max];
    let vocab = LlamaVocab::new(model);
    let backend = Llama {
        trunk,
        draft: None,
        info,
        pooling,
        held,
        adapters: Vec::new(),
        next_adapter: 0,
        batch: Batch::default(),
        crew: Crew::new(context.threads),
    };
    Ok((backend, vocab))
}

/// The vocabulary of the model at `path`, without its weights.
pub fn vocab(path: &Path) -> Result<LlamaVocab, BackendError> {
    opened(path)?;
    let options = ModelOptions { vocab_only: true, ..ModelOptions::default() };
    let model = Model::load(path, &options, &mut |_| true).map_err(load_error)?;
    Ok(LlamaVocab::new(model))
}
