//! An address that survives restarts. A [`Link`] follows the actor through its lives. A send has a deadline
//! and a typed error, which says whether the message can have been seen.

use std::sync::Arc;
use std::time::Duration;

use actix::dev::ToEnvelope;
use actix::{Actor, Addr, Handler, MailboxError, Message};
use serde::Serialize;
use tokio::sync::watch;
use tokio::time::{Instant, timeout_at};

/// Deadline of sends that name none, milliseconds.
pub const SEND_TIMEOUT_MS: u64 = 5_000;

/// Why a message got no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LinkError {
    /// The message was not delivered.
    #[error("{actor} was not running within {waited_ms} ms")]
    Down { actor: &'static str, waited_ms: u64 },
    /// The message was delivered, perhaps handled: the actor, or the future it answered with, panicked.
    #[error("{actor} died while it held the message")]
    Died { actor: &'static str },
    /// The message may still be handled.
    #[error("{actor} did not answer within {waited_ms} ms")]
    Late { actor: &'static str, waited_ms: u64 },
}

/// Where an actor is in its lives, for people.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Life {
    Running,
    Restarting,
    /// The restart budget is spent.
    GivenUp,
}

/// What the supervisor publishes of an actor.
pub(super) struct Current<A: Actor> {
    pub(super) addr: Option<Addr<A>>,
    pub(super) life: Life,
    pub(super) restarts: u32,
}

pub struct Link<A: Actor> {
    name: &'static str,
    current: Arc<watch::Receiver<Current<A>>>,
}

impl<A: Actor> Clone for Link<A> {
    fn clone(&self) -> Self {
        Link { name: self.name, current: self.current.clone() }
    }
}

impl<A: Actor> Link<A> {
    pub(super) fn new(name: &'static str, current: watch::Receiver<Current<A>>) -> Self {
        Link { name, current: Arc::new(current) }
    }

    pub fn name(&self) -> &'static str {
        self.name
    }

    pub fn life(&self) -> Life {
        self.current.borrow().life
    }

    pub fn restarts(&self) -> u32 {
        self.current.borrow().restarts
    }

    /// Sends and waits for the answer, `SEND_TIMEOUT_MS` in all.
    pub async fn send<M>(&self, message: M) -> Result<M::Result, LinkError>
    where
        A: Handler<M>,
        M: Message + Send + 'static,
        M::Result: Send,
        A::Context: ToEnvelope<A, M>,
    {
        self.send_within(message, Duration::from_millis(SEND_TIMEOUT_MS)).await
    }

    /// Sends and waits for the answer; the deadline covers a restart under way, the mailbox and the handler.
    pub async fn send_within<M>(&self, message: M, deadline: Duration) -> Result<M::Result, LinkError>
    where
        A: Handler<M>,
        M: Message + Send + 'static,
        M::Result: Send,
        A::Context: ToEnvelope<A, M>,
    {
        let (actor, waited_ms) = (self.name, deadline.as_millis() as u64);
        let at = Instant::now() + deadline;
        let addr = self.alive(at).await.ok_or(LinkError::Down { actor, waited_ms })?;
        match timeout_at(at, addr.send(message)).await {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(MailboxError::Closed)) => Err(LinkError::Died { actor }),
            Ok(Err(MailboxError::Timeout)) | Err(_) => Err(LinkError::Late { actor, waited_ms }),
        }
    }

    /// The address of the present life, waiting for one until `at`.
    async fn alive(&self, at: Instant) -> Option<Addr<A>> {
        let mut current = watch::Receiver::clone(&self.current);
        let wait = current.wait_for(|c| c.addr.as_ref().is_some_and(Addr::connected) || c.life == Life::GivenUp);
        timeout_at(at, wait).await.ok()?.ok()?.addr.clone()
    }
}
