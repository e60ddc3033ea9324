//! The same questions on every day of a simulated week. They show whether replies become worse, narrower or longer
//! while the nights let in one generation after the other.

use std::fmt::Write;

use serde::{Deserialize, Serialize};

use super::compare::{slope, trend};
use super::table::{points, score};
use crate::eval::golden::Score;

/// One day's asking.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Asking {
    pub right: Vec<bool>,
    pub failed: usize,
    /// The generation that served most conversations.
    pub champion: u64,
    /// Mean tokens of a reply, thought and answer, and the share of different word pairs in all of them.
    pub tokens: f64,
    pub distinct: f64,
}

/// Day by day, and how steep.
pub fn write(out: &mut String, askings: &[Asking]) -> std::fmt::Result {
    let Some(first) = askings.first() else { return Ok(()) };
    writeln!(out, "\nThe same {} questions on every day, which no gate reads", first.right.len())?;
    writeln!(out, "  day  serves  right               tokens a reply  different word pairs")?;
    for (day, asking) in askings.iter().enumerate() {
        let right = asking.right.iter().filter(|right| **right).count();
        let failed = if asking.failed > 0 { format!("  {} failed", asking.failed) } else { String::new() };
        let right = score(&Score::of(right, asking.right.len()));
        let (day, serves, tokens, distinct) = (day + 1, asking.champion, asking.tokens, 100.0 * asking.distinct);
        writeln!(out, "  {day:>3}  {serves:>6}  {right:<18}  {tokens:>14.1}  {distinct:>18.1} %{failed}")?;
    }
    let rights: Vec<&[bool]> = askings.iter().map(|asking| asking.right.as_slice()).collect();
    writeln!(out, "  slope a night: {} points of right answers (items resampled)", points(slope(&rights)))?;
    let series = |of: &dyn Fn(&Asking) -> f64| trend(&askings.iter().map(of).collect::<Vec<f64>>());
    for (what, figure) in [
        ("tokens a reply", series(&|asking| asking.tokens)),
        ("points of different word pairs", series(&|asking| 100.0 * asking.distinct)),
    ] {
        let (value, low, high, days) = (figure.value, figure.low, figure.high, askings.len());
        writeln!(out, "  slope a night: {value:+.3} [{low:+.3}, {high:+.3}] {what} (least squares over {days} days)")?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_day_has_a_line_and_the_slopes_come_last() {
        let asking = |day: usize| Asking {
            right: (0..40).map(|n| n < 20 + 4 * day).collect(),
            failed: day / 3,
            champion: day as u64,
            tokens: 50.0 + day as f64,
            distinct: 0.5,
        };
        let mut text = String::new();
        write(&mut text, &(0..4).map(asking).collect::<Vec<_>>()).unwrap();
        for words in ["    4       3  80.0 [", "53.0", "50.0 %  1 failed", "+10.00 [", "+1.000 [+1.000, +1.000] tokens"]
        {
            assert!(text.contains(words), "{words}:\n{text}");
        }
        let mut none = String::new();
        write(&mut none, &[]).unwrap();
        assert!(none.is_empty());
    }
}
