//! Tier 1: a table, read-only, in memory or mapped. Everything is checked once when it is opened. Every later read
//! is bounded again, so even a file changed under its map gives wrong answers at worst.

use chimere_ffi::map::Map;

use super::filter::Filter;
use super::format::{
    BUCKET_BYTES, ENTRY_BYTES, EngramError, Entry, Header, Meta, REST, RUN_MAX, SLOT_BYTES, SOURCE_BYTES, Source,
    token_bytes, u32_at, u64_at,
};
use super::key::{CHECK_BITS, Key, ORDER_MAX, ORDER_MIN, ORDERS, key, keys};

/// Buckets that a lookup walks at most; what does not fit is left out when a table is built.
pub(super) const PROBES_MAX: usize = 8;

/// Most that one learned entry counts, however often it was said.
pub const LEARNED_COUNT_MAX: u16 = 4;

/// The bytes of a table.
#[derive(Debug)]
pub enum Bytes {
    Owned(Vec<u8>),
    /// In the engine's process only.
    Mapped(Map),
}

impl std::ops::Deref for Bytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Bytes::Owned(bytes) => bytes,
            Bytes::Mapped(map) => map,
        }
    }
}

/// A table that was checked.
#[derive(Debug)]
pub struct Table {
    bytes: Bytes,
    header: Header,
    meta: Meta,
    tokens: usize,
}

/// Its parts, for lookups: plain slices.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    filter: Filter<'a>,
    buckets: &'a [[u8; BUCKET_BYTES]],
    entries: &'a [[u8; ENTRY_BYTES]],
    sources: &'a [[u8; SOURCE_BYTES]],
}

/// The continuations of one context.
#[derive(Clone, Copy, Debug)]
pub struct Run<'a> {
    one: Option<u64>,
    many: &'a [[u8; ENTRY_BYTES]],
}

impl<'a> Run<'a> {
    #[inline]
    pub fn entries(self) -> impl Iterator<Item = Entry> + 'a {
        let many = self.many.iter().map(|bits| u64::from_le_bytes(*bits));
        self.one.into_iter().chain(many).map(Entry::unpack)
    }
}

impl Entry {
    /// Stands for the continuations that were left out, not for a token.
    pub fn is_rest(self) -> bool {
        self.token == REST
    }
}

/// The first word of a slot: which context, how many entries.
pub(super) fn slot_word(key: Key, order: usize, entries: usize) -> u64 {
    key.check | (order as u64) << CHECK_BITS | (entries as u64) << (CHECK_BITS + 3)
}

#[inline(always)]
pub(super) fn bucket_of(key: Key, buckets: usize) -> usize {
    (((key.place >> 32) * buckets as u64) >> 32) as usize
}

impl<'a> View<'a> {
    /// Tier 0 alone.
    #[inline(always)]
    pub fn may_hold(&self, key: Key) -> bool {
        self.filter.may_hold(key)
    }

