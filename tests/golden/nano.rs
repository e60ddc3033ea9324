//! The shipped model on our CPU backend against the library, through `chimere eval agree`.
//!
//! Its weights written out as f32 leave nothing to rounding: there the likeliest token must be the library's wherever
//! that one leads by more than 0.1 nat, teacher-forced and free-running. As shipped, both sides round activations to
//! eight bits and a difference in the last bit can send a token to another expert, as it does between two ways of
//! feeding the library itself; there perplexity must agree within 0.1 %, and clear differences must stay rare.

use std::path::Path;
use std::process::Command;

use serde_json::Value;

const PERPLEXITY_TOLERANCE: f64 = 0.001;
const MARGIN_NATS: f64 = 0.1;
/// Share of positions of the shipped file where the likeliest token may differ clearly; measured: 0.4 %.
const CLEAR_DIFFERENCES_MAX: f64 = 0.01;
/// Mean KL divergence between the two on f32 weights, nats.
const KL_F32_MAX: f64 = 1e-8;
const PROMPTS: &str = "50";
const TOKENS: &str = "200";

fn chimere(args: &[&str]) -> Vec<u8> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let run = Command::new(env!("CARGO_BIN_EXE_chimere")).current_dir(root).args(args).output().unwrap();
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
    run.stdout
}

fn agree(model: &str, args: &[&str]) -> Value {
    let all = [&["eval", "agree", "--json", "--model", model], args].concat();
    serde_json::from_slice(&chimere(&all)).unwrap()
}

fn perplexities_agree(forced: &Value) {
    println!("{forced:#}");
    let (ours, theirs) = (forced["perplexity"].as_f64().unwrap(), forced["perplexity_reference"].as_f64().unwrap());
    assert!((ours / theirs - 1.0).abs() < PERPLEXITY_TOLERANCE, "perplexity {ours} against {theirs}");
    assert!(forced["positions"].as_u64().unwrap() > 5000);
}

#[test]
fn as_shipped_perplexity_agrees() {
    let report = agree("nano/nano.gguf", &["--text", "tests/golden/data/oz.txt"]);
    let forced = &report["forced"];
    perplexities_agree(forced);
    let share = forced["top1_differs_clearly"].as_f64().unwrap() / forced["positions"].as_f64().unwrap();
    assert!(share < CLEAR_DIFFERENCES_MAX, "{forced}");
}

#[test]
fn in_f32_the_texts_part_only_at_ties() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("nano-f32.gguf");
    let path = path.to_str().unwrap();
    chimere(&["quantize", "nano/nano.gguf", path, "--type", "F32"]);

    let report = agree(path, &["--text", "tests/golden/data/oz.txt"]);
    let forced = &report["forced"];
    perplexities_agree(forced);
    assert_eq!(forced["top1_differs_clearly"], 0, "{forced}");
    assert!(forced["kl_mean"].as_f64().unwrap() < KL_F32_MAX, "{forced}");

    let prompts = ["--prompts", "nano/golden/golden.jsonl", "--prompts-max", PROMPTS, "--tokens", TOKENS];
    let report = agree(path, &prompts);
    let runs = report["free"].as_array().unwrap();
    assert_eq!(runs.len(), 50);
    for run in runs.iter().filter(|r| !r["diverged_at"].is_null()) {
        println!("prompt {} parts at token {}, margin {}", run["prompt"], run["diverged_at"], run["margin"]);
        assert!(run["margin"].as_f64().unwrap() <= MARGIN_NATS, "{run}");
    }
}
