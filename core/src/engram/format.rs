//! The `.engr` file, version 2: a header of 192 bytes, then sections in this order, every number little-endian.
//!
//! | section | unit | what |
//! |---|---|---|
//! | slots | bucket of 64 bytes | four slots of 16: check 48 bits, order 3, entries 13; then the one entry, or where the entries begin |
//! | filter | bucket of 8 bytes | tier 0 |
//! | entries | 8 bytes | token 21 bits, count 16, source 24, 3 zero bits |
//! | sources | 24 bytes | principal, origin (numbers of strings), time, verdict, flags, 6 zero bytes |
//! | contexts | 2 or 3 bytes a token | the tokens of each context, in the order of the slots: read to check, show and rewrite a table, never in a lookup |
//! | meta | JSON | name, description, licence, strings |
//!
//! Version 1 had another filter: such a file is read without it, and written anew as version 2.
//!
//! The digest in the header is the SHA-256 of every other byte of the file. A signature signs it, and no byte can
//! change under it. Where a section lies follows from the counts before it, so there is no offset to forge.

use std::ops::Range;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

pub const MAGIC: [u8; 4] = *b"ENGR";
pub const VERSION: u32 = 2;
/// The oldest that is read.
const VERSION_MIN: u32 = 1;
pub const EXTENSION: &str = "engr";
pub(super) const HEADER_BYTES: usize = 192;
pub(super) const BUCKET_BYTES: usize = 64;
pub(super) const SLOT_BYTES: usize = 16;
pub(super) const ENTRY_BYTES: usize = 8;
pub(super) const SOURCE_BYTES: usize = 24;
const DIGEST: Range<usize> = 8..40;

/// Largest file, bytes.
pub const FILE_BYTES_MAX: u64 = 1 << 30;
/// Largest meta section, bytes.
const META_BYTES_MAX: usize = 64 << 20;
/// Largest vocabulary whose ids fit an entry; the last id stands for the continuations that were left out.
pub const VOCAB_MAX: u32 = REST;
pub(super) const REST: u32 = (1 << 21) - 1;
/// Most sources that an entry can name.
pub const SOURCES_MAX: usize = 1 << 24;
/// Most entries of one context.
pub(super) const RUN_MAX: usize = (1 << 13) - 1;

/// A tokenizer for people: the beginning of its fingerprint.
pub fn tokenizer_name(fingerprint: &[u8; 32]) -> String {
    fingerprint[..6].iter().map(|byte| format!("{byte:02x}")).collect()
}

impl EngramError {
    /// A table of the one tokenizer where the other is needed.
    pub(super) fn tokenizer(table: &[u8; 32], model: &[u8; 32]) -> EngramError {
        EngramError::Tokenizer { table: tokenizer_name(table), model: tokenizer_name(model) }
    }
}

/// Why a table cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum EngramError {
    #[error("cannot read or write {path}: {source}")]
    Io { path: String, source: std::io::Error },
    #[error("not an engram table: it does not begin with `ENGR`")]
    Magic,
    #[error("the table has format {0}, but this version reads formats {VERSION_MIN} to {VERSION}: build it again")]
    Version(u32),
    #[error("the table is damaged: {0}: restore it or build it again")]
    Damaged(&'static str),
    #[error(
        "the table was made for the tokenizer {table}, but this model has {model}: build the table again with \
         `chimere engram build --model` and this model's file"
    )]
    Tokenizer { table: String, model: String },
    #[error("the table's digest is {found}, but {wanted} was announced: it was exchanged in between")]
    Digest { found: String, wanted: String },
    #[error("the table is not signed by this installation: make it anew with `chimere engram build`, or remove it")]
    Unsigned,
    #[error("{what} is {found}, over the limit of {limit}")]
    TooLarge { what: &'static str, found: u64, limit: u64 },
    #[error("a table's name must have 1 to 64 letters a-z, digits, `-` or `_`, not `{0}`")]
    Name(String),
    #[error("the tables `{0}` and `{1}` were made for different tokenizers: they cannot be merged")]
    Mixed(String, String),
    #[error("token {0} is outside the vocabulary")]
    Token(u32),
}

