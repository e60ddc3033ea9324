//! The turn log in sled, in the trees `log`, `sessions` and `meta` (`format`). The keys of `log` are:
//!
//! - turn id → record; turn id, `/`, time and a serial → feedback;
//! - `!counts` → size of the log;
//! - `!judged/` and turn id → judgement; `!unscored/` and turn id → nothing, while the turn has none;
//! - `!corrected/`, turn id, `/` and the correction's hash → the judgement of that correction;
//! - `!said/`, `!follows/` → which turns go on with which (`chain`).
//!
//! A record is as `record` says. Ids sort by time, and so do keys; a turn's feedback follows it.
//!
//! One lock covers every change, which is one batch with the counts in it: after a crash they still agree. Readers
//! take no lock. There are no sled transactions and no `flush_async` (see `flusher`): a burst of them hung.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use std::{io, thread};

use futures_util::future::BoxFuture;
use sha2::{Digest, Sha256};
use sled::{Batch, Db, Tree};

use super::flusher::Flusher;
use super::record::{pack, unpack};
use super::salvage::{self, Salvage};
use super::sessions::Sessions;
use super::turn_id::{PREFIX, began_ms};
use super::{
    FEEDBACK_MAX, GoesOn, LIST_LIMIT, Marks, PIECE_BYTES, PIECE_TURNS, Piece, StoreError, TURNS_FORMAT, TurnCounts,
    TurnStore, first_turn_id, forgotten, passes,
};
use crate::service::{Session, TurnFilter};
use crate::turn::{Feedback, Judgement, Turn, TurnId};

mod chain;
mod newest;
mod restore;

pub(super) use restore::named_turn;

use chain::{Change, Seen};

/// Memory of sled's page cache, bytes.
const CACHE_BYTES: u64 = 32 << 20;
pub(super) const LOCK_PATIENCE: Duration = Duration::from_secs(2);
const LOCK_RETRY: Duration = Duration::from_millis(10);
/// Stands in a feedback's key between the turn's id and the rest; no id contains it.
const FEEDBACK_MARK: u8 = b'/';
/// Sorts before every id.
pub(super) const COUNTS_KEY: &[u8] = b"!counts";
/// Sorts behind everything that begins with `!`, before every id.
const FIRST_TURN: &[u8] = b"\"";
/// Turns that began so long after the one that came last are of a clock that ran ahead.
const AHEAD_MS: i64 = 86_400_000;
const JUDGED_PREFIX: &str = "!judged/";
const CORRECTED_PREFIX: &str = "!corrected/";
/// Bytes of a correction's SHA-256 in its key.
const CORRECTION_BYTES: usize = 16;
const UNSCORED_PREFIX: &str = "!unscored/";
/// In this format every turn was whole.
const UNLINKED_FORMAT: u8 = 1;
/// In `meta` while the turns of a log of that format are linked.
const LINKING: &str = "linking";

/// Opens the database, waiting at most `patience` for its lock: as long as what a killed daemon was about to start is not
/// yet a program of its own, it holds the lock. One daemon has the folder (`StateLock`), so nobody else keeps it.
fn open_db(folder: &Path, patience: Duration) -> sled::Result<Db> {
    let began = Instant::now();
    loop {
        let config = sled::Config::new().path(folder).cache_capacity(CACHE_BYTES).flush_every_ms(Some(1_000));
        match config.open() {
            Err(sled::Error::Io(error)) if is_locked(&error) && began.elapsed() < patience => thread::sleep(LOCK_RETRY),
            opened => return opened,
        }
    }
}

/// sled says it in words alone.
fn is_locked(error: &io::Error) -> bool {
    error.to_string().starts_with("could not acquire lock")
}

pub struct SledTurns {
    folder: PathBuf,
    /// Open as long as this is.
    db: Arc<Db>,
    flusher: Flusher,
    log: Tree,
    sessions: Sessions,
    state: Mutex<State>,
    bytes_max: u64,
}

/// What only a writer may see and change.
struct State {
    counts: TurnCounts,
    /// Tells apart two votes of the same millisecond.
    serial: u32,
    /// Turns appended last, whole.
    seen: Seen,
}

