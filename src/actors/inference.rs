//! Inference owns the serving engine: its process, its restarts with their back-off (`back_off`), the lease that
//! pauses it. Requests enter here once; their tokens never pass through (see `session`).

mod adapt;
mod board;
mod change;
mod child;
mod fleet;
mod gate;
mod life;
mod rest;
mod session;
mod steer;
mod stream;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use actix::fut::wrap_future;
use actix::prelude::*;
use tokio::runtime::Handle;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::timeout;
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::{CancellationToken, DropGuard};

pub use adapt::Adapt;
pub use board::{Board, EngineState};
pub use change::{Host, HostError};
pub use child::EngineSpec;
pub use fleet::{Berth, Fleet, FleetError, FleetLimits, Visit};
pub use gate::{Gate, Pass, Shut};
pub use life::EXIT_TIMEOUT;
pub use rest::{Rest, Wake};
pub use session::REGISTRY_MAX;
pub use stream::{EngineStream, FromEngine, Lease};

use change::Change;
use child::Report;
use stream::ToChild;

use crate::engine::protocol::{ChatInput, Command, EmbedInput, Event, Generate, RequestId};

/// Commands on their way to the task that owns the engine.
const COMMANDS_MAX: usize = 1_024;
const REPORTS_MAX: usize = 64;
/// Messages waiting for this actor.
const MAILBOX_MAX: usize = 256;
const PAUSE_TIMEOUT_MS: u64 = 10_000;
/// Longest wait for the answer to a question.
const ASK_TIMEOUT_MS: u64 = 10_000;
/// The same where a long text is rendered or read, by a library on a busy machine.
const TEXT_TIMEOUT_MS: u64 = 60_000;
/// Longest wait for an answer that comes after the step under way.
const STEP_TIMEOUT_MS: u64 = 30_000;
/// Longest wait for a vector. An engine that answers nothing at all is ended earlier (`engine.stall_timeout_ms`).
pub(super) const EMBED_TIMEOUT_MS: u64 = 600_000;
/// The engine's back-off: the pause before an engine that ended is started again, at first and at most.
const BACK_OFF_FIRST_MS: u64 = 100;
const BACK_OFF_MAX_MS: u64 = 30_000;
/// Events of a reply beside its tokens.
const EVENTS_EXTRA: usize = 8;
/// The same where the tokens of the prompt are told: some hundred in each.
const PROMPT_EVENTS_MAX: usize = 16_384;

#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum InferenceError {
    #[error("the engine is not running: {0}")]
    NotRunning(String),
    #[error("the engine takes no more requests at present")]
    Busy,
    #[error("the engine is paused already, by somebody else: try again when that is over")]
    Leased,
    #[error("the engine did not answer within {} s: ask again when it is less busy, or of a shorter text", .0 / 1_000)]
    Late(u64),
}

/// Starts one reply: a request for each choice, ids given here. → the stream of its events.
#[derive(Message)]
#[rtype(result = "Result<EngineStream, InferenceError>")]
pub struct Submit {
    pub choices: Vec<Generate>,
}

/// A question with one answer; the id is given here.
#[derive(Message)]
#[rtype(result = "Result<Event, InferenceError>")]
pub enum Ask {
    Tokenize {
        text: String,
        specials: bool,
    },
    Detokenize {
        ids: Vec<u32>,
    },
    ApplyTemplate {
        chat: ChatInput,
    },
    LoadAdapter {
        revision: String,
        path: PathBuf,
        sha256: String,
    },
    /// Of an embedding model.
    Embed {
        input: EmbedInput,
        cut: bool,
    },
    /// Of one owner, or of everybody.
    ForgetPrefixes {
        owner: Option<String>,
    },
}

impl Ask {
    /// What the step loop answers comes after the step under way.
    fn patience_ms(&self) -> u64 {
        match self {
            Ask::ForgetPrefixes { .. } => STEP_TIMEOUT_MS,
            Ask::Embed { .. } => EMBED_TIMEOUT_MS,
            Ask::Tokenize { .. } | Ask::Detokenize { .. } | Ask::ApplyTemplate { .. } => TEXT_TIMEOUT_MS,
            _ => ASK_TIMEOUT_MS,
        }
    }

    fn command(self, id: RequestId) -> Command {
        match self {
            Ask::Tokenize { text, specials } => Command::Tokenize { id, text, specials },
            Ask::Detokenize { ids } => Command::Detokenize { id, ids },
            Ask::ApplyTemplate { chat } => Command::ApplyTemplate { id, chat },
            Ask::LoadAdapter { revision, path, sha256 } => Command::LoadAdapter { id, revision, path, sha256 },
            Ask::Embed { input, cut } => Command::Embed { id, input, cut },
            Ask::ForgetPrefixes { owner } => Command::ForgetPrefixes { id, owner },
        }
    }
}

/// Stops decoding at the next token boundary, until the lease is dropped.
#[derive(Message)]
#[rtype(result = "Result<Lease, InferenceError>")]
pub struct Pause;

