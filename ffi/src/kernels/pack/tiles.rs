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
    if let Some(tiles) = super::iq3::pack(tiles) {
        wide(tiles);
    }
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
            // Odd values from −15 on, of which the file has magnitudes and signs.
            Packing::Iq3 => block.code.iter_mut().for_each(|c| *c ^= 8 ^ (7 * (*c >> 3 & 1))),
            Packing::B8 | Packing::K8 => {
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
    let size = of.dtype.block_bytes();
    let Some(raw) = rows.get(r * of.row_bytes + b * size..).and_then(|raw| raw.get(..size)) else {
        // Beyond the last row.
        *block = Block::ZERO;
        return;
    };
    reader.read(raw, block);
    by_operand(&mut block.code);
    put_scales(format, of.packing, out, r, block);
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
        Packing::B8 => put_bytes(out, g, &low[..32], &high[..32]),
        Packing::K8 => {
            for (t, out) in out.chunks_exact_mut(512).take(8).enumerate() {
                put_bytes(out, g, &low[32 * t..][..32], &high[32 * t..][..32]);
            }
        }
        Packing::Q4 | Packing::Iq3 => put_nibbles(out, g, low, high),
        Packing::Q5 => put_fives(out, g, low, high),
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

/// Codes of five bits: 16 pairs of two steps in five words, three pairs a word and bit `b` of the last one at the top of
/// word `b`. The four times two steps of a block side by side, by half-words.
#[inline(always)]
fn put_fives(out: &mut [u8], g: usize, low: &[u8; 256], high: &[u8; 256]) {
    let mut pairs = [[0; 32]; 16];
    for (operand, four) in pairs.as_chunks_mut::<4>().0.iter_mut().enumerate() {
        let rows = [operand_of(low, operand), operand_of(high, operand)];
        for (upper, row) in rows.iter().enumerate() {
            (four[upper], four[2 + upper]) = (halves(row, |two| two & 31), halves(row, |two| two >> 8));
        }
    }
    for (w, out) in out.chunks_exact_mut(512).take(5).enumerate() {
        let mut words = [0; 64];
        for (i, two) in words.as_chunks_mut::<2>().0.iter_mut().enumerate() {
            let three = pairs[3 * w][i] | pairs[3 * w + 1][i] << 5 | pairs[3 * w + 2][i] << 10;
            *two = (three | (pairs[15][i] >> w & 1) << 15).to_le_bytes();
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
        Packing::Q4 | Packing::Q5 => {
            let at = if packing == Packing::Q4 { 2048 } else { 2560 };
            bytes(at + 16 * g + 8 * upper, &scales[..8]);
            bytes(at + 128 + 16 * g + 8 * upper, &block.min[..8]);
            bytes(half(at + 256), &block.d.to_le_bytes());
            bytes(half(at + 288), &block.dmin.to_le_bytes());
        }
        Packing::Iq3 => {
            bytes(2048 + 16 * g + 8 * upper, &scales[..8]);
            bytes(half(2176), &block.d.to_le_bytes());
        }
        Packing::Q6 => {
            for (half, of_half) in by_halves(&scales).iter().enumerate() {
                bytes(3072 + 32 * g + 16 * half + 8 * upper, of_half);
            }
            bytes(half(3328), &block.d.to_le_bytes());
        }
        Packing::B8 => {
            bytes(float(512), &format.scale(block.d).to_le_bytes());
            bytes(float(576), &mins.to_le_bytes());
        }
        Packing::K8 => {
            let sub =
                |s: &[u8; 16]| std::array::from_fn::<u8, 16, _>(|i| if format.sub == 32 { s[i / 2] } else { s[i] });
            let (scales, least) = (by_halves(&sub(&scales)), by_halves(&sub(&block.min)));
            for half in 0..2 {
                bytes(4096 + 32 * g + 16 * half + 8 * upper, &scales[half]);
                bytes(4352 + 32 * g + 16 * half + 8 * upper, &least[half]);
            }
            bytes(float(4608), &format.scale(block.d).to_le_bytes());
            bytes(float(4672), &(-mins).to_le_bytes());
        }
    }
}
