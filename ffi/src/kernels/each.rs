//! See `kernels/each.cu`.

use super::experts::Expert;
use super::{Kernel, args};
use crate::gpu::{Device, GpuError};

/// Tokens up to which each reads its own experts' matrices: they seldom share one.
pub const TOKENS_MAX: usize = 4;
/// Experts of a token, the shared one not counted.
pub const USED_MAX: usize = 8;

args! {
    /// The experts that each of few rows chooses.
    Each {
        routed: Expert,
        shared: Expert,
        logits: u64,
        halves: u64,
        hh: u64,
        residual: u64,
        inputs: u32,
        used: u32,
        experts: u32,
        stride: u32,
    }
}

/// Chooses experts from the router's logits and adds their results to the residual stream.
pub fn launch(d: &Device, a: &Each, tokens: usize) -> Result<(), GpuError> {
    let (width, tokens) = (a.routed.width.max(a.shared.width), tokens as u32);
    d.launch(Kernel::EachUp, [width.div_ceil(32), a.used + 1, tokens], 256, a)?;
    d.launch(Kernel::EachDown, [a.inputs.div_ceil(16), tokens, 1], 32 * (a.used + 1), a)
}
