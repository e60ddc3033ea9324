//! Calls of built-in tools that a client was not told of, where its own calls followed them. When it comes back with the
//! results of its own, they stand in front again, so that the model reads what it had read. They lie in memory alone:
//! without them the history reads all the same.

use std::collections::{HashSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::turn::{Message, Role, ToolCall};

/// Replies of which they are kept, and bytes of all results. The oldest go first.
const REPLIES_MAX: usize = 1_024;
const BYTES_MAX: usize = 16 << 20;

struct Kept {
    principal: String,
    /// Of the client's first call.
    call: String,
    messages: Arc<Vec<Message>>,
    bytes: usize,
}

#[derive(Default)]
pub struct Withheld(Mutex<VecDeque<Kept>>);

impl Withheld {
    fn all(&self) -> MutexGuard<'_, VecDeque<Kept>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps the messages that led to these calls of the client's tools.
    pub(super) fn keep(&self, principal: &str, calls: &[ToolCall], messages: &[Message]) {
        let Some(first) = calls.first().filter(|_| !messages.is_empty()) else { return };
        // Text beside the calls was told, and comes back with the client's own message; a thought stays within its loop.
        let own = |message: &Message| match message.role {
            Role::Assistant => Message { content: String::new(), reasoning_content: None, ..message.clone() },
            _ => message.clone(),
        };
        let messages: Vec<Message> = messages.iter().map(own).collect();
        let bytes = messages.iter().map(size).sum();
        let mut all = self.all();
        all.push_back(Kept {
            principal: principal.to_owned(),
            call: first.id.clone(),
            messages: messages.into(),
            bytes,
        });
        while all.len() > REPLIES_MAX || all.iter().map(|kept| kept.bytes).sum::<usize>() > BYTES_MAX {
            all.pop_front();
        }
    }

    fn find(&self, principal: &str, calls: &[ToolCall]) -> Option<Arc<Vec<Message>>> {
        let first = calls.first()?;
        let all = self.all();
        let found = all.iter().rev().find(|kept| kept.principal == principal && kept.call == first.id);
        found.map(|kept| kept.messages.clone())
    }

    /// Puts them in front of the client's calls that they led to, where they do not stand there already. A call that the
    /// history repeats gets them at its last place alone.
    pub(super) fn put_back(&self, principal: &str, messages: &mut Vec<Message>) {
        let mut done = HashSet::new();
        for at in (0..messages.len()).rev() {
            let Some(first) = messages[at].tool_calls.first() else { continue };
            if !done.insert(first.id.clone()) {
                continue;
            }
            let Some(kept) = self.find(principal, &messages[at].tool_calls) else { continue };
            if !messages[..at].ends_with(&kept) {
                messages.splice(at..at, kept.iter().cloned());
            }
        }
    }

    /// Forgets those of a principal, or all.
    pub fn forget(&self, principal: Option<&str>) {
        self.all().retain(|kept| principal.is_some_and(|own| own != kept.principal));
    }
}

fn size(message: &Message) -> usize {
    let arguments = |call: &ToolCall| call.arguments.to_string().len();
    message.content.len() + message.tool_calls.iter().map(arguments).sum::<usize>()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn calls(id: &str) -> Vec<ToolCall> {
        vec![ToolCall { id: id.to_owned(), name: "f".to_owned(), arguments: json!({}) }]
    }

    fn made(id: &str, text: &str) -> Vec<Message> {
        let asked = Message { tool_calls: calls(id), ..Message::new(Role::Assistant, "told") };
        vec![asked, Message::new(Role::Tool, text)]
    }

    #[test]
    fn they_stand_in_front_of_the_call_that_they_led_to_for_their_principal() {
        let withheld = Withheld::default();
        withheld.keep("anna", &calls("c1"), &made("b1", "39.1"));
        let sent = || {
            let own = Message { tool_calls: calls("c1"), ..Message::new(Role::Assistant, "told") };
            vec![Message::new(Role::User, "q"), own, Message::new(Role::Tool, "sunny")]
        };
        let mut messages = sent();
        withheld.put_back("bert", &mut messages);
        assert_eq!(messages, sent());
        withheld.put_back("anna", &mut messages);
        let read: Vec<_> = messages.iter().map(|m| (m.role, m.content.as_str())).collect();
        let (assistant, tool) = (Role::Assistant, Role::Tool);
        assert_eq!(read, [(Role::User, "q"), (assistant, ""), (tool, "39.1"), (assistant, "told"), (tool, "sunny")]);
        let mut twice = sent();
        twice.extend(sent());
        withheld.put_back("anna", &mut twice);
        assert_eq!(twice.len(), 8, "the history repeats the call, and what led to it stands there once");
        assert_eq!(twice[5].content, "39.1".to_owned());
        let once = messages.clone();
        withheld.put_back("anna", &mut messages);
        assert_eq!(messages, once, "a second time changes nothing");
        withheld.forget(Some("bert"));
        assert!(withheld.find("anna", &calls("c1")).is_some());
        withheld.forget(None);
        assert!(withheld.find("anna", &calls("c1")).is_none());
    }

    #[test]
    fn what_is_kept_is_bounded() {
        let withheld = Withheld::default();
        for n in 0..REPLIES_MAX + 5 {
            withheld.keep("anna", &calls(&format!("c{n}")), &made("b", "1"));
        }
        assert_eq!(withheld.all().len(), REPLIES_MAX);
        assert!(withheld.find("anna", &calls("c4")).is_none() && withheld.find("anna", &calls("c5")).is_some());
        for n in 0..3 {
            withheld.keep("anna", &calls(&format!("d{n}")), &made("b", &"x".repeat(BYTES_MAX / 2)));
        }
        assert_eq!(withheld.all().len(), 1);
        withheld.keep("anna", &[], &made("b", "1"));
        withheld.keep("anna", &calls("e"), &[]);
        assert_eq!(withheld.all().len(), 1, "nothing to be kept");
    }
}
