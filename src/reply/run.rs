//! The life of one reply: a run of the steps of its plan, and exactly one Turn at its end.

use std::collections::VecDeque;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use futures_util::FutureExt;
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::budget::Budget;
use super::choice::Choice;
use super::generate::UnderWay;
use super::record::{Opening, total_usage};
use super::registry::Registered;
use super::session::Held;
use super::sink::{Opened, Sink};
use super::stops::{StepError, Stops};
use super::{Replies, steps, unavailable};
use crate::actors::link::LinkError;
use crate::actors::memory::{Append, AppendTo};
use crate::engine::grammar::{FormTerms, Grammar};
use crate::engine::protocol::{Hosted, Prompt};
use crate::meters;
use crate::service::{ReplyEvent, ReplyRequest, ServiceError, Session, StepEvent};
use crate::store::GoesOn;
use crate::toolcall::Format;
use crate::turn::{HiddenUsage, Judgement, Message, Plan, Step, StepOutcome, StepRecord, Turn};

/// What a request says of its answer beside the plan.
pub(super) struct Asked {
    /// Absent: the plan's conversation.
    pub(super) prompt: Option<Prompt>,
    pub(super) grammar: Option<Grammar>,
    pub(super) form_terms: FormTerms,
    pub(super) prompt_logprobs: bool,
    /// What was told cannot be taken back.
    pub(super) streamed: bool,
    /// The client is told of each step as it happens.
    pub(super) step_events: bool,
}

/// A reply under way.
pub(super) struct ReplyRun<'a> {
    pub(super) replies: &'a Replies,
    pub(super) stops: Arc<Stops>,
    pub(super) sink: Sink,
    pub(super) budget: Budget,
    pub(super) registered: Registered,
    pub(super) opening: Opening,
    pub(super) plan: Plan,
    pub(super) asked: Asked,
    pub(super) hosted: Arc<Hosted>,
    /// What the client hears of its model's name.
    pub(super) model: String,
    pub(super) session: Option<Held>,
    /// The client's answer: one for each that it asked for.
    pub(super) choices: Vec<Choice>,
    /// It is complete.
    pub(super) answered: bool,
    pub(super) under_way: Option<UnderWay>,
    /// Of the first choice, where a step judged it.
    pub(super) judgement: Option<Judgement>,
    /// The steps that are still to be run.
    pub(super) ahead: VecDeque<Step>,
    /// What the steps before this one did.
    pub(super) trace: Vec<StepRecord>,
    /// The step under way.
    pub(super) record: StepRecord,
    /// What was found for the question; it stands behind the conversation, and is no part of it.
    pub(super) evidence: Vec<Message>,
}

/// Runs a reply to its end. `opened` hears once whether the engine has taken it.
pub(super) async fn run(replies: &Replies, request: ReplyRequest, client: mpsc::Sender<ReplyEvent>, opened: Opened) {
    let began = Instant::now();
    replies.board.touch(replies.clock.now_ms());
    match super::open::open(replies, request, client, began).await {
        Ok((mut run, started)) => {
            run.sink.opening = Some((started, opened));
            run.live().await;
        }
        Err(error) => return refuse(opened, error),
    }
    replies.board.touch(replies.clock.now_ms());
}

/// Tells whoever asked why there is no reply.
fn refuse(opened: Opened, error: StepError) {
    drop(opened.send(Err(error.told().unwrap_or_else(|| unavailable("the client left", 1)))));
}

