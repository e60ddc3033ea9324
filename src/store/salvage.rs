//! A damaged turn log: what can still be read of it becomes a new one. The files are checked before sled opens them
//! (`sled_files`). If one is damaged, a process apart takes every record whose checksum holds into a database beside
//! the old one. That database then takes the old one's place. A log of which nothing can be read is set aside. Either
//! way the log opens, and says what was lost.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::fs::{self, File};
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::forgotten::Forgotten;
use super::record::{HEAD_BYTES, body_of, is_format, unpack};
use super::sled_files::{
    self, Act, BLOB_HEAD_BYTES, Segment, blob, blob_number, blob_path, change, damage, page, segment_at,
};
use super::sled_turns::{COUNTS_KEY, LOCK_PATIENCE, SledTurns, is_turn, named_turn};
use super::{StoreError, TurnCounts, files};
use crate::turn::TurnId;

mod apart;
mod told;

pub use apart::{rebuild_and_tell, rebuild_apart};
pub use told::Salvage;

const DAMAGED: &str = "damaged";
/// Folders of damaged logs that are kept; for more the oldest is removed, which is said.
const DAMAGED_MAX: usize = 3;
/// Most lost turns that are named.
const NAMED_MAX: usize = 100;
const REPORT_BYTES_MAX: u64 = 1 << 20;
/// In the record of a turn that is kept without forgotten words.
const REDACTED: &[u8] = b",\"redacted\":true,";
/// Every turn's record begins so behind its head.
const TURN_BEGINS: &[u8] = b"{\"version\":";

/// How a log is made of the sound records of another: `(from, to, bytes_max)`.
pub type Rebuild<'a> = &'a dyn Fn(&Path, &Path, u64) -> Result<Salvage, StoreError>;

/// In the folder of a log that was made of a damaged one: what came of it. It is written last.
const REPORT: &str = "salvage.json";

/// What came of the salvage that a folder's log was made by.
pub(super) fn last(folder: &Path) -> Option<Salvage> {
    let text = files::read_bounded(&folder.join(REPORT), REPORT_BYTES_MAX).ok()??;
    serde_json::from_str(&text).ok()
}

/// `turns` → `turns.damaged`, and so on.
fn beside(folder: &Path, what: &str) -> PathBuf {
    let mut path = folder.as_os_str().to_owned();
    path.push(".");
    path.push(what);
    path.into()
}

/// Removes what is left of damaged logs: what is forgotten may be in it.
pub(super) fn discard_damaged(folder: &Path) -> io::Result<()> {
    damaged(folder)?.into_values().try_for_each(|folder| remove(&folder))
}

/// The folders of damaged logs, `turns.damaged`, `turns.damaged.2` and so on, in the order in which they were set aside.
fn damaged(folder: &Path) -> io::Result<BTreeMap<u32, PathBuf>> {
    let first = beside(folder, DAMAGED);
    let (Some(above), Some(name)) = (first.parent(), first.file_name().and_then(|name| name.to_str())) else {
        return Ok(BTreeMap::new());
    };
    let entries = match fs::read_dir(if above.as_os_str().is_empty() { Path::new(".") } else { above }) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(BTreeMap::new()),
        entries => entries?,
    };
    let mut found = BTreeMap::new();
    for entry in entries {
        let path = entry?.path();
        let number = match path.file_name().and_then(|own| own.to_str()).and_then(|own| own.strip_prefix(name)) {
            Some("") => Some(1),
            Some(rest) => rest.strip_prefix('.').and_then(|number| number.parse().ok()),
            None => None,
        };
        found.extend(number.map(|number| (number, path)));
    }
    Ok(found)
}

fn remove(folder: &Path) -> io::Result<()> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        done => done,
    }
}

