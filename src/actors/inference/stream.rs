//! What a requester holds: the stream of one reply's engine events, and the lease on a paused engine.

use tokio::sync::{mpsc, oneshot};

use crate::engine::protocol::{Command, Event, Generate, RequestId};

/// The answer to a question; `Err` says why the engine is gone.
pub(super) type Answer = oneshot::Sender<Result<Event, String>>;

/// What the daemon asks of the task that owns the engine.
pub(super) enum ToChild {
    Submit { generate: Box<Generate>, choice: u32, to: mpsc::Sender<(u32, FromEngine)> },
    Ask { id: RequestId, command: Command, answer: Answer },
    Cancel { ids: Vec<RequestId> },
    Control(Command),
}

impl ToChild {
    /// Tells whoever waits that the engine is gone.
    pub(super) fn refuse(self, message: &str) {
        match self {
            ToChild::Submit { choice, to, .. } => {
                let _ = to.try_send((choice, FromEngine::Lost(message.to_owned())));
            }
            ToChild::Ask { answer, .. } => drop(answer.send(Err(message.to_owned()))),
            ToChild::Cancel { .. } | ToChild::Control(_) => {}
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
    pub(super) events: mpsc::Receiver<(u32, FromEngine)>,
    pub(super) ids: Vec<RequestId>,
    pub(super) commands: mpsc::Sender<ToChild>,
}

impl EngineStream {
    /// The next event of any choice. `None`: nothing will come any more.
    pub async fn recv(&mut self) -> Option<(u32, FromEngine)> {
        self.events.recv().await
    }

    /// Asks the engine to end one choice; the others go on.
    pub fn cancel_choice(&self, choice: u32) {
        if let Some(&id) = self.ids.get(choice as usize) {
            let _ = self.commands.try_send(ToChild::Cancel { ids: vec![id] });
        }
    }

    /// Asks the engine to end every choice at the next token; their last events still come.
    pub fn cancel(&self) {
        // A full queue is not a loss: a reader that leaves is noticed at its next token.
        let _ = self.commands.try_send(ToChild::Cancel { ids: self.ids.clone() });
    }
}

impl Drop for EngineStream {
    fn drop(&mut self) {
        self.cancel();
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
