//! The life of one reply.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, sleep_until, timeout};

use super::choice::Choice;
use super::record::{Opening, total_usage};
use super::seat::Seat;
use super::session::Held;
use super::{CHANGING, Replies, new_turn_id, quality, unavailable};
use crate::actors::inference::{EngineStream, FromEngine, InferenceError, Submit};
use crate::actors::link::LinkError;
use crate::actors::memory::{Append, AppendTo};
use crate::engine::grammar::{Grammar, NotEnforced};
use crate::engine::protocol::{ChatInput, Generate, Hosted, Prompt};
use crate::meters;
use crate::night::served::revision;
use crate::service::{PlanSummary, ReplyEvent, ReplyInput, ReplyRequest, ServiceError, Session};
use crate::toolcall::Format;
use crate::turn::{FinishReason, Judgement, Message, Plan, PromptEnd, PromptForm, Turn};

/// How long a cancelled reply waits for the engine's own account (usage, timings). It is short, so that an aborted
/// reply's Turn is durable within a second.
const CANCEL_WAIT_MS: u64 = 300;

/// How a reply ended.
enum End {
    Complete,
    ClientGone,
    Failed(ServiceError),
}

/// A reply under way.
pub(super) struct Reply {
    pub(super) opening: Opening,
    pub(super) plan: Plan,
    pub(super) hosted: Arc<Hosted>,
    /// What the client hears of its model's name.
    model: String,
    pub(super) choices: Vec<Choice>,
    /// What was told cannot be taken back.
    pub(super) streamed: bool,
    /// Of its first choice, where the quality gate asked for one.
    judgement: Option<Judgement>,
    session: Option<Held>,
    not_enforced: Vec<NotEnforced>,
}

/// Runs a reply to its end. `opened` hears once whether the engine has taken it.
pub(super) async fn run(
    replies: &Replies,
    request: ReplyRequest,
    events: mpsc::Sender<ReplyEvent>,
    opened: oneshot::Sender<Result<(), ServiceError>>,
) {
    let began = Instant::now();
    replies.board.touch(replies.clock.now_ms());
    let (mut reply, mut stream, seat) = match open(replies, request).await {
        Ok(open) => open,
        Err(error) => return drop(opened.send(Err(error))),
    };
    let started = reply.started(replies);
    let _ = events.try_send(started);
    let _ = opened.send(Ok(()));
    let driven = AssertUnwindSafe(reply.drive(replies, &mut stream, &events, &seat, began)).catch_unwind().await;
    let end = driven.unwrap_or_else(|_| End::Failed(ServiceError::Internal("the reply's task failed".to_owned())));
    if !matches!(end, End::Complete) {
        reply.break_off(&mut stream, &end).await;
    }
    drop(stream);
    if matches!(end, End::Complete) {
        let deadline = began + replies.config.get().reply_timeout;
        // A fault of the gate costs the second opinion and not the Turn.
        let judged =
            AssertUnwindSafe(quality::gate(&mut reply, replies, &events, &seat, deadline)).catch_unwind().await;
        reply.judgement = judged.unwrap_or_else(|_| {
            tracing::error!(turn = reply.opening.id.0, "the quality gate failed: the first answer stands");
            None
        });
    }
    drop(seat);
    reply.close(replies, end, events).await;
    replies.board.touch(replies.clock.now_ms());
}

