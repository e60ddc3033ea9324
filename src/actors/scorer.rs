//! The Scorer owns the queue of turns that wait for a verdict, and the judge's engine, which it starts with the first of
//! them. Each turn is judged once, in the background, a few at a time. A turn without a judgement says so in the turn log.
//! So turns that did not fit into the queue, that failed, or that an earlier life left over are found again there. An
//! answer whose client waits for the verdict is judged at once, or not at all.

mod engine;
mod hands;
mod inbox;
mod judging;
mod work;

use std::sync::Arc;
use std::time::Duration;

use actix::fut::wrap_future;
use actix::prelude::*;
use serde_json::Value;
use tokio::sync::Semaphore;
use tokio::time::timeout;

pub use engine::{AdapterFile, JudgeEngine, JudgeSettings};
pub use inbox::Inbox;

use crate::actors::link::Link;
use crate::actors::memory::Memory;
use crate::clock::Clock;
use crate::scoring::Steps;
use crate::turn::{Generation, Judgement, Message as ChatMessage, TurnId};
use judging::Haste;
use work::Work;

/// Looks through the turn log for turns without a verdict, at once, and judges the corrections of the turns that are
/// named. → `Err`: why there is no judge.
#[derive(Message)]
#[rtype(result = "Result<(), String>")]
pub struct ScoreBacklog(pub Vec<TurnId>);

#[derive(Message)]
#[rtype(result = "Value")]
pub struct ScorerStatus;

/// Answers that clients wait for, judged at once; more are left unjudged.
const ANSWERS_MAX: usize = 16;

/// Judges an answer while its client waits. The judgement is of that one choice.
#[derive(Message)]
#[rtype(result = "Result<Judgement, Unjudged>")]
pub struct JudgeAnswer {
    /// What it answers.
    pub messages: Vec<ChatMessage>,
    pub tools: Vec<Value>,
    pub answer: Box<Generation>,
    /// Nobody waits longer.
    pub within: Duration,
}

/// Why an answer has no judgement.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unjudged {
    #[error("{0}")]
    Off(String),
    #[error("the answer has {0} characters, more than the judge's calibration holds for")]
    Beyond(usize),
    #[error("the judge has {ANSWERS_MAX} answers in hand")]
    Busy,
    #[error("no verdict within {0} ms")]
    Late(u128),
    #[error("{0}")]
    Failed(String),
}

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
    /// One permit for each answer that is judged while its client waits.
    answers: Arc<Semaphore>,
}

impl Scorer {
    pub fn new(parts: ScorerParts) -> Self {
        Scorer { parts, answers: Arc::new(Semaphore::new(ANSWERS_MAX)) }
    }
}

impl Actor for Scorer {
    type Context = Context<Self>;

    fn started(&mut self, context: &mut Self::Context) {
        let parts = self.parts.clone();
        match parts.judge {
            Ok(judge) => {
                let work = Work::new(judge, parts.inbox, parts.memory, parts.clock);
                context.spawn(wrap_future(work.run()));
            }
            Err(why) => {
                tracing::info!(why, "turns are not scored");
                self.parts.inbox.close();
            }
        }
    }
}

impl Handler<JudgeAnswer> for Scorer {
    type Result = ResponseFuture<Result<Judgement, Unjudged>>;

    fn handle(&mut self, ask: JudgeAnswer, _: &mut Self::Context) -> Self::Result {
        let (judge, clock) = match self.parts.judge.clone() {
            Ok(judge) => (judge, self.parts.clock.clone()),
            Err(why) => return Box::pin(async move { Err(Unjudged::Off(why)) }),
        };
        let steps = Steps::of(&ask.answer);
        if !judge.reading().vouches_for(steps.answer_chars()) {
            let chars = steps.answer_chars();
            return Box::pin(async move { Err(Unjudged::Beyond(chars)) });
        }
        let Ok(permit) = self.answers.clone().try_acquire_owned() else {
            return Box::pin(async { Err(Unjudged::Busy) });
        };
        Box::pin(async move {
            let judged = async {
                let labels = judge.ready().await?;
                let asked = (ask.messages.as_slice(), ask.tools.as_slice());
                judging::judge(&judge, &labels, asked, steps, ask.answer.index, Haste::Live).await
            };
            let judged = timeout(ask.within, judged).await;
            drop(permit);
            let choice = judged
                .map_err(|_| Unjudged::Late(ask.within.as_millis()))?
                .map_err(|error| Unjudged::Failed(error.to_string()))?;
            Ok(Judgement { time_ms: clock.now_ms(), judge: judge.name().to_owned(), choices: vec![choice] })
        })
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
                if let Some(why) = judge.unfit() {
                    status["message"] = why.into();
                }
            }
            Err(why) => {
                status["state"] = "off".into();
                status["message"] = why.as_str().into();
            }
        }
        MessageResult(status)
    }
}
