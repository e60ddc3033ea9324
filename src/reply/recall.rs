//! Lessons for a reply: what its principal was taught and the owner shared, where it bears on the question. They stand with
//! the question and never in the system's message: a lesson is evidence, and no order. Whatever is missing for them, the
//! reply goes on without.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio::task::spawn_blocking;
use tokio::time::{Instant, timeout_at};

use super::Replies;
use super::run::ReplyRun;
use super::seat::Seat;
use crate::actors::inference::Ask;
use crate::engine::protocol::{ChatInput, Event, FailureKind};
use crate::lessons::note;
use crate::service::{NoLessons, ReplyEvent};
use crate::turn::{Message, Note, Plan, PromptEnd, Role};

/// Longest wait for the lessons that bear on a question, and for a count of the prompt's tokens.
const WITHIN: Duration = Duration::from_secs(2);
/// Searches under way at once: each is a pass over all lessons that its principal may be shown.
pub const RECALLS_MAX: usize = 4;
/// Tokens that notes leave for the answer, where it may have so many.
pub(super) const ANSWER_TOKENS: u32 = 256;
/// What a template may write around a message and around all of them, bytes.
const MESSAGE_BYTES: usize = 64;
const TEMPLATE_BYTES: usize = 1_024;

impl Replies {
    /// Puts lessons into the plan that bear on its last question. Why there are none, where that is no choice.
    pub(super) async fn recall(&self, plan: &mut Plan, principal: &str) -> Option<NoLessons> {
        if !plan.recall || plan.prompt.end == PromptEnd::Within {
            return None;
        }
        let asked = plan.messages.iter().rfind(|message| message.role == Role::User)?;
        if self.lessons.book().lessons().iter().all(|lesson| !lesson.shown_to(principal)) {
            return None;
        }
        let (lessons, who, question) = (self.lessons.clone(), principal.to_owned(), asked.content.clone());
        // Where there are thousands of lessons other replies need not wait for it.
        let Some(found) = in_time(&self.recalls, WITHIN, move || lessons.recall(&question, &who)).await else {
            tracing::warn!("a reply goes on without lessons: they were not found in time");
            return Some(NoLessons::Late);
        };
        plan.notes = note::of(&found);
        None
    }

    /// Those of the notes whose lesson is still as it was: it may have been forgotten, or taken back, since the plan was made.
    pub(super) fn standing(&self, notes: &[Note], principal: &str) -> Vec<Note> {
        notes.iter().filter(|note| self.lessons.has(note, principal)).cloned().collect()
    }

    /// The chat with as many of the notes as the context has room for beside `answer_tokens`, and why it has none of them. A
    /// prompt that fits without them is never refused for them.
    pub(super) async fn noted(
        &self,
        seat: &Seat,
        mut notes: Vec<Note>,
        answer_tokens: u32,
        chat: impl Fn(&[Note]) -> ChatInput,
    ) -> (ChatInput, Vec<Note>, Option<NoLessons>) {
        let room = seat.hosted.model.context_tokens.saturating_sub(answer_tokens.min(ANSWER_TOKENS) as usize);
        let until = Instant::now() + WITHIN;
        let mut why = None;
        loop {
            let noted = chat(&notes);
            if notes.is_empty() {
                return (noted, notes, why);
            }
            if tokens_at_most(&noted) <= room {
                return (noted, notes, None);
            }
            match timeout_at(until, count(seat, noted.clone())).await {
                Ok(Some(tokens)) if tokens <= room => return (noted, notes, None),
                // The least like goes first.
                Ok(Some(_)) => {
                    notes.pop();
                    why = Some(NoLessons::Room);
                }
                Ok(None) | Err(_) => {
                    notes.clear();
                    why = Some(NoLessons::Late);
                }
            }
        }
    }
}

impl ReplyRun<'_> {
    /// The chat of a step with the notes that there is room for. The client is told, where it has heard nothing yet.
    pub(super) async fn noted(
        &mut self,
        answer_tokens: u32,
        chat: impl Fn(&Self, &[Note]) -> ChatInput,
    ) -> (ChatInput, Vec<Note>) {
        let build = |notes: &[Note]| chat(self, notes);
        let standing = self.replies.standing(&self.plan.notes, &self.opening.principal);
        let (chat, shown, why) = self.replies.noted(&self.stops.seat, standing, answer_tokens, build).await;
        if let Some((ReplyEvent::Started { plan, .. }, _)) = &mut self.sink.opening
            && shown != self.plan.notes
        {
            plan.lessons = shown.iter().map(|note| note.lesson.clone()).collect();
            plan.no_lessons = why;
            self.plan.notes.clone_from(&shown);
        }
        (chat, shown)
    }

    /// The plan's conversation, with the built-in calls that its client was not told of and the lessons that it is shown.
    pub(super) fn said(&self, notes: &[Note]) -> Vec<Message> {
        let mut messages = self.replies.withheld.whole(&self.opening.principal, &self.plan.messages);
        note::show(&mut messages, notes);
        messages.extend(self.evidence.iter().cloned());
        messages
    }
}

/// Does the work on another thread, one of as many as there are permits; `None`: it was not done in time. What began is
/// done to its end, and holds its permit until then.
async fn in_time<T: Send + 'static>(
    permits: &Arc<Semaphore>,
    within: Duration,
    work: impl FnOnce() -> T + Send + 'static,
) -> Option<T> {
    let until = Instant::now() + within;
    let permit = timeout_at(until, permits.clone().acquire_owned()).await.ok()?.ok()?;
    let working = spawn_blocking(move || {
        let done = work();
        drop(permit);
        done
    });
    timeout_at(until, working).await.ok()?.ok()
}

/// More tokens than a chat can have, for one that is far from the limit: a token is at least a byte.
fn tokens_at_most(chat: &ChatInput) -> usize {
    let said: usize = chat
        .messages
        .iter()
        .map(|message| {
            let calls: usize =
                message.tool_calls.iter().map(|call| call.name.len() + call.arguments.to_string().len()).sum();
            let thought = message.reasoning_content.as_ref().map_or(0, String::len);
            let name = message.name.as_ref().map_or(0, String::len);
            message.content.len() + thought + calls + name + MESSAGE_BYTES * (1 + message.tool_calls.len())
        })
        .sum();
    // A template may write them in a form of its own, with a line for each word.
    let tools: usize = chat.tools.iter().map(|tool| 2 * tool.to_string().len()).sum();
    said + tools + TEMPLATE_BYTES
}

/// The tokens of a chat's prompt, as the engine counts them.
pub(super) async fn count(seat: &Seat, chat: ChatInput) -> Option<usize> {
    match seat.inference.send_within(Ask::ApplyTemplate { chat }, WITHIN).await {
        Ok(Ok(Event::Rendered { ids, .. })) => Some(ids.len()),
        Ok(Ok(Event::Failed { kind: FailureKind::Context, .. })) => Some(usize::MAX),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_is_not_found_in_time_is_done_without_and_only_so_many_search_at_once() {
        let permits = Arc::new(Semaphore::new(1));
        let held = permits.clone().acquire_owned().await.unwrap();
        assert_eq!(in_time(&permits, Duration::ZERO, || 1).await, None);
        drop(held);
        assert_eq!(in_time(&permits, WITHIN, || 1).await, Some(1));
        assert_eq!(permits.available_permits(), 1);
    }
}
