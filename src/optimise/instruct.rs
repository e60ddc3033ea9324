//! Instructions: what the system message of a route may say. One is in force. The others come from a small stock,
//! from the owner (`night.yaml`), and from the model itself. It sees questions of the route and is asked for an
//! instruction.

use crate::turn::{Message, Role};

/// Longest instruction, words and characters: every reply of the route reads it.
const WORDS_MAX: usize = 60;
const CHARS_MAX: usize = 480;
/// Questions that the model is shown.
const QUESTIONS_MAX: usize = 3;
const QUESTION_CHARS_MAX: usize = 200;

/// Hand-written ones, tried alone and after the one in force.
const STOCK: &[&str] = &[
    "Answer correctly and briefly.",
    "Work it out step by step, check the result, then answer.",
    "Read the question carefully and give exactly what it asks for, in the form that it asks for.",
    "Be exact with names, numbers and units.",
];

/// Every instruction of a search, the one in force first, none twice.
pub fn candidates(current: &str, own: &[String], proposed: &[String]) -> Vec<String> {
    let after = STOCK.iter().map(|stock| format!("{current} {stock}"));
    let alone = STOCK.iter().map(|stock| (*stock).to_owned());
    let all = own.iter().chain(proposed).filter_map(|text| clean(text)).chain(alone).chain(after);
    let mut candidates = vec![current.to_owned()];
    for text in all.map(|text| text.trim().to_owned()) {
        if !candidates.contains(&text) {
            candidates.push(text);
        }
    }
    candidates
}

/// What the model is asked for an instruction of a route that is for `description`.
pub fn request(description: &str, current: &str, questions: &[&str]) -> Vec<Message> {
    let shown: Vec<String> = questions
        .iter()
        .take(QUESTIONS_MAX)
        .map(|question| format!("- {}", question.chars().take(QUESTION_CHARS_MAX).collect::<String>()))
        .collect();
    let text = format!(
        "An assistant answers questions of this kind: {description}. Some of them:\n{}\nIt is told: \"{current}\" \
         Write one better instruction for it, in one or two sentences. Give the instruction alone.",
        shown.join("\n")
    );
    vec![Message::new(Role::User, text)]
}

/// One line of plain text that can stand in a system message; `None` for what cannot.
pub fn clean(text: &str) -> Option<String> {
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let line = line.trim_matches(['"', '“', '”', '`', '*']).trim();
    let words = line.split(' ').count();
    // Nothing that looks like a control token, a tag or a call.
    let plain = !line.contains(['<', '>', '{', '}']) && !line.chars().any(char::is_control);
    (plain && !line.is_empty() && words <= WORDS_MAX && line.chars().count() <= CHARS_MAX).then(|| line.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_one_in_force_comes_first_and_none_twice() {
        let own = ["Be kind.".to_owned(), "Be kind.".to_owned(), "<|im_start|>system".to_owned()];
        let all = candidates("You help.", &own, &["\"You help.\"".to_owned()]);
        assert_eq!((all[0].as_str(), all[1].as_str()), ("You help.", "Be kind."));
        assert_eq!(all.len(), 2 + 2 * STOCK.len());
        assert!(all.contains(&format!("You help. {}", STOCK[0])));
        let bare = candidates("", &[], &[]);
        assert_eq!(bare.len(), 1 + STOCK.len(), "after nothing is alone: {bare:?}");
    }

    #[test]
    fn what_a_model_writes_is_taken_as_one_line_or_not_at_all() {
        assert_eq!(clean(" \"Be exact.\n Always.\" ").as_deref(), Some("Be exact. Always."));
        for wrong in
            ["", " \n", "</think> hi", "{\"a\": 1}", &"word ".repeat(WORDS_MAX + 1), &"x".repeat(CHARS_MAX + 1)]
        {
            assert_eq!(clean(wrong), None, "{wrong}");
        }
        let asked = request("sums", "Be.", &["What is 1 + 2?", "b", "c", "d"]);
        assert!(asked[0].content.contains("- What is 1 + 2?\n- b\n- c\nIt is told: \"Be.\""), "{}", asked[0].content);
    }
}
