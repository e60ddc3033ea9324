//! The layouts written down value by value, against what every instruction set makes.

use super::*;
use crate::cpu::format::Block;
use crate::cpu::{Wide, on_each};
use crate::samples::weights;

/// A tile and a part of another, of two blocks of 256.
const ROWS: usize = 21;
const COLS: usize = 512;

/// Adds bits of input `k` of row `r` to the place of its operand: 16 bytes a lane, a byte for the input in its word.
fn place(out: &mut [u8], line: usize, (r, k): (usize, usize), word: usize, bits: u8) {
    let (lane, byte) = (4 * (r % 8) + k % 32 / 8, k % 4);
    out[512 * line + 16 * lane + 4 * word + byte] |= bits;
}

/// A code of `bits` bits: of pair q of two steps the first (inputs 8j, 8j + 1) or the second half-word.
fn pairs(out: &mut [u8], bits: usize, (r, k): (usize, usize), code: u8) {
    let (step, half, second, odd) = (k / 32, k % 8 / 4, k % 4 / 2, k % 2);
    let (q, each) = (step % 2 * 8 + 4 * half + 2 * odd + r / 8, 16 / bits);
    let mut put = |line: usize, bits: u16| {
        for (byte, bits) in bits.to_le_bytes().into_iter().enumerate() {
            place(out, line, (r, k - k % 4 + 2 * second + byte), step / 2, bits);
        }
    };
    if q == bits * each {
        (0..bits).for_each(|b| put(b, u16::from(code >> b & 1) << 15));
    } else {
        put(q / each, u16::from(code) << (bits * (q % each)));
    }
}

/// The codes of one block of one row, from input `first` on, as `kernels/pack.cuh` and `named.cuh` describe them.
fn put_codes(format: &Format, packing: Packing, out: &mut [u8], (r, first): (usize, usize), block: &Block) {
    for (i, code) in block.code[..format.block].iter().enumerate() {
        let k = first + i;
        let (step, half, upper) = (k / 32, k % 8 / 4, r / 8);
        let nibble = |out: &mut [u8], code: u8| {
            place(out, step / 2, (r, k), step % 2 * 2 + half, (code & 15) << (4 * upper));
        };
        match packing {
            Packing::B8 | Packing::Q8 => place(out, step, (r, k), 2 * half + upper, format.value(*code) as u8),
            Packing::Iq2 | Packing::Iq4Xs | Packing::Iq4Nl | Packing::Q40 | Packing::Mx4 => {
                // Four codes of a row are two bytes of a word.
                let byte = 2 * upper + k % 4 / 2;
                place(out, step / 2, (r, k - k % 4 + byte), step % 2 * 2 + half, (code & 15) << (4 * (k % 2)));
            }
            Packing::Q5 => pairs(out, 5, (r, k), *code),
            Packing::Q3 => pairs(out, 3, (r, k), *code),
            Packing::Q2 => pairs(out, 2, (r, k), *code),
            Packing::Q6 => {
                nibble(out, *code);
                place(out, 4 + step / 4, (r, k), step % 4, code >> 4 << (4 * half + 2 * upper));
            }
            _ => nibble(out, *code),
        }
    }
}

