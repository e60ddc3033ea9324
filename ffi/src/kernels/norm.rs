//! See `kernels/norm.cu`.

use super::{Kernel, args};
use crate::gpu::{Device, GpuError};

/// Widest row.
pub const WIDTH_MAX: usize = 8_192;

args! {
    /// Residual sum, norm, rounding to halves.
    Norm {
        x: u64,
        y: u64,
        weight: u64,
        w: u64,
        n: u64,
        halves: u64,
        width: u32,
        stride: u32,
        tokens: u32,
        used: u32,
        eps: f32,
        pad: u32,
    }
}

args! {
    /// Rows as halves.
    Halve { x: u64, halves: u64, fours: u32, pad: u32 }
}

args! {
    /// out[i] = x[rows[i]].
    Gather { x: u64, out: u64, rows: u64, width: u32, pad: u32 }
}

/// What the experts left to be added to the residual stream first.
#[derive(Clone, Copy, Debug)]
pub struct Pending {
    pub y: u64,
    pub weight: u64,
    pub used: usize,
}

/// Rows to normalise.
#[derive(Clone, Copy, Debug)]
pub struct Rows {
    pub x: u64,
    pub tokens: usize,
    pub width: usize,
    pub pending: Option<Pending>,
}

/// Where the normalised rows go: floats at distance `stride`, and halves, 0 for nowhere.
#[derive(Clone, Copy, Debug)]
pub struct Out {
    pub n: u64,
    pub stride: usize,
    pub halves: u64,
}

pub fn launch(d: &Device, rows: Rows, w: u64, eps: f32, out: Out) -> Result<(), GpuError> {
    let a = Norm {
        x: rows.x,
        y: rows.pending.map_or(0, |p| p.y),
        weight: rows.pending.map_or(0, |p| p.weight),
        w,
        n: out.n,
        halves: if rows.width % 32 == 0 { out.halves } else { 0 },
        width: rows.width as u32,
        stride: out.stride as u32,
        tokens: rows.tokens as u32,
        used: rows.pending.map_or(0, |p| p.used as u32),
        eps,
        pad: 0,
    };
    d.launch(Kernel::Norm, [rows.tokens as u32, 1, 1], 256, &a)
}

/// Rows as halves; `width` is a multiple of 32.
pub fn halve(d: &Device, x: u64, tokens: usize, width: usize, halves: u64) -> Result<(), GpuError> {
    let fours = (tokens * width / 4) as u32;
    d.launch(Kernel::Halve, [fours.div_ceil(256), 1, 1], 256, &Halve { x, halves, fours, pad: 0 })
}

pub fn gather(d: &Device, x: u64, rows: u64, count: usize, width: usize, out: u64) -> Result<(), GpuError> {
    let a = Gather { x, out, rows, width: width as u32, pad: 0 };
    d.launch(Kernel::Gather, [count as u32, 1, 1], 256, &a)
}
