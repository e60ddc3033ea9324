//! Cuts text into the pieces inside which merges happen, as the training of each family did. The published
//! patterns end with `\s+(?!\S)|\s+`; the look-ahead is done by hand here, which leaves plain regular
//! expressions and therefore linear time on any input.

use regex::Regex;

use super::super::vocab::VocabError;

/// `tokenizer.ggml.pre`, its pattern without the two last alternatives, and whether a newline can be part of
/// those. Only families proven linear and exact against the library's vectors.
const KNOWN: [(&str, &str, bool); 6] = [
    (
        "qwen35",
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+",
        false,
    ),
    (
        "qwen2",
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+",
        false,
    ),
    ("llama-bpe", LLAMA3, false),
    ("llama3", LLAMA3, false),
    ("llama-v3", LLAMA3, false),
    ("gpt-2", r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+", true),
];

const LLAMA3: &str =
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+";

/// Longer pieces are cut, for the merges of one piece take more than linear time. No writing has words this
/// long; what has is a wall of one character, or an attack.
pub(super) const PIECE_BYTES_MAX: usize = 2 << 10;

/// A pre-tokeniser.
#[derive(Debug)]
pub(super) struct Pieces {
    pattern: Regex,
    newline_in_space: bool,
    /// A piece that is a token as it is needs no merges.
    pub(super) whole_first: bool,
}

impl Pieces {
    /// By the name in the model file.
    pub(super) fn named(name: &str) -> Result<Pieces, VocabError> {
        let Some((_, pattern, newline_in_space)) = KNOWN.iter().find(|(known, ..)| *known == name) else {
            let known: Vec<&str> = KNOWN.iter().map(|k| k.0).collect();
            return Err(VocabError::Model(format!(
                "pre-tokeniser \"{name}\" is not one of {}: use the library backend for this model",
                known.join(", ")
            )));
        };
        let pattern = Regex::new(&format!(r"\A(?:{pattern}|\s+)")).map_err(|e| VocabError::Model(e.to_string()))?;
        Ok(Pieces { pattern, newline_in_space: *newline_in_space, whole_first: name.starts_with("llama") })
    }

    /// Length in bytes of the piece at the start of `text`, which is not empty.
    fn first(&self, text: &str) -> usize {
        let Some(found) = self.pattern.find(text) else {
            return text.chars().next().map_or(text.len(), char::len_utf8);
        };
        let mut chars = found.as_str().chars();
        let Some(last) = chars.next_back() else { return text.len() };
        let is_space = last.is_whitespace() && (self.newline_in_space || !matches!(last, '\r' | '\n'));
        // `\s+(?!\S)`: a run of spaces before a word leaves its last one to the word.
        match is_space && found.end() < text.len() && chars.next().is_some() {
            true => found.end() - last.len_utf8(),
            false => found.end(),
        }
    }

    /// Calls `each` with every piece in order; together they are `text`.
    pub(super) fn split<E>(&self, mut text: &str, mut each: impl FnMut(&str) -> Result<(), E>) -> Result<(), E> {
        while !text.is_empty() {
            let (mut piece, rest) = text.split_at(self.first(text));
            text = rest;
            while piece.len() > PIECE_BYTES_MAX {
                let (part, left) = piece.split_at(piece.floor_char_boundary(PIECE_BYTES_MAX));
                each(part)?;
                piece = left;
            }
            each(piece)?;
        }
        Ok(())
    }
}
