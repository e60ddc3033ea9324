//! Long rows, and what a model without experts has in their place, against plain arithmetic. The kernels for a single token
//! give the bits of those for several.

use super::check::{Finding, floats, matrix, read, rounded, worst};
use super::check_many::{dot, same};
use super::matmul::{Input, Weight};
use super::{Packing, experts, low, matmul, norm};
use crate::DType;
use crate::gpu::{Device, GpuError};
use crate::samples::Random;

/// Those whose blocks are long, and short.
const TYPES: [DType; 6] = [DType::Q4_K, DType::Q6_K, DType::IQ3_S, DType::Q8_0, DType::BF16, DType::F32];

pub(super) fn all(d: &Device) -> Result<Vec<Finding>, GpuError> {
    let mut found = Vec::new();
    for dtype in TYPES {
        found.push(product(d, dtype)?);
        found.push(up(d, dtype, dtype)?);
    }
    found.push(up(d, DType::Q4_K, DType::Q5_K)?);
    Ok(found)
}

/// 17 blocks of 256 make parts of two and of three.
fn product(d: &Device, dtype: DType) -> Result<Finding, GpuError> {
    let (rows, cols) = (37, 17 * 256);
    let (buffer, values) = matrix(d, dtype, rows, cols)?;
    let weight = Weight { at: buffer.at(), packing: Packing::of(dtype, cols), rows };
    let x = Random(6).normals(2 * cols);
    let (xs, halves) = (floats(d, &x)?, d.zeroed(4 * cols)?);
    norm::halve(d, xs.at(), 2, cols, halves.at())?;
    let run = |tokens: usize| {
        let out = floats(d, &vec![1.0; tokens * rows])?;
        let input = Input { x: xs.at(), halves: halves.at(), inputs: cols, tokens };
        matmul::launch(d, input, &[(weight, out.at())], true)?;
        read(&out, tokens * rows)
    };
    let (one, two) = (run(1)?, run(2)?);
    let used = if weight.packing.is_float() { x } else { rounded(&x) };
    let mut error = if same(&one, &two[..rows]) { 0.0 } else { f64::INFINITY };
    for (y, row) in one.iter().zip(values.chunks(cols)) {
        let squares: f64 = row.iter().zip(&used).map(|(w, x)| f64::from(w * x).powi(2)).sum();
        error = worst(error, (f64::from(*y) - 1.0 - dot(row, &used[..cols])).abs() / squares.sqrt().max(1.0));
    }
    Ok(Finding { kernel: "matmul", what: format!("{dtype:?} {rows}×{cols}, a token"), error, limit: 2e-3 })
}

/// Gate and up where nothing but a shared expert is there.
fn up(d: &Device, gate: DType, up: DType) -> Result<Finding, GpuError> {
    let (width, inputs) = (96, 11 * 256);
    let types = [gate, up].map(|t| Packing::of(t, inputs));
    let (gates, ups) = (matrix(d, gate, width, inputs)?, matrix(d, up, width, inputs)?);
    // Weights of the samples are large: such inputs leave inner values of the usual size.
    let x: Vec<f32> = Random(7).normals(2 * inputs).into_iter().map(|v| v / 64.0).collect();
    let (xs, halves) = (floats(d, &x)?, d.zeroed(4 * inputs)?);
    norm::halve(d, xs.at(), 2, inputs, halves.at())?;
    let shared = experts::Expert {
        gate: gates.0.at(),
        up: ups.0.at(),
        gate_packing: types[0] as u32,
        up_packing: types[1] as u32,
        width: width as u32,
        ..Default::default()
    };
    let run = |tokens: usize| {
        let (h, hh) = (d.zeroed(4 * tokens * width)?, d.zeroed(2 * tokens * width)?);
        let a = experts::Experts {
            routed: experts::Expert { width: 0, ..shared },
            shared,
            x: xs.at(),
            halves: halves.at(),
            h: h.at(),
            hh: hh.at(),
            inputs: inputs as u32,
            tokens: tokens as u32,
            stride: width as u32,
            ..Default::default()
        };
        experts::up(d, &a, &low::Low::default(), 0)?;
        Ok::<_, GpuError>((read(&h, tokens * width)?, read(&hh, tokens * width / 2)?))
    };
    let (one, two) = (run(1)?, run(2)?);
    let alike = same(&one.0, &two.0[..width]) && same(&one.1, &two.1[..width / 2]);
    let used = if types[0].is_float() { x } else { rounded(&x) };
    let mut error = if alike { 0.0 } else { f64::INFINITY };
    for (r, v) in one.0.iter().enumerate() {
        let [g, u] = [&gates.1, &ups.1].map(|m| dot(&m[r * inputs..][..inputs], &used[..inputs]));
        let wanted = g / (1.0 + (-g).exp()) * u;
        error = worst(error, (f64::from(*v) - wanted).abs() / ((1.0 + g.abs()) * (1.0 + u.abs())));
    }
    let types = if gate == up { format!("{gate:?}") } else { format!("{gate:?} and {up:?}") };
    let what = format!("{types} {inputs}→{width}, a token, dense");
    Ok(Finding { kernel: "experts_up", what, error, limit: 4e-3 })
}
