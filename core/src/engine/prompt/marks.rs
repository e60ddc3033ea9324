//! The special tokens of a vocabulary in texts: those of clients are broken by a mark, those of a template are read.

use std::collections::BTreeSet;

use aho_corasick::{AhoCorasick, MatchKind};
use serde_json::Value;

use super::{PromptError, Rendered};
use crate::engine::template::{CUT_MARK, MARK};
use crate::engine::thought::ThoughtMarks;
use crate::engine::vocab::{Strips, TokenKind, Vocab};
use crate::whole;

/// Stands where a reply goes on with the last message.
pub(super) const CUT: char = CUT_MARK;

/// Marks of ours, which are in no prompt.
const OWN: [char; 3] = [MARK, CUT, whole::MARK];

/// The special tokens of a vocabulary, to be found in text.
pub(super) struct Specials {
    ids: Vec<u32>,
    texts: Vec<String>,
    /// The longest at each place.
    longest: AhoCorasick,
    /// Every occurrence.
    all: AhoCorasick,
    /// First and last characters of the texts.
    borders: BTreeSet<char>,
    bytes_max: usize,
}

impl Specials {
    pub(super) fn of(vocab: &dyn Vocab) -> Result<Specials, PromptError> {
        // A mark cannot be put inside one character: such a token is never taken from a template's text.
        let usable = |text: &str| text.chars().count() > 1 && !text.contains(OWN);
        let (ids, texts): (Vec<u32>, Vec<String>) = vocab.specials().into_iter().filter(|(_, t)| usable(t)).unzip();
        let search = |kind| {
            let built = AhoCorasick::builder().match_kind(kind).build(&texts);
            built.map_err(|e| PromptError::Specials(e.to_string()))
        };
        Ok(Specials {
            longest: search(MatchKind::LeftmostLongest)?,
            all: search(MatchKind::Standard)?,
            borders: texts.iter().flat_map(|t| t.chars().next().into_iter().chain(t.chars().next_back())).collect(),
            bytes_max: texts.iter().map(String::len).max().unwrap_or(0),
            ids,
            texts,
        })
    }

    /// `text` in which no special token, nor a part of one at either end, is whole.
    pub(super) fn defuse(&self, text: &str) -> String {
        let text = text.replace(OWN, "");
        let mut marks: BTreeSet<usize> = BTreeSet::new();
        let behind_first = |at: usize| at + text[at..].chars().next().map_or(0, char::len_utf8);
        marks.extend(self.all.find_overlapping_iter(&text).map(|found| behind_first(found.start())));
        // What follows in the template might complete the beginning of a token, what precedes it an end.
        let tail = text.floor_char_boundary(text.len().saturating_sub(self.bytes_max));
        for (at, c) in text[tail..].char_indices().map(|(i, c)| (tail + i, c)) {
            if self.borders.contains(&c) && self.texts.iter().any(|t| t.starts_with(&text[at..])) {
                marks.insert(behind_first(at));
            }
        }
        let head = text.floor_char_boundary(text.len().min(self.bytes_max));
        for (at, c) in text[..head].char_indices() {
            if self.borders.contains(&c) && self.texts.iter().any(|t| t.ends_with(&text[..at + c.len_utf8()])) {
                marks.insert(at);
            }
        }
        let mut out = String::with_capacity(text.len() + marks.len() * MARK.len_utf8());
        let mut done = 0;
        for at in marks {
            out.push_str(&text[done..at]);
            out.push(MARK);
            done = at;
        }
        out.push_str(&text[done..]);
        out
    }

    /// A copy of `value` with every string and key defused.
    pub(super) fn defuse_all(&self, value: &Value) -> Value {
        match value {
            Value::String(text) if whole::digits(text).is_some() => value.clone(),
            Value::String(text) => Value::String(self.defuse(text)),
            Value::Array(items) => items.iter().map(|v| self.defuse_all(v)).collect(),
            Value::Object(map) => {
                Value::Object(map.iter().map(|(k, v)| (self.defuse(k), self.defuse_all(v))).collect())
            }
            other => other.clone(),
        }
    }

    /// Ids of a text in which unmarked special tokens are meant.
    pub(super) fn tokenise(&self, vocab: &dyn Vocab, text: &str) -> Result<Rendered, PromptError> {
        let thought = ThoughtMarks::of(vocab);
        let (open, close) = (thought.map(|marks| marks.open), thought.map(|marks| marks.close));
        let mut prompt = Rendered { text: text.replace(OWN, ""), ids: Vec::new(), thinking_open: false };
        let (mut at, mut before) = (0, Strips::default());
        for found in self.longest.find_iter(text) {
            let id = self.ids[found.pattern().as_usize()];
            let strips = vocab.strips(id);
            let between = between(&text[at..found.start()], before.behind, strips.before);
            vocab.encode(&between, false, &mut prompt.ids)?;
            prompt.ids.push(id);
            if Some(id) == open {
                prompt.thinking_open = true;
            } else if Some(id) == close || vocab.kind(id) == TokenKind::Control {
                prompt.thinking_open = false;
            }
            (at, before) = (found.end(), strips);
        }
        vocab.encode(&between(&text[at..], before.behind, false), false, &mut prompt.ids)?;
        Ok(prompt)
    }
}

/// The text between two special tokens, without its marks and without the white space that either takes away.
fn between(text: &str, behind_one: bool, before_one: bool) -> String {
    // What C calls white space.
    let space = |c: char| c.is_ascii_whitespace() || c == '\u{b}';
    let text = text.replace(OWN, "");
    let text = if behind_one { text.trim_start_matches(space) } else { &text };
    let text = if before_one { text.trim_end_matches(space) } else { text };
    text.to_owned()
}
