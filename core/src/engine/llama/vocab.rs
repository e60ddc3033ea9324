//! The library's vocabulary behind our trait.

use std::collections::HashMap;
use std::sync::Arc;

use chimere_ffi::ggml::llama::{Model, TokenAttr};

use crate::engine::vocab::{TokenKind, Vocab, VocabError};

/// Bytes of one text.
const TEXT_BYTES_MAX: usize = 16 << 20;
/// Some of the library's pre-tokenisers go one call deeper for each character of a word or of a run
/// of white space. Longer runs than this are cut, so that no text can exhaust the stack.
const RUN_BYTES_MAX: usize = 2_048;
/// Runs up to this length are safe on any thread.
const RUN_BYTES_SAFE: usize = 256;
/// Stack of the thread that takes the longer ones.
const STACK_BYTES: usize = 64 << 20;

/// Text to ids and back by the library.
#[derive(Debug)]
pub struct LlamaVocab {
    model: Arc<Model>,
    specials: HashMap<String, u32>,
    ends: Vec<u32>,
}

impl LlamaVocab {
    /// The vocabulary of `model`.
    pub fn new(model: Arc<Model>) -> LlamaVocab {
        let ids = 0..u32::try_from(model.tokens()).unwrap_or(0);
        let special = |id: &u32| matches!(model.attr(*id), Some(TokenAttr::Control | TokenAttr::UserDefined));
        let specials = ids.clone().filter(special).filter_map(|id| Some((model.text(id)?, id))).collect();
        let ends = ids.filter(|id| model.ends_reply(*id)).collect();
        LlamaVocab { model, specials, ends }
    }

    fn encode_pieces(&self, pieces: &[&str], specials: bool) -> Result<Vec<u32>, VocabError> {
        let mut ids = Vec::new();
        for piece in pieces {
            let found = self.model.tokenize(piece, false, specials);
            ids.extend(found.map_err(|e| VocabError::Encode(e.to_string()))?);
        }
        Ok(ids)
    }
}

/// Cuts `text` inside runs (of white space, or of anything else) longer than `RUN_BYTES_MAX`;
/// also returns the longest run left.
fn cut_runs(text: &str) -> (Vec<&str>, usize) {
    let mut pieces = Vec::new();
    let (mut start, mut run, mut longest) = (0, 0, 0);
    let mut in_space = None;
    for (at, c) in text.char_indices() {
        if in_space != Some(c.is_whitespace()) {
            (in_space, run) = (Some(c.is_whitespace()), 0);
        } else if run + c.len_utf8() > RUN_BYTES_MAX {
            pieces.push(&text[start..at]);
            (start, run) = (at, 0);
        }
        run += c.len_utf8();
        longest = longest.max(run);
    }
    pieces.push(&text[start..]);
    (pieces, longest)
}

impl Vocab for LlamaVocab {
    fn len(&self) -> usize {
        self.model.tokens()
    }

    fn encode(&self, text: &str, specials: bool, ids: &mut Vec<u32>) -> Result<(), VocabError> {
        if text.len() > TEXT_BYTES_MAX {
            return Err(VocabError::TooLong { bytes: text.len(), limit: TEXT_BYTES_MAX });
        }
        let (pieces, longest) = cut_runs(text);
        if longest <= RUN_BYTES_SAFE {
            ids.extend(self.encode_pieces(&pieces, specials)?);
            return Ok(());
        }
        let deep = std::thread::Builder::new().name("tokenise".into()).stack_size(STACK_BYTES);
        let found = std::thread::scope(|scope| {
            let thread = deep.spawn_scoped(scope, || self.encode_pieces(&pieces, specials));
            let thread = thread.map_err(|e| VocabError::Encode(format!("no thread: {e}")))?;
            thread.join().unwrap_or_else(|_| Err(VocabError::Encode("the tokeniser panicked".into())))
        });
        ids.extend(found?);
        Ok(())
    }

    /// Told by the library: what it puts around a letter.
    fn marks(&self) -> Result<(Vec<u32>, Vec<u32>), VocabError> {
        let ids = |marked| self.model.tokenize("a", marked, false).map_err(|e| VocabError::Encode(e.to_string()));
        let (plain, marked) = (ids(false)?, ids(true)?);
        let at = (!plain.is_empty()).then(|| marked.windows(plain.len()).position(|part| part == plain)).flatten();
        let at = at.ok_or_else(|| VocabError::Model("what stands around a text cannot be told".to_owned()))?;
        Ok((marked[..at].to_vec(), marked[at + plain.len()..].to_vec()))
    }

    fn bytes(&self, id: u32) -> Vec<u8> {
        self.model.piece(id, false).unwrap_or_default()
    }

    fn name(&self, id: u32) -> String {
        String::from_utf8_lossy(&self.model.piece(id, true).unwrap_or_default()).into_owned()
    }

    fn kind(&self, id: u32) -> TokenKind {
        match self.model.attr(id) {
            Some(TokenAttr::Normal | TokenAttr::Byte) => TokenKind::Normal,
            Some(TokenAttr::Control | TokenAttr::Unknown) => TokenKind::Control,
            Some(TokenAttr::UserDefined) => TokenKind::UserDefined,
            Some(TokenAttr::Unused) | None => TokenKind::Unused,
        }
    }

    fn special(&self, text: &str) -> Option<u32> {
        self.specials.get(text).copied()
    }

    fn specials(&self) -> Vec<(u32, String)> {
        let mut all: Vec<_> = self.specials.iter().map(|(text, id)| (*id, text.clone())).collect();
        all.sort_unstable();
        all
    }

    fn ends(&self) -> &[u32] {
        &self.ends
    }

    fn bos(&self) -> Option<u32> {
        self.model.bos().filter(|_| self.model.adds_bos())
    }

    fn begin(&self) -> Option<u32> {
        self.model.bos()
    }

    fn end(&self) -> Option<u32> {
        self.model.eos().or(self.ends.first().copied())
    }

    fn template(&self) -> Option<String> {
        self.model.chat_template()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_long_runs_are_cut_and_nothing_is_lost() {
        let words = "a few words  and\n\nspaces ".repeat(500);
        assert_eq!(cut_runs(&words).0, [words.as_str()]);
        for text in ["a".repeat(10_000), " ".repeat(10_000), "é漢".repeat(3_000), format!("x {}", "y".repeat(2_049))]
        {
            let (pieces, longest) = cut_runs(&text);
            assert_eq!(pieces.concat(), text);
            assert!(pieces.len() > 1 && longest <= RUN_BYTES_MAX);
        }
        assert_eq!(cut_runs("").0, [""]);
    }
}
