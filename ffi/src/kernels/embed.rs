//! See `kernels/embed.cu`.

use super::{Kernel, Packing, args};
use crate::gpu::{Device, GpuError};

args! {
    /// out[t] = table[tokens[t]].
    Embed { table: u64, tokens: u64, out: u64, inputs: u32, packing: u32 }
}

pub fn launch(
    d: &Device,
    table: u64,
    packing: Packing,
    tokens: u64,
    rows: usize,
    inputs: usize,
    out: u64,
) -> Result<(), GpuError> {
    let a = Embed { table, tokens, out, inputs: inputs as u32, packing: packing as u32 };
    d.launch(Kernel::Embed, [rows as u32, 1, 1], 256, &a)
}