/// Opens the log, and where it is damaged one made of what is sound in it.
pub fn open(folder: &Path, bytes_max: u64, rebuild: Rebuild<'_>) -> Result<SledTurns, StoreError> {
    let rebuilt = beside(folder, "rebuilt");
    // A salvage that was killed between its two last steps.
    if !folder.exists() && rebuilt.join(REPORT).exists() {
        fs::rename(&rebuilt, folder).map_err(StoreError::from_io)?;
    }
    let held = hold(folder)?;
    let (why, _held) = match damage(folder).map_err(StoreError::from_io)? {
        Some(why) => (why, held),
        None => {
            drop(held);
            match guarded(folder, bytes_max) {
                Err(StoreError::Broken(why)) => (why, None),
                opened => return opened,
            }
        }
    };
    tracing::warn!(why, "the turn log is damaged: what is sound in it is taken into a new one");
    remove(&rebuilt).map_err(StoreError::from_io)?;
    let salvage = match rebuild(folder, &rebuilt, bytes_max) {
        Ok(salvage) => Salvage { damage: why, ..salvage },
        Err(error @ StoreError::Disk(_)) => return Err(error),
        Err(error) => Salvage { damage: format!("{why}; {error}"), set_aside: true, ..Salvage::default() },
    };
    let salvage = exchange(folder, &rebuilt, salvage).map_err(StoreError::from_io)?;
    let told = salvage.told();
    tracing::error!(lost = ?salvage.lost, "{told}");
    guarded(folder, bytes_max)
}

/// sled's own lock. While an earlier opening is not closed, it writes yet, and nothing can be said of its files.
pub(super) fn hold(folder: &Path) -> Result<Option<File>, StoreError> {
    let db = match File::options().read(true).write(true).open(folder.join("db")) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        opened => opened.map_err(StoreError::from_io)?,
    };
    match files::locked(&db, LOCK_PATIENCE).map_err(StoreError::from_io)? {
        true => Ok(Some(db)),
        false => Err(StoreError::Disk("the log is still open from before".to_owned())),
    }
}

/// sled panics at some files that it cannot read.
fn guarded(folder: &Path, bytes_max: u64) -> Result<SledTurns, StoreError> {
    let panicked = |_| Err(StoreError::Broken("sled panicked".to_owned()));
    catch_unwind(AssertUnwindSafe(|| SledTurns::open(folder, bytes_max))).unwrap_or_else(panicked)
}

/// The new log takes the place of the old one.
fn exchange(folder: &Path, rebuilt: &Path, mut salvage: Salvage) -> io::Result<Salvage> {
    if salvage.set_aside {
        remove(rebuilt)?;
        files::create_private_dir(rebuilt)?;
    }
    let mut before = damaged(folder)?;
    let number = before.last_key_value().map_or(1, |(last, _)| last.saturating_add(1));
    salvage.damaged = match number {
        1 => beside(folder, DAMAGED),
        number => beside(folder, &format!("{DAMAGED}.{number}")),
    };
    while before.len() >= DAMAGED_MAX {
        salvage.removed.extend(before.pop_first().map(|(_, oldest)| oldest));
    }
    let report = serde_json::to_vec(&salvage).map_err(io::Error::other)?;
    files::write_durable(&rebuilt.join(REPORT), &report)?;
    salvage.removed.iter().try_for_each(|oldest| remove(oldest))?;
    fs::rename(folder, &salvage.damaged)?;
    fs::rename(rebuilt, folder)?;
    File::open(folder.parent().unwrap_or(Path::new(".")))?.sync_all()?;
    Ok(salvage)
}

