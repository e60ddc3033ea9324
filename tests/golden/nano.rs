//! The shipped model on our CPU backend against the library, through `chimere eval agree`: perplexity within 0.1 %,
//! the same likeliest token wherever the library's margin exceeds 0.1 nat, teacher-forced and free-running.

use std::path::Path;
use std::process::Command;

use serde_json::Value;

const PERPLEXITY_TOLERANCE: f64 = 0.001;
const MARGIN_NATS: f64 = 0.1;
const PROMPTS: &str = "50";
const TOKENS: &str = "200";

fn agree(args: &[&str]) -> Value {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let run = Command::new(env!("CARGO_BIN_EXE_chimere"))
        .current_dir(root)
        .args(["eval", "agree", "--json", "--model", "nano/nano.gguf"])
        .args(args)
        .output()
        .unwrap();
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
    serde_json::from_slice(&run.stdout).unwrap()
}

#[test]
fn teacher_forced_the_two_backends_agree() {
    let report = agree(&["--text", "tests/golden/data/oz.txt"]);
    let forced = &report["forced"];
    println!("{forced:#}");
    let (ours, theirs) = (forced["perplexity"].as_f64().unwrap(), forced["perplexity_reference"].as_f64().unwrap());
    assert!((ours / theirs - 1.0).abs() < PERPLEXITY_TOLERANCE, "perplexity {ours} against {theirs}");
    assert!(forced["positions"].as_u64().unwrap() > 5000);
    assert_eq!(forced["top1_differs_clearly"], 0, "{forced}");
}

#[test]
fn free_running_texts_part_only_at_ties() {
    let report = agree(&["--prompts", "nano/golden/golden.jsonl", "--prompts-max", PROMPTS, "--tokens", TOKENS]);
    let runs = report["free"].as_array().unwrap();
    assert_eq!(runs.len(), 50);
    for run in runs.iter().filter(|r| !r["diverged_at"].is_null()) {
        println!("prompt {} parts at token {}, margin {}", run["prompt"], run["diverged_at"], run["margin"]);
        assert!(run["margin"].as_f64().unwrap() <= MARGIN_NATS, "{run}");
    }
}
