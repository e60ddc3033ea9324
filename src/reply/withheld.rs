//! Calls of built-in tools that a client was not told of, where its own calls followed them. When it comes back with the
//! results of its own, they stand in front again, so that the model reads what it had read. They lie in memory alone:
//! without them the history reads all the same.

use std::collections::{BTreeSet, HashSet, VecDeque};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::Replies;
use crate::toolcall::{next_number, number_of};
use crate::turn::{Message, Plan, Role, ToolCall};

/// Replies of which they are kept, and bytes of all results. The oldest go first.
const REPLIES_MAX: usize = 1_024;
const BYTES_MAX: usize = 16 << 20;

struct Kept {
    principal: String,
    place: Place,
    messages: Arc<Vec<Message>>,
    bytes: usize,
}

/// Calls of a client's tools. Where ids count the calls of a conversation, another may have the same: then what was asked
/// before them tells.
#[derive(Clone, PartialEq, Eq, Hash)]
struct Place {
    asked: Option<u64>,
    ids: BTreeSet<String>,
}

impl Place {
    /// `None`: there is no call.
    fn of(calls: &[ToolCall], before: &[Message]) -> Option<Place> {
        let ids: BTreeSet<String> = calls.iter().map(|call| call.id.clone()).collect();
        let asked = || {
            let mut asked = DefaultHasher::new();
            let question = before.iter().rfind(|message| message.role == Role::User);
            question.map(|message| message.content.as_str()).hash(&mut asked);
            asked.finish()
        };
        let counted = ids.iter().any(|id| number_of(id).is_some());
        (!ids.is_empty()).then(|| Place { asked: counted.then(asked), ids })
    }
}

#[derive(Default)]
pub struct Withheld(Mutex<VecDeque<Kept>>);

impl Withheld {
    fn all(&self) -> MutexGuard<'_, VecDeque<Kept>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps the messages that led, behind this conversation, to these calls of the client's tools.
    pub(super) fn keep(&self, principal: &str, said: &[Message], calls: &[ToolCall], messages: &[Message]) {
        let Some(place) = Place::of(calls, said).filter(|_| !messages.is_empty()) else { return };
        // Text beside the calls was told, and comes back with the client's own message; a thought stays within its loop.
        let own = |message: &Message| match message.role {
            Role::Assistant => Message { content: String::new(), reasoning_content: None, ..message.clone() },
            _ => message.clone(),
        };
        let messages: Vec<Message> = messages.iter().map(own).collect();
        let bytes = messages.iter().map(size).sum();
        let mut all = self.all();
        all.push_back(Kept { principal: principal.to_owned(), place, messages: messages.into(), bytes });
        while all.len() > REPLIES_MAX || all.iter().map(|kept| kept.bytes).sum::<usize>() > BYTES_MAX {
            all.pop_front();
        }
    }

    fn find(&self, principal: &str, place: &Place) -> Option<Arc<Vec<Message>>> {
        let all = self.all();
        let found = all.iter().rev().find(|kept| kept.principal == principal && kept.place == *place);
        found.map(|kept| kept.messages.clone())
    }

    /// The conversation with those in front of the client's calls that they led to, where they do not stand there already.
    /// Calls that the history repeats get them at their last place alone.
    pub(super) fn whole(&self, principal: &str, messages: &[Message]) -> Vec<Message> {
        let mut messages = messages.to_vec();
        let mut done = HashSet::new();
        for at in (0..messages.len()).rev() {
            let Some(place) = Place::of(&messages[at].tool_calls, &messages[..at]) else { continue };
            if done.contains(&place) {
                continue;
            }
            let kept = self.find(principal, &place);
            done.insert(place);
            if let Some(kept) = kept.filter(|kept| !messages[..at].ends_with(kept)) {
                messages.splice(at..at, kept.iter().cloned());
            }
        }
        messages
    }

    /// Forgets those of a principal, or all.
    pub fn forget(&self, principal: Option<&str>) {
        self.all().retain(|kept| principal.is_some_and(|own| own != kept.principal));
    }
}

