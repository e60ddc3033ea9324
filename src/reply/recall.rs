//! Lessons for a reply: what its principal was taught and the owner shared, where it bears on the question. They stand with
//! the question and never in the system's message: a lesson is evidence, and no order.

use super::Replies;
use crate::engine::protocol::Hosted;
use crate::lessons::note;
use crate::turn::{Note, Plan, PromptEnd, Role};

impl Replies {
    /// Puts lessons into the plan that bear on its last question, as far as the context can spare the room.
    pub(super) async fn recall(&self, plan: &mut Plan, hosted: &Hosted, principal: &str) {
        if !plan.recall || plan.prompt.end == PromptEnd::Within {
            return;
        }
        let Some(asked) = plan.messages.iter().rfind(|message| message.role == Role::User) else { return };
        if self.lessons.book().lessons().iter().all(|lesson| !lesson.shown_to(principal)) {
            return;
        }
        let (lessons, who, question) = (self.lessons.clone(), principal.to_owned(), asked.content.clone());
        // Where there are thousands of lessons other replies need not wait for it.
        let found = tokio::task::spawn_blocking(move || lessons.recall(&question, &who)).await.unwrap_or_default();
        let said: usize = plan.messages.iter().map(|message| message.content.len()).sum();
        let tools: usize = plan.tools.iter().map(|tool| tool.to_string().len()).sum();
        plan.notes = note::fitting(&found, note::room(said + tools, hosted.model.context_tokens));
    }

    /// Those of the notes whose lesson is still as it was: it may have been forgotten since the plan was made.
    pub(super) fn standing(&self, notes: &[Note]) -> Vec<Note> {
        notes.iter().filter(|note| self.lessons.has(note)).cloned().collect()
    }
}
