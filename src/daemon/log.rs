//! Structured logs on standard error. A panic is logged by its place alone: its message may quote a user's
//! text, and is kept for `debug`.

use std::io::IsTerminal;
use std::panic;

use tracing::Level;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Registry, fmt, reload};

use crate::config::{LogConfig, LogFormat};

#[derive(Debug, thiserror::Error)]
pub enum LogError {
    #[error("log.filter `{filter}`: {message}")]
    Filter { filter: String, message: String },
    #[error("logs: {0}")]
    Install(String),
}

/// A library that tells of its own comings and goings at `info`; a filter that names it wins.
const QUIETER: &str = "tokio_cron_scheduler=warn";

/// The filter of the installed log, to be changed while it is in use.
pub struct LogFilter(reload::Handle<EnvFilter, Registry>);

impl LogFilter {
    pub fn set(&self, filter: &str) -> Result<(), LogError> {
        self.0.reload(parse(filter)?).map_err(|error| LogError::Install(error.to_string()))
    }
}

fn parse(filter: &str) -> Result<EnvFilter, LogError> {
    let refused = |message: String| LogError::Filter { filter: filter.to_owned(), message };
    EnvFilter::builder().parse(format!("{QUIETER},{filter}")).map_err(|error| refused(error.to_string()))
}

/// Installs the process's log. Once.
pub fn install(config: &LogConfig) -> Result<LogFilter, LogError> {
    let (filter, handle) = reload::Layer::new(parse(&config.filter)?);
    let lines = fmt::layer().with_ansi(std::io::stderr().is_terminal()).with_writer(std::io::stderr);
    let registry = tracing_subscriber::registry().with(filter);
    let installed = match config.format {
        LogFormat::Json => registry.with(lines.json().flatten_event(true)).try_init(),
        LogFormat::Text => registry.with(lines).try_init(),
    };
    installed.map_err(|error| LogError::Install(error.to_string()))?;
    tell_panics_by_place();
    Ok(LogFilter(handle))
}

/// Installs the log of a child process: plain lines, which its daemon takes over.
pub fn install_in_child() {
    let lines = fmt::fmt().with_max_level(Level::INFO).with_ansi(false).without_time().with_writer(std::io::stderr);
    // An installed log is as good.
    let _ = lines.try_init();
    tell_panics_by_place();
}

fn tell_panics_by_place() {
    panic::set_hook(Box::new(|info| {
        let place = info.location().map(ToString::to_string).unwrap_or_default();
        tracing::error!(place, "panic");
        tracing::debug!("panic: {info}");
    }));
}
