//! Embedding models that need an engine, through the daemon: vectors as the formulas give them, retrieval, an engine
//! that dies or is late. Also files that are no embedding model, and a change of the model.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use serde_json::{Value, json};

use crate::harness::{Daemon, chimere, kill};
use crate::library::{self, bert_file as bert};
use crate::model::{command, text, until};
use crate::people::{answered, installation, job};
use crate::retrieval::{likeness, shown, switch_on};

const LATENCY: &str = "CHIMERE_EMBED_QUERY_TIMEOUT_MS";

fn reference() -> Value {
    serde_json::from_str(&fs::read_to_string(bert("mean").with_file_name("expected.json")).unwrap()).unwrap()
}

async fn hosting(state: &Arc<tempfile::TempDir>, file: &Path, more: &[(&str, &str)]) -> Daemon {
    let variables = [&[("CHIMERE_EMBED_MODEL", file.to_str().unwrap())], more].concat();
    let daemon = Daemon::launch_with(state.clone(), &[], &variables);
    daemon.ready().await;
    daemon
}

fn folder() -> Arc<tempfile::TempDir> {
    Arc::new(tempfile::tempdir().unwrap())
}

async fn embedder(daemon: &Daemon) -> Value {
    daemon.get("/v1/status").await.1["examples"]["embedder"].clone()
}

async fn ready(daemon: &Daemon) -> u32 {
    until("the embedding model is ready", async || embedder(daemon).await["state"] == "ready").await;
    embedder(daemon).await["engine"]["pid"].as_u64().unwrap() as u32
}

async fn embed(daemon: &Daemon, body: Value) -> reqwest::Response {
    reqwest::Client::new().post(format!("{}/v1/embeddings", daemon.url)).json(&body).send().await.unwrap()
}

async fn vector(daemon: &Daemon, text: &str) -> Value {
    let (status, answer) = daemon.post("/v1/embeddings", &json!({ "input": text })).await;
    assert_eq!(status, 200, "{answer}");
    answer["data"][0]["embedding"].clone()
}

fn far(a: &Value, b: &Value) -> f64 {
    let (a, b) = (a.as_array().unwrap(), b.as_array().unwrap());
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).map(|(a, b)| (a.as_f64().unwrap() - b.as_f64().unwrap()).abs()).fold(0.0, f64::max)
}

#[tokio::test]
async fn a_hosted_model_gives_the_vectors_of_its_formulas() {
    let words = [("CHIMERE_EMBED_QUERY_PREFIX", "ask "), ("CHIMERE_EMBED_DOCUMENT_PREFIX", "told ")];
    for pooling in ["mean", "cls"] {
        let daemon = hosting(&folder(), &bert(pooling), &words).await;
        let rows = reference()[pooling].as_array().unwrap().clone();
        let texts: Vec<&Value> = rows.iter().map(|row| &row["text"]).collect();
        // The first request waits for the engine.
        let (status, answer) = daemon.post("/v1/embeddings", &json!({ "input": texts, "model": pooling })).await;
        assert_eq!((status, &answer["model"]), (200, &json!(pooling)), "{answer}");
        for (row, told) in rows.iter().zip(answer["data"].as_array().unwrap()) {
            assert!(far(&row["vector"], &told["embedding"]) < 2e-3, "{told}");
            assert!((likeness(&told["embedding"], &told["embedding"]) - 1.0).abs() < 1e-5, "one long");
        }
        let tokens: usize = rows.iter().map(|row| row["ids"].as_array().unwrap().len()).sum();
        assert_eq!(answer["usage"]["total_tokens"], tokens);
        let listed = daemon.get(&format!("/v1/models/{pooling}")).await.1["x_chimere"].clone();
        let known = json!({
            "embeds": true, "architecture": "bert", "width": 32, "context_tokens": 96, "state": "ready"
        });
        assert_eq!(listed, known);
        // Queries and documents have words of their own before them, texts none.
        let (status, ranked) =
            daemon.post("/v1/rerank", &json!({ "query": "hello", "documents": ["world", "a ".repeat(200)] })).await;
        assert_eq!(status, 200, "{ranked}");
        let score = ranked["results"].as_array().unwrap().iter().find(|r| r["index"] == 0).unwrap()["relevance_score"]
            .as_f64()
            .unwrap();
        let by_hand = likeness(&vector(&daemon, "ask hello").await, &vector(&daemon, "told world").await);
        assert!((score - by_hand).abs() < 1e-5, "{score} and {by_hand}");
        let (status, long) = daemon.post("/v1/embeddings", &json!({ "input": ["a", "a ".repeat(95)] })).await;
        // Of 95 letters 94 fit between the two marks; the last one has a window of its own.
        assert_eq!((status, &long["x_chimere"]["windows"]), (200, &json!([1, 2])), "{long}");
        assert_eq!(long["usage"]["total_tokens"], 3 + 96 + 3);
        let mean = &long["data"][1]["embedding"];
        assert!((likeness(mean, mean) - 1.0).abs() < 1e-5, "one long");
        let (_, few) = daemon.post("/v1/embeddings", &json!({ "input": "a", "dimensions": 16 })).await;
        assert_eq!(few["data"][0]["embedding"].as_array().unwrap().len(), 16, "{few}");
        let (status, other) = daemon.post("/v1/embeddings", &json!({ "input": "a", "dimensions": 33 })).await;
        assert_eq!((status, &other["error"]["param"]), (400, &json!("dimensions")), "{other}");
    }
}

