//! Searching documents for who asks: for a client, and for a reply.

use std::time::Duration;

use tokio::task::spawn_blocking;
use tokio::time::Instant;

use super::Replies;
use super::recall::{ANSWER_TOKENS, count};
use super::run::ReplyRun;
use crate::actors::inference::Ask;
use crate::documents::{Found, MODEL_WEIGHT, Query, Sought, TABLE_WEIGHT, show};
use crate::embed::Code;
use crate::engine::protocol::{ChatInput, Event};
use crate::meters;
use crate::service::ServiceError;
use crate::turn::ShownPassage;

/// Longest wait for a count of tokens.
const COUNT_WITHIN: Duration = Duration::from_secs(5);
/// Tokens that a template may write around the call and its result.
const AROUND_TOKENS: usize = 64;

impl Replies {
    /// The passages that bear on a question, and why there were no vectors to find them by.
    pub async fn search_documents(
        &self,
        principal: String,
        question: String,
        collections: Option<Vec<String>>,
        k: usize,
    ) -> Result<(Vec<Found>, Option<String>), ServiceError> {
        let began = Instant::now();
        let (vector, no_vectors) = match self.direction(question.clone()).await {
            Ok(vector) => (Some(vector), None),
            Err(why) => (None, Some(why)),
        };
        let documents = self.documents.clone();
        let search = move || {
            let vectors_weight = vector.as_ref().map_or(0.0, |(_, _, weight)| *weight);
            let vector = vector.as_ref().map(|(code, fingerprint, _)| (code, *fingerprint));
            let query = Query { text: &question, vector, k, sought: Sought::Fused, vectors_weight };
            documents.search(&principal, collections.as_deref(), query)
        };
        let found = spawn_blocking(search).await.map_err(|error| ServiceError::Internal(error.to_string()))??;
        meters::documents_searched(began.elapsed());
        Ok((found, no_vectors))
    }

    /// The direction of a question and what it is worth, or why there is none.
    async fn direction(&self, text: String) -> Result<(Code, [u8; 32], f32), String> {
        let embedder = self.examples.embedder().map_err(str::to_owned)?;
        let vector = embedder.query(text).await.map_err(|why| why.to_string())?;
        let weight = if embedder.is_table() { TABLE_WEIGHT } else { MODEL_WEIGHT };
        Ok((Code::of(&vector.values), embedder.fingerprint(), weight))
    }
}

impl ReplyRun<'_> {
    /// How many passages the steps before this one showed.
    pub(super) fn shown(&self) -> u32 {
        self.trace.iter().map(|step| step.passages.len() as u32).sum()
    }

    /// Those of the passages that there is room for, in the context beside `chat` and the answer, and within `tokens_max`.
    /// The least like go first.
    pub(super) async fn fitting(
        &self,
        chat: ChatInput,
        mut passages: Vec<ShownPassage>,
        tokens_max: u32,
    ) -> Result<Vec<ShownPassage>, ServiceError> {
        let seat = &self.stops.seat;
        let late = || super::unavailable("the engine did not count the passages in time", 1);
        let said = tokio::time::timeout(COUNT_WITHIN, count(seat, chat)).await.ok().flatten().ok_or_else(late)?;
        let answer = self.plan.max_tokens.min(ANSWER_TOKENS) as usize;
        let room = seat.hosted.model.context_tokens.saturating_sub(said.saturating_add(answer + AROUND_TOKENS));
        let mut left = room.min(tokens_max as usize);
        let mut fits = 0;
        for passage in &passages {
            let ask = Ask::Tokenize { text: show::framed(passage), specials: false };
            let tokens = match seat.inference.send_within(ask, COUNT_WITHIN).await {
                Ok(Ok(Event::Tokens { ids, .. })) => ids.len() + 2,
                _ => return Err(late()),
            };
            if tokens > left {
                break;
            }
            left -= tokens;
            fits += 1;
        }
        passages.truncate(fits);
        Ok(passages)
    }
}
