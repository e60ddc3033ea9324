//! Pause and resume from outside: one lease for all that ask. Each waits until the other is over, so that nobody waits for a
//! state that somebody else takes away again.

use std::time::Duration;

use tokio::sync::Mutex;
use tokio::time::timeout;

use super::Daemon;
use super::face::{engine, link};
use crate::actors::inference::{EngineState, InferenceError, Lease, Pause};
use crate::service::ServiceError;

/// Longest wait for the engine to pause, or to go on.
const ENGINE_TIMEOUT: Duration = Duration::from_secs(15);
/// The same where the pause is not ours to end: its holder may be about to end it.
const OTHER_TIMEOUT: Duration = Duration::from_secs(1);

/// The lease of a pause asked for from outside.
#[derive(Default)]
pub(super) struct LeaseHolder(Mutex<Option<Lease>>);

pub(super) async fn pause(daemon: &Daemon) -> Result<(), ServiceError> {
    let mut held = daemon.lease.0.lock().await;
    if held.as_ref().is_some_and(|lease| !lease.lost()) {
        return Ok(());
    }
    let retry_after_s = daemon.board.retry_after_s();
    let answer = daemon.cast.inference.send_within(Pause, ENGINE_TIMEOUT).await;
    let lease = answer.map_err(|error| link(&error))?.map_err(|error| match error {
        InferenceError::Leased => other_holder(),
        error => engine(&error, retry_after_s),
    })?;
    *held = Some(lease);
    Ok(())
}

pub(super) async fn resume(daemon: &Daemon) -> Result<(), ServiceError> {
    let mut held = daemon.lease.0.lock().await;
    let ours = held.take();
    let patience = if ours.is_some() { ENGINE_TIMEOUT } else { OTHER_TIMEOUT };
    // Dropped, and thereby the engine told, before the state is waited for.
    drop(ours);
    let mut state = daemon.board.watch();
    let resumed = state.wait_for(|state| !matches!(state, EngineState::Paused(_)));
    match timeout(patience, resumed).await {
        Ok(_) => Ok(()),
        Err(_) => Err(other_holder()),
    }
}

fn other_holder() -> ServiceError {
    ServiceError::Conflict(
        "the engine is paused by another holder, a job of the daemon's own: it ends by itself".to_owned(),
    )
}