/// Makes a log at `to` of the sound records of the one at `from`; where that is too much, the oldest turns go.
pub fn rebuild(from: &Path, to: &Path, bytes_max: u64) -> Result<Salvage, StoreError> {
    let found = Found::read(from, Forgotten::read(from)).map_err(StoreError::from_io)?;
    let source = Source { folder: from, db: File::open(from.join("db")).ok() };
    let mut log = SledTurns::open(to, u64::MAX)?;
    let mut salvage = Salvage::default();
    for (id, turn) in found.turns.iter().rev() {
        let of_turn = found.of_turn.get(id);
        let mut records = Vec::new();
        for (key, place) in of_turn.into_iter().flatten() {
            records.push((key.clone(), source.record(place)?));
        }
        if log.restore(id, source.record(turn)?, records)? {
            salvage.turns += 1;
            for key in of_turn.into_iter().flat_map(BTreeMap::keys) {
                let judged = key.first() == COUNTS_KEY.first();
                *(if judged { &mut salvage.judgements } else { &mut salvage.feedback }) += 1;
            }
        }
    }
    for (key, place) in &found.sessions {
        salvage.sessions += u64::from(log.restore_session(key, &source.record(place)?)?);
    }
    let lost: Vec<&String> = found.named.iter().filter(|id| !found.turns.contains_key(*id)).collect();
    salvage.turns_lost = found.counts.map_or(0, |counts| counts.turns.saturating_sub(salvage.turns));
    salvage.turns_lost = salvage.turns_lost.max(lost.len() as u64);
    salvage.lost = lost.into_iter().take(NAMED_MAX).cloned().collect();
    log.link_all()?;
    salvage.turns -= log.limit(bytes_max)?;
    log.flush_now()?;
    Ok(salvage)
}

/// Where a record lies.
#[derive(Clone, Debug)]
struct Place {
    /// Absent: in `db`.
    blob: Option<i64>,
    at: u64,
    bytes: usize,
}

struct Source<'a> {
    folder: &'a Path,
    db: Option<File>,
}

impl Source<'_> {
    fn record(&self, place: &Place) -> Result<Vec<u8>, StoreError> {
        let mut record = vec![0; place.bytes];
        let read = match (place.blob, &self.db) {
            (Some(number), _) => {
                File::open(blob_path(self.folder, number)).and_then(|file| file.read_exact_at(&mut record, place.at))
            }
            (None, Some(db)) => db.read_exact_at(&mut record, place.at),
            (None, None) => Err(io::ErrorKind::NotFound.into()),
        };
        read.map(|()| record).map_err(StoreError::from_io)
    }
}

/// The sound records of a log.
#[derive(Default)]
struct Found {
    turns: BTreeMap<String, Place>,
    /// Copies that need not be a turn's last, and whether they are without forgotten words.
    maybe_turns: HashMap<String, (Place, bool)>,
    /// By turn: feedback and judgements under their keys.
    of_turn: HashMap<String, BTreeMap<Vec<u8>, Place>>,
    sessions: BTreeMap<Vec<u8>, Place>,
    /// On pages that are damaged.
    maybe_sessions: Vec<(Vec<u8>, Place)>,
    counts: Option<TurnCounts>,
    /// Blobs that a message names.
    blobs: HashSet<i64>,
    /// Turns that the log knows last.
    named: BTreeSet<String>,
    forgotten: Forgotten,
}

/// A page as its messages leave it: what its keys begin with, and the keys.
#[derive(Default)]
struct Page {
    prefix: Option<Vec<u8>>,
    keys: BTreeMap<Vec<u8>, Option<Place>>,
}

impl Found {
    fn read(folder: &Path, forgotten: Forgotten) -> io::Result<Found> {
        let mut found = Found { forgotten, ..Found::default() };
        // The order of the log is not that of the file.
        let mut order = Vec::new();
        sled_files::segments(folder, |segment| order.push((segment.number, segment.place)))?;
        order.sort_unstable();
        let mut pages: HashMap<u64, Page> = HashMap::new();
        let db = if order.is_empty() { None } else { Some(File::open(folder.join("db"))?) };
        for (_, place) in order {
            if let Some(segment) = db.as_ref().map_or(Ok(None), |db| segment_at(db, place))? {
                found.take_segment(folder, &segment, &mut pages)?;
            }
        }
        found.take_other_blobs(folder, &mut pages)?;
        found.take_pages(pages);
        found.turns.retain(|id, _| !found.forgotten.holds(id));
        Ok(found)
    }

