//! A context: the caches of several sequences and the step that decodes a batch of their tokens.

use std::ptr::NonNull;
use std::sync::Arc;

use llama_cpp_sys_2 as sys;

use super::adapter::Adapter;
use super::hidden::{self, Capture};
use super::model::Model;
use super::{LlamaError, Message, THREW, chimere_adapter_use, chimere_context_new, chimere_decode};
use super::{chimere_hidden_enable, chimere_hidden_ith, log, within};

/// Positions of a sequence, tokens of a batch: bounds far above use and far below i32.
const POSITIONS_MAX: u64 = 1 << 24;
/// Sequences of one context: the library's own limit.
const SEQUENCES_MAX: u64 = 256;
/// Threads of one context: the library keeps a mask of 512.
const THREADS_MAX: u64 = 512;

/// Which hidden states of the trunk to keep, for the rows that are wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hidden {
    No,
    /// The last layer's output. A batch may then hold tokens of one sequence only.
    BeforeNorm,
    /// After the final norm: what the library itself gives its multi-token-prediction layers.
    AfterNorm,
}

/// How to create a context.
#[derive(Clone, Copy, Debug)]
pub struct ContextOptions {
    /// Positions that each sequence may hold (rounded up to 256 by the library).
    pub positions: usize,
    /// Sequences that may be open at once.
    pub sequences: usize,
    /// Tokens of one [`Context::decode`] at most.
    pub batch: usize,
    /// Tokens computed at once inside it.
    pub micro_batch: usize,
    pub threads: usize,
    /// Threads for batches of more than one token.
    pub threads_batch: usize,
    /// Give embeddings instead of logits.
    pub embeddings: bool,
    /// Run the multi-token-prediction layer instead of the trunk.
    pub mtp: bool,
    /// Also keep hidden states.
    pub hidden: Hidden,
    /// Keep keys and values in f32 instead of f16: for comparisons, at twice the memory.
    pub exact_cache: bool,
}

/// Tokens to decode.
#[derive(Clone, Debug, Default)]
pub struct Batch {
    tokens: Vec<i32>,
    /// Hidden states, one row a token, for multi-token prediction; empty otherwise.
    hidden: Vec<f32>,
    positions: Vec<i32>,
    sequences: Vec<i32>,
    wanted: Vec<i8>,
}

impl Batch {
    /// Adds a token of sequence `seq` at `position`; `wanted` asks for its row of output. Numbers
    /// too large for the library saturate and are refused by [`Context::decode`].
    pub fn push(&mut self, token: u32, seq: u32, position: usize, wanted: bool) {
        self.tokens.push(i32::try_from(token).unwrap_or(i32::MAX));
        self.sequences.push(i32::try_from(seq).unwrap_or(i32::MAX));
        self.positions.push(i32::try_from(position).unwrap_or(i32::MAX));
        self.wanted.push(i8::from(wanted));
    }

    /// As [`Batch::push`], with the hidden state that the multi-token-prediction layer sees.
    pub fn push_hidden(&mut self, token: u32, hidden: &[f32], seq: u32, position: usize, wanted: bool) {
        self.push(token, seq, position, wanted);
        self.hidden.extend_from_slice(hidden);
    }

    /// Tokens in the batch.
    pub fn len(&self) -> usize {
        self.tokens.len()
    }

    /// Whether there is no token.
    pub fn is_empty(&self) -> bool {
        self.tokens.is_empty()
    }

    /// Empties the batch, keeping its memory.
    pub fn clear(&mut self) {
        self.tokens.clear();
        self.hidden.clear();
        self.positions.clear();
        self.sequences.clear();
        self.wanted.clear();
    }
}

