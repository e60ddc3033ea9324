//! See `kernels/embed.cu`.

use super::{Kernel, args};
use crate::gpu::{Device, GpuError};

args! {
    /// out[t] = table[tokens[t]]; the first `words` words of `clear` become zero besides.
    Embed { table: u64, tokens: u64, out: u64, inputs: u32, packing: u32, clear: u64, words: u32, pad: u32 }
}

pub fn launch(d: &Device, a: &Embed, rows: usize) -> Result<(), GpuError> {
    d.launch(Kernel::Embed, [rows as u32, 1, 1], 256, a)
}
