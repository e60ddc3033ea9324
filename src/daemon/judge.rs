//! The judge of finished replies as the configuration wants it: which files, how its engine is started, how its scores
//! are read. What is missing or wrong turns scoring off with a reason; it never stops the daemon.

use std::ffi::OsString;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use actix_rt::Arbiter;
use clap::ValueEnum;
use sha2::{Digest, Sha256};
use tokio::runtime::Handle;

use crate::actors::inference::{EXIT_TIMEOUT, EngineSpec};
use crate::actors::scorer::{AdapterFile, JudgeEngine, JudgeSettings};
use crate::actors::supervisor::{Budget, Place};
use crate::config::Config;
use crate::engine::embedder::embeds;
use crate::engine::load::{Kind, LoadError, vocabulary};
use crate::engine::model::why_not_native;
use crate::gguf::Gguf;
use crate::scoring::form::Asked;
use crate::scoring::prompt::VERIFY_TOKENS_MAX;
use crate::scoring::{Form, Reading};
use crate::store::files::{no_model, why_not};

const ADAPTER_FILE: &str = "nano-prm.gguf";
/// Positions of the judge's sequences: what it reads is bounded well below. What it may write beyond `nano-prm`'s few
/// words comes on top.
const CONTEXT_TOKENS: u32 = 4_096;
/// Requests that may wait, live and background each: every step of the turns and of the answers that are judged at once.
const WAITING: &str = "512";
/// Hexadecimal digits of the hash in the judge's name.
const NAME_DIGITS: usize = 16;

/// The files that make the judge.
struct Files {
    model: PathBuf,
    /// Written into every judgement.
    name: String,
    reading: Reading,
    adapter: Option<AdapterFile>,
}

/// The judge, not started, or why there is none.
pub(super) fn engine(config: &Config) -> Result<Arc<JudgeEngine>, String> {
    if !config.scorer.enabled {
        return Err("scoring is switched off (scorer.enabled)".to_owned());
    }
    let Files { model, name, reading, adapter } = files(config)?;
    let with = adapter.as_ref().map(|file| file.path.display().to_string());
    tracing::info!(path = %model.display(), adapter = with, "the judge");
    let budget = Budget { restarts_max: config.actor_restarts_max, window: config.actor_restarts_window };
    let settings =
        JudgeSettings { spec: spec(config, model)?, name, reading, form: config.judge.clone(), budget, adapter };
    Ok(Arc::new(JudgeEngine::new(settings, Place::Arbiter(Arbiter::new().handle()), Handle::current())))
}

/// What the judge is, for people, or why there is none; without starting it.
pub fn describe(config: &Config) -> Result<String, String> {
    let scorer = &config.scorer;
    if !scorer.enabled {
        return Ok("scoring is switched off (scorer.enabled)".to_owned());
    }
    // A place of the installation that holds no model is nobody's mistake, a file that was named is.
    let named = matches!(&scorer.model, Err(places) if places.len() == 1);
    let asked_for = named || scorer.adapter.is_some() || config.judge != Form::default();
    let files = match files(config) {
        Ok(files) => files,
        Err(why) if asked_for => return Err(why),
        Err(why) => return Ok(format!("none: {why}")),
    };
    let shown = files.model.display();
    let wrong = |why: &dyn std::fmt::Display| format!("{shown}: {why}");
    let gguf = Gguf::open(&files.model).map_err(|error| wrong(&error))?;
    let architecture = gguf.architecture().map_err(|error| wrong(&error))?;
    let foreign = why_not_native(&gguf);
    let native = foreign.is_none();
    if let ("cpu", Some(reason)) = (scorer.backend.as_str(), foreign) {
        return Err(wrong(&LoadError::NotNative(reason)));
    }
    let backend = Kind::from_str(&scorer.backend, true)?;
    let vocab = vocabulary(&files.model, &gguf, backend).map_err(|error| wrong(&error))?;
    let form = &config.judge;
    form.fits(vocab.template().is_some(), embeds(&gguf)).map_err(|error| wrong(&error))?;
    form.labels(vocab.as_ref()).map_err(|error| wrong(&error))?;
    let by = if native && scorer.backend != "llama" { "native" } else { "by libllama" };
    let adapter = files.adapter.map(|file| format!(" with {}", file.path.display())).unwrap_or_default();
    Ok(format!("{shown}: {architecture}, {by}{adapter}; {form}"))
}

