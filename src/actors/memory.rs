//! Memory owns the turn log. An append is answered when the turn is flushed. When the disk fails or its data cannot be
//! read, writing stops and serving goes on. The log is reopened after a while. The log is opened and read away from the
//! actor's thread: sled may hang, and it panics at some damage.

mod lessons;
mod listing;
mod sessions;

use std::sync::Arc;
use std::time::Duration;

use actix::fut::wrap_future;
use actix::prelude::*;
use serde_json::{Value, json};
use tokio::sync::{Semaphore, oneshot};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::lessons::Lessons;
use crate::meters;
use crate::service::{Listed, TurnFilter};
use crate::store::{StoreError, TurnStore};
use crate::turn::{Feedback, Judgement, Turn, TurnId};

pub use lessons::{EditLesson, ForgetLesson, ForgetLessons, Teach};
use listing::Lister;
pub use sessions::{AppendTo, DeleteSession, Resume, SaveSession, Sessions};

/// Pause before a failed log is opened again, milliseconds; it doubles with each failure in a row.
const REOPEN_FIRST_MS: u64 = 250;
const REOPEN_MAX_MS: u64 = 16_000;
/// A piece of work on the log, or a flush, that takes longer counts as a failed disk.
const DISK_TIMEOUT_MS: u64 = 30_000;
/// How long what is sent to a life that begins waits for the log to be open. A salvage may take much longer.
const OPEN_WAIT: Duration = Duration::from_secs(3);
const MAILBOX_MAX: usize = 1_024;
/// Pieces of clients' listings under way at once, and of the daemon's own. More wait for their turn: no crowd of
/// listings holds up a night.
const LISTS_MAX: usize = 1;
const OWN_LISTS_MAX: usize = 2;

#[derive(Debug, thiserror::Error)]
pub enum MemoryError {
    #[error("the turn log is not writing: {0}")]
    Stopped(String),
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Keeps a turn; answered when it is flushed.
#[derive(Message)]
#[rtype(result = "Result<(), MemoryError>")]
pub struct Append(pub Box<Turn>);

/// Adds feedback to a turn; answered when it is flushed.
#[derive(Message)]
#[rtype(result = "Result<(), MemoryError>")]
pub struct AddFeedback(pub TurnId, pub Feedback);

/// Writes a turn's judgement, once; answered when it is flushed. False: the turn has one already.
#[derive(Message)]
#[rtype(result = "Result<bool, MemoryError>")]
pub struct AddJudgement(pub TurnId, pub Judgement);

/// Writes the judgement of a correction of a turn, once; answered when it is flushed. False: it has one already.
#[derive(Message)]
#[rtype(result = "Result<bool, MemoryError>")]
pub struct JudgeCorrection(pub TurnId, pub String, pub Judgement);

/// Turns without a judgement, behind the first, at most as many as the second says.
#[derive(Message)]
#[rtype(result = "Result<Vec<TurnId>, MemoryError>")]
pub struct Unscored(pub Option<TurnId>, pub usize);

#[derive(Message)]
#[rtype(result = "Result<Option<Turn>, MemoryError>")]
pub struct Get(pub TurnId);

#[derive(Message)]
#[rtype(result = "Result<Vec<Turn>, MemoryError>")]
pub struct List(pub TurnFilter);

/// As `List`, for a client, at a low priority: when it leaves, the token is cancelled, and no further piece is read. So it
/// is when the time is up; a first piece is read in any case.
#[derive(Message)]
#[rtype(result = "Result<Listed, MemoryError>")]
pub struct ListFor(pub TurnFilter, pub CancellationToken, pub Duration);

/// Shows turns one by one to `take`, as `List` would return them: of a whole log only a piece is in memory.
#[derive(Message)]
#[rtype(result = "Result<T, MemoryError>")]
pub struct Survey<T: Send + 'static> {
    pub filter: TurnFilter,
    pub seen: T,
    pub take: fn(&mut T, Turn),
}

/// Removes turns; answered when that is flushed.
#[derive(Message)]
#[rtype(result = "Result<usize, MemoryError>")]
pub struct Forget(pub TurnFilter);

/// Whether a turn of this id was ever forgotten, or that is not known.
#[derive(Message)]
#[rtype(result = "Result<bool, MemoryError>")]
pub struct WasForgotten(pub TurnId);

/// The turns that a forgetting leaves without its words: they went on with one that passes.
#[derive(Message)]
#[rtype(result = "Result<Vec<TurnId>, MemoryError>")]
pub struct Followers(pub TurnFilter);

#[derive(Message)]
#[rtype(result = "Value")]
pub struct MemoryStatus;