/// Caches and compute buffers for several sequences of one model.
#[derive(Debug)]
pub struct Context {
    pub(super) ptr: NonNull<sys::llama_context>,
    model: Arc<Model>,
    options: ContextOptions,
    positions: usize,
    /// Which rows of the last batch have output.
    wanted: Vec<i8>,
    /// The scheduler's callback writes here; boxed so that its address stays.
    capture: Option<Box<Capture>>,
    /// What the library applies to every token; kept so that it outlives the context.
    adapter: Option<Arc<Adapter>>,
}

// SAFETY: the library ties no context to a thread; `&mut self` on every call that changes it keeps
// calls apart. It is not Sync.
unsafe impl Send for Context {}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: created by the library, freed once, before the model that `self.model` holds.
        unsafe { sys::llama_free(self.ptr.as_ptr()) }
    }
}

impl Context {
    /// Creates a context with its caches.
    pub fn new(model: &Arc<Model>, options: ContextOptions) -> Result<Context, LlamaError> {
        let o = &options;
        within("positions", o.positions as u64, 1, POSITIONS_MAX)?;
        within("sequences", o.sequences as u64, 1, SEQUENCES_MAX)?;
        within("positions of all sequences", (o.positions * o.sequences) as u64, 1, POSITIONS_MAX)?;
        within("batch", o.batch as u64, 1, POSITIONS_MAX)?;
        within("micro batch", o.micro_batch as u64, 1, POSITIONS_MAX)?;
        within("threads", o.threads as u64, 1, THREADS_MAX)?;
        within("threads for batches", o.threads_batch as u64, 1, THREADS_MAX)?;
        // SAFETY: returns a plain struct of defaults.
        let mut params = unsafe { sys::llama_context_default_params() };
        // Sequences share no cells (kv_unified stays off), so each gets its part of the whole.
        params.n_ctx = (o.positions.next_multiple_of(256) * o.sequences) as u32;
        params.n_batch = o.batch as u32;
        params.n_ubatch = o.micro_batch.min(o.batch) as u32;
        params.n_seq_max = o.sequences as u32;
        params.n_threads = o.threads as i32;
        params.n_threads_batch = o.threads_batch as i32;
        params.embeddings = o.embeddings;
        params.kv_unified = false;
        if o.mtp {
            params.ctx_type = sys::LLAMA_CONTEXT_TYPE_MTP;
        }
        if o.exact_cache {
            params.type_k = sys::GGML_TYPE_F32;
            params.type_v = sys::GGML_TYPE_F32;
            // The fused attention of the library rounds queries to f16.
            params.flash_attn_type = sys::LLAMA_FLASH_ATTN_TYPE_DISABLED;
        }
        let mut capture = None;
        if o.hidden == Hidden::BeforeNorm {
            let boxed = capture.insert(Box::new(Capture::new(model.layers(), model.width())));
            params.cb_eval = Some(hidden::callback);
            params.cb_eval_user_data = std::ptr::from_mut::<Capture>(boxed).cast();
        }
        let mut message = Message::new();
        log::clear_kept();
        // SAFETY: the model is valid; params lives through the call, the capture as long as the context.
        let ptr = unsafe { chimere_context_new(model.ptr.as_ptr(), &params, message.0.as_mut_ptr(), message.0.len()) };
        let Some(ptr) = NonNull::new(ptr) else {
            let thrown = message.text();
            return Err(LlamaError::Context(if thrown.is_empty() { log::take_kept() } else { thrown }));
        };
        // SAFETY: the context is valid.
        let positions = unsafe {
            if o.hidden == Hidden::AfterNorm {
                chimere_hidden_enable(ptr.as_ptr(), true, true);
            }
            sys::llama_n_ctx_seq(ptr.as_ptr()) as usize
        };
        Ok(Context { ptr, model: model.clone(), options, positions, wanted: Vec::new(), capture, adapter: None })
    }

    /// The model.
    pub fn model(&self) -> &Arc<Model> {
        &self.model
    }

    /// The options given.
    pub fn options(&self) -> &ContextOptions {
        &self.options
    }

