//! The backend on tiny random models: what does not change a number, what must be refused, what must not stay behind.

use super::*;
use crate::engine::adapter::{BaseModel, Recipe, TARGETS};
use crate::engine::backend::{Chunk, Rows};
use crate::engine::model::tiny::{Random, Tiny, VOCAB};
use crate::gguf::Value;
use chimere_ffi::DType;

fn options() -> CpuOptions {
    CpuOptions { threads: 2, context_tokens: 1_024, sequences_max: 4, prediction: true, ..Default::default() }
}

fn load(tiny: Tiny) -> Cpu {
    let file = tiny.write();
    Cpu::load(&file.path, &options(), &mut |_| {}).unwrap()
}

/// Why a model is refused.
fn refusal(tiny: Tiny) -> String {
    let file = tiny.write();
    match Cpu::load(&file.path, &options(), &mut |_| {}) {
        Ok(_) => panic!("the model was accepted"),
        Err(e) => e.to_string(),
    }
}

/// Logits of every position, fed `step` tokens at a time (0 = all at once).
fn logits(cpu: &mut Cpu, tokens: &[u32], step: usize) -> Vec<f32> {
    let seq = cpu.open().unwrap();
    let (mut all, mut out) = (Vec::new(), Output::default());
    for tokens in tokens.chunks(if step == 0 { tokens.len() } else { step }) {
        cpu.step(&[Chunk { seq, tokens, rows: Rows::All, hidden: false }], &mut out).unwrap();
        assert_eq!(out.logits.len(), tokens.len() * VOCAB as usize);
        all.extend_from_slice(&out.logits);
    }
    cpu.close(seq);
    all
}

/// Largest Kullback–Leibler divergence of a row of `b` from the same row of `a`, in nats.
fn kl_max(a: &[f32], b: &[f32]) -> f64 {
    let log_softmax = |row: &[f32]| -> Vec<f64> {
        let max = row.iter().fold(f64::MIN, |m, v| m.max(f64::from(*v)));
        let sum: f64 = row.iter().map(|v| (f64::from(*v) - max).exp()).sum();
        row.iter().map(|v| f64::from(*v) - max - sum.ln()).collect()
    };
    assert_eq!(a.len(), b.len());
    a.chunks(VOCAB as usize)
        .zip(b.chunks(VOCAB as usize))
        .map(|(a, b)| log_softmax(a).iter().zip(log_softmax(b)).map(|(p, q)| p.exp() * (p - q)).sum())
        .fold(0.0, f64::max)
}

/// Feeding in pieces changes sums of f32 by rounding only.
const PIECES_KL_MAX: f64 = 1e-9;

#[test]
fn pieces_give_the_numbers_of_the_whole() {
    for dense in [false, true] {
        let mut cpu = load(Tiny { dense, ..Tiny::default() });
        let tokens = Random(1).tokens(210);
        let whole = logits(&mut cpu, &tokens, 0);
        assert!(whole.iter().all(|v| v.is_finite()));
        for step in [1, 7, 100] {
            let kl = kl_max(&whole, &logits(&mut cpu, &tokens, step));
            assert!(kl < PIECES_KL_MAX, "dense: {dense}, steps of {step}: KL {kl:e}");
        }
        assert!(whole == logits(&mut cpu, &tokens, 64), "cuts on the grid change no bit");
        assert!(whole == logits(&mut cpu, &tokens, 128), "cuts on the grid change no bit");
    }
}

