//! Texts as lists of words: whole for telling two questions apart, and without what every question has for recall.

use crate::intent::fold::fold;

/// Articles, greetings and politeness: they tell no question from another. Pronouns, prepositions and tenses do.
const FILLERS: &[&str] = &["a", "an", "the", "please", "hey", "hi", "hello", "ok", "okay", "well", "so", "just"];
/// Words that recall passes over: the same thing is asked in other words.
const COMMON: &[&str] = &[
    "a",
    "about",
    "after",
    "again",
    "also",
    "am",
    "an",
    "and",
    "any",
    "anyone",
    "are",
    "as",
    "at",
    "be",
    "been",
    "before",
    "both",
    "by",
    "can",
    "could",
    "did",
    "do",
    "does",
    "each",
    "exactly",
    "for",
    "from",
    "give",
    "had",
    "has",
    "have",
    "he",
    "hello",
    "her",
    "here",
    "hey",
    "hi",
    "him",
    "his",
    "how",
    "i",
    "if",
    "in",
    "into",
    "is",
    "it",
    "its",
    "just",
    "know",
    "let",
    "like",
    "may",
    "me",
    "might",
    "more",
    "most",
    "my",
    "need",
    "no",
    "not",
    "now",
    "of",
    "off",
    "ok",
    "okay",
    "on",
    "one",
    "or",
    "our",
    "out",
    "please",
    "really",
    "remember",
    "s",
    "say",
    "shall",
    "she",
    "should",
    "so",
    "some",
    "someone",
    "something",
    "still",
    "tell",
    "than",
    "that",
    "the",
    "their",
    "then",
    "there",
    "these",
    "they",
    "this",
    "those",
    "to",
    "too",
    "up",
    "us",
    "very",
    "want",
    "was",
    "we",
    "well",
    "were",
    "what",
    "when",
    "where",
    "which",
    "who",
    "whom",
    "whose",
    "why",
    "will",
    "with",
    "would",
    "yes",
    "you",
    "your",
];
/// Words of which a question has the one or the other.
const CONTRARY: &[(&str, &str)] =
    &[("to", "from"), ("before", "after"), ("with", "without"), ("in", "out"), ("on", "off")];
/// Words that point to what was said before, anywhere and at the beginning.
const POINTING: &[&str] = &["it", "its", "this", "that", "these", "those", "they", "them", "he", "him", "she", "there"];
const BEGINNING: &[&str] = &["and", "but", "or", "so", "then"];
const BEGINNINGS: &[[&str; 2]] = &[["what", "about"], ["how", "about"]];
/// Signs that are words of a question.
const SIGNS: &str = "+*/=<>%#&@^×÷°$€£−";
/// Bytes that a word keeps, and endings that recall passes over.
const LETTERS_MIN: usize = 3;
const ENDINGS: &[&str] = &["ing", "ed", "es", "s"];

fn folded(text: &str) -> String {
    let mut folded = String::new();
    fold(text, &mut folded);
    folded
}

/// Words, numbers and signs in their order. A hyphen is a sign beside a number alone.
fn tokens(text: &str) -> Vec<String> {
    let (mut tokens, mut word) = (Vec::new(), String::new());
    let chars: Vec<char> = text.chars().collect();
    for (at, &c) in chars.iter().enumerate() {
        if c.is_alphanumeric() {
            word.push(c);
            continue;
        }
        if !word.is_empty() {
            tokens.push(std::mem::take(&mut word));
        }
        let number = |c: Option<&char>| c.is_some_and(char::is_ascii_digit);
        let beside = || {
            let next = chars.get(at + 1..).and_then(|rest| rest.iter().find(|c| !c.is_whitespace()));
            number(next) || number(chars.get(..at).and_then(|before| before.iter().rfind(|c| !c.is_whitespace())))
        };
        if SIGNS.contains(c) || (c == '-' && beside()) {
            tokens.push(c.to_string());
        }
    }
    tokens.extend((!word.is_empty()).then_some(word));
    tokens
}

/// The folded words, numbers and signs of a text in their order.
pub(super) fn tokens_of(text: &str) -> Vec<String> {
    tokens(&folded(text))
}

/// Does recall pass over this folded word?
pub(super) fn is_common(word: &str) -> bool {
    COMMON.contains(&word)
}

/// What two wordings of the same question have in common; of a text without a word of its own, the text.
pub(super) fn key(question: &str) -> String {
    let mut plain = folded(question);
    for word in ["what", "who", "where", "when", "how", "it", "that", "there"] {
        plain = plain.replace(&format!("{word}'s "), &format!("{word} is "));
    }
    let words: Vec<String> = tokens(&plain).into_iter().filter(|word| !FILLERS.contains(&word.as_str())).collect();
    if words.is_empty() { question.trim().to_lowercase() } else { words.join(" ") }
}

/// The numbers of a text with the signs between them, where it has signs; else the numbers in order of size.
pub(super) fn numbers(text: &str) -> Vec<String> {
    let is_number = |token: &String| token.contains(|c: char| c.is_ascii_digit());
    let is_sign = |token: &String| token.chars().all(|c| SIGNS.contains(c) || c == '-');
    let all: Vec<String> = tokens(&folded(text)).into_iter().filter(|t| is_number(t) || is_sign(t)).collect();
    if !all.iter().any(is_number) {
        return Vec::new();
    }
    if all.iter().any(is_sign) {
        return all;
    }
    let mut numbers = all;
    numbers.sort();
    numbers
}

