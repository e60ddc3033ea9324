//! The daemon's configuration: what was typed (`raw`) becomes a checked `Config`. Order of the layers:
//! default < /etc/chimere/config.toml < the user's file < environment `CHIMERE_SECTION_KEY` < flags.
//! This module is the only reader of environment variables.

pub mod check;
mod embed;
mod error;
mod folders;
mod judge;
mod live;
mod models;
mod origins;
pub mod raw;
mod replies;
mod search;
pub mod settings;
mod unit;
mod web;

use std::fs;
use std::io;
use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tracing_subscriber::EnvFilter;

pub use embed::EmbedConfig;
pub use error::ConfigError;
pub use folders::WatchedFolder;
pub use live::Live;
pub use models::ModelsConfig;
use raw::{Field, RawConfig};
pub use replies::RepliesConfig;
pub use search::{Environment, variables};
use settings::Setting;
pub use unit::Unit;
pub use web::{SearchEngine, WebConfig};

use crate::documents;
use crate::failpoint::Failpoint;
use crate::scoring::Form;
use crate::service::LoopbackOwner;

const ENV_PREFIX: &str = "CHIMERE_";
/// Variables of that prefix that are no configuration keys.
const ENV_OTHER: &[&str] = &["CHIMERE_CONFIG", "CHIMERE_KEY", "CHIMERE_URL"];
/// Largest configuration file, bytes.
const FILE_BYTES_MAX: u64 = 1 << 20;
/// Most threads of an engine.
const THREADS_MAX: u64 = 64;
pub const SYSTEM_FILE: &str = "/etc/chimere/config.toml";

/// The engine process.
#[derive(Clone, Debug, PartialEq)]
pub struct EngineConfig {
    /// `auto`, `cpu`, `cuda` or `llama`.
    pub backend: String,
    /// Device memory that may be used; 0 = what is free.
    pub vram_bytes_max: u64,
    /// Memory of the host that may be pinned for experts that do not fit on the card; 0 = three quarters of what is
    /// available.
    pub pinned_bytes_max: u64,
    /// Folder of compiled kernels that came with the program, where there is one.
    pub kernels: Option<PathBuf>,
    pub threads: NonZeroUsize,
    /// Positions that one sequence may hold; the model's own limit where absent.
    pub context_tokens: Option<NonZeroUsize>,
    /// Sequences decoded together.
    pub sequences: NonZeroUsize,
    /// Tokens fed in one step while a reply is being written; what suits the device where absent.
    pub step_tokens: Option<NonZeroUsize>,
    /// What keys and values are kept as: `auto`, or a type of [`chimere_ffi::KvType`]; and recurrent states.
    pub kv: String,
    pub state: String,
    /// Memory of kept prompt prefixes; 0 = none are kept.
    pub snapshot_bytes_max: u64,
    /// Kept prefixes outlive the engine, in a file of the state folder.
    pub snapshots_on_disk: bool,
    /// The engine is killed when loading gives no sign of life for so long.
    pub load_timeout: Duration,
    /// The engine is killed when it answers nothing for so long.
    pub stall_timeout: Duration,
    /// Starts tried before the daemon gives up on a model that was never ready.
    pub first_start_attempts: u32,
}

/// The listener.
#[derive(Clone, Debug, PartialEq)]
pub struct HttpConfig {
    pub listen: SocketAddr,
    pub connections_max: usize,
    pub connections_per_address_max: usize,
    pub body_bytes_max: usize,
    pub header_timeout: Duration,
    pub body_timeout: Duration,
    pub idle_timeout: Duration,
    pub write_timeout: Duration,
    /// Names that a Host header may carry beside loopback names.
    pub hosts: Vec<String>,
    /// Origins whose pages may chat.
    pub origins: Vec<String>,
    pub loopback_owner: LoopbackOwner,
}

#[derive(Clone, Debug, PartialEq)]
pub struct MemoryConfig {
    /// Bytes of turns kept; the oldest are dropped above it.
    pub bytes_max: u64,
    /// Longest wait of a reply for its turn to be flushed.
    pub append_timeout: Duration,
}

