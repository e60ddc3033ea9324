//! Replies under way, as a key may see and end them.

use serde_json::json;

use crate::fake::{ADMIN_KEY, CHAT_KEY, METRICS_KEY};
use crate::server;

#[tokio::test(flavor = "multi_thread")]
async fn runs_are_listed_shown_and_cancelled_by_whom_they_are_for() {
    let server = server().await;
    let list = server.get("/v1/runs").await.json();
    assert_eq!((&list["object"], &list["data"][0]["object"]), (&json!("list"), &json!("run")));
    let one = server.get("/v1/runs/turn-owner").await.json();
    assert_eq!((&one["id"], &one["step"], &one["steps"]), (&json!("turn-owner"), &json!(1), &json!(2)));
    // By the reply's own id as well.
    assert_eq!(server.get("/v1/runs/chatcmpl-owner").await.json(), one);
    assert_eq!(server.get("/v1/runs/turn-none").await.status, 404);
    let gone = server.send(server.client.delete(server.url("/v1/runs/chatcmpl-owner"))).await.json();
    assert_eq!(gone, json!({"object": "run.cancelled", "id": "turn-owner", "cancelled": true}));
    assert_eq!(server.fake.ended.lock().unwrap().len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_client_of_a_cancelled_reply_is_told_so_and_need_not_ask_again() {
    let server = server().await;
    let told = server.chat("cancelled", json!({})).await;
    assert_eq!((told.status, &told.error()["code"]), (410, &json!("reply_cancelled")));
    assert!(told.headers.get("retry-after").is_none());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_sees_its_own_and_the_admin_scope_everybodys() {
    let server = server().await;
    let seen = async |key: &str| server.send(server.client.get(server.url("/v1/runs")).bearer_auth(key)).await;
    let own = seen(CHAT_KEY).await.json();
    assert_eq!((own["data"].as_array().unwrap().len(), &own["data"][0]["id"]), (1, &json!("fake-1")));
    assert_eq!(seen(ADMIN_KEY).await.json()["data"].as_array().unwrap().len(), 3);
    assert_eq!(seen(METRICS_KEY).await.status, 403);
    let foreign = server.client.delete(server.url("/v1/runs/turn-owner")).bearer_auth(CHAT_KEY);
    assert_eq!(server.send(foreign).await.status, 404);
    assert!(server.fake.ended.lock().unwrap().is_empty());
}
