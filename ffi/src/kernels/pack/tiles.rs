//! Rows of the file into tiles, two rows at once: those that share bytes, row g and row g + 8. Every line of 64 bytes is
//! made in registers and written once. Plain loops over arrays, compiled for each instruction set (`cpu::wide`).

use super::{Packing, Rows, TILE};
use crate::cpu::format::{Block, Format};
use crate::cpu::{Wide, wide};

/// What one operand of a step takes: 16 inputs of a row.
const OPERAND: usize = 16;

/// Rows to pack, and where to.
pub(super) struct Tiles<'a> {
    pub(super) rows: &'a Rows,
    pub(super) format: &'a Format,
    pub(super) bytes: &'a [u8],
    pub(super) out: &'a mut [u8],
}

/// Reads a block of the file into the codes that the layout takes.
pub(super) trait Read {
    /// Mark it `#[inline(always)]`.
    fn read(&self, raw: &[u8], block: &mut Block);
}

/// Packs with the best instructions that the processor has.
pub(super) fn pack(tiles: Tiles<'_>) {
    wide(tiles);
}

impl Wide for Tiles<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let (rows, format) = (self.rows, self.format);
        let values = std::array::from_fn(|code| format.value(code as u8) as i8 as u8);
        self.all(&AnyType { rows, format, values });
    }
}

struct AnyType<'a> {
    rows: &'a Rows,
    format: &'a Format,
    /// Of the first codes; they are all where the format has a table.
    values: [u8; 16],
}

impl Read for AnyType<'_> {
    #[inline(always)]
    fn read(&self, raw: &[u8], block: &mut Block) {
        block.read(self.rows.dtype, raw);
        match self.rows.packing {
            Packing::B8 | Packing::Q8 => {
                let codes = &mut block.code[..self.format.block];
                match self.format.table {
                    Some(_) => codes.iter_mut().for_each(|c| *c = self.values[usize::from(*c & 15)]),
                    None => codes.iter_mut().for_each(|c| *c = c.wrapping_sub(self.format.offset as u8)),
                }
            }
            _ => {}
        }
    }
}

impl Tiles<'_> {
    /// Every tile, its blocks read by `reader`.
    #[inline(always)]
    pub(super) fn all(self, reader: &impl Read) {
        let tile_bytes = self.rows.tile_bytes();
        let tiles = self.bytes.chunks(TILE * self.rows.row_bytes).zip(self.out.chunks_exact_mut(tile_bytes));
        for (rows, tile) in tiles {
            if rows.len() < TILE * self.rows.row_bytes {
                tile.fill(0);
            }
            for (b, out) in tile.chunks_exact_mut(self.rows.packing.block_bytes()).enumerate() {
                block_of_tile(self.rows, self.format, rows, b, out, reader);
            }
        }
    }
}

/// Block `b` of the rows of one tile.
#[inline(always)]
fn block_of_tile(of: &Rows, format: &Format, rows: &[u8], b: usize, out: &mut [u8], reader: &impl Read) {
    let (mut low, mut high) = (Block::ZERO, Block::ZERO);
    for g in 0..TILE / 2 {
        take(of, format, (rows, g, b), reader, &mut low, out);
        take(of, format, (rows, g + TILE / 2, b), reader, &mut high, out);
        put_codes(of.packing, out, g, &low.code, &high.code);
    }
}

/// Reads block `b` of row `r`, and puts its scales.
#[inline(always)]
fn take(
    of: &Rows,
    format: &Format,
    (rows, r, b): (&[u8], usize, usize),
    reader: &impl Read,
    block: &mut Block,
    out: &mut [u8],
) {
    let (size, count) = (of.dtype.block_bytes(), of.packing.inputs() / format.block);
    let Some(raw) = rows.get(r * of.row_bytes + b * count * size..).and_then(|raw| raw.get(..count * size)) else {
        // Beyond the last row.
        *block = Block::ZERO;
        return;
    };
    if count == 1 {
        reader.read(raw, block);
        put_scales(format, of.packing, out, r, block);
    } else {
        // Several blocks of the file side by side.
        let mut part = Block::ZERO;
        for (t, raw) in raw.chunks_exact(size).enumerate() {
            reader.read(raw, &mut part);
            block.code[32 * t..][..32].copy_from_slice(&part.code[..32]);
            put_part_scale(of.packing, out, (r, t), raw);
        }
    }
    by_operand(&mut block.code);
}

