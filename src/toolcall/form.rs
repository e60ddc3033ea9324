//! Reads what stands between the tags of one call, in either form, and gives arguments their types.

use serde_json::{Map, Number, Value};

/// Bytes of a function's or parameter's name.
const NAME_BYTES_MAX: usize = 256;
/// Space before a call, in which its beginning is looked for.
const SPACE_BYTES_MAX: usize = 1024;
/// Parameters of one call.
const PARAMETERS_MAX: usize = 256;
/// Arrays and objects within one another in the arguments: what a client may send back, and what a Turn can be read
/// with again.
pub(super) const DEPTH_MAX: usize = 64;

const FUNCTION: &str = "<function=";
const FUNCTION_END: &str = "</function>";
const PARAMETER: &str = "<parameter=";
const PARAMETER_END: &str = "</parameter>";

#[derive(Debug, PartialEq)]
pub(super) struct Call {
    pub(super) name: String,
    pub(super) arguments: Map<String, Value>,
}

#[derive(Debug, PartialEq)]
pub(super) enum Reading {
    Call(Call),
    /// The text so far is the beginning of a call.
    Incomplete,
    Malformed,
}

/// Whether `body` may be the beginning of a call: cheap, looked at for every piece of text.
pub(super) fn begins(body: &str) -> Reading {
    let head = body[..body.floor_char_boundary(SPACE_BYTES_MAX)].trim_start();
    let can = match head.is_empty() {
        true => body.len() < SPACE_BYTES_MAX,
        false => head.starts_with('{') || head.starts_with(FUNCTION) || FUNCTION.starts_with(head),
    };
    if can { Reading::Incomplete } else { Reading::Malformed }
}

/// Reads a whole body.
pub(super) fn read(body: &str, tools: &[Value]) -> Reading {
    let body = body.trim();
    let reading = match body.starts_with('{') {
        true => read_json(body),
        false => read_tags(body, tools),
    };
    match reading {
        Reading::Call(call) if call.arguments.values().any(|v| nests(v, DEPTH_MAX - 1)) => Reading::Malformed,
        reading => reading,
    }
}

/// Whether `value` nests deeper than `levels`.
fn nests(value: &Value, levels: usize) -> bool {
    match value {
        Value::Array(items) => levels == 0 || items.iter().any(|v| nests(v, levels - 1)),
        Value::Object(map) => levels == 0 || map.values().any(|v| nests(v, levels - 1)),
        _ => false,
    }
}

fn read_json(body: &str) -> Reading {
    let fields: Map<String, Value> = match serde_json::from_str(body) {
        Ok(fields) => fields,
        Err(e) if e.is_eof() => return Reading::Incomplete,
        Err(_) => return Reading::Malformed,
    };
    let arguments = match fields.get("arguments").or(fields.get("parameters")) {
        None | Some(Value::Null) => Some(Map::new()),
        Some(Value::Object(map)) => Some(map.clone()),
        Some(Value::String(text)) => serde_json::from_str(text).ok(),
        Some(_) => None,
    };
    match (fields.get("name").and_then(Value::as_str).filter(|n| is_name(n)), arguments) {
        (Some(name), Some(arguments)) => Reading::Call(Call { name: name.to_owned(), arguments }),
        _ => Reading::Malformed,
    }
}

fn is_name(name: &str) -> bool {
    !name.is_empty() && name.len() <= NAME_BYTES_MAX && !name.contains(['<', '>', '\n'])
}

fn read_tags(body: &str, tools: &[Value]) -> Reading {
    let Some(rest) = body.strip_prefix(FUNCTION) else { return Reading::Malformed };
    let Some((name, mut rest)) = rest.split_once('>') else { return Reading::Incomplete };
    let name = name.trim();
    if !is_name(name) {
        return Reading::Malformed;
    }
    let properties = properties_of(name, tools);
    let mut arguments = Map::new();
    loop {
        rest = rest.trim_start();
        if let Some(tail) = rest.strip_prefix(FUNCTION_END) {
            return match tail.trim().is_empty() {
                true => Reading::Call(Call { name: name.to_owned(), arguments }),
                false => Reading::Malformed,
            };
        }
        let Some(tail) = rest.strip_prefix(PARAMETER) else { return Reading::Malformed };
        let Some((key, tail)) = tail.split_once('>') else { return Reading::Incomplete };
        let key = key.trim();
        let Some((value, tail)) = split_value(tail) else { return Reading::Incomplete };
        rest = tail;
        let schema = properties.and_then(|p| p.get(key));
        let twice = arguments.insert(key.to_owned(), typed(value, schema)).is_some();
        if twice || !is_name(key) || arguments.len() > PARAMETERS_MAX {
            return Reading::Malformed;
        }
    }
}

