//! Weight matrices in the order the products read them. Owns the packed bytes.
//!
//! Quantised rows are interleaved in groups of 16. So one 64-byte line holds four consecutive inputs of
//! each of 16 outputs, which is the operand of a VNNI dot product and a row of an AMX tile alike.
//! The values are exactly those of the file; only their order changes (scales are widened to bytes).
//! F32, F16 and BF16 stay row-major.
//!
//! Family K, a block of 256 inputs of a group, padded to whole lines:
//!
//! - for each sub-block, lines of nibbles, then a line of the higher bits of 5- and 6-bit codes. Low nibbles are
//!   inputs 4l..4l+4 of the first half of the sub-block, high ones of its second half;
//! - scales `[sub][16] i8`, mins `[sub/2][16][2] u8`;
//! - d `[16]`, dmin `[16]` as half precision bits.
//!
//! Family B, a group: the lines of all its blocks of 32 inputs, then `[block][16]` d, `[block][16]` m.

use std::sync::Arc;

use super::buffer::Buffer;
use super::format::{Block, Format};
use super::pool::{Pool, Shared1};
use crate::DType;

/// Rows of a group.
pub(super) const GROUP: usize = 16;
/// Bytes of a line: four inputs of 16 outputs.
pub(super) const LINE: usize = 64;

/// Why weights could not be packed.
#[derive(Debug, thiserror::Error, PartialEq)]
pub enum PackError {
    #[error("a {dtype:?} matrix of {rows} x {cols} needs rows of whole blocks of {block} values")]
    Shape { dtype: DType, rows: usize, cols: usize, block: usize },
    #[error("{what} of {dtype:?} needs {need} bytes, {got} given")]
    Bytes { what: &'static str, dtype: DType, need: usize, got: usize },
    #[error("a matrix of {rows} x {cols} is too large for this machine")]
    TooLarge { rows: usize, cols: usize },
    #[error("the output has room for {got} values, {need} needed")]
    Output { need: usize, got: usize },
    #[error("type {0:?} is computed by the library only")]
    Foreign(DType),
}

/// Where the parts of a packed group lie, in bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Layout {
    pub(super) format: Format,
    pub(super) blocks: usize,
    /// Lines of one sub-block: nibbles (or bytes), then the line of higher bits.
    pub(super) low_lines: usize,
    pub(super) sub_lines: usize,
    /// Family K: bytes from block to block, and inside a block.
    pub(super) block_bytes: usize,
    pub(super) scales: usize,
    pub(super) mins: usize,
    /// Of d inside a block (family K) or a group (family B); dmin or m follow at `m`.
    pub(super) d: usize,
    pub(super) m: usize,
    pub(super) group_bytes: usize,
}

impl Layout {
    pub(super) fn new(format: Format, cols: usize) -> Layout {
        let blocks = cols / format.block;
        let low_lines = if format.bits == 8 { format.sub / 4 } else { format.sub / 8 };
        let sub_lines = low_lines + usize::from(format.bits == 5 || format.bits == 6);
        let subs = format.block / format.sub;
        let lines = subs * sub_lines * LINE;
        if format.block == 32 {
            let d = blocks * lines;
            let m = d + blocks * 2 * GROUP;
            let end = if format.mins { m + blocks * 2 * GROUP } else { m };
            let group_bytes = end.next_multiple_of(LINE);
            return Layout {
                format,
                blocks,
                low_lines,
                sub_lines,
                block_bytes: lines,
                scales: 0,
                mins: 0,
                d,
                m,
                group_bytes,
            };
        }
        let scales = lines;
        let mins = scales + subs * GROUP;
        let d = mins + if format.mins { subs * GROUP } else { 0 };
        let m = d + 2 * GROUP;
        let block_bytes = (m + if format.mins { 2 * GROUP } else { 0 }).next_multiple_of(LINE);
        Layout {
            format,
            blocks,
            low_lines,
            sub_lines,
            block_bytes,
            scales,
            mins,
            d,
            m,
            group_bytes: blocks * block_bytes,
        }
    }