/// Every 32 codes as the operands of a step take them: the first four of each lane's eight, then the other four.
#[inline(always)]
fn by_operand(codes: &mut [u8; 256]) {
    for step in codes.as_chunks_mut::<32>().0 {
        let of_lanes = *step;
        for (i, to) in step.as_chunks_mut::<4>().0.iter_mut().enumerate() {
            to.copy_from_slice(&of_lanes[i % 4 * 8 + i / 4 * 4..][..4]);
        }
    }
}

/// Puts the codes of rows `g` and `g` + 8, each 32 in the order of `by_operand`: those at 32·step + 16·half + 4·j.. belong to
/// lane 4·g + j, and to operand 2·half of the first row, 2·half + 1 of the second. A lane's 16 bytes of nibbles are those of
/// two steps.
#[inline(always)]
fn put_codes(packing: Packing, out: &mut [u8], g: usize, low: &[u8; 256], high: &[u8; 256]) {
    match packing {
        Packing::F32 | Packing::F16 | Packing::BF16 | Packing::H16 | Packing::G16 => {}
        // Packed from the file's own bits (`booked`).
        Packing::Iq3S | Packing::Iq3Xxs => {}
        Packing::B8 | Packing::Q8 => put_bytes(out, g, &low[..32], &high[..32]),
        Packing::Q4 => put_nibbles(out, g, low, high),
        Packing::Iq2 | Packing::Iq4Xs | Packing::Iq4Nl | Packing::Q40 | Packing::Mx4 => put_names(out, g, low, high),
        Packing::Q5 => put_pairs::<5>(out, g, low, high),
        Packing::Q3 => put_pairs::<3>(out, g, low, high),
        Packing::Q2 => put_pairs::<2>(out, g, low, high),
        Packing::Q6 => {
            put_nibbles(out, g, low, high);
            for (part, out) in out[2048..].chunks_exact_mut(512).take(2).enumerate() {
                put_sixths(out, g, &low[128 * part..][..128], &high[128 * part..][..128]);
            }
        }
    }
}

/// Writes the line of row `g` among 512 bytes for 32 lanes: word 4·at + j is place `at` of lane j.
#[inline(always)]
fn put_line(out: &mut [u8], g: usize, words: &[u8; 64]) {
    let words = words.as_chunks::<4>().0;
    let mut line = [0; 64];
    for (i, to) in line.as_chunks_mut::<4>().0.iter_mut().enumerate() {
        *to = words[4 * (i % 4) + i / 4];
    }
    out[64 * g..][..64].copy_from_slice(&line);
}

/// Whole bytes of a step.
#[inline(always)]
fn put_bytes(out: &mut [u8], g: usize, low: &[u8], high: &[u8]) {
    let mut words = [0; 64];
    for half in 0..2 {
        let from = OPERAND * half..OPERAND * (half + 1);
        words[32 * half..][..OPERAND].copy_from_slice(&low[from.clone()]);
        words[32 * half + OPERAND..][..OPERAND].copy_from_slice(&high[from]);
    }
    put_line(out, g, &words);
}

/// The lower four bits: two steps a line, the second row's above the first's.
#[inline(always)]
fn put_nibbles(out: &mut [u8], g: usize, low: &[u8; 256], high: &[u8; 256]) {
    let lines = low.as_chunks::<64>().0.iter().zip(high.as_chunks::<64>().0);
    for ((low, high), out) in lines.zip(out.chunks_exact_mut(512)) {
        let mut words = [0; 64];
        for ((w, a), b) in words.iter_mut().zip(low).zip(high) {
            *w = a & 15 | b << 4;
        }
        put_line(out, g, &words);
    }
}

