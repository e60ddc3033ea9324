//! A reply that goes on with a named session. The session's messages are put in front of the request's, its last answer as it
//! was corrected. No other
//! reply goes on with that session meanwhile. The session moves to the new turn when that is kept. A reply that breaks off
//! moves nothing and lets its session go at once.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::Replies;
use crate::actors::memory::{MemoryError, Resume};
use crate::scoring::correction::said_right;
use crate::service::{ReplyInput, ReplyRequest, ServiceError, Session, SessionUse};
use crate::store::{GoesOn, StoreError};
use crate::turn::{Message, Role, Turn, TurnId};

/// Sessions, by principal and name, that a reply is under way in: at most one for each reply.
#[derive(Default)]
pub struct UnderWay {
    sessions: Mutex<HashSet<(String, String)>>,
}

impl UnderWay {
    /// An error where a reply is under way in the session, and would move it again at its end.
    pub fn refuse(&self, principal: &str, name: &str) -> Result<(), ServiceError> {
        let there = self.all().contains(&(principal.to_owned(), name.to_owned()));
        if there { Err(busy(name)) } else { Ok(()) }
    }

    fn all(&self) -> MutexGuard<'_, HashSet<(String, String)>> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A session that a reply holds until it ends.
pub(super) struct Held {
    under_way: Arc<UnderWay>,
    principal: String,
    name: String,
    /// `None`: this reply begins it.
    created_ms: Option<i64>,
    /// The turn that it goes on with.
    from: Option<TurnId>,
    messages: usize,
    /// Another reply may have it meanwhile.
    let_go: bool,
}

impl Drop for Held {
    fn drop(&mut self) {
        self.let_go();
    }
}

impl Held {
    /// Lets others have the session: this reply moves it no more. What its turn goes on with stays known.
    pub(super) fn let_go(&mut self) {
        if !std::mem::replace(&mut self.let_go, true) {
            self.under_way.all().remove(&(self.principal.clone(), self.name.clone()));
        }
    }

    /// For the client.
    pub(super) fn told(&self) -> SessionUse {
        SessionUse { name: self.name.clone(), messages: self.messages }
    }

    /// What the reply's turn goes on with. It may have been forgotten since it was read.
    pub(super) fn goes_on(&self) -> Option<GoesOn> {
        self.from.clone().map(|turn| GoesOn { turn, messages: self.messages })
    }

    /// The session once it has come to a turn.
    pub(super) fn at(&self, turn: TurnId, now_ms: i64) -> Session {
        let (principal, name) = (self.principal.clone(), self.name.clone());
        Session { principal, name, turn, created_ms: self.created_ms.unwrap_or(now_ms), updated_ms: now_ms }
    }
}

impl Replies {
    /// Puts what was said in the session that a request names in front, and leaves the session to others.
    pub(super) async fn look(&self, request: &mut ReplyRequest) -> Result<(), ServiceError> {
        let Some(name) = request.session.clone() else { return Ok(()) };
        if let Some((_, turn)) = self.found(request.principal.name.clone(), name).await? {
            put_in_front(request, said_right(turn));
        }
        Ok(())
    }

    /// A session, and the turn that it has come to; an error where there is none and no room for one more.
    async fn found(&self, principal: String, name: String) -> Result<Option<(Session, Turn)>, ServiceError> {
        let found = self.memory.send_within(Resume { principal, name, begins: true }, *self.append_timeout.get()).await;
        found.map_err(|error| super::unavailable(&error.to_string(), 1))?.map_err(refused)
    }

    /// Takes the session that a request names and puts what was said in it in front.
    pub(super) async fn resume(&self, request: &mut ReplyRequest) -> Result<Option<Held>, ServiceError> {
        let Some(name) = request.session.clone() else { return Ok(None) };
        let principal = request.principal.name.clone();
        if !self.sessions.all().insert((principal.clone(), name.clone())) {
            return Err(busy(&name));
        }
        let under_way = self.sessions.clone();
        let (created_ms, from, messages, let_go) = (None, None, 0, false);
        let (owner, own) = (principal.clone(), name.clone());
        let mut held = Held { under_way, principal: owner, name: own, created_ms, from, messages, let_go };
        let found = self.found(principal, name.clone()).await?;
        request.conversation.get_or_insert(name);
        if let (Some((session, turn)), ReplyInput::Chat { .. }) = (found, &request.input) {
            held.from = Some(turn.id.clone());
            let said = said_right(turn);
            (held.created_ms, held.messages) = (Some(session.created_ms), said.len());
            put_in_front(request, said);
        }
        Ok(Some(held))
    }
}

/// The system's text is the request's own affair; it stays in front.
fn put_in_front(request: &mut ReplyRequest, said: Vec<Message>) {
    if let ReplyInput::Chat { messages, .. } = &mut request.input {
        let own = messages.iter().take_while(|m| m.role == Role::System).count();
        messages.splice(own..own, said);
    }
}

fn busy(name: &str) -> ServiceError {
    ServiceError::Conflict(format!(
        "a reply is under way in the session `{name}`: wait for its end, or fork the session"
    ))
}

fn refused(error: MemoryError) -> ServiceError {
    match error {
        MemoryError::Store(StoreError::SessionsFull) => {
            ServiceError::Invalid { message: error.to_string(), param: Some("chimere.session".to_owned()) }
        }
        MemoryError::Stopped(_) => super::unavailable(&error.to_string(), 10),
        MemoryError::Store(_) => ServiceError::Internal(error.to_string()),
    }
}