impl ReplyRun<'_> {
    async fn live(mut self) {
        let ran = AssertUnwindSafe(self.steps()).catch_unwind().await;
        let end = match ran {
            Ok(Ok(())) => None,
            Ok(Err(error)) => Some(error),
            Err(_) => {
                let error = StepError::Failed(ServiceError::Internal("the reply's task failed".to_owned()));
                tracing::error!(turn = self.opening.id.0, step = self.record.name, "a step of a reply panicked");
                self.abandon(&error).await;
                self.end_step(steps::Outcome::of_error(&error), Instant::now()).await;
                Some(error)
            }
        };
        // Whatever befell a step behind the answer, the answer stands.
        let end = end.filter(|_| !self.answered);
        let opened = self.sink.opening.take();
        match (opened, end) {
            // The engine has taken nothing: there was no reply.
            (Some((_, opened)), Some(error)) => refuse(opened, error),
            (_, end) => self.close(end).await,
        }
    }

    /// Runs the steps of the plan, one after the other.
    async fn steps(&mut self) -> Result<(), StepError> {
        let mut at = 0;
        self.ahead = std::mem::take(&mut self.plan.steps).into();
        while let Some(step) = self.ahead.pop_front() {
            at += 1;
            self.registered.at(at, self.ahead.len(), &step);
            let began = Instant::now();
            self.record = record(&step);
            if self.asked.step_events {
                let (kind, name) = (self.record.kind.clone(), self.record.name.clone());
                self.sink.step(StepEvent::Began { kind, name }).await;
            }
            let ran = steps::run(self, &step).await;
            let outcome = ran.as_ref().map_or_else(steps::Outcome::of_error, Clone::clone);
            self.end_step(outcome, began).await;
            ran?;
        }
        Ok(())
    }

    async fn end_step(&mut self, outcome: steps::Outcome, began: Instant) {
        let steps::Outcome { outcome, decided, because, visible, text } = outcome;
        let took_ms = began.elapsed().as_millis() as u64;
        let ended = StepRecord { outcome, decided, because, visible, text, took_ms, ..self.record.clone() };
        meters::step(&ended.kind, outcome.name());
        if self.asked.step_events {
            self.sink.step(StepEvent::Ended(ended.told())).await;
        }
        self.trace.push(ended);
    }

    /// How the model writes its calls.
    pub(super) fn format(&self) -> &'static Format {
        Format::named(&self.hosted.calls).unwrap_or(Format::generic())
    }

    /// Writes the Turn, then tells the client how it ended.
    async fn close(self, end: Option<StepError>) {
        let ReplyRun {
            replies, opening, plan, hosted, mut choices, judgement, mut session, sink, trace, stops, ..
        } = self;
        // The model is free to be changed.
        drop(stops);
        // A reply that broke off leaves its session where it was.
        if let Some(session) = session.as_mut().filter(|_| end.is_some()) {
            session.let_go();
        }
        let worked = trace.iter().any(|step| step.prompt_tokens > 0);
        let refused = !worked
            && matches!(
                end,
                Some(StepError::Failed(
                    ServiceError::Invalid { .. } | ServiceError::Context(_) | ServiceError::Busy { .. }
                ))
            );
        if let Some(error) = &end {
            choices.iter_mut().for_each(|choice| choice.end(error));
        }
        let prompt_ids = choices.first_mut().map(|c| std::mem::take(&mut c.prompt_ids)).unwrap_or_default();
        let generations: Vec<_> = choices.into_iter().map(|c| c.generation).collect();
        let usage = total_usage(&generations);
        let complete = end.is_none();
        let mut last = match end {
            None => Some(ReplyEvent::Done {
                usage,
                generations: generations.clone(),
                steps: trace.clone(),
                kept: Some(true),
            }),
            Some(error) => error.told().map(ReplyEvent::Failed),
        };
        // A request that the engine refused unread is no reply, and leaves no Turn.
        if !refused {
            meters::hidden_tokens(HiddenUsage::of(&trace, &generations));
            meters::reply_finished(&usage, &generations.first().map(|g| g.timings).unwrap_or_default());
            let mut turn = opening.turn(plan, &hosted, prompt_ids, generations, trace);
            turn.verdict = judgement.as_ref().and_then(Judgement::verdict);
            turn.judgement = judgement;
            let goes_on = session.as_ref().and_then(Held::goes_on);
            let session = session.as_ref().filter(|_| complete);
            let moved = session.map(|held| held.at(turn.id.clone(), replies.clock.now_ms()));
            let in_session = moved.is_some();
            let written = keep(replies, turn, moved, goes_on).await;
            // Where nobody said in time, the session may have moved: the end says that this is unknown.
            if written == Some(false) && in_session {
                let message = "the turn log cannot be written: the reply was sent, but the session stays where it was";
                last = Some(ReplyEvent::Failed(unavailable(message, 10)));
            } else if let Some(ReplyEvent::Done { kept, .. }) = &mut last {
                *kept = written;
            }
        }
        // Whoever has heard the end may go on at once.
        drop(session);
        if let Some(last) = last {
            sink.tell(last).await;
        }
    }
}

/// The record of a step that begins.
pub(super) fn record(step: &Step) -> StepRecord {
    StepRecord {
        kind: step.work.kind().to_owned(),
        name: step.name.clone(),
        outcome: StepOutcome::Done,
        model: None,
        prompt_tokens: 0,
        completion_tokens: 0,
        took_ms: 0,
        visible: false,
        decided: None,
        because: None,
        text: String::new(),
        calls: Vec::new(),
        passages: Vec::new(),
        stages: Vec::new(),
    }
}

/// Appends a Turn, of an aborted reply with no less patience than of any other, and moves its session. Memory may be
/// down: the reply goes on, and the loss is counted. False: the turn is not kept; `None`: nobody said in time.
async fn keep(replies: &Replies, turn: Turn, session: Option<Session>, goes_on: Option<GoesOn>) -> Option<bool> {
    let (id, verdict, patience) = (turn.id.clone(), turn.verdict, *replies.append_timeout.get());
    let turn = Box::new(turn);
    let kept = match (&session, &goes_on) {
        (None, None) => replies.memory.send_within(Append(turn), patience).await,
        _ => replies.memory.send_within(AppendTo { turn, session, goes_on }, patience).await,
    };
    let lost = match kept {
        Ok(Ok(())) => {
            match verdict {
                Some(verdict) => replies.inbox.scored(verdict),
                None => replies.inbox.put(id),
            }
            return Some(true);
        }
        Ok(Err(error)) => (Some(false), error.to_string()),
        // It may be written yet.
        Err(error @ LinkError::Late { .. }) => (None, error.to_string()),
        Err(error) => (Some(false), error.to_string()),
    };
    let (kept, error) = lost;
    match kept {
        None => tracing::error!(turn = id.0, error, "it is not known whether the turn is kept"),
        Some(_) => {
            tracing::error!(turn = id.0, error, "turn not kept");
            meters::turn_lost();
        }
    }
    kept
}
