//! The backend on the emulated device: its numbers against the processor's, and what must not change a number.

mod adapters;
mod cache;
mod odd;
mod offload;
mod plan;
mod rows;

use super::*;
use crate::engine::backend::{Chunk, Rows};
use crate::engine::cpu::{Cpu, CpuOptions, KvType};
use crate::engine::model::tiny::{Random, Tiny, VOCAB};
use chimere_ffi::DType;
use chimere_ffi::gpu::build_emulated;

fn device() -> Device {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    Device::emulated(&build_emulated(&root.join("kernels"), &root.join("target")).unwrap(), None).unwrap()
}

fn options() -> CudaOptions {
    CudaOptions {
        threads: 2,
        context_tokens: 320,
        sequences_max: 3,
        kv: KvType::F32,
        prediction: true,
        ..Default::default()
    }
}

fn cuda(path: &Path) -> Cuda {
    with(path, &options())
}

fn with(path: &Path, options: &CudaOptions) -> Cuda {
    let (gguf, files) = Files::open(path).unwrap();
    Cuda::on(device(), &gguf, Source::Files(&files), "tiny", options, &mut |_| {}).unwrap()
}

fn cpu(path: &Path) -> Cpu {
    let options =
        CpuOptions { threads: 2, context_tokens: 320, sequences_max: 3, prediction: true, ..Default::default() };
    Cpu::load(path, &options, &mut |_| {}).unwrap()
}

/// Logits of every position, fed `step` tokens at a time (0 = all at once).
fn logits(backend: &mut dyn Backend, tokens: &[u32], step: usize) -> Vec<f32> {
    let seq = backend.open().unwrap();
    let (mut all, mut out) = (Vec::new(), Output::default());
    for tokens in tokens.chunks(if step == 0 { tokens.len() } else { step }) {
        backend.step(&[Chunk { seq, tokens, rows: Rows::All, hidden: false }], &mut out).unwrap();
        all.extend_from_slice(&out.logits);
    }
    backend.close(seq);
    all
}

/// Kullback–Leibler divergence of each row of `b` from the same row of `a`, in nats, ascending.
fn kl(a: &[f32], b: &[f32], vocab: usize) -> Vec<f64> {
    let log_softmax = |row: &[f32]| -> Vec<f64> {
        let max = row.iter().fold(f64::MIN, |m, v| m.max(f64::from(*v)));
        let sum: f64 = row.iter().map(|v| (f64::from(*v) - max).exp()).sum();
        row.iter().map(|v| f64::from(*v) - max - sum.ln()).collect()
    };
    assert_eq!(a.len(), b.len());
    let rows = a.chunks(vocab).zip(b.chunks(vocab));
    let mut all: Vec<f64> =
        rows.map(|(a, b)| log_softmax(a).iter().zip(log_softmax(b)).map(|(p, q)| p.exp() * (p - q)).sum()).collect();
    all.sort_by(f64::total_cmp);
    all
}

/// The model's weights written out in floats, on the processor, whose own products of packed weights round activations to
/// eight bits.
#[cfg(feature = "llama")]
fn exact(path: &Path) -> Cpu {
    let to = path.with_extension("exact.gguf");
    crate::quantize::requantize(path, &to, |_| DType::F32, |_, _| {}).unwrap();
    cpu(&to)
}

/// Checks rows of packed weights against the exact ones: most rows must be close, and none far, for with random weights a
/// rounding may send a token to other experts.
#[cfg(feature = "llama")]
fn check_close(a: &[f32], b: &[f32], vocab: usize) {
    let all = kl(a, b, vocab);
    let (middle, last) = (all[all.len() / 2], all[all.len() - 1]);
    assert!(middle < PACKED_KL_MEDIAN_MAX && last < PACKED_KL_MAX, "median {middle:e}, largest {last:e}");
}