/// Everything before the engine: model name, plan, admission.
async fn open(replies: &Replies, mut request: ReplyRequest) -> Result<(Reply, EngineStream, Seat), ServiceError> {
    let seat = replies.seat(request.model.as_deref()).await?;
    let hosted = seat.hosted.clone();
    let session = replies.resume(&mut request).await?;
    let now_ms = replies.clock.now_ms();
    let mut opening = Opening::new(new_turn_id(now_ms), now_ms, &request);
    if seat.serving() {
        // An engine that has just started is waited for with its adapters: the base model is not what was being served.
        let served = replies.board.served_within(replies.config.get().start_timeout).await;
        opening.generation = served.choose(&opening.conversation_key(&request));
    }
    let mut plan;
    (plan, opening.examples) = replies.terms(&mut request, &seat).await?;
    let prompt = match request.input {
        ReplyInput::Text(text) => Prompt::Text(text),
        ReplyInput::Marked(text) => Prompt::Marked(text),
        ReplyInput::Ids(ids) => Prompt::Ids(ids),
        ReplyInput::Chat { .. } => chat_prompt(&plan, plan.messages.clone(), replies.clock.date()),
    };
    let (adapter, grammar) = (revision(opening.generation), request.grammar);
    let form = grammar.as_ref().map(|grammar| match grammar {
        Grammar::Json(_) => "response_format",
        Grammar::Calls(_) => "tools",
    });
    if form.is_some() || plan.prompt.end != PromptEnd::Opened {
        // Another attempt would follow the first in a stream, and two JSON texts are none. What was begun by the client
        // is not judged as the model's.
        plan.quality_gate = None;
    }
    let generates = (0..request.choices)
        .map(|choice| Generate {
            grammar: grammar.clone(),
            prompt_logprobs: request.prompt_logprobs,
            ..generate(&plan, prompt.clone(), choice, adapter.clone(), &opening.principal)
        })
        .collect();
    let submitted = seat.inference.send_within(Submit { choices: generates }, replies.config.get().start_timeout).await;
    let stream = match submitted {
        Ok(Ok(stream)) => stream,
        Ok(Err(InferenceError::Busy)) => {
            return Err(ServiceError::Busy { message: InferenceError::Busy.to_string(), retry_after_s: 1 });
        }
        Ok(Err(error)) => return Err(unavailable(&error.to_string(), seat.board.retry_after_s())),
        Err(error @ (LinkError::Down { .. } | LinkError::Died { .. } | LinkError::Late { .. })) => {
            return Err(unavailable(&error.to_string(), seat.board.retry_after_s()));
        }
    };
    let seed = plan.sampling.seed.unwrap_or(0);
    let logprobs = plan.sampling.logprobs.is_some();
    let format = Format::named(&hosted.calls).unwrap_or(Format::generic());
    let mut choices: Vec<Choice> = (0..request.choices)
        .map(|i| Choice::new(i, seed.wrapping_add(i.into()), logprobs, &plan.tools, format))
        .collect();
    choices.iter_mut().for_each(|choice| (choice.form, choice.one_call) = (form, request.one_tool_call));
    if request.prompt_logprobs {
        choices.iter_mut().for_each(Choice::tell_every_token);
    }
    let streamed = request.streamed;
    let model = seat.name.clone();
    let not_enforced = request.not_enforced;
    let reply = Reply { opening, plan, hosted, model, choices, streamed, judgement: None, session, not_enforced };
    Ok((reply, stream, seat))
}

/// Tells one set of weights from another, as OpenAI's field of that name does.
fn fingerprint(model_hash: &str) -> String {
    let hash: String = model_hash.chars().filter(char::is_ascii_alphanumeric).take(16).collect();
    format!("fp_{hash}")
}

fn stopping() -> End {
    End::Failed(unavailable("the daemon is stopping", 5))
}

fn changing(replies: &Replies) -> End {
    End::Failed(unavailable(CHANGING, replies.board.retry_after_s()))
}

/// A conversation under the plan's other terms.
pub(super) fn chat_prompt(plan: &Plan, messages: Vec<Message>, date: String) -> Prompt {
    Prompt::Chat(chat_input(plan, messages, date))
}

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

pub(super) fn generate(plan: &Plan, prompt: Prompt, choice: u32, adapter: Option<String>, principal: &str) -> Generate {
    let mut sampling = plan.sampling.clone();
    sampling.seed = sampling.seed.map(|seed| seed.wrapping_add(choice.into()));
    Generate {
        stop: plan.stop.clone(),
        thinking: plan.thinking,
        adapter,
        engram: plan.engram.clone(),
        prefix_owner: Some(principal.to_owned()),
        ..Generate::new(prompt, sampling, plan.max_tokens)
    }
}

impl Reply {
    fn started(&self, replies: &Replies) -> ReplyEvent {
        ReplyEvent::Started {
            plan: PlanSummary {
                turn: self.opening.id.clone(),
                route: self.plan.route.clone(),
                because: self.plan.because.clone(),
                tier: self.plan.tier,
                pipeline_version: self.plan.pipeline_version.clone(),
                adapter_revision: self.opening.generation,
                examples: self.opening.examples.clone(),
                session: self.session.as_ref().map(Held::told),
                not_enforced: self.not_enforced.clone(),
            },
            model: self.model.clone(),
            fingerprint: fingerprint(&self.hosted.model_hash),
            created_unix_s: replies.clock.now_ms() / 1_000,
        }
    }

    /// Passes events on until every choice is finished or something ends the reply.
    async fn drive(
        &mut self,
        replies: &Replies,
        stream: &mut EngineStream,
        events: &mpsc::Sender<ReplyEvent>,
        seat: &Seat,
        began: Instant,
    ) -> End {
        let config = replies.config.get();
        let stall = config.client_stall_timeout;
        let deadline = began + config.reply_timeout;
        let mut out = Vec::new();
        // Made once and not for every token.
        let (late, gone, cut) = (sleep_until(deadline), events.closed(), replies.cut.cancelled());
        let changed = seat.cut();
        tokio::pin!(late, gone, cut, changed);
        while self.choices.iter().any(|c| !c.finished) {
            tokio::select! {
                biased;
                event = stream.recv() => {
                    let taken = match event {
                        Some((choice, event)) => self.take(choice, event, &mut out),
                        None => Err(ServiceError::Internal("the engine's events ended early".to_owned())),
                    };
                    for event in out.drain(..) {
                        let event = match events.try_send(event) {
                            Ok(()) => continue,
                            Err(TrySendError::Closed(_)) => return End::ClientGone,
                            Err(TrySendError::Full(event)) => event,
                        };
                        tokio::select! {
                            // A client that takes nothing for too long is as good as gone.
                            sent = events.send_timeout(event, stall) => if sent.is_err() { return End::ClientGone },
                            () = &mut cut => return stopping(),
                            () = &mut changed => return changing(replies),
                        }
                    }
                    if let Err(error) = taken {
                        return End::Failed(error);
                    }
                }
                () = &mut gone => return End::ClientGone,
                () = &mut cut => return stopping(),
                () = &mut changed => return changing(replies),
                () = &mut late => {
                    let limit = config.reply_timeout.as_secs();
                    return End::Failed(unavailable(&format!("the reply took longer than {limit} s"), 1));
                }
            }
        }
        End::Complete
    }

