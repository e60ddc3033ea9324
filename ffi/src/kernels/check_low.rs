//! What adapters add inside products, against plain arithmetic: at every number of rows, with two adapters and none among them. A row
//! has the bits that it has alone, and one without an adapter those of the plain product.

use super::check::{Finding, floats, matrix, read, rounded, worst};
use super::check_many::{dot, same, words};
use super::low::{self, Low, NONE, Packed, RANK_MAX, Tiles};
use super::matmul::{Besides, Input, Weight};
use super::{Args, Packing, matmul, norm};
use crate::DType;
use crate::gpu::{Buffer, Device, GpuError};
use crate::samples::Random;

const COLS: usize = 1_024;
/// Of which one adapter leaves the second matrix as it is.
const RANKS: [usize; 2] = [40, 5];

pub(super) fn all(d: &Device) -> Result<Vec<Finding>, GpuError> {
    let (packed, floats) = ((DType::Q5_K, DType::IQ3_S), (DType::Q8_0, DType::F32));
    Ok(vec![
        products(d, packed, [37, 300], &[1, 8, 13, 30, 130])?,
        products(d, floats, [37, 60], &[1, 8, 30])?,
        // More tiles than blocks fit at once, so that blocks go on to further ones.
        products(d, packed, [37, 6_500], &[1, 3, 8])?,
    ])
}

/// Factors of one matrix, as they are and on the device.
struct Factors {
    rank: usize,
    scale: f32,
    a: Vec<f32>,
    b: Vec<f32>,
    tiles: Packed,
    on_device: [Buffer; 2],
}

impl Factors {
    fn new(d: &Device, rank: usize, outputs: usize, seed: u64) -> Result<Factors, GpuError> {
        let mut random = Random(seed);
        let (a, b) = (random.normals(rank * COLS), random.normals(outputs * rank));
        let scale = 0.3 / (COLS as f32).sqrt();
        let wrong = || GpuError::Call { what: "packing factors", reason: "no whole tiles".into() };
        let tiles = low::packed(&a, &b, rank, scale).ok_or_else(wrong)?;
        let on_device = [d.buffer(&tiles.a)?, d.buffer(&tiles.b)?];
        Ok(Factors { rank, scale, a, b, tiles, on_device })
    }

    fn entry(&self) -> Tiles {
        let [a, b] = &self.on_device;
        Tiles { a: a.at(), b: b.at(), rank: self.tiles.rank, unit: self.tiles.unit }
    }

    /// What a row of the matrix gets, and how large its terms are.
    fn adds(&self, x: &[f32], row: usize) -> (f64, f64) {
        let terms =
            self.a.chunks(COLS).zip(&self.b[row * self.rank..]).map(|(a, b)| dot(a, x) * f64::from(b * self.scale));
        terms.fold((0.0, 0.0), |(sum, size), term| (sum + term, size + term * term))
    }
}

/// One adapter, the other and none.
fn under(token: usize) -> Option<usize> {
    [Some(0), Some(1), None, Some(1)][token % 4]
}

