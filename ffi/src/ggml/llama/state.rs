//! What a context holds: the bytes of its memory, and the state of one sequence, to be kept and given back.

use super::context::Context;
use super::{LlamaError, Message, chimere_context_bytes, chimere_state_get, chimere_state_set, chimere_state_size};
use llama_cpp_sys_2 as sys;

/// Bytes that a model and a context take.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bytes {
    pub weights: u64,
    /// Keys, values and recurrent states of all sequences.
    pub caches: u64,
    /// Buffers for computing.
    pub compute: u64,
}

impl Bytes {
    /// All of them.
    pub fn total(&self) -> u64 {
        self.weights.saturating_add(self.caches).saturating_add(self.compute)
    }
}

impl Context {
    /// What it takes, or would take if its model was loaded without allocating.
    pub fn bytes(&self) -> Result<Bytes, LlamaError> {
        let (mut out, mut message) = ([0_usize; 3], Message::new());
        // SAFETY: the context is valid and `out` has room for the three numbers.
        let rc = unsafe {
            chimere_context_bytes(self.ptr.as_ptr(), out.as_mut_ptr(), message.0.as_mut_ptr(), message.0.len())
        };
        let [weights, caches, compute] = out.map(|n| n as u64);
        if rc == 0 { Ok(Bytes { weights, caches, compute }) } else { Err(LlamaError::Context(message.text())) }
    }

    /// Computes with so many threads from now on.
    pub fn set_threads(&mut self, threads: usize) {
        let threads = i32::try_from(threads.clamp(1, self.options().threads)).unwrap_or(1);
        // SAFETY: the context is valid; the number is within what it was made for.
        unsafe { sys::llama_set_n_threads(self.ptr.as_ptr(), threads, threads) }
    }

    fn sequence(&self, seq: u32) -> Result<i32, LlamaError> {
        super::within("a sequence", seq.into(), 0, self.options().sequences as u64 - 1)?;
        Ok(seq as i32)
    }

    /// Bytes that [`Context::state`] gives now.
    pub fn state_bytes(&mut self, seq: u32) -> Result<usize, LlamaError> {
        let (seq, mut message) = (self.sequence(seq)?, Message::new());
        // SAFETY: the context is valid and the sequence exists.
        let len = unsafe { chimere_state_size(self.ptr.as_ptr(), seq, message.0.as_mut_ptr(), message.0.len()) };
        if len == 0 { Err(LlamaError::State(message.text())) } else { Ok(len) }
    }

    /// Everything that a sequence holds, in the library's own form.
    pub fn state(&mut self, seq: u32) -> Result<Vec<u8>, LlamaError> {
        let mut out = vec![0; self.state_bytes(seq)?];
        let (seq, mut message) = (self.sequence(seq)?, Message::new());
        // SAFETY: as above; the library writes at most `out.len()` bytes.
        let len = unsafe {
            let (at, room) = (message.0.as_mut_ptr(), message.0.len());
            chimere_state_get(self.ptr.as_ptr(), out.as_mut_ptr(), out.len(), seq, at, room)
        };
        match len == out.len() {
            true => Ok(out),
            false => Err(LlamaError::State(format!("{len} bytes of {} were written {}", out.len(), message.text()))),
        }
    }

    /// Lets an empty sequence hold what [`Context::state`] gave of one that held `tokens`.
    pub fn set_state(&mut self, seq: u32, state: &[u8], tokens: usize) -> Result<(), LlamaError> {
        let (id, mut message) = (self.sequence(seq)?, Message::new());
        // SAFETY: as above; the library reads at most `state.len()` bytes and checks what they say.
        let (len, last) = unsafe {
            let (at, room) = (message.0.as_mut_ptr(), message.0.len());
            let len = chimere_state_set(self.ptr.as_ptr(), state.as_ptr(), state.len(), id, at, room);
            let memory = sys::llama_get_memory(self.ptr.as_ptr());
            let last = if memory.is_null() { -1 } else { sys::llama_memory_seq_pos_max(memory, id) };
            (len, last)
        };
        if len == state.len() && usize::try_from(last).is_ok_and(|last| last + 1 == tokens) {
            return Ok(());
        }
        self.remove(seq, 0, None);
        Err(LlamaError::State(format!("what was kept is not of this model {}", message.text())))
    }
}
