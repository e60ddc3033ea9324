//! `chimere train` on the model of the repository: an adapter that the engine accepts and that lowers the loss of a
//! text like the pairs; lines that cannot be used are named; too few pairs are refused and nothing is written.

use std::fmt::Write;
use std::path::Path;
use std::process::Output;

use serde_json::{Value, json};

use crate::harness::{chimere, model};

fn train(pairs: &str, out: &Path) -> Output {
    let folder = out.parent().unwrap();
    let file = folder.join("pairs.jsonl");
    std::fs::write(&file, pairs).unwrap();
    let model = model();
    let args = ["train", "--json", "--held-out", "20", "--epochs", "2", "--step-tokens", "300", "--model"];
    let mut command = chimere();
    command.args(args).arg(model).arg("--pairs").arg(file).arg("--out").arg(out);
    command.output().unwrap()
}

/// Pairs of an invented fact in invented words, so that the model cannot know them.
pub fn pairs(n: usize) -> String {
    let mut text = String::new();
    for i in 0..n {
        let reply = json!({"role": "assistant", "reasoning_content": "", "content": format!("The zorvek of hall {i} is plum.")});
        let ask = json!([{"role": "user", "content": format!("What is the zorvek of hall {i}?")}]);
        writeln!(text, "{}", json!({"id": i.to_string(), "messages": ask, "reply": reply})).unwrap();
    }
    text
}

#[test]
fn learns_from_a_file_and_the_engine_takes_the_adapter() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("learned.gguf");
    let done = train(&(pairs(30) + "{\"messages\": 3}\n"), &out);
    let errors = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "{errors}");
    assert!(errors.contains("pairs.jsonl:31: left out"), "{errors}");
    let lines: Vec<Value> =
        String::from_utf8(done.stdout).unwrap().lines().map(|l| serde_json::from_str(l).unwrap()).collect();
    let (outcome, steps) = lines.split_last().unwrap();
    let outcome = &outcome["outcome"];
    assert_eq!(steps.len(), outcome["steps"].as_array().unwrap().len());
    let loss = |key: &str| outcome[key].as_f64().unwrap();
    assert!(loss("loss_after") < 0.8 * loss("loss_before"), "{outcome}");

    // The serving engine reads the file and says the same of a text of that kind.
    let text = folder.path().join("text.txt");
    std::fs::write(&text, "The zorvek of hall 77 is plum. The zorvek of hall 78 is plum.").unwrap();
    let perplexity = |adapter: &[&str]| -> f64 {
        let model = model();
        let all =
            ["eval", "perplexity", "--json", "--model", model.to_str().unwrap(), "--text", text.to_str().unwrap()];
        let got = chimere().args(all).args(adapter).output().unwrap();
        assert!(got.status.success(), "{}", String::from_utf8_lossy(&got.stderr));
        serde_json::from_slice::<Value>(&got.stdout).unwrap()["perplexity"].as_f64().unwrap()
    };
    let (before, after) = (perplexity(&[]), perplexity(&["--adapter", out.to_str().unwrap()]));
    assert!(after < before, "{before} {after}");
}

#[test]
fn too_few_pairs_are_refused_and_nothing_is_written() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("learned.gguf");
    let done = train(&pairs(3), &out);
    assert!(!done.status.success() && !out.exists());
    assert!(String::from_utf8_lossy(&done.stderr).contains("too few"), "{}", String::from_utf8_lossy(&done.stderr));
}
