//! Kernels against plain arithmetic, on whatever device is given. The tests run this on the emulated one. On a
//! card it says which kernel is wrong before anybody looks at a reply.

use super::matmul::{Input, Weight};
use super::{Packing, embed, grouped, matmul, norm, pack, route};
use crate::DType;
use crate::cpu::{dequantize, rms_norm_into};
use crate::gpu::{Buffer, Device, GpuError};
use crate::samples::{Random, weights};

/// One comparison.
#[derive(Clone, Debug)]
pub struct Finding {
    pub kernel: &'static str,
    pub what: String,
    /// Largest difference, as a share of what rounding explains.
    pub error: f64,
    pub limit: f64,
}

impl Finding {
    pub fn good(&self) -> bool {
        self.error <= self.limit
    }
}

/// Every check.
pub fn all(d: &Device) -> Result<Vec<Finding>, GpuError> {
    let mut found = Vec::new();
    for dtype in DType::ALL {
        found.push(rows(d, dtype)?);
        found.extend(products(d, dtype)?);
    }
    found.push(together(d)?);
    found.push(norms(d)?);
    found.push(routes(d)?);
    found.extend(super::check_many::all(d)?);
    found.extend(super::check_cache::all(d)?);
    found.extend(super::check_experts::all(d)?);
    found.extend(super::check_dense::all(d)?);
    found.extend(super::check_lora::all(d)?);
    found.extend(super::check_low::all(d)?);
    found.extend(super::check_offload::all(d)?);
    found.extend(super::check_sample::all(d)?);
    Ok(found)
}

pub(super) fn floats(d: &Device, values: &[f32]) -> Result<Buffer, GpuError> {
    let buffer = d.allocate(4 * values.len())?;
    buffer.write_f32(0, values)?;
    Ok(buffer)
}

pub(super) fn read(buffer: &Buffer, len: usize) -> Result<Vec<f32>, GpuError> {
    let mut values = vec![0.0; len];
    buffer.read_f32(0, &mut values)?;
    Ok(values)
}

/// A matrix of the type, packed on the device, and its values.
pub(super) fn matrix(d: &Device, dtype: DType, rows: usize, cols: usize) -> Result<(Buffer, Vec<f32>), GpuError> {
    let bytes = weights(dtype, rows * cols, 11);
    let wrong = || GpuError::Call { what: "packing a sample", reason: format!("{dtype:?}") };
    let mut values = vec![0.0; rows * cols];
    dequantize(dtype, &bytes, &mut values).map_err(|_| wrong())?;
    let packed = pack(dtype, rows, cols, &bytes, 2).ok_or_else(wrong)?;
    Ok((d.buffer(&packed)?, values))
}

/// The packed layout holds the file's values.
fn rows(d: &Device, dtype: DType) -> Result<Finding, GpuError> {
    let (rows, cols) = (21, 512);
    let (buffer, values) = matrix(d, dtype, rows, cols)?;
    let tokens = d.allocate(4 * rows)?;
    tokens.write_u32(0, &(0..rows as u32).rev().collect::<Vec<_>>())?;
    let out = d.zeroed(4 * rows * cols)?;
    let (packing, cleared) = (Packing::of(dtype, cols) as u32, floats(d, &[1.0; 600])?);
    let a = embed::Embed {
        table: buffer.at(),
        tokens: tokens.at(),
        out: out.at(),
        inputs: cols as u32,
        packing,
        clear: cleared.at(),
        words: 599,
        pad: 0,
    };
    embed::launch(d, &a, rows)?;
    let kept = read(&cleared, 600)?.iter().map(|v| f64::from(*v)).sum::<f64>();
    let found = read(&out, rows * cols)?;
    let top = values.iter().fold(0.0_f32, |m, v| m.max(v.abs()));
    let wanted = values.chunks(cols).rev().flatten();
    let error = found.iter().zip(wanted).fold(0.0_f64, |m, (a, b)| worst(m, f64::from(a - b).abs() / f64::from(top)));
    let error = if kept == 1.0 { error } else { f64::INFINITY };
    Ok(Finding { kernel: "embed", what: format!("{dtype:?} {rows}×{cols}"), error, limit: 1e-6 })
}

/// The larger of two, where what is no number is largest.
pub(super) fn worst(a: f64, b: f64) -> f64 {
    if b.is_nan() { f64::INFINITY } else { a.max(b) }
}

