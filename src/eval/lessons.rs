//! What lessons are worth: facts that no model can know are taught by bare corrections, and asked in other words. Neighbours
//! are questions of the same shapes that nobody taught: about other people and things, or about something else of the same ones.

pub mod short;

use serde::Serialize;

use super::golden::Score;
use crate::intent::fold::fold;

/// Most facts that there are.
pub const FACTS_MAX: usize = KINDS.len() * PER_KIND;
const PER_KIND: usize = 4;
/// Wordings of a neighbour about something else: the taught one, and the first held-out ones.
const NEIGHBOUR_WORDINGS: usize = 3;

/// Facts of one kind; `@` stands for whom or what it is about.
struct Kind {
    taught: &'static str,
    held_out: &'static [&'static str],
    /// Asks for something else of the same one.
    beside: &'static str,
    known: &'static [(&'static str, &'static str)],
    unknown: &'static [&'static str],
}

#[rustfmt::skip]
const KINDS: &[Kind] = &[
    Kind {
        taught: "What is the code of @'s locker?",
        held_out: &["Which code opens the locker of @?", "I want to open @'s locker, what do I enter?", "@ forgot the number of the locker, what is it?", "Could you give me the locker combination for @?", "What digits do I dial on the locker that belongs to @?", "Locker code @?"],
        beside: "What is the number on @'s bicycle?",
        known: &[("Marwen", "4471"), ("Tilda", "9038"), ("Osric", "2765"), ("Yolanthe", "6182")],
        unknown: &["Percival", "Ragna", "Cosima"],
    },
    Kind {
        taught: "When is @'s birthday?",
        held_out: &["On which day was @ born?", "When do we celebrate @?", "I want to buy a present for @, when is the birthday?", "What date should I note for the birthday of @?", "Which day of the year does @ turn a year older?", "@'s birthday is on what date?"],
        beside: "When did @ move here?",
        known: &[("Anselm", "14 March"), ("Benedikta", "29 July"), ("Corvin", "3 November"), ("Dorothea", "21 February")],
        unknown: &["Ekkehard", "Friedegund", "Gundolf"],
    },
    Kind {
        taught: "Which bus goes to @?",
        held_out: &["What line do I take to @?", "How do I get to @ by bus?", "I have to be in @ at noon, which bus should I catch?", "Which number stands on the bus to @?", "Is there a bus to @, and which one?", "Bus line for @"],
        beside: "How many people live in @?",
        known: &[("Hollbeck", "line 83"), ("Sankt Veit", "line 47"), ("Marrowfield", "line 219"), ("Ostwick", "line 64")],
        unknown: &["Tannbruck", "Lower Pell", "Grunsee"],
    },
    Kind {
        taught: "What is the name of @'s dog?",
        held_out: &["What is @'s dog called?", "How does @ call the dog?", "@ came with a dog, what is its name?", "Do you know the name of the dog that @ has?", "Which name does the dog of @ answer to?", "I met @ with the dog. Who was that, the dog I mean?"],
        beside: "What is the name of @'s cat?",
        known: &[("Ivo", "Brumsel"), ("Jolanda", "Fidelko"), ("Kasimir", "Onyra"), ("Leontine", "Taskit")],
        unknown: &["Magnus", "Notburga", "Ottokar"],
    },
    Kind {
        taught: "Which room is the @ meeting in?",
        held_out: &["Where does the @ meeting take place?", "I am late for the @ meeting, where do I go?", "In what room do they hold the @ meeting?", "Which door do I knock on for the @ meeting?", "The @ people meet where?", "Room of the @ meeting, please."],
        beside: "How long is the @ meeting?",
        known: &[("budget", "Quillon"), ("safety", "Vessin"), ("harvest", "Arbalest"), ("translation", "Morrow")],
        unknown: &["logistics", "choir", "steering"],
    },
    Kind {
        taught: "What is the phone extension of the @?",
        held_out: &["How do I reach the @ by phone?", "I need to call the @, which extension?", "What do I dial for the @?", "Which internal number does the @ have?", "Extension for the @?", "Please connect me to the @, what is the number?"],
        beside: "Who is the head of the @?",
        known: &[("mail room", "5516"), ("kitchen", "7324"), ("archive", "8840"), ("loading dock", "3097")],
        unknown: &["reception", "greenhouse", "night desk"],
    },
    Kind {
        taught: "Where is the key to the @?",
        held_out: &["Where do you keep the @ key?", "The @ is locked, where can I find its key?", "How do I get into the @?", "I am standing before the @ without a key. Where is it?", "In what place does the key for the @ hang?", "Looking for the key of the @."],
        beside: "Who painted the @?",
        known: &[("bicycle shed", "behind the gas meter"), ("cellar", "under the third flower pot"), ("chapel", "in the sugar tin"), ("tool cabinet", "on the nail above the clock")],
        unknown: &["roof hatch", "pump house", "pavilion"],
    },
    Kind {
        taught: "When is the @ report due?",
        held_out: &["By what date must the @ report be ready?", "What is the deadline of the @ report?", "How long do I still have for the @ report?", "Until when can I hand in the @ report?", "Which date is the @ report to be delivered on?", "@ report: due date?"],
        beside: "Who writes the @ report?",
        known: &[("Lindqvist", "9 October"), ("Amarant", "30 April"), ("Kestrel", "17 December"), ("Bluebell", "6 June")],
        unknown: &["Sundial", "Tamarisk", "Osprey"],
    },
    Kind {
        taught: "Who looks after the @?",
        held_out: &["Who is responsible for the @?", "Whom do I ask about the @?", "Whose job is the @?", "Something is wrong with the @, whom should I call?", "Who takes care of the @ at our place?", "Name of the person in charge of the @?"],
        beside: "How old is the @?",
        known: &[("beehives", "Orvane"), ("aquarium", "Delphin"), ("sound desk", "Ruskova"), ("herb garden", "Imbert")],
        unknown: &["weather station", "compost", "notice board"],
    },
    Kind {
        taught: "What is the secret ingredient of @'s soup?",
        held_out: &["What does @ put into the soup that makes it special?", "Which ingredient is @'s secret in the soup?", "I want to cook the soup of @, what is the secret?", "What gives @'s soup its taste?", "@'s soup has something special in it, what?", "Secret ingredient in the soup by @?"],
        beside: "What is the favourite colour of @?",
        known: &[("Wendelin", "juniper"), ("Xaver", "lovage"), ("Ysolde", "star anise"), ("Zeno", "smoked paprika")],
        unknown: &["Quirin", "Ulrike", "Valeska"],
    },
];

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Fact {
    pub question: String,
    pub answer: String,
    pub held_out: Vec<String>,
}

