//! Before and after on the same items: the paired difference with a bootstrap interval, the exact test of McNemar,
//! and the same for the loss on texts.

use serde::{Deserialize, Serialize};

use crate::night::stats::Paired;
use crate::training::recipe::Random;

/// Resamples of a bootstrap.
const RESAMPLES: usize = 4_000;
const SEED: u64 = 20_260;

/// A figure with its 95 % interval.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Figure {
    pub value: f64,
    pub low: f64,
    pub high: f64,
}

/// Mean of `values` with the percentile interval of resampled means (Efron 1979).
pub fn mean(values: &[f64]) -> Figure {
    let n = values.len();
    if n == 0 {
        return Figure::default();
    }
    let mut random = Random::new(SEED);
    let mut means: Vec<f64> =
        (0..RESAMPLES).map(|_| (0..n).map(|_| values[random.below(n)]).sum::<f64>() / n as f64).collect();
    means.sort_by(f64::total_cmp);
    let at = |share: f64| means[((RESAMPLES as f64 * share) as usize).min(RESAMPLES - 1)];
    Figure { value: values.iter().sum::<f64>() / n as f64, low: at(0.025), high: at(0.975) }
}

/// Difference of two sums' ratios, after less before, over rows of (before, after, weight): the change of the loss a
/// token when rows have different lengths.
pub fn weighted(rows: &[(f64, f64, f64)]) -> Figure {
    let ratio = |picked: &mut dyn Iterator<Item = usize>| {
        let (mut change, mut weight) = (0.0, 0.0);
        for at in picked {
            change += rows[at].1 - rows[at].0;
            weight += rows[at].2;
        }
        if weight > 0.0 { change / weight } else { 0.0 }
    };
    let n = rows.len();
    if n == 0 {
        return Figure::default();
    }
    let mut random = Random::new(SEED);
    let mut drawn: Vec<f64> = (0..RESAMPLES).map(|_| ratio(&mut (0..n).map(|_| random.below(n)))).collect();
    drawn.sort_by(f64::total_cmp);
    let at = |share: f64| drawn[((RESAMPLES as f64 * share) as usize).min(RESAMPLES - 1)];
    Figure { value: ratio(&mut (0..n)), low: at(0.025), high: at(0.975) }
}

/// Right answers before and after, share of one, resampled over items.
pub fn accuracy(pairs: &[(bool, bool)]) -> Figure {
    let changes: Vec<f64> =
        pairs.iter().map(|(before, after)| f64::from(u8::from(*after)) - f64::from(u8::from(*before))).collect();
    mean(&changes)
}

/// Two-sided exact test of McNemar: how likely so uneven a split of the items that changed, if both ways were
/// equally likely.
pub fn mcnemar_p(pairs: &[(bool, bool)]) -> f64 {
    let counted = Paired::of(pairs.iter().copied());
    let (few, many) = (counted.wins.min(counted.losses), counted.wins.max(counted.losses));
    let tail = Paired { wins: few, losses: many, ..counted }.loss_p();
    (2.0 * tail).min(1.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interval_holds_the_truth_about_as_often_as_it_says() {
        // 200 samples of 80 fair coins: the mean of ± 1 is 0.
        let mut random = Random::new(5);
        let held = (0..200)
            .filter(|_| {
                let values: Vec<f64> = (0..80).map(|_| if random.below(2) == 0 { 1.0 } else { -1.0 }).collect();
                let figure = mean(&values);
                figure.low <= 0.0 && figure.high >= 0.0
            })
            .count();
        assert!((180..=199).contains(&held), "{held} of 200");
        assert_eq!(mean(&[]), Figure::default());
    }

    #[test]
    fn changes_are_paired() {
        let pairs: Vec<(bool, bool)> = (0..100).map(|n| (n < 60, n < 70)).collect();
        let figure = accuracy(&pairs);
        assert!((figure.value - 0.1).abs() < 1e-12 && figure.low > 0.03 && figure.high < 0.18, "{figure:?}");
        // Ten wins and no loss: 2 / 2^10.
        assert!((mcnemar_p(&pairs) - 2.0 / 1024.0).abs() < 1e-12);
        assert!((mcnemar_p(&[(true, true), (false, false)]) - 1.0).abs() < 1e-12);
        let loss = weighted(&[(10.0, 8.0, 4.0), (3.0, 3.0, 1.0)]);
        assert!((loss.value + 0.4).abs() < 1e-12, "{loss:?}");
    }
}
