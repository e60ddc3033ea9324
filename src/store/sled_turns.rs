//! The turn log in sled. Trees: `log` (turn id → record; turn id, `/`, time and a serial → feedback; `!counts` →
//! size of the log; `!judged/` and turn id → judgement; `!unscored/` and turn id → nothing, while it has none) and
//! `meta` (`format`). A record is a format byte, 8 bytes of the SHA-256 of the rest, JSON. Ids
//! sort by time, and so do keys; a turn's feedback follows it.
//!
//! One lock covers every change, which is one batch with the counts in it: after a crash they still agree. Readers
//! take no lock. There are no sled transactions and no `flush_async` (see `flusher`): a burst of them hung.

use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures_util::future::BoxFuture;
use serde::Serialize;
use serde::de::DeserializeOwned;
use sha2::{Digest, Sha256};
use sled::{Batch, Db, Tree};

use super::flusher::Flusher;
use super::{LIST_LIMIT, StoreError, TURNS_FORMAT, TurnCounts, TurnStore, passes};
use crate::service::TurnFilter;
use crate::turn::{Feedback, Judgement, Turn, TurnId};

const HEAD_BYTES: usize = 9;
/// Memory of sled's page cache, bytes.
const CACHE_BYTES: u64 = 32 << 20;
/// Stands in a feedback's key between the turn's id and the rest; no id contains it.
const FEEDBACK_MARK: u8 = b'/';
/// Sorts before every id.
const COUNTS_KEY: &[u8] = b"!counts";
/// Sorts behind everything that begins with `!`, before every id.
const FIRST_TURN: &[u8] = b"\"";
const JUDGED_PREFIX: &str = "!judged/";
const UNSCORED_PREFIX: &str = "!unscored/";

pub struct SledTurns {
    /// Open as long as this is.
    _db: Arc<Db>,
    flusher: Flusher,
    log: Tree,
    state: Mutex<State>,
    bytes_max: u64,
}

/// What only a writer may see and change.
struct State {
    counts: TurnCounts,
    /// Tells apart two votes of the same millisecond.
    serial: u32,
}

impl SledTurns {
    /// Opens or makes the log in a folder; above `bytes_max` bytes of records the oldest are dropped.
    pub fn open(folder: &Path, bytes_max: u64) -> Result<Self, StoreError> {
        let db = sled::Config::new()
            .path(folder)
            .cache_capacity(CACHE_BYTES)
            .flush_every_ms(Some(1_000))
            .open()
            .map_err(disk)?;
        let meta = db.open_tree("meta").map_err(disk)?;
        match meta.get("format").map_err(disk)? {
            Some(found) if *found == [TURNS_FORMAT] => {}
            Some(found) => return Err(StoreError::Format { found: format!("{found:?}") }),
            None => drop(meta.insert("format", &[TURNS_FORMAT]).map_err(disk)?),
        }
        let log = db.open_tree("log").map_err(disk)?;
        let counts = match log.get(COUNTS_KEY).map_err(disk)? {
            Some(counts) => unpack(COUNTS_KEY, &counts)?,
            None => count(&log)?,
        };
        let db = Arc::new(db);
        let flusher = Flusher::start(&db).map_err(|error| StoreError::Disk(error.to_string()))?;
        Ok(SledTurns { _db: db, flusher, log, state: Mutex::new(State { counts, serial: 0 }), bytes_max })
    }

    /// A panic while the lock was held left at worst the counts a little off.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Applies a change together with the counts that hold after it.
    fn apply(&self, state: &mut State, mut batch: Batch, counts: TurnCounts) -> Result<(), StoreError> {
        batch.insert(COUNTS_KEY, pack(&counts)?);
        self.log.apply_batch(batch).map_err(disk)?;
        state.counts = counts;
        Ok(())
    }

    /// Removes a turn and its feedback.
    fn remove(&self, state: &mut State, id: &[u8]) -> Result<bool, StoreError> {
        let Some(old) = self.log.get(id).map_err(disk)? else { return Ok(false) };
        let mut batch = Batch::default();
        batch.remove(id);
        batch.remove(beside(JUDGED_PREFIX, id));
        batch.remove(beside(UNSCORED_PREFIX, id));
        for key in self.log.scan_prefix(prefix(id)).keys() {
            batch.remove(key.map_err(disk)?);
        }
        let counts = TurnCounts {
            turns: state.counts.turns.saturating_sub(1),
            bytes: state.counts.bytes.saturating_sub(old.len() as u64),
        };
        self.apply(state, batch, counts)?;
        Ok(true)
    }

