//! The library's vocabulary behind our trait.
//!
//! The library recognises user-defined tokens (`</think>`, `<tool_call>`) in any text, and joins the letters of a control
//! token where its vocabulary has the pairs. Text that somebody wrote must become neither. It is therefore read again in
//! parts where that happened, cut inside each such name.

use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::sync::Arc;

use aho_corasick::AhoCorasick;
use chimere_ffi::ggml::llama::{Model, TokenAttr, VocabKind};

use crate::engine::vocab::{Strips, TokenKind, Vocab, VocabError};

/// Bytes of one text.
const TEXT_BYTES_MAX: usize = 16 << 20;
/// Some of the library's expressions for byte-level vocabularies go one call deeper for each character of a word or of a
/// run of white space. Longer runs than this are cut there, so that no text can exhaust the stack.
const RUN_BYTES_MAX: usize = 2_048;
/// Runs up to this length are safe on any thread.
const RUN_BYTES_SAFE: usize = 256;
/// Stack of the thread that takes the longer ones.
const STACK_BYTES: usize = 64 << 20;
/// What a text is put behind so that it is read as the middle of one: letters that join with no others.
const LEADS: [&str; 3] = ["\u{1}", "\n", "."];

/// What letters become that a vocabulary does not have. They may come from any text, and steer nothing.
const UNKNOWN: [&str; 2] = ["[UNK]", "<unk>"];

/// Text to ids and back by the library.
#[derive(Debug)]
pub struct LlamaVocab {
    model: Arc<Model>,
    kind: VocabKind,
    specials: HashMap<String, u32>,
    /// Ids of `specials` that no text may become.
    special_ids: HashSet<u32>,
    /// Every occurrence of their names.
    finder: Option<AhoCorasick>,
    ends: Vec<u32>,
}

impl LlamaVocab {
    /// The vocabulary of `model`.
    pub fn new(model: Arc<Model>) -> LlamaVocab {
        let ids = 0..u32::try_from(model.tokens()).unwrap_or(0);
        let kind = model.vocab_kind();
        // Where a blank comes before every text, one comes behind each such token as well.
        let blanks = kind == VocabKind::Sentencepiece && puts_blanks(&model);
        let special = |id: u32| {
            let text = model.text(id)?;
            match model.attr(id)? {
                TokenAttr::Control => Some((text, id)),
                TokenAttr::UserDefined if blanks || !ordinary(&text) => Some((text, id)),
                _ => None,
            }
        };
        let specials: HashMap<String, u32> = ids.clone().filter_map(special).collect();
        let means_nothing = |name: &str| UNKNOWN.iter().any(|unknown| unknown.eq_ignore_ascii_case(name));
        let special_ids = specials.iter().filter(|(name, _)| !means_nothing(name)).map(|(_, id)| *id).collect();
        // A name of one character cannot be cut.
        let names = specials.keys().filter(|name| name.chars().count() > 1);
        let finder = AhoCorasick::new(names).ok();
        let ends = ids.filter(|id| model.ends_reply(*id)).collect();
        LlamaVocab { model, kind, specials, special_ids, finder, ends }
    }

    /// Ids of a text by the library alone, in parts where it could not bear the whole.
    fn whole(&self, text: &str, specials: bool) -> Result<Vec<u32>, VocabError> {
        let (pieces, longest) = match self.kind {
            VocabKind::Bpe => cut_runs(text, &if specials { self.names(text) } else { Vec::new() }),
            _ => (vec![text], 0),
        };
        let all = || -> Result<Vec<u32>, VocabError> {
            let found = pieces.iter().map(|piece| self.model.tokenize(piece, false, specials));
            let found: Result<Vec<_>, _> = found.collect();
            Ok(found.map_err(encode_error)?.concat())
        };
        if longest <= RUN_BYTES_SAFE {
            return all();
        }
        let deep = std::thread::Builder::new().name("tokenise".into()).stack_size(STACK_BYTES);
        std::thread::scope(|scope| {
            let thread = deep.spawn_scoped(scope, all);
            let thread = thread.map_err(|e| VocabError::Encode(format!("no thread: {e}")))?;
            thread.join().unwrap_or_else(|_| Err(VocabError::Encode("the tokeniser panicked".into())))
        })
    }

    /// Where names of special tokens stand in a text, those that overlap as one.
    fn names(&self, text: &str) -> Vec<Range<usize>> {
        let found = self.finder.iter().flat_map(|finder| finder.find_overlapping_iter(text));
        let mut found: Vec<Range<usize>> = found.map(|name| name.range()).collect();
        found.sort_unstable_by_key(|name| name.start);
        found.dedup_by(|next, last| {
            let one = next.start < last.end;
            last.end = if one { last.end.max(next.end) } else { last.end };
            one
        });
        found
    }

    /// Ids of a text that goes on from another, without the blank that SentencePiece puts before a text.
    fn further(&self, text: &str) -> Result<Vec<u32>, VocabError> {
        if self.kind != VocabKind::Sentencepiece || text.is_empty() {
            return self.whole(text, false);
        }
        for lead in LEADS {
            let (Ok(before), Ok(mut ids)) = (self.whole(lead, false), self.whole(&format!("{lead}{text}"), false))
            else {
                continue;
            };
            if ids.starts_with(&before) && ids.len() > before.len() {
                return Ok(ids.split_off(before.len()));
            }
        }
        Err(VocabError::Encode("this vocabulary cannot read the middle of a text".to_owned()))
    }

