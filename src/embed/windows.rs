//! Texts longer than an embedding model reads: cut into windows, whose mean is the text's direction.

use super::Static;
use super::embedder::{Host, Terms, Unembedded, Vector};
use super::model::TOKENS_MAX;
use crate::engine::protocol::EmbedInput;

/// Windows of one text.
pub(super) const WINDOWS_MAX: usize = 256;
/// Tokens that a file may put around a window: one before and one behind it.
const MARKS: usize = 2;

/// The windows of a text of so many tokens each, or why it has too many.
pub(super) fn of(ids: &[u32], tokens: usize) -> Result<impl Iterator<Item = &[u32]>, String> {
    let most = tokens * WINDOWS_MAX;
    if ids.len() > most {
        return Err(format!("has {} tokens, over the limit of {most} ({WINDOWS_MAX} windows): split it", ids.len()));
    }
    Ok(ids.chunks(tokens.max(1)))
}

/// The direction between those of the windows, each weighed by its tokens.
pub(super) fn mean(windows: impl IntoIterator<Item = Vector>) -> Vector {
    let mut sum = Vector::default();
    for window in windows {
        sum.values.resize(window.values.len(), 0.0);
        let weight = window.tokens as f32;
        sum.values.iter_mut().zip(&window.values).for_each(|(sum, value)| *sum += weight * value);
        sum.tokens += window.tokens;
        sum.windows += window.windows;
    }
    let length = sum.values.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>().sqrt();
    if length > 0.0 {
        sum.values.iter_mut().for_each(|v| *v = (f64::from(*v) / length) as f32);
    }
    sum
}

/// The vector of a text by a hosted model.
pub(super) async fn embed(host: &dyn Host, input: EmbedInput, terms: Terms) -> Result<Vector, Unembedded> {
    let most = host.facts().tokens_max;
    let ids = match &input {
        // A token stands for a byte at least: what is short in bytes need not be counted.
        EmbedInput::Text(text) if terms.cut || text.len() + MARKS <= most => return host.embed(input, terms).await,
        EmbedInput::Text(text) => host.tokens(text.clone(), terms.within).await?,
        EmbedInput::Ids(_) if terms.cut => return host.embed(input, terms).await,
        EmbedInput::Ids(ids) => ids.clone(),
    };
    if ids.len() <= most {
        // Whether the file's marks fit beside them the engine knows.
        match host.embed(input, terms).await {
            Err(Unembedded::Refused { .. }) if ids.len() + MARKS > most => {}
            told => return told,
        }
    }
    let windows = of(&ids, most.saturating_sub(MARKS).max(1)).map_err(|why| Unembedded::Refused { at: 0, why })?;
    let mut read = Vec::new();
    for window in windows {
        read.push(host.embed(EmbedInput::Ids(window.to_vec()), terms).await?);
    }
    Ok(mean(read))
}

/// The vectors of texts by a table of token vectors.
pub(super) fn looked_up(table: &Static, texts: &[EmbedInput], cut: bool) -> Result<Vec<Vector>, Unembedded> {
    let one = |(at, input): (usize, &EmbedInput)| {
        let refused = |why: String| Unembedded::Refused { at, why };
        let mut ids = match input {
            EmbedInput::Text(text) => table.tokens(text),
            EmbedInput::Ids(ids) => ids.clone(),
        };
        if let Some(bad) = ids.iter().find(|id| **id as usize >= table.vocab_len()) {
            return Err(refused(format!("has token {bad}, outside the vocabulary of {}", table.vocab_len())));
        }
        if ids.len() > TOKENS_MAX && !cut {
            let windows = of(&ids, TOKENS_MAX).map_err(refused)?;
            let read = |ids: &[u32]| Vector { values: table.embed_tokens(ids), tokens: ids.len() as u32, windows: 1 };
            return Ok(mean(windows.map(read)));
        }
        ids.truncate(TOKENS_MAX);
        Ok(Vector { values: table.embed_tokens(&ids), tokens: ids.len() as u32, windows: 1 })
    };
    texts.iter().enumerate().map(one).collect()
}