/// The scales of block `b` of the file within a packed one: for each g those of row g, then those of row g + 8; of 16 values each,
/// for each g and half of a step.
fn put_scales(format: &Format, packing: Packing, out: &mut [u8], (r, b): (usize, usize), block: &Block) {
    let (g, upper) = (r % 8, r / 8);
    let mut put = |at: usize, bytes: &[u8]| out[at..at + bytes.len()].copy_from_slice(bytes);
    let (d, dmin) = (block.d.to_le_bytes(), block.dmin.to_le_bytes());
    // Where scales begin, how many a row has, whether there are least values.
    let (at, subs, mins) = match packing {
        Packing::Q4 => (2048, 8, true),
        Packing::Q5 => (2560, 8, true),
        Packing::Iq4Xs => (2048, 8, false),
        Packing::Q6 => (3072, 16, false),
        Packing::Q3 => (1536, 16, false),
        Packing::Iq2 => (2048, 16, false),
        Packing::Q2 => {
            for (s, (scale, min)) in block.scale.iter().zip(block.min).enumerate() {
                let (step, half) = (s / 2, s % 2);
                let at = 1024 + 32 * g + 16 * half + step / 4 * 4 + 2 * upper + step % 4 / 2;
                out[at] |= (*scale as u8) << (4 * (step % 2));
                out[at + 8] |= min << (4 * (step % 2));
            }
            out[1280 + 4 * g + 2 * upper..][..2].copy_from_slice(&d);
            out[1312 + 4 * g + 2 * upper..][..2].copy_from_slice(&dmin);
            return;
        }
        Packing::Q8 => return put(512 + 4 * g + 2 * upper, &d),
        Packing::Iq4Nl | Packing::Q40 => return put(2048 + 32 * g + 4 * b + 2 * upper, &d),
        Packing::Mx4 => {
            let exponent = (0..=255_u8).find(|e| format.scale(block.d) == (f32::from(*e) - 128.0).exp2());
            return put(2048 + 16 * g + 8 * upper + b, &[exponent.unwrap()]);
        }
        _ => {
            let min = if format.mins { half::f16::from_bits(block.dmin).to_f32() } else { 0.0 };
            put(512 + 8 * g + 4 * upper, &format.scale(block.d).to_le_bytes());
            return put(576 + 8 * g + 4 * upper, &min.to_le_bytes());
        }
    };
    for (part, values) in [block.scale.map(|v| v as u8), block.min].iter().take(1 + usize::from(mins)).enumerate() {
        let halves = subs / 8;
        for s in 0..subs {
            let value = values[s * (256 / subs) / format.sub];
            put(at + 16 * subs * part + 16 * (g * halves + s % halves) + 8 * upper + s / halves, &[value]);
        }
    }
    let tail = at + 16 * subs * (1 + usize::from(mins));
    put(tail + 4 * g + 2 * upper, &d);
    if mins {
        put(tail + 32 + 4 * g + 2 * upper, &dmin);
    }
}

/// A block of IQ3_S or IQ3_XXS, bit by bit of the file, as `kernels/named.cuh` describes it.
fn put_booked(dtype: DType, out: &mut [u8], r: usize, raw: &[u8]) {
    let (g, upper) = (r % 8, r / 8);
    let bit = |at: usize, n: usize| raw[at + n / 8] >> (n % 8) & 1;
    let (nine, scales) = if dtype == DType::IQ3_S { (true, 1664) } else { (false, 1536) };
    out[scales + 64 + 4 * g + 2 * upper..][..2].copy_from_slice(&raw[..2]);
    for i in 0..64 {
        let (t, j, m) = (i / 8, i % 8 / 2, i % 2);
        let (lane, operand) = (4 * g + j, 2 * m + upper);
        out[t / 4 * 512 + 16 * lane + t % 4 * 4 + operand] = raw[2 + i];
        if nine {
            let at = 4 * t + operand;
            out[1536 + 4 * lane + at / 8] |= bit(66, i) << (at % 8);
        }
        for b in 0..4 {
            let signs = 8 * t + 2 * j + m;
            // Of the eight signs of IQ3_XXS seven are there; their number is even.
            let seven = |n: usize| bit(66 + 4 * t, 7 * j + n);
            let sign = match (nine, 4 * m + b) {
                (true, _) => bit(74, 4 * signs + b),
                (false, 7) => (0..7).map(seven).fold(0, |a, b| a ^ b),
                (false, n) => seven(n),
            };
            let at = 16 * (b / 2) + 15 - (8 * (t % 2) + 4 * m + 2 * (b % 2) + upper);
            out[1024 + 16 * lane + t / 2 * 4 + at / 8] |= sign << (at % 8);
        }
    }
    for t in 0..8 {
        let scale = if nine { raw[106 + t / 2] >> (4 * (t % 2)) & 15 } else { raw[69 + 4 * t] >> 4 };
        out[scales + 8 * g + t / 4 * 4 + 2 * upper + t % 4 / 2] |= scale << (4 * (t % 2));
    }
}

fn plainly(dtype: DType, format: &Format, bytes: &[u8]) -> Vec<u8> {
    let packing = Packing::of(dtype, COLS);
    let mut out = vec![0; packing.bytes(ROWS, COLS)];
    let mut block = Block::ZERO;
    // Packed blocks of a row, and blocks of the file in each.
    let (blocks, parts) = (COLS / packing.inputs(), packing.inputs() / format.block);
    for (i, raw) in bytes.chunks(dtype.block_bytes()).enumerate() {
        let (r, b, part) = (i / (blocks * parts), i / parts % blocks, i % parts);
        block.read(dtype, raw);
        let at = (r / TILE * blocks + b) * packing.block_bytes();
        let out = &mut out[at..][..packing.block_bytes()];
        if let Packing::Iq3S | Packing::Iq3Xxs = packing {
            put_booked(dtype, out, r % TILE, raw);
            continue;
        }
        put_codes(format, packing, out, (r % TILE, part * format.block), &block);
        put_scales(format, packing, out, (r % TILE, part), &block);
    }
    out
}