    /// One event of the engine into the choice and towards the client.
    fn take(&mut self, choice: u32, event: FromEngine, out: &mut Vec<ReplyEvent>) -> Result<(), ServiceError> {
        let Some(choice) = self.choices.get_mut(choice as usize) else { return Ok(()) };
        let queued = choice.queued;
        choice.take(event, out)?;
        if choice.queued && !queued && self.choices.iter().all(|c| c.queued) {
            out.push(ReplyEvent::Queued);
        }
        Ok(())
    }

    /// Cancels what still runs and takes the engine's last account of it.
    async fn break_off(&mut self, stream: &mut EngineStream, end: &End) {
        stream.cancel();
        let account = async {
            while self.choices.iter().any(|c| !c.finished && c.started) {
                match stream.recv().await {
                    Some((choice, event)) => drop(self.take(choice, event, &mut Vec::new())),
                    None => return,
                }
            }
        };
        let _ = timeout(Duration::from_millis(CANCEL_WAIT_MS), account).await;
        for choice in &mut self.choices {
            match end {
                End::Failed(error) => choice.break_off(FinishReason::Error, Some(&error.to_string())),
                End::Complete | End::ClientGone => choice.break_off(FinishReason::Aborted, None),
            }
        }
    }

    /// Writes the Turn, then tells the client how it ended.
    async fn close(self, replies: &Replies, mut end: End, events: mpsc::Sender<ReplyEvent>) {
        let Reply { opening, plan, hosted, mut choices, judgement, session, .. } = self;
        let refused = matches!(
            end,
            End::Failed(ServiceError::Invalid { .. } | ServiceError::Context(_) | ServiceError::Busy { .. })
        ) && choices.iter().all(|c| !c.started);
        let prompt_ids = choices.first_mut().map(|c| std::mem::take(&mut c.prompt_ids)).unwrap_or_default();
        let generations: Vec<_> = choices.into_iter().map(|c| c.generation).collect();
        let usage = total_usage(&generations);
        // A request that the engine refused unread is no reply, and leaves no Turn.
        if !refused {
            meters::reply_finished(&usage, &generations.first().map(|g| g.timings).unwrap_or_default());
            let mut turn = opening.turn(plan, &hosted, prompt_ids, generations.clone());
            turn.verdict = judgement.as_ref().and_then(Judgement::verdict);
            turn.judgement = judgement;
            // A reply that broke off leaves its session where it was.
            let session = session.as_ref().filter(|_| matches!(end, End::Complete));
            let moved = session.map(|held| held.at(turn.id.clone(), replies.clock.now_ms()));
            let in_session = moved.is_some();
            if !keep(replies, turn, moved).await && in_session {
                let message = "the turn log is not writing: the reply is told, but the session stays where it was";
                end = End::Failed(unavailable(message, 10));
            }
        }
        // Whoever has heard the end may go on at once.
        drop(session);
        let last = match end {
            End::Complete => ReplyEvent::Done { usage, generations },
            End::Failed(error) => ReplyEvent::Failed(error),
            End::ClientGone => return,
        };
        let _ = events.send_timeout(last, replies.config.get().client_stall_timeout).await;
    }
}

/// Appends a Turn, of an aborted reply with no less patience than of any other, and moves its session. Memory may be
/// down: the reply goes on, and the loss is counted. False: the turn is not kept.
async fn keep(replies: &Replies, turn: Turn, session: Option<Session>) -> bool {
    let (id, verdict, patience) = (turn.id.clone(), turn.verdict, *replies.append_timeout.get());
    let turn = Box::new(turn);
    let kept = match session {
        Some(session) => replies.memory.send_within(AppendTo(turn, session), patience).await,
        None => replies.memory.send_within(Append(turn), patience).await,
    };
    let lost = match kept {
        Ok(Ok(())) => {
            match verdict {
                Some(verdict) => replies.inbox.scored(verdict),
                None => replies.inbox.put(id),
            }
            return true;
        }
        Ok(Err(error)) => error.to_string(),
        Err(error) => error.to_string(),
    };
    tracing::error!(turn = id.0, error = lost, "turn not kept");
    meters::turn_lost();
    false
}
