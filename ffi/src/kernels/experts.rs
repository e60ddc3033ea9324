//! See `kernels/experts.cu`.

use super::{Kernel, args, grouped, matmul};
use crate::gpu::{Device, GpuError};

args! {
    /// The three matrices of an expert, or of all routed ones.
    Expert {
        gate: u64,
        up: u64,
        down: u64,
        gate_bytes: u64,
        up_bytes: u64,
        down_bytes: u64,
        gate_packing: u32,
        up_packing: u32,
        down_packing: u32,
        width: u32,
    }
}

args! {
    /// The experts of a layer over the routed pairs.
    Experts {
        routed: Expert,
        shared: Expert,
        active: u64,
        start: u64,
        pairs: u64,
        x: u64,
        q: u64,
        side: u64,
        h: u64,
        hq: u64,
        hside: u64,
        y: u64,
        weight: u64,
        residual: u64,
        chosen: u64,
        work: u64,
        inputs: u32,
        tokens: u32,
        used: u32,
        stride: u32,
    }
}

/// Tokens up to which each reads its own experts' matrices: they seldom share one.
const EACH_TOKENS_MAX: u32 = 2;
/// Experts of a token, the shared one counted, that have a warp of one block each.
const EACH_EXPERTS_MAX: u32 = 16;

/// `experts`: how many the layer has. True if the results were added to the residual stream; else they lie in `y`.
pub fn launch(d: &Device, a: &Experts, experts: usize) -> Result<bool, GpuError> {
    if a.tokens as usize > matmul::NARROW_TOKENS_MAX && grouped::fits(a) {
        grouped::launch(d, a, experts)?;
        return Ok(false);
    }
    let up = match a.tokens {
        0..=1 => Kernel::ExpertsUpOne,
        2..=32 => Kernel::ExpertsUp1,
        _ => Kernel::ExpertsUp2,
    };
    let lists = (a.tokens * a.used).min(experts as u32) + 1;
    d.launch(up, [a.routed.width.max(a.shared.width).div_ceil(32), lists, 1], 256, a)?;
    if a.tokens <= EACH_TOKENS_MAX && a.used < EACH_EXPERTS_MAX {
        let grid = [a.inputs.div_ceil(16), a.tokens, 1];
        d.launch(Kernel::ExpertsDownEach, grid, 32 * (a.used + 1), a)?;
        return Ok(true);
    }
    let down = if a.tokens > 32 { Kernel::ExpertsDown2 } else { Kernel::ExpertsDown1 };
    d.launch(down, [a.inputs.div_ceil(128), lists, 1], 256, a)?;
    Ok(false)
}