/// What is taught, and what is asked beside it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Household {
    pub facts: Vec<Fact>,
    pub neighbours: Vec<String>,
}

/// The first facts of each kind in turn, and so many neighbours of these kinds. The same numbers give the same household.
pub fn household(facts: usize, neighbours: usize) -> Household {
    let mut made = Household { facts: Vec::new(), neighbours: Vec::new() };
    for n in 0..PER_KIND {
        for kind in KINDS.iter().take(facts.saturating_sub(n * KINDS.len())) {
            let Some((about, answer)) = kind.known.get(n) else { continue };
            let held_out = kind.held_out.iter().map(|wording| said(wording, about)).collect();
            made.facts.push(Fact { question: said(kind.taught, about), answer: (*answer).to_owned(), held_out });
            made.neighbours.push(said(kind.beside, about));
        }
    }
    for kind in KINDS.iter().take(facts) {
        let wordings = || std::iter::once(&kind.taught).chain(kind.held_out.iter().take(NEIGHBOUR_WORDINGS));
        made.neighbours.extend(kind.unknown.iter().flat_map(|about| wordings().map(|wording| said(wording, about))));
    }
    // Evenly out of all of them.
    let all = std::mem::take(&mut made.neighbours);
    let wanted = neighbours.min(all.len());
    made.neighbours = (0..wanted).filter_map(|n| all.get(n * all.len() / wanted).cloned()).collect();
    made
}

fn said(wording: &str, about: &str) -> String {
    let text = wording.replace('@', about);
    let mut chars = text.chars();
    chars.next().map(|first| first.to_uppercase().chain(chars).collect()).unwrap_or_default()
}

/// Does a reply give this answer? A date may be written the other way round.
pub fn gives(reply: &str, answer: &str) -> bool {
    let words = |text: &str| {
        let mut folded = String::new();
        fold(text, &mut folded);
        let words = folded.split(|c: char| !c.is_alphanumeric()).filter(|word| !word.is_empty());
        words.map(|word| ordinal(word).to_owned()).filter(|word| !ASIDE.contains(&word.as_str())).collect::<Vec<_>>()
    };
    let (reply, mut answer) = (words(reply), words(answer));
    let holds = |answer: &[String]| !answer.is_empty() && reply.windows(answer.len()).any(|window| window == answer);
    holds(&answer) || {
        answer.reverse();
        answer.len() == 2 && answer[1].parse::<u8>().is_ok() && holds(&answer)
    }
}

