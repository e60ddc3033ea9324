//! Sixteen floats side by side on any processor: one AVX-512 register, two AVX2 registers or an array.
//!
//! Kernels are written once over [`Lanes`] and compiled for each. The operations are those of IEEE 754
//! with fused multiply-add, so all forms give the same bits.

/// Values of one vector.
pub(super) const LANES: usize = 16;

/// The operations of a vector of sixteen floats.
///
/// # Safety
/// All functions: the processor has the instruction set of the implementation, and pointers are valid
/// for sixteen values of their type.
pub(super) trait Lanes: Copy {
    /// Whether the processor has 32 registers of this size, and not sixteen of half of it.
    const MANY: bool = false;
    unsafe fn splat(x: f32) -> Self;
    unsafe fn load(at: *const f32) -> Self;
    /// Sixteen halves, widened; finite values only.
    unsafe fn load_f16(at: *const u16) -> Self;
    unsafe fn load_bf16(at: *const u16) -> Self;
    unsafe fn store(self, at: *mut f32);
    /// Starts to fetch the line at `at`, which may be any address.
    #[inline(always)]
    unsafe fn prefetch(_at: *const f32) {}
    /// self·b + c, rounded once.
    unsafe fn fma(self, b: Self, c: Self) -> Self;
    unsafe fn mul(self, b: Self) -> Self;
    unsafe fn add(self, b: Self) -> Self;
    unsafe fn div(self, b: Self) -> Self;
    unsafe fn max(self, b: Self) -> Self;
    unsafe fn min(self, b: Self) -> Self;
    /// 2^n for self = n + 1.5·2^23, n an integer in −126..=127: the low bits of that float are n.
    unsafe fn pow2(self) -> Self;

    /// e^x to about two units in the last place, x held to −87.3..=88.3.
    /// Source: `ggml_v_expf`, operation by operation, so that the bits are the library's.
    #[inline(always)]
    unsafe fn exp(self) -> Self {
        const MAGIC: f32 = 12_582_912.0;
        // ln 2 in two parts, and the coefficients of (e^b − 1 − …)/b², all floats of these bits.
        const LN2: [f32; 2] = [f32::from_bits(0x3f31_7200), f32::from_bits(0x35bf_be8e)];
        const C: [f32; 5] = [
            f32::from_bits(0x3c07_2010),
            f32::from_bits(0x3d2b_9f17),
            f32::from_bits(0x3e2a_af33),
            f32::from_bits(0x3eff_fedb),
            f32::from_bits(0x3f7f_fff6),
        ];
        // SAFETY: see the trait.
        unsafe {
            let x = self.max(Self::splat(-87.3)).min(Self::splat(88.3));
            let z = x.fma(Self::splat(std::f32::consts::LOG2_E), Self::splat(MAGIC));
            let n = z.add(Self::splat(-MAGIC));
            let b = n.fma(Self::splat(-LN2[1]), n.fma(Self::splat(-LN2[0]), x));
            let u = b.mul(b);
            let high = Self::splat(C[0]).fma(b, Self::splat(C[1]));
            let low = Self::splat(C[2]).fma(b, Self::splat(C[3]));
            let j = high.fma(u, low).fma(u, Self::splat(C[4]).mul(b));
            let k = z.pow2();
            j.fma(k, k)
        }
    }

    /// x / (1 + e^−x).
    #[inline(always)]
    unsafe fn silu(self) -> Self {
        // SAFETY: see the trait.
        unsafe { self.div(self.mul(Self::splat(-1.0)).exp().add(Self::splat(1.0))) }
    }

    /// The slope of x / (1 + e^−x): s·(1 + x·(1 − s)) with s = 1 / (1 + e^−x).
    #[inline(always)]
    unsafe fn silu_slope(self) -> Self {
        // SAFETY: see the trait.
        unsafe {
            let (one, minus) = (Self::splat(1.0), Self::splat(-1.0));
            let s = one.div(self.mul(minus).exp().add(one));
            self.mul(s.fma(minus, one)).fma(s, s)
        }
    }

