//! A table under construction: contexts with their continuations and the origin of each. Everything that changes a
//! table is here: merging, decay with age (`decay`), revoking. The result goes to a new file; a file is never
//! changed.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::filter;
use super::format::{
    Counts, EngramError, Entry, Meta, REST, RUN_MAX, SLOT_BYTES, SOURCES_MAX, Source, VOCAB_MAX, assemble, check_name,
    token_bytes,
};
use super::key::CONTEXT_TOKENS;
use super::place::Placed;
use super::table::{Table, slot_word};

/// Decay: the age at which a learned entry counts half, and the age at which it is deleted, seconds.
pub const HALVE_AFTER_S: i64 = 30 * 86_400;
pub const DELETE_AFTER_S: i64 = 90 * 86_400;

/// A table under construction.
#[derive(Clone, Debug)]
pub struct Draft {
    fingerprint: [u8; 32],
    vocab: u32,
    contexts: BTreeMap<Vec<u32>, Vec<Entry>>,
    sources: Vec<Source>,
    numbers: HashMap<Source, u32>,
}

/// What a change of a draft removed or changed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Change {
    pub sources: usize,
    pub entries: usize,
}

impl Draft {
    /// `fingerprint` and `vocab` are those of the tokenizer.
    pub fn new(fingerprint: [u8; 32], vocab: u32) -> Result<Draft, EngramError> {
        if vocab > VOCAB_MAX {
            let (found, limit) = (u64::from(vocab), u64::from(VOCAB_MAX));
            return Err(EngramError::TooLarge { what: "the vocabulary", found, limit });
        }
        let (contexts, sources) = (BTreeMap::new(), Vec::new());
        Ok(Draft { fingerprint, vocab, contexts, sources, numbers: HashMap::new() })
    }

    /// Everything in `table`.
    pub fn of(table: &Table) -> Result<Draft, EngramError> {
        let mut draft = Draft::new(*table.fingerprint(), table.vocab())?;
        draft.merge(table)?;
        Ok(draft)
    }

    pub fn contexts(&self) -> usize {
        self.contexts.len()
    }

    pub fn entries(&self) -> usize {
        self.contexts.values().map(Vec::len).sum()
    }

    /// The number of a source, which is new if none is equal to it.
    pub fn source(&mut self, source: Source) -> Result<u32, EngramError> {
        if let Some(number) = self.numbers.get(&source) {
            return Ok(*number);
        }
        let number = self.sources.len();
        if number >= SOURCES_MAX {
            return Err(EngramError::TooLarge {
                what: "the number of sources",
                found: number as u64 + 1,
                limit: SOURCES_MAX as u64,
            });
        }
        self.sources.push(source.clone());
        self.numbers.insert(source, number as u32);
        Ok(number as u32)
    }

    /// Counts `token` after `context` (1 to 5 tokens, oldest first) `count` times more for a source.
    pub fn add(&mut self, context: &[u32], token: u32, count: u16, source: u32) -> Result<(), EngramError> {
        if let Some(bad) = context.iter().chain([&token]).find(|id| **id >= self.vocab) {
            return Err(EngramError::Token(*bad));
        }
        self.put(context, Entry { token, count, source });
        Ok(())
    }

    /// Says that `context` was continued `count` times otherwise than by what was added.
    pub fn add_rest(&mut self, context: &[u32], count: u16, source: u32) {
        self.put(context, Entry { token: REST, count, source });
    }

    fn put(&mut self, context: &[u32], entry: Entry) {
        if context.is_empty() || context.len() > CONTEXT_TOKENS || entry.count == 0 {
            return;
        }
        let run = self.contexts.entry(context.to_vec()).or_default();
        let room = run.len() < RUN_MAX;
        match run.iter_mut().find(|e| e.token == entry.token && e.source == entry.source) {
            Some(found) => found.count = found.count.saturating_add(entry.count),
            None if room => run.push(entry),
            None => {}
        }
    }

    /// Adds everything of another table.
    pub fn merge(&mut self, table: &Table) -> Result<(), EngramError> {
        if self.fingerprint != *table.fingerprint() || self.vocab != table.vocab() {
            return Err(EngramError::tokenizer(table.fingerprint(), &self.fingerprint));
        }
        let numbers = table.sources().into_iter().map(|s| self.source(s)).collect::<Result<Vec<_>, _>>()?;
        for (context, run) in table.all() {
            for entry in run.entries() {
                let source = numbers.get(entry.source as usize).copied();
                self.put(&context, Entry { source: source.ok_or(EngramError::Damaged("no such source"))?, ..entry });
            }
        }
        Ok(())
    }

    /// Applies age: entries older than 30 days count half, entries older than 90 days go. Doing it twice is doing it
    /// once; curated entries have no age.
    pub fn decay(&mut self, now_s: i64) -> Change {
        let age = |s: &Source| if s.time_s == 0 { 0 } else { now_s.saturating_sub(s.time_s) };
        let mut halved = Change::default();
        for number in 0..self.sources.len() {
            if age(&self.sources[number]) >= HALVE_AFTER_S && !self.sources[number].halved {
                self.sources[number].halved = true;
                halved.sources += 1;
            }
        }
        let removed = self.remove(|s| age(s) >= DELETE_AFTER_S);
        self.numbers = self.sources.iter().cloned().zip(0..).collect();
        Change { sources: halved.sources + removed.sources, entries: removed.entries }
    }