/// A reader found the log damaged.
#[derive(Message)]
#[rtype(result = "()")]
struct FoundBroken(String);

/// Opens the log: called at the start of every life and after a failure.
pub type OpenStore = Arc<dyn Fn() -> Result<Arc<dyn TurnStore>, StoreError> + Send + Sync>;

type Opening = std::pin::Pin<Box<dyn Future<Output = Result<Arc<dyn TurnStore>, StoreError>>>>;

/// Longest wait for a log to be closed. One whose disk failed may never be done with it.
const CLOSE_WAIT: Duration = Duration::from_secs(1);

/// An open log. It is closed by a thread of its own: a disk that fails may also hang, and must not take the actor along.
struct Held(Option<Arc<dyn TurnStore>>);

impl Held {
    fn get(&self) -> Result<&dyn TurnStore, StoreError> {
        self.0.as_deref().ok_or_else(|| StoreError::Disk("the turn log is closed".to_owned()))
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let log = self.0.take();
        let (done, closed) = std::sync::mpsc::channel();
        let closing = move || {
            drop(log);
            let _ = done.send(());
        };
        if std::thread::Builder::new().name("turns-close".to_owned()).spawn(closing).is_ok()
            && closed.recv_timeout(CLOSE_WAIT).is_err()
        {
            tracing::error!("the turn log does not close: its disk hangs");
        }
    }
}

pub struct Memory {
    open: OpenStore,
    /// `Err`: why writing stopped.
    log: Result<Arc<Held>, String>,
    /// Failures since the last success.
    failures: u32,
    lists: Arc<Semaphore>,
    own_lists: Arc<Semaphore>,
    lister: Lister,
    lessons: Arc<Lessons>,
    /// One change of lessons at once.
    changes: Arc<Semaphore>,
}

impl Memory {
    pub fn new(open: OpenStore) -> Self {
        let places = |count| Arc::new(Semaphore::new(count));
        let (lists, own_lists) = (places(LISTS_MAX), places(OWN_LISTS_MAX));
        let lister = Lister::start();
        let log = Err("not opened yet".to_owned());
        Memory { open, log, failures: 0, lists, own_lists, lister, lessons: Arc::default(), changes: places(1) }
    }

    /// Also the one who changes these lessons.
    pub fn with_lessons(self, lessons: Arc<Lessons>) -> Self {
        Memory { lessons, ..self }
    }

    fn opened(&mut self, opened: Result<Arc<dyn TurnStore>, StoreError>, context: &mut Context<Self>) {
        match opened {
            Ok(log) => self.log = Ok(Arc::new(Held(Some(log)))),
            Err(error) => self.stop_writing(without_the_log(&error), context),
        }
    }

    /// Opens the log on a thread of its own, for the reason that it is closed on one.
    fn start_opening(&self) -> Opening {
        let (open, (to, opened)) = (self.open.clone(), oneshot::channel());
        let opening = std::thread::Builder::new().name("turns-open".to_owned()).spawn(move || drop(to.send(open())));
        Box::pin(async move {
            opening.map_err(|error| StoreError::Disk(error.to_string()))?;
            opened
                .await
                .unwrap_or_else(|_| Err(StoreError::Disk("the thread that opens the turn log ended".to_owned())))
        })
    }

    fn reopen(&mut self, opening: Opening, context: &mut Context<Self>) {
        context.spawn(wrap_future::<_, Self>(opening).map(|opened, memory, context| memory.opened(opened, context)));
    }

    fn stop_writing(&mut self, why: String, context: &mut Context<Self>) {
        let retry_ms = (REOPEN_FIRST_MS << self.failures.min(16)).min(REOPEN_MAX_MS);
        self.failures += 1;
        tracing::error!(why, retry_ms, "the turn log stopped writing; serving goes on");
        // The old log must be closed before its folder can be opened again.
        self.log = Err(why);
        context.run_later(Duration::from_millis(retry_ms), |memory, context| {
            if memory.log.is_err() {
                memory.reopen(memory.start_opening(), context);
            }
        });
    }