/// A model that reads from left to right and has a `pooling_type` embeds, and is not taken for one that writes.
#[tokio::test]
async fn a_causal_embedder_embeds_and_does_not_serve() {
    let files = tempfile::tempdir().unwrap();
    let file = library::make(files.path(), "qwen2-last");
    let daemon = hosting(&folder(), &file, &[("CHIMERE_EMBED_CONTEXT_TOKENS", "700")]).await;
    let long = "a".repeat(699);
    let (status, answer) = daemon.post("/v1/embeddings", &json!({ "input": ["hello", "hello!", long] })).await;
    assert_eq!((status, &answer["usage"]["total_tokens"]), (200, &json!(6 + 7 + 700)), "{answer}");
    let vectors: Vec<&Value> = answer["data"].as_array().unwrap().iter().map(|told| &told["embedding"]).collect();
    for vector in &vectors {
        assert_eq!(vector.as_array().unwrap().len(), 64);
        assert!((likeness(vector, vector) - 1.0).abs() < 1e-5);
    }
    assert!(far(vectors[0], vectors[1]) > 1e-2, "they are different texts");
    let (status, long) = daemon.post("/v1/embeddings", &json!({ "input": "a".repeat(700) })).await;
    assert_eq!((status, &long["x_chimere"]["windows"]), (200, &json!([2])), "{long}");
    let endless = "a".repeat(256 * 698 + 1);
    let (status, refused) = daemon.post("/v1/embeddings", &json!({ "input": endless })).await;
    assert_eq!((status, &refused["error"]["param"]), (400, &json!("input")), "{refused}");
    assert!(refused["error"]["message"].as_str().unwrap().contains("256 windows"), "{refused}");
    let told = command(&daemon, &["swap", file.to_str().unwrap()]).await;
    let why = text(&told.stderr);
    assert!(
        !told.status.success() && why.contains("it is an embedding model and writes no text: name it as `embed.model`"),
        "{why}"
    );
    daemon.chat("Hello").await;
}

#[tokio::test]
async fn an_engine_that_is_gone_is_told_and_comes_back() {
    let files = tempfile::tempdir().unwrap();
    let (file, away) = (files.path().join("e.gguf"), files.path().join("away.gguf"));
    fs::copy(bert("mean"), &file).unwrap();
    let patience = [("CHIMERE_REPLIES_START_TIMEOUT_MS", "100")];
    let daemon = hosting(&folder(), &file, &patience).await;
    let (pid, serving) = (daemon.pid(), daemon.engines());
    let first = ready(&daemon).await;
    let before = vector(&daemon, "hello world").await;
    fs::rename(&file, &away).unwrap();
    kill(first);
    until("the engine is gone", async || embedder(&daemon).await["state"] == "restarting").await;
    let refused = embed(&daemon, json!({ "input": "a" })).await;
    assert_eq!(refused.status(), 503);
    assert!(refused.headers()["retry-after"].to_str().unwrap().parse::<u32>().unwrap() >= 1);
    let body: Value = refused.json().await.unwrap();
    assert_eq!(body["error"]["code"], "service_unavailable", "{body}");
    daemon.chat("Hello").await;
    fs::rename(&away, &file).unwrap();
    let second = ready(&daemon).await;
    assert_ne!(first, second);
    assert_eq!(vector(&daemon, "hello world").await, before);
    // Vectors of another file are never told for those of this one.
    fs::copy(bert("cls"), &file).unwrap();
    kill(second);
    until("another engine", async || embedder(&daemon).await["engine"]["starts"].as_u64() > Some(2)).await;
    until("it has read the file", async || embed(&daemon, json!({ "input": "a" })).await.status() != 503).await;
    let (status, other) = daemon.post("/v1/embeddings", &json!({ "input": "a" })).await;
    assert_eq!((status, &other["error"]["code"]), (501, &json!("not_built")), "{other}");
    assert!(other["error"]["message"].as_str().unwrap().contains("restart the daemon"), "{other}");
    assert_eq!(daemon.pid(), pid);
    assert!(serving.iter().filter(|engine| **engine != first).all(|engine| daemon.engines().contains(engine)));
}

