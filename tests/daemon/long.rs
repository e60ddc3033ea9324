//! A short question beside a long prompt of the same household, which has no keys: it is answered first, and neither reply
//! changes.

use std::sync::Arc;
use std::time::Instant;

use serde_json::{Value, json};

use crate::harness::{Daemon, PATIENCE};

/// About three thousand tokens for `nano`, whose context holds 4,096.
fn long() -> String {
    let line = |n: usize| {
        format!("On day {n} the boat number {} came past the mill with {} lanterns. ", n * 7 % 31, n * 13 % 97)
    };
    (0..120).map(line).collect()
}

fn asking(question: &str, max_tokens: u32) -> Value {
    json!({ "messages": [{ "role": "user", "content": question }], "max_tokens": max_tokens, "temperature": 0 })
}

/// The choice that was answered, and when.
async fn ask(daemon: &Daemon, body: &Value) -> (Value, Instant) {
    let (status, reply) = daemon.post("/v1/chat/completions", body).await;
    assert_eq!(status, 200, "{reply}");
    (reply, Instant::now())
}

/// Waits until so many replies are under way.
async fn under_way(daemon: &Daemon, replies: usize) {
    let began = Instant::now();
    loop {
        let (_, runs) = daemon.get("/v1/runs").await;
        if runs["data"].as_array().unwrap().iter().filter(|run| run["kind"] == "generate").count() == replies {
            return;
        }
        assert!(began.elapsed() < PATIENCE, "{runs}");
    }
}

async fn a_short_question_comes_first(backend: &str) {
    // What was kept of a prompt would make it short.
    let variables = [
        ("CHIMERE_ENGINE_BACKEND", backend),
        ("CHIMERE_ENGINE_THREADS", "1"),
        ("CHIMERE_ENGINE_SNAPSHOT_BYTES_MAX", "0"),
    ];
    let daemon = Daemon::launch_with(Arc::new(tempfile::tempdir().unwrap()), &[], &variables);
    daemon.ready().await;
    let (short, long) = (asking("What is 4 and 5?", 4), asking(&long(), 2));
    let alone = ask(&daemon, &short).await.0;
    let later = async {
        under_way(&daemon, 1).await;
        ask(&daemon, &short).await
    };
    let ((read, long_at), (answered, short_at)) = tokio::join!(ask(&daemon, &long), later);
    assert!(read["usage"]["prompt_tokens"].as_u64().unwrap() > 2_000, "{read}");
    assert!(short_at < long_at, "it waited for the long prompt, by {backend}");
    assert_eq!(answered["choices"], alone["choices"]);
    assert_eq!(ask(&daemon, &long).await.0["choices"], read["choices"], "the long one beside it and alone");
}

#[tokio::test]
async fn a_short_question_is_answered_before_a_long_prompt_is_read() {
    a_short_question_comes_first("cpu").await;
}

#[cfg(feature = "llama")]
#[tokio::test]
async fn so_it_is_with_the_library() {
    a_short_question_comes_first("llama").await;
}
