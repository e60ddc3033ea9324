//! See `kernels/grouped.cu`.

use super::experts::{Expert, Experts};
use super::lora::Joint;
use super::low::Low;
use super::{Kernel, Packing, args};
use crate::gpu::{Device, GpuError};

/// Pairs of one expert, or tokens of the shared one, that a block multiplies together.
pub const GROUP: usize = 64;

args! {
    /// The experts of a layer over many tokens.
    Grouped {
        routed: Expert,
        shared: Expert,
        work: u64,
        pairs: u64,
        halves: u64,
        hh: u64,
        y: u64,
        inputs: u32,
        tokens: u32,
        used: u32,
        stride: u32,
        lists: u32,
        pad: u32,
        joint: Joint,
        h: u64,
        low: Low,
    }
}

/// Places of the list of work that `tokens` tokens can fill.
pub fn lists_max(tokens: usize, used: usize, experts: usize) -> usize {
    experts.min(tokens * used) + tokens * used / GROUP
}

/// Whether every matrix is packed.
pub(super) fn fits(a: &Experts) -> bool {
    let packed = |p: u32| p > Packing::BF16 as u32;
    [a.routed, a.shared].iter().all(|e| packed(e.gate_packing) && packed(e.down_packing))
}

/// Gate and up. `work`: the list made by `route`.
pub(super) fn up(d: &Device, a: &Experts, low: &Low, experts: usize) -> Result<(), GpuError> {
    let (g, lists) = of(a, low, experts);
    let kernel = if a.joint.any() || low.any() { Kernel::GroupedUpJoined } else { Kernel::GroupedUp };
    d.launch(kernel, [a.routed.width.max(a.shared.width).div_ceil(64), lists, 1], 256, &g)
}

pub(super) fn down(d: &Device, a: &Experts, low: &Low, experts: usize) -> Result<(), GpuError> {
    let (g, lists) = of(a, low, experts);
    let kernel = if low.any() { Kernel::GroupedDownLow } else { Kernel::GroupedDown };
    d.launch(kernel, [a.inputs.div_ceil(128), lists, 1], 256, &g)
}

/// As these kernels take it, and how many lists there are with the shared expert's.
fn of(a: &Experts, low: &Low, experts: usize) -> (Grouped, u32) {
    let lists = lists_max(a.tokens as usize, a.used as usize, experts) as u32;
    let g = Grouped {
        routed: a.routed,
        shared: a.shared,
        work: a.work,
        pairs: a.pairs,
        halves: a.halves,
        hh: a.hh,
        y: a.y,
        inputs: a.inputs,
        tokens: a.tokens,
        used: a.used,
        stride: a.stride,
        lists,
        pad: 0,
        joint: a.joint,
        h: a.h,
        low: *low,
    };
    (g, lists + a.tokens.div_ceil(GROUP as u32))
}