/// What the kernels make of activations: the nearest halves, none of them infinite.
pub(super) fn rounded(x: &[f32]) -> Vec<f32> {
    x.iter().map(|v| half::f16::from_f32(v.clamp(-65_504.0, 65_504.0)).to_f32()).collect()
}

/// Products at every batch size: near the sum in double precision, and the first row's bits the same at all sizes.
fn products(d: &Device, dtype: DType) -> Result<Vec<Finding>, GpuError> {
    let (rows, cols) = (37, 1024);
    let (buffer, values) = matrix(d, dtype, rows, cols)?;
    let packing = Packing::of(dtype, cols);
    let weight = Weight { at: buffer.at(), packing, rows };
    let all = Random(3).normals(130 * cols);
    // Packed weights are rounded to halves as they are read, a scale for 16 or 32 of them alike.
    let (used, limit) = if packing.is_float() { (all.clone(), 2e-5) } else { (rounded(&all), 2e-3) };
    let (mut findings, mut first) = (Vec::new(), Vec::new());
    for tokens in [1, 5, 13, 30, 70, 130] {
        let (x, halves) = (floats(d, &all[..tokens * cols])?, d.zeroed(2 * tokens * cols)?);
        norm::halve(d, x.at(), tokens, cols, halves.at())?;
        let out = floats(d, &vec![1.0; tokens * rows])?;
        let input = Input { x: x.at(), halves: halves.at(), inputs: cols, tokens };
        matmul::launch(d, input, &[(weight, out.at())], true)?;
        let found = read(&out, tokens * rows)?;
        let mut error = 0.0;
        for (t, row) in found.chunks(rows).enumerate() {
            for (r, y) in row.iter().enumerate() {
                let pairs = values[r * cols..][..cols].iter().zip(&used[t * cols..][..cols]);
                let terms: Vec<f64> = pairs.map(|(w, x)| f64::from(*w) * f64::from(*x)).collect();
                let size = terms.iter().map(|v| v * v).sum::<f64>().sqrt().max(1.0);
                error = worst(error, (f64::from(*y) - 1.0 - terms.iter().sum::<f64>()).abs() / size);
            }
        }
        if first.is_empty() {
            first = found[..rows].to_vec();
        }
        let same = found[..rows].iter().zip(&first).all(|(a, b)| a.to_bits() == b.to_bits());
        let error = if same { error } else { f64::INFINITY };
        let what = format!("{dtype:?} {rows}×{cols}, {tokens} tokens");
        findings.push(Finding { kernel: "matmul", what, error, limit });
    }
    Ok(findings)
}

/// Matrices of several types in one launch, more tiles of them than blocks fit at once, added to what is there: the bits of each
/// alone.
fn together(d: &Device) -> Result<Finding, GpuError> {
    let (cols, sizes) = (512, [(DType::Q5_K, 333), (DType::F32, 9), (DType::BF16, 50), (DType::Q5_K, 6_400)]);
    let mut matrices = Vec::new();
    for (dtype, rows) in sizes {
        let (buffer, _) = matrix(d, dtype, rows, cols)?;
        matrices.push((Weight { at: buffer.at(), packing: Packing::of(dtype, cols), rows }, buffer));
    }
    let mut differ = 0;
    for tokens in [1, 3, 8] {
        let x = floats(d, &Random(5).normals(tokens * cols))?;
        let halves = d.zeroed(2 * tokens * cols)?;
        norm::halve(d, x.at(), tokens, cols, halves.at())?;
        let input = Input { x: x.at(), halves: halves.at(), inputs: cols, tokens };
        let ones = |rows: usize| floats(d, &vec![1.0; tokens * rows]);
        let outs = matrices.iter().map(|(w, _)| ones(w.rows)).collect::<Result<Vec<_>, _>>()?;
        let list: Vec<_> = matrices.iter().zip(&outs).map(|((w, _), out)| (*w, out.at())).collect();
        matmul::launch(d, input, &list, true)?;
        for ((weight, _), out) in matrices.iter().zip(&outs) {
            let alone = ones(weight.rows)?;
            matmul::launch(d, input, &[(*weight, alone.at())], true)?;
            let (got, wanted) = (read(out, tokens * weight.rows)?, read(&alone, tokens * weight.rows)?);
            differ += got.iter().zip(&wanted).filter(|(a, b)| a.to_bits() != b.to_bits()).count();
        }
    }
    Ok(Finding { kernel: "matmul", what: "four matrices at once".into(), error: differ as f64, limit: 0.0 })
}