/// A value and what follows its end: the first closing tag that is followed by another parameter or the end
/// of the function, for the tag itself may stand inside a value.
fn split_value(text: &str) -> Option<(&str, &str)> {
    let ends = text.match_indices(PARAMETER_END).find(|(at, tag)| {
        let after = text[at + tag.len()..].trim_start();
        after.starts_with(PARAMETER) || after.starts_with(FUNCTION_END)
    });
    let (at, tag) = ends?;
    let value = &text[..at];
    let value = value.strip_prefix('\n').unwrap_or(value);
    Some((value.strip_suffix('\n').unwrap_or(value), &text[at + tag.len()..]))
}

/// The properties of a function's parameters, where the request describes it.
fn properties_of<'a>(name: &str, tools: &'a [Value]) -> Option<&'a Map<String, Value>> {
    let function = |tool: &'a Value| tool.get("function").unwrap_or(tool);
    let tool = tools.iter().map(function).find(|f| f.get("name").and_then(Value::as_str) == Some(name))?;
    tool.get("parameters")?.get("properties")?.as_object()
}

/// `text` as the first type of its schema that it can be; a string where there is none.
fn typed(text: &str, schema: Option<&Value>) -> Value {
    let string = || Value::String(text.to_owned());
    let Some(schema) = schema else { return string() };
    if let Some(options) = schema.get("enum").and_then(Value::as_array)
        && let Some(option) = options.iter().find(|o| is_written(o, text))
    {
        return option.clone();
    }
    let types = types_of(schema);
    // A string takes anything, so it is tried last.
    types.iter().find_map(|kind| as_type(text.trim(), kind)).unwrap_or_else(string)
}

/// Whether `text` is how a model would write `option`: strings bare, the rest as JSON.
fn is_written(option: &Value, text: &str) -> bool {
    match option {
        Value::String(own) => own == text,
        other => serde_json::from_str::<Value>(text).is_ok_and(|value| value == *other),
    }
}

/// Types that a schema allows: its own, or those of its alternatives.
fn types_of(schema: &Value) -> Vec<&str> {
    let mut types: Vec<&str> = match schema.get("type") {
        Some(Value::String(one)) => vec![one],
        Some(Value::Array(many)) => many.iter().filter_map(Value::as_str).collect(),
        _ => Vec::new(),
    };
    for key in ["anyOf", "oneOf"] {
        let alternatives = schema.get(key).and_then(Value::as_array).into_iter().flatten();
        types.extend(alternatives.filter_map(|s| s.get("type")?.as_str()));
    }
    types
}

fn as_type(text: &str, kind: &str) -> Option<Value> {
    match kind {
        "integer" => {
            let whole = text.parse::<i64>().map(Number::from).or_else(|_| text.parse::<u64>().map(Number::from));
            whole.ok().or_else(|| whole_float(text)).or_else(|| long_integer(text)).map(Value::Number)
        }
        "number" => match serde_json::from_str(text) {
            Ok(Value::Number(n)) => Some(Value::Number(n)),
            _ => Number::from_f64(text.parse().ok()?).map(Value::Number),
        },
        "boolean" => match text {
            "true" | "True" => Some(Value::Bool(true)),
            "false" | "False" => Some(Value::Bool(false)),
            _ => None,
        },
        "null" => matches!(text, "null" | "None").then_some(Value::Null),
        "object" => serde_json::from_str(text).ok().filter(Value::is_object),
        "array" => serde_json::from_str(text).ok().filter(Value::is_array),
        _ => None,
    }
}

/// An integer beyond those of the machine: the nearest number, as in any JSON.
fn long_integer(text: &str) -> Option<Number> {
    let digits = text.strip_prefix('-').unwrap_or(text);
    let whole = !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit());
    whole.then(|| serde_json::from_str(text).ok()).flatten()
}

/// `3.0` where an integer is wanted.
fn whole_float(text: &str) -> Option<Number> {
    let value: f64 = text.parse().ok()?;
    // Up to 2^53 every whole number is exact.
    (value.fract() == 0.0 && value.abs() <= 9_007_199_254_740_992.0).then(|| Number::from(value as i64))
}