    fn drop_oldest(&self, state: &mut State) -> Result<u64, StoreError> {
        let mut dropped = 0;
        while state.counts.bytes > self.bytes_max {
            let oldest = self.log.range(FIRST_TURN..).keys().find(|key| key.as_ref().is_ok_and(|key| is_turn(key)));
            let Some(oldest) = oldest.transpose().map_err(disk)? else { break };
            dropped += u64::from(self.remove(state, &oldest)?);
        }
        Ok(dropped)
    }

    fn read(&self, id: &[u8], record: &[u8]) -> Result<Turn, StoreError> {
        let mut turn: Turn = unpack(id, record)?;
        for vote in self.log.scan_prefix(prefix(id)).values() {
            turn.feedback.push(unpack(id, &vote.map_err(disk)?)?);
        }
        if let Some(judged) = self.log.get(beside(JUDGED_PREFIX, id)).map_err(disk)? {
            let judgement: Judgement = unpack(id, &judged)?;
            turn.verdict = judgement.verdict();
            turn.judgement = Some(judgement);
        }
        Ok(turn)
    }

    /// Calls `each` with the turns that pass, in order, until it returns false. A damaged record is reported
    /// and passed over: one bad page must not hide the rest of the log.
    fn scan(&self, filter: &TurnFilter, mut each: impl FnMut(Turn) -> bool) -> Result<(), StoreError> {
        let start = filter.after.as_ref().map_or(FIRST_TURN.to_vec(), |after| after.0.as_bytes().to_vec());
        for entry in self.log.range(start..) {
            let (key, record) = entry.map_err(disk)?;
            if !is_turn(&key) {
                continue;
            }
            let turn = match self.read(&key, &record) {
                Ok(turn) => turn,
                Err(error @ StoreError::Damaged { .. }) => {
                    tracing::error!(%error, "turn passed over");
                    continue;
                }
                Err(error) => return Err(error),
            };
            if passes(filter, &turn) && !each(turn) {
                break;
            }
        }
        Ok(())
    }
}

impl TurnStore for SledTurns {
    fn append(&self, turn: &Turn) -> Result<u64, StoreError> {
        let record = pack(turn)?;
        let bytes = record.len() as u64;
        if bytes > self.bytes_max {
            return Err(StoreError::TooLarge { bytes, bytes_max: self.bytes_max });
        }
        let mut state = self.state();
        if self.log.contains_key(&turn.id.0).map_err(disk)? {
            return Ok(0);
        }
        let mut batch = Batch::default();
        batch.insert(turn.id.0.as_bytes(), record);
        batch.insert(beside(UNSCORED_PREFIX, turn.id.0.as_bytes()), &[]);
        let counts = TurnCounts { turns: state.counts.turns + 1, bytes: state.counts.bytes + bytes };
        self.apply(&mut state, batch, counts)?;
        self.drop_oldest(&mut state)
    }

    fn add_feedback(&self, id: &TurnId, feedback: &Feedback) -> Result<(), StoreError> {
        let mut state = self.state();
        if !self.log.contains_key(&id.0).map_err(disk)? {
            return Err(StoreError::Unknown(id.0.clone()));
        }
        state.serial = state.serial.wrapping_add(1);
        let key = format!("{}/{:016x}{:08x}", id.0, feedback.time_ms, state.serial);
        self.log.insert(key, pack(feedback)?).map_err(disk)?;
        Ok(())
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
        let record = self.log.get(&id.0).map_err(disk)?;
        record.map(|record| self.read(id.0.as_bytes(), &record)).transpose()
    }

    fn list(&self, filter: &TurnFilter) -> Result<Vec<Turn>, StoreError> {
        let limit = filter.limit.unwrap_or(LIST_LIMIT);
        let mut turns = Vec::new();
        if limit > 0 {
            self.scan(filter, |turn| {
                turns.push(turn);
                turns.len() < limit
            })?;
        }
        Ok(turns)
    }

