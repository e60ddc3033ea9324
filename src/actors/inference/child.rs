//! One engine process and the pipes to it: how it is started, and that nothing of it is left when it ends. What is said
//! over the pipes is `session`'s.

use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tokio::time::timeout;
use tokio_util::codec::FramedRead;
use tokio_util::sync::CancellationToken;

use super::board::Board;
use super::life::{EXIT_TIMEOUT, log_lines, reap, spawn, write_all};
use super::session::{End, REGISTRY_MAX, Session, codec, lose};
use super::stream::ToChild;
use crate::engine::protocol::{Command, Hosted};
use crate::meters;

/// Commands written but not yet taken by the pipe: two for each request, and the pings.
const WRITES_MAX: usize = 2 * REGISTRY_MAX + 16;

/// How to start an engine.
#[derive(Clone, Debug)]
pub struct EngineSpec {
    pub program: PathBuf,
    /// Beside the model.
    pub args: Vec<OsString>,
    /// The file that it hosts.
    pub model: PathBuf,
    /// What is hosted where this one never comes up at the daemon's start.
    pub instead: Option<Arc<EngineSpec>>,
    /// Killed when loading gives no sign of life for so long.
    pub load_timeout: Duration,
    /// Killed when it answers no ping for so long.
    pub stall_timeout: Duration,
    /// One told to end is killed after this: it may have something to write.
    pub exit_timeout: Duration,
    /// Starts tried before giving up on a model that was never ready.
    pub first_start_attempts: u32,
}

#[cfg(test)]
impl EngineSpec {
    /// Of an engine that is never started.
    pub(super) fn none() -> EngineSpec {
        EngineSpec {
            program: "none".into(),
            model: "none".into(),
            instead: None,
            args: Vec::new(),
            load_timeout: Duration::ZERO,
            stall_timeout: Duration::ZERO,
            exit_timeout: EXIT_TIMEOUT,
            first_start_attempts: 1,
        }
    }
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

/// Starts an engine and talks to it until it ends or `alive` is cancelled. It is paused while `pause` says so.
pub(super) async fn run(
    (spec, board): (Arc<EngineSpec>, Arc<Board>),
    mut commands: mpsc::Receiver<ToChild>,
    pause: watch::Receiver<bool>,
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
        let message = "the engine has no pipes".to_owned();
        let _ = reports.send(Report::Ended { message, fatal: false, served: false }).await;
        return;
    };
    tokio::spawn(log_lines(stderr));
    let (writes, queue) = mpsc::channel(WRITES_MAX);
    let mut writer = tokio::spawn(write_all(stdin, queue));
    let exit_timeout = spec.exit_timeout;
    let mut session = Session::new((spec, board.clone()), reports.clone(), writes, pause);
    let mut frames = FramedRead::with_capacity(stdout, codec(), 64 << 10);
    let end = session.converse(&mut frames, &mut commands, &alive).await;
    // What it still says is for nobody. But a pipe that broke would end it before it hears that it may write something.
    let mut rest = frames.into_inner();
    tokio::spawn(async move { tokio::io::copy(&mut rest, &mut tokio::io::sink()).await });
    board.ended(pid, end.why());
    // Nothing more is taken.
    commands.close();
    let patience = match end {
        // One that takes nothing is ended by the end of its pipe, like one whose daemon died.
        End::Asked => session.write(&Command::Exit).map_or(EXIT_TIMEOUT, |()| exit_timeout),
        End::Pipe(_) => EXIT_TIMEOUT,
        End::Kill(_) => Duration::ZERO,
    };
    let Session { writes, registry, fatal, served, ready, born, .. } = session;
    drop(writes);
    if timeout(patience.min(EXIT_TIMEOUT), &mut writer).await.is_err() {
        writer.abort();
    }
    let exit = reap(&mut child, patience).await;
    let message = match (&fatal, &end) {
        (Some(fatal), _) => fatal.clone(),
        (None, End::Asked) => end.why().to_owned(),
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