    /// Runs `work` away from this thread and then flushes; a failure of the disk stops the writing.
    fn write<T: Send + 'static>(
        &self,
        work: impl FnOnce(&dyn TurnStore) -> Result<T, StoreError> + Send + 'static,
    ) -> ResponseActFuture<Self, Result<T, MemoryError>> {
        self.write_by(move |log| async move { blocking(log, work).await })
    }

    /// As `write`, for work of several pieces.
    fn write_by<T: Send + 'static, F>(
        &self,
        work: impl FnOnce(Arc<Held>) -> F + Send + 'static,
    ) -> ResponseActFuture<Self, Result<T, MemoryError>>
    where
        F: Future<Output = Result<(Arc<Held>, T), StoreError>> + Send + 'static,
    {
        let log = match &self.log {
            Ok(log) => log.clone(),
            Err(why) => return Box::pin(fut::err(MemoryError::Stopped(why.clone()))),
        };
        let written = async move {
            let (log, value) = work(log).await?;
            let flushed = timeout(Duration::from_millis(DISK_TIMEOUT_MS), log.get()?.flush()).await;
            flushed.unwrap_or_else(|_| Err(StoreError::Disk(format!("no flush within {DISK_TIMEOUT_MS} ms"))))?;
            Ok(value)
        };
        Box::pin(wrap_future::<_, Self>(written).map(|result: Result<T, StoreError>, memory, context| {
            if let Err(error @ (StoreError::Disk(_) | StoreError::Broken(_))) = &result
                && memory.log.is_ok()
            {
                memory.stop_writing(without_the_log(error), context);
            }
            if result.is_ok() {
                memory.failures = 0;
            }
            result.map_err(MemoryError::from)
        }))
    }

    /// Runs `work` away from this thread. Where it finds damage the log is opened anew, which salvages it.
    fn read<T: Send + 'static>(
        &self,
        context: &Context<Self>,
        work: impl FnOnce(&dyn TurnStore) -> Result<T, StoreError> + Send + 'static,
    ) -> ResponseFuture<Result<T, MemoryError>> {
        let (log, me) = (self.log.clone(), context.address());
        Box::pin(async move { tell(&me, blocking(log.map_err(MemoryError::Stopped)?, work).await).map(|read| read.1) })
    }
}

/// Why the log stopped, where whoever says it has named the log.
fn without_the_log(error: &StoreError) -> String {
    match error {
        StoreError::Disk(why) => why.clone(),
        StoreError::Broken(why) => format!("it is damaged: {why}"),
        other => other.to_string(),
    }
}

/// Tells the actor of damage.
fn tell<T>(me: &Addr<Memory>, read: Result<T, StoreError>) -> Result<T, MemoryError> {
    if let Err(StoreError::Broken(why)) = &read {
        // One of those who find it gets through.
        let _ = me.try_send(FoundBroken(why.clone()));
    }
    Ok(read?)
}

async fn blocking<T: Send + 'static>(
    log: Arc<Held>,
    work: impl FnOnce(&dyn TurnStore) -> Result<T, StoreError> + Send + 'static,
) -> Result<(Arc<Held>, T), StoreError> {
    let done = tokio::task::spawn_blocking(move || done(log, work));
    // sled panics where it reads what it did not write.
    within(async { done.await.map_err(|error| StoreError::Broken(error.to_string()))? }).await
}

fn done<T>(
    log: Arc<Held>,
    work: impl FnOnce(&dyn TurnStore) -> Result<T, StoreError>,
) -> Result<(Arc<Held>, T), StoreError> {
    let value = work(log.get()?)?;
    Ok((log, value))
}

async fn within<T>(work: impl Future<Output = Result<T, StoreError>>) -> Result<T, StoreError> {
    let late = |_| StoreError::Disk(format!("no answer within {DISK_TIMEOUT_MS} ms"));
    timeout(Duration::from_millis(DISK_TIMEOUT_MS), work).await.map_err(late)?
}

impl Actor for Memory {
    type Context = Context<Self>;

    fn started(&mut self, context: &mut Self::Context) {
        context.set_mailbox_capacity(MAILBOX_MAX);
        // What is sent to a life that begins must find the log open, if that can be.
        let opening = self.start_opening();
        let waited = async move {
            let mut opening = opening;
            match timeout(OPEN_WAIT, &mut opening).await {
                Ok(opened) => Ok(opened),
                Err(_) => Err(opening),
            }
        };
        context.wait(wrap_future::<_, Self>(waited).map(|waited, memory, context| match waited {
            Ok(opened) => memory.opened(opened, context),
            Err(opening) => {
                memory.log = Err("it is still being opened".to_owned());
                memory.reopen(opening, context);
            }
        }));
    }
}

impl Handler<FoundBroken> for Memory {
    type Result = ();

    fn handle(&mut self, FoundBroken(why): FoundBroken, context: &mut Self::Context) {
        if self.log.is_ok() {
            self.stop_writing(without_the_log(&StoreError::Broken(why)), context);
        }
    }
}

impl Handler<Append> for Memory {
    type Result = ResponseActFuture<Self, Result<(), MemoryError>>;

    fn handle(&mut self, Append(turn): Append, _: &mut Self::Context) -> Self::Result {
        Box::pin(self.write(move |log| log.append(&turn)).map(|result, _, _| result.map(note_appended)))
    }
}

