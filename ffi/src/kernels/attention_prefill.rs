//! See `kernels/attention_prefill.cu`.

use super::attention::Join;
use super::{Kernel, args, norm};
use crate::KvType;
use crate::gpu::{Device, GpuError};

args! {
    /// Attention of many tokens over a cache of halves or blocks: one span, from tile `first` on.
    Prefill {
        q: u64,
        keys: u64,
        values: u64,
        pages: u64,
        span: u64,
        query_gate: u64,
        y: u64,
        part: u64,
        heads: u32,
        kv_heads: u32,
        dim: u32,
        pages_max: u32,
        first: u32,
        split: u32,
        splits: u32,
        each: u32,
        scale: f32,
        pad: f32,
    }
}

/// Query rows of a block: heads times tokens.
const ROWS: usize = 128;
/// The same of at most so many tokens, which are spread over more blocks.
const FEW_ROWS: usize = 16;
const FEW: usize = 16;
/// Positions that a block walks over: fewer make more sums to join.
pub const SPLIT: usize = 1_024;

/// Whether heads of this shape can be worked on.
pub fn fits(heads: usize, kv_heads: usize, dim: usize) -> bool {
    heads / kv_heads <= ROWS && (dim == 128 || dim == 256)
}

/// Tokens of a block, of so many in a launch.
fn each(heads: usize, kv_heads: usize, tokens: usize) -> usize {
    let group = heads / kv_heads;
    if tokens <= FEW { (FEW_ROWS / group).max(1) } else { ROWS / group }
}

/// Floats of the sums of one block's tokens at the end of a context: less room than that serves nobody.
pub fn floats_min(heads: usize, kv_heads: usize, dim: usize, context: usize) -> usize {
    if !fits(heads, kv_heads, dim) || context <= SPLIT {
        return 0;
    }
    each(heads, kv_heads, usize::MAX).max(1) * heads * context.div_ceil(SPLIT) * (dim + 2)
}

/// Which positions are looked at.
#[derive(Clone, Copy, Debug)]
pub enum Reach {
    /// Those up to the tokens, the first of which stands here.
    From(usize),
    /// As many as there may be: the launches are the same wherever the tokens stand, and so are the numbers.
    Context(usize),
}

/// Attention of so many tokens over a cache of `kv`: `a` and `join` point to the first of them, `floats` is the room of
/// [`Prefill::part`]. Tokens that see one split only write what they found, the others are joined, as many at a time as have room.
pub fn launch(
    d: &Device,
    kv: KvType,
    a: &Prefill,
    join: &Join,
    (reach, tokens): (Reach, usize),
    floats: usize,
) -> Result<(), GpuError> {
    let (heads, dim, split) = (a.heads as usize, a.dim as usize, a.split as usize);
    let (each, width) = (each(heads, a.kv_heads as usize, tokens), heads * dim);
    let kernel = match (kv == KvType::Q8Q4, dim) {
        (false, 128) => Kernel::AttentionPrefill128,
        (false, _) => Kernel::AttentionPrefill256,
        (true, 128) => Kernel::AttentionPrefillBlocks128,
        (true, _) => Kernel::AttentionPrefillBlocks256,
    };
    let mut first = 0;
    while first < tokens {
        let left = tokens - first;
        let (alone, end) = match reach {
            Reach::From(position) => (split.saturating_sub(position + first).min(left), position + tokens),
            Reach::Context(context) => (0, context),
        };
        let (count, splits) = if alone == left || alone >= each {
            (if alone == left { left } else { alone / each * each }, 0)
        } else {
            let splits = end.div_ceil(split);
            ((floats / (heads * splits * (dim + 2)) / each * each).clamp(each, left.max(each)).min(left), splits)
        };
        let a = Prefill { first: (first / each) as u32, splits: splits as u32, each: each as u32, ..*a };
        d.launch(kernel, [count.div_ceil(each) as u32, a.kv_heads, splits.max(1) as u32], 256, &a)?;
        let at = (first * width) as u64;
        if splits == 0 {
            norm::halve(d, join.y + 4 * at, count, width, join.halves + 2 * at)?;
        } else {
            let join = Join {
                query_gate: join.query_gate + 8 * at,
                position: join.position + 4 * first as u64,
                y: join.y + 4 * at,
                halves: join.halves + 2 * at,
                chunk: split as u32,
                chunks_max: splits as u32,
                ..*join
            };
            d.launch(Kernel::AttentionJoin, [count as u32, a.heads, 1], a.dim, &join)?;
        }
        first += count;
    }
    Ok(())
}
