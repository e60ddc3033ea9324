//! Calls of functions as a grammar, in the ways that `toolcall` reads, from the same table. A model whose family writes
//! tags gets tags, wherever what stands between them can only be read as what the schema asks for; JSON otherwise.

use std::fmt::Write;

use serde_json::{Map, Value};

use super::compile::{guided, pruned};
use super::digits::{Begins, Layout};
use super::prepare::{Prepared, prepare_again};
use super::{Calls, Function, GrammarError, wide};
use crate::engine::channels::Channels;
use crate::engine::vocab::Vocab;
use crate::toolcall::{Format, Json, Named, Shape, Tags};

/// Calls of one answer: what the daemon reads of them at most.
const CALLS_MAX: usize = 64;

/// How the hosted model writes calls.
#[derive(Clone, Debug)]
pub(super) struct Marks {
    shape: &'static Shape,
    /// What its format reads as the beginning of a call.
    openings: Vec<&'static str>,
    /// The prompt begins the first call.
    begun: bool,
    /// The model was taught calls.
    trained: bool,
    /// Before an answer that is no call.
    answer: &'static str,
    /// Special tokens that stand in the marks of its format, the longest first.
    tokens: Vec<(String, u32)>,
}

/// Without a model: JSON between marks of text.
impl Default for Marks {
    fn default() -> Marks {
        let format = Format::generic();
        Marks {
            shape: format.first(),
            openings: openings(format),
            begun: false,
            trained: true,
            answer: "",
            tokens: Vec::new(),
        }
    }
}

impl Marks {
    pub(super) fn of(vocab: &dyn Vocab) -> Marks {
        let format = Format::of_model(vocab);
        let all: String = format.literals().collect::<Vec<_>>().join("\u{0}");
        let mut tokens: Vec<(String, u32)> = vocab
            .specials()
            .into_iter()
            .filter(|(_, text)| !text.is_empty() && all.contains(text))
            .map(|(id, text)| (text, id))
            .collect();
        tokens.sort_by_key(|(text, _)| std::cmp::Reverse(text.len()));
        let answer = if Channels::of(vocab).is_some() { format.answer } else { "" };
        let (shape, begun) = (format.first(), !format.begun.is_empty());
        Marks { shape, openings: openings(format), begun, trained: Format::of_vocab(vocab).is_some(), answer, tokens }
    }

    /// The token that opens a call, where it is one.
    pub(super) fn open(&self) -> Option<u32> {
        let mark = self.shape.mark();
        self.tokens.iter().find(|(text, _)| mark.starts_with(text.as_str())).map(|(_, id)| *id)
    }

    /// Calls are JSON, with what stands around them.
    pub(super) fn in_json(&self) -> bool {
        matches!(self.shape, Shape::Json(_) | Shape::Named(_))
    }

    /// Where JSON stands, as far as the functions' schemas say nothing of it.
    fn layout(&self, calls: &Calls) -> Layout {
        let begins = match (calls.required, &calls.answer, self.in_json()) {
            (true, _, true) | (false, Some(_), _) => Begins::Json,
            (true, _, false) => Begins::Tags,
            (false, None, _) => Begins::Text,
        };
        let (tags, close) = match self.shape {
            Shape::Tags(tags) => (Some(tags.parameter_end), self.shape.pair().1),
            _ => (None, self.shape.pair().1),
        };
        let heads = calls.functions.iter().map(|function| json_head(&WITHIN_TAGS, &quoted(&function.name)));
        Layout {
            begins,
            openings: self.openings.iter().map(|mark| (*mark).to_owned()).collect(),
            json_calls: self.in_json(),
            whole: heads.collect(),
            functions: Vec::new(),
            ends: tags.into_iter().chain([close]).filter(|end| !end.is_empty()).map(str::to_owned).collect(),
            marks: self.tokens.clone(),
        }
    }

    pub(super) fn in_channels(&self) -> bool {
        !self.answer.is_empty()
    }

    /// What stands before an answer, as terms of the grammar.
    pub(super) fn answer(&self) -> String {
        self.terms(self.answer)
    }

    /// A text as terms of the grammar, special tokens as such.
    fn terms(&self, text: &str) -> String {
        let mut terms = Vec::new();
        let (mut rest, mut plain) = (text, String::new());
        while let Some(first) = rest.chars().next() {
            let token = self.tokens.iter().find(|(mark, _)| rest.starts_with(mark.as_str()));
            let Some((mark, id)) = token else {
                plain.push(first);
                rest = &rest[first.len_utf8()..];
                continue;
            };
            if !plain.is_empty() {
                terms.push(quoted(&std::mem::take(&mut plain)));
            }
            terms.push(format!("<[{id}]>"));
            rest = &rest[mark.len()..];
        }
        if !plain.is_empty() {
            terms.push(quoted(&plain));
        }
        terms.join(" ")
    }
}