/// What people should know of a table.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Meta {
    pub name: String,
    pub description: String,
    pub licence: String,
    /// The only principal whose requests may use it; absent: everybody's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
    /// Principals and origins, named by number.
    #[serde(default)]
    pub strings: Vec<String>,
}

/// Where an entry comes from.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Source {
    /// Who said it; empty for a curated text.
    pub principal: String,
    /// The turn or the text it was taken from.
    pub origin: String,
    /// Unix seconds; 0: curated, never decays.
    pub time_s: i64,
    /// 1 to 5, 0 for a curated text.
    pub verdict: u8,
    /// Its counts were halved for age.
    pub halved: bool,
}

/// A continuation of a context.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Entry {
    pub token: u32,
    pub count: u16,
    /// Index into the sources.
    pub source: u32,
}

impl Entry {
    #[inline(always)]
    pub(super) fn unpack(bits: u64) -> Entry {
        Entry { token: bits as u32 & REST, count: (bits >> 21) as u16, source: (bits >> 37) as u32 & 0xff_ffff }
    }

    pub(super) fn pack(self) -> u64 {
        u64::from(self.token) | u64::from(self.count) << 21 | u64::from(self.source) << 37
    }
}

/// Counts of a file; the sections' ranges follow from them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Counts {
    pub(super) contexts: u64,
    pub(super) buckets: u64,
    pub(super) filter_buckets: u64,
    pub(super) entries: u64,
    pub(super) sources: u64,
    pub(super) context_bytes: u64,
    pub(super) meta_bytes: u64,
}

/// Ranges of the sections in the file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Sections {
    pub(super) slots: Range<usize>,
    pub(super) filter: Range<usize>,
    pub(super) entries: Range<usize>,
    pub(super) sources: Range<usize>,
    pub(super) contexts: Range<usize>,
    pub(super) meta: Range<usize>,
}

impl Sections {
    /// `None` where a size overflows or leaves the limit.
    pub(super) fn of(counts: &Counts) -> Option<Sections> {
        let mut at = HEADER_BYTES;
        let mut next = |count: u64, unit: usize| {
            let start = at;
            at = usize::try_from(count).ok()?.checked_mul(unit)?.checked_add(start)?;
            (at as u64 <= FILE_BYTES_MAX).then_some(start..at)
        };
        Some(Sections {
            slots: next(counts.buckets, BUCKET_BYTES)?,
            filter: next(counts.filter_buckets, super::filter::BUCKET_BYTES)?,
            entries: next(counts.entries, ENTRY_BYTES)?,
            sources: next(counts.sources, SOURCE_BYTES)?,
            contexts: next(counts.context_bytes, 1)?,
            meta: next(counts.meta_bytes, 1)?,
        })
    }
}

/// The header of a file, checked against its length and digest.
#[derive(Clone, Debug)]
pub(super) struct Header {
    pub(super) version: u32,
    pub(super) digest: [u8; 32],
    pub(super) fingerprint: [u8; 32],
    pub(super) vocab: u32,
    pub(super) counts: Counts,
    pub(super) sections: Sections,
}