#[test]
fn neighbours_change_no_bit() {
    for (dtype, dense) in [(DType::F32, false), (DType::Q8_0, false), (DType::F16, false), (DType::Q8_0, true)] {
        let mut cpu = load(Tiny { dtype, dense, ..Tiny::default() });
        let mut random = Random(2);
        let tokens = [random.tokens(150), random.tokens(70), random.tokens(9), random.tokens(700)];
        // 700 rows of another sequence before it: the chunk of interest is cut by the bounds of a pass.
        let alone: Vec<Vec<f32>> = tokens.iter().map(|t| logits(&mut cpu, t, 0)).collect();
        let seqs: Vec<_> = tokens.iter().map(|_| cpu.open().unwrap()).collect();
        let chunk = |i: usize| Chunk { seq: seqs[i], tokens: &tokens[i], rows: Rows::All, hidden: false };
        let mut out = Output::default();
        cpu.step(&[chunk(3), chunk(0), chunk(2), chunk(1)], &mut out).unwrap();
        let together = [3, 0, 2, 1].map(|i| alone[i].as_slice()).concat();
        assert!(out.logits == together, "{dtype:?}: a prefill among others");
        let next: Vec<u32> = random.tokens(4);
        let decode = |i: usize| Chunk { seq: seqs[i], tokens: &next[i..=i], rows: Rows::Last, hidden: false };
        let batch: Vec<_> = (0..4).map(decode).collect();
        cpu.step(&batch, &mut out).unwrap();
        seqs.iter().for_each(|s| cpu.close(*s));
        for (i, t) in tokens.iter().enumerate() {
            let seq = cpu.open().unwrap();
            let mut alone = Output::default();
            cpu.step(&[Chunk { seq, tokens: t, rows: Rows::None, hidden: false }], &mut alone).unwrap();
            assert!(alone.logits.is_empty());
            cpu.step(&[Chunk { seq, ..decode(i) }], &mut alone).unwrap();
            let v = VOCAB as usize;
            assert!(alone.logits == out.logits[i * v..][..v], "{dtype:?}: decode of sequence {i} among others");
            cpu.close(seq);
        }
    }
}

#[test]
fn rows_not_asked_for_change_nothing() {
    // The last layer is attention, then GDN.
    for (layers, interval) in [(3, 3), (2, 3)] {
        let mut cpu = load(Tiny { layers, interval, ..Tiny::default() });
        let tokens = Random(3).tokens(130);
        let v = VOCAB as usize;
        // Whether a row is in a whole block of the chunked form depends on the tokens that follow it.
        let (all, short) = (logits(&mut cpu, &tokens, 0), logits(&mut cpu, &tokens[..77], 0));
        let (a, b) = (cpu.open().unwrap(), cpu.open().unwrap());
        let mut out = Output::default();
        let last = |seq, n: usize| Chunk { seq, tokens: &tokens[..n], rows: Rows::Last, hidden: true };
        cpu.step(&[last(a, 130), last(b, 77)], &mut out).unwrap();
        assert!(out.logits[..v] == all[129 * v..]);
        assert!(out.logits[v..] == short[76 * v..]);
        assert_eq!(out.hidden.len(), 2 * 64);
        let rest = Chunk { seq: b, tokens: &tokens[77..], rows: Rows::None, hidden: true };
        cpu.step(&[rest], &mut out).unwrap();
        assert!(out.logits.is_empty() && out.hidden.is_empty());
        assert_eq!(cpu.held(b), 130);
    }
}

#[test]
fn a_closed_sequence_leaves_nothing_behind() {
    let mut cpu = load(Tiny::default());
    let mut random = Random(4);
    let (first, second) = (random.tokens(90), random.tokens(40));
    let fresh = logits(&mut cpu, &second, 0);
    logits(&mut cpu, &first, 7);
    assert!(fresh == logits(&mut cpu, &second, 0));
    let old = cpu.open().unwrap();
    cpu.close(old);
    cpu.close(old);
    assert_eq!(cpu.held(old), 0);
    let chunk = Chunk { seq: old, tokens: &first, rows: Rows::Last, hidden: false };
    let e = cpu.step(&[chunk], &mut Output::default()).unwrap_err();
    assert!(matches!(e, BackendError::UnknownSequence(_)));
}