    /// Writes block `b` of row `r` of a group.
    fn put(&self, group: &mut [u8], r: usize, b: usize, block: &Block) {
        let f = &self.format;
        let base = b * self.block_bytes;
        for (sub, codes) in block.code[..f.block].chunks_exact(f.sub).enumerate() {
            let lines = &mut group[base + sub * self.sub_lines * LINE..][..self.sub_lines * LINE];
            // Four codes are one word of a line, so words are shifted and merged at once.
            let quads = codes.as_chunks::<4>().0;
            let mut put = |line: usize, word: u32| {
                lines[line * LINE + r * 4..][..4].copy_from_slice(&word.to_le_bytes());
            };
            if f.bits == 8 {
                quads.iter().enumerate().for_each(|(line, quad)| put(line, u32::from_le_bytes(*quad)));
                continue;
            }
            let (first, second) = quads.split_at(self.low_lines);
            for (line, (a, b)) in first.iter().zip(second).enumerate() {
                let (a, b) = (u32::from_le_bytes(*a) & 0x0f0f_0f0f, u32::from_le_bytes(*b) & 0x0f0f_0f0f);
                put(line, a | b << 4);
            }
            let high = f.bits - 4;
            if high > 0 {
                let bits = |(q, quad): (usize, &[u8; 4])| (u32::from_le_bytes(*quad) >> 4 & 0x0f0f_0f0f) << (high * q);
                put(self.low_lines, quads.iter().enumerate().map(bits).fold(0, |a, b| a | b));
            }
        }
        let (d, m) = if f.block == 32 {
            (self.d + b * 2 * GROUP, self.m + b * 2 * GROUP)
        } else {
            (base + self.d, base + self.m)
        };
        group[d + 2 * r..d + 2 * r + 2].copy_from_slice(&block.d.to_le_bytes());
        if f.mins {
            group[m + 2 * r..m + 2 * r + 2].copy_from_slice(&block.dmin.to_le_bytes());
        }
        if f.block == 256 {
            for s in 0..f.block / f.sub {
                group[base + self.scales + s * GROUP + r] = block.scale[s] as u8;
                if f.mins {
                    group[base + self.mins + (s / 2 * GROUP + r) * 2 + s % 2] = block.min[s];
                }
            }
        }
    }

    /// Reads block `b` of row `r` back.
    fn get(&self, group: &[u8], r: usize, b: usize, block: &mut Block) {
        let f = &self.format;
        let base = b * self.block_bytes;
        for i in 0..f.block {
            block.code[i] = self.code(&group[base..], r, i);
        }
        let (d, m) = if f.block == 32 {
            (self.d + b * 2 * GROUP, self.m + b * 2 * GROUP)
        } else {
            (base + self.d, base + self.m)
        };
        block.d = u16::from_le_bytes([group[d + 2 * r], group[d + 2 * r + 1]]);
        block.dmin = if f.mins { u16::from_le_bytes([group[m + 2 * r], group[m + 2 * r + 1]]) } else { 0 };
        if f.block == 256 {
            for s in 0..f.block / f.sub {
                block.scale[s] = group[base + self.scales + s * GROUP + r] as i8;
                block.min[s] = if f.mins { group[base + self.mins + (s / 2 * GROUP + r) * 2 + s % 2] } else { 0 };
            }
        }
    }

    /// The code of input `i` of row `r` of the block that starts at `block[0]`.
    pub(super) fn code(&self, block: &[u8], r: usize, i: usize) -> u8 {
        let f = &self.format;
        let (sub, k) = (i / f.sub, i % f.sub);
        let line = sub * self.sub_lines * LINE;
        let byte = r * 4 + k % 4;
        if f.bits == 8 {
            return block[line + k / 4 * LINE + byte];
        }
        let half = f.sub / 2;
        let low = block[line + k % half / 4 * LINE + byte] >> (4 * (k / half)) & 15;
        let high = f.bits - 4;
        if high == 0 {
            return low;
        }
        let mask = (1u8 << high) - 1;
        low | (block[line + self.low_lines * LINE + byte] >> (high * (k / 4)) & mask) << 4
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Kind {
    F32,
    F16,
    BF16,
    Packed(Layout),
}

/// A weight matrix of `rows` outputs × `cols` inputs, exact values of its file type.
#[derive(Clone)]
pub struct Matrix {
    dtype: DType,
    rows: usize,
    cols: usize,
    kind: Kind,
    data: Arc<Buffer>,
    start: usize,
    len: usize,
}

impl std::fmt::Debug for Matrix {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Matrix({:?} {}x{})", self.dtype, self.rows, self.cols)
    }
}

impl Matrix {
    /// Packs row-major `bytes` of the file (`rows` rows of `cols` values) on the calling thread.
    pub fn pack(dtype: DType, rows: usize, cols: usize, bytes: &[u8]) -> Result<Matrix, PackError> {
        Ok(stack(None, dtype, 1, rows, cols, bytes)?.remove(0))
    }

    /// The same on all threads of `pool`.
    pub fn pack_on(pool: &Pool, dtype: DType, rows: usize, cols: usize, bytes: &[u8]) -> Result<Matrix, PackError> {
        Ok(stack(Some(pool), dtype, 1, rows, cols, bytes)?.remove(0))
    }

    /// Number of outputs.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Number of inputs.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// The type of the values in the file.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Bytes read by one product with this matrix.
    pub fn bytes(&self) -> usize {
        self.len
    }