impl SledTurns {
    /// Opens or makes the log in a folder; above `bytes_max` bytes of records the oldest are dropped.
    pub fn open(folder: &Path, bytes_max: u64) -> Result<Self, StoreError> {
        let begins = !folder.join("db").exists();
        let db = open_db(folder, LOCK_PATIENCE).map_err(disk)?;
        if begins {
            // From here on a log without `db` has lost it.
            db.flush().map_err(disk)?;
            forgotten::begin(folder).map_err(StoreError::from_io)?;
        }
        let meta = db.open_tree("meta").map_err(disk)?;
        match meta.get("format").map_err(disk)? {
            Some(found) if *found == [TURNS_FORMAT] => {}
            Some(found) if *found == [UNLINKED_FORMAT] => {
                meta.insert(LINKING, &[]).map_err(disk)?;
                meta.insert("format", &[TURNS_FORMAT]).map_err(disk)?;
            }
            Some(found) => return Err(StoreError::Format { found: format!("{found:?}") }),
            None => drop(meta.insert("format", &[TURNS_FORMAT]).map_err(disk)?),
        }
        let log = db.open_tree("log").map_err(disk)?;
        let counts = log.get(COUNTS_KEY).map_err(disk)?.and_then(|counts| unpack(COUNTS_KEY, &counts).ok());
        let counts = counts.map_or_else(|| count(&log), Ok)?;
        let sessions = Sessions::new(db.open_tree("sessions").map_err(disk)?);
        let db = Arc::new(db);
        let flusher = Flusher::start(&db).map_err(|error| StoreError::Disk(error.to_string()))?;
        let state = Mutex::new(State { counts, serial: 0, seen: Seen::default() });
        let turns = SledTurns { folder: folder.to_owned(), db, flusher, log, sessions, state, bytes_max };
        if meta.contains_key(LINKING).map_err(disk)? {
            tracing::info!("the turn log is of an earlier version: turns of one conversation now share its text");
            turns.link_all()?;
            meta.remove(LINKING).map_err(disk)?;
        }
        Ok(turns)
    }

    /// A panic while the lock was held left at worst the counts a little off.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Applies a change together with the counts that hold after it.
    fn apply(&self, state: &mut State, Change { mut batch, counts }: Change) -> Result<(), StoreError> {
        batch.insert(COUNTS_KEY, pack(&counts)?);
        self.log.apply_batch(batch).map_err(disk)?;
        state.counts = counts;
        Ok(())
    }

    /// Removes a turn and what is kept beside it; `turn`: it whole, where it can be read.
    fn take_out(&self, change: &mut Change, id: &[u8], record: &[u8], turn: Option<&Turn>) -> Result<(), StoreError> {
        if let Some(turn) = turn {
            self.unlink(&mut change.batch, turn, None)?;
        }
        change.batch.remove(id);
        change.batch.remove(beside(JUDGED_PREFIX, id));
        change.batch.remove(beside(UNSCORED_PREFIX, id));
        let corrected = self.log.scan_prefix(prefix(&beside(CORRECTED_PREFIX, id))).keys();
        for key in self.log.scan_prefix(prefix(id)).keys().chain(corrected) {
            change.batch.remove(key.map_err(disk)?);
        }
        let counts = &mut change.counts;
        counts.turns = counts.turns.saturating_sub(1);
        counts.bytes = counts.bytes.saturating_sub(record.len() as u64 + self.feedback_bytes(id)?);
        Ok(())
    }

    /// Is the turn that a session has come to still kept.
    fn there(&self, session: &Session) -> Result<bool, StoreError> {
        Ok(is_turn(session.turn.0.as_bytes()) && self.log.contains_key(&session.turn.0).map_err(disk)?)
    }

    fn feedback_bytes(&self, id: &[u8]) -> Result<u64, StoreError> {
        self.log.scan_prefix(prefix(id)).values().map(|vote| Ok(vote.map_err(disk)?.len() as u64)).sum()
    }

    /// Makes room by dropping turns: those of a clock that ran ahead of `spared`, which came last, then those that began
    /// first. `spared` stays.
    fn drop_oldest(&self, state: &mut State, spared: Option<&TurnId>) -> Result<u64, StoreError> {
        let mut dropped = 0;
        let goes = |key: &[u8]| is_turn(key) && spared.is_none_or(|turn| turn.0.as_bytes() != key);
        let first = |from: &[u8]| {
            let found = self.log.range(from..).find(|entry| entry.as_ref().is_ok_and(|(key, _)| goes(key)));
            found.transpose().map_err(disk)
        };
        let ahead = spared.and_then(began_ms).map(|ms| first_turn_id(ms.saturating_add(AHEAD_MS)));
        while state.counts.bytes > self.bytes_max {
            let ahead = ahead.as_ref().map(|from| first(from.0.as_bytes())).transpose()?.flatten();
            let Some((id, record)) = ahead.map_or_else(|| first(FIRST_TURN), |found| Ok(Some(found)))? else { break };
            state.seen = Seen::default();
            let mut change = Change::new(state);
            self.drop_one(&mut change, &id, &record)?;
            self.apply(state, change)?;
            dropped += 1;
        }
        Ok(dropped)
    }

