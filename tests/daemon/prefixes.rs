//! Prompt prefixes kept between requests, over HTTP. A conversation reads only what is new, and its replies are those
//! of a daemon that keeps nothing. Nobody finds anything of somebody else's, and what is forgotten is gone.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use chimere::keys::KeyRing;
use chimere::night::dataset::Row;
use chimere::night::library::{Judged, Library};
use chimere::service::Scope;
use serde_json::{Value, json};

use crate::harness::{Daemon, chimere, kill};

fn key(state: &Path, name: &str) -> String {
    KeyRing::add(state, name, &[Scope::Chat, Scope::Metrics], true, jiff::Timestamp::now()).unwrap().0
}

async fn daemon(snapshot_bytes: &str) -> (Daemon, String, String) {
    let state = Arc::new(tempfile::tempdir().unwrap());
    let (anna, bob) = (key(state.path(), "anna"), key(state.path(), "bob"));
    let variables = [("CHIMERE_ENGINE_SNAPSHOT_BYTES_MAX", snapshot_bytes)];
    let daemon = Daemon::launch_with(state, &[], &variables);
    daemon.ready().await;
    (daemon, anna, bob)
}

/// The answer to a conversation, and how many tokens of its prompt were kept, and were there.
async fn ask(daemon: &Daemon, key: &str, messages: &Value, seed: Option<u64>) -> (Value, u64, u64) {
    let temperature = if seed.is_some() { 0.8 } else { 0.0 };
    let body = json!({
        "messages": messages, "temperature": temperature, "seed": seed, "max_tokens": 24, "logprobs": true,
        "top_logprobs": 3,
    });
    let url = format!("{}/v1/chat/completions", daemon.url);
    let answer = reqwest::Client::new().post(url).bearer_auth(key).json(&body).send().await.unwrap();
    assert_eq!(answer.status(), 200);
    let reply: Value = answer.json().await.unwrap();
    let usage = &reply["usage"];
    let cached = usage["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap();
    let choice = json!([reply["choices"][0]["message"], reply["choices"][0]["logprobs"]]);
    (choice, cached, usage["prompt_tokens"].as_u64().unwrap())
}

async fn page(daemon: &Daemon, key: &str, path: &str) -> String {
    let url = format!("{}{path}", daemon.url);
    reqwest::Client::new().get(url).bearer_auth(key).send().await.unwrap().text().await.unwrap()
}

#[tokio::test]
async fn a_conversation_reads_only_what_is_new_and_nobody_else_finds_it() {
    let (keeps, anna, bob) = daemon("268435456").await;
    let (forgets, anna_there, _) = daemon("0").await;
    let rules = "Answer in one short sentence. Numbers are written as digits, names with a capital letter. ".repeat(20);
    let mut messages = vec![json!({ "role": "system", "content": rules })];
    let (mut read_before, mut hits) = (0, 0);
    for question in ["What is 17 + 25?", "And 9 * 7?", "Who are you?"] {
        messages.push(json!({ "role": "user", "content": question }));
        let conversation = Value::from(messages.clone());
        for seed in [None, Some(11)] {
            let (with, cached, prompt) = ask(&keeps, &anna, &conversation, seed).await;
            let (without, none, _) = ask(&forgets, &anna_there, &conversation, seed).await;
            assert_eq!((&with, none), (&without, 0), "{cached} of {prompt} tokens were kept");
            assert!(cached < prompt, "{cached} of {prompt}");
            assert_eq!(cached > 0, read_before > 0, "{question}");
            // Of a prompt that was read before, all but what lies behind its last message.
            assert!(cached + 256 + 16 > read_before, "{cached} kept of the {read_before} before");
            (read_before, hits) = (read_before.max(prompt), hits + u64::from(cached > 0));
        }
        let (answer, ..) = ask(&forgets, &anna_there, &conversation, None).await;
        messages.push(json!({ "role": "assistant", "content": answer[0]["content"] }));
    }
    messages.pop();
    let (_, cached, prompt) = ask(&keeps, &bob, &Value::from(messages), None).await;
    assert_eq!(cached, 0, "bob's first prompt, {prompt} tokens that anna sent before");
    let metrics = page(&keeps, &anna, "/metrics").await;
    assert!(metrics.lines().any(|line| line == format!("chimere_prefix_hits_total {hits}")), "{metrics}");
    assert!(metrics.contains("chimere_engine_snapshot_bytes "), "{metrics}");
}

#[tokio::test]
async fn forgetting_a_turn_drops_what_was_kept_of_its_principal_and_of_nobody_else() {
    let (daemon, anna, bob) = daemon("268435456").await;
    let rules = "Answer in one short sentence. Numbers are written as digits, names with a capital letter. ".repeat(20);
    let conversation = json!([{ "role": "system", "content": rules }, { "role": "user", "content": "Who are you?" }]);
    let cached = async |key: &str| ask(&daemon, key, &conversation, None).await.1;
    for key in [&anna, &bob] {
        assert_eq!(cached(key).await, 0);
        assert!(cached(key).await >= 256);
    }
    let turns: Value = serde_json::from_str(&page(&daemon, &anna, "/v1/memory/turns").await).unwrap();
    let turn = turns["data"][0]["id"].as_str().unwrap();
    let forget = async |turn: &str| {
        let url = format!("{}/v1/memory/turns?turn={turn}", daemon.url);
        let forgotten = reqwest::Client::new().delete(url).bearer_auth(&anna).send().await.unwrap();
        (forgotten.status().as_u16(), forgotten.json::<Value>().await.unwrap())
    };
    let (status, forgotten) = forget(turn).await;
    assert_eq!((status, &forgotten["turns"]), (200, &json!(1)), "{forgotten}");
    assert_eq!(cached(&anna).await, 0, "the same request, read again from its first token");
    assert!(cached(&bob).await >= 256, "nobody else's");
    assert!(cached(&anna).await >= 256, "what is asked after it is kept again");
    // Said again of a turn that is gone it holds for what is kept: the engine may not have heard of it before.
    assert_eq!(forget("turn-0000000000000-00000000").await.0, 404);
    assert!(cached(&anna).await >= 256, "of a turn that never was nothing goes");
    assert_eq!(forget(turn).await.0, 404);
    assert_eq!(cached(&anna).await, 0, "the same request, read again from its first token");
    assert!(cached(&bob).await >= 256, "nobody else's");
}

/// Ends a daemon as systemd does.
fn stopped(daemon: &mut Daemon) {
    assert!(Command::new("kill").args(["-TERM", &daemon.pid().to_string()]).status().unwrap().success());
    assert!(daemon.child.wait().unwrap().success());
}

#[tokio::test]
async fn on_disk_they_outlive_the_daemon_until_a_turn_is_forgotten() {
    let state = Arc::new(tempfile::tempdir().unwrap());
    let (anna, bob) = (key(state.path(), "anna"), key(state.path(), "bob"));
    let file = state.path().join("prefixes.bin");
    let start = async |on_disk: &str| {
        let daemon = Daemon::launch_with(Arc::clone(&state), &[], &[("CHIMERE_ENGINE_SNAPSHOTS_ON_DISK", on_disk)]);
        daemon.ready().await;
        daemon
    };
    let rules = "Answer in one short sentence. Numbers are written as digits, names with a capital letter. ".repeat(20);
    let conversation = json!([{ "role": "system", "content": rules }, { "role": "user", "content": "Who are you?" }]);
    let mut daemon = start("true").await;
    let (first, none, _) = ask(&daemon, &anna, &conversation, None).await;
    assert_eq!(none, 0);
    ask(&daemon, &bob, &conversation, None).await;
    stopped(&mut daemon);
    assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);

    daemon = start("true").await;
    let (again, cached, _) = ask(&daemon, &anna, &conversation, None).await;
    assert!(cached >= 256 && again == first, "{cached} tokens came back, and the answer is the same bit by bit");
    // An engine that is killed writes nothing: the file of before stands, and its successor reads that.
    kill(daemon.engines()[0]);
    let (again, cached, _) = loop {
        let began =
            daemon.log.lock().unwrap().iter().filter(|line| line.contains("prompts of before are kept")).count();
        if began == 2 {
            daemon.ready().await;
            break ask(&daemon, &anna, &conversation, None).await;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    };
    assert!(cached >= 256 && again == first);

    let url = format!("{}/v1/memory/turns?all=true", daemon.url);
    assert_eq!(reqwest::Client::new().delete(url).bearer_auth(&anna).send().await.unwrap().status(), 200);
    assert!(!file.exists(), "what was forgotten must not come back from it");
    stopped(&mut daemon);
    daemon = start("true").await;
    assert_eq!(ask(&daemon, &anna, &conversation, None).await.1, 0, "forgotten");
    assert!(ask(&daemon, &bob, &conversation, None).await.1 >= 256, "somebody else's, written when it stopped");
    stopped(&mut daemon);
    assert!(file.exists());
    // What a night learned of it goes too, with the daemon stopped.
    let library = Library::new(state.path());
    let row: Row = serde_json::from_value(json!({
        "id": "turn-1", "messages": [], "thinking": "off", "reply": { "role": "assistant", "content": "Yes." },
        "origin": {
            "turn": "turn-1", "conversation": "c", "principal": "anna", "author": "anna", "time_ms": 1, "route": "default",
            "signal": "thumbs_up", "verdict": 4, "judge": "j", "question": "q", "run": "r",
        },
    }))
    .unwrap();
    library.file("r", vec![row], Judged::Promoted(1), &BTreeSet::new()).unwrap();
    let told =
        chimere().args(["memory", "forget", "--all", "--yes", "--state-dir"]).arg(state.path()).output().unwrap();
    assert!(told.status.success() && !file.exists(), "{}", String::from_utf8_lossy(&told.stderr));
    assert!(library.load().unwrap().0.is_empty());

    // Asked to keep nothing there any more.
    fs::write(&file, "of before").unwrap();
    drop(start("false").await);
    assert!(!file.exists());
}
