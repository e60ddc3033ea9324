//! See `kernels/gemm.cu`. The arguments are those of `matmul`, with units of rows in place of tiles.

use super::Kernel;
use super::low::{Low, NONE};
use super::matmul::{Besides, Input, LowMatmul, Matmul, Segment, Weight};
use crate::gpu::{Device, GpuError};

/// Rows and tokens of a block: of packed matrices, for few blocks of tokens beside one tile, and of floats.
const PACKED: (u32, u32) = (128, 64);
const TILE: (u32, u32) = (16, 64);
const FLOATS: (u32, u32) = (16, 8);
/// Tokens up to which a tile is read again for each block of them.
const TILE_TOKENS_MAX: usize = 2 * TILE.1 as usize;
/// Units of inner values of a block.
const LOW_UNITS: u32 = 8;

/// out ← W·x, or out += W·x, for one to four matrices, with what adapters add.
pub(super) fn launch(d: &Device, input: Input, products: &[(Weight, u64)], besides: &Besides) -> Result<(), GpuError> {
    let (tile, block) = ((Kernel::Matmul8, TILE), (Kernel::MatmulWide, PACKED));
    let packed = match input.tokens {
        _ if besides.low.any() => (Kernel::MatmulWideLow, PACKED),
        0..=TILE_TOKENS_MAX => tile,
        _ => block,
    };
    for (floats, (kernel, (rows, tokens))) in [(false, packed), (true, (Kernel::MatmulFloats, FLOATS))] {
        let mut low = if floats { Low::default() } else { besides.low };
        let mut a = Matmul {
            halves: input.halves,
            x: input.x,
            inputs: input.inputs as u32,
            tokens: input.tokens as u32,
            add: u32::from(besides.add),
            ..Matmul::default()
        };
        let (mut units, given) = (low.units().div_ceil(LOW_UNITS), low.of);
        low.of = [NONE; 4];
        let of_kind = products.iter().zip(given).filter(|((w, _), _)| w.packing.is_float() == floats);
        for ((w, out), part) in of_kind {
            let (n, at) = (w.rows as u32, a.count as usize);
            low.of[at] = part;
            a.segments[at] =
                Segment { weights: w.at, out: *out, rows: n, stride: n, packing: w.packing as u32, unit: units };
            a.count += 1;
            units += n.div_ceil(rows);
        }
        let grid = [units, a.tokens.div_ceil(tokens), 1];
        if low.any() && units > 0 {
            d.launch(kernel, grid, 256, &LowMatmul { matmul: a, low })?;
        } else if a.count > 0 {
            d.launch(kernel, grid, 256, &a)?;
        }
    }
    Ok(())
}
