//! The gated delta rule against its formula in f64, and the promises about cuts and neighbours.

use super::*;
use crate::cpu::samples::Random;

const SHAPE: GdnShape = GdnShape { key_heads: 2, value_heads: 4, head_dim: DIM };

struct Case {
    layer: Gdn,
    conv: Vec<f32>,
    qkv: Vec<f32>,
    z: Vec<f32>,
    alpha: Vec<f32>,
    beta: Vec<f32>,
}

impl Case {
    fn new(t: usize) -> Case {
        let mut rng = Random(11);
        let channels = SHAPE.channels();
        let conv = rng.normals(channels * TAPS);
        let a: Vec<f32> = (0..4).map(|i| -0.05 * (1 + 3 * i) as f32).collect();
        let layer = Gdn::new(SHAPE, &conv, &a, &rng.normals(4), &rng.normals(DIM), 1e-6).unwrap();
        Case {
            layer,
            conv,
            qkv: rng.normals(t * channels),
            z: rng.normals(t * 4 * DIM),
            alpha: rng.normals(t * 4),
            beta: rng.normals(t * 4),
        }
    }

    /// The same with chunks in the chunked form.
    fn chunked(mut self) -> Case {
        self.layer.chunked = true;
        self
    }

    /// Runs rows cut into spans of these lengths, one call each.
    fn run(&self, pool: &Pool, cuts: &[usize]) -> (Vec<f32>, GdnState) {
        let mut out = vec![0.0; self.z.len()];
        let mut state = GdnState::new(SHAPE);
        let mut start = 0;
        let rows = GdnRows { qkv: &self.qkv, z: &self.z, alpha: &self.alpha, beta: &self.beta };
        for len in cuts {
            gdn(
                pool,
                &self.layer,
                rows,
                &mut [GdnSpan { start, len: *len, state: &mut state }],
                &mut out,
                &mut GdnScratch::new(),
            );
            start += len;
        }
        (out, state)
    }

    /// Head `h` of every row in f64, as the formula stands.
    fn exact(&self, h: usize) -> Vec<f64> {
        let channels = SHAPE.channels();
        let t_max = self.beta.len() / 4;
        let mut s = vec![0f64; DIM * DIM];
        let mut out = Vec::new();
        let part = |t: usize, at: usize| -> Vec<f64> {
            (0..DIM)
                .map(|i| {
                    let c = at * DIM + i;
                    let sum: f64 = (0..TAPS)
                        .filter(|j| t + j >= 3)
                        .map(|j| f64::from(self.conv[c * TAPS + j]) * f64::from(self.qkv[(t + j - 3) * channels + c]))
                        .sum();
                    sum / (1.0 + (-sum).exp())
                })
                .collect()
        };
        let unit = |x: Vec<f64>| {
            let n = x.iter().map(|v| v * v).sum::<f64>().sqrt();
            x.into_iter().map(|v| v / n).collect::<Vec<_>>()
        };
        for t in 0..t_max {
            let (q, k, v) = (unit(part(t, h % 2)), unit(part(t, 2 + h % 2)), part(t, 4 + h));
            let x = f64::from(self.alpha[t * 4 + h]) + f64::from(self.layer.dt_bias[h]);
            let decay = ((x.exp().ln_1p()) * f64::from(self.layer.a[h])).exp();
            let beta = 1.0 / (1.0 + (-f64::from(self.beta[t * 4 + h])).exp());
            s.iter_mut().for_each(|s| *s *= decay);
            let d: Vec<f64> =
                (0..DIM).map(|j| beta * (v[j] - (0..DIM).map(|i| s[i * DIM + j] * k[i]).sum::<f64>())).collect();
            for i in 0..DIM {
                for j in 0..DIM {
                    s[i * DIM + j] += k[i] * d[j];
                }
            }
            let o: Vec<f64> =
                (0..DIM).map(|j| (0..DIM).map(|i| s[i * DIM + j] * q[i]).sum::<f64>() / (DIM as f64).sqrt()).collect();
            let scale = 1.0 / (o.iter().map(|v| v * v).sum::<f64>() / DIM as f64 + 1e-6).sqrt();
            for j in 0..DIM {
                let z = f64::from(self.z[(t * 4 + h) * DIM + j]);
                out.push(o[j] * scale * f64::from(self.layer.norm[j]) * z / (1.0 + (-z).exp()));
            }
        }
        out
    }
}

#[test]
fn steps_and_chunks_equal_the_formula() {
    let t = 2 * CHUNK + 5;
    let case = Case::new(t);
    let pool = Pool::new(2).unwrap();
    let (steps, _) = case.run(&pool, &vec![1; t]);
    assert_eq!(case.run(&pool, &[t]).0, steps, "the step gives the same bits however it is fed");
    let case = case.chunked();
    let (whole, _) = case.run(&pool, &[t]);
    assert_ne!(whole, steps);
    for h in 0..4 {
        let want = case.exact(h);
        for i in 0..t * DIM {
            let at = i / DIM * 4 * DIM + h * DIM + i % DIM;
            for (name, got) in [("steps", steps[at]), ("chunks", whole[at])] {
                assert!(
                    (f64::from(got) - want[i]).abs() < 3e-5 * (1.0 + want[i].abs()),
                    "{name} head {h} row {}: {got} {}",
                    i / DIM,
                    want[i]
                );
            }
        }
    }
}

#[test]
fn cuts_at_chunk_borders_and_neighbours_change_no_bit() {
    let t = 3 * CHUNK + 9;
    let case = Case::new(t).chunked();
    let pool = Pool::new(2).unwrap();
    let (whole, state) = case.run(&pool, &[t]);
    let (cut, cut_state) = case.run(&pool, &[CHUNK, 2 * CHUNK, 9]);
    assert_eq!(whole, cut);
    assert_eq!((state.heads, state.conv), (cut_state.heads, cut_state.conv));
    // The same rows as two sequences in one call, against two calls.
    let (mut a, mut b) = (GdnState::new(SHAPE), GdnState::new(SHAPE));
    let mut out = vec![0.0; case.z.len()];
    let rows = GdnRows { qkv: &case.qkv, z: &case.z, alpha: &case.alpha, beta: &case.beta };
    let mut spans =
        [GdnSpan { start: 0, len: 100, state: &mut a }, GdnSpan { start: 100, len: t - 100, state: &mut b }];
    gdn(&pool, &case.layer, rows, &mut spans, &mut out, &mut GdnScratch::new());
    let (first, _) = case.run(&pool, &[100]);
    assert_eq!(out[..100 * 4 * DIM], first[..100 * 4 * DIM]);
}

#[test]
fn wrong_shapes_are_refused_and_reset_forgets() {
    assert_eq!(
        Gdn::new(GdnShape { head_dim: 64, ..SHAPE }, &[], &[], &[], &[], 1e-6).err(),
        Some(GdnError::HeadDim(64))
    );
    assert!(matches!(Gdn::new(SHAPE, &[0.0], &[], &[], &[], 1e-6), Err(GdnError::Length { .. })));
    let case = Case::new(3);
    let pool = Pool::new(1).unwrap();
    let (_, mut state) = case.run(&pool, &[3]);
    assert!(state.heads.iter().any(|v| *v != 0.0));
    state.reset();
    let fresh = GdnState::new(SHAPE);
    assert_eq!((&state.heads, &state.conv), (&fresh.heads, &fresh.conv));
}
