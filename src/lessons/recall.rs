//! Which lessons bear on a question. A lesson's words are weighed by how few of the lessons have them. Its heaviest words, which
//! say whom or what it is about, must be in the question. So must most of its weight, and it must be enough of the
//! question's. Figures: `docs/figures/lessons.md`.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, LazyLock};

use super::aspects::{Asks, belongings};
use super::words::{asked, contrary, key, numbers, stem};
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
const GENERIC: &[&str] = &[
    "code",
    "number",
    "name",
    "birthday",
    "phone",
    "extension",
    "room",
    "day",
    "time",
    "date",
    "place",
    "colour",
    "color",
    "price",
    "cost",
    "size",
    "type",
    "model",
    "kind",
    "line",
    "key",
    "address",
    "email",
    "password",
    "pin",
    "meeting",
    "report",
    "list",
    "book",
    "file",
    "house",
    "home",
    "car",
    "way",
    "thing",
    "people",
    "person",
    "man",
    "woman",
    "get",
    "go",
    "come",
    "take",
    "make",
    "put",
    "keep",
    "find",
    "look",
    "open",
    "close",
    "start",
    "end",
    "use",
    "work",
    "much",
    "many",
    "long",
    "often",
    "late",
    "early",
    "soon",
    "old",
    "new",
    "big",
    "next",
    "last",
    "first",
];
static GENERIC_STEMS: LazyLock<BTreeSet<&str>> = LazyLock::new(|| GENERIC.iter().map(|word| stem(word)).collect());

/// A text as recall compares it.
#[derive(Debug, Default)]
struct Terms {
    /// Each with what it weighs before it is known how many lessons have it.
    words: Vec<(String, f64)>,
    numbers: Vec<String>,
    asks: Asks,
    /// What is said to be somebody's, but for words that many questions have in common.
    belongings: Vec<String>,
    key: String,
    text: String,
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
        Terms { words, numbers: numbers(text), asks: Asks::of(text), belongings, key: key(text), text: text.to_owned() }
    }

    fn has(&self, word: &str) -> bool {
        self.words.iter().any(|(own, _)| own == word)
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
        let visible: Vec<&(Arc<Lesson>, Vec<Terms>)> =
            self.0.iter().filter(|(lesson, _)| lesson.shown_to(principal)).collect();
        if visible.is_empty() || question.len() > QUESTION_BYTES_MAX {
            return Vec::new();
        }
        let terms = Terms::of(question);
        let mut having: HashMap<&str, usize> = HashMap::new();
        for (_, wordings) in &visible {
            let words: BTreeSet<&str> = wordings.iter().flat_map(|t| &t.words).map(|(word, _)| word.as_str()).collect();
            words.into_iter().for_each(|word| *having.entry(word).or_default() += 1);
        }
        let lessons = visible.len() as f64;
        let rarity = |word: &str| {
            let having = having.get(word).copied().unwrap_or(0) as f64;
            (1.0 + (lessons + 1.0) / (1.0 + having)).ln()
        };
        let mut found: Vec<Recalled> = Vec::new();
        for (lesson, wordings) in &visible {
            let scores = wordings.iter().map(|wording| score(&terms, wording, &rarity)).enumerate();
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
        let mut asked = BTreeSet::new();
        // What others were told of the same question stands behind what its own people were.
        found.retain(|found| {
            let wording = found.lesson.questions.get(found.question).map(|question| key(question));
            found.score >= best - NEARLY && asked.insert(wording)
        });
        found.truncate(SHOWN_MAX);
        found
    }
}

