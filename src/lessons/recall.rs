//! Which lessons bear on a question. A lesson's words are weighed by how few of the lessons have them; the share of that
//! weight that the question has too is the score. Figures: `docs/figures/lessons.md`.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use super::words::{asked, key, stem};
use super::{Book, Lesson, State};

/// Lowest score of a lesson that is shown.
const SCORE_MIN: f64 = 0.45;
/// The same where question and lesson name different people or places.
const OTHER_NAMES_MIN: f64 = 0.8;
/// Lessons of one reply; a further one must be nearly as good as the first.
const SHOWN_MAX: usize = 2;
const NEARLY: f64 = 0.15;
/// Weight of a word that many questions have in common, and letters from which a word weighs no more.
const GENERIC_WEIGHT: f64 = 0.4;
const LETTERS_MAX: usize = 8;
/// Longest question that lessons are looked for, bytes.
const QUESTION_BYTES_MAX: usize = 4_000;

/// Words of relations and of requests: they are in many questions, and what they are asked about is not in them.
const GENERIC: &[&str] = &[
    "code", "number", "name", "birthday", "phone", "extension", "room", "day", "time", "date", "place", "colour",
    "color", "price", "cost", "size", "type", "model", "kind", "line", "key", "address", "email", "password", "pin",
    "meeting", "report", "list", "book", "file", "house", "home", "car", "way", "thing", "people", "person", "man",
    "woman", "get", "go", "come", "take", "make", "put", "keep", "find", "look", "open", "close", "start", "end", "use",
    "work", "much", "many", "long", "often", "late", "early", "soon", "old", "new", "big", "next", "last", "first",
];

/// A text as recall compares it.
#[derive(Debug, Default)]
struct Terms {
    words: BTreeSet<String>,
    /// Words that begin with a capital letter within a sentence.
    names: BTreeSet<String>,
    numbers: BTreeSet<String>,
    key: String,
}

impl Terms {
    fn of(text: &str) -> Terms {
        let mut terms = Terms { key: key(text), ..Terms::default() };
        for word in asked(text) {
            if word.text.contains(|c: char| c.is_ascii_digit()) {
                terms.numbers.insert(word.text.clone());
            } else if word.named {
                terms.names.insert(word.text.clone());
            }
            terms.words.insert(word.text);
        }
        terms
    }
}

/// Lessons that may be shown, with the words of each wording.
#[derive(Default)]
pub(super) struct Index(Vec<(Arc<Lesson>, Vec<Terms>)>);

/// A lesson that bears on a question.
#[derive(Clone, Debug, PartialEq)]
pub struct Recalled {
    pub lesson: Arc<Lesson>,
    /// The wording that is likest.
    pub question: usize,
    pub score: f64,
}

impl Index {
    pub(super) fn new(book: &Book) -> Index {
        let shown = book.lessons().iter().filter(|lesson| lesson.state == State::New);
        Index(shown.map(|lesson| (lesson.clone(), lesson.questions.iter().map(|q| Terms::of(q)).collect())).collect())
    }

    /// The lessons that replies to a principal may be shown for a question, the likest first. What is another's private
    /// lesson changes nothing, not even a weight.
    pub(super) fn find(&self, question: &str, principal: &str) -> Vec<Recalled> {
        if question.len() > QUESTION_BYTES_MAX {
            return Vec::new();
        }
        let terms = Terms::of(question);
        let visible: Vec<&(Arc<Lesson>, Vec<Terms>)> =
            self.0.iter().filter(|(lesson, _)| lesson.shown_to(principal)).collect();
        let mut having: HashMap<&str, usize> = HashMap::new();
        for (_, wordings) in &visible {
            let words: BTreeSet<&String> = wordings.iter().flat_map(|terms| &terms.words).collect();
            words.into_iter().for_each(|word| *having.entry(word).or_default() += 1);
        }
        let weight = |word: &String| weight(word, visible.len(), having.get(word.as_str()).copied().unwrap_or(0));
        let mut found: Vec<Recalled> = Vec::new();
        for (lesson, wordings) in &visible {
            let scores = wordings.iter().map(|wording| score(&terms, wording, &weight)).enumerate();
            let Some((question, score)) = scores.max_by(|a, b| a.1.total_cmp(&b.1)) else { continue };
            if score >= SCORE_MIN {
                found.push(Recalled { lesson: lesson.clone(), question, score });
            }
        }
        // Of two that are as good the principal's own, and then the newer one.
        let own = |found: &Recalled| found.lesson.principal == principal;
        found.sort_by(|a, b| {
            (b.score.total_cmp(&a.score)).then(own(b).cmp(&own(a))).then(b.lesson.id.cmp(&a.lesson.id))
        });
        let best = found.first().map_or(0.0, |best| best.score);
        found.retain(|found| found.score >= best - NEARLY);
        found.truncate(SHOWN_MAX);
        found
    }
}

