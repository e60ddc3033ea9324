//! Named sessions in sled: which turn a conversation of a principal has come to. Tree `sessions`: principal, a zero byte and
//! name → record. A name points at a turn and holds no text, so what is forgotten of the log is gone from every session.

use sled::Tree;

use super::record::{pack, unpack};
use super::sled_turns::disk;
use super::{SESSIONS_MAX, StoreError};
use crate::service::Session;

pub(super) struct Sessions(Tree);

impl Sessions {
    pub(super) fn new(tree: Tree) -> Self {
        Sessions(tree)
    }

    /// Writes a session, in place of the one of that name.
    pub(super) fn put(&self, session: &Session) -> Result<(), StoreError> {
        self.0.insert(key(&session.principal, &session.name), pack(session)?).map(drop).map_err(disk)
    }

    /// May this principal have one more.
    pub(super) fn room(&self, principal: &str) -> Result<(), StoreError> {
        let count = self.0.scan_prefix(key(principal, "")).keys().take(SESSIONS_MAX).count();
        if count < SESSIONS_MAX { Ok(()) } else { Err(StoreError::SessionsFull) }
    }

    pub(super) fn get(&self, principal: &str, name: &str) -> Result<Option<Session>, StoreError> {
        let key = key(principal, name);
        self.0.get(&key).map_err(disk)?.map(|record| unpack(&key, &record)).transpose()
    }

    /// All sessions of a principal, by name. A damaged record is reported and passed over.
    pub(super) fn of(&self, principal: &str) -> Result<Vec<Session>, StoreError> {
        let mut sessions = Vec::new();
        for entry in self.0.scan_prefix(key(principal, "")) {
            let (key, record) = entry.map_err(disk)?;
            match unpack(&key, &record) {
                Ok(session) => sessions.push(session),
                Err(error) => tracing::error!(%error, "session passed over"),
            }
        }
        Ok(sessions)
    }

    pub(super) fn remove(&self, principal: &str, name: &str) -> Result<bool, StoreError> {
        Ok(self.0.remove(key(principal, name)).map_err(disk)?.is_some())
    }

    /// Removes those that `keep` does not want, and damaged ones.
    pub(super) fn retain(&self, keep: impl Fn(&Session) -> Result<bool, StoreError>) -> Result<(), StoreError> {
        for entry in self.0.iter() {
            let (key, record) = entry.map_err(disk)?;
            let kept = match unpack(&key, &record) {
                Ok(session) => keep(&session)?,
                Err(_) => false,
            };
            if !kept {
                self.0.remove(key).map_err(disk)?;
            }
        }
        Ok(())
    }
}

/// No name of a principal holds a zero byte.
fn key(principal: &str, name: &str) -> Vec<u8> {
    [principal.as_bytes(), &[0], name.as_bytes()].concat()
}
