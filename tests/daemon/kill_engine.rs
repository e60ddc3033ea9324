//! `kill -9` of the engine under load costs its requests an error, and nothing else.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use serde_json::{Value, json};

use crate::harness::{Daemon, kill, sse};

const STREAMS: usize = 20;
/// Streams under way before the kill: some, while others still wait.
const BEGUN: usize = 5;
const KILLS: usize = 3;

#[tokio::test]
async fn every_stream_gets_an_error_and_the_next_request_is_answered() {
    let daemon = Daemon::start(&[]).await;
    let pid = daemon.pid();
    for _ in 0..KILLS {
        let begun = Arc::new(AtomicUsize::new(0));
        let streams: Vec<_> =
            (0..STREAMS).map(|n| tokio::spawn(stream(daemon.url.clone(), n, Arc::clone(&begun)))).collect();
        while begun.load(Ordering::SeqCst) < BEGUN {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let engines = daemon.engines();
        assert_eq!(engines.len(), 1);
        kill(engines[0]);
        let mut under_way = 0;
        for stream in streams {
            let (status, text) = stream.await.unwrap();
            if status == 503 {
                // Still waiting for a sequence: the error is the whole answer.
                assert!(serde_json::from_str::<Value>(&text).unwrap()["error"]["message"].is_string(), "{text}");
                continue;
            }
            under_way += 1;
            let events = sse(&text);
            assert!(events.iter().any(|e| e.get("error").is_some()), "no error event in:\n{text}");
            assert!(!events.iter().any(|e| e["choices"][0]["finish_reason"].is_string()), "{text}");
        }
        assert!(under_way >= BEGUN, "only {under_way} streams had begun");
        let reply = daemon.chat("What is 17 + 25?").await;
        assert!(reply["choices"][0]["message"]["content"].as_str().unwrap().contains("42"), "{reply}");
        assert_ne!(daemon.engines(), engines);
    }
    assert_eq!(daemon.pid(), pid);
    // One Turn a reply on every path, the broken streams included.
    let (status, turns) = daemon.get("/v1/memory/turns?limit=100").await;
    assert_eq!(status, 200, "{turns}");
    assert_eq!(turns["data"].as_array().unwrap().len(), KILLS * (STREAMS + 1));
}

/// A stream that would go on for much longer than the test lets it.
async fn stream(url: String, n: usize, begun: Arc<AtomicUsize>) -> (u16, String) {
    let body = json!({
        "messages": [{ "role": "user", "content": format!("Tell me a long story about the number {n}.") }],
        "stream": true, "max_tokens": 3000, "temperature": 1.0, "seed": n, "logit_bias": { "0": -100, "2": -100 },
    });
    let answer = reqwest::Client::new().post(format!("{url}/v1/chat/completions")).json(&body).send().await.unwrap();
    begun.fetch_add(usize::from(answer.status().is_success()), Ordering::SeqCst);
    (answer.status().as_u16(), answer.text().await.unwrap())
}