    fn read(&self, id: &[u8], record: &[u8], seen: &mut Seen) -> Result<Turn, StoreError> {
        let mut turn = self.whole(id, record, seen)?;
        for vote in self.log.scan_prefix(prefix(id)).values() {
            let mut feedback: Feedback = unpack(id, &vote.map_err(disk)?)?;
            if let Some(correction) = &feedback.correction
                && let Some(judged) = self.log.get(corrected(id, correction)).map_err(disk)?
            {
                feedback.judgement = Some(unpack(id, &judged)?);
            }
            turn.feedback.push(feedback);
        }
        if let Some(judged) = self.log.get(beside(JUDGED_PREFIX, id)).map_err(disk)? {
            let judgement: Judgement = unpack(id, &judged)?;
            turn.verdict = judgement.verdict();
            turn.judgement = Some(judgement);
        }
        Ok(turn)
    }

    /// The next turns behind `after`, at most `PIECE_TURNS` of them or `PIECE_BYTES` of their records, until `each` returns false; behind which turn to
    /// go on. Turns whose id says that they began before `since_ms` are passed over unread.
    fn walk(
        &self,
        (after, since_ms): (Option<&TurnId>, Option<i64>),
        mut each: impl FnMut(&[u8], &[u8]) -> Result<bool, StoreError>,
    ) -> Result<Option<TurnId>, StoreError> {
        let start = after.map_or(FIRST_TURN, |after| after.0.as_bytes());
        let first = since_ms.map_or_else(Vec::new, |since| first_turn_id(since).0.into_bytes());
        // Ids that say no time come before.
        let timeless = (start < PREFIX.as_bytes()).then(|| self.log.range(start..PREFIX.as_bytes()));
        let timed = self.log.range(start.max(PREFIX.as_bytes()).max(first.as_slice())..);
        let (mut seen, mut bytes) = (0, 0);
        for entry in timeless.into_iter().flatten().chain(timed) {
            let (key, record) = entry.map_err(disk)?;
            if !is_turn(&key) || after.is_some_and(|after| *key <= *after.0.as_bytes()) {
                continue;
            }
            (seen, bytes) = (seen + 1, bytes + record.len());
            if !each(&key, &record)? || seen == PIECE_TURNS || bytes >= PIECE_BYTES {
                return Ok(Some(TurnId(String::from_utf8_lossy(&key).into_owned())));
            }
        }
        Ok(None)
    }

