//! The product of one group of packed rows in vector registers, written once over [`Ints`].
//!
//! A line of 64 bytes holds four inputs of 16 outputs. So one VNNI instruction, or three of AVX2,
//! multiplies it by four broadcast activation codes and adds into 16 sums. Weights are decoded once for
//! all rows of a tile. Bit-identical to the portable form: the integer sums are exact and the float
//! operations stand in the same order (see [`super::product`]).

use super::act::View;
use super::ints::{Avx2, Ints, Vnni};
use super::lanes::Lanes;
use super::pack::{GROUP, LINE, Layout};
use super::product::{Group, Tile};

/// Bytes between a line that is used and the one fetched for later: the hardware's own streams restart at
/// every page and leave half of the third cache's bandwidth unused.
const AHEAD: usize = 4096;

/// Computes one group for up to 8 rows with AVX-512.
///
/// # Safety
/// The processor has the features named below; `rows` are rows of `x`, of the group's width.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vbmi,avx512vnni,fma,f16c,avx2")]
pub(super) unsafe fn tile_avx512(group: &Group<'_>, x: &View, rows: &[u32], out: &mut Tile) {
    // SAFETY: passed on from the caller.
    unsafe {
        match rows.len() {
            1 => sized_avx512::<1>(group, gather(x, rows), out),
            2 => sized_avx512::<2>(group, gather(x, rows), out),
            3 | 4 => sized_avx512::<4>(group, gather(x, rows), out),
            _ => sized_avx512::<8>(group, gather(x, rows), out),
        }
    }
}

/// The same with AVX2.
///
/// # Safety
/// As for AVX-512.
#[target_feature(enable = "fma,f16c,avx2")]
pub(super) unsafe fn tile_avx2(group: &Group<'_>, x: &View, rows: &[u32], out: &mut Tile) {
    // SAFETY: passed on from the caller.
    unsafe {
        match rows.len() {
            1 => sized_avx2::<1>(group, gather(x, rows), out),
            2 => sized_avx2::<2>(group, gather(x, rows), out),
            _ => {
                for (rows, out) in rows.chunks(4).zip(out.chunks_mut(4)) {
                    let mut part: Tile = [[0.0; GROUP]; super::product::TILE];
                    sized_avx2::<4>(group, gather(x, rows), &mut part);
                    out.copy_from_slice(&part[..4]);
                }
            }
        }
    }
}

