//! `kill -9` of the engine under load costs its requests an error, and nothing else.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::harness::{Daemon, PATIENCE, kill, sse};

/// More than the engine decodes together: some wait for a sequence, and their streams are open all the same.
const STREAMS: usize = 20;
const SEQUENCES: usize = 8;
const KILLS: usize = 3;

#[tokio::test]
async fn every_stream_gets_an_error_and_the_next_request_is_answered() {
    let daemon = Daemon::start(&[]).await;
    let pid = daemon.pid();
    for _ in 0..KILLS {
        let open = Arc::new(AtomicUsize::new(0));
        let streams: Vec<_> =
            (0..STREAMS).map(|n| tokio::spawn(stream(daemon.url.clone(), n, Arc::clone(&open)))).collect();
        let began = Instant::now();
        while open.load(Ordering::SeqCst) < STREAMS {
            assert!(began.elapsed() < PATIENCE, "{} of {STREAMS} streams are open", open.load(Ordering::SeqCst));
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let engines = daemon.engines();
        assert_eq!(engines.len(), 1);
        kill(engines[0]);
        let (mut errors, mut begun) = (0, 0);
        for stream in streams {
            let text = stream.await.unwrap();
            let events = sse(&text);
            let told: Vec<_> = events.iter().filter_map(|e| e["error"]["message"].as_str()).collect();
            assert_eq!(told.len(), 1, "not one error event in:\n{text}");
            assert!(told[0].contains("the engine stopped in the middle"), "{told:?}");
            assert!(!text.contains("[DONE]"), "{text}");
            assert!(!events.iter().any(|e| e["choices"][0]["finish_reason"].is_string()), "{text}");
            errors += 1;
            begun += usize::from(events.iter().any(has_text));
        }
        println!("{errors} of {STREAMS} open streams got an error event, {begun} of them after text");
        assert_eq!(errors, STREAMS);
        assert!(begun <= SEQUENCES, "{begun} streams at once");
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

fn has_text(event: &Value) -> bool {
    let delta = &event["choices"][0]["delta"];
    ["content", "reasoning_content"].iter().any(|field| delta[field].as_str().is_some_and(|text| !text.is_empty()))
}

/// A stream that would go on for much longer than the test lets it.
async fn stream(url: String, n: usize, open: Arc<AtomicUsize>) -> String {
    let body = json!({
        "messages": [{ "role": "user", "content": format!("Tell me a long story about the number {n}.") }],
        "stream": true, "max_tokens": 3000, "temperature": 1.0, "seed": n, "logit_bias": { "0": -100, "2": -100 },
    });
    let answer = reqwest::Client::new().post(format!("{url}/v1/chat/completions")).json(&body).send().await.unwrap();
    assert_eq!(answer.status().as_u16(), 200, "the engine takes {STREAMS} requests");
    open.fetch_add(1, Ordering::SeqCst);
    answer.text().await.unwrap()
}
