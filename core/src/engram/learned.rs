//! From verified answers to tables, with the rules that keep one person's words, and one person's poison, from the
//! others. The words of one principal alone go into a table that serves that principal alone. The shared table takes
//! only long n-grams that several principals have said independently.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry as Place;

use sha2::{Digest, Sha256};

use super::draft::Draft;
use super::format::{EngramError, Source};
use super::table::Table;

/// A verified answer.
#[derive(Clone, Debug, PartialEq)]
pub struct Record {
    pub tokens: Vec<u32>,
    pub principal: String,
    /// The turn.
    pub origin: String,
    /// 1 to 5; an answer without one is never a record.
    pub verdict: u8,
    /// Unix seconds.
    pub time_s: i64,
}

/// Name of the shared table. In a pipeline it also stands for the asking principal's own ([`own_name`]).
pub const NAME: &str = "learned";
/// Lowest verdict that is learned from: the judge holds it rather for right. It is never the only word on an answer.
pub const VERDICT_MIN: u8 = 3;
/// Tokens of one record that are learned from.
pub const RECORD_TOKENS_MAX: usize = 512;
/// Records of one principal in one writing, and their tokens.
pub const RECORDS_MAX: usize = 1_000;
pub const PRINCIPAL_TOKENS_MAX: usize = 65_536;
/// Tokens of one writing, so that it needs some 200 MB at most.
pub const TOKENS_MAX: usize = 524_288;
/// Principals with a table of their own: the shelf has room for the shipped ones and the owner's beside them.
pub const PRINCIPALS_MAX: usize = 32;
/// Shortest n-gram of a principal's own table.
const OWN_ORDER_MIN: usize = 4;
/// For each length of n-gram, how many principals must have said it before everybody is told.
const PRINCIPALS_MIN: [(usize, usize); 3] = [(4, 3), (5, 2), (6, 2)];

/// Each principal's own table, to be written.
#[derive(Debug, Default)]
pub struct Learned {
    pub own: BTreeMap<String, Draft>,
    /// Records that were not taken: verdict too low, or more than one principal, or all together, may add.
    pub left_out: usize,
}

/// Learns from records, the first ones first, on top of nothing: the caller merges with what was there.
pub fn learn(records: &[Record], fingerprint: [u8; 32], vocab: u32) -> Result<Learned, EngramError> {
    let mut learned = Learned::default();
    let mut taken: BTreeMap<&str, (usize, usize)> = BTreeMap::new();
    let mut all = 0;
    for record in records {
        let tokens = record.tokens.len().min(RECORD_TOKENS_MAX);
        let known = taken.len();
        let place = taken.entry(&record.principal);
        let full = matches!(place, Place::Vacant(_)) && known >= PRINCIPALS_MAX;
        let (count, own_tokens) = place.or_default();
        let verified = (VERDICT_MIN..=5).contains(&record.verdict) && !record.principal.is_empty();
        let room = *count < RECORDS_MAX && *own_tokens + tokens <= PRINCIPAL_TOKENS_MAX && all + tokens <= TOKENS_MAX;
        if full || !verified || !room {
            if *count == 0 {
                taken.remove(record.principal.as_str());
            }
            learned.left_out += 1;
            continue;
        }
        (*count, *own_tokens, all) = (*count + 1, *own_tokens + tokens, all + tokens);
        let own = match learned.own.entry(record.principal.clone()) {
            Place::Occupied(draft) => draft.into_mut(),
            Place::Vacant(place) => place.insert(Draft::new(fingerprint, vocab)?),
        };
        let source = own.source(Source {
            principal: record.principal.clone(),
            origin: record.origin.clone(),
            // 0 would mean a curated text.
            time_s: record.time_s.max(1),
            verdict: record.verdict,
            halved: false,
        })?;
        for (context, token) in n_grams(record) {
            own.add(context, token, 1, source)?;
        }
    }
    Ok(learned)
}

/// What may be told to everybody: of all the principals' own tables, what enough of them say.
pub fn shared<'a>(
    own: impl IntoIterator<Item = &'a Table>,
    fingerprint: [u8; 32],
    vocab: u32,
) -> Result<Draft, EngramError> {
    let mut shared = Draft::new(fingerprint, vocab)?;
    for table in own {
        shared.merge(table)?;
    }
    shared.keep_supported(principals_min);
    Ok(shared)
}

/// How many principals must have said an n-gram of this order before everybody is told.
pub fn principals_min(order: usize) -> usize {
    PRINCIPALS_MIN.iter().find(|(o, _)| *o == order).map_or(usize::MAX, |(_, n)| *n)
}

/// Contexts of a record with the token after each.
fn n_grams(record: &Record) -> impl Iterator<Item = (&[u32], u32)> {
    let tokens = &record.tokens[..record.tokens.len().min(RECORD_TOKENS_MAX)];
    (0..tokens.len()).flat_map(move |at| {
        (OWN_ORDER_MIN - 1..=super::key::CONTEXT_TOKENS)
            .filter(move |length| *length <= at)
            .map(move |length| (&tokens[at - length..at], tokens[at]))
    })
}

/// Name of a principal's own table: a file name, whatever the principal is called.
pub fn own_name(shared: &str, principal: &str) -> String {
    let digest = Sha256::digest(principal.as_bytes());
    let digits: String = digest.iter().take(6).map(|b| format!("{b:02x}")).collect();
    format!("{shared}-{digits}")
}
