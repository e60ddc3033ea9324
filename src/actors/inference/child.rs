//! One engine process and the pipes to it. The task here owns the process and the request registry; what the
//! engine says of a request goes from the pipe straight into that request's channel, past every actor.

use std::collections::HashMap;
use std::ffi::OsString;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use bytes::BytesMut;
use futures_util::StreamExt;
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncWriteExt, BufReader};
use tokio::process::{Child, ChildStdin, ChildStdout, Command as Process};
use tokio::sync::mpsc;
use tokio::time::{Instant, interval, timeout};
use tokio_util::codec::{FramedRead, LengthDelimitedCodec};
use tokio_util::sync::CancellationToken;

use super::board::Board;
use super::stream::{Answer, FromEngine, ToChild};
use crate::engine::protocol::{
    Command, EngineStats, Event, FRAME_BYTES_MAX, FailureKind, Generate, Hosted, Prompt, RequestId, encode,
};
use crate::meters;
use crate::turn::Sampling;

/// Requests and questions one engine may hold.
pub const REGISTRY_MAX: usize = 4_096;
/// Commands written but not yet taken by the pipe: two for each request, and the pings.
const WRITES_MAX: usize = 2 * REGISTRY_MAX + 16;
const PING_INTERVAL_MS: u64 = 2_000;
/// An engine told to end, or whose pipe ended, is killed after this.
const EXIT_TIMEOUT_MS: u64 = 3_000;
/// Longest line of the engine's log, bytes; the rest of a longer one is cut into lines of this size.
const LOG_LINE_BYTES_MAX: u64 = 8 << 10;

/// How to start an engine.
#[derive(Clone, Debug)]
pub struct EngineSpec {
    pub program: PathBuf,
    pub args: Vec<OsString>,
    /// Killed when loading gives no sign of life for so long.
    pub load_timeout: Duration,
    /// Killed when it answers no ping for so long.
    pub stall_timeout: Duration,
    /// Starts tried before giving up on a model that was never ready.
    pub first_start_attempts: u32,
}

/// What the actor hears of its child.
#[derive(Debug)]
pub(super) enum Report {
    Loading(f32),
    /// It produced a token.
    Ready(Box<Hosted>),
    Paused,
    Resumed,
    /// The process is gone and everything it held was told. Last report.
    Ended {
        message: String,
        /// The engine said that the model can never be hosted.
        fatal: bool,
        /// It served a request, or was ready for a while: the next start need not wait long.
        served: bool,
    },
}

