//! How far two backends agree on the same file. Teacher-forced over a text: perplexity, KL, top-1 with the
//! reference's margin. Free-running: greedy replies to prompts, with the margin at each first divergence.

use serde::Serialize;

use super::perplexity::log_softmax_at;
use crate::engine::backend::{Backend, BackendError, Chunk, Output, Rows, SeqId};

/// A top-1 difference where the reference's two best logits are closer than this is a tie broken by rounding.
pub const MARGIN_NATS: f32 = 0.1;

/// Tokens fed to each side at a time, 0 = as many as there are. The library's numbers depend on it: it picks other
/// kernels for other batch sizes, and only token by token does it use one kernel throughout.
#[derive(Clone, Copy, Debug, Default)]
pub struct Steps {
    pub tested: usize,
    pub reference: usize,
}

/// Teacher-forced comparison.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Forced {
    pub positions: usize,
    /// Positions whose logits are the same bit for bit.
    pub identical: usize,
    pub perplexity: f64,
    pub perplexity_reference: f64,
    /// How much less likely than the reference it finds each token, nats: mean, and its standard error over the positions.
    pub nats_more: f64,
    pub nats_more_error: f64,
    /// Mean Kullback–Leibler divergence from the reference, nats a position.
    pub kl_mean: f64,
    pub kl_max: f64,
    /// Positions whose likeliest token differs, and those of them with a margin over `MARGIN_NATS`.
    pub top1_differs: usize,
    pub top1_differs_clearly: usize,
    /// The largest margin among the differences, nats.
    pub margin_max: f32,
}

/// Compares rows over `ids` in windows of `window` tokens.
pub fn forced(
    tested: &mut dyn Backend,
    reference: &mut dyn Backend,
    ids: &[u32],
    window: usize,
    steps: Steps,
    progress: &mut dyn FnMut(usize),
) -> Result<Forced, BackendError> {
    let vocab = tested.info().vocab;
    if vocab != reference.info().vocab {
        return Err(BackendError::Compute("the two backends disagree about the vocabulary size".to_owned()));
    }
    let mut sum = Forced::default();
    let (mut nats, mut nats_reference, mut squares) = (0.0, 0.0, 0.0);
    for tokens in ids.chunks(window.max(2)).filter(|t| t.len() > 1) {
        let rows = window_rows(tested, tokens, steps.tested)?;
        let wanted = window_rows(reference, tokens, steps.reference)?;
        for ((row, want), &next) in rows.chunks_exact(vocab).zip(wanted.chunks_exact(vocab)).zip(&tokens[1..]) {
            let (own, other) = (log_softmax_at(row, next as usize), log_softmax_at(want, next as usize));
            (nats, nats_reference, squares) = (nats - own, nats_reference - other, squares + (other - own).powi(2));
            compare(row, want, &mut sum);
        }
        progress(tokens.len());
    }
    let n = sum.positions.max(1) as f64;
    sum.perplexity = (nats / n).exp();
    sum.perplexity_reference = (nats_reference / n).exp();
    sum.nats_more = (nats - nats_reference) / n;
    sum.nats_more_error = ((squares / n - sum.nats_more.powi(2)).max(0.0) / n).sqrt();
    sum.kl_mean /= n;
    Ok(sum)
}

fn window_rows(backend: &mut dyn Backend, tokens: &[u32], step: usize) -> Result<Vec<f32>, BackendError> {
    let (mut output, mut rows) = (Output::default(), Vec::new());
    let seq = backend.open()?;
    let fed = pieces(tokens, step).try_for_each(|tokens| {
        backend.step(&[Chunk { seq, tokens, rows: Rows::All, hidden: false }], &mut output)?;
        rows.extend_from_slice(&output.logits);
        Ok(())
    });
    backend.close(seq);
    fed.map(|()| rows)
}

fn pieces(tokens: &[u32], step: usize) -> std::slice::Chunks<'_, u32> {
    tokens.chunks(if step == 0 { tokens.len().max(1) } else { step })
}

