//! See `kernels/lora.cu` and `kernels/lora.cuh`.

use super::{Kernel, args};
use crate::gpu::{Device, GpuError};

/// In a list of adapters: none.
pub use super::low::NONE as NO_ADAPTER;
/// Largest rank.
pub use super::low::RANK_MAX;
/// Most matrices of one launch.
pub const PARTS_MAX: usize = 4;

/// Rows of a block, inner values of a block, and outputs of a block.
const ROWS: u32 = 8;
const INNER: u32 = 8;
const OUTPUTS: u32 = 256;

args! {
    /// The factors of one matrix, or of one for each expert, as the table on the device has them: A
    /// [experts][rank][inputs] and B [experts][rank][outputs]; addresses 0 where there are none.
    LowRank { a: u64, b: u64, rank: u32, scale: f32 }
}

args! {
    /// The adapter of each row: `factors` [adapters][places] of [`LowRank`] (0: no row has one), `adapter` of each slot,
    /// `slot` of each row of the pass, `rows` computed (0: all).
    Who { factors: u64, adapter: u64, slot: u64, rows: u64, places: u32, pad: u32 }
}

args! {
    /// One matrix: `inner` [rows][`RANK_MAX`] lies between the two launches. Row p reads row p / `fan` of x and is of
    /// token p / `used`; `chosen` says the expert of each row (0: one matrix for all).
    Part {
        x: u64,
        inner: u64,
        out: u64,
        chosen: u64,
        place: u32,
        inputs: u32,
        outputs: u32,
        stride: u32,
        rows: u32,
        fan: u32,
        used: u32,
        tile: u32,
    }
}

args! {
    /// Up to four matrices.
    Lora { who: Who, parts: [Part; PARTS_MAX], count: u32, pad: u32 }
}

args! {
    /// What is added to gate and up of the experts; `gate` and `up` are the inner values of every pair.
    Joint {
        who: Who,
        gate: u64,
        up: u64,
        gate_place: u32,
        up_place: u32,
        shared_gate_place: u32,
        shared_up_place: u32,
    }
}

impl Joint {
    /// Whether some row has an adapter.
    pub fn any(&self) -> bool {
        self.who.factors != 0
    }
}

impl Lora {
    fn of(who: Who, list: &[Part]) -> Lora {
        let mut a = Lora { who, ..Lora::default() };
        let mut tiles = 0;
        for (part, given) in a.parts.iter_mut().zip(list) {
            *part = Part { tile: tiles, ..*given };
            tiles += given.outputs.div_ceil(OUTPUTS);
            a.count += 1;
        }
        a
    }

    fn row_tiles(&self) -> u32 {
        self.parts[..self.count as usize].iter().map(|p| p.rows.div_ceil(ROWS)).max().unwrap_or(0)
    }

    fn output_tiles(&self) -> u32 {
        self.parts[..self.count as usize].iter().map(|p| p.outputs.div_ceil(OUTPUTS)).sum()
    }
}

/// inner ← scale·A·x for one to four matrices.
pub fn inner(d: &Device, who: Who, parts: &[Part]) -> Result<(), GpuError> {
    let a = Lora::of(who, parts);
    d.launch(Kernel::LoraInner, [a.row_tiles(), a.count * (RANK_MAX as u32 / INNER), 1], 32 * INNER, &a)
}

/// out += B·inner for one to four matrices.
pub fn add(d: &Device, who: Who, parts: &[Part]) -> Result<(), GpuError> {
    let a = Lora::of(who, parts);
    d.launch(Kernel::LoraAdd, [a.output_tiles(), a.row_tiles(), 1], OUTPUTS, &a)
}
