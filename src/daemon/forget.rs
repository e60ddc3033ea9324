//! A forgetting, everywhere: the log, what was learned from it, what is shown of it, and replies that go on with it.

use std::sync::Arc;
use std::time::Duration;

use super::face::{MEMORY_TIMEOUT_MS, engine, link, memory, strange};
use super::{Daemon, lessons};
use crate::actors::inference::{Ask, InferenceError};
use crate::actors::memory::{Followers, Forget, ForgetLessons, WasForgotten};
use crate::actors::scheduler::ForgetPairs;
use crate::engine::prefix::discard;
use crate::engine::protocol::Event;
use crate::lessons::{Lesson, Sharing};
use crate::service::{Forgetting, Forgotten, Service, ServiceError, TurnFilter};
use crate::store::files::{CHAT_HISTORY, remove_file_if_there};

const WITHIN: Duration = Duration::from_millis(MEMORY_TIMEOUT_MS);

impl Daemon {
    /// Forgets what passes a filter; what went. What began is done to its end, also when the client has left.
    pub(super) async fn forget_everywhere(&self, filter: TurnFilter) -> Result<Forgotten, ServiceError> {
        lessons::to_the_end(self, |daemon| async move { daemon.forget_to_the_end(filter).await }).await
    }

    async fn forget_to_the_end(&self, filter: TurnFilter) -> Result<Forgotten, ServiceError> {
        // What was learned from them first: cut off in between, nothing was forgotten, and it is said so.
        let wanted = self.forgetting(&filter).await?;
        let followed = !wanted.followers.is_empty();
        let first_pairs = self.forget_pairs(wanted).await?;
        self.forget_examples(filter.clone()).await?;
        // Whoever was shown a shared lesson has kept prompts with it.
        let book = self.replies.lessons.book();
        let shared = |lesson: &Arc<Lesson>| lesson.sharing == Sharing::Shared && lesson.passes(&filter);
        let whose = filter.principal.clone().filter(|_| !book.lessons().iter().any(shared));
        // What keeps lessons from it is said at the end: the log must forget all the same.
        let first_lessons = self.forget_lessons(filter.clone()).await;
        // Of a turn that is nowhere the engine, which may be reading a long prompt, is not asked.
        let nothing = first_pairs == 0 && matches!(first_lessons, Ok(0)) && !followed;
        if nothing && filter.turn.is_some() && !self.holds(&filter).await? {
            // One that was forgotten before may have left kept prompts: the engine did not answer then.
            if self.was_forgotten(&filter).await? {
                self.forget_prefixes(whose).await?;
            }
            return Ok(Forgotten::default());
        }
        let first_lessons = first_lessons.unwrap_or_default();
        self.replies.withheld.forget(filter.principal.as_deref());
        self.replies.web.iter().for_each(|web| web.forget(filter.principal.as_deref()));
        self.forget_prefixes(whose.clone()).await?;
        let wanted = self.forgetting(&filter).await?;
        let forgotten = self.cast.memory.send_within(Forget(filter.clone()), WITHIN).await;
        // What was made or begun in between knew them still. The log may forget to its end, however late it says so.
        let pairs = self.forget_pairs(wanted).await;
        let examples = self.forget_examples(filter.clone()).await;
        let lessons = self.forget_lessons(filter.clone()).await;
        let prefixes = self.forget_prefixes(whose).await;
        let typed = if filter == TurnFilter::default() { self.forget_typed().await } else { Ok(()) };
        let more_pairs = pairs?;
        examples?;
        let more_lessons = lessons?;
        prefixes.and(typed)?;
        let turns = forgotten.map_err(|error| link(&error))?.map_err(memory)?;
        Ok(Forgotten { turns, lessons: first_lessons + more_lessons, pairs: first_pairs + more_pairs })
    }

