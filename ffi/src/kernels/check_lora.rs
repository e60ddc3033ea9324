//! What adapters add, against plain arithmetic: every shape of rows, and each row alone with the bits it has among others.

use super::check::{Finding, floats, read, worst};
use super::check_many::{dot, same, words};
use super::lora::{self, LowRank, NO_ADAPTER, Part, RANK_MAX, Who};
use crate::gpu::{Buffer, Device, GpuError};
use crate::kernels::Args;
use crate::samples::Random;

pub(super) fn all(d: &Device) -> Result<Vec<Finding>, GpuError> {
    // Inputs and outputs that fill no block; 4 divides some of the inputs and not others.
    [(1, 5, 3), (4, 64, 300), (16, 516, 257), (17, 1024, 40), (64, 130, 512)]
        .into_iter()
        .map(|(rank, inputs, outputs)| additions(d, rank, inputs, outputs))
        .collect()
}

/// Factors of `experts` matrices, as floats and on the device.
pub(super) struct Factors {
    pub(super) rank: usize,
    pub(super) scale: f32,
    /// [experts][rank][inputs], and [experts][rank][outputs].
    pub(super) a: Vec<f32>,
    pub(super) b: Vec<f32>,
    on_device: [Buffer; 2],
}

impl Factors {
    pub(super) fn new(
        d: &Device,
        rank: usize,
        inputs: usize,
        outputs: usize,
        experts: usize,
        seed: u64,
    ) -> Result<Factors, GpuError> {
        let mut random = Random(seed);
        let (a, b) = (random.normals(experts * rank * inputs), random.normals(experts * rank * outputs));
        let on_device = [floats(d, &a)?, floats(d, &b)?];
        Ok(Factors { rank, scale: 0.5 / (inputs as f32).sqrt(), a, b, on_device })
    }

    /// What output `row` of one matrix gets for the input `x`.
    pub(super) fn adds(&self, expert: usize, x: &[f32], outputs: usize, row: usize) -> f64 {
        let a = self.a.chunks(x.len()).skip(expert * self.rank).take(self.rank);
        let b = self.b.chunks(outputs).skip(expert * self.rank);
        f64::from(self.scale) * a.zip(b).map(|(a, b)| dot(a, x) * f64::from(b[row])).sum::<f64>()
    }

    fn entry(&self) -> LowRank {
        let [a, b] = &self.on_device;
        LowRank { a: a.at(), b: b.at(), rank: self.rank as u32, scale: self.scale }
    }
}

/// The table of some adapters [adapters][places].
pub(super) fn table(d: &Device, adapters: &[&[Option<&Factors>]]) -> Result<Buffer, GpuError> {
    let entry = |f: &Option<&Factors>| f.map_or(LowRank::default(), Factors::entry);
    let bytes: Vec<u8> = adapters.iter().flat_map(|a| a.iter().flat_map(|f| entry(f).bytes().to_vec())).collect();
    d.buffer(&bytes)
}

/// Two adapters, of which one leaves the second of two matrices as it is, over rows that change between them and none.
fn additions(d: &Device, rank: usize, inputs: usize, outputs: usize) -> Result<Finding, GpuError> {
    const ROWS: usize = 37;
    let other = rank.div_ceil(2);
    let one = [Factors::new(d, rank, inputs, outputs, 1, 1)?, Factors::new(d, rank, inputs, 70, 1, 2)?];
    let two = Factors::new(d, other, inputs, outputs, 1, 3)?;
    let list = table(d, &[&[Some(&one[0]), Some(&one[1])], &[Some(&two), None]])?;
    // Eight rows of one adapter, then all sorts.
    let under = |t: usize| if t < 16 { 0 } else { [1, 2, 0][t % 3] };
    let x = Random(4).normals(ROWS * inputs);
    let adapters = words(d, &[0, 1, NO_ADAPTER])?;
    // The rows `chosen` alone; what both matrices have then.
    let run = |chosen: &[usize]| -> Result<[Vec<f32>; 2], GpuError> {
        let xs: Vec<f32> = chosen.iter().flat_map(|t| x[t * inputs..][..inputs].to_vec()).collect();
        let (xs, rows) = (floats(d, &xs)?, words(d, &chosen.iter().map(|t| *t as u32).collect::<Vec<_>>())?);
        let slots = words(d, &(0..ROWS).map(|t| under(t) as u32).collect::<Vec<_>>())?;
        let inner = d.zeroed(2 * 4 * chosen.len() * RANK_MAX)?;
        let out = [outputs, 70].map(|n| floats(d, &vec![0.25; chosen.len() * n]));
        let [out, more] = out;
        let (out, more) = (out?, more?);
        let who = Who {
            factors: list.at(),
            adapter: adapters.at(),
            slot: slots.at(),
            rows: if chosen.len() < ROWS { rows.at() } else { 0 },
            places: 2,
            pad: 0,
        };
        let part = |place: usize, to: &Buffer, outputs: usize| Part {
            x: xs.at(),
            inner: inner.from(4 * place * chosen.len() * RANK_MAX),
            out: to.at(),
            place: place as u32,
            inputs: inputs as u32,
            outputs: outputs as u32,
            stride: inputs as u32,
            rows: chosen.len() as u32,
            fan: 1,
            used: 1,
            ..Part::default()
        };
        let parts = [part(0, &out, outputs), part(1, &more, 70)];
        lora::inner(d, who, &parts)?;
        lora::add(d, who, &parts)?;
        Ok([read(&out, chosen.len() * outputs)?, read(&more, chosen.len() * 70)?])
    };
    let every: Vec<usize> = (0..ROWS).collect();
    let whole = run(&every)?;
    let mut error = 0.0;
    for chosen in [&[0][..], &[20], &[3, 4, 5, 6, 7, 8, 9, 10, 22], &[16, 17, 18]] {
        for (found, (whole, n)) in run(chosen)?.iter().zip(whole.iter().zip([outputs, 70])) {
            let alike = chosen.iter().zip(found.chunks(n)).all(|(t, row)| same(row, &whole[t * n..][..n]));
            error = worst(error, if alike { 0.0 } else { f64::INFINITY });
        }
    }
    for t in 0..ROWS {
        let x = &x[t * inputs..][..inputs];
        let mine = [[Some(&one[0]), Some(&one[1])], [Some(&two), None], [None, None]][under(t)];
        for (factors, (found, n)) in mine.iter().zip(whole.iter().zip([outputs, 70])) {
            for (row, v) in found[t * n..][..n].iter().enumerate() {
                let adds = factors.map_or(0.0, |f| f.adds(0, x, n, row));
                error = worst(error, (f64::from(*v) - 0.25 - adds).abs() / (1.0 + adds.abs()));
            }
        }
    }
    Ok(Finding { kernel: "lora", what: format!("rank {rank}, {inputs}→{outputs}, {ROWS} rows"), error, limit: 2e-5 })
}
