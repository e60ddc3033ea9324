//! What may end a reply from outside while it waits for something.

use std::fmt;

use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use super::seat::Seat;
use super::{CHANGING, unavailable};
use crate::service::{ReplyEvent, ServiceError};

/// Everything that a reply listens to beside its engine.
pub(super) struct Stops {
    pub(super) client: mpsc::Sender<ReplyEvent>,
    /// The daemon stops.
    pub(super) cut: CancellationToken,
    /// Somebody ends it.
    pub(super) cancelled: CancellationToken,
    /// Held for as long as the reply needs its model.
    pub(super) seat: Seat,
    pub(super) deadline: Instant,
    pub(super) limit_s: u64,
}

/// Why a reply was ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stop {
    ClientGone,
    Cancelled,
    Stopping,
    Changing { retry_after_s: u32 },
    Late { limit_s: u64 },
}

impl Stops {
    pub(super) async fn wait(&self) -> Stop {
        tokio::select! {
            biased;
            () = self.client.closed() => Stop::ClientGone,
            () = self.cancelled.cancelled() => Stop::Cancelled,
            () = self.cut.cancelled() => Stop::Stopping,
            () = self.seat.cut() => Stop::Changing { retry_after_s: self.seat.board.retry_after_s() },
            () = sleep_until(self.deadline) => Stop::Late { limit_s: self.limit_s },
        }
    }
}

impl fmt::Display for Stop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Stop::ClientGone => f.write_str("the client left"),
            Stop::Cancelled => f.write_str("the reply was cancelled"),
            Stop::Stopping => f.write_str("the daemon is stopping"),
            Stop::Changing { .. } => f.write_str(CHANGING),
            Stop::Late { limit_s } => write!(f, "the reply took longer than {limit_s} s"),
        }
    }
}

/// Why a step did not come to its end.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum StepError {
    Stopped(Stop),
    Failed(ServiceError),
}

impl fmt::Display for StepError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StepError::Stopped(stop) => stop.fmt(f),
            StepError::Failed(error) => error.fmt(f),
        }
    }
}

impl StepError {
    /// For the client; `None`: there is none any more.
    pub(super) fn told(self) -> Option<ServiceError> {
        match self {
            StepError::Failed(error) => Some(error),
            StepError::Stopped(Stop::ClientGone) => None,
            StepError::Stopped(stop @ Stop::Cancelled) => Some(ServiceError::Cancelled(stop.to_string())),
            StepError::Stopped(stop @ Stop::Stopping) => Some(unavailable(&stop.to_string(), 5)),
            StepError::Stopped(stop @ Stop::Changing { retry_after_s }) => {
                Some(unavailable(&stop.to_string(), retry_after_s))
            }
            StepError::Stopped(stop @ Stop::Late { .. }) => Some(unavailable(&stop.to_string(), 1)),
        }
    }
}

impl From<ServiceError> for StepError {
    fn from(error: ServiceError) -> Self {
        StepError::Failed(error)
    }
}
