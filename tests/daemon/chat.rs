//! A chat, whole and streamed, and what comes back with it.

use serde_json::json;

use crate::harness::{Daemon, sse};
use crate::model::changed;

#[tokio::test]
async fn a_sum_is_answered_and_ends_by_itself() {
    let daemon = Daemon::start(&[]).await;
    let reply = daemon.chat("What is 17 + 25?").await;
    let choice = &reply["choices"][0];
    assert!(choice["message"]["content"].as_str().unwrap().contains("42"), "{reply}");
    assert_eq!(choice["finish_reason"], "stop");
    let usage = &reply["usage"];
    assert_eq!(
        usage["total_tokens"].as_u64().unwrap(),
        usage["prompt_tokens"].as_u64().unwrap() + usage["completion_tokens"].as_u64().unwrap()
    );
    assert!(reply["x_chimere"]["route"].is_string(), "{reply}");
    assert!(reply["x_chimere"]["pipeline_version"].is_string(), "{reply}");
}

/// The same network under another name is another model: nothing says that what was measured for nano is right for it.
#[tokio::test]
async fn another_model_gets_nothing_of_what_was_chosen_for_nano() {
    let daemon = Daemon::start(&[]).await;
    let file = changed(&daemon.state.path().join("mini.gguf"), "general.name", "nano", "mini");
    let (status, swapped) = daemon.post("/v1/admin/model", &json!({"path": file, "wait": true})).await;
    assert_eq!(status, 200, "{swapped}");
    for route in ["default", "code", "cyber", "kine", "research"] {
        let body = json!({"messages": [{"role": "user", "content": "Hi"}], "chimere": {"route": route}});
        let (status, shown) = daemon.post("/apply-template", &body).await;
        assert_eq!(status, 200, "{shown}");
        let prompt = shown["prompt"].as_str().unwrap();
        assert!(!prompt.contains("<|im_start|>system"), "{prompt}");
        let terms = &shown["x_chimere"];
        // The sampling is that of its family.
        assert!(terms["sampling"]["temperature"] != 0.2 && terms["sampling"]["min_p"] != 0.05, "{terms}");
        assert!(terms["max_tokens"] != 1_024 && terms["max_tokens"] != 1_536, "{terms}");
        assert!(!terms["thinking"].to_string().contains("budget_tokens"), "{terms}");
    }
}

/// What nano is told and asked with, to the letter: it was chosen by measuring.
#[tokio::test]
async fn what_a_chat_sends_can_be_asked_and_is_what_it_sends() {
    let daemon = Daemon::start(&[]).await;
    for (route, system, budget, length) in [
        ("default", "You are nano, a small assistant.", 256, 1_024),
        ("code", "You help with code. Be exact.", 384, 1_536),
        ("cyber", "You are a security assistant.", 256, 1_024),
        ("kine", "You answer questions on exercise and anatomy.", 256, 1_024),
        ("research", "You answer only from the given sources and cite them.", 384, 1_024),
    ] {
        let body = json!({
            "messages": [{ "role": "developer", "content": "Be brief." }, { "role": "user", "content": "Hi" }],
            "chimere": { "route": route },
        });
        let (status, shown) = daemon.post("/apply-template", &body).await;
        assert_eq!(status, 200, "{shown}");
        let text = format!(
            "<|im_start|>system\n{system}\n\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n<think>\n"
        );
        assert_eq!(shown["prompt"], text);
        let terms = &shown["x_chimere"];
        assert_eq!(
            (&terms["max_tokens"], &terms["thinking"]),
            (&json!(length), &json!({"on": {"budget_tokens": budget}}))
        );
        let sampling = ["temperature", "top_p", "min_p", "top_k"].map(|name| terms["sampling"][name].clone());
        assert_eq!(sampling, [json!(0.2), json!(0.95), json!(0.05), json!(0)]);
    }
    // Histories as agents compact them, and answers that are gone on with.
    let call = json!([{ "id": "c", "type": "function", "function": { "name": "f", "arguments": "{}" } }]);
    for (messages, more) in [
        (json!([{ "role": "user", "content": "a" }, { "role": "system", "content": "s" }]), json!({})),
        (
            json!([{ "role": "system", "content": "s" }, { "role": "assistant", "content": null, "tool_calls": call },
                { "role": "tool", "tool_call_id": "c", "content": "42" }]),
            json!({ "chat_template_kwargs": { "preserve_thinking": true } }),
        ),
        (
            json!([{ "role": "user", "content": "q" }, { "role": "assistant", "content": "The answer is" }]),
            json!({ "continue_final_message": true }),
        ),
    ] {
        let mut body = json!({ "messages": messages, "temperature": 0, "max_tokens": 4 });
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let (status, shown) = daemon.post("/apply-template", &body).await;
        assert_eq!(status, 200, "{shown}");
        let (status, reply) = daemon.post("/v1/chat/completions", &body).await;
        assert_eq!(status, 200, "{reply}");
        let turn = reply["x_chimere"]["turn"].as_str().unwrap();
        let (_, turns) = daemon.get(&format!("/v1/memory/turns?turn={turn}")).await;
        assert_eq!(turns["data"][0]["prompt_ids"], shown["tokens"], "{messages}");
    }
}

