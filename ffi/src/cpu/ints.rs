//! A line of packed weights in registers: 64 bytes and 16 integer sums, on AVX-512 VNNI or on AVX2.
//!
//! The sums are exact on both, so both give the same bits.

use std::arch::x86_64::*;

use super::lanes::{Lanes, Pair, Wide};

/// Operations on 64 bytes (`Line`) and sixteen 32-bit sums (`Sums`).
///
/// # Safety
/// All functions: the processor has the instruction set of the implementation, and pointers are valid
/// for the bytes that are read.
pub(super) trait Ints {
    type Line: Copy;
    type Sums: Copy;
    type Floats: Lanes;

    unsafe fn load(at: *const u8) -> Self::Line;
    /// The same 16 bytes four times.
    unsafe fn table(bytes: &[u8; 16]) -> Self::Line;
    /// The same 32 bits in all lanes.
    unsafe fn splat(word: i32) -> Self::Line;
    unsafe fn and(a: Self::Line, b: Self::Line) -> Self::Line;
    /// mask ? a : b, bit by bit.
    unsafe fn select(mask: Self::Line, a: Self::Line, b: Self::Line) -> Self::Line;
    /// 16-bit lanes shifted; bits cross from byte to byte and are masked by the caller.
    unsafe fn left(a: Self::Line, by: usize) -> Self::Line;
    unsafe fn right(a: Self::Line, by: usize) -> Self::Line;
    /// table[index] for each byte, index < 16.
    unsafe fn lookup(table: Self::Line, index: Self::Line) -> Self::Line;
    unsafe fn zero() -> Self::Sums;
    /// sums + Σ of four unsigned bytes of `w` times four signed bytes of `x`; `wide`: `w` may exceed 127.
    unsafe fn dot(sums: Self::Sums, w: Self::Line, x: Self::Line, wide: bool) -> Self::Sums;
    /// sums + Σ of two signed 16-bit products.
    unsafe fn dot16(sums: Self::Sums, a: Self::Line, b: Self::Line) -> Self::Sums;
    /// sums + scale·Σ of four unsigned bytes (below 64) of `w` times four signed bytes of `x`; `scale` by [`Ints::scale`].
    unsafe fn dot_scaled(sums: Self::Sums, w: Self::Line, x: Self::Line, scale: Self::Line) -> Self::Sums;
    /// Sixteen signed bytes as the factors of [`Ints::dot_scaled`].
    unsafe fn scale(at: *const u8) -> Self::Line;
    /// Sixteen signed bytes at `at` and the sixteen after them, times −32, as pairs of 16 bits.
    unsafe fn offsets(at: *const u8) -> Self::Line;
    /// 32 unsigned bytes widened to 16 bits.
    unsafe fn widen(at: *const u8) -> Self::Line;
    unsafe fn floats(sums: Self::Sums) -> Self::Floats;
    /// Sixteen signed bytes as floats.
    unsafe fn signed(at: *const u8) -> Self::Floats;
}

/// AVX-512 with VNNI.
pub(super) struct Vnni;

// The instructions exist because callers run under the matching `target_feature`.
impl Ints for Vnni {
    type Line = __m512i;
    type Sums = __m512i;
    type Floats = Wide;