    /// The largest lane.
    #[inline(always)]
    unsafe fn largest(self) -> f32 {
        let mut lanes = [0f32; LANES];
        // SAFETY: the array has sixteen floats.
        unsafe { self.store(lanes.as_mut_ptr()) };
        lanes.iter().fold(f32::NEG_INFINITY, |a, b| if *b > a { *b } else { a })
    }

    /// The first `n` ≤ 16 floats at `at`, the other lanes `fill`; reads nothing past them.
    #[inline(always)]
    unsafe fn load_part(at: *const f32, n: usize, fill: f32) -> Self {
        if n >= LANES {
            // SAFETY: sixteen floats, says the caller.
            return unsafe { Self::load(at) };
        }
        let mut lanes = [fill; LANES];
        // SAFETY: `n` floats at `at`, says the caller, and n < 16.
        unsafe {
            std::ptr::copy_nonoverlapping(at, lanes.as_mut_ptr(), n);
            Self::load(lanes.as_ptr())
        }
    }

    /// Writes the first `n` ≤ 16 lanes to `at`.
    #[inline(always)]
    unsafe fn store_part(self, at: *mut f32, n: usize) {
        if n >= LANES {
            // SAFETY: sixteen floats, says the caller.
            return unsafe { self.store(at) };
        }
        let mut lanes = [0f32; LANES];
        // SAFETY: `n` floats at `at`, says the caller, and n < 16.
        unsafe {
            self.store(lanes.as_mut_ptr());
            std::ptr::copy_nonoverlapping(lanes.as_ptr(), at, n);
        }
    }

    /// The sum of the lanes in the fixed order of [`super::norm::lane_sum`].
    #[inline(always)]
    unsafe fn sum(self) -> f32 {
        let mut lanes = [0f32; LANES];
        // SAFETY: the array has sixteen floats.
        unsafe { self.store(lanes.as_mut_ptr()) };
        super::norm::lane_sum(lanes)
    }
}

/// The portable form.
#[derive(Clone, Copy)]
pub(super) struct Plain([f32; LANES]);

impl Plain {
    #[inline(always)]
    fn map(self, f: impl Fn(usize, f32) -> f32) -> Plain {
        Plain(std::array::from_fn(|i| f(i, self.0[i])))
    }
}

