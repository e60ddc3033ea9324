//! See `kernels/norm.cu`.

use super::{Kernel, Quantised, args};
use crate::gpu::{Device, GpuError};

/// Widest row.
pub const WIDTH_MAX: usize = 8_192;

args! {
    /// Residual sum, norm, quantisation.
    Norm {
        x: u64,
        y: u64,
        weight: u64,
        w: u64,
        n: u64,
        q: u64,
        side: u64,
        width: u32,
        stride: u32,
        tokens: u32,
        used: u32,
        eps: f32,
        pad: u32,
    }
}

args! {
    /// Rows quantised as they are.
    Quantize { x: u64, q: u64, side: u64, width: u32, tokens: u32 }
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

/// Where the normalised rows go: floats at distance `stride`, and quantised.
#[derive(Clone, Copy, Debug)]
pub struct Out {
    pub n: u64,
    pub stride: usize,
    pub quantised: Quantised,
}

pub fn launch(d: &Device, rows: Rows, w: u64, eps: f32, out: Out) -> Result<(), GpuError> {
    let a = Norm {
        x: rows.x,
        y: rows.pending.map_or(0, |p| p.y),
        weight: rows.pending.map_or(0, |p| p.weight),
        w,
        n: out.n,
        q: if rows.width % 32 == 0 { out.quantised.q } else { 0 },
        side: out.quantised.side,
        width: rows.width as u32,
        stride: out.stride as u32,
        tokens: rows.tokens as u32,
        used: rows.pending.map_or(0, |p| p.used as u32),
        eps,
        pad: 0,
    };
    d.launch(Kernel::Norm, [rows.tokens as u32, 1, 1], 256, &a)
}

/// `width` is a multiple of 32.
pub fn quantize(d: &Device, x: u64, tokens: usize, width: usize, to: Quantised) -> Result<(), GpuError> {
    let a = Quantize { x, q: to.q, side: to.side, width: width as u32, tokens: tokens as u32 };
    d.launch(Kernel::Quantize, [(tokens * width / 32).div_ceil(8) as u32, 1, 1], 256, &a)
}

pub fn gather(d: &Device, x: u64, rows: u64, count: usize, width: usize, out: u64) -> Result<(), GpuError> {
    let a = Gather { x, out, rows, width: width as u32, pad: 0 };
    d.launch(Kernel::Gather, [count as u32, 1, 1], 256, &a)
}
