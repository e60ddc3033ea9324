//! The libllama backend: every architecture that has no native path, and the peer that ours is compared with. It owns
//! the library's contexts and keeps count of what each sequence holds.
//!
//! It cannot give one promise of a native backend. A reply's last bits may depend on the other replies of its step and
//! on the number of threads. The library picks kernels by both. A prompt's numbers depend on no neighbour: it is fed by
//! itself, in multiples of 64 tokens and a rest. So a prompt that begins with what was kept of another one gets the
//! numbers that it would have had without.

mod crew;
mod embed;
mod facts;
mod open;
mod plan;
mod vocab;

use std::sync::Arc;
use std::time::Instant;

use chimere_ffi::ggml::llama::{self, Batch, Context, ContextOptions, Hidden, Level, LlamaError, Model};
use chimere_ffi::limits::cpu_time;

use super::adapter::Adapter;
use super::backend::{
    AdapterId, Backend, BackendError, Chunk, DraftChunk, Kept, ModelInfo, Output, Rows, Saved, SavedSize, SeqId,
};
use super::batch::CUT_TOKENS;
use super::embedder::Pooling;
use crew::Crew;

pub use open::{examine, load, load_planned, vocab};
pub use plan::Plan;
pub use vocab::LlamaVocab;

/// Tokens that one call of the library takes at most; a longer step becomes several calls.
const CALL_TOKENS_MAX: usize = 512;
/// Bytes of logits that one call may produce: the library keeps a buffer of the largest.
const CALL_LOGIT_BYTES_MAX: usize = 128 << 20;

/// How to host a model by the library.
#[derive(Clone, Copy, Debug)]
pub struct LlamaOptions {
    pub threads: usize,
    /// Positions that each sequence may hold; 0 = as many as the model was trained for.
    pub context_tokens: usize,
    /// Sequences open at once.
    pub sequences_max: usize,
    /// Numbers before speed: keys and values in f32, no rearranged weights.
    pub exact: bool,
}

impl Default for LlamaOptions {
    fn default() -> LlamaOptions {
        LlamaOptions { threads: 1, context_tokens: 4_096, sequences_max: 1, exact: false }
    }
}

/// What a sequence holds.
#[derive(Clone, Debug, Default)]
struct Held {
    open: bool,
    /// Tokens in the trunk's cache.
    tokens: usize,
    /// Tokens in the multi-token-prediction layer's cache.
    drafted: usize,
    /// Where its prompt ends.
    prompt: usize,
    /// A failed step left the state between two tokens and it could not be taken back.
    broken: bool,
    adapter: Option<Arc<llama::Adapter>>,
}

/// A model hosted by libllama.
#[derive(Debug)]
pub struct Llama {
    trunk: Context,
    /// Runs the multi-token-prediction layer; made when hidden states are first asked for.
    draft: Option<Context>,
    info: ModelInfo,
    /// Of an embedding model: how its vectors are pooled, or why it gives none.
    pooling: Option<Result<Pooling, String>>,
    held: Vec<Held>,
    adapters: Vec<(AdapterId, Arc<llama::Adapter>)>,
    next_adapter: u32,
    batch: Batch,
    crew: Crew,
}

fn log_line(level: Level, line: &str) {
    match level {
        Level::Error => tracing::error!(target: "llama", "{line}"),
        Level::Warn => tracing::warn!(target: "llama", "{line}"),
        _ => tracing::debug!(target: "llama", "{line}"),
    }
}

fn compute(error: LlamaError) -> BackendError {
    BackendError::Compute(error.to_string())
}

/// One token of a step, flattened from its chunk.
#[derive(Clone, Copy)]
struct Fed<'a> {
    seq: SeqId,
    token: u32,
    /// The hidden state that goes with it (drafts only).
    hidden: &'a [f32],
    position: usize,
    /// Its row of logits was asked for.
    wanted: bool,
    /// Its hidden state was asked for (only with `wanted`).
    wants_hidden: bool,
    /// What is fed by itself: a part of a prompt. 0: goes with its neighbours.
    part: usize,
}

fn wants(rows: Rows, at: usize, len: usize) -> bool {
    match rows {
        Rows::None => false,
        Rows::Last | Rows::Likeliest { .. } => at + 1 == len,
        Rows::All => true,
    }
}

