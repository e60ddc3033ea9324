//! Chat messages as OpenAI's clients send them, read into `turn::Message`.

use std::collections::VecDeque;
use std::marker::PhantomData;

use serde::de::value::MapAccessDeserializer;
use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::{Value, json};

use crate::http::body;
use crate::http::error::ApiError;
use crate::http::limits::HttpLimits;
use crate::http::table;
use crate::turn::{Message, Role, ToolCall};
use crate::whole;

/// Characters of an unknown type that a refusal repeats.
const KIND_CHARS_SHOWN: usize = 80;
/// Under this name the text of arguments is kept that are no JSON object.
const CUT_OFF: &str = "arguments";

/// Calls of one message: twice what a reply may have.
const CALLS_MAX: usize = 128;

/// What is read of a JSON object alone: serde would take the fields of a struct in an array too.
#[derive(Debug)]
pub(crate) struct Object<T>(T);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Object<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Object<T>, D::Error> {
        deserializer.deserialize_map(Fields(PhantomData)).map(Object)
    }
}

struct Fields<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de>> Visitor<'de> for Fields<T> {
    type Value = T;

    fn expecting(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("a map")
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<T, A::Error> {
        T::deserialize(MapAccessDeserializer::new(map))
    }
}

/// A message on the wire. Clients send replies back with whatever they or another server put into them: what is not read
/// here has no effect.
#[derive(Debug, Deserialize)]
pub(crate) struct RawMessage {
    role: String,
    #[serde(default)]
    content: Value,
    name: Option<String>,
    reasoning_content: Option<String>,
    /// Another name of it. Servers write both, and clients send both back.
    reasoning: Option<Value>,
    tool_calls: Option<Vec<Object<RawCall>>>,
    tool_call_id: Option<String>,
    /// Only null passes: sound and the calls of the old API are not read.
    audio: Option<Value>,
    function_call: Option<Value>,
}

#[derive(Debug, Deserialize)]
struct RawCall {
    id: Option<String>,
    #[serde(rename = "type", default)]
    kind: Option<String>,
    function: Object<RawFunction>,
}

#[derive(Debug, Deserialize)]
struct RawFunction {
    name: String,
    #[serde(default)]
    arguments: Value,
}

/// Reads all messages of a request.
pub(crate) fn messages(raw: Vec<Object<RawMessage>>, limits: &HttpLimits) -> Result<Vec<Message>, ApiError> {
    if raw.is_empty() {
        return Err(ApiError::param("messages", "`messages` must have at least one message"));
    }
    if raw.len() > limits.messages_max {
        return Err(ApiError::param("messages", format!("`messages` has more than {} messages", limits.messages_max)));
    }
    let mut ids = Ids::default();
    raw.into_iter()
        .enumerate()
        .map(|(at, Object(raw))| message(raw, &format!("messages[{at}]"), &mut ids, limits))
        .collect()
}

/// Ids for calls that were sent without one, and the same for their results, which come in the order of the calls.
#[derive(Default)]
struct Ids {
    made: usize,
    unanswered: VecDeque<String>,
}

impl Ids {
    /// Nine letters and digits: some templates take no other.
    fn make(&mut self) -> String {
        self.made += 1;
        let id = format!("call{:05}", self.made);
        self.unanswered.push_back(id.clone());
        id
    }

    fn answered(&mut self) -> Option<String> {
        self.unanswered.pop_front()
    }
}

