//! Conversations of every shape, and what goes wrong with them by one template. For the small templates of `shape_tests`,
//! and for public ones in the golden tests, which include this file.

use serde_json::{Value, json};

use super::{ChatInput, ChatTemplate, Message, PromptError, Role, ToolCall, ToolWays, Vocab, render};

/// What a prompt of our own tells of tools.
const OWN: &str = "You can call these functions";

/// `s:`, `u:`, `a:` and `t:` begin messages. Behind the text of an assistant's, each `+x` calls a tool with the argument
/// `x`, and a result `t:x=text` answers that call.
fn conversation(text: &str) -> Vec<Message> {
    let message = |part: &str| {
        let (role, content) = part.split_once(':').unwrap();
        match role {
            "s" => Message::new(Role::System, content),
            "u" => Message::new(Role::User, content),
            "a" => {
                let mut parts = content.split('+');
                let mut message = Message::new(Role::Assistant, parts.next().unwrap());
                let call = |argument: &str| {
                    let arguments = if argument.is_empty() { json!({}) } else { json!({"s": argument}) };
                    ToolCall { id: format!("call_{argument}"), name: "zqfind".into(), arguments }
                };
                message.tool_calls = parts.map(call).collect();
                message
            }
            _ => {
                let (id, result) = content.split_once('=').unwrap();
                Message { tool_call_id: Some(format!("call_{id}")), ..Message::new(Role::Tool, result) }
            }
        }
    };
    text.split(' ').map(message).collect()
}

fn tool(more: Value) -> Value {
    let mut function = json!({"name": "zqfind"});
    function.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    json!({"type": "function", "function": function})
}

fn usual() -> Value {
    let properties = json!({"s": {"type": "string", "description": "zqpar"}});
    tool(
        json!({"description": "zqdesc", "parameters": {"type": "object", "properties": properties, "required": ["s"]}}),
    )
}

/// With tools or without.
const SHAPES: &[(&str, bool)] = &[
    ("u:zqone", true),
    ("s:zqsys u:zqone", true),
    ("s:zqsys", false),
    ("a:zqone", false),
    ("s:zqsys u:zqone a:zqtwo u:zqthree", false),
    ("u:zqone a:zqtwo s:zqsys u:zqthree", false),
    ("u:zqone u:zqtwo", false),
    ("u:zqone a: u:zqtwo", false),
    ("s:zqsys u:zqone a:+zqarg t:zqarg=zqres", true),
    ("s:zqsys u:zqone a:+ t:=zqres", true),
    ("s:zqsys a:+zqarg t:zqarg=zqres", true),
    ("u:zqone a:+zqarg t:zqarg=zqres a:zqtwo u:zqthree", true),
    ("u:zqone a:+zqarg t:zqarg=zqres u:zqthree", true),
    ("u:zqone a:+zqarg t:zqarg=zqres u:zqthree", false),
    ("s:zqsys u:zqone a:zqsaid+zqarg t:zqarg=zqres", true),
    ("u:zqone a:zqsaid+zqarg t:zqarg=zqres a:zqtwo u:zqthree", true),
    ("u:zqone a:+zqarg+zqbrg t:zqarg=zqres t:zqbrg=zqout", true),
    ("s:zqsys u:zqone a:zqsaid+zqarg+zqbrg t:zqbrg=zqout t:zqarg=zqres u:zqthree", true),
    ("u:zqone a:+zqarg t:zqarg= a:+zqbrg t:zqbrg=zqout", true),
];

fn definitions() -> Vec<Value> {
    let typed = json!({"type": "object", "properties": {"s": {"type": "string"}}});
    let untyped = json!({"type": "object", "properties": {"a": {"anyOf": [{"type": "string"}, {"type": "null"}]},
        "b": {"$ref": "#/$defs/x"}, "c": {"type": ["string", "null"]}, "d": {}, "e": {"enum": [1, "a"]},
        "f": {"type": "array"}, "g": {"type": "null"}, "h": true}, "$defs": {"x": {"type": "object"}}});
    vec![
        usual(),
        tool(json!({})),
        tool(json!({"parameters": typed})),
        tool(json!({"description": null, "parameters": typed})),
        tool(json!({"description": "zqdesc"})),
        tool(json!({"description": "zqdesc", "parameters": null})),
        tool(json!({"description": "zqdesc", "parameters": {}})),
        tool(json!({"description": "zqdesc", "parameters": {"type": "object"}})),
        tool(json!({"description": "zqdesc", "parameters": untyped})),
    ]
}

fn shown(
    vocab: &dyn Vocab,
    template: &ChatTemplate,
    ways: &ToolWays,
    shape: &str,
    tools: Vec<Value>,
) -> Result<String, String> {
    let messages = conversation(shape);
    let chat =
        ChatInput { messages, tools, add_generation_prompt: true, date: "2026-01-31".into(), ..ChatInput::default() };
    let own = ways.prepare(&chat);
    let prompt = render(vocab, template, own.as_ref().unwrap_or(&chat)).map_err(|error| error.to_string())?;
    let words = shape.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| word.starts_with("zq"));
    let named = if chat.tools.is_empty() && !shape.contains('+') { None } else { Some("zqfind") };
    let lost: Vec<&str> = words.chain(named).filter(|word| !prompt.text.contains(word)).collect();
    if lost.is_empty() { Ok(prompt.text) } else { Err(format!("{lost:?} is missing in {}", prompt.text)) }
}

pub fn text_of(vocab: &dyn Vocab, source: &str, shape: &str) -> Result<String, PromptError> {
    let chat = ChatInput { messages: conversation(shape), date: "2026-01-31".into(), ..ChatInput::default() };
    render(vocab, &ChatTemplate::load(source).unwrap(), &chat).map(|prompt| prompt.text)
}

/// What goes wrong by one template.
pub fn faults(vocab: &dyn Vocab, source: &str) -> Vec<String> {
    let template = ChatTemplate::load(source).unwrap();
    let ways = ToolWays::of(vocab, Some(&template));
    let mut faults = Vec::new();
    for (shape, with_tools) in SHAPES {
        let tools = if *with_tools { vec![usual()] } else { Vec::new() };
        if let Err(why) = shown(vocab, &template, &ways, shape, tools) {
            faults.push(format!("{shape}: {why}"));
        }
    }
    for tool in definitions() {
        match shown(vocab, &template, &ways, "u:zqone", vec![tool.clone()]) {
            Err(why) => faults.push(format!("{tool}: {why}")),
            Ok(text) if ways.shows_tools && text.contains(OWN) => faults.push(format!("{tool} is not shown natively")),
            Ok(_) => {}
        }
    }
    faults
}
