//! Every parameter of the chat endpoint shows in the real model's replies: in their words, their variety or their
//! end. The list is held to the one that the daemon publishes, so that a new parameter needs its line here.

use std::collections::BTreeSet;

use futures_util::future::LocalBoxFuture;
use serde_json::{Value, json};

use crate::harness::{Daemon, sse};

const CHAT: &str = "/v1/chat/completions";
/// The tokens that end a reply of this model.
const ENDS: [&str; 2] = ["0", "2"];

type Check = for<'a> fn(&'a Daemon, &'static str) -> LocalBoxFuture<'a, ()>;

macro_rules! checks {
    ($($name:literal: $check:ident,)*) => { &[$(($name, |daemon, name| Box::pin($check(daemon, name)))),*] };
}

const CHECKS: &[(&str, Check)] = checks! {
    "messages": other_words_get_another_answer,
    "model": only_the_served_model_answers,
    "temperature": heat_makes_answers_differ,
    "top_p": a_narrow_choice_is_the_likeliest,
    "top_k": a_narrow_choice_is_the_likeliest,
    "min_p": a_narrow_choice_is_the_likeliest,
    "repetition_penalty": a_penalty_makes_words_vary,
    "repeat_penalty": a_penalty_makes_words_vary,
    "frequency_penalty": a_penalty_makes_words_vary,
    "presence_penalty": a_penalty_makes_words_vary,
    "seed": a_seed_repeats_and_another_does_not,
    "logit_bias": a_bias_decides,
    "max_tokens": a_length_is_kept,
    "max_completion_tokens": a_length_is_kept,
    "n": as_many_choices_as_asked,
    "stop": the_answer_ends_before_the_stop,
    "stream": a_stream_is_events,
    "stream_options": usage_comes_if_asked_for,
    "tools": tools_are_shown_to_the_model,
    "tool_choice": a_forced_call_is_made,
    "parallel_tool_calls": one_call_or_more,
    "response_format": the_answer_has_its_form,
    "logprobs": tokens_are_told,
    "top_logprobs": alternatives_are_told,
    "reasoning_effort": an_effort_opens_or_closes_the_thought,
    "enable_thinking": a_switch_opens_or_closes_the_thought,
    "thinking_budget": a_thought_ends_at_its_budget,
    "chat_template_kwargs": arguments_of_the_template_count,
    "continue_final_message": the_last_answer_is_gone_on_with,
    "add_generation_prompt": the_last_answer_is_gone_on_with,
    "modalities": nothing_changes,
    "chimere": our_own_object_is_read,
    "x_chimere": our_own_object_is_read,
    "user": nothing_changes,
    "metadata": nothing_changes,
    "store": nothing_changes,
    "service_tier": nothing_changes,
    "safety_identifier": nothing_changes,
    "prompt_cache_key": nothing_changes,
    "prompt_cache_options": nothing_changes,
    "prompt_cache_retention": nothing_changes,
    "moderation": nothing_changes,
    "verbosity": nothing_changes,
    "prediction": nothing_changes,
    "cache_prompt": nothing_changes,
};

#[tokio::test]
async fn every_parameter_of_the_chat_endpoint_shows_in_what_comes_back() {
    let daemon = Daemon::start(&[]).await;
    let (_, document) = daemon.get("/openapi.json").await;
    let body = &document["paths"][CHAT]["post"]["requestBody"]["content"]["application/json"]["schema"];
    let schema = document.pointer(body["$ref"].as_str().unwrap().trim_start_matches('#')).unwrap();
    let published: BTreeSet<&str> = schema["properties"].as_object().unwrap().keys().map(String::as_str).collect();
    assert_eq!(CHECKS.iter().map(|(name, _)| *name).collect::<BTreeSet<_>>(), published);
    for (name, check) in CHECKS {
        println!("{name}");
        check(&daemon, name).await;
    }
}

/// A short story without a thought, the likeliest one, with what is given put in.
fn body(extra: Value) -> Value {
    let mut body = json!({
        "messages": [{"role": "user", "content": "Tell me a story about a boat."}],
        "enable_thinking": false, "max_tokens": 40, "temperature": 0,
    });
    let (Some(to), Value::Object(from)) = (body.as_object_mut(), extra) else { panic!("no object") };
    for (name, value) in from {
        if value.is_null() {
            to.shift_remove(&name)
        } else {
            to.insert(name, value)
        };
    }
    body
}

async fn ask(daemon: &Daemon, extra: Value) -> Value {
    let (status, reply) = daemon.post(CHAT, &body(extra)).await;
    assert_eq!(status, 200, "{reply}");
    reply
}

fn said(choice: &Value) -> &str {
    choice["message"]["content"].as_str().unwrap_or_default()
}

