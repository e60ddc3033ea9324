//! See `kernels/low.cuh`: what adapters add to packed products, on tensor cores.

use super::{Packing, args, pack};
use crate::DType;

/// Largest rank.
pub const RANK_MAX: usize = 64;
/// In a list: no adapter, no group, no part.
pub const NONE: u32 = u32::MAX;
/// Most matrices of one launch.
pub const PARTS_MAX: usize = 4;

/// Ranks are filled up to a multiple of so many.
const STEP: usize = 32;
/// Ranks of a tile.
const TILE: usize = 16;

args! {
    /// The factors of one matrix as the table on the device has them: A [rank][inputs] and B [outputs][rank] in tiles of halves;
    /// addresses 0 where there are none. `unit` is a power of two.
    Tiles { a: u64, b: u64, rank: u32, unit: f32 }
}

args! {
    /// What a launch needs to know. `tiles` [adapters][places]; rows under one adapter are a group: `adapter` of each, `group` of each
    /// row of the pass, `rows` computed (0: all). `inner` [parts][tokens][`RANK_MAX`] halves; `arrived`: a zero for each 64 tokens.
    /// `place` of each part, of which the first `count` have their inner values made; `of`: the part of each product.
    Low {
        tiles: u64,
        adapter: u64,
        group: u64,
        rows: u64,
        inner: u64,
        arrived: u64,
        places: u32,
        groups: u32,
        ranks: u32,
        count: u32,
        place: [u32; PARTS_MAX],
        of: [u32; PARTS_MAX],
    }
}

impl Low {
    /// Whether something may be added.
    pub fn any(&self) -> bool {
        self.groups > 0
    }

    /// Sixteen inner values of each adapter.
    pub(super) fn units(&self) -> u32 {
        self.count * self.groups * self.ranks
    }
}

/// Tiles of sixteen ranks that an adapter of this rank has.
pub fn rank_tiles(rank: usize) -> usize {
    rank.next_multiple_of(STEP) / TILE
}

/// Words of `arrived` for so many tokens.
pub fn words(tokens: usize) -> usize {
    tokens.div_ceil(64)
}

/// Factors in tiles.
pub struct Packed {
    pub a: Vec<u8>,
    pub b: Vec<u8>,
    pub rank: u32,
    pub unit: f32,
}

/// A [rank][inputs] and scale·B, B [outputs][rank], each times the power of two that brings its values to where halves are finest
/// without a product overflowing. Absent: the inputs make no whole tiles.
pub fn packed(a: &[f32], b: &[f32], rank: usize, scale: f32) -> Option<Packed> {
    let (inputs, outputs, filled) = (a.len() / rank, b.len() / rank, rank.next_multiple_of(STEP));
    if Packing::of(DType::F16, inputs) != Packing::H16 {
        return None;
    }
    let (up_a, up_b) = (power(a.iter().copied(), -4), power(b.iter().map(|v| v * scale), 0));
    let halves = |values: &mut dyn Iterator<Item = f32>| -> Vec<u8> {
        values.flat_map(|v| half::f16::from_f32(v).to_le_bytes()).collect()
    };
    let mut rows = halves(&mut a.iter().map(|v| v * up_a));
    rows.resize(2 * filled * inputs, 0);
    let at = |i: usize| {
        let (row, r) = (i / filled, i % filled);
        if r < rank { b[row * rank + r] * scale * up_b } else { 0.0 }
    };
    let columns = halves(&mut (0..outputs * filled).map(at));
    Some(Packed {
        a: pack(DType::F16, filled, inputs, &rows, 1)?,
        b: pack(DType::F16, outputs, filled, &columns, 1)?,
        rank: filled as u32,
        unit: 1.0 / (up_a * up_b),
    })
}

/// The power of two by which the largest of these becomes at most 2^`to`, and more than half of it.
fn power(values: impl Iterator<Item = f32>, to: i32) -> f32 {
    let most = values.fold(0.0_f32, |m, v| m.max(v.abs()));
    let exponent = if most > 0.0 { f64::from(most).log2().ceil() as i32 } else { to };
    2.0_f32.powi((to - exponent).clamp(-60, 60))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn factors_keep_their_product_however_large_they_are() {
        for (size_a, size_b) in [(1.0, 1.0), (1e-6, 3e-9), (1e4, 1e-3)] {
            let a: Vec<f32> = (0..3 * 32).map(|i| size_a * (i as f32 - 40.0)).collect();
            let b: Vec<f32> = (0..5 * 3).map(|i| size_b * (i as f32 - 7.0)).collect();
            let p = packed(&a, &b, 3, 0.5).unwrap();
            assert_eq!((p.rank, p.a.len(), p.b.len()), (32, 2 * 32 * 32, 2 * 16 * 32));
            let (up_a, up_b) = (power(a.iter().copied(), -4), power(b.iter().map(|v| v * 0.5), 0));
            assert!((p.unit * up_a * up_b - 1.0).abs() == 0.0 && p.unit.log2().fract() == 0.0);
            let most = |v: &[f32], by: f32| v.iter().fold(0.0_f32, |m, v| m.max((v * by).abs()));
            assert!((0.03..=0.0625).contains(&most(&a, up_a)) && (0.5..=1.0).contains(&most(&b, 0.5 * up_b)));
        }
        assert!(packed(&[1.0; 33], &[1.0; 2], 1, 1.0).is_none());
        let zero = packed(&[1.0; 32], &[0.0; 4], 1, 1.0).unwrap();
        assert!(zero.b.iter().all(|b| *b == 0) && zero.unit.is_finite());
    }
}