fn weight(word: &str, lessons: usize, having: usize) -> f64 {
    let letters = (word.chars().count().min(LETTERS_MAX) as f64).sqrt();
    let generic = if GENERIC.iter().any(|common| stem(common) == word) { GENERIC_WEIGHT } else { 1.0 };
    generic * letters * (1.0 + (lessons as f64 + 1.0) / (1.0 + having as f64)).ln()
}

/// 0 to 1.
fn score(question: &Terms, wording: &Terms, weight: &impl Fn(&String) -> f64) -> f64 {
    if question.key == wording.key {
        return 1.0;
    }
    let differ = |a: &BTreeSet<String>, b: &Terms| a.iter().any(|word| !b.words.contains(word));
    // Another number asks for another thing.
    if differ(&question.numbers, wording) && differ(&wording.numbers, question) {
        return 0.0;
    }
    let all: f64 = wording.words.iter().map(weight).sum();
    let both: f64 = wording.words.intersection(&question.words).map(weight).sum();
    let score = if all > 0.0 { both / all } else { 0.0 };
    let others = differ(&question.names, wording) && differ(&wording.names, question);
    if others && score < OTHER_NAMES_MIN { 0.0 } else { score }
}

#[cfg(test)]
mod tests {
    use super::super::{Draft, Known, LessonId};
    use super::*;

    const TAUGHT: &[(&str, &str, &str)] = &[
        ("ada", "What is the code of Marwen's locker?", "4471"),
        ("ada", "What is the code of Tilda's locker?", "9038"),
        ("ada", "Where is the key to the cellar?", "Under the pot."),
        ("ada", "Which bus goes to Hollbeck?", "83"),
        ("ada", "What is 17 + 25?", "42"),
        ("bob", "Where is the key to the cellar?", "In the tin."),
        ("bob", "How do we start the old pump?", "Pull twice."),
    ];

    fn book(taught: &[(&str, &str, &str)]) -> Book {
        taught.iter().enumerate().fold(Book::default(), |book, (n, (principal, question, answer))| {
            let draft = Draft {
                principal: (*principal).into(),
                questions: vec![(*question).into()],
                answer: (*answer).into(),
                known: Known::Added,
                sources: Vec::new(),
                by_owner: true,
                share: question.contains("pump"),
            };
            book.with(draft, LessonId(format!("lesson-{n}")), 0).unwrap().0
        })
    }

    fn found(index: &Index, question: &str, principal: &str) -> Vec<String> {
        index.find(question, principal).iter().map(|found| found.lesson.answer.clone()).collect()
    }

    #[test]
    fn a_lesson_is_found_in_other_words_and_not_for_others() {
        let index = Index::new(&book(TAUGHT));
        for (question, answers) in [
            ("What is the code of Marwen's locker?", &["4471"][..]),
            ("Which digits open the locker of Marwen?", &["4471"]),
            ("I stand before the cellar and it is locked, where could the key be?", &["Under the pot."]),
            ("How do I get to Hollbeck by bus?", &["83"]),
            ("what is 17+25", &["42"]),
            ("How is the pump started?", &["Pull twice."]),
            // Somebody else, something else, another number, nothing to go by.
            ("What is the code of Ragna's locker?", &[]),
            ("Which bus goes to Ostwick?", &[]),
            ("What is 17 + 26?", &[]),
            ("What is 18 + 25?", &[]),
            ("Where is it?", &[]),
            ("", &[]),
        ] {
            assert_eq!(found(&index, question, "ada"), answers, "{question}");
        }
        assert_eq!(found(&index, "Where is the cellar key?", "bob"), ["In the tin."]);
        assert_eq!(found(&index, "Where is the cellar key?", "eve"), [""; 0]);
        assert!(found(&index, &"cellar key ".repeat(400), "ada").is_empty(), "too long to be a question");
    }

    #[test]
    fn anothers_private_lessons_change_no_score() {
        let own = Index::new(&book(&TAUGHT[..5]));
        let both = Index::new(&book(&TAUGHT[..6]));
        for (_, question, _) in TAUGHT {
            let scores = |index: &Index| {
                index.find(question, "ada").iter().map(|f| (f.lesson.answer.clone(), f.score)).collect::<Vec<_>>()
            };
            assert_eq!(scores(&own), scores(&both), "{question}");
        }
    }

    #[test]
    fn a_retired_lesson_is_never_found() {
        let changed = [TAUGHT[2], ("ada", "Where's the key to the cellar", "On the hook.")];
        assert_eq!(found(&Index::new(&book(&changed)), "Where is the cellar key?", "ada"), ["On the hook."]);
    }
}
