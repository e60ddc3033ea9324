//! One admitted request: its sequence, what it still has to feed, how it samples and what it has said.

use std::time::Instant;

use super::backend::SeqId;
use super::batch::Demand;
use super::control::{Advance, Finish, ReplyControl};
use super::protocol::{Event, FailureKind, RequestId, TokenEvent, TokenLogprob};
use super::sampler::{Choice, Sampler};
use super::vocab::Vocab;
use crate::turn::{FinishReason, Timings, Usage};

/// A request whose prompt is tokenised and whose policies are checked, ready to be admitted.
pub struct Prepared {
    pub id: RequestId,
    pub ids: Vec<u32>,
    pub seed: u64,
    pub sampler: Sampler,
    pub control: ReplyControl,
    pub received: Instant,
}

pub(super) struct Slot {
    pub(super) id: RequestId,
    pub(super) seq: SeqId,
    /// Tokens to feed before the next row, of which `fed` are done.
    pending: Vec<u32>,
    fed: usize,
    held: usize,
    decoding: bool,
    prompt_tokens: u32,
    sampler: Sampler,
    control: ReplyControl,
    received: Instant,
    admitted: Instant,
    first_row: Option<Instant>,
}

impl Slot {
    pub(super) fn new(job: Prepared, seq: SeqId) -> Slot {
        Slot {
            id: job.id,
            seq,
            prompt_tokens: job.ids.len() as u32,
            pending: job.ids,
            fed: 0,
            held: 0,
            decoding: false,
            sampler: job.sampler,
            control: job.control,
            received: job.received,
            admitted: Instant::now(),
            first_row: None,
        }
    }

    pub(super) fn demand(&self) -> Demand {
        Demand { held: self.held, pending: self.pending.len() - self.fed, decoding: self.decoding }
    }

    /// The next `count` tokens to feed.
    pub(super) fn next(&self, count: usize) -> &[u32] {
        &self.pending[self.fed..self.fed + count]
    }

    /// The step that fed `count` tokens succeeded.
    pub(super) fn advance(&mut self, count: usize) {
        self.fed += count;
        self.held += count;
    }

    pub(super) fn prompt_tokens(&self) -> u32 {
        self.prompt_tokens
    }

    pub(super) fn completion_tokens(&self) -> u32 {
        self.control.tokens()
    }

    /// Chooses the next token from a row of logits and appends what the client learns of it, tokens forced after it
    /// included. Returns true when the request has ended; its last event is then among `events`.
    pub(super) fn take_row(&mut self, row: &mut [f32], vocab: &dyn Vocab, events: &mut Vec<Event>) -> bool {
        self.first_row.get_or_insert_with(Instant::now);
        self.decoding = true;
        self.pending.clear();
        self.fed = 0;
        let mut sampled = None;
        if self.control.forced().is_none() {
            match self.sampler.sample(row) {
                Ok(choice) => sampled = Some(choice),
                Err(error) => {
                    events.push(self.failed(FailureKind::Internal, format!("sampling failed: {error}")));
                    return true;
                }
            }
        }
        while let Some(id) = sampled.as_ref().map(|c| c.id).or_else(|| self.control.forced()) {
            let choice = sampled.take();
            if choice.is_none() {
                self.sampler.accept(id);
            }
            self.pending.push(id);
            let advance = self.control.push(vocab, id);
            events.push(token_event(self.id, id, &advance, choice, vocab));
            if let Some(end) = advance.finish {
                events.push(self.finished(end));
                return true;
            }
        }
        false
    }

    pub(super) fn aborted(&mut self) -> Event {
        let end = self.control.finish(FinishReason::Aborted);
        self.finished(end)
    }

    pub(super) fn failed(&self, kind: FailureKind, message: String) -> Event {
        Event::Failed { id: self.id, kind, message }
    }

    fn finished(&self, end: Finish) -> Event {
        let now = Instant::now();
        let first_row = self.first_row.unwrap_or(now);
        let ms = |from: Instant, to: Instant| to.duration_since(from).as_secs_f64() * 1e3;
        let timings = Timings {
            queued_ms: ms(self.received, self.admitted),
            prefill_ms: ms(self.admitted, first_row),
            decode_ms: ms(first_row, now),
        };
        let usage = Usage {
            prompt_tokens: self.prompt_tokens,
            cached_tokens: 0,
            completion_tokens: self.control.tokens(),
            thinking_tokens: self.control.thinking_tokens(),
        };
        let Finish { reason, text, stop } = end;
        Event::Finished { id: self.id, reason, text, stop, usage, timings }
    }
}

fn token_event(id: RequestId, token: u32, advance: &Advance, choice: Option<Choice>, vocab: &dyn Vocab) -> Event {
    let describe = |id: u32, logprob: f32| TokenLogprob { id, text: vocab.name(id), bytes: vocab.bytes(id), logprob };
    // The token that ends a reply is no part of its content, and OpenAI's clients expect no logprob for it.
    let content = choice.filter(|_| !vocab.ends().contains(&token));
    let (logprob, top) = content.map_or((None, Vec::new()), |c| (c.logprob, c.top));
    Event::Token(TokenEvent {
        id,
        token,
        channel: advance.channel,
        text: advance.text.clone(),
        forced: advance.forced,
        logprob: logprob.map(|p| describe(token, p)),
        top: top.into_iter().map(|(id, p)| describe(id, p)).collect(),
    })
}
