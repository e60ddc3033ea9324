//! Before and after on the same items: the paired difference with a bootstrap interval and the exact test of McNemar.
//! The same for the loss on texts. And the slope of the items that are asked after every night.

use serde::{Deserialize, Serialize};

use crate::night::stats::{Paired, Z_TWO_SIDED_95};
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

/// Weights that make a sum of values a least-squares slope for each step from one value to the next.
fn slope_weights(n: usize) -> Vec<f64> {
    let middle = (n as f64 - 1.0) / 2.0;
    let squares: f64 = (0..n).map(|at| (at as f64 - middle).powi(2)).sum();
    (0..n).map(|at| (at as f64 - middle) / squares.max(f64::MIN_POSITIVE)).collect()
}

/// Slope of the share of right answers from one asking to the next; the same items each time, resampled.
pub fn slope(askings: &[&[bool]]) -> Figure {
    let weights = slope_weights(askings.len());
    let items = askings.iter().map(|right| right.len()).min().unwrap_or(0);
    let of = |item: usize| -> f64 {
        askings.iter().zip(&weights).map(|(right, weight)| f64::from(u8::from(right[item])) * weight).sum()
    };
    mean(&(0..items).map(of).collect::<Vec<f64>>())
}

/// Slope of a series with its 95 % interval (least squares, Student's t); without one below three values.
pub fn trend(values: &[f64]) -> Figure {
    let n = values.len();
    let slope: f64 = values.iter().zip(slope_weights(n)).map(|(value, weight)| value * weight).sum();
    if n < 3 {
        return Figure { value: slope, low: f64::NEG_INFINITY, high: f64::INFINITY };
    }
    let (middle, mean) = ((n as f64 - 1.0) / 2.0, values.iter().sum::<f64>() / n as f64);
    let rest = |(at, value): (usize, &f64)| (value - mean - slope * (at as f64 - middle)).powi(2);
    let squares: f64 = (0..n).map(|at| (at as f64 - middle).powi(2)).sum();
    let free = n - 2;
    let error = (values.iter().enumerate().map(rest).sum::<f64>() / free as f64 / squares).sqrt();
    let wide = student_975(free) * error;
    Figure { value: slope, low: slope - wide, high: slope + wide }
}

/// The 97.5 % quantile of Student's t: from its table for one to three degrees of freedom, else by its expansion about
/// the normal one (Abramowitz and Stegun 26.7.5), right to 0.01.
fn student_975(free: usize) -> f64 {
    match free {
        0 => f64::INFINITY,
        1 => 12.706,
        2 => 4.303,
        3 => 3.182,
        _ => {
            let (z, v) = (Z_TWO_SIDED_95, free as f64);
            let (z3, z5, z7) = (z.powi(3), z.powi(5), z.powi(7));
            z + (z3 + z) / (4.0 * v)
                + (5.0 * z5 + 16.0 * z3 + 3.0 * z) / (96.0 * v * v)
                + (3.0 * z7 + 19.0 * z5 + 17.0 * z3 - 15.0 * z) / (384.0 * v.powi(3))
        }
    }
}

/// Share of different word pairs among all of them (Li et al. 2016, distinct-2): low where replies are alike.
pub fn distinct_pairs<'a>(texts: impl IntoIterator<Item = &'a str>) -> f64 {
    let (mut all, mut different) = (0usize, std::collections::HashSet::new());
    for text in texts {
        let words: Vec<&str> = text.split_whitespace().collect();
        all += words.len().saturating_sub(1);
        different.extend(words.windows(2).map(|pair| (pair[0], pair[1])));
    }
    if all == 0 { 0.0 } else { different.len() as f64 / all as f64 }
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
    fn slopes_are_those_of_least_squares() {
        // Worked by hand: y = 1, 3, 2, 5 has slope 1.1 and a standard error of √(2.7 / 2 / 5).
        let line = trend(&[1.0, 3.0, 2.0, 5.0]);
        let wide = 4.303 * (2.7f64 / 2.0 / 5.0).sqrt();
        assert!((line.value - 1.1).abs() < 1e-12 && (line.high - line.value - wide).abs() < 1e-9, "{line:?}");
        assert!((student_975(4) - 2.776).abs() < 0.01 && (student_975(29) - 2.045).abs() < 0.001);
        assert!(trend(&[1.0, 2.0]).low.is_infinite());
        // Of 100 items 20 are learned one after the other, the rest stay: 20 points in four steps.
        let asked = |night: usize| (0..100).map(|item| item < 50 + 5 * night).collect::<Vec<bool>>();
        let askings: Vec<Vec<bool>> = (0..5).map(asked).collect();
        let found = slope(&askings.iter().map(Vec::as_slice).collect::<Vec<_>>());
        assert!((found.value - 0.05).abs() < 1e-12 && found.low > 0.0 && found.high < 0.1, "{found:?}");
        assert_eq!(slope(&[]), Figure::default());
    }

    #[test]
    fn replies_that_are_alike_have_few_different_word_pairs() {
        assert!((distinct_pairs(["a b c", "a b c"]) - 0.5).abs() < 1e-12);
        assert!((distinct_pairs(["a b c", "d e"]) - 1.0).abs() < 1e-12);
        assert_eq!(distinct_pairs([""; 3]), 0.0);
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