/// Values of sixteen bits: input k of row r is half `k % 4 / 2` of word 2·(k odd) + (r > 7) of a lane's 16 bytes.
fn operands(bytes: &[u8]) -> Vec<u8> {
    let mut out = vec![0; Packing::H16.bytes(ROWS, COLS)];
    for (i, value) in bytes.as_chunks::<2>().0.iter().enumerate() {
        let (row, col) = (i / COLS, i % COLS);
        let (r, k, lane) = (row % TILE, col % 32, 4 * (row % 8) + col % 32 / 8);
        let block = row / TILE * (COLS / 32) + col / 32;
        let at = 1_024 * block + 512 * (k % 8 / 4) + 16 * lane + 4 * (k % 2 * 2 + r / 8) + 2 * (k % 4 / 2);
        out[at..at + 2].copy_from_slice(value);
    }
    out
}

/// The tiles, into memory that held something else.
struct Task<'a>(&'a Rows, &'a Format, &'a [u8]);

impl Wide for Task<'_> {
    type Output = Vec<u8>;

    #[inline(always)]
    fn run(self) -> Vec<u8> {
        let mut out = vec![0xa5; self.0.packing.bytes(ROWS, COLS)];
        Tiles { rows: self.0, format: self.1, bytes: self.2, out: &mut out }.run();
        out
    }
}

#[test]
fn every_instruction_set_packs_the_bytes_that_the_layouts_describe() {
    for dtype in DType::ALL {
        let bytes = weights(dtype, ROWS * COLS, 5);
        let rows = Rows::of(dtype, COLS).unwrap();
        let Some(format) = Format::of(dtype) else {
            let wanted = if dtype == DType::F32 { bytes.clone() } else { operands(&bytes) };
            for threads in [1, 2, 5] {
                assert!(pack(dtype, ROWS, COLS, &bytes, threads).unwrap() == wanted, "{dtype:?}, {threads} threads");
            }
            continue;
        };
        let wanted = plainly(dtype, &format, &bytes);
        let booked = matches!(dtype, DType::IQ3_S | DType::IQ3_XXS);
        for (set, found) in on_each(|| Task(&rows, &format, &bytes)).into_iter().filter(|_| !booked) {
            assert!(found == wanted, "{dtype:?} on {set:?}");
        }
        for threads in [1, 2, 5] {
            assert!(pack(dtype, ROWS, COLS, &bytes, threads).unwrap() == wanted, "{dtype:?}, {threads} threads");
        }
    }
}

#[test]
fn layouts_have_the_size_of_the_file_or_little_more() {
    use DType::*;
    // Per cent that a matrix of whole blocks grows by. The others have no layout of their own.
    let grown = [
        (Q2_K, 0.0),
        (Q3_K, 3.7),
        (Q4_K, 2.8),
        (Q5_K, 2.3),
        (Q6_K, 0.0),
        (Q8_0, 0.0),
        (Q4_0, 0.0),
        (IQ4_NL, 0.0),
        (MXFP4, 0.0),
        (IQ4_XS, 1.5),
        (IQ3_S, 0.0),
        (IQ3_XXS, 4.1),
        (F16, 0.0),
        (BF16, 0.0),
        (F32, 0.0),
    ];
    for (dtype, limit) in grown {
        let (file, card) = (dtype.row_bytes(COLS).unwrap() * 32, Packing::of(dtype, COLS).bytes(32, COLS));
        let found = 100.0 * (card as f64 / file as f64 - 1.0);
        assert!((0.0..=limit).contains(&found), "{dtype:?} grows by {found} %");
    }
}

#[test]
fn other_sizes_than_those_of_the_shape_are_refused() {
    assert!(pack(DType::Q4_K, 16, 256, &[0; 143], 1).is_none(), "too short");
    assert!(Rows::of(DType::IQ3_S, 384).is_none(), "no whole blocks");
    assert!(Rows::of(DType::F32, 0).is_none(), "empty rows");
}
