//! What verified exchanges are worth as examples. The same items are asked without examples, and with the exchanges
//! whose questions are most like theirs, as the daemon shows them.

use std::collections::BTreeMap;

use serde::Serialize;

use super::gain::Gain;
use super::golden::{Item, Outcome};
use crate::embed::index::TEXT_BYTES_MAX;
use crate::embed::{Code, Example, Index, Static, show};
use crate::simulate::pool::Question;
use crate::turn::{Message, Retrieve, Role};

/// Whose the exchanges of an exam are.
const ASKER: &str = "exam";

/// The index of questions with their reference answers, as the job `reindex` would have it: one question each, answered
/// in words.
pub fn index(embedder: &Static, questions: &[Question]) -> Index {
    let found = questions.iter().filter_map(|question| {
        let mut said = question.item.messages.iter().filter(|m| m.role != Role::System);
        let (Some(Message { role: Role::User, content: asked, .. }), None) = (said.next(), said.next()) else {
            return None;
        };
        let fits = |text: &str| !text.trim().is_empty() && text.len() <= TEXT_BYTES_MAX;
        let words = question.tool_calls.is_empty() && fits(asked) && fits(&question.answer);
        words.then(|| {
            let tokens = embedder.tokens(asked).len() + embedder.tokens(&question.answer).len();
            let example = Example {
                turn: question.item.id.clone(),
                principal: ASKER.to_owned(),
                question: asked.clone(),
                answer: question.answer.trim().to_owned(),
                tokens: tokens as u32,
                ..Example::default()
            };
            (example, Code::of(&embedder.embed(asked)))
        })
    });
    Index::new(embedder.width(), embedder.digest(), found.collect())
}

/// An item with its examples.
#[derive(Debug)]
pub struct Shown {
    pub item: Item,
    pub examples: usize,
    /// Likeness of the likest.
    pub score: f32,
}

/// Puts the likest exchanges before the item's question. `context`: tokens that a sequence may hold.
pub fn shown(embedder: &Static, index: &Index, item: &Item, wanted: &Retrieve, context: usize) -> Shown {
    let mut item = item.clone();
    let Some(question) = show::first_question(&item.messages, 0) else {
        return Shown { item, examples: 0, score: 0.0 };
    };
    let tools: usize = item.tools.iter().map(|tool| tool.to_string().len()).sum();
    let room = show::room(&item.messages, context, item.max_tokens as usize).saturating_sub(tools);
    let found = index.find(&Code::of(&embedder.embed(question)), ASKER, wanted, room);
    let score = found.first().map_or(0.0, |first| first.1);
    let examples = show::insert(&mut item.messages, 0, found.iter().map(|(example, _)| *example)) / 2;
    Shown { item, examples, score }
}

/// What came of it.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    pub exchanges: usize,
    /// Items that were shown examples, and examples of them all.
    pub helped: usize,
    pub examples: usize,
    /// All items; those that were shown something; each domain.
    pub all: Gain,
    pub shown: Gain,
    pub domains: BTreeMap<String, Gain>,
}

/// Compares the arms, item by item.
pub fn report(exchanges: usize, shown: &[Shown], without: &[Outcome], with: &[Outcome]) -> Report {
    let rows: Vec<(&Shown, &str, (bool, bool))> = shown
        .iter()
        .zip(without.iter().zip(with))
        .map(|(shown, (old, new))| (shown, old.domain.as_str(), (old.passed, new.passed)))
        .collect();
    let gain = |keep: &dyn Fn(&Shown, &str) -> bool| {
        Gain::of(rows.iter().filter(|(shown, domain, _)| keep(shown, domain)).map(|row| row.2))
    };
    let mut domains: Vec<&str> = rows.iter().map(|row| row.1).collect();
    domains.sort_unstable();
    domains.dedup();
    Report {
        exchanges,
        helped: shown.iter().filter(|shown| shown.examples > 0).count(),
        examples: shown.iter().map(|shown| shown.examples).sum(),
        all: gain(&|_, _| true),
        shown: gain(&|shown, _| shown.examples > 0),
        domains: domains.into_iter().map(|name| (name.to_owned(), gain(&|_, domain| domain == name))).collect(),
    }
}

#[cfg(feature = "llama")]
#[cfg(test)]
mod tests {
    use super::*;

    fn item(id: &str, question: &str) -> Item {
        let line = serde_json::json!({"id": id, "domain": id, "family": "f", "check": {"kind": "contains", "any": ["x"]},
            "messages": [{"role": "system", "content": "s"}, {"role": "user", "content": question}]});
        serde_json::from_value(line).unwrap()
    }

    #[test]
    fn items_are_shown_what_is_like_them_and_the_arms_are_compared() {
        // The vector of a text counts its letters, vowels and others.
        let vowel = |id: usize| usize::from(id % 3 == 0);
        let bytes = crate::embed::model::small(2, |id, d| if vowel(id) == d { 1.0 } else { 0.0 });
        let embedder = Static::read(&bytes).unwrap();
        let question = |id: &str, asked: &str, answer: &str| Question {
            item: item(id, asked),
            think: "thought".to_owned(),
            answer: answer.to_owned(),
            tool_calls: Vec::new(),
        };
        let index =
            index(&embedder, &[question("a", "zzzz", "A."), question("b", "yyyy", "B."), question("c", "x", "")]);
        assert_eq!(index.examples().len(), 2, "an exchange has an answer");
        let wanted = Retrieve { k: 1, min_score: 0.9, tokens_max: 100 };
        let near = shown(&embedder, &index, &item("one", "zz"), &wanted, 4_096);
        let texts: Vec<&str> = near.item.messages.iter().map(|m| m.content.as_str()).collect();
        assert_eq!((texts.len(), texts[0], texts[3]), (4, "s", "zz"));
        let full = shown(&embedder, &index, &item("two", "zz"), &wanted, 256);
        assert_eq!((full.examples, full.item.messages.len()), (0, 2), "there is no room");
        let outcome = |item: &Item, passed| Outcome { passed, ..Outcome::blank(item) };
        let [one, two] = [item("one", ""), item("two", "")];
        let without = [outcome(&one, false), outcome(&two, true)];
        let with = [outcome(&one, true), outcome(&two, true)];
        let report = report(2, &[near, full], &without, &with);
        assert_eq!((report.helped, report.examples, report.all.wins, report.all.losses), (1, 1, 1, 0));
        assert_eq!((report.shown.with.n, report.shown.with.passed, report.domains["two"].without.passed), (1, 1, 1));
        assert!(report.all.difference == 0.5 && report.all.low < 0.5 && report.all.high > 0.5);
    }
}
