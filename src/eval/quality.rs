//! What the quality gate is worth: the same items without it and with it. An item with a poor verdict is asked again.
//! The answer with the better verdict is kept, and the exact checks say what that changed.

use std::collections::HashMap;

use serde::Serialize;

use super::gain::Gain;
use super::golden::{Item, Outcome, Score};
use super::scorer::Judged;
use crate::scoring::reflect::{best, reflection};
use crate::toolcall;

/// How an item is asked again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Again {
    /// The poor answer is given back with the request to work it out again: what the gate does.
    Reflect,
    /// The question once more, with other dice: what a second answer is worth by itself.
    Resample,
}

/// Items that the gate asks again, as they are asked; the number is that of the item.
pub fn again(
    items: &[Item],
    outcomes: &[Outcome],
    judged: &[Judged],
    verdict_max: u8,
    how: Again,
) -> Vec<(usize, Item)> {
    let poor: HashMap<&str, u8> = judged.iter().map(|j| (j.id.as_str(), j.verdict)).collect();
    let asked = items.iter().zip(outcomes).enumerate();
    asked
        .filter(|(_, (item, _))| poor.get(item.id.as_str()).is_some_and(|verdict| *verdict <= verdict_max))
        .map(|(at, (item, outcome))| {
            let (content, calls) = toolcall::parse(&outcome.reply, &item.tools);
            let messages = match how {
                Again::Reflect => reflection(&item.messages, content.trim(), &calls),
                Again::Resample => item.messages.clone(),
            };
            (at, Item { messages, ..item.clone() })
        })
        .collect()
}

/// What came of the gate on an exam.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// All items: their first answers against the answers that the gate let out.
    #[serde(flatten)]
    pub all: Gain,
    /// Items asked again: their first answers, their second ones, and the judge's choice.
    pub first: Score,
    pub second: Score,
    pub kept: Score,
    /// Items whose second answer was kept.
    pub revised: usize,
}

/// Puts the attempts together: `second` belongs to the items named by `tried`, judged against the first question.
pub fn report(
    outcomes: &[Outcome],
    first: &[Judged],
    tried: &[usize],
    second: &[Outcome],
    rejudged: &[Judged],
) -> Report {
    let p_of = |judged: &[Judged], id: &str| judged.iter().find(|j| j.id == id).map(|j| j.p);
    let mut after: Vec<bool> = outcomes.iter().map(|outcome| outcome.passed).collect();
    let mut revised = 0;
    for (&at, new) in tried.iter().zip(second) {
        let id = outcomes[at].id.as_str();
        // What was not judged is not kept.
        let p = [p_of(first, id).unwrap_or(0.0), p_of(rejudged, id).unwrap_or(f32::NEG_INFINITY)];
        if best(p) == 1 {
            after[at] = new.passed;
            revised += 1;
        }
    }
    let count = |right: &mut dyn Iterator<Item = bool>| Score::of(right.filter(|r| *r).count(), tried.len());
    Report {
        all: Gain::of(outcomes.iter().map(|o| o.passed).zip(after.iter().copied())),
        first: count(&mut tried.iter().map(|&at| outcomes[at].passed)),
        second: count(&mut second.iter().map(|outcome| outcome.passed)),
        kept: count(&mut tried.iter().map(|&at| after[at])),
        revised,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(id: &str, passed: bool) -> Outcome {
        let (family, domain, reply) = ("f".to_owned(), "d".to_owned(), "4".to_owned());
        Outcome { id: id.to_owned(), family, domain, passed, reply, tokens: 1, answer_tokens: 1, ..Outcome::default() }
    }

    fn judged(id: &str, p: f32, verdict: u8) -> Judged {
        let (domain, steps) = ("d".to_owned(), Vec::new());
        Judged { id: id.to_owned(), domain, passed: false, p, verdict, steps }
    }

    #[test]
    fn the_judges_favourite_counts() {
        let outcomes = [outcome("a", false), outcome("b", true), outcome("c", true), outcome("d", false)];
        let first = [judged("a", 0.2, 1), judged("b", 0.3, 2), judged("c", 0.9, 5), judged("d", 0.1, 1)];
        let second = [outcome("a", true), outcome("b", false), outcome("d", true)];
        // The judge likes the second answers to a and b better, and could not read the one to d.
        let report = report(&outcomes, &first, &[0, 1, 3], &second, &[judged("a", 0.8, 4), judged("b", 0.4, 2)]);
        let Report { all, first, second, kept, revised } = &report;
        assert_eq!((all.wins, all.losses, *revised), (1, 1, 2));
        assert_eq!((all.without.passed, all.with.passed), (2, 2));
        assert_eq!((first.passed, second.passed, kept.passed, kept.n), (1, 2, 1, 3));
        assert!(all.low < 0.0 && all.high > 0.0);
        // Whoever reads the figures finds them side by side.
        assert_eq!(serde_json::json!(report)["wins"], 1);
    }
}