/// Residual sum and norm.
fn norms(d: &Device) -> Result<Finding, GpuError> {
    let (tokens, width, used) = (3, 320, 2);
    let mut random = Random(5);
    let (x, y) = (random.normals(tokens * width), random.normals(tokens * (used + 1) * width));
    let (weight, w) = (random.normals(tokens * (used + 1)), random.normals(width));
    let (xs, ys, ws, vs) = (floats(d, &x)?, floats(d, &y)?, floats(d, &weight)?, floats(d, &w)?);
    let out = d.zeroed(4 * tokens * width)?;
    let pending = Some(norm::Pending { y: ys.at(), weight: ws.at(), used });
    let to = norm::Out { n: out.at(), stride: width, halves: 0 };
    norm::launch(d, norm::Rows { x: xs.at(), tokens, width, pending }, vs.at(), 1e-6, to)?;
    let found = read(&out, tokens * width)?;
    let mut error = 0.0;
    for t in 0..tokens {
        let mut row = x[t * width..][..width].to_vec();
        for e in 0..=used {
            let from = if e < used { t * used + e } else { tokens * used + t };
            row.iter_mut().zip(&y[from * width..]).for_each(|(x, y)| *x += weight[t * (used + 1) + e] * y);
        }
        let mut want = vec![0.0; width];
        rms_norm_into(&row, &w, 1e-6, &mut want);
        let pairs = want.iter().zip(&found[t * width..]);
        error = pairs.fold(error, |m, (a, b)| worst(m, f64::from((a - b).abs())));
    }
    Ok(Finding { kernel: "rms_norm", what: format!("{tokens}×{width}, {used} experts"), error, limit: 1e-5 })
}

/// The experts chosen, their weights, and the lists of tokens.
fn routes(d: &Device) -> Result<Finding, GpuError> {
    let (tokens, experts, used) = (40, 100, 5);
    let logits = Random(8).normals(tokens * (experts + 1));
    let (from, weight) = (floats(d, &logits)?, d.zeroed(4 * tokens * (used + 1))?);
    let lists: Vec<Buffer> = [tokens * used, experts + 1, experts + 1, tokens * used]
        .map(|n| d.zeroed(4 * n))
        .into_iter()
        .collect::<Result<_, _>>()?;
    let work = d.zeroed(16 * (1 + grouped::lists_max(tokens, used, experts)))?;
    let a = route::Route {
        logits: from.at(),
        weight: weight.at(),
        chosen: lists[0].at(),
        active: lists[1].at(),
        start: lists[2].at(),
        pairs: lists[3].at(),
        tokens: tokens as u32,
        experts: experts as u32,
        used: used as u32,
        pad: 0,
    };
    route::launch(d, &a, Some(work.at()))?;
    let found = read(&weight, tokens * (used + 1))?;
    let words = |b: &Buffer, n: usize| -> Result<Vec<u32>, GpuError> {
        let mut v = vec![0; n];
        b.read_u32(0, &mut v)?;
        Ok(v)
    };
    let chosen = words(&lists[0], tokens * used)?;
    let mut error = 0.0;
    let (mut picked, mut shares, mut probabilities) = (vec![0; used], vec![0.0; used], Vec::new());
    for (t, row) in logits.chunks(experts + 1).enumerate() {
        crate::cpu::route(&row[..experts], &mut picked, &mut shares, &mut probabilities);
        let same = picked[..] == chosen[t * used..][..used];
        let pairs = shares.iter().zip(&found[t * (used + 1)..]);
        error = pairs.fold(error, |m, (a, b)| worst(m, if same { f64::from((a - b).abs()) } else { f64::INFINITY }));
    }
    let expected: Vec<u32> = (0..experts as u32)
        .flat_map(|e| (0..chosen.len() as u32).map(move |i| (e, i)))
        .filter(|(e, i)| chosen[*i as usize] == *e)
        .map(|(_, i)| i)
        .collect();
    if expected != words(&lists[3], tokens * used)? {
        error = f64::INFINITY;
    }
    Ok(Finding { kernel: "route", what: format!("{tokens} tokens, {used} of {experts}"), error, limit: 1e-6 })
}
