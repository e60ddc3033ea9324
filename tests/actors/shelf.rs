//! A turn log that a test stands in front of: it may keep the log from being read or written, or answer in its place.

use chimere::service::{Session, TurnFilter};
use chimere::store::{GoesOn, Piece, SledTurns, StoreError, TurnCounts, TurnStore};
use chimere::turn::{Feedback, Judgement, Turn, TurnId};
use futures_util::future::BoxFuture;

/// What a test does with the calls of a turn log. It is dropped before the log is closed.
pub(crate) trait Guard: Send + Sync + 'static {
    /// Before a turn is added.
    fn before_append(&self) -> Result<(), StoreError> {
        Ok(())
    }

    fn before_get(&self) {}

    /// What a listing finds; absent: what the log has.
    fn listed(&self, _: &TurnFilter) -> Option<Result<Piece<Vec<Turn>>, StoreError>> {
        None
    }
}

pub(crate) struct Shelf<G> {
    guard: G,
    inner: SledTurns,
}

impl<G> Shelf<G> {
    pub(crate) fn new(guard: G, inner: SledTurns) -> Shelf<G> {
        Shelf { guard, inner }
    }
}

impl<G: Guard> TurnStore for Shelf<G> {
    fn append(&self, turn: &Turn) -> Result<u64, StoreError> {
        self.guard.before_append()?;
        self.inner.append(turn)
    }
    fn append_on(&self, turn: Turn, goes_on: &GoesOn) -> Result<u64, StoreError> {
        self.guard.before_append()?;
        self.inner.append_on(turn, goes_on)
    }
    fn add_feedback(&self, id: &TurnId, feedback: &Feedback) -> Result<(), StoreError> {
        self.inner.add_feedback(id, feedback)
    }
    fn add_judgement(&self, id: &TurnId, judgement: &Judgement) -> Result<bool, StoreError> {
        self.inner.add_judgement(id, judgement)
    }
    fn add_correction_judgement(&self, id: &TurnId, of: &str, judgement: &Judgement) -> Result<bool, StoreError> {
        self.inner.add_correction_judgement(id, of, judgement)
    }
    fn unscored(&self, after: Option<&TurnId>, limit: usize) -> Result<Vec<TurnId>, StoreError> {
        self.inner.unscored(after, limit)
    }
    fn get(&self, id: &TurnId) -> Result<Option<Turn>, StoreError> {
        self.guard.before_get();
        self.inner.get(id)
    }
    fn list_piece(&self, filter: &TurnFilter) -> Result<Piece<Vec<Turn>>, StoreError> {
        self.guard.listed(filter).unwrap_or_else(|| self.inner.list_piece(filter))
    }
    fn followers_piece(&self, filter: &TurnFilter) -> Result<Piece<Vec<TurnId>>, StoreError> {
        self.inner.followers_piece(filter)
    }
    fn forget_piece(&self, filter: &TurnFilter) -> Result<Piece<usize>, StoreError> {
        self.inner.forget_piece(filter)
    }
    fn was_forgotten(&self, id: &TurnId) -> Result<bool, StoreError> {
        self.inner.was_forgotten(id)
    }
    fn put_session(&self, session: &Session) -> Result<(), StoreError> {
        self.inner.put_session(session)
    }
    fn session(&self, principal: &str, name: &str) -> Result<Option<Session>, StoreError> {
        self.inner.session(principal, name)
    }
    fn sessions(&self, principal: &str) -> Result<Vec<Session>, StoreError> {
        self.inner.sessions(principal)
    }
    fn room_for_session(&self, principal: &str) -> Result<(), StoreError> {
        self.inner.room_for_session(principal)
    }
    fn remove_session(&self, principal: &str, name: &str) -> Result<bool, StoreError> {
        self.inner.remove_session(principal, name)
    }
    fn counts(&self) -> Result<TurnCounts, StoreError> {
        self.inner.counts()
    }
    fn flush(&self) -> BoxFuture<'static, Result<(), StoreError>> {
        self.inner.flush()
    }
}
