//! One admitted request: its sequence, what it still has to feed, how it samples and what it has said.

use std::collections::VecDeque;
use std::time::Instant;

use super::backend::{AdapterId, BackendError, Chunk, Largest, Rows, Saved, SeqId};
use super::batch::{CUT_TOKENS, Demand, Share, Wants};
use super::control::engram::Engram;
use super::control::{Advance, Finish, ReplyControl};
use super::grammar::{Constraint, GrammarError};
use super::prefix::Scope;
use super::protocol::{Event, FailureKind, PromptToken, RequestId, TokenEvent, TokenLogprob};
use super::sampler::{Choice, Sampler, SamplerError};
use super::vocab::Vocab;
use crate::turn::{FinishReason, Timings, Usage};

/// A request whose prompt is tokenised and whose policies are checked, ready to be admitted.
pub struct Prepared {
    pub id: RequestId,
    pub ids: Vec<u32>,
    pub seed: u64,
    pub sampler: Sampler,
    pub control: ReplyControl,
    pub engram: Option<Engram>,
    /// Holds the answer to its form.
    pub constraint: Option<Constraint>,
    pub received: Instant,
    /// Revision of the adapter.
    pub adapter: Option<String>,
    pub background: bool,
    /// Who waits for it: sequences are shared out between keys.
    pub principal: String,
    /// Whose prompts' prefixes it may begin from, and may leave its own to.
    pub prefix_owner: Option<String>,
    /// How likely each token of the prompt was is told.
    pub prompt_logprobs: bool,
}

/// What a step gave for the next token.
pub(super) enum Row<'a> {
    Whole(&'a mut [f32]),
    /// The largest of its logits, and who gives all of them.
    Likely(&'a Largest, &'a mut dyn FnMut(&mut Vec<f32>) -> Result<(), BackendError>),
}

/// Why no token was chosen.
struct Unchosen(FailureKind, String);

impl From<SamplerError> for Unchosen {
    fn from(error: SamplerError) -> Unchosen {
        Unchosen(FailureKind::Internal, format!("sampling failed: {error}"))
    }
}

impl From<BackendError> for Unchosen {
    fn from(error: BackendError) -> Unchosen {
        Unchosen(FailureKind::Internal, format!("a row of logits could not be had: {error}"))
    }
}

/// Longest chunk of a reply that is fed again. Every backend computes so few tokens like one alone, so each token
/// gets the numbers it had when it was fed alone.
const REPLAY_TOKENS_MAX: usize = CUT_TOKENS / 2;
/// Tokens that a reply writes after it got a sequence again, before that may be taken away once more: so each comes to its
/// end, whoever else wants its place.
pub(super) const RESUMED_TOKENS_MIN: u32 = 64;
/// Longest chunk of a prompt whose every row is wanted, so that the rows of a large vocabulary stay some hundred MiB. A
/// multiple of where any backend cuts.
const SCORED_TOKENS_MAX: usize = 4 * CUT_TOKENS;

pub(super) struct Slot {
    pub(super) id: RequestId,
    /// `None` while it waits.
    pub(super) seq: Option<SeqId>,
    pub(super) adapter: Option<AdapterId>,
    pub(super) background: bool,
    pub(super) principal: String,
    /// Prompt and reply: what the sequence must hold before the next row.
    history: Vec<u32>,
    /// How much of it the sequence holds.
    held: usize,
    /// How much of it some sequence has held before: it is fed again after a suspension.
    replayed: usize,
    /// What its sequence held when it was taken away, where that was kept, and so many tokens.
    pub(super) kept: Option<(usize, Saved)>,
    prompt_tokens: usize,
    /// Where snapshots of its prompt are kept, if they are.
    scope: Option<Scope>,
    /// How much of its prompt such a snapshot held.
    cached: usize,
    /// Lengths at which one is to be taken, ascending, all of them before the prompt's end.
    marks: VecDeque<usize>,
    seed: u64,
    sampler: Sampler,
    control: ReplyControl,
    engram: Option<Engram>,
    constraint: Option<Constraint>,
    /// Tokens of the prompt whose likelihood was told, where it is to be.
    scored: Option<usize>,
    received: Instant,
    admitted: Option<Instant>,
    /// Tokens that were written when it got a sequence again.
    resumed: Option<u32>,
    first_row: Option<Instant>,
}

