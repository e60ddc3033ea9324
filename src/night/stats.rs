//! The statistics that decide over a candidate: paired differences of right and wrong answers, exact tests,
//! Holm's correction, and how many items a question needs. No state, no chance.

/// One-sided 95 % and two-sided 95 % points of the normal distribution, and the 80 % point for power.
pub const Z_ONE_SIDED_95: f64 = 1.644_854;
pub const Z_TWO_SIDED_95: f64 = 1.959_964;
const Z_POWER_80: f64 = 0.841_621;

/// How two revisions did on the same items.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Paired {
    pub n: usize,
    /// Items that the champion got right.
    pub champion: usize,
    /// Items that the candidate got right.
    pub candidate: usize,
    /// Items that only the candidate got right.
    pub wins: usize,
    /// Items that only the champion got right.
    pub losses: usize,
}

impl Paired {
    /// Counts pairs of (champion right, candidate right).
    pub fn of(pairs: impl IntoIterator<Item = (bool, bool)>) -> Paired {
        let mut counted = Paired::default();
        for (champion, candidate) in pairs {
            counted.n += 1;
            counted.champion += usize::from(champion);
            counted.candidate += usize::from(candidate);
            counted.wins += usize::from(candidate && !champion);
            counted.losses += usize::from(champion && !candidate);
        }
        counted
    }

    /// Share of the items on which the two differ.
    pub fn discordance(&self) -> f64 {
        share(self.wins + self.losses, self.n)
    }

    /// Rate of the candidate less rate of the champion, −1 … 1.
    pub fn difference(&self) -> f64 {
        share(self.wins, self.n) - share(self.losses, self.n)
    }

    /// Interval of the difference, `z` standard errors to each side: Wald's on half an item more in each cell
    /// (Agresti and Min, "Simple improved confidence intervals for comparing matched proportions", 2005).
    pub fn interval(&self, z: f64) -> (f64, f64) {
        let n = self.n as f64 + 2.0;
        let (wins, losses) = (self.wins as f64 + 0.5, self.losses as f64 + 0.5);
        let difference = (wins - losses) / n;
        let error = (wins + losses - (wins - losses).powi(2) / n).max(0.0).sqrt() / n;
        ((difference - z * error).max(-1.0), (difference + z * error).min(1.0))
    }

    /// Exact one-sided sign test (McNemar): how likely so few wins among the differing items are, if winning
    /// and losing were equally likely.
    pub fn loss_p(&self) -> f64 {
        at_most(self.wins, self.wins + self.losses)
    }

    /// The same for so few losses: how likely chance alone makes an equal candidate look as good.
    pub fn gain_p(&self) -> f64 {
        at_most(self.losses, self.wins + self.losses)
    }
}

/// P(X ≤ few), X ~ B(n, ½).
fn at_most(few: usize, n: usize) -> f64 {
    let mut term = -(n as f64) * std::f64::consts::LN_2;
    let mut sum = 0.0;
    for k in 0..=few {
        sum += term.exp();
        term += ((n - k) as f64).max(f64::MIN_POSITIVE).ln() - ((k + 1) as f64).ln();
    }
    sum.min(1.0)
}

fn share(part: usize, n: usize) -> f64 {
    if n == 0 { 0.0 } else { part as f64 / n as f64 }
}

/// Items that show with 80 % power that an equal candidate is not worse by `margin` (one-sided 95 %), given
/// the share of items on which the two differ: (z₀.₉₅ + z₀.₈₀)² · discordance / margin².
pub fn items_needed(discordance: f64, margin: f64) -> usize {
    let z = Z_ONE_SIDED_95 + Z_POWER_80;
    (z * z * discordance.clamp(0.0, 1.0) / (margin * margin)).ceil() as usize
}

/// Holm's step-down procedure: which of the tests are significant when all of them together may err with
/// probability `alpha`.
pub fn holm(p: &[f64], alpha: f64) -> Vec<bool> {
    let mut order: Vec<usize> = (0..p.len()).collect();
    order.sort_by(|&a, &b| p[a].total_cmp(&p[b]));
    let mut significant = vec![false; p.len()];
    for (rank, &test) in order.iter().enumerate() {
        if p[test] > alpha / (p.len() - rank) as f64 {
            break;
        }
        significant[test] = true;
    }
    significant
}

/// Fisher's exact one-sided test: how likely `hits` or more of `n` are, if the rate were that of both groups
/// together. Small: the first group's rate is higher.
pub fn higher_p(hits: usize, n: usize, other_hits: usize, other_n: usize) -> f64 {
    let (all_hits, all) = (hits + other_hits, n + other_n);
    let whole = ln_choose(all, n);
    let tail = (hits..=all_hits.min(n)).map(|k| {
        let rest = n - k;
        if rest > all - all_hits {
            0.0
        } else {
            (ln_choose(all_hits, k) + ln_choose(all - all_hits, rest) - whole).exp()
        }
    });
    tail.sum::<f64>().min(1.0)
}

