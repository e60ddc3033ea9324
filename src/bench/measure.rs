//! The measurement itself: fixed work through the `Backend` trait, timed from outside.

use std::time::Instant;

use serde::Serialize;

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

/// The mean of some ratios with its 95 % interval (Student's t), and their ends.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Interval {
    pub mean: f64,
    pub low: f64,
    pub high: f64,
    pub least: f64,
    pub most: f64,
}

/// Two-sided 95 % quantiles of Student's t by degrees of freedom, from 1; beyond, that of the normal distribution.
const T_95: [f64; 20] = [
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131, 2.120,
    2.110, 2.101, 2.093, 2.086,
];

impl Rates {
    pub fn interval(&self) -> Interval {
        let n = self.0.len() as f64;
        let mean = self.0.iter().sum::<f64>() / n;
        let variance = self.0.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / (n - 1.0);
        let t = self.0.len().checked_sub(2).map_or(f64::INFINITY, |at| T_95.get(at).copied().unwrap_or(1.96));
        // One value says nothing of its own spread.
        let half = if self.0.len() < 2 { f64::INFINITY } else { t * (variance / n).sqrt() };
        let least = self.0.iter().copied().fold(f64::INFINITY, f64::min);
        let most = self.0.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        Interval { mean, low: mean - half, high: mean + half, least, most }
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
    fn the_interval_is_that_of_student() {
        let found = Rates(vec![1.0, 2.0, 3.0]).interval();
        assert_eq!((found.mean, found.least, found.most), (2.0, 1.0, 3.0));
        assert!((found.high - 2.0 - 4.303 / 3f64.sqrt()).abs() < 1e-9);
        assert_eq!(Rates(vec![1.0]).interval().high, f64::INFINITY);
        assert_eq!(Rates(vec![0.5; 40]).interval().low, 0.5);
    }

    #[test]
    fn ids_stay_inside_the_vocabulary() {
        assert!((0..10_000).all(|p| id(613, p, p % 9) < 613));
    }
}
