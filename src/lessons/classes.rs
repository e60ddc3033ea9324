//! What questions ask for, and the words that ask for it, in seven languages: `classes.txt`. "What is our cat called?" and
//! "What is the name of our cat?" ask for the same with no word but the cat in common.

use std::collections::{HashMap, HashSet};
use std::sync::LazyLock;

/// What a question asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Class {
    Person,
    Name,
    Place,
    Time,
    Birth,
    Age,
    Size,
    Count,
    Price,
    Code,
    Colour,
    Reason,
    Duration,
    Frequency,
    Degree,
    Food,
    Drink,
    Job,
    Language,
    Kind,
    /// Which of several, what, and how, where no word says more.
    Which,
    Thing,
    Manner,
}

use Class::{
    Age, Birth, Code, Colour, Count, Degree, Drink, Duration, Food, Frequency, Job, Kind, Language as Tongue, Manner,
    Name, Person, Place, Price, Reason, Size, Thing, Time, Which,
};

const NAMES: &[(&str, Class)] = &[
    ("person", Person),
    ("name", Name),
    ("place", Place),
    ("time", Time),
    ("birth", Birth),
    ("age", Age),
    ("size", Size),
    ("count", Count),
    ("price", Price),
    ("code", Code),
    ("colour", Colour),
    ("reason", Reason),
    ("duration", Duration),
    ("frequency", Frequency),
    ("degree", Degree),
    ("food", Food),
    ("drink", Drink),
    ("job", Job),
    ("language", Tongue),
    ("kind", Kind),
    ("which", Which),
    ("thing", Thing),
    ("manner", Manner),
];

/// Several of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Classes(u32);

impl Classes {
    pub(super) const fn of(classes: &[Class]) -> Classes {
        let (mut bits, mut at) = (0, 0);
        while at < classes.len() {
            bits |= 1 << classes[at] as u32;
            at += 1;
        }
        Classes(bits)
    }

    pub(super) fn is_empty(self) -> bool {
        self.0 == 0
    }

    pub(super) fn meets(self, other: Classes) -> bool {
        self.0 & other.0 != 0
    }

    pub(super) fn has(self, class: Class) -> bool {
        self.meets(Classes::of(&[class]))
    }

    pub(super) const fn and(self, other: Classes) -> Classes {
        Classes(self.0 | other.0)
    }

    pub(super) const fn without(self, other: Classes) -> Classes {
        Classes(self.0 & !other.0)
    }
}

type Words = HashMap<&'static str, Classes>;

/// The words of one language, folded.
#[derive(Default)]
pub(super) struct Language {
    pub(super) name: &'static str,
    /// They say nothing of what a question is about.
    pub(super) function: HashSet<&'static str>,
    /// Verbs and the like that many questions have: where something lies, who does it.
    pub(super) light: HashSet<&'static str>,
    /// Words of relations and of requests: they weigh less.
    pub(super) generic: Vec<&'static str>,
    /// They ask at the beginning and at the end of a clause.
    pub(super) asks: Words,
    /// One word or several that ask wherever they stand, the longest first.
    pub(super) phrases: Vec<(Vec<&'static str>, Classes)>,
    /// They ask behind `what` and the like, and where nothing else asks.
    pub(super) nouns: Words,
    /// With `what` and `how` they say what is asked. Else the light ones say nothing, and the others are words like others.
    pub(super) verbs: Words,
    pub(super) light_verbs: Words,
    /// Before a noun that is not asked for: "give me a name".
    pub(super) indefinite: HashSet<&'static str>,
    /// "Until when is it open?" asks when it closes.
    pub(super) until: HashSet<&'static str>,
    pub(super) open: HashSet<&'static str>,
    pub(super) close: HashSet<&'static str>,
    /// A word and the one that stands for all that mean the same.
    pub(super) same: HashMap<&'static str, &'static str>,
}

/// English is the first one.
pub(super) static LANGUAGES: LazyLock<Vec<Language>> = LazyLock::new(|| read(include_str!("classes.txt")));

fn read(text: &'static str) -> Vec<Language> {
    let mut languages: Vec<Language> = Vec::new();
    for line in text.lines() {
        let Some((head, rest)) = line.split_once(": ") else { continue };
        let (table, classes) = head.split_once(' ').unwrap_or((head, ""));
        if table == "language" {
            languages.push(Language { name: rest, ..Language::default() });
        }
        let Some(language) = languages.last_mut() else { continue };
        let named = |name: &str| NAMES.iter().find(|(known, _)| *known == name).map(|(_, class)| *class);
        let classes: Vec<Class> = classes.split_whitespace().filter_map(named).collect();
        language.take(table, Classes::of(&classes), rest);
    }
    for language in &mut languages {
        language.phrases.sort_by_key(|(words, _)| std::cmp::Reverse(words.len()));
    }
    languages
}

impl Language {
    /// Is it a word that its tables have, beside the function words?
    pub(super) fn knows(&self, word: &str) -> bool {
        let words = [&self.asks, &self.nouns, &self.verbs, &self.light_verbs];
        self.light.contains(word) || words.iter().any(|words| words.contains_key(word))
    }

    pub(super) fn is_light(&self, word: &str) -> bool {
        let without = |ending| word.strip_suffix(ending).is_some_and(|one| self.light.contains(one));
        self.light.contains(word) || without("s") || without("es")
    }

    fn take(&mut self, table: &str, classes: Classes, rest: &'static str) {
        let (words, listed) = (rest.split_whitespace(), rest.split(", "));
        let asked = listed.map(|word| (word, classes));
        match table {
            "function" => self.function.extend(words),
            "light" => self.light.extend(words),
            "generic" => self.generic.extend(words),
            "asks" => self.asks.extend(asked),
            "phrase" => self.phrases.extend(asked.map(|(phrase, of)| (phrase.split(' ').collect(), of))),
            "noun" => self.nouns.extend(asked),
            "verb" => self.verbs.extend(asked),
            "light-verb" => self.light_verbs.extend(asked),
            "indefinite" => self.indefinite.extend(words),
            "until" => self.until.extend(words),
            "open" => self.open.extend(words),
            "close" => self.close.extend(words),
            "same" => {
                let first = rest.split(' ').next().unwrap_or_default();
                self.same.extend(words.map(|word| (word, first)));
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_of_the_tables_is_read_and_no_word_is_in_a_table_twice() {
        let tables = ["function", "light", "generic", "indefinite", "until", "open", "close", "same", "language"];
        let asking = ["asks", "phrase", "noun", "verb", "light-verb"];
        let (mut language, mut seen) = ("", HashMap::new());
        for line in include_str!("classes.txt").lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
            let (head, rest) = line.split_once(": ").unwrap();
            let (table, classes) = head.split_once(' ').unwrap_or((head, ""));
            assert!(if classes.is_empty() { tables.contains(&table) } else { asking.contains(&table) }, "{line}");
            assert!(classes.split(' ').all(|c| c.is_empty() || NAMES.iter().any(|(name, _)| *name == c)), "{line}");
            language = if table == "language" { rest } else { language };
            let apart = if asking.contains(&table) { ", " } else { " " };
            for word in rest.split(apart) {
                let mut folded = String::new();
                crate::intent::fold::fold(word, &mut folded);
                assert_eq!(word, folded, "{line}");
                assert_eq!(seen.insert((language, table, word), line), None, "{word}: {line}");
            }
        }
        assert_eq!(LANGUAGES.iter().map(|l| l.name).collect::<Vec<_>>(), ["en", "fr", "de", "es", "it", "nl", "pt"]);
        assert_eq!(NAMES.len(), Class::Manner as usize + 1);
    }
}
