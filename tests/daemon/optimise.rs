//! Prompt optimisation with the real model. An instruction that it follows is found, and the held-out exam lets it in.
//! The next reply is told it, and one command takes it back.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::harness::{Daemon, chimere};

const PATIENCE: Duration = Duration::from_secs(600);

/// Sums whose right answer is the number alone, which `nano` does not give unless it is told to: so many in each exam.
pub(crate) fn folder(items: usize) -> Arc<tempfile::TempDir> {
    let state = tempfile::tempdir().unwrap();
    for (exam, first) in [("slice", 11), ("golden", 41)] {
        let item = |n: usize| {
            json!({
                "id": format!("{exam}-{n}"), "domain": "arithmetic", "family": "sum", "max_tokens": 96,
                "messages": [{ "role": "user", "content": format!("What is {} + 5?", first + n) }],
                "check": { "kind": "exact", "value": (first + n + 5).to_string() },
            })
        };
        let lines: Vec<String> = (0..items).map(|n| item(n).to_string()).collect();
        fs::write(state.path().join(format!("{exam}.jsonl")), lines.join("\n")).unwrap();
    }
    let mut text = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("pipelines/night.yaml")).unwrap();
    for (from, to) in [
        ("instructions: []", "instructions: [Give only the number.]"),
        ("trials: 24", "trials: 30"),
        ("batch: 40", "batch: 4"),
        ("proposals: 3", "proposals: 1"),
        ("sets: 5", "sets: 1"),
        ("items_min: 60", "items_min: 8"),
    ] {
        assert!(text.contains(from), "{from}");
        text = text.replace(from, to);
    }
    fs::create_dir_all(state.path().join("pipelines")).unwrap();
    fs::write(state.path().join("pipelines/night.yaml"), text).unwrap();
    let exam = |name: &str| state.path().join(format!("{name}.jsonl"));
    let config = format!("[night]\ngolden = {:?}\nslice = {:?}\n", exam("golden"), exam("slice"));
    fs::write(state.path().join("night-test.toml"), config).unwrap();
    Arc::new(state)
}

pub(crate) fn run(daemon: &Daemon, arguments: &[&str]) -> String {
    let output = chimere().args(arguments).env("CHIMERE_URL", &daemon.url).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{arguments:?}: {text}{}", String::from_utf8_lossy(&output.stderr));
    text
}

pub(crate) fn content(reply: &Value) -> &str {
    reply["choices"][0]["message"]["content"].as_str().unwrap()
}

#[tokio::test]
async fn an_instruction_that_helps_comes_in_and_goes_back() {
    let state = folder(24);
    let config = state.path().join("night-test.toml");
    let daemon = Daemon::launch(state.clone(), &["--config", config.to_str().unwrap()]);
    daemon.ready().await;
    let before = daemon.chat("What is 17 + 25?").await;
    assert_eq!(content(&before), "The answer is 42.");

    let began = Instant::now();
    let body = json!({ "command": "run_now", "job": "optimise_prompts" });
    let id = loop {
        let (status, answer) = daemon.post("/v1/night", &body).await;
        if status == 200 {
            break answer["run"].as_str().unwrap().to_owned();
        }
        // The engine is ready a moment before the night is.
        assert!(status == 429 && began.elapsed() < PATIENCE, "{status} {answer}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    };
    let mut seen = 0;
    loop {
        let (_, status) = daemon.get("/v1/night").await;
        if status["run"].is_null() && status["last"]["id"] == id.as_str() {
            break;
        }
        let progress = &status["run"]["progress"];
        if progress["what"] == "prompt of `default`" {
            seen = seen.max(progress["done"].as_u64().unwrap());
        }
        assert!(began.elapsed() < PATIENCE, "{status:#}\n{}", daemon.log.lock().unwrap().join("\n"));
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    println!("searched in {:?}", began.elapsed());
    assert!(seen > 0, "the status shows how far it is");
    let brief = run(&daemon, &["night", "report", &id]);
    assert!(brief.contains("A better prompt was found for default.") && brief.contains("pipeline reset"), "{brief}");
    let report = run(&daemon, &["night", "report", &id, "--details"]);
    assert!(report.contains("default: changed: ") && report.contains("pipeline reset default"), "{report}");

    let after = daemon.chat("What is 17 + 25?").await;
    assert_eq!(content(&after), "42", "{after}");
    let version = after["x_chimere"]["pipeline_version"].as_str().unwrap();
    assert!(version.ends_with(&format!("+overlay.{id}")), "{version}");
    let routes = run(&daemon, &["pipeline", "list"]);
    assert!(routes.contains(version) && routes.contains("optimised: +"), "{routes}");

    let said = run(&daemon, &["pipeline", "reset", "default"]);
    assert!(said.starts_with("default: version ") && said.contains(version), "{said}");
    let back = daemon.chat("What is 17 + 25?").await;
    assert_eq!(
        (content(&back), &back["x_chimere"]["pipeline_version"]),
        ("The answer is 42.", &before["x_chimere"]["pipeline_version"])
    );
}