/// Tokens of a chunk from `from` to `to` up to its last multiple of 64; `None` where it is not a part of the prompt.
fn whole_cuts(from: usize, to: usize, prompt: usize) -> Option<usize> {
    let whole = (to / CUT_TOKENS * CUT_TOKENS).saturating_sub(from);
    (to <= prompt && from.is_multiple_of(CUT_TOKENS)).then_some(whole)
}

fn same(a: &Option<Arc<llama::Adapter>>, b: &Option<Arc<llama::Adapter>>) -> bool {
    match (a, b) {
        (Some(a), Some(b)) => Arc::ptr_eq(a, b),
        (a, b) => a.is_none() && b.is_none(),
    }
}

impl Llama {
    /// The model, for callers that need its vocabulary.
    pub fn model(&self) -> &Arc<Model> {
        self.trunk.model()
    }

    /// Makes the contexts that give hidden states and take them. They cost speed and memory, so a model
    /// is hosted without them until a step asks; that is possible only before anything is held.
    fn enable_drafts(&mut self) -> Result<(), BackendError> {
        if self.draft.is_some() {
            return Ok(());
        }
        if !self.info.mtp {
            return Err(BackendError::Unsupported("a hidden state of a model without multi-token prediction"));
        }
        if self.held.iter().any(|h| h.tokens > 0) {
            return Err(BackendError::Unsupported("asking for hidden states after tokens were fed without them"));
        }
        let model = self.trunk.model().clone();
        let options = ContextOptions { hidden: Hidden::BeforeNorm, ..*self.trunk.options() };
        self.trunk = Context::new(&model, options).map_err(compute)?;
        let options = ContextOptions { mtp: true, hidden: Hidden::No, ..options };
        self.draft = Some(Context::new(&model, options).map_err(compute)?);
        Ok(())
    }

    fn slot(&self, seq: SeqId) -> Result<&Held, BackendError> {
        let held = self.held.get(seq.0 as usize).filter(|h| h.open);
        let held = held.ok_or(BackendError::UnknownSequence(seq.0))?;
        match held.broken {
            false => Ok(held),
            true => Err(BackendError::Compute(format!("sequence {} lost its state: close it", seq.0))),
        }
    }

    /// Checks that `tokens` more fit a sequence that holds `held`, and that all ids exist.
    fn check(&self, held: usize, tokens: &[u32]) -> Result<(), BackendError> {
        let (fed, capacity) = (tokens.len(), self.info.context_tokens);
        if fed == 0 {
            return Err(BackendError::Compute("a chunk without tokens".into()));
        }
        if held + fed > capacity {
            return Err(BackendError::ContextFull { held, fed, capacity });
        }
        match tokens.iter().find(|t| **t as usize >= self.info.vocab) {
            Some(token) => Err(BackendError::TokenRange { token: *token, vocab: self.info.vocab }),
            None => Ok(()),
        }
    }

