//! The nearest of a hundred thousand vectors in eight bits, beside a plain loop over the same vectors in f32, in one
//! run. Time is that of the thread on its processor.

use std::hint::black_box;

use chimere_bench::cpu::CpuTime;
use chimere_bench::embed::nearest::{Code, nearest};
use criterion::{Criterion, criterion_group, criterion_main};

const ROWS: usize = 100_000;
/// As nano-embed.
const WIDTH: usize = 96;
const K: usize = 8;

fn vectors(count: usize, seed: u64) -> Vec<Vec<f32>> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1u32 << 24) as f32 - 0.5
    };
    (0..count).map(|_| (0..WIDTH).map(|_| next()).collect()).collect()
}

/// The same search over f32, a row after the other.
fn plain(rows: &[f32], query: &[f32], k: usize) -> Vec<(usize, f32)> {
    let mut best: Vec<(usize, f32)> = Vec::with_capacity(k + 1);
    for (row, vector) in rows.chunks_exact(WIDTH).enumerate() {
        let score: f32 = vector.iter().zip(query).map(|(a, b)| a * b).sum();
        if best.len() < k || best.last().is_some_and(|b| score > b.1) {
            let at = best.partition_point(|(_, other)| *other >= score);
            best.insert(at, (row, score));
            best.truncate(k);
        }
    }
    best
}

fn search(criterion: &mut Criterion<CpuTime>) {
    let rows = vectors(ROWS, 1);
    let codes: Vec<Code> = rows.iter().map(|row| Code::of(row)).collect();
    let values: Vec<i8> = codes.iter().flat_map(|c| c.values.iter().copied()).collect();
    let scales: Vec<f32> = codes.iter().map(|c| c.scale).collect();
    let floats: Vec<f32> = rows.concat();
    let query = vectors(1, 2).remove(0);
    let code = Code::of(&query);
    let (ours, truth) = (nearest(&values, &scales, &code, K, -9.0, |_| true), plain(&floats, &query, K));
    let both = truth.iter().filter(|t| ours.iter().any(|o| o.0 == t.0)).count();
    println!("{both} of the {K} nearest in f32 are among the {K} nearest in eight bits");
    let mut group = criterion.benchmark_group("nearest");
    group.bench_function("eight_bits", |b| {
        b.iter(|| nearest(black_box(&values), &scales, black_box(&code), K, -9.0, |_| true));
    });
    group.bench_function("plain_f32", |b| b.iter(|| plain(black_box(&floats), black_box(&query), K)));
    group.finish();
}

criterion_group! { name = benches; config = Criterion::default().with_measurement(CpuTime).sample_size(20); targets = search }
criterion_main!(benches);