impl Slot {
    /// `adapter`: its handle, and the SHA-256 of its file.
    pub(super) fn new(job: Prepared, adapter: Option<(AdapterId, String)>) -> Slot {
        let (adapter, content) = adapter.unzip();
        // What nobody waits for pushes out nothing that somebody may wait for.
        let owner = job.prefix_owner.filter(|_| !job.background);
        Slot {
            scope: owner.map(|owner| Scope { owner, adapter: content }),
            cached: 0,
            marks: VecDeque::new(),
            id: job.id,
            seq: None,
            adapter,
            background: job.background,
            principal: job.principal,
            prompt_tokens: job.ids.len(),
            history: job.ids,
            held: 0,
            replayed: 0,
            kept: None,
            seed: job.seed,
            sampler: job.sampler,
            control: job.control,
            engram: job.engram,
            constraint: job.constraint,
            scored: job.prompt_logprobs.then_some(0),
            received: job.received,
            admitted: None,
            resumed: None,
            first_row: None,
        }
    }

    /// Where snapshots of its prompt are kept, and the prompt.
    pub(super) fn prefix(&self) -> Option<(&Scope, &[u32])> {
        self.scope.as_ref().map(|scope| (scope, &self.history[..self.prompt_tokens]))
    }

    /// Its sequence holds the first `held` tokens of the prompt by a snapshot; others are to be taken at `marks`.
    pub(super) fn resume(&mut self, held: usize, marks: Vec<usize>) {
        (self.held, self.marks) = (held, marks.into());
        if !self.began() {
            self.cached = held;
        }
    }

    /// Nothing more is kept of it where its owner, or everybody, is forgotten: it was asked before that.
    pub(super) fn forget(&mut self, owner: Option<&str>) {
        if self.scope.as_ref().is_some_and(|scope| owner.is_none_or(|owner| scope.owner == owner)) {
            (self.scope, self.marks) = (None, VecDeque::new());
        }
    }

    /// What is to be kept now, once: its sequence, where, and the tokens that it holds.
    pub(super) fn mark(&mut self) -> Option<(SeqId, &Scope, &[u32])> {
        self.marks.pop_front_if(|mark| *mark == self.held)?;
        Some((self.seq?, self.scope.as_ref()?, &self.history[..self.held]))
    }

    /// Its sequence holds again what was kept when it was taken away.
    pub(super) fn restored(&mut self, held: usize) {
        self.held = held;
    }

    /// Gives it a sequence, empty or with what was kept of its prompt; the event is told once.
    pub(super) fn admit(&mut self, seq: SeqId) -> Option<Event> {
        self.seq = Some(seq);
        if self.began() {
            self.resumed = Some(self.completion_tokens());
            return None;
        }
        self.admitted = Some(Instant::now());
        let prompt_ids = self.history.clone();
        let cached_tokens = self.cached as u32;
        let not_enforced = self.constraint.as_ref().map_or_else(Vec::new, |form| form.not_enforced().to_vec());
        Some(Event::Started { id: self.id, prompt_ids, cached_tokens, seed: self.seed, not_enforced })
    }

    /// It had a sequence, now or before.
    pub(super) fn began(&self) -> bool {
        self.admitted.is_some()
    }

    /// Its sequence may be taken away for another key's request.
    pub(super) fn may_give_way(&self) -> bool {
        self.resumed.is_none_or(|before| self.completion_tokens() >= before + RESUMED_TOKENS_MIN)
    }

    /// Takes its sequence away, which holds so many tokens; it goes on from the same one in another sequence.
    pub(super) fn suspend(&mut self) -> Option<(SeqId, usize)> {
        let held = std::mem::take(&mut self.held);
        self.replayed = self.replayed.max(held);
        self.seq.take().map(|seq| (seq, held))
    }

