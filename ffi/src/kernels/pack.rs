//! How weights lie on the device: the twin of `kernels/pack.cuh` and `named.cuh`, which describe the layouts. Every type of
//! the file format goes into one of these, with its exact values. Floats of 32 bits, and rows that are no whole blocks, stay
//! as they are.

mod booked;
mod halves;
#[cfg(test)]
mod tests;
mod tiles;

use crate::DType;
use crate::cpu::format::Format;
use tiles::Tiles;

/// Rows of a tile.
const TILE: usize = 16;

/// A layout, numbered as in `kernels/pack.cuh`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum Packing {
    F32 = 0,
    F16 = 1,
    BF16 = 2,
    Q4 = 3,
    Iq3S = 4,
    Q5 = 5,
    Q6 = 6,
    /// Any other type in blocks of 32, and such types in rows that are no whole blocks of 256.
    B8 = 7,
    /// IQ2_XXS, IQ2_XS and IQ2_S.
    Iq2 = 8,
    /// Halves, and bfloat16, in tiles.
    H16 = 9,
    G16 = 10,
    Iq3Xxs = 11,
    Iq4Xs = 12,
    Iq4Nl = 13,
    Q40 = 14,
    Mx4 = 15,
    Q8 = 16,
    Q3 = 17,
    Q2 = 18,
}

impl Packing {
    /// Of rows of so many values.
    pub fn of(dtype: DType, cols: usize) -> Packing {
        let tiles = cols.is_multiple_of(Packing::H16.inputs());
        let wide = cols.is_multiple_of(Packing::Q40.inputs());
        match dtype {
            DType::F32 => Packing::F32,
            DType::F16 if tiles => Packing::H16,
            DType::BF16 if tiles => Packing::G16,
            DType::F16 => Packing::F16,
            DType::BF16 => Packing::BF16,
            DType::Q4_K => Packing::Q4,
            DType::Q5_K => Packing::Q5,
            DType::Q6_K => Packing::Q6,
            DType::Q3_K => Packing::Q3,
            DType::Q2_K => Packing::Q2,
            DType::Q8_0 => Packing::Q8,
            DType::IQ3_S => Packing::Iq3S,
            DType::IQ3_XXS => Packing::Iq3Xxs,
            DType::IQ4_XS => Packing::Iq4Xs,
            DType::IQ2_XXS | DType::IQ2_XS | DType::IQ2_S => Packing::Iq2,
            DType::IQ4_NL if wide => Packing::Iq4Nl,
            DType::Q4_0 if wide => Packing::Q40,
            DType::MXFP4 if wide => Packing::Mx4,
            _ => Packing::B8,
        }
    }

    pub fn is_float(self) -> bool {
        (self as u32) <= Packing::BF16 as u32
    }

    /// Rows that one block of threads, or one warp, multiplies together.
    pub fn tile_rows(self) -> usize {
        if self.is_float() { 4 } else { TILE }
    }

    /// Inputs of a block.
    pub fn inputs(self) -> usize {
        match self {
            Packing::F32 | Packing::F16 | Packing::BF16 => 1,
            Packing::B8 | Packing::Q8 | Packing::H16 | Packing::G16 => 32,
            _ => 256,
        }
    }

    /// Bytes of a block of 16 rows; of one value where it is a float.
    pub fn block_bytes(self) -> usize {
        match self {
            Packing::F32 => 4,
            Packing::F16 | Packing::BF16 => 2,
            Packing::Q4 => 2_368,
            Packing::Q5 => 2_880,
            Packing::Q6 => 3_360,
            Packing::Q3 => 1_824,
            Packing::Q2 => 1_344,
            Packing::Iq3S => 1_760,
            Packing::Iq3Xxs => 1_632,
            Packing::Iq2 => 2_336,
            Packing::Iq4Xs => 2_208,
            Packing::Iq4Nl | Packing::Q40 => 2_304,
            Packing::Mx4 => 2_176,
            Packing::Q8 => 544,
            Packing::B8 => 640,
            Packing::H16 | Packing::G16 => 1_024,
        }
    }

    /// Bytes of a matrix.
    pub fn bytes(self, rows: usize, cols: usize) -> usize {
        match self.is_float() {
            true => rows * cols * self.block_bytes(),
            false => rows.div_ceil(TILE) * (cols / self.inputs()) * self.block_bytes(),
        }
    }

