//! What a salvage does to a log: records are put back as they were written.

use super::{
    CORRECTED_PREFIX, COUNTS_KEY, Change, FEEDBACK_MARK, JUDGED_PREFIX, SledTurns, StoreError, TurnCounts,
    UNSCORED_PREFIX, beside, disk, unpack,
};
use crate::service::Session;

/// The turn that a key of the log is about; every id begins so.
const ID_BEGINS: &str = "turn-";

/// The id of the turn that a key of the log is or is about.
pub(in crate::store) fn named_turn(key: &[u8]) -> Option<&str> {
    let key = std::str::from_utf8(key).ok()?;
    let about = [JUDGED_PREFIX, CORRECTED_PREFIX, UNSCORED_PREFIX].iter().find_map(|name| key.strip_prefix(name));
    let id = about.unwrap_or(key).split(char::from(FEEDBACK_MARK)).next()?;
    (id.starts_with(ID_BEGINS) && !id.contains('\0')).then_some(id)
}

impl SledTurns {
    /// Puts a turn back with the records beside it. False: the log is full.
    pub(in crate::store) fn restore(
        &self,
        id: &str,
        turn: Vec<u8>,
        records: Vec<(Vec<u8>, Vec<u8>)>,
    ) -> Result<bool, StoreError> {
        let mut state = self.state();
        let mut change = Change::new(&state);
        let of_turn = records.iter().filter(|(key, _)| key.first() != COUNTS_KEY.first());
        let bytes = turn.len() as u64 + of_turn.map(|(_, record)| record.len() as u64).sum::<u64>();
        let counts = TurnCounts { turns: state.counts.turns + 1, bytes: state.counts.bytes + bytes };
        if counts.bytes > self.bytes_max {
            return Ok(false);
        }
        let judged = beside(JUDGED_PREFIX, id.as_bytes());
        change.counts = counts;
        let batch = &mut change.batch;
        batch.insert(id.as_bytes(), turn);
        if !records.iter().any(|(key, _)| *key == judged) {
            batch.insert(beside(UNSCORED_PREFIX, id.as_bytes()), &[]);
        }
        for (key, record) in records {
            batch.insert(key, record);
        }
        self.apply(&mut state, change)?;
        Ok(true)
    }

    /// Puts a named session back where its turn is there.
    pub(in crate::store) fn restore_session(&self, key: &[u8], record: &[u8]) -> Result<bool, StoreError> {
        let Ok(session) = unpack::<Session>(key, record) else { return Ok(false) };
        let there = self.there(&session)?;
        if there {
            self.sessions.put(&session)?;
        }
        Ok(there)
    }

    /// Sets the limit, and drops what is over it; how many turns.
    pub(in crate::store) fn limit(&mut self, bytes_max: u64) -> Result<u64, StoreError> {
        self.bytes_max = bytes_max;
        let mut state = self.state();
        self.drop_oldest(&mut state, None)
    }

    pub(in crate::store) fn flush_now(&self) -> Result<(), StoreError> {
        self.db.flush().map(drop).map_err(disk)
    }
}
