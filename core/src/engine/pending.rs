//! Requests on their way to the engine loop that wait for something beside it: for their text to be read, for their
//! grammar to be compiled. The one that takes an id out answers for the request.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::protocol::{Event, FailureKind, RequestId};

/// By their ids; `true`: nothing of its prompt is to be kept.
#[derive(Clone, Debug, Default)]
pub struct Pending(Arc<Mutex<HashMap<RequestId, bool>>>);

impl Pending {
    fn all(&self) -> MutexGuard<'_, HashMap<RequestId, bool>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn enter(&self, id: RequestId) {
        self.all().insert(id, false);
    }

    pub fn holds(&self, id: RequestId) -> bool {
        self.all().contains_key(&id)
    }

    /// False: it was not here.
    pub fn leave(&self, id: RequestId) -> bool {
        self.all().remove(&id).is_some()
    }

    /// Ends a request that is still here; the event tells so. `None`: it is elsewhere.
    pub fn cancel(&self, id: RequestId) -> Option<Event> {
        let message = "the request was cancelled".to_owned();
        self.leave(id).then_some(Event::Failed { id, kind: FailureKind::Invalid, message })
    }

    /// Passes a request on, unless it has left; `on` hears whether something of its prompt may not be kept. Nothing else
    /// happens here meanwhile, so that a cancel comes either before or behind it.
    pub fn pass<T>(&self, id: RequestId, on: impl FnOnce(bool) -> T) -> Option<T> {
        let mut all = self.all();
        all.remove(&id).map(on)
    }

    /// What was asked before this must keep nothing of its prompt, though it comes to the engine loop behind this.
    pub fn forget(&self) {
        self.all().values_mut().for_each(|forgotten| *forgotten = true);
    }

    /// Nobody waits for anything any more.
    pub fn clear(&self) {
        self.all().clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_leaves_once_and_knows_what_was_forgotten_meanwhile() {
        let pending = Pending::default();
        pending.enter(1);
        pending.enter(2);
        assert_eq!(pending.pass(1, |forgotten| forgotten), Some(false));
        assert_eq!((pending.pass(1, |_| ()), pending.cancel(1)), (None, None));
        pending.forget();
        pending.enter(3);
        assert_eq!(
            (pending.pass(2, |forgotten| forgotten), pending.pass(3, |forgotten| forgotten)),
            (Some(true), Some(false))
        );
        pending.enter(4);
        assert!(pending.holds(4) && matches!(pending.cancel(4), Some(Event::Failed { id: 4, .. })));
        pending.enter(5);
        pending.clear();
        assert!(!pending.holds(5));
    }
}
