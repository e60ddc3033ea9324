//! From verified answers to tables, with the rules that keep one person's words, and one person's poison, from the
//! others: what a principal alone has said goes into a table that serves that principal alone; the shared table takes
//! only long n-grams that several principals have said independently.

use std::collections::{BTreeMap, BTreeSet};

use sha2::{Digest, Sha256};

use super::draft::Draft;
use super::format::{EngramError, Source};

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

/// Lowest verdict that is learned from.
pub const VERDICT_MIN: u8 = 4;
/// Tokens of one record that are learned from.
pub const RECORD_TOKENS_MAX: usize = 512;
/// Records of one principal in one writing.
pub const RECORDS_MAX: usize = 1_000;
/// Shortest n-gram of a principal's own table.
const OWN_ORDER_MIN: usize = 4;
/// For each length of n-gram, how many principals must have said it before everybody is told.
const PRINCIPALS_MIN: [(usize, usize); 3] = [(4, 3), (5, 2), (6, 2)];

/// Tables to be written.
#[derive(Debug)]
pub struct Learned {
    pub shared: Draft,
    pub own: BTreeMap<String, Draft>,
    /// Records that were not taken: verdict too low, or more than one principal may add.
    pub left_out: usize,
}

/// Learns from records, on top of nothing: the caller merges with what was there.
pub fn learn(records: &[Record], fingerprint: [u8; 32], vocab: u32) -> Result<Learned, EngramError> {
    let empty = || Draft::new(fingerprint, vocab);
    let mut learned = Learned { shared: empty()?, own: BTreeMap::new(), left_out: 0 };
    let mut said: BTreeMap<(&[u32], u32), BTreeSet<&str>> = BTreeMap::new();
    let mut taken: BTreeMap<&str, usize> = BTreeMap::new();
    let mut kept = Vec::new();
    for record in records {
        let count = taken.entry(&record.principal).or_default();
        if !(VERDICT_MIN..=5).contains(&record.verdict) || *count >= RECORDS_MAX || record.principal.is_empty() {
            learned.left_out += 1;
            continue;
        }
        *count += 1;
        for (context, token) in n_grams(record) {
            said.entry((context, token)).or_default().insert(&record.principal);
        }
        kept.push(record);
    }
    for record in kept {
        let source = Source {
            principal: record.principal.clone(),
            origin: record.origin.clone(),
            // 0 would mean a curated text.
            time_s: record.time_s.max(1),
            verdict: record.verdict,
            halved: false,
        };
        let own = match learned.own.entry(record.principal.clone()) {
            std::collections::btree_map::Entry::Occupied(draft) => draft.into_mut(),
            std::collections::btree_map::Entry::Vacant(place) => place.insert(empty()?),
        };
        let own_source = own.source(source.clone())?;
        let shared_source = learned.shared.source(source)?;
        for (context, token) in n_grams(record) {
            own.add(context, token, 1, own_source)?;
            let by = said.get(&(context, token)).map_or(0, BTreeSet::len);
            if by >= principals_min(context.len() + 1) {
                learned.shared.add(context, token, 1, shared_source)?;
            }
        }
    }
    Ok(learned)
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
