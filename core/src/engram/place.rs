//! Where the contexts of a table go when it is written: a place in the filter and one in the buckets, for each.

use std::collections::BTreeMap;

use super::filter::{self, Filter};
use super::format::{Entry, REST};
use super::key::{Key, key};
use super::table::{PROBES_MAX, bucket_of};

/// Share of the slots that are used.
const LOAD: f64 = 0.8;

/// A context, its key and its continuations.
type Kept<'a> = (Key, &'a [u32], &'a [Entry]);
type Slot<'a> = Option<Kept<'a>>;

/// Contexts in their buckets.
pub(super) struct Placed<'a> {
    pub(super) buckets: Vec<[Slot<'a>; 4]>,
    /// Contexts that found a place.
    pub(super) count: usize,
    /// Tier 0.
    pub(super) filter: Vec<u8>,
}

impl<'a> Placed<'a> {
    /// Puts each context into its bucket or one of the next: a lookup never walks further. Crafted keys that pile up
    /// in one place, or that the filter cannot take, are left out after the array has grown a few times.
    pub(super) fn of(contexts: &'a BTreeMap<Vec<u32>, Vec<Entry>>) -> Placed<'a> {
        let mut kept: Vec<_> = contexts
            .iter()
            .filter(|(_, run)| run.iter().any(|e| e.token != REST))
            .map(|(context, run)| (key(context), context.as_slice(), run.as_slice()))
            .collect();
        let keys: Vec<Key> = kept.iter().map(|(key, ..)| *key).collect();
        let filter = filter::build(&keys);
        kept.retain(|(key, ..)| Filter::new(&filter).may_hold(*key));
        let mut size = ((kept.len() as f64 / (4.0 * LOAD)).ceil() as usize).max(1);
        let (mut buckets, mut count) = fill(&kept, size);
        for _ in 0..3 {
            if count == kept.len() {
                break;
            }
            size += size / 4 + 1;
            (buckets, count) = fill(&kept, size);
        }
        Placed { buckets, count, filter }
    }
}

/// The buckets, and how many of `kept` found a place in them.
fn fill<'a>(kept: &[Kept<'a>], size: usize) -> (Vec<[Slot<'a>; 4]>, usize) {
    let mut buckets = vec![[None; 4]; size];
    let mut count = 0;
    for &(key, context, run) in kept {
        let first = bucket_of(key, size);
        let free = (0..PROBES_MAX.min(size)).find_map(|step| {
            let at = (first + step) % size;
            buckets[at].iter().position(Option::is_none).map(|slot| (at, slot))
        });
        if let Some((at, slot)) = free {
            buckets[at][slot] = Some((key, context, run));
            count += 1;
        }
    }
    (buckets, count)
}
