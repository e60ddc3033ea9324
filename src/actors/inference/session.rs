//! The conversation with one engine process: which request waits for which answer, and how long the engine may be
//! silent. Events of a request go from the pipe straight into that request's channel, past every actor.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::BytesMut;
use futures_util::StreamExt;
use tokio::process::ChildStdout;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, MissedTickBehavior, interval};
use tokio_util::codec::{FramedRead, LengthDelimitedCodec};
use tokio_util::sync::CancellationToken;

use super::board::Board;
use super::child::{EngineSpec, Report};
use super::steer::Steering;
use super::stream::{Answer, FromEngine, ToChild};
use crate::engine::protocol::{
    Command, EmbedInput, EngineStats, Event, FRAME_BYTES_MAX, FailureKind, FrameError, Generate, Hosted, PROTOCOL,
    Prompt, RequestId, encode, id_of,
};
use crate::turn::Sampling;

/// Requests and questions one engine may hold.
pub const REGISTRY_MAX: usize = 4_096;
const PING_INTERVAL_MS: u64 = 2_000;
/// What a model must read, and how many tokens it must be able to say, before it serves.
const PROBE_TEXT: &str = "Hello";
const PROBE_TOKENS: u32 = 4;

pub(super) enum Entry {
    Stream {
        choice: u32,
        to: mpsc::Sender<(u32, FromEngine)>,
    },
    Once(Answer),
    Probe,
    Ping,
    /// Loading or dropping a table; the name.
    Table(String),
}

pub(super) struct Session {
    pub(super) board: Arc<Board>,
    spec: Arc<EngineSpec>,
    reports: mpsc::Sender<Report>,
    pub(super) writes: mpsc::Sender<Vec<u8>>,
    pub(super) registry: HashMap<RequestId, Entry>,
    pub(super) steering: Steering,
    /// The engine said what it speaks, and it is what this daemon speaks.
    greeted: bool,
    hosted: Option<Box<Hosted>>,
    pub(super) ready: bool,
    pub(super) fatal: Option<String>,
    pub(super) served: bool,
    pub(super) born: Instant,
    last_frame: Instant,
    ping_since: Option<Instant>,
    /// The last look found a ping unanswered for too long.
    overdue: bool,
}

/// Why the conversation with a child ended.
pub(super) enum End {
    Asked,
    Pipe(String),
    Kill(String),
}

impl End {
    pub(super) fn why(&self) -> &str {
        match self {
            End::Asked => "the engine was stopped",
            End::Pipe(why) | End::Kill(why) => why,
        }
    }
}

impl Session {
    pub(super) fn new(
        (spec, board): (Arc<EngineSpec>, Arc<Board>),
        reports: mpsc::Sender<Report>,
        writes: mpsc::Sender<Vec<u8>>,
        pause: watch::Receiver<bool>,
    ) -> Session {
        let now = Instant::now();
        Session {
            steering: Steering::new(pause, board.watch_shelf()),
            board,
            spec,
            reports,
            writes,
            registry: HashMap::new(),
            greeted: false,
            hosted: None,
            ready: false,
            fatal: None,
            served: false,
            born: now,
            last_frame: now,
            ping_since: None,
            overdue: false,
        }
    }

    /// Until the engine ends or must, or `alive` is cancelled.
    pub(super) async fn converse(
        &mut self,
        frames: &mut FramedRead<ChildStdout, LengthDelimitedCodec>,
        commands: &mut mpsc::Receiver<ToChild>,
        alive: &CancellationToken,
    ) -> End {
        let mut tick = interval(Duration::from_millis(PING_INTERVAL_MS));
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let (mut pause, mut shelf) = (self.steering.pause.clone(), self.steering.shelf.clone());
        loop {
            self.steer();
            tokio::select! {
                frame = frames.next() => match frame {
                    None => return End::Pipe("the engine process ended".to_owned()),
                    Some(Err(error)) => return End::Kill(format!("the engine's pipe failed: {error}")),
                    Some(Ok(frame)) => if let Err(end) = self.frame(&frame).await { return end },
                },
                command = commands.recv() => match command {
                    None => return End::Asked,
                    Some(command) => {
                        // What was wanted before it comes before it.
                        self.steer();
                        self.command(command);
                    }
                },
                Ok(()) = pause.changed() => self.wished().await,
                Ok(()) = shelf.changed() => {}
                () = alive.cancelled() => return End::Asked,
                _ = tick.tick() => if let Err(end) = self.watch() { return end },
            }
        }
    }

    /// Takes a command of the daemon into the registry and towards the pipe.
    fn command(&mut self, command: ToChild) {
        match command {
            ToChild::Submit { generate, choice, to } => {
                let id = generate.id;
                if self.registry.len() >= REGISTRY_MAX {
                    let message = format!("{REGISTRY_MAX} requests are under way");
                    let _ = to.try_send((choice, failed(id, FailureKind::Busy, message)));
                    return;
                }
                self.registry.insert(id, Entry::Stream { choice, to });
                self.write_for(id, &Command::Generate(generate));
            }
            ToChild::Ask { id, command, answer } => {
                self.registry.insert(id, Entry::Once(answer));
                self.write_for(id, &command);
            }
            ToChild::Cancel { ids } => {
                for id in ids {
                    if self.registry.contains_key(&id) {
                        self.cancel(id);
                    }
                }
            }
        }
    }

