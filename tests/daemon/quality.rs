//! The quality gate with the real model and the real judge. Whatever the judge thinks of the answer, there is one Turn
//! and one verdict. No word of the daemon's own is in what is kept or exported.

use std::fs;
use std::sync::Arc;
use std::time::{Duration, Instant};

use chimere::scoring::reflect::REFLECTION;
use serde_json::{Value, json};

use crate::harness::{Daemon, PATIENCE, sse};

/// A daemon whose default route tries again whatever is not judged perfect.
async fn strict() -> Daemon {
    let state = Arc::new(tempfile::tempdir().unwrap());
    let shipped = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/pipelines/default.yaml")).unwrap();
    let folder = state.path().join("pipelines");
    fs::create_dir_all(&folder).unwrap();
    let gated = format!("{shipped}\nquality_gate: {{verdict_max: 4, timeout_ms: 600000}}\n");
    fs::write(folder.join("default.yaml"), gated).unwrap();
    let daemon = Daemon::launch_with(state, &[], &[("CHIMERE_SCORER_ENABLED", "true")]);
    daemon.ready().await;
    daemon
}

fn ask(question: &str, more: Value) -> Value {
    let mut body = json!({ "messages": [{ "role": "user", "content": question }], "temperature": 0 });
    for (key, value) in more.as_object().unwrap() {
        body[key] = value.clone();
    }
    body
}

/// Waits until so many turns are there, each with its verdict.
async fn turns(daemon: &Daemon, count: usize) -> Vec<Value> {
    let began = Instant::now();
    loop {
        let (_, page) = daemon.get("/v1/memory/turns?limit=50").await;
        let turns = page["data"].as_array().unwrap().clone();
        if turns.len() == count && turns.iter().all(|turn| turn["verdict"].is_u64()) {
            return turns;
        }
        assert!(turns.len() <= count && began.elapsed() < PATIENCE, "{page:#}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

#[tokio::test]
async fn answers_are_judged_before_their_reply_ends_and_poor_ones_tried_again() {
    let daemon = strict().await;
    // The judge starts with the first turn, in the background: on a busy machine that takes its time.
    let warm = ask("What is 1 + 1?", json!({ "chimere": { "quality_gate": false } }));
    daemon.post("/v1/chat/completions", &warm).await;
    turns(&daemon, 1).await;
    let (status, whole) = daemon.post("/v1/chat/completions", &ask("What is 17 + 25?", json!({}))).await;
    assert_eq!(status, 200, "{whole}");
    let quality = &whole["x_chimere"]["quality"];
    let verdicts = quality["verdicts"].as_array().unwrap_or_else(|| panic!("{whole}"));
    let passed = quality["outcome"] == "passed";
    assert_eq!(verdicts.len(), if passed { 1 } else { 2 }, "{quality}");
    assert!(quality.get("others").is_none(), "what was not kept is in the Turn: {quality}");

    let body = ask("Who wrote Don Quixote?", json!({ "stream": true }));
    let post = reqwest::Client::new().post(format!("{}/v1/chat/completions", daemon.url)).json(&body);
    let chunks = sse(&post.send().await.unwrap().text().await.unwrap());
    let told = &chunks.last().unwrap()["x_chimere"]["quality"];
    let shown: String = chunks.iter().filter_map(|c| c["choices"][0]["delta"]["content"].as_str()).collect();
    assert_eq!(shown.contains("**Revised answer**"), told["outcome"] == "revised", "{told} {shown}");

    // Whoever wants no second look gets none; a fast answer never has one.
    for extension in [json!({ "quality_gate": false }), json!({ "tier": "fast", "quality_gate": true })] {
        let body = ask("What is 3 + 4?", json!({ "chimere": extension }));
        let (_, reply) = daemon.post("/v1/chat/completions", &body).await;
        assert!(reply["x_chimere"].get("quality").is_none(), "{reply}");
    }

    let turns = turns(&daemon, 5).await;
    let first = &turns[1];
    assert_eq!(first["id"], whole["x_chimere"]["turn"]);
    let generation = &first["generations"][0];
    assert_eq!(generation["content"], whole["choices"][0]["message"]["content"]);
    let others = generation["quality"]["others"].as_array().map_or(0, Vec::len);
    assert_eq!(others, verdicts.len() - 1, "{generation}");
    assert_eq!(first["verdict"], verdicts[quality["kept"].as_u64().unwrap() as usize]);
    assert_eq!(first["messages"].as_array().unwrap().last().unwrap()["content"], "What is 17 + 25?");
    let status = daemon.get("/v1/status").await.1["actors"]["scorer"].clone();
    assert_eq!(status["scored"].as_u64(), Some(5), "one verdict each: {status}");

    // The prompt that asked again is nobody's data.
    let exported = reqwest::get(format!("{}/v1/memory/export", daemon.url)).await.unwrap().text().await.unwrap();
    assert!(exported.lines().count() >= 5 && !exported.contains(REFLECTION), "{exported}");
    assert!(!Value::from(turns).to_string().contains(REFLECTION));
}