/// Which words of the pairs of contraries a text has: two bits for each.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Contraries(u32);

impl Contraries {
    pub(super) fn of(text: &str) -> Contraries {
        let tokens = tokens_of(text);
        let has = |word: &str| u32::from(tokens.iter().any(|token| token == word));
        Contraries(CONTRARY.iter().fold(0, |bits, (x, y)| bits << 2 | has(x) << 1 | has(y)))
    }

    /// Has one text a word, and the other its contrary?
    pub(super) fn against(self, other: Contraries) -> bool {
        (0..CONTRARY.len()).map(|pair| 2 * pair).any(|at| {
            let (a, b) = (self.0 >> at & 3, other.0 >> at & 3);
            a != 0 && b != 0 && a & b == 0
        })
    }
}

/// A word of a question, without its ending.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Word {
    pub(super) text: String,
    /// It begins with a capital letter, and no sentence begins with it.
    pub(super) named: bool,
}

/// Does a question need what was said before it?
pub(super) fn leans(question: &str) -> bool {
    let words = tokens(&folded(question));
    let begins = words.first().is_some_and(|first| BEGINNING.contains(&first.as_str()))
        || words.get(..2).is_some_and(|two| BEGINNINGS.iter().any(|known| two == known));
    begins || words.iter().any(|word| POINTING.contains(&word.as_str())) || asked(question).is_empty()
}

/// The words of a question that say what it is about.
pub(super) fn asked(text: &str) -> Vec<Word> {
    let plain = text.replace(['’', '‘'], "'").replace("'s ", " ").replace("'s?", "?");
    let (mut found, mut opens) = (Vec::new(), true);
    for piece in plain.split_inclusive(|c: char| !c.is_alphanumeric()) {
        let (word, end) = match piece.char_indices().next_back() {
            Some((at, last)) if !last.is_alphanumeric() => (&piece[..at], Some(last)),
            _ => (piece, None),
        };
        let small = folded(word);
        if !word.is_empty() {
            let capital = word.chars().next().is_some_and(char::is_uppercase);
            if !COMMON.contains(&small.as_str()) {
                found.push(Word { text: stem(&small).to_owned(), named: capital && !opens });
            }
            opens = false;
        }
        opens |= matches!(end, Some('.' | '!' | '?' | ':' | '\n'));
    }
    found
}

/// A folded word without its ending.
pub(super) fn stem(word: &str) -> &str {
    let without = |word: &str, ending: &str| word.len() >= ending.len() + LETTERS_MIN && word.ends_with(ending);
    let long = ENDINGS.iter().find(|ending| without(word, ending) && !word.ends_with("ss"));
    let word = long.map_or(word, |ending| &word[..word.len() - ending.len()]);
    // `closed` and `close`, `codes` and `code`.
    if without(word, "e") { &word[..word.len() - 1] } else { word }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_question_has_one_key_and_another_another() {
        for (a, b, same) in [
            ("What is the Wi-Fi password?", "what's wi-fi   password", true),
            ("When does Zoé's train leave?", "when does Zoe’s train leave", true),
            ("Please, where is the key?", "Where's key", true),
            ("What is my name?", "What's your name?", false),
            ("Who am I?", "Who are you?", false),
            ("When is the train to Basel?", "When is the train from Basel?", false),
            ("What is 7 + 3?", "What is 7 - 3?", false),
            ("What is 7-3?", "What is 7 - 3?", true),
            ("What is C++?", "What is C#?", false),
            ("What is -5 squared?", "What is 5 squared?", false),
            ("What is Will's number?", "What is the number of IT?", false),
            ("When is bin day in May?", "When is bin day?", false),
            ("Who is on call?", "Who should I call?", false),
            ("你好？", "你好", true),
            ("?", "!", false),
        ] {
            assert_eq!(key(a) == key(b), same, "{a} / {b}: {} / {}", key(a), key(b));
        }
    }

    #[test]
    fn a_question_that_needs_what_was_said_before_is_told_apart() {
        for (question, needs) in [
            ("And on Sunday?", true),
            ("What about Sunday?", true),
            ("Why?", true),
            ("Yes", true),
            ("What is its code?", true),
            ("What is my name?", false),
            ("What do I put on the list on Sunday?", false),
            ("Sunday", false),
        ] {
            assert_eq!(leans(question), needs, "{question}");
        }
    }

    #[test]
    fn questions_are_read_for_what_they_are_about() {
        let read = |text: &str| asked(text).into_iter().map(|word| (word.text, word.named)).collect::<Vec<_>>();
        let of = |words: &[(&str, bool)]| words.iter().map(|(w, n)| ((*w).to_owned(), *n)).collect::<Vec<_>>();
        assert_eq!(
            read("Which codes open Zoé’s old lockers? Marwen asked."),
            of(&[
                ("cod", false),
                ("open", false),
                ("zoe", true),
                ("old", false),
                ("locker", false),
                ("marwen", false),
                ("ask", false)
            ])
        );
        assert_eq!(read("Is it?"), of(&[]));
        assert_eq!((stem("glass"), stem("closed"), stem("close")), ("glass", "clos", "clos"));
        assert_eq!(numbers("What is 25 + 17?"), ["25", "+", "17"]);
        assert_eq!(numbers("Room 12 or room 11"), ["11", "12"]);
        let contrary = |a, b| Contraries::of(a).against(Contraries::of(b));
        assert!(contrary("to Basel", "from Basel") && !contrary("to Basel", "from here to Basel"));
    }
}
