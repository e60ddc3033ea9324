//! Why something was not done, as the daemon says it and its server turns it into a status.

/// Why the daemon did not do what was asked; `http` turns it into a status and OpenAI's envelope.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum ServiceError {
    /// 400
    #[error("{message}")]
    Invalid { message: String, param: Option<String> },
    /// 400, code `context_length_exceeded`
    #[error("{0}")]
    Context(String),
    /// 404
    #[error("{0}")]
    NotFound(String),
    /// 404, code `model_not_found`
    #[error("{0}")]
    NoSuchModel(String),
    /// 409
    #[error("{0}")]
    Conflict(String),
    /// 410: somebody ended the reply, and it is not to be asked for again
    #[error("{0}")]
    Cancelled(String),
    /// 429 with Retry-After
    #[error("{message}")]
    Busy { message: String, retry_after_s: u32 },
    /// 503 with Retry-After: starting, paused, draining, restarting
    #[error("{message}")]
    Unavailable { message: String, retry_after_s: u32 },
    /// 501: a part that later work will bring
    #[error("{0}")]
    NotBuilt(String),
    /// 500
    #[error("{0}")]
    Internal(String),
}
