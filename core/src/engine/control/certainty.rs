//! How certain the model is of what it thinks, and what follows from it. A thought that has become certain ends before
//! its budget. Words that would begin it again are forbidden meanwhile.
//!
//! Certainty C = 0.625·p + 0.375·(1 − H / ln V): p is the probability of the likeliest token, H the entropy of all V
//! tokens, both from the model's own logits at temperature 1, as means over the last [`WINDOW_TOKENS`] sampled tokens of
//! the thought. Ending a thought by a forced mark is the budget forcing of Muennighoff et al. 2025 ("s1: Simple
//! test-time scaling").

use std::collections::VecDeque;

use super::super::sampler;
use super::super::vocab::{Vocab, VocabError};
use crate::turn::{ThoughtEnd, ThoughtPolicy, ThoughtUse};

/// Tokens whose certainty counts.
const WINDOW_TOKENS: usize = 32;
const TOP_WEIGHT: f64 = 0.625;

/// Words that begin to think again, at the start of a sentence.
const RESTARTS: [&str; 8] = ["Wait", "But", "Hmm", "However", "Alternatively", "Actually", "Maybe", "Hold"];

/// What one row of logits says: the likeliest token's probability, and 1 − H / ln V.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Sureness {
    top: f64,
    order: f64,
}

impl Sureness {
    /// Of a row of logits; `None` where it holds no finite one.
    pub(super) fn of(logits: &[f32], weights: &mut Vec<f32>) -> Option<Sureness> {
        let (total, entropy) = sampler::entropy(logits, weights)?;
        let most = (logits.len().max(2) as f64).ln();
        // The likeliest token has the weight 1.
        Some(Sureness { top: 1.0 / total, order: 1.0 - (entropy / most).clamp(0.0, 1.0) })
    }
}

/// Watches the thought of one reply.
#[derive(Debug)]
pub(super) struct Watch {
    policy: ThoughtPolicy,
    window: VecDeque<Sureness>,
    weights: Vec<f32>,
    /// Sampled tokens of the thought.
    seen: u32,
    /// Certain tokens in a row, the last one included.
    certain: u32,
    certainty: f64,
    /// Tokens that begin one of [`RESTARTS`]; empty where nothing is suppressed.
    restarts: Vec<u32>,
    sentence_starts: bool,
    report: ThoughtUse,
}

impl Watch {
    pub(super) fn new(vocab: &dyn Vocab, policy: ThoughtPolicy) -> Result<Watch, VocabError> {
        let restarts = match policy.reflection_suppression {
            Some(_) => restarts(vocab)?,
            None => Vec::new(),
        };
        Ok(Watch {
            policy,
            window: VecDeque::with_capacity(WINDOW_TOKENS),
            weights: Vec::new(),
            seen: 0,
            certain: 0,
            certainty: 0.0,
            restarts,
            sentence_starts: false,
            report: ThoughtUse::default(),
        })
    }

    /// Takes the model's own row for the next token of the thought, and forbids in it what would begin the thought again.
    pub(super) fn saw(&mut self, logits: &mut [f32]) {
        if let Some(sureness) = Sureness::of(logits, &mut self.weights) {
            self.count(sureness);
        }
        let suppresses =
            self.policy.reflection_suppression.is_some_and(|s| self.certainty >= f64::from(s.certainty_min));
        if suppresses && self.sentence_starts && !self.restarts.is_empty() {
            for &id in &self.restarts {
                if let Some(logit) = logits.get_mut(id as usize) {
                    *logit = f32::NEG_INFINITY;
                }
            }
            self.report.suppressed = self.report.suppressed.saturating_add(1);
        }
    }

    fn count(&mut self, sureness: Sureness) {
        if self.window.len() == WINDOW_TOKENS {
            self.window.pop_front();
        }
        self.window.push_back(sureness);
        let mean = |of: fn(&Sureness) -> f64| self.window.iter().map(of).sum::<f64>() / self.window.len() as f64;
        self.certainty = TOP_WEIGHT * mean(|s| s.top) + (1.0 - TOP_WEIGHT) * mean(|s| s.order);
        self.seen = self.seen.saturating_add(1);
        let reached = self.policy.budget_forcing.is_some_and(|f| self.certainty >= f64::from(f.certainty_min));
        self.certain = if reached { self.certain.saturating_add(1) } else { 0 };
    }

    /// The thought is certain for long enough: it ends here.
    pub(super) fn ends(&self) -> bool {
        self.policy.budget_forcing.is_some_and(|f| self.certain >= f.tokens && self.seen >= f.tokens_min)
    }

    /// A token of the thought came; these are its bytes.
    pub(super) fn took(&mut self, bytes: &[u8]) {
        let last = bytes.iter().rfind(|b| !matches!(b, b' ' | b'\t' | b'\r'));
        if let Some(last) = last {
            self.sentence_starts = matches!(last, b'.' | b'!' | b'?' | b'\n');
        }
    }

    /// A thought begins: the one before it says nothing of it.
    pub(super) fn begin(&mut self) {
        self.window.clear();
        (self.seen, self.certain, self.certainty, self.sentence_starts) = (0, 0, 0.0, false);
    }

