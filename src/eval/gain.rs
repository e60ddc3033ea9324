//! What a change is worth on an exam: the same items without it and with it.

use serde::Serialize;

use super::golden::Score;
use crate::night::stats::{Paired, Z_TWO_SIDED_95};

/// Rates of the same items in two arms. Differences are shares of one, with the 95 % interval of paired outcomes.
#[derive(Clone, Debug, Serialize)]
pub struct Gain {
    pub without: Score,
    pub with: Score,
    pub difference: f64,
    pub low: f64,
    pub high: f64,
    /// Items that only the arm with the change got right, and that only the other one did.
    pub wins: usize,
    pub losses: usize,
}

impl Gain {
    /// Of pairs (right without, right with).
    pub fn of(pairs: impl IntoIterator<Item = (bool, bool)>) -> Gain {
        let paired = Paired::of(pairs);
        let (low, high) = paired.interval(Z_TWO_SIDED_95);
        Gain {
            without: Score::of(paired.champion, paired.n),
            with: Score::of(paired.candidate, paired.n),
            difference: paired.difference(),
            low,
            high,
            wins: paired.wins,
            losses: paired.losses,
        }
    }

    /// The difference in points of a hundred with its interval, and what was won and lost, for people.
    pub fn points(&self) -> String {
        let Gain { difference, low, high, wins, losses, .. } = self;
        let [difference, low, high] = [difference, low, high].map(|share| 100.0 * share);
        format!("{difference:+.2} [{low:+.2}, {high:+.2}]  {wins} won, {losses} lost")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arms_are_compared_item_by_item() {
        let gain = Gain::of([(true, true), (false, true), (false, true), (true, false), (false, false)]);
        assert_eq!((gain.without.passed, gain.with.passed, gain.with.n), (2, 3, 5));
        assert_eq!((gain.wins, gain.losses), (2, 1));
        assert!((gain.difference - 0.2).abs() < 1e-12 && gain.low < 0.2 && gain.high > 0.2);
        let certain = Gain { low: -0.5, high: 0.25, ..gain };
        assert_eq!(certain.points(), "+20.00 [-50.00, +25.00]  2 won, 1 lost");
    }
}