/// Ends the engine for good: the daemon is stopping.
#[derive(Message)]
#[rtype(result = "()")]
pub struct Stop;

pub struct Inference {
    spec: Arc<EngineSpec>,
    board: Arc<Board>,
    /// Where the pipe tasks run: not on this actor's thread.
    runtime: Handle,
    commands: Option<mpsc::Sender<ToChild>>,
    /// Ends the child's task when it is dropped, also by a panic.
    alive: Option<DropGuard>,
    /// A child's task has not reported its end.
    running: bool,
    /// Ends in a row of engines that served nothing.
    failures: u32,
    /// Somebody holds the lease: the engine, and the next one, is to be paused.
    leased: watch::Sender<bool>,
    pausing: Option<oneshot::Sender<()>>,
    /// The next start, while none runs.
    due: Option<SpawnHandle>,
    change: Option<Change>,
    stopping: bool,
}

impl Inference {
    /// Hosts the model of `spec`, or the one that served in an earlier life.
    pub fn new(spec: Arc<EngineSpec>, board: Arc<Board>, runtime: Handle) -> Self {
        Inference {
            spec: board.served_spec().unwrap_or(spec),
            board,
            runtime,
            commands: None,
            alive: None,
            running: false,
            failures: 0,
            leased: watch::Sender::new(false),
            pausing: None,
            due: None,
            change: None,
            stopping: false,
        }
    }

    fn launch(&mut self, context: &mut Context<Self>) {
        if let Some(due) = self.due.take() {
            context.cancel_future(due);
        }
        if self.stopping {
            return;
        }
        let (commands, taken) = mpsc::channel(COMMANDS_MAX);
        let (reports, heard) = mpsc::channel(REPORTS_MAX);
        let alive = CancellationToken::new();
        self.commands = Some(commands);
        self.alive = Some(alive.clone().drop_guard());
        self.running = true;
        self.board.set(EngineState::Loading { progress: 0.0 });
        let hosting = (self.spec.clone(), self.board.clone());
        self.runtime.spawn(child::run(hosting, taken, self.leased.subscribe(), reports, alive));
        context.add_stream(ReceiverStream::new(heard));
    }

    fn ended(&mut self, message: String, fatal: bool, served: bool, context: &mut Context<Self>) {
        self.commands = None;
        self.running = false;
        self.failures = if served { 1 } else { self.failures + 1 };
        if self.stopping {
            return self.board.set(EngineState::Stopped);
        }
        if self.board.asleep() {
            return self.board.set(EngineState::Unloaded);
        }
        if self.changed(&message, context) {
            return;
        }
        let never = !self.board.was_ready();
        if never && (fatal || self.failures >= self.spec.first_start_attempts) {
            if let Some(instead) = self.spec.instead.clone() {
                tracing::error!(message, file = %instead.model.display(), "the model cannot be hosted: another serves");
                (self.spec, self.failures) = (instead, 0);
                return self.launch(context);
            }
            tracing::error!(message, attempts = self.failures, "the model cannot be hosted");
            return self.board.set(EngineState::Failed { message, fatal });
        }
        let pause = back_off(self.failures);
        tracing::error!(message, failures = self.failures, pause_ms = pause.as_millis(), "the engine ended");
        self.board.set(EngineState::Restarting { pause, message });
        self.due = Some(context.run_later(pause, |inference, context| inference.launch(context)));
    }
}

/// The pause after so many ends in a row: doubled with each, up to the limit.
fn back_off(failures: u32) -> Duration {
    let doublings = failures.saturating_sub(1).min(16);
    Duration::from_millis((BACK_OFF_FIRST_MS << doublings).min(BACK_OFF_MAX_MS))
}

impl Actor for Inference {
    type Context = Context<Self>;

    fn started(&mut self, context: &mut Self::Context) {
        context.set_mailbox_capacity(MAILBOX_MAX);
        if !self.board.asleep() {
            self.launch(context);
        }
    }
}

impl StreamHandler<Report> for Inference {
    fn handle(&mut self, report: Report, context: &mut Self::Context) {
        if (self.leaving() || self.board.asleep()) && !matches!(report, Report::Ended { .. }) {
            return;
        }
        match report {
            Report::Loading(progress) => self.board.set(EngineState::Loading { progress }),
            Report::Ready(hosted) => {
                let hosted = Arc::new(*hosted);
                if self.proven(&hosted, context) {
                    tracing::info!(model = hosted.model.name, backend = hosted.model.backend, "the engine is ready");
                    self.board.set_served(self.spec.clone(), hosted);
                }
            }
            Report::Paused => {
                if let Some(hosted) = self.board.hosted() {
                    self.board.set(EngineState::Paused(hosted));
                }
                if let Some(waiting) = self.pausing.take() {
                    let _ = waiting.send(());
                }
            }
            Report::Resumed => {
                if let Some(hosted) = self.board.hosted() {
                    self.board.set(EngineState::Ready(hosted));
                }
            }
            Report::Ended { message, fatal, served } => self.ended(message, fatal, served, context),
        }
    }

