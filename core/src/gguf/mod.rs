//! Safe reader and writer of the GGUF file format (versions 2 and 3, little-endian).
//!
//! A model file is input from strangers. This module owns every check between the bytes and the rest of the program.
//! Sizes are checked against the length of the file before any allocation, with checked arithmetic. Types are known
//! and names occur once. Tensors lie inside the file and do not overlap. The parts of a vocabulary agree. Only a file
//! that passed may be mapped or handed to libllama. The header is read with plain bounded file reads; tensor data is
//! never touched here.
//!
//! - [`Files`] finds and opens the file of a model, or the parts that it was split into.
//! - [`Gguf`] reads a header and gives typed access to its metadata and [`TensorInfo`]s.
//! - [`Layout`] and [`Writer`] write a file, streaming tensors that need not fit in memory.
//! - `synthetic` writes models with random weights, for measurements and tests.

mod cursor;
mod error;
mod files;
mod read;
#[cfg(feature = "llama")]
pub mod synthetic;
mod tensor;
mod value;
mod vocabulary;
mod write;

pub use error::Error;
pub use files::{Files, located};
pub use read::Gguf;
pub use tensor::TensorInfo;
pub use value::{Array, FromValue, Strings, Value};
pub use write::{Layout, Writer};

/// First four bytes of every file.
pub const MAGIC: [u8; 4] = *b"GGUF";
/// Alignment of tensor data, in bytes, where the file does not name one.
pub const ALIGNMENT_DEFAULT: u64 = 32;
/// Largest alignment accepted, in bytes.
pub const ALIGNMENT_MAX: u64 = 65_536;
/// Metadata keys in one file.
pub const KEYS_MAX: u64 = 16_384;
/// Tensors in one file. The largest published models stay below 2,000 per file.
pub const TENSORS_MAX: u64 = 65_536;
/// Bytes of a metadata key.
pub const KEY_BYTES_MAX: u64 = 1_024;
/// Bytes of a tensor name: ggml keeps names in 64 bytes, the last of them zero.
pub const NAME_BYTES_MAX: u64 = 63;
/// Bytes of one string value.
pub const STRING_BYTES_MAX: u64 = 16 << 20;
/// Elements of one array value.
pub const ARRAY_LEN_MAX: u64 = 1 << 24;
/// Bytes from the start of the file to the tensor data: what a reader may hold in memory.
pub const HEADER_BYTES_MAX: u64 = 256 << 20;
/// Dimensions of a tensor.
pub const DIMS_MAX: u32 = 4;
/// Bytes of one vocabulary entry.
pub const TOKEN_BYTES_MAX: usize = 8_192;
