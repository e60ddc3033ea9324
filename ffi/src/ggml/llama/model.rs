//! A loaded model: its facts and its vocabulary. Immutable, so it may be shared between threads.

use std::ffi::{CStr, CString, c_char, c_void};
use std::path::Path;
use std::ptr::NonNull;
use std::sync::Arc;

use llama_cpp_sys_2 as sys;

use super::{LlamaError, Message, THREW, chimere_detokenize, chimere_model_load, chimere_piece, chimere_tokenize};
use super::{init, log, within};

/// Bytes of one text to tokenise: the library counts in i32 and needs several times as much memory.
const TEXT_BYTES_MAX: u64 = 64 << 20;

/// How to load a model.
#[derive(Clone, Copy, Debug)]
pub struct ModelOptions {
    /// Let the library rearrange weights for the processor (its AMX and repacked kernels). Faster
    /// products, numbers that depend on the processor, and a copy of the weights in memory.
    pub use_extra_bufts: bool,
    /// Map the file instead of reading it whole.
    pub mmap: bool,
    /// Read the vocabulary only.
    pub vocab_only: bool,
    /// Also load multi-token-prediction layers.
    pub mtp: bool,
    /// Check the header and every tensor's shape, and allocate nothing: a context of it computes nothing, and tells what
    /// it would take.
    pub no_alloc: bool,
}

impl Default for ModelOptions {
    fn default() -> ModelOptions {
        ModelOptions { use_extra_bufts: false, mmap: true, vocab_only: false, mtp: false, no_alloc: false }
    }
}

/// Role of a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenAttr {
    Normal,
    Unknown,
    Control,
    UserDefined,
    Unused,
    Byte,
}

/// How a vocabulary makes tokens of text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VocabKind {
    /// Pairs joined by score, on text in which `▁` stands for blanks.
    Sentencepiece,
    /// Pairs of bytes joined by rank, within the pieces that a regular expression finds.
    Bpe,
    /// One of the others.
    Other,
}

/// A model held by the library.
#[derive(Debug)]
pub struct Model {
    pub(super) ptr: NonNull<sys::llama_model>,
    vocab: NonNull<sys::llama_vocab>,
    tokens: usize,
}

// SAFETY: the library's model is not changed after loading; its functions that take a const model
// or vocabulary are documented as safe to call from several threads.
unsafe impl Send for Model {}
// SAFETY: as above.
unsafe impl Sync for Model {}

impl Drop for Model {
    fn drop(&mut self) {
        // SAFETY: the pointer came from a successful load and every context holds an Arc of this
        // value, so none is left.
        unsafe { sys::llama_model_free(self.ptr.as_ptr()) }
    }
}

/// State of the progress callback.
struct Progress<'a> {
    report: &'a mut dyn FnMut(f32) -> bool,
    cancelled: bool,
}

/// Called by the library while it loads; returns whether to go on.
unsafe extern "C" fn progress_callback(progress: f32, data: *mut c_void) -> bool {
    // SAFETY: `data` is the `Progress` that `Model::load` keeps on its stack through the load, and
    // the library calls from one thread at a time.
    let state = unsafe { &mut *data.cast::<Progress<'_>>() };
    // A panic must not cross C++: treat it as "stop".
    let go_on = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| (state.report)(progress)));
    let go_on = go_on.unwrap_or(false);
    state.cancelled |= !go_on;
    go_on
}