enum Entry {
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

struct Session {
    board: Arc<Board>,
    spec: Arc<EngineSpec>,
    reports: mpsc::Sender<Report>,
    writes: mpsc::Sender<Vec<u8>>,
    registry: HashMap<RequestId, Entry>,
    hosted: Option<Box<Hosted>>,
    ready: bool,
    fatal: Option<String>,
    served: bool,
    born: Instant,
    last_frame: Instant,
    ping_since: Option<Instant>,
}

/// Why the conversation with a child ended.
enum End {
    Asked,
    Pipe(String),
    Kill(String),
}

/// Starts an engine and talks to it until it ends or `alive` is cancelled.
pub(super) async fn run(
    spec: Arc<EngineSpec>,
    board: Arc<Board>,
    mut commands: mpsc::Receiver<ToChild>,
    reports: mpsc::Sender<Report>,
    alive: CancellationToken,
) {
    let mut child = match spawn(&spec) {
        Ok(child) => child,
        Err(error) => {
            let message = format!("cannot start {}: {error}", spec.program.display());
            let _ = reports.send(Report::Ended { message, fatal: false, served: false }).await;
            return;
        }
    };
    if board.metered() {
        meters::engine_started();
    }
    let pid = child.id();
    board.started(pid);
    let (Some(stdin), Some(stdout), Some(stderr)) = (child.stdin.take(), child.stdout.take(), child.stderr.take())
    else {
        return;
    };
    tokio::spawn(log_lines(stderr));
    let (writes, queue) = mpsc::channel(WRITES_MAX);
    let writer = tokio::spawn(write_all(stdin, queue));
    let now = Instant::now();
    let mut session = Session {
        board: board.clone(),
        spec,
        reports: reports.clone(),
        writes,
        registry: HashMap::new(),
        hosted: None,
        ready: false,
        fatal: None,
        served: false,
        born: now,
        last_frame: now,
        ping_since: None,
    };
    let end = session.converse(stdout, &mut commands, &alive).await;
    // Nothing more is taken; closing the pipe tells a healthy engine to end.
    commands.close();
    let Session { writes, registry, fatal, served, ready, born, .. } = session;
    drop(writes);
    writer.abort();
    let exit = reap(&mut child, matches!(end, End::Kill(_))).await;
    board.ended(pid);
    let message = match (&fatal, &end) {
        (Some(fatal), _) => fatal.clone(),
        (None, End::Asked) => "the engine was stopped".to_owned(),
        (None, End::Pipe(why) | End::Kill(why)) => format!("{why} ({exit})"),
    };
    if board.metered() {
        meters::engine_ended(match (&fatal, &end) {
            (Some(_), _) => "fatal",
            (None, End::Asked) => "stopped",
            (None, End::Pipe(_)) => "died",
            (None, End::Kill(_)) => "stalled",
        });
    }
    for entry in registry.into_values() {
        lose(entry, &message);
    }
    while let Ok(command) = commands.try_recv() {
        command.refuse(&message);
    }
    let served = served || (ready && born.elapsed() > Duration::from_secs(10));
    let _ = reports.send(Report::Ended { message, fatal: fatal.is_some(), served }).await;
}

fn spawn(spec: &EngineSpec) -> std::io::Result<Child> {
    Process::new(&spec.program)
        .args(&spec.args)
        // systemd hears the daemon alone, and an engine needs no key.
        .env_remove("NOTIFY_SOCKET")
        .env_remove("WATCHDOG_USEC")
        .env_remove("WATCHDOG_PID")
        .env_remove("CHIMERE_KEY")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        // A group of its own: Ctrl-C in a terminal must reach the daemon, which drains, and not the engine.
        .process_group(0)
        .kill_on_drop(true)
        .spawn()
}

impl Session {
    async fn converse(
        &mut self,
        stdout: ChildStdout,
        commands: &mut mpsc::Receiver<ToChild>,
        alive: &CancellationToken,
    ) -> End {
        let mut frames = FramedRead::with_capacity(stdout, codec(), 64 << 10);
        let mut tick = interval(Duration::from_millis(PING_INTERVAL_MS));
        loop {
            tokio::select! {
                frame = frames.next() => match frame {
                    None => return End::Pipe("the engine process ended".to_owned()),
                    Some(Err(error)) => return End::Kill(format!("the engine's pipe failed: {error}")),
                    Some(Ok(frame)) => if let Err(end) = self.frame(&frame).await { return end },
                },
                command = commands.recv() => match command {
                    None => return End::Asked,
                    Some(command) => self.command(command),
                },
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
                        let _ = self.write(&Command::Cancel { id });
                    }
                }
            }
            ToChild::Control(command) => {
                if let Command::LoadTable { id, name, .. } | Command::DropTable { id, name } = &command {
                    self.registry.insert(*id, Entry::Table(name.clone()));
                }
                let _ = self.write(&command);
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

    fn write(&self, command: &Command) -> Result<(), String> {
        let mut frame = Vec::new();
        encode(command, &mut frame).map_err(|error| error.to_string())?;
        self.writes.try_send(frame).map_err(|_| "the engine does not take commands at present".to_owned())
    }

    async fn frame(&mut self, frame: &BytesMut) -> Result<(), End> {
        self.last_frame = Instant::now();
        self.board.beat();
        let event: Event = serde_json::from_slice(frame)
            .map_err(|error| End::Kill(format!("the engine sent a frame that is no event: {error}")))?;
        match event {
            Event::Token(token) => self.pass(token.id, |_| Event::Token(token)),
            Event::Queued { id } | Event::Started { id, .. } => self.pass(id, |_| event),
            Event::Finished { id, .. } => self.finish(id, event).await?,
            Event::Failed { id, .. } => self.finish(id, event).await?,
            Event::Tokens { id, .. }
            | Event::Text { id, .. }
            | Event::AdapterLoaded { id, .. }
            | Event::AdapterDropped { id, .. }
            | Event::Evaluated { id, .. }
            | Event::TableLoaded { id, .. }
            | Event::TableDropped { id, .. }
            | Event::CandidateStands { id, .. }
            | Event::CandidateProbed { id, .. }
            | Event::CandidateSaved { id, .. } => self.finish(id, event).await?,
            Event::Stats { id, stats } => self.stats(id, stats, event).await?,
            Event::Loading { progress } => self.report(Report::Loading(progress)).await,
            Event::Ready(hosted) => self.probe(hosted).await,
            Event::Fatal { message } => self.fatal = Some(message),
            Event::Paused => self.report(Report::Paused).await,
            Event::Resumed => self.report(Report::Resumed).await,
            Event::Refused { command, state } => {
                tracing::warn!(command, state, "the engine refused a command");
            }
        }
        Ok(())
    }

    async fn report(&self, report: Report) {
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
                let _ = self.write(&Command::Cancel { id });
            }
        }
    }

