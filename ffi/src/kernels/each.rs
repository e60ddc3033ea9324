//! See `kernels/each.cu`.

use super::experts::Expert;
use super::low::Low;
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
        arrived: u64,
        inputs: u32,
        used: u32,
        experts: u32,
        stride: u32,
        tokens: u32,
        router_packing: u32,
        beside: u32,
        pad: u32,
    }
}

args! {
    /// The same with what adapters add to the shared expert; `low.of`: parts of its gate, up and down.
    LowEach { each: Each, low: Low }
}

/// Normalises rows of the residual stream, chooses experts by a router of floats and adds their results, and the shared
/// expert's, to the residual stream.
pub fn launch(d: &Device, a: &Each, low: &Low) -> Result<(), GpuError> {
    let (up, down) = (a.routed.width.div_ceil(16), a.inputs.div_ceil(16));
    let many = a.tokens > 1;
    let beside_each = if many { beside(d, up, a.used * a.tokens) } else { up };
    let down_blocks = if many { beside(d, down, a.tokens) } else { down };
    let a = Each { beside: beside_each, ..*a };
    let normalise = if a.norm.squares == 0 { a.tokens } else { 0 };
    let shared = a.shared.width.div_ceil(16);
    let blocks = normalise + a.experts / 4 + 1 + low.units() + shared + beside_each * a.used * a.tokens;
    let (rising, falling) = ([blocks, 1, 1], [down_blocks, a.tokens, 1]);
    if low.any() {
        let a = LowEach { each: a, low: *low };
        let (rise, fall, threads) = match many {
            true => (Kernel::EachUpLow, Kernel::EachDownLow, 32),
            false => (Kernel::EachUpOneLow, Kernel::EachDownOneLow, 64),
        };
        d.launch(rise, rising, 256, &a)?;
        return d.launch(fall, falling, threads * (a.each.used + 1), &a);
    }
    let (rise, fall, threads) =
        if many { (Kernel::EachUp, Kernel::EachDown, 32) } else { (Kernel::EachUpOne, Kernel::EachDownOne, 64) };
    d.launch(rise, rising, 256, &a)?;
    d.launch(fall, falling, threads * (a.used + 1), &a)
}

/// Blocks that share so many tiles, of which there are so many times as many: as few as take as often turns as they would one
/// by one, two to a multiprocessor, for each chooses its expert once.
fn beside(d: &Device, tiles: u32, times: u32) -> u32 {
    let turns = (tiles * times).div_ceil(2 * d.facts().processors.max(1));
    tiles.div_ceil(turns.max(1))
}
