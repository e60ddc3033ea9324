//! The index of verified exchanges: who asked what, what the verified answer was, and the question's vector. Made
//! anew from the turn log each time, so that what was forgotten is not in it; written aside and renamed.
//!
//! The file `examples.idx`, version 1, numbers little-endian: `EXIX`, version u32, SHA-256 of all that follows (32
//! bytes). Then fingerprint of the embedder (32), width u32, count u32, bytes of the JSON u64. Then the scales
//! (f32 each), the vectors (width bytes each), and the examples as one JSON array.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::nearest::{Code, nearest};
use super::{EmbedError, show};
use crate::service::TurnFilter;
use crate::store::files::write_durable;
use crate::turn::Retrieve;

pub const FILE: &str = "examples.idx";
const MAGIC: [u8; 4] = *b"EXIX";
const VERSION: u32 = 1;
const HEADER_BYTES: usize = 88;
const FILE_BYTES_MAX: u64 = 512 << 20;
/// Exchanges of an index; the newest stay.
pub const EXAMPLES_MAX: usize = 100_000;
/// Longest question and answer that are worth showing, bytes each.
pub const TEXT_BYTES_MAX: usize = 2_000;
/// Principals who must have got the same answer to the same question before it is shown to others.
const PRINCIPALS_MIN: usize = 2;
/// Examples of one reply, and their tokens.
pub const EXAMPLES_PER_REPLY_MAX: usize = 8;
pub const EXAMPLE_TOKENS_MAX: u32 = 8_192;

/// A verified exchange.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Example {
    pub turn: String,
    pub conversation: String,
    pub principal: String,
    /// Unix time, milliseconds.
    pub time_ms: i64,
    pub question: String,
    pub answer: String,
    /// Tokens of both, as the embedding model counts them.
    pub tokens: u32,
    /// Several principals have it: everybody may be shown it.
    #[serde(default)]
    pub shared: bool,
}

impl Example {
    /// Whether forgetting by this filter forgets the exchange.
    fn passes(&self, filter: &TurnFilter) -> bool {
        filter.turn.as_ref().is_none_or(|id| id.0 == self.turn)
            && filter.principal.as_ref().is_none_or(|p| *p == self.principal)
            && filter.conversation.as_ref().is_none_or(|c| *c == self.conversation)
            && filter.since_ms.is_none_or(|since| self.time_ms >= since)
            && filter.after.as_ref().is_none_or(|after| self.turn > after.0)
    }
}

/// Examples with their vectors, immutable.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Index {
    width: usize,
    model: [u8; 32],
    scales: Vec<f32>,
    values: Vec<i8>,
    examples: Vec<Example>,
}

impl Index {
    /// `model`: the embedder's fingerprint. Newest first; what is too long or beyond the limit is left out, and of
    /// the same exchange of the same principal one is kept.
    pub fn new(width: usize, model: [u8; 32], found: Vec<(Example, Code)>) -> Index {
        let mut index = Index { width, model, ..Index::default() };
        let mut by: BTreeMap<(String, String), BTreeSet<String>> = BTreeMap::new();
        for (example, _) in &found {
            by.entry(plain(example)).or_default().insert(example.principal.clone());
        }
        let mut seen = BTreeSet::new();
        for (mut example, code) in found {
            let words = plain(&example);
            let long = example.question.len().max(example.answer.len()) > TEXT_BYTES_MAX;
            let empty = words.0.is_empty() || words.1.is_empty();
            if long || empty || code.values.len() != width || index.examples.len() >= EXAMPLES_MAX {
                continue;
            }
            if seen.insert((example.principal.clone(), words.clone())) {
                example.shared = by.get(&words).is_some_and(|who| who.len() >= PRINCIPALS_MIN);
                index.scales.push(code.scale);
                index.values.extend_from_slice(&code.values);
                index.examples.push(example);
            }
        }
        index
    }