    /// The end of a block, from its scales on, such that random codes make weights of deviation about 0.022 around 0.
    pub(super) fn synthetic_tail(self) -> Vec<u8> {
        let half = |d: u16| d.to_le_bytes().repeat(16);
        let floats = |v: f32| v.to_le_bytes().repeat(16);
        match self {
            Packing::F32 | Packing::F16 | Packing::BF16 | Packing::H16 | Packing::G16 => Vec::new(),
            // 20·2^-13·code − 155·2^-12: centred on 15.5.
            Packing::Q5 => [vec![20; 128], vec![155; 128], half(0x0800), half(0x0c00)].concat(),
            Packing::Q4 => [vec![40; 128], vec![150; 128], half(0x0800), half(0x0c00)].concat(),
            Packing::Q6 => [vec![10; 256], half(0x0800)].concat(),
            Packing::Q3 => [vec![20; 256], half(0x1000)].concat(),
            // 10·2^-9·code − 15·2^-9: centred on 1.5.
            Packing::Q2 => [[[0xaa; 8], [0xff; 8]].concat().repeat(16), half(0x1800), half(0x1800)].concat(),
            Packing::Iq3S | Packing::Iq3Xxs => [vec![0xaa; 64], half(0x0800)].concat(),
            Packing::Iq2 => [vec![10; 256], half(0x1128)].concat(),
            Packing::Iq4Xs => [vec![1; 128], half(0x0d68)].concat(),
            Packing::Iq4Nl => half(0x0d68).repeat(8),
            Packing::Q40 => half(0x1ce1).repeat(8),
            Packing::Mx4 => vec![120; 128],
            Packing::Q8 => half(0x0ceb),
            Packing::B8 => [floats(3e-4), floats(0.0)].concat(),
        }
    }

    /// Bits of each word that are not random in such weights, and what they are: the exponents of values of sixteen bits.
    pub(super) fn synthetic_bits(self) -> (u32, u32) {
        match self {
            Packing::F16 | Packing::H16 => (0x7c00_7c00, 0x2400_2400),
            Packing::BF16 | Packing::G16 => (0x7f80_7f80, 0x3c80_3c80),
            _ => (0, 0),
        }
    }
}

/// How the rows of a matrix become tiles.
#[derive(Clone, Copy, Debug)]
pub struct Rows {
    dtype: DType,
    packing: Packing,
    /// Absent: floats.
    format: Option<Format>,
    /// Of one row of the file.
    row_bytes: usize,
}

impl Rows {
    /// `None` where rows of so many values are no whole blocks, or their type is for the library alone.
    pub fn of(dtype: DType, cols: usize) -> Option<Rows> {
        if !dtype.is_native() {
            return None;
        }
        let packing = Packing::of(dtype, cols);
        let row_bytes = dtype.row_bytes(cols).filter(|bytes| *bytes > 0 && cols % packing.inputs() == 0)?;
        Some(Rows { dtype, packing, format: Format::of(dtype), row_bytes })
    }

    /// Rows that lie together once packed.
    pub fn tile_rows(&self) -> usize {
        if self.packing.is_float() { 1 } else { TILE }
    }

    /// Bytes of a row in the file.
    pub fn row_bytes(&self) -> usize {
        self.row_bytes
    }

    /// Bytes of a whole tile in the file.
    pub fn file_bytes(&self) -> usize {
        self.tile_rows() * self.row_bytes
    }

    /// Bytes of a tile once packed.
    pub fn tile_bytes(&self) -> usize {
        let values = self.row_bytes / self.dtype.block_bytes() * self.dtype.block_len();
        values / self.packing.inputs() * self.packing.block_bytes()
    }

    /// Packs the tiles of `rows`, whole rows of the file of which the last tile may have too few, into `out`. What has
    /// no place there is left out.
    pub fn pack(&self, rows: &[u8], out: &mut [u8]) {
        match &self.format {
            Some(_) if matches!(self.packing, Packing::Iq3S | Packing::Iq3Xxs) => booked::pack(self, rows, out),
            Some(format) => tiles::pack(Tiles { rows: self, format, bytes: rows, out }),
            None if self.packing.is_float() => out.iter_mut().zip(rows).for_each(|(to, from)| *to = *from),
            None => halves::pack(rows, self.row_bytes, out),
        }
    }
}

/// Packs a matrix of the file (`rows` whole rows of `dtype`) with `threads` threads; `None` if the sizes disagree.
pub fn pack(dtype: DType, rows: usize, cols: usize, bytes: &[u8], threads: usize) -> Option<Vec<u8>> {
    let of = Rows::of(dtype, cols)?;
    if bytes.len() != of.row_bytes.checked_mul(rows)? {
        return None;
    }
    let mut out = vec![0; Packing::of(dtype, cols).bytes(rows, cols)];
    let share = rows.div_ceil(of.tile_rows()).div_ceil(threads.max(1)).max(1);
    std::thread::scope(|scope| {
        for (tiles, rows) in out.chunks_mut(share * of.tile_bytes()).zip(bytes.chunks(share * of.file_bytes())) {
            scope.spawn(move || of.pack(rows, tiles));
        }
    });
    Some(out)
}
