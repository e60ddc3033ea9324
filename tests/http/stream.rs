//! Event streams: framing, order, the last chunks, errors on the way, and what a departing client costs.

use std::sync::atomic::Ordering;
use std::time::Duration;

use chimere::http::HttpLimits;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::{Answer, PATIENCE, chat_body, server, server_with};

/// The `data:` events of a stream, checked line by line; comments are counted.
fn events(answer: &Answer) -> (Vec<String>, usize) {
    assert_eq!(answer.status, 200, "{answer:?}");
    assert!(answer.headers["content-type"].to_str().unwrap().starts_with("text/event-stream"));
    assert!(answer.text.ends_with("\n\n"), "{:?}", answer.text);
    let mut comments = 0;
    let mut data = Vec::new();
    for block in answer.text.trim_end_matches("\n\n").split("\n\n") {
        assert!(!block.contains('\n'), "one line an event: {block:?}");
        match block.strip_prefix("data: ") {
            Some(event) => data.push(event.to_owned()),
            None => {
                assert!(block.starts_with(':'), "{block:?}");
                comments += 1;
            }
        }
    }
    (data, comments)
}

fn chunks(answer: &Answer) -> Vec<Value> {
    let (mut data, _) = events(answer);
    assert_eq!(data.pop().as_deref(), Some("[DONE]"));
    data.iter().map(|event| serde_json::from_str(event).unwrap()).collect()
}

fn text(chunks: &[Value], choice: u64, field: &str) -> String {
    chunks
        .iter()
        .flat_map(|c| c["choices"].as_array().unwrap())
        .filter(|c| c["index"] == choice)
        .filter_map(|c| c["delta"][field].as_str())
        .collect()
}