    pub fn examples(&self) -> &[Example] {
        &self.examples
    }

    /// This index without what a filter forgets; `None`: there is nothing of it here.
    pub fn without(&self, filter: &TurnFilter) -> Option<Index> {
        let left = self.codes().filter(|(_, (example, _))| !example.passes(filter));
        let kept: Vec<(Example, Code)> = left.map(|(_, (example, code))| (example.clone(), code)).collect();
        // What only the forgotten made everybody's is no longer shown to everybody.
        (kept.len() < self.examples.len()).then(|| Index::new(self.width, self.model, kept))
    }

    /// The examples for a question of `principal`, likest first: the own ones, and those that everybody may be shown.
    /// The same exchange of two principals is shown once.
    /// They have no more than `bytes_max` bytes together.
    pub fn find(&self, query: &Code, principal: &str, wanted: &Retrieve, bytes_max: usize) -> Vec<(&Example, f32)> {
        let may = |row: usize| self.examples.get(row).is_some_and(|e| e.shared || e.principal == principal);
        if query.values.len() != self.width {
            return Vec::new();
        }
        let k = wanted.k.min(EXAMPLES_PER_REPLY_MAX);
        // Each shared exchange may stand there once for each principal, and long ones may not fit: look at some more.
        let found = nearest(&self.values, &self.scales, query, k * 4, wanted.min_score, may);
        let rows = found.into_iter().filter_map(|(row, score)| Some((self.examples.get(row)?, score)));
        let (mut seen, mut tokens, mut bytes) = (BTreeSet::new(), wanted.tokens_max, bytes_max);
        let mut fits = |example: &Example| {
            let left = (tokens.checked_sub(example.tokens), bytes.checked_sub(show::bytes(example)));
            let (Some(tokens_left), Some(bytes_left)) = left else { return false };
            (tokens, bytes) = (tokens_left, bytes_left);
            true
        };
        rows.filter(|(example, _)| seen.insert(plain(example)) && fits(example)).take(k).collect()
    }

    /// Fingerprint of the embedder that made it.
    pub fn model(&self) -> [u8; 32] {
        self.model
    }

    /// Every exchange with its question's vector, by turn.
    pub fn codes(&self) -> impl Iterator<Item = (&str, (&Example, Code))> {
        let rows = self.values.chunks_exact(self.width.max(1)).zip(&self.scales);
        let codes = rows.map(|(values, scale)| Code { values: values.to_vec(), scale: *scale });
        self.examples.iter().map(|example| example.turn.as_str()).zip(self.examples.iter().zip(codes))
    }

