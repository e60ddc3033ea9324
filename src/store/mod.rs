//! What the daemon keeps on disk. This part of the tree is the sole user of sled, behind [`TurnStore`]: the
//! crate is frozen, and a later store must be able to take its place. `files` writes small files durably.

pub mod files;
mod flusher;
mod sled_turns;

use futures_util::future::BoxFuture;

use crate::service::TurnFilter;
use crate::turn::{Feedback, Judgement, Turn, TurnId};

pub use sled_turns::SledTurns;

/// Version of the turn log's format on disk.
pub const TURNS_FORMAT: u8 = 1;
/// Version of the `Turn` record itself.
pub const TURN_VERSION: u32 = 1;
/// Turns one listing returns where the filter names no limit.
pub const LIST_LIMIT: usize = 1_000;

#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    #[error("turn log: {0}")]
    Disk(String),
    #[error("turn {id} is damaged on disk: {why}")]
    Damaged { id: String, why: String },
    #[error(
        "the turn log has format {found}, but this version reads format {TURNS_FORMAT}: start the version that wrote it, or move the folder away"
    )]
    Format { found: String },
    #[error("turn {0} is not in the log: it may have been forgotten or dropped")]
    Unknown(String),
    #[error("turn of {bytes} bytes is larger than the whole log may be ({bytes_max} bytes)")]
    TooLarge { bytes: u64, bytes_max: u64 },
}

/// Size of the log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct TurnCounts {
    pub turns: u64,
    /// Bytes of the turns and their feedback, as written.
    pub bytes: u64,
}

/// The turn log. Written once, never edited: feedback and judgement are kept beside a turn and joined when it is
/// read.
/// Everything here may block on the disk, except `flush`.
pub trait TurnStore: Send + Sync + 'static {
    /// Adds a turn; an id that is there already is left as it is. When the log is over its limit the oldest
    /// turns are dropped; returns how many. Durable after the next `flush`.
    fn append(&self, turn: &Turn) -> Result<u64, StoreError>;

    /// Adds feedback to a turn that is there.
    fn add_feedback(&self, id: &TurnId, feedback: &Feedback) -> Result<(), StoreError>;

    /// Writes the judgement of a turn that is there. False: it has one already, which stays.
    fn add_judgement(&self, id: &TurnId, judgement: &Judgement) -> Result<bool, StoreError>;

    /// Writes the judgement of a correction to a turn that is there. False: this correction has one already.
    fn add_correction_judgement(
        &self,
        id: &TurnId,
        correction: &str,
        judgement: &Judgement,
    ) -> Result<bool, StoreError>;

    /// Turns without a judgement, in the order of time, behind `after`, at most `limit`.
    fn unscored(&self, after: Option<&TurnId>, limit: usize) -> Result<Vec<TurnId>, StoreError>;

    fn get(&self, id: &TurnId) -> Result<Option<Turn>, StoreError>;

    /// Turns in the order of time, at most `limit` or `LIST_LIMIT`.
    fn list(&self, filter: &TurnFilter) -> Result<Vec<Turn>, StoreError>;

    /// Removes turns and their feedback; returns how many turns.
    fn forget(&self, filter: &TurnFilter) -> Result<usize, StoreError>;

    fn counts(&self) -> Result<TurnCounts, StoreError>;

    /// Resolves when everything done before is safe against the death of this process. (sled does not promise
    /// safety against a power cut.)
    fn flush(&self) -> BoxFuture<'static, Result<(), StoreError>>;
}

/// Whether a turn passes a filter, `limit` aside.
pub(crate) fn passes(filter: &TurnFilter, turn: &Turn) -> bool {
    filter.turn.as_ref().is_none_or(|id| *id == turn.id)
        && filter.principal.as_ref().is_none_or(|p| *p == turn.principal)
        && filter.conversation.as_ref().is_none_or(|c| *c == turn.conversation)
        && filter.since_ms.is_none_or(|since| turn.time_ms >= since)
        && filter.after.as_ref().is_none_or(|after| turn.id > *after)
}

#[cfg(test)]
mod fixture;
#[cfg(test)]
mod tests;
