//! What was said in a turn and before it, in the messages of its record.

use super::{Message, Role, Turn};

impl Turn {
    /// How many messages stand in front of the conversation: the system's text and the examples.
    pub fn head(&self) -> usize {
        let system = self.messages.iter().take_while(|m| m.role == Role::System).count();
        (system + self.examples as usize).min(self.messages.len())
    }

    /// What was said, without the system's text and without examples.
    pub fn conversation(&self) -> impl Iterator<Item = &Message> {
        self.messages[self.head()..].iter().filter(|m| m.role != Role::System)
    }

    /// What was said up to the end of the turn with one of its answers, as a client would send it: without the system's
    /// text and without examples.
    pub fn said(mut self, choice: usize) -> Vec<Message> {
        let mut messages = self.messages.split_off(self.head());
        messages.retain(|m| m.role != Role::System);
        let Some(answer) = self.generations.into_iter().nth(choice) else { return messages };
        // What the reply went on with is a part of what was said.
        let begun = messages.pop_if(|last| self.continued && last.role == Role::Assistant);
        let begun = begun.map(|begun| begun.content).unwrap_or_default();
        messages.push(Message {
            reasoning_content: Some(answer.thinking).filter(|thought| !thought.is_empty()),
            tool_calls: answer.tool_calls,
            ..Message::new(Role::Assistant, begun + &answer.content)
        });
        messages
    }

    /// The answer stands on what built-in tools said: its words alone do not show where they come from.
    pub fn called_tools(&self) -> bool {
        self.steps.iter().any(|step| !step.calls.is_empty())
    }
}
