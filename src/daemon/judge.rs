//! The judge of finished replies as the configuration wants it: which files, how its engine is started, how its scores
//! are read. What is missing or wrong turns scoring off with a reason; it never stops the daemon.

use std::ffi::OsString;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use actix_rt::Arbiter;
use sha2::{Digest, Sha256};
use tokio::runtime::Handle;

use crate::actors::inference::{EXIT_TIMEOUT, EngineSpec};
use crate::actors::scorer::{AdapterFile, JudgeEngine, JudgeSettings};
use crate::actors::supervisor::{Budget, Place};
use crate::config::Config;
use crate::gguf::Gguf;
use crate::scoring::Reading;

const ADAPTER_FILE: &str = "nano-prm.gguf";
/// Positions of the judge's sequences: its prompts are bounded well below.
const CONTEXT_TOKENS: &str = "4096";
/// Requests that may wait, live and background each: every step of the turns and of the answers that are judged at once.
const WAITING: &str = "512";
/// Hexadecimal digits of the hash in the judge's name.
const NAME_DIGITS: usize = 16;

/// The judge, not started, or why there is none.
pub(super) fn engine(config: &Config) -> Result<Arc<JudgeEngine>, String> {
    let scorer = &config.scorer;
    if !scorer.enabled {
        return Err("scoring is switched off (scorer.enabled)".to_owned());
    }
    let model = scorer.model.clone().map_err(|places| {
        let places: Vec<String> = places.iter().map(|p| p.display().to_string()).collect();
        format!("no model for the judge: looked for {}", places.join(", "))
    })?;
    let named = adapter(scorer.adapter.as_deref(), &model)?;
    let described = named.map(described).transpose()?;
    let (name, reading, adapter) = match described {
        Some((reading, file)) => (format!("nano-prm:{}", &file.sha256[..NAME_DIGITS]), reading, Some(file)),
        // A whole model as judge says nothing of its calibration.
        None => {
            let name = model.file_name().map(|name| name.to_string_lossy().into_owned());
            (name.unwrap_or_default(), Reading::default(), None)
        }
    };
    let budget = Budget { restarts_max: config.actor_restarts_max, window: config.actor_restarts_window };
    let settings = JudgeSettings { spec: spec(config, model)?, name, reading, budget, adapter };
    Ok(Arc::new(JudgeEngine::new(settings, Place::Arbiter(Arbiter::new().handle()), Handle::current())))
}

/// The adapter that was named, else the one beside the model. A model that was named may be a judge by itself.
fn adapter(named: Option<&Path>, model: &Path) -> Result<Option<PathBuf>, String> {
    if let Some(path) = named {
        return if path.is_file() { Ok(Some(path.to_owned())) } else { Err(format!("{} is no file", path.display())) };
    }
    let beside = model.with_file_name(ADAPTER_FILE);
    if beside.is_file() {
        return Ok(Some(beside));
    }
    match model.file_name() {
        Some(name) if name == "nano.gguf" => Err(format!("no judge is installed: {} is missing", beside.display())),
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
    args.extend(["--context", CONTEXT_TOKENS, "--waiting", WAITING].map(OsString::from));
    Ok(EngineSpec {
        program: std::env::current_exe().map_err(|error| error.to_string())?,
        args,
        model,
        instead: None,
        load_timeout: config.engine.load_timeout,
        stall_timeout: config.engine.stall_timeout,
        exit_timeout: EXIT_TIMEOUT,
        first_start_attempts: config.engine.first_start_attempts,
    })
}
