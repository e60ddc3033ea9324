//! The AVX-512 VNNI form of the packed product: a line of 64 bytes holds four inputs of 16 outputs,
//! so one instruction multiplies it by four broadcast activation codes and adds into 16 sums.
//!
//! Weights are decoded once for all rows of a tile. Bit-identical to the portable form: the integer
//! sums are exact and the float operations stand in the same order (see [`super::product`]).

use std::arch::x86_64::*;

use super::act::View;
use super::pack::{GROUP, LINE, Layout};
use super::product::{Group, Tile};

/// Bytes between a line that is used and the one fetched for later: the hardware's own streams restart at
/// every page and leave half of the third cache's bandwidth unused.
const AHEAD: usize = 4096;

/// Compile-time facts of a format: what the inner loop must not ask.
struct Spec<const BITS: usize, const SUB: usize, const TABLE: bool, const MINS: bool>;

/// Activation rows of one call.
#[derive(Clone, Copy)]
struct Rows<const N: usize>([View; N]);

/// Computes one group for up to 8 rows.
///
/// # Safety
/// The processor has the features named below; `rows` are rows of `x`, of the group's width.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vbmi,avx512vnni,fma,f16c")]
pub(super) unsafe fn tile(group: &Group<'_>, x: &View, rows: &[u32], out: &mut Tile) {
    // Row counts between the compiled sizes repeat their last row.
    let view = |i: usize| x.row(rows[i.min(rows.len() - 1)] as usize);
    // SAFETY: passed on from the caller.
    unsafe {
        match rows.len() {
            1 => sized::<1>(group, Rows([view(0)]), out),
            2 => sized::<2>(group, Rows([view(0), view(1)]), out),
            3 | 4 => sized::<4>(group, Rows(std::array::from_fn(view)), out),
            _ => sized::<8>(group, Rows(std::array::from_fn(view)), out),
        }
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vbmi,avx512vnni,fma,f16c")]
unsafe fn sized<const N: usize>(g: &Group<'_>, x: Rows<N>, out: &mut Tile) {
    let f = &g.layout.format;
    // SAFETY: passed on from the caller.
    unsafe {
        match (f.block, f.bits, f.sub, f.table.is_some(), f.mins) {
            (256, 4, 32, false, true) => Spec::<4, 32, false, true>::k(g, x, out),
            (256, 4, 16, false, true) => Spec::<4, 16, false, true>::k(g, x, out),
            (256, 4, 16, false, false) => Spec::<4, 16, false, false>::k(g, x, out),
            (256, 4, 32, true, false) => Spec::<4, 32, true, false>::k(g, x, out),
            (256, 4, 16, true, false) => Spec::<4, 16, true, false>::k(g, x, out),
            (256, 5, 32, false, true) => Spec::<5, 32, false, true>::k(g, x, out),
            (256, 6, 16, false, false) => Spec::<6, 16, false, false>::k(g, x, out),
            (32, 4, 32, false, false) => Spec::<4, 32, false, false>::b(g, x, out),
            (32, 4, 32, false, true) => Spec::<4, 32, false, true>::b(g, x, out),
            (32, 4, 32, true, false) => Spec::<4, 32, true, false>::b(g, x, out),
            (32, 5, 32, false, false) => Spec::<5, 32, false, false>::b(g, x, out),
            (32, 5, 32, false, true) => Spec::<5, 32, false, true>::b(g, x, out),
            (32, 8, 32, false, false) => Spec::<8, 32, false, false>::b(g, x, out),
            _ => unreachable!("every packed format is listed"),
        }
    }
}

/// Four codes of a row, in all 16 lanes.
#[target_feature(enable = "avx512f")]
unsafe fn four(q: *const i8) -> __m512i {
    // SAFETY: the caller keeps q..q+4 inside the row.
    _mm512_set1_epi32(unsafe { q.cast::<i32>().read_unaligned() })
}

/// Two 16-bit sums of a row, in all 16 lanes.
#[target_feature(enable = "avx512f")]
unsafe fn pair(sums: *const i16) -> __m512i {
    // SAFETY: the caller keeps both inside the row.
    _mm512_set1_epi32(unsafe { sums.cast::<i32>().read_unaligned() })
}

/// Sixteen stored scales as floats.
#[target_feature(enable = "avx512f,avx512vl,f16c")]
unsafe fn scales(l: &Layout, at: *const u8) -> __m512 {
    // SAFETY: the caller points at 32 readable bytes.
    let bits = unsafe { _mm256_loadu_si256(at.cast()) };
    if l.format.wide_d {
        return _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(bits)));
    }
    _mm512_mul_ps(_mm512_cvtph_ps(bits), _mm512_set1_ps(l.format.mul))
}

