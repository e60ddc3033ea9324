//! Named sessions in the turn log: going on with one, setting one to a turn, listing, taking a name away. Each
//! operation is one piece of work on the log, so that nothing changes between its reads and its writes.

use actix::prelude::*;

use super::{Memory, MemoryError, note_appended};
use crate::service::{Session, SessionAt};
use crate::store::{GoesOn, StoreError, TurnStore};
use crate::turn::{Turn, TurnId};

/// Keeps a turn, without what was forgotten of what it goes on with, and moves its session, if it moves one; answered when
/// both are flushed.
#[derive(Message)]
#[rtype(result = "Result<(), MemoryError>")]
pub struct AppendTo {
    pub turn: Box<Turn>,
    pub session: Option<Session>,
    pub goes_on: Option<GoesOn>,
}

impl AppendTo {
    fn append(self, log: &dyn TurnStore) -> Result<u64, StoreError> {
        let dropped = match &self.goes_on {
            Some(goes_on) => log.append_on(*self.turn, goes_on)?,
            None => log.append(&self.turn)?,
        };
        if let Some(session) = &self.session {
            log.put_session(session)?;
        }
        Ok(dropped)
    }
}

/// The session of a principal and the turn that it has come to.
#[derive(Message)]
#[rtype(result = "Result<Option<(Session, Turn)>, MemoryError>")]
pub struct Resume {
    pub principal: String,
    pub name: String,
    /// Where there is none it will be begun: an error where there is no room for one more.
    pub begins: bool,
}

/// The sessions of a principal, by name.
#[derive(Message)]
#[rtype(result = "Result<Vec<Session>, MemoryError>")]
pub struct Sessions(pub String);

/// Sets a session; answered when it is flushed.
#[derive(Message)]
#[rtype(result = "Result<Session, MemoryError>")]
pub struct SaveSession {
    pub principal: String,
    pub name: String,
    pub at: SessionAt,
    pub replace: bool,
    /// Unix milliseconds.
    pub now_ms: i64,
}

/// Takes a name away; answered when that is flushed. False: there was none.
#[derive(Message)]
#[rtype(result = "Result<bool, MemoryError>")]
pub struct DeleteSession {
    pub principal: String,
    pub name: String,
}

impl SaveSession {
    fn save(self, log: &dyn TurnStore) -> Result<Session, StoreError> {
        let SaveSession { principal, name, at, replace, now_ms } = self;
        let before = log.session(&principal, &name)?;
        if before.is_some() && !replace {
            return Err(StoreError::SessionExists(name));
        }
        if before.is_none() {
            log.room_for_session(&principal)?;
        }
        let turn = match at {
            SessionAt::Turn(id) => own_turn(log, &principal, id)?,
            SessionAt::Session(from) => {
                let from = log.session(&principal, &from)?.ok_or(StoreError::NoSession(from))?;
                from.turn
            }
        };
        let created_ms = before.map_or(now_ms, |before| before.created_ms);
        let session = Session { principal, name, turn, created_ms, updated_ms: now_ms };
        log.put_session(&session)?;
        Ok(session)
    }
}

/// Somebody else's turn is not there, as far as this principal may know; one without messages is no conversation.
fn own_turn(log: &dyn TurnStore, principal: &str, id: TurnId) -> Result<TurnId, StoreError> {
    let turn = log.get(&id)?.filter(|turn| turn.principal == principal && !turn.messages.is_empty());
    turn.map(|turn| turn.id).ok_or(StoreError::NotOwn(id.0))
}

impl Handler<AppendTo> for Memory {
    type Result = ResponseActFuture<Self, Result<(), MemoryError>>;

    fn handle(&mut self, to: AppendTo, _: &mut Self::Context) -> Self::Result {
        Box::pin(self.write(move |log| to.append(log)).map(|result, _, _| result.map(note_appended)))
    }
}

impl Handler<Resume> for Memory {
    type Result = ResponseFuture<Result<Option<(Session, Turn)>, MemoryError>>;

    fn handle(&mut self, Resume { principal, name, begins }: Resume, context: &mut Self::Context) -> Self::Result {
        self.read(context, move |log| match log.session(&principal, &name)? {
            Some(session) => Ok(log.get(&session.turn)?.map(|turn| (session, turn))),
            None if begins => log.room_for_session(&principal).map(|()| None),
            None => Ok(None),
        })
    }
}

impl Handler<Sessions> for Memory {
    type Result = ResponseFuture<Result<Vec<Session>, MemoryError>>;

    fn handle(&mut self, Sessions(principal): Sessions, context: &mut Self::Context) -> Self::Result {
        self.read(context, move |log| log.sessions(&principal))
    }
}

impl Handler<SaveSession> for Memory {
    type Result = ResponseActFuture<Self, Result<Session, MemoryError>>;

    fn handle(&mut self, save: SaveSession, _: &mut Self::Context) -> Self::Result {
        self.write(move |log| save.save(log))
    }
}

impl Handler<DeleteSession> for Memory {
    type Result = ResponseActFuture<Self, Result<bool, MemoryError>>;

    fn handle(&mut self, DeleteSession { principal, name }: DeleteSession, _: &mut Self::Context) -> Self::Result {
        self.write(move |log| log.remove_session(&principal, &name))
    }
}
