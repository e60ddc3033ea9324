//! The routed experts against a plain sum of their rows.

use super::*;
use crate::DType;
use crate::cpu::samples::{Random, weights};

struct Layer {
    gate: Experts,
    up: Experts,
    down: Experts,
    shared: [Matrix; 3],
}

fn layer(dtype: DType, hidden: usize, ff: usize, experts: usize) -> Layer {
    let e = |rows, cols, seed| {
        Experts::pack(dtype, experts, rows, cols, &weights(dtype, experts * rows * cols, seed)).unwrap()
    };
    let m = |rows, cols, seed| Matrix::pack(dtype, rows, cols, &weights(dtype, rows * cols, seed)).unwrap();
    Layer {
        gate: e(ff, hidden, 1),
        up: e(ff, hidden, 2),
        down: e(hidden, ff, 3),
        shared: [m(ff, hidden, 4), m(ff, hidden, 5), m(hidden, ff, 6)],
    }
}

fn run(pool: &Pool, l: &Layer, x: &[f32], routes: &Routes<'_>) -> Vec<f32> {
    let [gate, up, down] = &l.shared;
    let w = Moe { gate: &l.gate, up: &l.up, down: &l.down, shared: Some(Shared { gate, up, down }) };
    let mut act = Act::new(l.gate.cols());
    act.load(pool, x, Forms::of(&[gate, up]) | Forms::of_experts(&l.gate));
    let mut out = vec![0.5; x.len()];
    moe(pool, &w, &act, routes, &mut MoeScratch::new(), &mut out);
    out
}

fn matvec(m: &Matrix, x: &[f64]) -> Vec<f64> {
    let mut row = vec![0.0; m.cols()];
    (0..m.rows())
        .map(|r| {
            m.dequantize_row(r, &mut row).unwrap();
            row.iter().zip(x).map(|(a, b)| f64::from(*a) * b).sum()
        })
        .collect()
}

fn ffn(gate: &Matrix, up: &Matrix, down: &Matrix, x: &[f64]) -> Vec<f64> {
    let (g, u) = (matvec(gate, x), matvec(up, x));
    let h: Vec<f64> = g.iter().zip(&u).map(|(g, u)| g / (1.0 + (-g).exp()) * u).collect();
    matvec(down, &h)
}

#[test]
fn f32_experts_equal_the_formula_and_rows_are_independent() {
    let (hidden, ff, experts, t, k) = (48, 40, 5, 13, 2);
    let pool = Pool::new(2).unwrap();
    let l = layer(DType::F32, hidden, ff, experts);
    let x: Vec<f32> = Random(8).normals(t * hidden).iter().map(|v| v * 0.1).collect();
    let mut rng = Random(9);
    let ids: Vec<u32> = (0..t)
        .flat_map(|_| {
            let a = rng.bits() % 5;
            [a as u32, ((a + 1 + rng.bits() % 4) % 5) as u32]
        })
        .collect();
    let w: Vec<f32> = (0..t * k).map(|_| rng.normal().abs()).collect();
    let s: Vec<f32> = (0..t).map(|_| rng.normal().abs()).collect();
    let all = run(&pool, &l, &x, &Routes { k, experts: &ids, weights: &w, shared: &s });
    for i in 0..t {
        let row: Vec<f64> = x[i * hidden..(i + 1) * hidden].iter().map(|v| f64::from(*v)).collect();
        let mut want = vec![0.5; hidden];
        for p in i * k..(i + 1) * k {
            let e = ids[p] as usize;
            let y = ffn(l.gate.expert(e), l.up.expert(e), l.down.expert(e), &row);
            want.iter_mut().zip(y).for_each(|(o, y)| *o += f64::from(w[p]) * y);
        }
        let y = ffn(&l.shared[0], &l.shared[1], &l.shared[2], &row);
        want.iter_mut().zip(y).for_each(|(o, y)| *o += f64::from(s[i]) * y);
        for (a, b) in all[i * hidden..].iter().zip(&want) {
            assert!((f64::from(*a) - b).abs() < 1e-4 * (1.0 + b.abs()), "{a} {b}");
        }
        let one = run(
            &pool,
            &l,
            &x[i * hidden..(i + 1) * hidden],
            &Routes { k, experts: &ids[i * k..(i + 1) * k], weights: &w[i * k..(i + 1) * k], shared: &s[i..=i] },
        );
        assert_eq!(one, all[i * hidden..(i + 1) * hidden]);
    }
}