    /// Positions that each sequence may hold.
    pub fn positions(&self) -> usize {
        self.positions
    }

    /// Puts every later batch under `adapter`, or under none.
    pub fn set_adapter(&mut self, adapter: Option<&Arc<Adapter>>) -> Result<(), LlamaError> {
        let same = match (&self.adapter, adapter) {
            (None, None) => true,
            (Some(held), Some(wanted)) => Arc::ptr_eq(held, wanted),
            _ => false,
        };
        if same {
            return Ok(());
        }
        if adapter.is_some_and(|a| !Arc::ptr_eq(&a.model, &self.model)) {
            return Err(LlamaError::Use("it belongs to another model".into()));
        }
        let ptr = adapter.map_or(std::ptr::null_mut(), |a| a.ptr.as_ptr());
        let mut message = Message::new();
        // SAFETY: context and adapter are valid and of one model; the adapter is held below while the context uses it.
        let rc = unsafe { chimere_adapter_use(self.ptr.as_ptr(), ptr, message.0.as_mut_ptr(), message.0.len()) };
        if rc != 0 {
            return Err(LlamaError::Use(message.text()));
        }
        self.adapter = adapter.cloned();
        Ok(())
    }

    fn check(&self, batch: &Batch) -> Result<(), LlamaError> {
        within("tokens of a batch", batch.len() as u64, 1, self.options.batch as u64)?;
        let max = |values: &[i32]| values.iter().map(|v| *v as u64).max().unwrap_or(0);
        within("a token", max(&batch.tokens), 0, (self.model.tokens() as u64).saturating_sub(1))?;
        within("a sequence", max(&batch.sequences), 0, self.options.sequences as u64 - 1)?;
        within("a position", max(&batch.positions), 0, self.positions as u64 - 1)?;
        let hidden = if self.options.mtp { batch.len() * self.model.width() } else { 0 };
        within("hidden values of a batch", batch.hidden.len() as u64, hidden as u64, hidden as u64)?;
        let sequences = batch.sequences.windows(2).filter(|pair| pair[0] != pair[1]).count() as u64;
        let max = if self.capture.is_some() { 0 } else { u64::MAX };
        within("changes of sequence in a batch with hidden states", sequences, 0, max)
    }

    /// Computes the batch; rows that were wanted can be read afterwards. A model without a cache reads it as a whole.
    pub fn decode(&mut self, batch: &Batch) -> Result<(), LlamaError> {
        self.check(batch)?;
        self.wanted.clear();
        if let Some(capture) = &mut self.capture {
            capture.clear();
        }
        // The library's struct has mutable pointers but reads only; each token belongs to one
        // sequence, whose id is read through its own pointer.
        let ones = vec![1_i32; batch.len()];
        let sequences: Vec<*mut i32> = batch.sequences.iter().map(|s| std::ptr::from_ref(s).cast_mut()).collect();
        let hidden = if batch.hidden.is_empty() { std::ptr::null() } else { batch.hidden.as_ptr() };
        let raw = sys::llama_batch {
            n_tokens: batch.len() as i32,
            token: batch.tokens.as_ptr().cast_mut(),
            embd: hidden.cast_mut(),
            pos: batch.positions.as_ptr().cast_mut(),
            n_seq_id: ones.as_ptr().cast_mut(),
            seq_id: sequences.as_ptr().cast_mut(),
            logits: batch.wanted.as_ptr().cast_mut(),
        };
        let mut message = Message::new();
        log::clear_kept();
        // SAFETY: every array holds n_tokens entries (hidden: n_tokens rows of the model's width)
        // and lives through the call; ids, sequences and positions were checked.
        let rc = unsafe { chimere_decode(self.ptr.as_ptr(), &raw, message.0.as_mut_ptr(), message.0.len()) };
        match rc {
            0 => {
                self.wanted.extend_from_slice(&batch.wanted);
                Ok(())
            }
            1 => Err(LlamaError::NoRoom),
            THREW => Err(LlamaError::Decode(message.text())),
            _ => Err(LlamaError::Decode(format!("code {rc}: {}", log::take_kept()))),
        }
    }

