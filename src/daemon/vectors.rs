//! Texts to vectors for clients, by the embedding model that retrieval uses.

use std::sync::Arc;

use super::Daemon;
use crate::embed::embedder::{Purpose, Terms, Unembedded};
use crate::engine::protocol::EmbedInput;
use crate::reply::Permits;
use crate::service::{EmbedFor, EmbedModel, Embedded, ServiceError};

/// Requests that are computed at once for one key alone; of more it is refused its own, and another key finds its share.
const REQUESTS_MAX: usize = 4;

/// One permit for each request that is computed.
pub(super) struct Places(Arc<Permits>);

impl Default for Places {
    fn default() -> Self {
        Places(Arc::new(Permits::of("requests for embeddings", REQUESTS_MAX)))
    }
}

pub(super) fn model(daemon: &Daemon) -> Option<EmbedModel> {
    let embedder = daemon.replies.examples.embedder().ok()?;
    Some(EmbedModel {
        name: embedder.name().to_owned(),
        aliases: daemon.config.get().embed.aliases.clone(),
        architecture: embedder.architecture().to_owned(),
        width: embedder.width(),
        tokens_max: embedder.tokens_max(),
        state: embedder.state(),
    })
}

pub(super) async fn embed(
    daemon: &Daemon,
    key: &str,
    model: Option<String>,
    texts: Vec<EmbedInput>,
    purpose: EmbedFor,
) -> Result<Embedded, ServiceError> {
    let embedder = daemon.replies.examples.embedder().map_err(|why| ServiceError::NotBuilt(why.to_owned()))?;
    let config = daemon.config.get();
    let own = |name: &String| name == embedder.name() || config.embed.aliases.contains(name);
    if let Some(other) = model.filter(|name| !name.is_empty() && !own(name)) {
        let other: String = other.chars().take(100).collect();
        let name = embedder.name();
        return Err(ServiceError::NoSuchModel(format!("`{other}` makes no embeddings here: `{name}` does")));
    }
    let permit = daemon.embedding.0.enter(key)?;
    embedder.ready(config.replies.start_timeout).await.map_err(refused)?;
    let worded = |(at, text)| {
        let purpose = match purpose {
            EmbedFor::Texts => Purpose::Plain,
            EmbedFor::Ranking if at == 0 => Purpose::Query,
            EmbedFor::Ranking => Purpose::Document,
        };
        (purpose, text)
    };
    let texts = texts.into_iter().enumerate().map(worded).collect();
    let terms = Terms { cut: purpose == EmbedFor::Ranking, within: config.embed.timeout, first: false };
    let vectors = embedder.embed(texts, terms, permit).await.map_err(refused)?;
    let tokens = vectors.iter().map(|vector| vector.tokens).sum();
    let windows = vectors.iter().map(|vector| vector.windows).collect();
    let vectors = vectors.into_iter().map(|vector| vector.values).collect();
    Ok(Embedded { model: embedder.name().to_owned(), vectors, windows, tokens })
}

/// Why there are no vectors, as a client hears it.
fn refused(why: Unembedded) -> ServiceError {
    let message = why.to_string();
    match why {
        Unembedded::Refused { .. } => ServiceError::Invalid { message, param: Some("input".to_owned()) },
        Unembedded::Down { retry_after_s, .. } => ServiceError::Unavailable { message, retry_after_s },
        Unembedded::Late(_) => ServiceError::Unavailable { message, retry_after_s: 5 },
        Unembedded::Never(_) => ServiceError::NotBuilt(message),
        Unembedded::Failed(_) => ServiceError::Internal(message),
    }
}
