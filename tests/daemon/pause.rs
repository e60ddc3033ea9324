//! Pause and resume asked by several at once.

use futures_util::future::join_all;
use serde_json::json;

use crate::harness::Daemon;

/// Each waits until the other is over: nobody is told of a failure, and the last word stands.
#[tokio::test]
async fn two_who_pause_and_resume_at_once_are_both_served() {
    let daemon = Daemon::start(&[]).await;
    for _ in 0..4 {
        let orders = ["pause", "resume", "pause", "resume", "resume", "pause"];
        let asked = orders.map(|order| {
            let daemon = &daemon;
            async move { daemon.post(&format!("/v1/admin/{order}"), &json!({})).await }
        });
        for (status, answer) in join_all(asked).await {
            assert_eq!(status, 200, "{answer}");
        }
    }
    assert_eq!(daemon.post("/v1/admin/resume", &json!({})).await.1, json!({"paused": false}));
    let chat = json!({"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2});
    assert_eq!(daemon.post("/v1/chat/completions", &chat).await.0, 200);
}
