//! The quality gate, as a step: the finished answer is judged before its reply ends. The model gets an answer with a poor verdict
//! back, with the request to work it out again. The attempt with the best score stands. Whatever fails or takes too
//! long, the reply ends with the best answer so far and says why.

use std::time::Duration;

use tokio::time::{Instant, sleep_until};

use super::Outcome;
use crate::actors::scorer::JudgeAnswer;
use crate::engine::protocol::Prompt;
use crate::meters;
use crate::reply::choice::Choice;
use crate::reply::generate::{Generated, Spec, chat_input};
use crate::reply::run::ReplyRun;
use crate::reply::stops::{StepError, Stop};
use crate::scoring::reflect::{best, reflection};
use crate::service::{Logprob, ReplyEvent};
use crate::turn::{FinishReason, Generation, Judgement, PromptEnd, Quality, QualityGate, QualityOutcome, StepOutcome};

/// One answer to the same question.
struct Attempt {
    generation: Generation,
    logprobs: Vec<Logprob>,
    judgement: Option<Judgement>,
}

/// The attempts at one answer.
struct Trial<'a, 'r> {
    run: &'a mut ReplyRun<'r>,
    gate: QualityGate,
    one_call: bool,
    deadline: Instant,
    attempts: Vec<Attempt>,
}

/// Takes the only choice of a reply through the gate. It never fails: without a verdict the first answer stands.
pub(super) async fn run(run: &mut ReplyRun<'_>, gate: QualityGate) -> Result<Outcome, StepError> {
    if let Some(why) = beside_the_point(run) {
        return Ok(Outcome::skipped(why));
    }
    let Some(choice) = run.choices.first() else { return Ok(Outcome::skipped("there is no answer")) };
    let (began, stops) = (Instant::now(), run.stops.clone());
    let deadline = stops.deadline.min(began + Duration::from_millis(gate.timeout_ms));
    let first = Attempt { generation: choice.generation.clone(), logprobs: Vec::new(), judgement: None };
    let one_call = choice.one_call;
    let refused = refusal(&choice.generation, run.asked.streamed);
    let mut trial = Trial { run, gate, one_call, deadline, attempts: vec![first] };
    let mut stopped = None;
    let because = match refused {
        Some(why) => Some(why.to_owned()),
        None => tokio::select! {
            tried = trial.run() => tried.err(),
            () = sleep_until(deadline) => Some(format!("{} ms were over", gate.timeout_ms)),
            stop = stops.wait() => stopped.insert(stop).to_string().into(),
        },
    };
    match stopped {
        Some(stop) => trial.run.abandon(&StepError::Stopped(stop)).await,
        // The answer is complete, and its client waits for the end.
        None => trial.run.abandon_hurriedly(&StepError::Stopped(Stop::ClientGone)).await,
    }
    Ok(trial.end(because, began.elapsed()).await)
}

/// Why an answer of this reply is none of the judge's business.
fn beside_the_point(run: &ReplyRun<'_>) -> Option<&'static str> {
    if run.choices.len() != 1 {
        return Some("with several answers the client chooses among them");
    }
    if run.asked.grammar.is_some() {
        // Another attempt would follow the first in a stream, and two JSON texts are none.
        return Some("the answer is held to a form");
    }
    if run.trace.iter().any(|step| !step.calls.is_empty()) {
        return Some("the answer stands on results of tools, which the judge is not shown");
    }
    if !run.plan.notes.is_empty() {
        return Some("the answer stands on a lesson, which the judge is not shown");
    }
    if run.trace.iter().any(|step| !step.passages.is_empty()) {
        return Some("the answer stands on passages of documents or web pages, which the judge is not shown");
    }
    (run.plan.prompt.end != PromptEnd::Opened).then_some("the answer was begun by the client")
}

/// Why an answer is not judged.
fn refusal(answer: &Generation, streamed: bool) -> Option<&'static str> {
    match answer.finish_reason {
        FinishReason::Stop => None,
        FinishReason::ToolCalls if !streamed => None,
        FinishReason::ToolCalls => Some("its tool calls were told already"),
        FinishReason::Length => Some("it was cut at its limit"),
        FinishReason::Aborted | FinishReason::Error => Some("it is not whole"),
    }
}

impl Trial<'_, '_> {
    /// Judges and tries again until an attempt is good enough or none is left.
    async fn run(&mut self) -> Result<(), String> {
        for retry in 0..=self.gate.retries {
            if retry > 0 {
                let attempt = self.again(retry).await?;
                self.attempts.push(attempt);
            }
            let at = self.attempts.len() - 1;
            if retry > 0 && refusal(&self.attempts[at].generation, false).is_some() {
                continue;
            }
            let judgement = self.judge(&self.attempts[at].generation).await?;
            let good = judgement.verdict().is_some_and(|verdict| verdict > self.gate.verdict_max);
            self.attempts[at].judgement = Some(judgement);
            if good {
                break;
            }
        }
        Ok(())
    }

