//! A reply that goes on with a named session. The session's messages are put in front of the request's. No other
//! reply goes on with that session meanwhile. The session moves to the new turn when that is kept.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::Replies;
use crate::actors::memory::{MemoryError, Resume};
use crate::service::{Forgetting, ReplyInput, ReplyRequest, ServiceError, Session, SessionUse};
use crate::store::{Marks, StoreError, passes, without_forgotten};
use crate::turn::{Role, Turn, TurnId};

/// Sessions, by principal and name, that a reply is under way in: at most one for each reply.
#[derive(Default)]
pub struct UnderWay(Mutex<All>);

#[derive(Default)]
struct All {
    sessions: HashMap<(String, String), GoesOn>,
    /// Forgettings so far.
    forgettings: u64,
}

/// What a reply goes on with.
#[derive(Default)]
struct GoesOn {
    turn: Option<Marks>,
    /// It was forgotten, or rid of forgotten words, since the reply began.
    forgotten: bool,
}

impl UnderWay {
    /// An error where a reply is under way in the session, and would move it again at its end.
    pub fn refuse(&self, principal: &str, name: &str) -> Result<(), ServiceError> {
        let there = self.all().sessions.contains_key(&(principal.to_owned(), name.to_owned()));
        if there { Err(busy(name)) } else { Ok(()) }
    }

    /// Tells the replies under way of a forgetting: what they go on with must not be kept with them. Told before the log
    /// forgets, and again after it, since a reply may have begun in between.
    pub fn forget(&self, Forgetting { filter, followers }: &Forgetting) {
        let mut all = self.all();
        all.forgettings += 1;
        for goes_on in all.sessions.values_mut() {
            let reached = |turn: &Marks| passes(filter, turn) || followers.contains(&turn.id);
            goes_on.forgotten |= goes_on.turn.as_ref().is_some_and(reached);
        }
    }

    fn all(&self) -> MutexGuard<'_, All> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A session that a reply holds until it ends.
pub(super) struct Held {
    under_way: Arc<UnderWay>,
    principal: String,
    name: String,
    /// `None`: this reply begins it.
    created_ms: Option<i64>,
    messages: usize,
}

impl Drop for Held {
    fn drop(&mut self) {
        self.under_way.all().sessions.remove(&(self.principal.clone(), self.name.clone()));
    }
}

impl Held {
    /// For the client.
    pub(super) fn told(&self) -> SessionUse {
        SessionUse { name: self.name.clone(), messages: self.messages }
    }

    /// Takes out of the reply's turn what was forgotten while the reply was under way.
    pub(super) fn spare(&self, turn: &mut Turn) {
        let key = (self.principal.clone(), self.name.clone());
        if self.under_way.all().sessions.get(&key).is_some_and(|goes_on| goes_on.forgotten) {
            without_forgotten(turn, self.messages);
        }
    }

    /// The session once it has come to a turn.
    pub(super) fn at(&self, turn: TurnId, now_ms: i64) -> Session {
        let (principal, name) = (self.principal.clone(), self.name.clone());
        Session { principal, name, turn, created_ms: self.created_ms.unwrap_or(now_ms), updated_ms: now_ms }
    }
}

impl Replies {
    /// Takes the session that a request names and puts what was said in it in front.
    pub(super) async fn resume(&self, request: &mut ReplyRequest) -> Result<Option<Held>, ServiceError> {
        let Some(name) = request.session.clone() else { return Ok(None) };
        let principal = request.principal.name.clone();
        let key = (principal.clone(), name.clone());
        {
            let mut all = self.sessions.all();
            if all.sessions.contains_key(&key) {
                return Err(busy(&name));
            }
            all.sessions.insert(key.clone(), GoesOn::default());
        }
        let under_way = self.sessions.clone();
        let mut held =
            Held { under_way, principal: principal.clone(), name: name.clone(), created_ms: None, messages: 0 };
        let found = loop {
            let before = self.sessions.all().forgettings;
            let resume = Resume { principal: principal.clone(), name: name.clone(), begins: true };
            let found = self.memory.send_within(resume, *self.append_timeout.get()).await;
            let found = found.map_err(|error| super::unavailable(&error.to_string(), 1))?.map_err(refused)?;
            let mut all = self.sessions.all();
            // Read before a forgetting, it may hold what is gone now.
            if all.forgettings == before {
                let turn = found.as_ref().map(|(_, turn)| Marks::of(turn));
                all.sessions.insert(key, GoesOn { turn, forgotten: false });
                break found;
            }
        };
        request.conversation.get_or_insert(name);
        if let (Some((session, turn)), ReplyInput::Chat { messages, .. }) = (found, &mut request.input) {
            let said = turn.said(0);
            (held.created_ms, held.messages) = (Some(session.created_ms), said.len());
            // The system's text is the request's own affair; it stays in front.
            let own = messages.iter().take_while(|m| m.role == Role::System).count();
            messages.splice(own..own, said);
        }
        Ok(Some(held))
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