impl Replies {
    /// The number of the next call of a plan's conversation.
    pub(super) fn next_call(&self, plan: &Plan, principal: &str) -> u32 {
        next_number(self.withheld.whole(principal, &plan.messages).iter().flat_map(|message| &message.tool_calls))
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

    fn asked(question: &str) -> Vec<Message> {
        vec![Message::new(Role::User, question)]
    }

    /// A question, these calls, and a result.
    fn said(question: &str, calls: Vec<ToolCall>) -> Vec<Message> {
        let own = Message { tool_calls: calls, ..Message::new(Role::Assistant, "told") };
        [asked(question), vec![own, Message::new(Role::Tool, "sunny")]].concat()
    }

    fn made(id: &str, text: &str) -> Vec<Message> {
        let asked = Message { tool_calls: calls(id), ..Message::new(Role::Assistant, "told") };
        vec![asked, Message::new(Role::Tool, text)]
    }

    #[test]
    fn they_stand_in_front_of_the_call_that_they_led_to_for_their_principal() {
        let withheld = Withheld::default();
        withheld.keep("anna", &asked("q"), &calls("c1"), &made("b1", "39.1"));
        let sent = || said("q", calls("c1"));
        assert_eq!(withheld.whole("bert", &sent()), sent());
        let messages = withheld.whole("anna", &sent());
        let read: Vec<_> = messages.iter().map(|m| (m.role, m.content.as_str())).collect();
        let (assistant, tool) = (Role::Assistant, Role::Tool);
        assert_eq!(read, [(Role::User, "q"), (assistant, ""), (tool, "39.1"), (assistant, "told"), (tool, "sunny")]);
        let twice = withheld.whole("anna", &[sent(), sent()].concat());
        assert_eq!(twice.len(), 8, "the history repeats the call, and what led to it stands there once");
        assert_eq!(twice[5].content, "39.1".to_owned());
        assert_eq!(withheld.whole("anna", &messages), messages, "a second time changes nothing");
        withheld.forget(Some("bert"));
        assert_ne!(withheld.whole("anna", &sent()), sent());
        withheld.forget(None);
        assert_eq!(withheld.whole("anna", &sent()), sent());
    }

    /// Models that count their calls begin anew in each conversation.
    #[test]
    fn calls_of_another_conversation_and_a_part_of_the_calls_get_nothing() {
        let withheld = Withheld::default();
        let both = || [calls("functions.f:1"), calls("functions.g:2")].concat();
        withheld.keep("anna", &asked("one"), &both(), &made("functions.b:0", "39.1"));
        for other in [said("two", both()), said("one", calls("functions.f:1"))] {
            assert_eq!(withheld.whole("anna", &other), other);
        }
        let mut turned = both();
        turned.reverse();
        let whole = withheld.whole("anna", &said("one", turned));
        assert_eq!((whole.len(), whole[2].content.as_str()), (5, "39.1"), "the order of the calls is the client's");
        assert_eq!(next_number(whole.iter().flat_map(|message| &message.tool_calls)), 3);
    }

    #[test]
    fn what_is_kept_is_bounded() {
        let withheld = Withheld::default();
        for n in 0..REPLIES_MAX + 5 {
            withheld.keep("anna", &[], &calls(&format!("c{n}")), &made("b", "1"));
        }
        assert_eq!(withheld.all().len(), REPLIES_MAX);
        let found = |id: &str| withheld.find("anna", &Place::of(&calls(id), &[]).unwrap()).is_some();
        assert!(!found("c4") && found("c5"));
        for n in 0..3 {
            withheld.keep("anna", &[], &calls(&format!("d{n}")), &made("b", &"x".repeat(BYTES_MAX / 2)));
        }
        assert_eq!(withheld.all().len(), 1);
        withheld.keep("anna", &[], &[], &made("b", "1"));
        withheld.keep("anna", &[], &calls("e"), &[]);
        assert_eq!(withheld.all().len(), 1, "nothing to be kept");
    }
}