/// Two matrices of so many rows over the same inputs; the last number of tokens is compared with plain arithmetic.
fn products(d: &Device, types: (DType, DType), rows: [usize; 2], tokens: &[usize]) -> Result<Finding, GpuError> {
    let dtypes = [types.0, types.1];
    let (first, second) = (matrix(d, dtypes[0], rows[0], COLS)?, matrix(d, dtypes[1], rows[1], COLS)?);
    let weight = |i: usize, at: u64| Weight { at, packing: Packing::of(dtypes[i], COLS), rows: rows[i] };
    let weights = [weight(0, first.0.at()), weight(1, second.0.at())];
    let (one, more) = (Factors::new(d, RANKS[0], rows[0], 1)?, Factors::new(d, RANKS[0], rows[1], 2)?);
    let other = Factors::new(d, RANKS[1], rows[0], 3)?;
    // Matrices of floats have no factors in tiles.
    let both = !weights[1].packing.is_float();
    let entries = [one.entry(), if both { more.entry() } else { Tiles::default() }, other.entry(), Tiles::default()];
    let tiles = d.buffer(&entries.iter().flat_map(|e| e.bytes().to_vec()).collect::<Vec<u8>>())?;
    // A group more than there are adapters.
    let adapters = words(d, &[1, 0, NONE, NONE])?;
    let most = tokens[tokens.len() - 1];
    let x = Random(4).normals(most * COLS);
    // The tokens `chosen`, with adapters or without.
    let run = |chosen: &[usize], adapted: bool| -> Result<Vec<Vec<f32>>, GpuError> {
        let tokens = chosen.len();
        let xs: Vec<f32> = chosen.iter().flat_map(|t| x[t * COLS..][..COLS].to_vec()).collect();
        let (xs, halves) = (floats(d, &xs)?, d.zeroed(2 * tokens * COLS)?);
        norm::halve(d, xs.at(), tokens, COLS, halves.at())?;
        let groups: Vec<u32> = chosen.iter().map(|t| under(*t).map_or(NONE, |a| 1 - a as u32)).collect();
        let (groups, arrived) = (words(d, &groups)?, d.zeroed(4 * low::words(tokens))?);
        let inner = d.zeroed(2 * 2 * tokens * RANK_MAX)?;
        let outs = rows.map(|n| floats(d, &vec![0.25; tokens * n]));
        let outs = outs.into_iter().collect::<Result<Vec<_>, _>>()?;
        let low = Low {
            tiles: tiles.at(),
            adapter: adapters.at(),
            group: groups.at(),
            inner: inner.at(),
            arrived: arrived.at(),
            places: 2,
            groups: 4,
            ranks: low::rank_tiles(RANKS[0]) as u32,
            count: 1 + u32::from(both),
            place: [0, 1, 0, 0],
            of: [0, if both { 1 } else { NONE }, NONE, NONE],
            ..Low::default()
        };
        let besides = Besides { add: true, low: if adapted { low } else { Low::default() }, ..Besides::default() };
        let input = Input { x: xs.at(), halves: halves.at(), inputs: COLS, tokens };
        matmul::with(d, input, &[(weights[0], outs[0].at()), (weights[1], outs[1].at())], &besides)?;
        outs.iter().zip(rows).map(|(out, n)| read(out, tokens * n)).collect()
    };
    let every: Vec<usize> = (0..most).collect();
    let (whole, plain) = (run(&every, true)?, run(&every, false)?);
    let mut error = 0.0_f64;
    let demand = |holds: bool, error: f64| if holds { error } else { f64::INFINITY };
    for count in &tokens[..tokens.len() - 1] {
        // Not the first ones: their neighbours are others.
        let chosen: Vec<usize> = (0..*count).map(|n| (7 * n + 1) % most).collect();
        for (found, (whole, n)) in run(&chosen, true)?.iter().zip(whole.iter().zip(rows)) {
            error = demand(chosen.iter().zip(found.chunks(n)).all(|(t, row)| same(row, &whole[t * n..][..n])), error);
        }
    }
    let used = rounded(&x);
    for t in 0..most {
        for (i, n) in rows.into_iter().enumerate() {
            let (found, base) = (&whole[i][t * n..][..n], &plain[i][t * n..][..n]);
            let factors = under(t).and_then(|a| [[Some(&one), both.then_some(&more)], [Some(&other), None]][a][i]);
            let Some(factors) = factors else {
                error = demand(same(found, base), error);
                continue;
            };
            for row in (0..n).step_by(1 + n / 50) {
                let (adds, size) = factors.adds(&used[t * COLS..][..COLS], row);
                let apart = (f64::from(found[row]) - f64::from(base[row]) - adds).abs();
                // What is added to a large sum loses what the sum has no bits for.
                let large = f64::from(base[row].abs()) * f64::from(f32::EPSILON);
                error = worst(error, (apart - large).max(0.0) / size.sqrt().max(1e-3));
            }
        }
    }
    let what = format!("{:?}, {:?} {COLS}→{}, {}, {most} tokens", types.0, types.1, rows[0], rows[1]);
    Ok(Finding { kernel: "matmul_low", what, error, limit: 3e-3 })
}
