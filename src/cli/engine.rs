//! `chimere engine`: the process that hosts one model. The daemon starts it; a person rarely does.

use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use chimere::daemon::log;
use chimere::engine::grammar::{self, VET_CPU_S_MAX, VET_EXIT_HEAVY, VET_SOURCE_BYTES_MAX};
use chimere::engine::host::HostLimits;
use chimere::engine::load::{self, Kind, LoadOptions, Loaded};
use chimere::engine::prefix::{Keeper, PrefixLimits};
use chimere::engine::process::{self, ProcessError};
use chimere::engine::protocol::{Event, PROTOCOL, write_frame};
use chimere::engine::template::{SOURCE_BYTES_MAX, VET_ADDRESS_SPACE_BYTES_MAX, vet};
use chimere::engine::validate::validate;

use super::exit::{EX_IOERR, code_of, coded, note, say};
use super::model_args::{CacheArgs, CardArgs, size};

/// Host one model and speak frames over standard input and output
#[derive(clap::Args)]
pub struct Args {
    /// Model file (GGUF)
    #[arg(long, value_name = "FILE", required_unless_present_any = ["vet", "vet_grammar"])]
    model: Option<PathBuf>,
    /// Only judge the chat template on standard input (a throw-away process of the loader)
    #[arg(long, hide = true)]
    vet: bool,
    /// Only examine the grammar on standard input (a throw-away process of the engine)
    #[arg(long, hide = true)]
    vet_grammar: bool,
    /// Only judge the model's header, and print what was found (a throw-away process of the daemon)
    #[arg(long, hide = true)]
    validate: bool,
    /// Memory that will be free before the model is loaded
    #[arg(long, hide = true, default_value_t = 0)]
    freed: u64,
    /// Run at a low priority, so that other programs go first
    #[arg(long)]
    background: bool,
    /// Backend that computes
    #[arg(long, visible_alias = "device", default_value = "auto")]
    backend: Kind,
    /// Threads that compute
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..=64))]
    threads: u16,
    /// Positions that a sequence may hold; 0 = what the model was trained for
    #[arg(long, default_value_t = 0, value_name = "TOKENS")]
    context: u32,
    /// Sequences decoded together
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..=256))]
    sequences: u16,
    /// Requests that may wait for a sequence
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u16).range(0..=4096))]
    waiting: u16,
    /// Tokens fed in one step while a reply is being written, prompts and decoding together; 0 = what suits the device
    #[arg(long, default_value_t = 0, value_name = "TOKENS", value_parser = clap::value_parser!(u32).range(0..=65536))]
    step_tokens: u32,
    /// Most memory for kept prompt prefixes: `2GiB`, `900MiB` or bytes; 0 = none are kept
    #[arg(long, value_name = "SIZE", default_value = "0", value_parser = size)]
    snapshots_max: u64,
    /// File in which kept prompt prefixes outlive this process
    #[arg(long, value_name = "FILE")]
    snapshots_file: Option<PathBuf>,
    /// Adapters will be put on the model: a card without room for them is refused
    #[arg(long)]
    adapters: bool,
    #[command(flatten)]
    card: CardArgs,
    #[command(flatten)]
    cache: CacheArgs,
}

pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    let Some(model) = args.model.as_deref() else {
        return if args.vet_grammar { judge_grammar() } else { judge() };
    };
    log::install_in_child();
    if args.background {
        // Before the first thread: they inherit it. Where it is forbidden, slow background work is better than none.
        if let Err(error) = chimere_ffi::limits::lower_priority() {
            note!("the priority cannot be lowered: {error}");
        }
    }
    let options = LoadOptions {
        backend: args.backend,
        threads: args.threads.into(),
        context_tokens: args.context as usize,
        sequences_max: args.sequences.into(),
        prediction: false,
        exact: false,
        cache: args.cache.types(),
        card: args.card.options(args.adapters),
        vet_with: Some(chimere::program::own()?),
    };
    if args.validate {
        return validated(model, &options, args.freed);
    }
    let events = io::stdout();
    let hello = Event::Hello { protocol: PROTOCOL, version: env!("CARGO_PKG_VERSION").to_owned() };
    write_frame(events.lock(), &hello)?;
    let mut told = -1.0f32;
    let loaded = load::load(model, &options, &mut |progress| {
        // One frame a per cent at most.
        if progress - told >= 0.01 {
            told = progress;
            let _ = write_frame(events.lock(), &Event::Loading { progress });
        }
    });
    let mut loaded = match loaded {
        Ok(loaded) => loaded,
        Err(error) => {
            write_frame(events.lock(), &Event::Fatal { message: error.to_string() })?;
            // Starting again would not help.
            return Ok(ExitCode::from(code_of(&error.into())));
        }
    };
    let limits = HostLimits {
        waiting_max: args.waiting.into(),
        step_tokens_max: args.step_tokens as usize,
        prefixes: PrefixLimits { bytes_max: args.snapshots_max, ..PrefixLimits::default() },
    };
    loaded.keeper = args.snapshots_file.map(|file| keeper(file, &loaded, args.cache)).transpose()?;
    match process::serve(loaded, limits, io::stdin(), events) {
        Err(error @ ProcessError::Lost(_)) => Err(coded(EX_IOERR, error.to_string())),
        ended => Ok(ended.map(|()| ExitCode::SUCCESS)?),
    }
}

/// Judges a model's header: what was found as JSON, or an error in one line.
fn validated(model: &Path, options: &LoadOptions, freed_bytes: u64) -> anyhow::Result<ExitCode> {
    match validate(model, options, freed_bytes) {
        Ok(judged) => {
            say!("{}", serde_json::to_string(&judged)?);
            Ok(ExitCode::SUCCESS)
        }
        Err(error) => {
            say!("{error}");
            Ok(ExitCode::from(code_of(&error.into())))
        }
    }
}

/// Prefixes are bytes of this very program, computing this model on this device with a cache of this kind: a later one may
/// number them otherwise.
fn keeper(file: PathBuf, loaded: &Loaded, cache: CacheArgs) -> anyhow::Result<Keeper> {
    let (model, program) = (&loaded.hosted.model, chimere::program::own()?.metadata()?);
    let made_by = format!(
        "chimere {} {} {:?}; {}; {} on {}; {:?}",
        env!("CARGO_PKG_VERSION"),
        program.len(),
        program.modified()?,
        loaded.hosted.model_hash,
        model.backend,
        model.device,
        cache.types()
    );
    Ok(Keeper { file, made_by })
}

/// Examines the grammar on standard input under a bounded address space and time: an error in one line, or nothing.
fn judge_grammar() -> anyhow::Result<ExitCode> {
    chimere_ffi::limits::bound_address_space(grammar::VET_ADDRESS_SPACE_BYTES_MAX)?;
    chimere_ffi::limits::bound_cpu_time(VET_CPU_S_MAX)?;
    let mut source = String::new();
    io::stdin().take(VET_SOURCE_BYTES_MAX as u64 + 1).read_to_string(&mut source)?;
    match grammar::vet(&source) {
        Ok(()) => Ok(ExitCode::SUCCESS),
        Err(error) => {
            say!("{error}");
            Ok(if error.is_of_weight() { ExitCode::from(VET_EXIT_HEAVY) } else { ExitCode::FAILURE })
        }
    }
}

/// Judges the template on standard input under a bounded address space: an error in one line, or nothing.
fn judge() -> anyhow::Result<ExitCode> {
    chimere_ffi::limits::bound_address_space(VET_ADDRESS_SPACE_BYTES_MAX)?;
    let mut source = String::new();
    io::stdin().take(SOURCE_BYTES_MAX as u64 + 1).read_to_string(&mut source)?;
    match vet(&source) {
        Ok(()) => Ok(ExitCode::SUCCESS),
        Err(error) => {
            say!("{error}");
            Ok(ExitCode::FAILURE)
        }
    }
}
