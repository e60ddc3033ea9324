//! Calls that are JSON, one object or a list of them, between marks or at the beginning of an answer.

use serde_json::{Map, Value};

use super::shape::{Balance, Call, End, Functions, Reading, SPACE_BYTES_MAX, is_name, may_become, surplus, value};
use crate::whole;

/// How a family writes calls as JSON.
#[derive(Debug, PartialEq)]
pub struct Json {
    /// The mark before it; empty: an answer that begins with it.
    pub open: &'static str,
    /// The mark behind it; empty: none.
    pub close: &'static str,
    /// What a model writes between the marks and the value, on either side.
    pub pad: &'static str,
    /// A list of calls; otherwise an object each.
    pub list: bool,
    /// Keys of the function's name and its arguments; both empty: the name itself is the key of the arguments.
    pub name: &'static str,
    pub arguments: &'static str,
}

/// Reads what stands from the opening mark on.
pub(super) fn read(form: &Json, text: &str, ended: bool, functions: &Functions, balance: &mut Balance) -> Reading {
    let more = |text: &str| if ended || text.len() > SPACE_BYTES_MAX { Reading::Text } else { Reading::More };
    let mut at = form.open.len();
    let mut calls: Vec<Call> = Vec::new();
    loop {
        let rest = text[at..].trim_start();
        let rest = fence(rest).map_or(rest, str::trim_start);
        if rest.is_empty() || may_become(rest, "```json") {
            return if calls.is_empty() { more(&text[at..]) } else { end(calls, at, ended) };
        }
        if !rest.starts_with(['{', '[']) {
            return Reading::Text;
        }
        let from = text.len() - rest.len();
        let (to, unclosed) = match balance.end(text, from, form.close) {
            End::At(to) => (to, false),
            End::Unclosed(to) => (to, true),
            End::Never => return Reading::Text,
            End::More => return if ended { Reading::Text } else { Reading::More },
        };
        let Some(found) = value(&text[from..to], unclosed).and_then(|value| calls_of(form, value, functions)) else {
            return Reading::Text;
        };
        calls.extend(found);
        at = to;
        if form.close.is_empty() {
            return Reading::Calls(calls, at);
        }
        // Behind the value: its end, another value, or nothing any more.
        let rest = text[at + surplus(&text[at..])..].trim_start();
        let rest = rest.strip_prefix("```").map_or(rest, str::trim_start);
        if let Some(behind) = rest.strip_prefix(form.close) {
            return Reading::Calls(calls, text.len() - behind.len());
        }
        if !form.open.is_empty() && rest.starts_with(form.open) {
            return Reading::Calls(calls, at);
        }
        if rest.is_empty() || may_become(rest, form.close) || may_become(rest, form.open) || may_become(rest, "```") {
            return if rest.len() > SPACE_BYTES_MAX { Reading::Text } else { end(calls, at, ended) };
        }
        let next = rest.strip_prefix([',', ';']).unwrap_or(rest);
        if !next.trim_start().is_empty() && !next.trim_start().starts_with('{') {
            return Reading::Text;
        }
        at = text.len() - next.len();
    }
}

/// A whole call whose closing mark did not come yet.
fn end(calls: Vec<Call>, at: usize, ended: bool) -> Reading {
    if ended { Reading::Calls(calls, at) } else { Reading::More }
}

/// What follows the beginning of a fenced block.
fn fence(text: &str) -> Option<&str> {
    text.strip_prefix("```json").or_else(|| text.strip_prefix("```\n"))
}

/// The calls that a value is: all of them, or none.
fn calls_of(form: &Json, value: Value, functions: &Functions) -> Option<Vec<Call>> {
    match value {
        Value::Array(items) if !items.is_empty() => {
            items.into_iter().map(|item| call_of(form, item, functions)).collect()
        }
        one @ Value::Object(_) => Some(vec![call_of(form, one, functions)?]),
        _ => None,
    }
}

fn call_of(form: &Json, value: Value, functions: &Functions) -> Option<Call> {
    let Value::Object(mut fields) = value else { return None };
    // The whole definition of a call, as requests write it; not where the key is the name of a function.
    let is_named = form.name.is_empty() && functions.named("function").is_some();
    if let (false, Some(Value::Object(function))) = (is_named, fields.get_mut("function")) {
        fields = std::mem::take(function);
    }
    let name =
        ["name", "tool_name", "function"].into_iter().find_map(|key| fields.get(key)?.as_str().map(str::to_owned));
    let Some(name) = name else {
        if fields.len() != 1 {
            return None;
        }
        let (name, arguments) = fields.into_iter().next()?;
        let name = functions.named(&name)?.to_owned();
        let Value::Object(arguments) = arguments else { return None };
        return Some(Call { name, arguments });
    };
    let name = functions.named(&name).filter(|name| is_name(name))?.to_owned();
    let given = ["arguments", "parameters", "args"].into_iter().find_map(|key| fields.remove(key));
    Some(Call { name, arguments: arguments_of(given.unwrap_or_default())? })
}

fn object(value: Value) -> Option<Map<String, Value>> {
    match value {
        Value::Object(map) => Some(map),
        _ => None,
    }
}

/// Arguments as an object, also where it is written as a string.
pub(super) fn arguments_of(value: Value) -> Option<Map<String, Value>> {
    match value {
        Value::Null => Some(Map::new()),
        Value::Object(map) => Some(map),
        Value::String(text) if text.trim().is_empty() => Some(Map::new()),
        Value::String(text) => object(whole::read(&text).ok()?),
        _ => None,
    }
}
