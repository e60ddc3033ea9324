//! See `kernels/fill.cu`.

use super::{Kernel, Packing, args};
use crate::gpu::{Buffer, Device, GpuError};

args! {
    /// Random words, with the scales of every block set.
    Fill { out: u64, tail: u64, words: u64, period: u32, scales: u32, seed: u32, fixed: u32, bits: u32, pad: u32 }
}

args! {
    /// Reads memory as fast as it goes.
    Stream { data: u64, out: u64, vectors: u64 }
}

/// Blocks of threads of both kernels, enough for any card.
const BLOCKS: u32 = 1_056;

/// Fills `buffer` with random codes of `packing` whose values have a deviation of about 0.022.
pub fn weights(d: &Device, buffer: &Buffer, packing: Packing, seed: u32) -> Result<(), GpuError> {
    let tail = packing.synthetic_tail();
    let scales = d.buffer(&tail)?;
    let (fixed, bits) = packing.synthetic_bits();
    let words = (buffer.len() / 4) as u64;
    let period = packing.block_bytes() as u32 / 4;
    let a = Fill {
        out: buffer.at(),
        tail: scales.at(),
        words,
        period: if tail.is_empty() { 0 } else { period },
        scales: period.saturating_sub(tail.len() as u32 / 4),
        seed,
        fixed,
        bits,
        pad: 0,
    };
    d.launch(Kernel::Fill, [BLOCKS, 1, 1], 256, &a)?;
    d.wait()
}

/// The arguments of a word written to an address where no memory is.
pub(crate) fn nowhere() -> Fill {
    Fill { out: 16, words: 1, ..Fill::default() }
}

/// Bytes a second that can be read from `buffer`, the best of `rounds`.
pub fn read_bandwidth(d: &Device, buffer: &Buffer, rounds: usize) -> Result<f64, GpuError> {
    let out = d.zeroed(16)?;
    let a = Stream { data: buffer.at(), out: out.at(), vectors: (buffer.len() / 16) as u64 };
    let blocks = d.facts().processors * 4;
    let mut best = f64::INFINITY;
    for _ in 0..=rounds {
        best = best.min(d.time(|| d.launch(Kernel::Stream, [blocks, 1, 1], 512, &a))?);
    }
    Ok(buffer.len() as f64 / best)
}
