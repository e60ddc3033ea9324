//! The configured embedding model: a table of token vectors in this process, or any other embedding model in an
//! auxiliary engine. What is missing or wrong leaves it out with a reason; it never stops the daemon.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use actix_rt::Arbiter;
use sha2::{Digest, Sha256};
use tokio::runtime::Handle;

use crate::actors::embedder::{EmbedEngine, EmbedSettings};
use crate::actors::inference::{EXIT_TIMEOUT, EngineSpec};
use crate::actors::supervisor::{Budget, Place};
use crate::config::Config;
use crate::embed::embedder::{Embedder, HostFacts, Unembedded};
use crate::embed::model::{ARCHITECTURE, FILE};
use crate::embed::{Examples, Static};
use crate::engine::embedder::{EmbedderFacts, TOKENS_DEFAULT, facts};
use crate::engine::load::model_hash;
use crate::gguf::Gguf;

/// Between two tries to make an index anew.
const RENEW_PAUSE: Duration = Duration::from_secs(5);
/// Longest wait for the engine in one of them.
const RENEW_WAIT: Duration = Duration::from_secs(3_600);

/// An embedding model, and its engine where it has one.
pub(super) struct Embedding {
    /// `Err`: why there is none.
    pub(super) embedder: Result<Arc<Embedder>, String>,
    pub(super) engine: Option<Arc<EmbedEngine>>,
}

/// What a file is.
enum File {
    Table(Box<Static>),
    Hosted { facts: EmbedderFacts, tokens_max: usize, model_hash: String },
}

/// The embedding model, its engine started.
pub(super) fn open(config: &Config) -> Embedding {
    let read = file(config).and_then(|path| Ok((read(config, &path)?, path)));
    let prefixes = config.embed.prefixes.clone();
    let (read, path) = match read {
        Ok(read) => read,
        Err(why) => return Embedding { embedder: Err(why), engine: None },
    };
    tracing::info!(path = %path.display(), "the embedding model");
    match read {
        File::Table(table) => Embedding { embedder: Ok(Arc::new(Embedder::of_table(*table, prefixes))), engine: None },
        File::Hosted { facts, tokens_max, model_hash } => {
            let EmbedderFacts { name, architecture, width, .. } = facts;
            // What is read of a long text is part of what its vector is.
            let digest = Sha256::digest(format!("{model_hash} {tokens_max}")).into();
            let facts = HostFacts { name, architecture, width, tokens_max, digest };
            let budget = Budget { restarts_max: config.actor_restarts_max, window: config.actor_restarts_window };
            let spec = match spec(config, path, tokens_max) {
                Ok(spec) => spec,
                Err(why) => return Embedding { embedder: Err(why), engine: None },
            };
            let settings = EmbedSettings { spec, budget, facts, model_hash };
            let place = Place::Arbiter(Arbiter::new().handle());
            let engine = Arc::new(EmbedEngine::new(settings, place, Handle::current()));
            engine.start();
            let embedder = Embedder::hosted(engine.clone(), prefixes, config.embed.query_timeout);
            Embedding { embedder: Ok(Arc::new(embedder)), engine: Some(engine) }
        }
    }
}

/// The file that was named, else the one beside the model, else the one that came with the program.
pub fn file(config: &Config) -> Result<PathBuf, String> {
    let beside = config.model.as_ref().ok().map(|model| model.with_file_name(FILE));
    let there = || beside.clone().filter(|path| path.is_file());
    let none = || {
        let looked = match &beside {
            Some(place) => format!("neither {} nor the installation's {FILE} is there: put one there", place.display()),
            None => format!("there is no model beside which {FILE} could lie: name a model (`model.path`)"),
        };
        format!("no embedding model: {looked}, or name another file (`embed.model`, CHIMERE_EMBED_MODEL)")
    };
    config.embed.model.clone().or_else(there).or_else(|| config.embed.shipped.clone()).ok_or_else(none)
}

