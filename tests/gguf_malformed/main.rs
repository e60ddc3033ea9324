//! Damaged and hostile model files: each is refused with the reason, in bounded memory, without a panic.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod cases;
mod raw;

use std::collections::{BTreeMap, HashSet};
use std::fs;
use std::path::Path;

use chimere::engine::load::{CardOptions, Kind, LoadOptions, load};
use chimere::engine::validate::validate;
use chimere::gguf::Gguf;

/// Files of the corpus, at least.
const CASES_MIN: usize = 300;
/// Memory that refusing the whole corpus may take beyond what the corpus itself holds, bytes.
const MEMORY_MAX: u64 = 96 << 20;
/// Random changes of a real file.
const FLIPS: u64 = 4_000;

/// Peak of the process's memory, bytes.
fn peak_bytes() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|l| l.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1024
}

#[test]
fn every_malformed_file_is_refused_with_its_reason() {
    assert!(Gguf::read(&raw::base().bytes()[..], raw::base().bytes().len() as u64).is_ok(), "the base is sound");
    let cases = cases::all();
    let distinct: HashSet<&[u8]> = cases.iter().map(|c| c.bytes.as_slice()).collect();
    assert!(distinct.len() >= CASES_MIN, "{} distinct files", distinct.len());
    let before = peak_bytes();
    let mut reasons: BTreeMap<&str, usize> = BTreeMap::new();
    let mut wrong = Vec::new();
    for case in &cases {
        let error = match Gguf::read(&case.bytes[..], case.bytes.len() as u64) {
            Ok(_) => "accepted".to_owned(),
            Err(error) => error.to_string(),
        };
        let lower_case = error.starts_with("GGUF ") || error.chars().next().is_some_and(|c| !c.is_uppercase());
        let printable = error.len() < 600 && !error.chars().any(char::is_control);
        if error == "accepted" || !error.contains(case.reason) || !lower_case || !printable {
            wrong.push(format!("{}: {error:?} (expected \"{}\")", case.name, case.reason));
        }
        *reasons.entry(case.reason).or_default() += 1;
    }
    assert!(wrong.is_empty(), "{} cases:\n{}", wrong.len(), wrong.join("\n"));
    let grown = peak_bytes().saturating_sub(before);
    println!("{} files, {} reasons, {} MiB", distinct.len(), reasons.len(), grown >> 20);
    assert!(grown < MEMORY_MAX, "{grown} bytes");
}

/// `check` and a change of the model judge by the one, a start by the other.
#[test]
fn every_malformed_file_is_judged_and_started_with_the_same_reason() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("odd.gguf");
    let options = LoadOptions {
        backend: Kind::Auto,
        threads: 1,
        context_tokens: 256,
        sequences_max: 1,
        prediction: false,
        exact: true,
        cache: Default::default(),
        card: CardOptions { spared: true, ..CardOptions::default() },
        vet_with: None,
    };
    for case in cases::all() {
        fs::write(&path, &case.bytes).unwrap();
        let judged = validate(&path, &options, 0).map(|_| ()).map_err(|error| error.to_string());
        let started = load(&path, &options, &mut |_| {}).map(|_| ()).map_err(|error| error.to_string());
        assert_eq!(judged, started, "{}", case.name);
        let error = judged.expect_err(&case.name);
        // Of a part its name is looked at first, and how many there are said to be.
        let of_a_part = ["its name does not end in", "the number of parts is"];
        let known = error.contains(case.reason) || of_a_part.iter().any(|reason| error.contains(reason));
        assert!(known, "{}: {error:?}, not \"{}\"", case.name, case.reason);
    }
}

#[test]
fn random_changes_of_a_real_file_never_panic_and_never_reach_outside() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/data/mini/model.gguf");
    let file_len = fs::metadata(&path).unwrap().len();
    let header_len = Gguf::open(&path).unwrap().data_start() as usize;
    let header = fs::read(&path).unwrap()[..header_len].to_vec();
    let mut random = raw::Random(1);
    let mut accepted = 0;
    for _ in 0..FLIPS {
        let mut bytes = header.clone();
        for _ in 0..1 + random.below(4) {
            let at = random.below(header_len);
            match random.below(3) {
                0 => bytes[at] ^= 1 << random.below(8),
                1 => bytes[at] = [0, 1, 0x7f, 0x80, 0xff][random.below(5)],
                _ => {
                    let end = (at + 8).min(header_len);
                    bytes[at..end].fill([0, 0xff, 0x7f][random.below(3)]);
                }
            }
        }
        if let Ok(gguf) = Gguf::read(&bytes[..], file_len) {
            accepted += 1;
            for t in gguf.tensors() {
                assert!(t.range.start >= gguf.data_start() && t.range.end <= file_len && t.range.start < t.range.end);
            }
        }
    }
    println!("{accepted} of {FLIPS} changed headers still say something sound");
}