/// Whole numbers of any length leave as such, whoever is told of the call.
#[tokio::test(flavor = "multi_thread")]
async fn long_numbers_of_a_call_are_told_as_numbers() {
    let server = server().await;
    for (body, told) in [
        (json!({}), 1),
        (json!({"stream": true, "chimere": {"steps": "events"}}), 3),
        (json!({"stream": true, "stream_options": {"include_usage": true}}), 1),
    ] {
        let answer = server.chat("counts", body).await;
        assert_eq!(answer.text.matches(r#""arguments":{"n":18446744073709551616}"#).count(), told, "{}", answer.text);
        assert!(!answer.text.contains('\u{fdd2}'), "{}", answer.text);
    }
}

/// Whoever asks hears of each step, in a chunk that any client of the API can read.
#[tokio::test(flavor = "multi_thread")]
async fn steps_are_told_as_they_happen_where_that_is_asked_for() {
    let server = server().await;
    for (chimere, told) in [(json!({}), 0), (json!({"steps": "program"}), 0), (json!({"steps": "events"}), 2)] {
        let chunks = chunks(&server.chat("think", json!({"stream": true, "chimere": chimere})).await);
        let steps: Vec<&Value> = chunks.iter().filter(|chunk| chunk["x_chimere"]["step"].is_object()).collect();
        assert_eq!(steps.len(), told, "{chunks:?}");
        for (chunk, state) in steps.iter().zip(["began", "ended"]) {
            let silent = json!([{"index": 0, "delta": {}, "logprobs": null, "finish_reason": null}]);
            assert_eq!(chunk["choices"], silent, "never empty: clients read the first");
            let step = &chunk["x_chimere"]["step"];
            assert_eq!((&step["state"], &step["kind"]), (&json!(state), &json!("generate")));
            assert!(step.get("text").is_none(), "{step}");
        }
        let own = &chunks.last().unwrap()["x_chimere"];
        assert_eq!((&own["trace"][0]["name"], own["trace"][0].get("text")), (&json!("answer"), None));
        // Beside the usage of the answer.
        assert_eq!(
            own["usage"]["total_tokens"],
            own["usage"]["prompt_tokens"].as_u64().unwrap() + own["usage"]["completion_tokens"].as_u64().unwrap()
        );
    }
    let refused = server.chat("think", json!({"chimere": {"steps": "some"}})).await;
    assert_eq!((refused.status, refused.error()["param"].as_str()), (400, Some("chimere.steps")));
}

#[tokio::test(flavor = "multi_thread")]
async fn chunks_come_in_openais_order() {
    let server = server().await;
    let extra = json!({"stream": true, "stream_options": {"include_usage": true}, "logprobs": true});
    let chunks = chunks(&server.chat("think", extra).await);
    let first = &chunks[0]["choices"][0];
    assert_eq!((&first["delta"]["role"], &first["finish_reason"]), (&json!("assistant"), &Value::Null));
    assert_eq!(text(&chunks, 0, "reasoning_content"), "let me see ");
    assert_eq!(text(&chunks, 0, "content"), "forty two");
    for chunk in &chunks {
        assert_eq!((&chunk["object"], &chunk["id"]), (&json!("chat.completion.chunk"), &json!("chatcmpl-000000")));
        assert_eq!((&chunk["model"], &chunk["created"]), (&json!("fake-1"), &json!(1_700_000_000)));
        assert_eq!(chunk["system_fingerprint"], "fp_0123456789abcdef");
    }
    let logprobs = chunks.iter().filter(|c| c["choices"][0]["logprobs"]["content"].is_array()).count();
    assert_eq!(logprobs, 2);
    let [.., finish, usage] = chunks.as_slice() else { panic!("too few chunks") };
    assert_eq!((&finish["choices"][0]["finish_reason"], &finish["usage"]), (&json!("stop"), &Value::Null));
    assert_eq!(finish["choices"][0]["delta"], json!({}));
    assert_eq!((&usage["choices"], &usage["usage"]["completion_tokens"]), (&json!([]), &json!(5)));
    assert_eq!(usage["x_chimere"]["turn"], "turn-000000");
    assert!(finish.get("x_chimere").is_none(), "only the last chunk carries it");
}

/// A revision follows what was shown as plain text, marked; who takes the reply whole gets the better answer alone.
#[tokio::test(flavor = "multi_thread")]
async fn a_revision_is_text_of_the_stream_and_replaces_the_answer_of_a_whole_reply() {
    let server = server().await;
    let chunks = chunks(&server.chat("revise", json!({"stream": true})).await);
    let shown = text(&chunks, 0, "content");
    let (first, revised) = shown.split_once("\n\n---\n\n**Revised answer**\n\n").unwrap_or_else(|| panic!("{shown:?}"));
    assert_eq!((first, revised), ("you said revise", "a better answer"));
    let finishes = chunks.iter().filter(|c| c["choices"][0]["finish_reason"].is_string()).count();
    assert_eq!(finishes, 1, "the end is told once");
    let quality = &chunks.last().unwrap()["x_chimere"]["quality"];
    assert_eq!(*quality, json!({"outcome": "revised", "verdicts": [1, 4], "kept": 1, "took_ms": 7}));
    let whole = server.chat("revise", json!({})).await.json();
    assert_eq!(whole["choices"][0]["message"]["content"], "a better answer");
    assert_eq!((&whole["choices"][0]["finish_reason"], &whole["x_chimere"]["quality"]), (&json!("stop"), quality));
}

#[tokio::test(flavor = "multi_thread")]
async fn without_usage_the_finish_chunk_is_the_last() {
    let server = server().await;
    let chunks = chunks(&server.chat("a \"quoted\" \u{e9}\n word", json!({"stream": true, "n": 3})).await);
    for choice in 0..3 {
        assert_eq!(text(&chunks, choice, "content"), "you said a \"quoted\" \u{e9}\n word");
    }
    let finishes: Vec<_> = chunks.iter().filter(|c| c["choices"][0]["finish_reason"].is_string()).collect();
    assert_eq!(finishes.len(), 3);
    assert!(chunks.iter().all(|c| c.get("usage").is_none()));
    assert_eq!(chunks.last().unwrap()["x_chimere"]["route"], "default");
    assert_eq!(chunks.iter().filter(|c| c.get("x_chimere").is_some()).count(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn tool_calls_stream_as_argument_deltas() {
    let server = server().await;
    let tools = json!([{"type": "function", "function": {"name": "get_weather"}}]);
    let chunks = chunks(&server.chat("tools", json!({"stream": true, "tools": tools})).await);
    let mut arguments = [String::new(), String::new()];
    let mut names = Vec::new();
    for call in chunks.iter().filter_map(|c| c["choices"][0]["delta"]["tool_calls"].as_array()).flatten() {
        let index = call["index"].as_u64().unwrap() as usize;
        if let Some(name) = call["function"]["name"].as_str() {
            assert_eq!(call["type"], "function");
            names.push((call["id"].as_str().unwrap().to_owned(), name.to_owned()));
        }
        arguments[index].push_str(call["function"]["arguments"].as_str().unwrap());
    }
    assert_eq!(names, [("call_1".into(), "get_weather".into()), ("call_2".into(), "get_weather".to_owned())]);
    assert_eq!(serde_json::from_str::<Value>(&arguments[1]).unwrap()["city"], "Rome");
    let finish = &chunks.last().unwrap()["choices"][0];
    assert_eq!(finish["finish_reason"], "tool_calls");
}

#[tokio::test(flavor = "multi_thread")]
async fn completions_stream_text() {
    let server = server().await;
    let body = json!({"prompt": "hello", "stream": true, "echo": true});
    let chunks = chunks(&server.post("/v1/completions", &body).await);
    let text: String = chunks.iter().filter_map(|c| c["choices"][0]["text"].as_str()).collect();
    assert_eq!(text, "helloyou said hello");
    assert!(chunks.iter().all(|c| c["object"] == "text_completion"));
    assert_eq!(chunks.last().unwrap()["choices"][0]["finish_reason"], "stop");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_early_failure_has_a_status_and_a_late_one_an_event() {
    let server = server().await;
    let early = server.chat("fail-early", json!({"stream": true})).await;
    assert_eq!((early.status, &early.error()["code"]), (400, &json!("context_length_exceeded")));
    // A request that the engine has taken, also one that waits there without a first token.
    for order in ["fail-late", "fail-queued"] {
        let late = server.chat(order, json!({"stream": true})).await;
        let (data, _) = events(&late);
        let last: Value = serde_json::from_str(data.last().unwrap()).unwrap();
        assert_eq!(last["error"]["message"], "the engine stopped");
        assert_eq!(last["error"]["type"], "server_error");
        assert!(!data.iter().any(|d| d == "[DONE]" || d.contains("\"finish_reason\":\"")), "{data:?}");
    }
    let whole = server.chat("fail-queued", json!({})).await;
    assert_eq!((whole.status, &whole.error()["message"]), (500, &json!("the engine stopped")));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_silent_stream_is_kept_alive_and_then_given_up() {
    let limits = HttpLimits {
        keep_alive_interval_ms: 50,
        stream_open_wait_ms: 50,
        reply_silence_timeout_ms: 2_000,
        ..HttpLimits::default()
    };
    let server = server_with(limits).await;
    let answer = server.chat("hang", json!({"stream": true})).await;
    let (data, comments) = events(&answer);
    // Forty where nothing else runs.
    assert!(comments >= 3, "{comments} comments");
    assert!(data.last().unwrap().contains("no progress"), "{data:?}");
    let whole = server.chat("hang", json!({})).await;
    assert_eq!(whole.status, 503);
    wait_for_cancelled(&server, 2).await;
}

async fn wait_for_cancelled(server: &crate::Server, count: u64) {
    wait_for_cancelled_count(&server.fake, count).await;
}

pub async fn wait_for_cancelled_count(fake: &crate::fake::Fake, count: u64) {
    let wait = async {
        while fake.cancelled.load(Ordering::SeqCst) < count {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(PATIENCE, wait).await.expect("the reply was not cancelled");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_leaves_cancels_its_reply() {
    let server = server().await;
    for (count, stream) in [(1, true), (2, false)] {
        let body = chat_body("slow 100000", json!({"stream": stream})).to_string();
        let request = format!(
            "POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        );
        let mut connection = server.connect().await;
        connection.write_all(request.as_bytes()).await.unwrap();
        if stream {
            let mut buffer = [0u8; 64];
            connection.read_exact(&mut buffer).await.unwrap();
        } else {
            let arrived = async {
                while (server.fake.requests.lock().unwrap().len() as u64) < count {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
            };
            tokio::time::timeout(PATIENCE, arrived).await.expect("the question did not arrive");
        }
        assert_eq!(server.fake.cancelled.load(Ordering::SeqCst), count - 1);
        drop(connection);
        wait_for_cancelled(&server, count).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reader_that_stops_reading_is_dropped() {
    let limits = HttpLimits { write_timeout_ms: 300, ..HttpLimits::default() };
    let server = server_with(limits).await;
    let body = chat_body("fast 10000000", json!({"stream": true})).to_string();
    let request = format!(
        "POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    let mut connection = server.connect().await;
    connection.write_all(request.as_bytes()).await.unwrap();
    wait_for_cancelled(&server, 1).await;
    drop(connection);
}
