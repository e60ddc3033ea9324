//! Products with Q4_K, Q5_K and Q6_K in the order of the library. Each of the eight quads of 32 inputs, a lane of its
//! AVX2 form, has an integer sum over a block and a float sum over the row. The eight are added as a tree.
//!
//! A line of packed weights is a quad of 16 rows, so the lanes cost one more instruction for each line and no
//! rearrangement. Vector operations stand in no closures here: a closure that is not inlined has none of the
//! instructions.

use super::act::View;
use super::ints::Ints;
use super::lanes::Lanes;
use super::pack::{GROUP, LINE, Layout};
use super::packed::{Decode, Spec, scales, word};
use super::product::{Group, Tile};

/// Block number `b` of a group, and the rows it meets.
struct Place<'a, const N: usize> {
    block: *const u8,
    b: usize,
    x: &'a [View; N],
}

impl<const BITS: usize, const SUB: usize, const TABLE: bool, const MINS: bool> Spec<BITS, SUB, TABLE, MINS> {
    /// Family K where each quad of 32 inputs has a sum of its own.
    #[inline(always)]
    pub(super) unsafe fn quads<I: Ints, const N: usize>(g: &Group<'_>, x: &[View; N], out: &mut Tile) {
        let l = g.layout;
        // SAFETY: block b of the group has its parts with their scales, mins, d and dmin; each row has codes, sums and a
        // scale for block b; a row of the tile holds 16 floats.
        unsafe {
            let c = Decode::new::<I>(l);
            let mut acc = [[I::Floats::splat(0.0); 8]; N];
            let mut low = [[I::Floats::splat(0.0); 4]; N];
            for b in 0..l.blocks {
                let block = g.bytes.as_ptr().wrapping_add(b * l.block_bytes);
                let d = scales::<I>(l, block.wrapping_add(l.d));
                let at = Place { block, b, x };
                let mut ds = [d; N];
                for (d, x) in ds.iter_mut().zip(x) {
                    *d = d.mul(I::Floats::splat(*x.d.wrapping_add(b)));
                }
                if N <= 2 {
                    Self::by_parts::<I, N>(&c, l, &at, &ds, &mut acc);
                } else {
                    Self::by_lanes::<I, N>(&c, l, &at, &ds, &mut acc);
                }
                if MINS {
                    Self::quad_mins::<I, N>(l, block, b, x, &mut low);
                }
            }
            for ((o, a), m) in out.iter_mut().zip(acc).zip(low) {
                let four = [a[4].add(a[0]), a[5].add(a[1]), a[6].add(a[2]), a[7].add(a[3])];
                let sum = four[0].add(four[2]).add(four[1].add(four[3]));
                // Q4_K keeps four sums of mins, Q5_K one.
                let low = if BITS == 4 { m[0].add(m[2]).add(m[1].add(m[3])) } else { m[0] };
                if MINS { sum.add(low) } else { sum }.store(o.as_mut_ptr());
            }
        }
    }

    /// All eight lanes at once: the block is read in its order, as memory likes it.
    #[inline(always)]
    unsafe fn by_parts<I: Ints, const N: usize>(
        c: &Decode<I::Line>,
        l: &Layout,
        at: &Place<'_, N>,
        d: &[I::Floats; N],
        acc: &mut [[I::Floats; 8]; N],
    ) {
        // SAFETY: as in `quads`.
        unsafe {
            let mut sums = [[I::zero(); N]; 8];
            for (lane, sums) in sums.iter_mut().enumerate() {
                Self::start::<I, N>(l, at, lane, sums);
            }
            let [s0, s1, s2, s3, s4, s5, s6, s7] = &mut sums;
            for part in 0..8 {
                let scale = Self::factor::<I>(l, at.block, part, 0);
                // Spelled out, so that shifts and places are constants.
                if SUB == 32 {
                    Self::two::<I, N, 0>(c, at, part, scale, s0, s4);
                    Self::two::<I, N, 1>(c, at, part, scale, s1, s5);
                    Self::two::<I, N, 2>(c, at, part, scale, s2, s6);
                    Self::two::<I, N, 3>(c, at, part, scale, s3, s7);
                } else {
                    Self::two::<I, N, 0>(c, at, part, scale, s0, s2);
                    Self::two::<I, N, 1>(c, at, part, scale, s1, s3);
                    let scale = Self::factor::<I>(l, at.block, part, 1);
                    Self::two::<I, N, 4>(c, at, part, scale, s4, s6);
                    Self::two::<I, N, 5>(c, at, part, scale, s5, s7);
                }
            }
            for (lane, sums) in sums.iter().enumerate() {
                for i in 0..N {
                    acc[i][lane] = I::floats(sums[i]).fma(d[i], acc[i][lane]);
                }
            }
        }
    }

    /// The same, two lanes after two: for more rows than have sums of eight lanes in registers.
    #[inline(always)]
    unsafe fn by_lanes<I: Ints, const N: usize>(
        c: &Decode<I::Line>,
        l: &Layout,
        at: &Place<'_, N>,
        d: &[I::Floats; N],
        acc: &mut [[I::Floats; 8]; N],
    ) {
        // SAFETY: as in `quads`.
        unsafe {
            let scale = Self::factors::<I>(l, at.block, 0);
            Self::pair::<I, N, 0>(c, l, at, &scale, d, acc);
            Self::pair::<I, N, 1>(c, l, at, &scale, d, acc);
            if SUB == 32 {
                Self::pair::<I, N, 2>(c, l, at, &scale, d, acc);
                Self::pair::<I, N, 3>(c, l, at, &scale, d, acc);
            } else {
                let scale = Self::factors::<I>(l, at.block, 1);
                Self::pair::<I, N, 4>(c, l, at, &scale, d, acc);
                Self::pair::<I, N, 5>(c, l, at, &scale, d, acc);
            }
        }
    }