    /// Writes a command that an entry waits on; the entry fails when it cannot be written.
    fn write_for(&mut self, id: RequestId, command: &Command) {
        if let Err(message) = self.write(command)
            && let Some(entry) = self.registry.remove(&id)
        {
            give(entry, Event::Failed { id, kind: FailureKind::Busy, message });
        }
    }

    pub(super) fn write(&self, command: &Command) -> Result<(), String> {
        let mut frame = Vec::new();
        encode(command, &mut frame).map_err(|error| error.to_string())?;
        self.writes.try_send(frame).map_err(|_| "the engine does not take commands at present".to_owned())
    }

    async fn frame(&mut self, frame: &BytesMut) -> Result<(), End> {
        self.last_frame = Instant::now();
        self.board.beat();
        let event: Event = match serde_json::from_slice(frame) {
            Ok(event) => event,
            Err(error) => return self.strange(frame, &error.into()),
        };
        if !self.greeted {
            return self.greet(event);
        }
        match event {
            Event::Token(token) => self.pass(token.id, |_| Event::Token(token)),
            Event::Queued { id } | Event::Started { id, .. } | Event::PromptRead { id, .. } => self.pass(id, |_| event),
            Event::Finished { id, .. } => self.finish(id, event).await?,
            Event::Failed { id, .. } => self.finish(id, event).await?,
            Event::Tokens { id, .. }
            | Event::Text { id, .. }
            | Event::Rendered { id, .. }
            | Event::AdapterLoaded { id, .. }
            | Event::AdapterDropped { id, .. }
            | Event::Evaluated { id, .. }
            | Event::Embedded { id, .. }
            | Event::TableLoaded { id, .. }
            | Event::TableDropped { id, .. }
            | Event::PrefixesForgotten { id, .. }
            | Event::CandidateStands { id, .. }
            | Event::CandidateProbed { id, .. }
            | Event::CandidateSaved { id, .. } => self.finish(id, event).await?,
            Event::Stats { id, ref stats } => self.stats(id, **stats, event).await?,
            Event::Hello { .. } => {}
            Event::Loading { progress } => self.report(Report::Loading(progress)).await,
            Event::Ready(hosted) => self.loaded(hosted).await,
            Event::Fatal { message } => self.fatal = Some(message),
            Event::Paused => self.turned(true).await,
            Event::Resumed => self.turned(false).await,
            Event::Refused { command, state } => {
                tracing::warn!(command, state, "the engine refused a command");
                if command == "Pause" || command == "Resume" {
                    self.turned(state == "Paused").await;
                }
            }
        }
        Ok(())
    }

    /// The first frame. Another version would be misunderstood sooner or later: better now, and in words.
    fn greet(&mut self, event: Event) -> Result<(), End> {
        let own = format!("this daemon is {} and speaks protocol {PROTOCOL}", env!("CARGO_PKG_VERSION"));
        let other = match event {
            Event::Hello { protocol: PROTOCOL, .. } => {
                self.greeted = true;
                return Ok(());
            }
            Event::Hello { protocol, version } => {
                format!("the engine is chimere {version} and speaks protocol {protocol}")
            }
            _ => "the engine is of a version that does not say what it speaks".to_owned(),
        };
        Err(End::Kill(format!("{other}, but {own}: restart the daemon, so that both are of one version")))
    }

    /// A frame that is no event costs the request it is about, and no other. Before the engine is ready it means that
    /// nothing of the engine can be understood.
    fn strange(&mut self, frame: &[u8], error: &FrameError) -> Result<(), End> {
        if !self.ready {
            return Err(End::Kill(format!("the engine sent a frame that is no event: {error}")));
        }
        tracing::error!(%error, "the engine sent a frame that is no event");
        if let Some(id) = id_of(frame)
            && let Some(entry) = self.registry.remove(&id)
        {
            self.cancel(id);
            let message =
                "the engine answered in a way that this daemon does not understand; after an update, restart it";
            give(entry, Event::Failed { id, kind: FailureKind::Internal, message: message.to_owned() });
        }
        Ok(())
    }

    pub(super) async fn report(&self, report: Report) {
        let _ = self.reports.send(report).await;
    }

    /// An event that is not a request's last one.
    fn pass(&mut self, id: RequestId, event: impl FnOnce(RequestId) -> Event) {
        let Some(Entry::Stream { choice, to }) = self.registry.get(&id) else { return };
        let (choice, sent) = (*choice, to.try_send((*choice, FromEngine::Event(event(id)))));
        match sent {
            Ok(()) => {}
            Err(error) => {
                // Closed: the reader left. Full: the engine sent more than it was asked for.
                let full = matches!(error, mpsc::error::TrySendError::Full(_));
                tracing::debug!(id, choice, full, "request cancelled: its channel takes nothing");
                self.registry.remove(&id);
                self.cancel(id);
            }
        }
    }