/// How many different answers eight choices are.
async fn variety(daemon: &Daemon, extra: Value) -> usize {
    let mut all = json!({"n": 8, "seed": 7});
    all.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
    let reply = ask(daemon, all).await;
    reply["choices"].as_array().unwrap().iter().map(said).collect::<BTreeSet<_>>().len()
}

/// The tokens of one answer of 120.
async fn tokens(daemon: &Daemon, extra: Value) -> Vec<String> {
    let mut all = json!({"logprobs": true, "max_tokens": 120, "logit_bias": {ENDS[0]: -100, ENDS[1]: -100}});
    all.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
    let reply = ask(daemon, all).await;
    let content = reply["choices"][0]["logprobs"]["content"].as_array().unwrap();
    content.iter().map(|token| token["token"].as_str().unwrap().to_owned()).collect()
}

async fn thought(daemon: &Daemon, extra: Value) -> u64 {
    let reply = ask(daemon, extra).await;
    reply["usage"]["completion_tokens_details"]["reasoning_tokens"].as_u64().unwrap()
}

fn tools(names: &[&str]) -> Value {
    let parameters = json!({"type": "object", "properties": {"place": {"type": "string", "maxLength": 8}},
        "required": ["place"], "additionalProperties": false});
    let tool = |name: &&str| json!({"type": "function", "function": {"name": name, "parameters": parameters}});
    names.iter().map(tool).collect()
}

async fn other_words_get_another_answer(daemon: &Daemon, _: &str) {
    let other = json!({"messages": [{"role": "user", "content": "What is 17 + 25?"}]});
    assert_ne!(said(&ask(daemon, json!({})).await["choices"][0]), said(&ask(daemon, other).await["choices"][0]));
}

async fn only_the_served_model_answers(daemon: &Daemon, _: &str) {
    let served = ask(daemon, json!({})).await["model"].clone();
    assert_eq!(ask(daemon, json!({"model": served})).await["model"], served);
    let (status, error) = daemon.post(CHAT, &body(json!({"model": "another"}))).await;
    assert_eq!((status, &error["error"]["code"]), (404, &json!("model_not_found")));
}

async fn heat_makes_answers_differ(daemon: &Daemon, name: &str) {
    assert_eq!(variety(daemon, json!({name: 0})).await, 1);
    let (warm, hot) = (variety(daemon, json!({name: 0.2})).await, variety(daemon, json!({name: 1.5})).await);
    assert!(hot >= 6 && hot >= warm, "{warm} of 8 at 0.2, {hot} at 1.5");
}

async fn a_narrow_choice_is_the_likeliest(daemon: &Daemon, name: &str) {
    let (wide, narrow) = match name {
        "top_k" => (json!(0), json!(1)),
        "top_p" => (json!(1), json!(0.001)),
        _ => (json!(0), json!(1)),
    };
    assert!(variety(daemon, json!({"temperature": 1.5, name: wide})).await >= 6, "{name}");
    let hot = ask(daemon, json!({"temperature": 1.5, "seed": 3, name: narrow})).await;
    assert_eq!(hot["choices"][0]["message"], ask(daemon, json!({})).await["choices"][0]["message"], "{name}");
}

async fn a_penalty_makes_words_vary(daemon: &Daemon, name: &str) {
    // Below what switches it off it favours what was said before.
    let favour = if name.starts_with("rep") { json!(0.5) } else { json!(-2) };
    let different = |tokens: Vec<String>| tokens.into_iter().collect::<BTreeSet<_>>().len();
    let (same, varied) = (tokens(daemon, json!({name: favour})).await, tokens(daemon, json!({name: 2})).await);
    let (same, varied) = (different(same), different(varied));
    assert!(varied > same + same / 4, "{name}: {same} different tokens where it favours, {varied} where it bars");
}

async fn a_seed_repeats_and_another_does_not(daemon: &Daemon, name: &str) {
    let mut answers = Vec::new();
    for seed in [11, 11, 12, 13] {
        answers.push(said(&ask(daemon, json!({"temperature": 1.5, name: seed})).await["choices"][0]).to_owned());
    }
    assert_eq!(answers[0], answers[1]);
    assert!(answers[0] != answers[2] && answers[2] != answers[3], "{answers:?}");
}

async fn a_bias_decides(daemon: &Daemon, name: &str) {
    let (_, word) = daemon.post("/tokenize", &json!({"content": " boat", "with_pieces": true})).await;
    let (id, piece) = (&word["tokens"][0]["id"], &word["tokens"][0]["piece"]);
    let forced = tokens(daemon, json!({name: {id.to_string(): 100}, "max_tokens": 5})).await;
    assert_eq!(forced, vec![piece.as_str().unwrap(); 5]);
    let barred = tokens(daemon, json!({name: {id.to_string(): -100}})).await;
    assert!(!barred.iter().any(|token| token == piece), "{barred:?}");
}

