//! From texts to a table of a given size. It counts every n-gram, then keeps those that say most beyond their own
//! suffix, per byte, until the size is reached. The same texts give the same table.

use std::collections::HashMap;

use super::blend::ORDER_TRUST;
use super::draft::Draft;
use super::format::EngramError;
use super::key::{CONTEXT_TOKENS, Key, ORDER_MAX, ORDER_MIN, key};

/// What is kept of a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CountRules {
    /// Occurrences that a context must have, and documents that it must occur in.
    pub count_min: u32,
    pub documents_min: u32,
    /// Different continuations kept of one context.
    pub run_max: usize,
    /// Bytes of the finished file, about.
    pub bytes_max: usize,
}

impl Default for CountRules {
    fn default() -> Self {
        CountRules { count_min: 3, documents_min: 2, run_max: 4, bytes_max: 1 << 20 }
    }
}

/// Counters of the sketch that tells rare contexts before they cost memory.
const SKETCH_BITS: u32 = 25;

/// Token sequences of texts that an n-gram never crosses.
#[derive(Debug)]
pub struct Corpus {
    vocab: usize,
    documents: Vec<(Vec<u32>, u32)>,
    unigrams: Vec<u32>,
    tokens: usize,
}

/// A context with its continuations.
#[derive(Debug, Default)]
struct Counted {
    document: u32,
    at: u32,
    total: u32,
    documents: u32,
    last: u32,
    next: Vec<(u32, u32)>,
}

/// A context that may be kept, and what it is worth.
struct Candidate {
    context: Vec<u32>,
    source: u32,
    kept: Vec<(u32, u32)>,
    rest: u32,
    gain: f64,
}

impl Candidate {
    /// Bytes that it takes in a file: slot, filter, tokens, further entries.
    fn bytes(&self) -> usize {
        let entries = self.kept.len() + usize::from(self.rest > 0);
        20 + 3 + 2 * self.context.len() + if entries > 1 { 8 * entries } else { 0 }
    }
}

impl Corpus {
    pub fn new(vocab: usize) -> Corpus {
        Corpus { vocab, documents: Vec::new(), unigrams: vec![0; vocab], tokens: 0 }
    }

    /// Adds a document that belongs to a source of the draft.
    pub fn add(&mut self, tokens: Vec<u32>, source: u32) -> Result<(), EngramError> {
        for &id in &tokens {
            *self.unigrams.get_mut(id as usize).ok_or(EngramError::Token(id))? += 1;
        }
        self.tokens += tokens.len();
        self.documents.push((tokens, source));
        Ok(())
    }

    pub fn tokens(&self) -> usize {
        self.tokens
    }

    pub fn documents(&self) -> usize {
        self.documents.len()
    }

    /// Counts, chooses, and adds what was chosen to `draft`.
    pub fn count_into(&self, draft: &mut Draft, rules: &CountRules) -> Result<(), EngramError> {
        let mut candidates = Vec::new();
        let mut counted: Vec<HashMap<Key, Counted>> = Vec::new();
        for order in ORDER_MIN..=ORDER_MAX {
            let longest = self.count(order - 1, rules);
            candidates.extend(longest.values().filter_map(|c| self.judge(c, order - 1, &counted, rules)));
            // Judging needs the words before a pair, the pairs, and the next shorter contexts.
            if let Some(middle) = counted.get_mut(2..) {
                middle.iter_mut().for_each(|c| *c = HashMap::new());
            }
            counted.push(longest);
        }
        // Most gain a byte first; the tokens decide between equals, so that the order of a hash map never shows.
        candidates.sort_by(|a, b| {
            let worth = |c: &Candidate| c.gain / c.bytes() as f64;
            worth(b).total_cmp(&worth(a)).then_with(|| a.context.cmp(&b.context))
        });
        let mut bytes = 4096;
        for candidate in candidates {
            bytes += candidate.bytes();
            if bytes > rules.bytes_max {
                break;
            }
            for &(token, count) in &candidate.kept {
                draft.add(&candidate.context, token, clamp(count), candidate.source)?;
            }
            draft.add_rest(&candidate.context, clamp(candidate.rest), candidate.source);
        }
        Ok(())
    }

