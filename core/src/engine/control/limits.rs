//! What bounds a reply, and what is wrong with such bounds.

use crate::engine::protocol::{STOP_BYTES_MAX, STOPS_MAX};
use crate::engine::vocab::VocabError;
use crate::turn::Thinking;

#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    #[error("{found} stop strings are over the limit of {STOPS_MAX}")]
    Stops { found: usize },
    #[error("a stop string is empty: leave it out")]
    EmptyStop,
    #[error("a stop string of {found} bytes is over the limit of {STOP_BYTES_MAX}")]
    LongStop { found: usize },
    #[error("max_tokens is 0: ask for at least one")]
    NoTokens,
    #[error(transparent)]
    Vocab(#[from] VocabError),
}

/// What bounds a reply.
#[derive(Clone, Copy, Debug)]
pub struct ReplyLimits<'a> {
    /// Tokens of thought and answer together, what the context has room for included.
    pub max_tokens: u32,
    pub stop: &'a [String],
    pub thinking: Thinking,
    /// Go on past the end-of-reply tokens.
    pub ignore_end: bool,
}

pub(super) fn check_stops(stops: &[String]) -> Result<(), ControlError> {
    if stops.len() > STOPS_MAX {
        return Err(ControlError::Stops { found: stops.len() });
    }
    match stops.iter().find(|s| s.is_empty() || s.len() > STOP_BYTES_MAX) {
        Some(stop) if stop.is_empty() => Err(ControlError::EmptyStop),
        Some(stop) => Err(ControlError::LongStop { found: stop.len() }),
        None => Ok(()),
    }
}
