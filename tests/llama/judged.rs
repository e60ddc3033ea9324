//! A file is judged before its weights are loaded. The reason is the one that a load gives, and the memory that it
//! would take is planned.

use std::fs;
use std::path::{Path, PathBuf};

use chimere::engine::backend::{Chunk, Output, Rows};
use chimere::engine::llama::{LlamaOptions, examine};
use chimere::engine::load::{Kind, load as load_any, vocabulary};
use chimere::engine::validate::validate;
use chimere::engine::vocab::fingerprint;
use chimere::gguf::{Gguf, Layout, Value};
use chimere_ffi::DType;

use crate::models::{alone, make, make_with, options};

/// `file` with other metadata, and with the tensors that `keep` keeps.
fn changed(
    file: &Path,
    to: &Path,
    value: impl Fn(&str, &Value) -> Option<Value>,
    keep: impl Fn(&str) -> bool,
) -> PathBuf {
    let (whole, bytes) = (Gguf::open(file).unwrap(), fs::read(file).unwrap());
    let mut layout = Layout::new();
    for (key, old) in whole.metadata() {
        if let Some(value) = value(key, old) {
            layout.set(key, value).unwrap();
        }
    }
    let tensors: Vec<_> = whole.tensors().iter().filter(|t| keep(&t.name)).collect();
    tensors.iter().for_each(|t| layout.tensor(&t.name, t.dtype, t.dims()).unwrap());
    let mut writer = layout.create(to).unwrap();
    for t in tensors {
        writer.write(&t.name, &bytes[t.range.start as usize..t.range.end as usize]).unwrap();
    }
    writer.finish().unwrap();
    to.to_owned()
}

/// Puts four bytes in the place of the first value of a tensor.
fn patched(file: &Path, to: &Path, tensor: &str, value: f32) -> PathBuf {
    let mut bytes = fs::read(file).unwrap();
    let at = Gguf::open(file).unwrap().tensor(tensor).unwrap().range.start as usize;
    bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
    fs::write(to, bytes).unwrap();
    to.to_owned()
}

fn without(part: &str) -> impl Fn(&str) -> bool {
    move |name| !name.contains(part)
}

fn instead(wanted: &str, value: Value) -> impl Fn(&str, &Value) -> Option<Value> {
    move |key, old| Some(if key.ends_with(wanted) { value.clone() } else { old.clone() })
}

/// Things made of token ids are for the tokenizer that reads them: ours or the library's, as the configured backend has it.
#[test]
fn a_tokenizer_s_fingerprint_is_that_of_the_backend_that_reads_it() {
    let _turn = alone();
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let (nano, mini) = (root.join("nano/nano.gguf"), root.join("tests/golden/data/mini/model.gguf"));
    let print = |file: &Path, backend: Kind| {
        let vocab = vocabulary(file, &Gguf::open(file).unwrap(), backend).unwrap();
        let judged = validate(file, &options(backend), 0).unwrap();
        let print: String = fingerprint(vocab.as_ref()).iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(judged.tokenizer, Some(print.clone()), "{}", file.display());
        print
    };
    assert_eq!(print(&nano, Kind::Auto), print(&nano, Kind::Llama));
    // The library calls some of its tokens by other kinds.
    assert_ne!(print(&mini, Kind::Auto), print(&mini, Kind::Llama));
}