#[test]
fn a_refused_step_feeds_nothing() {
    let mut cpu = load(Tiny::default());
    let (a, b) = (cpu.open().unwrap(), cpu.open().unwrap());
    let tokens = Random(5).tokens(1_025);
    let chunk = |seq, tokens| Chunk { seq, tokens, rows: Rows::Last, hidden: false };
    let mut out = Output::default();
    cpu.step(&[chunk(a, &tokens[..1_000])], &mut out).unwrap();
    let full = cpu.step(&[chunk(b, &tokens[..3]), chunk(a, &tokens[..25])], &mut out).unwrap_err();
    assert!(matches!(full, BackendError::ContextFull { held: 1_000, fed: 25, capacity: 1_024 }));
    assert!(out.logits.is_empty());
    let range = cpu.step(&[chunk(b, &tokens[..3]), chunk(a, &[VOCAB])], &mut out).unwrap_err();
    assert!(matches!(range, BackendError::TokenRange { token: VOCAB, .. }));
    assert_eq!((cpu.held(a), cpu.held(b)), (1_000, 0));
    cpu.step(&[chunk(a, &tokens[..24])], &mut out).unwrap();
    assert_eq!(cpu.held(a), 1_024);
}

/// Logits of the prediction block, fed `step` rows at a time.
fn draft(cpu: &mut Cpu, tokens: &[u32], step: usize) -> Vec<f32> {
    let seq = cpu.open().unwrap();
    let mut out = Output::default();
    cpu.step(&[Chunk { seq, tokens, rows: Rows::All, hidden: true }], &mut out).unwrap();
    let (hidden, next) = (std::mem::take(&mut out.hidden), &tokens[1..]);
    let mut all = Vec::new();
    for (h, tokens) in hidden.chunks(step * 64).zip(next.chunks(step)) {
        let hidden = &h[..tokens.len() * 64];
        cpu.draft(&[DraftChunk { seq, hidden, tokens, rows: Rows::All }], &mut out).unwrap();
        all.extend_from_slice(&out.logits);
    }
    cpu.close(seq);
    all
}

#[test]
fn the_prediction_block_has_a_cache_of_its_own() {
    let mut cpu = load(Tiny::default());
    assert!(cpu.info().mtp);
    let tokens = Random(6).tokens(80);
    let whole = draft(&mut cpu, &tokens, 79);
    assert_eq!(whole.len(), 79 * VOCAB as usize);
    let kl = kl_max(&whole, &draft(&mut cpu, &tokens, 1));
    assert!(kl < PIECES_KL_MAX, "KL {kl:e}");
    let seq = cpu.open().unwrap();
    let wrong = DraftChunk { seq, hidden: &[0.0; 63], tokens: &[1], rows: Rows::All };
    assert!(cpu.draft(&[wrong], &mut Output::default()).is_err());
    // A pruned file keeps the key after the block is gone.
    let mut cpu = load(Tiny { mtp: false, ..Tiny::default() });
    assert!(!cpu.info().mtp);
    assert_eq!(cpu.info().layers, 3);
    let e = cpu.draft(&[], &mut Output::default()).unwrap_err();
    assert!(matches!(e, BackendError::Unsupported(_)));
}

#[test]
fn a_tied_head_is_the_embedding() {
    let mut cpu = load(Tiny { tied: true, ..Tiny::default() });
    let whole = logits(&mut cpu, &Random(7).tokens(20), 0);
    assert!(whole.iter().all(|v| v.is_finite()));
    let file = Tiny { without: Some("output_norm.weight"), ..Tiny::default() }.write();
    assert!(Cpu::load(&file.path, &options(), &mut |_| {}).is_err());
}

#[test]
fn progress_ends_at_one_and_bytes_are_counted() {
    let file = Tiny::default().write();
    let mut seen = Vec::new();
    let cpu = Cpu::load(&file.path, &options(), &mut |p| seen.push(p)).unwrap();
    assert!(seen.windows(2).all(|w| w[0] <= w[1]));
    assert_eq!(seen.last(), Some(&1.0));
    let info = cpu.info();
    // Every weight is f32; of five routed experts two are read, of the embedding one row, and the prediction block
    // is not read at all.
    let d = 64_u64;
    let moe = d * 5 + d + 2 * 3 * 32 * d + 3 * 64 * d + 2 * d;
    let gdn = d * (1024 + 512 + 8) + 512 * d + 4 * 1024 + 128 + 8;
    let attention = d * (512 + 256) + 256 * d + 128;
    assert_eq!(info.bytes_per_token, 4 * (3 * moe + 2 * gdn + attention + d + d + d * u64::from(VOCAB)));
    assert!(info.parameters > info.bytes_per_token / 4);
}

