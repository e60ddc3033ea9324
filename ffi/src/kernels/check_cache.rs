//! The cache of keys and values, and attention of few tokens over it, against plain arithmetic. Whichever kernel
//! writes a position, its bytes must be the same.

use half::f16;

use super::attention::{self, Attend, Attention, Cache, FEW, Join, cache, chunks_of, few, kind};
use super::check::{Finding, floats, read, worst};
use super::check_many::{dot, same, words};
use crate::KvType;
use crate::cache::{as_q4_0, as_q8_0, mix_head};
use crate::gpu::{Buffer, Device, GpuError};
use crate::samples::Random;

const HEADS: (usize, usize) = (6, 2);
const ROPE: usize = 32;
const TOKENS: usize = 75;
/// Of four.
const PAGES: [u32; 2] = [3, 1];

pub(super) fn all(d: &Device) -> Result<Vec<Finding>, GpuError> {
    let mut found = Vec::new();
    for kv in [KvType::F16, KvType::Q8Q4] {
        for dim in [96, 128, 256] {
            found.extend(few_tokens(d, kv, dim)?);
        }
    }
    found.extend([far(d, KvType::F16)?, far(d, KvType::F32)?]);
    Ok(found)
}

/// Bytes of `pages` pages of `row` keys or values a position.
fn bytes(kv: KvType, keys: bool, pages: usize, row: usize) -> usize {
    let (k, v) = kv.bytes(64 * row);
    pages * if keys { k } else { v }
}

/// Any codes or halves, with scales of ordinary size.
pub(super) fn random_cache(kv: KvType, keys: bool, pages: usize, row: usize, random: &mut Random) -> Vec<u8> {
    let le = |v: f32| f16::from_f32(v).to_bits().to_le_bytes();
    if kv != KvType::Q8Q4 {
        return random.normals(pages * 64 * row).into_iter().flat_map(le).collect();
    }
    let (codes, top) = if keys { (64 * row, 64.0) } else { (32 * row, 4.0) };
    let page = |_| {
        let codes: Vec<u8> = random.normals(codes).into_iter().map(|v| (v * 1e4) as i32 as u8).collect();
        let scales: Vec<u8> = random.normals(2 * row).into_iter().flat_map(|v| le(v / top)).collect();
        [codes, scales].concat()
    };
    (0..pages).flat_map(page).collect()
}

/// A head of one position as its readers see it.
pub(super) fn decoded(
    kv: KvType,
    keys: bool,
    cache: &[u8],
    page: usize,
    (position, head): (usize, usize),
    (kv_heads, dim): (usize, usize),
) -> Vec<f32> {
    let half = |at: usize| f16::from_le_bytes([cache[at], cache[at + 1]]).to_f32();
    let row = position * kv_heads + head;
    let page_at = page * bytes(kv, keys, 1, kv_heads * dim);
    if kv != KvType::Q8Q4 {
        return (0..dim).map(|i| half(page_at + 2 * (row * dim + i))).collect();
    }
    let codes = 64 * kv_heads * dim / if keys { 1 } else { 2 };
    let value = |i: usize| {
        let code = if keys {
            f32::from(cache[page_at + row * dim + i] as i8)
        } else {
            let byte = cache[page_at + row * dim / 2 + i / 32 * 16 + i % 16];
            f32::from(byte >> (i % 32 / 16 * 4) & 15) - 8.0
        };
        f16::from_f32(half(page_at + codes + (row * dim + i) / 32 * 2) * code).to_f32()
    };
    (0..dim).map(value).collect()
}

/// Norm and rotation of a head.
fn turned(x: &[f32], w: &[f32], angles: &[f32]) -> Vec<f32> {
    let mean = x.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>() / x.len() as f64;
    let mut y: Vec<f32> = x.iter().zip(w).map(|(x, w)| (f64::from(*x) / (mean + 1e-6).sqrt()) as f32 * w).collect();
    for i in 0..ROPE / 2 {
        let (a, b, cos, sin) = (y[i], y[i + ROPE / 2], angles[2 * i], angles[2 * i + 1]);
        (y[i], y[i + ROPE / 2]) = (a * cos - b * sin, b * cos + a * sin);
    }
    y
}

