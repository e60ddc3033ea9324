//! The measurement itself: fixed work through the `Backend` trait, timed from outside.

use std::time::Instant;

use crate::engine::backend::{Backend, BackendError, Chunk, Output, Rows};

/// Work of one cell of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Case {
    /// A prompt of this many tokens fed to one sequence at once.
    Prefill { tokens: usize },
    /// `tokens` steps of one token for each of `batch` sequences, after a prompt of `context` tokens.
    Decode { batch: usize, context: usize, tokens: usize },
}

/// A backend under measurement.
pub struct Lane {
    pub name: String,
    pub backend: Box<dyn Backend>,
}

/// Tokens per second of one lane and case, one entry a round.
#[derive(Clone, Debug, Default)]
pub struct Rates(pub Vec<f64>);

impl Rates {
    pub fn median(&self) -> f64 {
        let mut sorted = self.0.clone();
        sorted.sort_by(f64::total_cmp);
        match sorted.len() {
            0 => f64::NAN,
            n if n % 2 == 1 => sorted[n / 2],
            n => (sorted[n / 2 - 1] + sorted[n / 2]) / 2.0,
        }
    }
}

/// Runs every case on every lane, lanes in turn within a round, after one round that is not counted.
/// `progress` is told after each measurement. Result: `[case][lane]`.
pub fn run(
    lanes: &mut [Lane],
    cases: &[Case],
    rounds: usize,
    progress: &mut dyn FnMut(),
) -> Result<Vec<Vec<Rates>>, BackendError> {
    let mut rates = vec![vec![Rates::default(); lanes.len()]; cases.len()];
    for (case, row) in cases.iter().zip(&mut rates) {
        for round in 0..=rounds {
            for (lane, rates) in lanes.iter_mut().zip(row.iter_mut()) {
                let rate = measure(lane.backend.as_mut(), *case)?;
                if round > 0 {
                    rates.0.push(rate);
                }
                progress();
            }
        }
    }
    Ok(rates)
}

fn measure(backend: &mut dyn Backend, case: Case) -> Result<f64, BackendError> {
    match case {
        Case::Prefill { tokens } => prefill(backend, tokens),
        Case::Decode { batch, context, tokens } => decode(backend, batch, context, tokens),
    }
}

/// Ids that differ, so that routing and caches see ordinary variety; the same for every backend.
fn id(vocab: usize, position: usize, sequence: usize) -> u32 {
    let mixed = (position as u64 * 31 + sequence as u64 * 7919).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 33;
    (mixed % vocab as u64) as u32
}

fn prefill(backend: &mut dyn Backend, tokens: usize) -> Result<f64, BackendError> {
    let vocab = backend.info().vocab;
    let prompt: Vec<u32> = (0..tokens).map(|p| id(vocab, p, 0)).collect();
    let seq = backend.open()?;
    let mut output = Output::default();
    let began = Instant::now();
    backend.step(&[Chunk { seq, tokens: &prompt, rows: Rows::Last, hidden: false }], &mut output)?;
    let rate = tokens as f64 / began.elapsed().as_secs_f64();
    backend.close(seq);
    Ok(rate)
}

fn decode(backend: &mut dyn Backend, batch: usize, context: usize, tokens: usize) -> Result<f64, BackendError> {
    let vocab = backend.info().vocab;
    let mut output = Output::default();
    let mut seqs = Vec::with_capacity(batch);
    for s in 0..batch {
        let seq = backend.open()?;
        seqs.push(seq);
        let prompt: Vec<u32> = (0..context).map(|p| id(vocab, p, s)).collect();
        backend.step(&[Chunk { seq, tokens: &prompt, rows: Rows::Last, hidden: false }], &mut output)?;
    }
    let began = Instant::now();
    for t in 0..tokens {
        let ids: Vec<[u32; 1]> = (0..batch).map(|s| [id(vocab, context + t, s)]).collect();
        let chunks: Vec<_> = seqs
            .iter()
            .zip(&ids)
            .map(|(&seq, ids)| Chunk { seq, tokens: ids, rows: Rows::Last, hidden: false })
            .collect();
        backend.step(&chunks, &mut output)?;
    }
    let rate = (batch * tokens) as f64 / began.elapsed().as_secs_f64();
    seqs.into_iter().for_each(|seq| backend.close(seq));
    Ok(rate)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_the_middle() {
        assert_eq!(Rates(vec![3.0, 1.0, 2.0]).median(), 2.0);
        assert_eq!(Rates(vec![4.0, 1.0, 2.0, 3.0]).median(), 2.5);
        assert!(Rates::default().median().is_nan());
    }

    #[test]
    fn ids_stay_inside_the_vocabulary() {
        assert!((0..10_000).all(|p| id(613, p, p % 9) < 613));
    }
}
