//! The turn log in sled. Trees: `turns` (turn id → record), `feedback` (turn id, `/`, time and a serial →
//! record), `meta` (`format`, `counts`). A record is a format byte, 8 bytes of the SHA-256 of the rest, JSON.
//! Ids sort by time, and so do keys. Counts change in the transaction that changes the turns.

use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};

use futures_util::future::BoxFuture;
use serde::Serialize;
use serde::de::DeserializeOwned;
use sha2::{Digest, Sha256};
use sled::transaction::{TransactionError, Transactional};
use sled::{Db, Tree};

use super::{LIST_LIMIT, StoreError, TURNS_FORMAT, TurnCounts, TurnStore, passes};
use crate::service::TurnFilter;
use crate::turn::{Feedback, Turn, TurnId};

const HEAD_BYTES: usize = 9;
/// Memory of sled's page cache, bytes.
const CACHE_BYTES: u64 = 32 << 20;

pub struct SledTurns {
    db: Db,
    turns: Tree,
    feedback: Tree,
    meta: Tree,
    bytes_max: u64,
    serial: AtomicU32,
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
        let (turns, feedback, meta) = (
            db.open_tree("turns").map_err(disk)?,
            db.open_tree("feedback").map_err(disk)?,
            db.open_tree("meta").map_err(disk)?,
        );
        match meta.get("format").map_err(disk)? {
            Some(found) if *found == [TURNS_FORMAT] => {}
            Some(found) => return Err(StoreError::Format { found: format!("{found:?}") }),
            None => drop(meta.insert("format", &[TURNS_FORMAT]).map_err(disk)?),
        }
        Ok(SledTurns { db, turns, feedback, meta, bytes_max, serial: AtomicU32::new(0) })
    }

    fn drop_oldest(&self) -> Result<u64, StoreError> {
        let mut dropped = 0;
        while self.counts()?.bytes > self.bytes_max {
            let Some((id, _)) = self.turns.first().map_err(disk)? else { break };
            dropped += u64::from(self.remove(&id)?);
        }
        Ok(dropped)
    }

    fn remove(&self, id: &[u8]) -> Result<bool, StoreError> {
        let votes: Vec<_> = self.feedback.scan_prefix(prefix(id)).keys().collect::<Result<_, _>>().map_err(disk)?;
        (&self.turns, &self.feedback, &self.meta)
            .transaction(|(turns, feedback, meta)| {
                let Some(old) = turns.remove(id)? else { return Ok(false) };
                for key in &votes {
                    feedback.remove(key)?;
                }
                let counts = counts_of(meta.get("counts")?.as_deref());
                let counts = TurnCounts {
                    turns: counts.turns.saturating_sub(1),
                    bytes: counts.bytes.saturating_sub(old.len() as u64),
                };
                meta.insert("counts", &counts_bytes(counts)[..])?;
                Ok(true)
            })
            .map_err(transaction)
    }

    fn read(&self, id: &[u8], record: &[u8]) -> Result<Turn, StoreError> {
        let mut turn: Turn = unpack(id, record)?;
        for vote in self.feedback.scan_prefix(prefix(id)).values() {
            turn.feedback.push(unpack(id, &vote.map_err(disk)?)?);
        }
        Ok(turn)
    }

    /// Calls `each` with the turns that pass, in order, until it returns false. A damaged record is reported
    /// and passed over: one bad page must not hide the rest of the log.
    fn scan(&self, filter: &TurnFilter, mut each: impl FnMut(Turn) -> bool) -> Result<(), StoreError> {
        let start = filter.after.as_ref().map(|after| after.0.as_bytes().to_vec()).unwrap_or_default();
        for entry in self.turns.range(start..) {
            let (id, record) = entry.map_err(disk)?;
            let turn = match self.read(&id, &record) {
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
        (&self.turns, &self.meta)
            .transaction(|(turns, meta)| {
                if turns.get(turn.id.0.as_bytes())?.is_some() {
                    return Ok(());
                }
                turns.insert(turn.id.0.as_bytes(), record.as_slice())?;
                let counts = counts_of(meta.get("counts")?.as_deref());
                let counts = TurnCounts { turns: counts.turns + 1, bytes: counts.bytes + bytes };
                meta.insert("counts", &counts_bytes(counts)[..])?;
                Ok(())
            })
            .map_err(transaction)?;
        self.drop_oldest()
    }

    fn add_feedback(&self, id: &TurnId, feedback: &Feedback) -> Result<(), StoreError> {
        if self.turns.get(&id.0).map_err(disk)?.is_none() {
            return Err(StoreError::Unknown(id.0.clone()));
        }
        let serial = self.serial.fetch_add(1, Ordering::Relaxed);
        let key = format!("{}/{:016x}{serial:08x}", id.0, feedback.time_ms);
        self.feedback.insert(key, pack(feedback)?).map_err(disk)?;
        Ok(())
    }

    fn get(&self, id: &TurnId) -> Result<Option<Turn>, StoreError> {
        let record = self.turns.get(&id.0).map_err(disk)?;
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
            removed += usize::from(self.remove(id.0.as_bytes())?);
        }
        Ok(removed)
    }

    fn counts(&self) -> Result<TurnCounts, StoreError> {
        Ok(counts_of(self.meta.get("counts").map_err(disk)?.as_deref()))
    }

    fn flush(&self) -> BoxFuture<'static, Result<(), StoreError>> {
        let db = self.db.clone();
        Box::pin(async move { db.flush_async().await.map(drop).map_err(disk) })
    }
}

/// Keys of a turn's feedback begin with this.
fn prefix(id: &[u8]) -> Vec<u8> {
    [id, b"/"].concat()
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

fn counts_of(bytes: Option<&[u8]>) -> TurnCounts {
    let number = |at: usize| {
        let bytes = bytes?.get(at..at + 8)?;
        Some(u64::from_le_bytes(bytes.try_into().ok()?))
    };
    TurnCounts { turns: number(0).unwrap_or(0), bytes: number(8).unwrap_or(0) }
}

fn counts_bytes(counts: TurnCounts) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&counts.turns.to_le_bytes());
    bytes[8..].copy_from_slice(&counts.bytes.to_le_bytes());
    bytes
}

fn disk(error: sled::Error) -> StoreError {
    StoreError::Disk(error.to_string())
}

fn transaction(error: TransactionError<std::convert::Infallible>) -> StoreError {
    match error {
        TransactionError::Storage(error) => disk(error),
        TransactionError::Abort(never) => match never {},
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::turn::{Sampling, Thinking, Tier, Vote};

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
        assert_eq!(log.feedback.len(), 1);
        assert_eq!(log.forget(&TurnFilter::default()).unwrap(), 1);
        assert_eq!(log.counts().unwrap(), TurnCounts::default());
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
        let mut record = log.turns.get("turn-a").unwrap().unwrap().to_vec();
        *record.last_mut().unwrap() ^= 1;
        log.turns.insert("turn-a", record).unwrap();
        assert!(matches!(log.get(&TurnId("turn-a".into())), Err(StoreError::Damaged { .. })));
        assert_eq!(log.list(&TurnFilter::default()).unwrap().len(), 1);
    }

    #[test]
    fn another_format_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        drop(SledTurns::open(dir.path(), 1 << 20).unwrap().meta.insert("format", &[9]).unwrap());
        assert!(matches!(SledTurns::open(dir.path(), 1 << 20), Err(StoreError::Format { .. })));
    }
}
