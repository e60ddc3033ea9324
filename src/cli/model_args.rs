//! Arguments shared by the subcommands that load a model in their own process: `bench` and `eval`.

use std::path::{Path, PathBuf};

use chimere::config::{Config, Flags};
use chimere::daemon::DaemonError;
use chimere::daemon::choice::served_file;
use chimere::engine::adapter;
use chimere::engine::backend::Adapted;
use chimere::engine::load::{self, CardOptions, Kind, LoadOptions, Loaded};
use chimere_ffi::{CacheTypes, KvType, StateType};
use indicatif::{ProgressBar, ProgressStyle};

/// Which model, on what.
#[derive(clap::Args, Clone, Debug)]
pub struct ModelArgs {
    /// Model file (GGUF); default: the one the daemon would serve
    #[arg(long, value_name = "FILE")]
    pub model: Option<PathBuf>,
    /// Threads of the backends on the processor; default: as many as it has
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=64))]
    pub threads: Option<u16>,
    /// Positions that a sequence may hold
    #[arg(long, default_value_t = 4096, value_name = "TOKENS", value_parser = clap::value_parser!(u32).range(2..=1_048_576))]
    pub context: u32,
    /// LoRA adapter for every sequence (GGUF, as `chimere adapter show` checks it)
    #[arg(long, value_name = "FILE")]
    pub adapter: Option<PathBuf>,
    /// Adapters are put on the model by whoever loads it.
    #[arg(skip)]
    pub adapters: bool,
    #[command(flatten)]
    pub card: CardArgs,
    #[command(flatten)]
    pub cache: CacheArgs,
}

/// What a native model keeps of a sequence.
#[derive(clap::Args, Clone, Copy, Debug, Default)]
pub struct CacheArgs {
    /// Keys and values as `f32`, `f16` or `q8_0/q4_0` [default: f16 on a card, f32 on the processor and in `eval`]
    #[arg(long, value_name = "TYPE")]
    pub kv: Option<KvType>,
    /// Recurrent states as `f32` or `bf16`
    #[arg(long, value_name = "TYPE", default_value_t)]
    pub state: StateType,
}

impl CacheArgs {
    /// As the loader wants it.
    pub fn types(self) -> CacheTypes {
        CacheTypes { kv: self.kv, state: self.state }
    }
}

/// What is said of an NVIDIA card.
#[derive(clap::Args, Clone, Debug, Default)]
pub struct CardArgs {
    /// Folder for kernels compiled for the card [default: `kernels` of the state folder]
    #[arg(long, value_name = "FOLDER")]
    pub kernels: Option<PathBuf>,
    /// Folder of kernels that came with the program [default: `kernels` beside it]
    #[arg(long, value_name = "FOLDER")]
    pub shipped_kernels: Option<PathBuf>,
    /// `auto` stays on the processor: the card belongs to another engine
    #[arg(long)]
    pub spare_card: bool,
    /// Device memory that may be used: `16GiB`, `900MiB` or bytes [default: what is free]
    #[arg(long, value_name = "SIZE", default_value = "0", value_parser = size, hide_default_value = true)]
    pub vram_max: u64,
    /// Memory of the host that may be pinned for experts that do not fit on the card [default: three quarters of what is
    /// available]
    #[arg(long, value_name = "SIZE", default_value = "0", value_parser = size, hide_default_value = true)]
    pub pinned_max: u64,
    /// The kernels compiled for the processor, in place of a card; for tests
    #[arg(long, hide = true, value_name = "FILE")]
    pub emulated: Option<PathBuf>,
    /// The card faults once this file is there; for tests
    #[arg(long, hide = true, value_name = "FILE")]
    pub fault: Option<PathBuf>,
}

impl CardArgs {
    /// As the loader wants it; `adapters`: some will be put on the model.
    pub fn options(self, adapters: bool) -> CardOptions {
        CardOptions {
            cache: self.kernels,
            shipped: self.shipped_kernels,
            memory_bytes_max: self.vram_max,
            pinned_bytes_max: self.pinned_max,
            adapters,
            spared: self.spare_card,
            emulated: self.emulated,
            fault: self.fault,
        }
    }
}

/// Bytes, with or without a binary unit.
pub(super) fn size(text: &str) -> Result<u64, String> {
    let units = [("GiB", 30), ("MiB", 20), ("KiB", 10), ("", 0)];
    let (number, shift) = units.iter().find_map(|(unit, n)| Some((text.strip_suffix(unit)?, *n))).unwrap_or((text, 0));
    let bytes = number.trim().parse::<u64>().ok().and_then(|n| n.checked_mul(1 << shift));
    bytes.ok_or_else(|| "a size is bytes, or a whole number of KiB, MiB or GiB".to_owned())
}

impl ModelArgs {
    /// The file that was named, or the one that the daemon would serve.
    pub fn path(&self) -> anyhow::Result<PathBuf> {
        model_file(self.model.as_deref())
    }

    pub fn threads(&self) -> usize {
        self.threads.map_or_else(|| std::thread::available_parallelism().map_or(1, std::num::NonZero::get), usize::from)
    }

    /// What is said of a card, completed from the configuration.
    pub fn card(&self) -> anyhow::Result<CardOptions> {
        let config = Config::load(&Flags::default())?;
        let mut card = self.card.clone().options(self.adapters || self.adapter.is_some());
        card.cache = card.cache.or_else(|| Some(config.kernels_cache()));
        card.shipped = card.shipped.or(config.engine.kernels);
        Ok(card)
    }

    /// Loads the model with a progress bar on standard error. `exact`: numbers before speed.
    pub fn load(&self, backend: Kind, sequences_max: usize, exact: bool) -> anyhow::Result<Loaded> {
        self.load_with(backend, sequences_max, (exact, false))
    }

    /// The same, and its prediction block where that is wanted.
    pub fn load_with(
        &self,
        backend: Kind,
        sequences_max: usize,
        (exact, prediction): (bool, bool),
    ) -> anyhow::Result<Loaded> {
        let path = self.path()?;
        let options = LoadOptions {
            backend,
            threads: self.threads(),
            context_tokens: self.context as usize,
            sequences_max,
            prediction,
            exact,
            cache: self.cache.types(),
            card: self.card()?,
            vet_with: Some(chimere::program::own()?),
        };
        let bar = bar(1000, "loading");
        let loaded = load::load(&path, &options, &mut |done| bar.set_position((done * 1000.0) as u64));
        bar.finish_and_clear();
        let mut loaded = loaded?;
        if let Some(path) = &self.adapter {
            let (adapter, ..) = adapter::read(path, &loaded.base)?;
            loaded.backend = Box::new(Adapted::new(loaded.backend, &adapter)?);
        }
        Ok(loaded)
    }
}

/// The file that was named, or the one that the daemon would serve.
pub fn model_file(named: Option<&Path>) -> anyhow::Result<PathBuf> {
    let config = Config::load(&Flags { model: named.map(Path::to_owned), ..Flags::default() })?;
    let found = if named.is_some() { config.model } else { served_file(&config) };
    found.map_err(|places| anyhow::anyhow!(DaemonError::NoModel(places)))
}

/// A progress bar that shows nothing where standard error is no terminal.
pub fn bar(length: u64, what: &'static str) -> ProgressBar {
    let style = ProgressStyle::with_template("{msg:<12} {wide_bar} {percent:>3} % {eta:>5}")
        .unwrap_or_else(|_| ProgressStyle::default_bar());
    ProgressBar::new(length).with_style(style).with_message(what)
}
