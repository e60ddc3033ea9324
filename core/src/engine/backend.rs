//! The trait that every model implementation offers to the step loop. Sequences are opened and closed. One `step`
//! feeds chunks of many sequences at once and returns the requested rows of logits. A backend knows tokens and
//! numbers only: no text, no sampling, no requests.

pub use chimere_ffi::kernels::sample::Largest;
use serde::{Deserialize, Serialize};

use super::adapter::Adapter;
use super::batch::CUT_TOKENS;

/// Handle of one open sequence (its KV cache and GDN state).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SeqId(pub u32);

/// Handle of one loaded adapter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct AdapterId(pub u32);

/// Which positions of a chunk give a row of logits.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Rows {
    /// No logits: prompt text that is followed by more.
    None,
    /// The last position only.
    Last,
    /// The last position, of which the largest logits and the weight of all at a temperature above 0 may be enough: they come
    /// as [`Output::likeliest`] where [`Backend::finds_likeliest`], else the whole row comes.
    Likeliest { temperature: f32 },
    /// Every position, in order.
    All,
}

/// Tokens to feed to one sequence in a step. A sequence appears at most once in a batch.
#[derive(Clone, Copy, Debug)]
pub struct Chunk<'a> {
    pub seq: SeqId,
    /// At least one id, each below the vocabulary size.
    pub tokens: &'a [u32],
    pub rows: Rows,
    /// Also return the trunk's hidden state (before the final norm) of the same positions as `rows`.
    pub hidden: bool,
}

/// Input of the multi-token-prediction layer: position t sees the trunk's hidden state h_t and the
/// embedding of token t+1, and predicts token t+2. It keeps a KV cache of its own in the sequence.
#[derive(Clone, Copy, Debug)]
pub struct DraftChunk<'a> {
    pub seq: SeqId,
    /// `tokens.len()` rows of `ModelInfo::width` values.
    pub hidden: &'a [f32],
    pub tokens: &'a [u32],
    pub rows: Rows,
}

/// What a step returned, rows in the order of the batch.
#[derive(Clone, Debug, Default)]
pub struct Output {
    /// Row-major, `ModelInfo::vocab` values a row.
    pub logits: Vec<f32>,
    /// Rows of which the largest logits were found, which are not among `logits`.
    pub likeliest: Vec<Largest>,
    /// Row-major, `ModelInfo::width` values a row, for the chunks that asked for it.
    pub hidden: Vec<f32>,
}

impl Output {
    /// Empties the rows, keeping the memory.
    pub fn clear(&mut self) {
        self.logits.clear();
        self.likeliest.clear();
        self.hidden.clear();
    }
}

/// What a sequence held at one length, in bytes that only the backend that wrote them can read.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Saved {
    /// Keys and values of 64 positions each, the last of as many as are left.
    pub blocks: Vec<Vec<u8>>,
    /// What the recurrent layers hold after the last of them.
    pub state: Vec<u8>,
}

/// Everything that a sequence held at one length, from its first position on.
#[derive(Clone, Debug, Default)]
pub struct Kept<'a> {
    pub tokens: usize,
    pub blocks: Vec<&'a [u8]>,
    pub state: &'a [u8],
}

/// Bytes of the parts of a [`Saved`], and when one can be taken. Where blocks have none, the state holds everything, and
/// its size grows with the sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SavedSize {
    pub block: usize,
    pub state: usize,
    /// A sequence can be saved when it holds a multiple of so many tokens, a divisor of 64: where a prompt can be cut
    /// without changing a bit of what follows.
    pub grid: usize,
}

/// Tokens that suit a step of a backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StepTokens {
    /// Where somebody waits for the next token of a reply.
    pub beside: usize,
    /// Of these, tokens of prompts for each reply but the first that waits, and at least one cut: the fewer wait, the less
    /// a prompt is worth holding them up. `None`: all of them.
    pub a_reply: Option<usize>,
    /// A prompt of which no more is left is short, and read as a whole: it holds the replies up once, in pieces as often as
    /// there are pieces. 0: none is.
    pub short: usize,
    /// Where nobody does, if that is more.
    pub alone: usize,
    /// Prompts are cut at multiples of so many positions, themselves a multiple of [`SavedSize::grid`].
    pub cut: usize,
}

/// How the tokens of one step are shared out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget {
    /// All of them.
    pub tokens: usize,
    /// Of these, tokens of replies and of prompts that are not short.
    pub long: usize,
    /// Most tokens of a short prompt.
    pub short: usize,
    /// Prompts are cut at multiples of so many positions.
    pub cut: usize,
}

