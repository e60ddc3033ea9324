//! How many replies, or other requests, may be under way, shared out between keys by the rules of `crate::fair`.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;

use crate::fair::{Full, Shares};
use crate::service::ServiceError;

pub struct Permits {
    /// What they are for, in the plural.
    what: &'static str,
    shares: Mutex<Shares>,
    /// How many are held.
    held: watch::Sender<usize>,
}

/// One reply under way; given back when dropped.
pub struct Permit {
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
        Permits::of("replies", requests_max)
    }

    pub(crate) fn of(what: &'static str, requests_max: usize) -> Permits {
        Permits { what, shares: Mutex::new(Shares::new(requests_max)), held: watch::Sender::new(0) }
    }

    fn shares(&self) -> MutexGuard<'_, Shares> {
        self.shares.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One for a reply to this key, unless all are held and it has its share.
    pub(crate) fn enter(self: &Arc<Self>, key: &str) -> Result<Permit, ServiceError> {
        let mut shares = self.shares();
        shares.enter(key).map_err(|Full { total, own }| ServiceError::Busy {
            message: format!("{total} {} are under way, {own} of them for this key: it has its share", self.what),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_key_alone_has_all_and_another_still_finds_its_share() {
        let permits = Arc::new(Permits::of("requests for embeddings", 2));
        let ann = [permits.enter("ann").unwrap(), permits.enter("ann").unwrap()];
        let Err(ServiceError::Busy { message, .. }) = permits.enter("ann") else { panic!("ann has all") };
        assert_eq!(message, "2 requests for embeddings are under way, 2 of them for this key: it has its share");
        let bob = permits.enter("bob").unwrap();
        assert_eq!(permits.held(), 3);
        drop(ann);
        drop(bob);
        assert_eq!(permits.held(), 0);
    }
}
