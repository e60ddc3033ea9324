//! See `kernels/gemm.cu`. The arguments are those of `matmul`, with units of rows in place of tiles.

use super::Kernel;
use super::matmul::{Input, Matmul, Segment, Weight};
use crate::gpu::{Device, GpuError};

/// Rows and tokens of a block: of packed matrices, for few blocks of tokens beside one tile, and of floats.
const PACKED: (u32, u32) = (128, 64);
const TILE: (u32, u32) = (16, 64);
const FLOATS: (u32, u32) = (16, 8);
/// Tokens up to which a tile is read again for each block of them.
const TILE_TOKENS_MAX: usize = 2 * TILE.1 as usize;

/// out ← W·x, or out += W·x, for one to four matrices.
pub(super) fn launch(d: &Device, input: Input, products: &[(Weight, u64)], add: bool) -> Result<(), GpuError> {
    let (tile, block) = ((Kernel::Matmul8, TILE), (Kernel::MatmulWide, PACKED));
    let packed = if input.tokens <= TILE_TOKENS_MAX { tile } else { block };
    for (floats, (kernel, (rows, tokens))) in [(false, packed), (true, (Kernel::MatmulFloats, FLOATS))] {
        let mut a = Matmul {
            halves: input.halves,
            x: input.x,
            inputs: input.inputs as u32,
            tokens: input.tokens as u32,
            add: u32::from(add),
            ..Matmul::default()
        };
        let mut units = 0;
        for (w, out) in products.iter().filter(|(w, _)| w.packing.is_float() == floats).take(4) {
            let n = w.rows as u32;
            a.segments[a.count as usize] =
                Segment { weights: w.at, out: *out, rows: n, stride: n, packing: w.packing as u32, unit: units };
            a.count += 1;
            units += n.div_ceil(rows);
        }
        if a.count > 0 {
            d.launch(kernel, [units, a.tokens.div_ceil(tokens), 1], 256, &a)?;
        }
    }
    Ok(())
}
