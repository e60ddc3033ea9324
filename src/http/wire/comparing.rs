//! Schemas whose patterns are compared, which may take seconds. Whoever reads a request steps aside for that, so that the
//! daemon's other work goes on. Few compare at once and few wait; the time of the others is up.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use serde_json::Value;
use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::task::block_in_place;

use crate::engine::grammar::compares;

/// Requests that compare at once.
const PLACES: usize = 1;
/// Requests that wait for a place.
const WAITING_MAX: usize = 16;

struct Taken {
    places: usize,
    waiting: usize,
}

static TAKEN: Mutex<Taken> = Mutex::new(Taken { places: 0, waiting: 0 });
static FREED: Condvar = Condvar::new();

/// A place, until this is dropped.
struct Place;

impl Drop for Place {
    fn drop(&mut self) {
        taken().places -= 1;
        FREED.notify_one();
    }
}

/// Looks at a schema, beside the daemon's other work where that may take long. `look` hears until when it may compare;
/// where no place was free in time it may not.
pub(super) fn compared<T>(schema: &Value, until: Instant, look: impl FnOnce(Instant) -> T) -> T {
    if !compares(schema) {
        return look(until);
    }
    let look = || {
        let place = place(until);
        look(if place.is_some() { until } else { Instant::now() })
    };
    // Elsewhere there is no other work on this thread.
    let shared = Handle::try_current().is_ok_and(|runtime| runtime.runtime_flavor() == RuntimeFlavor::MultiThread);
    if shared { block_in_place(look) } else { look() }
}

fn taken() -> MutexGuard<'static, Taken> {
    TAKEN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A place; none where none was free in time.
fn place(until: Instant) -> Option<Place> {
    let mut all = taken();
    if all.places == PLACES && all.waiting == WAITING_MAX {
        return None;
    }
    all.waiting += 1;
    let left = until.saturating_duration_since(Instant::now());
    let waited = FREED.wait_timeout_while(all, left, |all| all.places == PLACES);
    let (mut all, _) = waited.unwrap_or_else(PoisonError::into_inner);
    all.waiting -= 1;
    let free = all.places < PLACES;
    all.places += usize::from(free);
    free.then(|| Place)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use serde_json::json;

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(180);

    #[test]
    fn one_compares_others_wait_and_whoever_has_no_place_does_not_compare() {
        let heavy = json!({"items": {"patternProperties": {"^a": {}, "^b": {}}}});
        let light = json!({"patternProperties": {"^a": {}}});
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).build().unwrap();
        let until = Instant::now() + PATIENCE;
        let (began, hears) = std::sync::mpsc::channel();
        let (let_go, held) = std::sync::mpsc::channel::<()>();
        let (own, other) = (heavy.clone(), heavy.clone());
        let first = runtime.spawn(async move {
            compared(&own, until, |until| {
                began.send(()).unwrap();
                held.recv().unwrap();
                until
            })
        });
        hears.recv().unwrap();
        // The only thread of the runtime is free for others meanwhile.
        let beside = runtime.block_on(runtime.spawn(async move { compared(&light, until, |until| until) }));
        assert_eq!(beside.unwrap(), until);
        let over = Instant::now();
        assert_ne!(
            runtime.block_on(runtime.spawn(async move { compared(&other, over, |until| until) })).unwrap(),
            until
        );
        // Those that wait get the place, and no more than that may wait.
        let mut waiting = Vec::new();
        for _ in 0..WAITING_MAX {
            let own = heavy.clone();
            waiting.push(std::thread::spawn(move || compared(&own, until, |until| until)));
        }
        while taken().waiting < WAITING_MAX {
            std::thread::yield_now();
        }
        assert!(compared(&heavy, until, |until| until) < until);
        let_go.send(()).unwrap();
        assert_eq!(runtime.block_on(first).unwrap(), until);
        waiting.into_iter().for_each(|one| assert_eq!(one.join().unwrap(), until));
    }
}
