//! What the daemon keeps on disk. This part of the tree is the sole user of sled, behind [`TurnStore`]. The crate is
//! frozen, so a later store must be able to take its place. `files` writes small files durably.

pub mod files;
mod flusher;
mod forgotten;
mod links;
pub mod private;
mod record;
pub mod salvage;
mod sectors;
mod sessions;
mod sled_files;
mod sled_snapshot;
mod sled_turns;
mod turn_id;

use futures_util::future::BoxFuture;

use crate::service::{Session, TurnFilter};
use crate::turn::{Feedback, Judgement, Turn, TurnId};

pub use salvage::Salvage;
pub use sled_turns::SledTurns;
pub use turn_id::{first_turn_id, new_turn_id};

/// Version of the turn log's format on disk.
pub const TURNS_FORMAT: u8 = 2;
/// Version of the `Turn` record itself.
pub const TURN_VERSION: u32 = 1;
/// Turns one listing returns where the filter names no limit.
pub const LIST_LIMIT: usize = 1_000;
/// Turns that one piece of a listing or a forgetting looks at, however few of them pass.
pub const PIECE_TURNS: usize = 100;
/// Bytes of records after which a piece ends with fewer: it is read within a few milliseconds.
pub const PIECE_BYTES: usize = 256 << 10;
/// Named sessions that one principal may have.
pub const SESSIONS_MAX: usize = 1_000;
/// Most feedback on one turn.
pub const FEEDBACK_MAX: usize = 100;

#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    #[error("turn log: {0}")]
    Disk(String),
    /// What was written cannot be read: a salvage is due.
    #[error("the turn log is damaged: {0}")]
    Broken(String),
    #[error("turn {id} is damaged on disk: {why}")]
    Damaged { id: String, why: String },
    #[error(
        "the turn log has format {found}, but this version reads format {TURNS_FORMAT}: start the version that wrote it, or move the folder away"
    )]
    Format { found: String },
    #[error("turn {0} is not in the log: it may have been forgotten or dropped")]
    Unknown(String),
    #[error("no turn {0} of this key is in the log: a session goes on from a turn of one's own")]
    NotOwn(String),
    #[error("turn {0} has {FEEDBACK_MAX} votes and corrections, and no more are kept")]
    FeedbackFull(String),
    #[error("there is no session `{0}`: `chimere session list` shows those that there are")]
    NoSession(String),
    #[error("there is a session `{0}` already: choose another name, or move it with `replace: true` (`--replace`)")]
    SessionExists(String),
    #[error("there are {SESSIONS_MAX} named sessions, and no more are kept: delete one that is not needed")]
    SessionsFull,
    #[error("turn of {bytes} bytes is larger than the whole log may be ({bytes_max} bytes)")]
    TooLarge { bytes: u64, bytes_max: u64 },
}

impl StoreError {
    fn from_io(error: std::io::Error) -> StoreError {
        StoreError::Disk(error.to_string())
    }
}

/// Size of the log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct TurnCounts {
    pub turns: u64,
    /// Bytes of the turns and their feedback, as written.
    pub bytes: u64,
}

/// What a turn goes on with, as its reply read it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GoesOn {
    pub turn: TurnId,
    /// So many messages behind the turn's head.
    pub messages: usize,
}

/// What came of one piece of the log.
#[derive(Clone, Debug, PartialEq)]
pub struct Piece<T> {
    pub value: T,
    /// Behind which turn the next piece begins; `None`: this was the last.
    pub next: Option<TurnId>,
}

