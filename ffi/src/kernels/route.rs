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

args! {
    /// See `kernels/sort.cu`.
    Work { start: u64, active: u64, work: u64, experts: u32, pad: u32 }
}

/// `work`: where the list for `grouped` goes, `1 + grouped::lists_max` places of four words, if it is made.
pub fn launch(d: &Device, a: &Route, work: Option<u64>) -> Result<(), GpuError> {
    let Some(work) = work else { return d.launch(Kernel::Route, [1, 1, 1], 1024, a) };
    d.launch(Kernel::RouteChoose, [a.tokens.div_ceil(8), 1, 1], 256, a)?;
    d.launch(Kernel::RouteSort, [a.experts, 1, 1], 256, a)?;
    let list = Work { start: a.start, active: a.active, work, experts: a.experts, pad: 0 };
    d.launch(Kernel::RouteWork, [1, 1, 1], 1024, &list)
}
