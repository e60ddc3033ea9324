//! Joins all matching contexts into one distribution over the next token, by Witten–Bell back-off over the orders:
//! `p_n(w) = (c(w) + (D + r) · p_{n−1}(w)) / (T + D)`. T counts a context's continuations, D the different ones, r
//! those left out of the table (Chen & Goodman 1998, section 2.4).

use super::dynamic::Dynamic;
use super::key::{ORDER_MIN, ORDERS, keys};
use super::table::View;

/// The largest weight of tables, whatever a request asks for, and their weight by default.
pub const LAMBDA_MAX: f32 = 0.9;
pub const LAMBDA_DEFAULT: f32 = 0.1;
/// How far a match of each order is trusted, 2 to 6: a single word says little of the next.
pub const ORDER_TRUST: [f32; ORDERS] = [0.10, 0.35, 0.70, 0.90, 1.0];
/// Continuations looked at for one order and table.
const RUN_MAX: usize = 64;

/// What the tables expect next.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Proposal {
    /// Token and probability, which sum to 1; by id.
    pub candidates: Vec<(u32, f32)>,
    /// How far to trust it, 0 to 1.
    pub confidence: f32,
    /// The longest n-gram that matched, and which context it was.
    pub order: u8,
    pub context: u64,
}

/// How many lookups there were, and how many of them tier 0 answered alone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lookups {
    pub made: u32,
    pub skipped: u32,
}

/// Counts of one order, over all tables.
#[derive(Default)]
struct Level {
    counts: Vec<(u32, f32)>,
    rest: f32,
}

impl Level {
    fn add(&mut self, token: u32, count: f32) {
        match self.counts.iter_mut().find(|(id, _)| *id == token) {
            Some((_, found)) => *found += count,
            None => self.counts.push((token, count)),
        }
    }
}

/// What follows `history` (oldest first) by the tables and the request's own passages.
pub fn propose(
    history: &[u32],
    tables: &[View<'_>],
    dynamic: Option<&Dynamic>,
    lookups: &mut Lookups,
) -> Option<Proposal> {
    let (keys, count) = keys(history);
    let mut proposal = Proposal::default();
    let mut p: Vec<(u32, f32)> = Vec::new();
    for (n, &key) in keys.iter().take(count).enumerate() {
        let mut level = Level::default();
        for view in tables {
            lookups.made += 1;
            if !view.may_hold(key) {
                lookups.skipped += 1;
                continue;
            }
            for entry in view.find_unfiltered(key, n + ORDER_MIN).into_iter().flat_map(|r| r.entries().take(RUN_MAX)) {
                match entry.is_rest() {
                    true => level.rest += f32::from(entry.count),
                    false => level.add(entry.token, view.weight(entry)),
                }
            }
        }
        for &(token, count) in dynamic.and_then(|d| d.find(key)).into_iter().flatten().take(RUN_MAX) {
            level.add(token, f32::from(count));
        }
        let seen: f32 = level.counts.iter().map(|(_, c)| c).sum();
        if seen <= 0.0 {
            continue;
        }
        let different = level.counts.len() as f32;
        let whole = seen + level.rest + different;
        let back = (different + level.rest) / whole;
        p.iter_mut().for_each(|(_, q)| *q *= back);
        for (token, count) in level.counts {
            match p.iter_mut().find(|(id, _)| *id == token) {
                Some((_, q)) => *q += count / whole,
                None => p.push((token, count / whole)),
            }
        }
        proposal.confidence = ORDER_TRUST[n] * seen / whole;
        (proposal.order, proposal.context) = ((n + ORDER_MIN) as u8, key.place);
    }
    // The mass that the lowest order would back off to belongs to the model.
    let total: f32 = p.iter().map(|(_, q)| q).sum();
    if total <= 0.0 {
        return None;
    }
    p.iter_mut().for_each(|(_, q)| *q /= total);
    p.sort_unstable_by_key(|(id, _)| *id);
    proposal.candidates = p;
    Some(proposal)
}
