//! Values of sixteen bits into tiles. Each four inputs of a row give the first and third, then the second and fourth,
//! as operands have them.

use super::TILE;

/// Inputs of a block, and of a lane's share of one operand.
const INPUTS: usize = 32;
const FOUR: usize = 4;
/// Bytes of a block.
const BLOCK: usize = 2 * INPUTS * TILE;

/// The tiles of whole rows; what the last tile lacks is zero.
pub(super) fn pack(rows: &[u8], row_bytes: usize, out: &mut [u8]) {
    let tiles = rows.chunks(TILE * row_bytes).zip(out.chunks_exact_mut(TILE * row_bytes));
    for (rows, tile) in tiles {
        for (b, block) in tile.as_chunks_mut::<BLOCK>().0.iter_mut().enumerate() {
            // Places 16·lane of the first half of a block have the lanes' first four inputs, the second half the others.
            for (at, place) in block.as_chunks_mut::<16>().0.iter_mut().enumerate() {
                let (m, g, j) = (at / INPUTS, at % INPUTS / 4, at % 4);
                let from = 2 * (INPUTS * b + 2 * FOUR * j + FOUR * m);
                let four = |row: usize| -> [u8; 8] {
                    let found = rows.get(row * row_bytes + from..).and_then(|r| r.first_chunk());
                    found.copied().unwrap_or_default()
                };
                let (low, high) = (four(g), four(g + TILE / 2));
                for (r, to) in place.as_chunks_mut::<4>().0.iter_mut().enumerate() {
                    let (row, k) = (if r % 2 == 0 { &low } else { &high }, 2 * (r / 2));
                    *to = [row[k], row[k + 1], row[k + 4], row[k + 5]];
                }
            }
        }
    }
}
