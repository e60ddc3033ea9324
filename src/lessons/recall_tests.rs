//! Which lessons bear on a question, on sets of facts and on cases.

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
        &["Who cleans the guest house?", "What is the Wi-Fi password of the office?", "When is the guest house free?"],
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
#[ignore = "a measurement"]
fn how_long_a_question_takes_among_two_thousand_lessons() {
    let name = |n: usize| {
        format!("Q{}", [n % 26, n / 26 % 26, n / 676].map(|c| (b'a' + c as u8) as char).iter().collect::<String>())
    };
    let asked: Vec<String> = (0..2_000).map(|n| format!("What is the code of {}'s locker?", name(n))).collect();
    let taught: Vec<_> = asked.iter().map(|question| ("ada", question.as_str(), "4471")).collect();
    let index = Index::new(&book(&taught));
    for question in [format!("Which code opens the locker of {}?", name(700)), format!("How old is {}?", name(7))] {
        let begin = std::time::Instant::now();
        (0..100).for_each(|_| assert!(index.find(&question, "ada").len() < 2));
        println!("{question} {:.2} ms", begin.elapsed().as_secs_f64() * 10.0);
    }
}

#[test]
fn a_retired_lesson_is_never_found() {
    let changed = [TAUGHT[2], ("ada", "Where's the key to the cellar", "On the hook.")];
    assert_eq!(found(&Index::new(&book(&changed)), "Where is the cellar key?", "ada"), ["On the hook."]);
}