#[tokio::test]
async fn a_file_that_cannot_embed_says_why_and_the_daemon_serves() {
    let files = tempfile::tempdir().unwrap();
    let whole = fs::read(bert("mean")).unwrap();
    let cut = files.path().join("cut.gguf");
    fs::write(&cut, &whole[..whole.len() / 2]).unwrap();
    // A tensor under another name: its header is good, and only who loads it finds out.
    let lame = files.path().join("lame.gguf");
    let name = b"blk.1.attn_q.weight";
    let at = whole.windows(name.len()).position(|word| word == name).unwrap();
    let mut bytes = whole.clone();
    bytes[at..at + 5].copy_from_slice(b"blk.7");
    fs::write(&lame, bytes).unwrap();
    let cases = [
        (cut, "cut.gguf", true),
        (lame, "blk.1.attn_q", false),
        (crate::harness::model(), "no `pooling_type`", true),
        (files.path().join("none.gguf"), "none.gguf", true),
    ];
    for (file, why, found_by_check) in cases {
        let daemon = hosting(&folder(), &file, &[]).await;
        let (status, answer) = daemon.post("/v1/embeddings", &json!({ "input": "a" })).await;
        assert_eq!((status, &answer["error"]["code"]), (501, &json!("not_built")), "{answer}");
        let message = answer["error"]["message"].as_str().unwrap();
        assert!(message.contains(why) && message.contains(file.to_str().unwrap()), "{message}");
        daemon.chat("Hello").await;
        let told = chimere().arg("check").env("CHIMERE_EMBED_MODEL", &file).output().unwrap();
        let line = text(&told.stdout).lines().find(|line| line.contains(" embedder ")).unwrap().to_owned();
        assert_eq!(line.starts_with("BAD"), found_by_check, "{line}");
        assert!(!found_by_check || line.contains(why), "{line}");
    }
    let told = chimere().arg("check").env("CHIMERE_EMBED_MODEL", bert("cls")).output().unwrap();
    assert!(text(&told.stdout).contains("bert, vectors of 32 values (cls), 96 tokens of a text"), "{told:?}");
}

fn signal(pid: u32, name: &str) {
    assert!(Command::new("kill").args([name, &pid.to_string()]).status().unwrap().success());
}

async fn metric(daemon: &Daemon, key: &str, name: &str) -> f64 {
    let request = reqwest::Client::new().get(format!("{}/metrics", daemon.url)).bearer_auth(key);
    let all = request.send().await.unwrap().text().await.unwrap();
    all.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok()).unwrap_or_default()
}

async fn indexed(daemon: &Daemon, key: &str) -> Value {
    let request = reqwest::Client::new().get(format!("{}/v1/status", daemon.url)).bearer_auth(key);
    let status: Value = request.send().await.unwrap().json().await.unwrap();
    status["examples"].clone()
}

const ASKED: (&str, &str) = ("Which number opens the door of the shed", "The number 4711 opens the shed.");
const OTHER: (&str, &str) = ("On which day is the garbage collected", "On Thursday, before seven o'clock.");

#[tokio::test]
async fn examples_are_found_by_a_hosted_model_and_a_late_one_holds_nobody_up() {
    let (state, keys, like) = installation(&["root", "ada"]).await;
    let [root, ada] = &keys[..] else { panic!("two keys") };
    answered(state.path(), &like, "ada", &[ASKED, OTHER], 1);
    switch_on(state.path());
    let patient = [(LATENCY, "60000")];
    let daemon = hosting(&state, &bert("mean"), &patient).await;
    let report = job(&daemon, root, "reindex");
    assert!(report.contains("2 verified exchanges in the index"), "{report}");
    let engine = |status: &Value| status["embedder"]["engine"]["pid"].as_u64().unwrap() as u32;
    let found = shown(&daemon, ada, ASKED.0).await;
    assert!(found[0]["score"].as_f64() > Some(0.99), "the very question: {found:?}");
    assert_eq!(metric(&daemon, root, "chimere_retrievals_total{outcome=\"shown\"}").await, 1.0);
    let report = job(&daemon, root, "reindex");
    assert!(report.contains("NOTHING TO DO"), "{report}");
    kill(daemon.pid());
    drop(daemon);

    // In time, or not at all.
    let daemon = hosting(&state, &bert("mean"), &[(LATENCY, "300")]).await;
    until("ready", async || indexed(&daemon, root).await["embedder"]["state"] == "ready").await;
    let status = indexed(&daemon, root).await;
    assert_eq!((&status["examples"], &status["message"]), (&json!(2), &Value::Null), "read from the disk: {status}");
    signal(engine(&status), "-STOP");
    assert!(shown(&daemon, ada, ASKED.0).await.is_empty());
    assert_eq!(metric(&daemon, root, "chimere_retrievals_total{outcome=\"late\"}").await, 1.0);
    signal(engine(&status), "-CONT");
    until("shown again", async || !shown(&daemon, ada, ASKED.0).await.is_empty()).await;
    kill(daemon.pid());
    drop(daemon);

    // Another model, and back to a table: the index is made anew by itself, and never searched by the other's vectors.
    for (file, name) in
        [(bert("cls"), "cls"), (crate::harness::model().with_file_name("nano-embed.gguf"), "nano-embed")]
    {
        let daemon = hosting(&state, &file, &patient).await;
        until("the index is made anew", async || indexed(&daemon, root).await["examples"] == 2).await;
        let status = indexed(&daemon, root).await;
        assert_eq!((&status["embedder"]["model"], &status["message"]), (&json!(name), &Value::Null), "{status}");
        let found = shown(&daemon, ada, ASKED.0).await;
        assert!(found[0]["score"].as_f64() > Some(0.99), "{name}: {found:?}");
        kill(daemon.pid());
        drop(daemon);
    }
}
