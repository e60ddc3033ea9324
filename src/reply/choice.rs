//! One choice of a reply while it is generated: what the engine said of it, kept for the Turn and turned into
//! what the client sees.

use crate::engine::protocol::{Channel, TokenEvent};
use crate::service::{Logprob, ReplyEvent};
use crate::turn::{FinishReason, Generation, Timings, Usage};

/// A choice under way.
pub(super) struct Choice {
    pub(super) generation: Generation,
    pub(super) prompt_ids: Vec<u32>,
    pub(super) started: bool,
    pub(super) finished: bool,
    channel: Channel,
    logprobs: bool,
}

impl Choice {
    pub(super) fn new(index: u32, seed: u64, logprobs: bool) -> Self {
        Choice {
            generation: Generation {
                index,
                content: String::new(),
                thinking: String::new(),
                tool_calls: Vec::new(),
                thinking_ids: Vec::new(),
                reply_ids: Vec::new(),
                seed,
                // Until the engine says otherwise.
                finish_reason: FinishReason::Aborted,
                usage: Usage::default(),
                timings: Timings::default(),
                error: None,
            },
            prompt_ids: Vec::new(),
            started: false,
            finished: false,
            channel: Channel::Answer,
            logprobs,
        }
    }

    pub(super) fn start(&mut self, prompt_ids: Vec<u32>, cached_tokens: u32, seed: u64) {
        self.started = true;
        self.generation.usage.prompt_tokens = prompt_ids.len() as u32;
        self.generation.usage.cached_tokens = cached_tokens;
        self.generation.seed = seed;
        self.prompt_ids = prompt_ids;
    }

    pub(super) fn token(&mut self, token: TokenEvent, out: &mut Vec<ReplyEvent>) {
        self.channel = token.channel;
        let usage = &mut self.generation.usage;
        usage.completion_tokens += 1;
        match token.channel {
            Channel::Thinking => {
                usage.thinking_tokens += 1;
                self.generation.thinking_ids.push(token.token);
            }
            Channel::Answer => self.generation.reply_ids.push(token.token),
        }
        let logprobs = match token.logprob {
            Some(chosen) if self.logprobs => vec![Logprob { chosen, top: token.top }],
            _ => Vec::new(),
        };
        self.text(token.channel, token.text, logprobs, out);
    }

    fn text(&mut self, channel: Channel, text: String, logprobs: Vec<Logprob>, out: &mut Vec<ReplyEvent>) {
        match channel {
            Channel::Thinking => self.generation.thinking.push_str(&text),
            Channel::Answer => self.generation.content.push_str(&text),
        }
        if !text.is_empty() || !logprobs.is_empty() {
            out.push(ReplyEvent::Delta { choice: self.generation.index, channel, text, logprobs });
        }
    }

    /// The engine's last word on this choice; `rest` is text it had held back.
    pub(super) fn finish(
        &mut self,
        reason: FinishReason,
        rest: String,
        usage: Usage,
        timings: Timings,
        out: &mut Vec<ReplyEvent>,
    ) {
        self.text(self.channel, rest, Vec::new(), out);
        self.finished = true;
        self.generation.usage = usage;
        self.generation.timings = timings;
        self.generation.finish_reason = reason;
        out.push(ReplyEvent::ChoiceFinished {
            choice: self.generation.index,
            reason,
            tool_calls: self.generation.tool_calls.clone(),
        });
    }

    /// Nothing more will come of it.
    pub(super) fn break_off(&mut self, reason: FinishReason, error: Option<&str>) {
        if !self.finished {
            self.finished = true;
            self.generation.finish_reason = reason;
            self.generation.error = error.map(str::to_owned);
        }
    }
}
