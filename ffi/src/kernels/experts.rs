//! See `kernels/experts.cu`.

use super::lora::Joint;
use super::low::Low;
use super::{Kernel, args, each, grouped};
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
        places: u64,
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
        halves: u64,
        h: u64,
        hh: u64,
        y: u64,
        weight: u64,
        residual: u64,
        chosen: u64,
        work: u64,
        inputs: u32,
        tokens: u32,
        used: u32,
        stride: u32,
        joint: Joint,
    }
}

/// Tokens above which those of an expert are multiplied together, and lists of them are made for that.
const GROUPED_OVER: usize = each::TOKENS_MAX;
/// Tokens up to which each reads its own experts' matrices: they seldom share one.
const EACH_TOKENS_MAX: u32 = 2;
/// Experts of a token, the shared one counted, that have a warp of one block each.
const EACH_EXPERTS_MAX: u32 = 16;

/// Whether rows of one expert are multiplied together, which takes the list of work that `route` makes: of more than a few
/// tokens, and where adapters add tiles to the shared expert, of which the kernels for few know nothing.
pub fn listed(tokens: usize, low: &Low) -> bool {
    tokens > GROUPED_OVER || low.any()
}

/// Inner values of the experts: gate and up, with what adapters add to them. `experts`: how many the layer has. `low`: parts of the
/// shared expert's gate, up and down, the inner values of the first two made; every matrix is packed where there are any.
pub fn up(d: &Device, a: &Experts, low: &Low, experts: usize) -> Result<(), GpuError> {
    if many(a, low) {
        return grouped::up(d, a, low, experts);
    }
    let dense = a.routed.width == 0 && a.shared.gate_packing == a.shared.up_packing;
    if dense && a.tokens == 1 && !a.joint.any() && a.shared.gate_packing > super::Packing::BF16 as u32 {
        return d.launch(Kernel::ExpertsUpDense, [a.shared.width / 16, 1, 1], 256, a);
    }
    let up = match a.tokens {
        _ if a.joint.any() => Kernel::ExpertsUpJoined,
        0..=1 => Kernel::ExpertsUpOne,
        _ => Kernel::ExpertsUp1,
    };
    d.launch(up, [a.routed.width.max(a.shared.width).div_ceil(32), lists(a, experts), 1], 256, a)
}

/// Results of the experts. True if they were added to the residual stream, which is not done where adapters add to
/// them; else they lie in `y`.
pub fn down(d: &Device, a: &Experts, low: &Low, experts: usize) -> Result<bool, GpuError> {
    if many(a, low) {
        grouped::down(d, a, low, experts)?;
        return Ok(false);
    }
    if a.tokens <= EACH_TOKENS_MAX && a.used < EACH_EXPERTS_MAX && !a.joint.any() {
        let grid = [a.inputs.div_ceil(16), a.tokens, 1];
        d.launch(Kernel::ExpertsDownEach, grid, 32 * (a.used + 1), a)?;
        return Ok(true);
    }
    d.launch(Kernel::ExpertsDown1, [a.inputs.div_ceil(128), lists(a, experts), 1], 256, a)?;
    Ok(false)
}

fn many(a: &Experts, low: &Low) -> bool {
    listed(a.tokens as usize, low) && grouped::fits(a)
}

/// Lists of pairs that can be full, the shared expert's among them.
fn lists(a: &Experts, experts: usize) -> u32 {
    (a.tokens * a.used).min(experts as u32) + 1
}
