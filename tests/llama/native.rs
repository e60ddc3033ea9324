//! Our own forward pass against the library's, for files that are not as most are: without experts, and with positions
//! beyond those of the training.

use chimere::engine::cpu::{Cpu, CpuOptions};
use chimere::engine::load::{Kind, load as load_any};
use chimere::eval::agree::divergence;
use chimere::eval::logits::rows;

use crate::models::{TRAINED, VOCAB, alone, load, make, options};

/// Largest KL between the two in f32, nats.
const KL_SAME: f64 = 1e-8;

fn ids() -> Vec<u32> {
    (0..200).map(|i| (i * 37 + 5) % 256).collect()
}

fn kl_max(a: &[f32], b: &[f32]) -> f64 {
    assert!(a.len() == b.len() && b.iter().all(|v| v.is_finite()));
    a.chunks_exact(VOCAB).zip(b.chunks_exact(VOCAB)).map(|(a, b)| divergence(a, b)).fold(0.0, f64::max)
}

#[test]
fn dense_and_stretched_files_have_the_library_s_numbers() {
    let _turn = alone();
    let (dir, ids) = (tempfile::tempdir().unwrap(), ids());
    let mut last = Vec::new();
    for architecture in ["qwen35", "qwen35moe", "qwen35moe-yarn"] {
        let file = make(dir.path(), architecture);
        let wanted = rows(&mut load(&file).0, &ids, 0, false, &[]).unwrap();
        let own = CpuOptions { threads: 1, context_tokens: 256, ..CpuOptions::default() };
        let mut ours = Cpu::load(&file, &own, &mut |_| {}).unwrap();
        for step in [0, 1] {
            let kl = kl_max(&wanted, &rows(&mut ours, &ids, step, false, &[]).unwrap());
            println!("{architecture}: {step} at a time: KL {kl:.1e}");
            assert!(kl < KL_SAME, "{architecture}: {step} at a time: KL {kl:.1e}");
        }
        last.push(wanted);
    }
    let at = TRAINED as usize * VOCAB;
    assert!(kl_max(&last[1][at..], &last[2][at..]) > 1e-4, "the angles of far positions are others");
}

#[test]
fn a_dense_file_is_computed_natively() {
    let _turn = alone();
    let dir = tempfile::tempdir().unwrap();
    let loaded = load_any(&make(dir.path(), "qwen35"), &options(Kind::Auto), &mut |_| {}).unwrap();
    let info = loaded.backend.info();
    assert_eq!((info.backend.as_str(), info.architecture.as_str()), ("cpu", "qwen35"));
}