#[test]
fn broken_files_are_refused_by_name() {
    let e = refusal(Tiny { without: Some("blk.1.ssm_out.weight"), ..Tiny::default() });
    assert!(e.contains("\"blk.1.ssm_out.weight\" of shape [512, 64] is missing"), "{e}");
    let e = refusal(Tiny { reshaped: Some(("blk.2.attn_q.weight", vec![64, 256])), ..Tiny::default() });
    assert!(e.contains("\"blk.2.attn_q.weight\" has shape [64, 256] where [64, 512]"), "{e}");
    let e = refusal(Tiny { reshaped: Some(("blk.0.ssm_a", vec![5])), ..Tiny::default() });
    assert!(e.contains("ssm_a"), "{e}");
    let e = refusal(Tiny { without: Some("blk.3.ffn_gate_inp.weight"), ..Tiny::default() });
    assert!(e.contains("blk.3.ffn_gate_inp.weight"), "{e}");
}

#[test]
fn hostile_hyper_parameters_are_refused() {
    let counts = [
        "block_count",
        "context_length",
        "embedding_length",
        "attention.head_count",
        "attention.head_count_kv",
        "attention.key_length",
        "attention.value_length",
        "rope.dimension_count",
        "full_attention_interval",
        "ssm.conv_kernel",
        "ssm.state_size",
        "ssm.group_count",
        "ssm.time_step_rank",
        "ssm.inner_size",
        "expert_count",
        "expert_used_count",
        "expert_feed_forward_length",
        "expert_shared_feed_forward_length",
    ];
    for key in counts {
        for value in [0_u64, 1 << 31, u64::MAX] {
            let e = refusal(Tiny { keys: vec![(key, value.into())], ..Tiny::default() });
            assert!(e.contains(key), "{key} = {value}: {e}");
        }
    }
    for (key, value) in [("rope.freq_base", f32::NAN), ("attention.layer_norm_rms_epsilon", -1.0)] {
        let e = refusal(Tiny { keys: vec![(key, value.into())], ..Tiny::default() });
        assert!(e.contains(key), "{e}");
    }
    let sections = Value::Array(crate::gguf::Array::I32(vec![11, 0, 0, 0]));
    refusal(Tiny { keys: vec![("rope.dimension_sections", sections)], ..Tiny::default() });
    refusal(Tiny { keys: vec![("expert_used_count", 6_u32.into())], ..Tiny::default() });
    refusal(Tiny { keys: vec![("attention.head_count_kv", 3_u32.into())], ..Tiny::default() });
    refusal(Tiny { keys: vec![("ssm.group_count", 3_u32.into())], ..Tiny::default() });
}

/// A random adapter for the tiny model, and the model file it fits.
fn adapted(tiny: Tiny, targets: &[&str], seed: u64) -> (Cpu, Adapter) {
    let file = tiny.write();
    let base = BaseModel::new(&Gguf::open(&file.path).unwrap(), "hash");
    let targets = targets.iter().map(|t| (*t).to_owned()).collect();
    let adapter = Recipe { rank: 5, scale: 0.3, seed, targets, last_layers: 0 }.make(&base).unwrap();
    (Cpu::load(&file.path, &options(), &mut |_| {}).unwrap(), adapter)
}

