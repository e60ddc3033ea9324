//! Vectors of texts by the library: in one batch where a text is read in both directions, in several where only its last
//! token counts.

use chimere_ffi::ggml::llama::{ContextOptions, Model};

use super::{CALL_LOGIT_BYTES_MAX, CALL_TOKENS_MAX, Llama, compute};
use crate::engine::backend::BackendError;
use crate::engine::embedder::{self, Pooling};
use crate::gguf::Gguf;

/// Fits what a context is made with to an embedding model: no more positions than the model has, for the library reads past
/// its table of them, and room for a text in one batch where it is read in both directions.
pub(super) fn fit(options: ContextOptions, gguf: &Gguf, model: &Model) -> ContextOptions {
    let positions = options.positions.min(model.trained_context()).max(1);
    let batch = match embedder::pooling(gguf) {
        Ok(Pooling::Last) if embedder::causal(gguf) => {
            // The library computes the logits of every token as well.
            let rows = CALL_LOGIT_BYTES_MAX / 4 / model.tokens().max(1);
            rows.clamp(1, CALL_TOKENS_MAX).min(positions)
        }
        _ => positions,
    };
    ContextOptions { positions, batch, micro_batch: batch, embeddings: true, ..options }
}

impl Llama {
    /// The vector of a text, given by its ids: pooled as the file says, of any length.
    pub fn embed(&mut self, ids: &[u32]) -> Result<Vec<f32>, BackendError> {
        match &self.pooling {
            Some(Ok(_)) => {}
            Some(Err(why)) => return Err(BackendError::Compute(why.clone())),
            None => return Err(BackendError::Unsupported("an embedding of a model that generates text")),
        }
        let capacity = self.info.context_tokens;
        if ids.is_empty() || ids.len() > capacity {
            return Err(BackendError::ContextFull { held: 0, fed: ids.len(), capacity });
        }
        let read = self.read_whole(ids);
        self.trunk.remove(0, 0, None);
        read
    }

    fn read_whole(&mut self, ids: &[u32]) -> Result<Vec<f32>, BackendError> {
        let (size, mut last) = (self.trunk.options().batch, 0);
        for (n, part) in ids.chunks(size).enumerate() {
            self.batch.clear();
            for (at, id) in part.iter().enumerate() {
                self.batch.push(*id, 0, n * size + at, true);
            }
            self.trunk.decode(&self.batch).map_err(compute)?;
            last = part.len() - 1;
        }
        let row = self.trunk.embedding(last, 0).map(<[f32]>::to_vec);
        row.ok_or_else(|| BackendError::Compute("the library gave no embedding".into()))
    }
}