/// Words around an answer that do not make it another one.
const ASIDE: &[&str] = &["the", "of", "line", "on", "in", "under", "behind", "at"];

/// `14th` as `14`.
fn ordinal(word: &str) -> &str {
    let number = word.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let ending = &word[number.len()..];
    if !number.is_empty() && ["st", "nd", "rd", "th"].contains(&ending) { number } else { word }
}

/// A question that was asked, and the replies to it without and with lessons.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Asked {
    /// Which fact it asks for; `None`: a neighbour.
    pub fact: Option<usize>,
    pub question: String,
    pub without: String,
    pub with: String,
    /// Lessons that the reply was shown.
    pub shown: usize,
}

/// What came of it.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    pub facts: usize,
    /// Held-out questions with the right answer.
    pub without: Score,
    pub with: Score,
    /// Held-out questions, and neighbours, that were shown a lesson.
    pub shown: Score,
    pub neighbours_shown: Score,
    /// Neighbours answered with something that was taught.
    pub spill_without: Score,
    pub spill_with: Score,
}

pub fn report(facts: &[Fact], asked: &[Asked]) -> Report {
    let held: Vec<(&Fact, &Asked)> = asked.iter().filter_map(|a| Some((facts.get(a.fact?)?, a))).collect();
    let beside: Vec<&Asked> = asked.iter().filter(|asked| asked.fact.is_none()).collect();
    let right = |reply: fn(&Asked) -> &str| {
        Score::of(held.iter().filter(|(fact, asked)| gives(reply(asked), &fact.answer)).count(), held.len())
    };
    let spill = |reply: fn(&Asked) -> &str| {
        let taught = |asked: &&&Asked| facts.iter().any(|fact| gives(reply(asked), &fact.answer));
        Score::of(beside.iter().filter(taught).count(), beside.len())
    };
    Report {
        facts: facts.len(),
        without: right(|asked| &asked.without),
        with: right(|asked| &asked.with),
        shown: Score::of(held.iter().filter(|(_, asked)| asked.shown > 0).count(), held.len()),
        neighbours_shown: Score::of(beside.iter().filter(|asked| asked.shown > 0).count(), beside.len()),
        spill_without: spill(|asked| &asked.without),
        spill_with: spill(|asked| &asked.with),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn a_household_is_the_same_each_time_and_asks_nothing_twice() {
        let all = household(FACTS_MAX, 160);
        assert_eq!((all.facts.len(), all.neighbours.len()), (FACTS_MAX, FACTS_MAX + KINDS.len() * 12));
        assert_eq!(all, household(FACTS_MAX, 160));
        let few = household(10, 5);
        assert_eq!((&few.facts[..], few.neighbours.len()), (&all.facts[..10], 5));
        let questions = || all.facts.iter().flat_map(|fact| fact.held_out.iter().chain([&fact.question]));
        let asked: BTreeSet<&String> = questions().chain(&all.neighbours).collect();
        assert_eq!(asked.len(), questions().count() + all.neighbours.len());
        let answers: BTreeSet<&String> = all.facts.iter().map(|fact| &fact.answer).collect();
        assert_eq!(answers.len(), FACTS_MAX);
        assert!(all.facts.iter().all(|fact| fact.held_out.len() >= 5));
    }

    #[test]
    fn an_answer_is_known_by_its_words() {
        for (reply, answer, right) in [
            ("It is 4471.", "4471", true),
            ("It is 44710.", "4471", false),
            ("On March 14th, I believe", "14 March", true),
            ("The 14th of March.", "14 March", true),
            ("14 May", "14 March", false),
            ("Take bus 83.", "line 83", true),
            ("You find it under the gas meter.", "behind the gas meter", true),
            ("Ask ORVANE!", "Orvane", true),
            ("", "Orvane", false),
        ] {
            assert_eq!(gives(reply, answer), right, "{reply}: {answer}");
        }
    }

    #[test]
    fn a_report_counts_each_arm() {
        let facts = household(2, 0).facts;
        let asked = |fact, with: &str, shown| Asked {
            fact,
            question: String::new(),
            without: "I do not know.".into(),
            with: with.into(),
            shown,
        };
        let all = [asked(Some(0), &facts[0].answer, 1), asked(Some(1), "No.", 0), asked(None, &facts[1].answer, 1)];
        let report = report(&facts, &all);
        assert_eq!((report.without.passed, report.with.passed, report.with.n), (0, 1, 2));
        assert_eq!((report.spill_without.passed, report.spill_with.passed, report.spill_with.n), (0, 1, 1));
        assert_eq!((report.shown.passed, report.neighbours_shown.passed), (1, 1));
    }
}
