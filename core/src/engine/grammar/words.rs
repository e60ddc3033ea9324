//! A model's vocabulary as the grammar library wants it: a tree of all tokens by their bytes. Special tokens are no
//! text: no string of an answer can hold one.

use std::sync::Arc;

use llguidance::earley::SlicedBiasComputer;
use llguidance::toktrie::{InferenceCapabilities, TokEnv, TokRxInfo, TokTrie, TokenId, TokenizerEnv};
use llguidance::{ParserFactory, api::ParserLimits};

use super::GrammarError;
use crate::engine::vocab::{TokenKind, Vocab};

/// Longer tokens are never allowed in a form: the tree is not made for them.
const TOKEN_BYTES_MAX: usize = 512;
/// Bytes of all tokens together that the tree holds.
const WORDS_BYTES_MAX: usize = 4 << 20;
/// States of a grammar's lexer: 1 to 2 KiB each.
const LEXER_STATES_MAX: usize = 32_000;

struct Words {
    vocab: Arc<dyn Vocab>,
    trie: TokTrie,
}

impl TokenizerEnv for Words {
    fn tok_trie(&self) -> &TokTrie {
        &self.trie
    }

    fn tokenize_bytes(&self, text: &[u8]) -> Vec<TokenId> {
        let encode = |text: &str| {
            let mut ids = Vec::new();
            match self.vocab.encode_further(text, &mut ids) {
                Ok(()) => ids,
                Err(_) => self.trie.greedy_tokenize(text.as_bytes()),
            }
        };
        self.trie.tokenize_with_greedy_fallback(text, encode)
    }
}

/// What grammars are compiled with.
pub(super) fn factory(vocab: Arc<dyn Vocab>) -> Result<ParserFactory, GrammarError> {
    let wrong = |message: String| GrammarError::Vocabulary(super::shortened(&message));
    let Some(&end) = vocab.ends().first() else { return Err(wrong("it has no token that ends a reply".to_owned())) };
    let words: Vec<Vec<u8>> = (0..vocab.len() as u32).map(|id| word(vocab.as_ref(), id)).collect();
    let bytes: usize = words.iter().map(Vec::len).sum();
    if bytes > WORDS_BYTES_MAX {
        return Err(wrong(format!("its tokens have {bytes} bytes, over the limit of {WORDS_BYTES_MAX}")));
    }
    let trie = TokTrie::from(&TokRxInfo::new(words.len() as u32, end), &words).with_eos_tokens(vocab.ends());
    make(Arc::new(Words { vocab, trie })).map_err(wrong)
}

/// With one token a byte: for examining schemas without a model.
pub(super) fn plain_factory() -> Result<ParserFactory, GrammarError> {
    make(llguidance::toktrie::ApproximateTokEnv::single_byte_env()).map_err(GrammarError::Vocabulary)
}

fn make(env: TokEnv) -> Result<ParserFactory, String> {
    let slices = SlicedBiasComputer::general_slices();
    let mut factory = ParserFactory::new(&env, InferenceCapabilities::default(), &slices).map_err(|e| e.to_string())?;
    factory.quiet();
    *factory.limits_mut() =
        ParserLimits { max_lexer_states: LEXER_STATES_MAX, verbose_errors: false, ..ParserLimits::default() };
    Ok(factory)
}

/// The bytes of a token in the tree; none: never allowed.
fn word(vocab: &dyn Vocab, id: u32) -> Vec<u8> {
    let special = |name: String| [&[TokTrie::SPECIAL_TOKEN_MARKER], name.as_bytes()].concat();
    let word = match vocab.kind(id) {
        TokenKind::Normal => vocab.bytes(id),
        TokenKind::Control | TokenKind::UserDefined => special(vocab.name(id)),
        TokenKind::Unused => Vec::new(),
    };
    if word.len() > TOKEN_BYTES_MAX { Vec::new() } else { word }
}