impl StepTokens {
    /// Of a step in which so many replies wait for their next token and so many short prompts for their first one: where
    /// more wait for a first one than for a next, as many more tokens are worth it.
    pub fn budget(&self, replies: usize, short_prompts: usize) -> Budget {
        let StepTokens { short, cut, .. } = *self;
        let alone = self.beside.max(self.alone);
        if replies == 0 {
            return Budget { tokens: alone, long: alone, short, cut };
        }
        let long = match self.a_reply {
            Some(a_reply) => self.beside.min(a_reply.saturating_mul(replies - 1).max(cut) + replies),
            None => self.beside,
        };
        let tokens = self.beside.saturating_mul((short_prompts / replies).max(1)).min(alone);
        Budget { tokens, long, short, cut }
    }
}

/// Facts about a loaded model that the rest of the engine may rely on.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ModelInfo {
    /// `general.name`, or the file's stem.
    pub name: String,
    /// `general.architecture`.
    pub architecture: String,
    /// Which implementation runs it: `cpu`, `llama`, `cuda`.
    pub backend: String,
    /// Instruction set or device, for people.
    pub device: String,
    pub vocab: usize,
    pub width: usize,
    pub layers: usize,
    /// Positions that one sequence may hold.
    pub context_tokens: usize,
    /// Positions that the model was trained for.
    pub trained_context_tokens: usize,
    /// Sequences that can be open at once.
    pub sequences_max: usize,
    pub parameters: u64,
    /// Bytes of weights read for one token at batch 1.
    pub bytes_per_token: u64,
    /// A multi-token-prediction layer is present and `draft` works.
    pub mtp: bool,
    /// The model gives embeddings and cannot generate.
    pub embedding_only: bool,
}

#[derive(Debug, thiserror::Error)]
pub enum BackendError {
    #[error("all {0} sequences are in use: close one first")]
    NoSequence(usize),
    #[error("sequence {0} is not open")]
    UnknownSequence(u32),
    #[error("context is full: {held} tokens held and {fed} fed, but a sequence holds {capacity}")]
    ContextFull { held: usize, fed: usize, capacity: usize },
    #[error("token {token} is outside the vocabulary of {vocab}")]
    TokenRange { token: u32, vocab: usize },
    #[error("adapter {0} is not loaded")]
    UnknownAdapter(u32),
    #[error("sequence {0} holds tokens already: an adapter is chosen before the first")]
    TooLate(u32),
    #[error("{0} is not supported by this backend")]
    Unsupported(&'static str),
    #[error("cannot load the model: {0}")]
    Load(String),
    #[error("cannot load the adapter: {0}")]
    Adapter(String),
    #[error(
        "no room is left for the adapter: it takes {needed} bytes, and of {room} for all adapters {free} are free: drop one first"
    )]
    AdapterRoom { needed: usize, free: usize, room: usize },
    #[error("the compute step failed: {0}")]
    Compute(String),
    #[error("the device cannot be used: {0}")]
    Device(String),
    /// What the sequences held is lost, and every later step fails as well.
    #[error("the device was lost: {0}")]
    Lost(String),
}

/// Where the experts were that were used since the model was loaded: each once a layer and pass.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Offloaded {
    /// On the card.
    pub hits: u64,
    /// Brought to a slot.
    pub misses: u64,
    /// Read where they lie on the host, for want of a slot.
    pub direct: u64,
    /// Copied to slots.
    pub moved_bytes: u64,
}

/// A hosted model. Not `Sync`: one owner, the step loop.
pub trait Backend: Send {
    fn info(&self) -> &ModelInfo;

    /// Opens an empty sequence.
    fn open(&mut self) -> Result<SeqId, BackendError>;

    /// Closes a sequence and wipes its state; unknown handles are ignored.
    fn close(&mut self, seq: SeqId);

    /// Tokens held by a sequence (0 if unknown).
    fn held(&self, seq: SeqId) -> usize;

    /// Loads an adapter that was checked against this model's file.
    fn load_adapter(&mut self, _adapter: &Adapter) -> Result<AdapterId, BackendError> {
        Err(BackendError::Unsupported("an adapter"))
    }

    /// The same of one that is compared with others that hardly differ from it: nothing of it may be rounded.
    fn load_probe(&mut self, adapter: &Adapter) -> Result<AdapterId, BackendError> {
        self.load_adapter(adapter)
    }

    /// Forgets an adapter; sequences that are under it stay so until they are closed.
    fn drop_adapter(&mut self, _adapter: AdapterId) {}

    /// Puts a sequence that holds nothing yet under an adapter, until it is closed.
    fn adapt(&mut self, _seq: SeqId, _adapter: AdapterId) -> Result<(), BackendError> {
        Err(BackendError::Unsupported("an adapter"))
    }

    /// Says that an empty sequence, or one that something was restored to, will be fed a prompt up to position `end`, in
    /// whatever pieces: a backend may compute prompts another way than what is fed token by token.
    fn begin_prompt(&mut self, _seq: SeqId, _end: usize) {}

