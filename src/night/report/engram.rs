//! The report of a writing of the learned Engram tables. It counts their hits in the last day's replies, which says
//! what they know. It compares items of the slice exam asked with them and without, which says what that is worth.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{Change, Rate, change, rate};
use crate::engram::learned::NAME;
use crate::engram::nightly::Counts;
use crate::eval::golden::Outcome;
use crate::night::stats::Paired;
use crate::plural::counted;
use crate::turn::Turn;

/// A writing of the learned engram tables.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct EngramReport {
    /// Turns of the last 90 days that were looked at, and those that may be learned from.
    pub turns: u64,
    pub admitted: u64,
    /// Why the others may not.
    pub left_out: BTreeMap<String, u64>,
    pub counts: Counts,
    /// What the learned tables did in the last day.
    pub used: EngramUsed,
    /// What the tables that were written do to the slice exam; absent where none of it was asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub effect: Option<EngramEffect>,
}

/// Replies of a day that had learned tables.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct EngramUsed {
    pub replies: u64,
    /// Tokens of their answers, and for how many of them a table knew the context, of any of the reply's tables.
    pub tokens: u64,
    pub hits: u64,
    /// Tokens where a table's distribution was mixed in, and where that changed the likeliest.
    pub mixed: u64,
    pub changed: u64,
}

/// Items of the slice exam, each asked with the learned tables and without them, all else the same.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EngramEffect {
    /// Items that were answered both ways.
    pub items: usize,
    /// Items left out because one of the two questions failed.
    pub failed: usize,
    pub right_with: usize,
    pub right_without: usize,
    /// Share of right answers with the tables less the share without, with the 95 % interval of pairs.
    pub difference: Change,
    /// Items whose answer was another one with the tables.
    pub answers_changed: usize,
    /// Tokens of the answers with tables, for how many of them a table knew the context, and their share.
    pub tokens: u64,
    pub hits: u64,
    pub hit_rate: f64,
    /// Tokens where a table's distribution was mixed in, and where that changed the likeliest.
    pub mixed: u64,
    pub changed: u64,
}

impl EngramUsed {
    pub fn add(&mut self, turn: &Turn) {
        for generation in &turn.generations {
            let Some(used) = &generation.engram else { continue };
            if used.tables.iter().any(|name| name.starts_with(NAME)) {
                self.replies += 1;
                self.tokens += generation.reply_ids.len() as u64;
                self.hits += u64::from(used.hits);
                self.mixed += u64::from(used.mixed);
                self.changed += u64::from(used.changed);
            }
        }
    }

    pub fn hit_rate(&self) -> f64 {
        share(self.hits, self.tokens)
    }
}

impl EngramEffect {
    /// Sums up pairs of (with the tables, without); `None` where no item was answered both ways.
    pub fn of<'a>(pairs: impl IntoIterator<Item = (&'a Outcome, &'a Outcome)>) -> Option<EngramEffect> {
        let (answered, failed): (Vec<_>, Vec<_>) =
            pairs.into_iter().partition(|(with, without)| with.error.is_none() && without.error.is_none());
        if answered.is_empty() {
            return None;
        }
        // The tables stand where a candidate would.
        let paired = Paired::of(answered.iter().map(|(with, without)| (without.passed, with.passed)));
        let uses = || answered.iter().filter_map(|(with, _)| with.engram.as_ref());
        let tokens = answered.iter().map(|(with, _)| u64::from(with.answer_tokens)).sum();
        let hits = uses().map(|used| u64::from(used.hits)).sum();
        Some(EngramEffect {
            items: paired.n,
            failed: failed.len(),
            right_with: paired.candidate,
            right_without: paired.champion,
            difference: change(&paired),
            answers_changed: answered.iter().filter(|(with, without)| with.reply != without.reply).count(),
            tokens,
            hits,
            hit_rate: share(hits, tokens),
            mixed: uses().map(|used| u64::from(used.mixed)).sum(),
            changed: uses().map(|used| u64::from(used.changed)).sum(),
        })
    }

    /// Shares of right answers with the tables and without.
    pub fn rates(&self) -> (Rate, Rate) {
        (rate(self.right_with, self.items), rate(self.right_without, self.items))
    }

    /// One line for the run's record.
    pub fn words(&self) -> String {
        let failed =
            if self.failed > 0 { format!(", {} left out because they failed", self.failed) } else { String::new() };
        format!(
            "{} of the slice exam: {} right with the tables, {} without, {}{failed}",
            counted(self.items, "item", "items"),
            self.right_with,
            self.right_without,
            counted(self.answers_changed, "answer differs", "answers differ")
        )
    }
}

impl EngramReport {
    /// One line for the run's record.
    pub fn words(&self) -> String {
        let c = &self.counts;
        format!(
            "{} of {} in the tables, {} new, {} gone for age, {} withdrawn. {} before, {} now, {} of them for everybody",
            counted(c.records, "answer", "answers"),
            counted(c.principals, "principal", "principals"),
            c.records_in,
            c.records_aged,
            c.records_withdrawn,
            counted(c.entries_before, "entry", "entries"),
            c.entries,
            c.shared_entries
        )
    }
}

fn share(part: u64, all: u64) -> f64 {
    part as f64 / all.max(1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::turn::EngramUse;

    fn outcome(passed: bool, reply: &str, hits: Option<u32>) -> Outcome {
        let engram = hits.map(|hits| EngramUse { hits, mixed: hits, changed: 1, ..EngramUse::default() });
        Outcome { passed, reply: reply.to_owned(), answer_tokens: 10, engram, ..Outcome::default() }
    }

    #[test]
    fn what_the_tables_gained_and_lost_is_told_apart() {
        let mut pairs = vec![(outcome(true, "walnut", Some(4)), outcome(false, "stone", None)); 3];
        pairs.push((outcome(false, "walnut", Some(2)), outcome(true, "stone", None)));
        pairs.extend(vec![(outcome(true, "same", Some(0)), outcome(true, "same", None)); 4]);
        let broken = Outcome { error: Some("too long".to_owned()), ..Outcome::default() };
        pairs.push((broken.clone(), outcome(true, "same", None)));
        let effect = EngramEffect::of(pairs.iter().map(|(with, without)| (with, without))).unwrap();
        assert_eq!((effect.items, effect.failed, effect.right_with, effect.right_without), (8, 1, 7, 5));
        let points = effect.difference;
        assert!(points.difference == 0.25 && points.low < 0.25 && points.high > 0.25, "{points:?}");
        assert_eq!(
            (effect.answers_changed, effect.tokens, effect.hits, effect.mixed, effect.changed),
            (4, 80, 14, 14, 8)
        );
        assert_eq!(effect.hit_rate, 14.0 / 80.0);
        assert_eq!(EngramEffect::of([(&broken, &broken)]), None);
    }
}
