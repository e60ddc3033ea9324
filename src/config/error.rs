//! What is wrong with a configuration, and where.

use std::io;
use std::path::PathBuf;

#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    #[error("cannot read {}: {source}", path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error("{place}: {message}")]
    Parse { place: String, message: String },
    #[error("{origin}: {key} is {value}, but must be {wanted}")]
    Range { origin: String, key: &'static str, value: String, wanted: String },
    #[error("no place for the state: set daemon.state_dir, --state-dir or HOME")]
    NoStateDir,
}