/// Feeds the tokens in pieces and asks for the bits of the whole.
fn check_pieces(c: &mut Cuda, tokens: &[u32], whole: &[f32]) {
    let vocab = c.info().vocab;
    for (step, len) in [(1, 10), (3, 12), (20, tokens.len())] {
        let pieces = logits(c, &tokens[..len], step);
        assert!(pieces == whole[..len * vocab], "fed {step} at a time: other bits");
    }
}

/// Two orders of summing floats.
const FLOATS_KL_MAX: f64 = 1e-8;
/// Weights and activations rounded to halves.
#[cfg(feature = "llama")]
const PACKED_KL_MEDIAN_MAX: f64 = 1e-4;
#[cfg(feature = "llama")]
const PACKED_KL_MAX: f64 = 2e-2;

#[test]
fn floats_give_the_processor_s_numbers_and_pieces_those_of_the_whole() {
    let file = Tiny::default().write();
    let (mut ours, mut theirs) = (cuda(&file.path), cpu(&file.path));
    let tokens = Random(7).tokens(68);
    let whole = logits(&mut ours, &tokens, 0);
    let all = kl(&logits(&mut theirs, &tokens, 0), &whole, VOCAB as usize);
    assert!(all[67] < FLOATS_KL_MAX, "{:e}", all[67]);
    check_pieces(&mut ours, &tokens, &whole);
}

#[test]
fn neighbours_change_nothing() {
    let file = Tiny::default().write();
    let mut c = cuda(&file.path);
    let prompts = [Random(1).tokens(21), Random(2).tokens(37), Random(3).tokens(5)];
    let alone: Vec<_> = prompts.iter().map(|p| logits(&mut c, p, 0)).collect();
    let seqs: Vec<_> = prompts.iter().map(|_| c.open().unwrap()).collect();
    let chunk = |i: usize, tokens| Chunk { seq: seqs[i], tokens, rows: Rows::All, hidden: false };
    let v = VOCAB as usize;
    let mut out = Output::default();
    let (a, b, d) = (&prompts[0], &prompts[1], &prompts[2]);
    c.step(&[chunk(0, &a[..20]), chunk(1, &b[..36])], &mut out).unwrap();
    assert!(out.logits[..20 * v] == alone[0][..20 * v] && out.logits[20 * v..] == alone[1][..36 * v]);
    c.step(&[chunk(1, &b[36..]), chunk(2, d), chunk(0, &a[20..])], &mut out).unwrap();
    assert!(
        out.logits[..v] == alone[1][36 * v..]
            && out.logits[v..6 * v] == alone[2]
            && out.logits[6 * v..] == alone[0][20 * v..]
    );
}

#[test]
fn the_prediction_block_gives_the_processor_s_numbers() {
    let file = Tiny::default().write();
    let (mut ours, mut theirs) = (cuda(&file.path), cpu(&file.path));
    let tokens = Random(9).tokens(24);
    let mut drafts = Vec::new();
    for backend in [&mut ours as &mut dyn Backend, &mut theirs] {
        let seq = backend.open().unwrap();
        let mut out = Output::default();
        backend.step(&[Chunk { seq, tokens: &tokens, rows: Rows::All, hidden: true }], &mut out).unwrap();
        let (hidden, width) = (out.hidden.clone(), backend.info().width);
        let draft = DraftChunk { seq, hidden: &hidden[..23 * width], tokens: &tokens[1..], rows: Rows::All };
        backend.draft(&[draft], &mut out).unwrap();
        drafts.push(out.logits.clone());
    }
    let all = kl(&drafts[1], &drafts[0], VOCAB as usize);
    assert!(all[22] < FLOATS_KL_MAX, "{:e}", all[22]);
}

