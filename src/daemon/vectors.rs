//! Texts to vectors for clients, by the embedding model that retrieval uses. It is a table of token vectors in this
//! process; what costs time is counting tokens, and that is done aside, a few requests at once.

use std::sync::Arc;

use tokio::sync::Semaphore;

use super::Daemon;
use crate::embed::model::TOKENS_MAX;
use crate::embed::{Embedder, Examples};
use crate::service::{EmbedModel, Embedded, ServiceError};

/// Requests that are computed at once; more are refused.
const REQUESTS_MAX: usize = 4;

/// One permit for each request that is computed.
pub(super) struct Places(Arc<Semaphore>);

impl Default for Places {
    fn default() -> Self {
        Places(Arc::new(Semaphore::new(REQUESTS_MAX)))
    }
}

pub(super) fn model(examples: &Examples) -> Option<EmbedModel> {
    let embedder = examples.embedder().ok()?;
    Some(EmbedModel { name: embedder.name().to_owned(), width: embedder.width(), tokens_max: TOKENS_MAX })
}

pub(super) async fn embed(
    daemon: &Daemon,
    model: Option<String>,
    texts: Vec<String>,
    cut: bool,
) -> Result<Embedded, ServiceError> {
    let examples = daemon.replies.examples.clone();
    let embedder = examples.embedder().map_err(|why| ServiceError::NotBuilt(why.to_owned()))?;
    if let Some(other) = model.filter(|name| name != embedder.name()) {
        let other: String = other.chars().take(100).collect();
        let name = embedder.name();
        return Err(ServiceError::NoSuchModel(format!("`{other}` makes no embeddings here: `{name}` does")));
    }
    let busy = || ServiceError::Busy {
        message: format!("{REQUESTS_MAX} requests for embeddings are under way"),
        retry_after_s: 1,
    };
    let permit = daemon.embedding.0.clone().try_acquire_owned().map_err(|_| busy())?;
    let computed = tokio::task::spawn_blocking(move || {
        // Held until the work ends, also where the client left.
        let _permit = permit;
        examples.embedder().map_err(str::to_owned).map(|embedder| all(embedder, &texts, cut))
    });
    let failed = |why: String| ServiceError::Internal(format!("the embedding model: {why}"));
    computed.await.map_err(|error| failed(error.to_string()))?.map_err(failed)?
}

fn all(embedder: &Embedder, texts: &[String], cut: bool) -> Result<Embedded, ServiceError> {
    let mut embedded = Embedded { model: embedder.name().to_owned(), ..Embedded::default() };
    for (at, text) in texts.iter().enumerate() {
        let mut ids = embedder.tokens(text);
        if ids.len() > TOKENS_MAX && !cut {
            let read = ids.len();
            let message = format!("text {at} has {read} tokens, and {} reads {TOKENS_MAX}: split it", embedder.name());
            return Err(ServiceError::Invalid { message, param: Some("input".to_owned()) });
        }
        ids.truncate(TOKENS_MAX);
        embedded.tokens += ids.len() as u32;
        embedded.vectors.push(embedder.embed_tokens(&ids));
    }
    Ok(embedded)
}

#[cfg(feature = "llama")]
#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_cut_where_that_was_asked_and_refused_where_not() {
        let embedder = Embedder::read(&crate::embed::model::small(2, |_, d| d as f32)).unwrap();
        let long = "a".repeat(TOKENS_MAX + 1);
        let cut = all(&embedder, &["a".to_owned(), long.clone()], true).unwrap();
        assert_eq!((cut.tokens, cut.vectors.len()), (1 + TOKENS_MAX as u32, 2));
        assert_eq!(cut.vectors[0], cut.vectors[1]);
        let refused = all(&embedder, &[String::new(), long], false).unwrap_err();
        let ServiceError::Invalid { message, param } = refused else { panic!("{refused:?}") };
        assert!(message.contains("text 1 has 257 tokens") && message.contains("256"), "{message}");
        assert_eq!(param.as_deref(), Some("input"));
    }
}