    /// The default stops the actor; one child's reports ending is no reason to.
    fn finished(&mut self, _: &mut Self::Context) {}
}

impl Handler<Submit> for Inference {
    type Result = Result<EngineStream, InferenceError>;

    fn handle(&mut self, submit: Submit, _: &mut Self::Context) -> Self::Result {
        let commands = self.commands.clone().ok_or_else(|| not_running(&self.board))?;
        if self.board.hosted().is_none() {
            return Err(not_running(&self.board));
        }
        // Room for all that a reply can say, so that the pipe's reader never waits for a slow client.
        let extra = |c: &Generate| if c.prompt_logprobs { PROMPT_EVENTS_MAX } else { EVENTS_EXTRA };
        let room = submit.choices.iter().map(|c| c.max_tokens as usize + extra(c)).sum::<usize>().max(1);
        let (to, events) = mpsc::channel(room.min(tokio::sync::Semaphore::MAX_PERMITS));
        let mut stream = EngineStream::new(events, commands.clone());
        for (choice, mut generate) in submit.choices.into_iter().enumerate() {
            generate.id = self.board.next_id();
            stream.push(generate.id);
            let submit = ToChild::Submit { generate: Box::new(generate), choice: choice as u32, to: to.clone() };
            commands.try_send(submit).map_err(|error| match error {
                mpsc::error::TrySendError::Full(_) => InferenceError::Busy,
                mpsc::error::TrySendError::Closed(_) => not_running(&self.board),
            })?;
        }
        Ok(stream)
    }
}

impl Handler<Ask> for Inference {
    type Result = Answer;

    fn handle(&mut self, ask: Ask, _: &mut Self::Context) -> Self::Result {
        let patience_ms = ask.patience_ms();
        self.question(|id| ask.command(id), patience_ms)
    }
}

type Answer = ResponseFuture<Result<Event, InferenceError>>;

impl Inference {
    /// Puts a command with an id of its own to the engine, and waits `patience_ms` for the event that answers it.
    fn question(&mut self, command: impl FnOnce(RequestId) -> Command, patience_ms: u64) -> Answer {
        let id = self.board.next_id();
        let down = not_running(&self.board);
        let Some(commands) = self.commands.clone().filter(|_| self.board.hosted().is_some()) else {
            return Box::pin(async { Err(down) });
        };
        let (answer, heard) = oneshot::channel();
        let sent = commands.try_send(ToChild::Ask { id, command: Box::new(command(id)), answer });
        Box::pin(async move {
            sent.map_err(|_| InferenceError::Busy)?;
            match timeout(Duration::from_millis(patience_ms), heard).await {
                Ok(Ok(Ok(event))) => Ok(event),
                Ok(Ok(Err(message))) => Err(InferenceError::NotRunning(message)),
                Ok(Err(_)) => Err(down),
                Err(_) => Err(InferenceError::Late(patience_ms)),
            }
        })
    }
}

impl Handler<Pause> for Inference {
    type Result = ResponseActFuture<Self, Result<Lease, InferenceError>>;

    fn handle(&mut self, _: Pause, context: &mut Self::Context) -> Self::Result {
        if *self.leased.borrow() {
            return Box::pin(fut::err(InferenceError::Leased));
        }
        if self.board.hosted().is_none() {
            return Box::pin(fut::err(not_running(&self.board)));
        }
        let (held, dropped) = oneshot::channel::<()>();
        // Resolves when the lease is dropped, also by a holder that panicked or stopped waiting.
        context.spawn(wrap_future::<_, Self>(dropped).map(|_, inference, _| {
            inference.leased.send_replace(false);
        }));
        let (waiting, paused) = oneshot::channel();
        self.pausing = Some(waiting);
        self.leased.send_replace(true);
        let deadline = Duration::from_millis(PAUSE_TIMEOUT_MS);
        Box::pin(wrap_future(async move {
            match timeout(deadline, paused).await {
                Ok(Ok(())) => Ok(Lease { held }),
                _ => Err(InferenceError::Late(PAUSE_TIMEOUT_MS)),
            }
        }))
    }
}

impl Handler<Stop> for Inference {
    type Result = ();

    fn handle(&mut self, _: Stop, _: &mut Self::Context) {
        self.stopping = true;
        (self.commands, self.alive) = (None, None);
        // An engine is gone, with all it had to write, only when its task reports so, whatever the board says before.
        if !self.running {
            self.board.set(EngineState::Stopped);
        }
    }
}

fn not_running(board: &Board) -> InferenceError {
    InferenceError::NotRunning(match board.state() {
        EngineState::Restarting { message, .. } | EngineState::Failed { message, .. } => message,
        state => state.name().to_owned(),
    })
}