    fn take_segment(&mut self, folder: &Path, segment: &Segment, pages: &mut HashMap<u64, Page>) -> io::Result<()> {
        for message in &segment.messages {
            let body = &segment.bytes[message.body.clone()];
            let at = segment.place + message.body.start as u64;
            if !message.in_blob {
                self.take_message(message.act, message.page, message.sound, (body, None, at), pages);
                continue;
            }
            let Some(number) = blob_number(body).filter(|_| matches!(message.act, Act::Replace | Act::Change)) else {
                continue;
            };
            self.blobs.insert(number);
            let Some((bytes, sound)) = blob(&blob_path(folder, number))? else { continue };
            let Some(body) = bytes.get(BLOB_HEAD_BYTES..) else { continue };
            let from = (body, Some(number), BLOB_HEAD_BYTES as u64);
            self.take_message(message.act, message.page, message.sound && sound, from, pages);
            if !sound {
                self.carve(body, Some(number), BLOB_HEAD_BYTES as u64);
            }
        }
        for gap in &segment.gaps {
            self.carve(&segment.bytes[gap.clone()], None, segment.place + gap.start as u64);
        }
        let older = segment.older.clone();
        if self.forgotten.complete() {
            self.carve(&segment.bytes[older.clone()], None, segment.place + older.start as u64);
        }
        Ok(())
    }

    /// Blobs whose messages are lost: what they hold is sound all the same.
    fn take_other_blobs(&mut self, folder: &Path, pages: &mut HashMap<u64, Page>) -> io::Result<()> {
        for number in sled_files::blob_numbers(folder)? {
            if self.blobs.contains(&number) {
                continue;
            }
            let Some((bytes, _)) = blob(&blob_path(folder, number))? else { continue };
            let Some(body) = bytes.get(BLOB_HEAD_BYTES..) else { continue };
            for act in [Act::Replace, Act::Change] {
                self.take_message(act, u64::MAX, false, (body, Some(number), BLOB_HEAD_BYTES as u64), pages);
            }
            self.carve(body, Some(number), BLOB_HEAD_BYTES as u64);
        }
        Ok(())
    }

    fn take_message(
        &mut self,
        act: Act,
        number: u64,
        sound: bool,
        (body, blob, at): (&[u8], Option<i64>, u64),
        pages: &mut HashMap<u64, Page>,
    ) {
        let place = |range: &Range<usize>| Place { blob, at: at + range.start as u64, bytes: range.len() };
        match act {
            Act::Replace => {
                let Some((prefix, items)) = page(body) else { return };
                let mut keys = BTreeMap::new();
                for (key, range) in items {
                    let record = self.take(&key, &body[range.clone()], place(&range), sound);
                    keys.insert(key, record);
                }
                if sound {
                    pages.insert(number, Page { prefix: Some(prefix), keys });
                }
            }
            Act::Change => {
                let Some((key, value)) = change(body) else { return };
                let known = pages.get(&number).and_then(|page| page.prefix.as_ref());
                let key = match (known, &value) {
                    (Some(prefix), _) => [prefix, key].concat(),
                    // What its keys begin with was lost with the page. A turn says its id itself.
                    (None, Some(range)) => match turn_id(&body[range.clone()]) {
                        Some(id) => id.0.into_bytes(),
                        None => return,
                    },
                    (None, None) => return,
                };
                let record = value.map(|range| self.take(&key, &body[range.clone()], place(&range), sound));
                if sound {
                    let keys = &mut pages.entry(number).or_default().keys;
                    match record {
                        Some(record) => drop(keys.insert(key, record)),
                        None => drop(keys.remove(&key)),
                    }
                }
            }
            Act::Free if sound => drop(pages.remove(&number)),
            Act::Free | Act::Other => {}
        }
    }