/// The judge of finished replies.
#[derive(Clone, Debug, PartialEq)]
pub struct ScorerConfig {
    pub enabled: bool,
    /// The judge's model, or the places that were looked at.
    pub model: Result<PathBuf, Vec<PathBuf>>,
    /// Absent: `nano-prm.gguf` beside the model, where there is one.
    pub adapter: Option<PathBuf>,
    /// `auto`, `cpu` or `llama`.
    pub backend: String,
    /// Of lowered priority.
    pub threads: NonZeroUsize,
    /// Steps judged together.
    pub sequences: NonZeroUsize,
    /// Turns that wait in memory; more are found again in the turn log.
    pub queue_max: usize,
}

#[derive(Clone, Debug, PartialEq)]
pub struct PipelinesConfig {
    /// Folder of the shipped files; absent: the ones compiled in.
    pub shipped: Option<PathBuf>,
    /// Folder whose files win, by name.
    pub overlay: PathBuf,
}

/// The daemon's work on itself. When and how is said in `night.yaml`, beside the pipelines.
#[derive(Clone, Debug, PartialEq)]
pub struct NightConfig {
    /// Scheduled jobs begin by themselves.
    pub enabled: bool,
    /// The exams, or the places that were looked at.
    pub golden: Result<PathBuf, Vec<PathBuf>>,
    pub slice: Result<PathBuf, Vec<PathBuf>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFormat {
    Text,
    Json,
}

#[derive(Clone, Debug, PartialEq)]
pub struct LogConfig {
    pub format: LogFormat,
    pub filter: String,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    pub state_dir: PathBuf,
    /// The installed unit, where this process is root's and the state is the unit's.
    pub unit: Option<Unit>,
    /// The model file, or `Err` with the places that were looked at.
    pub model: Result<PathBuf, Vec<PathBuf>>,
    pub models: ModelsConfig,
    pub engine: EngineConfig,
    pub http: HttpConfig,
    pub replies: RepliesConfig,
    pub memory: MemoryConfig,
    pub scorer: ScorerConfig,
    /// How its model is asked.
    pub judge: Form,
    pub embed: EmbedConfig,
    /// Largest file that becomes a document.
    pub file_bytes_max: usize,
    /// Folders whose files are documents.
    pub folders: Vec<WatchedFolder>,
    /// Absent: the web is not searched, and nothing dials out.
    pub web: Option<WebConfig>,
    pub pipelines: PipelinesConfig,
    pub night: NightConfig,
    pub drain_timeout: Duration,
    /// Judge and trainer leave the processor to whoever else wants it.
    pub low_priority: bool,
    pub actor_restarts_max: u32,
    pub actor_restarts_window: Duration,
    pub log: LogConfig,
    /// Where a test breaks this process.
    pub failpoint: Failpoint,
    /// Said to the serving engine beside what follows from this configuration; for tests.
    pub engine_args: Vec<String>,
    /// The file by which a simulation moves this process's clock.
    pub clock_offset: Option<PathBuf>,
    /// The file of an internet that a test makes up.
    pub internet: Option<PathBuf>,
    /// Variables with our prefix that mean nothing.
    pub unknown_variables: Vec<String>,
    /// Every key with its value and where that was said.
    pub settings: Vec<Setting>,
}

/// What the command line may say; every flag is optional.
#[derive(Clone, Debug, Default)]
pub struct Flags {
    /// Read this file and neither /etc nor the user's.
    pub config: Option<PathBuf>,
    pub listen: Option<String>,
    pub state_dir: Option<PathBuf>,
    pub model: Option<PathBuf>,
    pub failpoint: Failpoint,
    pub engine_args: Vec<String>,
    pub clock_offset: Option<PathBuf>,
    pub internet: Option<PathBuf>,
}

impl Config {
    /// Reads every layer from this process's surroundings.
    pub fn load(flags: &Flags) -> Result<Config, ConfigError> {
        Config::load_in(flags, &Environment::of_process())
    }