/// Names of values: two steps a line, four codes of the first row and then four of the second in a word.
#[inline(always)]
fn put_names(out: &mut [u8], g: usize, low: &[u8; 256], high: &[u8; 256]) {
    let lines = low.as_chunks::<64>().0.iter().zip(high.as_chunks::<64>().0);
    for ((low, high), out) in lines.zip(out.chunks_exact_mut(512)) {
        let mut words = [0; 64];
        let both = low.as_chunks::<4>().0.iter().zip(high.as_chunks::<4>().0);
        for (word, (a, b)) in words.as_chunks_mut::<4>().0.iter_mut().zip(both) {
            let two = |codes: &[u8; 4], i: usize| codes[i] & 15 | codes[i + 1] << 4;
            *word = [two(a, 0), two(a, 2), two(b, 0), two(b, 2)];
        }
        put_line(out, g, &words);
    }
}

/// Codes of B bits: 16 pairs of two steps in B words, as many pairs a word as find room; where that leaves one, its bit `b` is
/// at the top of word `b`. The four times two steps of a block side by side, by half-words.
#[inline(always)]
fn put_pairs<const B: usize>(out: &mut [u8], g: usize, low: &[u8; 256], high: &[u8; 256]) {
    let (each, mask) = (16 / B, (1 << B) - 1);
    let mut pairs = [[0; 32]; 16];
    for (operand, four) in pairs.as_chunks_mut::<4>().0.iter_mut().enumerate() {
        let rows = [operand_of(low, operand), operand_of(high, operand)];
        for (upper, row) in rows.iter().enumerate() {
            (four[upper], four[2 + upper]) = (halves(row, |two| two & mask), halves(row, |two| two >> 8));
        }
    }
    for (w, out) in out.chunks_exact_mut(512).take(B).enumerate() {
        let mut words = [0; 64];
        for (i, two) in words.as_chunks_mut::<2>().0.iter_mut().enumerate() {
            let last = if B * each < 16 { (pairs[15][i] >> w & 1) << 15 } else { 0 };
            let mut word = last;
            for n in 0..each {
                word |= pairs[each * w + n][i] << (B * n);
            }
            *two = word.to_le_bytes();
        }
        put_line(out, g, &words);
    }
}

#[inline(always)]
fn halves(from: &[u16; 32], f: impl Fn(u16) -> u16) -> [u16; 32] {
    let mut out = [0; 32];
    for (to, from) in out.iter_mut().zip(from) {
        *to = f(*from);
    }
    out
}

/// Of every two steps the 16 inputs of one operand, 2·step + half, as half-words of two codes.
#[inline(always)]
fn operand_of(codes: &[u8; 256], operand: usize) -> [u16; 32] {
    let mut out = [0; 32];
    for (out, codes) in out.as_chunks_mut::<8>().0.iter_mut().zip(codes.as_chunks::<64>().0) {
        let codes = &codes.as_chunks::<OPERAND>().0[operand];
        for (to, two) in out.iter_mut().zip(codes.as_chunks::<2>().0) {
            *to = u16::from_le_bytes(*two);
        }
    }
    out
}

/// Fifth and sixth bits: two for each operand of a step, four steps in a line.
#[inline(always)]
fn put_sixths(out: &mut [u8], g: usize, low: &[u8], high: &[u8]) {
    let mut words = [0; 64];
    let steps = low.as_chunks::<32>().0.iter().zip(high.as_chunks::<32>().0);
    for ((low, high), words) in steps.zip(words.as_chunks_mut::<OPERAND>().0) {
        let mut bits = [0; 32];
        for ((w, a), b) in bits.iter_mut().zip(low).zip(high) {
            *w = a >> 4 & 3 | (b >> 4 & 3) << 2;
        }
        for (i, w) in words.iter_mut().enumerate() {
            *w = bits[i] | bits[16 + i] << 4;
        }
    }
    put_line(out, g, &words);
}

