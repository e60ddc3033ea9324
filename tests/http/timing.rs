//! The time that a key's check takes says nothing about the keys there are. A t-test compares two kinds of keys
//! (after Reparaz et al., dudect, 2017). The digests of one kind agree with all stored ones but for the last byte,
//! those of the other with none.

use std::fmt::Write;
use std::hint::black_box;
use std::time::Instant;

use chimere::keys::KeyRing;
use sha2::{Digest, Sha256};

/// Measurements of each class that count.
const SAMPLES: usize = 500_000;
/// |t| below it: no difference is seen.
const T_MAX: f64 = 4.5;
const KEYS: usize = 16;
/// Runs of which one must see no difference.
const RUNS: usize = 12;
/// Measurements above this share of all are interruptions by the machine, and left out.
const KEPT: f64 = 0.9;

fn bearer(n: u32) -> String {
    format!("chimere-{n:064x}")
}

/// A file of keys whose digests are that of `key`, the last byte aside.
fn near(key: &str) -> String {
    let digest = Sha256::digest(key.as_bytes());
    let mut text = "format = 1\n".to_owned();
    for n in 0..KEYS {
        let mut digest = digest.to_vec();
        digest[31] ^= 1 + n as u8;
        let digest: String = digest.iter().map(|b| format!("{b:02x}")).collect();
        let entry = "scopes = [\"chat\"]\nconsent = false\ncreated = \"2026-01-01T00:00:00Z\"";
        write!(text, "[[key]]\nname = \"k{n}\"\ndigest = \"{digest}\"\n{entry}\n").unwrap();
    }
    text
}

/// Welch's t between the times of `work` on the two texts, taken in random order from one place in memory.
fn t_of(texts: [&str; 2], samples: usize, mut work: impl FnMut(&str)) -> f64 {
    let mut times: [Vec<f64>; 2] = [Vec::with_capacity(samples), Vec::with_capacity(samples)];
    let (mut random, mut text) = (0x9E37_79B9_7F4A_7C15u64, String::with_capacity(128));
    while times.iter().any(|t| t.len() < samples) {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        let class = (random >> 32) as usize & 1;
        text.clear();
        text.push_str(texts[class]);
        let began = Instant::now();
        work(black_box(&text));
        times[class].push(began.elapsed().as_nanos() as f64);
    }
    let mut all: Vec<f64> = times.concat();
    all.sort_by(f64::total_cmp);
    let limit = all[(all.len() as f64 * KEPT) as usize];
    let [a, b] = times.map(|t| {
        let kept: Vec<f64> = t.into_iter().filter(|t| *t <= limit).collect();
        let n = kept.len() as f64;
        let mean = kept.iter().sum::<f64>() / n;
        let variance = kept.iter().map(|t| (t - mean).powi(2)).sum::<f64>() / (n - 1.0);
        (mean, variance / n)
    });
    (a.0 - b.0) / (a.1 + b.1).sqrt()
}

#[test]
fn the_time_of_a_refusal_tells_nothing_about_the_keys() {
    let dir = tempfile::tempdir().unwrap();
    let texts = [bearer(1), bearer(2)];
    std::fs::write(KeyRing::path(dir.path()), near(&texts[0])).unwrap();
    let ring = KeyRing::load(dir.path()).unwrap();
    let texts = [texts[0].as_str(), texts[1].as_str()];
    let ours = |text: &str| assert!(black_box(ring.authenticate(Some(text), true)).is_err());
    // A busy machine may disturb several runs; a real difference shows in each, and its absence in one.
    let mut found = Vec::new();
    let unseen = (0..RUNS).any(|_| {
        found.push(t_of(texts, SAMPLES, ours).abs());
        found.last() < Some(&T_MAX)
    });
    assert!(unseen, "|t| = {found:.1?}");
    // That the test can fail: a comparison that stops at the first difference is found out.
    let stored: Vec<[u8; 32]> = vec![Sha256::digest(texts[0].as_bytes()).into(); KEYS];
    let leaky = |text: &str| {
        let given: [u8; 32] = Sha256::digest(text.as_bytes()).into();
        for digest in &stored {
            for at in 0..31 {
                if black_box(digest[at]) != black_box(given[at]) {
                    break;
                }
            }
        }
    };
    let mut found = Vec::new();
    let seen = (0..3).any(|_| {
        found.push(t_of(texts, SAMPLES / 10, leaky).abs());
        found.last() > Some(&(10.0 * T_MAX))
    });
    assert!(seen, "a comparison that leaks gives |t| = {found:.1?} only");
}
