//! Questions to the engine about a loaded adapter: drop it, evaluate it. They wait longer than the others.

use std::time::Duration;

use actix::prelude::*;
use tokio::sync::oneshot;
use tokio::time::timeout;

use super::stream::ToChild;
use super::{Inference, InferenceError, not_running};
use crate::engine::protocol::{Command, EvalRow, Event, RequestId};

const DROP_TIMEOUT_MS: u64 = 30_000;
const EVALUATE_TIMEOUT_MS: u64 = 3_600_000;

/// A question about an adapter; the id is given here.
#[derive(Message)]
#[rtype(result = "Result<Event, InferenceError>")]
pub enum Adapt {
    Drop { revision: String },
    Evaluate { adapter: Option<String>, rows: Vec<EvalRow>, with_kl: bool },
}

impl Adapt {
    fn command(self, id: RequestId) -> (Command, u64) {
        match self {
            Adapt::Drop { revision } => (Command::DropAdapter { id, revision }, DROP_TIMEOUT_MS),
            Adapt::Evaluate { adapter, rows, with_kl } => {
                (Command::Evaluate { id, adapter, rows, with_kl }, EVALUATE_TIMEOUT_MS)
            }
        }
    }
}

impl Handler<Adapt> for Inference {
    type Result = ResponseFuture<Result<Event, InferenceError>>;

    fn handle(&mut self, adapt: Adapt, _: &mut Self::Context) -> Self::Result {
        let id = self.board.next_id();
        let down = not_running(&self.board);
        let Some(commands) = self.commands.clone().filter(|_| self.board.hosted().is_some()) else {
            return Box::pin(async { Err(down) });
        };
        Box::pin(async move {
            let (answer, heard) = oneshot::channel();
            let (command, patience_ms) = adapt.command(id);
            commands.try_send(ToChild::Ask { id, command, answer }).map_err(|_| InferenceError::Busy)?;
            match timeout(Duration::from_millis(patience_ms), heard).await {
                Ok(Ok(Ok(event))) => Ok(event),
                Ok(Ok(Err(message))) => Err(InferenceError::NotRunning(message)),
                Ok(Err(_)) => Err(down),
                Err(_) => Err(InferenceError::Late(patience_ms)),
            }
        })
    }
}
