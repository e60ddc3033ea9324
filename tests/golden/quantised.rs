//! Quantised files against their own truth, the same file dequantised to f32, and against how far the
//! library is from it; positions beyond 2,000.

use std::path::Path;

use chimere::engine::backend::Backend;
use chimere::engine::cpu::{Cpu, CpuOptions};
use chimere::engine::llama::{self, LlamaOptions};
use chimere::eval::logits::rows;
use chimere::gguf::synthetic::{Qwen35Moe, Types};
use chimere::quantize::{Choice, requantize};
use chimere_ffi::DType;

use crate::reference::{self, kl_max, kl_mean};

/// Ours may be this much further from the truth than the library is.
const FACTOR: f64 = 1.2;
/// Below this mean KL, in nats, both are as exact as f32 sums in another order.
const FLOOR: f64 = 1e-7;
/// Largest KL on f32 weights at any position, nats.
const KL_F32: f64 = 1e-8;
const VOCAB: usize = 512;

fn native(path: &Path, context_tokens: usize) -> Cpu {
    let options = CpuOptions { threads: 1, context_tokens, sequences_max: 2, prediction: true, ..Default::default() };
    Cpu::load(path, &options, &mut |_| {}).unwrap()
}

fn library(path: &Path, context_tokens: usize) -> llama::Llama {
    let options = LlamaOptions { threads: 1, context_tokens, sequences_max: 2, exact: true };
    llama::load(path, &options, &mut |_| {}).unwrap().0
}

/// Random ids: nothing to predict, every expert in use.
fn ids(len: usize, seed: u64) -> Vec<u32> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as u32 % VOCAB as u32
    };
    (0..len).map(|_| next()).collect()
}

#[test]
fn every_quantisation_is_as_near_to_its_truth_as_the_library() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    let f32s = Types { experts: DType::F32, dense: DType::F32, embedding: DType::F32, head: Some(DType::F32) };
    Qwen35Moe::small(f32s).build().unwrap().write(&path("f32"), 11, |_, _| {}).unwrap();
    let prompts = [ids(160, 1), ids(160, 2)];
    let mut table = String::new();
    let mut wrong = Vec::new();
    for dtype in DType::ALL.into_iter().filter(|t| *t != DType::F32) {
        let choice = Choice::new(&dtype.name(), &["ssm_(alpha|beta)=Q8_0"]).unwrap();
        requantize(&path("f32"), &path("quantised"), |t| choice.of(t), |_, _| {}).unwrap();
        requantize(&path("quantised"), &path("truth"), |_| DType::F32, |_, _| {}).unwrap();
        let mut truth = library(&path("truth"), 256);
        let mut ours = native(&path("quantised"), 256);
        let mut theirs = library(&path("quantised"), 256);
        let distance = |backend: &mut dyn Backend, truth: &[Vec<f32>], step: usize, mtp: bool| {
            let kl = |(ids, wanted): (&Vec<u32>, &Vec<f32>)| {
                kl_mean(wanted, &rows(backend, ids, step, mtp, &[]).unwrap(), VOCAB)
            };
            prompts.iter().zip(truth).map(kl).sum::<f64>() / prompts.len() as f64
        };
        for mtp in [false, true] {
            let wanted: Vec<Vec<f32>> = prompts.iter().map(|p| rows(&mut truth, p, 0, mtp, &[]).unwrap()).collect();
            // The library's own distance depends on how it is fed; its larger one is the bound.
            let bound = distance(&mut theirs, &wanted, 0, mtp).max(distance(&mut theirs, &wanted, 1, mtp));
            for step in [0, 1, 7] {
                let found = distance(&mut ours, &wanted, step, mtp);
                table += &format!("{dtype:?} mtp {mtp} step {step}: ours {found:.2e}, the library {bound:.2e}\n");
                if found > (bound * FACTOR).max(FLOOR) {
                    wrong.push(format!("{dtype:?}, mtp {mtp}, step {step}: {found:.2e} over {bound:.2e}"));
                }
            }
        }
    }
    println!("{table}");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn positions_beyond_2000_agree_with_the_library() {
    let ids: Vec<u32> = ids(2_300, 3);
    let wanted = rows(&mut library(&reference::model(), 2_304), &ids, 0, false, &[]).unwrap();
    let mut ours = native(&reference::model(), 2_304);
    for step in [0, 300] {
        let found = rows(&mut ours, &ids, step, false, &[]).unwrap();
        let late = 2_000 * reference::VOCAB;
        let (all, far) =
            (kl_max(&wanted, &found, reference::VOCAB), kl_max(&wanted[late..], &found[late..], reference::VOCAB));
        println!("step {step}: KL {all:.1e}, beyond 2,000 {far:.1e}");
        assert!(all <= KL_F32, "step {step}: KL {all:.1e}");
    }
}