    /// The turn, where it passes. A damaged record is reported and passed over: one bad page must not hide the rest
    /// of the log.
    fn passing(
        &self,
        filter: &TurnFilter,
        key: &[u8],
        record: &[u8],
        seen: &mut Seen,
    ) -> Result<Option<Turn>, StoreError> {
        let read = unpack(key, record).map(|turn| passes(filter, &turn).then(|| self.read(key, record, seen)));
        match read.and_then(Option::transpose) {
            Ok(turn) => Ok(turn),
            Err(error @ StoreError::Damaged { .. }) => {
                tracing::error!(%error, "turn passed over");
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }
}

impl TurnStore for SledTurns {
    fn append(&self, turn: &Turn) -> Result<u64, StoreError> {
        self.add(&mut self.state(), turn)
    }

    fn append_on(&self, mut turn: Turn, goes_on: &GoesOn) -> Result<u64, StoreError> {
        let mut state = self.state();
        self.spare(&mut state, &mut turn, goes_on)?;
        self.add(&mut state, &turn)
    }

    fn add_feedback(&self, id: &TurnId, feedback: &Feedback) -> Result<(), StoreError> {
        let mut state = self.state();
        if !self.log.contains_key(&id.0).map_err(disk)? {
            return Err(StoreError::Unknown(id.0.clone()));
        }
        if self.log.scan_prefix(prefix(id.0.as_bytes())).keys().take(FEEDBACK_MAX).count() == FEEDBACK_MAX {
            return Err(StoreError::FeedbackFull(id.0.clone()));
        }
        state.serial = state.serial.wrapping_add(1);
        let key = format!("{}/{:016x}{:08x}", id.0, feedback.time_ms, state.serial);
        let record = pack(feedback)?;
        // What is too much now makes room at the next turn.
        let mut change = Change::new(&state);
        change.counts.bytes += record.len() as u64;
        change.batch.insert(key.as_bytes(), record);
        self.link_correction(&mut state, &mut change.batch, id, feedback)?;
        self.apply(&mut state, change)
    }

    fn add_judgement(&self, id: &TurnId, judgement: &Judgement) -> Result<bool, StoreError> {
        let _state = self.state();
        if !self.log.contains_key(&id.0).map_err(disk)? {
            return Err(StoreError::Unknown(id.0.clone()));
        }
        let key = beside(JUDGED_PREFIX, id.0.as_bytes());
        if self.log.contains_key(&key).map_err(disk)? {
            return Ok(false);
        }
        // One batch: a turn is never both judged and waiting.
        let mut batch = Batch::default();
        batch.insert(key, pack(judgement)?);
        batch.remove(beside(UNSCORED_PREFIX, id.0.as_bytes()));
        self.log.apply_batch(batch).map_err(disk)?;
        Ok(true)
    }

    fn add_correction_judgement(
        &self,
        id: &TurnId,
        correction: &str,
        judgement: &Judgement,
    ) -> Result<bool, StoreError> {
        let _state = self.state();
        if !self.log.contains_key(&id.0).map_err(disk)? {
            return Err(StoreError::Unknown(id.0.clone()));
        }
        let key = corrected(id.0.as_bytes(), correction);
        if self.log.contains_key(&key).map_err(disk)? {
            return Ok(false);
        }
        self.log.insert(key, pack(judgement)?).map_err(disk)?;
        Ok(true)
    }

    fn unscored(&self, after: Option<&TurnId>, limit: usize) -> Result<Vec<TurnId>, StoreError> {
        let start = beside(UNSCORED_PREFIX, after.map_or(b"", |id| id.0.as_bytes()));
        let mut ids = Vec::new();
        for key in self.log.range(start..).keys() {
            let key = key.map_err(disk)?;
            let Some(id) = key.strip_prefix(UNSCORED_PREFIX.as_bytes()) else { break };
            let id = TurnId(String::from_utf8_lossy(id).into_owned());
            if ids.len() == limit {
                break;
            }
            if after.is_none_or(|after| id > *after) {
                ids.push(id);
            }
        }
        Ok(ids)
    }

    fn get(&self, id: &TurnId) -> Result<Option<Turn>, StoreError> {
        let record = if is_turn(id.0.as_bytes()) { self.log.get(&id.0).map_err(disk)? } else { None };
        record.map(|record| self.read(id.0.as_bytes(), &record, &mut Seen::default())).transpose()
    }

    fn list_piece(&self, filter: &TurnFilter) -> Result<Piece<Vec<Turn>>, StoreError> {
        let limit = filter.limit.unwrap_or(LIST_LIMIT);
        if limit == 0 {
            return Ok(Piece { value: Vec::new(), next: None });
        }
        if let Some(id) = &filter.turn {
            let found = self.get(id)?.filter(|turn| passes(filter, &Marks::of(turn)));
            return Ok(Piece { value: found.into_iter().collect(), next: None });
        }
        if filter.newest_first {
            return self.newest_piece(filter, limit);
        }
        let (mut value, mut seen) = (Vec::new(), Seen::default());
        let next = self.walk((filter.after.as_ref(), filter.since_ms), |key, record| {
            value.extend(self.passing(filter, key, record, &mut seen)?);
            Ok(value.len() < limit)
        })?;
        Ok(Piece { value, next })
    }

    fn followers_piece(&self, filter: &TurnFilter) -> Result<Piece<Vec<TurnId>>, StoreError> {
        let Piece { value, next } = self.chosen(filter)?;
        Ok(Piece { value: self.followers_of(&value)?, next })
    }

    fn forget_piece(&self, filter: &TurnFilter) -> Result<Piece<usize>, StoreError> {
        let Piece { value: mut chosen, next } = self.chosen(filter)?;
        if filter.turn.is_none() {
            // What goes anyway is not written anew before.
            for id in self.followers_of(&chosen)? {
                let record = self.log.get(&id.0).map_err(disk)?;
                let all = TurnFilter { after: None, ..filter.clone() };
                let goes = |record: sled::IVec| self.of_filter(&all, id.0.as_bytes(), &record);
                chosen.extend(record.is_some_and(goes).then(|| id.0.into_bytes()));
            }
        }
        // Before anything is gone, so that nothing of it can come back.
        salvage::discard_damaged(&self.folder).map_err(StoreError::from_io)?;
        forgotten::add(&self.folder, chosen.iter().map(Vec::as_slice)).map_err(StoreError::from_io)?;
        forgotten::add_redacted(&self.folder, &self.followers_of(&chosen)?).map_err(StoreError::from_io)?;
        let value = self.forget_all(chosen)?;
        if next.is_none() {
            self.sessions.retain(|session| self.there(session))?;
        }
        Ok(Piece { value, next })
    }

    fn was_forgotten(&self, id: &TurnId) -> Result<bool, StoreError> {
        Ok(self.may_be_forgotten(id))
    }

    fn put_session(&self, session: &Session) -> Result<(), StoreError> {
        // Under the lock of the changes: no forgetting comes in between.
        let _state = self.state();
        if !self.there(session)? {
            return Err(StoreError::Unknown(session.turn.0.clone()));
        }
        self.sessions.put(session)
    }

    fn session(&self, principal: &str, name: &str) -> Result<Option<Session>, StoreError> {
        let Some(session) = self.sessions.get(principal, name)? else { return Ok(None) };
        Ok(self.there(&session)?.then_some(session))
    }

    fn sessions(&self, principal: &str) -> Result<Vec<Session>, StoreError> {
        let mut sessions = self.sessions.of(principal)?;
        let mut failed = Ok(());
        sessions.retain(|session| {
            self.there(session).unwrap_or_else(|error| {
                failed = Err(error);
                false
            })
        });
        failed.map(|()| sessions)
    }

    fn room_for_session(&self, principal: &str) -> Result<(), StoreError> {
        self.sessions.room(principal)
    }

    fn remove_session(&self, principal: &str, name: &str) -> Result<bool, StoreError> {
        self.sessions.remove(principal, name)
    }

    fn counts(&self) -> Result<TurnCounts, StoreError> {
        Ok(self.state().counts)
    }

    fn flush(&self) -> BoxFuture<'static, Result<(), StoreError>> {
        self.flusher.flush()
    }

    fn salvaged(&self) -> Option<Salvage> {
        salvage::last(&self.folder)
    }
}

/// The size of a log that does not say it.
fn count(log: &Tree) -> Result<TurnCounts, StoreError> {
    let mut counts = TurnCounts::default();
    for entry in log.iter() {
        let (key, record) = entry.map_err(disk)?;
        let turn = is_turn(&key);
        counts.turns += u64::from(turn);
        if turn || key.first() != COUNTS_KEY.first() {
            counts.bytes += record.len() as u64;
        }
    }
    Ok(counts)
}

pub(super) fn is_turn(key: &[u8]) -> bool {
    !key.contains(&FEEDBACK_MARK) && key.first() != COUNTS_KEY.first()
}

/// Key of what is kept beside a turn under a name of its own.
fn beside(name: &str, id: &[u8]) -> Vec<u8> {
    [name.as_bytes(), id].concat()
}

/// Key of the judgement of a correction: the same correction is judged once.
fn corrected(id: &[u8], correction: &str) -> Vec<u8> {
    let digest = Sha256::digest(correction.as_bytes());
    let digits: String = digest.iter().take(CORRECTION_BYTES).map(|byte| format!("{byte:02x}")).collect();
    [&prefix(&beside(CORRECTED_PREFIX, id)), digits.as_bytes()].concat()
}

/// Keys of a turn's feedback begin with this.
fn prefix(id: &[u8]) -> Vec<u8> {
    [id, &[FEEDBACK_MARK]].concat()
}

pub(super) fn disk(error: sled::Error) -> StoreError {
    match error {
        // Its own words are a debugger's.
        sled::Error::Io(error) => StoreError::from_io(error),
        sled::Error::CollectionNotFound(_) => StoreError::Disk(error.to_string()),
        sled::Error::Corruption { .. } | sled::Error::ReportableBug(_) | sled::Error::Unsupported(_) => {
            StoreError::Broken(error.to_string())
        }
    }
}

#[cfg(test)]
#[path = "sled_turns_tests.rs"]
mod tests;
