//! Questions to the daemon and their answers: the way every simulated user, the examiner and the prober speak to it.

use std::time::Duration;

use chimere::eval::golden::Item;
use chimere::turn::{Role, ToolCall};
use chimere::whole;
use serde_json::{Value, json};

use super::super::client::Client;
use super::super::exit::{EX_TEMPFAIL, code_of};

/// Tokens of thought before it is closed, as `chimere eval golden` asks.
const THINKING_TOKENS: u32 = 192;
/// Tokens of small talk.
pub const TALK_TOKENS: u32 = 64;
/// Tries of a request that the daemon has no room for.
const TRIES: usize = 60;
const PAUSE: Duration = Duration::from_millis(500);
/// Events that an impatient user waits for.
const EVENTS_BEFORE_LEAVING: usize = 3;

/// A reply, as its stream told it.
#[derive(Clone, Debug, Default)]
pub struct Reply {
    pub turn: String,
    pub content: String,
    pub thought: String,
    pub calls: Vec<ToolCall>,
    pub tokens: u64,
}

/// How questions are asked.
#[derive(Clone, Copy, Debug)]
pub struct Manner {
    /// Greedy, as exams are asked; else as the pipeline samples.
    pub greedy: bool,
    /// May be learned from.
    pub consent: bool,
}

/// The body of a request for an item.
pub fn question(item: &Item, manner: Manner, conversation: &str) -> Value {
    body(messages(item), &item.tools, item.max_tokens, manner, conversation)
}

pub fn talk(text: &str, manner: Manner, conversation: &str) -> Value {
    body(vec![json!({ "role": "user", "content": text })], &[], TALK_TOKENS, manner, conversation)
}

fn body(messages: Vec<Value>, tools: &[Value], max_tokens: u32, manner: Manner, conversation: &str) -> Value {
    let mut body = json!({
        "messages": messages,
        "max_tokens": max_tokens,
        "stream": true,
        "enable_thinking": true,
        "thinking_budget": THINKING_TOKENS,
        "chimere": { "conversation": conversation, "consent": manner.consent, "lessons": "none" },
    });
    if manner.greedy {
        body["temperature"] = json!(0);
    }
    if !tools.is_empty() {
        body["tools"] = json!(tools);
    }
    body
}

/// The messages in the API's form: calls carry ids, and what a tool says names its call.
fn messages(item: &Item) -> Vec<Value> {
    let mut calls = Vec::new();
    let mut answered = 0;
    let mut all = Vec::new();
    for message in &item.messages {
        let mut said = json!({ "role": message.role, "content": message.content });
        if !message.tool_calls.is_empty() {
            let first = calls.len();
            calls.extend((0..message.tool_calls.len()).map(|n| format!("call-{}", first + n)));
            let named = message.tool_calls.iter().zip(&calls[first..]);
            said["tool_calls"] = named
                .map(|(call, id)| {
                    let function = json!({ "name": call.name, "arguments": whole::written(&call.arguments) });
                    json!({ "id": id, "type": "function", "function": function })
                })
                .collect();
        }
        if message.role == Role::Tool {
            said["tool_call_id"] = json!(calls.get(answered).map_or("call-0", String::as_str));
            answered += 1;
        }
        all.push(said);
    }
    all
}

/// Sends a request until the daemon has room for it, and hears its stream to the end.
pub async fn ask(client: &Client, body: &Value) -> anyhow::Result<Reply> {
    let mut events = open(client, body).await?;
    let mut reply = Reply::default();
    let mut calls: Vec<(String, String)> = Vec::new();
    while let Some(event) = events.next().await? {
        if let Some(turn) = event["x_chimere"]["turn"].as_str() {
            reply.turn = turn.to_owned();
        }
        let delta = &event["choices"][0]["delta"];
        reply.content.push_str(delta["content"].as_str().unwrap_or_default());
        reply.thought.push_str(delta["reasoning_content"].as_str().unwrap_or_default());
        reply.tokens += u64::from(delta["content"].is_string() || delta["reasoning_content"].is_string());
        for call in delta["tool_calls"].as_array().into_iter().flatten() {
            let at = call["index"].as_u64().unwrap_or(0) as usize;
            if calls.len() <= at {
                calls.resize(at + 1, Default::default());
            }
            calls[at].0.push_str(call["function"]["name"].as_str().unwrap_or_default());
            calls[at].1.push_str(call["function"]["arguments"].as_str().unwrap_or_default());
        }
    }
    reply.calls = calls
        .into_iter()
        .map(|(name, arguments)| {
            let arguments = whole::read(&arguments).unwrap_or(Value::String(arguments));
            ToolCall { id: String::new(), name, arguments }
        })
        .collect();
    Ok(reply)
}

/// Sends a request and leaves after a few events.
pub async fn leave(client: &Client, body: &Value) -> anyhow::Result<()> {
    let mut events = open(client, body).await?;
    for _ in 0..EVENTS_BEFORE_LEAVING {
        if events.next().await?.is_none() {
            break;
        }
    }
    Ok(())
}

async fn open(client: &Client, body: &Value) -> anyhow::Result<super::super::client::Events> {
    let mut tries = 1;
    loop {
        match client.stream("/v1/chat/completions", body).await {
            Err(error) if code_of(&error) == EX_TEMPFAIL && tries < TRIES => tries += 1,
            opened => return opened,
        }
        tokio::time::sleep(PAUSE).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tool_turns_get_the_ids_of_the_api() {
        let item: Item = serde_json::from_value(json!({
            "id": "q", "domain": "tools", "family": "f", "check": { "kind": "exact", "value": "x" },
            "messages": [
                { "role": "user", "content": "a" },
                { "role": "assistant", "content": "", "tool_calls": [
                    { "name": "f", "arguments": { "x": 1 } }, { "name": "g", "arguments": {} }] },
                { "role": "tool", "content": "1" },
                { "role": "tool", "content": "2" },
            ],
        }))
        .unwrap();
        let said = messages(&item);
        assert_eq!(said[1]["tool_calls"][0]["function"]["arguments"], "{\"x\":1}");
        assert_eq!((&said[2]["tool_call_id"], &said[3]["tool_call_id"]), (&json!("call-0"), &json!("call-1")));
        let body = question(&item, Manner { greedy: true, consent: false }, "c");
        assert_eq!((&body["temperature"], &body["chimere"]["consent"]), (&json!(0), &json!(false)));
    }
}
