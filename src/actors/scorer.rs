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
use crate::turn::TurnId;
use work::Work;

/// Looks through the turn log for turns without a verdict, at once, and judges the corrections of the turns that are
/// named. → `Err`: why there is no judge.
#[derive(Message)]
#[rtype(result = "Result<(), String>")]
pub struct ScoreBacklog(pub Vec<TurnId>);

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
    type Result = Result<(), String>;

    fn handle(&mut self, ScoreBacklog(corrected): ScoreBacklog, _: &mut Self::Context) -> Self::Result {
        self.parts.judge.as_ref().map_err(String::clone)?;
        corrected.into_iter().for_each(|turn| self.parts.inbox.put(turn));
        self.parts.inbox.ask_for_sweep();
        Ok(())
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