impl Lanes for Plain {
    #[inline(always)]
    unsafe fn splat(x: f32) -> Self {
        Plain([x; LANES])
    }
    #[inline(always)]
    unsafe fn load(at: *const f32) -> Self {
        // SAFETY: vouched for by the caller.
        Plain(unsafe { at.cast::<[f32; LANES]>().read_unaligned() })
    }
    #[inline(always)]
    unsafe fn load_f16(at: *const u16) -> Self {
        // SAFETY: vouched for by the caller.
        let h = unsafe { at.cast::<[u16; LANES]>().read_unaligned() };
        Plain(h.map(super::attention::widen))
    }
    #[inline(always)]
    unsafe fn load_bf16(at: *const u16) -> Self {
        // SAFETY: vouched for by the caller.
        let h = unsafe { at.cast::<[u16; LANES]>().read_unaligned() };
        Plain(h.map(|h| f32::from_bits(u32::from(h) << 16)))
    }
    #[inline(always)]
    unsafe fn store(self, at: *mut f32) {
        // SAFETY: vouched for by the caller.
        unsafe { at.cast::<[f32; LANES]>().write_unaligned(self.0) }
    }
    #[inline(always)]
    unsafe fn fma(self, b: Self, c: Self) -> Self {
        self.map(|i, a| a.mul_add(b.0[i], c.0[i]))
    }
    #[inline(always)]
    unsafe fn mul(self, b: Self) -> Self {
        self.map(|i, a| a * b.0[i])
    }
    #[inline(always)]
    unsafe fn add(self, b: Self) -> Self {
        self.map(|i, a| a + b.0[i])
    }
    #[inline(always)]
    unsafe fn div(self, b: Self) -> Self {
        self.map(|i, a| a / b.0[i])
    }
    // The comparisons of `max` and `min` are those of the x86 instructions: a NaN gives the second operand.
    #[inline(always)]
    unsafe fn max(self, b: Self) -> Self {
        self.map(|i, a| if a > b.0[i] { a } else { b.0[i] })
    }
    #[inline(always)]
    unsafe fn min(self, b: Self) -> Self {
        self.map(|i, a| if a < b.0[i] { a } else { b.0[i] })
    }
    #[inline(always)]
    unsafe fn pow2(self) -> Self {
        self.map(|_, a| f32::from_bits((a.to_bits() << 23).wrapping_add(0x3f80_0000)))
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;

    use super::Lanes;

    /// One AVX-512 register.
    #[derive(Clone, Copy)]
    pub(in super::super) struct Wide(pub(in super::super) __m512);

    // The instructions below exist because callers run under the matching `target_feature`.
    impl Lanes for Wide {
        const MANY: bool = true;
        #[inline(always)]
        unsafe fn prefetch(at: *const f32) {
            // SAFETY: a prefetch may name any address.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(at.cast()) }
        }
        #[inline(always)]
        unsafe fn splat(x: f32) -> Self {
            // SAFETY: see the trait.
            unsafe { Wide(_mm512_set1_ps(x)) }
        }
        #[inline(always)]
        unsafe fn load(at: *const f32) -> Self {
            // SAFETY: see the trait.
            unsafe { Wide(_mm512_loadu_ps(at)) }
        }
        #[inline(always)]
        unsafe fn load_f16(at: *const u16) -> Self {
            // SAFETY: see the trait.
            unsafe { Wide(_mm512_cvtph_ps(_mm256_loadu_si256(at.cast()))) }
        }
        #[inline(always)]
        unsafe fn load_bf16(at: *const u16) -> Self {
            // SAFETY: see the trait.
            unsafe {
                let wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(at.cast()));
                Wide(_mm512_castsi512_ps(_mm512_slli_epi32::<16>(wide)))
            }
        }
        #[inline(always)]
        unsafe fn store(self, at: *mut f32) {
            // SAFETY: see the trait.
            unsafe { _mm512_storeu_ps(at, self.0) }
        }
        #[inline(always)]
        unsafe fn fma(self, b: Self, c: Self) -> Self {
            // SAFETY: see the trait.
            unsafe { Wide(_mm512_fmadd_ps(self.0, b.0, c.0)) }
        }
        #[inline(always)]
        unsafe fn mul(self, b: Self) -> Self {
            // SAFETY: see the trait.
            unsafe { Wide(_mm512_mul_ps(self.0, b.0)) }
        }
        #[inline(always)]
        unsafe fn add(self, b: Self) -> Self {
            // SAFETY: see the trait.
            unsafe { Wide(_mm512_add_ps(self.0, b.0)) }
        }
        #[inline(always)]
        unsafe fn div(self, b: Self) -> Self {
            // SAFETY: see the trait.
            unsafe { Wide(_mm512_div_ps(self.0, b.0)) }
        }
        #[inline(always)]
        unsafe fn max(self, b: Self) -> Self {
            // SAFETY: see the trait.
            unsafe { Wide(_mm512_max_ps(self.0, b.0)) }
        }
        #[inline(always)]
        unsafe fn min(self, b: Self) -> Self {
            // SAFETY: see the trait.
            unsafe { Wide(_mm512_min_ps(self.0, b.0)) }
        }
        #[inline(always)]
        unsafe fn pow2(self) -> Self {
            // SAFETY: see the trait.
            unsafe {
                let n = _mm512_slli_epi32::<23>(_mm512_castps_si512(self.0));
                Wide(_mm512_castsi512_ps(_mm512_add_epi32(n, _mm512_set1_epi32(0x3f80_0000))))
            }
        }
    }

