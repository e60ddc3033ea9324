//! See `kernels/attention.cu`.

use super::{Kernel, args};
use crate::KvType;
use crate::gpu::{Device, GpuError};

/// Positions of a page.
pub const PAGE: usize = 64;
/// Chunks of a row, at most.
const CHUNKS_MAX: usize = 128;
/// Blocks that a multiprocessor is given in a launch, where there are so many chunks: it holds two at once.
const BLOCKS: u32 = 8;
/// Tokens up to which the kernel for few of them serves.
pub const FEW: usize = 32;

args! {
    /// Norm and rotation of queries and keys; keys and values into the cache.
    Cache {
        query_gate: u64,
        k: u64,
        v: u64,
        q_norm: u64,
        k_norm: u64,
        angles: u64,
        q: u64,
        keys: u64,
        values: u64,
        pages: u64,
        slot: u64,
        position: u64,
        heads: u32,
        kv_heads: u32,
        dim: u32,
        rope_dims: u32,
        pages_max: u32,
        kind: u32,
        eps: f32,
        pad: f32,
    }
}

args! {
    /// Attention over chunks of positions.
    Attention {
        q: u64,
        keys: u64,
        values: u64,
        pages: u64,
        slot: u64,
        position: u64,
        part: u64,
        heads: u32,
        kv_heads: u32,
        dim: u32,
        pages_max: u32,
        halves: u32,
        chunks_max: u32,
        scale: f32,
        pad: f32,
    }
}

args! {
    /// Attention of few tokens, norm and rotation included where each is the only one of its sequence (`settled`).
    Attend {
        q: u64,
        query_gate: u64,
        k: u64,
        v: u64,
        q_norm: u64,
        k_norm: u64,
        angles: u64,
        keys: u64,
        values: u64,
        pages: u64,
        slot: u64,
        position: u64,
        part: u64,
        heads: u32,
        kv_heads: u32,
        dim: u32,
        rope_dims: u32,
        pages_max: u32,
        pad: u32,
        chunks_max: u32,
        settled: u32,
        scale: f32,
        eps: f32,
    }
}

args! {
    /// Chunks joined, gated and rounded to halves; `chunk`: positions of one, 0 where the row's position decides.
    Join {
        part: u64,
        query_gate: u64,
        position: u64,
        y: u64,
        halves: u64,
        heads: u32,
        dim: u32,
        chunk: u32,
        chunks_max: u32,
    }
}

/// Chunks of the rows at the end of a context of so many positions, the most of all rows': the twin of `kernels/pages.cuh`.
pub fn chunks_of(context: usize) -> usize {
    context.div_ceil(PAGE).min(CHUNKS_MAX)
}

/// How the kernels call it.
pub fn kind(kv: KvType) -> u32 {
    match kv {
        KvType::F32 => 0,
        KvType::F16 => 1,
        KvType::Q8Q4 => 2,
    }
}

pub fn cache(d: &Device, a: &Cache, tokens: usize) -> Result<(), GpuError> {
    d.launch(Kernel::AttentionCache, [tokens as u32, a.heads + a.kv_heads, 1], 32, a)
}

pub fn attend(d: &Device, a: &Attention, join: &Join, tokens: usize) -> Result<(), GpuError> {
    d.launch(Kernel::Attention, grid(d, tokens, (a.heads, a.kv_heads), a.chunks_max), 256, a)?;
    d.launch(Kernel::AttentionJoin, [tokens as u32, a.heads, 1], a.dim, join)
}

/// At most [`FEW`] tokens over a cache of halves or blocks.
pub fn few(d: &Device, kv: KvType, a: &Attend, join: &Join, tokens: usize) -> Result<(), GpuError> {
    let kernel = if kv == KvType::Q8Q4 { Kernel::AttendBlocks } else { Kernel::Attend };
    d.launch(kernel, grid(d, tokens, (a.heads, a.kv_heads), a.chunks_max), 256, a)?;
    d.launch(Kernel::AttendJoin, [tokens as u32, a.heads, 1], a.dim, join)
}

/// A block for each token, eight query heads of a KV head, and chunk; where these are many, several chunks, for most of them
/// lie behind a short sequence's end.
fn grid(d: &Device, tokens: usize, (heads, kv_heads): (u32, u32), chunks: u32) -> [u32; 3] {
    let side = tokens as u32 * kv_heads * (heads / kv_heads).div_ceil(8);
    let beside = (BLOCKS * d.facts().processors.max(1)).div_ceil(side.max(1));
    [tokens as u32, side / tokens.max(1) as u32, chunks.min(beside)]
}
