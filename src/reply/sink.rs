//! The client's side of a reply: what it is told, and when it first hears of the reply at all.

use std::time::Duration;

use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{mpsc, oneshot};

use super::stops::{StepError, Stop};
use crate::service::{ReplyEvent, ServiceError, StepEvent};

/// Hears once whether the engine has taken the reply.
pub(super) type Opened = oneshot::Sender<Result<(), ServiceError>>;

pub(super) struct Sink {
    pub(super) client: mpsc::Sender<ReplyEvent>,
    /// A client that takes nothing for so long is as good as gone.
    pub(super) stall: Duration,
    /// What is said first, until the engine has taken a generation.
    pub(super) opening: Option<(ReplyEvent, Opened)>,
    /// What else is told as soon as the reply has begun.
    pub(super) behind: Vec<ReplyEvent>,
    /// The client knows that the engine found the request good.
    pub(super) queued: bool,
}

impl Sink {
    /// The engine has taken a generation: the first one begins the reply.
    pub(super) fn open(&mut self) {
        if let Some((started, opened)) = self.opening.take() {
            let _ = self.client.try_send(started);
            self.behind.drain(..).for_each(|event| drop(self.client.try_send(event)));
            let _ = opened.send(Ok(()));
        }
    }

    /// Passes an event on, for as long as nothing stops the reply.
    pub(super) async fn pass(
        &mut self,
        event: ReplyEvent,
        stop: &mut (impl Future<Output = Stop> + Unpin),
    ) -> Result<(), StepError> {
        if event == ReplyEvent::Queued && std::mem::replace(&mut self.queued, true) {
            return Ok(());
        }
        let event = match self.client.try_send(event) {
            Ok(()) => return Ok(()),
            Err(TrySendError::Closed(_)) => return Err(StepError::Stopped(Stop::ClientGone)),
            Err(TrySendError::Full(event)) => event,
        };
        tokio::select! {
            sent = self.client.send_timeout(event, self.stall) => {
                sent.map_err(|_| StepError::Stopped(Stop::ClientGone))
            }
            stop = stop => Err(StepError::Stopped(stop)),
        }
    }

    /// Tells of a step: once the reply has begun, and not before.
    pub(super) async fn step(&mut self, event: StepEvent) {
        let event = ReplyEvent::Step(Box::new(event));
        match self.opening {
            Some(_) => self.behind.push(event),
            None => self.tell(event).await,
        }
    }

    /// Tells something at the end. A client that left has lost nothing: its Turn is written all the same.
    pub(super) async fn tell(&self, event: ReplyEvent) {
        let _ = self.client.send_timeout(event, self.stall).await;
    }
}