    /// Whether row `i` of the last batch has output: the library logs and complains otherwise.
    fn has_row(&self, i: usize) -> bool {
        self.wanted.get(i).is_some_and(|w| *w != 0)
    }

    /// Logits of token `i` of the last batch, one a vocabulary entry; `None` if it was not wanted.
    pub fn logits(&mut self, i: usize) -> Option<&[f32]> {
        if !self.has_row(i) || self.options.embeddings {
            return None;
        }
        // SAFETY: the row was wanted, so the pointer is null or valid for a row of the vocabulary
        // until the next call that changes the context, which the borrow forbids.
        unsafe {
            let row = sys::llama_get_logits_ith(self.ptr.as_ptr(), i as i32);
            (!row.is_null()).then(|| std::slice::from_raw_parts(row, self.model.tokens()))
        }
    }

    /// The trunk's hidden state of token `i` of the last batch.
    pub fn hidden(&mut self, i: usize) -> Option<&[f32]> {
        if !self.has_row(i) || self.options.hidden == Hidden::No {
            return None;
        }
        if let Some(capture) = &self.capture {
            return capture.row(i);
        }
        let mut message = Message::new();
        // SAFETY: as in `logits`, for a row of the model's width.
        unsafe {
            let row = chimere_hidden_ith(self.ptr.as_ptr(), i as i32, message.0.as_mut_ptr(), message.0.len());
            (!row.is_null()).then(|| std::slice::from_raw_parts(row, self.model.width()))
        }
    }

    /// The embedding of token `i` of the last batch, or of its whole sequence where the model pools.
    pub fn embedding(&mut self, i: usize, seq: u32) -> Option<&[f32]> {
        if !self.options.embeddings || !self.has_row(i) || seq as usize >= self.options.sequences {
            return None;
        }
        // SAFETY: as in `logits`, for a row of the width of an embedding; with pooling the library keeps one
        // row a sequence and returns null for the others.
        unsafe {
            let row = match sys::llama_pooling_type(self.ptr.as_ptr()) {
                sys::LLAMA_POOLING_TYPE_NONE => sys::llama_get_embeddings_ith(self.ptr.as_ptr(), i as i32),
                sys::LLAMA_POOLING_TYPE_RANK => std::ptr::null_mut(),
                _ => sys::llama_get_embeddings_seq(self.ptr.as_ptr(), seq as i32),
            };
            (!row.is_null()).then(|| std::slice::from_raw_parts(row, self.model.embedding_width()))
        }
    }

    /// Removes positions `from..to` of a sequence; false if its state cannot be cut there.
    pub fn remove(&mut self, seq: u32, from: usize, to: Option<usize>) -> bool {
        if seq as usize >= self.options.sequences {
            return false;
        }
        let position = |p: usize| i32::try_from(p).unwrap_or(i32::MAX);
        // SAFETY: the context is valid; a model without a cache gives a null memory.
        unsafe {
            let memory = sys::llama_get_memory(self.ptr.as_ptr());
            memory.is_null() || sys::llama_memory_seq_rm(memory, seq as i32, position(from), to.map_or(-1, position))
        }
    }

    /// Copies the whole state of sequence `from` to `to`, which must be empty.
    pub fn copy(&mut self, from: u32, to: u32) -> bool {
        if from.max(to) as usize >= self.options.sequences || from == to {
            return false;
        }
        // SAFETY: the context is valid and both sequences exist.
        unsafe {
            let memory = sys::llama_get_memory(self.ptr.as_ptr());
            if !memory.is_null() {
                sys::llama_memory_seq_cp(memory, from as i32, to as i32, -1, -1);
            }
            !memory.is_null()
        }
    }
}
