//! LoRA adapters held by the library.

use std::ffi::CString;
use std::path::Path;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use llama_cpp_sys_2 as sys;

use super::model::Model;
use super::{LlamaError, Message, chimere_adapter_free, chimere_adapter_load, log};

/// The library keeps a model's adapters in a plain set: loading and freeing take turns.
static TURN: Mutex<()> = Mutex::new(());

fn turn() -> MutexGuard<'static, ()> {
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// An adapter of one model.
#[derive(Debug)]
pub struct Adapter {
    pub(super) ptr: NonNull<sys::llama_adapter_lora>,
    pub(super) model: Arc<Model>,
}

// SAFETY: not changed after loading; the set it is kept in is guarded by `TURN`.
unsafe impl Send for Adapter {}
// SAFETY: as above.
unsafe impl Sync for Adapter {}

impl Adapter {
    /// Loads the file at `path`, which must have passed our own reader.
    pub fn load(model: &Arc<Model>, path: &Path) -> Result<Arc<Adapter>, LlamaError> {
        let path = CString::new(path.as_os_str().as_encoded_bytes()).map_err(|_| LlamaError::Path)?;
        let mut message = Message::new();
        log::clear_kept();
        let _turn = turn();
        // SAFETY: the model is valid and the path zero-terminated; the set of adapters is ours alone until `_turn` ends.
        let ptr =
            unsafe { chimere_adapter_load(model.ptr.as_ptr(), path.as_ptr(), message.0.as_mut_ptr(), message.0.len()) };
        match NonNull::new(ptr) {
            Some(ptr) => Ok(Arc::new(Adapter { ptr, model: model.clone() })),
            None => {
                let thrown = message.text();
                Err(LlamaError::Adapter(if thrown.is_empty() { log::take_kept() } else { thrown }))
            }
        }
    }
}

impl Drop for Adapter {
    fn drop(&mut self) {
        let _turn = turn();
        // SAFETY: loaded by the library and freed once; contexts that use it hold an Arc of this value, and the model
        // lives as long as `self.model`.
        unsafe { chimere_adapter_free(self.ptr.as_ptr()) }
    }
}
