//! Tier 0: a cuckoo filter (Fan et al., 2014) that says of most contexts, in two reads of a small array, that no
//! table knows them. Four fingerprints of 16 bits a bucket; false positives at full load: 8 / 65,535 = 0.012 %.
//!
//! The second bucket is `h(fingerprint) − first (mod buckets)`, which is its own inverse for any number of
//! buckets, so that the array need not be a power of two.

use super::key::Key;

/// Fingerprints of a bucket, and its bytes.
const SLOTS: usize = 4;
pub(super) const BUCKET_BYTES: usize = 2 * SLOTS;
/// Load at which insertion still succeeds nearly always.
const LOAD: f64 = 0.94;
/// Evictions before the array is made larger.
const KICKS_MAX: usize = 500;
/// Buckets are numbered by the multiply–shift of 32-bit hashes.
pub(super) const BUCKETS_MAX: usize = u32::MAX as usize;

/// Fingerprint (never 0, which is an empty slot) and first bucket.
#[inline(always)]
fn place(key: Key, buckets: usize) -> (u16, usize) {
    let print = ((key.place >> 32) as u16).max(1);
    (print, scaled(key.place as u32, buckets))
}

#[inline(always)]
fn scaled(hash: u32, buckets: usize) -> usize {
    ((u64::from(hash) * buckets as u64) >> 32) as usize
}

#[inline(always)]
fn other(bucket: usize, print: u16, buckets: usize) -> usize {
    let turned = scaled(u32::from(print).wrapping_mul(0x9e37_79b1), buckets);
    if turned >= bucket { turned - bucket } else { turned + buckets - bucket }
}

/// Whether one of the four 16-bit lanes of `bucket` equals `print` (the zero-lane test of Hacker's Delight, 6-1).
#[inline(always)]
fn holds(bucket: u64, print: u16) -> bool {
    const LOW: u64 = 0x0001_0001_0001_0001;
    let lanes = bucket ^ (LOW * u64::from(print));
    lanes.wrapping_sub(LOW) & !lanes & (LOW << 15) != 0
}

/// A filter in the bytes of a file.
#[derive(Clone, Copy, Debug)]
pub struct Filter<'a> {
    buckets: &'a [[u8; BUCKET_BYTES]],
}

impl<'a> Filter<'a> {
    pub fn new(bytes: &'a [u8]) -> Filter<'a> {
        Filter { buckets: bytes.as_chunks::<BUCKET_BYTES>().0 }
    }

    /// False: the key was never put in. True: it most probably was.
    #[inline(always)]
    pub fn may_hold(&self, key: Key) -> bool {
        let count = self.buckets.len();
        if count == 0 {
            return false;
        }
        let (print, first) = place(key, count);
        let bucket = |at: usize| self.buckets.get(at).map_or(0, |b| u64::from_le_bytes(*b));
        // Both reads are under way at once: neither waits for the other.
        holds(bucket(first), print) | holds(bucket(other(first, print, count)), print)
    }
}

/// The bytes of a filter that holds `keys`, the same for the same keys in the same order.
pub(super) fn build(keys: &[Key]) -> Vec<u8> {
    let mut buckets = ((keys.len() as f64 / (SLOTS as f64 * LOAD)).ceil() as usize).clamp(1, BUCKETS_MAX);
    loop {
        if let Some(filled) = fill(keys, buckets) {
            return filled.iter().flat_map(|b| b.iter().flat_map(|print| print.to_le_bytes())).collect();
        }
        buckets += buckets / 20 + 1;
    }
}

fn fill(keys: &[Key], buckets: usize) -> Option<Vec<[u16; SLOTS]>> {
    let mut filled = vec![[0u16; SLOTS]; buckets];
    // Evictions take slots in turn: no random numbers, so the bytes can be reproduced.
    let mut turn = 0u64;
    for &key in keys {
        let (mut print, first) = place(key, buckets);
        let second = other(first, print, buckets);
        // A print that is there already answers for this key too; without this, equal prints could never all fit.
        if filled[first].contains(&print) || filled[second].contains(&print) {
            continue;
        }
        let mut bucket = if filled[first].contains(&0) { first } else { second };
        let mut kicks = 0;
        while !put(&mut filled[bucket], print) {
            if kicks == KICKS_MAX {
                return None;
            }
            kicks += 1;
            turn = turn.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            print = std::mem::replace(&mut filled[bucket][(turn >> 62) as usize % SLOTS], print);
            bucket = other(bucket, print, buckets);
        }
    }
    Some(filled)
}

fn put(bucket: &mut [u16; SLOTS], print: u16) -> bool {
    match bucket.iter_mut().find(|slot| **slot == 0) {
        Some(slot) => {
            *slot = print;
            true
        }
        None => false,
    }
}

#[cfg(test)]
mod tests {
    use super::super::key::key;
    use super::*;

    #[test]
    fn what_was_put_in_is_found_and_little_else() {
        let keys: Vec<Key> = (0..50_000u32).map(|i| key(&[i, i / 7, 3])).collect();
        let bytes = build(&keys);
        let filter = Filter::new(&bytes);
        assert!(keys.iter().all(|&k| filter.may_hold(k)), "a cuckoo filter forgets nothing");
        let asked = 1_000_000u32;
        let wrong = (0..asked).filter(|i| filter.may_hold(key(&[*i, 1, 2, 3]))).count();
        // 8 / 65,535 · load, 115 expected: five sigma.
        assert!(wrong < 170, "{wrong} false positives of {asked}");
        assert!(bytes.len() < 50_000 * 5 / 2, "{} bytes", bytes.len());
        assert_eq!(build(&keys), bytes);
    }

    #[test]
    fn the_way_to_the_other_bucket_leads_back() {
        for buckets in [1usize, 2, 3, 1000, 12_345] {
            for print in [1u16, 2, 77, 65_535] {
                for bucket in [0, buckets / 2, buckets - 1] {
                    let there = other(bucket, print, buckets) % buckets;
                    assert_eq!(other(there, print, buckets) % buckets, bucket, "{buckets} {print} {bucket}");
                }
            }
        }
    }

    #[test]
    fn empty_and_equal_keys_end() {
        assert!(!Filter::new(&build(&[])).may_hold(key(&[1])));
        assert!(!Filter::new(&[]).may_hold(key(&[1])));
        let same = vec![key(&[1]); 1000];
        assert!(Filter::new(&build(&same)).may_hold(key(&[1])));
    }
}
