//! Conversations that a template was not written for. A system message late or twice, no user message, two of a role in
//! a row, several calls at once, a user behind a tool's result. Or the template has no system's role, or no tools. Each
//! is put into the nearest form of which the template shows every part.

use std::collections::HashSet;
use std::hash::{DefaultHasher, Hasher};
use std::io;
use std::time::Duration;

use chimere_ffi::limits::thread_cpu_time;
use serde_json::Value;

use super::rounds;
use super::seen::{Seen, seen};
use crate::engine::template::TemplateError;
use crate::engine::tool_prompt::{as_text, described};
use crate::engine::tool_schema::completed;
use crate::toolcall::Format;
use crate::turn::{Message, Role};

/// Between texts that become one.
const BETWEEN: &str = "\n\n";

/// Messages of all forms that are tried before what they call becomes text: a long conversation takes a template long.
const MESSAGES_MAX: usize = 100_000;
/// Bytes of all forms that are tried.
const BYTES_MAX: usize = 128 << 20;
/// Time that a search may compute; then each way is tried in its first form alone. One rendering may take a good part of it.
const SEARCH_MAX: Duration = Duration::from_secs(5);

/// Renders messages and tools.
pub(super) type Render<'a> = dyn Fn(&[Message], &[Value]) -> Result<String, TemplateError> + 'a;

/// Why a conversation cannot be shown.
pub(super) enum Unfit {
    Refused(TemplateError),
    /// What is missing in the form of which most is shown.
    Lost(Vec<String>),
}

/// The text of a conversation, in the first form of which `render` shows every part, in order if one does.
pub(super) fn write(
    messages: &[Message],
    tools: &[Value],
    format: &dyn Fn() -> &'static Format,
    render: &Render<'_>,
) -> Result<String, Unfit> {
    let mut search = Search { render, why: None, lost: None, until: thread_cpu_time() + SEARCH_MAX };
    let shown = tools_for(tools, render);
    if let Some(text) = search.among(messages, &shown)? {
        return Ok(text);
    }
    // What the template cannot show by itself becomes text.
    let of_calls = messages.iter().any(|m| m.role == Role::Tool || !m.tool_calls.is_empty());
    if of_calls && let Some(text) = search.among(&as_text(format(), messages), &shown)? {
        return Ok(text);
    }
    if !tools.is_empty() {
        let told = described(format(), messages, tools);
        if let Some(text) = search.among(&told, &[])? {
            return Ok(text);
        }
        if of_calls && let Some(text) = search.among(&as_text(format(), &told), &[])? {
            return Ok(text);
        }
    }
    match (search.lost, search.why) {
        (Some(lost), _) => Err(Unfit::Lost(lost)),
        (None, Some(why)) => Err(Unfit::Refused(why)),
        (None, None) => Err(Unfit::Lost(Vec::new())),
    }
}

/// The tools as they were sent where the template shows their names, else completed.
fn tools_for(tools: &[Value], render: &Render<'_>) -> Vec<Value> {
    let asked = [Message::new(Role::User, "u")];
    let good = |tools: &[Value]| seen(&asked, tools, render).is_ok_and(|seen| seen.lost.is_empty());
    if tools.is_empty() || good(tools) {
        return tools.to_vec();
    }
    let whole: Vec<Value> = tools.iter().map(completed).collect();
    if good(&whole) { whole } else { tools.to_vec() }
}

/// A search for a form, and what was found on the way.
struct Search<'a> {
    render: &'a Render<'a>,
    /// Of the first form that was refused.
    why: Option<TemplateError>,
    /// The least that was missing.
    lost: Option<Vec<String>>,
    /// What this thread may have computed by its end.
    until: Duration,
}

