//! Which model makes vectors of texts, and how.

use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::time::Duration;

use super::raw;
use super::{ConfigError, Environment, THREADS_MAX, millis, models, nonzero, number, short};
use crate::embed::embedder::Prefixes;
use crate::embed::model::FILE;

/// Longest words before a text, bytes.
const PREFIX_BYTES_MAX: usize = 1_024;

/// Texts as vectors.
#[derive(Clone, Debug, PartialEq)]
pub struct EmbedConfig {
    /// The embedding model; absent: the one beside the model, else the installation's.
    pub model: Option<PathBuf>,
    /// The one of the installation, where there is one.
    pub shipped: Option<PathBuf>,
    /// Other names that requests may give it.
    pub aliases: Vec<String>,
    /// Of the engine that hosts it, where it needs one.
    pub threads: NonZeroUsize,
    /// Tokens of a text that a hosted model reads; what it was trained for, within bounds, where absent.
    pub context_tokens: Option<NonZeroUsize>,
    pub prefixes: Prefixes,
    /// Longest wait of a reply for its question's vector.
    pub query_timeout: Duration,
    /// Longest wait of a client for the vector of one of its texts.
    pub timeout: Duration,
}

pub(super) fn embed(raw: raw::EmbedSection, env: &Environment) -> Result<EmbedConfig, ConfigError> {
    let context = raw.context_tokens.map(|f| number(Some(f), 0, 16..=32_768, "embed.context_tokens")).transpose()?;
    Ok(EmbedConfig {
        model: raw.model.map(|f| f.value),
        shipped: env.find_shipped(FILE),
        aliases: models::aliases(raw.aliases, "embed.aliases")?,
        threads: nonzero(number(raw.threads, 1, 1..=THREADS_MAX, "embed.threads")?),
        context_tokens: context.map(nonzero),
        prefixes: Prefixes {
            query: short(raw.query_prefix, "", PREFIX_BYTES_MAX, "embed.query_prefix")?,
            document: short(raw.document_prefix, "", PREFIX_BYTES_MAX, "embed.document_prefix")?,
        },
        query_timeout: millis(raw.query_timeout_ms, 200, "embed.query_timeout_ms")?,
        timeout: millis(raw.timeout_ms, 30_000, "embed.timeout_ms")?,
    })
}
