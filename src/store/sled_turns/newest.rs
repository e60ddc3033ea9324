//! Listings from the newest turn back.

use std::ops::ControlFlow;

use super::chain::Seen;
use super::{FIRST_TURN, PREFIX, SledTurns, disk, first_turn_id, is_turn, unpack};
use crate::service::TurnFilter;
use crate::store::{Marks, PIECE_BYTES, PIECE_TURNS, Piece, StoreError, passes};
use crate::turn::{Turn, TurnId};

impl SledTurns {
    /// As `list_piece`, from the newest turn that is older than `after` back.
    pub(super) fn newest_piece(&self, filter: &TurnFilter, limit: usize) -> Result<Piece<Vec<Turn>>, StoreError> {
        let mut found = Vec::new();
        let next = self.walk_back((filter.after.as_ref(), filter.since_ms), |key, record| {
            // A damaged record is reported where it is read.
            if unpack::<Marks>(&key, &record).map_or(true, |turn| passes(filter, &turn)) {
                found.push((key, record));
            }
            if found.len() < limit { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        })?;
        // The oldest first: a turn is read on top of the one that it goes on with.
        let mut seen = Seen::default();
        let read = found.iter().rev().map(|(key, record)| self.passing(filter, key, record, &mut seen));
        let mut value: Vec<Turn> = read.filter_map(Result::transpose).collect::<Result<_, _>>()?;
        value.reverse();
        Ok(Piece { value, next })
    }

    /// As `walk`, from the newest turn older than `before` back.
    fn walk_back(
        &self,
        (before, since_ms): (Option<&TurnId>, Option<i64>),
        mut each: impl FnMut(sled::IVec, sled::IVec) -> ControlFlow<()>,
    ) -> Result<Option<TurnId>, StoreError> {
        let first = since_ms.map_or_else(Vec::new, |since| first_turn_id(since).0.into_bytes());
        let first = PREFIX.as_bytes().max(first.as_slice());
        let before = before.map(|before| before.0.as_bytes());
        // A range that would end before it begins is none.
        let timed = match before {
            None => Some(self.log.range(first..)),
            Some(before) => (first < before).then(|| self.log.range(first..before)),
        };
        // Ids that say no time come before.
        let end = before.map_or(PREFIX.as_bytes(), |before| before.min(PREFIX.as_bytes()));
        let timeless = (FIRST_TURN < end).then(|| self.log.range(FIRST_TURN..end));
        let (mut seen, mut bytes) = (0, 0);
        for entry in timed.into_iter().flatten().rev().chain(timeless.into_iter().flatten().rev()) {
            let (key, record) = entry.map_err(disk)?;
            if !is_turn(&key) {
                continue;
            }
            (seen, bytes) = (seen + 1, bytes + record.len());
            let id = TurnId(String::from_utf8_lossy(&key).into_owned());
            if each(key, record).is_break() || seen == PIECE_TURNS || bytes >= PIECE_BYTES {
                return Ok(Some(id));
            }
        }
        Ok(None)
    }
}