impl Search<'_> {
    /// The text of the first form that shows every part in order, else of the first that shows every part.
    fn among(&mut self, messages: &[Message], tools: &[Value]) -> Result<Option<String>, Unfit> {
        let mut tried = HashSet::new();
        let (_, bytes) = print(messages);
        let tries_max = (MESSAGES_MAX / messages.len().max(1)).min(BYTES_MAX / bytes.max(1));
        let mut second = None;
        // Most templates show most conversations as they stand: nothing else is made up before.
        let others = rounds::WAYS.iter().flat_map(|way| forms(&way(messages)));
        for form in std::iter::once(messages.to_vec()).chain(others) {
            if tried.len() > tries_max || !tried.is_empty() && self.late() {
                break;
            }
            if !tried.insert(print(&form).0) {
                continue;
            }
            match seen(&form, tools, self.render) {
                Ok(Seen { lost, in_order: true }) if lost.is_empty() => {
                    if let Some(text) = self.text(&form, tools)? {
                        return Ok(Some(text));
                    }
                }
                Ok(Seen { lost, .. }) if lost.is_empty() => {
                    second.get_or_insert_with(|| form.clone());
                }
                Ok(Seen { lost, .. }) => {
                    if self.lost.as_ref().is_none_or(|least| lost.len() < least.len()) {
                        self.lost = Some(lost);
                    }
                }
                Err(error) => {
                    let breach = matches!(error, TemplateError::Limit(_) | TemplateError::TooLarge { .. });
                    if breach {
                        // The other forms are as long, and this is what ends the search.
                        self.why = Some(error);
                        break;
                    }
                    self.why.get_or_insert(error);
                }
            }
        }
        second.map_or(Ok(None), |form| self.text(&form, tools))
    }

    fn late(&self) -> bool {
        thread_cpu_time() > self.until
    }

    /// The text itself; none where the template refuses what the texts say.
    fn text(&mut self, messages: &[Message], tools: &[Value]) -> Result<Option<String>, Unfit> {
        match (self.render)(messages, tools) {
            Ok(text) => Ok(Some(text)),
            Err(error @ (TemplateError::Raised(_) | TemplateError::Failed(_))) => {
                self.why.get_or_insert(error);
                Ok(None)
            }
            Err(error) => Err(Unfit::Refused(error)),
        }
    }
}

/// A hash of messages, and their bytes as JSON.
fn print(messages: &[Message]) -> (u64, usize) {
    #[derive(Default)]
    struct Print(DefaultHasher, usize);
    impl io::Write for Print {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.write(bytes);
            self.1 += bytes.len();
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let mut print = Print::default();
    // A message that cannot be written is told by what of it could be.
    let _ = serde_json::to_writer(&mut print, messages);
    (print.0.finish(), print.1)
}

/// The conversation as it stands, then in forms ever farther from it.
fn forms(messages: &[Message]) -> [Vec<Message>; 8] {
    let folded = folded(messages);
    let (opened, both) = (opened(messages.to_vec()), opened(folded.clone()));
    let (in_turn, one) = (in_turn(both.clone(), false), in_turn(both.clone(), true));
    let (plain, plain_one) = (without_system(in_turn.clone()), without_system(one.clone()));
    [messages.to_vec(), folded, opened, both, in_turn, plain, one, plain_one]
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

/// With one message where a user or the assistant had several in a row; those that call tools too, if `calls`.
fn in_turn(messages: Vec<Message>, calls: bool) -> Vec<Message> {
    let joins = |last: &Message, next: &Message| {
        let plain = last.tool_calls.is_empty() && next.tool_calls.is_empty();
        last.role == next.role && matches!(next.role, Role::User | Role::Assistant) && (calls || plain)
    };
    let mut turns: Vec<Message> = Vec::with_capacity(messages.len());
    for message in messages {
        match turns.last_mut() {
            Some(last) if joins(last, &message) => {
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

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    /// A template that works long over each form and shows nothing: each way is tried once more, and no other form.
    #[test]
    fn a_search_is_held_to_what_it_computes() {
        let tries = Cell::new(0);
        let render = |_: &[Message], _: &[Value]| {
            tries.set(tries.get() + 1);
            let until = thread_cpu_time() + Duration::from_millis(20);
            while thread_cpu_time() < until {
                std::hint::black_box(&tries);
            }
            Ok(String::new())
        };
        let messages =
            [Role::User, Role::System, Role::User, Role::Assistant].map(|role| Message::new(role, "a")).to_vec();
        let until = thread_cpu_time() + Duration::from_millis(50);
        let mut search = Search { render: &render, why: None, lost: None, until };
        assert!(matches!(search.among(&messages, &[]), Ok(None)));
        assert_eq!(tries.replace(0), 3);
        assert!(matches!(search.among(&messages, &[]), Ok(None)));
        assert!(tries.get() == 1 && search.lost.is_some_and(|lost| !lost.is_empty()));
    }
}