    pub fn load_in(flags: &Flags, env: &Environment) -> Result<Config, ConfigError> {
        let (variables, unknown) = RawConfig::from_variables(&env.chimere)?;
        let mut raw = flags_layer(flags).over(variables);
        for (path, required) in env.config_files(flags.config.as_deref()) {
            if let Some(text) = read_text(&path, required)? {
                raw = raw.over(RawConfig::parse(&text, &path.display().to_string())?);
            }
        }
        let typed = raw.typed();
        let mut config = Config::resolve(raw, env)?;
        config.unknown_variables = unknown;
        config.settings = settings::of(&typed, &config);
        config.failpoint = flags.failpoint.clone();
        config.engine_args = flags.engine_args.clone();
        config.clock_offset = flags.clock_offset.clone();
        config.internet = flags.internet.clone();
        Ok(config)
    }

    /// Checks every value and fills in the defaults.
    pub fn resolve(raw: RawConfig, env: &Environment) -> Result<Config, ConfigError> {
        if let Some((key, origin)) = raw.empty_path() {
            let (origin, value) = (origin.to_owned(), "empty".to_owned());
            let wanted = "a path; leave it out for the default".to_owned();
            return Err(ConfigError::Range { origin, key, value, wanted });
        }
        let state_dir = match raw.daemon.state_dir {
            Some(field) => field.value,
            None => env.state_dir().ok_or(ConfigError::NoStateDir)?,
        };
        Ok(Config {
            model: env.find_model(raw.model.path.as_ref().map(|f| f.value.clone())),
            models: models::further(raw.models, &raw.model)?,
            engine: engine(raw.engine, env)?,
            http: http(raw.http)?,
            replies: replies::replies(raw.replies, raw.model.aliases)?,
            memory: MemoryConfig {
                bytes_max: number(raw.memory.bytes_max, 2 << 30, 1 << 20..=1 << 44, "memory.bytes_max")?,
                append_timeout: millis(raw.memory.append_timeout_ms, 5_000, "memory.append_timeout_ms")?,
            },
            scorer: scorer(raw.scorer, env)?,
            judge: judge::form(raw.judge)?,
            embed: embed::embed(raw.embed, env)?,
            file_bytes_max: number(
                raw.documents.file_bytes_max,
                documents::FILE_BYTES_DEFAULT,
                1 << 10..=documents::FILE_BYTES_MAX,
                "documents.file_bytes_max",
            )? as usize,
            folders: folders::folders(raw.documents.folders, &state_dir)?,
            web: web::web(raw.web)?,
            pipelines: PipelinesConfig {
                shipped: env.find_pipelines(raw.pipelines.dir.map(|f| f.value)),
                overlay: state_dir.join("pipelines"),
            },
            night: NightConfig {
                enabled: raw.night.enabled.is_some_and(|f| f.value),
                golden: env.find_exam(raw.night.golden.map(|f| f.value), "golden"),
                slice: env.find_exam(raw.night.slice.map(|f| f.value), "slice"),
            },
            drain_timeout: millis(raw.daemon.drain_timeout_ms, 20_000, "daemon.drain_timeout_ms")?,
            low_priority: raw.daemon.low_priority.is_none_or(|f| f.value),
            actor_restarts_max: number(raw.daemon.actor_restarts_max, 10, 1..=1_000, "daemon.actor_restarts_max")?
                as u32,
            actor_restarts_window: millis(
                raw.daemon.actor_restarts_window_ms,
                60_000,
                "daemon.actor_restarts_window_ms",
            )?,
            log: log(raw.log)?,
            unit: env.unit.clone().filter(|unit| unit.state_dir == state_dir),
            state_dir,
            failpoint: Failpoint::default(),
            engine_args: Vec::new(),
            clock_offset: None,
            internet: None,
            unknown_variables: Vec::new(),
            settings: Vec::new(),
        })
    }
}

fn flags_layer(flags: &Flags) -> RawConfig {
    let mut raw = RawConfig::default();
    raw.http.listen = flags.listen.clone().and_then(|v| Field::flag(v, "--listen"));
    raw.daemon.state_dir = flags.state_dir.clone().and_then(|v| Field::flag(v, "--state-dir"));
    raw.model.path = flags.model.clone().and_then(|v| Field::flag(v, "--model"));
    raw
}

fn engine(raw: raw::EngineSection, env: &Environment) -> Result<EngineConfig, ConfigError> {
    let cores = env.cores as u64;
    let context = raw.context_tokens.map(|f| number(Some(f), 0, 16..=1 << 21, "engine.context_tokens")).transpose()?;
    let step = raw.step_tokens.map(|f| number(Some(f), 0, 64..=65_536, "engine.step_tokens")).transpose()?;
    Ok(EngineConfig {
        backend: one_of(raw.backend, "auto", &["auto", "cpu", "cuda", "llama"], "engine.backend")?,
        vram_bytes_max: number(raw.vram_bytes_max, 0, 0..=1 << 44, "engine.vram_bytes_max")?,
        pinned_bytes_max: number(raw.pinned_bytes_max, 0, 0..=1 << 44, "engine.pinned_bytes_max")?,
        kernels: env.find_kernels(),
        threads: nonzero(number(raw.threads, cores.min(THREADS_MAX), 1..=THREADS_MAX, "engine.threads")?),
        context_tokens: context.map(nonzero),
        sequences: nonzero(number(raw.sequences, 8, 1..=256, "engine.sequences")?),
        step_tokens: step.map(nonzero),
        kv: one_of(raw.kv, "auto", &["auto", "f16", "f32", "q8_0/q4_0"], "engine.kv")?,
        state: one_of(raw.state, "f32", &["f32", "bf16"], "engine.state")?,
        snapshot_bytes_max: number(raw.snapshot_bytes_max, 1 << 30, 0..=1 << 44, "engine.snapshot_bytes_max")?,
        snapshots_on_disk: raw.snapshots_on_disk.is_some_and(|f| f.value),
        load_timeout: millis(raw.load_timeout_ms, 120_000, "engine.load_timeout_ms")?,
        stall_timeout: millis(raw.stall_timeout_ms, 120_000, "engine.stall_timeout_ms")?,
        first_start_attempts: number(raw.first_start_attempts, 5, 1..=1_000, "engine.first_start_attempts")? as u32,
    })
}

fn http(raw: raw::HttpSection) -> Result<HttpConfig, ConfigError> {
    let listen = match raw.listen {
        None => SocketAddr::from(([127, 0, 0, 1], 8377)),
        Some(field) => field.value.parse().map_err(|_| ConfigError::Range {
            origin: field.origin,
            key: "http.listen",
            value: format!("`{}`", field.value),
            wanted: "an address and a port, such as 127.0.0.1:8377 or [::1]:8377".to_owned(),
        })?,
    };
    Ok(HttpConfig {
        listen,
        connections_max: number(raw.connections_max, 4_096, 1..=65_536, "http.connections_max")? as usize,
        connections_per_address_max: number(
            raw.connections_per_address_max,
            1_024,
            1..=65_536,
            "http.connections_per_address_max",
        )? as usize,
        body_bytes_max: number(raw.body_bytes_max, 8 << 20, 1 << 10..=1 << 28, "http.body_bytes_max")? as usize,
        header_timeout: millis(raw.header_timeout_ms, 10_000, "http.header_timeout_ms")?,
        body_timeout: millis(raw.body_timeout_ms, 30_000, "http.body_timeout_ms")?,
        idle_timeout: millis(raw.idle_timeout_ms, 60_000, "http.idle_timeout_ms")?,
        write_timeout: millis(raw.write_timeout_ms, 30_000, "http.write_timeout_ms")?,
        hosts: origins::hosts(raw.hosts)?,
        origins: origins::origins(raw.origins)?,
        loopback_owner: loopback_owner(raw.loopback_owner)?,
    })
}

fn loopback_owner(field: Option<raw::Field<String>>) -> Result<LoopbackOwner, ConfigError> {
    let Some(field) = field else { return Ok(LoopbackOwner::default()) };
    LoopbackOwner::parse(&field.value).ok_or_else(|| ConfigError::Range {
        value: format!("`{}`", field.value),
        origin: field.origin,
        key: "http.loopback_owner",
        wanted: "same_user, anyone or never".to_owned(),
    })
}

fn scorer(raw: raw::ScorerSection, env: &Environment) -> Result<ScorerConfig, ConfigError> {
    Ok(ScorerConfig {
        enabled: raw.enabled.is_none_or(|f| f.value),
        model: env.find_model(raw.model.map(|f| f.value)),
        adapter: raw.adapter.map(|f| f.value),
        backend: one_of(raw.backend, "auto", &["auto", "cpu", "llama"], "scorer.backend")?,
        threads: nonzero(number(raw.threads, 1, 1..=THREADS_MAX, "scorer.threads")?),
        sequences: nonzero(number(raw.sequences, 4, 1..=64, "scorer.sequences")?),
        queue_max: number(raw.queue_max, 4_096, 1..=1 << 20, "scorer.queue_max")? as usize,
    })
}

fn log(raw: raw::LogSection) -> Result<LogConfig, ConfigError> {
    let format = match one_of(raw.format, "text", &["text", "json"], "log.format")?.as_str() {
        "json" => LogFormat::Json,
        _ => LogFormat::Text,
    };
    let Some(filter) = raw.filter else { return Ok(LogConfig { format, filter: "info".to_owned() }) };
    match EnvFilter::builder().parse(&filter.value) {
        Ok(_) => Ok(LogConfig { format, filter: filter.value }),
        Err(error) => Err(ConfigError::Range {
            origin: filter.origin,
            key: "log.filter",
            value: format!("`{}` ({error})", filter.value),
            wanted: "a filter such as info or chimere=debug,warn".to_owned(),
        }),
    }
}

/// Reads a configuration file; `None` when it may be absent and is.
fn read_text(path: &Path, required: bool) -> Result<Option<String>, ConfigError> {
    let fail = |source| ConfigError::Read { path: path.to_owned(), source };
    match fs::metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound && !required => return Ok(None),
        Err(error) => return Err(fail(error)),
        Ok(meta) if meta.len() > FILE_BYTES_MAX => {
            return Err(fail(io::Error::other(format!("larger than {FILE_BYTES_MAX} bytes"))));
        }
        Ok(_) => {}
    }
    fs::read_to_string(path).map(Some).map_err(fail)
}

