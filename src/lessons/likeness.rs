//! Two questions as they are read: does one ask what the other's answer tells? Asked aspects must be the same, and so must
//! those that they are about. Where a text says nothing of it, it rules nothing out.

use super::classes::{Class, Classes};
use super::reading::{About, Reading, WEAK};

/// Whoever asks these asks for no thing of a name.
const NO_THING: Classes = Classes::of(&[
    Class::Person,
    Class::Place,
    Class::Time,
    Class::Age,
    Class::Size,
    Class::Count,
    Class::Price,
    Class::Colour,
    Class::Reason,
    Class::Duration,
    Class::Frequency,
]);
/// How one does it says none of these; how one gets there says where it is.
const NO_WAY: Classes = NO_THING.without(Classes::of(&[Class::Place])).and(Classes::of(&[Class::Name]));
/// `Which dentist?` asks for one of these.
const OF_WHICH: Classes = Classes::of(&[Class::Person, Class::Name, Class::Thing, Class::Which]);
const WHICH: Classes = Classes::of(&[Class::Which]);
/// Words of what a lesson is about, all of which must be in a question.
const SHORT: usize = 2;
/// Most of them of a lesson that is compared word by word.
const ABOUT_MAX: usize = 5;
/// From so many words on a question is a text, which no short lesson is alone.
const TEXT: usize = 32;
/// Likeness of a question that has nothing beyond the lesson, and of one that has.
const SAME: f64 = 0.85;
const OTHER_WORDS: f64 = 0.7;
/// Roots of words that tell what was from what is.
const PAST: &[&str] = &["last", "previou", "form", "ago", "yesterda"];

fn has(list: &[About], about: &About) -> bool {
    list.iter().any(|known| known.word == about.word)
}

/// Does a question speak of the past, and the lesson does not?
fn past(beyond: &[&About]) -> bool {
    beyond.iter().any(|about| PAST.contains(&about.word.as_str()))
}

impl Reading {
    /// What an answer tells: how often is also when.
    fn tells(&self) -> Classes {
        let when = if self.asks.has(Class::Frequency) { Classes::of(&[Class::Time]) } else { Classes::default() };
        self.asks.and(when)
    }