/// Whether a call that a model chooses to make can be held to a form: its mark is a token, which text cannot spell.
pub fn holds_calls(vocab: &dyn Vocab) -> bool {
    Marks::of(vocab).open().is_some()
}

fn openings(format: &Format) -> Vec<&'static str> {
    format.shapes.iter().flat_map(Shape::openings).filter(|mark| !mark.is_empty()).collect()
}

/// The grammar in Lark's notation, and where JSON stands in what it allows.
pub(super) fn lark(calls: &Calls, marks: &Marks) -> Result<(String, Layout), GrammarError> {
    let mut layout = marks.layout(calls);
    let mut text = match (calls.required, &calls.answer) {
        (true, _) => "start: calls\n".to_owned(),
        (false, Some(schema)) => {
            let rules = wide::rules("answer", &pruned(prepare_again(schema, true)?)?)?;
            format!("start: calls | {} answer\n{rules}", marks.answer())
        }
        (false, None) if marks.open().is_none() => {
            let why = "it has no token for tool calls, so `strict` needs a `tool_choice` that forces a call";
            return Err(GrammarError::Vocabulary(why.to_owned()));
        }
        // Text that spells a mark with other tokens would be read as a call that nothing held to its schema.
        (false, None) => {
            let head = marks.answer();
            let start = if head.is_empty() { "TEXT? calls?".to_owned() } else { format!("{head} TEXT | calls") };
            let marks = marks.openings.iter().map(|mark| escaped(mark)).collect::<Vec<_>>().join("|");
            format!("start: {start}\nTEXT: /(?s:.+)/ & ~/(?s:.*)({marks})(?s:.*)/\n")
        }
    };
    let names: Vec<String> = (0..calls.functions.len()).map(|at| format!("f{at}")).collect();
    // A model that was never taught when to stop would call until its limit.
    let single = calls.single || calls.required && !calls.several && !marks.trained;
    let more = if single { 0 } else { CALLS_MAX - 1 };
    text += &format!("item: {}\n", names.join(" | "));
    text += &around(marks, more);
    for (at, function) in calls.functions.iter().enumerate() {
        let parameters = arguments(function)?;
        let name = &function.name;
        text += &match marks.shape {
            Shape::Tags(tags) => match tagged(tags, marks, at, name, &parameters.schema) {
                Some(Tagged { rules, json }) => {
                    let (open, _) = marks.shape.pair();
                    layout.functions.push((format!("{open}{}", tags.function_head(name)), json));
                    rules
                }
                None => json(&WITHIN_TAGS, marks, at, name, &parameters)?,
            },
            Shape::Json(form) => json(form, marks, at, name, &parameters)?,
            Shape::Named(form) => named(form, marks, at, name, &parameters)?,
            Shape::Code(_) => json(&WITHIN_TAGS, marks, at, name, &parameters)?,
        };
    }
    Ok((text + wide::SEPARATORS, layout))
}

/// The schema of a function's arguments, ready to be enforced.
fn arguments(function: &Function) -> Result<Prepared, GrammarError> {
    let any = Value::Object(Map::from_iter([("type".to_owned(), Value::from("object"))]));
    let schema = if function.parameters.is_null() { &any } else { &function.parameters };
    prepare_again(schema, function.strict).and_then(pruned)
}

/// What stands between tags where it cannot be tags.
const WITHIN_TAGS: Json = Json { open: "", close: "", pad: "\n", list: false, name: "name", arguments: "arguments" };

/// One call and up to `more`, with what stands around them all.
fn around(marks: &Marks, more: usize) -> String {
    let term = |text: &str| marks.terms(text);
    match marks.shape {
        Shape::Json(Json { open, close, pad, list: true, .. }) => {
            let (open, close) = (term(&format!("{open}{pad}[")), term(&format!("]{pad}{close}")));
            format!("calls: {open} item {} {close}\n", repeated(&format!("{} item", quoted(", ")), more))
        }
        Shape::Named(Named { open, close, begin, .. }) => {
            let (open, close, begin) = (term(open), term(close), term(begin));
            let first = if marks.begun { "item" } else { "call" };
            format!("calls: {open} {first} {} {close}\ncall: {begin} item\n", repeated("call", more))
        }
        shape => {
            let (open, close) = shape.pair();
            // Without a mark a second call could not be told from text.
            let more = if open.is_empty() { 0 } else { more };
            let (open, close) = (term(open), term(close));
            let others = repeated(&format!("{} call", quoted("\n")), more);
            format!("calls: call {others}\ncall: {open} item {close}\n")
        }
    }
}

/// `term` up to `times`.
fn repeated(term: &str, times: usize) -> String {
    if times == 0 { String::new() } else { format!("({term}){{0,{times}}}") }
}

