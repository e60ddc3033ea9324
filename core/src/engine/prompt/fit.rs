//! Conversations that a template was not written for: a system message late or twice, no user message, two of a role in
//! a row. Or the template has no system's role. Each is put into the nearest form that the template takes and in which
//! no text is lost. A twin shows whether text is lost: the same conversation with a word of ours in place of each text.

use crate::engine::template::TemplateError;
use crate::turn::{Message, Role};

/// Between texts that become one.
const BETWEEN: &str = "\n\n";

/// How every template expects a conversation: one system message at most, in front, then a user's, and the roles in turn.
pub(super) fn is_usual(messages: &[Message]) -> bool {
    let rest = &messages[leading(messages).min(1)..];
    let mut before = None;
    for message in rest {
        let fits = match (before, message.role) {
            (_, Role::System) => false,
            (None, role) => role == Role::User,
            (Some(Role::User), role) => role == Role::Assistant,
            (Some(Role::Assistant), role) => role != Role::Assistant,
            (Some(Role::Tool), _) => true,
            (Some(Role::System), _) => false,
        };
        if !fits {
            return false;
        }
        before = Some(message.role);
    }
    before.is_some()
}

pub(super) fn has_system(messages: &[Message]) -> bool {
    messages.iter().any(|m| m.role == Role::System)
}

/// The least that a template with a system's role shows.
pub(super) fn system_and_user() -> Vec<Message> {
    vec![Message::new(Role::System, "s"), Message::new(Role::User, "u")]
}

/// The first form in which `render` shows every text in its order, else every text, else anything; `None` where it takes
/// none of them.
pub(super) fn choose(
    messages: &[Message],
    render: &impl Fn(&[Message]) -> Result<String, TemplateError>,
) -> Option<Vec<Message>> {
    let mut second: Option<(Shown, Vec<Message>)> = None;
    let mut tried: Vec<Vec<Message>> = Vec::new();
    for form in forms(messages) {
        if tried.contains(&form) {
            continue;
        }
        match shown(&form, render) {
            Shown::InOrder => return Some(form),
            Shown::Nothing => {}
            much if second.as_ref().is_none_or(|(before, _)| much > *before) => second = Some((much, form.clone())),
            _ => {}
        }
        tried.push(form);
    }
    second.map(|(_, form)| form)
}

/// Whether `render` shows every text.
pub(super) fn shows(messages: &[Message], render: &impl Fn(&[Message]) -> Result<String, TemplateError>) -> bool {
    shown(messages, render) >= Shown::All
}

/// What a template shows of a conversation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Shown {
    /// It refuses it.
    Nothing,
    Some,
    All,
    InOrder,
}

fn shown(messages: &[Message], render: &impl Fn(&[Message]) -> Result<String, TemplateError>) -> Shown {
    let (twin, words) = twin(messages);
    let Ok(text) = render(&twin) else { return Shown::Nothing };
    let text: String = text.chars().filter(|c| c.is_ascii_alphanumeric()).collect();
    let mut at = 0;
    let in_order = words.iter().all(|word| match text[at..].find(word) {
        Some(found) => {
            at += found + word.len();
            true
        }
        None => false,
    });
    match in_order {
        true => Shown::InOrder,
        false if words.iter().all(|word| text.contains(word)) => Shown::All,
        false => Shown::Some,
    }
}

/// The same conversation with a word for each text, and the words that a template has to show. Of a message that calls
/// tools, and of what a tool gave, templates show what they like.
fn twin(messages: &[Message]) -> (Vec<Message>, Vec<String>) {
    let mut words = Vec::new();
    let twin = messages.iter().enumerate().map(|(at, message)| {
        let mut other = message.clone();
        if message.content.trim().is_empty() {
            return other;
        }
        other.content = format!("zq{at}qz");
        if message.role != Role::Tool && message.tool_calls.is_empty() {
            words.push(other.content.clone());
        }
        other
    });
    (twin.collect(), words)
}

/// The conversation as it stands, then in forms ever farther from it.
fn forms(messages: &[Message]) -> [Vec<Message>; 6] {
    let folded = folded(messages);
    let (opened, both) = (opened(messages.to_vec()), opened(folded.clone()));
    let in_turn = in_turn(both.clone());
    let without_system = without_system(in_turn.clone());
    [messages.to_vec(), folded, opened, both, in_turn, without_system]
}

fn leading(messages: &[Message]) -> usize {
    messages.iter().take_while(|m| m.role == Role::System).count()
}

/// Every system message in the one at the start, in their order.
fn folded(messages: &[Message]) -> Vec<Message> {
    let (system, rest): (Vec<_>, Vec<_>) = messages.iter().cloned().partition(|m| m.role == Role::System);
    let text = joined(system.iter().map(|m| m.content.as_str()));
    let system = (!text.is_empty()).then(|| Message::new(Role::System, text));
    system.into_iter().chain(rest).collect()
}

/// With a user's message, an empty one, in front of what another role said first.
fn opened(mut messages: Vec<Message>) -> Vec<Message> {
    let at = leading(&messages);
    if messages.get(at).is_none_or(|m| m.role != Role::User) {
        messages.insert(at, Message::new(Role::User, ""));
    }
    messages
}

/// With one message where a user or the assistant had several in a row.
fn in_turn(messages: Vec<Message>) -> Vec<Message> {
    let mut turns: Vec<Message> = Vec::with_capacity(messages.len());
    for message in messages {
        match turns.last_mut() {
            Some(last) if last.role == message.role && matches!(message.role, Role::User | Role::Assistant) => {
                last.content = joined([last.content.as_str(), message.content.as_str()]);
                last.tool_calls.extend(message.tool_calls);
                last.reasoning_content = message.reasoning_content.or(last.reasoning_content.take());
            }
            _ => turns.push(message),
        }
    }
    turns
}

/// With the system's text at the head of the first user message.
fn without_system(messages: Vec<Message>) -> Vec<Message> {
    let (system, mut rest): (Vec<_>, Vec<_>) = messages.into_iter().partition(|m| m.role == Role::System);
    if let Some(first) = rest.iter_mut().find(|m| m.role == Role::User) {
        let texts = system.iter().map(|m| m.content.as_str()).chain([first.content.as_str()]);
        first.content = joined(texts);
    }
    rest
}

fn joined<'a>(texts: impl IntoIterator<Item = &'a str>) -> String {
    let texts: Vec<&str> = texts.into_iter().filter(|text| !text.trim().is_empty()).collect();
    texts.join(BETWEEN)
}
