//! IQ3_S and IQ3_XXS: indices, signs and scales of the file, moved to where lanes take them. The codebook stays with the kernels.

use super::{Packing, Rows, TILE};

/// Of each eight values of a row their signs as the lane's two words of a step have them, for the first row and the first of
/// two steps: those of values 4·m + b are at bit 15 − 4·m − 2·(b odd) of half b / 2.
static SIGNS: [u32; 256] = {
    let mut out = [0; 256];
    let mut signs = 0;
    while signs < 256 {
        let mut i = 0;
        while i < 8 {
            let (m, b) = (i / 4, i % 4);
            let bit = 15 - 4 * m - 2 * (b % 2) + 16 * (b / 2);
            out[signs] |= ((signs >> i & 1) as u32) << bit;
            i += 1;
        }
        signs += 1;
    }
    out
};

/// Where the parts of a block begin.
const SIGNS_AT: usize = 1024;
const HIGH_AT: usize = 1536;

/// A block of a row of the file.
trait Raw {
    const BYTES: usize;
    /// Where its scales go.
    const SCALES_AT: usize;
    /// Signs of step t, eight values a byte.
    fn signs(raw: &[u8], t: usize) -> [u8; 4];
    /// Ninth bits of the eight indices of step t.
    fn high(raw: &[u8], t: usize) -> u8;
    fn scale(raw: &[u8], t: usize) -> u8;
}

struct Iq3S;

impl Raw for Iq3S {
    const BYTES: usize = 110;
    const SCALES_AT: usize = 1664;
    #[inline(always)]
    fn signs(raw: &[u8], t: usize) -> [u8; 4] {
        four(raw, 74 + 4 * t)
    }
    #[inline(always)]
    fn high(raw: &[u8], t: usize) -> u8 {
        raw[66 + t]
    }
    #[inline(always)]
    fn scale(raw: &[u8], t: usize) -> u8 {
        raw[106 + t / 2] >> (4 * (t % 2)) & 15
    }
}

struct Iq3Xxs;

impl Raw for Iq3Xxs {
    const BYTES: usize = 98;
    const SCALES_AT: usize = 1536;
    #[inline(always)]
    fn signs(raw: &[u8], t: usize) -> [u8; 4] {
        let all = u32::from_le_bytes(four(raw, 66 + 4 * t));
        std::array::from_fn(|j| {
            let seven = (all >> (7 * j)) as u8 & 127;
            // The eighth makes their number even.
            seven | (seven.count_ones() as u8 & 1) << 7
        })
    }
    #[inline(always)]
    fn high(_: &[u8], _: usize) -> u8 {
        0
    }
    #[inline(always)]
    fn scale(raw: &[u8], t: usize) -> u8 {
        raw[69 + 4 * t] >> 4
    }
}

fn four(raw: &[u8], at: usize) -> [u8; 4] {
    [raw[at], raw[at + 1], raw[at + 2], raw[at + 3]]
}

/// The tiles of whole rows; what the last tile lacks is zero.
pub(super) fn pack(of: &Rows, rows: &[u8], out: &mut [u8]) {
    match of.packing {
        Packing::Iq3S => tiles::<Iq3S>(of, rows, out),
        _ => tiles::<Iq3Xxs>(of, rows, out),
    }
}

fn tiles<R: Raw>(of: &Rows, rows: &[u8], out: &mut [u8]) {
    let tiles = rows.chunks(TILE * of.row_bytes).zip(out.chunks_exact_mut(of.tile_bytes()));
    for (rows, tile) in tiles {
        for (b, out) in tile.chunks_exact_mut(of.packing.block_bytes()).enumerate() {
            out.fill(0);
            for (r, row) in rows.chunks_exact(of.row_bytes).enumerate() {
                block_of_row::<R>(&row[b * R::BYTES..][..R::BYTES], r, out);
            }
        }
    }
}

/// Row `r` of a block; its place held zeros.
fn block_of_row<R: Raw>(raw: &[u8], r: usize, out: &mut [u8]) {
    let (g, upper) = (r % 8, r / 8);
    out[R::SCALES_AT + 64 + 4 * g + 2 * upper..][..2].copy_from_slice(&raw[..2]);
    for t in 0..8 {
        let indices = &raw[2 + 8 * t..][..8];
        for (j, two) in indices.as_chunks::<2>().0.iter().enumerate() {
            let at = t / 4 * 512 + (4 * g + j) * 16 + t % 4 * 4 + upper;
            (out[at], out[at + 2]) = (two[0], two[1]);
        }
        let scale = R::SCALES_AT + 8 * g + t / 4 * 4 + 2 * upper + t % 4 / 2;
        out[scale] |= R::scale(raw, t) << (4 * (t % 2));
    }
    for (j, lane) in (4 * g..4 * g + 4).enumerate() {
        for u in 0..4 {
            let of_step = |t: usize| SIGNS[usize::from(R::signs(raw, t)[j])] >> (8 * (t % 2) + upper);
            or(out, SIGNS_AT + 16 * lane + 4 * u, of_step(2 * u) | of_step(2 * u + 1));
        }
        if R::SCALES_AT > HIGH_AT {
            let two = |t: usize| u32::from(R::high(raw, t) >> (2 * j) & 3);
            let all = (0..8).fold(0, |all, t| all | (two(t) & 1 | (two(t) & 2) << 1) << (4 * t + upper));
            or(out, HIGH_AT + 4 * lane, all);
        }
    }
}

fn or(out: &mut [u8], at: usize, bits: u32) {
    for (to, bits) in out[at..at + 4].iter_mut().zip(bits.to_le_bytes()) {
        *to |= bits;
    }
}
