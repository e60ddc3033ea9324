//! Logits of the backends against PyTorch's, whole prompt, step by step and beside other sequences.

use std::ops::Range;

use chimere::engine::backend::Backend;
use chimere::engine::cpu::{Cpu, CpuOptions};
use chimere::engine::llama::{self, Llama, LlamaOptions};
use chimere::eval::logits::rows;

use crate::reference::{self, PROMPTS, VOCAB, kl_max};

/// Largest KL of a row from PyTorch's on f32 weights, nats.
const KL_F32: f64 = 1e-8;

/// Every way of feeding a prompt must give PyTorch's rows.
fn agrees_with_pytorch(backend: &mut dyn Backend, mtp: bool, prompts: Range<usize>) {
    for n in prompts {
        let ids = reference::ids(n);
        let wanted = if mtp { reference::mtp_logits(n) } else { reference::logits(n) };
        let others = vec![reference::ids((n + 1) % PROMPTS), reference::ids((n + 2) % PROMPTS)];
        for (step, beside) in [(0, &[][..]), (1, &[]), (7, &[]), (64, &[]), (7, &others), (1, &others), (0, &others)] {
            let found = rows(backend, &ids, step, mtp, beside).unwrap();
            let kl = kl_max(&wanted, &found, VOCAB);
            println!("prompt {n} step {step} beside {} mtp {mtp}: KL {kl:.2e}", beside.len());
            assert!(kl <= KL_F32, "prompt {n}, step {step}, {} beside, mtp {mtp}: KL {kl:.2e}", beside.len());
        }
    }
}

fn library() -> Llama {
    let options = LlamaOptions { threads: 1, context_tokens: 256, sequences_max: 3, exact: true };
    llama::load(&reference::model(), &options, &mut |_| {}).unwrap().0
}

fn native(threads: usize) -> Cpu {
    let options = CpuOptions { threads, context_tokens: 256, sequences_max: 3, prediction: true, ..Default::default() };
    Cpu::load(&reference::model(), &options, &mut |_| {}).unwrap()
}

#[test]
fn the_native_backend_gives_pytorchs_logits() {
    agrees_with_pytorch(&mut native(1), false, 0..PROMPTS);
    agrees_with_pytorch(&mut native(2), false, 1..2);
}

#[test]
fn the_native_mtp_layer_gives_pytorchs_logits() {
    agrees_with_pytorch(&mut native(1), true, 0..PROMPTS);
}

#[test]
fn the_library_gives_pytorchs_logits() {
    agrees_with_pytorch(&mut library(), false, 0..PROMPTS);
}

#[test]
fn the_librarys_mtp_layer_gives_pytorchs_logits() {
    agrees_with_pytorch(&mut library(), true, 0..PROMPTS);
}
