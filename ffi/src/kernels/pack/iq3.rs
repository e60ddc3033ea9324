//! IQ3_S, the type of the experts of most large models, with the byte permutations of AVX-512 VBMI. The 64 indices of a
//! block are looked up at once, in tables that stay in registers.

use super::tiles::Tiles;

/// Packs the tiles if they are of this type and the processor can; gives them back otherwise.
#[cfg(not(target_arch = "x86_64"))]
pub(super) fn pack(tiles: Tiles<'_>) -> Option<Tiles<'_>> {
    Some(tiles)
}

#[cfg(target_arch = "x86_64")]
pub(super) use x86::pack;

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;

    use super::super::tiles::Read;
    use super::Tiles;
    use crate::DType;
    use crate::cpu::format::{Block, IQ3_S};
    use crate::cpu::isa::{Isa, best};

    pub(in super::super) fn pack(tiles: Tiles<'_>) -> Option<Tiles<'_>> {
        if tiles.rows.dtype != DType::IQ3_S || best() != Isa::Avx512 {
            return Some(tiles);
        }
        // SAFETY: the processor has what this set stands for.
        unsafe { on_vbmi(tiles) };
        None
    }

    /// # Safety
    /// The processor has these sets.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vbmi")]
    unsafe fn on_vbmi(tiles: Tiles<'_>) {
        tiles.all(&Vbmi);
    }

    /// Bits `SHIFT..SHIFT + 8` of each entry of the codebook, which has 12.
    const fn plane(shift: u32) -> [[u8; 64]; 8] {
        let mut out = [[0; 64]; 8];
        let mut i = 0;
        while i < 512 {
            out[i / 64][i % 64] = (IQ3_S[i] >> shift) as u8;
            i += 1;
        }
        out
    }
    static LOW: [[u8; 64]; 8] = plane(0);
    static HIGH: [[u8; 64]; 8] = plane(8);

    /// For entries 16·i.., as 32-bit words: the byte of the first plane, then that of the second (at 64 and more).
    const fn joined(i: usize) -> [u8; 64] {
        let mut out = [0; 64];
        let mut k = 0;
        while k < 16 {
            out[4 * k] = (16 * i + k) as u8;
            out[4 * k + 1] = (64 + 16 * i + k) as u8;
            k += 1;
        }
        out
    }
    static JOINED: [[u8; 64]; 4] = [joined(0), joined(1), joined(2), joined(3)];

    /// Where the four values of each of two entries begin.
    const FIELDS: i64 = i64::from_le_bytes([0, 3, 6, 9, 32, 35, 38, 41]);

    /// # Safety
    /// Compiled into a function with these sets.
    #[inline(always)]
    unsafe fn load(bytes: &[u8; 64]) -> __m512i {
        // SAFETY: 64 bytes are read.
        unsafe { _mm512_loadu_si512(bytes.as_ptr().cast()) }
    }

    /// The entries of a table of 512 bytes, by the lower seven bits of the indices and the two others.
    ///
    /// # Safety
    /// As above.
    #[inline(always)]
    unsafe fn look(t: &[[u8; 64]; 8], index: __m512i, bit7: u64, bit8: u64) -> __m512i {
        // SAFETY: passed on.
        unsafe {
            let a = _mm512_permutex2var_epi8(load(&t[0]), index, load(&t[1]));
            let b = _mm512_permutex2var_epi8(load(&t[2]), index, load(&t[3]));
            let c = _mm512_permutex2var_epi8(load(&t[4]), index, load(&t[5]));
            let d = _mm512_permutex2var_epi8(load(&t[6]), index, load(&t[7]));
            let (low, high) = (_mm512_mask_blend_epi8(bit7, a, b), _mm512_mask_blend_epi8(bit7, c, d));
            _mm512_mask_blend_epi8(bit8, low, high)
        }
    }

    struct Vbmi;

    impl Read for Vbmi {
        #[inline(always)]
        fn read(&self, raw: &[u8], block: &mut Block) {
            let Some(raw) = raw.first_chunk::<110>() else { return };
            let word = |at: usize| u64::from_le_bytes(std::array::from_fn(|i| raw[at + i]));
            block.d = u16::from_le_bytes([raw[0], raw[1]]);
            block.scale = Block::odd_scales(u32::from_le_bytes([raw[106], raw[107], raw[108], raw[109]]));
            // SAFETY: `on_vbmi`, which this is compiled into, was called on a processor that has the instructions; every
            // load and store is of an array of 64 bytes or within the 110 bytes of the block.
            unsafe {
                let index = _mm512_loadu_si512(raw.as_ptr().add(2).cast());
                let (bit7, bit8) = (_mm512_movepi8_mask(index), word(66));
                let low = look(&LOW, index, bit7, bit8);
                let high = look(&HIGH, index, bit7, bit8);
                for (i, (codes, joined)) in block.code.as_chunks_mut::<64>().0.iter_mut().zip(&JOINED).enumerate() {
                    let words = _mm512_maskz_permutex2var_epi8(0x3333_3333_3333_3333, low, load(joined), high);
                    let fields = _mm512_multishift_epi64_epi8(_mm512_set1_epi64(FIELDS), words);
                    // Magnitude m is code 8 + m, and −m is 15 − (8 + m).
                    let codes_up = _mm512_or_si512(_mm512_and_si512(fields, _mm512_set1_epi8(7)), _mm512_set1_epi8(8));
                    let signed = _mm512_mask_sub_epi8(codes_up, word(74 + 8 * i), _mm512_set1_epi8(15), codes_up);
                    _mm512_storeu_si512(codes.as_mut_ptr().cast(), signed);
                }
            }
        }
    }
}