type Number = Option<Field<u64>>;

fn number(field: Number, default: u64, range: RangeInclusive<u64>, key: &'static str) -> Result<u64, ConfigError> {
    let Some(field) = field else { return Ok(default) };
    if range.contains(&field.value) {
        return Ok(field.value);
    }
    Err(ConfigError::Range {
        origin: field.origin,
        key,
        value: field.value.to_string(),
        wanted: format!("{} to {}", range.start(), range.end()),
    })
}

/// A duration of 1 ms to 1 day.
fn millis(field: Number, default: u64, key: &'static str) -> Result<Duration, ConfigError> {
    number(field, default, 1..=86_400_000, key).map(Duration::from_millis)
}

fn one_of(
    field: Option<Field<String>>,
    default: &str,
    among: &[&str],
    key: &'static str,
) -> Result<String, ConfigError> {
    let Some(field) = field else { return Ok(default.to_owned()) };
    if among.contains(&field.value.as_str()) {
        return Ok(field.value);
    }
    Err(ConfigError::Range {
        origin: field.origin,
        key,
        value: format!("`{}`", field.value),
        wanted: format!("one of {}", among.join(", ")),
    })
}

/// A text of at most so many bytes.
fn short(
    field: Option<Field<String>>,
    default: &str,
    bytes_max: usize,
    key: &'static str,
) -> Result<String, ConfigError> {
    let Some(field) = field else { return Ok(default.to_owned()) };
    if field.value.len() <= bytes_max {
        return Ok(field.value);
    }
    Err(ConfigError::Range {
        origin: field.origin,
        key,
        value: format!("{} bytes long", field.value.len()),
        wanted: format!("at most {bytes_max} bytes"),
    })
}

fn nonzero(value: u64) -> NonZeroUsize {
    NonZeroUsize::new(value as usize).unwrap_or(NonZeroUsize::MIN)
}

#[cfg(test)]
mod tests;
