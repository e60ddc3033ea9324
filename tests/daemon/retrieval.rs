//! Verified exchanges as examples, through the daemon: found by likeness, shown to whom they belong, gone when they are
//! forgotten, there again after a restart.

use std::path::Path;

use serde_json::{Value, json};

use crate::harness::{Daemon, kill};
use crate::people::{again, answered, installation, job, night_run, told, with_key};

pub(crate) const INDEX: &str = "reindex";
pub(crate) const PRIVATE: (&str, &str) =
    ("Which number opens the door of the shed?", "The number 4711 opens the shed.");
pub(crate) const COMMON: (&str, &str) =
    ("On which day is the garbage collected?", "On Thursday, before seven o'clock.");

/// The default pipeline, with examples switched on.
pub fn switch_on(state: &Path) {
    let shipped = Path::new(env!("CARGO_MANIFEST_DIR")).join("pipelines/default.yaml");
    let text = std::fs::read_to_string(shipped).unwrap() + "retrieve: {k: 2, min_score: 0.6}\n";
    std::fs::create_dir_all(state.join("pipelines")).unwrap();
    std::fs::write(state.join("pipelines/default.yaml"), text).unwrap();
}

/// Asks, and returns what `x_chimere` says of examples.
pub async fn shown(daemon: &Daemon, key: &str, question: &str) -> Vec<Value> {
    let body = json!({"messages": [{"role": "user", "content": question}], "temperature": 0, "max_tokens": 8,
        "chimere": {"route": "default"}});
    let reply = with_key(daemon, key, "/v1/chat/completions", &body).await;
    reply["x_chimere"]["examples"].as_array().cloned().unwrap_or_default()
}

async fn newest_turn(daemon: &Daemon, key: &str) -> Value {
    let request = reqwest::Client::new().get(format!("{}/v1/memory/turns?limit=1000", daemon.url)).bearer_auth(key);
    let turns: Value = request.send().await.unwrap().json().await.unwrap();
    turns["data"].as_array().unwrap().last().unwrap().clone()
}

#[tokio::test]
async fn verified_exchanges_are_shown_to_those_they_belong_to() {
    let (state, keys, like) = installation(&["root", "ada", "bob", "eve"]).await;
    let [root, ada, bob, eve] = &keys[..] else { panic!("four keys") };
    answered(state.path(), &like, "ada", &[PRIVATE, COMMON], 1);
    answered(state.path(), &like, "bob", &[COMMON], 2);
    let daemon = again(&state, &[]).await;
    let found = "3 verified exchanges in the index, 2 of them for everybody; 0 before";
    let report = night_run(&daemon, root, &["--job", INDEX, "--dry-run"]);
    assert!(report.contains(&format!("A new one was made for a trial: {found}")), "{report}");
    assert!(report.contains("WOULD CHANGE") && report.contains("because this was a dry run"), "{report}");
    assert!(!state.path().join("examples.idx").exists(), "a dry run writes nothing");
    let report = job(&daemon, root, INDEX);
    assert!(report.contains(&format!("It was made: {found}")), "{report}");
    assert!(report.contains("Undo: `chimere memory forget`") && !report.contains("the model of"), "{report}");
    // No shipped pipeline asks for examples.
    assert!(shown(&daemon, ada, PRIVATE.0).await.is_empty());
    kill(daemon.pid());
    drop(daemon);
    switch_on(state.path());
    let daemon = again(&state, &[]).await;
    let asked = "Which number opens the door of our shed?";
    let hers = shown(&daemon, ada, asked).await;
    assert_eq!(hers.len(), 1, "{hers:?}");
    assert!(hers[0]["score"].as_f64() > Some(0.85) && hers[0]["turn"].is_string(), "{hers:?}");
    let turn = newest_turn(&daemon, ada).await;
    let texts: Vec<&str> =
        turn["messages"].as_array().unwrap().iter().map(|m| m["content"].as_str().unwrap()).collect();
    assert_eq!(texts[1..], [PRIVATE.0, PRIVATE.1, asked], "behind the system message, before the question");
    assert_eq!(turn["examples"], 2);
    for other in [bob, eve, root] {
        assert!(shown(&daemon, other, PRIVATE.0).await.is_empty(), "hers alone");
    }
    let everybodys = shown(&daemon, eve, COMMON.0).await;
    assert_eq!(everybodys.len(), 1, "the same of two people is shown once: {everybodys:?}");
    assert!(everybodys[0].get("turn").is_none(), "nobody is told whose turn it was: {everybodys:?}");
    // Nothing new: nothing is written, and examples in turns are no exchanges of their own.
    let report = job(&daemon, root, INDEX);
    assert!(report.contains("NOTHING TO DO") && report.contains("3 verified exchanges in the index"), "{report}");
    // A question in the middle of a conversation is not helped: the engine has read what came before.
    let later = json!({"messages": [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Hello."},
        {"role": "user", "content": asked}], "max_tokens": 4, "chimere": {"route": "default"}});
    let reply = with_key(&daemon, ada, "/v1/chat/completions", &later).await;
    assert!(reply["x_chimere"].get("examples").is_none(), "{reply}");
    // Nor one that leaves no room for them.
    let long = json!({"messages": [{"role": "user", "content": asked}], "max_tokens": 4_000,
        "chimere": {"route": "default"}});
    let reply = with_key(&daemon, ada, "/v1/chat/completions", &long).await;
    assert!(reply["x_chimere"].get("examples").is_none(), "{reply}");
    // Forgotten at once, in use and on the disk; the next index does not know it either.
    let private = hers[0]["turn"].as_str().unwrap();
    told(&daemon, &["memory", "forget", "--turn", private], root);
    assert!(shown(&daemon, ada, asked).await.is_empty());
    let bytes = std::fs::read(state.path().join("examples.idx")).unwrap();
    assert!(!bytes.windows(4).any(|w| w == b"4711"), "no trace is left");
    let report = job(&daemon, root, INDEX);
    assert!(report.contains("2 verified exchanges in the index, 2 of them for everybody; 2 before"), "{report}");
    // What one of the two takes back is the other's alone.
    told(&daemon, &["memory", "forget", "--principal", "bob"], root);
    assert!(shown(&daemon, eve, COMMON.0).await.is_empty());
    assert_eq!(shown(&daemon, ada, COMMON.0).await.len(), 1);
    let bytes = std::fs::read(state.path().join("examples.idx")).unwrap();
    // A damaged index is not believed, and made anew.
    kill(daemon.pid());
    drop(daemon);
    let mut damaged = bytes;
    *damaged.last_mut().unwrap() ^= 1;
    std::fs::write(state.path().join("examples.idx"), damaged).unwrap();
    let daemon = again(&state, &[]).await;
    assert!(shown(&daemon, ada, COMMON.0).await.is_empty());
    assert!(daemon.log.lock().unwrap().iter().any(|line| line.contains("the index is damaged")));
    job(&daemon, root, INDEX);
    assert_eq!(shown(&daemon, ada, COMMON.0).await.len(), 1);
}