/// As [`logits`], under an adapter.
fn logits_under(cpu: &mut Cpu, adapter: Option<AdapterId>, tokens: &[u32], step: usize) -> Vec<f32> {
    let seq = cpu.open().unwrap();
    if let Some(adapter) = adapter {
        cpu.adapt(seq, adapter).unwrap();
    }
    let (mut all, mut out) = (Vec::new(), Output::default());
    for tokens in tokens.chunks(if step == 0 { tokens.len() } else { step }) {
        cpu.step(&[Chunk { seq, tokens, rows: Rows::All, hidden: false }], &mut out).unwrap();
        all.extend_from_slice(&out.logits);
    }
    cpu.close(seq);
    all
}

#[test]
fn every_target_changes_the_numbers_and_nothing_else_does() {
    let tokens = Random(1).tokens(90);
    for target in TARGETS.into_iter().chain(["output"]) {
        let (mut cpu, adapter) = adapted(Tiny::default(), &[target], 1);
        let base = logits(&mut cpu, &tokens, 0);
        let id = cpu.load_adapter(&adapter).unwrap();
        assert!(base == logits(&mut cpu, &tokens, 0), "{target}: loaded and not used");
        let under = logits_under(&mut cpu, Some(id), &tokens, 0);
        assert!(kl_max(&base, &under) > 1e-7, "{target} changes nothing");
        let pieces = logits_under(&mut cpu, Some(id), &tokens, 7);
        assert!(kl_max(&under, &pieces) < PIECES_KL_MAX, "{target}");
        // B = 0 adds nothing at all.
        let mut zero = adapter.clone();
        zero.factors.iter_mut().for_each(|f| f.b.fill(0.0));
        let zero = cpu.load_adapter(&zero).unwrap();
        assert!(base == logits_under(&mut cpu, Some(zero), &tokens, 0), "{target}: zero");
        cpu.drop_adapter(id);
        assert!(base == logits(&mut cpu, &tokens, 0), "{target}: after the drop");
    }
}

#[test]
fn sequences_under_different_adapters_share_steps_bit_for_bit() {
    for dtype in [DType::F32, DType::Q8_0] {
        let (mut cpu, first) = adapted(Tiny { dtype, ..Tiny::default() }, &[], 1);
        let (_, second) = adapted(Tiny { dtype, ..Tiny::default() }, &["ssm_out", "attn_q", "ffn_up_exps"], 2);
        let mut random = Random(9);
        let texts = [random.tokens(70), random.tokens(70), random.tokens(130), random.tokens(9)];
        let next = random.tokens(4);
        let (one, two) = (cpu.load_adapter(&first).unwrap(), cpu.load_adapter(&second).unwrap());
        let under = [None, Some(one), Some(two), Some(one)];
        let alone: Vec<_> = (0..4).map(|i| logits_under(&mut cpu, under[i], &texts[i], 0)).collect();
        let open = |cpu: &mut Cpu, i: usize| {
            let seq = cpu.open().unwrap();
            under[i].into_iter().for_each(|a| cpu.adapt(seq, a).unwrap());
            seq
        };
        let seqs: Vec<_> = (0..4).map(|i| open(&mut cpu, i)).collect();
        let chunk = |i: usize| Chunk { seq: seqs[i], tokens: &texts[i], rows: Rows::All, hidden: false };
        let mut out = Output::default();
        cpu.step(&[chunk(3), chunk(1), chunk(0), chunk(2)], &mut out).unwrap();
        assert!(out.logits == [3, 1, 0, 2].map(|i| alone[i].as_slice()).concat(), "{dtype:?}: prefill");
        // The sequences keep what they were opened with.
        cpu.drop_adapter(one);
        let decode = |seq, i: usize| Chunk { seq, tokens: &next[i..=i], rows: Rows::Last, hidden: false };
        cpu.step(&[0, 1, 2, 3].map(|i| decode(seqs[i], i)), &mut out).unwrap();
        let together = out.logits.clone();
        seqs.iter().for_each(|s| cpu.close(*s));
        let again = cpu.load_adapter(&first).unwrap();
        for i in 0..4 {
            let seq = cpu.open().unwrap();
            under[i].map(|a| if a == one { again } else { a }).into_iter().for_each(|a| cpu.adapt(seq, a).unwrap());
            cpu.step(&[Chunk { seq, rows: Rows::None, ..chunk(i) }], &mut out).unwrap();
            cpu.step(&[decode(seq, i)], &mut out).unwrap();
            let v = VOCAB as usize;
            assert!(out.logits == together[i * v..][..v], "{dtype:?}: decode {i}");
            cpu.close(seq);
        }
    }
}

