//! How weights lie on the device: the twin of `kernels/pack.cuh`, which describes the layouts. Every quantised type
//! of the file format goes into one of six, with its exact values; floats stay as they are.

use crate::DType;
use crate::cpu::format::{Block, Format};

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
    Iq3 = 4,
    Q5 = 5,
    Q6 = 6,
    /// Any other type in blocks of 32.
    B8 = 7,
    /// Any other type in blocks of 256.
    K8 = 8,
}

impl Packing {
    pub fn of(dtype: DType) -> Packing {
        match dtype {
            DType::F32 => Packing::F32,
            DType::F16 => Packing::F16,
            DType::BF16 => Packing::BF16,
            DType::Q4_K => Packing::Q4,
            DType::IQ3_S => Packing::Iq3,
            DType::Q5_K => Packing::Q5,
            DType::Q6_K => Packing::Q6,
            other if other.block_len() == 32 => Packing::B8,
            _ => Packing::K8,
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
            Packing::B8 => 32,
            _ => 256,
        }
    }

    /// Bytes of a block of 16 rows; of one value where it is a float.
    pub fn block_bytes(self) -> usize {
        match self {
            Packing::F32 => 4,
            Packing::F16 | Packing::BF16 => 2,
            Packing::Q4 => 2_368,
            Packing::Iq3 => 2_208,
            Packing::Q5 => 2_880,
            Packing::Q6 => 3_360,
            Packing::B8 => 640,
            Packing::K8 => 4_736,
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
            Packing::F32 | Packing::F16 | Packing::BF16 => Vec::new(),
            // 20·2^-13·code − 155·2^-12: centred on 15.5.
            Packing::Q5 => [vec![20; 128], vec![155; 128], half(0x0800), half(0x0c00)].concat(),
            Packing::Q4 => [vec![40; 128], vec![150; 128], half(0x0800), half(0x0c00)].concat(),
            Packing::Iq3 => [vec![20; 128], half(0x0800)].concat(),
            Packing::Q6 => [vec![10; 256], half(0x0800)].concat(),
            Packing::B8 => [floats(3e-4), floats(0.0)].concat(),
            Packing::K8 => [vec![1; 256], vec![0; 256], floats(3e-4), floats(0.0)].concat(),
        }
    }
}

/// Packs a matrix of the file (`rows` whole rows of `dtype`) with `threads` threads; `None` if the sizes disagree.
pub fn pack(dtype: DType, rows: usize, cols: usize, bytes: &[u8], threads: usize) -> Option<Vec<u8>> {
    let packing = Packing::of(dtype);
    let row_bytes = dtype.row_bytes(cols)?;
    if bytes.len() != row_bytes.checked_mul(rows)? {
        return None;
    }
    let Some(format) = Format::of(dtype) else { return Some(bytes.to_vec()) };
    let tile_bytes = cols / packing.inputs() * packing.block_bytes();
    let mut out = vec![0; packing.bytes(rows, cols)];
    let share = rows.div_ceil(TILE).div_ceil(threads.max(1)).max(1);
    std::thread::scope(|scope| {
        let parts = out.chunks_mut(share * tile_bytes).zip(bytes.chunks(share * TILE * row_bytes));
        for (tiles, rows) in parts {
            scope.spawn(move || {
                for (tile, rows) in tiles.chunks_mut(tile_bytes).zip(rows.chunks(TILE * row_bytes)) {
                    pack_tile(dtype, &format, packing, tile, rows, row_bytes);
                }
            });
        }
    });
    Some(out)
}

fn pack_tile(dtype: DType, format: &Format, packing: Packing, tile: &mut [u8], rows: &[u8], row_bytes: usize) {
    let mut block = Block::ZERO;
    for (r, row) in rows.chunks(row_bytes).enumerate() {
        for (raw, out) in row.chunks(dtype.block_bytes()).zip(tile.chunks_mut(packing.block_bytes())) {
            block.read(dtype, raw);
            put_codes(format, packing, out, r, &block);
            put_scales(format, packing, out, r, &block);
        }
    }
}