fn compare(row: &[f32], reference: &[f32], sum: &mut Forced) {
    sum.positions += 1;
    sum.identical += usize::from(row.iter().zip(reference).all(|(a, b)| a.to_bits() == b.to_bits()));
    let kl = divergence(reference, row);
    sum.kl_mean += kl;
    sum.kl_max = sum.kl_max.max(kl);
    let (best, margin) = top(reference);
    if top(row).0 != best {
        sum.top1_differs += 1;
        sum.top1_differs_clearly += usize::from(margin > MARGIN_NATS);
        sum.margin_max = sum.margin_max.max(margin);
    }
}

/// KL(p ‖ q) in nats of two rows of logits, in f64.
pub fn divergence(p: &[f32], q: &[f32]) -> f64 {
    let normaliser = |row: &[f32]| {
        let max = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        f64::from(max) + row.iter().map(|&x| (f64::from(x) - f64::from(max)).exp()).sum::<f64>().ln()
    };
    let (zp, zq) = (normaliser(p), normaliser(q));
    p.iter()
        .zip(q)
        .map(|(&a, &b)| {
            let log_p = f64::from(a) - zp;
            log_p.exp() * (log_p - (f64::from(b) - zq))
        })
        .sum()
}

/// The likeliest token (lowest id among equals) and by how much it leads the second, nats.
pub fn top(row: &[f32]) -> (usize, f32) {
    let (mut best, mut first, mut second) = (0, f32::NEG_INFINITY, f32::NEG_INFINITY);
    for (id, &logit) in row.iter().enumerate() {
        if logit > first {
            (best, second, first) = (id, first, logit);
        } else if logit > second {
            second = logit;
        }
    }
    (best, first - second)
}

/// A greedy reply compared token by token.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct FreeRun {
    pub prompt: usize,
    pub tokens: usize,
    /// Index of the first generated token that differs, and the reference's margin there.
    pub diverged_at: Option<usize>,
    pub margin: Option<f32>,
}

/// Lets both backends generate `tokens` tokens greedily after `prompt`, stopping at the first difference.
pub fn free_run(
    tested: &mut dyn Backend,
    reference: &mut dyn Backend,
    index: usize,
    prompt: &[u32],
    tokens: usize,
    steps: Steps,
) -> Result<FreeRun, BackendError> {
    let (a, b) = (tested.open()?, reference.open()?);
    let run = both_run((tested, a, steps.tested), (reference, b, steps.reference), prompt, tokens);
    tested.close(a);
    reference.close(b);
    let (made, diverged) = run?;
    Ok(FreeRun { prompt: index, tokens: made, diverged_at: diverged.map(|_| made), margin: diverged })
}

/// A backend, its sequence and the tokens it is fed at a time.
type Side<'a> = (&'a mut dyn Backend, SeqId, usize);

/// Tokens made before a difference, and the margin at it.
fn both_run(
    mut tested: Side<'_>,
    mut reference: Side<'_>,
    prompt: &[u32],
    tokens: usize,
) -> Result<(usize, Option<f32>), BackendError> {
    let mut output = Output::default();
    let mut feed = prompt.to_vec();
    for made in 0..tokens {
        let ours = next(&mut tested, &feed, &mut output)?.0;
        let (theirs, margin) = next(&mut reference, &feed, &mut output)?;
        if ours != theirs {
            return Ok((made, Some(margin)));
        }
        feed = vec![theirs as u32];
    }
    Ok((tokens, None))
}

/// The likeliest token after `feed`, and its lead.
fn next(side: &mut Side<'_>, feed: &[u32], output: &mut Output) -> Result<(usize, f32), BackendError> {
    for tokens in pieces(feed, side.2) {
        side.0.step(&[Chunk { seq: side.1, tokens, rows: Rows::Last, hidden: false }], output)?;
    }
    Ok(top(&output.logits))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn divergence_is_zero_only_for_equal_distributions() {
        let p = [1.0f32, 2.0, 3.0];
        assert!(divergence(&p, &[11.0, 12.0, 13.0]).abs() < 1e-9);
        assert!(divergence(&p, &[1.0, 2.0, 3.1]) > 1e-4);
    }

    #[test]
    fn top_gives_the_lead_and_the_lowest_of_equals() {
        assert_eq!(top(&[0.5, 2.0, 1.5]), (1, 0.5));
        assert_eq!(top(&[2.0, 2.0]), (0, 0.0));
    }
}
