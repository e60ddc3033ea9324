//! See `kernels/route.cu`.

use super::{Kernel, args};
use crate::gpu::{Device, GpuError};

/// Most experts of a layer, and most that one token uses.
pub const EXPERTS_MAX: usize = 1_024;
pub const USED_MAX: usize = 32;

args! {
    /// Top-k of the router, and the tokens of each expert.
    Route {
        logits: u64,
        weight: u64,
        chosen: u64,
        active: u64,
        start: u64,
        pairs: u64,
        tokens: u32,
        experts: u32,
        used: u32,
        pad: u32,
    }
}

pub fn launch(d: &Device, a: &Route) -> Result<(), GpuError> {
    d.launch(Kernel::Route, [1, 1, 1], 1024, a)
}