    /// Two AVX2 registers.
    #[derive(Clone, Copy)]
    pub(in super::super) struct Pair(pub(in super::super) __m256, pub(in super::super) __m256);

    impl Lanes for Pair {
        #[inline(always)]
        unsafe fn prefetch(at: *const f32) {
            // SAFETY: a prefetch may name any address.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(at.cast()) }
        }
        #[inline(always)]
        unsafe fn splat(x: f32) -> Self {
            // SAFETY: see the trait.
            unsafe { Pair(_mm256_set1_ps(x), _mm256_set1_ps(x)) }
        }
        #[inline(always)]
        unsafe fn load(at: *const f32) -> Self {
            // SAFETY: see the trait.
            unsafe { Pair(_mm256_loadu_ps(at), _mm256_loadu_ps(at.wrapping_add(8))) }
        }
        #[inline(always)]
        unsafe fn load_f16(at: *const u16) -> Self {
            // SAFETY: see the trait.
            unsafe {
                let half = |i: usize| _mm256_cvtph_ps(_mm_loadu_si128(at.wrapping_add(i).cast()));
                Pair(half(0), half(8))
            }
        }
        #[inline(always)]
        unsafe fn load_bf16(at: *const u16) -> Self {
            // SAFETY: see the trait.
            unsafe {
                let half = |i: usize| {
                    let wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(at.wrapping_add(i).cast()));
                    _mm256_castsi256_ps(_mm256_slli_epi32::<16>(wide))
                };
                Pair(half(0), half(8))
            }
        }
        #[inline(always)]
        unsafe fn store(self, at: *mut f32) {
            // SAFETY: see the trait.
            unsafe {
                _mm256_storeu_ps(at, self.0);
                _mm256_storeu_ps(at.wrapping_add(8), self.1);
            }
        }
        #[inline(always)]
        unsafe fn fma(self, b: Self, c: Self) -> Self {
            // SAFETY: see the trait.
            unsafe { Pair(_mm256_fmadd_ps(self.0, b.0, c.0), _mm256_fmadd_ps(self.1, b.1, c.1)) }
        }
        #[inline(always)]
        unsafe fn mul(self, b: Self) -> Self {
            // SAFETY: see the trait.
            unsafe { Pair(_mm256_mul_ps(self.0, b.0), _mm256_mul_ps(self.1, b.1)) }
        }
        #[inline(always)]
        unsafe fn add(self, b: Self) -> Self {
            // SAFETY: see the trait.
            unsafe { Pair(_mm256_add_ps(self.0, b.0), _mm256_add_ps(self.1, b.1)) }
        }
        #[inline(always)]
        unsafe fn div(self, b: Self) -> Self {
            // SAFETY: see the trait.
            unsafe { Pair(_mm256_div_ps(self.0, b.0), _mm256_div_ps(self.1, b.1)) }
        }
        #[inline(always)]
        unsafe fn max(self, b: Self) -> Self {
            // SAFETY: see the trait.
            unsafe { Pair(_mm256_max_ps(self.0, b.0), _mm256_max_ps(self.1, b.1)) }
        }
        #[inline(always)]
        unsafe fn min(self, b: Self) -> Self {
            // SAFETY: see the trait.
            unsafe { Pair(_mm256_min_ps(self.0, b.0), _mm256_min_ps(self.1, b.1)) }
        }
        #[inline(always)]
        unsafe fn pow2(self) -> Self {
            // SAFETY: see the trait.
            unsafe {
                let one = |x: __m256| {
                    let n = _mm256_slli_epi32::<23>(_mm256_castps_si256(x));
                    _mm256_castsi256_ps(_mm256_add_epi32(n, _mm256_set1_epi32(0x3f80_0000)))
                };
                Pair(one(self.0), one(self.1))
            }
        }
    }
}