/// Constants of the decoding.
#[derive(Clone, Copy)]
struct Decode {
    table: __m512i,
    /// −offset for each of a pair of 16-bit sums: both, the first only, the second only.
    offset: [__m512i; 3],
}

impl Decode {
    #[target_feature(enable = "avx512f")]
    fn new(l: &Layout) -> Decode {
        let t = l.format.table.unwrap_or([0; 16]);
        // SAFETY: `t` has 16 bytes.
        let table = _mm512_broadcast_i32x4(unsafe { _mm_loadu_si128(t.as_ptr().cast()) });
        let o = -l.format.offset;
        let (low, high) = (o & 0xffff, o << 16);
        Decode { table, offset: [_mm512_set1_epi32(high | low), _mm512_set1_epi32(low), _mm512_set1_epi32(high)] }
    }
}

impl<const BITS: usize, const SUB: usize, const TABLE: bool, const MINS: bool> Spec<BITS, SUB, TABLE, MINS> {
    const LOW: usize = if BITS == 8 { SUB / 4 } else { SUB / 8 };
    const LINES: usize = Self::LOW + (BITS == 5 || BITS == 6) as usize;

    /// One line of weights as unsigned bytes: quad `quad` of the sub-block at `at`.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vbmi")]
    unsafe fn decode(c: &Decode, at: *const u8, quad: usize) -> __m512i {
        let line = quad % Self::LOW;
        let from = at.wrapping_add(line * LINE);
        if quad < Self::LOW {
            _mm_prefetch::<_MM_HINT_T0>(from.wrapping_add(AHEAD).cast());
        }
        // SAFETY: the caller's sub-block has `LINES` lines.
        let raw = unsafe { _mm512_loadu_si512(from.cast()) };
        if BITS == 8 {
            return raw;
        }
        let shifted = if quad < Self::LOW { raw } else { _mm512_srli_epi16::<4>(raw) };
        let nibble = _mm512_set1_epi8(15);
        if BITS == 4 {
            let codes = _mm512_and_si512(shifted, nibble);
            return if TABLE { _mm512_shuffle_epi8(c.table, codes) } else { codes };
        }
        // SAFETY: as above, the line of higher bits.
        let high = unsafe { _mm512_loadu_si512(at.wrapping_add(Self::LOW * LINE).cast()) };
        // Bring the quad's bits to position 4 of each byte; what lands elsewhere is masked away.
        let width = BITS - 4;
        let from = width * quad;
        let high = if from <= 4 {
            _mm512_sll_epi16(high, _mm_cvtsi64_si128(4 - from as i64))
        } else {
            _mm512_srl_epi16(high, _mm_cvtsi64_si128(from as i64 - 4))
        };
        let joined = _mm512_ternarylogic_epi32::<0xCA>(nibble, shifted, high); // nibble ? shifted : high
        _mm512_and_si512(joined, _mm512_set1_epi8(if BITS == 5 { 31 } else { 63 }))
    }

    /// Integer products of sub-block `sub` (of the whole row) for every row of the tile.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vbmi,avx512vnni")]
    unsafe fn dots<const N: usize>(c: &Decode, at: *const u8, sub: usize, x: &Rows<N>) -> [__m512i; N] {
        let mut dot = [_mm512_setzero_si512(); N];
        if !MINS {
            for (dot, x) in dot.iter_mut().zip(&x.0) {
                // SAFETY: a sub-block of 32 has two sums; of 16 one, whose even-odd pair is inside the row.
                let sums = unsafe { pair(x.sum16.wrapping_add(if SUB == 32 { 2 * sub } else { sub & !1 })) };
                let offset = if SUB == 32 { c.offset[0] } else { c.offset[1 + sub % 2] };
                *dot = _mm512_dpwssd_epi32(*dot, offset, sums);
            }
        }
        for quad in 0..SUB / 4 {
            // SAFETY: the sub-block lies inside the group, its codes inside each row.
            unsafe {
                let w = Self::decode(c, at, quad);
                for (dot, x) in dot.iter_mut().zip(&x.0) {
                    *dot = _mm512_dpbusd_epi32(*dot, w, four(x.q.wrapping_add(sub * SUB + quad * 4)));
                }
            }
        }
        dot
    }

