//! The variables of a template, as Hugging Face names them.

use serde_json::{Map, Value, json};

use super::marks::{CUT, Specials};
use crate::engine::protocol::ChatInput;
use crate::engine::template::ChatTemplate;
use crate::engine::vocab::Vocab;
use crate::turn::{Message, Role, Thinking, ToolCall};

/// The variables for `messages` and `tools`, a form of the conversation of `chat`.
pub(super) fn context(
    vocab: &dyn Vocab,
    specials: &Specials,
    template: &ChatTemplate,
    chat: &ChatInput,
    messages: &[Message],
    tools: &[Value],
) -> Value {
    let mut context = Map::new();
    for (name, value) in &chat.arguments {
        context.insert(name.clone(), specials.defuse_all(value));
    }
    let mut shown: Vec<Value> = messages.iter().map(|m| message(specials, m)).collect();
    if let Some(last) = shown.last_mut().filter(|_| chat.continue_final) {
        cut_behind(last);
    }
    context.insert("messages".into(), Value::Array(shown));
    let tools: Vec<Value> = tools.iter().map(|tool| specials.defuse_all(tool)).collect();
    if template.asks_for("functions") && !template.asks_for("tools") {
        // The form of an older API: the functions as JSON text, and when it is.
        let functions: Vec<&Value> = tools.iter().filter_map(|tool| tool.get("function")).collect();
        let text = serde_json::to_string_pretty(&functions).unwrap_or_default();
        context.entry("functions").or_insert_with(|| text.into());
    }
    if template.asks_for("datetime") {
        context.entry("datetime").or_insert_with(|| chat.date.as_str().into());
    }
    if !tools.is_empty() {
        context.insert("tools".into(), tools.into());
    }
    context.insert("add_generation_prompt".into(), (chat.add_generation_prompt && !chat.continue_final).into());
    thinking(template, chat, &mut context);
    let name = |id: Option<u32>| id.map(|id| vocab.name(id)).unwrap_or_default();
    context.insert("bos_token".into(), name(vocab.begin()).into());
    context.insert("eos_token".into(), name(vocab.end()).into());
    Value::Object(context)
}

/// What families call the switch of the thought, its budget and its effort; what the client named itself stays.
fn thinking(template: &ChatTemplate, chat: &ChatInput, context: &mut Map<String, Value>) {
    let (on, budget) = match chat.thinking {
        Thinking::Template => (None, None),
        Thinking::Off => (Some(false), Some(0)),
        Thinking::On { budget_tokens } => (Some(true), Some(budget_tokens)),
    };
    if let Some(on) = on {
        context.insert("enable_thinking".into(), on.into());
        context.entry("thinking").or_insert(on.into());
    }
    if let Some(budget) = budget {
        context.entry("thinking_budget").or_insert(budget.into());
    }
    if let Some(effort) = chat.effort.as_deref().and_then(|word| effort(template, word)) {
        context.entry("reasoning_effort").or_insert(effort.into());
    }
}

/// The template's word for an effort: the client's own where the template names it, else the nearest of the three that
/// most know. No effort at all is the switch's matter.
fn effort<'a>(template: &ChatTemplate, word: &'a str) -> Option<&'a str> {
    if !template.asks_for("reasoning_effort") {
        return None;
    }
    let named = |word: &str| template.quotes(word);
    match word {
        word if named(word) => Some(word),
        "none" => None,
        "minimal" => Some("low"),
        "xhigh" if named("max") => Some("max"),
        "max" if named("xhigh") => Some("xhigh"),
        "xhigh" | "max" => Some("high"),
        word => Some(word),
    }
}

/// Puts the cut behind the text that a reply goes on with: the answer, or the thought where there is no answer yet.
fn cut_behind(message: &mut Value) {
    let empty = |key: &str| message[key].as_str().is_none_or(str::is_empty);
    let key = if empty("content") && !empty("reasoning_content") { "reasoning_content" } else { "content" };
    let text = format!("{}{CUT}", message[key].as_str().unwrap_or_default());
    message[key] = text.into();
}

fn message(specials: &Specials, message: &Message) -> Value {
    let role = match message.role {
        Role::System => "system",
        Role::User => "user",
        Role::Assistant => "assistant",
        Role::Tool => "tool",
    };
    let mut out = Map::new();
    out.insert("role".into(), role.into());
    out.insert("content".into(), specials.defuse(&message.content).into());
    if let Some(thought) = &message.reasoning_content {
        out.insert("reasoning_content".into(), specials.defuse(thought).into());
    }
    if !message.tool_calls.is_empty() {
        let calls = message.tool_calls.iter().map(|call| tool_call(specials, call));
        out.insert("tool_calls".into(), calls.collect());
    }
    for (key, value) in [("tool_call_id", &message.tool_call_id), ("name", &message.name)] {
        if let Some(value) = value {
            out.insert(key.into(), specials.defuse(value).into());
        }
    }
    Value::Object(out)
}

fn tool_call(specials: &Specials, call: &ToolCall) -> Value {
    json!({
        "id": specials.defuse(&call.id),
        "type": "function",
        "function": {"name": specials.defuse(&call.name), "arguments": specials.defuse_all(&call.arguments)},
    })
}
