//! A correction by a user, read as the reply that it stands for: `<think>…</think>answer`, tool calls among it.

use serde_json::Value;

use crate::engine::prompt::thought_and_content;
use crate::toolcall;
use crate::turn::{Message, Role, ToolCall, Turn};

/// A reply in its parts.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Answer {
    pub thinking: String,
    pub content: String,
    pub tool_calls: Vec<ToolCall>,
}

impl Answer {
    /// Reads a correction of a reply that had these tools.
    pub fn read(correction: &str, tools: &[Value]) -> Answer {
        let message = Message::new(Role::Assistant, correction);
        let (thinking, content) = thought_and_content(&message, None);
        let (text, tool_calls) =
            if tools.is_empty() { (content.to_owned(), Vec::new()) } else { toolcall::parse(content, tools) };
        Answer {
            thinking: thinking.unwrap_or_default().trim().to_owned(),
            content: text.trim().to_owned(),
            tool_calls: tool_calls.into_iter().map(|call| ToolCall { id: String::new(), ..call }).collect(),
        }
    }

    /// The assistant's message that says it.
    pub fn message(self) -> Message {
        Message {
            reasoning_content: Some(self.thinking),
            tool_calls: self.tool_calls,
            ..Message::new(Role::Assistant, self.content)
        }
    }
}

/// The words that a conversation goes on with in the place of a corrected answer. A correction that is a call has none: its
/// results are missing.
pub fn right_words(correction: &str, tools: &[Value]) -> Option<String> {
    let Answer { content, tool_calls, .. } = Answer::read(correction, tools);
    (tool_calls.is_empty() && !content.is_empty()).then_some(content)
}

/// Whether words may stand in the place of a message: an answer, and none whose calls others have the results of.
pub fn may_be_corrected(message: &Message) -> bool {
    message.role == Role::Assistant && message.tool_calls.is_empty()
}

/// What was said up to the end of a turn, with its answer as the one who asked corrected it; the last correction counts.
pub fn said_right(turn: Turn) -> Vec<Message> {
    let own = turn.feedback.iter().rev().filter(|feedback| feedback.principal == turn.principal);
    let correction = own.filter_map(|feedback| feedback.correction.as_deref()).next();
    let right = correction.and_then(|correction| right_words(correction, &turn.tools));
    let mut said = turn.said(0);
    if let (Some(right), Some(last)) = (right, said.last_mut().filter(|last| may_be_corrected(last))) {
        *last = Message::new(Role::Assistant, right);
    }
    said
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_correction_may_carry_its_working_and_calls() {
        let plain = Answer::read(" The answer is 42.\n", &[]);
        assert_eq!((plain.thinking.as_str(), plain.content.as_str()), ("", "The answer is 42."));
        let worked = Answer::read("<think>\n7 + 5 = 12, carry 1\n</think>\n\nThe answer is 42.", &[]);
        assert_eq!((worked.thinking.as_str(), worked.content.as_str()), ("7 + 5 = 12, carry 1", "The answer is 42."));
        assert_eq!(worked.clone().message().reasoning_content.as_deref(), Some("7 + 5 = 12, carry 1"));
        let tools = [json!({"type": "function", "function": {"name": "add", "parameters": {
            "type": "object", "properties": {"a": {"type": "integer"}}}}})];
        let call = "<think>add it</think><tool_call>\n<function=add>\n<parameter=a>\n7\n</parameter>\n</function>\n\
            </tool_call>";
        let called = Answer::read(call, &tools);
        assert_eq!((called.thinking.as_str(), called.content.as_str()), ("add it", ""));
        assert_eq!(called.tool_calls[0].arguments, json!({"a": 7}));
        assert!(called.tool_calls[0].id.is_empty(), "the same correction gives the same bytes");
    }
}