    /// Writes row `row` as floats; `out` holds `cols` values.
    pub fn dequantize_row(&self, row: usize, out: &mut [f32]) -> Result<(), PackError> {
        if row >= self.rows || out.len() != self.cols {
            return Err(PackError::Output { need: self.cols, got: if row < self.rows { out.len() } else { 0 } });
        }
        let Kind::Packed(layout) = self.kind else {
            let width = self.dtype.block_bytes();
            return dequantize(self.dtype, &self.data()[row * self.cols * width..(row + 1) * self.cols * width], out);
        };
        let group = &self.data()[row / GROUP * layout.group_bytes..];
        let mut block = Block::ZERO;
        for (b, ys) in out.chunks_mut(layout.format.block).enumerate() {
            layout.get(group, row % GROUP, b, &mut block);
            block.dequantize(&layout.format, ys);
        }
        Ok(())
    }

    pub(super) fn kind(&self) -> &Kind {
        &self.kind
    }

    pub(super) fn data(&self) -> &[u8] {
        &self.data.bytes()[self.start..self.start + self.len]
    }

    /// Groups of 16 rows, the last one padded with zero rows where packed.
    pub(super) fn groups(&self) -> usize {
        self.rows.div_ceil(GROUP)
    }
}

/// A stack of matrices of one type and shape: the routed experts of a layer.
#[derive(Clone, Debug)]
pub struct Experts(Vec<Matrix>);

impl Experts {
    /// Packs `experts` matrices that follow one another in `bytes`, on the calling thread.
    pub fn pack(dtype: DType, experts: usize, rows: usize, cols: usize, bytes: &[u8]) -> Result<Experts, PackError> {
        Ok(Experts(stack(None, dtype, experts, rows, cols, bytes)?))
    }

    /// The same on all threads of `pool`.
    pub fn pack_on(
        pool: &Pool,
        dtype: DType,
        experts: usize,
        rows: usize,
        cols: usize,
        bytes: &[u8],
    ) -> Result<Experts, PackError> {
        Ok(Experts(stack(Some(pool), dtype, experts, rows, cols, bytes)?))
    }

    /// The matrix of expert `e`; panics when there is none.
    pub fn expert(&self, e: usize) -> &Matrix {
        &self.0[e]
    }

    /// Number of experts, at least 1.
    #[allow(clippy::len_without_is_empty)] // never empty by construction
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Outputs of each expert.
    pub fn rows(&self) -> usize {
        self.0[0].rows
    }

    /// Inputs of each expert.
    pub fn cols(&self) -> usize {
        self.0[0].cols
    }

    /// The type of the values in the file.
    pub fn dtype(&self) -> DType {
        self.0[0].dtype
    }

