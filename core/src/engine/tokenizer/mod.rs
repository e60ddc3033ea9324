//! Byte-level BPE read from a model file: text to ids and back, in linear time on any input. Text becomes ordinary
//! tokens only, by construction. Special tokens are not in the table that merges use. They are recognised in a text
//! only where the caller asks for it.

mod alphabet;
mod load;
mod pieces;
#[cfg(test)]
pub(crate) mod tests;

use aho_corasick::{AhoCorasick, MatchKind};
use tokenizers::Model;
use tokenizers::models::bpe::{self, BPE};

use super::vocab::{TokenKind, Vocab, VocabError};
use crate::gguf::Gguf;
use alphabet::Alphabet;
use load::Loaded;
use pieces::Pieces;

/// Largest text of one call, bytes.
pub const TEXT_BYTES_MAX: usize = 32 << 20;
/// Pieces remembered with their ids, a thread.
const CACHED_PIECES_MAX: usize = 1 << 14;

/// A byte-level BPE vocabulary.
pub struct Bpe {
    merges: BPE,
    pieces: Pieces,
    alphabet: Alphabet,
    kinds: Vec<TokenKind>,
    /// Bytes of all tokens, one after the other; a control token has those of its name.
    bytes: Vec<u8>,
    /// Where each token ends in `bytes`.
    ends_at: Vec<u32>,
    specials: Vec<(u32, String)>,
    /// Finds `specials`, the longest first.
    finder: AhoCorasick,
    ends: Vec<u32>,
    bos: Option<u32>,
    begin: Option<u32>,
    template: Option<String>,
    tool_template: Option<String>,
}

impl Bpe {
    /// Reads the vocabulary of `gguf`. An error names what this implementation does not handle; the library
    /// backend may.
    pub fn from_gguf(gguf: &Gguf) -> Result<Bpe, VocabError> {
        let loaded = Loaded::from_gguf(gguf)?;
        let pieces = Pieces::named(&loaded.pre)?;
        let alphabet = Alphabet::new();
        let plain: bpe::Vocab = loaded.plain().into_iter().map(|(text, id)| (text.to_owned(), id)).collect();
        let Loaded { texts, kinds, merges, ends, bos, begin, template, tool_template, .. } = loaded;
        let merges = BPE::builder()
            .vocab_and_merges(plain, merges)
            .ignore_merges(pieces.whole_first)
            .cache_capacity(CACHED_PIECES_MAX)
            .build()
            .map_err(|e| VocabError::Model(e.to_string()))?;
        let (mut bytes, mut ends_at) = (Vec::new(), Vec::with_capacity(texts.len()));
        for (text, kind) in texts.iter().zip(&kinds) {
            match alphabet.read(text).filter(|_| *kind == TokenKind::Normal) {
                Some(own) => bytes.extend(own),
                None => bytes.extend(text.as_bytes()),
            }
            ends_at.push(u32::try_from(bytes.len()).map_err(|_| VocabError::Model("4 GiB of tokens".into()))?);
        }
        let special = |k: &TokenKind| matches!(k, TokenKind::Control | TokenKind::UserDefined);
        let specials: Vec<(u32, String)> = (0u32..)
            .zip(texts.into_iter().zip(&kinds))
            .filter(|(_, (text, kind))| special(kind) && !text.is_empty())
            .map(|(id, (text, _))| (id, text))
            .collect();
        let finder = AhoCorasick::builder()
            .match_kind(MatchKind::LeftmostLongest)
            .build(specials.iter().map(|(_, text)| text))
            .map_err(|e| VocabError::Model(e.to_string()))?;
        Ok(Bpe {
            merges,
            pieces,
            alphabet,
            kinds,
            bytes,
            ends_at,
            specials,
            finder,
            ends,
            bos,
            begin,
            template,
            tool_template,
        })
    }

    fn raw(&self, id: u32) -> &[u8] {
        let Some(&end) = self.ends_at.get(id as usize) else { return &[] };
        let start = (id as usize).checked_sub(1).map_or(0, |before| self.ends_at[before]);
        &self.bytes[start as usize..end as usize]
    }

    /// Appends the ids of a text in which nothing is special.
    fn encode_plain(&self, text: &str, ids: &mut Vec<u32>) -> Result<(), VocabError> {
        let mut written = String::new();
        self.pieces.split(text, |piece| {
            written.clear();
            self.alphabet.write(piece.as_bytes(), &mut written);
            let tokens = self.merges.tokenize(&written).map_err(|e| VocabError::Encode(e.to_string()))?;
            ids.extend(tokens.iter().map(|t| t.id));
            Ok(())
        })
    }
}

impl Vocab for Bpe {
    fn len(&self) -> usize {
        self.kinds.len()
    }

    fn encode(&self, text: &str, specials: bool, ids: &mut Vec<u32>) -> Result<(), VocabError> {
        if text.len() > TEXT_BYTES_MAX {
            return Err(VocabError::TooLong { bytes: text.len(), limit: TEXT_BYTES_MAX });
        }
        if !specials {
            return self.encode_plain(text, ids);
        }
        let mut at = 0;
        for found in self.finder.find_iter(text) {
            self.encode_plain(&text[at..found.start()], ids)?;
            ids.push(self.specials[found.pattern().as_usize()].0);
            at = found.end();
        }
        self.encode_plain(&text[at..], ids)
    }

    fn bytes(&self, id: u32) -> Vec<u8> {
        match self.kind(id) {
            TokenKind::Control => Vec::new(),
            _ => self.raw(id).to_vec(),
        }
    }

    fn name(&self, id: u32) -> String {
        String::from_utf8_lossy(self.raw(id)).into_owned()
    }

    fn kind(&self, id: u32) -> TokenKind {
        self.kinds.get(id as usize).copied().unwrap_or(TokenKind::Unused)
    }

    fn special(&self, text: &str) -> Option<u32> {
        self.specials.iter().find(|(_, t)| t == text).map(|(id, _)| *id)
    }

    fn specials(&self) -> Vec<(u32, String)> {
        self.specials.clone()
    }

    fn ends(&self) -> &[u32] {
        &self.ends
    }

    fn bos(&self) -> Option<u32> {
        self.bos
    }

    fn begin(&self) -> Option<u32> {
        self.begin
    }

    fn template(&self) -> Option<String> {
        self.template.clone()
    }

    fn tool_template(&self) -> Option<String> {
        self.tool_template.clone()
    }
}
