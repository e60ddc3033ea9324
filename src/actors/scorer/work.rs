//! The Scorer's work: turns to the judge, a few at once so that its engine has a batch to compute, and the judgements to
//! Memory. A turn is in one hand at a time, and a judge that died is tried with one turn alone.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio::time::Instant;

use super::engine::{EngineError, JudgeEngine};
use super::hands::Hands;
use super::inbox::{Inbox, Next};
use super::judging::{Haste, judge};
use crate::actors::link::{Link, LinkError};
use crate::actors::memory::{AddJudgement, Get, JudgeCorrection, Memory, MemoryError, Unscored};
use crate::clock::Clock;
use crate::scoring::Steps;
use crate::scoring::correction::Answer;
use crate::store::StoreError;
use crate::turn::{ChoiceJudgement, Judgement, Turn, TurnId};

/// Turns judged at once: their steps fill the engine's batch, and leave most of its waiting room to answers that clients
/// wait for.
pub(super) const TURNS_MAX: usize = 8;
/// Tries at one turn before it is left for later.
const ATTEMPTS: usize = 3;
/// Turns taken from the log at once.
pub(super) const SWEEP_PAGE: usize = 256;
/// After a failure the log is looked through again, at the latest.
const RETRY_MS: u64 = 60_000;
const MEMORY_TIMEOUT_MS: u64 = 30_000;

pub(super) struct Work {
    pub(super) judge: Arc<JudgeEngine>,
    pub(super) inbox: Arc<Inbox>,
    pub(super) memory: Link<Memory>,
    pub(super) clock: Clock,
    /// One for each turn judged at once; a turn that is tried again takes all of them.
    places: Semaphore,
}

#[derive(Debug, thiserror::Error)]
enum WorkError {
    #[error(transparent)]
    Engine(#[from] EngineError),
    #[error(transparent)]
    Memory(#[from] MemoryError),
    #[error(transparent)]
    Link(#[from] LinkError),
}

impl WorkError {
    /// Another try may help at once.
    fn passing(&self) -> bool {
        matches!(self, WorkError::Engine(EngineError::Lost(_) | EngineError::Engine(_) | EngineError::Link(_)))
    }
}

impl Work {
    pub(super) fn new(judge: Arc<JudgeEngine>, inbox: Arc<Inbox>, memory: Link<Memory>, clock: Clock) -> Work {
        Work { judge, inbox, memory, clock, places: Semaphore::new(TURNS_MAX) }
    }

    /// Never ends. The log is looked through first: an earlier life may have left turns.
    pub(super) async fn run(self) {
        self.inbox.ask_for_sweep();
        let inbox = self.inbox.clone();
        let mut hands = Hands::new(self);
        loop {
            tokio::select! {
                next = inbox.next() => match next {
                    Next::Turn(id) => hands.take(id).await,
                    Next::Sweep => hands.sweep().await,
                },
                () = hands.one_ends() => {}
            }
        }
    }

    /// The next turns of the log without a judgement, behind `after`.
    pub(super) async fn unscored(&self, after: Option<TurnId>) -> Option<Vec<TurnId>> {
        let asked =
            self.memory.send_within(Unscored(after, SWEEP_PAGE), Duration::from_millis(MEMORY_TIMEOUT_MS)).await;
        match asked.map_err(WorkError::from).and_then(|page| Ok(page?)) {
            Ok(page) => Some(page),
            Err(error) => {
                tracing::warn!(%error, "the turn log could not be looked through for turns without a verdict");
                self.inbox.sweep_at(Instant::now() + Duration::from_millis(RETRY_MS));
                None
            }
        }
    }

    /// Judges one turn. False: the judge is out of order, and going on would fail as well.
    pub(super) async fn one(&self, id: TurnId) -> bool {
        for attempt in 1.. {
            // A judge that died had several turns in hand: tried alone, the one that kills it costs no other its tries.
            let places = if attempt == 1 { 1 } else { TURNS_MAX as u32 };
            let _place = self.places.acquire_many(places).await;
            let error = match self.score(&id).await {
                Ok(Some(verdict)) => {
                    self.inbox.scored(verdict);
                    return true;
                }
                Ok(None) => return true,
                Err(error) => error,
            };
            if error.passing() && attempt < ATTEMPTS {
                tracing::warn!(turn = id.0, %error, attempt, "scoring is tried again");
                continue;
            }
            let own = matches!(error, WorkError::Engine(EngineError::Judge(_)));
            match &error {
                WorkError::Engine(EngineError::Stopped) => tracing::debug!(turn = id.0, "the next start judges it"),
                error => tracing::warn!(turn = id.0, %error, "no verdict for now"),
            }
            self.inbox.failed();
            if !own {
                self.inbox.sweep_at(Instant::now() + Duration::from_millis(RETRY_MS));
            }
            return own;
        }
        true
    }

    /// The verdict that was written; `None` for a turn that is gone or has one. Its corrections are judged as well.
    async fn score(&self, id: &TurnId) -> Result<Option<u8>, WorkError> {
        let deadline = Duration::from_millis(MEMORY_TIMEOUT_MS);
        let Some(turn) = self.memory.send_within(Get(id.clone()), deadline).await?? else { return Ok(None) };
        let mut verdict = None;
        if turn.judgement.is_none() {
            let judgement = self.judgement(&turn).await?;
            let said = judgement.verdict();
            let added = self.memory.send_within(AddJudgement(id.clone(), judgement), deadline).await?;
            verdict = said.filter(|_| matches!(added, Ok(true)));
            written(added)?;
        }
        let unjudged = turn.feedback.iter().filter(|f| f.judgement.is_none()).filter_map(|f| f.correction.as_deref());
        for correction in unjudged.collect::<BTreeSet<_>>() {
            let answer = Answer::read(correction, &turn.tools);
            let steps = Steps::split(&answer.thinking, &answer.content, &answer.tool_calls);
            let judgement = self.judged(vec![self.choice(&turn, steps, 0).await?]);
            let judged = JudgeCorrection(id.clone(), correction.to_owned(), judgement);
            written(self.memory.send_within(judged, deadline).await?)?;
        }
        Ok(verdict)
    }

    async fn judgement(&self, turn: &Turn) -> Result<Judgement, EngineError> {
        let mut choices = Vec::new();
        for generation in &turn.generations {
            choices.push(self.choice(turn, Steps::of(generation), generation.index).await?);
        }
        if choices.is_empty() {
            // A reply that was cut before it had a choice said nothing.
            let nothing = ChoiceJudgement { index: 0, verdict: 1, p: 0.0, thought_steps: 0, steps: Vec::new() };
            choices.push(nothing);
        }
        Ok(self.judged(choices))
    }

    fn judged(&self, choices: Vec<ChoiceJudgement>) -> Judgement {
        Judgement { time_ms: self.clock.now_ms(), judge: self.judge.name().to_owned(), choices }
    }

    /// Judges one answer to a turn's question.
    async fn choice(&self, turn: &Turn, steps: Steps, index: u32) -> Result<ChoiceJudgement, EngineError> {
        let labels = self.judge.ready().await?;
        let asked = (turn.messages.as_slice(), turn.tools.as_slice());
        judge(&self.judge, &labels, asked, steps, index, Haste::Background).await
    }
}

/// Whether it was written. A turn that was forgotten meanwhile, or an earlier answer that came late, is no failure.
fn written(added: Result<bool, MemoryError>) -> Result<bool, WorkError> {
    match added {
        Err(MemoryError::Store(StoreError::Unknown(_))) => Ok(false),
        added => Ok(added?),
    }
}