    /// Family K.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vbmi,avx512vnni,fma,f16c")]
    unsafe fn k<const N: usize>(g: &Group<'_>, x: Rows<N>, out: &mut Tile) {
        let l = g.layout;
        let c = Decode::new(l);
        let subs = 256 / SUB;
        let mut acc = [_mm512_setzero_ps(); N];
        for b in 0..l.blocks {
            let block = g.bytes.as_ptr().wrapping_add(b * l.block_bytes);
            let mut s = [_mm512_setzero_ps(); N];
            for sub in 0..subs {
                // SAFETY: block b of the group has `subs` sub-blocks and 16 scales for each.
                unsafe {
                    let dot = Self::dots(&c, block.wrapping_add(sub * Self::LINES * LINE), b * subs + sub, &x);
                    let scale = _mm_loadu_si128(block.wrapping_add(l.scales + sub * GROUP).cast());
                    let scale = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(scale));
                    for (s, dot) in s.iter_mut().zip(dot) {
                        *s = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dot), scale, *s);
                    }
                }
            }
            // SAFETY: d, dmin and mins lie inside the block, x.d[b] inside each row.
            unsafe {
                let d = scales(l, block.wrapping_add(l.d));
                for ((acc, s), x) in acc.iter_mut().zip(s).zip(&x.0) {
                    *acc = _mm512_fmadd_ps(s, _mm512_mul_ps(d, _mm512_set1_ps(*x.d.wrapping_add(b))), *acc);
                }
                if MINS {
                    Self::mins(l, block, b, &x, &mut acc);
                }
            }
        }
        // SAFETY: a row of the tile holds 16 floats.
        out.iter_mut().zip(acc).for_each(|(o, acc)| unsafe { _mm512_storeu_ps(o.as_mut_ptr(), acc) });
    }

    /// acc −= dmin·d_x·Σ min·sum, two sub-blocks at a time.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vbmi,avx512vnni,fma,f16c")]
    unsafe fn mins<const N: usize>(l: &Layout, block: *const u8, b: usize, x: &Rows<N>, acc: &mut [__m512; N]) {
        let subs = 256 / SUB;
        let mut mins = [_mm512_setzero_si512(); N];
        for two in 0..subs / 2 {
            // SAFETY: the block holds 32 bytes of mins for each two sub-blocks, each row two sums.
            unsafe {
                let m = _mm256_loadu_si256(block.wrapping_add(l.mins + two * 2 * GROUP).cast());
                let m = _mm512_cvtepu8_epi16(m);
                for (mins, x) in mins.iter_mut().zip(&x.0) {
                    let sums = if SUB == 32 { x.sum32 } else { x.sum16 };
                    *mins = _mm512_dpwssd_epi32(*mins, m, pair(sums.wrapping_add(b * subs + 2 * two)));
                }
            }
        }
        // SAFETY: dmin lies inside the block.
        let dmin = unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(block.wrapping_add(l.m).cast())) };
        for ((acc, mins), x) in acc.iter_mut().zip(mins).zip(&x.0) {
            // SAFETY: each row has a scale for block b.
            let d = _mm512_mul_ps(dmin, _mm512_set1_ps(unsafe { *x.d.wrapping_add(b) }));
            *acc = _mm512_fnmadd_ps(_mm512_cvtepi32_ps(mins), d, *acc);
        }
    }

    /// Family B.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vbmi,avx512vnni,fma,f16c")]
    unsafe fn b<const N: usize>(g: &Group<'_>, x: Rows<N>, out: &mut Tile) {
        let l = g.layout;
        let c = Decode::new(l);
        let start = g.bytes.as_ptr();
        let mut acc = [_mm512_setzero_ps(); N];
        for b in 0..l.blocks {
            // SAFETY: block b, its d and m lie inside the group, x.d[b] and x.sum32[b] inside each row.
            unsafe {
                let dot = Self::dots(&c, start.wrapping_add(b * l.block_bytes), b, &x);
                let d = scales(l, start.wrapping_add(l.d + b * 2 * GROUP));
                for ((acc, dot), x) in acc.iter_mut().zip(dot).zip(&x.0) {
                    let scale = _mm512_mul_ps(d, _mm512_set1_ps(*x.d.wrapping_add(b)));
                    *acc = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dot), scale, *acc);
                }
                if MINS {
                    let m = _mm512_cvtph_ps(_mm256_loadu_si256(start.wrapping_add(l.m + b * 2 * GROUP).cast()));
                    for (acc, x) in acc.iter_mut().zip(&x.0) {
                        let sum = *x.d.wrapping_add(b) * f32::from(*x.sum32.wrapping_add(b));
                        *acc = _mm512_fmadd_ps(m, _mm512_set1_ps(sum), *acc);
                    }
                }
            }
        }
        // SAFETY: a row of the tile holds 16 floats.
        out.iter_mut().zip(acc).for_each(|(o, acc)| unsafe { _mm512_storeu_ps(o.as_mut_ptr(), acc) });
    }
}
