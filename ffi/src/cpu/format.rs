//! What the bytes of each block format mean: every quantised type becomes codes, integer scales and
//! mins of one common form, exactly. Owns the reading of the file's blocks and nothing else; the
//! packed layouts and the products know only this form.
//!
//! Two families. Blocks of 256 ("K"): `y = (d·mul·scale[sub])·value(code) − dmin·min[sub]` with
//! sub-blocks of 16 or 32. Blocks of 32 ("B"): `y = d·value(code) + m`.
//! Source of the formulas: the block definitions of the GGUF/ggml format.

use super::grids;
use crate::DType;

/// The facts of a quantised type in the common form.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Format {
    /// 256 (family K) or 32 (family B).
    pub(crate) block: usize,
    /// Bits of a code as packed: 4, 5, 6 or 8.
    pub(crate) bits: usize,
    /// Values that share an integer scale: 16 or 32 (family B: 32).
    pub(crate) sub: usize,
    /// Code → value + offset; `None` means the code itself.
    pub(crate) table: Option<[u8; 16]>,
    /// value(code) = table(code) − offset.
    pub(crate) offset: i32,
    pub(crate) mins: bool,
    /// Constant factor on d.
    pub(crate) mul: f32,
    /// d is a bfloat16 (powers of two outside half precision) and not a half.
    pub(crate) wide_d: bool,
}

const fn k(bits: usize, sub: usize, table: Option<[u8; 16]>, offset: i32, mins: bool) -> Format {
    Format { block: 256, bits, sub, table, offset, mins, mul: 1.0, wide_d: false }
}

const fn b(bits: usize, table: Option<[u8; 16]>, offset: i32, mins: bool) -> Format {
    Format { block: 32, bits, sub: 32, table, offset, mins, mul: 1.0, wide_d: false }
}

const IQ4: [i32; 16] = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];
const FP4: [i32; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];

const fn shift(values: [i32; 16], offset: i32) -> [u8; 16] {
    let mut out = [0; 16];
    let mut i = 0;
    while i < 16 {
        out[i] = (values[i] + offset) as u8;
        i += 1;
    }
    out
}

/// Codes 0..7 are the magnitudes, 8..15 the same ones negated.
const fn signed(levels: &[u8], offset: i32) -> [u8; 16] {
    let mut out = [0; 16];
    let mut i = 0;
    while i < levels.len() {
        out[i] = (offset + levels[i] as i32) as u8;
        out[i + 8] = (offset - levels[i] as i32) as u8;
        i += 1;
    }
    out
}

const ODD: [u8; 8] = [1, 3, 5, 7, 9, 11, 13, 15];

impl Format {
    /// The common form of a quantised type; `None` for F32, F16, BF16 and what only the library computes.
    pub(crate) const fn of(dtype: DType) -> Option<Format> {
        let mut f = match dtype {
            DType::F32 | DType::F16 | DType::BF16 => return None,
            DType::Q4_0 => b(4, None, 8, false),
            DType::Q4_1 => b(4, None, 0, true),
            DType::Q5_0 => b(5, None, 16, false),
            DType::Q5_1 => b(5, None, 0, true),
            DType::Q8_0 => b(8, None, 128, false),
            DType::IQ4_NL => b(4, Some(shift(IQ4, 127)), 127, false),
            DType::MXFP4 => b(4, Some(shift(FP4, 12)), 12, false),
            DType::Q2_K => k(4, 16, None, 0, true),
            DType::Q3_K => k(4, 16, None, 4, false),
            DType::Q4_K => k(4, 32, None, 0, true),
            DType::Q5_K => k(5, 32, None, 0, true),
            DType::Q6_K => k(6, 16, None, 32, false),
            DType::IQ2_XXS => k(4, 32, Some(signed(&grids::IQ2_LEVELS, 62)), 62, false),
            DType::IQ2_XS | DType::IQ2_S => k(4, 16, Some(signed(&grids::IQ2_LEVELS, 62)), 62, false),
            DType::IQ3_XXS => k(4, 32, Some(signed(&grids::IQ3_XXS_LEVELS, 62)), 62, false),
            DType::IQ3_S => k(4, 32, Some(signed(&ODD, 15)), 15, false),
            DType::IQ4_XS => k(4, 32, Some(shift(IQ4, 127)), 127, false),
            _ => return None,
        };
        match dtype {
            DType::IQ2_XXS | DType::IQ2_XS | DType::IQ2_S => f.mul = 0.125,
            DType::IQ3_XXS => f.mul = 0.25,
            DType::MXFP4 => f.wide_d = true,
            _ => {}
        }
        Some(f)
    }

