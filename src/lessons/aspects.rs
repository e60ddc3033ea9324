//! What a question asks of a thing: whom, where, when, how much, which number. Two questions about the same thing that ask
//! clearly different aspects of it are two questions. Only what is said in so many words counts: a text that says nothing
//! of it rules nothing out, and so does a text in another language.

use std::collections::BTreeSet;

use super::words::{is_common, stem, tokens_of};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Aspect {
    Person,
    Name,
    Place,
    Time,
    Amount,
    Price,
    Number,
    Colour,
    Reason,
}

use Aspect::{Amount, Colour, Name, Number, Person, Place, Price, Reason, Time};

/// Words that ask by themselves.
const ASKING: &[(&str, &[Aspect])] = &[
    ("who", &[Person, Name]),
    ("whom", &[Person, Name]),
    ("whose", &[Person, Name]),
    ("where", &[Place]),
    ("when", &[Time]),
    ("why", &[Reason]),
];
/// What follows `when`, `where` and `why` where they ask.
const VERBS: &[&str] = &[
    "is", "s", "are", "am", "was", "were", "do", "does", "did", "can", "could", "will", "would", "shall", "should",
    "must", "may", "might", "has", "have", "had",
];
/// What follows `how`.
const HOW: &[(&str, &[Aspect])] = &[
    ("long", &[Time, Amount]),
    ("soon", &[Time]),
    ("late", &[Time]),
    ("early", &[Time]),
    ("often", &[Amount]),
    ("many", &[Amount]),
    ("much", &[Amount, Price]),
    ("old", &[Amount]),
    ("big", &[Amount]),
    ("large", &[Amount]),
    ("tall", &[Amount]),
    ("high", &[Amount]),
    ("wide", &[Amount]),
    ("deep", &[Amount]),
    ("heavy", &[Amount]),
    ("far", &[Amount]),
];
/// Nouns that ask behind `what` and `which`.
const NOUNS: &[(&str, &[Aspect])] = &[
    ("person", &[Person]),
    ("name", &[Name]),
    ("named", &[Name]),
    ("called", &[Name]),
    ("place", &[Place]),
    ("room", &[Place]),
    ("address", &[Place]),
    ("location", &[Place]),
    ("floor", &[Place]),
    ("date", &[Time]),
    ("day", &[Time]),
    ("time", &[Time]),
    ("hour", &[Time]),
    ("month", &[Time]),
    ("year", &[Time]),
    ("week", &[Time]),
    ("weekday", &[Time]),
    ("deadline", &[Time]),
    ("due", &[Time]),
    ("until", &[Time]),
    ("birthday", &[Time]),
    ("age", &[Amount]),
    ("size", &[Amount]),
    ("height", &[Amount]),
    ("weight", &[Amount]),
    ("length", &[Amount]),
    ("number", &[Number, Amount]),
    ("code", &[Number]),
    ("pin", &[Number]),
    ("password", &[Number]),
    ("combination", &[Number]),
    ("digits", &[Number]),
    ("extension", &[Number]),
    ("phone", &[Number]),
    ("dial", &[Number]),
    ("price", &[Price, Amount]),
    ("cost", &[Price, Amount]),
    ("costs", &[Price, Amount]),
    ("colour", &[Colour]),
    ("color", &[Colour]),
    ("reason", &[Reason]),
];
/// Words behind `what` and `which` among which their noun stands.
const NOUN_WITHIN: usize = 4;
/// Aspects that ask for another thing than `which` and `what` with a noun of their own.
const NO_THING: &[Aspect] = &[Person, Place, Time, Amount, Price, Colour, Reason];

/// What a text says of the aspect that it asks.
#[derive(Debug, Default)]
pub(super) struct Asks {
    all: BTreeSet<Aspect>,
    /// Those that it asks for and does not only mention.
    clearly: BTreeSet<Aspect>,
    /// It asks which, what or how.
    thing: bool,
}

