//! Rounds of calls and results in forms that more templates take. One call a message, and a call without a text beside
//! it. Users and assistants in turn around the rounds. Short ids.

use std::collections::HashMap;

use crate::turn::{Message, Role};

/// Where a template asks for a message that nobody wrote: an empty text is refused by some.
const BLANK: &str = " ";

/// A change of a conversation.
type Way = fn(&[Message]) -> Vec<Message>;

/// The conversation as it stands, with each change alone, and with all of them.
pub(super) const WAYS: [Way; 6] = [<[Message]>::to_vec, successive, apart, alternated, numbered, all];

fn all(messages: &[Message]) -> Vec<Message> {
    numbered(&alternated(&apart(&successive(messages))))
}

/// Calls at once become calls one after the other, each with its result.
fn successive(messages: &[Message]) -> Vec<Message> {
    let mut out = Vec::with_capacity(messages.len());
    let mut at = 0;
    while let Some(message) = messages.get(at) {
        at += 1;
        if message.tool_calls.len() < 2 {
            out.push(message.clone());
            continue;
        }
        let behind = messages[at..].iter().take_while(|next| next.role == Role::Tool).count();
        let mut results: Vec<&Message> = messages[at..at + behind].iter().collect();
        at += behind;
        let by_id = results.iter().all(|result| result.tool_call_id.is_some());
        for (which, call) in message.tool_calls.iter().enumerate() {
            let mut own = Message::new(Role::Assistant, "");
            (own.tool_calls, own.name) = (vec![call.clone()], message.name.clone());
            if which == 0 {
                own.content.clone_from(&message.content);
                own.reasoning_content.clone_from(&message.reasoning_content);
            }
            out.push(own);
            let answers = |result: &&Message| !by_id || result.tool_call_id.as_deref() == Some(call.id.as_str());
            if let Some(place) = results.iter().position(answers) {
                out.push(results.remove(place).clone());
            }
        }
        out.extend(results.into_iter().cloned());
    }
    out
}

/// The text beside a call becomes a message of its own in front of it.
fn apart(messages: &[Message]) -> Vec<Message> {
    let mut out = Vec::with_capacity(messages.len());
    for message in messages {
        let mut own = message.clone();
        if !message.tool_calls.is_empty() && !message.content.trim().is_empty() {
            out.push(Message::new(Role::Assistant, std::mem::take(&mut own.content)));
        }
        out.push(own);
    }
    out
}

/// Users and assistants speak in turn, whatever was called between: with a blank message where one is missing, and a
/// blank text where the assistant said nothing.
fn alternated(messages: &[Message]) -> Vec<Message> {
    let mut out: Vec<Message> = Vec::with_capacity(messages.len());
    // Who spoke last, and whether a round of calls came behind.
    let (mut before, mut round) = (None, false);
    for (at, message) in messages.iter().enumerate() {
        let calls = message.role == Role::Tool || !message.tool_calls.is_empty();
        if calls {
            round = true;
        } else if message.role != Role::System {
            if round && before == Some(message.role) {
                let other = if message.role == Role::User { Role::Assistant } else { Role::User };
                out.push(Message::new(other, BLANK));
            }
            (before, round) = (Some(message.role), false);
        }
        let mut own = message.clone();
        if !calls && message.role == Role::Assistant && message.content.is_empty() && at + 1 < messages.len() {
            own.content = BLANK.to_owned();
        }
        out.push(own);
    }
    out
}

/// Calls have ids of nine letters and digits, which some templates demand.
fn numbered(messages: &[Message]) -> Vec<Message> {
    let mut ids: HashMap<String, String> = HashMap::new();
    let (mut calls, mut open) = (0, std::collections::VecDeque::new());
    let mut out = messages.to_vec();
    for message in &mut out {
        for call in &mut message.tool_calls {
            calls += 1;
            let id = format!("call{:05}", calls % 100_000);
            ids.insert(std::mem::replace(&mut call.id, id.clone()), id.clone());
            open.push_back(id);
        }
        if message.role == Role::Tool {
            let named = message.tool_call_id.as_ref().and_then(|id| ids.get(id)).cloned();
            // A result that names no call is the next one's.
            let id = named.or_else(|| open.front().cloned()).unwrap_or_else(|| "call00000".to_owned());
            open.retain(|other| *other != id);
            message.tool_call_id = Some(id);
        }
    }
    out
}
