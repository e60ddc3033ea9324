//! Which lessons bear on a question: those that it asks in other words ([`super::likeness`]), and those that it has most of by
//! weight. A lesson's words are weighed by how few of the lessons have them. Its heaviest words, which say whom or what it is
//! about, must be in the question. So must most of its weight, and it must be enough of the question's. Neither is shown
//! where the question asks for something else. Figures: `docs/figures/lessons.md`.

use std::cell::RefCell;
use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, LazyLock};

use super::belongings::belongings;
use super::classes::LANGUAGES;
use super::reading::Reading;
use super::words::{Contraries, asked, key, numbers, stem};
use super::{Book, Lesson, State};

/// Least share of a lesson's weight that the question has, and of the question's that the lesson has.
const LESSON_SHARE_MIN: f64 = 0.55;
const QUESTION_SHARE_MIN: f64 = 0.25;
/// Words of at least this share of the heaviest one's weight must all be in the question.
const ANCHOR_SHARE: f64 = 0.9;
/// From this score on a question is nearly the lesson's own.
pub(super) const SAME_MIN: f64 = 0.8;
/// Lessons of one reply; a further one must be nearly as good as the first.
const SHOWN_MAX: usize = 2;
const NEARLY: f64 = 0.15;
/// Weight of a word that many questions have in common, and of a name; letters from which a word weighs no more.
const GENERIC_WEIGHT: f64 = 0.4;
const NAME_WEIGHT: f64 = 1.5;
const LETTERS_MAX: usize = 8;
/// Longest question that lessons are looked for, bytes.
const QUESTION_BYTES_MAX: usize = 4_000;

/// Words of relations and of requests: they are in many questions, and what they are asked about is not in them.
static GENERIC_STEMS: LazyLock<BTreeSet<&str>> =
    LazyLock::new(|| LANGUAGES[0].generic.iter().map(|word| stem(word)).collect());

/// A text as recall compares it.
#[derive(Debug, Default)]
struct Terms {
    /// Each with what it weighs before it is known how many lessons have it.
    words: Vec<(String, f64)>,
    numbers: Vec<String>,
    reading: Reading,
    /// What is said to be somebody's, but for words that many questions have in common.
    belongings: Vec<String>,
    key: String,
    contraries: Contraries,
}

impl Terms {
    fn of(text: &str) -> Terms {
        let mut words: Vec<(String, f64)> = Vec::new();
        for word in asked(text) {
            let weight = weight(&word.text, word.named);
            match words.iter_mut().find(|(known, _)| *known == word.text) {
                Some((_, known)) => *known = known.max(weight),
                None => words.push((word.text, weight)),
            }
        }
        let mut belongings = belongings(text);
        belongings.retain(|word| !GENERIC_STEMS.contains(word.as_str()));
        Terms {
            words,
            numbers: numbers(text),
            reading: Reading::of(text),
            belongings,
            key: key(text),
            contraries: Contraries::of(text),
        }
    }

    /// Whether its words say what it is about; otherwise only the very same question is its own.
    fn tells(&self) -> bool {
        self.words.len() > 1 && self.words.iter().any(|(word, _)| !GENERIC_STEMS.contains(word.as_str()))
    }
}

fn weight(word: &str, named: bool) -> f64 {
    let letters = (word.chars().count().min(LETTERS_MAX) as f64).sqrt();
    let generic = if GENERIC_STEMS.contains(word) { GENERIC_WEIGHT } else { 1.0 };
    generic * letters * if named { NAME_WEIGHT } else { 1.0 }
}

/// Lessons that may be shown, with the words of each wording.
#[derive(Default)]
pub struct Index {
    lessons: Vec<(Arc<Lesson>, Vec<Terms>)>,
    /// Which lessons have a word, in their order.
    having: HashMap<String, Vec<usize>>,
    /// Which of them are about a word, or are the very question.
    about: HashMap<String, Vec<usize>>,
    keys: HashMap<String, Vec<usize>>,
}

/// A lesson that bears on a question.
#[derive(Clone, Debug, PartialEq)]
pub struct Recalled {
    pub lesson: Arc<Lesson>,
    /// The wording that is likest.
    pub question: usize,
    pub score: f64,
}

impl Index {
    pub fn new(book: &Book) -> Index {
        let mut index = Index::default();
        for lesson in book.lessons().iter().filter(|lesson| lesson.state == State::New) {
            index.add(lesson.clone(), lesson.questions.iter().map(|question| Terms::of(question)).collect());
        }
        index
    }

    fn add(&mut self, lesson: Arc<Lesson>, wordings: Vec<Terms>) {
        let at = self.lessons.len();
        let put = |to: &mut HashMap<String, Vec<usize>>, word: &str| {
            let lessons = to.entry(word.to_owned()).or_default();
            if lessons.last() != Some(&at) {
                lessons.push(at);
            }
        };
        for terms in &wordings {
            terms.words.iter().for_each(|(word, _)| put(&mut self.having, word));
            terms.reading.about.iter().for_each(|about| put(&mut self.about, &about.word));
            put(&mut self.keys, &terms.key);
        }
        self.lessons.push((lesson, wordings));
    }

    /// The lessons with a word of a question: no other one can bear on it.
    fn near(&self, question: &Terms) -> BTreeSet<usize> {
        let words = question.words.iter().filter_map(|(word, _)| self.having.get(word));
        let about = question.reading.about.iter().filter_map(|about| self.about.get(&about.word));
        words.chain(about).chain(self.keys.get(&question.key)).flatten().copied().collect()
    }