async fn a_length_is_kept(daemon: &Daemon, name: &str) {
    for length in [1, 7] {
        let reply = ask(daemon, json!({"max_tokens": null, name: length})).await;
        assert_eq!(reply["usage"]["completion_tokens"], length);
        assert_eq!(reply["choices"][0]["finish_reason"], "length");
    }
}

async fn as_many_choices_as_asked(daemon: &Daemon, name: &str) {
    for n in [1, 3] {
        let reply = ask(daemon, json!({name: n, "seed": 5})).await;
        assert_eq!(reply["choices"].as_array().unwrap().len(), n);
        assert_eq!(reply["x_chimere"]["seeds"], (5..5 + n).collect::<Value>());
    }
}

async fn the_answer_ends_before_the_stop(daemon: &Daemon, name: &str) {
    let whole = ask(daemon, json!({})).await;
    let whole = said(&whole["choices"][0]);
    let word = whole.split_whitespace().nth(4).unwrap();
    let cut = ask(daemon, json!({name: [word]})).await;
    assert_eq!(said(&cut["choices"][0]), whole.split(word).next().unwrap());
    assert_eq!(cut["choices"][0]["finish_reason"], "stop");
}

async fn streamed(daemon: &Daemon, extra: Value) -> (String, String) {
    let url = format!("{}{CHAT}", daemon.url);
    let answer = reqwest::Client::new().post(url).json(&body(extra)).send().await.unwrap();
    let kind = answer.headers()["content-type"].to_str().unwrap().to_owned();
    (kind, answer.text().await.unwrap())
}

async fn a_stream_is_events(daemon: &Daemon, name: &str) {
    let (kind, text) = streamed(daemon, json!({name: true})).await;
    assert!(kind.starts_with("text/event-stream") && text.ends_with("data: [DONE]\n\n"), "{kind}: {text}");
    let told: String = sse(&text).iter().filter_map(|e| e["choices"][0]["delta"]["content"].as_str()).collect();
    assert_eq!(told, said(&ask(daemon, json!({name: false})).await["choices"][0]));
}

async fn usage_comes_if_asked_for(daemon: &Daemon, name: &str) {
    for wanted in [false, true] {
        let (_, text) = streamed(daemon, json!({"stream": true, name: {"include_usage": wanted}})).await;
        let usage = sse(&text).pop().unwrap()["usage"]["total_tokens"].as_u64();
        assert_eq!(usage.is_some(), wanted, "{text}");
    }
}

async fn tools_are_shown_to_the_model(daemon: &Daemon, name: &str) {
    let read = async |extra: Value| ask(daemon, extra).await["usage"]["prompt_tokens"].as_u64().unwrap();
    let (none, one, two) = (
        read(json!({})).await,
        read(json!({name: tools(&["f"])})).await,
        read(json!({name: tools(&["f", "g"])})).await,
    );
    assert!(none < one && one < two, "{none}, {one}, {two} tokens of prompt");
}

async fn a_forced_call_is_made(daemon: &Daemon, name: &str) {
    let calls = async |choice: Value| {
        let reply = ask(daemon, json!({"tools": tools(&["sail", "row"]), "max_tokens": 100, name: choice})).await;
        reply["choices"][0]["message"]["tool_calls"][0]["function"]["name"].clone()
    };
    assert_eq!(calls(json!("none")).await, Value::Null);
    assert!(calls(json!("required")).await.is_string());
    for function in ["sail", "row"] {
        assert_eq!(calls(json!({"type": "function", "function": {"name": function}})).await, function);
    }
}

async fn one_call_or_more(daemon: &Daemon, name: &str) {
    let calls = async |several: bool| {
        // The model would rather call again than end.
        let ends = json!({ENDS[0]: -100, ENDS[1]: -100});
        let extra = json!({"tools": tools(&["f"]), "tool_choice": "required", "logit_bias": ends, "max_tokens": 200, name: several});
        ask(daemon, extra).await["choices"][0]["message"]["tool_calls"].as_array().unwrap().len()
    };
    assert_eq!(calls(false).await, 1);
    assert!(calls(true).await > 1);
}