#[test]
fn what_a_load_refuses_is_refused_before_it_with_the_same_reason() {
    let _turn = alone();
    let dir = tempfile::tempdir().unwrap();
    let (qwen2, mini) =
        (make(dir.path(), "qwen2"), Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/data/mini/model.gguf"));
    let mut number = 0;
    let mut next = || {
        number += 1;
        dir.path().join(format!("odd-{number}.gguf"))
    };
    let same = |_: &str, old: &Value| Some(old.clone());
    let all = |_: &str| true;
    let mut odd = vec![(mini.with_file_name("none.gguf"), "cannot read")];
    for file in [&qwen2, &mini] {
        odd.extend([
            (changed(file, &next(), same, |_| false), "holds no tensors"),
            (changed(file, &next(), same, without("blk.1.")), "blk.1."),
            (changed(file, &next(), same, without("output_norm")), "output_norm.weight"),
            (changed(file, &next(), instead(".block_count", Value::U32(1 << 31)), all), "block_count"),
            (changed(file, &next(), instead(".embedding_length", Value::U32(96)), all), ""),
            (changed(file, &next(), instead("chat_template", Value::String(" \n".into())), all), "is empty"),
            (changed(file, &next(), instead("chat_template", Value::String("{% for".into())), all), "chat template"),
            (changed(file, &next(), instead("general.architecture", Value::String("qwen99".into())), all), "qwen99"),
            (changed(file, &next(), instead("tokenizer.ggml.model", Value::String("odd".into())), all), "odd"),
            (changed(file, &next(), instead("tokenizer.ggml.pre", Value::String("odd".into())), all), ""),
            (patched(file, &next(), "output_norm.weight", f32::NAN), "value 0 of tensor \"output_norm.weight\" is NaN"),
            (patched(file, &next(), "blk.0.attn_norm.weight", f32::INFINITY), "is inf"),
        ]);
    }
    for (path, reason) in odd {
        let judged = validate(&path, &options(Kind::Auto), 0).map(|_| ()).map_err(|e| e.to_string());
        let loaded = load_any(&path, &options(Kind::Auto), &mut |_| {}).map(|_| ()).map_err(|e| e.to_string());
        assert_eq!(judged, loaded, "{}", path.display());
        let error = judged.err();
        // A pre-tokenizer that the library does not know is a warning to it.
        let refused = error.as_ref().is_some_and(|error| error.contains(reason));
        assert!(refused || reason.is_empty(), "{}: {error:?}, not \"{reason}\"", path.display());
    }
    for good in [&qwen2, &mini] {
        let judged = validate(good, &options(Kind::Auto), 0).unwrap();
        assert!(judged.needs_bytes > judged.file_bytes / 2 && judged.to_string().contains("GB of memory"), "{judged}");
        assert_eq!(judged.library, good == &qwen2);
    }
}

#[test]
fn a_context_is_planned_for_the_memory_that_is_there() {
    let _turn = alone();
    let dir = tempfile::tempdir().unwrap();
    let file = make(dir.path(), "qwen2");
    let wide = |_: &str| true;
    let file = changed(&file, &dir.path().join("long.gguf"), instead(".context_length", Value::U32(131_072)), wide);
    let options = LlamaOptions { threads: 1, context_tokens: 0, sequences_max: 8, exact: false };
    // Keys and values of two layers: 2 heads of 16 values, in halves.
    let (token, tokens) = (2 * 2 * 2 * 16 * 2, 131_072);
    let plan = |context_tokens: usize, available: Option<u64>| {
        examine(&file, &LlamaOptions { context_tokens, ..options }, available).map(|(plan, _)| plan)
    };
    let whole = plan(0, None).unwrap();
    assert_eq!((whole.context_tokens, whole.sequences, whole.bytes.caches), (tokens, 8, (token * tokens * 8) as u64));
    assert!(whole.bytes.weights > 0 && whole.bytes.compute > 0, "{whole:?}");
    // Half of it for what nobody asked for.
    let less = plan(0, Some(500 << 20)).unwrap();
    assert!(less.context_tokens < tokens && less.bytes.caches + less.bytes.compute <= 250 << 20, "{less:?}");
    // What was asked for is not changed.
    assert_eq!(plan(4_096, Some(500 << 20)).unwrap().context_tokens, 4_096);
    let error = plan(tokens, Some(500 << 20)).unwrap_err().to_string();
    for said in ["8 sequences of 131072 tokens", "0.5 GB are free", "`engine.context_tokens` to", "`engine.sequences`"]
    {
        assert!(error.contains(said), "{error}");
    }
    let error = plan(0, Some(1 << 20)).unwrap_err().to_string();
    assert!(error.contains("a machine with more memory"), "{error}");
}

/// Types that our own kernels do not compute: the reader knows them, and the library decides.
#[test]
fn types_that_only_the_library_knows_are_hosted_by_it() {
    let _turn = alone();
    let dir = tempfile::tempdir().unwrap();
    for dtype in [DType::TQ1_0, DType::TQ2_0, DType::IQ1_S, DType::IQ1_M, DType::NVFP4, DType::MXFP4] {
        let path = make_with(dir.path(), "qwen2", dtype);
        let found = Gguf::open(&path).unwrap().tensor("blk.0.ffn_down.weight").unwrap().dtype;
        assert_eq!(found, dtype);
        let loaded = load_any(&path, &options(Kind::Auto), &mut |_| {}).unwrap();
        let mut backend = loaded.backend;
        assert_eq!(backend.info().backend, "llama", "{dtype:?}");
        let (seq, mut out) = (backend.open().unwrap(), Output::default());
        backend.step(&[Chunk { seq, tokens: &[1, 2, 3], rows: Rows::Last, hidden: false }], &mut out).unwrap();
        assert!(out.logits.iter().all(|v| v.is_finite()), "{dtype:?}");
        let refused = load_any(&path, &options(Kind::Cpu), &mut |_| {}).map(|_| ()).unwrap_err().to_string();
        assert!(refused.contains("architecture \"qwen2\""), "{refused}");
    }
}