    /// Bytes read by one product with one expert.
    pub fn bytes(&self) -> usize {
        self.0[0].len
    }
}

/// Checks shapes and packs `count` matrices that share one buffer.
fn stack(
    pool: Option<&Pool>,
    dtype: DType,
    count: usize,
    rows: usize,
    cols: usize,
    bytes: &[u8],
) -> Result<Vec<Matrix>, PackError> {
    let shape = PackError::Shape { dtype, rows, cols, block: dtype.block_len() };
    if rows == 0 || cols == 0 || count == 0 {
        return Err(shape);
    }
    let row_bytes = dtype.row_bytes(cols).ok_or(shape)?;
    let too_large = || PackError::TooLarge { rows, cols };
    let need = row_bytes.checked_mul(rows).and_then(|n| n.checked_mul(count)).ok_or_else(too_large)?;
    if bytes.len() != need {
        return Err(PackError::Bytes { what: "the matrix", dtype, need, got: bytes.len() });
    }
    let kind = match (dtype, Format::of(dtype)) {
        (_, Some(format)) => Kind::Packed(Layout::new(format, cols)),
        (DType::F16, _) => Kind::F16,
        (DType::BF16, _) => Kind::BF16,
        (DType::F32, _) => Kind::F32,
        _ => return Err(PackError::Foreign(dtype)),
    };
    let groups = rows.div_ceil(GROUP);
    let len = match kind {
        Kind::Packed(l) => l.group_bytes.checked_mul(groups).ok_or_else(too_large)?,
        _ => row_bytes * rows,
    };
    let step = len.next_multiple_of(LINE);
    let mut data = Buffer::zeroed(step.checked_mul(count).ok_or_else(too_large)?).ok_or_else(too_large)?;
    match kind {
        Kind::Packed(layout) => {
            let out = Shared1(data.bytes_mut().as_mut_ptr());
            let task = |i: usize, _: usize| {
                let (m, g) = (i / groups, i % groups);
                // SAFETY: task i owns group g of matrix m, `group_bytes` bytes inside the buffer, and no other task touches it.
                let group = unsafe {
                    std::slice::from_raw_parts_mut(out.at(m * step + g * layout.group_bytes), layout.group_bytes)
                };
                pack_group(
                    &layout,
                    dtype,
                    group,
                    g * GROUP,
                    rows,
                    &bytes[m * row_bytes * rows..(m + 1) * row_bytes * rows],
                    row_bytes,
                );
            };
            match pool {
                Some(pool) => pool.run(count * groups, task),
                None => (0..count * groups).for_each(|i| task(i, 0)),
            }
        }
        _ => {
            for (to, from) in data.bytes_mut().chunks_mut(step).zip(bytes.chunks(len)) {
                to[..len].copy_from_slice(from);
            }
        }
    }
    let data = Arc::new(data);
    Ok((0..count).map(|m| Matrix { dtype, rows, cols, kind, data: Arc::clone(&data), start: m * step, len }).collect())
}

fn pack_group(
    layout: &Layout,
    dtype: DType,
    group: &mut [u8],
    first: usize,
    rows: usize,
    bytes: &[u8],
    row_bytes: usize,
) {
    let mut block = Block::ZERO;
    for r in 0..GROUP.min(rows - first) {
        let row = &bytes[(first + r) * row_bytes..(first + r + 1) * row_bytes];
        for (b, raw) in row.chunks(dtype.block_bytes()).enumerate() {
            block.read(dtype, raw);
            layout.put(group, r, b, &block);
        }
    }
}

/// Turns whole blocks of `dtype` into floats, straight from the file: embedding rows, norms.
pub fn dequantize(dtype: DType, bytes: &[u8], out: &mut [f32]) -> Result<(), PackError> {
    let need = dtype.row_bytes(out.len()).ok_or(PackError::Shape {
        dtype,
        rows: 1,
        cols: out.len(),
        block: dtype.block_len(),
    })?;
    if bytes.len() != need {
        return Err(PackError::Bytes { what: "the row", dtype, need, got: bytes.len() });
    }
    let Some(format) = Format::of(dtype) else {
        match dtype {
            DType::F16 => out
                .iter_mut()
                .zip(bytes.as_chunks::<2>().0)
                .for_each(|(y, b)| *y = half::f16::from_le_bytes(*b).to_f32()),
            DType::BF16 => out
                .iter_mut()
                .zip(bytes.as_chunks::<2>().0)
                .for_each(|(y, b)| *y = half::bf16::from_le_bytes(*b).to_f32()),
            DType::F32 => out.iter_mut().zip(bytes.as_chunks::<4>().0).for_each(|(y, b)| *y = f32::from_le_bytes(*b)),
            _ => return Err(PackError::Foreign(dtype)),
        }
        return Ok(());
    };
    let mut block = Block::ZERO;
    for (raw, ys) in bytes.chunks(dtype.block_bytes()).zip(out.chunks_mut(format.block)) {
        block.read(dtype, raw);
        block.dequantize(&format, ys);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrong_sizes_are_refused() {
        assert!(matches!(Matrix::pack(DType::Q4_K, 2, 100, &[]), Err(PackError::Shape { .. })));
        assert!(matches!(Matrix::pack(DType::Q4_K, 2, 256, &[0; 287]), Err(PackError::Bytes { need: 288, .. })));
        assert!(matches!(Matrix::pack(DType::F32, usize::MAX, 8, &[]), Err(PackError::TooLarge { .. })));
        assert!(dequantize(DType::Q8_0, &[0; 34], &mut [0.0; 33]).is_err());
    }

    #[test]
    fn packing_keeps_every_value_of_every_type() {
        for dtype in DType::ALL {
            let (rows, cols) = (19, 512);
            let bytes = crate::cpu::samples::weights(dtype, rows * cols, 7);
            let mut plain = vec![0.0; rows * cols];
            dequantize(dtype, &bytes, &mut plain).unwrap();
            let pool = Pool::new(2).unwrap();
            let m = Matrix::pack_on(&pool, dtype, rows, cols, &bytes).unwrap();
            let mut row = vec![0.0; cols];
            for r in 0..rows {
                m.dequantize_row(r, &mut row).unwrap();
                assert_eq!(row, plain[r * cols..(r + 1) * cols], "{dtype:?} row {r}");
            }
        }
    }

    #[cfg(feature = "llama")]
    #[test]
    fn values_equal_those_of_ggml() {
        for dtype in DType::ALL {
            let bytes = crate::cpu::samples::weights(dtype, 4096, 3);
            let (mut ours, mut theirs) = (vec![0.0; 4096], vec![0.0; 4096]);
            dequantize(dtype, &bytes, &mut ours).unwrap();
            crate::cpu::samples::ggml_to_float(dtype, &bytes, &mut theirs);
            assert_eq!(ours, theirs, "{dtype:?}");
        }
    }
}