async fn the_answer_has_its_form(daemon: &Daemon, name: &str) {
    let schema = json!({"type": "object", "properties": {"size": {"enum": ["small", "large"]}}, "required": ["size"],
        "additionalProperties": false});
    let format = json!({"type": "json_schema", "json_schema": {"name": "boat", "schema": schema}});
    let plain = ask(daemon, json!({name: {"type": "text"}})).await;
    assert!(serde_json::from_str::<Value>(said(&plain["choices"][0])).is_err());
    let formed = ask(daemon, json!({name: format})).await;
    let value: Value = serde_json::from_str(said(&formed["choices"][0])).unwrap();
    assert!(value == json!({"size": "small"}) || value == json!({"size": "large"}), "{value}");
}

async fn tokens_are_told(daemon: &Daemon, name: &str) {
    assert_eq!(ask(daemon, json!({name: false})).await["choices"][0]["logprobs"], Value::Null);
    let reply = ask(daemon, json!({name: true})).await;
    let content = reply["choices"][0]["logprobs"]["content"].as_array().unwrap();
    let text: String = content.iter().map(|token| token["token"].as_str().unwrap()).collect();
    assert_eq!(text, said(&reply["choices"][0]));
}

async fn alternatives_are_told(daemon: &Daemon, name: &str) {
    for top in [0, 5, 20] {
        let reply = ask(daemon, json!({"logprobs": true, "max_tokens": 3, name: top})).await;
        let content = reply["choices"][0]["logprobs"]["content"].as_array().unwrap();
        assert!(content.iter().all(|token| token["top_logprobs"].as_array().unwrap().len() == top), "{reply}");
    }
}

async fn an_effort_opens_or_closes_the_thought(daemon: &Daemon, name: &str) {
    let with = async |effort: &str| thought(daemon, json!({"enable_thinking": null, name: effort})).await;
    assert_eq!((with("none").await, with("minimal").await), (0, 0));
    for effort in ["low", "medium", "high", "xhigh"] {
        assert!(with(effort).await > 0, "{effort}");
    }
}

async fn a_switch_opens_or_closes_the_thought(daemon: &Daemon, name: &str) {
    assert_eq!(thought(daemon, json!({name: false})).await, 0);
    assert!(thought(daemon, json!({name: true})).await > 0);
}

/// The prompt ends within the last answer: no new turn is opened behind it.
async fn the_last_answer_is_gone_on_with(daemon: &Daemon, name: &str) {
    let messages = json!([
        {"role": "user", "content": "Tell me a story about a boat."},
        {"role": "assistant", "content": "Once upon a time, a boat"},
    ]);
    let anew = ask(daemon, json!({"messages": messages})).await;
    let gone_on = ask(daemon, json!({"messages": messages, name: name == "continue_final_message"})).await;
    let read = |reply: &Value| reply["usage"]["prompt_tokens"].as_u64().unwrap();
    assert!(read(&gone_on) < read(&anew), "{gone_on}");
}

async fn a_thought_ends_at_its_budget(daemon: &Daemon, name: &str) {
    // Left to itself the model ends its thought early.
    let (_, close) = daemon.post("/tokenize", &json!({"content": "</think>"})).await;
    let bias = json!({close["tokens"][0].to_string(): -100, ENDS[0]: -100, ENDS[1]: -100});
    let with = async |budget: u32| {
        let extra = json!({"enable_thinking": null, "logit_bias": bias, "max_tokens": 60, name: budget});
        thought(daemon, extra).await
    };
    let (none, little, much) = (with(0).await, with(3).await, with(30).await);
    // The words that close a thought are part of it.
    let near = |budget: u64, found: u64| (budget..=budget + 5).contains(&found);
    assert!(none == 0 && near(3, little) && near(30, much), "{none}, {little}, {much} tokens of thought");
}

async fn arguments_of_the_template_count(daemon: &Daemon, name: &str) {
    assert_eq!(thought(daemon, json!({"enable_thinking": null, name: {"enable_thinking": false}})).await, 0);
    assert!(thought(daemon, json!({"enable_thinking": null, name: {"enable_thinking": true}})).await > 0);
}

async fn our_own_object_is_read(daemon: &Daemon, name: &str) {
    for route in ["code", "default"] {
        let reply = ask(daemon, json!({name: {"route": route, "conversation": "c"}})).await;
        assert_eq!(reply["x_chimere"]["route"], route);
    }
}

/// What is accepted without effect has none.
async fn nothing_changes(daemon: &Daemon, name: &str) {
    let value = match name {
        "modalities" => json!(["text"]),
        "metadata" | "prediction" => json!({"type": "content", "content": "x"}),
        "store" | "cache_prompt" => json!(true),
        _ => json!("anything"),
    };
    let plain = ask(daemon, json!({"seed": 1, "temperature": 1.5})).await;
    let with = ask(daemon, json!({"seed": 1, "temperature": 1.5, name: value})).await;
    assert_eq!(plain["choices"], with["choices"], "{name}");
}
