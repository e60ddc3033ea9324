//! Turn ids: 48 bits of time in milliseconds and 80 random bits, in base 32, so that text order is time order.

use crate::turn::TurnId;

/// Crockford's alphabet, in ASCII order, lower case.
const LETTERS: &[u8; 32] = b"0123456789abcdefghjkmnpqrstvwxyz";

/// The latest time that an id can tell, milliseconds.
const TIME_MAX: i64 = (1 << 48) - 1;
/// Every id begins with this.
pub(super) const PREFIX: &str = "turn-";

/// A new id for a turn that begins at `now_ms`.
pub fn new_turn_id(now_ms: i64) -> TurnId {
    let mut random = [0u8; 10];
    if getrandom::fill(&mut random).is_err() {
        // Without the system's source ids are still unique within this process; they are no secret.
        static SERIAL: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);
        let serial = SERIAL.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        random[2..].copy_from_slice(&serial.to_be_bytes());
    }
    let mut bits = (now_ms.clamp(0, TIME_MAX) as u128) << 80;
    bits |= random.iter().fold(0u128, |n, byte| n << 8 | u128::from(*byte));
    spelled(bits)
}

/// Not later than any id of a turn that begins at `now_ms`.
pub fn first_turn_id(now_ms: i64) -> TurnId {
    spelled((now_ms.clamp(0, TIME_MAX) as u128) << 80)
}

/// When the turn of an id began, milliseconds; none where it is no id of [`new_turn_id`].
pub(super) fn began_ms(id: &TurnId) -> Option<i64> {
    let letters = id.0.strip_prefix(PREFIX).filter(|letters| letters.len() == 26)?;
    let value = |letter: u8| LETTERS.iter().position(|other| *other == letter).map(|at| at as u128);
    let bits = letters.bytes().try_fold(0u128, |bits, letter| Some(bits << 5 | value(letter)?))?;
    i64::try_from(bits >> 80).ok().filter(|ms| *ms <= TIME_MAX)
}

fn spelled(bits: u128) -> TurnId {
    let mut text = String::from(PREFIX);
    text.extend((0..26).rev().map(|i| LETTERS[(bits >> (5 * i)) as usize & 31] as char));
    TurnId(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_sort_by_time_and_differ() {
        let ids: Vec<_> = [0, 1, 31, 32, 1_700_000_000_000, 1_700_000_000_001].map(new_turn_id).to_vec();
        assert!(ids.is_sorted());
        assert!(ids.iter().all(|id| id.0.len() == 31));
        assert_ne!(new_turn_id(5), new_turn_id(5));
        assert!(first_turn_id(i64::MAX) > new_turn_id(1_700_000_000_000) && first_turn_id(-1) == first_turn_id(0));
        for ms in [0, 1, 1_700_000_000_001, TIME_MAX] {
            assert_eq!(began_ms(&new_turn_id(ms)), Some(ms));
        }
        assert_eq!(began_ms(&TurnId("turn-07".to_owned())), None);
        assert!(first_turn_id(32) <= new_turn_id(32) && first_turn_id(32) > new_turn_id(31));
    }
}