    /// The continuations of the context with this key and order.
    #[inline]
    pub fn find(&self, key: Key, order: usize) -> Option<Run<'a>> {
        match self.filter.may_hold(key) {
            true => self.find_unfiltered(key, order),
            false => None,
        }
    }

    /// Like `find`, without asking tier 0.
    #[inline]
    pub fn find_unfiltered(&self, key: Key, order: usize) -> Option<Run<'a>> {
        const WHO: u64 = (1 << (CHECK_BITS + 3)) - 1;
        let wanted = slot_word(key, order, 0);
        let mut at = bucket_of(key, self.buckets.len());
        for _ in 0..PROBES_MAX {
            let slots = self.buckets.get(at)?.as_chunks::<SLOT_BYTES>().0;
            // Which slot it is cannot be foreseen: all four are compared, and one is chosen without a branch.
            let mut found = None;
            for slot in slots.iter().rev() {
                found = if u64_at(slot, 0) & WHO == wanted { Some(slot) } else { found };
            }
            if let Some(slot) = found {
                return self.run((u64_at(slot, 0) >> (CHECK_BITS + 3)) as usize, u64_at(slot, 8));
            }
            // Slots are filled in order.
            if slots.last().is_none_or(|slot| u64_at(slot, 0) == 0) {
                return None;
            }
            at = if at + 1 == self.buckets.len() { 0 } else { at + 1 };
        }
        None
    }

    #[inline(always)]
    fn run(&self, count: usize, what: u64) -> Option<Run<'a>> {
        match count {
            1 => Some(Run { one: Some(what), many: &[] }),
            _ => {
                let start = usize::try_from(what).ok()?;
                Some(Run { one: None, many: self.entries.get(start..start.checked_add(count)?)? })
            }
        }
    }

    /// What an entry's count is worth: learned entries are clamped, and halved when they are old.
    pub fn weight(&self, entry: Entry) -> f32 {
        let Some(source) = self.sources.get(entry.source as usize) else { return 0.0 };
        let (learned, halved) = (u64_at(source, 8) != 0, source[17] == 1);
        let count = if learned { entry.count.min(LEARNED_COUNT_MAX) } else { entry.count };
        f32::from(count) * if halved { 0.5 } else { 1.0 }
    }

    /// Looks up every context that ends `history`, of all orders: index 0 is order 2.
    pub fn look_up(&self, history: &[u32]) -> [Option<Run<'a>>; ORDERS] {
        let (keys, count) = keys(history);
        let mut found = [None; ORDERS];
        for (n, key) in keys.iter().take(count).enumerate() {
            found[n] = self.find(*key, n + ORDER_MIN);
        }
        found
    }
}

impl Table {
    /// Checks everything: header, digest, every slot, entry and source. `tokenizer`: the fingerprint that it must
    /// have been made for.
    pub fn open(bytes: Bytes, tokenizer: Option<&[u8; 32]>) -> Result<Table, EngramError> {
        let header = Header::read(&bytes)?;
        if let Some(wanted) = tokenizer.filter(|wanted| **wanted != header.fingerprint) {
            return Err(EngramError::tokenizer(&header.fingerprint, wanted));
        }
        let meta: Meta = serde_json::from_slice(&bytes[header.sections.meta.clone()])
            .map_err(|_| EngramError::Damaged("its description is no JSON of the known form"))?;
        super::format::check_name(&meta.name)?;
        let mut table = Table { bytes, header, meta, tokens: 0 };
        table.check_sources()?;
        table.check_slots()?;
        table.check_contexts()?;
        Ok(table)
    }

    fn check_sources(&self) -> Result<(), EngramError> {
        let strings = self.meta.strings.len();
        for raw in self.bytes[self.header.sections.sources.clone()].as_chunks::<SOURCE_BYTES>().0 {
            let named = |at| (u32_at(raw, at) as usize) < strings;
            if !named(0) || !named(4) || raw[16] > 5 || raw[17] > 1 || raw[18..].iter().any(|b| *b != 0) {
                return Err(EngramError::Damaged("a source is out of range"));
            }
        }
        Ok(())
    }

    fn check_slots(&mut self) -> Result<(), EngramError> {
        let damaged = |what| Err(EngramError::Damaged(what));
        let view = self.view();
        let good = |bits: u64| {
            let entry = Entry::unpack(bits);
            let token = entry.token < self.header.vocab || entry.is_rest();
            token && entry.count > 0 && u64::from(entry.source) < self.header.counts.sources && bits >> 61 == 0
        };
        if !view.entries.iter().all(|bits| good(u64::from_le_bytes(*bits))) {
            return damaged("an entry is out of range");
        }
        let (mut contexts, mut entries, mut inline) = (0u64, 0u64, 0u64);
        for slot in view.buckets.iter().flat_map(|b| b.as_chunks::<SLOT_BYTES>().0) {
            let (who, what) = (u64_at(slot, 0), u64_at(slot, 8));
            if who == 0 && what == 0 {
                continue;
            }
            let (order, count) = ((who >> CHECK_BITS) as usize & 7, who >> (CHECK_BITS + 3));
            let fits = match count {
                0 => false,
                1 => good(what),
                _ => what.checked_add(count).is_some_and(|end| end <= self.header.counts.entries),
            };
            if !(ORDER_MIN..=ORDER_MAX).contains(&order) || !fits || count > RUN_MAX as u64 {
                return damaged("a slot is out of range");
            }
            contexts += 1;
            if count == 1 { inline += 1 } else { entries += count }
        }
        if contexts != self.header.counts.contexts || entries != self.header.counts.entries {
            return damaged("its counts do not fit its contents");
        }
        self.tokens = (inline + entries) as usize;
        Ok(())
    }

