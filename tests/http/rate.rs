//! What the door costs: the stream must keep at least 95 % of the rate at which tokens are made.

use std::time::{Duration, Instant};

use serde_json::json;

use crate::{chat_body, server};

/// Tokens in the timed stream.
const TOKENS: usize = 50_000;
/// An engine far faster than any of this project's; the door must not be what limits it.
const TOKENS_PER_S_MIN: f64 = 10_000.0;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_carries_far_more_tokens_than_an_engine_makes() {
    let server = server().await;
    let body = chat_body(&format!("fast {TOKENS}"), json!({"stream": true}));
    let begun = Instant::now();
    let mut response = server.client.post(server.url("/v1/chat/completions")).json(&body).send().await.unwrap();
    let (mut bytes, mut events, mut reads, mut last) = (0usize, 0usize, 0usize, Vec::new());
    while let Some(chunk) = response.chunk().await.unwrap() {
        bytes += chunk.len();
        reads += 1;
        events += chunk.windows(2).filter(|pair| pair == b"\n\n").count();
        last = chunk.to_vec();
    }
    let took = begun.elapsed();
    let rate = TOKENS as f64 / took.as_secs_f64();
    eprintln!("{TOKENS} tokens, {events} events, {bytes} bytes in {reads} reads, {took:?}: {rate:.0} tokens/s");
    assert!(last.ends_with(b"data: [DONE]\n\n"));
    assert!(rate > TOKENS_PER_S_MIN, "{rate:.0} tokens/s");
}

/// Client streams at once in the paced test.
const STREAMS: usize = 8;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn paced_streams_keep_their_pace() {
    let server = server().await;
    // 20 ms a token: what is above that pace is the door's own delay.
    let tokens = 50;
    let begun = Instant::now();
    let streams = (0..STREAMS).map(|_| server.chat("slow 50", json!({"stream": true})));
    for answer in futures_util::future::join_all(streams).await {
        assert!(answer.text.ends_with("data: [DONE]\n\n"));
    }
    let took = begun.elapsed();
    // The fake's own timer is coarse (1 ms) and the machine may be busy: the bound is loose on purpose.
    assert!(took < Duration::from_millis(20 * tokens) * 2, "{took:?}");
}
