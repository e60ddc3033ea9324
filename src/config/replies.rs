//! What a reply may cost, and how long it may take.

use std::time::Duration;

use super::{ConfigError, millis, models, number, raw};
use crate::pipeline::Ceilings;

/// What a reply may cost.
#[derive(Clone, Debug, PartialEq)]
pub struct RepliesConfig {
    /// Replies under way at once, waiting ones included; more get 429.
    pub requests_max: usize,
    /// Tokens of a reply where neither request nor pipeline says.
    /// Absent: as the served model has it.
    pub max_tokens: Option<u32>,
    /// What one reply may come to, its hidden steps and every attempt included.
    pub ceilings: Ceilings,
    /// How long a request waits for an engine that is starting before 503.
    pub start_timeout: Duration,
    /// Longest reply.
    pub reply_timeout: Duration,
    /// A client that takes no event for so long counts as gone.
    pub client_stall_timeout: Duration,
    /// Names beside its own that a request may give the model.
    pub model_aliases: Vec<String>,
}

pub(super) fn replies(
    raw: raw::RepliesSection,
    names: Option<raw::Field<Vec<String>>>,
) -> Result<RepliesConfig, ConfigError> {
    let reply_timeout = millis(raw.reply_timeout_ms, 600_000, "replies.reply_timeout_ms")?;
    let ceilings = Ceilings {
        tokens: Some(number(raw.tokens_max, 0, 0..=1 << 40, "replies.tokens_max")?).filter(|n| *n > 0),
        generations: Some(number(raw.generations_max, 64, 1..=1_024, "replies.generations_max")? as u32),
        tool_calls: Some(number(raw.tool_calls_max, 32, 0..=1_024, "replies.tool_calls_max")? as u32),
        time: Some(reply_timeout),
    };
    Ok(RepliesConfig {
        requests_max: number(raw.requests_max, 64, 1..=65_536, "replies.requests_max")? as usize,
        max_tokens: Some(number(raw.max_tokens, 0, 0..=1 << 21, "replies.max_tokens")? as u32).filter(|n| *n > 0),
        start_timeout: millis(raw.start_timeout_ms, 10_000, "replies.start_timeout_ms")?,
        ceilings,
        reply_timeout,
        client_stall_timeout: millis(raw.client_stall_timeout_ms, 30_000, "replies.client_stall_timeout_ms")?,
        model_aliases: models::aliases(names, "model.aliases")?,
    })
}
