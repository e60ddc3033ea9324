//! The kernels for many tokens against plain arithmetic, and against those for few, whose bits they must give.

use super::attention_prefill::{self, Reach};
use super::check::{Finding, floats, read, worst};
use super::check_cache::{decoded, random_cache};
use super::gdn;
use crate::cache::as_bf16;
use crate::gpu::{Buffer, Device, GpuError};
use crate::samples::Random;
use crate::{KvType, StateType};

pub(super) fn all(d: &Device) -> Result<Vec<Finding>, GpuError> {
    let mut found = vec![walk(d, StateType::F32)?, walk(d, StateType::Bf16)?];
    for kv in [KvType::F16, KvType::Q8Q4] {
        for (dim, split) in [(128, 1_024), (256, 1_024), (256, 64)] {
            found.push(attention(d, kv, dim, split)?);
        }
    }
    Ok(found)
}

pub(super) fn words(d: &Device, values: &[u32]) -> Result<Buffer, GpuError> {
    let buffer = d.allocate(4 * values.len())?;
    buffer.write_u32(0, values)?;
    Ok(buffer)
}

pub(super) fn dot(a: &[f32], b: &[f32]) -> f64 {
    a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum()
}

pub(super) fn same(a: &[f32], b: &[f32]) -> bool {
    a.iter().zip(b).all(|(a, b)| a.to_bits() == b.to_bits())
}

struct Gdn<'a> {
    qkv: &'a [f32],
    z: &'a [f32],
    alpha: &'a [f32],
    beta: &'a [f32],
    conv: &'a [f32],
    decay: &'a [f32],
    bias: &'a [f32],
    norm: &'a [f32],
}

const HEADS: (usize, usize) = (2, 4);
const CHANNELS: usize = (2 * HEADS.0 + HEADS.1) * 128;

/// The recurrence as it is written, in double precision but for what is kept of the state.
fn recurrence(g: &Gdn<'_>, state: StateType, tokens: usize) -> Vec<f64> {
    let conv = |t: usize, c: usize| -> f64 {
        let tap = |j: usize| {
            (t + j >= 3).then(|| f64::from(g.conv[4 * c + j]) * f64::from(g.qkv[(t + j - 3) * CHANNELS + c]))
        };
        let v: f64 = (0..4).filter_map(tap).sum();
        v / (1.0 + (-v).exp())
    };
    let mut y = vec![0.0; tokens * HEADS.1 * 128];
    for h in 0..HEADS.1 {
        let mut s = vec![0.0_f64; 128 * 128];
        for t in 0..tokens {
            let part = |from: usize| -> Vec<f64> { (0..128).map(|i| conv(t, from + i)).collect() };
            let (mut q, mut k, v) =
                (part(h % HEADS.0 * 128), part((HEADS.0 + h % HEADS.0) * 128), part((2 * HEADS.0 + h) * 128));
            let size = |x: &[f64]| x.iter().map(|v| v * v).sum::<f64>().sqrt().max(1e-6);
            let (a, b) = (size(&q) * 128_f64.sqrt(), size(&k));
            q.iter_mut().for_each(|v| *v /= a);
            k.iter_mut().for_each(|v| *v /= b);
            let at = t * HEADS.1 + h;
            let x = f64::from(g.alpha[at] + g.bias[h]);
            let decay = ((x.max(0.0) + (-x.abs()).exp().ln_1p()) * f64::from(g.decay[h])).exp();
            let beta = 1.0 / (1.0 + (-f64::from(g.beta[at])).exp());
            s.iter_mut().for_each(|v| *v *= decay);
            let mut out = [0.0; 128];
            for c in 0..128 {
                let r: f64 = (0..128).map(|i| s[i * 128 + c] * k[i]).sum();
                let d = beta * (v[c] - r);
                (0..128).for_each(|i| s[i * 128 + c] += k[i] * d);
                out[c] = (0..128).map(|i| s[i * 128 + c] * q[i]).sum();
            }
            if state == StateType::Bf16 {
                let mut kept: Vec<f32> = s.iter().map(|v| *v as f32).collect();
                as_bf16(&mut kept);
                s.iter_mut().zip(kept).for_each(|(s, v)| *s = v.into());
            }
            let scale = 1.0 / (out.iter().map(|v| v * v).sum::<f64>() / 128.0 + 1e-6).sqrt();
            for c in 0..128 {
                let z = f64::from(g.z[at * 128 + c]);
                y[at * 128 + c] = out[c] * scale * f64::from(g.norm[c]) * z / (1.0 + (-z).exp());
            }
        }
    }
    y
}

