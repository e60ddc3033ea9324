//! The daemon as the HTTP server sees it: `Service` over the actors.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::{Daemon, documents, fleet, lessons, pause, sessions, vectors};
use crate::actors::inference::{Ask, InferenceError};
use crate::actors::link::{Link, LinkError};
use crate::actors::memory::{AddFeedback, Get, ListFor, MemoryError, MemoryStatus};
use crate::actors::orchestrator::OrchestratorStatus;
use crate::actors::scheduler::{Night, SchedulerStatus};
use crate::actors::scorer::ScorerStatus;
use crate::actors::trainer::TrainerStatus;
use crate::engine::protocol::{EmbedInput, Event, FailureKind, Hosted};
use crate::lessons::Lesson;
use crate::service::{
    AuthError, CORRECTION_CHARS_MAX, DocumentAnswer, DocumentCommand, EmbedFor, EmbedModel, Embedded, FeedbackKept,
    FeedbackRequest, Forgotten, FurtherModel, LessonCommand, Listed, ModelWish, NightCommand, Principal, ReplyEvent,
    ReplyRequest, RunSummary, Scope, Service, ServiceError, Session, SessionAt, ShownPrompt, Taught, TokenPieces,
    TurnFilter,
};
use crate::store::StoreError;
use crate::turn::{Feedback, Message, Turn, TurnId};

/// Questions to the engine: the longest text that it takes, read by a library on a busy machine.
const ENGINE_TIMEOUT_MS: u64 = 60_000;
/// Reading and forgetting may pass over the whole log.
pub(super) const MEMORY_TIMEOUT_MS: u64 = 60_000;
/// Then a listing tells what it has found, well before nobody waits for it any more.
const LIST_TIMEOUT_MS: u64 = 25_000;
const STATUS_TIMEOUT_MS: u64 = 5_000;
/// A rollback waits for the engine and the disk; everything else is answered at once.
const NIGHT_TIMEOUT_MS: u64 = 60_000;

impl Daemon {
    async fn ask(&self, ask: Ask) -> Result<Event, ServiceError> {
        let _pass = self.replies.enter().await?;
        let retry_after_s = self.board.retry_after_s();
        let answer = self.cast.inference.send_within(ask, Duration::from_millis(ENGINE_TIMEOUT_MS)).await;
        match answer.map_err(|error| link(&error))?.map_err(|error| engine(&error, retry_after_s))? {
            Event::Failed { kind: FailureKind::Internal, message, .. } => Err(ServiceError::Internal(message)),
            Event::Failed { kind: FailureKind::Context, message, .. } => Err(ServiceError::Context(message)),
            Event::Failed { kind: FailureKind::Busy, message, .. } => {
                Err(ServiceError::Busy { message, retry_after_s: 1 })
            }
            Event::Failed { kind: FailureKind::Invalid, message, .. } => {
                Err(ServiceError::Invalid { message, param: None })
            }
            Event::Failed { kind: FailureKind::Messages, message, .. } => {
                Err(ServiceError::Invalid { message, param: Some("messages".to_owned()) })
            }
            event => Ok(event),
        }
    }

    async fn turn(&self, id: TurnId) -> Result<Turn, ServiceError> {
        let found = self.cast.memory.send(Get(id.clone())).await.map_err(|error| link(&error))?;
        found.map_err(memory)?.ok_or_else(|| memory(StoreError::Unknown(id.0).into()))
    }

    async fn take_feedback(
        &self,
        principal: Principal,
        feedback: FeedbackRequest,
    ) -> Result<FeedbackKept, ServiceError> {
        let invalid = |message: &str, param: &str| {
            Err(ServiceError::Invalid { message: message.to_owned(), param: Some(param.to_owned()) })
        };
        if feedback.vote.is_none() && feedback.correction.is_none() {
            return invalid("feedback holds neither a vote nor a correction", "vote");
        }
        if feedback.correction.as_ref().is_some_and(|c| c.chars().count() > CORRECTION_CHARS_MAX) {
            return invalid("the correction is longer than 65,536 characters", "correction");
        }
        let turn = self.turn(feedback.turn.clone()).await?;
        // Somebody else's turn is not there, as far as this principal may know.
        if turn.principal != principal.name && !principal.may(Scope::Admin) {
            return Err(memory(StoreError::Unknown(feedback.turn.0).into()));
        }
        let record = Feedback {
            time_ms: self.clock.now_ms(),
            principal: principal.name.clone(),
            vote: feedback.vote,
            correction: feedback.correction,
            judgement: None,
        };
        lessons::to_the_end(self, |daemon| async move { daemon.keep_feedback(turn, principal, record).await }).await
    }

    async fn keep_feedback(
        &self,
        turn: Turn,
        principal: Principal,
        record: Feedback,
    ) -> Result<FeedbackKept, ServiceError> {
        let correction = record.correction.clone();
        let added = self.cast.memory.send(AddFeedback(turn.id.clone(), record)).await;
        added.map_err(|error| link(&error))?.map_err(memory)?;
        let Some(correction) = correction else { return Ok(FeedbackKept::default()) };
        // A correction is judged as the answer that it stands for.
        self.cast.inbox.put(turn.id.clone());
        Ok(lessons::of_correction(self, &turn, &principal, &correction).await)
    }

