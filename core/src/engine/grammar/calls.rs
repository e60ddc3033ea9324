//! Calls of functions as a grammar, in the forms that `toolcall` of the daemon reads. A model whose template shows calls
//! as tags gets tags, wherever what stands between them can only be read as what the schema asks for; JSON otherwise.

use std::fmt::Write;

use serde_json::{Map, Value};

use super::compile::guided;
use super::prepare::{Prepared, prepare};
use super::{Calls, Function, GrammarError, wide};
use crate::engine::vocab::Vocab;

const OPEN: &str = "<tool_call>";
const CLOSE: &str = "</tool_call>";
/// Calls of one answer: what the daemon reads of them at most.
const CALLS_MAX: usize = 64;

/// How the hosted model writes calls.
#[derive(Clone, Debug, Default)]
pub(super) struct Marks {
    /// Ids of the tokens that open and close a call, where the model has them.
    tokens: Option<(u32, u32)>,
    /// Its template shows `<function=NAME>`.
    tags: bool,
}

impl Marks {
    pub(super) fn of(vocab: &dyn Vocab) -> Marks {
        let tokens = vocab.special(OPEN).zip(vocab.special(CLOSE));
        Marks { tokens, tags: vocab.template().is_some_and(|template| template.contains("<function=")) }
    }

    pub(super) fn open(&self) -> Option<u32> {
        self.tokens.map(|(open, _)| open)
    }

    /// The marks as terms of the grammar.
    fn terms(&self) -> (String, String) {
        match self.tokens {
            Some((open, close)) => (format!("<[{open}]>"), format!("<[{close}]>")),
            None => (quoted(OPEN), quoted(CLOSE)),
        }
    }
}

/// The grammar in Lark's notation.
pub(super) fn lark(calls: &Calls, marks: &Marks) -> Result<String, GrammarError> {
    let (open, close) = marks.terms();
    let mut text = match (calls.required, &calls.answer) {
        (true, _) => "start: calls\n".to_owned(),
        (false, Some(schema)) => {
            format!("start: calls | answer\n{}", wide::rules("answer", &prepare(schema, true)?)?)
        }
        (false, None) if marks.tokens.is_none() => {
            let why = "it has no token for tool calls, so `strict` needs a `tool_choice` that forces a call";
            return Err(GrammarError::Vocabulary(why.to_owned()));
        }
        // Text that spells the mark with other tokens would be read as a call.
        (false, None) => "start: TEXT? calls?\nTEXT: /(?s:.+)/ & ~/(?s:.*)<tool_call>(?s:.*)/\n".to_owned(),
    };
    match calls.single {
        true => text += "calls: call\n",
        false => drop(writeln!(text, "calls: call ({} call){{0,{}}}", quoted("\n"), CALLS_MAX - 1)),
    }
    let names: Vec<String> = (0..calls.functions.len()).map(|at| format!("f{at}")).collect();
    let _ = writeln!(text, "call: {open} ({}) {close}", names.join(" | "));
    // What stands between tags holds none, so that it is read as it was written.
    if marks.tags {
        text += "UNTAGGED: /(?s:.*)/ & ~/(?s:.*)<(function|parameter|tool_call|\\/function|\\/tool_call)(?s:.*)/\n";
    }
    for (at, function) in calls.functions.iter().enumerate() {
        let parameters = arguments(function)?;
        let tagged = if marks.tags { tags(at, &function.name, &parameters.schema) } else { None };
        text += &tagged.map_or_else(|| json(at, &function.name, &parameters), Ok)?;
    }
    Ok(text + wide::SEPARATORS)
}

/// The schema of a function's arguments, ready to be enforced.
fn arguments(function: &Function) -> Result<Prepared, GrammarError> {
    let any = Value::Object(Map::from_iter([("type".to_owned(), Value::from("object"))]));
    prepare(if function.parameters.is_null() { &any } else { &function.parameters }, function.strict)
}

/// A call as JSON.
fn json(at: usize, name: &str, parameters: &Prepared) -> Result<String, GrammarError> {
    let head = format!("\n{{\"name\": {}, \"arguments\": ", quoted(name));
    let rules = wide::rules(&format!("a{at}"), parameters)?;
    Ok(format!("f{at}: {} a{at} {}\n{rules}", quoted(&head), quoted("}\n")))
}

/// A call as tags; `None` where a value between them could be read as something else.
fn tags(at: usize, name: &str, parameters: &Value) -> Option<String> {
    const KNOWN: [&str; 7] =
        ["type", "properties", "required", "additionalProperties", "description", "title", "$schema"];
    let none = Map::new();
    let schema = parameters.as_object()?;
    if schema.keys().any(|key| !KNOWN.contains(&key.as_str())) || schema.get("type").is_some_and(|t| t != "object") {
        return None;
    }
    // What a schema leaves open, a tag could name freely: its own properties alone are offered then.
    let properties = schema.get("properties").map_or(Some(&none), Value::as_object)?;
    let required: Vec<&str> = match schema.get("required") {
        None => Vec::new(),
        Some(list) => list.as_array()?.iter().map(Value::as_str).collect::<Option<_>>()?,
    };
    if required.iter().any(|name| !properties.contains_key(*name)) {
        return None;
    }
    let mut rules = String::new();
    let mut parts = vec![quoted(&format!("\n<function={name}>\n"))];
    for (number, (key, value)) in properties.iter().enumerate() {
        if key.is_empty() || !key.bytes().all(|b| b.is_ascii_alphanumeric() || b"_-.".contains(&b)) {
            return None;
        }
        let rule = format!("p{at}_{number}");
        let head = quoted(&format!("<parameter={key}>\n"));
        let _ = writeln!(rules, "{rule}: {head} {rule}_v {}", quoted("\n"));
        rules += &tag_value(&format!("{rule}_v"), value)?;
        parts.push(if required.contains(&key.as_str()) { rule } else { format!("{rule}?") });
    }
    parts.push(quoted("</function>\n"));
    Some(format!("f{at}: {}\n{rules}", parts.join(" ")))
}

/// A value and its closing tag.
fn tag_value(rule: &str, schema: &Value) -> Option<String> {
    const END: &str = "\n</parameter>";
    let map = schema.as_object().filter(|_| !wide::holds_wide(schema))?;
    let plain = ["type", "description", "title", "default", "examples", "enum"];
    let end = quoted(END);
    if let Some(options) = map.get("enum") {
        let options = options.as_array()?.iter().map(Value::as_str).collect::<Option<Vec<_>>>()?;
        let fits = |o: &&str| !o.is_empty() && o.trim() == *o && !o.contains(['<', '\n']);
        if options.is_empty() || !options.iter().all(fits) || map.keys().any(|k| !plain.contains(&k.as_str())) {
            return None;
        }
        let options: Vec<String> = options.into_iter().map(quoted).collect();
        return Some(format!("{rule}: ({}) {end}\n", options.join(" | ")));
    }
    match map.get("type")?.as_str()? {
        "string" if map.keys().all(|k| plain.contains(&k.as_str())) => {
            Some(format!("{rule}[suffix={}]: UNTAGGED\n", quoted("</parameter>")))
        }
        "integer" | "number" | "boolean" | "array" | "object" => {
            Some(format!("{rule}: {rule}j {end}\n{rule}j: %json {}\n", guided(schema)))
        }
        _ => None,
    }
}

/// A text as a term of the grammar.
pub(super) fn quoted(text: &str) -> String {
    Value::String(text.to_owned()).to_string()
}