    /// Removes everything that a principal said.
    pub fn revoke(&mut self, principal: &str) -> Change {
        self.remove(|s| s.principal == principal)
    }

    /// Removes everything that was taken from one turn or text.
    pub fn revoke_origin(&mut self, origin: &str) -> Change {
        self.remove(|s| s.origin == origin)
    }

    /// Removes learned continuations that fewer principals have said than `principals_min` wants for their order.
    pub fn keep_supported(&mut self, principals_min: impl Fn(usize) -> usize) -> Change {
        let sources = &self.sources;
        let learned = |e: &Entry| sources.get(e.source as usize).filter(|s| s.time_s != 0);
        let mut change = Change::default();
        self.contexts.retain(|context, run| {
            let before = run.len();
            let supporters = |token: u32| {
                let same = run.iter().filter(|e| e.token == token).filter_map(learned);
                same.map(|s| s.principal.as_str()).collect::<BTreeSet<_>>().len()
            };
            let kept: Vec<Entry> = run
                .iter()
                .filter(|e| learned(e).is_none() || supporters(e.token) >= principals_min(context.len() + 1))
                .copied()
                .collect();
            *run = kept;
            change.entries += before - run.len();
            run.iter().any(|e| e.token != REST)
        });
        let used: BTreeSet<u32> = self.contexts.values().flatten().map(|e| e.source).collect();
        let unused: BTreeSet<Source> =
            (0..).zip(&self.sources).filter(|(n, _)| !used.contains(n)).map(|(_, s)| s.clone()).collect();
        change.sources = self.remove(|s| unused.contains(s)).sources;
        change
    }

    /// Removes the sources that `gone` names, with their entries: no trace stays in the file.
    pub fn remove(&mut self, gone: impl Fn(&Source) -> bool) -> Change {
        let mut change = Change::default();
        let mut kept = Vec::new();
        let numbers: Vec<Option<u32>> = std::mem::take(&mut self.sources)
            .into_iter()
            .map(|source| match gone(&source) {
                true => {
                    change.sources += 1;
                    None
                }
                false => {
                    kept.push(source);
                    Some(kept.len() as u32 - 1)
                }
            })
            .collect();
        self.contexts.retain(|_, run| {
            let before = run.len();
            run.retain_mut(|entry| match numbers.get(entry.source as usize).copied().flatten() {
                Some(number) => {
                    entry.source = number;
                    true
                }
                None => false,
            });
            change.entries += before - run.len();
            run.iter().any(|e| e.token != REST)
        });
        self.numbers = kept.iter().cloned().zip(0..).collect();
        self.sources = kept;
        change
    }

    /// The bytes of the finished file: the same for the same contents.
    pub fn finish(
        &self,
        name: &str,
        description: &str,
        licence: &str,
        owner: Option<&str>,
    ) -> Result<Vec<u8>, EngramError> {
        check_name(name)?;
        let placed = Placed::of(&self.contexts);
        let (mut slots, mut entries, mut contexts) = (Vec::new(), Vec::new(), Vec::new());
        let width = token_bytes(self.vocab);
        for bucket in &placed.buckets {
            for slot in bucket {
                let Some((key, context, run)) = slot else {
                    slots.extend_from_slice(&[0; SLOT_BYTES]);
                    continue;
                };
                let what = match run {
                    [one] => one.pack(),
                    _ => entries.len() as u64 / 8,
                };
                slots.extend_from_slice(&slot_word(*key, context.len() + 1, run.len()).to_le_bytes());
                slots.extend_from_slice(&what.to_le_bytes());
                if run.len() > 1 {
                    let mut run = run.to_vec();
                    run.sort_unstable();
                    entries.extend(run.iter().flat_map(|e| e.pack().to_le_bytes()));
                }
                contexts.extend(context.iter().flat_map(|id| id.to_le_bytes().into_iter().take(width)));
            }
        }
        let filter = &placed.filter;
        let (sources, strings) = self.source_section();
        let meta = Meta {
            name: name.to_owned(),
            description: description.to_owned(),
            licence: licence.to_owned(),
            owner: owner.map(str::to_owned),
            strings,
        };
        let meta = serde_json::to_vec(&meta).map_err(|_| EngramError::Damaged("its description is no JSON"))?;
        let counts = Counts {
            contexts: placed.count as u64,
            buckets: placed.buckets.len() as u64,
            filter_buckets: (filter.len() / filter::BUCKET_BYTES) as u64,
            entries: entries.len() as u64 / 8,
            sources: self.sources.len() as u64,
            context_bytes: contexts.len() as u64,
            meta_bytes: meta.len() as u64,
        };
        let sections: [&[u8]; 6] = [&slots, filter, &entries, &sources, &contexts, &meta];
        Ok(assemble(&self.fingerprint, self.vocab, &counts, sections))
    }

    fn source_section(&self) -> (Vec<u8>, Vec<String>) {
        let mut strings: Vec<String> = Vec::new();
        let mut numbers: HashMap<&str, u32> = HashMap::new();
        let mut section = Vec::new();
        for source in &self.sources {
            for text in [&source.principal, &source.origin] {
                let number = *numbers.entry(text).or_insert_with(|| {
                    strings.push(text.clone());
                    strings.len() as u32 - 1
                });
                section.extend_from_slice(&number.to_le_bytes());
            }
            section.extend_from_slice(&source.time_s.to_le_bytes());
            section.extend_from_slice(&[source.verdict.min(5), u8::from(source.halved), 0, 0, 0, 0, 0, 0]);
        }
        (section, strings)
    }
}
