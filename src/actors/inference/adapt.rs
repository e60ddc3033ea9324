//! Questions to the engine about adapters: drop one, evaluate one, train a candidate. They wait longer than the others.

use actix::prelude::*;

use super::{Answer, Inference, InferenceError};
use crate::engine::protocol::{Command, EvalRow, Event};
use crate::training::zeroth::Ask;

const DROP_TIMEOUT_MS: u64 = 30_000;
const EVALUATE_TIMEOUT_MS: u64 = 3_600_000;

/// A question about an adapter; the id is given here.
#[derive(Message)]
#[rtype(result = "Result<Event, InferenceError>")]
pub enum Adapt {
    Drop {
        revision: String,
    },
    Evaluate {
        adapter: Option<String>,
        rows: Vec<EvalRow>,
        with_kl: bool,
    },
    /// A candidate of that name, which serves nobody.
    Candidate {
        name: String,
        ask: Ask,
    },
}

impl Handler<Adapt> for Inference {
    type Result = Answer;

    fn handle(&mut self, adapt: Adapt, _: &mut Self::Context) -> Self::Result {
        match adapt {
            Adapt::Drop { revision } => self.question(|id| Command::DropAdapter { id, revision }, DROP_TIMEOUT_MS),
            Adapt::Evaluate { adapter, rows, with_kl } => {
                self.question(|id| Command::Evaluate { id, adapter, rows, with_kl }, EVALUATE_TIMEOUT_MS)
            }
            Adapt::Candidate { name, ask } => self.question(|id| ask.command(id, &name), EVALUATE_TIMEOUT_MS),
        }
    }
}
