//! The thinking budget: after so many tokens of thought, the tokens that close it are forced.

use std::collections::VecDeque;

use super::super::thought::ThoughtMarks;
use super::super::vocab::{Vocab, VocabError};
use super::harmony::Harmony;
use super::spelled::Spelled;
use crate::turn::Thinking;

/// A quarter of the reply, and at most this, is kept for the answer however large the budget is.
pub(super) const ANSWER_ROOM_TOKENS_MAX: u32 = 256;

#[derive(Debug, Default)]
pub(super) struct ThinkingBudget {
    /// Tokens of thought allowed; `None`: as many as the reply.
    limit: Option<u32>,
    spent: u32,
    /// The thought ends before its budget is spent.
    early: bool,
    /// `"\n"`, which ends the last line of a thought.
    line: Vec<u32>,
    /// The closing mark and the empty line after it; where replies come in channels, up to the answer.
    close: Vec<u32>,
    /// What must come next.
    queue: VecDeque<u32>,
}

impl ThinkingBudget {
    pub(super) fn new(
        vocab: &dyn Vocab,
        marks: Option<ThoughtMarks>,
        thinking: Thinking,
        max_tokens: u32,
    ) -> Result<ThinkingBudget, VocabError> {
        let mut line = Vec::new();
        let close = match (marks, Harmony::close(vocab)?) {
            (Some(marks), _) => {
                let mut close = vec![marks.close];
                vocab.encode_further("\n", &mut line)?;
                vocab.encode_further("\n\n", &mut close)?;
                close
            }
            (None, Some(close)) => close,
            (None, None) => {
                let Some(spelled) = Spelled::of(vocab) else { return Ok(ThinkingBudget::default()) };
                let mut close = Vec::new();
                vocab.encode_further("\n", &mut line)?;
                vocab.encode_further(&format!("{}\n\n", spelled.close()), &mut close)?;
                close
            }
        };
        let limit = match thinking {
            Thinking::Template => None,
            Thinking::Off => Some(0),
            Thinking::On { budget_tokens } => {
                let kept = (max_tokens / 4).min(ANSWER_ROOM_TOKENS_MAX) + (line.len() + close.len()) as u32;
                Some(budget_tokens.min(max_tokens.saturating_sub(kept)))
            }
        };
        Ok(ThinkingBudget { limit, spent: 0, early: false, line, close, queue: VecDeque::new() })
    }

    /// The token that must come next instead of a sampled one.
    pub(super) fn forced(&self) -> Option<u32> {
        self.queue.front().copied()
    }

    pub(super) fn may_think(&self) -> bool {
        self.limit != Some(0)
    }

    /// A token came. Returns whether it was the forced one; another one drops what was queued.
    pub(super) fn took(&mut self, id: u32) -> bool {
        let forced = self.queue.front() == Some(&id);
        match forced {
            true => drop(self.queue.pop_front()),
            false => self.queue.clear(),
        }
        forced
    }

    /// One more token of thought.
    pub(super) fn spend(&mut self) {
        self.spent = self.spent.saturating_add(1);
    }

    pub(super) fn spent(&self) -> u32 {
        self.spent
    }

    /// The thought is to end where it can, whatever is left of its budget.
    pub(super) fn end_early(&mut self) {
        self.early = true;
    }

    /// The thought has ended. → whether early; the next one has its own end.
    pub(super) fn ended_early(&mut self) -> bool {
        std::mem::take(&mut self.early)
    }

    /// Called while a thought is open and no character is unfinished: queues its end once the budget is
    /// spent. `at_line_start`: the thought has text and ends with a newline.
    pub(super) fn enforce(&mut self, at_line_start: bool) {
        let spent = self.limit.is_some_and(|limit| self.spent >= limit);
        if self.queue.is_empty() && (spent || self.early) {
            let line = if at_line_start { &[][..] } else { &self.line };
            self.queue.extend(line.iter().chain(&self.close));
        }
    }
}
