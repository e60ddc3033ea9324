//! Sessions at the door: what may be asked, and what is told.

use chimere::service::SessionAt;
use chimere::turn::TurnId;
use serde_json::json;

use crate::server;

#[tokio::test(flavor = "multi_thread")]
async fn a_session_is_told_as_a_chat_request_takes_it() {
    let server = server().await;
    let list = server.get("/v1/sessions").await.json();
    assert_eq!((&list["object"], &list["data"][0]["name"]), (&json!("list"), &json!("fake-1")));
    let told = server.get("/v1/sessions/trip").await.json();
    assert_eq!((&told["object"], &told["turn"]), (&json!("session"), &json!("turn-000001")));
    assert!(told.get("principal").is_none(), "{told}");
    let call = json!({"id": "call-1", "type": "function", "function": {"name": "look", "arguments": "{\"at\":1}"}});
    let said = json!([
        {"role": "user", "content": "Look"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": "42", "tool_call_id": "call-1"},
    ]);
    assert_eq!(told["messages"], said);
    let again = json!({"model": "fake-1", "messages": said});
    assert_eq!(server.post("/v1/chat/completions", &again).await.status, 200, "what was told can be sent");
}

#[tokio::test(flavor = "multi_thread")]
async fn saving_says_where_and_whether_another_may_be_moved() {
    let server = server().await;
    let saved = server.post("/v1/sessions", &json!({"name": "trip", "turn": "chatcmpl-7"})).await.json();
    assert_eq!((&saved["object"], &saved["name"]), (&json!("session"), &json!("trip")));
    server.post("/v1/sessions", &json!({"name": "taken", "from": "trip", "replace": true})).await;
    let asked = std::mem::take(&mut *server.fake.saved.lock().unwrap());
    let owner = "owner".to_owned();
    assert_eq!(
        asked,
        [
            (owner.clone(), "trip".to_owned(), SessionAt::Turn(TurnId("turn-7".to_owned())), false),
            (owner, "taken".to_owned(), SessionAt::Session("trip".to_owned()), true),
        ]
    );
    let conflict = server.post("/v1/sessions", &json!({"name": "taken", "from": "trip"})).await;
    assert_eq!((conflict.status, &conflict.error()["code"]), (409, &json!("conflict")));
    for (param, bad) in [
        ("turn", json!({"name": "a"})),
        ("turn", json!({"name": "a", "turn": "t", "from": "b"})),
        ("name", json!({"turn": "t"})),
        ("nonsense", json!({"name": "a", "turn": "t", "nonsense": 1})),
        ("replace", json!({"name": "a", "turn": "t", "replace": "yes"})),
    ] {
        let answer = server.post("/v1/sessions", &bad).await;
        let error = answer.error();
        let place = format!("{} {}", error["param"], error["message"]);
        assert!(answer.status == 400 && place.contains(param), "{bad}: {place}");
    }
    let deleted = server.send(server.client.delete(server.url("/v1/sessions/trip"))).await;
    assert_eq!(deleted.json(), json!({"object": "session.deleted", "name": "trip", "deleted": true}));
    assert_eq!(server.send(server.client.delete(server.url("/v1/sessions/none"))).await.status, 404);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_chat_names_its_session_and_a_completion_has_none() {
    let server = server().await;
    let body = json!({"messages": [{"role": "user", "content": "hello"}], "chimere": {"session": "trip"}});
    let reply = server.post("/v1/chat/completions", &body).await.json();
    assert_eq!(reply["x_chimere"]["session"], json!({"name": "trip", "messages": 2}));
    assert_eq!(server.fake.requests.lock().unwrap().pop().unwrap().session.as_deref(), Some("trip"));
    let plain = json!({"prompt": "hello", "chimere": {"session": "trip"}});
    let refused = server.post("/v1/completions", &plain).await;
    assert_eq!((refused.status, &refused.error()["param"]), (400, &json!("chimere.session")));
}
