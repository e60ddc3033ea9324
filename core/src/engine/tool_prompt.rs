//! Tools for chat templates that know none. The system text describes them, with the way to call them. Calls and their
//! results in the history become text. Nothing is left out silently.

use std::io::{self, Write};

use serde::Serialize;
use serde_json::ser::Formatter;
use serde_json::{Map, Value, json};

use super::protocol::ChatInput;
use super::template::ChatTemplate;
use super::tool_schema::in_usual_order;
use super::vocab::Vocab;
use crate::toolcall::Format;
use crate::turn::{Message, Role};
use crate::whole;

/// A name that no template holds.
const PROBE: &str = "zq_probe_7";

/// What a model's template does with tools, and how the model writes calls.
#[derive(Clone, Copy, Debug)]
pub struct ToolWays {
    pub format: &'static Format,
    /// The family was found by a sign of its own.
    pub known: bool,
    /// The template shows the tools of a request, and the calls of a history.
    pub shows_tools: bool,
    pub shows_calls: bool,
    /// It puts the arguments of a past call between its own words as text, and takes no object.
    pub arguments_as_text: bool,
}

impl ToolWays {
    pub fn of(vocab: &dyn Vocab, template: Option<&ChatTemplate>) -> ToolWays {
        let found = Format::of_vocab(vocab);
        let template = template.map(ChatTemplate::for_tools);
        let user = json!({"role": "user", "content": "x"});
        let call = |arguments: Value| {
            let function = json!({"name": PROBE, "arguments": arguments});
            let call = json!({"id": "call00001", "type": "function", "function": function});
            json!({"role": "assistant", "content": "", "tool_calls": [call]})
        };
        let tool = json!({"type": "function", "function": {"name": PROBE, "description": "d",
            "parameters": {"type": "object", "properties": {"a": {"type": "string", "description": "d"}}, "required": ["a"]}}});
        let render = |messages: Value, tools: Value, prompt: bool| {
            let context = json!({"messages": messages, "tools": tools, "add_generation_prompt": prompt,
                "bos_token": "", "eos_token": ""});
            template.map(|template| template.render(context, "2026-01-01").ok())
        };
        // A template that refuses the probe is taken at its word when a request comes.
        let shows = |shown: &Option<Option<String>>| !matches!(shown, Some(Some(text)) if !text.contains(PROBE));
        let called = |arguments: Value| render(json!([user, call(arguments)]), Value::Null, false);
        let arguments = json!({"a": "x"});
        let (by_object, by_text) = (called(arguments.clone()), called(as_python(&arguments).into()));
        let says = |shown: &Option<Option<String>>, what: &str| matches!(shown, Some(Some(text)) if text.contains(PROBE) && text.contains(what));
        // What it makes of an object is an error, or Python's own way to write one, which no model was trained on.
        let takes_no_object = matches!(by_object, Some(None)) || says(&by_object, "{'a': 'x'}");
        ToolWays {
            format: found.unwrap_or(Format::generic()),
            known: found.is_some(),
            shows_tools: shows(&render(json!([user]), json!([tool]), true)),
            shows_calls: shows(&by_object),
            arguments_as_text: takes_no_object && says(&by_text, "{\"a\": \"x\"}"),
        }
    }

    /// One line for whoever starts the engine.
    pub fn told(&self) -> String {
        let name = self.format.name;
        match (self.known, self.shows_tools) {
            (true, true) => format!("calls of tools are read as its template shows them: {name}"),
            (true, false) => {
                format!("its template shows no tools: they are described in the system text, calls are read as {name}")
            }
            (false, true) => {
                format!("its template shows tools in a way that is not known here: calls are read as {name}")
            }
            (false, false) => {
                format!("its template knows no tools: a generic tool prompt is used, calls are read as {name}")
            }
        }
    }

