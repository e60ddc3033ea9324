//! Tables for tests of the core. The daemon's module `engram` includes this file for its own tests. What exists for
//! tests alone is no part of what one crate offers the other.

use super::{Bytes, Draft, EngramError, Source, Table};

pub(crate) const VOCAB: u32 = 1000;
pub(crate) const PRINT: [u8; 32] = [7; 32];

pub(crate) fn source(principal: &str, time_s: i64) -> Source {
    Source { principal: principal.into(), origin: format!("turn of {principal}"), time_s, verdict: 5, halved: false }
}

pub(crate) fn open(bytes: Vec<u8>) -> Result<Table, EngramError> {
    Table::open(Bytes::Owned(bytes), Some(&PRINT))
}

/// Contexts of every order, with one continuation or several, from two principals.
pub(crate) fn small() -> Vec<u8> {
    let mut draft = Draft::new(PRINT, VOCAB).unwrap();
    let (ada, bob) = (draft.source(source("ada", 10)).unwrap(), draft.source(source("bob", 20)).unwrap());
    for length in 1..=5u32 {
        let context: Vec<u32> = (1..=length).collect();
        draft.add(&context, 50, 3, ada).unwrap();
        draft.add(&[length, 9][..1], 60 + length, 2, bob).unwrap();
    }
    draft.add(&[2, 3], 70, 1, bob).unwrap();
    draft.add_rest(&[2, 3], 4, bob);
    draft.finish("small", "a test", "none", None).unwrap()
}
