//! Long streams: every token arrives once and in order, however fast the engine and however many the readers. What the
//! door costs in time is measured by `chimere bench --http`.

use serde_json::{Value, json};

use crate::server;

const TOKENS: usize = 20_000;
const STREAMS: usize = 8;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_token_of_many_long_streams_arrives_once_and_in_order() {
    let server = server().await;
    let order = format!("fast {TOKENS}");
    let streams = (0..STREAMS).map(|_| server.chat(&order, json!({"stream": true})));
    let expected: String = (0..TOKENS).map(|i| format!("tok{} ", i % 100)).collect();
    for answer in futures_util::future::join_all(streams).await {
        assert!(answer.text.ends_with("data: [DONE]\n\n"));
        let data = answer.text.lines().filter_map(|line| line.strip_prefix("data: ")).filter(|data| *data != "[DONE]");
        let chunks: Vec<Value> = data.map(|data| serde_json::from_str(data).unwrap()).collect();
        // The role, the tokens, the finish.
        assert_eq!(chunks.len(), TOKENS + 2);
        let text: String = chunks.iter().filter_map(|c| c["choices"][0]["delta"]["content"].as_str()).collect();
        assert!(text == expected, "tokens were lost, doubled or out of order");
    }
}
