//! CPU kernels: thread pool, packed weight matrices, matrix products and the model's pointwise
//! operations. Each has a portable form and faster forms chosen at run time.
//!
//! Rows in, rows out: nothing here knows a model or a file. Every result of a row is independent of
//! the other rows of the call, bit for bit.

#![allow(clippy::needless_range_loop)] // indices here count in several buffers at once

mod act;
mod attention;
mod buffer;
mod float;
pub(crate) mod format;
mod gdn;
mod gdn_chunk;
mod gdn_step;
mod gemm;
pub(crate) mod grids;
#[cfg(target_arch = "x86_64")]
mod ints;
pub mod isa;
mod kernel;
mod lanes;
mod lora;
mod moe;
pub mod norm;
mod pack;
#[cfg(target_arch = "x86_64")]
mod packed;
mod pool;
mod product;
#[cfg(target_arch = "x86_64")]
mod quads;
mod rope;
#[cfg(test)]
pub(crate) mod samples;
mod wide;

pub use act::{Act, Forms};
pub use attention::{AttentionShape, AttentionSpan, KV_BLOCK, KvBlock, attention};
pub use buffer::Buffer;
pub use gdn::{CHUNK as GDN_CHUNK, Gdn, GdnError, GdnRows, GdnScratch, GdnShape, GdnSpan, GdnState, gdn};
pub use gemm::{Left, Panels, multiply};
pub use lora::{LORA_RANK_MAX, LowRank, Pick};
pub use moe::{ExpertFactors, FactorsOf, Moe, MoeScratch, Routes, Shared, moe, moe_adapted, route};
pub use norm::{
    add, add_scaled, argmax, l2_norm, mul_silu, mul_silu_slope, rms_norm, rms_norm_into, sigmoid, sigmoid_mul, silu,
    silu_mul, silu_row, softmax, softplus,
};
pub use pack::{Experts, Matrix, PackError, dequantize};
pub use pool::{Pool, PoolError, THREADS_MAX};
pub use product::{Product, matmul, matmul_adapted};
pub use rope::{Angles, Rope, Stretch};
#[cfg(test)]
pub(crate) use wide::on_each;
pub use wide::{Wide, wide};