fn halved(x: &mut [f32]) {
    x.iter_mut().for_each(|v| *v = f16::from_f32(*v).to_f32());
}

struct Inputs {
    query_gate: Vec<f32>,
    k: Vec<f32>,
    v: Vec<f32>,
    q_norm: Vec<f32>,
    k_norm: Vec<f32>,
    angles: Vec<f32>,
}

/// What attention makes of every token, the pages of keys and values, and whether the last token came out alike both ways.
struct Made {
    y: Vec<f32>,
    keys: Vec<u8>,
    values: Vec<u8>,
    same: bool,
}

/// 75 positions over two pages in no order: what is cached, what attention makes of it, and that the last position put
/// there by attention itself is the one that `attention_cache` puts there.
fn few_tokens(d: &Device, kv: KvType, dim: usize) -> Result<[Finding; 2], GpuError> {
    let mut random = Random(17);
    let mut normals = |n: usize| random.normals(n);
    let (query_gate, k, v) =
        (normals(2 * TOKENS * HEADS.0 * dim), normals(TOKENS * HEADS.1 * dim), normals(TOKENS * HEADS.1 * dim));
    let (q_norm, k_norm, angles) = (normals(dim), normals(dim), normals(TOKENS * ROPE / 2));
    let angles = angles.into_iter().flat_map(|a| [a.cos(), a.sin()]).collect();
    let x = Inputs { query_gate, k, v, q_norm, k_norm, angles };
    let Made { y, keys, values, same } = on_device(d, kv, dim, &x)?;
    let shape = (HEADS.1, dim);
    let row = |keys_wanted: bool, p: usize, head: usize| {
        let cache = if keys_wanted { &keys } else { &values };
        decoded(kv, keys_wanted, cache, PAGES[p / 64] as usize, (p % 64, head), shape)
    };
    let (mut far, mut error) = (0.0_f64, if same { 0.0 } else { f64::INFINITY });
    for p in 0..TOKENS {
        let angles = &x.angles[p * ROPE..][..ROPE];
        for head in 0..HEADS.1 {
            let at = (p * HEADS.1 + head) * dim;
            let (mut key, mut value) = (turned(&x.k[at..at + dim], &x.k_norm, angles), x.v[at..at + dim].to_vec());
            if kv == KvType::Q8Q4 {
                mix_head(&mut key);
                as_q8_0(&mut key);
                as_q4_0(&mut value);
            } else {
                halved(&mut key);
                halved(&mut value);
            }
            let pairs = [(key, row(true, p, head)), (value, row(false, p, head))];
            let sum: f32 = pairs.iter().flat_map(|(a, b)| a.iter().zip(b)).map(|(a, b)| (a - b).abs()).sum();
            far += f64::from(sum) / (2 * TOKENS * HEADS.1 * dim) as f64;
        }
        for head in 0..HEADS.0 {
            let at = p * HEADS.0 + head;
            let mut q = turned(&x.query_gate[2 * at * dim..][..dim], &x.q_norm, angles);
            if kv == KvType::Q8Q4 {
                mix_head(&mut q);
            }
            let weights: Vec<f64> =
                (0..=p).map(|p| (dot(&q, &row(true, p, head / 3)) / (dim as f64).sqrt()).exp()).collect();
            let total: f64 = weights.iter().sum();
            let mut out = vec![0.0; dim];
            for (p, w) in weights.iter().enumerate() {
                out.iter_mut().zip(row(false, p, head / 3)).for_each(|(o, v)| *o += w / total * f64::from(v));
            }
            for (i, out) in out.iter().enumerate() {
                let gate = 1.0 / (1.0 + (-f64::from(x.query_gate[(2 * at + 1) * dim + i])).exp());
                error = worst(error, (f64::from(y[at * dim + i]) - out * gate).abs());
            }
        }
    }
    let what = format!("{TOKENS} tokens, heads of {dim}, {kv}");
    Ok([
        // A rounding may go the other way, here and there.
        Finding { kernel: "attention_cache", what: what.clone(), error: far, limit: 1e-5 },
        Finding { kernel: "attend", what, error, limit: 3e-3 },
    ])
}

