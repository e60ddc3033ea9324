//! A table made of one request's own passages: it lives in the request and dies with it.

use std::collections::HashMap;

use super::key::{Key, ORDER_MIN, keys};

/// Tokens of all passages of a request together.
pub const TOKENS_MAX: usize = 32_768;
/// Passages of a request.
pub const PASSAGES_MAX: usize = 32;
/// Shortest n-gram taken from a passage: shorter contexts occur everywhere and say nothing of the passage.
const PASSAGE_ORDER_MIN: usize = 4;
/// Different continuations kept of one context.
const RUN_MAX: usize = 16;

/// N-gram counts of passages.
#[derive(Debug, Default)]
pub struct Dynamic {
    contexts: HashMap<Key, Vec<(u32, u16)>>,
}

impl Dynamic {
    /// Counts every n-gram of order 4 to 6 of the passages' tokens.
    pub fn of(passages: &[Vec<u32>]) -> Dynamic {
        let mut dynamic = Dynamic::default();
        for passage in passages {
            for at in 0..passage.len() {
                let (keys, count) = keys(&passage[..at]);
                for key in keys.iter().take(count).skip(PASSAGE_ORDER_MIN - ORDER_MIN) {
                    dynamic.add(*key, passage[at]);
                }
            }
        }
        dynamic
    }

    fn add(&mut self, key: Key, token: u32) {
        let run = self.contexts.entry(key).or_default();
        let room = run.len() < RUN_MAX;
        match run.iter_mut().find(|(id, _)| *id == token) {
            Some((_, count)) => *count = count.saturating_add(1),
            None if room => run.push((token, 1)),
            None => {}
        }
    }

    /// The continuations of a context.
    pub fn find(&self, key: Key) -> Option<&[(u32, u16)]> {
        self.contexts.get(&key).map(Vec::as_slice)
    }

    pub fn contexts(&self) -> usize {
        self.contexts.len()
    }
}