/// Those of the first halves of the steps, and of the second ones.
#[inline(always)]
fn by_halves(of_steps: &[u8; 16]) -> [[u8; 8]; 2] {
    std::array::from_fn(|half| std::array::from_fn(|t| of_steps[2 * t + half]))
}

/// Two nibbles a byte, the first one lower.
#[inline(always)]
fn by_nibbles(of_steps: &[u8; 8]) -> [u8; 4] {
    std::array::from_fn(|i| of_steps[2 * i] | of_steps[2 * i + 1] << 4)
}

/// Puts the scale of block `t` of the file among those of row `r`: a half, or an exponent.
#[inline(always)]
fn put_part_scale(packing: Packing, out: &mut [u8], (r, t): (usize, usize), raw: &[u8]) {
    let (g, upper) = (r % 8, r / 8);
    match packing {
        Packing::Mx4 => out[2048 + 16 * g + 8 * upper + t] = raw[0],
        _ => out[2048 + 32 * g + 4 * t + 2 * upper..][..2].copy_from_slice(&raw[..2]),
    }
}

/// Puts the scales of row `r`.
#[inline(always)]
fn put_scales(format: &Format, packing: Packing, out: &mut [u8], r: usize, block: &Block) {
    let (g, upper) = (r % 8, r / 8);
    let mut bytes = |at: usize, values: &[u8]| out[at..at + values.len()].copy_from_slice(values);
    let scales: [u8; 16] = block.scale.map(|s| s as u8);
    let half = |at: usize| at + 4 * g + 2 * upper;
    let float = |at: usize| at + 8 * g + 4 * upper;
    let mins = if format.mins { half::f16::from_bits(block.dmin).to_f32() } else { 0.0 };
    match packing {
        Packing::F32 | Packing::F16 | Packing::BF16 | Packing::H16 | Packing::G16 => {}
        Packing::Iq3S | Packing::Iq3Xxs => {}
        // As each of their blocks is read.
        Packing::Iq4Nl | Packing::Q40 | Packing::Mx4 => {}
        Packing::Q4 | Packing::Q5 => {
            let at = if packing == Packing::Q4 { 2048 } else { 2560 };
            bytes(at + 16 * g + 8 * upper, &scales[..8]);
            bytes(at + 128 + 16 * g + 8 * upper, &block.min[..8]);
            bytes(half(at + 256), &block.d.to_le_bytes());
            bytes(half(at + 288), &block.dmin.to_le_bytes());
        }
        Packing::Iq4Xs => {
            bytes(2048 + 16 * g + 8 * upper, &scales[..8]);
            bytes(half(2176), &block.d.to_le_bytes());
        }
        Packing::Q6 | Packing::Q3 | Packing::Iq2 => {
            let at = match packing {
                Packing::Q6 => 3072,
                Packing::Q3 => 1536,
                _ => 2048,
            };
            // IQ2_XXS has one for 32.
            let each = if format.sub == 32 { std::array::from_fn(|i| scales[i / 2]) } else { scales };
            for (half, of_half) in by_halves(&each).iter().enumerate() {
                bytes(at + 32 * g + 16 * half + 8 * upper, of_half);
            }
            bytes(half(at + 256), &block.d.to_le_bytes());
        }
        Packing::Q2 => {
            let (scales, least) = (by_halves(&scales), by_halves(&block.min));
            for half in 0..2 {
                for (part, of_steps) in [(0, &scales[half]), (8, &least[half])] {
                    let four = by_nibbles(of_steps);
                    let at = 1024 + 32 * g + 16 * half + part + 2 * upper;
                    bytes(at, &four[..2]);
                    bytes(at + 4, &four[2..]);
                }
            }
            bytes(half(1280), &block.d.to_le_bytes());
            bytes(half(1312), &block.dmin.to_le_bytes());
        }
        Packing::Q8 => bytes(half(512), &block.d.to_le_bytes()),
        Packing::B8 => {
            bytes(float(512), &format.scale(block.d).to_le_bytes());
            bytes(float(576), &mins.to_le_bytes());
        }
    }
}