    async fn judge(&self, answer: &Generation) -> Result<Judgement, String> {
        let scorer = self.run.replies.scorer.as_ref().ok_or("there is no judge")?;
        self.run.replies.failpoint.pass("reply.judge").map_err(|error| error.to_string())?;
        let within = self.deadline.saturating_duration_since(Instant::now());
        let ask = JudgeAnswer {
            messages: self.run.plan.messages.clone(),
            tools: self.run.plan.tools.clone(),
            answer: Box::new(answer.clone()),
            within,
        };
        let judged = scorer.send_within(ask, within).await.map_err(|error| error.to_string())?;
        judged.map_err(|error| error.to_string())
    }

    /// Asks for another attempt at the best answer so far.
    async fn again(&mut self, retry: u32) -> Result<Attempt, String> {
        let before = &self.attempts[self.best()].generation;
        let (run, plan) = (&*self.run, &self.run.plan);
        let messages = reflection(&plan.messages, &before.content, &before.tool_calls);
        let mut request = run.request(Prompt::Chat(chat_input(plan, messages, run.replies.clock.date())), 0);
        // The same dice would fall the same way wherever the model is sure of itself.
        let seed = self.attempts[0].generation.seed.wrapping_add(retry.into());
        request.sampling.seed = Some(seed);
        let number = run.replies.next_call(plan, &run.opening.principal);
        let choice = Choice::new(0, seed, plan.sampling.logprobs.is_some(), &plan.tools, run.format());
        let mut choice = choice.from_number(number);
        choice.one_call = self.one_call;
        let spec = Spec { requests: vec![request], choices: vec![choice], shown: false };
        let Generated { choices, logprobs } = self.run.generate(spec).await.map_err(|error| error.to_string())?;
        let choice = choices.into_iter().next().ok_or("the attempt was lost")?;
        Ok(Attempt { generation: choice.generation, logprobs, judgement: None })
    }

    /// The best attempt that was judged; the first where none was.
    fn best(&self) -> usize {
        let p = |a: &Attempt| a.judgement.as_ref().and_then(|j| j.choices.first()).map_or(f32::NEG_INFINITY, |c| c.p);
        best(self.attempts.iter().map(p))
    }

    /// Puts the attempt that stands in the place of the answer, with the record of all of them.
    async fn end(mut self, because: Option<String>, took: Duration) -> Outcome {
        let kept = self.best();
        let verdicts: Vec<u8> =
            self.attempts.iter().filter_map(|a| a.judgement.as_ref()).filter_map(Judgement::verdict).collect();
        let outcome = match (verdicts.first(), kept) {
            (None, _) => QualityOutcome::Unjudged,
            (Some(_), 1..) => QualityOutcome::Revised,
            (Some(first), 0) if *first > self.gate.verdict_max => QualityOutcome::Passed,
            (Some(_), 0) => QualityOutcome::Kept,
        };
        meters::quality_gate(outcome.name());
        let revised = outcome == QualityOutcome::Revised;
        let told = Outcome {
            outcome: if verdicts.is_empty() { StepOutcome::Abstained } else { StepOutcome::Done },
            decided: Some(format!("{}: {}", outcome.name(), verdict_words(&verdicts))),
            because: because.clone(),
            visible: revised,
            text: String::new(),
        };
        let Attempt { mut generation, logprobs, judgement } = self.attempts.remove(kept);
        let others = self.attempts.into_iter().map(|attempt| attempt.generation).collect();
        let took_ms = took.as_millis() as u64;
        generation.quality = Some(Box::new(Quality { outcome, verdicts, kept: kept as u32, took_ms, because, others }));
        self.run.judgement = judgement;
        if let Some(choice) = self.run.choices.first_mut() {
            generation.index = choice.generation.index;
            choice.generation = generation.clone();
        }
        if revised {
            let (choice, reason) = (generation.index, generation.finish_reason);
            let tool_calls = generation.tool_calls.clone();
            let sink = &self.run.sink;
            sink.tell(ReplyEvent::Revised { choice, generation: Box::new(generation), logprobs }).await;
            sink.tell(ReplyEvent::ChoiceFinished { choice, reason, tool_calls }).await;
        }
        told
    }
}

/// Verdicts in words, in the order of the attempts.
fn verdict_words(verdicts: &[u8]) -> String {
    match verdicts {
        [] => "no verdict".to_owned(),
        [one] => format!("verdict {one}"),
        all => format!("verdicts {}", all.iter().map(u8::to_string).collect::<Vec<_>>().join(", ")),
    }
}