    /// A thought has ended, by whom.
    pub(super) fn ended(&mut self, by: ThoughtEnd) {
        (self.report.ended, self.report.certainty) = (Some(by), self.certainty as f32);
    }

    pub(super) fn report(&self) -> ThoughtUse {
        self.report
    }
}

/// Single tokens of the vocabulary that begin a word of [`RESTARTS`], with a blank before it or without: the word itself,
/// or its first piece if that is at least four letters long.
fn restarts(vocab: &dyn Vocab) -> Result<Vec<u32>, VocabError> {
    let mut found = Vec::new();
    for word in RESTARTS {
        for text in [word.to_owned(), format!(" {word}")] {
            let mut ids = Vec::new();
            vocab.encode_further(&text, &mut ids)?;
            let Some(&first) = ids.first() else { continue };
            if ids.len() == 1 || vocab.bytes(first).trim_ascii().len() >= 4 {
                found.push(first);
            }
        }
    }
    found.sort_unstable();
    found.dedup();
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::turn::{BudgetForcing, ReflectionSuppression};

    fn sureness(logits: &[f32]) -> Sureness {
        Sureness::of(logits, &mut Vec::new()).unwrap()
    }

    /// Values worked out by hand: of equal logits nothing is sure, of one alone everything.
    #[test]
    fn a_row_says_how_sure_it_is() {
        let equal = sureness(&[0.5; 4]);
        assert!((equal.top - 0.25).abs() < 1e-6 && equal.order.abs() < 1e-6, "{equal:?}");
        let alone = sureness(&[3.0, f32::NEG_INFINITY, f32::NEG_INFINITY, f32::NEG_INFINITY]);
        assert_eq!((alone.top, alone.order), (1.0, 1.0));
        // p = 3/4, 1/4: H = 0.5623351, ln 2 = 0.6931472.
        let two = sureness(&[3f32.ln(), 0.0]);
        assert!((two.top - 0.75).abs() < 1e-6 && (two.order - (1.0 - 0.562_335_1 / 2f64.ln())).abs() < 1e-6, "{two:?}");
        assert_eq!(Sureness::of(&[f32::NEG_INFINITY; 2], &mut Vec::new()), None);
    }

    fn watch(policy: ThoughtPolicy) -> Watch {
        Watch {
            policy,
            window: VecDeque::new(),
            weights: Vec::new(),
            seen: 0,
            certain: 0,
            certainty: 0.0,
            restarts: vec![1],
            sentence_starts: false,
            report: ThoughtUse::default(),
        }
    }

    #[test]
    fn a_thought_ends_once_it_was_certain_for_long_enough_and_not_before_the_minimum() {
        let forcing = |certainty_min, tokens, tokens_min| {
            let budget_forcing = Some(BudgetForcing { certainty_min, tokens, tokens_min });
            ThoughtPolicy { budget_forcing, reflection_suppression: None }
        };
        let sure = || [3.0, f32::NEG_INFINITY];
        let unsure = || [0.0, 0.0];
        // Unsure tokens before the sure ones, and the token after which the thought ends.
        // C of n unsure (0.3125 each: p = 1/2, order 0) and m sure tokens (1) is (0.3125 n + m) / (n + m).
        for (policy, unsure_tokens, ends_at) in [
            (forcing(0.9, 2, 0), 0, 2),
            (forcing(0.9, 2, 5), 0, 5),
            // (0.3125 + m) / (1 + m) ≥ 0.9 from m = 6 (0.9018) on, which is the first of three.
            (forcing(0.9, 3, 0), 1, 1 + 8),
            (forcing(1.0, 1, 0), 1, 33),
        ] {
            let mut watch = watch(policy);
            let rows = (0..40).map(|n| if n < unsure_tokens { unsure() } else { sure() });
            let end = rows.into_iter().position(|mut row| {
                watch.saw(&mut row);
                watch.ends()
            });
            assert_eq!(end.map(|n| n + 1), Some(ends_at), "{policy:?} after {unsure_tokens}");
        }
    }

    #[test]
    fn words_that_begin_again_are_forbidden_at_a_sentences_start_while_the_thought_is_certain() {
        let policy = ThoughtPolicy {
            budget_forcing: None,
            reflection_suppression: Some(ReflectionSuppression { certainty_min: 0.9 }),
        };
        let row = |watch: &mut Watch, sure: bool| {
            let mut row = if sure { [9.0, -30.0, -30.0] } else { [0.0, 0.0, 0.0] };
            watch.saw(&mut row);
            row[1] == f32::NEG_INFINITY
        };
        let mut watch = watch(policy);
        assert!(!row(&mut watch, true), "no sentence has ended");
        watch.took(b"42. ");
        assert!(row(&mut watch, true));
        watch.took(b" So");
        assert!(!row(&mut watch, true), "within a sentence");
        watch.took(b"\n");
        // C of three sure tokens and an unsure one is (3 + 0.625 / 3) / 4 = 0.80.
        assert!(!row(&mut watch, false), "no longer certain");
        assert_eq!(watch.report().suppressed, 1);
    }
}