    async fn report(&self) -> Value {
        let cast = &self.cast;
        let (inference, orchestrator, log, scorer, trainer, scheduler) = tokio::join!(
            async { life(&cast.inference, None) },
            status(&cast.orchestrator, OrchestratorStatus),
            status(&cast.memory, MemoryStatus),
            status(&cast.scorer, ScorerStatus),
            status(&cast.trainer, TrainerStatus),
            status(&cast.scheduler, SchedulerStatus),
        );
        json!({
            "version": env!("CARGO_PKG_VERSION"),
            "pid": std::process::id(),
            "started_ms": self.started_ms,
            "uptime_ms": self.clock.now_ms() - self.started_ms,
            "accepting": self.accepting(),
            "replies": { "running": self.replies.running(), "max": self.config.get().replies.requests_max },
            "config": *self.reloaded.borrow(),
            "keys": self.keys_status(),
            "engine": self.board.status(),
            "models": fleet::show(&self.cast.fleet),
            "engram": self.board.table_status(),
            "examples": self.replies.examples.status(),
            "lessons": self.replies.lessons.status(),
            "documents": self.replies.documents.status(),
            "web": self.replies.web.as_ref().map(|web| web.status()),
            "actors": {
                "inference": inference,
                "orchestrator": orchestrator,
                "memory": log,
                "scorer": scorer,
                "trainer": trainer,
                "scheduler": scheduler,
            },
        })
    }
}

impl Service for Daemon {
    fn reply(&self, request: ReplyRequest) -> BoxFuture<'_, Result<mpsc::Receiver<ReplyEvent>, ServiceError>> {
        Box::pin(self.replies.start(request))
    }

    fn hosted(&self) -> Option<Arc<Hosted>> {
        self.board.hosted()
    }

    fn tokenize(&self, text: String, specials: bool) -> BoxFuture<'_, Result<TokenPieces, ServiceError>> {
        Box::pin(async move {
            match self.ask(Ask::Tokenize { text, specials }).await? {
                Event::Tokens { ids, pieces, .. } => Ok((ids, pieces)),
                _ => Err(strange()),
            }
        })
    }

    fn detokenize(&self, ids: Vec<u32>) -> BoxFuture<'_, Result<String, ServiceError>> {
        Box::pin(async move { text(self.ask(Ask::Detokenize { ids }).await?) })
    }

    fn prompt(&self, request: ReplyRequest) -> BoxFuture<'_, Result<ShownPrompt, ServiceError>> {
        Box::pin(self.replies.preview(request))
    }

    fn aliases(&self) -> Vec<String> {
        self.replies.config.get().model_aliases.clone()
    }

    fn further_models(&self) -> Vec<FurtherModel> {
        fleet::listed(&self.cast.fleet)
    }

    fn embed_model(&self) -> Option<EmbedModel> {
        vectors::model(self)
    }

    fn embed(
        &self,
        model: Option<String>,
        texts: Vec<EmbedInput>,
        purpose: EmbedFor,
    ) -> BoxFuture<'_, Result<Embedded, ServiceError>> {
        Box::pin(vectors::embed(self, model, texts, purpose))
    }

    fn status(&self) -> BoxFuture<'_, Result<Value, ServiceError>> {
        Box::pin(async move { Ok(self.report().await) })
    }

    fn feedback(
        &self,
        principal: Principal,
        feedback: FeedbackRequest,
    ) -> BoxFuture<'_, Result<FeedbackKept, ServiceError>> {
        Box::pin(self.take_feedback(principal, feedback))
    }

    fn lessons(
        &self,
        principal: Principal,
        command: LessonCommand,
    ) -> BoxFuture<'_, Result<Vec<Arc<Lesson>>, ServiceError>> {
        Box::pin(lessons::command(self, principal, command))
    }

    fn documents(
        &self,
        principal: Principal,
        command: DocumentCommand,
    ) -> BoxFuture<'_, Result<DocumentAnswer, ServiceError>> {
        Box::pin(documents::command(self, principal, command))
    }

    fn damage(&self, of: Taught, principal: &Principal) -> Option<String> {
        match of {
            Taught::Lessons => self.replies.lessons.damage().map(str::to_owned),
            Taught::Documents => documents::damage(&self.replies.documents, principal),
        }
    }

    fn turns(&self, filter: TurnFilter) -> BoxFuture<'_, Result<Listed, ServiceError>> {
        let wanted = CancellationToken::new();
        let list = ListFor(filter, wanted.clone(), Duration::from_millis(LIST_TIMEOUT_MS));
        let listed = self.cast.memory.send_within(list, Duration::from_millis(MEMORY_TIMEOUT_MS));
        Box::pin(async move {
            // Whoever leaves drops this.
            let _left = wanted.drop_guard();
            listed.await.map_err(|error| link(&error))?.map_err(memory)
        })
    }

    fn forget(&self, filter: TurnFilter) -> BoxFuture<'_, Result<Forgotten, ServiceError>> {
        Box::pin(self.forget_everywhere(filter))
    }

    fn runs(&self, principal: Option<&str>) -> Vec<RunSummary> {
        self.replies.runs.list(principal)
    }

    fn cancel_run(&self, principal: Option<&str>, id: &TurnId) -> Result<(), ServiceError> {
        let none = || ServiceError::NotFound(format!("no run {} is under way", id.0));
        self.replies.runs.cancel(principal, id).then_some(()).ok_or_else(none)
    }

    fn sessions(&self, principal: String) -> BoxFuture<'_, Result<Vec<Session>, ServiceError>> {
        Box::pin(sessions::list(self, principal))
    }

    fn session(&self, principal: String, name: String) -> BoxFuture<'_, Result<(Session, Vec<Message>), ServiceError>> {
        Box::pin(sessions::show(self, principal, name))
    }

    fn save_session(
        &self,
        principal: String,
        name: String,
        at: SessionAt,
        replace: bool,
    ) -> BoxFuture<'_, Result<Session, ServiceError>> {
        Box::pin(sessions::save(self, principal, name, at, replace))
    }

    fn delete_session(&self, principal: String, name: String) -> BoxFuture<'_, Result<(), ServiceError>> {
        Box::pin(sessions::delete(self, principal, name))
    }

    fn night(&self, command: NightCommand) -> BoxFuture<'_, Result<Value, ServiceError>> {
        let sent = self.cast.scheduler.send_within(Night(command), Duration::from_millis(NIGHT_TIMEOUT_MS));
        Box::pin(async move { sent.await.map_err(|error| link(&error))? })
    }

    fn pause(&self) -> BoxFuture<'_, Result<(), ServiceError>> {
        Box::pin(pause::pause(self))
    }

    fn resume(&self) -> BoxFuture<'_, Result<(), ServiceError>> {
        Box::pin(pause::resume(self))
    }

    fn model(&self) -> Value {
        self.models.show()
    }

    fn change_model(&self, wish: ModelWish, wait: bool) -> BoxFuture<'_, Result<Value, ServiceError>> {
        Box::pin(self.models.change(wish, self.config.get().drain_timeout, wait))
    }

    fn authenticate(&self, bearer: Option<&str>, loopback: bool) -> Result<Principal, AuthError> {
        self.follow_keys();
        self.keys.borrow().authenticate(bearer, loopback)
    }

    fn accepting(&self) -> bool {
        !self.replies.draining.is_cancelled()
    }
}