/// Activation rows of one call; counts between the compiled sizes repeat their last row.
#[inline(always)]
fn gather<const N: usize>(x: &View, rows: &[u32]) -> [View; N] {
    std::array::from_fn(|i| x.row(rows[i.min(rows.len() - 1)] as usize))
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vbmi,avx512vnni,fma,f16c,avx2")]
unsafe fn sized_avx512<const N: usize>(g: &Group<'_>, x: [View; N], out: &mut Tile) {
    // SAFETY: passed on from the caller.
    unsafe { choose::<Vnni, N>(g, &x, out) }
}

#[target_feature(enable = "fma,f16c,avx2")]
unsafe fn sized_avx2<const N: usize>(g: &Group<'_>, x: [View; N], out: &mut Tile) {
    // SAFETY: passed on from the caller.
    unsafe { choose::<Avx2, N>(g, &x, out) }
}

/// Picks the compiled form of the group's format.
#[inline(always)]
unsafe fn choose<I: Ints, const N: usize>(g: &Group<'_>, x: &[View; N], out: &mut Tile) {
    let f = &g.layout.format;
    // SAFETY: passed on from the caller.
    unsafe {
        match (f.block, f.bits, f.sub, f.table.is_some(), f.mins) {
            (256, 4, 32, false, true) => Spec::<4, 32, false, true>::quads::<I, N>(g, x, out),
            (256, 4, 16, false, true) => Spec::<4, 16, false, true>::k::<I, N>(g, x, out),
            (256, 4, 16, false, false) => Spec::<4, 16, false, false>::k::<I, N>(g, x, out),
            (256, 4, 32, true, false) => Spec::<4, 32, true, false>::k::<I, N>(g, x, out),
            (256, 4, 16, true, false) => Spec::<4, 16, true, false>::k::<I, N>(g, x, out),
            (256, 5, 32, false, true) => Spec::<5, 32, false, true>::quads::<I, N>(g, x, out),
            (256, 6, 16, false, false) => Spec::<6, 16, false, false>::quads::<I, N>(g, x, out),
            (32, 4, 32, false, false) => Spec::<4, 32, false, false>::b::<I, N>(g, x, out),
            (32, 4, 32, false, true) => Spec::<4, 32, false, true>::b::<I, N>(g, x, out),
            (32, 4, 32, true, false) => Spec::<4, 32, true, false>::b::<I, N>(g, x, out),
            (32, 5, 32, false, false) => Spec::<5, 32, false, false>::b::<I, N>(g, x, out),
            (32, 5, 32, false, true) => Spec::<5, 32, false, true>::b::<I, N>(g, x, out),
            (32, 8, 32, false, false) => Spec::<8, 32, false, false>::b::<I, N>(g, x, out),
            _ => unreachable!("every packed format is listed"),
        }
    }
}

/// Constants of the decoding.
#[derive(Clone, Copy)]
pub(super) struct Decode<L> {
    table: L,
    /// −offset for each of a pair of 16-bit sums: both, the first only, the second only.
    offset: [L; 3],
    /// Decoded bytes may exceed 127.
    wide: bool,
}

impl<L> Decode<L> {
    #[inline(always)]
    pub(super) unsafe fn new<I: Ints<Line = L>>(l: &Layout) -> Decode<L> {
        let o = -l.format.offset;
        let (low, high) = (o & 0xffff, o << 16);
        // SAFETY: passed on from the caller.
        unsafe {
            Decode {
                table: I::table(&l.format.table.unwrap_or([0; 16])),
                offset: [I::splat(high | low), I::splat(low), I::splat(high)],
                wide: !l.format.narrow(),
            }
        }
    }
}

/// Compile-time facts of a format: what the inner loop must not ask.
pub(super) struct Spec<const BITS: usize, const SUB: usize, const TABLE: bool, const MINS: bool>;

/// Four codes, or two 16-bit sums, of a row in all lanes.
#[inline(always)]
pub(super) unsafe fn word<I: Ints, T>(at: *const T) -> I::Line {
    // SAFETY: the caller keeps the four bytes inside the row.
    unsafe { I::splat(at.cast::<i32>().read_unaligned()) }
}

/// Sixteen stored scales as floats.
#[inline(always)]
pub(super) unsafe fn scales<I: Ints>(l: &Layout, at: *const u8) -> I::Floats {
    // SAFETY: the caller points at 32 readable bytes.
    unsafe {
        if l.format.wide_d {
            return I::Floats::load_bf16(at.cast());
        }
        I::Floats::load_f16(at.cast()).mul(I::Floats::splat(l.format.mul))
    }
}

impl<const BITS: usize, const SUB: usize, const TABLE: bool, const MINS: bool> Spec<BITS, SUB, TABLE, MINS> {
    pub(super) const LOW: usize = if BITS == 8 { SUB / 4 } else { SUB / 8 };
    pub(super) const LINES: usize = Self::LOW + (BITS == 5 || BITS == 6) as usize;

    /// One line of weights as unsigned bytes: quad `quad` of the sub-block at `at`.
    #[inline(always)]
    pub(super) unsafe fn decode<I: Ints>(c: &Decode<I::Line>, at: *const u8, quad: usize) -> I::Line {
        let from = at.wrapping_add(quad % Self::LOW * LINE);
        // SAFETY: the caller's sub-block has `LINES` lines; a prefetch may name any address.
        unsafe {
            if quad < Self::LOW {
                let ahead = from.wrapping_add(AHEAD).cast();
                std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(ahead);
            }
            let raw = I::load(from);
            if BITS == 8 {
                return raw;
            }
            let shifted = if quad < Self::LOW { raw } else { I::right(raw, 4) };
            let nibble = I::splat(0x0f0f_0f0f);
            if BITS == 4 {
                let codes = I::and(shifted, nibble);
                return if TABLE { I::lookup(c.table, codes) } else { codes };
            }
            let high = I::load(at.wrapping_add(Self::LOW * LINE));
            // Bring the quad's bits to position 4 of each byte; what lands elsewhere is masked away.
            let width = BITS - 4;
            let bit = width * quad;
            let high = if bit <= 4 { I::left(high, 4 - bit) } else { I::right(high, bit - 4) };
            I::and(I::select(nibble, shifted, high), I::splat(if BITS == 5 { 0x1f1f_1f1f } else { 0x3f3f_3f3f }))
        }
    }

    /// Integer products of sub-block `sub` (of the whole row) for every row of the tile.
    #[inline(always)]
    unsafe fn dots<I: Ints, const N: usize>(
        c: &Decode<I::Line>,
        at: *const u8,
        sub: usize,
        x: &[View; N],
    ) -> [I::Sums; N] {
        // SAFETY: the sub-block lies inside the group, its codes and sums inside each row; a sub-block of 32 has
        // two sums, of 16 one, whose even-odd pair is inside the row.
        unsafe {
            let mut dot = [I::zero(); N];
            if !MINS {
                for (dot, x) in dot.iter_mut().zip(x) {
                    let sums = word::<I, i16>(x.sum16.wrapping_add(if SUB == 32 { 2 * sub } else { sub & !1 }));
                    let offset = if SUB == 32 { c.offset[0] } else { c.offset[1 + sub % 2] };
                    *dot = I::dot16(*dot, offset, sums);
                }
            }
            for quad in 0..SUB / 4 {
                let w = Self::decode::<I>(c, at, quad);
                for (dot, x) in dot.iter_mut().zip(x) {
                    *dot = I::dot(*dot, w, word::<I, i8>(x.q.wrapping_add(sub * SUB + quad * 4)), c.wide);
                }
            }
            dot
        }
    }

    /// Family K.
    #[inline(always)]
    unsafe fn k<I: Ints, const N: usize>(g: &Group<'_>, x: &[View; N], out: &mut Tile) {
        let l = g.layout;
        let subs = 256 / SUB;
        // SAFETY: block b of the group has `subs` sub-blocks with their scales, mins, d and dmin; each row has a
        // scale for block b; a row of the tile holds 16 floats.
        unsafe {
            let c = Decode::new::<I>(l);
            let mut acc = [I::Floats::splat(0.0); N];
            for b in 0..l.blocks {
                let block = g.bytes.as_ptr().wrapping_add(b * l.block_bytes);
                let mut s = [I::Floats::splat(0.0); N];
                for sub in 0..subs {
                    let dot = Self::dots::<I, N>(&c, block.wrapping_add(sub * Self::LINES * LINE), b * subs + sub, x);
                    let scale = I::signed(block.wrapping_add(l.scales + sub * GROUP));
                    for (s, dot) in s.iter_mut().zip(dot) {
                        *s = I::floats(dot).fma(scale, *s);
                    }
                }
                let d = scales::<I>(l, block.wrapping_add(l.d));
                for ((acc, s), x) in acc.iter_mut().zip(s).zip(x) {
                    *acc = s.fma(d.mul(I::Floats::splat(*x.d.wrapping_add(b))), *acc);
                }
                if MINS {
                    Self::mins::<I, N>(l, block, b, x, &mut acc);
                }
            }
            for (o, acc) in out.iter_mut().zip(acc) {
                acc.store(o.as_mut_ptr());
            }
        }
    }

    /// acc −= dmin·d_x·Σ min·sum, two sub-blocks at a time.
    #[inline(always)]
    unsafe fn mins<I: Ints, const N: usize>(
        l: &Layout,
        block: *const u8,
        b: usize,
        x: &[View; N],
        acc: &mut [I::Floats; N],
    ) {
        let subs = 256 / SUB;
        // SAFETY: the block holds 32 bytes of mins for each two sub-blocks, and dmin; each row two sums.
        unsafe {
            let mut mins = [I::zero(); N];
            for two in 0..subs / 2 {
                let m = I::widen(block.wrapping_add(l.mins + two * 2 * GROUP));
                for (mins, x) in mins.iter_mut().zip(x) {
                    let sums = if SUB == 32 { x.sum32 } else { x.sum16 };
                    *mins = I::dot16(*mins, m, word::<I, i16>(sums.wrapping_add(b * subs + 2 * two)));
                }
            }
            let dmin = I::Floats::load_f16(block.wrapping_add(l.m).cast());
            for ((acc, mins), x) in acc.iter_mut().zip(mins).zip(x) {
                let d = dmin.mul(I::Floats::splat(-*x.d.wrapping_add(b)));
                *acc = I::floats(mins).fma(d, *acc);
            }
        }
    }

    /// Family B.
    #[inline(always)]
    unsafe fn b<I: Ints, const N: usize>(g: &Group<'_>, x: &[View; N], out: &mut Tile) {
        let l = g.layout;
        let start = g.bytes.as_ptr();
        // SAFETY: block b, its d and m lie inside the group, x.d[b] and x.sum32[b] inside each row; a row of the
        // tile holds 16 floats.
        unsafe {
            let c = Decode::new::<I>(l);
            let mut acc = [I::Floats::splat(0.0); N];
            for b in 0..l.blocks {
                let dot = Self::dots::<I, N>(&c, start.wrapping_add(b * l.block_bytes), b, x);
                let d = scales::<I>(l, start.wrapping_add(l.d + b * 2 * GROUP));
                for ((acc, dot), x) in acc.iter_mut().zip(dot).zip(x) {
                    *acc = I::floats(dot).fma(d.mul(I::Floats::splat(*x.d.wrapping_add(b))), *acc);
                }
                if MINS {
                    let m = I::Floats::load_f16(start.wrapping_add(l.m + b * 2 * GROUP).cast());
                    for (acc, x) in acc.iter_mut().zip(x) {
                        let sum = *x.d.wrapping_add(b) * f32::from(*x.sum32.wrapping_add(b));
                        *acc = m.fma(I::Floats::splat(sum), *acc);
                    }
                }
            }
            for (o, acc) in out.iter_mut().zip(acc) {
                acc.store(o.as_mut_ptr());
            }
        }
    }
}