    /// The integer that a code stands for.
    pub(crate) fn value(&self, code: u8) -> i32 {
        let shifted = match self.table {
            Some(t) => t[(code & 15) as usize],
            None => code,
        };
        i32::from(shifted) - self.offset
    }

    /// Whether products keep a sum for each of the eight quads of 32 inputs, as the library does for the types that
    /// most files consist of (Q4_K, Q5_K, Q6_K): then their bits are the library's.
    pub(crate) const fn by_quads(&self) -> bool {
        self.block == 256
            && self.table.is_none()
            && matches!((self.bits, self.sub, self.mins), (4 | 5, 32, true) | (6, 16, false))
    }

    #[allow(dead_code)] // read by the AVX2 kernel
    /// Whether every table(code) is at most 127, so that pairs of products fit 16 bits.
    pub(crate) fn narrow(&self) -> bool {
        match self.table {
            Some(t) => t.iter().all(|v| *v <= 127),
            None => self.bits < 8,
        }
    }

    /// d as a float, from its stored 16 bits.
    pub(crate) fn scale(&self, d: u16) -> f32 {
        if self.wide_d { half::bf16::from_bits(d).to_f32() } else { half::f16::from_bits(d).to_f32() * self.mul }
    }
}

/// One block in the common form: 256 values (family K) or the first 32 of them (family B).
pub(crate) struct Block {
    pub(crate) code: [u8; 256],
    pub(crate) scale: [i8; 16],
    pub(crate) min: [u8; 16],
    /// Stored bits of d, and of dmin (family K) or m (family B).
    pub(crate) d: u16,
    pub(crate) dmin: u16,
}

impl Block {
    pub(crate) const ZERO: Block = Block { code: [0; 256], scale: [0; 16], min: [0; 16], d: 0, dmin: 0 };

    /// The values of the block, as the format defines them.
    pub(crate) fn dequantize(&self, f: &Format, out: &mut [f32]) {
        let d = f.scale(self.d);
        let m = half::f16::from_bits(self.dmin).to_f32();
        if f.block == 32 {
            for (y, c) in out.iter_mut().zip(&self.code[..32]) {
                *y = d * f.value(*c) as f32 + if f.mins { m } else { 0.0 };
            }
            return;
        }
        for (s, ys) in out.chunks_mut(f.sub).enumerate() {
            let ds = d * f32::from(self.scale[s]);
            let ms = if f.mins { m * f32::from(self.min[s]) } else { 0.0 };
            for (y, c) in ys.iter_mut().zip(&self.code[s * f.sub..]) {
                *y = ds * f.value(*c) as f32 - ms;
            }
        }
    }

    /// Reads one block of `dtype` from its bytes (exactly `block_bytes` of them).
    #[inline(always)]
    pub(crate) fn read(&mut self, dtype: DType, bytes: &[u8]) {
        match dtype {
            DType::Q4_0 | DType::IQ4_NL => self.nibbles32(le16(bytes, 0), 0, &bytes[2..], 0),
            DType::Q4_1 => self.nibbles32(le16(bytes, 0), le16(bytes, 2), &bytes[4..], 0),
            DType::Q5_0 => self.nibbles32(le16(bytes, 0), 0, &bytes[6..], le32(bytes, 2)),
            DType::Q5_1 => self.nibbles32(le16(bytes, 0), le16(bytes, 2), &bytes[8..], le32(bytes, 4)),
            DType::MXFP4 => self.nibbles32(e8m0_half(bytes[0]), 0, &bytes[1..], 0),
            DType::Q8_0 => self.q8_0(bytes),
            DType::Q2_K => self.q2_k(bytes),
            DType::Q3_K => self.q3_k(bytes),
            DType::Q4_K => self.q45_k(bytes, None, &bytes[16..]),
            DType::Q5_K => self.q45_k(bytes, Some(&bytes[16..48]), &bytes[48..]),
            DType::Q6_K => self.q6_k(bytes),
            DType::IQ2_XXS => self.iq2_xxs(bytes),
            DType::IQ2_XS => self.iq2_xs(bytes),
            DType::IQ2_S => self.iq2_s(bytes),
            DType::IQ3_XXS => self.iq3_xxs(bytes),
            DType::IQ3_S => self.iq3_s(bytes),
            DType::IQ4_XS => self.iq4_xs(bytes),
            // What has no blocks, and what only the library computes.
            _ => {}
        }
    }