/// Two sequences: one walks over 45 tokens at once, the other over 6 and 5 by both forms for few tokens and then over 34; the
/// numbers are those of all kernels.
fn walk(d: &Device, kept: StateType) -> Result<Finding, GpuError> {
    let (tokens, early, mut random) = (45, 11, Random(6));
    let mut normals = |n: usize| random.normals(n);
    let (qkv, z, conv) = (normals(tokens * CHANNELS), normals(tokens * HEADS.1 * 128), normals(4 * CHANNELS));
    let (alpha, beta, bias, norm) =
        (normals(tokens * HEADS.1), normals(tokens * HEADS.1), normals(HEADS.1), normals(128));
    let decay = vec![-0.2, -0.01, -1.0, -0.5];
    let wanted = recurrence(
        &Gdn { qkv: &qkv, z: &z, alpha: &alpha, beta: &beta, conv: &conv, decay: &decay, bias: &bias, norm: &norm },
        kept,
        tokens,
    );
    let width = HEADS.1 * 128;
    let double = |v: &[f32]| floats(d, &[v, v].concat());
    let (qkvs, zs, alphas, betas) = (double(&qkv)?, double(&z)?, double(&alpha)?, double(&beta)?);
    let (convs, decays, biases, norms) = (floats(d, &conv)?, floats(d, &decay)?, floats(d, &bias)?, floats(d, &norm)?);
    let (state, window) =
        (d.zeroed(2 * HEADS.1 * gdn::state_bytes(kept))?, d.zeroed(8 * HEADS.1 * gdn::WINDOW_FLOATS)?);
    let (y, halves) = (d.zeroed(8 * tokens * width)?, d.zeroed(4 * tokens * width)?);
    let all = gdn::Gdn {
        qkv: qkvs.at(),
        z: zs.at(),
        alpha: alphas.at(),
        beta: betas.at(),
        conv: convs.at(),
        decay: decays.at(),
        bias: biases.at(),
        norm: norms.at(),
        state: state.at(),
        window: window.at(),
        y: y.at(),
        halves: halves.at(),
        key_heads: HEADS.0 as u32,
        value_heads: HEADS.1 as u32,
        channels: CHANNELS as u32,
        eps: 1e-6,
        ..Default::default()
    };
    for (many, from, len) in [(false, 0, 6), (true, 6, early as u32 - 6)] {
        let span = words(d, &[1, tokens as u32 + from, len, from])?;
        gdn::launch_as(d, kept, &gdn::Gdn { spans: span.at(), ..all }, 1, many)?;
    }
    let first = read(&y, 2 * tokens * width)?;
    // The other sequence's first rows are no part of this pass: rows of the pass lie side by side.
    let rows = 2 * tokens - early;
    let skip = |n: usize| (tokens + early) * n * 4;
    let joined = |from: &Buffer, n: usize| -> Result<Buffer, GpuError> {
        let buffer = d.zeroed(4 * rows * n)?;
        buffer.copy(0, from, 0..4 * tokens * n)?;
        buffer.copy(4 * tokens * n, from, skip(n)..8 * tokens * n)?;
        Ok(buffer)
    };
    let (qkvs, zs, alphas, betas) =
        (joined(&qkvs, CHANNELS)?, joined(&zs, width)?, joined(&alphas, HEADS.1)?, joined(&betas, HEADS.1)?);
    let spans = words(d, &[0, 0, tokens as u32, 0, 1, tokens as u32, (tokens - early) as u32, early as u32])?;
    let slots: Vec<u32> = (0..rows).map(|r| u32::from(r >= tokens)).collect();
    let positions: Vec<u32> = (0..tokens as u32).chain(early as u32..tokens as u32).collect();
    let (slots, positions) = (words(d, &slots)?, words(d, &positions)?);
    let (mixed, gates) = (d.zeroed(4 * rows * CHANNELS)?, d.zeroed(32 * rows * HEADS.1)?);
    let a = gdn::Walk {
        qkv: qkvs.at(),
        z: zs.at(),
        alpha: alphas.at(),
        beta: betas.at(),
        conv: convs.at(),
        decay: decays.at(),
        bias: biases.at(),
        norm: norms.at(),
        state: state.at(),
        window: window.at(),
        spans: spans.at(),
        slot: slots.at(),
        position: positions.at(),
        mixed: mixed.at(),
        gates: gates.at(),
        y: y.at(),
        halves: halves.at(),
        key_heads: HEADS.0 as u32,
        value_heads: HEADS.1 as u32,
        channels: CHANNELS as u32,
        tokens: rows as u32,
        eps: 1e-6,
        pad: 0.0,
    };
    gdn::walk(d, kept, &a, 2)?;
    let found = read(&y, rows * width)?;
    let pieces = [&first[tokens * width..][..early * width], &found[tokens * width..]].concat();
    let mut error = if same(&pieces, &found[..tokens * width]) { 0.0 } else { f64::INFINITY };
    for (a, b) in found.iter().zip(&wanted) {
        error = worst(error, (f64::from(*a) - b).abs());
    }
    // A value between two of bf16 may go either way.
    let limit = if kept == StateType::F32 { 1e-4 } else { 2e-2 };
    Ok(Finding { kernel: "gdn_walk", what: format!("{tokens} tokens whole and in two, {kept}"), error, limit })
}

