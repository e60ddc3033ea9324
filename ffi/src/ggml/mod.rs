//! ggml's quantised formats (reference conversions) and libllama, through llama-cpp-sys-2.

pub mod llama;
pub mod quant;
