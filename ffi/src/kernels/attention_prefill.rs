//! See `kernels/attention_prefill.cu`.

use super::{Kernel, args};
use crate::gpu::{Device, GpuError};

args! {
    /// Attention of many tokens over a cache of halves.
    Prefill {
        q: u64,
        keys: u64,
        values: u64,
        pages: u64,
        spans: u64,
        query_gate: u64,
        y: u64,
        heads: u32,
        kv_heads: u32,
        dim: u32,
        pages_max: u32,
        scale: f32,
        pad: f32,
    }
}

/// Query rows of a block: heads times tokens.
const ROWS: u32 = 128;

/// Whether heads of this shape can be worked on.
pub fn fits(heads: usize, kv_heads: usize, dim: usize) -> bool {
    heads / kv_heads <= ROWS as usize && (dim == 128 || dim == 256)
}

/// `longest`: tokens of the longest span, or more.
pub fn launch(d: &Device, a: &Prefill, spans: usize, longest: usize) -> Result<(), GpuError> {
    let kernel = if a.dim == 128 { Kernel::AttentionPrefill128 } else { Kernel::AttentionPrefill256 };
    let tokens = ROWS / (a.heads / a.kv_heads);
    d.launch(kernel, [(longest as u32).div_ceil(tokens), a.kv_heads, spans as u32], 256, a)
}
