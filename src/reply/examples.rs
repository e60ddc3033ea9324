//! Examples for a reply: verified exchanges whose question is like the one asked, put behind the system message as
//! turns of a conversation. A principal is shown its own, and those that several principals have.

use super::Replies;
use crate::embed::show;
use crate::engine::protocol::Hosted;
use crate::meters;
use crate::service::ShownExample;
use crate::turn::{Plan, TurnId};

impl Replies {
    /// Puts examples into the plan where its pipeline asks for some. Whatever is missing for that, the reply goes on.
    pub(super) async fn show_examples(&self, plan: &mut Plan, hosted: &Hosted, principal: &str) -> Vec<ShownExample> {
        let Some(retrieve) = plan.retrieve else { return Vec::new() };
        let behind = plan.examples as usize;
        let Some(question) = show::first_question(&plan.messages, behind).map(str::to_owned) else {
            return Vec::new();
        };
        // What the tools take of the prompt is counted as the text that they are.
        let tools: usize = plan.tools.iter().map(|tool| tool.to_string().len()).sum();
        let room = show::room(&plan.messages, hosted.model.context_tokens, plan.max_tokens as usize);
        let Some(vector) = self.vector_of(question).await else { return Vec::new() };
        let (examples, who) = (self.examples.clone(), principal.to_owned());
        let search = move || examples.find(&vector, &who, &retrieve, room.saturating_sub(tools));
        // A few milliseconds of arithmetic, which other replies need not wait for.
        let found = tokio::task::spawn_blocking(search).await.unwrap_or_default();
        meters::retrieval(if found.is_empty() { "none" } else { "shown" });
        plan.examples += show::insert(&mut plan.messages, behind, found.iter().map(|(example, _)| example)) as u32;
        let shown = found.into_iter().map(|(example, score)| ShownExample {
            turn: (example.principal == principal).then_some(TurnId(example.turn)),
            score,
        });
        shown.collect()
    }

    /// The direction of a question, where there is anything to find by it. A hosted embedding model that is late or away
    /// holds no reply up: it goes on without examples, and that is counted.
    async fn vector_of(&self, question: String) -> Option<Vec<f32>> {
        let embedder = self.examples.embedder().ok()?;
        if self.examples.index().examples().is_empty() {
            return None;
        }
        match embedder.query(question).await {
            Ok(vector) => Some(vector.values),
            Err(why) => {
                tracing::warn!(%why, "a reply goes on without examples");
                meters::retrieval(why.why());
                None
            }
        }
    }
}