    /// 16 bytes of nibbles, low ones first, with a fifth bit each from `high`.
    #[inline(always)]
    fn nibbles32(&mut self, d: u16, m: u16, qs: &[u8], high: u32) {
        (self.d, self.dmin) = (d, m);
        let qs = &qs.as_chunks::<16>().0[0];
        let (mut low, mut rest) = (each(qs, |q| q & 15), each(qs, |q| q >> 4));
        for j in 0..16 {
            low[j] |= ((high >> j & 1) << 4) as u8;
            rest[j] |= ((high >> (j + 16) & 1) << 4) as u8;
        }
        self.code[..16].copy_from_slice(&low);
        self.code[16..32].copy_from_slice(&rest);
    }

    #[inline(always)]
    fn q8_0(&mut self, bytes: &[u8]) {
        (self.d, self.dmin) = (le16(bytes, 0), 0);
        for (c, q) in self.code.iter_mut().zip(&bytes[2..34]) {
            *c = q ^ 0x80; // signed → offset 128
        }
    }

    #[inline(always)]
    fn q2_k(&mut self, bytes: &[u8]) {
        (self.d, self.dmin) = (le16(bytes, 80), le16(bytes, 82));
        for s in 0..16 {
            self.scale[s] = (bytes[s] & 15) as i8;
            self.min[s] = bytes[s] >> 4;
        }
        for (part, codes) in self.code.as_chunks_mut::<32>().0.iter_mut().enumerate() {
            let low = &bytes[16..80].as_chunks::<32>().0[part / 4];
            *codes = each(low, |q| q >> (2 * (part % 4)) & 3);
        }
    }

    #[inline(always)]
    fn q3_k(&mut self, bytes: &[u8]) {
        (self.d, self.dmin) = (le16(bytes, 108), 0);
        let packed = &bytes[96..108];
        for s in 0..16 {
            let low = if s < 8 { packed[s] & 15 } else { packed[s - 8] >> 4 };
            let high = packed[8 + s % 4] >> (2 * (s / 4)) & 3;
            self.scale[s] = (low | high << 4) as i8 - 32;
        }
        let high = &bytes[..32];
        for (part, codes) in self.code.as_chunks_mut::<32>().0.iter_mut().enumerate() {
            let low = &bytes[32..96].as_chunks::<32>().0[part / 4];
            let mut found = each(low, |q| q >> (2 * (part % 4)) & 3);
            found.iter_mut().zip(high).for_each(|(c, h)| *c |= (h >> part & 1) << 2);
            *codes = found;
        }
    }

    /// Q4_K and Q5_K: 6-bit scales and mins, nibbles in pairs of sub-blocks, optional fifth bits.
    #[inline(always)]
    fn q45_k(&mut self, bytes: &[u8], high: Option<&[u8]>, qs: &[u8]) {
        (self.d, self.dmin) = (le16(bytes, 0), le16(bytes, 2));
        let p = &bytes[4..16];
        for s in 0..8 {
            let (sc, m) = if s < 4 {
                (p[s] & 63, p[s + 4] & 63)
            } else {
                (p[s + 4] & 15 | p[s - 4] >> 6 << 4, p[s + 4] >> 4 | p[s] >> 6 << 4)
            };
            (self.scale[s], self.min[s]) = (sc as i8, m);
        }
        // Arrays by value: the compiler then knows that what is read and what is written do not overlap.
        for (two, (codes, qs)) in self.code.as_chunks_mut::<64>().0.iter_mut().zip(qs.as_chunks::<32>().0).enumerate() {
            let (mut low, mut rest) = (each(qs, |q| q & 15), each(qs, |q| q >> 4));
            if let Some([high]) = high.map(|high| high.as_chunks::<32>().0) {
                for i in 0..32 {
                    let bits = high[i] >> (2 * two);
                    (low[i], rest[i]) = (low[i] | (bits & 1) << 4, rest[i] | (bits & 2) << 3);
                }
            }
            codes[..32].copy_from_slice(&low);
            codes[32..].copy_from_slice(&rest);
        }
    }

