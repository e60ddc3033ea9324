//! Vectors of an embedding model, one text at a time. Commands that wait are read in between, so a short text waits for
//! one other text at most.

use super::Host;
use crate::engine::protocol::{Event, FailureKind, RequestId};

impl Host {
    /// The vector of a text that was found good, made one long.
    pub(super) fn embed(&mut self, id: RequestId, ids: &[u32]) -> Event {
        let failed = |message: String| Event::Failed { id, kind: FailureKind::Internal, message };
        if ids.is_empty() {
            return Event::Embedded { id, vector: vec![0.0; self.backend.info().width], tokens: 0 };
        }
        let mut vector = match self.backend.embed(ids) {
            Ok(vector) => vector,
            Err(error) => return failed(error.to_string()),
        };
        // In f64: squares of large values must not run over.
        let length = vector.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>().sqrt();
        if !length.is_finite() || length == 0.0 {
            return failed(
                "the model gave a vector without a direction: its weights or its file are damaged".to_owned(),
            );
        }
        vector.iter_mut().for_each(|v| *v = (f64::from(*v) / length) as f32);
        self.stats.prompt_tokens += ids.len() as u64;
        Event::Embedded { id, vector, tokens: ids.len() as u32 }
    }
}
