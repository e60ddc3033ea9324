//! The only `unsafe` code of Chimère, behind safe interfaces: read-only file maps, CPU kernels with
//! run-time dispatch, ggml's quantised formats, libllama and CUDA. Each `unsafe` block says why it is sound.

pub mod access;
pub mod cache;
pub mod cpu;
pub mod dtype;
pub mod file;
#[cfg(feature = "llama")]
pub mod ggml;
pub mod gpu;
pub mod kernels;
pub mod limits;
pub mod map;
pub mod samples;
pub mod sockets;

pub use cache::{CacheTypes, KvType, StateType};
pub use dtype::DType;