/// The value of a vector's likeness to another.
pub fn likeness(a: &Value, b: &Value) -> f64 {
    let values = |vector: &Value| vector.as_array().unwrap().iter().map(|v| v.as_f64().unwrap()).collect::<Vec<_>>();
    values(a).iter().zip(values(b)).map(|(x, y)| x * y).sum()
}

#[tokio::test]
async fn texts_are_embedded_and_documents_ranked() {
    let daemon = Daemon::start(&[]).await;
    let texts = [
        "How do I stretch my hamstrings after running?",
        "An attacker sends a crafted packet to overflow the buffer.",
        "Sit on the floor with your legs straight and reach for your toes.",
    ];
    let (status, answer) = daemon.post("/v1/embeddings", &json!({"input": texts, "model": "nano-embed"})).await;
    assert_eq!(status, 200, "{answer}");
    let vector = |n: usize| &answer["data"][n]["embedding"];
    assert!((likeness(vector(0), vector(0)) - 1.0).abs() < 1e-4, "each is one long");
    assert!(likeness(vector(0), vector(2)) > likeness(vector(0), vector(1)) + 0.1);
    let body = json!({"query": texts[0], "documents": texts[1..]});
    let (status, ranked) = daemon.post("/v1/rerank", &body).await;
    assert_eq!(status, 200, "{ranked}");
    assert_eq!(ranked["results"][0]["index"], 1);
    let score = ranked["results"][0]["relevance_score"].as_f64().unwrap();
    assert!((score - likeness(vector(0), vector(2))).abs() < 1e-5, "{ranked}");
    let (status, long) = daemon.post("/v1/embeddings", &json!({"input": "word ".repeat(300)})).await;
    let tokens = long["usage"]["total_tokens"].as_u64().unwrap();
    assert_eq!((status, &long["x_chimere"]["windows"]), (200, &json!([tokens.div_ceil(256)])), "{long}");
    assert!(tokens >= 300, "{long}");
    let (status, other) = daemon.post("/v1/embeddings", &json!({"input": "a", "model": "nano"})).await;
    assert_eq!(status, 404, "{other}");
    assert!(other["error"]["message"].as_str().unwrap().contains("nano-embed"), "{other}");
    // Nothing of it is kept.
    assert_eq!(daemon.get("/v1/memory/turns").await.1["data"], json!([]));
}

#[tokio::test]
async fn without_an_embedding_model_the_answer_says_why() {
    let state = std::sync::Arc::new(tempfile::tempdir().unwrap());
    let daemon = Daemon::launch_with(state, &[], &[("CHIMERE_EMBED_MODEL", "/nonexistent/embed.gguf")]);
    daemon.ready().await;
    let (status, answer) = daemon.post("/v1/embeddings", &json!({"input": "a"})).await;
    assert_eq!((status, &answer["error"]["code"]), (501, &json!("not_built")), "{answer}");
    assert!(answer["error"]["message"].as_str().unwrap().contains("/nonexistent/embed.gguf"), "{answer}");
    let models = daemon.get("/v1/models").await.1;
    assert_eq!(models["data"].as_array().unwrap().len(), 1, "{models}");
}
