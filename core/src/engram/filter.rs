//! Tier 0: a cuckoo filter (Fan et al., 2014). Two reads of a small array say of most contexts that no table knows
//! them. Four fingerprints of 16 bits a bucket; false positives at full load: 8 / 65,535 = 0.012 %.
//!
//! A table is built once, with all keys at hand, so nothing has to move by its fingerprint alone. Both buckets and
//! the fingerprint come straight from the key, and neither read waits for anything else.

use super::key::Key;

/// Fingerprints of a bucket, and its bytes.
const SLOTS: usize = 4;
pub(super) const BUCKET_BYTES: usize = 2 * SLOTS;
/// Load at which insertion still succeeds nearly always.
const LOAD: f64 = 0.94;
/// Evictions before a key is given up.
const KICKS_MAX: usize = 500;
/// Times that the array is made larger: what finds no place then was crafted to share its buckets.
const GROWTHS_MAX: usize = 4;
/// Buckets are numbered by the multiply–shift of 32-bit hashes.
pub(super) const BUCKETS_MAX: usize = u32::MAX as usize;

/// Fingerprint (never 0, which is an empty slot) and both buckets, which may be one.
#[inline(always)]
fn place(key: Key, buckets: usize) -> (u16, [usize; 2]) {
    let scaled = |hash: u32| ((u64::from(hash) * buckets as u64) >> 32) as usize;
    ((key.check as u16).max(1), [scaled(key.place as u32), scaled((key.place >> 32) as u32)])
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
    /// The answer without buckets.
    otherwise: bool,
}

impl<'a> Filter<'a> {
    pub fn new(bytes: &'a [u8]) -> Filter<'a> {
        Filter { buckets: bytes.as_chunks::<BUCKET_BYTES>().0, otherwise: false }
    }

    /// Lets every lookup pass.
    pub fn open() -> Filter<'a> {
        Filter { buckets: &[], otherwise: true }
    }

    /// False: the key was never put in. True: it most probably was.
    #[inline(always)]
    pub fn may_hold(&self, key: Key) -> bool {
        if self.buckets.is_empty() {
            return self.otherwise;
        }
        let (print, places) = place(key, self.buckets.len());
        let bucket = |at: usize| self.buckets.get(at).map_or(0, |b| u64::from_le_bytes(*b));
        holds(bucket(places[0]), print) | holds(bucket(places[1]), print)
    }
}

/// The bytes of a filter that holds `keys`, the same for the same keys in the same order. Of keys that were crafted to
/// share both buckets with more than fit, it lets some out: whoever builds a table asks for each.
pub(super) fn build(keys: &[Key]) -> Vec<u8> {
    let mut buckets = ((keys.len() as f64 / (SLOTS as f64 * LOAD)).ceil() as usize).clamp(1, BUCKETS_MAX);
    let (mut filled, mut all) = fill(keys, buckets);
    for _ in 0..GROWTHS_MAX {
        if all {
            break;
        }
        buckets += buckets / 20 + 1;
        (filled, all) = fill(keys, buckets);
    }
    let print = |owner: Option<usize>| owner.and_then(|n| keys.get(n)).map_or(0, |key| place(*key, buckets).0);
    filled.iter().flat_map(|bucket| bucket.iter().flat_map(|owner| print(*owner).to_le_bytes())).collect()
}

/// For each slot the key that owns it, and whether all keys have one.
fn fill(keys: &[Key], buckets: usize) -> (Vec<[Option<usize>; SLOTS]>, bool) {
    let mut filled = vec![[None; SLOTS]; buckets];
    let mut all = true;
    // Evictions take slots in turn: no random numbers, so the bytes can be reproduced.
    let mut turn = 0u64;
    for (n, key) in keys.iter().enumerate() {
        let [first, second] = place(*key, buckets).1;
        let mut bucket = if filled[first].contains(&None) { first } else { second };
        let mut homeless = n;
        let mut kicks = 0;
        while !put(&mut filled[bucket], homeless) {
            if kicks == KICKS_MAX {
                all = false;
                break;
            }
            kicks += 1;
            turn = turn.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let evicted = filled[bucket][(turn >> 62) as usize % SLOTS].replace(homeless);
            homeless = evicted.unwrap_or(n);
            let [first, second] = place(keys[homeless], buckets).1;
            bucket = if bucket == first { second } else { first };
        }
    }
    (filled, all)
}

fn put(bucket: &mut [Option<usize>; SLOTS], owner: usize) -> bool {
    match bucket.iter_mut().find(|slot| slot.is_none()) {
        Some(slot) => {
            *slot = Some(owner);
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
    fn keys_crafted_to_share_their_buckets_end_and_displace_few() {
        let honest: Vec<Key> = (0..10_000u32).map(|i| key(&[i, 5])).collect();
        let crafted = (0..1000u64).map(|check| Key { place: 0x1234_5678_9abc_def0, check });
        let keys: Vec<Key> = crafted.chain(honest.iter().copied()).collect();
        let bytes = build(&keys);
        let filter = Filter::new(&bytes);
        let lost = honest.iter().filter(|k| !filter.may_hold(**k)).count();
        assert!(lost < 20, "{lost} honest keys of 10,000 lost");
        assert!(bytes.len() < keys.len() * 3, "{} bytes", bytes.len());
    }

    #[test]
    fn empty_and_equal_keys_end() {
        assert!(!Filter::new(&build(&[])).may_hold(key(&[1])));
        assert!(!Filter::new(&[]).may_hold(key(&[1])));
        assert!(Filter::open().may_hold(key(&[1])));
        let same = vec![key(&[1]); 1000];
        assert!(Filter::new(&build(&same)).may_hold(key(&[1])));
    }
}
