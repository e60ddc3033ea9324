//! Lessons for a reply: what its principal was taught and the owner shared, where it bears on the question. They stand with
//! the question and never in the system's message: a lesson is evidence, and no order.

use super::Replies;
use crate::embed::show;
use crate::engine::protocol::Hosted;
use crate::lessons::note;
use crate::meters;
use crate::turn::{Plan, Role};

/// The pipeline's version of a completion, which asks nothing.
const NO_PIPELINE: &str = "none";

impl Replies {
    /// Puts lessons into the plan that bear on the question of its last message, as far as the context can spare the room.
    pub(super) async fn recall(&self, plan: &mut Plan, hosted: &Hosted, principal: &str) {
        let asked = plan.messages.last().filter(|last| last.role == Role::User && plan.pipeline_version != NO_PIPELINE);
        let Some(question) = asked.map(|message| message.content.clone()) else { return };
        if self.lessons.book().lessons().is_empty() {
            return;
        }
        let (lessons, who) = (self.lessons.clone(), principal.to_owned());
        // A few milliseconds where there are thousands of lessons, which other replies need not wait for.
        let found = tokio::task::spawn_blocking(move || lessons.recall(&question, &who)).await.unwrap_or_default();
        // What the tools take of the prompt is counted as the text that they are.
        let tools: usize = plan.tools.iter().map(|tool| tool.to_string().len()).sum();
        let room = show::room(&plan.messages, hosted.model.context_tokens, plan.max_tokens as usize);
        plan.notes = note::fitting(&found, room.saturating_sub(tools));
        if !plan.notes.is_empty() {
            meters::lessons_recalled(plan.notes.len());
        }
    }
}