#[test]
fn a_shape_is_recorded_when_it_comes_again_and_the_usual_ones_stay_when_there_are_too_many() {
    let file = Tiny::default().write();
    let mut c = cuda(&file.path);
    let decoding = Shape::decoding(2, Changed::default());
    assert!(!c.recorded(&decoding).unwrap() && c.graphs[&decoding].is_none());
    assert!(c.recorded(&decoding).unwrap() && c.graphs[&decoding].is_some());
    // Pieces of one prompt, of ever other lengths.
    let piece = |rows: usize, wanted: usize| Shape { rows, wanted, spans: 1, ..Shape::default() };
    let mut others = (2..=GRAPH_ROWS_MAX).flat_map(|rows| (1..rows).map(move |wanted| piece(rows, wanted)));
    for shape in others.by_ref().take(GRAPHS_MAX - 1) {
        assert!(!c.recorded(&shape).unwrap());
    }
    assert_eq!(c.graphs.len(), GRAPHS_MAX);
    let last = others.next().unwrap();
    assert!(!c.recorded(&last).unwrap());
    assert_eq!(c.graphs.len(), 2, "what decodes, and the newest");
    assert!(c.graphs[&decoding].is_some() && c.graphs[&last].is_none());
}

#[test]
fn decoding_on_the_device_takes_the_most_probable_tokens() {
    let file = Tiny::default().write();
    let mut c = cuda(&file.path);
    let prompt = Random(4).tokens(9);
    let seqs = [c.open().unwrap(), c.open().unwrap()];
    let mut out = Output::default();
    for seq in seqs {
        c.step(&[Chunk { seq, tokens: &prompt[..8], rows: Rows::None, hidden: false }], &mut out).unwrap();
    }
    let found = c.greedy(&seqs[..1], &prompt[8..], 5).unwrap().tokens;
    let mut token = prompt[8];
    for expected in found {
        c.step(&[Chunk { seq: seqs[1], tokens: &[token], rows: Rows::Last, hidden: false }], &mut out).unwrap();
        token = chimere_ffi::cpu::argmax(&out.logits) as u32;
        assert_eq!(token, expected);
    }
    assert_eq!(c.held(seqs[0]), c.held(seqs[1]));
}

#[cfg(feature = "llama")]
#[test]
fn packed_weights_give_close_numbers_and_the_same_at_every_batch_size() {
    let file = Tiny { dtype: DType::Q8_0, ..Tiny::default() }.write();
    let mut ours = cuda(&file.path);
    let tokens = Random(5).tokens(68);
    let whole = logits(&mut ours, &tokens, 0);
    check_close(&logits(&mut exact(&file.path), &tokens, 0), &whole, VOCAB as usize);
    check_pieces(&mut ours, &tokens, &whole);
}

/// A single token of a sequence makes its own place in the cache; of several tokens, others have made it before.
#[cfg(feature = "llama")]
#[test]
fn few_tokens_over_a_cache_of_halves_give_close_numbers_and_the_same_in_pieces() {
    let file = Tiny { dtype: DType::Q8_0, ..Tiny::default() }.write();
    let mut ours = with(&file.path, &CudaOptions { kv: KvType::F16, ..options() });
    let tokens = Random(11).tokens(44);
    let pieces = logits(&mut ours, &tokens, 30);
    check_close(&logits(&mut exact(&file.path), &tokens, 0), &pieces, VOCAB as usize);
    check_pieces(&mut ours, &tokens, &pieces);
}

#[cfg(feature = "llama")]
#[test]
fn the_types_of_large_models_run() {
    use crate::gguf::synthetic::{Qwen35Moe, Types};
    let dir = tempfile::tempdir().unwrap();
    for (experts, dense) in [(DType::IQ3_S, DType::Q5_K), (DType::Q4_K, DType::IQ4_XS)] {
        let path = dir.path().join(format!("{experts:?}.gguf"));
        let types = Types { experts, dense, embedding: DType::Q4_K, head: Some(DType::Q6_K) };
        Qwen35Moe::small(types).build().unwrap().write(&path, 3, |_, _| {}).unwrap();
        let mut ours = cuda(&path);
        let tokens: Vec<u32> = Random(6).tokens(34);
        let whole = logits(&mut ours, &tokens, 0);
        check_close(&logits(&mut exact(&path), &tokens, 0), &whole, ours.info().vocab);
        check_pieces(&mut ours, &tokens, &whole);
    }
}