/// Puts the codes of row `r`, four inputs at once: those of word 8·step + 4·half + j (inputs 4 times that) belong to lane
/// 4·(r mod 8) + j and to operand 2·half + r / 8. A lane's 16 bytes of nibbles are those of two steps.
fn put_codes(format: &Format, packing: Packing, out: &mut [u8], r: usize, block: &Block) {
    let upper = r / 8;
    let mut codes = block.code;
    match packing {
        // Odd values from −15 on, of which the file has magnitudes and signs.
        Packing::Iq3 => codes.iter_mut().for_each(|c| *c ^= 8 ^ (7 * (*c >> 3 & 1))),
        Packing::B8 | Packing::K8 => codes.iter_mut().for_each(|c| *c = format.value(*c) as i8 as u8),
        _ => {}
    }
    let mut words = [0; 64];
    for (word, four) in words.iter_mut().zip(codes.as_chunks().0) {
        *word = u32::from_le_bytes(*four);
    }
    // The lanes of this row, of every 512 bytes for 32 lanes.
    let mut lanes = out.as_chunks_mut::<512>().0.iter_mut().map(|all| lanes_of(all, r % 8));
    if let Packing::B8 | Packing::K8 = packing {
        for (lanes, step) in lanes.by_ref().take(packing.inputs() / 32).zip(words.as_chunks::<8>().0) {
            for (j, lane) in lanes.iter_mut().enumerate() {
                join(lane, upper, step[j]);
                join(lane, 2 + upper, step[4 + j]);
            }
        }
        return;
    }
    if packing == Packing::Q5 {
        let mut words_of = lanes.take(5).collect::<Vec<_>>();
        return put_fives(&mut words_of, upper, &words);
    }
    for (lanes, two) in lanes.by_ref().take(4).zip(words.as_chunks::<16>().0) {
        for (j, lane) in lanes.iter_mut().enumerate() {
            for (at, word) in [two[j], two[4 + j], two[8 + j], two[12 + j]].into_iter().enumerate() {
                join(lane, at, (word & 0x0f0f_0f0f) << (4 * upper));
            }
        }
    }
    if packing != Packing::Q6 {
        return;
    }
    // Two bits for each operand of a step, four steps in 16 bytes.
    let high = words.map(|word| word >> 4 & 0x0f0f_0f0f);
    for (lanes, four) in lanes.take(2).zip(high.as_chunks::<32>().0) {
        for (j, lane) in lanes.iter_mut().enumerate() {
            for (at, step) in four.as_chunks::<8>().0.iter().enumerate() {
                join(lane, at, (step[j] | step[4 + j] << 4) << (2 * upper));
            }
        }
    }
}

/// Codes of five bits: 16 pairs of two steps in five words, three pairs a word and bit b of the last one at the top of word b.
fn put_fives(lanes: &mut [&mut [[u8; 16]; 4]], upper: usize, words: &[u32; 64]) {
    const PAIR: u32 = 0x001f_001f;
    for (at, word) in words.iter().enumerate() {
        let (step, half, j) = (at / 8, at / 4 % 2, at % 4);
        for (odd, pair) in [word & PAIR, word >> 8 & PAIR].into_iter().enumerate() {
            let q = step % 2 * 8 + 4 * half + 2 * odd + upper;
            match q {
                15 => (0..5).for_each(|b| join(&mut lanes[b][j], step / 2, (pair >> b & 0x0001_0001) << 15)),
                _ => join(&mut lanes[q / 3][j], step / 2, pair << (5 * (q % 3))),
            }
        }
    }
}

/// The four lanes of row `g` and of row `g` + 8, 16 bytes each.
fn lanes_of(all: &mut [u8; 512], g: usize) -> &mut [[u8; 16]; 4] {
    &mut all.as_chunks_mut().0.as_chunks_mut().0[g]
}

/// Adds bits to word `at` of a lane.
fn join(lane: &mut [u8; 16], at: usize, bits: u32) {
    let word = &mut lane.as_chunks_mut::<4>().0[at];
    *word = (u32::from_le_bytes(*word) | bits).to_le_bytes();
}

fn put_scales(format: &Format, packing: Packing, out: &mut [u8], r: usize, block: &Block) {
    let (g, upper) = (r % 8, r / 8);
    let mut bytes = |at: usize, values: &[u8]| out[at..at + values.len()].copy_from_slice(values);
    let scales: [u8; 16] = block.scale.map(|s| s as u8);
    let half = |at: usize| at + 4 * g + 2 * upper;
    let float = |at: usize| at + 8 * g + 4 * upper;
    let mins = if format.mins { half::f16::from_bits(block.dmin).to_f32() } else { 0.0 };
    match packing {
        Packing::F32 | Packing::F16 | Packing::BF16 => {}
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
            bytes(3072 + 32 * g + 16 * upper, &scales);
            bytes(half(3328), &block.d.to_le_bytes());
        }
        Packing::B8 => {
            bytes(float(512), &format.scale(block.d).to_le_bytes());
            bytes(float(576), &mins.to_le_bytes());
        }
        Packing::K8 => {
            let sub =
                |s: &[u8; 16]| std::array::from_fn::<u8, 16, _>(|i| if format.sub == 32 { s[i / 2] } else { s[i] });
            bytes(4096 + 32 * g + 16 * upper, &sub(&scales));
            bytes(4352 + 32 * g + 16 * upper, &sub(&block.min));
            bytes(float(4608), &format.scale(block.d).to_le_bytes());
            bytes(float(4672), &(-mins).to_le_bytes());
        }
    }
}
