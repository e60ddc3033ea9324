//! How good a judge is: the area under the ROC curve with its DeLong interval, and calibration.

use serde::Serialize;

use crate::eval::golden::Score;

/// Area under the ROC curve with a 95 % interval (DeLong, DeLong and Clarke-Pearson 1988). 0.5 = a coin.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Auc {
    pub auc: f64,
    pub low: f64,
    pub high: f64,
    pub right: usize,
    pub wrong: usize,
}

/// `scored`: a score and whether the answer was right. `None` with fewer than two of either kind.
pub fn auc(scored: &[(f64, bool)]) -> Option<Auc> {
    let of = |kind: bool| -> Vec<f64> { scored.iter().filter(|(_, right)| *right == kind).map(|(s, _)| *s).collect() };
    let (right, wrong) = (of(true), of(false));
    if right.len() < 2 || wrong.len() < 2 {
        return None;
    }
    let (m, n) = (right.len() as f64, wrong.len() as f64);
    let all = midranks(&[right.as_slice(), wrong.as_slice()].concat());
    let placed = |ranks: &[f64], own: &[f64], others: f64| -> Vec<f64> {
        ranks.iter().zip(own).map(|(all, own)| (all - own) / others).collect()
    };
    let of_right = placed(&all[..right.len()], &midranks(&right), n);
    let of_wrong = placed(&all[right.len()..], &midranks(&wrong), m);
    let auc = of_right.iter().sum::<f64>() / m;
    let error = 1.96 * (variance(&of_right) / m + variance(&of_wrong) / n).sqrt();
    let (low, high) = ((auc - error).max(0.0), (auc + error).min(1.0));
    Some(Auc { auc, low, high, right: right.len(), wrong: wrong.len() })
}

/// Rank of every value, equal ones sharing the middle of theirs.
fn midranks(values: &[f64]) -> Vec<f64> {
    let mut order: Vec<usize> = (0..values.len()).collect();
    order.sort_by(|&a, &b| values[a].total_cmp(&values[b]));
    let mut ranks = vec![0.0; values.len()];
    let mut from = 0;
    while from < order.len() {
        let mut to = from;
        while to + 1 < order.len() && values[order[to + 1]] == values[order[from]] {
            to += 1;
        }
        for &at in &order[from..=to] {
            ranks[at] = (from + to) as f64 / 2.0 + 1.0;
        }
        from = to + 1;
    }
    ranks
}

fn variance(values: &[f64]) -> f64 {
    let mean = values.iter().sum::<f64>() / values.len() as f64;
    values.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / (values.len() - 1) as f64
}

/// Agreement of stated probabilities with what was right.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Calibration {
    /// Expected calibration error over ten bins of equal width.
    pub ece: f64,
    /// Mean squared error of P.
    pub brier: f64,
    /// Share of right answers at each verdict, 1 … 5.
    pub by_verdict: Vec<Score>,
}

/// `judged`: P, verdict, and whether the answer was right.
pub fn calibration(judged: &[(f64, u8, bool)]) -> Calibration {
    let n = judged.len().max(1) as f64;
    let truth = |right: bool| f64::from(u8::from(right));
    let mut bins = [(0.0, 0.0, 0usize); 10];
    for &(p, _, right) in judged {
        let bin = &mut bins[((p * 10.0) as usize).min(9)];
        *bin = (bin.0 + p, bin.1 + truth(right), bin.2 + 1);
    }
    let ece = bins.iter().map(|(p, right, _)| (p - right).abs()).sum::<f64>() / n;
    let brier = judged.iter().map(|&(p, _, right)| (p - truth(right)).powi(2)).sum::<f64>() / n;
    let by_verdict = (1..=5u8)
        .map(|verdict| {
            let of: Vec<bool> = judged.iter().filter(|j| j.1 == verdict).map(|j| j.2).collect();
            Score::of(of.iter().filter(|right| **right).count(), of.len())
        })
        .collect();
    Calibration { ece, brier, by_verdict }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_area_counts_pairs_and_halves_ties() {
        // Right: 3, 2, 2; wrong: 2, 1. Pairs won: 2 + 1.5 + 1.5 of 6.
        let scored = [(3.0, true), (2.0, true), (2.0, true), (2.0, false), (1.0, false)];
        let found = auc(&scored).unwrap();
        assert!((found.auc - 5.0 / 6.0).abs() < 1e-12, "{found:?}");
        assert!(found.low < found.auc && found.high <= 1.0);
        assert_eq!(auc(&[(1.0, true), (0.0, false)]), None);
    }

    /// A scorer that knows nothing: the interval holds a half; one that knows all: 1.
    #[test]
    fn intervals_hold_what_they_should() {
        let noise: Vec<_> = (0..400u32).map(|n| (f64::from(n.wrapping_mul(2_654_435_761) >> 8), n % 2 == 0)).collect();
        let found = auc(&noise).unwrap();
        assert!(found.low < 0.5 && found.high > 0.5, "{found:?}");
        let sure: Vec<_> = (0..50).map(|n| (f64::from(n % 2), n % 2 == 1)).collect();
        assert_eq!(auc(&sure).unwrap().auc, 1.0);
    }

    #[test]
    fn honest_probabilities_have_no_error() {
        let honest: Vec<_> = (0..100).map(|n| (0.7, 3u8, n < 70)).collect();
        let found = calibration(&honest);
        assert!(found.ece < 1e-9 && (found.brier - 0.21).abs() < 1e-9, "{found:?}");
        assert_eq!((found.by_verdict[2].n, found.by_verdict[2].passed, found.by_verdict[0].n), (100, 70, 0));
        let boastful: Vec<_> = (0..100).map(|n| (0.95, 5u8, n < 50)).collect();
        assert!((calibration(&boastful).ece - 0.45).abs() < 1e-9);
    }
}