    /// The conversation that the template is given.
    pub fn prepare(&self, chat: &ChatInput) -> Option<ChatInput> {
        let rewrites =
            !self.shows_calls && chat.messages.iter().any(|m| !m.tool_calls.is_empty() || m.role == Role::Tool);
        let describes = !self.shows_tools && !chat.tools.is_empty();
        let writes = !rewrites && self.arguments_as_text && chat.messages.iter().any(|m| !m.tool_calls.is_empty());
        if !rewrites && !describes && !writes {
            return None;
        }
        let mut own = chat.clone();
        if rewrites {
            own.messages = as_text(self.format, &chat.messages);
        }
        if writes {
            let calls = own.messages.iter_mut().flat_map(|message| &mut message.tool_calls);
            calls.for_each(|call| call.arguments = as_python(&call.arguments).into());
        }
        if describes {
            own.messages = described(self.format, &own.messages, &chat.tools);
            own.tools.clear();
        }
        Some(own)
    }
}

/// With the tools in the system text.
pub(super) fn described(format: &Format, messages: &[Message], tools: &[Value]) -> Vec<Message> {
    let text = description(format, tools);
    let mut messages = messages.to_vec();
    match messages.first_mut() {
        Some(first) if first.role == Role::System => first.content += &format!("\n\n{text}"),
        _ => messages.insert(0, Message::new(Role::System, text)),
    }
    messages
}

/// What the system text says of tools.
fn description(format: &Format, tools: &[Value]) -> String {
    let lines: Vec<String> = tools.iter().map(|tool| in_usual_order(tool).to_string()).collect();
    let example = Map::from_iter([("PARAMETER".to_owned(), json!("VALUE"))]);
    let example = format.write(&[("NAME", &example)]);
    format!(
        "# Tools\n\nYou can call these functions, each described by a line of JSON:\n{}\n\nTo call one, write this with \
         its name, its parameters and their values, and nothing behind it:\n{example}\nThe result comes with the next \
         message. Answer without a call where none is needed.",
        lines.join("\n")
    )
}

/// Calls and results as text, results one after the other in one message of the user.
pub(super) fn as_text(format: &Format, messages: &[Message]) -> Vec<Message> {
    let mut out: Vec<Message> = Vec::new();
    let mut results = false;
    for message in messages {
        let mut own = message.clone();
        if message.role == Role::Tool {
            let text = format!("<tool_response>\n{}\n</tool_response>", message.content);
            match out.last_mut().filter(|_| results) {
                Some(last) => last.content += &format!("\n{text}"),
                None => out.push(Message::new(Role::User, text)),
            }
            results = true;
            continue;
        }
        results = false;
        if !message.tool_calls.is_empty() {
            let arguments: Vec<Map<String, Value>> =
                message.tool_calls.iter().map(|call| object(&call.arguments)).collect();
            let calls: Vec<(&str, &Map<String, Value>)> =
                message.tool_calls.iter().map(|call| call.name.as_str()).zip(&arguments).collect();
            let text = format.write(&calls);
            own.content = if own.content.is_empty() { text } else { format!("{}\n{text}", own.content) };
            own.tool_calls.clear();
        }
        out.push(own);
    }
    out
}

/// The arguments of a call, which may stand in a text.
fn object(arguments: &Value) -> Map<String, Value> {
    match arguments {
        Value::Object(map) => map.clone(),
        Value::String(text) => match whole::read(text) {
            Ok(Value::Object(map)) => map,
            _ => Map::from_iter([("arguments".to_owned(), arguments.clone())]),
        },
        _ => Map::new(),
    }
}

/// JSON as Python writes it, with a blank behind each comma and colon: models were trained on that.
pub(super) fn as_python(value: &Value) -> String {
    let mut bytes = Vec::new();
    let mut out = serde_json::Serializer::with_formatter(&mut bytes, Spaced);
    match value.serialize(&mut out) {
        Ok(()) => whole::bare(&String::from_utf8_lossy(&bytes)).into_owned(),
        Err(_) => value.to_string(),
    }
}

struct Spaced;

impl Formatter for Spaced {
    fn begin_array_value<W: ?Sized + Write>(&mut self, out: &mut W, first: bool) -> io::Result<()> {
        if first { Ok(()) } else { out.write_all(b", ") }
    }

    fn begin_object_key<W: ?Sized + Write>(&mut self, out: &mut W, first: bool) -> io::Result<()> {
        if first { Ok(()) } else { out.write_all(b", ") }
    }

