//! Structured logs on standard error. A panic is logged by its place alone: its message may quote a user's
//! text, and is kept for `debug`.

use std::io::IsTerminal;
use std::panic;

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

/// The filter of the installed log, to be changed while it is in use.
pub struct LogFilter(reload::Handle<EnvFilter, Registry>);

impl LogFilter {
    pub fn set(&self, filter: &str) -> Result<(), LogError> {
        self.0.reload(parse(filter)?).map_err(|error| LogError::Install(error.to_string()))
    }
}

fn parse(filter: &str) -> Result<EnvFilter, LogError> {
    let refused = |message: String| LogError::Filter { filter: filter.to_owned(), message };
    EnvFilter::builder().parse(filter).map_err(|error| refused(error.to_string()))
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
    panic::set_hook(Box::new(|info| {
        let place = info.location().map(ToString::to_string).unwrap_or_default();
        tracing::error!(place, "panic");
        tracing::debug!("panic: {info}");
    }));
    Ok(LogFilter(handle))
}