fn message(raw: RawMessage, at: &str, ids: &mut Ids, limits: &HttpLimits) -> Result<Message, ApiError> {
    for (field, value) in [("audio", &raw.audio), ("function_call", &raw.function_call)] {
        if value.is_some() {
            return Err(ApiError::unsupported(format!("{at}.{field}"), format!("`{field}` is not supported")));
        }
    }
    let role = match raw.role.as_str() {
        "system" | "developer" => Role::System,
        "user" => Role::User,
        "assistant" => Role::Assistant,
        "tool" => Role::Tool,
        other => {
            let sent = table::found(&json!(other));
            let message = format!("the role must be system, developer, user, assistant or tool, not {sent}");
            return Err(ApiError::param(format!("{at}.role"), message));
        }
    };
    let tool_calls = raw.tool_calls.unwrap_or_default();
    if role != Role::Assistant && !tool_calls.is_empty() {
        return Err(ApiError::param(format!("{at}.tool_calls"), "only the assistant calls tools"));
    }
    if tool_calls.len() > CALLS_MAX {
        let message = format!("{} calls in one message, over the limit of {CALLS_MAX}", tool_calls.len());
        return Err(ApiError::param(format!("{at}.tool_calls"), message));
    }
    let tool_call_id = match (role, raw.tool_call_id) {
        (Role::Tool, Some(id)) if !id.is_empty() => Some(id),
        (Role::Tool, unnamed) => ids.answered().or(unnamed),
        (_, other) => other,
    };
    if role == Role::Tool && tool_call_id.is_none() {
        return Err(ApiError::param(format!("{at}.tool_call_id"), "a tool's message must name the call it answers"));
    }
    // A tool that gave nothing; an answer of calls alone.
    let may_be_empty = matches!(role, Role::Assistant | Role::Tool);
    let content = match raw.content {
        Value::Null if may_be_empty => String::new(),
        Value::Null => return Err(ApiError::param(format!("{at}.content"), "the content is missing")),
        content => text(content, at)?,
    };
    Ok(Message {
        role,
        content,
        reasoning_content: raw.reasoning_content.or_else(|| Some(raw.reasoning?.as_str()?.to_owned())),
        tool_calls: tool_calls
            .into_iter()
            .enumerate()
            .map(|(i, Object(call))| {
                let id = call.id.clone().filter(|id| !id.is_empty()).unwrap_or_else(|| ids.make());
                tool_call(call, id, &format!("{at}.tool_calls[{i}]"), limits)
            })
            .collect::<Result<_, _>>()?,
        tool_call_id,
        name: raw.name,
    })
}

/// A message as a client sends it.
pub(crate) fn sent(message: &Message) -> Value {
    let Message { role, content, reasoning_content, tool_calls, tool_call_id, name } = message;
    let mut value = json!({"role": role, "content": content});
    let calls = (!tool_calls.is_empty()).then(|| tool_calls.iter().map(super::reply::tool_call).collect());
    for (field, given) in [
        ("reasoning_content", reasoning_content.clone().map(Value::from)),
        ("tool_calls", calls),
        ("tool_call_id", tool_call_id.clone().map(Value::from)),
        ("name", name.clone().map(Value::from)),
    ] {
        if let Some(given) = given {
            value[field] = given;
        }
    }
    value
}

/// A string, or an array of text parts, which are joined.
fn text(content: Value, at: &str) -> Result<String, ApiError> {
    let parts = match content {
        Value::String(text) => return Ok(text),
        Value::Array(parts) => parts,
        other => {
            let message = format!("the content must be a string or an array of parts, not {}", table::found(&other));
            return Err(ApiError::param(format!("{at}.content"), message));
        }
    };
    let mut text = String::new();
    for (i, part) in parts.iter().enumerate() {
        let path = format!("{at}.content[{i}]");
        match part.get("type").and_then(Value::as_str) {
            // Of an earlier reply that refused.
            Some(kind @ ("text" | "refusal")) => match part.get(kind).and_then(Value::as_str) {
                Some(piece) => text.push_str(piece),
                None => {
                    let message = format!("a part of type `{kind}` needs a string `{kind}`");
                    return Err(ApiError::param(format!("{path}.{kind}"), message));
                }
            },
            Some("image_url" | "input_audio" | "file" | "video_url") => {
                return Err(ApiError::param(
                    path,
                    "this model reads text only: image, sound and file parts are refused",
                )
                .code("unsupported_content"));
            }
            kind => {
                let of_type =
                    |kind: &str| format!("of the type {:?}", kind.chars().take(KIND_CHARS_SHOWN).collect::<String>());
                let sent = kind.map_or_else(|| table::found(part), of_type);
                let message = format!("a part of the content must be of the type `text`, not {sent}");
                return Err(ApiError::param(path, message));
            }
        }
    }
    Ok(text)
}

