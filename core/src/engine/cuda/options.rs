//! What may be chosen for a model on a card, and what holds where nobody chooses.

use std::path::PathBuf;

use chimere_ffi::{KvType, StateType};

/// How a model is hosted.
#[derive(Clone, Debug)]
pub struct CudaOptions {
    /// Threads that pack weights.
    pub threads: usize,
    /// Positions that one sequence may hold; 0 = as many as the model was trained for.
    pub context_tokens: usize,
    /// Sequences that can be open at once.
    pub sequences_max: usize,
    /// What keys and values are kept as, and recurrent states.
    pub kv: KvType,
    pub state: StateType,
    /// Device memory that may be used; 0 = what is free.
    pub memory_bytes_max: u64,
    /// Memory of the host that may be pinned for experts that do not fit on the card; 0 = three quarters of what is
    /// available.
    pub pinned_bytes_max: u64,
    /// A model whose experts lie on the card by less than this, in percent, is refused.
    pub resident_percent_min: u64,
    /// Adapters will be put on the model: without room for some it is refused.
    pub adapters: bool,
    /// The prediction block is loaded too, if the file has one.
    pub prediction: bool,
    /// Folder for compiled kernels; absent: compiled at each start.
    pub cache: Option<PathBuf>,
    /// Folder of kernels that came with the program, for machines without a compiler.
    pub shipped: Option<PathBuf>,
    /// The kernels compiled for the processor, in place of a card: for checks on machines without one.
    pub emulated: Option<PathBuf>,
    /// The device faults once this file is there: for checks of what follows.
    pub fault: Option<PathBuf>,
}

impl Default for CudaOptions {
    fn default() -> Self {
        let threads = std::thread::available_parallelism().map_or(1, |n| n.get());
        CudaOptions {
            threads,
            context_tokens: 0,
            sequences_max: 16,
            kv: KvType::F16,
            state: StateType::F32,
            memory_bytes_max: 0,
            pinned_bytes_max: 0,
            resident_percent_min: 0,
            adapters: false,
            prediction: false,
            cache: None,
            shipped: None,
            emulated: None,
            fault: None,
        }
    }
}
