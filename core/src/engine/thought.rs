//! The marks that a model puts around its thought: which of those that families use are tokens of its vocabulary.

use super::vocab::Vocab;

/// What opens a thought and what closes it, in several families.
pub(crate) const MARKS: [(&str, &str); 7] = [
    ("<think>", "</think>"),
    ("[THINK]", "[/THINK]"),
    ("<seed:think>", "</seed:think>"),
    ("<|START_THINKING|>", "<|END_THINKING|>"),
    ("<|inner_prefix|>", "<|inner_suffix|>"),
    ("<|channel>", "<channel|>"),
    ("◁think▷", "◁/think▷"),
];

/// Ids of the tokens that open and close a thought, and their texts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ThoughtMarks {
    pub open: u32,
    pub close: u32,
    pub open_text: &'static str,
    pub close_text: &'static str,
}

impl ThoughtMarks {
    /// Those of a vocabulary, where it has any.
    pub fn of(vocab: &dyn Vocab) -> Option<ThoughtMarks> {
        MARKS.into_iter().find_map(|(open_text, close_text)| {
            let (open, close) = vocab.special(open_text).zip(vocab.special(close_text))?;
            Some(ThoughtMarks { open, close, open_text, close_text })
        })
    }

    /// What a thought begins with that is no part of it.
    pub fn heading(self) -> &'static str {
        if self.open_text == "<|channel>" { "thought\n" } else { "" }
    }
}
