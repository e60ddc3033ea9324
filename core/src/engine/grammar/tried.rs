//! Grammars tried before a reply begins. The library makes its automata while an answer is written, within limits, so a
//! grammar may compile and then be too large to follow. A few walks through one find that beforehand.

use llguidance::Matcher;
use llguidance::toktrie::{TokTrie, TokenId};
use serde_json::Value;

use super::GrammarError;
use super::compile::in_words;
use super::prepare::decimal;

/// Steps of a walk.
const STEPS_MAX: usize = 160;
/// Digits that the walks write of one number; the last walk writes what comes.
const WALKS: [Option<usize>; 4] = [Some(24), Some(5), Some(2), None];
/// Multiples below this have small automata.
const MULTIPLE_MIN: u64 = 1_000;

/// Follows a grammar whose schemas hold what makes automata large; an error where it cannot be followed.
pub(super) fn tried(matcher: &Matcher, schemas: &[&Value]) -> Result<(), GrammarError> {
    if schemas.iter().any(|schema| is_deep(schema)) { follow(matcher) } else { Ok(()) }
}

/// Follows a grammar on a few walks.
pub(super) fn follow(matcher: &Matcher) -> Result<(), GrammarError> {
    let failed = |cause: &str| {
        let words = in_words(cause);
        GrammarError::Heavy(format!("an answer could not be held to it while it is written: {words}"))
    };
    let words = matcher.tok_env().map_err(|e| failed(&e.to_string()))?;
    let sought = Sought::of(words.tok_trie());
    for (number, most) in WALKS.into_iter().enumerate() {
        let mut walk = Walk { random: number as u64 + 1, most, digits: 0 };
        let mut own = matcher.deep_clone();
        for _ in 0..STEPS_MAX {
            let mask = own.compute_mask().map_err(|e| failed(&e.to_string()))?;
            let Some(next) = walk.next(mask.as_slice(), words.tok_trie(), &sought) else { break };
            own.consume_token(next).map_err(|e| failed(&e.to_string()))?;
            if !own.stop_reason().is_ok() {
                return Err(failed(&own.stop_reason().to_string()));
            }
            if own.is_stopped() {
                break;
            }
        }
    }
    Ok(())
}

/// Whether a schema asks for large multiples, or for patterns that count.
pub(super) fn is_deep(schema: &Value) -> bool {
    match schema {
        Value::Array(list) => list.iter().any(is_deep),
        Value::Object(map) => map.iter().any(|(key, value)| match (key.as_str(), value) {
            ("multipleOf", Value::Number(step)) => decimal(step).is_none_or(|(step, _)| step >= MULTIPLE_MIN),
            ("pattern", Value::String(pattern)) => pattern.contains('{'),
            ("patternProperties", Value::Object(named)) => {
                named.iter().any(|(pattern, value)| pattern.contains('{') || is_deep(value))
            }
            (_, value) => is_deep(value),
        }),
        _ => false,
    }
}

/// Tokens that walks look for.
struct Sought {
    digits: Vec<TokenId>,
    quotes: Vec<TokenId>,
}

impl Sought {
    fn of(words: &TokTrie) -> Sought {
        let ids = 0..words.vocab_size() as TokenId;
        let digits = ids.clone().filter(|id| is_digits(words.token(*id))).collect();
        Sought { digits, quotes: ids.filter(|id| words.token(*id) == b"\"").collect() }
    }
}

fn is_digits(word: &[u8]) -> bool {
    !word.is_empty() && word.iter().all(u8::is_ascii_digit)
}

struct Walk {
    random: u64,
    most: Option<usize>,
    /// Of the number that is being written.
    digits: usize,
}

impl Walk {
    /// A token that is allowed: a digit where there may be more of them, else what ends a text, else any.
    fn next(&mut self, allowed: &[u32], words: &TokTrie, sought: &Sought) -> Option<TokenId> {
        let is_allowed = |id: &TokenId| allowed.get(*id as usize / 32).is_some_and(|bits| bits >> (id % 32) & 1 == 1);
        let more = self.most.is_some_and(|most| self.digits < most);
        let from = self.random();
        let one_of = |list: &[TokenId]| {
            let begin = from as usize % list.len().max(1);
            list[begin..].iter().chain(&list[..begin]).copied().find(is_allowed)
        };
        let digit = more.then(|| one_of(&sought.digits)).flatten();
        let next = digit.or_else(|| self.most.and_then(|_| one_of(&sought.quotes))).or_else(|| {
            let count = words.vocab_size() as u64;
            let ids = (0..count).map(|at| ((from + at) % count.max(1)) as TokenId);
            ids.filter(is_allowed).find(|id| !words.token(*id).is_empty())
        })?;
        let word = words.token(next);
        self.digits = if is_digits(word) { self.digits + word.len() } else { 0 };
        Some(next)
    }

    /// The same walks each time.
    fn random(&mut self) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random >> 1
    }
}
