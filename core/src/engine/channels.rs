//! The tokens of replies that come in channels, as gpt-oss writes them: each message has a header that says where it
//! belongs. A thought is a message, and so is the answer behind it.

use super::vocab::{Vocab, VocabError};

/// The tokens that make messages.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Channels {
    pub(super) start: u32,
    pub(super) channel: u32,
    pub(super) message: u32,
    pub(super) end: u32,
}

impl Channels {
    /// `None`: the vocabulary has no such tokens.
    pub(super) fn of(vocab: &dyn Vocab) -> Option<Channels> {
        Some(Channels {
            start: vocab.special("<|start|>")?,
            channel: vocab.special("<|channel|>")?,
            message: vocab.special("<|message|>")?,
            end: vocab.special("<|end|>")?,
        })
    }

    /// The header of a message on the channel `name`, from the mark of a channel on.
    pub(super) fn header(self, vocab: &dyn Vocab, name: &str) -> Result<Vec<u32>, VocabError> {
        let mut ids = vec![self.channel];
        vocab.encode_further(name, &mut ids)?;
        ids.push(self.message);
        Ok(ids)
    }

    /// What begins a further message of the model.
    pub(super) fn turn(self, vocab: &dyn Vocab) -> Result<Vec<u32>, VocabError> {
        let mut ids = vec![self.start];
        vocab.encode_further("assistant", &mut ids)?;
        Ok(ids)
    }

    /// What a prompt leaves open: the part behind the last mark of a message, with that mark.
    pub(super) fn open(self, prompt: &[u32]) -> Option<&[u32]> {
        let Channels { start, message, end, .. } = self;
        prompt.iter().rposition(|id| [start, message, end].contains(id)).map(|at| &prompt[at..])
    }
}