    /// A request's last event.
    async fn finish(&mut self, id: RequestId, event: Event) -> Result<(), End> {
        self.uncancel(id);
        match self.registry.remove(&id) {
            Some(Entry::Probe) => match (event, self.hosted.take()) {
                (Event::Failed { message, .. }, hosted) => {
                    let what = if hosted.is_some_and(|h| h.model.embedding_only) { "vector" } else { "token" };
                    return Err(End::Kill(format!("the model loaded but gives no {what}: {message}")));
                }
                (Event::Tokens { ids, .. }, Some(hosted)) => return self.probe(hosted, Prompt::Ids(ids)),
                (_, Some(hosted)) => self.serve(hosted).await,
                _ => {}
            },
            Some(Entry::Table(name)) => self.board.table(name, event),
            Some(entry) => {
                self.served = true;
                give(entry, event);
            }
            None => {}
        }
        Ok(())
    }

    async fn stats(&mut self, id: RequestId, stats: EngineStats, event: Event) -> Result<(), End> {
        self.board.set_stats(stats);
        if let Some(Entry::Ping) = self.registry.get(&id) {
            self.registry.remove(&id);
            (self.ping_since, self.overdue) = (None, false);
            return Ok(());
        }
        self.finish(id, event).await
    }

    /// The model is loaded: before anyone is told that it is ready, it reads a word and says some, or its vector.
    async fn loaded(&mut self, hosted: Box<Hosted>) {
        let (embeds, text) = (hosted.model.embedding_only, PROBE_TEXT.to_owned());
        let id = self.probing(hosted);
        let _ = self.write(&match embeds {
            true => Command::Embed { id, input: EmbedInput::Text(text), cut: true },
            false => Command::Tokenize { id, text, specials: false },
        });
    }

    /// What the model read it goes on from, greedily.
    fn probe(&mut self, hosted: Box<Hosted>, prompt: Prompt) -> Result<(), End> {
        if prompt == Prompt::Ids(Vec::new()) {
            return Err(End::Kill("the model loaded but its tokenizer makes no token of a word".to_owned()));
        }
        let id = self.probing(hosted);
        let greedy = Sampling { temperature: 0.0, ..Sampling::default() };
        let request = Generate { id, ..Generate::new(prompt, greedy, PROBE_TOKENS) };
        let _ = self.write(&Command::Generate(Box::new(request)));
        Ok(())
    }

    fn probing(&mut self, hosted: Box<Hosted>) -> RequestId {
        self.hosted = Some(hosted);
        let id = self.board.next_id();
        self.registry.insert(id, Entry::Probe);
        id
    }

    async fn serve(&mut self, hosted: Box<Hosted>) {
        self.ready = true;
        // Requests come after that report, and so after the tables.
        self.steer();
        self.report(Report::Ready(hosted)).await;
    }

    /// Pings a ready engine; ends one that gave no sign of life in time.
    fn watch(&mut self) -> Result<(), End> {
        let now = Instant::now();
        let silent = now.duration_since(self.last_frame);
        if !self.ready {
            if silent > self.spec.load_timeout {
                return Err(End::Kill(format!("loading the model gave no sign of life for {} s", silent.as_secs())));
            }
            return Ok(());
        }
        match self.ping_since {
            Some(since) if now.duration_since(since) > self.spec.stall_timeout => {
                // After a daemon that stood still itself the answer may lie in the pipe, read before the next look.
                if std::mem::replace(&mut self.overdue, true) {
                    return Err(End::Kill(format!("the engine answered nothing for {} s", silent.as_secs())));
                }
                Ok(())
            }
            Some(_) => Ok(()),
            None => {
                let id = self.board.next_id();
                if self.write(&Command::Stats { id }).is_ok() {
                    self.registry.insert(id, Entry::Ping);
                }
                self.ping_since = Some(now);
                Ok(())
            }
        }
    }
}

pub(super) fn codec() -> LengthDelimitedCodec {
    LengthDelimitedCodec::builder().little_endian().length_field_length(4).max_frame_length(FRAME_BYTES_MAX).new_codec()
}

fn failed(id: RequestId, kind: FailureKind, message: String) -> FromEngine {
    FromEngine::Event(Event::Failed { id, kind, message })
}

/// Hands a last event over. The channel of a stream has room for it, or its reader is gone.
fn give(entry: Entry, event: Event) {
    match entry {
        Entry::Stream { choice, to } => drop(to.try_send((choice, FromEngine::Event(event)))),
        Entry::Once(answer) => drop(answer.send(Ok(event))),
        Entry::Probe | Entry::Ping | Entry::Table(_) => {}
    }
}

pub(super) fn lose(entry: Entry, message: &str) {
    match entry {
        Entry::Stream { choice, to } => drop(to.try_send((choice, FromEngine::Lost(message.to_owned())))),
        Entry::Once(answer) => drop(answer.send(Err(message.to_owned()))),
        Entry::Probe | Entry::Ping | Entry::Table(_) => {}
    }
}