/// Counts a turn that was kept, and those dropped for it.
fn note_appended(dropped: u64) {
    if dropped > 0 {
        tracing::warn!(dropped, "the turn log is over its limit: the oldest turns were dropped");
        meters::turns_dropped(dropped);
    }
    meters::turn_appended();
}

impl Handler<AddFeedback> for Memory {
    type Result = ResponseActFuture<Self, Result<(), MemoryError>>;

    fn handle(&mut self, AddFeedback(id, feedback): AddFeedback, _: &mut Self::Context) -> Self::Result {
        self.write(move |log| log.add_feedback(&id, &feedback))
    }
}

impl Handler<AddJudgement> for Memory {
    type Result = ResponseActFuture<Self, Result<bool, MemoryError>>;

    fn handle(&mut self, AddJudgement(id, judgement): AddJudgement, _: &mut Self::Context) -> Self::Result {
        self.write(move |log| log.add_judgement(&id, &judgement))
    }
}

impl Handler<JudgeCorrection> for Memory {
    type Result = ResponseActFuture<Self, Result<bool, MemoryError>>;

    fn handle(&mut self, judged: JudgeCorrection, _: &mut Self::Context) -> Self::Result {
        let JudgeCorrection(id, correction, judgement) = judged;
        self.write(move |log| log.add_correction_judgement(&id, &correction, &judgement))
    }
}

impl Handler<Unscored> for Memory {
    type Result = ResponseFuture<Result<Vec<TurnId>, MemoryError>>;

    fn handle(&mut self, Unscored(after, limit): Unscored, context: &mut Self::Context) -> Self::Result {
        self.read(context, move |log| log.unscored(after.as_ref(), limit))
    }
}

impl Handler<Get> for Memory {
    type Result = ResponseFuture<Result<Option<Turn>, MemoryError>>;

    fn handle(&mut self, Get(id): Get, context: &mut Self::Context) -> Self::Result {
        self.read(context, move |log| log.get(&id))
    }
}

impl Handler<Followers> for Memory {
    type Result = ResponseFuture<Result<Vec<TurnId>, MemoryError>>;

    fn handle(&mut self, Followers(filter): Followers, context: &mut Self::Context) -> Self::Result {
        let (log, me) = (self.log.clone(), context.address());
        Box::pin(async move {
            let (mut log, mut found, mut rest) = (log.map_err(MemoryError::Stopped)?, Vec::new(), Some(filter));
            while let Some(filter) = rest {
                let (mut next, wanted) = (filter.clone(), move |log: &dyn TurnStore| log.followers_piece(&filter));
                let (same, piece) = tell(&me, blocking(log, wanted).await)?;
                (log, next.after) = (same, piece.next);
                found.extend(piece.value);
                rest = next.after.is_some().then_some(next);
            }
            Ok(found)
        })
    }
}

impl Handler<Forget> for Memory {
    type Result = ResponseActFuture<Self, Result<usize, MemoryError>>;

    fn handle(&mut self, Forget(filter): Forget, _: &mut Self::Context) -> Self::Result {
        self.write_by(move |mut log| async move {
            let (mut forgotten, mut rest) = (0, Some(filter));
            while let Some(filter) = rest {
                let (mut next, wanted) = (filter.clone(), move |log: &dyn TurnStore| log.forget_piece(&filter));
                let (same, piece) = blocking(log, wanted).await?;
                (log, next.after) = (same, piece.next);
                forgotten += piece.value;
                rest = next.after.is_some().then_some(next);
            }
            Ok((log, forgotten))
        })
    }
}

impl Handler<WasForgotten> for Memory {
    type Result = ResponseFuture<Result<bool, MemoryError>>;

    fn handle(&mut self, WasForgotten(id): WasForgotten, context: &mut Self::Context) -> Self::Result {
        self.read(context, move |log| log.was_forgotten(&id))
    }
}

impl Handler<MemoryStatus> for Memory {
    type Result = ResponseFuture<Value>;

    fn handle(&mut self, _: MemoryStatus, context: &mut Self::Context) -> Self::Result {
        let seen = self.read(context, |log| Ok((log.counts()?, log.salvaged())));
        Box::pin(async move {
            match seen.await {
                Ok((counts, None)) => json!({ "state": "writing", "turns": counts.turns, "bytes": counts.bytes }),
                Ok((counts, Some(salvage))) => json!({
                    "state": "writing",
                    "turns": counts.turns,
                    "bytes": counts.bytes,
                    "salvage": salvage,
                    "message": salvage.told(),
                }),
                Err(error) => json!({ "state": "stopped", "message": error.to_string() }),
            }
        })
    }
}
