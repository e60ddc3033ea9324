//! See `kernels/experts.cu`.

use super::{Kernel, args};
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
        inputs: u32,
        tokens: u32,
        used: u32,
        stride: u32,
    }
}

/// `experts`: how many the layer has.
pub fn launch(d: &Device, a: &Experts, experts: usize) -> Result<(), GpuError> {
    let many = a.tokens > 32;
    let (up, down) =
        if many { (Kernel::ExpertsUp2, Kernel::ExpertsDown2) } else { (Kernel::ExpertsUp1, Kernel::ExpertsDown1) };
    let lists = (a.tokens * a.used).min(experts as u32) + 1;
    d.launch(up, [a.routed.width.max(a.shared.width).div_ceil(32), lists, 1], 256, a)?;
    d.launch(down, [a.inputs.div_ceil(128), lists, 1], 256, a)
}
