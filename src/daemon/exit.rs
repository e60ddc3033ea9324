//! Why the daemon could not start or go on, and the exit code that says so (sysexits.h).

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;

use crate::http::MetricsError;
use crate::keys::KeyError;
use crate::pipeline::PipelineError;
use crate::store::files::{LockError, no_model};

#[derive(Debug, thiserror::Error)]
pub enum DaemonError {
    #[error("{}: name one with --model or model.path", no_model(.0))]
    NoModel(Vec<PathBuf>),
    #[error("the model cannot be hosted: {0}")]
    BadModel(String),
    #[error("the engine does not come up: {0}")]
    EngineDies(String),
    #[error("cannot listen on {listen}: {source}; name another address with --listen or http.listen")]
    Listen { listen: SocketAddr, source: io::Error },
    #[error(
        "refusing to listen on {0}, which other machines can reach, without any API key: make one with `chimere keys add NAME --scope chat`, or listen on 127.0.0.1"
    )]
    Open(SocketAddr),
    #[error(transparent)]
    Lock(#[from] LockError),
    #[error(transparent)]
    Keys(#[from] KeyError),
    #[error("pipelines: {0}")]
    Pipelines(#[from] PipelineError),
    #[error("the web cannot be searched as it is configured: {0}")]
    Web(String),
    #[error("{0} failed more often than the restart budget allows")]
    Exhausted(&'static str),
    #[error(transparent)]
    Metrics(#[from] MetricsError),
    #[error(transparent)]
    Io(#[from] io::Error),
}

impl DaemonError {
    /// What a supervisor may do about it: 65 and 78 come again, the others may not.
    pub fn code(&self) -> u8 {
        match self {
            DaemonError::BadModel(_) => 65,                               // EX_DATAERR
            DaemonError::NoModel(_) => 66,                                // EX_NOINPUT
            DaemonError::Listen { .. } => 69,                             // EX_UNAVAILABLE
            DaemonError::Exhausted(_) | DaemonError::EngineDies(_) => 70, // EX_SOFTWARE
            DaemonError::Metrics(_) => 70,
            DaemonError::Io(_) | DaemonError::Lock(LockError::Io { .. }) => 74, // EX_IOERR
            DaemonError::Lock(LockError::Held(_)) => 75,                        // EX_TEMPFAIL
            DaemonError::Open(_) | DaemonError::Keys(_) | DaemonError::Pipelines(_) | DaemonError::Web(_) => 78, // EX_CONFIG
        }
    }
}
