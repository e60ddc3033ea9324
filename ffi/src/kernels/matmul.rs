//! See `kernels/matmul.cu`.

use super::{Kernel, Packing, args};
use crate::gpu::{Device, GpuError};

args! {
    /// One matrix and where its outputs go.
    Segment { weights: u64, out: u64, rows: u32, stride: u32, packing: u32, tile: u32 }
}

args! {
    /// Up to four products over the same inputs.
    Matmul {
        segments: [Segment; 4],
        halves: u64,
        x: u64,
        inputs: u32,
        tokens: u32,
        count: u32,
        add: u32,
    }
}

/// A matrix on the device.
#[derive(Clone, Copy, Debug)]
pub struct Weight {
    pub at: u64,
    pub packing: Packing,
    pub rows: usize,
}

/// Activations of the products, as floats and as halves.
#[derive(Clone, Copy, Debug)]
pub struct Input {
    pub x: u64,
    pub halves: u64,
    pub inputs: usize,
    pub tokens: usize,
}

/// Tokens above which the kernels for many take over.
pub const NARROW_TOKENS_MAX: usize = 32;

/// out ← W·x, or out += W·x, for one to four matrices: `(weights, out)`, where an output row is as long as W has rows.
pub fn launch(d: &Device, input: Input, products: &[(Weight, u64)], add: bool) -> Result<(), GpuError> {
    let mut a = Matmul {
        halves: input.halves,
        x: input.x,
        inputs: input.inputs as u32,
        tokens: input.tokens as u32,
        count: products.len().min(4) as u32,
        add: u32::from(add),
        ..Matmul::default()
    };
    if input.tokens > NARROW_TOKENS_MAX {
        return super::gemm::launch(d, input, products, add);
    }
    let mut tiles = 0;
    for (segment, (w, out)) in a.segments.iter_mut().zip(products) {
        let (rows, packing) = (w.rows as u32, w.packing as u32);
        *segment = Segment { weights: w.at, out: *out, rows, stride: rows, packing, tile: tiles };
        tiles += rows.div_ceil(w.packing.tile_rows() as u32);
    }
    let kernel = match input.tokens {
        0..=1 => Kernel::MatmulOne,
        2..=8 => Kernel::Matmul1,
        9..=16 => Kernel::Matmul2,
        _ => Kernel::Matmul4,
    };
    d.launch(kernel, [tiles, 1, 1], 256, &a)
}