fn tool_call(raw: RawCall, id: String, at: &str, limits: &HttpLimits) -> Result<ToolCall, ApiError> {
    if raw.kind.as_deref().is_some_and(|kind| kind != "function") {
        return Err(ApiError::param(format!("{at}.type"), "only calls of type `function` exist"));
    }
    let wrong =
        || ApiError::param(format!("{at}.function.arguments"), "the arguments must be a JSON object in a string");
    let Object(RawFunction { name, arguments }) = raw.function;
    let arguments = match arguments {
        Value::String(text) if text.trim().is_empty() => Value::Object(serde_json::Map::new()),
        // JSON inside a string is not seen by the limit of the body, and would break the frame to the engine.
        Value::String(text) if body::depth(text.as_bytes()) > limits.json_depth_max => {
            let message = format!("the arguments nest deeper than {} levels", limits.json_depth_max);
            return Err(ApiError::param(format!("{at}.function.arguments"), message).code("json_too_deep"));
        }
        // A call that was cut off or had no object, as agents send back what they got: its text is kept as an argument of
        // its own.
        Value::String(text) => match whole::read(&text) {
            Ok(Value::Null) => Value::Object(serde_json::Map::new()),
            Ok(object) if object.is_object() => object,
            _ => json!({ CUT_OFF: text }),
        },
        Value::Null => Value::Object(serde_json::Map::new()),
        value => value,
    };
    if !arguments.is_object() {
        return Err(wrong());
    }
    Ok(ToolCall { id, name, arguments })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::http::body::typed;

    fn of(value: Value) -> Result<Vec<Message>, ApiError> {
        messages(typed(value)?, &HttpLimits::default())
    }

    #[test]
    fn every_form_is_read() {
        let read = of(json!([
            {"role": "developer", "content": "be brief"},
            {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], "name": "Ann"},
            {"role": "assistant", "content": null, "refusal": null, "reasoning_content": "hm", "tool_calls": [
                {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{\"x\": 1}"}}]},
            {"role": "tool", "tool_call_id": "c1", "content": "42"},
        ]))
        .unwrap();
        assert_eq!(read[0], Message::new(Role::System, "be brief"));
        assert_eq!((read[1].content.as_str(), read[1].name.as_deref()), ("ab", Some("Ann")));
        assert_eq!(read[2].tool_calls[0].arguments, json!({"x": 1}));
        assert_eq!(read[3].tool_call_id.as_deref(), Some("c1"));
        let refused = json!([{"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]}]);
        assert_eq!(of(refused).unwrap()[0].content, "no");
        let empty = json!([{"role": "assistant", "content": [{"type": "refusal"}]}]);
        assert_eq!(of(empty).unwrap_err().param.as_deref(), Some("messages[0].content[0].refusal"));
    }

    #[test]
    fn what_clients_add_to_a_reply_has_no_effect() {
        let call = json!({"id": "c1", "type": "function", "index": 0, "extra_content": {"a": 1},
            "function": {"name": "f", "arguments": "{}", "parsed_arguments": null}});
        let read = of(json!([
            {"role": "user", "content": "q", "id": 7, "metadata": {"a": 1}},
            {"role": "assistant", "content": "a", "provider_specific_fields": null, "annotations": [{"a": 1}],
                "audio": null, "function_call": null, "refusal": null, "parsed": null, "id": "msg-1",
                "reasoning": "hm", "reasoning_content": "hm", "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "c1", "content": null, "artifact": [1], "status": "success"},
        ]))
        .unwrap();
        assert_eq!((read[0].content.as_str(), read[1].content.as_str(), read[2].content.as_str()), ("q", "a", ""));
        assert_eq!(read[1].tool_calls[0].name, "f");
        assert_eq!(read[1].reasoning_content.as_deref(), Some("hm"));
        for (reasoning, thought) in [(json!("so"), Some("so")), (json!({"effort": "low"}), None), (json!(null), None)] {
            let read = of(json!([{"role": "assistant", "content": "a", "reasoning": reasoning}])).unwrap();
            assert_eq!(read[0].reasoning_content.as_deref(), thought);
        }
    }

    #[test]
    fn calls_and_results_without_an_id_belong_together_in_their_order() {
        let call = |id: Value, name: &str| json!({"id": id, "type": "function", "function": {"name": name}});
        let mut bare = call(json!(""), "h");
        bare.as_object_mut().unwrap().remove("id");
        let calls = [call(json!(null), "f"), call(json!("own"), "g"), bare, call(json!(""), "k")];
        let results = [json!(null), json!("own"), json!(""), json!(null)];
        let mut sent = vec![json!({"role": "assistant", "content": null, "tool_calls": calls})];
        sent.extend(results.iter().map(|id| json!({"role": "tool", "tool_call_id": id, "content": "x"})));
        let read = of(json!(sent)).unwrap();
        let ids: Vec<&str> = read[0].tool_calls.iter().map(|call| call.id.as_str()).collect();
        assert_eq!(ids, ["call00001", "own", "call00002", "call00003"]);
        let answered: Vec<&str> = read[1..].iter().map(|m| m.tool_call_id.as_deref().unwrap()).collect();
        assert_eq!(answered, ids);
    }

    #[test]
    fn wrong_messages_name_the_place() {
        for (param, body) in [
            ("messages", json!([])),
            ("messages[0].role", json!([{"role": "god", "content": "x"}])),
            ("messages[0].content", json!([{"role": "user"}])),
            ("messages[0].content", json!([{"role": "user", "content": 5}])),
            ("messages[0].content[0]", json!([{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}])),
            ("messages[0].content[0].text", json!([{"role": "user", "content": [{"type": "text"}]}])),
            ("messages[0].tool_call_id", json!([{"role": "tool", "content": "x"}])),
            (
                "messages[0].tool_calls",
                json!([{"role": "user", "content": "x", "tool_calls": [{"function": {"name": "f"}}]}]),
            ),
            (
                "messages[0].tool_calls",
                json!([{"role": "assistant", "tool_calls": vec![json!({"function": {"name": "f"}}); CALLS_MAX + 1]}]),
            ),
            (
                "messages[0].tool_calls[0].function.arguments",
                json!([{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": [1]}}]}]),
            ),
        ] {
            let error = of(body.clone()).unwrap_err();
            assert_eq!(error.param.as_deref(), Some(param), "{body}: {error:?}");
        }
    }

    #[test]
    fn arguments_that_were_cut_off_keep_their_text() {
        let cut = "{\"path\": \"notes/a\", \"content\": \"def f(";
        let read = of(json!([{"role": "user", "content": "x"},
            {"role": "assistant", "tool_calls": [{"id": "c", "function": {"name": "write", "arguments": cut}}]},
            {"role": "tool", "tool_call_id": "c", "content": "error"}]));
        assert_eq!(read.unwrap()[1].tool_calls[0].arguments, json!({"arguments": cut}));
        for (text, kept) in
            [("null", json!({})), ("[1]", json!({"arguments": "[1]"})), ("5", json!({"arguments": "5"}))]
        {
            let call = json!({"id": "c", "function": {"name": "f", "arguments": text}});
            let read = of(json!([{"role": "assistant", "tool_calls": [call]}])).unwrap();
            assert_eq!(read[0].tool_calls[0].arguments, kept, "{text}");
        }
    }

    #[test]
    fn long_whole_numbers_keep_their_digits() {
        let own = r#"{"id":123456789012345678901234567890,"less":-9223372036854775809,"text":"18446744073709551616"}"#;
        let read = of(json!([{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": own}}]}]));
        assert_eq!(sent(&read.unwrap()[0])["tool_calls"][0]["function"]["arguments"], own);
        // As an object, in a whole body: there alone.
        let schema = r#"{"type":"object","properties":{"arguments":{"type":"object","maximum":18446744073709551616}}}"#;
        let body = format!(
            r#"{{"messages":[{{"role":"assistant","tool_calls":[{{"function":{{"name":"f","arguments":{own}}}}}]}}],"schema":{schema}}}"#
        );
        let mut body = body::object(body.as_bytes(), &HttpLimits::default()).unwrap();
        assert!(body["schema"]["properties"]["arguments"]["maximum"].is_number());
        let read = of(body["messages"].take());
        assert_eq!(sent(&read.unwrap()[0])["tool_calls"][0]["function"]["arguments"], own);
    }

    #[test]
    fn arguments_in_a_string_nest_no_deeper_than_a_body() {
        let with = |levels: usize| {
            let arguments = format!("{}1{}", "{\"a\":".repeat(levels), "}".repeat(levels));
            of(json!([{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": arguments}}]}]))
        };
        let limit = HttpLimits::default().json_depth_max;
        assert!(with(limit).is_ok());
        assert_eq!(with(limit + 1).unwrap_err().code, Some("json_too_deep"));
    }
}