    #[inline(always)]
    fn q6_k(&mut self, bytes: &[u8]) {
        (self.d, self.dmin) = (le16(bytes, 208), 0);
        for s in 0..16 {
            self.scale[s] = bytes[192 + s] as i8;
        }
        let (low, high) = (bytes[..128].as_chunks::<64>().0, bytes[128..192].as_chunks::<32>().0);
        for ((codes, low), high) in self.code.as_chunks_mut::<128>().0.iter_mut().zip(low).zip(high) {
            for (quarter, codes) in codes.as_chunks_mut::<32>().0.iter_mut().enumerate() {
                let low = &low.as_chunks::<32>().0[quarter % 2];
                let mut found = each(low, |l| l >> (4 * (quarter / 2)) & 15);
                for (c, h) in found.iter_mut().zip(high) {
                    *c |= (h >> (2 * quarter) & 3) << 4;
                }
                *codes = found;
            }
        }
    }

    /// Eight values of an IQ2 entry with their sign bits, from value `at`.
    fn iq2_values(&mut self, at: usize, entry: u16, signs: u8) {
        for j in 0..8 {
            self.code[at + j] = (entry >> (2 * j) & 3) as u8 | (signs >> j & 1) << 3;
        }
    }

    fn iq2_xxs(&mut self, bytes: &[u8]) {
        (self.d, self.dmin) = (le16(bytes, 0), 0);
        for s in 0..8 {
            let qs = &bytes[2 + 8 * s..10 + 8 * s];
            let aux = le32(qs, 4);
            self.scale[s] = (2 * (aux >> 28) + 1) as i8;
            for l in 0..4 {
                let entry = grids::IQ2_XXS[qs[l] as usize];
                self.iq2_values(32 * s + 8 * l, entry, even_signs(aux >> (7 * l)));
            }
        }
    }

    fn iq2_xs(&mut self, bytes: &[u8]) {
        (self.d, self.dmin) = (le16(bytes, 0), 0);
        self.half_scales(&bytes[66..74]);
        for g in 0..32 {
            let q = le16(bytes, 2 + 2 * g);
            let entry = grids::IQ2_XS[(q & 511) as usize];
            self.iq2_values(8 * g, entry, even_signs(u32::from(q >> 9)));
        }
    }

    fn iq2_s(&mut self, bytes: &[u8]) {
        (self.d, self.dmin) = (le16(bytes, 0), 0);
        self.half_scales(&bytes[74..82]);
        for g in 0..32 {
            let high = usize::from(bytes[66 + g / 4] >> (2 * (g % 4)) & 3);
            let entry = grids::IQ2_S[usize::from(bytes[2 + g]) | high << 8];
            self.iq2_values(8 * g, entry, bytes[34 + g]);
        }
    }

    /// Eight bytes with two 4-bit scales s each, used as 2s + 1 (the other factors are in `mul`).
    fn half_scales(&mut self, bytes: &[u8]) {
        for s in 0..16 {
            self.scale[s] = 2 * (bytes[s / 2] >> (4 * (s % 2)) & 15) as i8 + 1;
        }
    }

    /// Four values of an IQ3 entry; `signs` holds theirs in the low four bits.
    fn iq3_values(&mut self, at: usize, entry: u16, signs: u8) {
        let e = u32::from(entry);
        let values = (e & 7) | (e << 5 & 0x700) | (e << 10 & 0x7_0000) | (e << 15 & 0x700_0000);
        // Bit i comes to the lowest of byte i.
        let signs = (u32::from(signs & 15) * 0x0020_4081) & 0x0101_0101;
        self.code[at..at + 4].copy_from_slice(&(values | signs << 3).to_le_bytes());
    }