/// An actor's life, and what it says of itself.
fn life<A: actix::Actor>(link: &Link<A>, said: Option<Value>) -> Value {
    let mut all = json!({ "life": link.life(), "restarts": link.restarts() });
    if let (Value::Object(all), Some(Value::Object(said))) = (&mut all, said) {
        all.extend(said);
    }
    all
}

async fn status<A, M>(link: &Link<A>, ask: M) -> Value
where
    A: actix::Actor + actix::Handler<M>,
    M: actix::Message<Result = Value> + Send + 'static,
    A::Context: actix::dev::ToEnvelope<A, M>,
{
    match link.send_within(ask, Duration::from_millis(STATUS_TIMEOUT_MS)).await {
        Ok(said) => life(link, Some(said)),
        Err(error) => life(link, Some(json!({ "message": error.to_string() }))),
    }
}

fn text(event: Event) -> Result<String, ServiceError> {
    match event {
        Event::Text { text, .. } => Ok(text),
        _ => Err(strange()),
    }
}

pub(super) fn strange() -> ServiceError {
    ServiceError::Internal("the engine answered something else than was asked".to_owned())
}

pub(super) fn link(error: &LinkError) -> ServiceError {
    ServiceError::Unavailable { message: error.to_string(), retry_after_s: 1 }
}

pub(super) fn engine(error: &InferenceError, retry_after_s: u32) -> ServiceError {
    match error {
        InferenceError::Busy => ServiceError::Busy { message: error.to_string(), retry_after_s: 1 },
        InferenceError::NotRunning(_) | InferenceError::Leased | InferenceError::Late(_) => {
            ServiceError::Unavailable { message: error.to_string(), retry_after_s }
        }
    }
}

pub(super) fn memory(error: MemoryError) -> ServiceError {
    match error {
        MemoryError::Stopped(_) => ServiceError::Unavailable { message: error.to_string(), retry_after_s: 10 },
        MemoryError::Store(StoreError::FeedbackFull(_)) => {
            ServiceError::Invalid { message: error.to_string(), param: Some("turn".to_owned()) }
        }
        MemoryError::Store(StoreError::SessionsFull) => {
            ServiceError::Invalid { message: error.to_string(), param: Some("name".to_owned()) }
        }
        MemoryError::Store(StoreError::SessionExists(_)) => ServiceError::Conflict(error.to_string()),
        MemoryError::Store(StoreError::Unknown(_) | StoreError::NotOwn(_) | StoreError::NoSession(_)) => {
            ServiceError::NotFound(error.to_string())
        }
        MemoryError::Store(_) => ServiceError::Internal(error.to_string()),
    }
}