    /// What of it the other one lacks.
    fn beyond<'a>(&'a self, other: &Reading) -> Vec<&'a About> {
        self.about.iter().filter(|about| !has(&other.about, about)).collect()
    }

    /// Words of what it is about, but for those that stand for a class.
    fn things(&self) -> usize {
        self.about.iter().filter(|about| !about.word.starts_with('#')).count()
    }

    /// Does a question ask for something else than a lesson tells, or for something of somebody else?
    pub(super) fn other_than(&self, lesson: &Reading) -> bool {
        if self.about.len() < TEXT && self.beyond(lesson).iter().any(|about| about.owner && about.within) {
            return true;
        }
        let (asks, tells) = (self.asks, lesson.tells());
        let (asks_well, tells_well) = (asks.without(WEAK), tells.without(WEAK));
        if tells_well.is_empty() {
            return !tells.is_empty() && asks_well.meets(NO_THING) && !asks.has(Class::Code) && !asks.has(Class::Name);
        }
        if asks.is_empty() || asks.has(Class::Which) {
            return false;
        }
        if asks.has(Class::Manner) {
            return asks_well.is_empty() && tells_well.meets(NO_WAY) && !self.mentions.meets(tells);
        }
        let thing = asks == Classes::of(&[Class::Thing]);
        let mentions = if self.object { Classes::default() } else { self.mentions };
        !asks.and(mentions).meets(tells) && (!thing || tells_well.meets(NO_THING))
    }

    /// Is a question about something else? The words of a short lesson must all be in it, and of another's thing more than
    /// the owner. A question of few words that has one in place of another's is about that. So is one of the past.
    pub(super) fn of_another(&self, lesson: &Reading, generic: impl Fn(&str) -> bool) -> bool {
        let plain = |about: &&&About| !generic(&about.word);
        let lacks = lesson.beyond(self);
        // The key is not named where somebody asks how to get in.
        let way = self.asks.has(Class::Manner) && self.asks.has(Class::Code);
        let short = lesson.about.len() <= SHORT && lacks.iter().any(|about| !(way && generic(&about.word)));
        let things = || lesson.about.iter().filter(|about| !about.strong && !generic(&about.word));
        let owned = lesson.about.iter().any(|about| about.owner) && things().count() > 0;
        let owner_alone = owned && things().all(|about| !has(&self.about, about));
        if short || owner_alone || self.about.len() >= TEXT {
            return short || owner_alone || lesson.things() == 1;
        }
        let beyond = self.beyond(lesson);
        let here: Vec<&About> = beyond.iter().copied().filter(|about| about.within && !about.aside).collect();
        let instead = lacks.iter().filter(plain).count() == 1
            && here.iter().filter(plain).count() > 0
            && self.about.len() <= lesson.about.len() + 1;
        past(&beyond) || instead || lesson.things() == 1 && !here.is_empty()
    }

    /// Do both ask for the same, each in so many words?
    fn agrees(&self, lesson: &Reading) -> bool {
        let (asks, tells) = (self.asks, lesson.tells());
        let (asks_well, tells_well) = (asks.without(WEAK), tells.without(WEAK));
        if asks_well.meets(tells_well) {
            return true;
        }
        let which = |a: Classes, b: Classes| a.without(Classes::of(&[Class::Place])) == WHICH && b.meets(OF_WHICH);
        let weak = !asks.is_empty() && !tells.is_empty() && asks_well.is_empty() && tells_well.is_empty();
        let thing = asks.and(tells).has(Class::Thing) && lesson.about.len() > 1;
        which(asks, tells) || which(tells, asks) || weak && (thing || asks.meets(tells))
    }

    /// How much a question is a lesson's in other words: it asks for the same of the same ones. 0: it is another one.
    pub(super) fn likeness(&self, lesson: &Reading) -> f64 {
        let things = lesson.things();
        let anothers = lesson.first_person && self.other_person && !self.first_person;
        if things == 0 || lesson.about.len() > ABOUT_MAX || self.about.len() >= TEXT || anothers || !self.agrees(lesson)
        {
            return 0.0;
        }
        let (lacks, beyond) = (lesson.beyond(self), self.beyond(lesson));
        let within = self.about.iter().any(|about| about.within);
        let near = beyond.iter().filter(|about| about.within || !within).count();
        if !lacks.is_empty() || near >= things || past(&beyond) || beyond.iter().any(|about| about.strong) {
            return 0.0;
        }
        if beyond.is_empty() { SAME } else { OTHER_WORDS }
    }
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
            ("When is Sam's birthday?", "What does Sam want for his birthday?", true),
            ("What is the name of the gardener?", "Who is the gardener?", false),
            ("Which bus goes to Hollbeck?", "How many people live in Hollbeck?", true),
            ("Which bus goes to Hollbeck?", "Which number has the bus to Hollbeck?", false),
            ("How much is a ticket?", "What does a ticket cost?", false),
            ("How do we call the printer?", "How do I restart the printer?", true),
            ("Which pillow is mine?", "Which pillow is Hanna's?", true),
            ("What is the extension of the mail room?", "Who is the head of the mail room?", true),
            ("Tell me about the shed", "Who built the shed?", false),
            ("Wie ist der Code?", "Wo ist der Schuppen?", true),
            ("Où est la clé ?", "Qui a la clé ?", true),
            ("¿Cuánto cuesta la piscina?", "¿Dónde está la piscina?", true),
        ] {
            assert_eq!(Reading::of(question).other_than(&Reading::of(lesson)), other, "{lesson} / {question}");
        }
    }

    #[test]
    fn a_short_question_in_other_words_is_the_same_and_a_neighbour_is_not() {
        for (lesson, question, same) in [
            ("What is our cat called?", "What's the cat's name?", true),
            ("What is our cat called?", "I forgot the name of our cat", true),
            ("What is our cat called?", "How old is our cat?", false),
            ("What is our cat called?", "What is our dog called?", false),
            ("What is our cat called?", "Who is our cat's vet?", false),
            ("What is our cat called?", "Give me a name for a cat", false),
            ("Who is our dentist?", "Which dentist do we have?", true),
            ("Who is our dentist?", "Where is our dentist?", false),
            ("How old is Grandpa?", "What is Grandpa's age?", true),
            ("When is Sam's birthday?", "On what date was Sam born?", true),
            ("When is Sam's birthday?", "Where was Sam born?", false),
            ("When does the pharmacy close?", "Until when is the pharmacy open?", true),
            ("When does the pharmacy close?", "When does the pharmacy open?", false),
            ("When does the stand-up start?", "When is the stand-up?", true),
            ("Where do we park?", "Where do visitors park?", false),
            ("What is my shoe size?", "What is your shoe size?", false),
            ("Where do we go on holiday?", "Where did we go on holiday last year?", false),
            ("What is the guest Wi-Fi password?", "guest wifi password", true),
            ("Wie heißt unsere Katze?", "Welchen Namen hat unsere Katze?", true),
            ("Quel âge a Mamie ?", "C'est quoi l'âge de Mamie ?", true),
            ("Quel âge a Mamie ?", "Où habite Mamie ?", false),
            ("Dov'è la chiave del garage?", "Dove teniamo la chiave del garage?", true),
            ("", "", false),
            ("?", "What is our cat called?", false),
            ("猫の名前は何ですか？", "猫はどこですか？", false),
        ] {
            assert_eq!(Reading::of(question).likeness(&Reading::of(lesson)) > 0.0, same, "{lesson} / {question}");
        }
    }
}