/// A call as JSON.
fn json(form: &Json, marks: &Marks, at: usize, name: &str, parameters: &Prepared) -> Result<String, GrammarError> {
    let pad = if form.list { "" } else { form.pad };
    let name = quoted(name);
    let head = format!("{pad}{}", json_head(form, &name));
    let rules = wide::rules(&format!("a{at}"), parameters)?;
    Ok(format!("f{at}: {} a{at} {}\n{rules}", marks.terms(&head), marks.terms(&format!("}}{pad}"))))
}

/// What stands before the arguments. `name`: quoted.
fn json_head(form: &Json, name: &str) -> String {
    match form.name {
        "" => format!("{{{name}: "),
        key => format!("{{{}: {name}, {}: ", quoted(key), quoted(form.arguments)),
    }
}

/// A call whose name stands before its arguments.
fn named(form: &Named, marks: &Marks, at: usize, name: &str, parameters: &Prepared) -> Result<String, GrammarError> {
    let head = marks.terms(&format!("{}{name}{}", form.before, form.after));
    let rules = wide::rules(&format!("a{at}"), parameters)?;
    Ok(format!("f{at}: {head} a{at} {}\n{rules}", marks.terms(form.end)))
}

/// A call as tags.
struct Tagged {
    rules: String,
    /// What stands before each value that is JSON.
    json: Vec<String>,
}

/// `None` where a value between tags could be read as something else.
fn tagged(tags: &Tags, marks: &Marks, at: usize, name: &str, parameters: &Value) -> Option<Tagged> {
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
    if required.iter().any(|name| !properties.contains_key(*name)) || !Tags::reads(properties.keys()) {
        return None;
    }
    let (mut rules, mut parts) = (String::new(), vec![marks.terms(&tags.function_head(name))]);
    let mut json = Vec::new();
    for (number, (key, value)) in properties.iter().enumerate() {
        if key.is_empty() || !key.bytes().all(|b| b.is_ascii_alphanumeric() || b"_-.".contains(&b)) {
            return None;
        }
        let rule = format!("p{at}_{number}");
        let names = (format!("{rule}_v"), format!("U{at}"));
        let (is_text, body) = tag_value(tags, marks, &names, value)?;
        let head = tags.parameter_head(key, is_text);
        let written = marks.terms(&head);
        json.extend((!is_text).then_some(head));
        let _ = writeln!(rules, "{rule}: {written} {rule}_v {}", quoted("\n"));
        rules += &body;
        parts.push(if required.contains(&key.as_str()) { rule } else { format!("{rule}?") });
    }
    parts.push(marks.terms(&tags.function_tail()));
    // What stands between tags holds none, so that it is read as it was written.
    let untagged = tags.all().into_iter().map(escaped).collect::<Vec<_>>().join("|");
    let rules = format!("f{at}: {}\nU{at}: /(?s:.*)/ & ~/(?s:.*)({untagged})(?s:.*)/\n{rules}", parts.join(" "));
    Some(Tagged { rules, json })
}

/// A value and its closing tag, and whether it is bare text. `names`: of its rule, and of text without tags.
fn tag_value(
    tags: &Tags,
    marks: &Marks,
    (rule, untagged): &(String, String),
    schema: &Value,
) -> Option<(bool, String)> {
    let map = schema.as_object().filter(|_| !wide::holds_wide(schema))?;
    let plain = ["type", "description", "title", "default", "examples", "enum"];
    let line = if tags.lines { "\n" } else { "" };
    let end = marks.terms(&format!("{line}{}", tags.parameter_end));
    if let Some(options) = map.get("enum") {
        let options = options.as_array()?.iter().map(Value::as_str).collect::<Option<Vec<_>>>()?;
        let fits = |o: &&str| !o.is_empty() && o.trim() == *o && !o.contains(['<', '\n']);
        if options.is_empty() || !options.iter().all(fits) || map.keys().any(|k| !plain.contains(&k.as_str())) {
            return None;
        }
        let options: Vec<String> = options.into_iter().map(quoted).collect();
        return Some((true, format!("{rule}: ({}) {end}\n", options.join(" | "))));
    }
    match map.get("type")?.as_str()? {
        "string" if map.keys().all(|k| plain.contains(&k.as_str())) => {
            let close = marks.terms(tags.parameter_end);
            let body = match close.contains("<[") {
                false => format!("{rule}[suffix={close}]: {untagged}\n"),
                true if close.starts_with("<[") && !close.contains(' ') => format!("{rule}: {untagged} {close}\n"),
                // A tag of several tokens: where the text ends could not be told.
                true => return None,
            };
            Some((true, body))
        }
        "integer" | "number" | "boolean" | "array" | "object" => {
            Some((false, format!("{rule}: {rule}j {end}\n{rule}j: %json {}\n", guided(schema))))
        }
        _ => None,
    }
}

/// A text as a regular expression in Lark's notation.
fn escaped(text: &str) -> String {
    regex::escape(text).replace('/', "\\/")
}

/// A text as a term of the grammar.
pub(super) fn quoted(text: &str) -> String {
    Value::String(text.to_owned()).to_string()
}