impl Header {
    pub(super) fn read(bytes: &[u8]) -> Result<Header, EngramError> {
        if bytes.get(..4) != Some(&MAGIC) {
            return Err(EngramError::Magic);
        }
        let version = u32_at(bytes, 4);
        if !(VERSION_MIN..=VERSION).contains(&version) && bytes.len() >= 8 {
            return Err(EngramError::Version(version));
        }
        if bytes.len() < HEADER_BYTES {
            return Err(EngramError::Damaged("it is shorter than its header"));
        }
        if bytes.len() as u64 > FILE_BYTES_MAX {
            let found = bytes.len() as u64;
            return Err(EngramError::TooLarge { what: "the table's size", found, limit: FILE_BYTES_MAX });
        }
        let counts = Counts {
            contexts: u64_at(bytes, 88),
            buckets: u64_at(bytes, 96),
            filter_buckets: u64_at(bytes, 104),
            entries: u64_at(bytes, 112),
            sources: u64_at(bytes, 120),
            context_bytes: u64_at(bytes, 128),
            meta_bytes: u64_at(bytes, 136),
        };
        let damaged = |what| Err(EngramError::Damaged(what));
        let Some(sections) = Sections::of(&counts) else { return damaged("its counts are too large") };
        if u64_at(bytes, 40) != bytes.len() as u64 || sections.meta.end != bytes.len() {
            return damaged("its length is not the one it was written with");
        }
        if sections.meta.len() > META_BYTES_MAX || counts.sources as usize > SOURCES_MAX {
            return damaged("its counts are too large");
        }
        let vocab = u32_at(bytes, 80);
        let mut header = Header { version, digest: [0; 32], fingerprint: [0; 32], vocab, counts, sections };
        header.digest.copy_from_slice(&bytes[DIGEST]);
        header.fingerprint.copy_from_slice(&bytes[48..80]);
        if header.digest != digest(bytes) {
            return damaged("its checksum does not fit its contents");
        }
        if header.vocab > VOCAB_MAX || counts.contexts > counts.buckets.saturating_mul(4) {
            return damaged("its counts do not fit each other");
        }
        if bytes[84..88].iter().chain(&bytes[144..HEADER_BYTES]).any(|b| *b != 0) {
            return damaged("a reserved field is used");
        }
        Ok(header)
    }
}

/// Puts a header before `sections` (slots, filter, entries, sources, contexts, meta).
pub(super) fn assemble(fingerprint: &[u8; 32], vocab: u32, counts: &Counts, sections: [&[u8]; 6]) -> Vec<u8> {
    let len = HEADER_BYTES + sections.iter().map(|s| s.len()).sum::<usize>();
    let mut bytes = vec![0u8; HEADER_BYTES];
    bytes.reserve_exact(len - HEADER_BYTES);
    bytes[..4].copy_from_slice(&MAGIC);
    bytes[4..8].copy_from_slice(&VERSION.to_le_bytes());
    bytes[40..48].copy_from_slice(&(len as u64).to_le_bytes());
    bytes[48..80].copy_from_slice(fingerprint);
    bytes[80..84].copy_from_slice(&vocab.to_le_bytes());
    let counts = [
        counts.contexts,
        counts.buckets,
        counts.filter_buckets,
        counts.entries,
        counts.sources,
        counts.context_bytes,
        counts.meta_bytes,
    ];
    for (n, count) in counts.into_iter().enumerate() {
        bytes[88 + 8 * n..96 + 8 * n].copy_from_slice(&count.to_le_bytes());
    }
    sections.iter().for_each(|section| bytes.extend_from_slice(section));
    let digest = digest(&bytes);
    bytes[DIGEST].copy_from_slice(&digest);
    bytes
}

fn digest(bytes: &[u8]) -> [u8; 32] {
    let mut hash = Sha256::new();
    hash.update(&bytes[..DIGEST.start]);
    hash.update(&bytes[DIGEST.end..]);
    hash.finalize().into()
}

/// The number at `at`, 0 past the end.
pub(super) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..).and_then(|b| b.first_chunk()).map_or(0, |b| u32::from_le_bytes(*b))
}

pub(super) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..).and_then(|b| b.first_chunk()).map_or(0, |b| u64::from_le_bytes(*b))
}

/// Bytes of a token in the contexts section.
pub(super) fn token_bytes(vocab: u32) -> usize {
    if vocab <= 1 << 16 { 2 } else { 3 }
}

/// A table's name, fit for a file name, a request and a log line.
pub fn check_name(name: &str) -> Result<(), EngramError> {
    let good = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-' || c == '_';
    match (1..=64).contains(&name.len()) && name.chars().all(good) {
        true => Ok(()),
        false => Err(EngramError::Name(name.chars().take(80).collect())),
    }
}

/// Puts the right digest on changed bytes.
#[cfg(test)]
pub(super) fn reseal(bytes: &mut [u8]) {
    if bytes.len() >= HEADER_BYTES {
        let digest = digest(bytes);
        bytes[DIGEST].copy_from_slice(&digest);
    }
}

/// Where the filter of a good file lies.
#[cfg(test)]
pub(super) fn filter_of(bytes: &[u8]) -> Range<usize> {
    Header::read(bytes).expect("a good file").sections.filter
}