    /// Feeds `fed` in as many calls as the library's buffers need; rows go to `out` in order.
    fn feed(&mut self, fed: &[Fed<'_>], draft: bool, out: &mut Output) -> Result<(), BackendError> {
        let rows_max = (CALL_LOGIT_BYTES_MAX / 4 / self.info.vocab.max(1)).max(1);
        let mut rest = fed;
        while !rest.is_empty() {
            let mut rows = 0;
            // A context that keeps hidden states takes one sequence at a time.
            let alone = self.draft.is_some().then(|| rest[0].seq);
            // A context is under one adapter at a time.
            let adapter = self.adapter_of(rest[0].seq);
            let cut = rest.iter().take(self.trunk.options().batch).take_while(|f| {
                rows += usize::from(f.wanted);
                let together = f.part == rest[0].part && alone.is_none_or(|seq| seq == f.seq);
                rows <= rows_max && together && same(&adapter, &self.adapter_of(f.seq))
            });
            let (call, later) = rest.split_at(cut.count());
            if !draft {
                self.trunk.set_adapter(adapter.as_ref()).map_err(compute)?;
            }
            self.call(call, draft, out)?;
            rest = later;
        }
        Ok(())
    }

    fn adapter_of(&self, seq: SeqId) -> Option<Arc<llama::Adapter>> {
        self.held.get(seq.0 as usize).and_then(|h| h.adapter.clone())
    }

    fn call(&mut self, fed: &[Fed<'_>], draft: bool, out: &mut Output) -> Result<(), BackendError> {
        let context = match (draft, self.draft.as_mut()) {
            (true, Some(context)) => context,
            (true, None) => return Err(BackendError::Unsupported("multi-token prediction")),
            (false, _) => &mut self.trunk,
        };
        self.batch.clear();
        for f in fed {
            match draft {
                true => self.batch.push_hidden(f.token, f.hidden, f.seq.0, f.position, f.wanted),
                false => self.batch.push(f.token, f.seq.0, f.position, f.wanted),
            }
        }
        context.set_threads(self.crew.threads());
        let (began, got) = (Instant::now(), cpu_time());
        context.decode(&self.batch).map_err(compute)?;
        self.crew.ran(began.elapsed(), cpu_time().saturating_sub(got));
        let missing = || BackendError::Compute("the library gave no row for a position that was asked for".into());
        for (i, f) in fed.iter().enumerate().filter(|(_, f)| f.wanted) {
            out.logits.extend_from_slice(context.logits(i).ok_or_else(missing)?);
            if f.wants_hidden {
                out.hidden.extend_from_slice(context.hidden(i).ok_or_else(missing)?);
            }
        }
        Ok(())
    }

    /// Threads that the next call computes with.
    pub fn threads(&self) -> usize {
        self.crew.threads()
    }

    /// Takes back what a failed step fed, sequence by sequence; one that cannot be cut is broken.
    fn take_back(&mut self, seqs: impl Iterator<Item = SeqId>, draft: bool) {
        for seq in seqs {
            let Some(held) = self.held.get_mut(seq.0 as usize) else {
                continue;
            };
            let undone = match (draft, self.draft.as_mut()) {
                (true, Some(context)) => context.remove(seq.0, held.drafted, None),
                (true, None) => true,
                (false, _) => self.trunk.remove(seq.0, held.tokens, None),
            };
            held.broken |= !undone;
        }
    }
}

impl Backend for Llama {
    fn info(&self) -> &ModelInfo {
        &self.info
    }

    fn open(&mut self) -> Result<SeqId, BackendError> {
        let free = self.held.iter().position(|h| !h.open).ok_or(BackendError::NoSequence(self.held.len()))?;
        self.held[free] = Held { open: true, ..Held::default() };
        Ok(SeqId(free as u32))
    }

    fn close(&mut self, seq: SeqId) {
        if self.held.get(seq.0 as usize).is_some_and(|h| h.open) {
            self.trunk.remove(seq.0, 0, None);
            if let Some(draft) = self.draft.as_mut() {
                draft.remove(seq.0, 0, None);
            }
            self.held[seq.0 as usize] = Held::default();
        }
    }

    fn held(&self, seq: SeqId) -> usize {
        self.held.get(seq.0 as usize).map_or(0, |h| h.tokens)
    }

    /// The library reads a copy that we write: the adapter that was checked, whatever became of its file. It lies in a
    /// folder of an unguessable name that is closed to other users: nobody can put another file in its place.
    fn load_adapter(&mut self, adapter: &Adapter) -> Result<AdapterId, BackendError> {
        let refused = |e: &dyn std::fmt::Display| BackendError::Adapter(e.to_string());
        let id = AdapterId(self.next_adapter);
        let folder = tempfile::Builder::new().prefix("chimere-adapter-").tempdir().map_err(|e| refused(&e))?;
        let copy = folder.path().join("adapter.gguf");
        adapter.write(&copy).map_err(|e| refused(&e))?;
        let loaded = llama::Adapter::load(self.trunk.model(), &copy);
        self.adapters.push((id, loaded.map_err(|e| refused(&e))?));
        self.next_adapter = self.next_adapter.wrapping_add(1);
        Ok(id)
    }

    fn drop_adapter(&mut self, adapter: AdapterId) {
        self.adapters.retain(|(id, _)| *id != adapter);
    }

    fn adapt(&mut self, seq: SeqId, adapter: AdapterId) -> Result<(), BackendError> {
        let found = self.adapters.iter().find(|(id, _)| *id == adapter).map(|(_, a)| a.clone());
        let found = found.ok_or(BackendError::UnknownAdapter(adapter.0))?;
        if self.slot(seq)?.tokens > 0 {
            return Err(BackendError::TooLate(seq.0));
        }
        self.held[seq.0 as usize].adapter = Some(found);
        Ok(())
    }

    fn embed(&mut self, ids: &[u32]) -> Result<Vec<f32>, BackendError> {
        Llama::embed(self, ids)
    }

    fn begin_prompt(&mut self, seq: SeqId, end: usize) {
        if let Some(held) = self.held.get_mut(seq.0 as usize) {
            held.prompt = end;
        }
    }

    /// Its sums depend on how many tokens are fed at once.
    fn replays(&self) -> bool {
        false
    }

    /// A sequence is kept as a whole, by the library's own account: what one snapshot holds is not shared by the next.
    fn saved_size(&self) -> Option<SavedSize> {
        let size = SavedSize { block: 0, state: 0, grid: CUT_TOKENS };
        (!self.info.embedding_only && self.draft.is_none()).then_some(size)
    }

    fn state_bytes(&mut self, seq: SeqId) -> usize {
        self.trunk.state_bytes(seq.0).unwrap_or(0)
    }

    fn save(&mut self, seq: SeqId, first: usize) -> Result<Saved, BackendError> {
        let blocks = self.slot(seq)?.tokens.div_ceil(CUT_TOKENS).saturating_sub(first);
        let state = self.trunk.state(seq.0).map_err(compute)?;
        Ok(Saved { blocks: vec![Vec::new(); blocks], state })
    }

    fn restore(&mut self, seq: SeqId, kept: &Kept<'_>) -> Result<(), BackendError> {
        let (held, fed, capacity) = (self.slot(seq)?.tokens, kept.tokens, self.info.context_tokens);
        if held > 0 || fed > capacity {
            return Err(BackendError::ContextFull { held, fed, capacity });
        }
        self.trunk.set_state(seq.0, kept.state, kept.tokens).map_err(compute)?;
        self.held[seq.0 as usize].tokens = kept.tokens;
        Ok(())
    }

    fn step(&mut self, batch: &[Chunk<'_>], out: &mut Output) -> Result<(), BackendError> {
        out.clear();
        if self.info.embedding_only {
            return Err(BackendError::Unsupported("generating text with a model that only gives embeddings"));
        }
        if batch.iter().any(|c| c.hidden) {
            self.enable_drafts()?;
        }
        let mut fed = Vec::new();
        for (n, chunk) in batch.iter().enumerate() {
            let held = self.slot(chunk.seq)?.tokens;
            self.check(held, chunk.tokens)?;
            let whole = whole_cuts(held, held + chunk.tokens.len(), self.held[chunk.seq.0 as usize].prompt);
            fed.extend(chunk.tokens.iter().enumerate().map(|(at, token)| Fed {
                seq: chunk.seq,
                token: *token,
                hidden: &[],
                position: held + at,
                wanted: wants(chunk.rows, at, chunk.tokens.len()),
                wants_hidden: chunk.hidden,
                part: whole.map_or(0, |whole| 2 * n + if at < whole { 1 } else { 2 }),
            }));
        }
        if let Err(error) = self.feed(&fed, false, out) {
            out.clear();
            self.take_back(batch.iter().map(|c| c.seq), false);
            return Err(error);
        }
        for chunk in batch {
            self.held[chunk.seq.0 as usize].tokens += chunk.tokens.len();
        }
        Ok(())
    }

    fn draft(&mut self, batch: &[DraftChunk<'_>], out: &mut Output) -> Result<(), BackendError> {
        out.clear();
        let width = self.info.width;
        let mut fed = Vec::new();
        for chunk in batch {
            let held = self.slot(chunk.seq)?.drafted;
            self.check(held, chunk.tokens)?;
            if chunk.hidden.len() != chunk.tokens.len() * width {
                return Err(BackendError::Compute("a draft needs a hidden state for each token".into()));
            }
            let rows = chunk.hidden.chunks_exact(width);
            fed.extend(chunk.tokens.iter().zip(rows).enumerate().map(|(at, (token, hidden))| Fed {
                seq: chunk.seq,
                token: *token,
                hidden,
                position: held + at,
                wanted: wants(chunk.rows, at, chunk.tokens.len()),
                wants_hidden: false,
                part: 0,
            }));
        }
        if let Err(error) = self.feed(&fed, true, out) {
            out.clear();
            self.take_back(batch.iter().map(|c| c.seq), true);
            return Err(error);
        }
        for chunk in batch {
            self.held[chunk.seq.0 as usize].drafted += chunk.tokens.len();
        }
        Ok(())
    }
}
