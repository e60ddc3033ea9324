//! Runs one reply: starts it, waits within limits, and answers with JSON or a stream. Dropping what is here
//! drops the receiver, which cancels the reply.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::response::{IntoResponse, Response};
use hyper::header::{CONTENT_TYPE, HeaderValue};
use serde_json::Value;
use tokio::sync::mpsc;

use super::error::ApiError;
use super::metrics;
use super::routes::Door;
use super::wire::chunk::broke_off;
use super::wire::reply::{Choice, Head};
use crate::engine::protocol::Channel;
use crate::service::{CHOICES_MAX, ReplyEvent, ReplyRequest, ServiceError};
use crate::turn::{Generation, StepRecord, Usage};
use crate::whole;

/// A reply under way.
pub(crate) struct Running {
    pub(crate) events: mpsc::Receiver<ReplyEvent>,
    /// Received, not yet written.
    pub(crate) ahead: VecDeque<ReplyEvent>,
    pub(crate) clock: ReplyClock,
    /// Choices asked for.
    pub(crate) choices: u32,
}

/// Counts a reply exactly once, however it ends: a clock dropped unstopped is a client that left.
pub(crate) struct ReplyClock {
    started: Instant,
    first_seen: bool,
    /// When each choice last said something.
    said: [Option<Instant>; CHOICES_MAX as usize],
    stopped: bool,
}

impl ReplyClock {
    pub(crate) fn start() -> Self {
        ReplyClock { started: Instant::now(), first_seen: false, said: Default::default(), stopped: false }
    }

    /// To be told of each event.
    pub(crate) fn saw(&mut self, event: &ReplyEvent) {
        let early = matches!(
            event,
            ReplyEvent::Started { .. }
                | ReplyEvent::Step(_)
                | ReplyEvent::Queued
                | ReplyEvent::PromptRead { .. }
                | ReplyEvent::Failed(_)
        );
        if !self.first_seen && !early {
            self.first_seen = true;
            metrics::reply_first_event(self.started.elapsed());
        }
        if let ReplyEvent::Delta { choice, .. } | ReplyEvent::ToolArguments { choice, .. } = event
            && let Some(said) = self.said.get_mut(*choice as usize)
            && let Some(before) = said.replace(Instant::now())
        {
            metrics::reply_inter_token(before.elapsed());
        }
    }

    pub(crate) fn stop(&mut self, outcome: &'static str, usage: Option<&Usage>) {
        if !self.stopped {
            self.stopped = true;
            metrics::reply_ended(outcome, self.started.elapsed(), usage);
        }
    }
}

impl Drop for ReplyClock {
    fn drop(&mut self) {
        self.stop("cancelled", None);
    }
}

/// Asks the service for a reply.
pub(crate) async fn start(door: &Arc<Door>, request: ReplyRequest) -> Result<Running, ApiError> {
    let mut clock = ReplyClock::start();
    let choices = request.choices;
    match door.service.reply(request).await {
        Ok(events) => Ok(Running { events, ahead: VecDeque::new(), clock, choices }),
        Err(error) => {
            clock.stop("refused", None);
            Err(error.into())
        }
    }
}

/// The next event, or why there is none. A source that ends without a last event is a failure.
async fn next(running: &mut Running, limit: Duration) -> Result<ReplyEvent, ApiError> {
    let event = match running.ahead.pop_front() {
        Some(event) => event,
        None => match tokio::time::timeout(limit, running.events.recv()).await {
            Ok(event) => event.unwrap_or_else(|| ReplyEvent::Failed(broke_off())),
            Err(_) => ReplyEvent::Failed(silent()),
        },
    };
    running.clock.saw(&event);
    match event {
        ReplyEvent::Failed(error) => {
            running.clock.stop("failed", None);
            Err(error.into())
        }
        event => Ok(event),
    }
}