fn ln_choose(n: usize, k: usize) -> f64 {
    let k = k.min(n - k.min(n));
    (1..=k).map(|i| ((n - k + i) as f64 / i as f64).ln()).sum()
}

/// Mean of the logarithms and its 95 % interval (normal), as ratios; `None` below two values.
pub fn ratio_interval(ratios: &[f64]) -> Option<(f64, f64, f64)> {
    let logs: Vec<f64> = ratios.iter().filter(|r| r.is_finite() && **r > 0.0).map(|r| r.ln()).collect();
    if logs.len() < 2 {
        return None;
    }
    let n = logs.len() as f64;
    let mean = logs.iter().sum::<f64>() / n;
    let variance = logs.iter().map(|l| (l - mean).powi(2)).sum::<f64>() / (n - 1.0);
    let half = Z_TWO_SIDED_95 * (variance / n).sqrt();
    Some((mean.exp(), (mean - half).exp(), (mean + half).exp()))
}

/// The middle value; `None` of nothing.
pub fn median(values: &[f64]) -> Option<f64> {
    let mut sorted: Vec<f64> = values.iter().copied().filter(|v| v.is_finite()).collect();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    let upper = *sorted.get(middle)?;
    Some(if sorted.len() % 2 == 1 { upper } else { (sorted[middle - 1] + upper) / 2.0 })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_interval_matches_a_published_one() {
        // Approval of a prime minister, 1,600 asked twice: 794 yes-yes, 150 yes-no, 86 no-yes, 570 no-no
        // (Agresti and Min 2005, table I): 95 % Wald interval of the drop 0.021 to 0.059 after adding a half.
        let paired = Paired { n: 1_600, champion: 944, candidate: 880, wins: 86, losses: 150 };
        let (low, high) = paired.interval(Z_TWO_SIDED_95);
        assert!((low + 0.0587).abs() < 5e-4 && (high + 0.0212).abs() < 5e-4, "{low} {high}");
        assert!((paired.difference() + 0.04).abs() < 1e-12);
        let nothing = Paired::default();
        assert_eq!(nothing.difference(), 0.0);
        assert!(nothing.interval(Z_ONE_SIDED_95).0 < -0.5);
    }

    #[test]
    fn the_sign_test_is_exact() {
        let p = |wins, losses| Paired { n: 100, wins, losses, ..Paired::default() }.loss_p();
        assert!((p(0, 5) - 1.0 / 32.0).abs() < 1e-12);
        // P(X ≤ 3), X ~ B(15, ½) = 0.017578125.
        assert!((p(3, 12) - 0.017_578_125).abs() < 1e-12);
        assert!((p(5, 0) - 1.0).abs() < 1e-9 && (p(0, 0) - 1.0).abs() < 1e-12);
        let gain = |wins, losses| Paired { n: 100, wins, losses, ..Paired::default() }.gain_p();
        assert!((gain(12, 3) - p(3, 12)).abs() < 1e-15 && (gain(0, 0) - 1.0).abs() < 1e-12);
        assert!(p(4_000, 4_300) < 1e-3 && p(4_150, 4_150) > 0.49);
    }

    #[test]
    fn the_number_of_items_follows_the_discordance() {
        assert_eq!(items_needed(0.05, 0.01), 3_092);
        assert_eq!(items_needed(0.15, 0.01), 9_274);
        assert_eq!(items_needed(0.0, 0.01), 0);
    }

    #[test]
    fn holm_stops_at_the_first_that_is_not_significant() {
        assert_eq!(holm(&[0.01, 0.04, 0.03, 0.005], 0.05), [true, false, false, true]);
        assert_eq!(holm(&[0.02, 0.02], 0.05), [true, true]);
        assert!(holm(&[], 0.05).is_empty());
    }

    #[test]
    fn fishers_test_matches_the_tea_tasting() {
        // Three of four cups right: 17/70; four of four: 1/70.
        assert!((higher_p(3, 4, 1, 4) - 17.0 / 70.0).abs() < 1e-12);
        assert!((higher_p(4, 4, 0, 4) - 1.0 / 70.0).abs() < 1e-12);
        assert!((higher_p(0, 10, 5, 10) - 1.0).abs() < 1e-9);
        assert!(higher_p(30, 50, 50, 1_000) < 1e-20);
    }

    #[test]
    fn middles_and_ratios() {
        assert_eq!(median(&[3.0, 1.0, f64::NAN, 2.0]), Some(2.0));
        assert_eq!(median(&[4.0, 1.0]), Some(2.5));
        assert_eq!(median(&[]), None);
        let (mean, low, high) = ratio_interval(&[0.5, 2.0, 1.0]).unwrap();
        assert!((mean - 1.0).abs() < 1e-12 && low < 1.0 && high > 1.0);
        assert_eq!(ratio_interval(&[1.0, f64::INFINITY]), None);
    }
}
