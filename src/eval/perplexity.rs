//! Perplexity of a text under a model: exp of the mean negative log-likelihood of each token given the tokens before
//! it in its window. The same windows for every backend, so that two can be compared.

use crate::engine::backend::{Backend, BackendError, Chunk, Output, Rows};
use crate::engine::sampler::mix::mix;
use crate::engram::{Familiar, Lookups, View, propose};

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

/// What mixing in tables with one λ did, token by token against the model alone.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct Arm {
    pub lambda: f32,
    pub perplexity: f64,
    /// Mean gain over the model alone, nats a token, paired, and its 95 % interval (normal approximation).
    pub gain_nats: f64,
    pub gain_low: f64,
    pub gain_high: f64,
    /// Mean weight that the tables got where they knew the context.
    pub lambda_mean: f64,
}

/// Perplexity without tables and with them.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct Mixture {
    #[serde(flatten)]
    pub alone: Perplexity,
    pub arms: Vec<Arm>,
    /// Share of the tokens whose context a table knew.
    pub hit_share: f64,
    /// Lookups made, and the share of them that the filter answered alone.
    pub lookups: u32,
    pub skipped_share: f64,
}

/// Mean and squares of a stream of numbers.
#[derive(Clone, Copy, Default)]
struct Sum {
    count: usize,
    sum: f64,
    squares: f64,
}

impl Sum {
    fn add(&mut self, value: f64) {
        self.count += 1;
        self.sum += value;
        self.squares += value * value;
    }

    fn mean(&self) -> f64 {
        self.sum / self.count.max(1) as f64
    }

    fn error(&self) -> f64 {
        let n = self.count.max(1) as f64;
        ((self.squares / n - self.mean().powi(2)).max(0.0) / n).sqrt()
    }
}

/// Scores `ids` in windows of `window` tokens, each from an empty context. `progress` is told the tokens done.
pub fn perplexity(
    backend: &mut dyn Backend,
    ids: &[u32],
    window: usize,
    progress: &mut dyn FnMut(usize),
) -> Result<Perplexity, BackendError> {
    Ok(mixture(backend, ids, window, &[], &[], progress)?.alone)
}

/// Like `perplexity`, and beside it with `tables` mixed in, once for each of `lambdas`.
pub fn mixture(
    backend: &mut dyn Backend,
    ids: &[u32],
    window: usize,
    tables: &[View<'_>],
    lambdas: &[f32],
    progress: &mut dyn FnMut(usize),
) -> Result<Mixture, BackendError> {
    let window = window.min(backend.info().context_tokens).max(2);
    let vocab = backend.info().vocab;
    let mut output = Output::default();
    let mut alone = Sum::default();
    let mut arms = vec![(Sum::default(), Sum::default()); lambdas.len()];
    let (mut lookups, mut hits) = (Lookups::default(), 0usize);
    let (mut mixed, mut weights) = (Vec::new(), Vec::new());
    for tokens in ids.chunks(window).filter(|t| t.len() > 1) {
        let seq = backend.open()?;
        let fed = backend.step(&[Chunk { seq, tokens, rows: Rows::All, hidden: false }], &mut output);
        backend.close(seq);
        fed?;
        let mut familiar = Familiar::default();
        for (at, row) in output.logits.chunks_exact(vocab).enumerate().take(tokens.len() - 1) {
            let next = tokens[at + 1] as usize;
            let nats = -log_softmax_at(row, next);
            alone.add(nats);
            let mut proposal =
                if tables.is_empty() { None } else { propose(&tokens[..=at], tables, None, &mut lookups) };
            proposal.iter_mut().for_each(|p| familiar.weigh(p));
            familiar.saw(tokens[at + 1], proposal.as_ref());
            hits += usize::from(proposal.is_some());
            for (lambda, (gain, weight)) in lambdas.iter().zip(&mut arms) {
                let Some(proposal) = &proposal else {
                    gain.add(0.0);
                    continue;
                };
                mixed.clear();
                mixed.extend_from_slice(row);
                let took = mix(&mut mixed, proposal, *lambda, &[], &mut weights);
                gain.add(nats + log_softmax_at(&mixed, next));
                weight.add(took.map_or(0.0, |m| f64::from(m.lambda)));
            }
        }
        progress(tokens.len());
    }
    if alone.count == 0 {
        return Err(BackendError::Compute("the text has fewer than two tokens: nothing to score".to_owned()));
    }
    let arm = |(lambda, (gain, weight)): (&f32, &(Sum, Sum))| Arm {
        lambda: *lambda,
        perplexity: (alone.mean() - gain.mean()).exp(),
        gain_nats: gain.mean(),
        gain_low: gain.mean() - 1.96 * gain.error(),
        gain_high: gain.mean() + 1.96 * gain.error(),
        lambda_mean: weight.mean(),
    };
    Ok(Mixture {
        arms: lambdas.iter().zip(&arms).map(arm).collect(),
        hit_share: hits as f64 / alone.count as f64,
        lookups: lookups.made,
        skipped_share: f64::from(lookups.skipped) / f64::from(lookups.made.max(1)),
        alone: Perplexity {
            tokens: alone.count,
            nats_per_token: alone.mean(),
            standard_error: alone.error(),
            perplexity: alone.mean().exp(),
        },
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
