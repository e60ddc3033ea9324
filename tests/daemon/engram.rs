//! Engram through the daemon: what a table changes and what it must not, signatures, poison, revocation, one
//! principal's words and another's.

use std::path::Path;
use std::process::Output;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::harness::{Daemon, chimere, model};

/// A fact that no text of the model's training says.
const FACT: &str = "The zorblax coefficient of polished marble is made of walnut and honey.";
const OPENING: &str = "The zorblax coefficient of polished marble is";

fn engram(state: &Path, args: &[&str]) -> Output {
    let mut command = chimere();
    command.arg("engram").args(args).arg("--state-dir").arg(state);
    command.output().unwrap()
}

fn done(output: Output) -> String {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// Counts `FACT` from five documents into the table `name`.
fn build(state: &Path, name: &str, extra: &[&str]) {
    let text = state.join("fact.txt");
    std::fs::write(&text, format!("{FACT}\0").repeat(5)).unwrap();
    let model = model();
    let args = ["build", "--name", name, "--text", text.to_str().unwrap(), "--model", model.to_str().unwrap()];
    done(engram(state, &[&args[..], extra].concat()));
}

/// Ten answers of `principal`, verified or so it seems.
fn records(state: &Path, principals: &[&str]) -> std::path::PathBuf {
    let path = state.join("records.jsonl");
    let mut lines = String::new();
    for n in 0..10 {
        let record = json!({"text": FACT, "principal": principals[n % principals.len()], "origin": format!("turn-{n}"),
            "verdict": 5, "time_s": 1_700_000_000});
        lines += &format!("{record}\n");
    }
    std::fs::write(&path, lines).unwrap();
    path
}

fn learn(state: &Path, principals: &[&str]) {
    let records = records(state, principals);
    let model = model();
    done(engram(state, &["learn", "--records", records.to_str().unwrap(), "--model", model.to_str().unwrap()]));
}

/// Status and reply of a greedy completion of `OPENING`.
async fn complete(daemon: &Daemon, engram: Value) -> (u16, Value) {
    let body = json!({"prompt": OPENING, "temperature": 0, "max_tokens": 12, "chimere": {"engram": engram}});
    daemon.post("/v1/completions", &body).await
}

fn text(reply: &Value) -> &str {
    reply["choices"][0]["text"].as_str().unwrap()
}

/// Asks until the reply is as wanted: the daemon reads its tables again a moment after they changed.
async fn until(daemon: &Daemon, engram: Value, wanted: impl Fn(u16, &Value) -> bool) -> Value {
    let began = Instant::now();
    loop {
        let (status, reply) = complete(daemon, engram.clone()).await;
        if wanted(status, &reply) {
            return reply;
        }
        assert!(began.elapsed() < Duration::from_secs(60), "{status} {reply}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

#[tokio::test]
async fn a_table_leads_the_answer_and_only_where_it_is_asked_for() {
    let daemon = Daemon::start(&[]).await;
    let (_, plain) = complete(&daemon, json!(false)).await;
    assert!(!text(&plain).contains("walnut"), "{plain}");
    assert!(plain["x_chimere"].get("engram").is_none());
    build(daemon.state.path(), "local", &[]);
    let use_it = json!({"tables": ["local"], "lambda": 0.9});
    let led = until(&daemon, use_it.clone(), |status, _| status == 200).await;
    assert!(text(&led).starts_with(" made of walnut and honey"), "{led}");
    let told = &led["x_chimere"]["engram"][0];
    assert_eq!(told["tables"], json!(["local"]));
    assert!(told["changed"].as_u64().unwrap() > 0 && told["hits"].as_u64().unwrap() > 3, "{told}");
    assert!(told["skipped"].as_u64().unwrap() < told["lookups"].as_u64().unwrap(), "{told}");
    // The same question gets the same answer; without the table, the one it always got.
    assert_eq!(text(&complete(&daemon, use_it).await.1), text(&led));
    assert_eq!(text(&complete(&daemon, json!(false)).await.1), text(&plain));
    assert_eq!(text(&complete(&daemon, json!({"tables": ["local"], "lambda": 0})).await.1), text(&plain));
    // A passage does the same for its own request alone.
    let passage = json!({"passages": [FACT], "lambda": 0.9});
    assert!(text(&complete(&daemon, passage).await.1).contains("made of walnut"));
    assert_eq!(text(&complete(&daemon, json!({"tables": [], "lambda": 0.9})).await.1), text(&plain));
    for bad in [json!({"tables": ["nowhere"]}), json!({"lambda": 1.5}), json!({"tables": ["../local"]})] {
        let (status, reply) = complete(&daemon, bad).await;
        assert_eq!(status, 400, "{reply}");
    }
    let (_, status) = daemon.get("/v1/status").await;
    let listed = status["engram"]["tables"].as_array().unwrap();
    assert!(listed.iter().any(|t| t["name"] == "local" && t["shipped"] == false), "{status:#}");
}

#[tokio::test]
async fn a_table_without_this_installations_signature_is_never_loaded() {
    let daemon = Daemon::start(&[]).await;
    let state = daemon.state.path();
    let place = state.join("engram/planted.engr");
    build(state, "planted", &["--out", place.to_str().unwrap()]);
    // Signed by another installation, it is no better.
    let stranger = tempfile::tempdir().unwrap();
    build(stranger.path(), "planted", &[]);
    for entry in std::fs::read_dir(stranger.path().join("engram")).unwrap().map(Result::unwrap) {
        if entry.path().extension().is_some_and(|e| e == "sig") {
            std::fs::copy(entry.path(), state.join("engram").join(entry.file_name())).unwrap();
        }
    }
    build(state, "signed", &[]);
    until(&daemon, json!({"tables": ["signed"]}), |status, _| status == 200).await;
    let (code, reply) = complete(&daemon, json!({"tables": ["planted"]})).await;
    assert_eq!(code, 400, "{reply}");
    let (_, status) = daemon.get("/v1/status").await;
    assert!(status["engram"]["refused"][0]["message"].as_str().unwrap().contains("not signed"), "{status:#}");
    assert!(done(engram(state, &["list"])).contains("refused"));
}

#[tokio::test]
async fn ten_crafted_records_reach_nobody_else_and_revoking_removes_what_was_shared() {
    let daemon = Daemon::start(&[]).await;
    let state = daemon.state.path();
    let (_, plain) = complete(&daemon, json!(false)).await;
    // One principal's ten records: nothing of them is in the shared table, and her own is hers.
    learn(state, &["eve"]);
    let shared = json!({"tables": ["learned"], "lambda": 0.9});
    let reply = until(&daemon, shared.clone(), |status, _| status == 200).await;
    assert_eq!(text(&reply), text(&plain));
    assert_eq!(reply["x_chimere"]["engram"][0]["hits"], 0, "{reply}");
    let own = std::fs::read_dir(state.join("engram")).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap());
    let own = own.filter(|n| n.starts_with("learned-")).find_map(|n| n.strip_suffix(".engr").map(str::to_owned));
    let (code, reply) = complete(&daemon, json!({"tables": [own.unwrap()]})).await;
    assert_eq!(code, 400, "somebody else's table: {reply}");
    // Two who say the same are believed, until one of them is revoked: then no trace of either's effect is left.
    learn(state, &["ada", "bob"]);
    until(&daemon, shared.clone(), |_, reply| text(reply).contains("walnut and honey")).await;
    done(engram(state, &["revoke", "--principal", "ada"]));
    done(engram(state, &["revoke", "--principal", "bob"]));
    let reply = until(&daemon, shared.clone(), |_, reply| reply["x_chimere"]["engram"][0]["hits"] == 0).await;
    assert_eq!(text(&reply), text(&plain));
    for entry in std::fs::read_dir(state.join("engram")).unwrap().map(Result::unwrap) {
        let bytes = std::fs::read(entry.path()).unwrap();
        assert!(!bytes.windows(3).any(|w| w == b"bob"), "{:?}", entry.path());
    }
}

#[tokio::test]
async fn tables_survive_the_engine_and_the_daemon() {
    let daemon = Daemon::start(&[]).await;
    build(daemon.state.path(), "local", &[]);
    let use_it = json!({"tables": ["local"], "lambda": 0.9});
    let led = until(&daemon, use_it.clone(), |status, _| status == 200).await;
    crate::harness::kill(daemon.engines()[0]);
    let again = until(&daemon, use_it.clone(), |status, _| status == 200).await;
    assert_eq!(text(&again), text(&led));
    let state = daemon.state.clone();
    crate::harness::kill(daemon.pid());
    drop(daemon);
    let daemon = Daemon::launch(state, &[]);
    daemon.ready().await;
    assert_eq!(text(&complete(&daemon, use_it).await.1), text(&led));
}