fn on_device(d: &Device, kv: KvType, dim: usize, x: &Inputs) -> Result<Made, GpuError> {
    let (width, row) = (HEADS.0 * dim, HEADS.1 * dim);
    let (query_gate, k, v) = (floats(d, &x.query_gate)?, floats(d, &x.k)?, floats(d, &x.v)?);
    let (q_norm, k_norm, angles) = (floats(d, &x.q_norm)?, floats(d, &x.k_norm)?, floats(d, &x.angles)?);
    let (keys, values) = (d.zeroed(bytes(kv, true, 4, row))?, d.zeroed(bytes(kv, false, 4, row))?);
    let (pages, slot) = (words(d, &PAGES)?, words(d, &[0; TOKENS])?);
    let position = words(d, &(0..TOKENS as u32).collect::<Vec<_>>())?;
    let (q, y, halves) = (d.zeroed(4 * TOKENS * width)?, d.zeroed(4 * TOKENS * width)?, d.zeroed(2 * TOKENS * width)?);
    let part = d.zeroed(4 * FEW * HEADS.0 * 2 * (dim + 2))?;
    let put = |from: usize, count: usize| {
        let a = Cache {
            query_gate: query_gate.from(8 * from * width),
            k: k.from(4 * from * row),
            v: v.from(4 * from * row),
            q_norm: q_norm.at(),
            k_norm: k_norm.at(),
            angles: angles.at(),
            q: q.from(4 * from * width),
            keys: keys.at(),
            values: values.at(),
            pages: pages.at(),
            slot: slot.at(),
            position: position.from(4 * from),
            heads: HEADS.0 as u32,
            kv_heads: HEADS.1 as u32,
            dim: dim as u32,
            rope_dims: ROPE as u32,
            pages_max: 2,
            kind: kind(kv),
            eps: 1e-6,
            pad: 0.0,
        };
        cache(d, &a, count)
    };
    let attend = |from: usize, count: usize, settled: bool| {
        let join = Join {
            part: part.at(),
            query_gate: query_gate.from(8 * from * width),
            position: position.from(4 * from),
            y: y.from(4 * from * width),
            halves: halves.from(2 * from * width),
            heads: HEADS.0 as u32,
            dim: dim as u32,
            chunk: 0,
            chunks_max: 2,
        };
        let a = Attend {
            q: q.from(4 * from * width),
            query_gate: join.query_gate,
            k: k.from(4 * from * row),
            v: v.from(4 * from * row),
            q_norm: q_norm.at(),
            k_norm: k_norm.at(),
            angles: angles.at(),
            keys: keys.at(),
            values: values.at(),
            pages: pages.at(),
            slot: slot.at(),
            position: join.position,
            part: part.at(),
            heads: HEADS.0 as u32,
            kv_heads: HEADS.1 as u32,
            dim: dim as u32,
            rope_dims: ROPE as u32,
            pages_max: 2,
            pad: 0,
            chunks_max: 2,
            settled: u32::from(settled),
            scale: 1.0 / (dim as f32).sqrt(),
            eps: 1e-6,
        };
        few(d, kv, &a, &join, count)
    };
    let kept = |buffer: &Buffer| -> Result<Vec<u8>, GpuError> {
        let mut bytes = vec![0; buffer.len()];
        buffer.read(0, &mut bytes)?;
        Ok(bytes)
    };
    let last = TOKENS - 1;
    put(0, last)?;
    // A settled token's earlier positions were written by earlier passes: they are read before the wait for the kernel before.
    d.wait()?;
    attend(last, 1, true)?;
    let (alone, cached) = (read(&y, TOKENS * width)?, [kept(&keys)?, kept(&values)?]);
    put(last, 1)?;
    for from in (0..TOKENS).step_by(FEW) {
        attend(from, FEW.min(TOKENS - from), false)?;
    }
    let (y, again) = (read(&y, TOKENS * width)?, [kept(&keys)?, kept(&values)?]);
    let same = cached == again && same(&alone[last * width..], &y[last * width..]);
    let [keys, values] = again;
    Ok(Made { y, keys, values, same })
}

