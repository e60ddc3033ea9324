//! Every type of cache and state: the processor's numbers, pieces those of the whole, and the bytes that are counted.

use super::*;
use crate::engine::cpu::StateType;
use crate::engine::cuda::plan;

/// Sums in another order may round a value of a block or of bf16 the other way.
const ROUNDED_KL_MAX: f64 = 1e-4;

#[test]
fn every_type_gives_the_processor_s_numbers_and_pieces_those_of_the_whole() {
    let file = Tiny::default().write();
    let tokens = Random(7).tokens(68);
    let floats = logits(&mut cpu(&file.path), &tokens, 0);
    for (kv, state) in [(KvType::Q8Q4, StateType::F32), (KvType::F32, StateType::Bf16), (KvType::Q8Q4, StateType::Bf16)]
    {
        let mut ours = with(&file.path, &CudaOptions { kv, state, ..options() });
        let theirs = CpuOptions { threads: 2, context_tokens: 320, sequences_max: 3, kv, state, prediction: true };
        let mut theirs = Cpu::load(&file.path, &theirs, &mut |_| {}).unwrap();
        let (whole, wanted) = (logits(&mut ours, &tokens, 0), logits(&mut theirs, &tokens, 0));
        let (near, far) = (kl(&wanted, &whole, VOCAB as usize), kl(&floats, &whole, VOCAB as usize));
        assert!(near[67] < ROUNDED_KL_MAX, "{kv}, {state}: {:e}", near[67]);
        assert!(
            far[34] > 2.0 * near[34],
            "{kv}, {state}: as far from floats, {:e}, as from the same, {:e}",
            far[34],
            near[34]
        );
        check_pieces(&mut ours, &tokens, &whole);
    }
}

#[test]
fn the_plan_and_what_is_saved_count_the_bytes_of_the_types() {
    let file = Tiny::default().write();
    let gguf = Gguf::open(&file.path).unwrap();
    let sizes = |kv, state| {
        let options = CudaOptions { kv, state, memory_bytes_max: 1 << 40, ..options() };
        let (planned, made) = (plan(&gguf, &options).unwrap(), with(&file.path, &options));
        assert_eq!((planned.kv, planned.states), (made.placement().kv, made.placement().states));
        (planned, made.saved_size().unwrap())
    };
    let (floats, saved) = sizes(KvType::F32, StateType::F32);
    let (small, less) = sizes(KvType::Q8Q4, StateType::Bf16);
    // Of 32 keys and values 34 and 18 bytes in place of 128 each.
    assert_eq!((small.kv, less.block as u64), (floats.kv * 52 / 256, saved.block as u64 * 52 / 256));
    // Two recurrent layers of four heads; windows stay floats.
    assert_eq!((floats.states - small.states, saved.state - less.state), (3 * 2 * 4 * 32_768, 2 * 4 * 32_768));
    assert!(small.to_string().contains("(q8_0/q4_0)") && small.to_string().contains("(bf16)"));
}