    #[inline(always)]
    unsafe fn load(at: *const u8) -> __m512i {
        // SAFETY: see the trait.
        unsafe { _mm512_loadu_si512(at.cast()) }
    }
    #[inline(always)]
    unsafe fn table(bytes: &[u8; 16]) -> __m512i {
        // SAFETY: see the trait.
        unsafe { _mm512_broadcast_i32x4(_mm_loadu_si128(bytes.as_ptr().cast())) }
    }
    #[inline(always)]
    unsafe fn splat(word: i32) -> __m512i {
        // SAFETY: see the trait.
        unsafe { _mm512_set1_epi32(word) }
    }
    #[inline(always)]
    unsafe fn and(a: __m512i, b: __m512i) -> __m512i {
        // SAFETY: see the trait.
        unsafe { _mm512_and_si512(a, b) }
    }
    #[inline(always)]
    unsafe fn select(mask: __m512i, a: __m512i, b: __m512i) -> __m512i {
        // SAFETY: see the trait.
        unsafe { _mm512_ternarylogic_epi32::<0xCA>(mask, a, b) }
    }
    #[inline(always)]
    unsafe fn left(a: __m512i, by: usize) -> __m512i {
        // SAFETY: see the trait.
        unsafe { _mm512_sll_epi16(a, _mm_cvtsi64_si128(by as i64)) }
    }
    #[inline(always)]
    unsafe fn right(a: __m512i, by: usize) -> __m512i {
        // SAFETY: see the trait.
        unsafe { _mm512_srl_epi16(a, _mm_cvtsi64_si128(by as i64)) }
    }
    #[inline(always)]
    unsafe fn lookup(table: __m512i, index: __m512i) -> __m512i {
        // SAFETY: see the trait.
        unsafe { _mm512_shuffle_epi8(table, index) }
    }
    #[inline(always)]
    unsafe fn zero() -> __m512i {
        // SAFETY: see the trait.
        unsafe { _mm512_setzero_si512() }
    }
    #[inline(always)]
    unsafe fn dot(sums: __m512i, w: __m512i, x: __m512i, _wide: bool) -> __m512i {
        // SAFETY: see the trait.
        unsafe { _mm512_dpbusd_epi32(sums, w, x) }
    }
    #[inline(always)]
    unsafe fn dot16(sums: __m512i, a: __m512i, b: __m512i) -> __m512i {
        // SAFETY: see the trait.
        unsafe { _mm512_dpwssd_epi32(sums, a, b) }
    }
    #[inline(always)]
    unsafe fn dot_scaled(sums: __m512i, w: __m512i, x: __m512i, scale: __m512i) -> __m512i {
        // SAFETY: see the trait. Four products of 63·127 fit the lower 16 bits, the only ones that meet a factor.
        unsafe { _mm512_dpwssd_epi32(sums, _mm512_dpbusd_epi32(_mm512_setzero_si512(), w, x), scale) }
    }
    #[inline(always)]
    unsafe fn scale(at: *const u8) -> __m512i {
        // SAFETY: see the trait.
        unsafe {
            let wide = _mm512_cvtepi8_epi32(_mm_loadu_si128(at.cast()));
            _mm512_and_si512(wide, _mm512_set1_epi32(0xffff))
        }
    }
    #[inline(always)]
    unsafe fn offsets(at: *const u8) -> __m512i {
        // SAFETY: see the trait.
        unsafe {
            let first = _mm512_cvtepi8_epi32(_mm_loadu_si128(at.cast()));
            let second = _mm512_cvtepi8_epi32(_mm_loadu_si128(at.wrapping_add(16).cast()));
            let low = _mm512_and_si512(first, _mm512_set1_epi32(0xffff));
            let both = _mm512_or_si512(low, _mm512_slli_epi32::<16>(second));
            _mm512_sub_epi16(_mm512_setzero_si512(), _mm512_slli_epi16::<5>(both))
        }
    }
    #[inline(always)]
    unsafe fn widen(at: *const u8) -> __m512i {
        // SAFETY: see the trait.
        unsafe { _mm512_cvtepu8_epi16(_mm256_loadu_si256(at.cast())) }
    }
    #[inline(always)]
    unsafe fn floats(sums: __m512i) -> Wide {
        // SAFETY: see the trait.
        unsafe { Wide(_mm512_cvtepi32_ps(sums)) }
    }
    #[inline(always)]
    unsafe fn signed(at: *const u8) -> Wide {
        // SAFETY: see the trait.
        unsafe { Wide(_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(at.cast())))) }
    }
}

/// AVX2: two registers.
pub(super) struct Avx2;

type Two = [__m256i; 2];

impl Avx2 {
    #[inline(always)]
    fn each(a: Two, b: Two, f: impl Fn(__m256i, __m256i) -> __m256i) -> Two {
        [f(a[0], b[0]), f(a[1], b[1])]
    }
}

impl Ints for Avx2 {
    type Line = Two;
    type Sums = Two;
    type Floats = Pair;