    /// `served`: when a prompt of its key was read last.
    pub(super) fn demand(&self, served: u64) -> Demand {
        let reply = self.held >= self.prompt_tokens;
        let end = match self.marks.front() {
            _ if reply => self.history.len(),
            Some(mark) => *mark,
            None if self.scored.is_some() => {
                self.prompt_tokens.min((self.held / SCORED_TOKENS_MAX + 1) * SCORED_TOKENS_MAX)
            }
            None => self.prompt_tokens,
        };
        let left = end - self.held;
        let pending = if reply { left.min(REPLAY_TOKENS_MAX) } else { left };
        let wants = match self.held + pending == self.history.len() {
            // Of a prompt that is read again everything is told.
            _ if !reply && self.scored.is_some_and(|told| told < self.prompt_tokens) => Wants::From(0),
            true => Wants::Last,
            false => Wants::None,
        };
        Demand {
            held: self.held,
            pending,
            decoding: reply && self.held >= self.replayed,
            background: self.background,
            lanes: 1,
            served,
            wants,
        }
    }

    /// Which row it needs of a step that gives it one, on a backend that finds the largest logits.
    pub(super) fn row(&self) -> Rows {
        match (self.sampler.needs_likeliest(), &self.constraint) {
            (Some(temperature), None) if !self.control.watches() => Rows::Likeliest { temperature },
            _ => Rows::Last,
        }
    }