    fn forget(&self, filter: &TurnFilter) -> Result<usize, StoreError> {
        let limit = filter.limit.unwrap_or(usize::MAX);
        let mut ids = Vec::new();
        if limit > 0 {
            self.scan(filter, |turn| {
                ids.push(turn.id);
                ids.len() < limit
            })?;
        }
        let mut removed = 0;
        for id in ids {
            removed += usize::from(self.remove(&mut self.state(), id.0.as_bytes())?);
        }
        Ok(removed)
    }

    fn counts(&self) -> Result<TurnCounts, StoreError> {
        Ok(self.state().counts)
    }

    fn flush(&self) -> BoxFuture<'static, Result<(), StoreError>> {
        self.flusher.flush()
    }
}

/// The size of a log that does not say it.
fn count(log: &Tree) -> Result<TurnCounts, StoreError> {
    let mut counts = TurnCounts::default();
    for entry in log.iter() {
        let (key, record) = entry.map_err(disk)?;
        if is_turn(&key) {
            counts.turns += 1;
            counts.bytes += record.len() as u64;
        }
    }
    Ok(counts)
}

fn is_turn(key: &[u8]) -> bool {
    !key.contains(&FEEDBACK_MARK) && key.first() != COUNTS_KEY.first()
}

/// Key of what is kept beside a turn under a name of its own.
fn beside(name: &str, id: &[u8]) -> Vec<u8> {
    [name.as_bytes(), id].concat()
}

/// Keys of a turn's feedback begin with this.
fn prefix(id: &[u8]) -> Vec<u8> {
    [id, &[FEEDBACK_MARK]].concat()
}

fn pack<T: Serialize>(value: &T) -> Result<Vec<u8>, StoreError> {
    let mut record = vec![TURNS_FORMAT; HEAD_BYTES];
    serde_json::to_writer(&mut record, value).map_err(|error| StoreError::Disk(error.to_string()))?;
    let sum = Sha256::digest(&record[HEAD_BYTES..]);
    record[1..HEAD_BYTES].copy_from_slice(&sum[..HEAD_BYTES - 1]);
    Ok(record)
}

fn unpack<T: DeserializeOwned>(id: &[u8], record: &[u8]) -> Result<T, StoreError> {
    let damaged = |why: String| StoreError::Damaged { id: String::from_utf8_lossy(id).into_owned(), why };
    let Some((head, body)) = record.split_at_checked(HEAD_BYTES) else {
        return Err(damaged("the record is cut short".to_owned()));
    };
    if head[0] != TURNS_FORMAT {
        return Err(damaged(format!("the record has format {}", head[0])));
    }
    if Sha256::digest(body)[..HEAD_BYTES - 1] != head[1..] {
        return Err(damaged("the checksum is wrong".to_owned()));
    }
    serde_json::from_slice(body).map_err(|error| damaged(error.to_string()))
}