#[tokio::test]
async fn a_stream_says_the_same_as_the_whole_reply() {
    let daemon = Daemon::start(&[]).await;
    let whole = daemon.chat("What is 17 + 25?").await;
    let body = json!({
        "messages": [{ "role": "user", "content": "What is 17 + 25?" }], "temperature": 0, "stream": true,
        "stream_options": { "include_usage": true },
    });
    let answer = reqwest::Client::new().post(format!("{}/v1/chat/completions", daemon.url)).json(&body).send().await;
    let text = answer.unwrap().text().await.unwrap();
    assert!(text.trim_end().ends_with("data: [DONE]"), "{text}");
    let events = sse(&text);
    let joined =
        |field: &str| -> String { events.iter().filter_map(|e| e["choices"][0]["delta"][field].as_str()).collect() };
    assert_eq!(joined("content"), whole["choices"][0]["message"]["content"].as_str().unwrap());
    assert_eq!(joined("reasoning_content"), whole["choices"][0]["message"]["reasoning_content"].as_str().unwrap_or(""));
    let finishes: Vec<_> = events.iter().filter(|e| e["choices"][0]["finish_reason"].is_string()).collect();
    assert_eq!(finishes.len(), 1);
    assert_eq!(events.last().unwrap()["usage"]["completion_tokens"], whole["usage"]["completion_tokens"]);
}

#[tokio::test]
async fn neighbours_do_not_change_a_reply() {
    let daemon = Daemon::start(&[]).await;
    let questions = ["What is 17 + 25?", "Hello!", "What is 9 * 7?", "Who are you?"];
    let mut alone = Vec::new();
    for question in questions {
        alone.push(daemon.chat(question).await["choices"][0]["message"].clone());
    }
    let together = futures_util::future::join_all(questions.map(|q| daemon.chat(q))).await;
    for (a, b) in alone.iter().zip(&together) {
        assert_eq!(*a, b["choices"][0]["message"]);
    }
}

#[tokio::test]
async fn feedback_reaches_the_turn_and_forgetting_removes_it() {
    let daemon = Daemon::start(&[]).await;
    let reply = daemon.chat("Hello!").await;
    let turn = reply["x_chimere"]["turn"].as_str().unwrap();
    let (status, answer) =
        daemon.post("/v1/feedback", &json!({ "turn": turn, "vote": "down", "correction": "Good morning!" })).await;
    assert_eq!(status, 200, "{answer}");
    let (_, turns) = daemon.get("/v1/memory/turns").await;
    let kept = turns["data"].as_array().unwrap();
    assert_eq!(kept.len(), 1, "{turns}");
    assert_eq!(kept[0]["feedback"][0]["correction"], "Good morning!");
    assert_eq!(kept[0]["consent"], true);
    let client = reqwest::Client::new();
    let gone = client.delete(format!("{}/v1/memory/turns?turn={turn}", daemon.url)).send().await.unwrap();
    assert_eq!(gone.status().as_u16(), 200);
    assert!(daemon.get("/v1/memory/turns").await.1["data"].as_array().unwrap().is_empty());
    let (status, _) = daemon.post("/v1/feedback", &json!({ "turn": turn, "vote": "up" })).await;
    assert_eq!(status, 404);
}