#[test]
fn an_adapter_is_chosen_before_the_first_token_and_must_exist() {
    let (mut cpu, adapter) = adapted(Tiny::default(), &["attn_v"], 1);
    let id = cpu.load_adapter(&adapter).unwrap();
    let seq = cpu.open().unwrap();
    cpu.step(&[Chunk { seq, tokens: &[1], rows: Rows::None, hidden: false }], &mut Output::default()).unwrap();
    assert!(matches!(cpu.adapt(seq, id), Err(BackendError::TooLate(_))));
    let other = cpu.open().unwrap();
    assert!(matches!(cpu.adapt(other, AdapterId(77)), Err(BackendError::UnknownAdapter(77))));
    cpu.drop_adapter(id);
    assert!(matches!(cpu.adapt(other, id), Err(BackendError::UnknownAdapter(_))));
    // A closed sequence leaves its adapter behind.
    let tokens = Random(2).tokens(30);
    let base = logits(&mut cpu, &tokens, 0);
    let id = cpu.load_adapter(&adapter).unwrap();
    assert!(base != logits_under(&mut cpu, Some(id), &tokens, 0));
    assert!(base == logits(&mut cpu, &tokens, 0));
}

/// A reply that was interrupted is fed again in chunks below the length of a block: what each token gets is what it
/// got when it was fed alone.
#[test]
fn short_chunks_have_the_bits_of_single_tokens() {
    for dtype in [DType::F32, DType::Q8_0] {
        let mut cpu = load(Tiny { dtype, ..Tiny::default() });
        let tokens = Random(8).tokens(200);
        let (single, again) = (cpu.open().unwrap(), cpu.open().unwrap());
        let mut out = Output::default();
        let mut feed = |cpu: &mut Cpu, seq, tokens: &[u32]| {
            cpu.step(&[Chunk { seq, tokens, rows: Rows::All, hidden: false }], &mut out).unwrap();
            out.logits.clone()
        };
        for seq in [single, again] {
            feed(&mut cpu, seq, &tokens[..64]);
            feed(&mut cpu, seq, &tokens[64..75]);
        }
        let alone: Vec<f32> = tokens[75..].chunks(1).flat_map(|t| feed(&mut cpu, single, t)).collect();
        let chunks: Vec<f32> = tokens[75..].chunks(63).flat_map(|t| feed(&mut cpu, again, t)).collect();
        assert!(alone == chunks, "{dtype:?}");
    }
}

#[test]
fn a_stretch_of_positions_that_nobody_knows_is_refused() {
    let key = |kind: &str| vec![("rope.scaling.type", Value::from(kind)), ("rope.scaling.factor", 2.0_f32.into())];
    let e = refusal(Tiny { keys: key("longrope"), ..Tiny::default() });
    assert!(e.contains("rope.scaling.type") && e.contains("longrope") && e.contains("llama backend"), "{e}");
    let e = refusal(Tiny { keys: vec![("rope.scaling.factor", f32::NAN.into())], ..Tiny::default() });
    assert!(e.contains("rope.scaling.factor"), "{e}");
    let tokens = Random(8).tokens(30);
    let plain = logits(&mut load(Tiny::default()), &tokens, 0);
    let none = Tiny { keys: key("none"), ..Tiny::default() };
    assert!(logits(&mut load(none), &tokens, 0) == plain);
    let linear = Tiny { keys: key("linear"), ..Tiny::default() };
    assert!(kl_max(&logits(&mut load(linear), &tokens, 0), &plain) > 1e-4);
}
