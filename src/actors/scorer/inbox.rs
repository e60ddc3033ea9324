//! Turns that wait for a verdict. The inbox outlives the Scorer's lives, has a capacity, and never makes a reply
//! wait. A turn that finds it full is counted, and found again in the turn log.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use serde_json::{Value, json};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};

use crate::meters;
use crate::turn::TurnId;

pub struct Inbox {
    waiting: Mutex<Waiting>,
    turns_max: usize,
    news: Notify,
    /// Nothing is scored: nothing is taken.
    closed: AtomicBool,
    /// Turns under judgement.
    in_hand: AtomicUsize,
    scored: AtomicU64,
    failed: AtomicU64,
    overflowed: AtomicU64,
}

struct Waiting {
    turns: VecDeque<TurnId>,
    /// When the turn log is to be looked through.
    sweep_at: Option<Instant>,
}

/// What to do next.
pub(super) enum Next {
    Turn(TurnId),
    /// Look through the turn log.
    Sweep,
}

impl Inbox {
    pub fn new(turns_max: usize) -> Inbox {
        let waiting = Waiting { turns: VecDeque::new(), sweep_at: None };
        Inbox {
            waiting: Mutex::new(waiting),
            turns_max,
            news: Notify::new(),
            closed: AtomicBool::new(false),
            in_hand: AtomicUsize::new(0),
            scored: AtomicU64::new(0),
            failed: AtomicU64::new(0),
            overflowed: AtomicU64::new(0),
        }
    }

    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A turn was flushed.
    pub fn put(&self, id: TurnId) {
        if self.closed.load(Ordering::Relaxed) {
            return;
        }
        let mut waiting = self.waiting();
        if waiting.turns.len() < self.turns_max {
            waiting.turns.push_back(id);
            meters::scorer_queue(waiting.turns.len());
        } else {
            waiting.sweep_at.get_or_insert_with(Instant::now);
            self.overflowed.fetch_add(1, Ordering::Relaxed);
            meters::turn_unscored("overflow");
        }
        drop(waiting);
        self.news.notify_one();
    }

    pub(super) fn close(&self) {
        self.closed.store(true, Ordering::Relaxed);
        self.waiting().turns.clear();
    }

    pub(super) fn ask_for_sweep(&self) {
        self.sweep_at(Instant::now());
    }

    /// Asks for a look through the turn log at a time, or earlier where that is due already.
    pub(super) fn sweep_at(&self, at: Instant) {
        let mut waiting = self.waiting();
        waiting.sweep_at = Some(waiting.sweep_at.map_or(at, |due| due.min(at)));
        drop(waiting);
        self.news.notify_one();
    }

    /// The next turn that was put here, without waiting.
    pub(super) fn try_next(&self) -> Option<TurnId> {
        let mut waiting = self.waiting();
        let next = waiting.turns.pop_front();
        meters::scorer_queue(waiting.turns.len());
        next
    }

    /// Waits for something to do; turns put here come before a look through the log.
    pub(super) async fn next(&self) -> Next {
        loop {
            if let Some(turn) = self.try_next() {
                return Next::Turn(turn);
            }
            let due = self.waiting().sweep_at;
            if due.is_some_and(|due| due <= Instant::now()) {
                self.waiting().sweep_at = None;
                return Next::Sweep;
            }
            match due {
                Some(due) => tokio::select! {
                    () = self.news.notified() => {}
                    () = sleep_until(due) => {}
                },
                None => self.news.notified().await,
            }
        }
    }

    pub(super) fn in_hand(&self, turns: usize) {
        self.in_hand.store(turns, Ordering::Relaxed);
    }

    /// A verdict was written.
    pub(crate) fn scored(&self, verdict: u8) {
        self.scored.fetch_add(1, Ordering::Relaxed);
        meters::turn_scored(verdict);
    }

    pub(super) fn failed(&self) {
        self.failed.fetch_add(1, Ordering::Relaxed);
        meters::turn_unscored("failed");
    }

    pub(super) fn status(&self) -> Value {
        let waiting = self.waiting().turns.len();
        let in_hand = self.in_hand.load(Ordering::Relaxed);
        json!({
            "state": if in_hand > 0 { "scoring" } else { "idle" },
            "in_hand": in_hand,
            "queue": waiting,
            "queue_max": self.turns_max,
            "scored": self.scored.load(Ordering::Relaxed),
            "failed": self.failed.load(Ordering::Relaxed),
            "overflowed": self.overflowed.load(Ordering::Relaxed),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(n: usize) -> TurnId {
        TurnId(format!("turn-{n}"))
    }

    #[tokio::test]
    async fn turns_come_before_a_sweep_and_an_overflow_asks_for_one() {
        let inbox = Inbox::new(2);
        (0..3).for_each(|n| inbox.put(id(n)));
        assert_eq!(inbox.status()["overflowed"], 1);
        for n in 0..2 {
            assert!(matches!(inbox.next().await, Next::Turn(turn) if turn == id(n)));
        }
        assert!(matches!(inbox.next().await, Next::Sweep));
        let began = Instant::now();
        inbox.sweep_at(began + std::time::Duration::from_millis(30));
        assert!(matches!(inbox.next().await, Next::Sweep));
        assert!(began.elapsed().as_millis() >= 30);
        inbox.close();
        inbox.put(id(9));
        assert_eq!(inbox.status()["queue"], 0);
    }
}