#[cfg(target_arch = "x86_64")]
pub(super) use x86::{Pair, Wide};

/// Declares `fn name(args)` that runs the generic `body::<L>(args)` with the best vectors.
macro_rules! lanes {
    ($(#[$doc:meta])* $vis:vis unsafe fn $name:ident($($arg:ident: $ty:ty),* $(,)?) $(-> $ret:ty)? = $body:ident) => {
        $(#[$doc])*
        #[allow(clippy::too_many_arguments)]
        $vis unsafe fn $name($($arg: $ty),*) $(-> $ret)? {
            #[cfg(target_arch = "x86_64")]
            {
                #[allow(clippy::too_many_arguments)]
                #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,fma,avx2,f16c")]
                unsafe fn wide($($arg: $ty),*) $(-> $ret)? {
                    // SAFETY: passed on from the caller.
                    unsafe { $body::<$crate::cpu::lanes::Wide>($($arg),*) }
                }
                #[allow(clippy::too_many_arguments)]
                #[target_feature(enable = "fma,avx2,f16c")]
                unsafe fn middle($($arg: $ty),*) $(-> $ret)? {
                    // SAFETY: passed on from the caller.
                    unsafe { $body::<$crate::cpu::lanes::Pair>($($arg),*) }
                }
                if $crate::cpu::isa::avx512() {
                    // SAFETY: the processor has these instruction sets; the rest is passed on from the caller.
                    return unsafe { wide($($arg),*) };
                }
                if $crate::cpu::isa::avx2() {
                    // SAFETY: as above.
                    return unsafe { middle($($arg),*) };
                }
            }
            // SAFETY: passed on from the caller.
            unsafe { $body::<$crate::cpu::lanes::Plain>($($arg),*) }
        }
    };
}
pub(super) use lanes;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::samples::Random;

    /// Every operation once, into `out`.
    #[inline(always)]
    unsafe fn all<L: Lanes>(x: &[f32; 48], h: &[u16; 16], out: &mut [f32; 176]) {
        // SAFETY: the arrays have the sizes that are read and written.
        unsafe {
            let (a, b, c) = (L::load(x.as_ptr()), L::load(x[16..].as_ptr()), L::load(x[32..].as_ptr()));
            let results =
                [a.fma(b, c), a.mul(b), a.add(L::splat(x[1])), L::load_f16(h.as_ptr()), L::load_bf16(h.as_ptr())];
            for (i, r) in results.into_iter().enumerate() {
                r.store(out[i * 16..].as_mut_ptr());
            }
            out[175] = a.sum();
        }
    }

    lanes! { unsafe fn best(x: &[f32; 48], h: &[u16; 16], out: &mut [f32; 176]) = all }

    #[test]
    fn all_forms_give_the_same_bits() {
        let mut rng = Random(3);
        let x: [f32; 48] = std::array::from_fn(|_| rng.normal());
        let h: [u16; 16] = std::array::from_fn(|_| half::f16::from_f32(rng.normal()).to_bits());
        let (mut want, mut got) = ([0.0; 176], [0.0; 176]);
        // SAFETY: plain Rust, and the best form of this processor.
        unsafe {
            all::<Plain>(&x, &h, &mut want);
            best(&x, &h, &mut got);
        }
        assert_eq!(want, got);
        #[cfg(target_arch = "x86_64")]
        if crate::cpu::isa::avx2() {
            #[target_feature(enable = "avx2,fma,f16c")]
            unsafe fn middle(x: &[f32; 48], h: &[u16; 16], out: &mut [f32; 176]) {
                // SAFETY: passed on.
                unsafe { all::<Pair>(x, h, out) }
            }
            // SAFETY: the processor has AVX2.
            unsafe { middle(&x, &h, &mut got) };
            assert_eq!(want, got);
        }
    }
}