    fn begin_object_value<W: ?Sized + Write>(&mut self, out: &mut W) -> io::Result<()> {
        out.write_all(b": ")
    }
}

#[cfg(test)]
mod tests {
    use super::super::tokenizer::tests::qwen;
    use super::*;
    use crate::engine::prompt::render;
    use crate::toolcall::parse;
    use crate::turn::ToolCall;

    /// A template of roles and contents alone.
    const PLAIN: &str = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}";

    #[test]
    fn a_template_without_tools_is_told_of_them_and_one_with_them_is_left_alone() {
        let template = ChatTemplate::load(PLAIN).unwrap();
        let vocab = qwen();
        let ways = ToolWays { format: Format::generic(), known: false, ..ToolWays::of(&vocab, Some(&template)) };
        assert!(!ways.shows_tools && !ways.shows_calls && ways.told().contains("generic"));
        let tool = json!({"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}});
        let mut call = Message::new(Role::Assistant, "");
        call.tool_calls = vec![ToolCall { id: "c".into(), name: "f".into(), arguments: json!({"x": 1}) }];
        let results = ["1", "2"].map(|text| Message::new(Role::Tool, text));
        let mut messages = vec![Message::new(Role::User, "go"), call];
        messages.extend(results);
        let chat = ChatInput { messages, tools: vec![tool.clone()], ..ChatInput::default() };
        let own = ways.prepare(&chat).unwrap();
        assert!(own.messages[0].role == Role::System && own.messages[0].content.contains("\"name\":\"f\""));
        let (_, calls) = parse(&own.messages[2].content, &[tool]);
        assert_eq!(calls[0].arguments, json!({"x": 1}));
        let result = "<tool_response>\n1\n</tool_response>\n<tool_response>\n2\n</tool_response>";
        assert_eq!(
            (own.messages[3].role, own.messages[3].content.as_str(), own.messages.len()),
            (Role::User, result, 4)
        );
        let knows = "{{ tools|tojson if tools }}{% for m in messages %}{{ m.content }}{{ m.tool_calls|tojson if m.tool_calls }}{% endfor %}";
        let knows = ToolWays::of(&vocab, Some(&ChatTemplate::load(knows).unwrap()));
        assert!(knows.shows_tools && knows.shows_calls && knows.prepare(&chat).is_none());
        let plain = ChatInput { messages: vec![Message::new(Role::User, "go")], ..ChatInput::default() };
        assert!(ways.prepare(&plain).is_none());
    }

    #[test]
    fn arguments_are_text_for_templates_that_take_no_object() {
        let call = "{% for m in messages %}{{ m.content }}{% for c in m.tool_calls %}{{ c.function.name + '=' }}CALL{% endfor %}{% endfor %}";
        let mut message = Message::new(Role::Assistant, "");
        let arguments = json!({"x": ["\u{fdd2}18446744073709551616", "two"], "y": {"z": null}});
        message.tool_calls = vec![ToolCall { id: "c".into(), name: "f".into(), arguments }];
        let chat = ChatInput { messages: vec![Message::new(Role::User, "go"), message], ..ChatInput::default() };
        let text = "gof={\"x\": [18446744073709551616, \"two\"], \"y\": {\"z\": null}}";
        for (way, as_text) in [
            ("{{ '' + c.function.arguments }}", true),
            ("{{ c.function.arguments }}", true),
            ("{{ c.function.arguments|tojson }}", false),
            ("{{ c.function.arguments if c.function.arguments is string else c.function.arguments|tojson }}", false),
        ] {
            let vocab = qwen();
            let template = ChatTemplate::load(&call.replace("CALL", way)).unwrap();
            let ways = ToolWays::of(&vocab, Some(&template));
            assert_eq!((ways.arguments_as_text, ways.shows_calls), (as_text, true), "{way}");
            let own = ways.prepare(&chat);
            assert_eq!(own.is_some(), as_text, "{way}");
            let prompt = render(&vocab, &template, own.as_ref().unwrap_or(&chat)).unwrap();
            assert_eq!(prompt.text, text, "{way}");
        }
    }
}
