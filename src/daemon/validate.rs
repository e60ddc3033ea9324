//! The judgement of a model file, by a throw-away engine that reads its header and loads no weights. Whatever harm the
//! file does to the code that reads it, it does it there. `check`, `doctor` and a change of the model ask here, and the
//! engine that is to serve the file judges by the same rules.

use std::fs;
use std::path::Path;

use clap::ValueEnum;

use crate::config::Config;
use crate::engine::load::{Kind, LoadOptions};
use crate::engine::validate::{EMBEDS, Judged, validate, validate_apart};

/// Judges the file at `path` as an engine of this configuration would that is to serve it. `program`: ours, to be started for it; absent: it is
/// judged in this process. `freed_bytes`: memory that will be free before the model is loaded.
pub fn judge(config: &Config, path: &Path, program: Option<&Path>, freed_bytes: u64) -> Result<Judged, String> {
    let judged = match program {
        Some(program) => validate_apart(program, super::engine_args(config), path, freed_bytes)?,
        None => here(config, path, freed_bytes)?,
    };
    if judged.embedding_only { Err(EMBEDS.to_owned()) } else { Ok(judged) }
}

fn here(config: &Config, path: &Path, freed_bytes: u64) -> Result<Judged, String> {
    let options = LoadOptions {
        backend: Kind::from_str(&config.engine.backend, true)?,
        threads: config.engine.threads.into(),
        context_tokens: config.engine.context_tokens.map_or(0, usize::from),
        sequences_max: config.engine.sequences.into(),
        prediction: false,
        exact: false,
        cache: Default::default(),
        card: Default::default(),
        vet_with: None,
    };
    validate(path, &options, freed_bytes).map_err(|error| error.to_string())
}

/// Memory that a process of ours holds and gives back when it ends.
pub(super) fn held_bytes(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"));
    let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
    kib.unwrap_or(0) * 1024
}
