//! Replies under way: for whom, at which step, and how to end one. It outlives every actor.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio_util::sync::CancellationToken;

use crate::pipeline::Cost;
use crate::service::RunSummary;
use crate::turn::{Plan, Step, TurnId};

/// As many as permits for replies are held. Ids sort by time.
#[derive(Default)]
pub struct Runs(Mutex<BTreeMap<TurnId, (RunSummary, CancellationToken)>>);

/// A reply in the registry, for as long as this lives.
pub(super) struct Registered {
    runs: Arc<Runs>,
    id: TurnId,
}

impl Drop for Registered {
    fn drop(&mut self) {
        self.runs.all().remove(&self.id);
    }
}

impl Registered {
    /// Its model is there: what it will do, and what that can come to.
    pub(super) fn planned(&self, plan: &Plan, model: &str, worst: &Cost) {
        if let Some((run, _)) = self.runs.all().get_mut(&self.id) {
            (run.route, run.model, run.steps) = (plan.route.clone(), model.to_owned(), plan.steps.len());
            (run.generations_max, run.tokens_max) = (worst.generations, worst.tokens);
        }
    }

    /// It is at its step number `at`, from 1, with so many ahead.
    pub(super) fn at(&self, at: usize, ahead: usize, step: &Step) {
        if let Some((run, _)) = self.runs.all().get_mut(&self.id) {
            (run.step, run.steps) = (at, at + ahead);
            (run.kind, run.name) = (step.work.kind().to_owned(), step.name.clone());
        }
    }
}

impl Runs {
    fn all(&self) -> MutexGuard<'_, BTreeMap<TurnId, (RunSummary, CancellationToken)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Enters a reply; the token ends it.
    pub(super) fn enter(self: &Arc<Self>, run: RunSummary) -> (Registered, CancellationToken) {
        let (id, cancelled) = (run.id.clone(), CancellationToken::new());
        self.all().insert(id.clone(), (run, cancelled.clone()));
        (Registered { runs: self.clone(), id }, cancelled)
    }

    /// Those of a principal, or all.
    pub fn list(&self, principal: Option<&str>) -> Vec<RunSummary> {
        let all = self.all();
        let own = all.values().map(|(run, _)| run).filter(|run| principal.is_none_or(|own| own == run.principal));
        own.cloned().collect()
    }

    /// Ends one. False: this principal has no such run.
    pub fn cancel(&self, principal: Option<&str>, id: &TurnId) -> bool {
        let all = self.all();
        let found = all.get(id).filter(|(run, _)| principal.is_none_or(|own| own == run.principal));
        found.inspect(|(_, cancelled)| cancelled.cancel()).is_some()
    }
}
