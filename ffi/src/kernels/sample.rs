//! See `kernels/sample.cu`.

use super::{Kernel, args};
use crate::gpu::{Device, GpuError};

args! {
    /// The most probable token becomes the next one.
    Argmax {
        logits: u64,
        token: u64,
        position: u64,
        history: u64,
        step: u64,
        vocab: u32,
        steps_max: u32,
    }
}

pub fn argmax(d: &Device, a: &Argmax, tokens: usize) -> Result<(), GpuError> {
    d.launch(Kernel::Argmax, [tokens as u32, 1, 1], 1024, a)
}
