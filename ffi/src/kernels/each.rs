//! See `kernels/each.cu`.

use super::experts::Expert;
use super::matmul::Normed;
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
        router: u64,
        x: u64,
        halves: u64,
        norm: Normed,
        logits: u64,
        chosen: u64,
        hh: u64,
        residual: u64,
        squares: u64,
        inputs: u32,
        used: u32,
        experts: u32,
        stride: u32,
        tokens: u32,
        router_packing: u32,
    }
}

/// The router's logits, of a router of floats, and beside them gate and up of the shared expert.
pub fn route(d: &Device, a: &Each) -> Result<(), GpuError> {
    let blocks = a.experts / 4 + 1 + a.shared.width.div_ceil(16) * a.tokens;
    d.launch(Kernel::EachRoute, [blocks, 1, 1], 256, a)
}

/// Chooses experts from the router's logits and adds their results, and the shared expert's, to the residual stream.
pub fn launch(d: &Device, a: &Each) -> Result<(), GpuError> {
    let (up, down) = (a.routed.width.div_ceil(16), a.inputs.div_ceil(16));
    if a.tokens == 1 {
        d.launch(Kernel::EachUpOne, [up, a.used, 1], 256, a)?;
        return d.launch(Kernel::EachDownOne, [down, 1, 1], 64 * (a.used + 1), a);
    }
    d.launch(Kernel::EachUp, [beside(d, up, a.used * a.tokens), a.used, a.tokens], 256, a)?;
    d.launch(Kernel::EachDown, [beside(d, down, a.tokens), a.tokens, 1], 32 * (a.used + 1), a)
}

/// Blocks that share so many tiles, of which there are so many times as many: as few as take as often turns as they would one
/// by one, two to a multiprocessor, for each chooses its expert once.
fn beside(d: &Device, tiles: u32, times: u32) -> u32 {
    let turns = (tiles * times).div_ceil(2 * d.facts().processors.max(1));
    tiles.div_ceil(turns.max(1))
}
