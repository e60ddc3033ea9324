//! Conversations as agents keep and send them: compacted, without ids, with a call that was cut off, gone on with.

use serde_json::{Value, json};

use crate::harness::{Daemon, chimere};

const CHAT: &str = "/v1/chat/completions";

fn said(role: &str, content: &str) -> Value {
    json!({"role": role, "content": content})
}

fn called(id: Value, arguments: &str) -> Value {
    let call = json!({"id": id, "type": "function", "function": {"name": "read", "arguments": arguments}});
    json!({"role": "assistant", "content": null, "tool_calls": [call]})
}

fn result(id: Value) -> Value {
    json!({"role": "tool", "tool_call_id": id, "content": "seven apples"})
}

#[tokio::test]
async fn histories_of_agents_are_answered_and_shown_whole() {
    let daemon = Daemon::start(&[]).await;
    let (system, user) = (said("system", "Be brief."), said("user", "How many apples are there?"));
    let whole = "{\"path\": \"notes/a\"}";
    let cut = "{\"path\": \"notes/a\", \"content\": \"def f(";
    for (what, messages, shown) in [
        (
            "no user",
            vec![system.clone(), called(json!("c1"), whole), result(json!("c1"))],
            vec!["notes/a", "seven apples"],
        ),
        ("a system alone", vec![said("system", "Say yes.")], vec!["Say yes."]),
        ("a late system", vec![user.clone(), said("developer", "In French."), user.clone()], vec!["In French."]),
        (
            "no ids",
            vec![user.clone(), called(Value::Null, whole), result(Value::Null)],
            vec!["notes/a", "seven apples"],
        ),
        ("a call that was cut off", vec![user.clone(), called(json!("c1"), cut), result(json!("c1"))], vec!["def f("]),
        ("the answer is begun", vec![user.clone(), said("assistant", "There are")], vec!["There are"]),
        ("two users", vec![system, user.clone(), user], vec!["How many apples"]),
    ] {
        let body = json!({"messages": messages, "max_tokens": 4, "enable_thinking": false});
        let (status, prompt) = daemon.post("/apply-template", &body).await;
        assert_eq!(status, 200, "{what}: {prompt}");
        let text = prompt["prompt"].as_str().unwrap();
        assert!(shown.iter().all(|part| text.contains(part)), "{what}: {text}");
        let (status, reply) = daemon.post(CHAT, &body).await;
        assert_eq!(status, 200, "{what}: {reply}");
        assert!(reply["usage"]["completion_tokens"].as_u64().unwrap() > 0, "{what}: {reply}");
    }
}

/// Numbers that no machine has are ids somewhere. They keep their digits on every way in and out.
#[tokio::test]
async fn long_numbers_in_the_calls_of_a_history_keep_their_digits() {
    let daemon = Daemon::start(&[]).await;
    let arguments = r#"{"id":123456789012345678901234567890,"less":-9223372036854775809}"#;
    for (at, sent) in [arguments.to_owned(), json!(arguments).to_string()].iter().enumerate() {
        let call = format!(r#"{{"id":"c1","type":"function","function":{{"name":"read","arguments":{sent}}}}}"#);
        let body = format!(
            r#"{{"messages":[{{"role":"user","content":"Which?"}},{{"role":"assistant","tool_calls":[{call}]}},
            {{"role":"tool","tool_call_id":"c1","content":"7"}}],"max_tokens":4,"enable_thinking":false}}"#
        );
        let post = async |path: &str| {
            let post = reqwest::Client::new().post(format!("{}{path}", daemon.url));
            let answer = post.header("content-type", "application/json").body(body.clone()).send().await.unwrap();
            assert_eq!(answer.status(), 200, "{path}");
            answer.text().await.unwrap()
        };
        let prompt = post("/apply-template").await;
        assert!(
            prompt.contains("123456789012345678901234567890") && prompt.contains("-9223372036854775809"),
            "{prompt}"
        );
        post(CHAT).await;
        let get = async |path: &str| reqwest::get(format!("{}{path}", daemon.url)).await.unwrap().text().await.unwrap();
        let (listed, exported) = (get("/v1/memory/turns").await, get("/v1/memory/export").await);
        let url = daemon.url.clone();
        let command = move || chimere().args(["memory", "export", "--url", &url]).output().unwrap().stdout;
        let by_command = String::from_utf8(tokio::task::spawn_blocking(command).await.unwrap()).unwrap();
        for text in [listed, exported, by_command] {
            assert_eq!(text.matches(&format!("\"arguments\":{arguments}")).count(), at + 1, "{text}");
            assert!(!text.contains('\u{fdd2}'), "{text}");
        }
    }
}

/// Agents pass some hundred messages every day. What is more than a request may have is refused as such.
#[tokio::test]
async fn a_conversation_of_four_thousand_short_messages_is_shown() {
    let daemon = Daemon::start(&[]).await;
    let talk = |count: usize| {
        let mut messages: Vec<Value> = (0..count).map(|n| said(["user", "assistant"][n % 2], "ok")).collect();
        messages[count / 2] = said("system", "Be brief.");
        json!({ "messages": messages })
    };
    for count in [175, 4_095] {
        let (status, shown) = daemon.post("/apply-template", &talk(count)).await;
        assert_eq!(status, 200, "{shown}");
        let prompt = shown["prompt"].as_str().unwrap();
        let (system, _) = prompt.split_once("<|im_end|>").unwrap();
        assert!(system.starts_with("<|im_start|>system\n") && system.ends_with("Be brief."), "{system}");
        assert!(prompt.matches("<|im_start|>").count() > count / 2);
    }
    let (status, reply) = daemon.post(CHAT, &json!({"messages": talk(301)["messages"], "max_tokens": 4})).await;
    assert_eq!(status, 200, "{reply}");
}