    #[inline(always)]
    unsafe fn load(at: *const u8) -> Two {
        // SAFETY: see the trait.
        unsafe { [_mm256_loadu_si256(at.cast()), _mm256_loadu_si256(at.wrapping_add(32).cast())] }
    }
    #[inline(always)]
    unsafe fn table(bytes: &[u8; 16]) -> Two {
        // SAFETY: see the trait.
        unsafe { [_mm256_broadcastsi128_si256(_mm_loadu_si128(bytes.as_ptr().cast())); 2] }
    }
    #[inline(always)]
    unsafe fn splat(word: i32) -> Two {
        // SAFETY: see the trait.
        unsafe { [_mm256_set1_epi32(word); 2] }
    }
    #[inline(always)]
    unsafe fn and(a: Two, b: Two) -> Two {
        // SAFETY: see the trait.
        Avx2::each(a, b, |a, b| unsafe { _mm256_and_si256(a, b) })
    }
    #[inline(always)]
    unsafe fn select(mask: Two, a: Two, b: Two) -> Two {
        // SAFETY: see the trait.
        unsafe {
            let low = Avx2::each(mask, a, |m, a| _mm256_and_si256(m, a));
            let high = Avx2::each(mask, b, |m, b| _mm256_andnot_si256(m, b));
            Avx2::each(low, high, |l, h| _mm256_or_si256(l, h))
        }
    }
    #[inline(always)]
    unsafe fn left(a: Two, by: usize) -> Two {
        // SAFETY: see the trait.
        a.map(|a| unsafe { _mm256_sll_epi16(a, _mm_cvtsi64_si128(by as i64)) })
    }
    #[inline(always)]
    unsafe fn right(a: Two, by: usize) -> Two {
        // SAFETY: see the trait.
        a.map(|a| unsafe { _mm256_srl_epi16(a, _mm_cvtsi64_si128(by as i64)) })
    }
    #[inline(always)]
    unsafe fn lookup(table: Two, index: Two) -> Two {
        // SAFETY: see the trait.
        Avx2::each(table, index, |t, i| unsafe { _mm256_shuffle_epi8(t, i) })
    }
    #[inline(always)]
    unsafe fn zero() -> Two {
        // SAFETY: see the trait.
        unsafe { [_mm256_setzero_si256(); 2] }
    }
    #[inline(always)]
    unsafe fn dot(sums: Two, w: Two, x: Two, wide: bool) -> Two {
        // SAFETY: see the trait. Pairs of products stay within 16 bits: 2·127·127, or 2·128·127 with signs moved.
        unsafe {
            let ones = _mm256_set1_epi16(1);
            let quads = |p: __m256i| _mm256_madd_epi16(p, ones);
            if !wide {
                let products = Avx2::each(w, x, |w, x| quads(_mm256_maddubs_epi16(w, x)));
                return Avx2::each(sums, products, |s, p| _mm256_add_epi32(s, p));
            }
            // w = s + 128: Σ s·x through |s| and the sign on x, then Σ 128·x.
            let half = _mm256_set1_epi8(-128);
            let products = Avx2::each(w, x, |w, x| {
                let s = _mm256_xor_si256(w, half);
                let signed = quads(_mm256_maddubs_epi16(_mm256_abs_epi8(s), _mm256_sign_epi8(x, s)));
                _mm256_add_epi32(signed, quads(_mm256_maddubs_epi16(half, x)))
            });
            Avx2::each(sums, products, |s, p| _mm256_add_epi32(s, p))
        }
    }
    #[inline(always)]
    unsafe fn dot16(sums: Two, a: Two, b: Two) -> Two {
        // SAFETY: see the trait.
        unsafe {
            let products = Avx2::each(a, b, |a, b| _mm256_madd_epi16(a, b));
            Avx2::each(sums, products, |s, p| _mm256_add_epi32(s, p))
        }
    }
    #[inline(always)]
    unsafe fn dot_scaled(sums: Two, w: Two, x: Two, scale: Two) -> Two {
        // SAFETY: see the trait. Pairs of products of 63·127 fit 16 bits.
        unsafe {
            let pairs = Avx2::each(w, x, |w, x| _mm256_maddubs_epi16(w, x));
            let products = Avx2::each(pairs, scale, |p, s| _mm256_madd_epi16(p, s));
            Avx2::each(sums, products, |s, p| _mm256_add_epi32(s, p))
        }
    }
    #[inline(always)]
    unsafe fn scale(at: *const u8) -> Two {
        // SAFETY: see the trait.
        unsafe {
            // Both 16-bit halves of a lane get the factor.
            let half = |i: usize| {
                let wide = _mm256_cvtepi8_epi32(_mm_loadl_epi64(at.wrapping_add(i).cast()));
                _mm256_or_si256(_mm256_slli_epi32::<16>(wide), _mm256_and_si256(wide, _mm256_set1_epi32(0xffff)))
            };
            [half(0), half(8)]
        }
    }
    #[inline(always)]
    unsafe fn offsets(at: *const u8) -> Two {
        // SAFETY: see the trait.
        unsafe {
            let half = |i: usize| {
                let wide = |i: usize| _mm256_cvtepi8_epi32(_mm_loadl_epi64(at.wrapping_add(i).cast()));
                let low = _mm256_and_si256(wide(i), _mm256_set1_epi32(0xffff));
                let both = _mm256_or_si256(low, _mm256_slli_epi32::<16>(wide(i + 16)));
                _mm256_sub_epi16(_mm256_setzero_si256(), _mm256_slli_epi16::<5>(both))
            };
            [half(0), half(8)]
        }
    }
    #[inline(always)]
    unsafe fn widen(at: *const u8) -> Two {
        // SAFETY: see the trait.
        unsafe {
            let half = |i: usize| _mm256_cvtepu8_epi16(_mm_loadu_si128(at.wrapping_add(i).cast()));
            [half(0), half(16)]
        }
    }
    #[inline(always)]
    unsafe fn floats(sums: Two) -> Pair {
        // SAFETY: see the trait.
        unsafe { Pair(_mm256_cvtepi32_ps(sums[0]), _mm256_cvtepi32_ps(sums[1])) }
    }
    #[inline(always)]
    unsafe fn signed(at: *const u8) -> Pair {
        // SAFETY: see the trait.
        unsafe {
            let half = |i: usize| _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(at.wrapping_add(i).cast())));
            Pair(half(0), half(8))
        }
    }
}
