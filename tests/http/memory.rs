//! Feedback, listing, export and forgetting: each key its own turns, the admin all.

use serde_json::{Value, json};

use crate::fake::{ADMIN_KEY, CHAT_KEY, OTHER_KEY, TURNS};
use crate::{Answer, Server, server};

async fn of(server: &Server, method: &str, path: &str, key: &str) -> Answer {
    server.send(server.client.request(method.parse().unwrap(), server.url(path)).bearer_auth(key)).await
}

#[tokio::test(flavor = "multi_thread")]
async fn listing_pages_and_keeps_to_the_own_turns() {
    let server = server().await;
    let own = of(&server, "GET", "/v1/memory/turns?limit=1000", CHAT_KEY).await.json();
    assert_eq!(own["data"].as_array().unwrap().len(), TURNS / 2);
    assert_eq!(own["has_more"], false);
    let none = of(&server, "GET", "/v1/memory/turns", OTHER_KEY).await.json();
    assert_eq!(none["data"], json!([]));
    let page = of(&server, "GET", "/v1/memory/turns?limit=2&after=turn-000003", CHAT_KEY).await.json();
    assert_eq!((&page["data"][0]["id"], &page["has_more"]), (&json!("turn-000004"), &json!(true)));
    let newest = of(&server, "GET", "/v1/memory/turns?limit=2&order=desc", CHAT_KEY).await.json();
    let last = &own["data"][TURNS / 2 - 1];
    assert_eq!((&newest["data"][0], &newest["has_more"]), (last, &json!(true)));
    let before = format!("/v1/memory/turns?limit=1&order=desc&after={}", last["id"].as_str().unwrap());
    assert_eq!(of(&server, "GET", &before, CHAT_KEY).await.json()["data"][0], newest["data"][1]);
    // Where to go on is said, also by a listing whose time was up.
    assert_eq!((&page["next"], &own["next"]), (&page["data"][1]["id"], &Value::Null));
    let slow = of(&server, "GET", "/v1/memory/turns?conversation=slow", CHAT_KEY).await.json();
    assert_eq!((&slow["data"], &slow["has_more"]), (&json!([]), &json!(true)));
    let on = format!("/v1/memory/turns?conversation=slow&after={}", slow["next"].as_str().unwrap());
    assert_eq!(of(&server, "GET", &on, CHAT_KEY).await.json()["has_more"], false);
    let export = of(&server, "GET", "/v1/memory/export?conversation=slow", CHAT_KEY).await;
    assert_eq!(export.status, 200);
    assert_eq!(export.text, "");
    let all = of(&server, "GET", "/v1/memory/turns?limit=1000", ADMIN_KEY).await.json();
    assert_eq!(all["data"].as_array().unwrap().len(), TURNS);
    let foreign = of(&server, "GET", "/v1/memory/turns?principal=somebody", CHAT_KEY).await;
    assert_eq!(foreign.status, 403);
    let some =
        of(&server, "GET", "/v1/memory/turns?principal=somebody&conversation=c1&since_ms=100", ADMIN_KEY).await.json();
    assert!(some["data"].as_array().unwrap().iter().all(|t| t["principal"] == "somebody" && t["conversation"] == "c1"));
    // A page of nothing would have no last turn, and a client that pages no end.
    let nothing = of(&server, "GET", "/v1/memory/turns?limit=0", CHAT_KEY).await;
    assert!(nothing.error()["message"].as_str().unwrap().contains("between 1 and 1000"), "{}", nothing.text);
    for bad in ["?limit=x", "?limit=0", "?limit=1001", "?nonsense=1", "?order=new", "?since_ms=1.5"] {
        let answer = of(&server, "GET", &format!("/v1/memory/turns{bad}"), CHAT_KEY).await;
        assert_eq!((answer.status, &answer.error()["code"]), (400, &json!("bad_query")), "{bad}");
    }
}

