//! Files that are not as most are: one tensor of another type, gate and up in one tensor, positions beyond those of the
//! training. All of them are computed on the card.

use std::path::PathBuf;

use super::*;
#[cfg(feature = "llama")]
use crate::engine::cuda::supported::slower_layers;
use crate::gguf::Layout;

/// Why layers are slower, of the trunk and the prediction block.
#[cfg(feature = "llama")]
fn slower_of(c: &Cuda) -> Option<String> {
    slower_layers(c.weights.layers.iter().chain(c.weights.mtp.as_ref().map(|m| &m.layer)))
}

#[test]
fn gate_and_up_in_one_tensor_are_the_same_matrices() {
    let (apart, fused) = (Tiny::default().write(), Tiny { fused: true, ..Tiny::default() }.write());
    let tokens = Random(13).tokens(40);
    let wanted = logits(&mut cuda(&apart.path), &tokens, 0);
    assert!(logits(&mut cuda(&fused.path), &tokens, 0) == wanted);
    let [apart, fused] = [&apart, &fused].map(|f| logits(&mut cpu(&f.path), &tokens, 0));
    assert!(apart == fused, "on the processor");
}

/// Writes the model at `path` again as two files beside it; the first of them.
fn halves(path: &Path) -> PathBuf {
    let (gguf, files) = Files::open(path).unwrap();
    let name = |no: usize| path.with_file_name(format!("half-{no:05}-of-00002.gguf"));
    for (no, tensors) in (0_u32..).zip(gguf.tensors().chunks(gguf.tensors().len().div_ceil(2))) {
        let mut layout = Layout::new();
        if no == 0 {
            gguf.metadata().for_each(|(key, value)| layout.set(key, value.clone()).unwrap());
        }
        layout.set("split.no", no).unwrap();
        layout.set("split.count", 2_u32).unwrap();
        tensors.iter().for_each(|t| layout.tensor(&t.name, t.dtype, t.dims()).unwrap());
        let mut writer = layout.create(&name(no as usize + 1)).unwrap();
        for t in tensors {
            let mut bytes = vec![0; t.bytes() as usize];
            files.read_at(&mut bytes, t.range.start).unwrap();
            writer.write(&t.name, &bytes).unwrap();
        }
        writer.finish().unwrap();
    }
    name(1)
}

#[test]
fn a_model_in_two_files_has_the_bits_of_one() {
    let file = Tiny::default().write();
    let tokens = Random(17).tokens(9);
    let wanted = logits(&mut cuda(&file.path), &tokens, 0);
    let first = halves(&file.path);
    assert!(logits(&mut cuda(&first), &tokens, 0) == wanted);
    let second = first.with_file_name("half-00002-of-00002.gguf");
    assert!(logits(&mut cuda(&second), &tokens, 0) == wanted, "by the name of another part");
    std::fs::remove_file(&second).unwrap();
    let lost = Cuda::load(&first, &options(), &mut |_| {}).err().unwrap().to_string();
    assert!(lost.contains("half-00002-of-00002.gguf"), "{lost}");
}

#[test]
fn a_dense_model_has_the_processor_s_numbers() {
    let file = Tiny { dense: true, ..Tiny::default() }.write();
    let (mut ours, mut theirs) = (cuda(&file.path), cpu(&file.path));
    let tokens = Random(19).tokens(40);
    let whole = logits(&mut ours, &tokens, 0);
    let all = kl(&logits(&mut theirs, &tokens, 0), &whole, VOCAB as usize);
    assert!(all[39] < FLOATS_KL_MAX, "{:e}", all[39]);
    check_pieces(&mut ours, &tokens, &whole);
    let gguf = Gguf::open(&file.path).unwrap();
    let small = plan(&gguf, &CudaOptions { memory_bytes_max: 1 << 20, ..options() }).unwrap_err().to_string();
    assert!(small.contains("no experts that could lie on the host"), "{small}");
}

#[cfg(feature = "llama")]
#[test]
fn a_packed_dense_model_gives_close_numbers_and_the_same_at_every_batch_size() {
    for odd in [vec![], vec![("blk.1.ffn_up", DType::F16), ("blk.2.ffn_down", DType::F32)]] {
        let file = Tiny { dense: true, dtype: DType::Q8_0, odd, ..Tiny::default() }.write();
        let mut ours = cuda(&file.path);
        let tokens = Random(5).tokens(40);
        let whole = logits(&mut ours, &tokens, 0);
        check_close(&logits(&mut exact(&file.path), &tokens, 0), &whole, VOCAB as usize);
        check_pieces(&mut ours, &tokens, &whole);
    }
}