    /// Reads the index at `path`. `None`: there is none yet.
    pub fn load(path: &Path) -> Result<Option<Index>, EmbedError> {
        let failed = |source| EmbedError::Io { path: path.display().to_string(), source };
        let file = match File::open(path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(failed(error)),
        };
        let mut bytes = Vec::new();
        file.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes).map_err(failed)?;
        Index::parse(&bytes).map(Some)
    }

    /// Reads an index from the bytes of its file.
    pub fn parse(bytes: &[u8]) -> Result<Index, EmbedError> {
        let damaged = |what| Err(EmbedError::Damaged(what));
        if bytes.len() < HEADER_BYTES || bytes[..4] != MAGIC {
            return damaged("it is shorter than its header or begins otherwise");
        }
        let word = |at: usize| bytes.get(at..).and_then(|b| b.first_chunk()).map_or(0, |b| u32::from_le_bytes(*b));
        if word(4) != VERSION {
            return Err(EmbedError::Format(word(4)));
        }
        if bytes.len() as u64 > FILE_BYTES_MAX || bytes[8..40] != Sha256::digest(&bytes[40..])[..] {
            return damaged("its checksum does not fit its contents");
        }
        let (width, count) = (word(72) as usize, word(76) as usize);
        let json_bytes = u64::from(word(80)) | u64::from(word(84)) << 32;
        let vectors = width.checked_mul(count).and_then(|n| n.checked_add(4 * count));
        let whole = vectors.and_then(|n| n.checked_add(HEADER_BYTES)?.checked_add(usize::try_from(json_bytes).ok()?));
        if whole != Some(bytes.len()) || count > EXAMPLES_MAX {
            return damaged("its counts do not fit its length");
        }
        let (scales, rest) = bytes[HEADER_BYTES..].split_at(4 * count);
        let (values, json) = rest.split_at(width * count);
        let examples: Vec<Example> = serde_json::from_slice(json)
            .map_err(|_| EmbedError::Damaged("its examples are no JSON of the known form"))?;
        let scales: Vec<f32> = scales.as_chunks::<4>().0.iter().map(|raw| f32::from_le_bytes(*raw)).collect();
        if examples.len() != count || scales.iter().any(|s| !s.is_finite()) {
            return damaged("its counts do not fit its contents");
        }
        let mut model = [0; 32];
        model.copy_from_slice(&bytes[40..72]);
        Ok(Index { width, model, scales, values: values.iter().map(|v| *v as i8).collect(), examples })
    }

    /// The bytes of the file: the same for the same contents.
    pub fn bytes(&self) -> Result<Vec<u8>, EmbedError> {
        let json = serde_json::to_vec(&self.examples).map_err(|_| EmbedError::Damaged("its examples are no JSON"))?;
        let mut body = self.model.to_vec();
        body.extend_from_slice(&(self.width as u32).to_le_bytes());
        body.extend_from_slice(&(self.examples.len() as u32).to_le_bytes());
        body.extend_from_slice(&(json.len() as u64).to_le_bytes());
        body.extend(self.scales.iter().flat_map(|s| s.to_le_bytes()));
        body.extend(self.values.iter().map(|v| *v as u8));
        body.extend(json);
        let mut bytes = MAGIC.to_vec();
        bytes.extend_from_slice(&VERSION.to_le_bytes());
        bytes.extend_from_slice(&Sha256::digest(&body));
        bytes.extend(body);
        Ok(bytes)
    }

    /// Writes the index in place of the one before.
    pub fn save(&self, path: &Path) -> Result<(), EmbedError> {
        let failed = |source| EmbedError::Io { path: path.display().to_string(), source };
        write_durable(path, &self.bytes()?).map_err(failed)
    }
}