impl Model {
    /// Loads the model file at `path`, which must have passed our own reader. `progress` is told the
    /// part loaded (0 to 1) and returns whether to go on.
    pub fn load(
        path: &Path,
        options: &ModelOptions,
        progress: &mut dyn FnMut(f32) -> bool,
    ) -> Result<Arc<Model>, LlamaError> {
        init();
        let path = CString::new(path.as_os_str().as_encoded_bytes()).map_err(|_| LlamaError::Path)?;
        let mut state = Progress { report: progress, cancelled: false };
        // SAFETY: returns a plain struct of defaults.
        let mut params = unsafe { sys::llama_model_default_params() };
        params.n_gpu_layers = 0;
        params.no_alloc = options.no_alloc;
        params.load_mode =
            if options.mmap && !options.no_alloc { sys::LLAMA_LOAD_MODE_MMAP } else { sys::LLAMA_LOAD_MODE_NONE };
        params.use_extra_bufts = options.use_extra_bufts;
        params.vocab_only = options.vocab_only;
        params.load_mtp = options.mtp;
        params.check_tensors = true;
        params.progress_callback = Some(progress_callback);
        params.progress_callback_user_data = (&raw mut state).cast();
        let mut message = Message::new();
        log::clear_kept();
        // SAFETY: the path is zero-terminated; params and the callback's state outlive the call.
        let ptr = unsafe { chimere_model_load(path.as_ptr(), &params, message.0.as_mut_ptr(), message.0.len()) };
        let Some(ptr) = NonNull::new(ptr) else {
            let thrown = message.text();
            let reason = if thrown.is_empty() { log::take_kept() } else { thrown };
            return Err(if state.cancelled { LlamaError::Cancelled } else { LlamaError::Load(reason) });
        };
        // SAFETY: the model is valid; the vocabulary belongs to it and lives as long.
        let (vocab, tokens) = unsafe {
            let vocab = sys::llama_model_get_vocab(ptr.as_ptr());
            (vocab.cast_mut(), sys::llama_vocab_n_tokens(vocab))
        };
        match NonNull::new(vocab) {
            Some(vocab) => Ok(Arc::new(Model { ptr, vocab, tokens: usize::try_from(tokens).unwrap_or(0) })),
            None => {
                // SAFETY: loaded above and not shared with anyone.
                unsafe { sys::llama_model_free(ptr.as_ptr()) };
                Err(LlamaError::Load("the model has no vocabulary".into()))
            }
        }
    }

    fn count(&self, get: unsafe extern "C" fn(*const sys::llama_model) -> i32) -> usize {
        // SAFETY: a getter of the library, given a valid model.
        usize::try_from(unsafe { get(self.ptr.as_ptr()) }).unwrap_or(0)
    }

    fn flag(&self, get: unsafe extern "C" fn(*const sys::llama_model) -> bool) -> bool {
        // SAFETY: a getter of the library, given a valid model.
        unsafe { get(self.ptr.as_ptr()) }
    }

    /// Positions that the model was trained for.
    pub fn trained_context(&self) -> usize {
        self.count(sys::llama_model_n_ctx_train)
    }

    /// Values of a hidden state.
    pub fn width(&self) -> usize {
        self.count(sys::llama_model_n_embd)
    }

    /// Values of an embedding.
    pub fn embedding_width(&self) -> usize {
        self.count(sys::llama_model_n_embd_out)
    }

    /// Layers, without those for multi-token prediction.
    pub fn layers(&self) -> usize {
        self.count(sys::llama_model_n_layer)
    }

    /// Multi-token-prediction layers in the file.
    pub fn mtp_layers(&self) -> usize {
        self.count(sys::llama_model_n_layer_nextn)
    }

    /// Whether sequences carry a recurrent state: such a sequence cannot be cut in its middle.
    pub fn recurrent(&self) -> bool {
        self.flag(sys::llama_model_is_recurrent) || self.flag(sys::llama_model_is_hybrid)
    }

    /// Whether the model has an encoder that must run first.
    pub fn has_encoder(&self) -> bool {
        self.flag(sys::llama_model_has_encoder)
    }

    /// Weights of all tensors.
    pub fn parameters(&self) -> u64 {
        // SAFETY: a getter of the library, given a valid model.
        unsafe { sys::llama_model_n_params(self.ptr.as_ptr()) }
    }

    /// Bytes of all tensors.
    pub fn bytes(&self) -> u64 {
        // SAFETY: a getter of the library, given a valid model.
        unsafe { sys::llama_model_size(self.ptr.as_ptr()) }
    }

    /// A chat template of the file: the default one, or the one of a name.
    pub fn chat_template(&self, name: Option<&CStr>) -> Option<String> {
        let name = name.map_or(std::ptr::null(), CStr::as_ptr);
        // SAFETY: takes null or a zero-terminated name; returns null or a zero-terminated string owned by the model.
        unsafe {
            let text = sys::llama_model_chat_template(self.ptr.as_ptr(), name);
            (!text.is_null()).then(|| CStr::from_ptr(text).to_string_lossy().into_owned())
        }
    }

