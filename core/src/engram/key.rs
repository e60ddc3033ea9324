//! Keys of contexts: FNV-1a over token ids, newest token first, so that one pass gives the keys of all orders. An
//! independent check is stored beside them, because two contexts may share a key.

/// Shortest and longest n-gram: contexts of 1 to 5 tokens and the token after them.
pub const ORDER_MIN: usize = 2;
pub const ORDER_MAX: usize = 6;
/// Tokens of the longest context.
pub const CONTEXT_TOKENS: usize = ORDER_MAX - 1;
/// Orders that a table may hold.
pub const ORDERS: usize = ORDER_MAX - ORDER_MIN + 1;

/// The offset basis and the prime of FNV-1a, 64 bits (draft-eastlake-fnv, section 5).
const BASIS: u64 = 0xcbf2_9ce4_8422_2325;
const PRIME: u64 = 0x0000_0100_0000_01b3;
/// A second chain with another basis and an odd multiplier of its own gives the check.
const CHECK_BASIS: u64 = 0x6a09_e667_f3bc_c908;
const CHECK_PRIME: u64 = 0xd6e8_feb8_6659_fd93;
/// Bits of the stored check.
pub(super) const CHECK_BITS: u32 = 48;

/// A context's place and its proof.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    /// Where to look: bucket of the table (high half), bucket of the filter (low half).
    pub place: u64,
    /// What must be found there: independent of `place`.
    pub check: u64,
}

/// FNV-1a with a token id in place of a byte (a table has some 10^5 of them, a byte 256), one step.
#[inline(always)]
fn step(hash: u64, prime: u64, token: u32) -> u64 {
    (hash ^ u64::from(token)).wrapping_mul(prime)
}

/// FNV leaves its high bits weak after few steps: one multiplication and two folds spread them.
#[inline(always)]
fn spread(hash: u64) -> u64 {
    let hash = (hash ^ (hash >> 32)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    hash ^ (hash >> 29)
}

#[inline(always)]
fn finish(place: u64, check: u64, tokens: usize) -> Key {
    // The length takes part, so that a context is never taken for a longer one.
    let place = spread(place.wrapping_add(tokens as u64));
    Key { place, check: spread(check.rotate_left(17)) >> (64 - CHECK_BITS) }
}

/// The key of one context, oldest token first.
#[inline]
pub fn key(context: &[u32]) -> Key {
    let (mut place, mut check) = (BASIS, CHECK_BASIS);
    for &token in context.iter().rev() {
        place = step(place, PRIME, token);
        check = step(check, CHECK_PRIME, token);
    }
    finish(place, check, context.len())
}

/// The keys of every context that ends where `history` ends: index 0 is order 2. Shorter histories have fewer.
#[inline]
pub fn keys(history: &[u32]) -> ([Key; ORDERS], usize) {
    let mut keys = [Key::default(); ORDERS];
    let (mut place, mut check) = (BASIS, CHECK_BASIS);
    let count = history.len().min(CONTEXT_TOKENS);
    for (n, &token) in history.iter().rev().take(count).enumerate() {
        place = step(place, PRIME, token);
        check = step(check, CHECK_PRIME, token);
        keys[n] = finish(place, check, n + 1);
    }
    (keys, count)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn one_pass_gives_the_keys_of_every_order() {
        let history = [9, 8, 7, 6, 5, 4, 3];
        let (all, count) = keys(&history);
        assert_eq!(count, ORDERS);
        for (n, found) in all.iter().enumerate() {
            assert_eq!(*found, key(&history[history.len() - n - 1..]));
        }
        assert_eq!(keys(&history[..2]).1, 2);
        assert_ne!(key(&[0]), key(&[0, 0]), "the length takes part");
    }

    #[test]
    fn keys_are_spread_over_buckets_and_checks() {
        // All pairs of small ids, as a vocabulary's frequent tokens are: as many buckets are hit as by chance.
        let buckets = 1u64 << 16;
        let mut hit = HashSet::new();
        let mut checks = HashSet::new();
        for a in 0..256u32 {
            for b in 0..256u32 {
                let key = key(&[a, b]);
                hit.insert(((key.place >> 32) * buckets) >> 32);
                checks.insert(key.check);
            }
        }
        let expected = buckets as f64 * (1.0 - (-1.0f64).exp());
        assert!((hit.len() as f64 / expected - 1.0).abs() < 0.02, "{} of {expected}", hit.len());
        assert_eq!(checks.len(), 1 << 16);
    }
}
