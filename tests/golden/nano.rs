//! The shipped model on our CPU backend against the library, through `chimere eval agree`.
//!
//! Quantised weights make a model chaotic. Activations are rounded to eight bits, so the last bit of an f32 sum may
//! move one of them by a whole step. That sends a token to another expert. So the library disagrees with itself about
//! some tokens when it is fed a window at once: it picks other kernels for other batch sizes. Token by token, without
//! rearranged weights and with an f32 cache, its sums have one order, and ours have the same. There we agree wherever
//! the likeliest token leads by more than 0.1 nat, teacher-forced and free-running, however we are fed. The weights
//! written out as f32 leave nothing to rounding.

use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

const PERPLEXITY_TOLERANCE: f64 = 0.001;
const MARGIN_NATS: f64 = 0.1;
/// Mean KL divergence between the two on f32 weights, nats.
const KL_F32_MAX: f64 = 1e-8;
/// And between activations of eight bits and floats, the same weights.
const KL_BYTES_MAX: f64 = 1e-2;
const TEXT: &str = "tests/golden/data/oz.txt";

fn command(args: &[&str]) -> Output {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    Command::new(env!("CARGO_BIN_EXE_chimere")).current_dir(root).args(args).output().unwrap()
}

fn chimere(args: &[&str]) -> Vec<u8> {
    let run = command(args);
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
    run.stdout
}

fn agree(model: &str, args: &[&str]) -> Value {
    // One thread each: the tests run side by side, and threads that wait for one another spin.
    let all = [&["eval", "agree", "--json", "--threads", "1", "--model", model], args].concat();
    serde_json::from_slice(&chimere(&all)).unwrap()
}

fn perplexities_agree(forced: &Value) {
    perplexities_agree_within(forced, PERPLEXITY_TOLERANCE);
}

fn perplexities_agree_within(forced: &Value, tolerance: f64) {
    println!("{forced:#}");
    let (ours, theirs) = (forced["perplexity"].as_f64().unwrap(), forced["perplexity_reference"].as_f64().unwrap());
    assert!((ours / theirs - 1.0).abs() < tolerance, "perplexity {ours} against {theirs}");
    assert!(forced["positions"].as_u64().unwrap() > 5000);
}

/// Greedy texts of `prompts` exam items, `tokens` long: each must part from the library's at a tie, if at all.
fn texts_part_only_at_ties(model: &str, prompts: &str, tokens: &str) {
    let exam = ["--prompts", "nano/golden/golden.jsonl.gz", "--prompts-max", prompts, "--tokens", tokens];
    let report = agree(model, &[&exam[..], &["--reference-step", "1"]].concat());
    let runs = report["free"].as_array().unwrap();
    assert_eq!(runs.len().to_string(), prompts);
    for run in runs.iter().filter(|r| !r["diverged_at"].is_null()) {
        println!("prompt {} parts at token {}, margin {}", run["prompt"], run["diverged_at"], run["margin"]);
        assert!(run["margin"].as_f64().unwrap() <= MARGIN_NATS, "{run}");
    }
}

#[test]
fn as_shipped_the_likeliest_tokens_are_the_librarys() {
    let itself = agree("nano/nano.gguf", &["--text", TEXT, "--backend", "llama", "--reference-step", "1"]);
    println!("the library against itself, a window at once and token by token:");
    perplexities_agree(&itself["forced"]);

    println!("ours, a window at once, against the library token by token:");
    let report = agree("nano/nano.gguf", &["--text", TEXT, "--reference-step", "1"]);
    let forced = &report["forced"];
    perplexities_agree(forced);
    assert_eq!(forced["top1_differs_clearly"], 0, "{forced}");
}

#[test]
fn as_shipped_the_texts_part_only_at_ties() {
    texts_part_only_at_ties("nano/nano.gguf", "50", "200");
}

#[test]
fn in_f32_nothing_but_the_order_of_sums_differs() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("nano-f32.gguf");
    let path = path.to_str().unwrap();
    chimere(&["quantize", "nano/nano.gguf", path, "--type", "F32"]);

    let report = agree(path, &["--text", TEXT]);
    let forced = &report["forced"];
    perplexities_agree(forced);
    assert_eq!(forced["top1_differs_clearly"], 0, "{forced}");
    assert!(forced["kl_mean"].as_f64().unwrap() < KL_F32_MAX, "{forced}");
    texts_part_only_at_ties(path, "8", "100");

    let rounded = agree("nano/nano.gguf", &["--text", TEXT, "--reference", "cpu", "--reference-model", path]);
    println!("what activations of eight bits cost:");
    perplexities_agree_within(&rounded["forced"], 0.01);
    let kl = rounded["forced"]["kl_mean"].as_f64().unwrap();
    assert!(kl > KL_F32_MAX && kl < KL_BYTES_MAX, "{rounded}");
}

#[test]
fn files_of_different_vocabularies_are_not_compared() {
    let args = ["eval", "agree", "--model", "nano/nano.gguf", "--reference", "cpu", "--text", TEXT];
    let run = command(&[&args[..], &["--reference-model", "tests/golden/data/mini/model.gguf"]].concat());
    assert_eq!(run.status.code(), Some(65));
    assert!(String::from_utf8_lossy(&run.stderr).contains("different vocabularies"), "{run:?}");
}
