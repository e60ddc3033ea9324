//! Texts as lists of words: folded, without what every question has. Two questions with the same list are the same.

use crate::intent::fold::fold;

/// Words that tell no question from another. Words that ask (`who`, `when`) are none of them: they change the answer.
const COMMON: &[&str] = &[
    "a", "an", "the", "is", "are", "was", "were", "be", "been", "am", "do", "does", "did", "has", "have", "had", "of",
    "to", "in", "on", "at", "for", "by", "with", "from", "as", "and", "or", "it", "its", "this", "that", "these",
    "those", "there", "i", "me", "my", "we", "us", "our", "you", "your", "please", "tell", "say", "know", "remember",
    "can", "could", "would", "will", "shall", "should", "may", "might", "again", "just", "so", "s", "now", "then",
    "hey", "hi", "hello", "ok", "okay", "well", "need", "want", "like", "give", "let",
];
/// Words that recall passes over as well: the same thing is asked in other words.
const ASKING: &[&str] = &[
    "if", "when", "what", "who", "which", "how", "where", "whom", "whose", "why", "not", "no", "yes", "here", "he",
    "she", "they", "him", "his", "her", "their", "up", "out", "into", "off",
];
/// Bytes that a word keeps, and endings that recall passes over.
const LETTERS_MIN: usize = 3;
const ENDINGS: &[&str] = &["ing", "ed", "es", "s"];

fn folded(text: &str) -> String {
    let mut folded = String::new();
    fold(text, &mut folded);
    folded
}

/// The words of a text in their order, folded, without common ones.
fn words(text: &str) -> Vec<String> {
    let plain = folded(text).replace("'s ", " ");
    let words = plain.split(|c: char| !c.is_alphanumeric()).filter(|word| !word.is_empty());
    words.filter(|word| !COMMON.contains(word)).map(str::to_owned).collect()
}

/// What two wordings of the same question have in common; of a text without a word of its own, the text.
pub(super) fn key(question: &str) -> String {
    match words(question).join(" ") {
        key if key.is_empty() => question.trim().to_lowercase(),
        key => key,
    }
}

/// A word of a question, without its ending.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Word {
    pub(super) text: String,
    /// It begins with a capital letter, and no sentence begins with it.
    pub(super) named: bool,
}

/// The words of a question that say what it is about.
pub(super) fn asked(text: &str) -> Vec<Word> {
    let plain = text.replace(['’', '‘'], "'").replace("'s ", " ").replace("'s?", "?");
    let mut found = Vec::new();
    // Where a word begins, and whether a sentence does.
    let mut opens = true;
    for piece in plain.split_inclusive(|c: char| !c.is_alphanumeric()) {
        let (word, end) = match piece.char_indices().next_back() {
            Some((at, last)) if !last.is_alphanumeric() => (&piece[..at], Some(last)),
            _ => (piece, None),
        };
        let small = folded(word);
        if !word.is_empty() {
            let capital = word.chars().next().is_some_and(char::is_uppercase);
            if !COMMON.contains(&small.as_str()) && !ASKING.contains(&small.as_str()) {
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
    let without = |word: &'_ str, ending: &str| word.len() >= ending.len() + LETTERS_MIN && word.ends_with(ending);
    let long = ENDINGS.iter().find(|ending| without(word, ending) && !word.ends_with("ss"));
    let word = long.map_or(word, |ending| &word[..word.len() - ending.len()]);
    // `closed` and `close`, `codes` and `code`.
    if without(word, "e") { &word[..word.len() - 1] } else { word }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_question_has_one_key() {
        for (question, wanted) in [
            ("What is the Wi-Fi password?", "what wi fi password"),
            ("what's our wi-fi   password", "what wi fi password"),
            ("When does Zoé's train leave?", "when zoe train leave"),
            ("Where does Zoé's train leave?", "where zoe train leave"),
            ("So, is it?", "so, is it?"),
            ("  你好？", "你好"),
            ("", ""),
        ] {
            assert_eq!(key(question), wanted, "{question}");
        }
    }

    #[test]
    fn questions_are_read_for_what_they_are_about() {
        let read = |text: &str| asked(text).into_iter().map(|word| (word.text, word.named)).collect::<Vec<_>>();
        let of = |words: &[(&str, bool)]| words.iter().map(|(w, n)| ((*w).to_owned(), *n)).collect::<Vec<_>>();
        assert_eq!(
            read("Which codes open Zoé’s old lockers? Marwen asked."),
            of(&[("cod", false), ("open", false), ("zoe", true), ("old", false), ("locker", false), ("marwen", false), ("ask", false)])
        );
        assert_eq!(read("Is it?"), of(&[]));
        assert_eq!(read("17+25"), of(&[("17", false), ("25", false)]));
        assert_eq!(stem("glass"), "glass");
        assert_eq!(stem("bus"), "bus");
    }
}