fn disk(error: sled::Error) -> StoreError {
    StoreError::Disk(error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::turn::{ChoiceJudgement, Sampling, Thinking, Tier, Vote};

    fn turn(id: &str, principal: &str) -> Turn {
        Turn {
            version: super::super::TURN_VERSION,
            id: TurnId(id.to_owned()),
            conversation: "c".to_owned(),
            time_ms: 5,
            principal: principal.to_owned(),
            consent: true,
            taint: false,
            route: "default".to_owned(),
            tier: Tier::Quality,
            pipeline_version: "1".to_owned(),
            model: "m".to_owned(),
            model_hash: "h".to_owned(),
            adapter_revision: 0,
            template_hash: "t".to_owned(),
            messages: Vec::new(),
            tools: Vec::new(),
            prompt_ids: vec![1, 2, 3],
            sampling: Sampling::default(),
            thinking: Thinking::Off,
            generations: Vec::new(),
            feedback: Vec::new(),
            verdict: None,
            judgement: None,
        }
    }

    fn vote(time_ms: i64) -> Feedback {
        Feedback { time_ms, principal: "p".to_owned(), vote: Some(Vote::Up), correction: None }
    }

    #[tokio::test]
    async fn turns_come_back_after_a_reopening() {
        let dir = tempfile::tempdir().unwrap();
        let (a, b) = (turn("turn-a", "p"), turn("turn-b", "q"));
        {
            let log = SledTurns::open(dir.path(), 1 << 20).unwrap();
            log.append(&b).unwrap();
            log.append(&a).unwrap();
            log.append(&a).unwrap();
            log.add_feedback(&a.id, &vote(7)).unwrap();
            log.add_feedback(&a.id, &vote(8)).unwrap();
            log.flush().await.unwrap();
        }
        let log = SledTurns::open(dir.path(), 1 << 20).unwrap();
        assert_eq!(log.counts().unwrap().turns, 2);
        let all = log.list(&TurnFilter::default()).unwrap();
        assert_eq!(all.iter().map(|t| t.id.0.as_str()).collect::<Vec<_>>(), ["turn-a", "turn-b"]);
        assert_eq!(all[0].feedback, [vote(7), vote(8)]);
        assert_eq!(all[1], b);
        let filter = TurnFilter { after: Some(a.id.clone()), ..TurnFilter::default() };
        assert_eq!(log.list(&filter).unwrap(), [b]);
        assert!(matches!(log.add_feedback(&TurnId("turn-x".into()), &vote(1)), Err(StoreError::Unknown(_))));
    }

    /// The burst that sled's transactions deadlocked under.
    #[test]
    fn many_writers_and_readers_at_once_all_get_through() {
        let dir = tempfile::tempdir().unwrap();
        let log = SledTurns::open(dir.path(), 1 << 24).unwrap();
        std::thread::scope(|scope| {
            for writer in 0..24 {
                let log = &log;
                scope.spawn(move || {
                    for n in 0..20 {
                        let turn = turn(&format!("turn-{writer:02}-{n:02}"), "p");
                        log.append(&turn).unwrap();
                        log.add_feedback(&turn.id, &vote(n)).unwrap();
                        assert!(!log.list(&TurnFilter { limit: Some(3), ..TurnFilter::default() }).unwrap().is_empty());
                    }
                });
            }
        });
        assert_eq!(log.counts().unwrap().turns, 480);
        drop(log);
        assert_eq!(SledTurns::open(dir.path(), 1 << 24).unwrap().counts().unwrap().turns, 480);
    }

    #[tokio::test]
    async fn many_wait_for_a_flush_at_once() {
        let dir = tempfile::tempdir().unwrap();
        let log = Arc::new(SledTurns::open(dir.path(), 1 << 24).unwrap());
        let writers = (0..64).map(|w| {
            let log = log.clone();
            tokio::spawn(async move {
                for i in 0..20 {
                    let (log, id) = (log.clone(), format!("turn-{w:02}-{i:02}"));
                    let writing = log.clone();
                    tokio::task::spawn_blocking(move || writing.append(&turn(&id, "p"))).await.unwrap().unwrap();
                    log.flush().await.unwrap();
                }
            })
        });
        let all = futures_util::future::join_all(writers.collect::<Vec<_>>());
        tokio::time::timeout(std::time::Duration::from_secs(60), all).await.expect("the flushes wait for one another");
        assert_eq!(log.list(&TurnFilter { limit: Some(2_000), ..TurnFilter::default() }).unwrap().len(), 64 * 20);
        let kept = log.counts().unwrap();
        assert_eq!((kept.turns, kept), (64 * 20, count(&log.log).unwrap()));
    }

    #[test]
    fn forgetting_takes_the_feedback_along() {
        let dir = tempfile::tempdir().unwrap();
        let log = SledTurns::open(dir.path(), 1 << 20).unwrap();
        for (id, who) in [("turn-a", "p"), ("turn-b", "q"), ("turn-c", "p")] {
            log.append(&turn(id, who)).unwrap();
            log.add_feedback(&TurnId(id.into()), &vote(1)).unwrap();
        }
        let filter = TurnFilter { principal: Some("p".into()), ..TurnFilter::default() };
        assert_eq!(log.forget(&filter).unwrap(), 2);
        assert_eq!(log.counts().unwrap().turns, 1);
        assert_eq!(log.log.len(), 4, "a turn, its feedback, its place among the unscored, the counts");
        assert_eq!(log.forget(&TurnFilter::default()).unwrap(), 1);
        assert_eq!(log.counts().unwrap(), TurnCounts::default());
    }

    #[tokio::test]
    async fn a_judgement_is_written_once_and_survives() {
        let dir = tempfile::tempdir().unwrap();
        let judged = |verdict| Judgement {
            time_ms: 9,
            judge: "j".to_owned(),
            choices: vec![ChoiceJudgement { index: 0, verdict, p: 0.9, thought_steps: 1, steps: vec![0.9, 0.95] }],
        };
        let (a, b) = (TurnId("turn-a".into()), TurnId("turn-b".into()));
        {
            let log = SledTurns::open(dir.path(), 1 << 20).unwrap();
            log.append(&turn("turn-a", "p")).unwrap();
            log.append(&turn("turn-b", "p")).unwrap();
            assert_eq!(log.unscored(None, 10).unwrap(), [a.clone(), b.clone()]);
            assert_eq!(log.unscored(Some(&a), 10).unwrap(), std::slice::from_ref(&b));
            assert_eq!(log.unscored(None, 1).unwrap(), std::slice::from_ref(&a));
            assert!(log.add_judgement(&a, &judged(4)).unwrap());
            assert!(!log.add_judgement(&a, &judged(1)).unwrap(), "the second judgement must not replace the first");
            assert!(matches!(log.add_judgement(&TurnId("turn-x".into()), &judged(1)), Err(StoreError::Unknown(_))));
            log.flush().await.unwrap();
        }
        let log = SledTurns::open(dir.path(), 1 << 20).unwrap();
        assert_eq!(log.unscored(None, 10).unwrap(), [b]);
        let kept = log.get(&a).unwrap().unwrap();
        assert_eq!((kept.verdict, kept.judgement), (Some(4), Some(judged(4))));
        assert_eq!(log.list(&TurnFilter::default()).unwrap()[1].verdict, None);
        assert_eq!(log.forget(&TurnFilter::default()).unwrap(), 2);
        assert_eq!(log.log.len(), 1, "nothing but the counts is left");
    }

    #[test]
    fn the_oldest_make_room_for_the_newest() {
        let dir = tempfile::tempdir().unwrap();
        let bytes = pack(&turn("turn-00", "p")).unwrap().len() as u64;
        let log = SledTurns::open(dir.path(), 3 * bytes).unwrap();
        let dropped: u64 = (0..10).map(|i| log.append(&turn(&format!("turn-{i:02}"), "p")).unwrap()).sum();
        assert_eq!(dropped, 7);
        let left = log.list(&TurnFilter::default()).unwrap();
        assert_eq!(left.first().unwrap().id.0, "turn-07");
        assert_eq!(log.counts().unwrap(), TurnCounts { turns: 3, bytes: 3 * bytes });
        let log = log.list(&TurnFilter { limit: Some(2), ..TurnFilter::default() }).unwrap();
        assert_eq!(log.len(), 2);
    }

    #[test]
    fn a_flipped_bit_is_noticed_and_passed_over() {
        let dir = tempfile::tempdir().unwrap();
        let log = SledTurns::open(dir.path(), 1 << 20).unwrap();
        log.append(&turn("turn-a", "p")).unwrap();
        log.append(&turn("turn-b", "p")).unwrap();
        let tree = log.log.clone();
        let mut record = tree.get("turn-a").unwrap().unwrap().to_vec();
        *record.last_mut().unwrap() ^= 1;
        tree.insert("turn-a", record).unwrap();
        assert!(matches!(log.get(&TurnId("turn-a".into())), Err(StoreError::Damaged { .. })));
        assert_eq!(log.list(&TurnFilter::default()).unwrap().len(), 1);
    }

    #[test]
    fn another_format_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let log = SledTurns::open(dir.path(), 1 << 20).unwrap();
        drop(log._db.open_tree("meta").unwrap().insert("format", &[9]).unwrap());
        drop(log);
        assert!(matches!(SledTurns::open(dir.path(), 1 << 20), Err(StoreError::Format { .. })));
    }
}