    /// The tokens of each context lead to its own slot.
    fn check_contexts(&self) -> Result<(), EngramError> {
        let view = self.view();
        let (mut contexts, mut tokens) = (0u64, 0u64);
        for (context, run) in self.all() {
            let same = |found: Run<'_>| {
                let many = found.many.len() == run.many.len()
                    && (run.many.is_empty() || found.many.as_ptr() == run.many.as_ptr());
                found.one == run.one && many
            };
            if !view.find(key(&context), context.len() + 1).is_some_and(same) {
                return Err(EngramError::Damaged("a context does not lead to its slot"));
            }
            contexts += 1;
            tokens += context.len() as u64;
        }
        let bytes = tokens * token_bytes(self.header.vocab) as u64;
        match contexts == self.header.counts.contexts && bytes == self.header.counts.context_bytes {
            true => Ok(()),
            false => Err(EngramError::Damaged("its contexts do not fit its slots")),
        }
    }

    pub fn view(&self) -> View<'_> {
        let section = |range: &std::ops::Range<usize>| self.bytes.get(range.clone()).unwrap_or_default();
        let sections = &self.header.sections;
        View {
            filter: match self.header.version {
                1 => Filter::open(),
                _ => Filter::new(section(&sections.filter)),
            },
            buckets: section(&sections.slots).as_chunks().0,
            entries: section(&sections.entries).as_chunks().0,
            sources: section(&sections.sources).as_chunks().0,
        }
    }

    pub fn meta(&self) -> &Meta {
        &self.meta
    }

    /// Lower-case hexadecimal SHA-256 of the contents: what a signature signs.
    pub fn digest(&self) -> String {
        self.header.digest.iter().map(|b| format!("{b:02x}")).collect()
    }

    pub fn fingerprint(&self) -> &[u8; 32] {
        &self.header.fingerprint
    }

    /// Tokens of the vocabulary it was made for.
    pub fn vocab(&self) -> u32 {
        self.header.vocab
    }

    pub fn contexts(&self) -> usize {
        self.header.counts.contexts as usize
    }

    /// Continuations of all contexts together.
    pub fn entries(&self) -> usize {
        self.tokens
    }

    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    pub fn sources(&self) -> Vec<Source> {
        let raw = self.bytes.get(self.header.sections.sources.clone()).unwrap_or_default();
        let string = |raw: &[u8], at| self.meta.strings.get(u32_at(raw, at) as usize).cloned().unwrap_or_default();
        let source = |raw: &[u8; SOURCE_BYTES]| Source {
            principal: string(raw, 0),
            origin: string(raw, 4),
            time_s: u64_at(raw, 8) as i64,
            verdict: raw[16],
            halved: raw[17] == 1,
        };
        raw.as_chunks::<SOURCE_BYTES>().0.iter().map(source).collect()
    }

    /// Every context, in the order of the slots: its tokens, oldest first, and its continuations.
    pub fn all(&self) -> impl Iterator<Item = (Vec<u32>, Run<'_>)> {
        let view = self.view();
        let width = token_bytes(self.header.vocab);
        let mut rest = self.bytes.get(self.header.sections.contexts.clone()).unwrap_or_default();
        let slots = view.buckets.iter().flat_map(|bucket| bucket.as_chunks::<SLOT_BYTES>().0);
        slots.filter_map(move |slot| {
            let (who, what) = (u64_at(slot, 0), u64_at(slot, 8));
            let order = (who >> CHECK_BITS) as usize & 7;
            let (own, later) = rest.split_at_checked(order.saturating_sub(1) * width)?;
            rest = later;
            let token = |raw: &[u8]| raw.iter().rev().fold(0u32, |id, b| id << 8 | u32::from(*b));
            let tokens = own.chunks_exact(width).map(token).collect();
            (who != 0).then(|| Some((tokens, view.run((who >> (CHECK_BITS + 3)) as usize, what)?)))?
        })
    }
}