    fn iq3_xxs(&mut self, bytes: &[u8]) {
        (self.d, self.dmin) = (le16(bytes, 0), 0);
        for s in 0..8 {
            let aux = le32(bytes, 66 + 4 * s);
            self.scale[s] = (2 * (aux >> 28) + 1) as i8;
            for l in 0..8 {
                let entry = grids::IQ3_XXS[bytes[2 + 8 * s + l] as usize];
                let signs = even_signs(aux >> (7 * (l / 2))) >> (4 * (l % 2));
                self.iq3_values(32 * s + 4 * l, entry, signs);
            }
        }
    }

    /// Eight 4-bit scales s, used as 2s + 1.
    #[inline(always)]
    pub(crate) fn odd_scales(nibbles: u32) -> [i8; 16] {
        let mut all = u64::from(nibbles);
        all = (all | all << 16) & 0x0000_ffff_0000_ffff;
        all = (all | all << 8) & 0x00ff_00ff_00ff_00ff;
        all = (all | all << 4) & 0x0f0f_0f0f_0f0f_0f0f;
        u128::from(all << 1 | 0x0101_0101_0101_0101).to_le_bytes().map(|s| s as i8)
    }

    fn iq3_s(&mut self, bytes: &[u8]) {
        (self.d, self.dmin) = (le16(bytes, 0), 0);
        self.scale = Block::odd_scales(le32(bytes, 106));
        for s in 0..8 {
            for l in 0..8 {
                let high = usize::from(bytes[66 + s] >> l & 1);
                let entry = grids::IQ3_S[usize::from(bytes[2 + 8 * s + l]) | high << 8];
                let signs = bytes[74 + 4 * s + l / 2] >> (4 * (l % 2));
                self.iq3_values(32 * s + 4 * l, entry, signs);
            }
        }
    }

    #[inline(always)]
    fn iq4_xs(&mut self, bytes: &[u8]) {
        (self.d, self.dmin) = (le16(bytes, 0), 0);
        let high = le16(bytes, 2);
        for s in 0..8 {
            let low = bytes[4 + s / 2] >> (4 * (s % 2)) & 15;
            self.scale[s] = (low | ((high >> (2 * s) & 3) << 4) as u8) as i8 - 32;
            let qs = &bytes[8..136].as_chunks::<16>().0[s];
            self.code[32 * s..][..16].copy_from_slice(&each(qs, |q| q & 15));
            self.code[32 * s + 16..][..16].copy_from_slice(&each(qs, |q| q >> 4));
        }
    }
}

/// An array of what `f` makes of each byte.
#[inline(always)]
fn each<const N: usize>(bytes: &[u8; N], f: impl Fn(u8) -> u8) -> [u8; N] {
    let mut out = [0; N];
    for (to, from) in out.iter_mut().zip(bytes) {
        *to = f(*from);
    }
    out
}

fn le16(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

fn le32(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

/// Seven sign bits and the eighth that makes their number even.
fn even_signs(bits: u32) -> u8 {
    let low = (bits & 127) as u8;
    low | ((low.count_ones() & 1) << 7) as u8
}

/// Half of 2^(e−127) as bfloat16 bits (exact, also where it is subnormal).
fn e8m0_half(e: u8) -> u16 {
    if e < 2 { 0x0020 << e } else { u16::from(e - 1) << 7 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_hold_the_values_of_the_formats() {
        let f = Format::of(DType::IQ3_S).unwrap();
        assert_eq!(
            (0..16).map(|c| f.value(c)).collect::<Vec<_>>(),
            [1, 3, 5, 7, 9, 11, 13, 15, -1, -3, -5, -7, -9, -11, -13, -15]
        );
        let f = Format::of(DType::IQ4_XS).unwrap();
        assert_eq!((0..16).map(|c| f.value(c)).collect::<Vec<_>>(), IQ4);
        let f = Format::of(DType::MXFP4).unwrap();
        assert_eq!((0..16).map(|c| f.value(c)).collect::<Vec<_>>(), FP4);
        for e in 0..=254u8 {
            let expected = (f64::from(e) - 128.0).exp2() as f32;
            assert_eq!(f.scale(e8m0_half(e)), expected, "{e}");
        }
    }
}
