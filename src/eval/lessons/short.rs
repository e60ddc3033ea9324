//! Short lessons of household and team life in seven languages, each with other wordings and with neighbours: which lesson
//! is recalled? Counted without a model, all lessons of a half in one book.

use serde::{Deserialize, Serialize};

use crate::eval::golden::Score;
use crate::lessons::{Book, Draft, Index, Known, LessonError, LessonId};

const SET: &str = include_str!("short.jsonl");
const WHO: &str = "ada";

/// Recall was made with a look at the one half, and without a look at the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Half {
    Development,
    HeldOut,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Item {
    pub half: Half,
    pub language: String,
    pub question: String,
    pub answer: String,
    /// The question in other words.
    pub same: Vec<String>,
    /// Something else of the same one, and the same of another one.
    pub other: Vec<String>,
}

/// What came of one half, in English, in the other languages or in all.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    pub half: Half,
    pub languages: &'static str,
    pub lessons: usize,
    /// Other wordings that have their lesson first.
    pub found: Score,
    /// Neighbours that are shown a lesson.
    pub neighbours: Score,
    pub missed: Vec<String>,
    pub shown: Vec<String>,
}

#[derive(Debug, thiserror::Error)]
pub enum ShortError {
    #[error("the set of short lessons cannot be read: {0}")]
    Read(#[from] serde_json::Error),
    #[error("a short lesson cannot be taught: {0}")]
    Taught(#[from] LessonError),
}

/// The lessons in their order.
pub fn items() -> Result<Vec<Item>, ShortError> {
    Ok(SET.lines().map(serde_json::from_str).collect::<Result<_, _>>()?)
}

/// The index of lessons that one principal was taught.
fn taught(items: &[&Item]) -> Result<Index, ShortError> {
    let mut book = Book::default();
    for (n, item) in items.iter().enumerate() {
        let draft = Draft {
            principal: WHO.into(),
            questions: vec![item.question.clone()],
            answer: item.answer.clone(),
            known: Known::Added,
            sources: Vec::new(),
            by_owner: true,
            sharing: None,
            shown: Vec::new(),
        };
        book = book.with(draft, LessonId(format!("lesson-{n:02}")), 0)?.0;
    }
    Ok(Index::new(&book))
}

/// Asks every wording and every neighbour of a half.
pub fn count(items: &[Item], half: Half) -> Result<Vec<Row>, ShortError> {
    let half_of: Vec<&Item> = items.iter().filter(|item| item.half == half).collect();
    let index = taught(&half_of)?;
    let row = |languages, of: &dyn Fn(&str) -> bool| {
        let items: Vec<&Item> = half_of.iter().copied().filter(|item| of(&item.language)).collect();
        let first = |question: &String| index.find(question, WHO).first().map(|found| found.lesson.answer.clone());
        let same = items.iter().flat_map(|item| item.same.iter().map(move |question| (*item, question)));
        let missed: Vec<String> = same
            .filter(|(item, question)| first(question).as_ref() != Some(&item.answer))
            .map(|(_, question)| question.clone())
            .collect();
        let other = items.iter().flat_map(|item| &item.other);
        let shown: Vec<String> = other.filter(|question| first(question).is_some()).cloned().collect();
        let (wordings, neighbours): (usize, usize) =
            (items.iter().map(|i| i.same.len()).sum(), items.iter().map(|i| i.other.len()).sum());
        let found = Score::of(wordings - missed.len(), wordings);
        let neighbours = Score::of(shown.len(), neighbours);
        Row { half, languages, lessons: items.len(), found, neighbours, missed, shown }
    };
    Ok(vec![row("all", &|_| true), row("English", &|l| l == "en"), row("others", &|l| l != "en")])
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn the_set_asks_nothing_twice_and_its_halves_are_alike() {
        let items = items().unwrap();
        let questions = || items.iter().flat_map(|i| i.same.iter().chain(&i.other).chain([&i.question]));
        assert_eq!(questions().collect::<BTreeSet<_>>().len(), questions().count());
        let half = |half| items.iter().filter(|item| item.half == half).count();
        assert_eq!((half(Half::Development), half(Half::HeldOut)), (36, 36));
        assert!(items.iter().all(|item| item.same.len() == 4 && item.other.len() == 3));
        assert_eq!(items.iter().map(|item| &item.language).collect::<BTreeSet<_>>().len(), 7);
    }

    #[test]
    fn short_questions_in_other_words_find_their_lesson_and_neighbours_do_not() {
        let items = items().unwrap();
        let all = |half| count(&items, half).unwrap().remove(0);
        let development = all(Half::Development);
        assert_eq!((development.found.n, development.neighbours.n), (144, 108));
        assert!(development.found.passed >= 133 && development.neighbours.passed <= 1, "{development:#?}");
        let held_out = all(Half::HeldOut);
        assert!(held_out.found.passed >= 127 && held_out.neighbours.passed <= 2, "{held_out:#?}");
    }
}
