//! Penalties on tokens that were seen before, on the logits, in the manner of llama.cpp and of OpenAI.
//!
//! - repetition, as llama.cpp: it covers the last `window` tokens of prompt and reply together. A positive
//!   logit is divided by the penalty, another multiplied, once whatever the count;
//! - frequency and presence, as OpenAI: the first times the token's count in the reply so far, plus the
//!   second if that is not 0. Thought and forced tokens are part of the reply; the prompt is not.

use std::collections::{BTreeMap, VecDeque};

use crate::turn::Sampling;

#[derive(Debug)]
pub(super) struct Penalties {
    repetition: f32,
    frequency: f32,
    presence: f32,
    /// Tokens back that `repetition` looks at; 0 = all.
    window: usize,
    /// The tokens inside the window, oldest first. Empty while `repetition` is off or the window is all.
    recent: VecDeque<u32>,
    /// Token → occurrences inside the window.
    seen: BTreeMap<u32, u32>,
    /// Token → occurrences in the reply.
    replied: BTreeMap<u32, u32>,
}

impl Penalties {
    pub(super) fn new(sampling: &Sampling, prompt: &[u32]) -> Penalties {
        let mut penalties = Penalties {
            repetition: sampling.repetition_penalty,
            frequency: sampling.frequency_penalty,
            presence: sampling.presence_penalty,
            window: sampling.penalty_window_tokens as usize,
            recent: VecDeque::new(),
            seen: BTreeMap::new(),
            replied: BTreeMap::new(),
        };
        let skip = if penalties.window == 0 { 0 } else { prompt.len().saturating_sub(penalties.window) };
        prompt[skip..].iter().for_each(|&id| penalties.look_back_on(id));
        penalties
    }

    /// Takes a token of the reply into account.
    pub(super) fn accept(&mut self, id: u32) {
        self.look_back_on(id);
        if self.frequency != 0.0 || self.presence != 0.0 {
            *self.replied.entry(id).or_default() += 1;
        }
    }

    fn look_back_on(&mut self, id: u32) {
        if self.repetition == 1.0 {
            return;
        }
        *self.seen.entry(id).or_default() += 1;
        if self.window == 0 {
            return;
        }
        self.recent.push_back(id);
        while self.recent.len() > self.window
            && let Some(old) = self.recent.pop_front()
            && let Some(count) = self.seen.get_mut(&old)
        {
            *count -= 1;
            if *count == 0 {
                self.seen.remove(&old);
            }
        }
    }

    pub(super) fn apply(&self, logits: &mut [f32]) {
        for &id in self.seen.keys() {
            if let Some(logit) = logits.get_mut(id as usize) {
                *logit = self.repeated(*logit);
            }
        }
        for (&id, &count) in &self.replied {
            if let Some(logit) = logits.get_mut(id as usize) {
                *logit -= self.counted(count);
            }
        }
    }

    /// The same for some tokens alone.
    pub(super) fn apply_to(&self, candidates: &mut [(u32, f32)]) {
        for (id, logit) in candidates {
            if self.seen.contains_key(id) {
                *logit = self.repeated(*logit);
            }
            if let Some(&count) = self.replied.get(id) {
                *logit -= self.counted(count);
            }
        }
    }

    fn repeated(&self, logit: f32) -> f32 {
        if logit > 0.0 { logit / self.repetition } else { logit * self.repetition }
    }

    fn counted(&self, count: u32) -> f32 {
        count as f32 * self.frequency + self.presence
    }

    /// No logit changes.
    pub(super) fn none(&self) -> bool {
        self.repetition == 1.0 && self.frequency == 0.0 && self.presence == 0.0
    }

    /// No logit rises.
    pub(super) fn only_lower(&self) -> bool {
        self.repetition >= 1.0 && self.frequency >= 0.0 && self.presence >= 0.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(repetition: f32, frequency: f32, presence: f32, window: u32) -> Sampling {
        Sampling {
            repetition_penalty: repetition,
            frequency_penalty: frequency,
            presence_penalty: presence,
            penalty_window_tokens: window,
            ..Sampling::default()
        }
    }

    fn applied(penalties: &Penalties) -> Vec<f32> {
        let mut logits = vec![2.0, -2.0, 1.0, 0.0];
        penalties.apply(&mut logits);
        logits
    }

    #[test]
    fn repetition_divides_positive_and_multiplies_negative_logits_once() {
        assert_eq!(applied(&Penalties::new(&with(2.0, 0.0, 0.0, 64), &[0, 0, 1])), [1.0, -4.0, 1.0, 0.0]);
    }

    #[test]
    fn repetition_forgets_what_left_the_window() {
        let mut penalties = Penalties::new(&with(2.0, 0.0, 0.0, 2), &[0, 1]);
        penalties.accept(2);
        assert_eq!(applied(&penalties), [2.0, -4.0, 0.5, 0.0]);
        penalties.accept(2);
        assert_eq!(applied(&penalties), [2.0, -2.0, 0.5, 0.0]);
    }

    #[test]
    fn window_zero_is_the_whole_context() {
        let prompt: Vec<u32> = [0].into_iter().chain(std::iter::repeat_n(3, 500)).collect();
        assert_eq!(applied(&Penalties::new(&with(2.0, 0.0, 0.0, 0), &prompt)), [1.0, -2.0, 1.0, 0.0]);
    }

    #[test]
    fn frequency_and_presence_count_the_reply_only() {
        let mut penalties = Penalties::new(&with(1.0, 0.5, 0.25, 1), &[0, 0, 0]);
        assert_eq!(applied(&penalties), [2.0, -2.0, 1.0, 0.0]);
        for id in [1, 1, 3] {
            penalties.accept(id);
        }
        assert_eq!(applied(&penalties), [2.0, -3.25, 1.0, -0.75]);
    }
}
