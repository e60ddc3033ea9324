//! libllama behind safe types: a [`Model`] is loaded once and shared, a [`Context`] decodes batches.
//!
//! The library is C++ made for trusted callers: it aborts the process on some inputs and throws on
//! others. Everything passed to it is checked here first, and calls that may throw go through
//! `guard.cpp`. All of it runs in the engine process, where an abort costs one engine.

mod adapter;
mod context;
mod hidden;
mod log;
mod model;
mod state;

use std::ffi::{CStr, c_char};
use std::sync::Once;

use llama_cpp_sys_2 as sys;

pub use adapter::Adapter;
pub use context::{Batch, Context, ContextOptions, Hidden};
pub use log::{Level, set_sink};
pub use model::{Model, ModelOptions, TokenAttr, VocabKind};
pub use state::Bytes;

/// Why a call of the library failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LlamaError {
    #[error("the library cannot load the model: {0}")]
    Load(String),
    #[error("loading was cancelled")]
    Cancelled,
    #[error("the library cannot load the adapter: {0}")]
    Adapter(String),
    #[error("the library cannot use the adapter: {0}")]
    Use(String),
    #[error("the path contains a zero byte")]
    Path,
    #[error("the library cannot create a context: {0}")]
    Context(String),
    #[error("{what} is {found}; it must be between {min} and {max}")]
    Range { what: &'static str, found: u64, min: u64, max: u64 },
    #[error("no room in the context for the batch")]
    NoRoom,
    #[error("the library failed to decode: {0}")]
    Decode(String),
    #[error("the library cannot keep a sequence: {0}")]
    State(String),
    #[error("the library failed to tokenise: {0}")]
    Tokenize(String),
}

/// Starts the library, once in the process, with its log going to [`log`].
fn init() {
    static START: Once = Once::new();
    START.call_once(|| {
        super::quant::init_tables();
        // SAFETY: process-wide start, kept to one call by `Once`; the callback is a static function.
        unsafe {
            sys::llama_log_set(Some(log::callback), std::ptr::null_mut());
            sys::llama_backend_init();
        }
    });
}

/// Version of llama.cpp and the instruction sets it was built for, e.g. `AVX2 = 1 | AVX512 = 1`.
pub fn system_info() -> String {
    init();
    // SAFETY: returns a pointer to a static zero-terminated string.
    unsafe { CStr::from_ptr(sys::llama_print_system_info()).to_string_lossy().into_owned() }
}

/// Room for the text of an exception.
const MESSAGE_BYTES: usize = 512;

/// What the guarded functions return after an exception.
const THREW: i32 = -1_000_000;

/// A buffer that a guarded function writes an exception's text to.
struct Message([c_char; MESSAGE_BYTES]);

impl Message {
    fn new() -> Message {
        Message([0; MESSAGE_BYTES])
    }

    fn text(&self) -> String {
        // c_char may be signed; the bytes are the same.
        let bytes: Vec<u8> = self.0.iter().map(|c| *c as u8).take_while(|b| *b != 0).collect();
        String::from_utf8_lossy(&bytes).into_owned()
    }
}

/// Checks a number that comes from outside against what the library bears.
fn within(what: &'static str, found: u64, min: u64, max: u64) -> Result<(), LlamaError> {
    if (min..=max).contains(&found) { Ok(()) } else { Err(LlamaError::Range { what, found, min, max }) }
}

unsafe extern "C" {
    fn chimere_model_load(
        path: *const c_char,
        params: *const sys::llama_model_params,
        message: *mut c_char,
        size: usize,
    ) -> *mut sys::llama_model;
    fn chimere_context_new(
        model: *mut sys::llama_model,
        params: *const sys::llama_context_params,
        message: *mut c_char,
        size: usize,
    ) -> *mut sys::llama_context;
    fn chimere_adapter_load(
        model: *mut sys::llama_model,
        path: *const c_char,
        message: *mut c_char,
        size: usize,
    ) -> *mut sys::llama_adapter_lora;
    fn chimere_adapter_free(adapter: *mut sys::llama_adapter_lora);
    fn chimere_adapter_use(
        context: *mut sys::llama_context,
        adapter: *mut sys::llama_adapter_lora,
        message: *mut c_char,
        size: usize,
    ) -> i32;
    fn chimere_decode(
        context: *mut sys::llama_context,
        batch: *const sys::llama_batch,
        message: *mut c_char,
        size: usize,
    ) -> i32;
    fn chimere_tokenize(
        vocab: *const sys::llama_vocab,
        text: *const c_char,
        len: i32,
        out: *mut i32,
        max: i32,
        add_special: bool,
        parse_special: bool,
        message: *mut c_char,
        size: usize,
    ) -> i32;
    fn chimere_piece(
        vocab: *const sys::llama_vocab,
        id: i32,
        out: *mut c_char,
        max: i32,
        special: bool,
        message: *mut c_char,
        size: usize,
    ) -> i32;
    fn chimere_detokenize(
        vocab: *const sys::llama_vocab,
        ids: *const i32,
        len: i32,
        out: *mut c_char,
        max: i32,
        remove_special: bool,
        unparse_special: bool,
        message: *mut c_char,
        size: usize,
    ) -> i32;
    fn chimere_context_bytes(
        context: *const sys::llama_context,
        out: *mut usize,
        message: *mut c_char,
        size: usize,
    ) -> i32;
    fn chimere_state_size(context: *mut sys::llama_context, seq: i32, message: *mut c_char, size: usize) -> usize;
    fn chimere_state_get(
        context: *mut sys::llama_context,
        out: *mut u8,
        len: usize,
        seq: i32,
        message: *mut c_char,
        size: usize,
    ) -> usize;
    fn chimere_state_set(
        context: *mut sys::llama_context,
        data: *const u8,
        len: usize,
        seq: i32,
        message: *mut c_char,
        size: usize,
    ) -> usize;
    fn chimere_hidden_enable(context: *mut sys::llama_context, value: bool, masked: bool);
    fn chimere_hidden_ith(context: *mut sys::llama_context, i: i32, message: *mut c_char, size: usize) -> *const f32;
}
