//! Read bandwidth of the memory level that a model lives in: a buffer of the bytes read per token, read again and again.

use std::hint::black_box;
use std::time::{Duration, Instant};

/// Passes over the buffer are repeated until this much time went by.
const MEASURE: Duration = Duration::from_millis(400);
const BUFFER_BYTES_MIN: usize = 1 << 20;

/// Bytes per second that `threads` threads read together from a buffer of `bytes` (the best of the passes: what the
/// memory can do, not what else ran).
pub fn read_bandwidth(bytes: usize, threads: usize) -> f64 {
    let words = bytes.max(BUFFER_BYTES_MIN) / 8;
    // Written, so that the pages are real and not one shared page of zeros.
    let buffer: Vec<u64> = (0..words as u64).collect();
    let share = words.div_ceil(threads.max(1));
    let start = Instant::now();
    let mut best = f64::INFINITY;
    while start.elapsed() < MEASURE || best.is_infinite() {
        let pass = Instant::now();
        // Enough repetitions a pass for starting threads to cost nothing.
        let repeats = ((64 << 20) / (words * 8)).max(1);
        std::thread::scope(|scope| {
            for part in buffer.chunks(share) {
                scope.spawn(move || {
                    (0..repeats).for_each(|_| {
                        black_box(sum(black_box(part)));
                    })
                });
            }
        });
        best = best.min(pass.elapsed().as_secs_f64() / repeats as f64);
    }
    (words * 8) as f64 / best
}

/// Eight independent sums, so that the adder never waits and the loop is bound by loads.
fn sum(words: &[u64]) -> u64 {
    let mut lanes = [0u64; 32];
    let chunks = words.chunks_exact(32);
    let rest = chunks.remainder().iter().fold(0u64, |a, b| a ^ b);
    for chunk in chunks {
        for (lane, word) in lanes.iter_mut().zip(chunk) {
            *lane ^= word;
        }
    }
    lanes.iter().fold(rest, |a, b| a ^ b)
}

#[cfg(test)]
mod tests {
    #[test]
    fn bandwidth_is_a_plausible_rate() {
        let rate = super::read_bandwidth(4 << 20, 1);
        assert!((1e8..1e13).contains(&rate), "{rate} bytes/s");
    }
}
