//! The product of one group of 16 packed rows with a tile of activations. Here is the portable
//! form, which the others must equal bit for bit, and the choice between them.

use super::act::View;
use super::isa::Isa;
use super::pack::{GROUP, Layout};
use super::product::{Group, Tile};

/// Computes one group for the activation rows `rows` with instruction set `isa`.
///
/// # Safety
/// The processor has `isa`; every index in `rows` is a row of `x`; the group is of the same width.
pub(super) unsafe fn tile(isa: Isa, group: &Group<'_>, x: &View, rows: &[u32], out: &mut Tile) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: passed on from the caller.
    unsafe {
        match isa {
            Isa::Avx512 => return super::packed::tile_avx512(group, x, rows, out),
            Isa::Avx2 => return super::packed::tile_avx2(group, x, rows, out),
            Isa::Portable => {}
        }
    }
    let _ = isa;
    for (t, values) in rows.iter().zip(out) {
        // SAFETY: the caller vouches for row t.
        let row = unsafe { Row::new(x.row(*t as usize)) };
        *values = portable(group.layout, group.bytes, &row);
    }
}

/// One row of an 8-bit form as slices.
struct Row<'a> {
    q: &'a [i8],
    d: &'a [f32],
    sum16: &'a [i16],
    sum32: &'a [i16],
}

impl Row<'_> {
    /// # Safety
    /// `v` starts at a live row of an 8-bit form.
    unsafe fn new(v: View) -> Row<'static> {
        // SAFETY: a form has these lengths for each row.
        unsafe {
            Row {
                q: std::slice::from_raw_parts(v.q, v.cols),
                d: std::slice::from_raw_parts(v.d, v.blocks),
                sum16: std::slice::from_raw_parts(v.sum16, v.cols / 16),
                sum32: std::slice::from_raw_parts(v.sum32, v.cols / 32),
            }
        }
    }
}

fn portable(l: &Layout, bytes: &[u8], x: &Row<'_>) -> [f32; GROUP] {
    if l.format.by_quads() {
        return std::array::from_fn(|r| quads(l, bytes, x, r));
    }
    let mut acc = [0f32; GROUP];
    for (r, acc) in acc.iter_mut().enumerate() {
        for b in 0..l.blocks {
            *acc =
                if l.format.block == 256 { block_k(l, bytes, x, r, b, *acc) } else { block_b(l, bytes, x, r, b, *acc) };
        }
    }
    acc
}

/// Σ value·q over inputs `from..from + n` of block `b`.
fn dot(l: &Layout, block: &[u8], x: &Row<'_>, r: usize, b: usize, from: usize, n: usize) -> i32 {
    let q = &x.q[b * l.format.block..];
    (from..from + n).map(|i| l.format.value(l.code(block, r, i)) * i32::from(q[i])).sum()
}

/// Row `r` with a sum for each of the eight quads of 32 inputs.
fn quads(l: &Layout, bytes: &[u8], x: &Row<'_>, r: usize) -> f32 {
    let f = &l.format;
    let (mut acc, mut low) = ([0f32; 8], [0f32; 4]);
    for (b, block) in bytes.chunks(l.block_bytes).take(l.blocks).enumerate() {
        let scale = |i: usize| i32::from(block[l.scales + i / f.sub * GROUP + r] as i8);
        let q = &x.q[b * 256..(b + 1) * 256];
        let d = f.scale(half_at(block, l.d + 2 * r)) * x.d[b];
        for (lane, acc) in acc.iter_mut().enumerate() {
            let term = |i: usize| scale(i) * i32::from(l.code(block, r, i)) * i32::from(q[i]);
            let mut sum: i32 = (0..32).map(|i| term(i / 4 * 32 + lane * 4 + i % 4)).sum();
            if !f.mins {
                let pair = [32 * lane, 32 * lane + 16];
                sum -= f.offset * pair.iter().map(|i| scale(*i) * i32::from(x.sum16[(b * 256 + i) / 16])).sum::<i32>();
            }
            *acc = (sum as f32).mul_add(d, *acc);
        }
        if f.mins {
            let d = half::f16::from_bits(half_at(block, l.m + 2 * r)).to_f32() * -x.d[b];
            let min =
                |s: usize| i32::from(block[l.mins + (s / 2 * GROUP + r) * 2 + s % 2]) * i32::from(x.sum32[b * 8 + s]);
            let two: [i32; 4] = std::array::from_fn(|i| min(2 * i) + min(2 * i + 1));
            if f.bits == 4 {
                low = std::array::from_fn(|i| (two[i] as f32).mul_add(d, low[i]));
            } else {
                low[0] = (two.iter().sum::<i32>() as f32).mul_add(d, low[0]);
            }
        }
    }
    let four: [f32; 4] = std::array::from_fn(|i| acc[i + 4] + acc[i]);
    let sum = four[0] + four[2] + (four[1] + four[3]);
    let low = if f.bits == 4 { low[0] + low[2] + (low[1] + low[3]) } else { low[0] };
    if f.mins { sum + low } else { sum }
}

fn block_k(l: &Layout, bytes: &[u8], x: &Row<'_>, r: usize, b: usize, acc: f32) -> f32 {
    let f = &l.format;
    let block = &bytes[b * l.block_bytes..(b + 1) * l.block_bytes];
    let mut s = 0f32;
    let mut mins = 0i32;
    for sub in 0..256 / f.sub {
        let scale = block[l.scales + sub * GROUP + r] as i8;
        s = (dot(l, block, x, r, b, sub * f.sub, f.sub) as f32).mul_add(f32::from(scale), s);
        if f.mins {
            let sum = if f.sub == 32 { x.sum32[b * 8 + sub] } else { x.sum16[b * 16 + sub] };
            mins += i32::from(block[l.mins + (sub / 2 * GROUP + r) * 2 + sub % 2]) * i32::from(sum);
        }
    }
    let acc = s.mul_add(f.scale(half_at(block, l.d + 2 * r)) * x.d[b], acc);
    if !f.mins {
        return acc;
    }
    let dmin = half::f16::from_bits(half_at(block, l.m + 2 * r)).to_f32();
    (mins as f32).mul_add(-(dmin * x.d[b]), acc)
}

fn block_b(l: &Layout, bytes: &[u8], x: &Row<'_>, r: usize, b: usize, acc: f32) -> f32 {
    let f = &l.format;
    let block = &bytes[b * l.block_bytes..];
    let d = f.scale(half_at(bytes, l.d + (b * GROUP + r) * 2));
    let acc = (dot(l, block, x, r, b, 0, 32) as f32).mul_add(d * x.d[b], acc);
    if !f.mins {
        return acc;
    }
    let m = half::f16::from_bits(half_at(bytes, l.m + (b * GROUP + r) * 2)).to_f32();
    m.mul_add(x.d[b] * f32::from(x.sum32[b]), acc)
}

fn half_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}