    /// Tokens in the vocabulary.
    pub fn tokens(&self) -> usize {
        self.tokens
    }

    fn id(&self, id: u32) -> Option<i32> {
        i32::try_from(id).ok().filter(|_| (id as usize) < self.tokens)
    }

    /// The token's text as the file has it, special tokens included.
    pub fn text(&self, id: u32) -> Option<String> {
        let id = self.id(id)?;
        // SAFETY: the id is in range; the text is zero-terminated and owned by the model.
        unsafe {
            let text = sys::llama_vocab_get_text(self.vocab.as_ptr(), id);
            (!text.is_null()).then(|| CStr::from_ptr(text).to_string_lossy().into_owned())
        }
    }

    /// The token's role.
    pub fn attr(&self, id: u32) -> Option<TokenAttr> {
        let id = self.id(id)?;
        // SAFETY: the id is in range.
        let attr = unsafe { sys::llama_vocab_get_attr(self.vocab.as_ptr(), id) };
        let has = |bit| attr & bit != 0;
        Some(match () {
            () if has(sys::LLAMA_TOKEN_ATTR_CONTROL) => TokenAttr::Control,
            () if has(sys::LLAMA_TOKEN_ATTR_USER_DEFINED) => TokenAttr::UserDefined,
            () if has(sys::LLAMA_TOKEN_ATTR_UNUSED) => TokenAttr::Unused,
            () if has(sys::LLAMA_TOKEN_ATTR_BYTE) => TokenAttr::Byte,
            () if has(sys::LLAMA_TOKEN_ATTR_UNKNOWN) => TokenAttr::Unknown,
            () => TokenAttr::Normal,
        })
    }

    /// How the vocabulary makes tokens of text.
    pub fn vocab_kind(&self) -> VocabKind {
        // SAFETY: a getter of the library, given a valid vocabulary.
        match unsafe { sys::llama_vocab_type(self.vocab.as_ptr()) } {
            sys::LLAMA_VOCAB_TYPE_SPM => VocabKind::Sentencepiece,
            sys::LLAMA_VOCAB_TYPE_BPE => VocabKind::Bpe,
            _ => VocabKind::Other,
        }
    }

    /// Whether the token takes away the white space before it, and behind it.
    pub fn strips(&self, id: u32) -> (bool, bool) {
        let Some(id) = self.id(id) else { return (false, false) };
        // SAFETY: the id is in range.
        let attr = unsafe { sys::llama_vocab_get_attr(self.vocab.as_ptr(), id) };
        let has = |bit| attr & bit != 0;
        (has(sys::LLAMA_TOKEN_ATTR_LSTRIP), has(sys::LLAMA_TOKEN_ATTR_RSTRIP))
    }

    /// Whether the token ends a reply.
    pub fn ends_reply(&self, id: u32) -> bool {
        // SAFETY: the id is in range.
        self.id(id).is_some_and(|id| unsafe { sys::llama_vocab_is_eog(self.vocab.as_ptr(), id) })
    }

    fn special(&self, get: unsafe extern "C" fn(*const sys::llama_vocab) -> i32) -> Option<u32> {
        // SAFETY: a getter of the library, given a valid vocabulary; -1 means there is none.
        u32::try_from(unsafe { get(self.vocab.as_ptr()) }).ok().filter(|id| (*id as usize) < self.tokens)
    }

    /// The token put before a text, whether or not the file asks for it.
    pub fn bos(&self) -> Option<u32> {
        self.special(sys::llama_vocab_bos)
    }

    /// The token that ends a text.
    pub fn eos(&self) -> Option<u32> {
        self.special(sys::llama_vocab_eos)
    }

    /// The token that ends a turn of a chat.
    pub fn eot(&self) -> Option<u32> {
        self.special(sys::llama_vocab_eot)
    }

    /// Whether the file asks for [`Model::bos`] before every prompt.
    pub fn adds_bos(&self) -> bool {
        // SAFETY: a getter of the library, given a valid vocabulary.
        unsafe { sys::llama_vocab_get_add_bos(self.vocab.as_ptr()) }
    }

