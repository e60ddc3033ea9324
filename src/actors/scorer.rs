//! The Scorer owns the queue of turns that wait for a verdict and the judge's engine, which it starts with the first of
//! them. Each turn is judged once, in the background; what did not fit into the queue, what failed and what was left
//! over by an earlier life is found again in the turn log, where a turn without a judgement says so.

mod engine;
mod inbox;
mod work;

use std::sync::Arc;

use actix::fut::wrap_future;
use actix::prelude::*;
use serde_json::Value;

pub use engine::{AdapterFile, JudgeEngine, JudgeSettings};
pub use inbox::Inbox;

use crate::actors::link::Link;
use crate::actors::memory::Memory;
use crate::clock::Clock;
use work::Work;

/// Looks through the turn log for turns without a verdict, at once. → whether there is a judge.
#[derive(Message)]
#[rtype(result = "bool")]
pub struct ScoreBacklog;

#[derive(Message)]
#[rtype(result = "Value")]
pub struct ScorerStatus;

/// What every life of the Scorer is made from.
#[derive(Clone)]
pub struct ScorerParts {
    /// `Err`: why nothing is scored.
    pub judge: Result<Arc<JudgeEngine>, String>,
    pub inbox: Arc<Inbox>,
    pub memory: Link<Memory>,
    pub clock: Clock,
}

pub struct Scorer {
    parts: ScorerParts,
}

impl Scorer {
    pub fn new(parts: ScorerParts) -> Self {
        Scorer { parts }
    }
}

impl Actor for Scorer {
    type Context = Context<Self>;

    fn started(&mut self, context: &mut Self::Context) {
        let parts = self.parts.clone();
        match parts.judge {
            Ok(judge) => {
                let work = Work { judge, inbox: parts.inbox, memory: parts.memory, clock: parts.clock };
                context.spawn(wrap_future(work.run()));
            }
            Err(why) => {
                tracing::info!(why, "turns are not scored");
                self.parts.inbox.close();
            }
        }
    }
}

impl Handler<ScoreBacklog> for Scorer {
    type Result = bool;

    fn handle(&mut self, _: ScoreBacklog, _: &mut Self::Context) -> bool {
        self.parts.inbox.ask_for_sweep();
        self.parts.judge.is_ok()
    }
}

impl Handler<ScorerStatus> for Scorer {
    type Result = MessageResult<ScorerStatus>;

    fn handle(&mut self, _: ScorerStatus, _: &mut Self::Context) -> Self::Result {
        let mut status = self.parts.inbox.status();
        match &self.parts.judge {
            Ok(judge) => {
                status["judge"] = judge.name().into();
                status["engine"] = judge.status();
            }
            Err(why) => {
                status["state"] = "off".into();
                status["message"] = why.as_str().into();
            }
        }
        MessageResult(status)
    }
}