/// A wrong id is not taken for an empty log.
#[tokio::test(flavor = "multi_thread")]
async fn a_turn_that_is_not_there_is_named() {
    let server = server().await;
    for (method, path) in [
        ("GET", "/v1/memory/turns?turn=zz"),
        ("GET", "/v1/memory/turns?turn=turn-zz"),
        ("GET", "/v1/memory/turns?after=zz"),
        ("GET", "/v1/memory/turns?after=aa"),
        ("GET", "/v1/memory/export?turn=zz"),
        ("GET", "/v1/memory/export?after=zz"),
        ("DELETE", "/v1/memory/turns?turn=chatcmpl-zz"),
        ("GET", "/v1/memory/turns?turn=turn-000005"),
    ] {
        let answer = of(&server, method, path, CHAT_KEY).await;
        assert_eq!((answer.status, &answer.error()["code"]), (404, &json!("not_found")), "{method} {path}");
        let named = path.rsplit(['=', '-']).next().unwrap();
        assert!(answer.error()["message"].as_str().unwrap().contains(named), "{path}: {}", answer.text);
    }
    // A page may begin behind a turn that is gone since, or behind a time.
    assert_eq!(of(&server, "GET", "/v1/memory/turns?after=turn-zz", ADMIN_KEY).await.json()["data"], json!([]));
    assert_eq!(
        of(&server, "GET", "/v1/memory/turns?limit=1&after=", ADMIN_KEY).await.json()["data"][0]["id"],
        "turn-000000"
    );
    assert_eq!(of(&server, "GET", "/v1/memory/turns?conversation=none", CHAT_KEY).await.json()["data"], json!([]));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_export_is_one_json_a_line_and_complete() {
    let server = server().await;
    let answer = of(&server, "GET", "/v1/memory/export", ADMIN_KEY).await;
    assert_eq!(answer.headers["content-type"], "application/jsonl");
    let ids: Vec<Value> =
        answer.text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap()["id"].clone()).collect();
    assert_eq!(ids.len(), TURNS);
    assert!(ids.windows(2).all(|pair| pair[0].as_str() < pair[1].as_str()));
    assert_eq!(of(&server, "GET", "/v1/memory/export", CHAT_KEY).await.text.lines().count(), TURNS / 2);
    assert_eq!(of(&server, "GET", "/v1/memory/export", OTHER_KEY).await.text, "");
    assert_eq!(of(&server, "GET", "/v1/memory/export?limit=5", CHAT_KEY).await.status, 400);
}

#[tokio::test(flavor = "multi_thread")]
async fn forgetting_must_be_meant_and_keeps_to_the_own_turns() {
    let server = server().await;
    assert_eq!(of(&server, "DELETE", "/v1/memory/turns", CHAT_KEY).await.status, 400);
    assert!(server.fake.forgets.lock().unwrap().is_empty());
    for name in ["turn-000004", "chatcmpl-000004", "cmpl-000004"] {
        let one = of(&server, "DELETE", &format!("/v1/memory/turns?turn={name}"), CHAT_KEY).await.json();
        assert_eq!(one["turns"], 1, "{name}");
        let behind = of(&server, "GET", &format!("/v1/memory/turns?limit=1&after={name}"), ADMIN_KEY).await.json();
        assert_eq!(behind["data"][0]["id"], "turn-000005", "{name}");
    }
    let foreign = of(&server, "DELETE", "/v1/memory/turns?turn=turn-000005", CHAT_KEY).await;
    assert_eq!(foreign.status, 404, "another principal's turn");
    let dropped = of(&server, "DELETE", "/v1/memory/turns?turn=turn-dropped", CHAT_KEY).await;
    assert_eq!((dropped.status, &dropped.json()["lessons"]), (200, &json!(1)), "its lesson went");
    assert_eq!(of(&server, "DELETE", "/v1/memory/turns?all=true", CHAT_KEY).await.json()["turns"], TURNS / 2);
    assert_eq!(of(&server, "DELETE", "/v1/memory/turns?all=true", ADMIN_KEY).await.json()["turns"], TURNS);
    assert_eq!(of(&server, "DELETE", "/v1/memory/turns?all=true&principal=somebody", CHAT_KEY).await.status, 403);
}

#[tokio::test(flavor = "multi_thread")]
async fn feedback_reaches_the_service() {
    let server = server().await;
    let good = server.post("/v1/feedback", &json!({"turn": "turn-1", "vote": "down", "correction": "4"})).await;
    assert_eq!((good.status, &good.json()["recorded"]), (200, &json!(true)));
    assert_eq!(good.json()["lesson"], "lesson-fake");
    let (name, feedback) = server.fake.feedbacks.lock().unwrap().pop().unwrap();
    assert_eq!(
        (name.as_str(), feedback.turn.0.as_str(), feedback.correction.as_deref()),
        ("owner", "turn-1", Some("4"))
    );
    let late = server.post("/v1/feedback", &json!({"turn": "turn-1", "correction": "late"})).await.json();
    assert_eq!((&late["lesson"], late.get("no_lesson")), (&json!("unknown"), None), "it may be kept yet");
    // By the id of its reply.
    let told = server.post("/v1/feedback", &json!({"turn": "chatcmpl-2", "vote": "up"})).await.json();
    assert_eq!(told["turn"], "turn-2");
    assert_eq!(server.fake.feedbacks.lock().unwrap().pop().unwrap().1.turn.0, "turn-2");
    assert_eq!(server.post("/v1/feedback", &json!({"turn": "turn-none", "vote": "up"})).await.status, 404);
    for bad in [
        json!({"turn": "t"}),
        json!({"vote": "up"}),
        json!({"turn": "t", "vote": "meh"}),
        json!({"turn": 5, "vote": "up"}),
        json!({"turn": "t", "correction": ""}),
        json!({"turn": "t", "vote": "up", "correction": " \n"}),
    ] {
        assert_eq!(server.post("/v1/feedback", &bad).await.status, 400, "{bad}");
    }
}
