//! What a pass reads: sequences of tokens, what each of them is worth as a target, and the parts that go side by side.

use std::ops::Range;

/// A part of a batch is as many of its sequences as have so many tokens together.
const PART_TOKENS: usize = 64;

/// Sequences of one step, one after another, and what each position should have said.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Batch {
    pub tokens: Vec<u32>,
    /// Rows of each sequence; together all of `tokens`.
    pub spans: Vec<Range<usize>>,
    /// Weight of each token as a target (of the row before it): 0 leaves it out, as for prompts.
    pub weights: Vec<f32>,
}

impl Batch {
    /// Adds a sequence whose tokens from `scored_from` on are targets, each of weight `weight`.
    pub fn push(&mut self, tokens: &[u32], scored_from: usize, weight: f32) {
        let start = self.tokens.len();
        self.tokens.extend_from_slice(tokens);
        self.weights.extend((0..tokens.len()).map(|i| if i >= scored_from.max(1) { weight } else { 0.0 }));
        self.spans.push(start..self.tokens.len());
    }

    /// Sum of the target weights.
    pub fn weight(&self) -> f64 {
        self.weights.iter().map(|w| f64::from(*w)).sum()
    }

    /// The batch in parts of whole sequences, with the place of the first one of each.
    pub(super) fn parts(&self) -> Vec<(usize, Batch)> {
        let mut parts: Vec<(usize, Batch)> = Vec::new();
        for (i, span) in self.spans.iter().enumerate() {
            if parts.last().is_none_or(|(_, part)| part.tokens.len() >= PART_TOKENS) {
                parts.push((i, Batch::default()));
            }
            let Some((_, part)) = parts.last_mut() else { break };
            let start = part.tokens.len();
            part.tokens.extend_from_slice(&self.tokens[span.clone()]);
            part.weights.extend_from_slice(&self.weights[span.clone()]);
            part.spans.push(start..part.tokens.len());
        }
        parts
    }

    /// Everything that is scored.
    pub(super) fn targets(&self) -> Vec<Target> {
        let scored = self.spans.iter().enumerate().flat_map(|(i, s)| s.clone().skip(1).map(move |t| (i, t)));
        scored
            .filter(|(_, t)| self.weights[*t] != 0.0)
            .map(|(sequence, t)| Target { row: t - 1, token: self.tokens[t], weight: self.weights[t], sequence })
            .collect()
    }
}

/// A token that is scored.
pub(super) struct Target {
    /// The row of logits that should say it.
    pub(super) row: usize,
    pub(super) token: u32,
    pub(super) weight: f32,
    pub(super) sequence: usize,
}