    /// Ids of `text`. `parse_special` recognises special tokens in it; `add_special` adds the tokens
    /// that the file wants around a text.
    pub fn tokenize(&self, text: &str, add_special: bool, parse_special: bool) -> Result<Vec<u32>, LlamaError> {
        within("the length of the text in bytes", text.len() as u64, 0, TEXT_BYTES_MAX)?;
        let call = |out: &mut [i32], message: &mut Message| {
            // SAFETY: text and out are valid for the lengths given, which fit i32 (checked above);
            // the library writes at most `out.len()` ids.
            unsafe {
                chimere_tokenize(
                    self.vocab.as_ptr(),
                    text.as_ptr().cast::<c_char>(),
                    text.len() as i32,
                    out.as_mut_ptr(),
                    out.len() as i32,
                    add_special,
                    parse_special,
                    message.0.as_mut_ptr(),
                    message.0.len(),
                )
            }
        };
        // One token a byte and two around it is the usual most; a negative count asks for more.
        let out = fill(text.len() + 8, 0_i32, call).map_err(LlamaError::Tokenize)?;
        out.into_iter().map(|id| u32::try_from(id).map_err(|_| LlamaError::Tokenize("negative id".into()))).collect()
    }

    /// The bytes that a token stands for; empty for special tokens unless `special`.
    pub fn piece(&self, id: u32, special: bool) -> Result<Vec<u8>, LlamaError> {
        let Some(id) = self.id(id) else {
            return Ok(Vec::new());
        };
        let call = |out: &mut [u8], message: &mut Message| {
            // SAFETY: the id is in range; the library writes at most `out.len()` bytes.
            unsafe {
                chimere_piece(
                    self.vocab.as_ptr(),
                    id,
                    out.as_mut_ptr().cast::<c_char>(),
                    out.len() as i32,
                    special,
                    message.0.as_mut_ptr(),
                    message.0.len(),
                )
            }
        };
        fill(64, 0_u8, call).map_err(LlamaError::Tokenize)
    }

    /// The text of `ids`; special tokens appear only if `special`.
    pub fn detokenize(&self, ids: &[u32], special: bool) -> Result<Vec<u8>, LlamaError> {
        within("the number of ids", ids.len() as u64, 0, TEXT_BYTES_MAX)?;
        let known: Option<Vec<i32>> = ids.iter().map(|id| self.id(*id)).collect();
        let Some(known) = known else {
            let tokens = self.tokens as u64;
            let found = ids.iter().copied().max().unwrap_or(0).into();
            return Err(LlamaError::Range { what: "an id", found, min: 0, max: tokens.saturating_sub(1) });
        };
        let call = |out: &mut [u8], message: &mut Message| {
            // SAFETY: all ids are in range; lengths fit i32; the library writes at most out.len() bytes.
            unsafe {
                chimere_detokenize(
                    self.vocab.as_ptr(),
                    known.as_ptr(),
                    known.len() as i32,
                    out.as_mut_ptr().cast::<c_char>(),
                    out.len() as i32,
                    false,
                    special,
                    message.0.as_mut_ptr(),
                    message.0.len(),
                )
            }
        };
        fill(ids.len() * 8 + 16, 0_u8, call).map_err(LlamaError::Tokenize)
    }
}

/// Calls a function of the library that fills a buffer and returns how much it filled, or the
/// negative of what it would need; a second call then gets that much.
fn fill<T: Copy>(first: usize, zero: T, call: impl Fn(&mut [T], &mut Message) -> i32) -> Result<Vec<T>, String> {
    let mut out = vec![zero; first];
    let mut message = Message::new();
    for _ in 0..2 {
        let filled = call(&mut out, &mut message);
        match filled {
            THREW => return Err(message.text()),
            i32::MIN => return Err("the result is too long".into()),
            0.. => {
                out.truncate(filled as usize);
                return Ok(out);
            }
            _ => out.resize(filled.unsigned_abs() as usize, zero),
        }
    }
    Err("the library changed its mind about the length".into())
}