    /// What it feeds in a step.
    pub(super) fn chunk(&self, share: &Share) -> Option<Chunk<'_>> {
        let tokens = &self.history[self.held..self.held + share.tokens];
        self.seq.map(|seq| Chunk { seq, tokens, rows: share.rows, hidden: false })
    }

    /// The step that fed `count` tokens succeeded.
    pub(super) fn advance(&mut self, count: usize) {
        self.held += count;
    }

    pub(super) fn prompt_tokens(&self) -> u32 {
        self.prompt_tokens as u32
    }

    pub(super) fn completion_tokens(&self) -> u32 {
        self.control.tokens()
    }

    /// Chooses the next token from a row of logits and appends what the client learns of it, tokens forced after it
    /// included. Returns true when the request has ended; its last event is then among `events`.
    pub(super) fn take_row(&mut self, row: Row<'_>, vocab: &dyn Vocab, events: &mut Vec<Event>) -> bool {
        self.first_row.get_or_insert_with(Instant::now);
        let mut sampled = None;
        if self.control.forced().is_none() {
            match self.choose(row) {
                Ok(choice) => sampled = Some(choice),
                Err(Unchosen(kind, message)) => {
                    events.push(self.failed(kind, message));
                    return true;
                }
            }
        }
        while let Some(id) = sampled.as_ref().map(|c| c.id).or_else(|| self.control.forced()) {
            let choice = sampled.take();
            if choice.is_none() {
                self.sampler.accept(id);
            }
            self.history.push(id);
            if let Some(engram) = &mut self.engram {
                engram.took(id);
            }
            let mut advance = self.control.push(vocab, id);
            let formed = self.follow(&mut advance, id, choice.is_none());
            events.push(token_event(self.id, id, &advance, choice, (vocab, self.scored.is_some())));
            if let Err(error) = formed {
                events.push(self.failed(FailureKind::Form, error.to_string()));
                return true;
            }
            if let Some(end) = advance.finish {
                events.push(self.finished(end));
                return true;
            }
        }
        false
    }

    /// Tells how likely the tokens of the prompt were that the rows of a step are about. The last of all rows says
    /// what comes next. Returns true when the request has ended.
    pub(super) fn take_prompt(
        &mut self,
        rows: &mut [f32],
        width: usize,
        vocab: &dyn Vocab,
        out: &mut Vec<Event>,
    ) -> bool {
        let start = self.held - rows.len() / width;
        let told = self.scored.unwrap_or_default();
        let named = |id: u32, logprob: Option<f32>, top: Vec<(u32, f32)>| PromptToken {
            id,
            text: vocab.name(id),
            bytes: vocab.bytes(id),
            logprob,
            top: top.into_iter().map(|(id, logprob)| described(vocab, id, logprob)).collect(),
        };
        let prompt = &self.history[..self.prompt_tokens];
        let mut tokens = Vec::new();
        if told == 0
            && let Some(&first) = prompt.first()
        {
            tokens.push(named(first, None, Vec::new()));
        }
        for (row, (at, &id)) in rows.chunks_exact(width).zip(prompt.iter().enumerate().skip(start + 1)) {
            if at >= told {
                let (logprob, top) = self.sampler.likelihood(row, id);
                tokens.push(named(id, logprob, top));
            }
        }
        self.scored = Some(told + tokens.len());
        if !tokens.is_empty() {
            out.push(Event::PromptRead { id: self.id, tokens });
        }
        let last = rows.len() - width;
        self.held == self.prompt_tokens && self.take_row(Row::Whole(&mut rows[last..]), vocab, out)
    }

    /// Tells the answer's form of a token; the reply ends where the form is complete.
    fn follow(&mut self, advance: &mut Advance, id: u32, forced: bool) -> Result<(), GrammarError> {
        let Some(constraint) = &mut self.constraint else { return Ok(()) };
        constraint.took(advance.channel, id, forced)?;
        if constraint.complete() {
            match &mut advance.finish {
                Some(end) => end.reason = FinishReason::Stop,
                None => advance.finish = Some(self.control.finish(FinishReason::Stop)),
            }
        }
        Ok(())
    }

    /// Samples from what the answer's form leaves of the model's row, with what tables propose mixed in while an answer
    /// is written.
    fn choose(&mut self, row: Row<'_>) -> Result<Choice, Unchosen> {
        let channel = self.control.channel();
        let proposal = self.engram.as_mut().and_then(|engram| engram.propose(channel));
        let mut fetched = Vec::new();
        let row = match row {
            Row::Whole(row) => row,
            Row::Likely(largest, whole) if proposal.is_none() && !self.control.watches() => {
                return self.sampler.sample_likely(largest, |row| Ok(whole(row)?));
            }
            Row::Likely(_, whole) => {
                whole(&mut fetched)?;
                &mut fetched
            }
        };
        self.control.saw(row);
        if let Some(constraint) = &mut self.constraint {
            constraint.mask(channel, row).map_err(|e| Unchosen(FailureKind::Form, e.to_string()))?;
        }
        let choice = self.sampler.sample_with(row, proposal.as_ref().map(|(p, lambda)| (p, *lambda)))?;
        if let (Some(engram), Some((mixed, changed))) = (&mut self.engram, choice.mixed) {
            engram.mixed(mixed, changed);
        }
        Ok(choice)
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
        let admitted = self.admitted.unwrap_or(now);
        let first_row = self.first_row.unwrap_or(now);
        let ms = |from: Instant, to: Instant| to.duration_since(from).as_secs_f64() * 1e3;
        let timings = Timings {
            queued_ms: ms(self.received, admitted),
            prefill_ms: ms(admitted, first_row),
            decode_ms: ms(first_row, now),
        };
        let usage = Usage {
            prompt_tokens: self.prompt_tokens as u32,
            cached_tokens: self.cached as u32,
            completion_tokens: self.control.tokens(),
            thinking_tokens: self.control.thinking_tokens(),
        };
        let Finish { reason, text, stop } = end;
        let engram = self.engram.as_ref().map(|e| Box::new(e.report()));
        let thought = self.control.thought();
        Event::Finished { id: self.id, reason, text, stop, usage, timings, engram, thought }
    }
}

fn described(vocab: &dyn Vocab, id: u32, logprob: f32) -> TokenLogprob {
    TokenLogprob { id, text: vocab.name(id), bytes: vocab.bytes(id), logprob }
}

/// `whole`: every token counts, as where those of the prompt are told.
fn token_event(
    id: RequestId,
    token: u32,
    advance: &Advance,
    choice: Option<Choice>,
    (vocab, whole): (&dyn Vocab, bool),
) -> Event {
    let describe = |id: u32, logprob: f32| described(vocab, id, logprob);
    // The token that ends a reply is no part of its content, and OpenAI's clients expect no logprob for it.
    let content = choice.filter(|_| whole || !vocab.ends().contains(&token));
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
