//! What a requester holds: the stream of one reply's engine events, and the lease on a paused engine.

use tokio::sync::{mpsc, oneshot};

use crate::engine::protocol::{Command, Event, Generate, RequestId};

/// The answer to a question; `Err` says why the engine is gone.
pub(super) type Answer = oneshot::Sender<Result<Event, String>>;

/// What the daemon asks of the task that owns the engine.
pub(super) enum ToChild {
    Submit { generate: Box<Generate>, choice: u32, to: mpsc::Sender<(u32, FromEngine)> },
    Ask { id: RequestId, command: Box<Command>, answer: Answer },
    Cancel { ids: Vec<RequestId> },
}

impl ToChild {
    /// Tells whoever waits that the engine is gone.
    pub(super) fn refuse(self, message: &str) {
        match self {
            ToChild::Submit { choice, to, .. } => {
                let _ = to.try_send((choice, FromEngine::Lost(message.to_owned())));
            }
            ToChild::Ask { answer, .. } => drop(answer.send(Err(message.to_owned()))),
            ToChild::Cancel { .. } => {}
        }
    }
}

/// What comes back for a request.
#[derive(Clone, Debug, PartialEq)]
pub enum FromEngine {
    Event(Event),
    /// The engine died with the request in hand. Last.
    Lost(String),
}

/// The events of a reply's choices, each with the choice's number. Dropping it cancels what still runs.
pub struct EngineStream {
    events: mpsc::Receiver<(u32, FromEngine)>,
    ids: Vec<RequestId>,
    commands: mpsc::Sender<ToChild>,
    /// To be cancelled as soon as the queue to the engine takes it.
    unwanted: Vec<RequestId>,
}

impl EngineStream {
    pub(super) fn new(events: mpsc::Receiver<(u32, FromEngine)>, commands: mpsc::Sender<ToChild>) -> Self {
        EngineStream { events, ids: Vec::new(), commands, unwanted: Vec::new() }
    }

    /// One more choice.
    pub(super) fn push(&mut self, id: RequestId) {
        self.ids.push(id);
    }

    /// The next event of any choice. `None`: nothing will come any more.
    pub async fn recv(&mut self) -> Option<(u32, FromEngine)> {
        while !self.unwanted.is_empty() {
            tokio::select! {
                biased;
                room = self.commands.reserve() => {
                    let ids = std::mem::take(&mut self.unwanted);
                    let _ = room.map(|room| room.send(ToChild::Cancel { ids }));
                }
                event = self.events.recv() => return event,
            }
        }
        self.events.recv().await
    }

    /// Asks the engine to end one choice; the others go on.
    pub fn cancel_choice(&mut self, choice: u32) {
        self.unwanted.extend(self.ids.get(choice as usize));
    }

    /// Asks the engine to end every choice at the next token; their last events still come.
    pub fn cancel(&mut self) {
        self.unwanted.clone_from(&self.ids);
    }
}

impl Drop for EngineStream {
    fn drop(&mut self) {
        // A full queue is not a loss: that nobody reads is noticed at the next event.
        let _ = self.commands.try_send(ToChild::Cancel { ids: std::mem::take(&mut self.ids) });
    }
}

/// The right to change a paused engine. Dropping it resumes the engine.
#[derive(Debug)]
pub struct Lease {
    pub(super) held: oneshot::Sender<()>,
}

impl Lease {
    /// The giver died and took the pause with it: the holder must not go on.
    pub fn lost(&self) -> bool {
        self.held.is_closed()
    }
}
