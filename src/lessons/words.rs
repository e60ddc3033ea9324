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

/// The words of a text in their order, folded, without common ones.
pub(super) fn words(text: &str) -> Vec<String> {
    let mut folded = String::new();
    fold(text, &mut folded);
    let plain = folded.replace("'s ", " ");
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
}
