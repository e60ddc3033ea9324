//! One admitted request: its sequence, what it still has to feed, how it samples and what it has said.

use std::time::Instant;

use super::backend::SeqId;
use super::batch::Demand;
use super::control::ReplyControl;
use super::protocol::{Event, FailureKind, RequestId, TokenEvent, TokenLogprob};
use super::sampler::Sampler;
use super::vocab::Vocab;
use crate::turn::{FinishReason, Timings, Usage};

/// A request whose prompt is tokenised and whose policies are checked, ready to be admitted.
pub struct Prepared {
    pub id: RequestId,
    pub ids: Vec<u32>,
    pub seed: u64,
    pub max_tokens: u32,
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
    capacity: usize,
    decoding: bool,
    max_tokens: u32,
    sampler: Sampler,
    control: ReplyControl,
    usage: Usage,
    received: Instant,
    admitted: Instant,
    first_row: Option<Instant>,
}

impl Slot {
    /// `capacity`: positions that a sequence may hold.
    pub(super) fn new(job: Prepared, seq: SeqId, capacity: usize) -> Slot {
        Slot {
            id: job.id,
            seq,
            usage: Usage { prompt_tokens: job.ids.len() as u32, ..Usage::default() },
            pending: job.ids,
            fed: 0,
            held: 0,
            capacity,
            decoding: false,
            max_tokens: job.max_tokens,
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
        self.usage.prompt_tokens
    }

    pub(super) fn completion_tokens(&self) -> u32 {
        self.usage.completion_tokens
    }

    /// Chooses the next token from a row of logits and appends what the client learns of it.
    /// Returns true when the request has ended; its last event is then among `events`.
    pub(super) fn take_row(&mut self, row: &mut [f32], vocab: &dyn Vocab, events: &mut Vec<Event>) -> bool {
        self.first_row.get_or_insert_with(Instant::now);
        self.decoding = true;
        self.pending.clear();
        self.fed = 0;
        let choice = match self.sampler.sample(row) {
            Ok(choice) => choice,
            Err(error) => {
                events.push(self.failed(FailureKind::Internal, format!("sampling failed: {error}")));
                return true;
            }
        };
        let room = self.room();
        let verdict = self.control.take(choice.id, room, vocab);
        let describe = |id: u32, logprob: f32| TokenLogprob { id, text: vocab.name(id), bytes: vocab.bytes(id), logprob };
        for (index, piece) in verdict.pieces.into_iter().enumerate() {
            if piece.forced {
                self.sampler.accept(piece.token);
            }
            self.usage.completion_tokens += 1;
            if piece.thinking() {
                self.usage.thinking_tokens += 1;
            }
            let chosen = index == 0 && !piece.forced;
            events.push(Event::Token(TokenEvent {
                id: self.id,
                token: piece.token,
                channel: piece.channel,
                text: piece.text,
                forced: piece.forced,
                logprob: choice.logprob.filter(|_| chosen).map(|p| describe(choice.id, p)),
                top: if chosen { choice.top.iter().map(|&(id, p)| describe(id, p)).collect() } else { Vec::new() },
            }));
            self.pending.push(piece.token);
        }
        let end = verdict.end.or_else(|| (self.room() == 0).then(|| self.control.cut_off()));
        if let Some(end) = end {
            events.push(self.finished(end.reason, end.text, end.stop));
            return true;
        }
        false
    }

    /// Tokens that may still be generated: the request's own cap and what the context can hold. The last token
    /// generated need not be fed.
    fn room(&self) -> usize {
        let by_request = self.max_tokens.saturating_sub(self.usage.completion_tokens) as usize;
        let by_context = (self.capacity + 1).saturating_sub(self.held + self.pending.len());
        by_request.min(by_context)
    }

    pub(super) fn aborted(&mut self) -> Event {
        let tail = self.control.cut_off().text;
        self.finished(FinishReason::Aborted, tail, None)
    }

    pub(super) fn failed(&self, kind: FailureKind, message: String) -> Event {
        Event::Failed { id: self.id, kind, message }
    }

    fn finished(&self, reason: FinishReason, text: String, stop: Option<String>) -> Event {
        let now = Instant::now();
        let first_row = self.first_row.unwrap_or(now);
        let ms = |from: Instant, to: Instant| to.duration_since(from).as_secs_f64() * 1e3;
        let timings = Timings {
            queued_ms: ms(self.received, self.admitted),
            prefill_ms: ms(self.admitted, first_row),
            decode_ms: ms(first_row, now),
        };
        Event::Finished { id: self.id, reason, text, stop, usage: self.usage, timings }
    }
}