/// The reply made no progress for too long.
pub(crate) fn silent() -> ServiceError {
    ServiceError::Unavailable { message: "the reply made no progress for too long".to_owned(), retry_after_s: 5 }
}

/// Waits until the engine has found a stream's request good, so that a refusal gets a status of its own; from
/// then on, or after the limit, the stream is open and every failure an event.
pub(crate) async fn await_accepted(running: &mut Running, limit: Duration) -> Result<(), ApiError> {
    let deadline = tokio::time::Instant::now() + limit;
    loop {
        let event = match tokio::time::timeout_at(deadline, running.events.recv()).await {
            Ok(event) => event.unwrap_or_else(|| ReplyEvent::Failed(broke_off())),
            Err(_) => return Ok(()),
        };
        if let ReplyEvent::Failed(error) = event {
            running.clock.stop("failed", None);
            return Err(error.into());
        }
        let is_start = matches!(event, ReplyEvent::Started { .. } | ReplyEvent::Step(_));
        running.ahead.push_back(event);
        if !is_start {
            return Ok(());
        }
    }
}

/// A reply that is complete.
pub(crate) struct Whole {
    pub(crate) head: Head,
    pub(crate) choices: Vec<Choice>,
    pub(crate) usage: Usage,
    pub(crate) generations: Vec<Generation>,
    pub(crate) steps: Vec<StepRecord>,
    pub(crate) kept: Option<bool>,
}

/// Collects a reply to its end.
pub(crate) async fn collect(mut running: Running, limit: Duration) -> Result<Whole, ApiError> {
    let mut head = None;
    let mut choices = vec![Choice::default(); running.choices as usize];
    loop {
        match next(&mut running, limit).await? {
            ReplyEvent::Started { plan, model, fingerprint, created_unix_s } => {
                head = Some(Head { plan, model, created_unix_s, fingerprint });
            }
            ReplyEvent::Delta { choice, channel, text, logprobs } => {
                let Some(choice) = choices.get_mut(choice as usize) else { continue };
                match channel {
                    Channel::Thinking => {
                        choice.thinking.push_str(&text);
                        choice.thought_logprobs.extend(logprobs);
                    }
                    Channel::Answer => {
                        choice.content.push_str(&text);
                        choice.logprobs.extend(logprobs);
                    }
                }
            }
            ReplyEvent::Revised { choice, generation, logprobs } => {
                let Some(choice) = choices.get_mut(choice as usize) else { continue };
                let (thinking, content) = (generation.thinking, generation.content);
                *choice = Choice { thinking, content, logprobs, ..Choice::default() };
            }
            ReplyEvent::ChoiceFinished { choice, reason, tool_calls } => {
                let Some(choice) = choices.get_mut(choice as usize) else { continue };
                choice.reason = Some(reason);
                choice.tool_calls = tool_calls;
            }
            ReplyEvent::Done { usage, generations, steps, kept } => {
                running.clock.stop("done", Some(&usage));
                let head = head.ok_or_else(|| ApiError::internal("the reply ended before it began"))?;
                return Ok(Whole { head, choices, usage, generations, steps, kept });
            }
            ReplyEvent::PromptRead { choice, tokens } => {
                let Some(choice) = choices.get_mut(choice as usize) else { continue };
                choice.prompt.extend(tokens);
            }
            // Complete calls come with `ChoiceFinished`; `next` turned failures into errors.
            ReplyEvent::Queued
            | ReplyEvent::Step(_)
            | ReplyEvent::ToolBegin { .. }
            | ReplyEvent::ToolArguments { .. }
            | ReplyEvent::Failed(_) => {}
        }
    }
}

/// A JSON response. Records of calls in it have their numbers as such.
pub(crate) fn json(value: &Value) -> Response {
    json_text(whole::unmarked(&value.to_string()).into_owned())
}

/// As `json`, of a value that is written already.
pub(crate) fn json_text(text: String) -> Response {
    ([(CONTENT_TYPE, HeaderValue::from_static("application/json"))], text).into_response()
}
