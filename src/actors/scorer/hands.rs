//! The turns under judgement, each a task: at most a few, none twice at the same time. They end with the Scorer's life.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use tokio::task::{Id, JoinError, JoinSet};

use super::work::{SWEEP_PAGE, TURNS_MAX, Work};
use crate::turn::TurnId;

pub(super) struct Hands {
    work: Arc<Work>,
    /// Each tells whether the judge is in order.
    tasks: JoinSet<bool>,
    turns: HashMap<Id, TurnId>,
    /// Put again while they were in hand, for something came to them since.
    again: BTreeSet<TurnId>,
    /// The judge was found out of order since the last look through the log began.
    broken: bool,
}

impl Hands {
    pub(super) fn new(work: Work) -> Hands {
        let (tasks, turns) = (JoinSet::new(), HashMap::new());
        Hands { work: Arc::new(work), tasks, turns, again: BTreeSet::new(), broken: false }
    }

    fn has(&self, id: &TurnId) -> bool {
        self.turns.values().any(|turn| turn == id)
    }

    /// Takes a turn into hand, once there is room.
    pub(super) async fn take(&mut self, id: TurnId) {
        if self.has(&id) {
            self.again.insert(id);
            return;
        }
        while self.tasks.len() >= TURNS_MAX {
            self.one_ends().await;
        }
        self.begin(id);
    }

    fn begin(&mut self, id: TurnId) {
        let (work, turn) = (self.work.clone(), id.clone());
        // On this thread, as everything that the judge's engine may be started from.
        let task = self.tasks.spawn_local(async move { work.one(turn).await });
        self.turns.insert(task.id(), id);
        self.work.inbox.in_hand(self.tasks.len());
    }

    /// Waits until one of them is through; for ever where none is in hand.
    pub(super) async fn one_ends(&mut self) {
        match self.tasks.join_next_with_id().await {
            Some(ended) => self.ended(ended),
            None => std::future::pending().await,
        }
    }

    fn ended(&mut self, ended: Result<(Id, bool), JoinError>) {
        let (task, in_order) = ended.unwrap_or_else(|error| {
            tracing::error!(%error, "a judgement was broken off");
            self.work.inbox.failed();
            (error.id(), true)
        });
        self.broken |= !in_order;
        if let Some(id) = self.turns.remove(&task)
            && self.again.remove(&id)
        {
            self.begin(id);
        }
        self.work.inbox.in_hand(self.tasks.len());
    }

    /// Takes every turn of the log that has no judgement; new turns go first. Ends early where the judge is out of
    /// order: what failed asked for another look.
    pub(super) async fn sweep(&mut self) {
        self.broken = false;
        let mut after = None;
        while let Some(page) = self.work.unscored(after.take()).await {
            for id in &page {
                while let Some(new) = self.work.inbox.try_next() {
                    self.take(new).await;
                }
                if !self.has(id) {
                    self.take(id.clone()).await;
                }
                if self.broken {
                    return;
                }
            }
            match page.last() {
                Some(last) if page.len() == SWEEP_PAGE => after = Some(last.clone()),
                _ => return,
            }
        }
    }
}