    /// Ids of a text that somebody wrote, none of them special. `begins`: it is the beginning of a text.
    fn plain(&self, text: &str, begins: bool) -> Result<Vec<u32>, VocabError> {
        let read = |part: &str, begins| if begins { self.whole(part, false) } else { self.further(part) };
        let special = |ids: &[u32]| ids.iter().any(|id| self.special_ids.contains(id));
        let ids = read(text, begins)?;
        if !special(&ids) {
            return Ok(ids);
        }
        let mut ids = Vec::new();
        for (n, part) in self.cut_names(text).into_iter().enumerate() {
            ids.extend(read(part, begins && n == 0)?);
        }
        match special(&ids) {
            false => Ok(ids),
            true => Err(VocabError::Encode("it becomes a control token whichever way it is read".to_owned())),
        }
    }

    /// Cuts a text behind the first character of every name of a special token in it.
    fn cut_names<'a>(&self, text: &'a str) -> Vec<&'a str> {
        let behind_first = |at: usize| at + text[at..].chars().next().map_or(0, char::len_utf8);
        let found = self.finder.iter().flat_map(|finder| finder.find_overlapping_iter(text));
        let mut cuts: Vec<usize> = found.map(|name| behind_first(name.start())).collect();
        cuts.sort_unstable();
        cuts.dedup();
        let from = [0].into_iter().chain(cuts.iter().copied());
        let to = cuts.iter().copied().chain([text.len()]);
        from.zip(to).map(|(from, to)| &text[from..to]).collect()
    }
}

/// A user-defined token that stands for text: runs of blanks and new lines, and single letters.
fn ordinary(text: &str) -> bool {
    text.chars().count() == 1 || text.chars().all(|c| c.is_whitespace() || c == '\u{2581}')
}

/// Whether a text begins with a blank that nobody wrote.
fn puts_blanks(model: &Model) -> bool {
    let first = model.tokenize("a", false, false).ok().and_then(|ids| ids.first().copied());
    first.is_some_and(|id| model.piece(id, false).is_ok_and(|piece| piece.starts_with(b" ")))
}

fn encode_error(error: chimere_ffi::ggml::llama::LlamaError) -> VocabError {
    VocabError::Encode(error.to_string())
}

fn bounded(text: &str) -> Result<(), VocabError> {
    match text.len() > TEXT_BYTES_MAX {
        true => Err(VocabError::TooLong { bytes: text.len(), limit: TEXT_BYTES_MAX }),
        false => Ok(()),
    }
}

/// Cuts `text` inside runs (of white space, or of anything else) longer than `RUN_BYTES_MAX`, but not inside `names`,
/// which are in order; also returns the longest run left.
fn cut_runs<'a>(text: &'a str, names: &[Range<usize>]) -> (Vec<&'a str>, usize) {
    let mut pieces = Vec::new();
    let (mut start, mut run, mut longest) = (0, 0, 0);
    let mut in_space = None;
    for (at, c) in text.char_indices() {
        if in_space != Some(c.is_whitespace()) {
            (in_space, run) = (Some(c.is_whitespace()), 0);
        } else if run + c.len_utf8() > RUN_BYTES_MAX {
            let name =
                names.get(names.partition_point(|name| name.end <= at)).filter(|name| name.len() <= RUN_BYTES_MAX);
            let cut = name.map_or(at, |name| name.start.min(at));
            if cut > start {
                pieces.push(&text[start..cut]);
                (start, run) = (cut, at - cut);
            }
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
        bounded(text)?;
        ids.extend(if specials { self.whole(text, true)? } else { self.plain(text, true)? });
        Ok(())
    }

    fn encode_further(&self, text: &str, ids: &mut Vec<u32>) -> Result<(), VocabError> {
        bounded(text)?;
        ids.extend(self.plain(text, false)?);
        Ok(())
    }

    fn strips(&self, id: u32) -> Strips {
        let (before, behind) = self.model.strips(id);
        Strips { before, behind }
    }

    /// Told by the library: what it puts around a letter.
    fn marks(&self) -> Result<(Vec<u32>, Vec<u32>), VocabError> {
        let ids = |marked| self.model.tokenize("a", marked, false).map_err(encode_error);
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
            Some(TokenAttr::UserDefined) if self.model.text(id).is_some_and(|text| ordinary(&text)) => {
                TokenKind::Normal
            }
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
        self.model.chat_template(None)
    }

    fn tool_template(&self) -> Option<String> {
        self.model.chat_template(Some(c"tool_use"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_long_runs_are_cut_and_nothing_is_lost() {
        let words = "a few words  and\n\nspaces ".repeat(500);
        assert_eq!(cut_runs(&words, &[]).0, [words.as_str()]);
        for text in ["a".repeat(10_000), " ".repeat(10_000), "é漢".repeat(3_000), format!("x {}", "y".repeat(2_049))]
        {
            let (pieces, longest) = cut_runs(&text, &[]);
            assert_eq!(pieces.concat(), text);
            assert!(pieces.len() > 1 && longest <= RUN_BYTES_MAX);
        }
        assert_eq!(cut_runs("", &[]).0, [""]);
        // No cut within a name.
        let named = "a".repeat(2_040) + "<|im_end|>" + &"b".repeat(2_100);
        let name = 2_040..2_050;
        let (pieces, longest) = cut_runs(&named, std::slice::from_ref(&name));
        assert_eq!(pieces, ["a".repeat(2_040), "<|im_end|>".to_owned() + &"b".repeat(2_038), "b".repeat(62)]);
        assert!(longest <= RUN_BYTES_MAX);
    }
}
