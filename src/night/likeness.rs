//! Which texts are the same question. A key ignores case, punctuation and spaces. The nearness of a conversation to
//! the items of the exams follows the rule of `nano/tasks/leaks.py`, which made the exams disjoint.

use std::collections::hash_map::DefaultHasher;
use std::collections::{HashMap, HashSet};
use std::hash::{Hash, Hasher};

use sha2::{Digest, Sha256};

use super::inspect::hex;
use crate::turn::{Message, Role};

/// Share of common word 3-grams from which two prompts are alike.
const JACCARD_MIN: f64 = 0.7;
/// Share of an item's 3-grams that a text may not hold, for items of so many.
const CONTAINED_MIN: f64 = 0.8;
const CONTAINED_GRAMS_MIN: usize = 8;
/// A 3-gram of more items than this names none of them.
const COMMON_MAX: usize = 60;

/// Words and signs of arithmetic, in lower case.
pub(super) fn words(text: &str) -> Vec<String> {
    let mut words = Vec::new();
    let mut word = String::new();
    for c in text.chars().flat_map(char::to_lowercase) {
        if c.is_alphanumeric() {
            word.push(c);
            continue;
        }
        if !word.is_empty() {
            words.push(std::mem::take(&mut word));
        }
        if "+*/=<>%$^-".contains(c) {
            words.push(c.to_string());
        }
    }
    if !word.is_empty() {
        words.push(word);
    }
    words
}

/// What was asked: the whole conversation without the system's text.
pub fn asked<'a>(messages: impl IntoIterator<Item = &'a Message>) -> String {
    let said = messages.into_iter().filter(|m| m.role != Role::System).map(|m| m.content.as_str());
    said.collect::<Vec<_>>().join("\n")
}

/// The same for texts that differ in case, punctuation and spaces alone.
pub fn key(text: &str) -> String {
    hex(&Sha256::digest(words(text).join(" ").as_bytes())[..16])
}

/// Words of a gram.
pub(super) const GRAM_WORDS: usize = 3;

/// The word 3-grams of a text, in its order; a shorter text is one of them.
pub(super) fn grams_in_order(words: &[String]) -> Vec<u64> {
    // Keyed alike in every process, and kept in memory alone.
    let gram = |words: &[String]| {
        let mut hash = DefaultHasher::new();
        words.hash(&mut hash);
        hash.finish()
    };
    if words.len() < GRAM_WORDS { vec![gram(words)] } else { words.windows(GRAM_WORDS).map(gram).collect() }
}

/// The set of them.
pub(super) fn grams(words: &[String]) -> HashSet<u64> {
    grams_in_order(words).into_iter().collect()
}

/// The prompts of exams, to be kept out of training.
#[derive(Debug, Default)]
pub struct Exams {
    keys: HashSet<String>,
    items: Vec<HashSet<u64>>,
    by_gram: HashMap<u64, Vec<usize>>,
}

impl Exams {
    /// Adds the prompt of an item.
    pub fn add(&mut self, messages: &[Message]) {
        let text = asked(messages);
        self.keys.insert(key(&text));
        let grams = grams(&words(&text));
        for gram in &grams {
            self.by_gram.entry(*gram).or_default().push(self.items.len());
        }
        self.items.push(grams);
    }

    pub fn len(&self) -> usize {
        self.items.len()
    }

    pub fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// Whether a conversation, or anything that the user said in it, nearly repeats an item.
    pub fn hold(&self, messages: &[Message]) -> bool {
        let users = messages.iter().filter(|m| m.role == Role::User).map(|m| m.content.clone());
        users.chain([asked(messages)]).any(|text| self.near(&text))
    }

    fn near(&self, text: &str) -> bool {
        if self.keys.contains(&key(text)) {
            return true;
        }
        let mine = grams(&words(text));
        let named = mine.iter().filter_map(|gram| self.by_gram.get(gram)).filter(|items| items.len() <= COMMON_MAX);
        let candidates: HashSet<usize> = named.flatten().copied().collect();
        candidates.into_iter().any(|item| {
            let theirs = &self.items[item];
            let both = mine.intersection(theirs).count() as f64;
            let either = (mine.len() + theirs.len()) as f64 - both;
            both / either >= JACCARD_MIN
                || (theirs.len() >= CONTAINED_GRAMS_MIN && both / theirs.len() as f64 >= CONTAINED_MIN)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn user(text: &str) -> Vec<Message> {
        vec![Message::new(Role::System, "You are nano."), Message::new(Role::User, text)]
    }

    #[test]
    fn a_key_ignores_what_does_not_change_the_question() {
        assert_eq!(key("What is 17 + 25?"), key("  what IS 17 + 25 "));
        assert_ne!(key("What is 17 + 25?"), key("What is 17 - 25?"));
        assert_ne!(key("What is 17 + 25?"), key("What is 17 + 52?"));
    }

    #[test]
    fn near_duplicates_of_an_item_are_found_and_other_questions_are_not() {
        let mut exams = Exams::default();
        let long = "A farmer has twelve red apples and sells five of them to the baker in Lille. How many are left?";
        exams.add(&user(long));
        exams.add(&user("What is 17 + 25?"));
        assert_eq!((exams.len(), exams.is_empty()), (2, false));
        assert!(exams.hold(&user("what is 17 + 25")));
        assert!(!exams.hold(&user("What is 17 + 26?")));
        assert!(exams.hold(&user(&long.replace("farmer", "gardener"))));
        assert!(exams.hold(&user(&format!("Please help me with my homework. {long} Thank you very much indeed."))));
        assert!(!exams.hold(&user("A baker in Lille buys apples. How much does she pay?")));
        // Hidden in the middle of a conversation.
        let mut talk = user("Hello");
        talk.extend([Message::new(Role::Assistant, "Hi."), Message::new(Role::User, "What is 17 + 25?")]);
        talk.extend([Message::new(Role::Assistant, "42"), Message::new(Role::User, "Thanks. Tell me a joke.")]);
        assert!(exams.hold(&talk));
    }

    #[test]
    fn the_frozen_exams_hold_their_own_items() {
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("nano/golden");
        let items = crate::eval::golden::read(&folder.join("slice.jsonl.gz")).unwrap();
        let mut exams = Exams::default();
        items.iter().for_each(|item| exams.add(&item.messages));
        assert!(items.iter().all(|item| exams.hold(&item.messages)));
        // The exams are disjoint by the same rule: the other one's items are not held.
        let other = crate::eval::golden::read(&folder.join("golden.jsonl.gz")).unwrap();
        let held = other.iter().filter(|item| exams.near(&asked(&item.messages))).count();
        assert_eq!(held, 0, "of {}", other.len());
    }
}
