//! Read bandwidth of the memory level that a model lives in: a buffer of the bytes read per token, read again and
//! again. It lies where weights lie, on huge pages where the system grants them, so that address translation slows
//! neither more than the other.

use std::hint::black_box;
use std::time::{Duration, Instant};

use chimere_ffi::cpu::Buffer;

/// Passes over the buffer are repeated until this much time went by.
const MEASURE: Duration = Duration::from_millis(400);
const BUFFER_BYTES_MIN: usize = 1 << 20;

/// Bytes per second that `threads` threads read together from a buffer of `bytes` (the best of the passes: what the
/// memory can do, not what else ran); `None` if the system has no such buffer.
pub fn read_bandwidth(bytes: usize, threads: usize) -> Option<f64> {
    let words = bytes.max(BUFFER_BYTES_MIN) / 8;
    let mut buffer = Buffer::zeroed(words * 8)?;
    // Written, so that the pages are real and not one shared page of zeros.
    let (cells, _) = buffer.bytes_mut().as_chunks_mut::<8>();
    cells.iter_mut().zip(0u64..).for_each(|(cell, i)| *cell = i.to_ne_bytes());
    let (cells, _) = buffer.bytes().as_chunks::<8>();
    let share = words.div_ceil(threads.max(1));
    let start = Instant::now();
    let mut best = f64::INFINITY;
    while start.elapsed() < MEASURE || best.is_infinite() {
        let pass = Instant::now();
        // Enough repetitions a pass for starting threads to cost nothing.
        let repeats = ((64 << 20) / (words * 8)).max(1);
        std::thread::scope(|scope| {
            for part in cells.chunks(share) {
                scope.spawn(move || {
                    (0..repeats).for_each(|_| {
                        black_box(sum(black_box(part)));
                    })
                });
            }
        });
        best = best.min(pass.elapsed().as_secs_f64() / repeats as f64);
    }
    Some((words * 8) as f64 / best)
}

/// Eight independent sums, so that the adder never waits and the loop is bound by loads.
fn sum(words: &[[u8; 8]]) -> u64 {
    let mut lanes = [0u64; 32];
    let (chunks, rest) = words.as_chunks::<32>();
    let rest = rest.iter().fold(0u64, |a, b| a ^ u64::from_ne_bytes(*b));
    for chunk in chunks {
        for (lane, word) in lanes.iter_mut().zip(chunk) {
            *lane ^= u64::from_ne_bytes(*word);
        }
    }
    lanes.iter().fold(rest, |a, b| a ^ b)
}

#[cfg(test)]
mod tests {
    #[test]
    fn bandwidth_is_a_plausible_rate() {
        let rate = super::read_bandwidth(4 << 20, 1).unwrap();
        assert!((1e8..1e13).contains(&rate), "{rate} bytes/s");
    }
}
