//! `kill -9` of the engine under load costs its requests an error, and nothing else.

use std::time::Duration;

use serde_json::json;

use crate::harness::{Daemon, kill, sse};

const STREAMS: usize = 20;
const KILLS: usize = 3;

#[tokio::test]
async fn every_stream_gets_an_error_and_the_next_request_is_answered() {
    let daemon = Daemon::start(&[]).await;
    let pid = daemon.pid();
    for _ in 0..KILLS {
        let streams: Vec<_> = (0..STREAMS).map(|n| tokio::spawn(stream(daemon.url.clone(), n))).collect();
        tokio::time::sleep(Duration::from_millis(300)).await;
        let engines = daemon.engines();
        assert_eq!(engines.len(), 1);
        kill(engines[0]);
        for stream in streams {
            let text = stream.await.unwrap();
            let events = sse(&text);
            assert!(events.iter().any(|e| e.get("error").is_some()), "no error event in:\n{text}");
            assert!(!events.iter().any(|e| e["choices"][0]["finish_reason"].is_string()), "{text}");
        }
        let reply = daemon.chat("What is 17 + 25?").await;
        assert!(reply["choices"][0]["message"]["content"].as_str().unwrap().contains("42"), "{reply}");
        assert_ne!(daemon.engines(), engines);
    }
    assert_eq!(daemon.pid(), pid);
    // One Turn a reply on every path, the broken streams included.
    let (_, turns) = daemon.get("/v1/memory/turns?limit=1000").await;
    assert_eq!(turns["data"].as_array().unwrap().len(), KILLS * (STREAMS + 1));
}

/// A stream that would go on for much longer than the test lets it.
async fn stream(url: String, n: usize) -> String {
    let body = json!({
        "messages": [{ "role": "user", "content": format!("Tell me a long story about the number {n}.") }],
        "stream": true, "max_tokens": 3000, "temperature": 1.0, "seed": n, "logit_bias": { "0": -100, "2": -100 },
    });
    let answer = reqwest::Client::new().post(format!("{url}/v1/chat/completions")).json(&body).send().await.unwrap();
    assert_eq!(answer.status().as_u16(), 200);
    answer.text().await.unwrap()
}
