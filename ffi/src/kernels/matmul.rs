//! See `kernels/matmul.cu`.

use super::low::{Low, NONE};
use super::{Kernel, Packing, args};
use crate::gpu::{Device, GpuError};

args! {
    /// One matrix and where its outputs go.
    Segment { weights: u64, out: u64, rows: u32, stride: u32, packing: u32, unit: u32 }
}

args! {
    /// How who reads a row normalises it: the sums of the squares of each 16 values, and the norm's weights. Without sums
    /// it is normalised already.
    Normed { squares: u64, weights: u64, eps: f32, pad: u32 }
}

args! {
    /// Up to four products over the same inputs.
    Matmul {
        segments: [Segment; 4],
        halves: u64,
        x: u64,
        norm: Normed,
        squares: u64,
        inputs: u32,
        tokens: u32,
        count: u32,
        add: u32,
        units: u32,
        alike: u32,
        step: u32,
        pad: u32,
    }
}

args! {
    /// The same with what adapters add; blocks of inner values come first.
    LowMatmul { matmul: Matmul, low: Low }
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

/// Parts that a row's inputs are cut into.
const PARTS: usize = 8;
/// Tiles up to which a multiprocessor of a large card has no more than two blocks, and registers for more of a row at once.
const FEW_TILES: usize = 256;
/// Inputs of rows that are long where they have many tiles, and those of rows that are long however few.
const LONG_INPUTS: usize = 2_048;
const LONGEST_INPUTS: usize = 4_096;

/// What a product does besides: to few rows alone.
#[derive(Clone, Copy, Debug, Default)]
pub struct Besides {
    /// Adds to what is there, which the kernel just before must not have written.
    pub add: bool,
    /// Normalises its inputs, floats, itself.
    pub norm: Normed,
    /// Where the sums of the squares of its outputs go, for the next norm; 0 for nowhere.
    pub squares: u64,
    /// What adapters add, `of` for the products as they are given.
    pub low: Low,
}

/// Whether rows of this width can be normalised by who reads them.
pub fn normalises(width: usize) -> bool {
    width.is_multiple_of(64) && width <= 4_096
}

/// out ← W·x, or out += W·x, for one to four matrices: `(weights, out)`, where an output row is as long as W has rows. What is
/// added to must not have been written by the kernel just before.
pub fn launch(d: &Device, input: Input, products: &[(Weight, u64)], add: bool) -> Result<(), GpuError> {
    with(d, input, products, &Besides { add, ..Besides::default() })
}

/// The same with what is done besides; of many tokens that is no more than adding.
pub fn with(d: &Device, input: Input, products: &[(Weight, u64)], besides: &Besides) -> Result<(), GpuError> {
    if input.tokens > NARROW_TOKENS_MAX {
        return super::gemm::launch(d, input, products, besides);
    }
    few(d, input, products, besides)
}

/// The same of few tokens, with what is done besides.
pub fn few(d: &Device, input: Input, products: &[(Weight, u64)], besides: &Besides) -> Result<(), GpuError> {
    let mut a = Matmul {
        halves: input.halves,
        x: input.x,
        norm: besides.norm,
        squares: besides.squares,
        inputs: input.inputs as u32,
        tokens: input.tokens as u32,
        count: products.len().min(4) as u32,
        add: u32::from(besides.add),
        ..Matmul::default()
    };
    let mut low = besides.low;
    let tile = |w: &Weight| w.packing.tile_rows();
    let tiles: usize = products.iter().map(|(w, _)| w.rows.div_ceil(tile(w))).sum();
    let long = |(w, _): &(Weight, u64)| input.inputs > PARTS * w.packing.inputs();
    let deep = tiles <= FEW_TILES && products.iter().all(long);
    let longer = input.inputs > if deep { LONGEST_INPUTS } else { LONG_INPUTS };
    // And how many blocks of it a multiprocessor holds, where a block goes on to further units.
    let (kernel, beside) = match input.tokens {
        0..=1 if low.any() && a.norm.squares != 0 => (Kernel::MatmulOneNormedLow, 3),
        0..=1 if low.any() => (Kernel::MatmulOneLow, u32::MAX),
        2..=8 if low.any() && deep => (Kernel::Matmul1DeepLow, u32::MAX),
        2..=8 if low.any() => (Kernel::Matmul1Low, 3),
        _ if low.any() => (Kernel::Matmul4Low, u32::MAX),
        0..=1 if a.norm.squares != 0 => (Kernel::MatmulOneNormed, 3),
        0..=1 if longer => (Kernel::MatmulOneLong, u32::MAX),
        0..=1 if deep => (Kernel::MatmulOneDeep, u32::MAX),
        0..=1 => (Kernel::MatmulOne, u32::MAX),
        2..=8 if deep => (Kernel::Matmul1Deep, u32::MAX),
        2..=8 => (Kernel::Matmul1, 3),
        9..=16 => (Kernel::Matmul2, u32::MAX),
        _ => (Kernel::Matmul4, u32::MAX),
    };
    // Floats take the longest way through memory, many short blocks the next: these go first. What is packed alike lies side
    // by side, the most of it at the end.
    let mut order: Vec<_> = products.iter().zip(low.of).map(|((w, out), of)| (w, out, of)).collect();
    let rows = |p: Packing| products.iter().filter(|(w, _)| w.packing == p).map(|(w, _)| w.rows).sum::<usize>();
    order.sort_by_key(|(w, ..)| (!w.packing.is_float(), w.packing.inputs(), rows(w.packing), w.packing as u32));
    let mut packing = None;
    (a.units, low.of) = (low.units(), [NONE; 4]);
    a.alike = a.units;
    for ((segment, part), (w, out, of)) in a.segments.iter_mut().zip(&mut low.of).zip(&order) {
        let rows = w.rows as u32;
        if packing.replace(w.packing) != Some(w.packing) {
            a.alike = a.units;
        }
        *part = *of;
        *segment = Segment { weights: w.at, out: **out, rows, stride: rows, packing: w.packing as u32, unit: a.units };
        a.units += w.rows.div_ceil(tile(w)) as u32;
    }
    if packing.is_some_and(|p| p.is_float()) {
        a.alike = a.units;
    }
    // Those alike are as many blocks' as fit at once beside the others.
    let fit = beside.saturating_mul(d.facts().processors.max(1));
    a.step = (a.units - a.alike).min(fit.saturating_sub(a.alike).max(1));
    let grid = [a.alike + a.step, 1, 1];
    if low.any() { d.launch(kernel, grid, 256, &LowMatmul { matmul: a, low }) } else { d.launch(kernel, grid, 256, &a) }
}
