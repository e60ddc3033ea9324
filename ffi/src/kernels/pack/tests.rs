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

/// A code of five bits: of pair q of two steps the first (inputs 8j, 8j + 1) or the second half-word.
fn fives(out: &mut [u8], (r, k): (usize, usize), code: u8) {
    let (step, half, second, odd) = (k / 32, k % 8 / 4, k % 4 / 2, k % 2);
    let q = step % 2 * 8 + 4 * half + 2 * odd + r / 8;
    let mut put = |line: usize, bits: u16| {
        for (byte, bits) in bits.to_le_bytes().into_iter().enumerate() {
            place(out, line, (r, k - k % 4 + 2 * second + byte), step / 2, bits);
        }
    };
    match q {
        15 => (0..5).for_each(|b| put(b, u16::from(code >> b & 1) << 15)),
        _ => put(q / 3, u16::from(code) << (5 * (q % 3))),
    }
}

/// The codes of one block of one row, as `kernels/pack.cuh` describes them.
fn put_codes(format: &Format, packing: Packing, out: &mut [u8], r: usize, block: &Block) {
    for (k, code) in block.code[..packing.inputs()].iter().enumerate() {
        let (step, half, upper) = (k / 32, k % 8 / 4, r / 8);
        let nibble = |out: &mut [u8], code: u8| {
            place(out, step / 2, (r, k), step % 2 * 2 + half, (code & 15) << (4 * upper));
        };
        match packing {
            Packing::Iq3 => nibble(out, ((format.value(*code) + 15) / 2) as u8),
            Packing::B8 | Packing::K8 => place(out, step, (r, k), 2 * half + upper, format.value(*code) as u8),
            Packing::Q5 => fives(out, (r, k), *code),
            Packing::Q6 => {
                nibble(out, *code);
                place(out, 4 + step / 4, (r, k), step % 4, code >> 4 << (4 * half + 2 * upper));
            }
            _ => nibble(out, *code),
        }
    }
}

/// Its scales: for each g those of row g, then those of row g + 8; of 16 values each, for each g and half of a step.
fn put_scales(format: &Format, packing: Packing, out: &mut [u8], r: usize, block: &Block) {
    let mut at = match packing {
        Packing::B8 => 512,
        Packing::Q5 => 2560,
        Packing::Q6 => 3072,
        Packing::K8 => 4096,
        _ => 2048,
    };
    let subs = if let Packing::Q6 | Packing::K8 = packing { 16 } else { 8 };
    let sub = |s: usize| s * (256 / subs) / format.sub;
    let with_mins = matches!(packing, Packing::Q4 | Packing::Q5 | Packing::K8);
    let scales = (0..subs).map(|s| block.scale[sub(s)] as u8).collect::<Vec<_>>();
    let least = (0..subs).map(|s| block.min[sub(s)]).collect::<Vec<_>>();
    for values in [(packing.inputs() == 256).then_some(scales), (packing.inputs() == 256 && with_mins).then_some(least)]
    {
        let Some(values) = values else { continue };
        let halves = subs / 8;
        for (s, value) in values.iter().enumerate() {
            out[at + 16 * (r % 8 * halves + s % halves) + 8 * (r / 8) + s / halves] = *value;
        }
        at += 16 * subs;
    }
    let mut put = |of_all: usize, bytes: &[u8]| {
        out[at + (r % 8 * 2 + r / 8) * bytes.len()..][..bytes.len()].copy_from_slice(bytes);
        at += of_all;
    };
    if let Packing::B8 | Packing::K8 = packing {
        let min = if format.mins { half::f16::from_bits(block.dmin).to_f32() } else { 0.0 };
        put(64, &format.scale(block.d).to_le_bytes());
        put(64, &(if packing == Packing::K8 { -min } else { min }).to_le_bytes());
        return;
    }
    put(32, &block.d.to_le_bytes());
    if with_mins {
        put(32, &block.dmin.to_le_bytes());
    }
}

fn plainly(dtype: DType, format: &Format, bytes: &[u8]) -> Vec<u8> {
    let packing = Packing::of(dtype, COLS);
    let mut out = vec![0; packing.bytes(ROWS, COLS)];
    let mut block = Block::ZERO;
    let blocks = COLS / packing.inputs();
    for (i, raw) in bytes.chunks(dtype.block_bytes()).enumerate() {
        let (r, b) = (i / blocks, i % blocks);
        block.read(dtype, raw);
        let at = (r / TILE * blocks + b) * packing.block_bytes();
        let out = &mut out[at..][..packing.block_bytes()];
        put_codes(format, packing, out, r % TILE, &block);
        put_scales(format, packing, out, r % TILE, &block);
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
        for (set, found) in on_each(|| Task(&rows, &format, &bytes)) {
            assert!(found == wanted, "{dtype:?} on {set:?}");
        }
        for threads in [1, 2, 5] {
            assert!(pack(dtype, ROWS, COLS, &bytes, threads).unwrap() == wanted, "{dtype:?}, {threads} threads");
        }
    }
}

#[test]
fn other_sizes_than_those_of_the_shape_are_refused() {
    assert!(pack(DType::Q4_K, 16, 256, &[0; 143], 1).is_none(), "too short");
    assert!(Rows::of(DType::IQ3_S, 384).is_none(), "no whole blocks");
    assert!(Rows::of(DType::F32, 0).is_none(), "empty rows");
}
