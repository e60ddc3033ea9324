//! The one way in which a reply's tokens are made. A generation is handed to the engine. Its events are followed until
//! every choice is finished or something stops the reply.

use std::time::Duration;

use tokio::time::{Instant, timeout_at};
use tokio_util::sync::CancellationToken;

use super::choice::Choice;
use super::run::ReplyRun;
use super::stops::{StepError, Stop};
use super::unavailable;
use crate::actors::inference::{EngineStream, FromEngine, InferenceError, Submit};
use crate::engine::protocol::{Channel, ChatInput, Generate, Prompt};
use crate::night::served::revision;
use crate::service::{Logprob, ReplyEvent, ServiceError};
use crate::turn::{FinishReason, Message, Plan, PromptEnd, PromptForm, Sampling, Thinking};

/// How long a cancelled reply waits for the engine's own account (usage, timings): a busy engine hears of it after its
/// step. An idle one answers at once.
pub const CANCEL_WAIT_MS: u64 = 5_000;
/// And for word that it has begun at all.
const BEGIN_WAIT_MS: u64 = 1_000;
/// The same where somebody waits for the end: the daemon stops, the model changes, an answer is complete.
const HURRIED_WAIT_MS: u64 = 300;

/// A generation to be made.
pub(super) struct Spec {
    /// One request for each of `choices`.
    pub(super) requests: Vec<Generate>,
    pub(super) choices: Vec<Choice>,
    /// The client sees it as it comes.
    pub(super) shown: bool,
}

/// A generation in the engine.
pub(super) struct UnderWay {
    /// `None`: the engine has not taken it.
    stream: Option<EngineStream>,
    choices: Vec<Choice>,
    shown: bool,
    /// Of the answer, where nobody sees it yet.
    logprobs: Vec<Logprob>,
}

/// A generation that came to its end.
pub(super) struct Generated {
    pub(super) choices: Vec<Choice>,
    /// Of a hidden answer, where they were asked for.
    pub(super) logprobs: Vec<Logprob>,
}

impl ReplyRun<'_> {
    /// Generates. Whatever ends it early, what the engine did is counted in the step's record; the choices of the
    /// client's answer go back to the reply.
    pub(super) async fn generate(&mut self, spec: Spec) -> Result<Generated, StepError> {
        let Spec { requests, choices, shown } = spec;
        let tokens_max = requests.iter().map(|request| request.max_tokens).max().unwrap_or_default();
        self.under_way = Some(UnderWay { stream: None, choices, shown, logprobs: Vec::new() });
        let driven = match self.budget.generation(requests.len(), tokens_max) {
            Ok(()) => match self.submit(requests).await {
                Ok(()) => self.drive().await,
                Err(error) => Err(error),
            },
            Err(error) => Err(error),
        };
        match (driven, self.under_way.take()) {
            (Ok(()), Some(UnderWay { choices, logprobs, .. })) => {
                self.count(&choices);
                Ok(Generated { choices, logprobs })
            }
            (Ok(()), None) => Err(StepError::Failed(ServiceError::Internal("the generation was lost".to_owned()))),
            (Err(error), under_way) => {
                self.under_way = under_way;
                self.abandon(&error).await;
                Err(error)
            }
        }
    }

    async fn submit(&mut self, requests: Vec<Generate>) -> Result<(), StepError> {
        let (seat, patience) = (&self.stops.seat, self.replies.config.get().start_timeout);
        let unavailable = |error: String| StepError::Failed(unavailable(&error, seat.board.retry_after_s()));
        let stream = match seat.inference.send_within(Submit { choices: requests }, patience).await {
            Ok(Ok(stream)) => stream,
            Ok(Err(InferenceError::Busy)) => {
                let message = InferenceError::Busy.to_string();
                return Err(StepError::Failed(ServiceError::Busy { message, retry_after_s: 1 }));
            }
            Ok(Err(error)) => return Err(unavailable(error.to_string())),
            Err(error) => return Err(unavailable(error.to_string())),
        };
        if let Some(under_way) = &mut self.under_way {
            under_way.stream = Some(stream);
        }
        self.sink.open();
        Ok(())
    }

    /// Follows the engine until every choice is finished.
    async fn drive(&mut self) -> Result<(), StepError> {
        let ReplyRun { under_way: Some(under_way), sink, stops, .. } = self else { return Ok(()) };
        let mut out = Vec::new();
        // Made once and not for every token.
        let stop = stops.wait();
        tokio::pin!(stop);
        while under_way.choices.iter().any(|c| !c.finished) {
            tokio::select! {
                biased;
                event = under_way.recv() => {
                    let taken = match event {
                        Some((choice, event)) => under_way.take(choice, event, &mut out),
                        None => Err(ServiceError::Internal("the engine's events ended early".to_owned())),
                    };
                    for event in out.drain(..) {
                        if let Some(event) = under_way.told(event) {
                            sink.pass(event, &mut stop).await?;
                        }
                    }
                    taken.map_err(StepError::Failed)?;
                }
                stop = &mut stop => return Err(StepError::Stopped(stop)),
            }
        }
        Ok(())
    }

    /// Cancels what is under way, takes the engine's last account of it, and counts that.
    pub(super) async fn abandon(&mut self, why: &StepError) {
        let hurried = matches!(why, StepError::Stopped(Stop::Changing { .. }));
        self.leave(why, hurried).await;
    }

    /// The same where nothing but a complete answer waits behind it.
    pub(super) async fn abandon_hurriedly(&mut self, why: &StepError) {
        self.leave(why, true).await;
    }

    async fn leave(&mut self, why: &StepError, hurried: bool) {
        // Whoever left may ask again before a busy engine has given its account. Nothing catches this end.
        let ends = matches!(why, StepError::Stopped(Stop::ClientGone | Stop::Cancelled)) && !self.answered;
        if let Some(session) = self.session.as_mut().filter(|_| ends) {
            session.let_go();
        }
        // It stays where it is meanwhile: who stops waiting loses no account.
        let ReplyRun { under_way: Some(under_way), stops, .. } = self else { return };
        under_way.cancel(&stops.cut, hurried).await;
        let Some(mut under_way) = self.under_way.take() else { return };
        for choice in &mut under_way.choices {
            choice.end(why);
        }
        self.count(&under_way.choices);
        if under_way.shown {
            self.choices = under_way.choices;
        }
    }

    fn count(&mut self, choices: &[Choice]) {
        let started = choices.iter().filter(|choice| choice.started).map(|choice| &choice.generation);
        for generation in started {
            self.record.model.get_or_insert_with(|| self.model.clone());
            self.record.prompt_tokens += generation.usage.prompt_tokens;
            self.record.completion_tokens += generation.usage.completion_tokens;
        }
    }

    /// The request of one choice under the plan's own terms.
    pub(super) fn request(&self, prompt: Prompt, choice: u32) -> Generate {
        let plan = &self.plan;
        let mut sampling = plan.sampling.clone();
        sampling.seed = sampling.seed.map(|seed| seed.wrapping_add(choice.into()));
        Generate {
            stop: plan.stop.clone(),
            engram: plan.engram.clone(),
            thought: plan.thought,
            ..self.bare(prompt, sampling, plan.thinking, plan.max_tokens)
        }
    }

    /// A request under terms of its own, by whom and for whom this reply is.
    pub(super) fn bare(&self, prompt: Prompt, sampling: Sampling, thinking: Thinking, max_tokens: u32) -> Generate {
        Generate {
            thinking,
            adapter: revision(self.opening.generation),
            principal: self.opening.principal.clone(),
            prefix_owner: Some(self.opening.principal.clone()),
            ..Generate::new(prompt, sampling, max_tokens)
        }
    }
}

