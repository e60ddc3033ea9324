//! What a template shows of a conversation. A twin tells: the same conversation with a word of ours in place of each
//! text, each call's name and values, each result and each tool's name.

use serde_json::Value;

use super::fit::Render;
use crate::engine::template::TemplateError;
use crate::engine::tool_prompt::as_python;
use crate::turn::{Message, Role, ToolCall};
use crate::whole;

/// What a rendering showed.
pub(super) struct Seen {
    /// What is missing, for whoever sent it.
    pub(super) lost: Vec<String>,
    /// Texts of messages stand in their order.
    pub(super) in_order: bool,
}

/// What `render` shows of a conversation; its error where it takes none of it.
pub(super) fn seen(messages: &[Message], tools: &[Value], render: &Render<'_>) -> Result<Seen, TemplateError> {
    let mut twin = Twin::default();
    let messages: Vec<Message> = messages.iter().map(|message| twin.message(message)).collect();
    let tools: Vec<Value> = tools.iter().map(|tool| twin.tool(tool)).collect();
    let text = render(&messages, &tools)?;
    let text: String = text.chars().filter(char::is_ascii_alphanumeric).collect();
    let missing = twin.parts.into_iter().filter(|part| !text.contains(&part.word));
    let mut lost: Vec<String> = missing.map(|part| part.what).collect();
    lost.dedup();
    let mut at = 0;
    let in_order = twin.order.iter().all(|word| match text[at..].find(word) {
        Some(found) => {
            at += found + word.len();
            true
        }
        None => false,
    });
    Ok(Seen { lost, in_order })
}

/// A word that has to be shown, and what it stands for.
struct Part {
    word: String,
    what: String,
}

#[derive(Default)]
struct Twin {
    parts: Vec<Part>,
    /// Words of the texts whose order is kept. Of a message that calls tools, and of what a tool gave, templates choose
    /// the place.
    order: Vec<String>,
}

impl Twin {
    fn word(&mut self, what: impl Into<String>) -> String {
        let word = format!("zq{}qz", self.parts.len());
        self.parts.push(Part { word: word.clone(), what: what.into() });
        word
    }

    fn message(&mut self, message: &Message) -> Message {
        let mut other = Message::new(message.role, "");
        let calls = !message.tool_calls.is_empty();
        if message.content.trim().is_empty() {
            other.content.clone_from(&message.content);
        } else {
            other.content = self.word(match message.role {
                Role::System => "a system message's text",
                Role::User => "a user message's text",
                Role::Assistant if calls => "the text beside a call",
                Role::Assistant => "an assistant message's text",
                Role::Tool => "a tool's result",
            });
            if message.role != Role::Tool && !calls {
                self.order.push(other.content.clone());
            }
        }
        // Past thoughts may be left out.
        other.reasoning_content = message.reasoning_content.as_ref().map(|thought| match thought.trim() {
            "" => thought.clone(),
            _ => "thought".to_owned(),
        });
        (other.tool_call_id, other.name) = (message.tool_call_id.clone(), message.name.clone());
        other.tool_calls = message.tool_calls.iter().map(|call| self.call(call)).collect();
        other
    }

    fn call(&mut self, call: &ToolCall) -> ToolCall {
        let name = self.word(format!("the call of `{}`", call.name));
        let what = format!("an argument of the call of `{}`", call.name);
        let arguments = match &call.arguments {
            Value::String(text) => match serde_json::from_str(text) {
                Ok(value) => as_python(&self.values(&value, &what)).into(),
                Err(_) => self.word(what).into(),
            },
            value => self.values(value, &what),
        };
        ToolCall { id: call.id.clone(), name, arguments }
    }

    /// With a word in place of every text; what shows these shows numbers as well.
    fn values(&mut self, value: &Value, what: &str) -> Value {
        match value {
            Value::String(text) if whole::digits(text).is_none() => self.word(what).into(),
            Value::Array(items) => items.iter().map(|item| self.values(item, what)).collect(),
            Value::Object(map) => map.iter().map(|(key, value)| (key.clone(), self.values(value, what))).collect(),
            plain => plain.clone(),
        }
    }

    fn tool(&mut self, tool: &Value) -> Value {
        let mut other = tool.clone();
        if let Some(name) = other.get_mut("function").and_then(|function| function.get_mut("name")) {
            *name = self.word(format!("the tool `{}`", name.as_str().unwrap_or_default())).into();
        }
        other
    }
}