/// What the embedding model is, for people, or why there is none; without starting it.
pub fn describe(config: &Config) -> Result<String, String> {
    let path = match file(config) {
        Ok(path) => path,
        // Nobody asked for one.
        Err(none) => return Ok(none),
    };
    let shown = path.display();
    Ok(match read(config, &path)? {
        File::Table(table) => format!("{shown}: a table, vectors of {} values", table.width()),
        File::Hosted { facts, tokens_max, .. } => format!(
            "{shown}: {}, vectors of {} values ({}), {tokens_max} tokens of a text; in an engine of its own",
            facts.architecture,
            facts.width,
            facts.pooling.name()
        ),
    })
}

fn read(config: &Config, path: &Path) -> Result<File, String> {
    let wrong = |why: String| format!("{}: {why}", path.display());
    let gguf = Gguf::open(path).map_err(|error| wrong(error.to_string()))?;
    let architecture = gguf.architecture().map_err(|error| wrong(error.to_string()))?;
    if architecture == ARCHITECTURE {
        return Static::open(path).map(Box::new).map(File::Table).map_err(|error| wrong(error.to_string()));
    }
    let facts = facts(&gguf, path).map_err(|why| wrong(format!("it is no embedding model: {why}")))?;
    if cfg!(not(feature = "llama")) {
        return Err(wrong(format!(
            "an embedding model of architecture {architecture} is hosted by libllama, which this build does not have: build \
             it with the feature `llama`, or name a table of token vectors ({ARCHITECTURE})"
        )));
    }
    let wanted = config.embed.context_tokens.map_or(TOKENS_DEFAULT, usize::from);
    let model_hash = model_hash(path, &gguf).map_err(|error| wrong(error.to_string()))?;
    Ok(File::Hosted { tokens_max: wanted.min(facts.trained_tokens), facts, model_hash })
}

fn spec(config: &Config, model: PathBuf, tokens_max: usize) -> Result<EngineSpec, String> {
    let (threads, context) = (config.embed.threads.to_string(), tokens_max.to_string());
    let mut args: Vec<OsString> = vec!["engine".into()];
    for (name, value) in
        [("--backend", "llama"), ("--threads", &threads), ("--context", &context), ("--sequences", "1")]
    {
        args.extend([name.into(), value.into()]);
    }
    Ok(EngineSpec {
        program: crate::program::own().map_err(|error| error.to_string())?,
        args,
        model,
        instead: None,
        load_timeout: config.engine.load_timeout,
        stall_timeout: config.engine.stall_timeout,
        exit_timeout: EXIT_TIMEOUT,
        first_start_attempts: config.engine.first_start_attempts,
    })
}

/// Makes the index that another embedding model left anew by the present one, once that answers.
pub(super) async fn renew(examples: Arc<Examples>) {
    let Ok(embedder) = examples.embedder() else { return };
    while let Some((found, forgotten)) = examples.outdated() {
        let made = match embedder.ready(RENEW_WAIT).await {
            Ok(()) => embedder.index(found, &examples.index()).await,
            Err(why) => Err(why),
        };
        match made {
            Ok(index) => {
                let (target, count) = (examples.clone(), index.examples().len());
                let taken = tokio::task::spawn_blocking(move || target.renew(index, forgotten)).await;
                match taken {
                    Ok(Ok(true)) => {
                        return tracing::info!(examples = count, "the index was made by the present embedding model");
                    }
                    Ok(Ok(false)) => continue,
                    Ok(Err(error)) => tracing::error!(%error, "the index of verified exchanges cannot be made anew"),
                    Err(error) => tracing::error!(%error, "the index of verified exchanges cannot be made anew"),
                }
            }
            Err(why @ Unembedded::Never(_)) => return tracing::error!(%why, "no verified exchange is shown"),
            Err(why) => tracing::warn!(%why, "the index of verified exchanges is not made anew yet"),
        }
        tokio::time::sleep(RENEW_PAUSE).await;
    }
}
