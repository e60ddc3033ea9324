//! What systemd is told: READY when the engine produced a token, status lines, and the watchdog, which is fed
//! only by real progress. Without systemd every call does nothing.

use std::sync::Arc;
use std::time::Duration;

use sd_notify::NotifyState;
use tokio::time::{Instant, sleep};

use super::Cast;
use crate::actors::inference::{Board, EngineState};
use crate::actors::memory::MemoryStatus;
use crate::actors::orchestrator::OrchestratorStatus;

/// An actor that takes longer makes no progress.
const ACTOR_TIMEOUT_MS: u64 = 2_000;

fn tell(states: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        tracing::warn!(%error, "systemd was not told");
    }
}

pub(super) fn stopping() {
    tell(&[NotifyState::Stopping]);
}

pub(super) fn reloading() {
    match NotifyState::monotonic_usec_now() {
        Ok(now) => tell(&[NotifyState::Reloading, now]),
        Err(_) => tell(&[NotifyState::Reloading]),
    }
}

pub(super) fn reloaded() {
    tell(&[NotifyState::Ready]);
}

/// Reports the engine's state as it changes.
pub(super) async fn report(board: Arc<Board>) {
    let mut state = board.watch();
    let mut told_ready = false;
    loop {
        let status = match &*state.borrow_and_update() {
            EngineState::Loading { progress } => format!("reading the model, {:.0} %", progress * 100.0),
            EngineState::Ready(hosted) => format!("serving {}", hosted.model.name),
            EngineState::Restarting { message, .. } => format!("restarting the engine: {message}"),
            other => other.name().to_owned(),
        };
        if !told_ready && board.was_ready() {
            told_ready = true;
            tell(&[NotifyState::Ready]);
        }
        tell(&[NotifyState::Status(&status)]);
        if state.changed().await.is_err() {
            return;
        }
    }
}

/// Feeds the watchdog, if there is one, while the actors answer and the engine shows signs of life.
pub(super) async fn watchdog(cast: Cast, board: Arc<Board>, stall_timeout: Duration) {
    let Some(period) = sd_notify::watchdog_enabled() else { return };
    let (mut beats, mut beaten) = (board.beats(), Instant::now());
    loop {
        sleep(period / 3).await;
        if board.beats() != beats {
            (beats, beaten) = (board.beats(), Instant::now());
        }
        // A silent engine is killed at `stall_timeout` and restarted; silence beyond that is a stuck daemon.
        let serving = board.hosted().is_some();
        let engine = !serving || beaten.elapsed() < stall_timeout + period;
        if engine && actors_answer(&cast).await {
            tell(&[NotifyState::Watchdog]);
        }
    }
}

async fn actors_answer(cast: &Cast) -> bool {
    let limit = Duration::from_millis(ACTOR_TIMEOUT_MS);
    let (memory, orchestrator) = tokio::join!(
        cast.memory.send_within(MemoryStatus, limit),
        cast.orchestrator.send_within(OrchestratorStatus, limit)
    );
    memory.is_ok() && orchestrator.is_ok()
}