    /// Keeps a record whose checksum holds: where it lies, if it does.
    fn take(&mut self, key: &[u8], record: &[u8], place: Place, sound: bool) -> Option<Place> {
        let body = body_of(record).ok()?;
        if body.starts_with(TURN_BEGINS) {
            self.take_turn(record, place.clone(), sound);
        } else if key == COUNTS_KEY {
            self.counts = unpack(COUNTS_KEY, record).ok().or(self.counts);
        } else if key.contains(&0) {
            self.maybe_sessions.extend((!sound).then(|| (key.to_vec(), place.clone())));
        } else if let Some(id) = named_turn(key) {
            self.of_turn.entry(id.to_owned()).or_default().insert(key.to_vec(), place.clone());
        }
        Some(place)
    }

    /// A copy that is not the last state of a sound page may be of a turn that was taken away since: it counts where all
    /// that was forgotten is known.
    fn take_turn(&mut self, record: &[u8], place: Place, sound: bool) {
        if (self.forgotten.complete() || !sound)
            && let Some(id) = turn_id(record)
        {
            let redacted = record.windows(REDACTED.len()).any(|window| window == REDACTED);
            let known = self.maybe_turns.get(&id.0).is_some_and(|(_, known)| *known);
            if redacted || !known && !self.forgotten.redacted(&id.0) {
                self.maybe_turns.insert(id.0, (place, redacted));
            }
        }
    }

    /// What the pages hold at last.
    fn take_pages(&mut self, pages: HashMap<u64, Page>) {
        for (key, place) in pages.into_values().flat_map(|page| page.keys) {
            if let Some(id) = named_turn(&key) {
                self.named.insert(id.to_owned());
            }
            match place {
                Some(place) if key.contains(&0) => drop(self.sessions.insert(key, place)),
                Some(place) if is_turn(&key) => {
                    if let Some(id) = named_turn(&key) {
                        self.turns.insert(id.to_owned(), place);
                    }
                }
                _ => {}
            }
        }
        // A record may have been written anew, in full or without forgotten words: what a page holds at last counts.
        for (id, (place, _)) in std::mem::take(&mut self.maybe_turns) {
            self.turns.entry(id).or_insert(place);
        }
        for (key, place) in std::mem::take(&mut self.maybe_sessions) {
            self.sessions.entry(key).or_insert(place);
        }
    }

    /// Turns whose records are sound in bytes that are not: their checksums say where they are.
    fn carve(&mut self, bytes: &[u8], blob: Option<i64>, at: u64) {
        let mut from = HEAD_BYTES;
        while let Some(begins) = find(bytes, from) {
            from = begins + 1;
            let start = begins - HEAD_BYTES;
            if !is_format(bytes[start]) {
                continue;
            }
            let mut values =
                serde_json::Deserializer::from_slice(&bytes[begins..]).into_iter::<serde::de::IgnoredAny>();
            if !matches!(values.next(), Some(Ok(_))) {
                continue;
            }
            let record = &bytes[start..begins + values.byte_offset()];
            if body_of(record).is_ok() {
                from = start + record.len();
                self.take_turn(record, Place { blob, at: at + start as u64, bytes: record.len() }, false);
            }
        }
    }
}

/// The id that a turn's record says.
fn turn_id(record: &[u8]) -> Option<TurnId> {
    #[derive(Deserialize)]
    struct Named {
        id: TurnId,
    }
    let is = record.get(HEAD_BYTES..)?.starts_with(TURN_BEGINS);
    is.then(|| unpack::<Named>(b"", record).ok()).flatten().map(|named| named.id)
}

/// Where a turn's text may begin, not before `from`.
fn find(bytes: &[u8], from: usize) -> Option<usize> {
    let behind = bytes.get(from..)?;
    behind.windows(TURN_BEGINS.len()).position(|window| window == TURN_BEGINS).map(|at| from + at)
}

#[cfg(test)]
#[path = "salvage_tests.rs"]
mod tests;
