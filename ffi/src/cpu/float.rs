//! Products with F32, F16 and BF16 matrices: activations stay f32, sums are f32 in sixteen lanes
//! along the inputs, one order for every tile shape.

use super::norm::lane_sum;
use super::pack::{GROUP, Kind};
use super::product::Tile;

/// Rows × activations of one inner block: sixteen running sums fit the registers.
const BLOCK: usize = 4;

/// Computes `count` (≤ 16) matrix rows stored in `bytes` for the activation rows `rows`.
///
/// # Safety
/// Every index in `rows` is a row of `cols` floats of `x`; `bytes` holds `count` rows of `cols` values.
pub(super) unsafe fn tile(
    kind: &Kind,
    bytes: &[u8],
    count: usize,
    cols: usize,
    x: *const f32,
    rows: &[u32],
    out: &mut Tile,
) {
    let xs: Vec<&[f32]> = rows
        .iter()
        // SAFETY: vouched for by the caller.
        .map(|t| unsafe { std::slice::from_raw_parts(x.wrapping_add(*t as usize * cols), cols) })
        .collect();
    match kind {
        Kind::F32 => any::<4>(bytes, count, cols, &xs, out, |b| f32::from_le_bytes(b)),
        Kind::F16 => any::<2>(bytes, count, cols, &xs, out, |b| half::f16::from_le_bytes(b).to_f32()),
        _ => any::<2>(bytes, count, cols, &xs, out, |b| half::bf16::from_le_bytes(b).to_f32()),
    }
}

fn any<const W: usize>(
    bytes: &[u8],
    count: usize,
    cols: usize,
    xs: &[&[f32]],
    out: &mut Tile,
    read: impl Fn([u8; W]) -> f32,
) {
    debug_assert!(count <= GROUP && BLOCK > 0);
    for (r, row) in bytes.chunks(cols * W).enumerate() {
        let row = row.as_chunks::<W>().0;
        for (x, values) in xs.iter().zip(out.iter_mut()) {
            let mut lanes = [0f32; 16];
            for (w, v) in row.chunks(16).zip(x.chunks(16)) {
                for ((l, w), v) in lanes.iter_mut().zip(w).zip(v) {
                    *l = read(*w).mul_add(*v, *l);
                }
            }
            values[r] = lane_sum(lanes);
        }
    }
}