/// 0: it does not bear on the question; 1: it is that very question.
fn score(question: &Terms, wording: &Terms, rarity: &impl Fn(&str) -> f64) -> f64 {
    if question.key == wording.key {
        return 1.0;
    }
    // Another number, or another sign between numbers, asks for another thing.
    let other_numbers = !wording.numbers.is_empty() && wording.numbers != question.numbers;
    if !wording.tells() || other_numbers {
        return 0.0;
    }
    // Something else of the same one: another thing of Marwen's, or who built the shed in place of its code.
    if question.asks.other_than(&wording.asks) || !wording.belongings.iter().all(|word| question.has(word)) {
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
    let beyond: f64 = question.words.iter().filter(|(word, _)| !wording.has(word)).map(weighed).sum();
    let (of_lesson, of_question) = (both / all, both / (both + beyond));
    if of_lesson < LESSON_SHARE_MIN || of_question < QUESTION_SHARE_MIN || contrary(&question.text, &wording.text) {
        return 0.0;
    }
    2.0 * of_lesson * of_question / (of_lesson + of_question)
}

#[cfg(test)]
mod tests {
    use super::super::{Draft, Known, LessonId, Sharing};
    use super::*;
    use crate::eval::lessons::{FACTS_MAX, household};

    const TAUGHT: &[(&str, &str, &str)] = &[
        ("ada", "What is the code of Marwen's locker?", "4471"),
        ("ada", "What is the code of Tilda's locker?", "9038"),
        ("ada", "Where is the key to the cellar?", "Under the pot."),
        ("ada", "Which bus goes to Hollbeck?", "83"),
        ("ada", "What is 17 + 25?", "42"),
        ("ada", "What is my name?", "Ada."),
        ("ada", "Who am I?", "Ada L."),
        ("ada", "How is Marwen?", "Well."),
        ("ada", "When does the train to Basel leave?", "At nine."),
        ("ada", "Who looks after the fern?", "Orvane."),
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
                sharing: (question.contains("pump") && *principal == "bob").then_some(Sharing::Shared),
                shown: Vec::new(),
            };
            book.with(draft, LessonId(format!("lesson-{n:02}")), 0).unwrap().0
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
            ("marwen's locker code", &["4471"]),
            ("I stand before the cellar and it is locked, where could the key be?", &["Under the pot."]),
            ("How do I get to Hollbeck by bus?", &["83"]),
            ("what is 17+25", &["42"]),
            ("How is the old pump started?", &["Pull twice."]),
            ("What's my name?", &["Ada."]),
            // Somebody else, something else.
            ("What is the code of Ragna's locker?", &[]),
            ("what is the code of ragna's locker?", &[]),
            ("Ragna's locker code?", &[]),
            ("Which bus goes to Ostwick?", &[]),
            ("which bus goes to ostwick?", &[]),
            ("Which bus goes to the airport?", &[]),
            ("Who looks after the cat?", &[]),
            ("Who looks after the children when I am ill?", &[]),
            ("When does the train from Basel leave?", &[]),
            // Another number, another sign.
            ("What is 17 + 26?", &[]),
            ("What is 17 - 25?", &[]),
            ("What is 25 * 17?", &[]),
            ("What is 17 + 25 + 3?", &[]),
            ("What is 17 + 17?", &[]),
            // Something else of the same one.
            ("What is the number on Marwen's bicycle?", &[]),
            ("Who painted the cellar?", &[]),
            ("How many people live in Hollbeck?", &[]),
            ("When was the fern bought?", &[]),
            // Words that say nothing of what it is about.
            ("What's the name of the capital of France?", &[]),
            ("Give me a name for my cat", &[]),
            ("What is your name?", &[]),
            ("Who are you?", &[]),
            ("Is Marwen in the garden?", &[]),
            ("Where is it?", &[]),
            ("", &[]),
        ] {
            assert_eq!(found(&index, question, "ada"), answers, "{question}");
        }
        assert_eq!(found(&index, "Where is the cellar key?", "bob"), ["In the tin."]);
        assert_eq!(found(&index, "Where is the cellar key?", "eve"), [""; 0]);
        let pasted = TAUGHT.iter().map(|(_, question, _)| *question).collect::<Vec<_>>().join(" and ");
        assert!(found(&index, &pasted, "ada").len() <= SHOWN_MAX);
        assert!(found(&index, &"cellar key ".repeat(400), "ada").is_empty(), "too long to be a question");
    }

    #[test]
    fn anothers_private_lessons_change_no_score() {
        let own = Index::new(&book(&TAUGHT[..10]));
        let both = Index::new(&book(&TAUGHT[..11]));
        for (_, question, _) in TAUGHT {
            let scores = |index: &Index| {
                index.find(question, "ada").iter().map(|f| (f.lesson.answer.clone(), f.score)).collect::<Vec<_>>()
            };
            assert_eq!(scores(&own), scores(&both), "{question}");
        }
    }

    #[test]
    fn ones_own_lesson_is_shown_alone_where_another_is_shared_on_the_same_question() {
        let shared = ("bob", "How do we start the old pump?", "Pull twice.");
        let index = Index::new(&book(&[shared, ("ada", "how do we start the old pump", "Push.")]));
        assert_eq!(found(&index, "How is the old pump started?", "ada"), ["Push."]);
        assert_eq!(found(&index, "How is the old pump started?", "eve"), ["Pull twice."]);
    }

    /// What `chimere eval lessons` asks, without a model.
    #[test]
    fn the_right_lesson_is_found_and_neighbours_are_told_apart() {
        let made = household(FACTS_MAX, 160);
        let taught: Vec<(&str, &str, &str)> =
            made.facts.iter().map(|fact| ("ada", fact.question.as_str(), fact.answer.as_str())).collect();
        let index = Index::new(&book(&taught));
        let (mut missed, mut missed_alone) = (Vec::new(), Vec::new());
        for (fact, lesson) in made.facts.iter().zip(&taught) {
            let alone = Index::new(&book(&[*lesson]));
            let wrong = |index: &Index, q: &String| found(index, q, "ada").first() != Some(&fact.answer);
            missed.extend(fact.held_out.iter().filter(|q| wrong(&index, q)));
            missed_alone.extend(fact.held_out.iter().filter(|q| wrong(&alone, q)));
        }
        let shown: Vec<&String> = made.neighbours.iter().filter(|q| !found(&index, q, "ada").is_empty()).collect();
        assert!(missed.len() <= 3, "{} of 240 are not found: {missed:?}", missed.len());
        assert!(missed_alone.len() <= 14, "{} of 240 alone in the book: {missed_alone:?}", missed_alone.len());
        assert!(shown.len() <= 4, "{} of 160 neighbours are shown a lesson: {shown:?}", shown.len());
    }

    /// Written after the rule, of other kinds than it was made on: lesson, other wordings, neighbours. What it misses is
    /// said in other words (`wifi`, `pay`, `start`).
    const FRESH: &[(&str, &[&str], &[&str])] = &[
        (
            "What is the code of the barn?",
            &["Which digits open the barn?", "How do I get into the barn?", "barn door code please"],
            &[
                "What is the code of the mill?",
                "Who owns the barn?",
                "What colour is the barn?",
                "How big is the barn?",
                "When was the barn built?",
            ],
        ),
        (
            "How much does a ticket to the castle cost?",
            &[
                "What is the price of a castle ticket?",
                "What do I pay for the castle?",
                "Is the castle expensive, how much is a ticket?",
            ],
            &["Who lives in the castle?", "When does the castle open?", "How much does a ticket to the zoo cost?"],
        ),
        (
            "When does the bakery open?",
            &[
                "From what time on can I buy bread at the bakery?",
                "At which hour does the bakery open its door?",
                "How early does the bakery open?",
            ],
            &[
                "Where is the bakery?",
                "Who runs the bakery?",
                "When does the pharmacy open?",
                "What is the phone number of the bakery?",
            ],
        ),
        (
            "Who is Tilda's dentist?",
            &["Which dentist does Tilda go to?", "What is the name of Tilda's dentist?", "Tilda's dentist, who is it?"],
            &[
                "Who is Tilda's teacher?",
                "Who is Osric's dentist?",
                "Where does Tilda live?",
                "What is Tilda's favourite dish?",
            ],
        ),
        (
            "Where do we keep the projector?",
            &[
                "I am looking for the projector, where is it?",
                "In which place is the projector kept?",
                "The projector, where did you put it?",
            ],
            &[
                "Who broke the projector?",
                "How old is the projector?",
                "Where do we keep the ladder?",
                "What is the serial number of the projector?",
            ],
        ),
        (
            "What is the Wi-Fi password of the guest house?",
            &[
                "How do I get into the Wi-Fi of the guest house?",
                "guest house wifi password",
                "Which password has the guest house network?",
            ],
            &[
                "Who cleans the guest house?",
                "What is the Wi-Fi password of the office?",
                "When is the guest house free?",
            ],
        ),
        (
            "What does Quillon eat for breakfast?",
            &[
                "Which breakfast does Quillon have?",
                "I make breakfast for Quillon, what should it be?",
                "What is Quillon's breakfast?",
            ],
            &[
                "What does Quillon drink in the evening?",
                "Where does Quillon eat lunch?",
                "What does Vessin eat for breakfast?",
            ],
        ),
        (
            "How do I restart the boiler?",
            &[
                "The boiler is off, how is it restarted?",
                "How can the boiler be started again?",
                "What do I do to restart the boiler?",
            ],
            &[
                "Who repairs the boiler?",
                "How do I clean the boiler?",
                "How old is the boiler?",
                "How do I restart the printer?",
            ],
        ),
    ];

    #[test]
    fn kinds_that_the_rule_was_not_made_on_are_told_apart_too() {
        let taught: Vec<_> = FRESH.iter().map(|(question, ..)| ("ada", *question, *question)).collect();
        let index = Index::new(&book(&taught));
        let missed: Vec<_> = FRESH
            .iter()
            .flat_map(|(lesson, held, _)| held.iter().map(move |q| (lesson, q)))
            .filter(|(lesson, q)| found(&index, q, "ada").first().map(String::as_str) != Some(**lesson))
            .collect();
        let neighbours = FRESH.iter().flat_map(|(.., neighbours)| neighbours.iter());
        let shown: Vec<_> = neighbours.filter(|q| !found(&index, q, "ada").is_empty()).collect();
        assert!(
            missed.len() <= 4 && shown.is_empty(),
            "missed {}: {missed:?}, shown {}: {shown:?}",
            missed.len(),
            shown.len()
        );
    }

    #[test]
    fn a_retired_lesson_is_never_found() {
        let changed = [TAUGHT[2], ("ada", "Where's the key to the cellar", "On the hook.")];
        assert_eq!(found(&Index::new(&book(&changed)), "Where is the cellar key?", "ada"), ["On the hook."]);
    }
}