    /// A request's last event.
    async fn finish(&mut self, id: RequestId, event: Event) -> Result<(), End> {
        match self.registry.remove(&id) {
            Some(Entry::Probe) => match (event, self.hosted.take()) {
                (Event::Failed { message, .. }, _) => {
                    return Err(End::Kill(format!("the model loaded but gives no token: {message}")));
                }
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
            self.ping_since = None;
            return Ok(());
        }
        self.finish(id, event).await
    }

    /// The model is loaded: ask it for one token before anyone is told that it is ready.
    async fn probe(&mut self, hosted: Box<Hosted>) {
        if hosted.model.embedding_only {
            return self.serve(hosted).await;
        }
        self.hosted = Some(hosted);
        let id = self.board.next_id();
        self.registry.insert(id, Entry::Probe);
        let greedy = Sampling { temperature: 0.0, ..Sampling::default() };
        let request = Generate { id, ..Generate::new(Prompt::Text("Hello".to_owned()), greedy, 1) };
        let _ = self.write(&Command::Generate(Box::new(request)));
    }

    async fn serve(&mut self, hosted: Box<Hosted>) {
        self.ready = true;
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
                Err(End::Kill(format!("the engine answered nothing for {} s", silent.as_secs())))
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

fn codec() -> LengthDelimitedCodec {
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

fn lose(entry: Entry, message: &str) {
    match entry {
        Entry::Stream { choice, to } => drop(to.try_send((choice, FromEngine::Lost(message.to_owned())))),
        Entry::Once(answer) => drop(answer.send(Err(message.to_owned()))),
        Entry::Probe | Entry::Ping | Entry::Table(_) => {}
    }
}

/// Takes the exit status, killing the process where it does not end by itself.
async fn reap(child: &mut Child, kill: bool) -> String {
    let patience = Duration::from_millis(if kill { 0 } else { EXIT_TIMEOUT_MS });
    let status = match timeout(patience, child.wait()).await {
        Ok(status) => status,
        Err(_) => {
            let _ = child.start_kill();
            child.wait().await
        }
    };
    status.map_or_else(|error| error.to_string(), |status| status.to_string())
}

async fn write_all(mut stdin: ChildStdin, mut queue: mpsc::Receiver<Vec<u8>>) {
    while let Some(frame) = queue.recv().await {
        // A failed write means a dead engine, which the reading side reports.
        if stdin.write_all(&frame).await.is_err() || stdin.flush().await.is_err() {
            return;
        }
    }
}

async fn log_lines(stderr: impl AsyncRead + Unpin) {
    let mut reader = BufReader::new(stderr);
    let mut line = Vec::new();
    loop {
        line.clear();
        let mut limited = tokio::io::AsyncReadExt::take(&mut reader, LOG_LINE_BYTES_MAX);
        match limited.read_until(b'\n', &mut line).await {
            Ok(0) | Err(_) => return,
            Ok(_) => {
                let text = String::from_utf8_lossy(&line);
                tracing::info!(target: "chimere::engine", "{}", text.trim_end());
            }
        }
    }
}
