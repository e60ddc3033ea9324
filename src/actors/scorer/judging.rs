//! One choice to the judge's engine and its judgement back. Answers that a client waits for and those of the turn log
//! go the same way; the former go first in the engine.

use std::time::Duration;

use serde_json::Value;
use tokio::time::timeout;

use super::engine::{EngineError, JudgeEngine};
use crate::actors::inference::{EngineStream, FromEngine};
use crate::engine::protocol::{Event, Generate};
use crate::scoring::judge::Progress;
use crate::scoring::{JudgeError, Judging, Labels, Steps};
use crate::turn::{ChoiceJudgement, Message};

/// Longest silence of the engine while a choice is judged.
const SILENCE_TIMEOUT_MS: u64 = 60_000;

/// Who waits for a judgement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Haste {
    /// A client.
    Live,
    /// Nobody.
    Background,
}

/// Judges one answer to `messages`, split into steps; `index` is its choice's.
pub(super) async fn judge(
    engine: &JudgeEngine,
    labels: &Labels,
    asked: (&[Message], &[Value]),
    steps: Steps,
    index: u32,
    haste: Haste,
) -> Result<ChoiceJudgement, EngineError> {
    let mut judging = Judging::new(asked, steps, engine.form(), labels);
    let requests = judging.requests();
    if !requests.is_empty() {
        drive(engine, &mut judging, requests, haste).await?;
    }
    Ok(judging.judgement(index, engine.reading()))
}

/// Sends the requests, and those that come of them, and hands their events on until every step has its score.
async fn drive(
    engine: &JudgeEngine,
    judging: &mut Judging<'_>,
    mut requests: Vec<Generate>,
    haste: Haste,
) -> Result<(), EngineError> {
    // The step of each request.
    let mut steps: Vec<usize> = (0..requests.len()).collect();
    while !requests.is_empty() {
        let mut stream = engine.submit(requests, haste).await?;
        let mut again = Vec::new();
        while let Some((at, event)) = heard(&mut stream).await? {
            let Some(&step) = steps.get(at) else { continue };
            match judging.take(step, event)? {
                Progress::Going => {}
                Progress::Judged => stream.cancel_choice(at as u32),
                Progress::Again(request) => again.push((step, *request)),
            }
            if judging.complete() {
                return Ok(());
            }
        }
        (steps, requests) = again.into_iter().unzip();
    }
    Err(JudgeError::NoLabel.into())
}

/// The next event and its place among the requests; `None` when all have ended.
async fn heard(stream: &mut EngineStream) -> Result<Option<(usize, Event)>, EngineError> {
    match timeout(Duration::from_millis(SILENCE_TIMEOUT_MS), stream.recv()).await {
        Ok(Some((step, FromEngine::Event(event)))) => Ok(Some((step as usize, event))),
        Ok(Some((_, FromEngine::Lost(message)))) => Err(EngineError::Lost(message)),
        Ok(None) => Ok(None),
        Err(_) => Err(EngineError::Lost(format!("it said nothing for {SILENCE_TIMEOUT_MS} ms"))),
    }
}