    /// Contexts of `length` tokens that occur often enough.
    fn count(&self, length: usize, rules: &CountRules) -> HashMap<Key, Counted> {
        let mut sketch = vec![0u8; 1 << SKETCH_BITS];
        let cell = |key: Key| (key.place >> (64 - SKETCH_BITS)) as usize;
        self.each(length, |_, _, context, _| {
            let cell = &mut sketch[cell(key(context))];
            *cell = cell.saturating_add(1);
        });
        let mut counted: HashMap<Key, Counted> = HashMap::new();
        let enough = rules.count_min.min(255) as u8;
        self.each(length, |document, at, context, token| {
            let key = key(context);
            if sketch[cell(key)] < enough {
                return;
            }
            let found =
                counted.entry(key).or_insert_with(|| Counted { document, at, last: u32::MAX, ..Counted::default() });
            found.total += 1;
            if found.last != document {
                found.last = document;
                found.documents += 1;
            }
            match found.next.iter_mut().find(|(id, _)| *id == token) {
                Some((_, count)) => *count += 1,
                None => found.next.push((token, 1)),
            }
        });
        counted.retain(|_, c| c.total >= rules.count_min);
        counted
    }

    fn each(&self, length: usize, mut take: impl FnMut(u32, u32, &[u32], u32)) {
        debug_assert!(length <= CONTEXT_TOKENS);
        for (document, (tokens, _)) in (0u32..).zip(&self.documents) {
            for at in length..tokens.len() {
                take(document, at as u32, &tokens[at - length..at], tokens[at]);
            }
        }
    }

    /// What a context is worth: nats that it gains over what a model can be expected to know (words, and from order 4
    /// on half of what pairs say), as far as a match of its order is trusted, less what the next shorter context gains already
    /// (relative-entropy pruning after Stolcke 1998). One occurrence is taken off each count: it may be chance.
    fn judge(
        &self,
        found: &Counted,
        length: usize,
        counted: &[HashMap<Key, Counted>],
        rules: &CountRules,
    ) -> Option<Candidate> {
        if found.documents < rules.documents_min {
            return None;
        }
        let (tokens, source) = &self.documents[found.document as usize];
        let context = tokens[found.at as usize - length..found.at as usize].to_vec();
        let mut next = found.next.clone();
        next.sort_unstable_by(|a, b| b.1.cmp(&a.1).then(a.0.cmp(&b.0)));
        let total = f64::from(found.total);
        next.retain(|&(_, count)| count >= 2 && f64::from(count) >= 0.05 * total);
        next.truncate(rules.run_max);
        let shorter = |tokens: usize, token: u32| {
            let known = counted.get(tokens.checked_sub(1)?)?.get(&key(&context[length - tokens..]))?;
            let count = known.next.iter().find(|(id, _)| *id == token).map_or(0, |(_, c)| *c);
            Some(f64::from(count.max(1)) / f64::from(known.total))
        };
        let word = |token: u32| f64::from(self.unigrams[token as usize].max(1)) / self.tokens.max(1) as f64;
        let trust = |length: usize| f64::from(ORDER_TRUST[length - 1]);
        let gain = next.iter().map(|&(token, count)| {
            let pair = if length > 2 { shorter(2, token) } else { None };
            let base = pair.map_or_else(|| word(token), |pair| (pair * word(token)).sqrt());
            let own = trust(length) * ((f64::from(count) - 0.75) / total / base).ln();
            let before = match shorter(length - 1, token) {
                Some(p) if length > 1 => trust(length - 1) * (p / base).ln().max(0.0),
                _ => 0.0,
            };
            (f64::from(count) - 1.0) * (own - before)
        });
        let gain: f64 = gain.sum();
        let kept: u32 = next.iter().map(|(_, c)| c).sum();
        (gain > 0.0).then(|| Candidate { context, source: *source, rest: found.total - kept, kept: next, gain })
    }

    /// Tokens of the vocabulary.
    pub fn vocab(&self) -> usize {
        self.vocab
    }
}

fn clamp(count: u32) -> u16 {
    count.min(u32::from(u16::MAX)) as u16
}