    /// What a sequence is fed again, after it was closed, in other pieces than at first, gives the same numbers: a reply may
    /// be suspended for another.
    fn replays(&self) -> bool {
        true
    }

    /// Feeds every chunk and fills `out` (cleared first). On an error that names a sequence nothing was fed.
    /// A row's numbers do not depend on which other chunks share the step, nor on the adapters of other sequences.
    fn step(&mut self, batch: &[Chunk<'_>], out: &mut Output) -> Result<(), BackendError>;

    /// The vector of a text, given by its ids: pooled as the file says, `ModelInfo::width` values. Nothing is kept of it.
    fn embed(&mut self, _ids: &[u32]) -> Result<Vec<f32>, BackendError> {
        Err(BackendError::Unsupported("an embedding"))
    }

    /// Whether it finds the largest logits of rows.
    fn finds_likeliest(&self) -> bool {
        false
    }

    /// All logits of the `n`th row of the last step whose largest were found.
    fn row(&mut self, _n: usize, _logits: &mut Vec<f32>) -> Result<(), BackendError> {
        Err(BackendError::Unsupported("a row of logits after its step"))
    }

    /// Tokens that one step should feed at most where nobody says otherwise.
    fn step_tokens(&self) -> StepTokens {
        StepTokens { beside: 256, a_reply: None, short: 0, alone: 0, cut: CUT_TOKENS }
    }

    /// What became of the experts beyond the device's memory; `None`: there are none.
    fn offloaded(&self) -> Option<Offloaded> {
        None
    }

    /// How much [`Backend::save`] would give; `None`: this backend saves nothing.
    fn saved_size(&self) -> Option<SavedSize> {
        None
    }

    /// Bytes of the state that [`Backend::save`] would give of this sequence now.
    fn state_bytes(&mut self, _seq: SeqId) -> usize {
        self.saved_size().map_or(0, |size| size.state)
    }

    /// Copies out what a sequence holds, of keys and values the positions from block `first` on. It holds a multiple of
    /// [`SavedSize::grid`] tokens, by the trunk alone.
    fn save(&mut self, _seq: SeqId, _first: usize) -> Result<Saved, BackendError> {
        Err(BackendError::Unsupported("saving a sequence"))
    }

    /// Lets an empty sequence hold what was saved of another one under the same adapter. What is fed after it gets the
    /// numbers that it would have got in the other.
    fn restore(&mut self, _seq: SeqId, _kept: &Kept<'_>) -> Result<(), BackendError> {
        Err(BackendError::Unsupported("restoring a sequence"))
    }

    /// Runs the multi-token-prediction layer.
    fn draft(&mut self, _batch: &[DraftChunk<'_>], _out: &mut Output) -> Result<(), BackendError> {
        Err(BackendError::Unsupported("multi-token prediction"))
    }
}

/// A backend all of whose sequences are under one adapter: for tools that know nothing of adapters.
pub struct Adapted {
    inner: Box<dyn Backend>,
    adapter: AdapterId,
}

impl Adapted {
    pub fn new(mut inner: Box<dyn Backend>, adapter: &Adapter) -> Result<Adapted, BackendError> {
        let adapter = inner.load_adapter(adapter)?;
        Ok(Adapted { inner, adapter })
    }
}

impl Backend for Adapted {
    fn info(&self) -> &ModelInfo {
        self.inner.info()
    }

    fn open(&mut self) -> Result<SeqId, BackendError> {
        let seq = self.inner.open()?;
        match self.inner.adapt(seq, self.adapter) {
            Ok(()) => Ok(seq),
            Err(error) => {
                self.inner.close(seq);
                Err(error)
            }
        }
    }

    fn close(&mut self, seq: SeqId) {
        self.inner.close(seq);
    }

    fn held(&self, seq: SeqId) -> usize {
        self.inner.held(seq)
    }

    fn load_adapter(&mut self, adapter: &Adapter) -> Result<AdapterId, BackendError> {
        self.inner.load_adapter(adapter)
    }

    fn drop_adapter(&mut self, adapter: AdapterId) {
        self.inner.drop_adapter(adapter);
    }

    fn adapt(&mut self, seq: SeqId, adapter: AdapterId) -> Result<(), BackendError> {
        self.inner.adapt(seq, adapter)
    }

    fn replays(&self) -> bool {
        self.inner.replays()
    }

    fn step(&mut self, batch: &[Chunk<'_>], out: &mut Output) -> Result<(), BackendError> {
        self.inner.step(batch, out)
    }

    fn draft(&mut self, batch: &[DraftChunk<'_>], out: &mut Output) -> Result<(), BackendError> {
        self.inner.draft(batch, out)
    }
}