fn listed(list: &[(&str, &'static [Aspect])], word: &str) -> &'static [Aspect] {
    list.iter().find(|(known, _)| *known == word).map_or(&[], |(_, aspects)| aspects)
}

impl Asks {
    pub(super) fn of(text: &str) -> Asks {
        let mut asks = Asks::default();
        // Words since the last `what` or `which`.
        let (mut since, mut before) = (usize::MAX, String::new());
        for word in tokens_of(text) {
            asks.all.extend(listed(ASKING, &word).iter().chain(listed(NOUNS, &word)));
            asks.clearly.extend(match before.as_str() {
                "how" => listed(HOW, &word),
                // "When I come home" asks for no time, and "When do I come home" does.
                "when" | "where" | "why" if VERBS.contains(&word.as_str()) => listed(ASKING, &before),
                _ if word.starts_with("who") => listed(ASKING, &word),
                _ => &[],
            });
            if since < NOUN_WITHIN {
                asks.clearly.extend(listed(NOUNS, &word));
            }
            let opens = word == "what" || word == "which";
            asks.thing |= opens || word == "how";
            since = if opens { 0 } else { since.saturating_add(1) };
            before = word;
        }
        asks.all.extend(asks.clearly.clone());
        asks
    }

    /// Does a question ask for something else than a lesson tells?
    pub(super) fn other_than(&self, lesson: &Asks) -> bool {
        match lesson.clearly.is_empty() {
            true => {
                lesson.thing && self.clearly.iter().any(|aspect| NO_THING.contains(aspect)) && !self.names_a_thing()
            }
            false => !self.clearly.is_empty() && self.all.is_disjoint(&lesson.clearly),
        }
    }

    /// A number or a name may be what `which` asks for.
    fn names_a_thing(&self) -> bool {
        self.clearly.contains(&Number)
    }
}

/// The stems of what is said to be somebody's, as `locker` in "Marwen's locker" and in "the locker of Marwen". A question
/// about something else of the same one does not have them.
pub(super) fn belongings(text: &str) -> Vec<String> {
    let plain = text.replace(['’', '‘'], "'");
    let words: Vec<&str> = plain.split(|c: char| c.is_whitespace()).filter(|word| !word.is_empty()).collect();
    let bare = |word: &str| tokens_of(word).first().cloned().unwrap_or_default();
    let mut found = Vec::new();
    for (at, word) in words.iter().enumerate() {
        let (owner, rest) = (word.strip_suffix("'s"), words.get(at + 1..).unwrap_or_default());
        if owner.is_some_and(|owner| !is_common(&bare(owner))) {
            // Up to the next word of no content or the end of the clause: "Marwen's old locker, ...".
            let mut last = None;
            for next in rest {
                if is_common(&bare(next)) || bare(next).is_empty() {
                    break;
                }
                last = Some(bare(next));
                if next.ends_with(|c: char| !c.is_alphanumeric()) {
                    break;
                }
            }
            found.extend(last);
        }
        let named = rest.first().is_some_and(|next| next.starts_with(char::is_uppercase) && !next.ends_with("'s"));
        if bare(word) == "of" && named && at > 0 {
            found.extend(words.get(at - 1).map(|thing| bare(thing)).filter(|thing| !is_common(thing)));
        }
    }
    found.iter().map(|word| stem(word).to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_aspect_of_the_same_thing_is_another_question() {
        for (lesson, question, other) in [
            ("What is the code of the shed?", "What is the colour of the shed?", true),
            ("What is the code of the shed?", "Who built the shed?", true),
            ("What is the code of the shed?", "Why is the shed locked?", true),
            ("What is the code of the shed?", "Which digits open the shed?", false),
            ("What is the code of the shed?", "How do I get into the shed?", false),
            ("What is the code of the shed?", "shed code", false),
            ("What is the code of the shed?", "When I come home late, how do I get into the shed?", false),
            ("Which room is the choir in?", "How long is the choir?", true),
            ("Which room is the choir in?", "Where does the choir meet?", false),
            ("When is the report due?", "How long do I have for the report?", false),
            ("When is the report due?", "Who writes the report?", true),
            ("What is the name of the gardener?", "Who is the gardener?", false),
            ("Which bus goes to Hollbeck?", "How many people live in Hollbeck?", true),
            ("Which bus goes to Hollbeck?", "Which number has the bus to Hollbeck?", false),
            ("How much is a ticket?", "What does a ticket cost?", false),
            ("What is the extension of the mail room?", "Who is the head of the mail room?", true),
            ("Tell me about the shed", "Who built the shed?", false),
            ("Wie ist der Code?", "Wo ist der Code?", false),
        ] {
            assert_eq!(Asks::of(question).other_than(&Asks::of(lesson)), other, "{lesson} / {question}");
        }
    }

    #[test]
    fn what_belongs_to_somebody_is_read_either_way() {
        for (text, words) in [
            ("What is the code of Marwen's old locker?", &["locker"][..]),
            ("What is the code of the locker of Marwen?", &["locker"]),
            ("Marwen’s locker, what is its code?", &["locker"]),
            ("What's the code of the shed?", &[]),
            ("Where is Marwen's?", &[]),
            ("When is the birthday of Anselm?", &["birthday"]),
        ] {
            assert_eq!(belongings(text), words, "{text}");
        }
    }
}
