//! `chimere train` on the model of the repository. It makes an adapter that the engine accepts and that lowers the
//! loss of a text like the pairs. Lines that cannot be used are named. Too few pairs are refused and nothing is
//! written.

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

/// The second objective: pairs with a worse reply each, and the better one gains on it, on pairs kept out too.
#[test]
fn a_preference_widens_the_margin_over_rejected_replies() {
    let folder = tempfile::tempdir().unwrap();
    let text = pairs(30);
    let rejected = |line: &str| {
        let mut line: Value = serde_json::from_str(line).unwrap();
        line["rejected"] = json!({"role": "assistant", "reasoning_content": "", "content": "It is plain and green."});
        format!("{line}\n")
    };
    let text: String =
        text.lines().enumerate().map(|(n, l)| if n < 24 { rejected(l) } else { format!("{l}\n") }).collect();
    let file = folder.path().join("pairs.jsonl");
    std::fs::write(&file, text).unwrap();
    let learn = |objective: &str| -> Value {
        let mut command = chimere();
        let args = ["train", "--json", "--held-out", "20", "--step-tokens", "400", "--rate", "0.001", "--objective"];
        command.args(args).args([objective, "--model"]).arg(model()).arg("--pairs").arg(&file);
        let done = command.arg("--out").arg(folder.path().join("learned.gguf")).output().unwrap();
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
        let text = String::from_utf8(done.stdout).unwrap();
        serde_json::from_str::<Value>(text.lines().last().unwrap()).unwrap()["outcome"].clone()
    };
    let (preferred, likely) = (learn("preference"), learn("likelihood"));
    let of = |outcome: &Value, key: &str| outcome[key].as_f64().unwrap();
    println!("{preferred:#}");
    assert!(of(&preferred, "margin_after") > of(&preferred, "margin_before") + 1.0, "{preferred:#}");
    assert!(of(&preferred, "loss_after") < of(&preferred, "loss_before"), "{preferred:#}");
    assert!(preferred["compared"].as_u64() > Some(10) && preferred["steps"][0]["margin"].is_number());
    assert!(likely["margin_after"].is_null() && likely["compared"] == 0, "the likelihood reads no rejected reply");
}

/// Without gradients: the pairs' own loss falls, the engine takes the adapter, and it goes on from there.
#[test]
fn a_population_learns_by_evaluating_alone() {
    let folder = tempfile::tempdir().unwrap();
    let (first, second) = (folder.path().join("first.gguf"), folder.path().join("second.gguf"));
    let file = folder.path().join("pairs.jsonl");
    std::fs::write(&file, pairs(20)).unwrap();
    let train = |method: &str, out: &Path, more: &[&str]| -> (Vec<Value>, String) {
        let mut command = chimere();
        command.args(["train", "--json", "--held-out", "20", "--step-tokens", "300", "--seed", "3"]);
        command.args(["--method", method, "--model"]).arg(model()).arg("--pairs").arg(&file).arg("--out").arg(out);
        let done = command.args(more).output().unwrap();
        let errors = String::from_utf8_lossy(&done.stderr).into_owned();
        let lines = String::from_utf8(done.stdout).unwrap();
        (lines.lines().map(|l| serde_json::from_str(l).unwrap()).collect(), errors)
    };
    let small = ["--directions", "16", "--epochs", "100", "--steps", "8", "--rate", "0.3"];
    let (lines, errors) = train("population", &first, &small);
    let (outcome, steps) = lines.split_last().unwrap_or_else(|| panic!("{errors}"));
    let loss = |outcome: &Value, key: &str| outcome["outcome"][key].as_f64().unwrap();
    assert_eq!((steps.len(), outcome["adapter"]["rank"].as_u64()), (8, Some(4)));
    assert!(loss(outcome, "loss_after") < loss(outcome, "loss_before"), "{outcome:#}");
    // The second begins where the first ended, and its time is up after the first step.
    let on = ["--from", first.to_str().unwrap(), "--minutes-max", "0.0001", "--directions", "2"];
    let (lines, errors) = train("mezo", &second, &on);
    let (outcome_2, steps) = lines.split_last().unwrap_or_else(|| panic!("{errors}"));
    assert_eq!(steps.len(), 1);
    assert!((loss(outcome_2, "loss_before") - loss(outcome, "loss_after")).abs() < 1e-9, "{outcome_2:#}");
    assert!(second.exists());
    let shown = chimere().args(["adapter", "show", "--base"]).arg(model()).arg(&second).output().unwrap();
    assert!(shown.status.success(), "{}", String::from_utf8_lossy(&shown.stderr));
}

/// Ctrl-C in the middle: nothing is written, and nothing lies about.
#[test]
fn a_training_that_is_interrupted_leaves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let (file, out) = (folder.path().join("pairs.jsonl"), folder.path().join("learned.gguf"));
    std::fs::write(&file, pairs(20)).unwrap();
    let mut command = chimere();
    command
        .args(["train", "--json", "--method", "population", "--directions", "2", "--epochs", "1000", "--model"])
        .arg(model());
    command
        .args(["--step-tokens", "100", "--pairs"])
        .arg(&file)
        .arg("--out")
        .arg(&out)
        .stdout(std::process::Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut line = String::new();
    std::io::BufRead::read_line(&mut std::io::BufReader::new(child.stdout.as_mut().unwrap()), &mut line).unwrap();
    assert!(line.contains("\"step\":1"), "{line}");
    // Not SIGINT, which whoever runs the tests in the background may have them ignore.
    let told = std::process::Command::new("kill").args(["-TERM", &child.id().to_string()]).status().unwrap();
    assert!(told.success() && !child.wait().unwrap().success());
    let left: Vec<_> = std::fs::read_dir(folder.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(left, ["pairs.jsonl"]);
}