    /// The lessons that replies to a principal may be shown for a question, the likest first. What is another's private
    /// lesson changes nothing, not even a weight.
    pub fn find(&self, question: &str, principal: &str) -> Vec<Recalled> {
        if question.len() > QUESTION_BYTES_MAX {
            return Vec::new();
        }
        let shown: Vec<bool> = self.lessons.iter().map(|(lesson, _)| lesson.shown_to(principal)).collect();
        let is_shown = |at: &usize| shown.get(*at).copied().unwrap_or_default();
        let lessons = shown.iter().filter(|shown| **shown).count() as f64;
        let terms = Terms::of(question);
        let counted: RefCell<HashMap<String, f64>> = RefCell::default();
        let count = |word: &str| {
            let having = self.having.get(word).map_or(0, |lessons| lessons.iter().filter(|at| is_shown(at)).count());
            (1.0 + (lessons + 1.0) / (1.0 + having as f64)).ln()
        };
        let rarity = |word: &str| {
            let known = counted.borrow().get(word).copied();
            known.unwrap_or_else(|| *counted.borrow_mut().entry(word.to_owned()).or_insert_with(|| count(word)))
        };
        let near = self.near(&terms);
        let asked = Question::new(terms, &rarity);
        let mut found: Vec<Recalled> = Vec::new();
        for (lesson, wordings) in near.iter().filter(|at| is_shown(at)).filter_map(|at| self.lessons.get(*at)) {
            let scores = wordings.iter().map(|wording| score(&asked, wording, &rarity)).enumerate();
            let Some((question, score)) = scores.max_by(|a, b| a.1.total_cmp(&b.1)) else { continue };
            if score > 0.0 {
                found.push(Recalled { lesson: lesson.clone(), question, score });
            }
        }
        // Of two that are as good the principal's own, and then the newer one.
        let own = |found: &Recalled| found.lesson.principal == principal;
        found.sort_by(|a, b| {
            (b.score.total_cmp(&a.score)).then(own(b).cmp(&own(a))).then(b.lesson.id.cmp(&a.lesson.id))
        });
        let best = found.first().map_or(0.0, |best| best.score);
        let mut wordings = BTreeSet::new();
        // What others were told of the same question stands behind what its own people were.
        found.retain(|found| {
            let wording = found.lesson.questions.get(found.question).map(|question| key(question));
            found.score >= best - NEARLY && wordings.insert(wording)
        });
        found.truncate(SHOWN_MAX);
        found
    }
}

/// A question with what its words weigh among the lessons.
struct Question {
    terms: Terms,
    weights: HashMap<String, f64>,
    total: f64,
}

impl Question {
    fn new(terms: Terms, rarity: &impl Fn(&str) -> f64) -> Question {
        let weigh = |(word, weight): &(String, f64)| (word.clone(), weight * rarity(word));
        let weights: HashMap<String, f64> = terms.words.iter().map(weigh).collect();
        let total = terms.words.iter().map(|word| weigh(word).1).sum();
        Question { terms, weights, total }
    }

    fn has(&self, word: &str) -> bool {
        self.weights.contains_key(word)
    }
}

/// 0: it does not bear on the question; 1: it is that very question.
fn score(asked: &Question, wording: &Terms, rarity: &impl Fn(&str) -> f64) -> f64 {
    let question = &asked.terms;
    if question.key == wording.key {
        return 1.0;
    }
    // Another number, or another sign between numbers, asks for another thing.
    let other_numbers = !wording.numbers.is_empty() && wording.numbers != question.numbers;
    if other_numbers || question.contraries.against(wording.contraries) {
        return 0.0;
    }
    question.reading.likeness(&wording.reading).max(by_weight(asked, wording, rarity))
}

/// How much of the weight of both they have in common, for questions of any length.
fn by_weight(question: &Question, wording: &Terms, rarity: &impl Fn(&str) -> f64) -> f64 {
    // Something else of the same one: another thing of Marwen's, or who built the shed in place of its code.
    let (read, lesson) = (&question.terms.reading, &wording.reading);
    let another = read.other_than(lesson) || read.of_another(lesson, |word| GENERIC_STEMS.contains(word));
    if another || !wording.tells() || !wording.belongings.iter().all(|word| question.has(word)) {
        return 0.0;
    }
    let weighed = |(word, weight): &(String, f64)| weight * rarity(word);
    let heaviest = wording.words.iter().map(weighed).fold(0.0, f64::max);
    let is_anchor = |word: &&(String, f64)| weighed(word) >= ANCHOR_SHARE * heaviest;
    if !wording.words.iter().filter(is_anchor).all(|(word, _)| question.has(word)) {
        return 0.0;
    }
    let all: f64 = wording.words.iter().map(weighed).sum();
    let both: f64 = wording.words.iter().filter(|(word, _)| question.has(word)).map(weighed).sum();
    let in_common: f64 = wording.words.iter().filter_map(|(word, _)| question.weights.get(word)).sum();
    let beyond = (question.total - in_common).max(0.0);
    let (of_lesson, of_question) = (both / all, both / (both + beyond));
    if of_lesson < LESSON_SHARE_MIN || of_question < QUESTION_SHARE_MIN {
        return 0.0;
    }
    2.0 * of_lesson * of_question / (of_lesson + of_question)
}

#[cfg(test)]
#[path = "recall_tests.rs"]
mod tests;