#[test]
fn additions_reach_every_matrix_of_their_rows_and_no_other_row() {
    let (hidden, ff, experts, t, k, rank) = (48, 40, 5, 11, 2, 3);
    let pool = Pool::new(2).unwrap();
    let l = layer(DType::F32, hidden, ff, experts);
    let mut rng = Random(8);
    let x: Vec<f32> = rng.normals(t * hidden).iter().map(|v| v * 0.1).collect();
    let ids: Vec<u32> = (0..t as u32).flat_map(|t| [t % 5, (t + 2) % 5]).collect();
    let (w, s) = (vec![0.5; t * k], vec![0.7; t]);
    let mut pair = |inputs: usize, outputs: usize| {
        let (a, b) = (rng.normals(rank * inputs), rng.normals(outputs * rank));
        (LowRank::new(rank, inputs, outputs, &a, &b, 0.03).unwrap(), a, b)
    };
    let ups: Vec<_> = (0..2 * experts + 2).map(|_| pair(hidden, ff)).collect();
    let downs: Vec<_> = (0..=experts).map(|_| pair(ff, hidden)).collect();
    let list = |from: &[(LowRank, Vec<f32>, Vec<f32>)]| from.iter().map(|p| p.0.clone()).collect::<Vec<_>>();
    let (gate, up, down) = (list(&ups[..5]), list(&ups[5..10]), list(&downs[..5]));
    let factors = ExpertFactors {
        gate: Some(&gate),
        up: Some(&up),
        down: Some(&down),
        shared_gate: Some(&ups[10].0),
        shared_up: Some(&ups[11].0),
        shared_down: Some(&downs[5].0),
    };
    let odd = |t: usize| (t % 2 == 1).then_some(factors);
    let routes = Routes { k, experts: &ids, weights: &w, shared: &s };
    // The same weights with scale · B·A added in.
    let merged = |m: &Matrix, (_, a, b): &(LowRank, Vec<f32>, Vec<f32>)| {
        let mut row = vec![0.0; m.cols()];
        let mut bytes = Vec::new();
        for (r, b) in b.chunks(rank).enumerate() {
            m.dequantize_row(r, &mut row).unwrap();
            for (c, v) in row.iter().enumerate() {
                let add: f32 = b.iter().zip(a.chunks(m.cols())).map(|(b, a)| b * a[c]).sum();
                bytes.extend((v + 0.03 * add).to_ne_bytes());
            }
        }
        bytes
    };
    let stack = |from: &Experts, pairs: &[(LowRank, Vec<f32>, Vec<f32>)]| {
        let bytes: Vec<u8> = (0..experts).flat_map(|e| merged(from.expert(e), &pairs[e])).collect();
        Experts::pack(DType::F32, experts, from.rows(), from.cols(), &bytes).unwrap()
    };
    let plain = |m: &Matrix, p| Matrix::pack(DType::F32, m.rows(), m.cols(), &merged(m, p)).unwrap();
    let other = Layer {
        gate: stack(&l.gate, &ups[..5]),
        up: stack(&l.up, &ups[5..10]),
        down: stack(&l.down, &downs[..5]),
        shared: [plain(&l.shared[0], &ups[10]), plain(&l.shared[1], &ups[11]), plain(&l.shared[2], &downs[5])],
    };
    let (base, changed) = (run(&pool, &l, &x, &routes), run(&pool, &other, &x, &routes));
    let [g, u, d] = &l.shared;
    let moe = Moe { gate: &l.gate, up: &l.up, down: &l.down, shared: Some(Shared { gate: g, up: u, down: d }) };
    let mut act = Act::new(hidden);
    act.load(&pool, &x, Forms::of(&[g, u]) | Forms::of_experts(&l.gate));
    let mut out = vec![0.5; x.len()];
    moe_adapted(&pool, &moe, &act, &routes, Some(&odd), &mut MoeScratch::new(), &mut out);
    for (t, row) in out.chunks(hidden).enumerate() {
        let (base, changed) = (&base[t * hidden..][..hidden], &changed[t * hidden..][..hidden]);
        if t % 2 == 0 {
            assert_eq!(row, base);
            continue;
        }
        assert!(base.iter().zip(changed).any(|(a, b)| (a - b).abs() > 1e-3), "the additions are no trifle");
        for (a, b) in row.iter().zip(changed) {
            assert!((a - b).abs() < 1e-4 * (1.0 + b.abs()), "row {t}: {a} {b}");
        }
    }
}

#[test]
fn routing_takes_the_largest_with_stable_ties() {
    let (mut ids, mut w, mut probs) = ([0u32; 3], [0f32; 3], Vec::new());
    route(&[1.0, 2.0, 2.0, 0.0, 2.0, -1.0], &mut ids, &mut w, &mut probs);
    assert_eq!(ids, [1, 2, 4]);
    assert!(w.iter().all(|w| (w - 1.0 / 3.0).abs() < 1e-6));
    route(&[f32::NAN; 6], &mut ids, &mut w, &mut probs); // a broken row must not stop the process
}
