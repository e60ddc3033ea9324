//! Completions by the real model: control tokens of a prompt, the likelihood of its tokens, several prompts at once.

use serde_json::{Value, json};

use crate::harness::Daemon;

const COMPLETIONS: &str = "/v1/completions";

async fn ask(daemon: &Daemon, body: Value) -> Value {
    let (status, reply) = daemon.post(COMPLETIONS, &body).await;
    assert_eq!(status, 200, "{reply}");
    reply
}

fn likely(choice: &Value) -> Vec<(String, f64)> {
    let (tokens, numbers) = (&choice["logprobs"]["tokens"], &choice["logprobs"]["token_logprobs"]);
    let numbers = numbers.as_array().unwrap().iter().map(|number| number.as_f64().unwrap_or(0.0));
    tokens.as_array().unwrap().iter().map(|token| token.as_str().unwrap().to_owned()).zip(numbers).collect()
}

#[tokio::test]
async fn a_prompt_is_read_as_its_caller_wrote_it_and_each_token_of_it_has_its_likelihood() {
    let daemon = Daemon::start(&[]).await;
    // The text of a template is read as the template's own tokens.
    let chat = json!({"messages": [{"role": "user", "content": "Hello there."}]});
    let (_, template) = daemon.post("/apply-template", &chat).await;
    let prompt = template["prompt"].as_str().unwrap();
    let tokens = async |extra: Value| {
        let mut body = json!({"prompt": prompt, "max_tokens": 1});
        body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        ask(&daemon, body).await["usage"]["prompt_tokens"].as_u64().unwrap()
    };
    let (_, ids) = daemon.post("/tokenize", &json!({"content": prompt})).await;
    assert_eq!(tokens(json!({})).await, ids["tokens"].as_array().unwrap().len() as u64);
    assert!(tokens(json!({"parse_special": false})).await > tokens(json!({})).await);
    // What was likeliest when it was written is likeliest when it is read, with the same number.
    let story = "Once upon a time there was a boat";
    let written = ask(&daemon, json!({"prompt": story, "max_tokens": 12, "temperature": 0, "logprobs": 1})).await;
    let written = likely(&written["choices"][0]);
    let whole = written.iter().fold(story.to_owned(), |text, (token, _)| text + token);
    let read = json!({"prompt": [whole, story], "max_tokens": 1, "echo": true, "logprobs": 1, "temperature": 0});
    let reply = ask(&daemon, read).await;
    let choice = &reply["choices"][0];
    let read = likely(choice);
    let (_, pieces) = daemon.post("/tokenize", &json!({"content": whole, "parse_special": false})).await;
    let count = pieces["tokens"].as_array().unwrap().len();
    assert!(read.len() == count + 1 && choice["logprobs"]["token_logprobs"][0].is_null(), "{choice}");
    let again = &read[count - written.len()..count];
    for ((token, before), (same, now)) in written.iter().zip(again) {
        assert!(token == same && (before - now).abs() < 1e-2, "{token} {before}, {same} {now}");
    }
    let tops = choice["logprobs"]["top_logprobs"].as_array().unwrap();
    for (at, top) in tops[count - written.len()..count].iter().enumerate() {
        let best = top.as_object().unwrap().values().filter_map(Value::as_f64).fold(f64::NEG_INFINITY, f64::max);
        assert_eq!(best, again[at].1, "greedy: {top}");
    }
    assert_eq!(reply["choices"][1]["text"].as_str().unwrap()[..story.len()], *story);
    // Clients know an overflow by these words.
    let (status, answer) = daemon.post(COMPLETIONS, &json!({"prompt": vec![5; 300_000]})).await;
    let message = answer["error"]["message"].as_str().unwrap();
    assert_eq!((status, &answer["error"]["code"]), (400, &json!("context_length_exceeded")), "{answer}");
    assert_eq!(answer["error"]["param"], "prompt");
    assert!(message.contains("maximum context length is") && message.contains("300000 tokens"), "{message}");
    // What no tokens could make short enough is refused unread.
    let long = "x".repeat(3_000_000);
    for (path, body) in [
        (COMPLETIONS, json!({"prompt": long})),
        ("/v1/chat/completions", json!({"messages": [{"role": "user", "content": long}]})),
    ] {
        let (status, answer) = daemon.post(path, &body).await;
        assert_eq!((status, &answer["error"]["code"]), (400, &json!("context_length_exceeded")), "{path}");
        assert!(answer["error"]["message"].as_str().unwrap().contains("more than"), "{}", answer["error"]["message"]);
    }
}
