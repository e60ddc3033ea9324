//! Structured logs on standard error. A panic is logged by its place alone: its message may quote a user's
//! text, and is kept for `debug`.

use std::io::IsTerminal;
use std::panic;

use tracing_subscriber::EnvFilter;

use crate::config::{LogConfig, LogFormat};

#[derive(Debug, thiserror::Error)]
pub enum LogError {
    #[error("log.filter `{filter}`: {message}")]
    Filter { filter: String, message: String },
    #[error("logs: {0}")]
    Install(String),
}

/// Installs the process's log. Once.
pub fn install(config: &LogConfig) -> Result<(), LogError> {
    let filter = EnvFilter::builder()
        .parse(&config.filter)
        .map_err(|error| LogError::Filter { filter: config.filter.clone(), message: error.to_string() })?;
    let log = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(std::io::stderr().is_terminal())
        .with_writer(std::io::stderr);
    let installed = match config.format {
        LogFormat::Json => log.json().flatten_event(true).try_init(),
        LogFormat::Text => log.try_init(),
    };
    installed.map_err(|error| LogError::Install(error.to_string()))?;
    panic::set_hook(Box::new(|info| {
        let place = info.location().map(ToString::to_string).unwrap_or_default();
        tracing::error!(place, "panic");
        tracing::debug!("panic: {info}");
    }));
    Ok(())
}