/// A span that begins at position 37, over pages in no order: at once, and in pieces by launches that are the same
/// everywhere, which must give its bits.
fn attention(d: &Device, kv: KvType, dim: usize, split: usize) -> Result<Finding, GpuError> {
    let (heads, kv_heads, tokens, before, pages) = (6, 2, 83, 37, [3_u32, 1]);
    let mut random = Random(9);
    let (q, gate) = (random.normals(tokens * heads * dim), random.normals(2 * tokens * heads * dim));
    let [k, v] = [true, false].map(|keys| random_cache(kv, keys, 4, kv_heads * dim, &mut random));
    let (qs, gates, y) = (floats(d, &q)?, floats(d, &gate)?, d.zeroed(4 * tokens * heads * dim)?);
    let (ks, vs, table) = (d.buffer(&k)?, d.buffer(&v)?, words(d, &pages)?);
    let positions = words(d, &(before as u32..(before + tokens) as u32).collect::<Vec<_>>())?;
    // Room for the sums of one block's tokens alone, 42 of three heads a KV head.
    let room = 42 * heads * 2 * (dim + 2);
    let (part, rounded) = (d.zeroed(4 * room)?, d.zeroed(2 * tokens * heads * dim)?);
    let scale = 1.0 / (dim as f32).sqrt();
    let a = attention_prefill::Prefill {
        q: qs.at(),
        keys: ks.at(),
        values: vs.at(),
        pages: table.at(),
        query_gate: gates.at(),
        y: y.at(),
        part: part.at(),
        heads: heads as u32,
        kv_heads: kv_heads as u32,
        dim: dim as u32,
        pages_max: pages.len() as u32,
        split: split as u32,
        scale,
        ..Default::default()
    };
    let feed = |start: usize, len: usize, reach: Reach| -> Result<(), GpuError> {
        let span = words(d, &[0, start as u32, len as u32, (before + start) as u32])?;
        let at = start * heads * dim;
        let join = super::attention::Join {
            part: part.at(),
            query_gate: gates.from(8 * at),
            position: positions.from(4 * start),
            y: y.from(4 * at),
            halves: rounded.from(2 * at),
            heads: heads as u32,
            dim: dim as u32,
            ..Default::default()
        };
        let a = attention_prefill::Prefill { span: span.at(), ..a };
        attention_prefill::launch(d, kv, &a, &join, (reach, len), room)
    };
    feed(0, tokens, Reach::From(before))?;
    let found = read(&y, tokens * heads * dim)?;
    y.zero(0..4 * tokens * heads * dim)?;
    let reach = Reach::Context(64 * pages.len());
    [(0, 16), (16, 1), (17, 50), (67, 16)].into_iter().try_for_each(|(start, len)| feed(start, len, reach))?;
    let pieces = read(&y, tokens * heads * dim)?;
    let mut error = if same(&found, &pieces) { 0.0 } else { f64::INFINITY };
    let row = |of: &[u8], keys: bool, p: usize, head: usize| -> Vec<f32> {
        decoded(kv, keys, of, pages[p / 64] as usize, (p % 64, head), (kv_heads, dim))
    };
    for t in 0..tokens {
        for h in 0..heads {
            let at = t * heads + h;
            let query = &q[at * dim..][..dim];
            let scores = (0..=before + t).map(|p| dot(query, &row(&k, true, p, h / 3)) * f64::from(scale));
            let weights: Vec<f64> = scores.map(f64::exp).collect();
            let total: f64 = weights.iter().sum();
            let mut out = vec![0.0_f64; dim];
            for (p, w) in weights.iter().enumerate() {
                out.iter_mut().zip(row(&v, false, p, h / 3)).for_each(|(o, v)| *o += w / total * f64::from(v));
            }
            for (i, out) in out.iter().enumerate() {
                let g = f64::from(gate[(2 * at + 1) * dim + i]);
                error = worst(error, (f64::from(found[at * dim + i]) - out / (1.0 + (-g).exp())).abs());
            }
        }
    }
    Ok(Finding {
        kernel: "attention_prefill",
        what: format!("{tokens} tokens whole and in pieces, heads of {dim}, splits of {split}, {kv}"),
        error,
        limit: 3e-3,
    })
}