    /// Removes what was typed at `chimere chat` in this state folder.
    async fn forget_typed(&self) -> Result<(), ServiceError> {
        let file = self.config.get().state_dir.join(CHAT_HISTORY);
        let removed = tokio::task::spawn_blocking(move || remove_file_if_there(&file)).await;
        let removed = removed.map_err(std::io::Error::other).flatten();
        let told =
            |error| ServiceError::Internal(format!("{CHAT_HISTORY} of the state folder cannot be removed: {error}"));
        removed.map(drop).map_err(told)
    }

    /// Whether the log has a turn that passes.
    async fn holds(&self, filter: &TurnFilter) -> Result<bool, ServiceError> {
        let listed = self.turns(TurnFilter { limit: Some(1), ..filter.clone() }).await?;
        Ok(!listed.turns.is_empty() || listed.next.is_some())
    }

    /// Whether the turn that passes was forgotten before.
    async fn was_forgotten(&self, filter: &TurnFilter) -> Result<bool, ServiceError> {
        let Some(id) = filter.turn.clone() else { return Ok(false) };
        let known = self.cast.memory.send_within(WasForgotten(id), WITHIN).await;
        known.map_err(|error| link(&error))?.map_err(memory)
    }

    async fn forgetting(&self, filter: &TurnFilter) -> Result<Forgetting, ServiceError> {
        let followers = self.cast.memory.send_within(Followers(filter.clone()), WITHIN).await;
        let followers = followers.map_err(|error| link(&error))?.map_err(memory)?.into_iter().collect();
        Ok(Forgetting { filter: filter.clone(), followers })
    }

    /// Drops the pairs that were learned from them; how many.
    async fn forget_pairs(&self, wanted: Forgetting) -> Result<usize, ServiceError> {
        let gone = self.cast.scheduler.send_within(ForgetPairs(wanted), WITHIN).await;
        gone.map_err(|error| link(&error))?.map_err(ServiceError::Internal)
    }

    /// Takes them out of the index of verified exchanges.
    async fn forget_examples(&self, filter: TurnFilter) -> Result<(), ServiceError> {
        let examples = self.replies.examples.clone();
        let gone = tokio::task::spawn_blocking(move || examples.forget(&filter)).await;
        let internal = |error: String| ServiceError::Internal(format!("the index of verified exchanges: {error}"));
        gone.map_err(|error| internal(error.to_string()))?.map_err(|error| internal(error.to_string()))?;
        Ok(())
    }

    /// Drops the lessons that came of them; how many.
    async fn forget_lessons(&self, filter: TurnFilter) -> Result<usize, ServiceError> {
        let gone = self.cast.memory.send_within(ForgetLessons(filter), WITHIN).await;
        gone.map_err(|error| link(&error))?.map_err(lessons::told)
    }

    /// Drops what the engine keeps of the prompts of the principal whose turns are forgotten, or of everybody's: which
    /// turn a prefix came from is not known, and it is soon read again.
    pub(super) async fn forget_prefixes(&self, owner: Option<String>) -> Result<(), ServiceError> {
        // An engine that is told to end writes what it keeps, and the file goes after that.
        let _pass = self.replies.enter().await?;
        self.cast.fleet.forget_prefixes(owner.as_deref(), WITHIN).await.map_err(ServiceError::Internal)?;
        let answer = self.cast.inference.send_within(Ask::ForgetPrefixes { owner }, WITHIN).await;
        match answer.map_err(|error| link(&error))? {
            Ok(Event::PrefixesForgotten { .. }) => {}
            // An engine that is gone has taken them along.
            Err(InferenceError::NotRunning(_)) => {}
            Ok(Event::Failed { message, .. }) => return Err(ServiceError::Internal(message)),
            Ok(_) => return Err(strange()),
            Err(error) => return Err(engine(&error, self.board.retry_after_s())),
        }
        // The engine writes what it still has when it ends.
        let file = self.config.get().prefixes_file();
        let removed = tokio::task::spawn_blocking(move || discard(&file)).await.map_err(std::io::Error::other);
        removed
            .flatten()
            .map_err(|error| ServiceError::Internal(format!("the file of kept prompts cannot be removed: {error}")))
    }
}