/// Question and answer as they are compared: without case and spaces.
fn plain(example: &Example) -> (String, String) {
    let plain = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ").to_lowercase();
    (plain(&example.question), plain(&example.answer))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::turn::TurnId;

    fn example(turn: &str, principal: &str, question: &str, answer: &str) -> Example {
        let [turn, principal, question, answer] = [turn, principal, question, answer].map(str::to_owned);
        Example {
            conversation: format!("of {turn}"),
            turn,
            principal,
            question,
            answer,
            tokens: 10,
            ..Example::default()
        }
    }

    fn find(index: &Index, direction: &[f32], who: &str, tokens_max: u32, bytes_max: usize) -> Vec<String> {
        let wanted = Retrieve { k: 5, min_score: 0.5, tokens_max };
        let found = index.find(&Code::of(direction), who, &wanted, bytes_max);
        found.into_iter().map(|(example, _)| example.answer.clone()).collect()
    }

    fn index() -> Index {
        let along = |x: f32, y: f32| Code::of(&[x, y]);
        let found = vec![
            (example("turn-1", "ada", "What is two and two?", "Four."), along(1.0, 0.0)),
            (example("turn-2", "bob", "what is two and  two?", "four."), along(1.0, -0.01)),
            (example("turn-3", "ada", "What is my secret?", "Plum."), along(0.9, 0.4)),
            (example("turn-4", "bob", "What is my secret?", "Pear."), along(0.9, 0.4)),
            (example("turn-5", "ada", "What is my secret?", "Plum."), along(0.9, 0.4)),
            (example("turn-6", "ada", &"long ".repeat(1_000), "x"), along(1.0, 0.0)),
            (example("turn-7", "ada", " ", "x"), along(1.0, 0.0)),
        ];
        Index::new(2, [7; 32], found)
    }

    #[test]
    fn everybody_finds_the_own_and_what_several_have() {
        let index = index();
        assert_eq!(index.examples().len(), 4, "the same, the long and the empty are left out");
        let found = |who: &str| find(&index, &[1.0, 0.2], who, 100, 1_000);
        assert_eq!(found("ada"), ["Four.", "Plum."]);
        assert!(found("bob").contains(&"Pear.".to_owned()) && !found("bob").contains(&"Plum.".to_owned()));
        assert_eq!(found("eve").len(), 1, "only what two have said");
        let none: [&str; 0] = [];
        assert_eq!(find(&index, &[0.0, 1.0], "eve", 100, 1_000), none);
        assert_eq!(find(&index, &[1.0, 0.0, 0.0], "ada", 100, 1_000), none, "another model's vector");
    }

    #[test]
    fn examples_keep_to_their_tokens_and_to_the_room() {
        let index = index();
        let found = |tokens_max, bytes_max| find(&index, &[1.0, 0.2], "ada", tokens_max, bytes_max);
        assert_eq!(found(20, 1_000), ["Four.", "Plum."]);
        assert_eq!(found(19, 1_000), ["Four."]);
        assert_eq!(found(100, 57), ["Four."]);
        // The likest does not fit, and the next one does.
        assert_eq!(found(100, 55), ["Plum."]);
        assert!(found(9, 1_000).is_empty() && found(100, 20).is_empty());
    }

    #[test]
    fn what_is_forgotten_is_gone_and_shared_with_nobody() {
        let by = |filter: TurnFilter| index().without(&filter);
        assert_eq!(by(TurnFilter { turn: Some(TurnId("turn-9".into())), ..TurnFilter::default() }), None);
        let left = by(TurnFilter { turn: Some(TurnId("turn-2".into())), ..TurnFilter::default() }).unwrap();
        assert_eq!(left.examples().len(), 3);
        assert_eq!(find(&left, &[1.0, 0.2], "eve", 100, 1_000), [""; 0], "one alone has it now");
        assert_eq!(find(&left, &[1.0, 0.2], "ada", 100, 1_000), ["Four.", "Plum."]);
        let left = by(TurnFilter { principal: Some("ada".into()), ..TurnFilter::default() }).unwrap();
        assert!(left.examples().iter().all(|example| example.principal == "bob"));
        let left = by(TurnFilter { conversation: Some("of turn-3".into()), ..TurnFilter::default() }).unwrap();
        assert!(left.examples().iter().all(|example| example.turn != "turn-3"));
        assert_eq!(by(TurnFilter::default()).unwrap().examples(), []);
    }

    #[test]
    fn a_file_comes_back_whole_or_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(FILE);
        assert_eq!(Index::load(&path).unwrap(), None);
        index().save(&path).unwrap();
        let again = Index::load(&path).unwrap().unwrap();
        assert_eq!((again.model(), again), ([7; 32], index()));
        let good = index().bytes().unwrap();
        for at in 0..good.len() {
            let mut bad = good.clone();
            bad[at] ^= 1;
            assert!(Index::parse(&bad).is_err(), "byte {at}");
            assert!(Index::parse(&good[..at]).is_err(), "cut at {at}");
        }
        // Counts that a forger sealed anew.
        for (at, value) in [(72usize, u32::MAX), (76, u32::MAX), (80, 9), (84, u32::MAX)] {
            let mut bad = good.clone();
            bad[at..at + 4].copy_from_slice(&value.to_le_bytes());
            let digest = Sha256::digest(&bad[40..]);
            bad[8..40].copy_from_slice(&digest);
            assert!(Index::parse(&bad).is_err(), "{at}");
        }
    }
}
