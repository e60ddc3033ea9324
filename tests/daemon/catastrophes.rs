//! Candidates that ruin the model, on the real engine, before the shipped gate. They are made of an adapter that
//! learned the week's questions. Each is refused by the rule that should see it, and what serves is the same to the
//! last byte. `tests/actors/night.rs` has the broken files.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use chimere::engine::adapter::{self, Adapter, BaseModel, Recipe};
use chimere::gguf::Gguf;
use chimere::simulate::pool;
use serde_json::{Value, json};

use crate::harness::{Daemon, PATIENCE, chimere, model};

/// Pairs that the good adapter learns, and items of each exam that the gate asks.
const PAIRS: usize = 60;
const ITEMS: usize = 210;
/// Whoever sees it first: the bounds, or exams that it fails by far.
const RUINED: &[&str] = &["update_norm", "divergence", "overall"];
/// Too little harm for so few items to measure, and no gain.
const NO_BETTER: &[&str] = &["divergence", "overall", "domains", "improvement"];
const QUESTION: &str = "How many days are in three weeks? Say why.";

/// An adapter that learned the first questions of the shipped week with their reference replies.
fn learned(folder: &Path) -> PathBuf {
    let week = concat!(env!("CARGO_MANIFEST_DIR"), "/nano/traffic/week.jsonl.gz");
    let questions = pool::read(week.as_ref()).unwrap();
    let plain = questions.iter().filter(|q| q.item.tools.is_empty() && !q.answer.is_empty());
    let pairs = plain.take(PAIRS).map(|q| {
        let reply = json!({ "role": "assistant", "content": q.answer, "reasoning_content": q.think });
        json!({ "id": q.item.id, "messages": q.item.messages, "reply": reply }).to_string()
    });
    let (file, out) = (folder.join("pairs.jsonl"), folder.join("learned.gguf"));
    fs::write(&file, pairs.collect::<Vec<_>>().join("\n")).unwrap();
    let mut command = chimere();
    command.args(["train", "--seed", "1", "--model"]).arg(model()).arg("--pairs").arg(file).arg("--out").arg(&out);
    let done = command.output().unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    out
}

/// A state folder with the shipped night, asked fewer items.
fn shipped_gate() -> Arc<tempfile::TempDir> {
    let state = Arc::new(tempfile::tempdir().unwrap());
    let shipped = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/pipelines/night.yaml")).unwrap();
    let (from, to) = ("items_max: 2100", format!("items_max: {ITEMS}"));
    assert!(shipped.contains(from));
    fs::create_dir_all(state.path().join("pipelines")).unwrap();
    fs::write(state.path().join("pipelines/night.yaml"), shipped.replace(from, &to)).unwrap();
    state
}

async fn until(daemon: &Daemon, wanted: impl Fn(&Value) -> bool) {
    let began = Instant::now();
    while !wanted(&daemon.get("/v1/night").await.1) {
        // Exams of a few hundred items, which a busy machine takes its time for.
        assert!(began.elapsed() < 4 * PATIENCE, "{}", daemon.log.lock().unwrap().join("\n"));
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    }
}

/// The report of a night that judges this adapter, and lets nothing in where it is `dry`.
async fn judged(daemon: &Daemon, adapter: &Adapter, dry: bool) -> Value {
    let path = daemon.state.path().join("candidate.gguf");
    adapter.write(&path).unwrap();
    let body = json!({ "command": "run_now", "candidate": path, "dry_run": dry });
    let (status, answer) = daemon.post("/v1/night", &body).await;
    assert_eq!(status, 200, "{answer}");
    let run = answer["run"].as_str().unwrap();
    until(daemon, |status| status["run"].is_null() && status["last"]["id"] == run).await;
    daemon.get(&format!("/v1/night/report?run={run}")).await.1
}

/// The upper end of what the golden exam says of the candidate, beside the champion.
fn harm(report: &Value) -> Option<f64> {
    report["golden"]["difference"]["high"].as_f64()
}

/// The adapter with its update multiplied by `factor`.
fn times(adapter: &Adapter, factor: f32) -> Adapter {
    let mut made = adapter.clone();
    made.factors.iter_mut().flat_map(|f| &mut f.b).for_each(|value| *value *= factor);
    made
}

#[tokio::test]
#[ignore = "long: a training and four exams, some minutes on two cores"]
async fn what_ruins_the_model_is_refused_by_the_shipped_gate() {
    let state = shipped_gate();
    let daemon = Daemon::launch(state.clone(), &[]);
    daemon.ready().await;
    until(&daemon, |status| status["served"]["ready"] == true).await;
    let before = daemon.chat(QUESTION).await;
    let (_, models) = daemon.get("/v1/models").await;
    let hash = models["data"][0]["x_chimere"]["model_hash"].as_str().unwrap();
    let base = BaseModel::new(&Gguf::open(&model()).unwrap(), hash);
    let good = adapter::read(&learned(state.path()), &base).unwrap().0;
    let random = Recipe { rank: 8, scale: 1.0, seed: 7, targets: Vec::new(), last_layers: 0 }.make(&base).unwrap();
    let other = Adapter { base_hash: "0".repeat(hash.len()), ..good.clone() };
    // The control: what was learned stands at the exams, whatever they say of so few pairs, and does no harm there.
    let report = judged(&daemon, &good, true).await;
    let (outcome, best) = (&report["outcome"], harm(&report).unwrap());
    println!("learned: {outcome}");
    let exams = ["overall", "domains", "improvement"].iter().any(|rule| outcome["rejected"]["rule"] == *rule);
    assert!((exams || outcome["would_promote"].is_object()) && best > 0.0, "{report:#}");
    for (name, made, rules) in [
        ("its sign turned, three times", times(&good, -3.0), NO_BETTER),
        ("ten times", times(&good, 10.0), RUINED),
        ("its sign turned, ten times", times(&good, -10.0), RUINED),
        ("random, as large as the weights", random, &["update_norm"]),
        ("of another model", other, &["file"]),
    ] {
        let report = judged(&daemon, &made, false).await;
        let refused = &report["outcome"]["rejected"];
        println!("{name}: {refused}");
        assert!(rules.iter().any(|rule| refused["rule"] == *rule), "{name}: {refused:#}");
        // Not for want of items: where exams refused it, even its best is a loss.
        let ruined = rules == RUINED && refused["rule"] == "overall";
        assert!(!ruined || harm(&report).unwrap() < 0.0, "{name}: {report:#}");
        let (_, night) = daemon.get("/v1/night").await;
        assert_eq!((&night["served"]["champion"], &night["served"]["canary"]), (&json!(0), &Value::Null), "{name}");
        let after = daemon.chat(QUESTION).await;
        assert_eq!(after["choices"][0]["message"], before["choices"][0]["message"], "{name}");
    }
    assert!(!state.path().join("generations/1").exists());
}
