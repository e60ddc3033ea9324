//! How many replies may be under way, shared out between keys by the rules of `crate::fair`.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;

use crate::fair::{Full, Shares};
use crate::plural::counted;
use crate::service::ServiceError;

pub struct Permits {
    shares: Mutex<Shares>,
    /// How many are held.
    held: watch::Sender<usize>,
}

/// One reply under way; given back when dropped.
pub(super) struct Permit {
    permits: Arc<Permits>,
    key: String,
}

impl Drop for Permit {
    fn drop(&mut self) {
        let mut shares = self.permits.shares();
        shares.leave(&self.key);
        self.permits.held.send_replace(shares.total());
    }
}

impl Permits {
    /// As many as one key alone may have.
    pub fn new(requests_max: usize) -> Permits {
        Permits { shares: Mutex::new(Shares::new(requests_max)), held: watch::Sender::new(0) }
    }

    fn shares(&self) -> MutexGuard<'_, Shares> {
        self.shares.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One for a reply to this key, unless all are held and it has its share.
    pub(super) fn enter(self: &Arc<Self>, key: &str) -> Result<Permit, ServiceError> {
        let mut shares = self.shares();
        shares.enter(key).map_err(|Full { total, own }| ServiceError::Busy {
            message: format!(
                "{}, {own} of them for this key: it has its share. Let one of them end, or end it (`DELETE /v1/runs/ID`); \
                 another key has a share of its own, and the owner may raise `replies.requests_max`",
                counted(total, "reply is under way", "replies are under way")
            ),
            retry_after_s: 1,
        })?;
        self.held.send_replace(shares.total());
        Ok(Permit { permits: self.clone(), key: key.to_owned() })
    }

    pub(super) fn held(&self) -> usize {
        *self.held.borrow()
    }

    /// Resolves when none is held.
    pub(super) async fn idle(&self) {
        let _ = self.held.subscribe().wait_for(|held| *held == 0).await;
    }
}