/// Rows at both sides of the position where chunks become longer, and one behind it: near plain arithmetic, and the same
/// bits alone and where a longer context has room.
fn far(d: &Device, kv: KvType) -> Result<Finding, GpuError> {
    let (heads, dim, positions, mut random) = (8, 64, [8_191_usize, 8_192, 8_300], Random(23));
    let (pages, width) = (positions[2] / 64 + 1, heads * dim);
    let rows = [true, false].map(|_| random.normals(pages * 64 * dim));
    let rows = rows.map(|r| r.into_iter().map(|v| f16::from_f32(v).to_f32()).collect::<Vec<_>>());
    let kept = |row: &[f32]| match kv {
        KvType::F32 => floats(d, row),
        _ => d.buffer(&row.iter().flat_map(|v| f16::from_f32(*v).to_le_bytes()).collect::<Vec<_>>()),
    };
    let (keys, values) = (kept(&rows[0])?, kept(&rows[1])?);
    let (q, gate) = (random.normals(3 * width), random.normals(2 * 3 * width));
    let (qs, gates, y) = (floats(d, &q)?, floats(d, &gate)?, d.zeroed(4 * 3 * width)?);
    let table = words(d, &(0..pages as u32).collect::<Vec<_>>())?;
    let (slot, position) = (words(d, &[0; 3])?, words(d, &positions.map(|p| p as u32))?);
    let halves = d.zeroed(2 * 3 * width)?;
    let run = |first: usize, count: usize, context: usize| -> Result<Vec<f32>, GpuError> {
        let (chunks_max, at) = (chunks_of(context) as u32, first * width);
        let part = d.zeroed(4 * count * heads * chunks_of(context) * (dim + 2))?;
        let join = Join {
            part: part.at(),
            query_gate: gates.from(8 * at),
            position: position.from(4 * first),
            y: y.from(4 * at),
            halves: halves.from(2 * at),
            heads: heads as u32,
            dim: dim as u32,
            chunk: 0,
            chunks_max,
        };
        let a = Attend {
            q: qs.from(4 * at),
            keys: keys.at(),
            values: values.at(),
            pages: table.at(),
            slot: slot.from(4 * first),
            position: join.position,
            part: part.at(),
            heads: heads as u32,
            kv_heads: 1,
            dim: dim as u32,
            pages_max: pages as u32,
            chunks_max,
            scale: 1.0 / (dim as f32).sqrt(),
            ..Attend::default()
        };
        if kv == KvType::F32 {
            let Attend { q, keys, values, pages, slot, position, part, heads, kv_heads, dim, pages_max, scale, .. } = a;
            let a = Attention {
                q,
                keys,
                values,
                pages,
                slot,
                position,
                part,
                heads,
                kv_heads,
                dim,
                pages_max,
                chunks_max,
                scale,
                ..Attention::default()
            };
            attention::attend(d, &a, &join, count)?;
        } else {
            few(d, kv, &a, &join, count)?;
        }
        Ok(read(&y, 3 * width)?[at..at + count * width].to_vec())
    };
    let found = run(0, 3, positions[2] + 1)?;
    let alone = run(1, 1, 65_536)?;
    let mut error = if same(&alone, &found[width..2 * width]) { 0.0 } else { f64::INFINITY };
    for (at, q) in q.chunks(dim).enumerate() {
        let seen = ..=positions[at / heads];
        let weights: Vec<f64> = rows[0].chunks(dim).map(|k| (dot(q, k) / (dim as f64).sqrt()).exp()).collect();
        let weights = &weights[seen];
        let total: f64 = weights.iter().sum();
        for (i, found) in found[at * dim..][..dim].iter().enumerate() {
            let out: f64 = weights.iter().zip(rows[1].chunks(dim)).map(|(w, v)| w / total * f64::from(v[i])).sum();
            let gate = 1.0 / (1.0 + (-f64::from(gate[(2 * at + 1) * dim + i])).exp());
            error = worst(error, (f64::from(*found) - out * gate).abs());
        }
    }
    let (kernel, limit) = if kv == KvType::F32 { ("attention", 1e-5) } else { ("attend", 3e-3) };
    Ok(Finding { kernel, what: format!("positions {positions:?}, {kv}"), error, limit })
}
