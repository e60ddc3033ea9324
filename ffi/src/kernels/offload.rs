//! See `kernels/offload.cu`.

use super::{Kernel, args};
use crate::gpu::{Device, GpuError};

/// An expert without a slot, and a slot without an expert.
pub const NONE: u32 = u32::MAX;

args! {
    /// A layer whose experts lie partly in the host's memory.
    Offload {
        start: u64,
        places: u64,
        slot_of: u64,
        holds: u64,
        used: u64,
        clock: u64,
        moves: u64,
        counts: u64,
        home: [u64; 3],
        room: [u64; 3],
        bytes: [u64; 3],
        experts: u32,
        kept: u32,
        slots: u32,
        pad: u32,
    }
}

/// Blocks that copy one expert together.
const COPY_BLOCKS: u32 = 8;

/// Brings the experts of a pass of `pairs` routed pairs to their slots, as far as these go.
pub fn launch(d: &Device, a: &Offload, pairs: usize) -> Result<(), GpuError> {
    d.launch(Kernel::OffloadChoose, [1, 1, 1], 1024, a)?;
    match pairs.min(a.slots as usize) as u32 {
        0 => Ok(()),
        moves => d.launch(Kernel::OffloadCopy, [COPY_BLOCKS, moves, 1], 256, a),
    }
}