    /// The factors of part `part` of a block (32 inputs), or of one of its halves.
    #[inline(always)]
    unsafe fn factor<I: Ints>(l: &Layout, block: *const u8, part: usize, half: usize) -> I::Line {
        // SAFETY: a block has a factor of each sub-block for 16 rows.
        unsafe { I::scale(block.wrapping_add(l.scales + (part * (32 / SUB) + half) * GROUP)) }
    }

    /// The same of all parts.
    #[inline(always)]
    unsafe fn factors<I: Ints>(l: &Layout, block: *const u8, half: usize) -> [I::Line; 8] {
        // SAFETY: as in `factor`.
        unsafe {
            let mut all = [Self::factor::<I>(l, block, 0, half); 8];
            for (part, factor) in all.iter_mut().enumerate().skip(1) {
                *factor = Self::factor::<I>(l, block, part, half);
            }
            all
        }
    }

    /// All parts of two lanes.
    #[inline(always)]
    unsafe fn pair<I: Ints, const N: usize, const LANE: usize>(
        c: &Decode<I::Line>,
        l: &Layout,
        at: &Place<'_, N>,
        scale: &[I::Line; 8],
        d: &[I::Floats; N],
        acc: &mut [[I::Floats; 8]; N],
    ) {
        // SAFETY: as in `quads`.
        unsafe {
            let (mut low, mut high) = ([I::zero(); N], [I::zero(); N]);
            Self::start::<I, N>(l, at, LANE, &mut low);
            Self::start::<I, N>(l, at, LANE + Self::LOW, &mut high);
            for (part, scale) in scale.iter().enumerate() {
                Self::two::<I, N, LANE>(c, at, part, *scale, &mut low, &mut high);
            }
            for i in 0..N {
                acc[i][LANE] = I::floats(low[i]).fma(d[i], acc[i][LANE]);
                acc[i][LANE + Self::LOW] = I::floats(high[i]).fma(d[i], acc[i][LANE + Self::LOW]);
            }
        }
    }

    /// One part of the two lanes whose codes share a line of nibbles: `LANE` and the one `LOW` further.
    #[inline(always)]
    unsafe fn two<I: Ints, const N: usize, const LANE: usize>(
        c: &Decode<I::Line>,
        at: &Place<'_, N>,
        part: usize,
        scale: I::Line,
        low: &mut [I::Sums; N],
        high: &mut [I::Sums; N],
    ) {
        let half = LANE * 4 / SUB;
        let line = LANE % Self::LOW;
        let from = at.block.wrapping_add((part * (32 / SUB) + half) * Self::LINES * LINE);
        let code = at.b * 256 + part * 32 + LANE * 4;
        // SAFETY: as in `quads`.
        unsafe {
            let w = Self::decode::<I>(c, from, line);
            for (sum, x) in low.iter_mut().zip(at.x) {
                *sum = I::dot_scaled(*sum, w, word::<I, i8>(x.q.wrapping_add(code)), scale);
            }
            let w = Self::decode::<I>(c, from, line + Self::LOW);
            for (sum, x) in high.iter_mut().zip(at.x) {
                *sum = I::dot_scaled(*sum, w, word::<I, i8>(x.q.wrapping_add(code + 4 * Self::LOW)), scale);
            }
        }
    }

    /// What the sum of a lane starts with in block `b`: nothing, or −32·Σ scale·sum over the 32 inputs of the lane's
    /// number where the codes stand 32 too high.
    #[inline(always)]
    unsafe fn start<I: Ints, const N: usize>(l: &Layout, at: &Place<'_, N>, lane: usize, sums: &mut [I::Sums; N]) {
        if MINS {
            return;
        }
        // SAFETY: a block has scales for 2·8 parts, each row 16 sums.
        unsafe {
            let scale = I::offsets(at.block.wrapping_add(l.scales + 2 * lane * GROUP));
            for (sum, x) in sums.iter_mut().zip(at.x) {
                let pair = word::<I, i16>(x.sum16.wrapping_add(at.b * 16 + 2 * lane));
                *sum = I::dot16(*sum, scale, pair);
            }
        }
    }

    /// The mins of block `b`: a sum for each two sub-blocks (4 bits) or for all (5 bits).
    #[inline(always)]
    unsafe fn quad_mins<I: Ints, const N: usize>(
        l: &Layout,
        block: *const u8,
        b: usize,
        x: &[View; N],
        low: &mut [[I::Floats; 4]; N],
    ) {
        // SAFETY: as in `mins`.
        unsafe {
            let dmin = I::Floats::load_f16(block.wrapping_add(l.m).cast());
            for (low, x) in low.iter_mut().zip(x) {
                let d = dmin.mul(I::Floats::splat(-*x.d.wrapping_add(b)));
                let mut all = I::zero();
                for (two, low) in low.iter_mut().enumerate() {
                    let m = I::widen(block.wrapping_add(l.mins + two * 2 * GROUP));
                    let sums = word::<I, i16>(x.sum32.wrapping_add(b * 8 + 2 * two));
                    if BITS == 4 {
                        *low = I::floats(I::dot16(I::zero(), m, sums)).fma(d, *low);
                    } else {
                        all = I::dot16(all, m, sums);
                    }
                }
                if BITS != 4 {
                    low[0] = I::floats(all).fma(d, low[0]);
                }
            }
        }
    }
}