impl UnderWay {
    async fn recv(&mut self) -> Option<(u32, FromEngine)> {
        match &mut self.stream {
            Some(stream) => stream.recv().await,
            None => None,
        }
    }

    /// One event of the engine into its choice and towards the client.
    fn take(&mut self, choice: u32, event: FromEngine, out: &mut Vec<ReplyEvent>) -> Result<(), ServiceError> {
        let Some(choice) = self.choices.get_mut(choice as usize) else { return Ok(()) };
        let queued = choice.queued;
        choice.take(event, out)?;
        if choice.queued && !queued && self.choices.iter().all(|c| c.queued) {
            out.push(ReplyEvent::Queued);
        }
        Ok(())
    }

    /// What of an event the client may see.
    fn told(&mut self, event: ReplyEvent) -> Option<ReplyEvent> {
        match event {
            event if self.shown => Some(event),
            ReplyEvent::Queued => Some(event),
            ReplyEvent::Delta { channel: Channel::Answer, logprobs, .. } => {
                self.logprobs.extend(logprobs);
                None
            }
            _ => None,
        }
    }

    /// Waits for what the engine did until it heard of the end. A choice of which it has told nothing may have begun all the
    /// same.
    async fn cancel(&mut self, cut: &CancellationToken, mut hurried: bool) {
        let Some(stream) = &mut self.stream else { return };
        stream.cancel();
        let mut began = Instant::now();
        loop {
            let [begins, ends] = match hurried {
                true => [Duration::from_millis(HURRIED_WAIT_MS); 2],
                false => [Duration::from_millis(BEGIN_WAIT_MS), Duration::from_millis(CANCEL_WAIT_MS)],
            };
            let open = || self.choices.iter().filter(|choice| !choice.finished && !choice.silent);
            let patience = match (open().any(|choice| choice.started), open().next()) {
                (true, _) => ends,
                (false, Some(_)) => begins,
                (false, None) => return,
            };
            tokio::select! {
                heard = timeout_at(began + patience, self.recv()) => {
                    let Ok(Some((choice, event))) = heard else { return };
                    // A failure is the last that is heard of a choice.
                    let _ = self.take(choice, event, &mut Vec::new());
                }
                // The daemon stops: what is left of its patience counts from here.
                () = cut.cancelled(), if !hurried => (hurried, began) = (true, Instant::now()),
            }
        }
    }
}

impl Choice {
    /// Nothing more will come of it.
    pub(super) fn end(&mut self, why: &StepError) {
        match why {
            StepError::Stopped(Stop::ClientGone | Stop::Cancelled) => self.break_off(FinishReason::Aborted, None),
            other => match other.clone().told() {
                Some(error) => self.break_off(FinishReason::Error, Some(&error.to_string())),
                None => self.break_off(FinishReason::Aborted, None),
            },
        }
    }
}

/// A conversation under the plan's other terms.
pub(super) fn chat_input(plan: &Plan, messages: Vec<Message>, date: String) -> ChatInput {
    let PromptForm { end, arguments, effort } = plan.prompt.clone();
    ChatInput {
        messages,
        tools: plan.tools.clone(),
        thinking: plan.thinking,
        date,
        add_generation_prompt: end == PromptEnd::Opened,
        continue_final: end == PromptEnd::Within,
        arguments,
        effort,
        ..ChatInput::default()
    }
}
