//! What the engine asks of a vocabulary. Two implement it: our own BPE, read from the GGUF, and the library's for the
//! other architectures.

use sha2::{Digest, Sha256};

/// Key of the template that some files bring for conversations with tools.
pub const TOOL_TEMPLATE: &str = "tokenizer.chat_template.tool_use";

/// Role of a token in the vocabulary (GGUF `tokenizer.ggml.token_type`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenKind {
    Normal,
    /// Never produced from user text and never shown: `<|im_start|>` …
    Control,
    /// Special, but shown as text: `<think>`, `<tool_call>` …
    UserDefined,
    Unused,
}

/// White space beside a special token that is no part of the text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Strips {
    pub before: bool,
    pub behind: bool,
}

#[derive(Debug, thiserror::Error)]
pub enum VocabError {
    #[error("tokenizer of the model file: {0}")]
    Model(String),
    #[error("text of {bytes} bytes is over the limit of {limit} bytes")]
    TooLong { bytes: usize, limit: usize },
    #[error("cannot tokenise the text: {0}")]
    Encode(String),
}

/// What tells one tokenizer from another: SHA-256 over every token's kind and bytes (its name, where it has no bytes).
/// Things made of token ids (Engram tables) carry it, and are refused by a model with another one.
pub fn fingerprint(vocab: &dyn Vocab) -> [u8; 32] {
    let mut hash = Sha256::new();
    hash.update((vocab.len() as u64).to_le_bytes());
    for id in 0..vocab.len() as u32 {
        let bytes = vocab.bytes(id);
        let bytes = if bytes.is_empty() { vocab.name(id).into_bytes() } else { bytes };
        hash.update([vocab.kind(id) as u8]);
        hash.update((bytes.len() as u32).to_le_bytes());
        hash.update(&bytes);
    }
    hash.finalize().into()
}

/// Text to ids and back.
pub trait Vocab: Send + Sync {
    fn len(&self) -> usize;

    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Appends the ids of `text`. Special tokens are recognised in the text only if `specials` is true:
    /// false for anything that a user, a file or a tool wrote.
    fn encode(&self, text: &str, specials: bool, ids: &mut Vec<u32>) -> Result<(), VocabError>;

    /// As [`Vocab::encode`] without special tokens, for text that goes on from other text: some vocabularies put a blank
    /// before the beginning of a text.
    fn encode_further(&self, text: &str, ids: &mut Vec<u32>) -> Result<(), VocabError> {
        self.encode(text, false, ids)
    }

    /// White space that a special token takes away beside it where a template wrote it.
    fn strips(&self, _id: u32) -> Strips {
        Strips::default()
    }

    /// The ids that the file wants before and behind a text that is read by itself, as embedding models do.
    fn marks(&self) -> Result<(Vec<u32>, Vec<u32>), VocabError> {
        Ok((self.bos().into_iter().collect(), Vec::new()))
    }

    /// The bytes that a token stands for; empty for control tokens and unknown ids. May split UTF-8.
    fn bytes(&self, id: u32) -> Vec<u8>;

    /// The token's own name, control tokens included, for logprobs and debugging.
    fn name(&self, id: u32) -> String;

    fn kind(&self, id: u32) -> TokenKind;

    /// Id of a special token by its exact text.
    fn special(&self, text: &str) -> Option<u32>;

    /// Every special token (control and user-defined) with its text.
    fn specials(&self) -> Vec<(u32, String)>;

    /// Ids that end a reply (eos, eot and their like).
    fn ends(&self) -> &[u32];

    /// Id put before every prompt, where the file asks for one.
    fn bos(&self) -> Option<u32>;

    /// The token that begins a text, put before prompts or not: what templates call `bos_token`.
    fn begin(&self) -> Option<u32> {
        self.bos()
    }

    /// The token that ends a text, by the file: what templates call `eos_token`.
    fn end(&self) -> Option<u32> {
        self.ends().first().copied()
    }

    /// The chat template of the file.
    fn template(&self) -> Option<String>;

    /// The file's other template, for conversations with tools.
    fn tool_template(&self) -> Option<String> {
        None
    }
}