fn files(config: &Config) -> Result<Files, String> {
    let scorer = &config.scorer;
    let model = scorer.model.clone();
    let model = model.map_err(|paths| format!("for the judge {}", no_model(&paths)))?;
    let named = adapter(scorer.adapter.as_deref(), &model, &config.judge)?;
    let (name, reading, adapter) = match named.map(described).transpose()? {
        Some((reading, file)) => (format!("nano-prm:{}", &file.sha256[..NAME_DIGITS]), reading, Some(file)),
        // A whole model as judge says nothing of its calibration.
        None => {
            let name = model.file_name().map(|name| name.to_string_lossy().into_owned());
            (name.unwrap_or_default(), Reading::default(), None)
        }
    };
    Ok(Files { model, name, reading, adapter })
}

/// The adapter that was named, else the one beside the model. A model that was named may be a judge by itself, and one
/// that is asked in other words than `nano-prm` is.
fn adapter(named: Option<&Path>, model: &Path, form: &Form) -> Result<Option<PathBuf>, String> {
    if let Some(path) = named {
        return if path.is_file() {
            Ok(Some(path.to_owned()))
        } else {
            Err(format!("{} {}", path.display(), why_not(path).unwrap_or_else(|| "is not there".to_owned())))
        };
    }
    if form.asked != Asked::Nano {
        return Ok(None);
    }
    let beside = model.with_file_name(ADAPTER_FILE);
    if beside.is_file() {
        return Ok(Some(beside));
    }
    match model.file_name() {
        Some(name) if name == "nano.gguf" => {
            let why = why_not(&beside).unwrap_or_else(|| "is missing".to_owned());
            Err(format!("no judge is installed: {} {why}", beside.display()))
        }
        _ => Ok(None),
    }
}

/// How an adapter's scores are read, and the file.
fn described(path: PathBuf) -> Result<(Reading, AdapterFile), String> {
    let wrong = |why: String| format!("the judge's adapter {} cannot be used: {why}", path.display());
    let gguf = Gguf::open(&path).map_err(|e| wrong(e.to_string()))?;
    let reading = Reading::of_adapter(&gguf).map_err(|e| wrong(e.to_string()))?;
    let mut hash = Sha256::new();
    let mut file = File::open(&path).map_err(|e| wrong(e.to_string()))?;
    std::io::copy(&mut file, &mut hash).map_err(|e| wrong(e.to_string()))?;
    let sha256 = hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
    Ok((reading, AdapterFile { path, sha256 }))
}

fn spec(config: &Config, model: PathBuf) -> Result<EngineSpec, String> {
    let scorer = &config.scorer;
    let mut args: Vec<OsString> = vec!["engine".into()];
    args.extend(config.low_priority.then(|| "--background".into()));
    args.push("--adapters".into());
    args.push("--spare-card".into());
    args.extend(["--kernels".into(), config.kernels_cache().into_os_string()]);
    if let Some(folder) = &config.engine.kernels {
        args.extend(["--shipped-kernels".into(), folder.clone().into_os_string()]);
    }
    // One more: background work leaves a sequence free, for answers that a client waits for.
    let (threads, sequences) = (scorer.threads.to_string(), (scorer.sequences.get() + 1).to_string());
    for (name, value) in [("--backend", scorer.backend.as_str()), ("--threads", &threads), ("--sequences", &sequences)]
    {
        args.extend([name.into(), value.into()]);
    }
    let context = CONTEXT_TOKENS + config.judge.think_tokens.saturating_sub(VERIFY_TOKENS_MAX);
    args.extend(["--context", &context.to_string(), "--waiting", WAITING].map(OsString::from));
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
