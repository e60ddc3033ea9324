//! The quality gate: a finished answer is judged before its reply ends. The model gets an answer with a poor verdict
//! back, with the request to work it out again. The attempt with the best score stands. Whatever fails or takes too
//! long, the reply ends with the best answer so far and says why.

use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};

use super::choice::Choice;
use super::seat::Seat;
use super::task::{Reply, chat_prompt, generate};
use super::{CHANGING, Replies};
use crate::actors::inference::Submit;
use crate::actors::scorer::JudgeAnswer;
use crate::engine::protocol::Channel;
use crate::meters;
use crate::night::served::revision;
use crate::scoring::reflect::{best, reflection};
use crate::service::{Logprob, ReplyEvent};
use crate::toolcall::Format;
use crate::turn::{FinishReason, Generation, Judgement, Plan, Quality, QualityGate, QualityOutcome};

/// One answer to the same question.
struct Attempt {
    generation: Generation,
    logprobs: Vec<Logprob>,
    judgement: Option<Judgement>,
}

/// The attempts at one answer.
struct Trial<'a> {
    replies: &'a Replies,
    seat: &'a Seat,
    plan: &'a Plan,
    gate: QualityGate,
    one_call: bool,
    format: &'static Format,
    adapter: Option<String>,
    principal: &'a str,
    deadline: Instant,
    attempts: Vec<Attempt>,
}

/// Takes the only choice of a complete reply through the gate of its plan. → the judgement of the answer that stands.
pub(super) async fn gate(
    reply: &mut Reply,
    replies: &Replies,
    events: &mpsc::Sender<ReplyEvent>,
    seat: &Seat,
    reply_deadline: Instant,
) -> Option<Judgement> {
    let gate = reply.plan.quality_gate?;
    // Whoever asked for several answers chooses among them.
    let [choice] = reply.choices.as_mut_slice() else { return None };
    let began = Instant::now();
    let deadline = reply_deadline.min(began + Duration::from_millis(gate.timeout_ms));
    let first = Attempt { generation: choice.generation.clone(), logprobs: Vec::new(), judgement: None };
    let adapter = revision(reply.opening.generation);
    let (plan, principal) = (&reply.plan, reply.opening.principal.as_str());
    let one_call = choice.one_call;
    let format = Format::named(&reply.hosted.calls).unwrap_or(Format::generic());
    let mut trial =
        Trial { replies, seat, one_call, format, plan, gate, adapter, principal, deadline, attempts: vec![first] };
    let because = match refusal(&choice.generation, reply.streamed) {
        Some(why) => Some(why.to_owned()),
        None => tokio::select! {
            tried = trial.run() => tried.err(),
            () = sleep_until(deadline) => Some(format!("{} ms were over", gate.timeout_ms)),
            () = events.closed() => Some("the client left".to_owned()),
            () = replies.cut.cancelled() => Some("the daemon is stopping".to_owned()),
            () = seat.cut() => Some(CHANGING.to_owned()),
        },
    };
    let (mut kept, logprobs, judgement) = trial.end(because, began.elapsed());
    let quality = kept.quality.as_deref();
    meters::quality_gate(quality.map_or("unjudged", |q| q.outcome.name()));
    if quality.is_some_and(|q| q.outcome == QualityOutcome::Revised) {
        kept.index = choice.generation.index;
        tell(&kept, logprobs, replies, events).await;
    }
    choice.generation = kept;
    judgement
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

/// Puts the better answer before the client.
async fn tell(kept: &Generation, logprobs: Vec<Logprob>, replies: &Replies, events: &mpsc::Sender<ReplyEvent>) {
    let (choice, patience) = (kept.index, replies.config.get().client_stall_timeout);
    let tool_calls = kept.tool_calls.clone();
    let news = [
        ReplyEvent::Revised { choice, generation: Box::new(kept.clone()), logprobs },
        ReplyEvent::ChoiceFinished { choice, reason: kept.finish_reason, tool_calls },
    ];
    for event in news {
        // A client that left has lost nothing: its Turn is written all the same.
        let _ = events.send_timeout(event, patience).await;
    }
}

impl Trial<'_> {
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
        let scorer = self.replies.scorer.as_ref().ok_or("there is no judge")?;
        let within = self.deadline.saturating_duration_since(Instant::now());
        let ask = JudgeAnswer {
            messages: self.plan.messages.clone(),
            tools: self.plan.tools.clone(),
            answer: Box::new(answer.clone()),
            within,
        };
        let judged = scorer.send_within(ask, within).await.map_err(|error| error.to_string())?;
        judged.map_err(|error| error.to_string())
    }

    /// Asks for another attempt at the best answer so far.
    async fn again(&self, retry: u32) -> Result<Attempt, String> {
        let before = &self.attempts[self.best()].generation;
        let messages = reflection(&self.plan.messages, &before.content, &before.tool_calls);
        let prompt = chat_prompt(self.plan, messages, self.replies.clock.date());
        let mut request = generate(self.plan, prompt, 0, self.adapter.clone(), self.principal);
        // The same dice would fall the same way wherever the model is sure of itself.
        let seed = self.attempts[0].generation.seed.wrapping_add(retry.into());
        request.sampling.seed = Some(seed);
        let mut choice = Choice::new(0, seed, self.plan.sampling.logprobs.is_some(), &self.plan.tools, self.format);
        choice.one_call = self.one_call;
        let within = self.deadline.saturating_duration_since(Instant::now());
        let submitted = self.seat.inference.send_within(Submit { choices: vec![request] }, within).await;
        let mut stream = submitted.map_err(|error| error.to_string())?.map_err(|error| error.to_string())?;
        let mut told = Vec::new();
        while !choice.finished {
            let (_, event) = stream.recv().await.ok_or("the engine's events ended early")?;
            choice.take(event, &mut told).map_err(|error| error.to_string())?;
        }
        let logprobs = told.into_iter().filter_map(|event| match event {
            ReplyEvent::Delta { channel: Channel::Answer, logprobs, .. } => Some(logprobs),
            _ => None,
        });
        Ok(Attempt { generation: choice.generation, logprobs: logprobs.flatten().collect(), judgement: None })
    }

    /// The best attempt that was judged; the first where none was.
    fn best(&self) -> usize {
        let p = |a: &Attempt| a.judgement.as_ref().and_then(|j| j.choices.first()).map_or(f32::NEG_INFINITY, |c| c.p);
        best(self.attempts.iter().map(p))
    }

    /// The attempt that stands, with the record of all of them.
    fn end(mut self, because: Option<String>, took: Duration) -> (Generation, Vec<Logprob>, Option<Judgement>) {
        let kept = self.best();
        let verdicts: Vec<u8> =
            self.attempts.iter().filter_map(|a| a.judgement.as_ref()).filter_map(Judgement::verdict).collect();
        let outcome = match (verdicts.first(), kept) {
            (None, _) => QualityOutcome::Unjudged,
            (Some(_), 1..) => QualityOutcome::Revised,
            (Some(first), 0) if *first > self.gate.verdict_max => QualityOutcome::Passed,
            (Some(_), 0) => QualityOutcome::Kept,
        };
        let Attempt { mut generation, logprobs, judgement } = self.attempts.remove(kept);
        let others = self.attempts.into_iter().map(|attempt| attempt.generation).collect();
        let took_ms = took.as_millis() as u64;
        generation.quality = Some(Box::new(Quality { outcome, verdicts, kept: kept as u32, took_ms, because, others }));
        (generation, logprobs, judgement)
    }
}