/// The turn log. Written once, and edited only by forgetting: feedback and judgement are kept beside a turn and joined
/// when it is read. Turns of one conversation keep its text once.
/// Everything here may block on the disk, except `flush`.
pub trait TurnStore: Send + Sync + 'static {
    /// Adds a turn; an id that is there already is left as it is. When the log is over its limit the oldest
    /// turns are dropped; returns how many. Durable after the next `flush`.
    fn append(&self, turn: &Turn) -> Result<u64, StoreError>;

    /// As `append`, of a turn without the messages that it goes on with where they were forgotten since its reply read them.
    /// No forgetting comes between the look and the writing.
    fn append_on(&self, turn: Turn, goes_on: &GoesOn) -> Result<u64, StoreError>;

    /// Adds feedback to a turn that is there and has less than `FEEDBACK_MAX`.
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

    /// Turns in the order of time, or from the newest back, at most `limit` or `LIST_LIMIT`, of the next `PIECE_TURNS`.
    fn list_piece(&self, filter: &TurnFilter) -> Result<Piece<Vec<Turn>>, StoreError>;

    /// Of the next `PIECE_TURNS`: the turns that went on with one that passes. A forgetting leaves them without its words.
    fn followers_piece(&self, filter: &TurnFilter) -> Result<Piece<Vec<TurnId>>, StoreError>;

    /// Removes those that pass of the next `PIECE_TURNS`, and their feedback; how many turns. `limit` is not read. Turns
    /// that went on with one of them stay, `redacted`. The last piece also removes the sessions that had come to a turn
    /// that is gone.
    fn forget_piece(&self, filter: &TurnFilter) -> Result<Piece<usize>, StoreError>;

    /// As `list_piece`, to the end of the log or the limit.
    fn list(&self, filter: &TurnFilter) -> Result<Vec<Turn>, StoreError> {
        let (mut turns, mut rest) = (Vec::new(), Some(filter.clone()));
        while let Some(filter) = rest {
            let piece = self.list_piece(&filter)?;
            rest = rest_of_list(filter, &piece);
            turns.extend(piece.value);
        }
        Ok(turns)
    }

    /// As `forget_piece`, to the end of the log.
    fn forget(&self, filter: &TurnFilter) -> Result<usize, StoreError> {
        let (mut removed, mut rest) = (0, Some(filter.clone()));
        while let Some(filter) = rest {
            let piece = self.forget_piece(&filter)?;
            removed += piece.value;
            rest = piece.next.map(|after| TurnFilter { after: Some(after), ..filter });
        }
        Ok(removed)
    }

    /// Whether a turn of this id was ever forgotten, or that is not known.
    fn was_forgotten(&self, id: &TurnId) -> Result<bool, StoreError>;

    /// Writes a session whose turn is there, in place of the one of that name.
    fn put_session(&self, session: &Session) -> Result<(), StoreError>;

    /// `None`: there is none of that name, or its turn is gone.
    fn session(&self, principal: &str, name: &str) -> Result<Option<Session>, StoreError>;

    /// Those of a principal whose turn is there, by name.
    fn sessions(&self, principal: &str) -> Result<Vec<Session>, StoreError>;

    /// An error where a principal has as many as are kept.
    fn room_for_session(&self, principal: &str) -> Result<(), StoreError>;

    /// False: there was none.
    fn remove_session(&self, principal: &str, name: &str) -> Result<bool, StoreError>;

    fn counts(&self) -> Result<TurnCounts, StoreError>;

    /// What came of the damaged log that this one was made of, if it was.
    fn salvaged(&self) -> Option<Salvage> {
        None
    }

    /// Resolves when everything done before is safe against the death of this process. (sled does not promise
    /// safety against a power cut.)
    fn flush(&self) -> BoxFuture<'static, Result<(), StoreError>>;
}

/// What is left of a listing after a piece of it.
pub(crate) fn rest_of_list<T>(filter: TurnFilter, piece: &Piece<Vec<T>>) -> Option<TurnFilter> {
    let left = filter.limit.unwrap_or(LIST_LIMIT).saturating_sub(piece.value.len());
    let after = piece.next.clone().filter(|_| left > 0);
    after.map(|after| TurnFilter { after: Some(after), limit: Some(left), ..filter })
}

/// What a filter asks of a turn. The rest of a record is passed over.
#[derive(serde::Deserialize)]
pub(crate) struct Marks {
    id: TurnId,
    principal: String,
    conversation: String,
    time_ms: i64,
}

impl Marks {
    fn of(turn: &Turn) -> Self {
        let (id, principal, conversation) = (turn.id.clone(), turn.principal.clone(), turn.conversation.clone());
        Marks { id, principal, conversation, time_ms: turn.time_ms }
    }
}

/// Takes out of a turn that is not kept yet so many messages behind its head: they were forgotten meanwhile.
pub(crate) fn without_forgotten(turn: &mut Turn, messages: usize) {
    let own = turn.messages.split_off((turn.head() + messages).min(turn.messages.len()));
    links::redact(turn, own, Vec::new(), true);
}

/// Whether a turn passes a filter, `limit` aside.
pub(crate) fn passes(filter: &TurnFilter, turn: &Marks) -> bool {
    filter.turn.as_ref().is_none_or(|id| *id == turn.id)
        && filter.principal.as_ref().is_none_or(|p| *p == turn.principal)
        && filter.conversation.as_ref().is_none_or(|c| *c == turn.conversation)
        && filter.since_ms.is_none_or(|since| turn.time_ms >= since)
        && filter
            .after
            .as_ref()
            .is_none_or(|after| if filter.newest_first { turn.id < *after } else { turn.id > *after })
}

#[cfg(test)]
pub(crate) mod fixture;
#[cfg(test)]
mod links_tests;
#[cfg(test)]
mod tests;