#[cfg(feature = "llama")]
#[test]
fn an_odd_tensor_costs_its_own_layer_at_most() {
    use DType::{BF16, F16, F32};
    // Types of tensors, and what is said of them.
    type Case<'a> = (&'a [(&'a str, DType)], Option<&'a str>);
    let cases: [Case; 6] = [
        (&[("blk.1.ffn_down_exps", F16)], None),
        (&[("shexp.w", F16)], None),
        (&[("blk.3.attn_q.", BF16), ("blk.3.ffn_gate_exps", BF16), ("blk.3.ffn_up_exps", BF16)], None),
        (&[("token_embd", BF16), ("output.weight", F16), ("attn_qkv", F16)], None),
        (&[("blk.2.ffn_up_exps", F16)], Some("gate and up of different types in layer 2")),
        (
            &[("blk.0.ffn_down_exps", F32), ("blk.1.ffn_down_shexp", F32)],
            Some("a shared expert of floats in layer 1; experts of floats in layer 0"),
        ),
    ];
    for (odd, reason) in cases {
        let file = Tiny { dtype: DType::Q8_0, odd: odd.to_vec(), ..Tiny::default() }.write();
        let mut ours = cuda(&file.path);
        assert_eq!(slower_of(&ours).as_deref(), reason, "{odd:?}");
        let tokens = Random(5).tokens(68);
        let whole = logits(&mut ours, &tokens, 0);
        check_close(&logits(&mut exact(&file.path), &tokens, 0), &whole, VOCAB as usize);
        check_pieces(&mut ours, &tokens, &whole);
    }
}

#[test]
fn floats_beside_packed_weights_of_one_expert_are_refused() {
    let file = Tiny { odd: vec![("blk.1.ffn_up_exps", DType::F16)], ..Tiny::default() }.write();
    let (gguf, files) = Files::open(&file.path).unwrap();
    let refused = Cuda::on(device(), &gguf, Source::Files(&files), "tiny", &options(), &mut |_| {}).err().unwrap();
    let refused = refused.to_string();
    assert!(refused.contains("blk.1.ffn_gate_exps.weight") && refused.contains("--backend cpu"), "{refused}");
}

#[test]
fn the_prediction_block_takes_nothing_where_it_is_not_wanted() {
    let (with_one, without) = (Tiny::default().write(), Tiny { mtp: false, ..Tiny::default() }.write());
    let lean = CudaOptions { prediction: false, ..options() };
    let [(mut ours, mine), (mut theirs, other)] = [&with_one, &without].map(|file| {
        let c = with(&file.path, &lean);
        let placement = *c.placement();
        (c, placement)
    });
    assert_eq!(mine, other, "the same memory as a file without the block");
    assert!(!ours.info().mtp);
    let tokens = Random(3).tokens(20);
    assert!(logits(&mut ours, &tokens, 0) == logits(&mut theirs, &tokens, 0));
    let (seq, hidden) = (ours.open().unwrap(), vec![0.0; 64]);
    let draft = DraftChunk { seq, hidden: &hidden, tokens: &tokens[..1], rows: Rows::All };
    let refused = ours.draft(&[draft], &mut Output::default()).unwrap_err().to_string();
    assert!(refused.contains("is not loaded"), "{refused}");
}

#[test]
fn stretched_positions_have_the_processor_s_numbers() {
    let text = |s: &str| crate::gguf::Value::from(s);
    let yarn = vec![
        ("rope.scaling.type", text("yarn")),
        ("rope.scaling.factor", 4.0_f32.into()),
        ("rope.scaling.original_context_length", 64_u32.into()),
        ("context_length", 64_u32.into()),
    ];
    let file = Tiny { keys: yarn, ..Tiny::default() }.write();
    let gguf = Gguf::open(&file.path).unwrap();
    assert_eq!(HParams::read(&gguf).unwrap().trained_context_tokens, 256, "four times as many positions");
    let tokens = Random(7).tokens(150);
    let (ours, theirs) = (logits(&mut cuda(&file.path), &tokens, 0), logits(&mut cpu(&file.path), &tokens, 0));
    let all = kl(&theirs, &ours, VOCAB as usize);
    assert!(all[149] < FLOATS_KL_MAX, "{:e}", all[149]);
    let plain = logits(&mut cuda(&Tiny::default().write().path), &tokens, 0);
    assert!(kl(&plain, &ours, VOCAB as usize)[149] > 1e-4, "the angles are others");
}
