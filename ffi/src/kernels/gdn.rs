//! See `kernels/gdn.cu`.

use super::{Kernel, args};
use crate::StateType;
use crate::gpu::{Device, GpuError};

/// Values of one value head's state, and floats of its window of the convolution.
const STATE_VALUES: usize = 128 * 128;
pub const WINDOW_FLOATS: usize = 3 * 384;

/// Bytes of one value head's state.
pub const fn state_bytes(state: StateType) -> usize {
    state.bytes() * STATE_VALUES
}

args! {
    /// Gated delta rule of one layer.
    Gdn {
        qkv: u64,
        z: u64,
        alpha: u64,
        beta: u64,
        conv: u64,
        decay: u64,
        bias: u64,
        norm: u64,
        state: u64,
        window: u64,
        spans: u64,
        y: u64,
        halves: u64,
        key_heads: u32,
        value_heads: u32,
        channels: u32,
        pad: u32,
        eps: f32,
        pad2: f32,
    }
}

args! {
    /// The same over many tokens: see `kernels/gdn_walk.cu`.
    Walk {
        qkv: u64,
        z: u64,
        alpha: u64,
        beta: u64,
        conv: u64,
        decay: u64,
        bias: u64,
        norm: u64,
        state: u64,
        window: u64,
        spans: u64,
        slot: u64,
        position: u64,
        mixed: u64,
        gates: u64,
        y: u64,
        halves: u64,
        key_heads: u32,
        value_heads: u32,
        channels: u32,
        tokens: u32,
        eps: f32,
        pad: f32,
    }
}

/// Tokens of a block of `gdn_prepare`.
const PREPARED_TOKENS: u32 = 8;

pub fn walk(d: &Device, state: StateType, a: &Walk, spans: usize) -> Result<(), GpuError> {
    let kernel = if state == StateType::Bf16 { Kernel::GdnWalkBf16 } else { Kernel::GdnWalk };
    let groups = a.key_heads + (a.value_heads * 128).div_ceil(256);
    d.launch(Kernel::GdnPrepare, [a.tokens.div_ceil(PREPARED_TOKENS), groups, 1], 256, a)?;
    d.launch(kernel, [4 * a.value_heads, spans as u32, 1], 256, a)?;
    d.launch(Kernel::GdnFinish, [(a.tokens * a.value_heads).div_ceil(8), 1, 1], 256, a)
}

pub fn launch(d: &Device, state: StateType, a: &Gdn, spans: usize) -> Result<(), GpuError> {
    // Where every head has a multiprocessor for itself, all of its threads serve it.
    let many = a.value_heads * spans as u32 > d.facts().processors;
    launch_as(d, state, a, spans, many)
}

/// With blocks of which two share a multiprocessor, or without; the bits are the same.
pub(super) fn launch_as(d: &Device, state: StateType, a: &Gdn, spans: usize, many: bool) -> Result<(), GpuError> {
    let (kernel, threads) = match (many, state == StateType::Bf16) {
        (false, false) => (Kernel::Gdn, 512),
        (false, true) => (Kernel::GdnBf16, 512),
        (true, false) => (Kernel::GdnMany, 256),
        (true, true) => (Kernel::GdnManyBf16, 256),
    };
    d.launch(kernel, [a.value_heads, spans as u32, 1], threads, a)
}
