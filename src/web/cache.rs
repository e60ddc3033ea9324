//! What was found or read a moment ago, by whom. One principal's is never another's: how fast an answer comes would tell what
//! others looked for.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

struct Kept<V> {
    since: Instant,
    bytes: usize,
    value: Arc<V>,
}

/// By principal and name.
type Map<V> = HashMap<(String, String), Kept<V>>;

pub(super) struct Cache<V> {
    ttl: Duration,
    entries_max: usize,
    bytes_max: usize,
    kept: Mutex<Map<V>>,
}

impl<V> Cache<V> {
    pub(super) fn new(ttl: Duration, entries_max: usize, bytes_max: usize) -> Self {
        Cache { ttl, entries_max, bytes_max, kept: Mutex::default() }
    }

    fn kept(&self) -> MutexGuard<'_, Map<V>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn get(&self, principal: &str, name: &str) -> Option<Arc<V>> {
        let mut kept = self.kept();
        kept.retain(|_, one| one.since.elapsed() < self.ttl);
        kept.get(&(principal.to_owned(), name.to_owned())).map(|one| one.value.clone())
    }

    /// Keeps a value of so many bytes; the oldest go first.
    pub(super) fn put(&self, principal: &str, name: &str, value: Arc<V>, bytes: usize) {
        if self.ttl.is_zero() || bytes > self.bytes_max {
            return;
        }
        let mut kept = self.kept();
        kept.insert((principal.to_owned(), name.to_owned()), Kept { since: Instant::now(), bytes, value });
        let mut all: usize = kept.values().map(|one| one.bytes).sum();
        while kept.len() > self.entries_max || all > self.bytes_max {
            let oldest = kept.iter().min_by_key(|(_, one)| one.since).map(|(name, _)| name.clone());
            let Some(gone) = oldest.and_then(|name| kept.remove(&name)) else { break };
            all -= gone.bytes;
        }
    }

    pub(super) fn forget(&self, principal: Option<&str>) {
        self.kept().retain(|(who, _), _| principal.is_some_and(|principal| principal != who.as_str()));
    }

    pub(super) fn len(&self) -> usize {
        self.kept().len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cache_keeps_little_for_a_while_and_each_principal_its_own() {
        let cache = Cache::new(Duration::from_secs(600), 3, 100);
        let put = |who: &str, name: &str, bytes: usize| cache.put(who, name, Arc::new(name.to_owned()), bytes);
        let has = |who: &str, name: &str| cache.get(who, name).is_some();
        put("ada", "a", 10);
        assert!(has("ada", "a") && !has("bob", "a"));
        ["b", "c", "d"].iter().for_each(|name| put("ada", name, 10));
        assert!(!has("ada", "a") && has("ada", "b"), "the oldest went");
        put("bob", "big", 90);
        assert!(has("bob", "big") && has("ada", "d") && !has("ada", "c") && cache.len() == 2);
        put("bob", "huge", 101);
        assert!(!has("bob", "huge"));
        cache.forget(Some("ada"));
        assert!(!has("ada", "d") && has("bob", "big"));
        cache.forget(None);
        assert_eq!(cache.len(), 0);
    }

    #[test]
    fn what_is_too_old_is_not_there() {
        let cache = Cache::new(Duration::from_millis(20), 3, 100);
        cache.put("ada", "a", Arc::new(1), 1);
        std::thread::sleep(Duration::from_millis(30));
        assert!(cache.get("ada", "a").is_none() && cache.len() == 0);
        let none = Cache::new(Duration::ZERO, 3, 100);
        none.put("ada", "a", Arc::new(1), 1);
        assert!(none.get("ada", "a").is_none());
    }
}
