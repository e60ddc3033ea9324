//! What a template shows of a conversation. A twin tells: the same conversation with a word of ours in place of each
//! text, each call's name and values, each result and each tool's name.

use std::rc::Rc;

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
    let mut shown = vec![false; twin.parts.len()];
    let mut order = twin.order.iter().peekable();
    for number in numbers(&text) {
        if let Some(shown) = shown.get_mut(number) {
            *shown = true;
        }
        order.next_if(|next| **next == number);
    }
    let in_order = order.next().is_none();
    let missing = twin.parts.into_iter().zip(shown).filter(|(_, shown)| !shown);
    let mut lost: Vec<String> = missing.map(|(what, _)| what.to_string()).collect();
    lost.dedup();
    Ok(Seen { lost, in_order })
}

/// Marks around a word's number.
const OPEN: &str = "zq";
const CLOSE: &str = "qz";
/// Words for values of calls; the values beyond stay as they are.
const WORDS_MAX: usize = 20_000;

/// The numbers of the words in a text, in their order.
fn numbers(text: &str) -> impl Iterator<Item = usize> {
    text.match_indices(OPEN).filter_map(|(at, _)| {
        let rest = &text[at + OPEN.len()..];
        let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
        rest[digits..].starts_with(CLOSE).then(|| rest[..digits].parse().ok())?
    })
}

#[derive(Default)]
struct Twin {
    /// What each word stands for.
    parts: Vec<Rc<str>>,
    /// Words of the texts whose order is kept. Of a message that calls tools, and of what a tool gave, templates choose
    /// the place.
    order: Vec<usize>,
}

impl Twin {
    fn word(&mut self, what: impl Into<Rc<str>>) -> String {
        self.parts.push(what.into());
        format!("{OPEN}{}{CLOSE}", self.parts.len() - 1)
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
                self.order.push(self.parts.len() - 1);
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
        let what: Rc<str> = format!("an argument of the call of `{}`", call.name).into();
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
    fn values(&mut self, value: &Value, what: &Rc<str>) -> Value {
        match value {
            Value::String(text) if whole::digits(text).is_none() && self.parts.len() < WORDS_MAX => {
                self.word(what.clone()).into()
            }
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Two million texts in a call's arguments: those beyond the limit stand as they are, and one pass finds the words.
    #[test]
    fn a_call_of_very_many_texts_is_looked_at_once() {
        let arguments: Value = std::iter::repeat_n("x", 2_000_000).collect();
        let call = ToolCall { id: "1".to_owned(), name: "f".to_owned(), arguments };
        let message = Message { tool_calls: vec![call], ..Message::new(Role::Assistant, "") };
        let all = |messages: &[Message], _: &[Value]| Ok(messages[0].tool_calls[0].arguments.to_string());
        let seen = seen(&[message], &[], &all).unwrap();
        assert_eq!(seen.lost, ["the call of `f`"]);
        assert!(seen.in_order);
    }

    #[test]
    fn words_are_found_where_they_stand() {
        let found = |text: &str| numbers(text).collect::<Vec<_>>();
        assert_eq!(found("zzq1qzzq22qz zq3 zqqz zqzq4qzq zq99999999999999999999qz"), [1, 22, 4]);
    }
}
