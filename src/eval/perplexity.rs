//! Perplexity of a text under a model: exp of the mean negative log-likelihood of each token given the tokens before
//! it in its window. The same windows for every backend, so that two can be compared.

use crate::engine::backend::{Backend, BackendError, Chunk, Output, Rows};

/// Sums over the tokens that were scored.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct Perplexity {
    /// Tokens scored: every token of a window but its first.
    pub tokens: usize,
    /// Mean negative log-likelihood, nats a token.
    pub nats_per_token: f64,
    /// Standard error of that mean.
    pub standard_error: f64,
    pub perplexity: f64,
}

/// Scores `ids` in windows of `window` tokens, each from an empty context. `progress` is told the tokens done.
pub fn perplexity(
    backend: &mut dyn Backend,
    ids: &[u32],
    window: usize,
    progress: &mut dyn FnMut(usize),
) -> Result<Perplexity, BackendError> {
    let window = window.min(backend.info().context_tokens).max(2);
    let vocab = backend.info().vocab;
    let mut output = Output::default();
    let (mut count, mut sum, mut squares) = (0usize, 0f64, 0f64);
    for tokens in ids.chunks(window).filter(|t| t.len() > 1) {
        let seq = backend.open()?;
        let fed = backend.step(&[Chunk { seq, tokens, rows: Rows::All, hidden: false }], &mut output);
        backend.close(seq);
        fed?;
        for (row, &next) in output.logits.chunks_exact(vocab).zip(&tokens[1..]) {
            let nats = -log_softmax_at(row, next as usize);
            count += 1;
            sum += nats;
            squares += nats * nats;
        }
        progress(tokens.len());
    }
    if count == 0 {
        return Err(BackendError::Compute("the text has fewer than two tokens: nothing to score".to_owned()));
    }
    let mean = sum / count as f64;
    let variance = (squares / count as f64 - mean * mean).max(0.0);
    Ok(Perplexity {
        tokens: count,
        nats_per_token: mean,
        standard_error: (variance / count as f64).sqrt(),
        perplexity: mean.exp(),
    })
}

/// ln softmax(row)[index], in f64.
pub fn log_softmax_at(row: &[f32], index: usize) -> f64 {
    let max = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let total: f64 = row.iter().map(|&x| f64::from(x - max).exp()).sum();
    f64::from(row[index] - max) - total.ln()
}

#[cfg(test)]
mod tests {
    #[test]
    fn log_softmax_is_a_distribution_and_survives_large_logits() {
        let row = [1000.0f32, 999.0, -1000.0];
        let total: f64 = (0..3).map(|i| super::log_softmax_at(&row, i).exp()).sum();
        assert!((total - 1.0).abs() < 1e-12);
        assert!((super::log_softmax_at(&row, 0) + 0.313_261_7).abs() < 1e-6);
    }
}
