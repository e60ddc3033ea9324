//! What the Scheduler says of itself: `GET /v1/night`.

use serde_json::{Value, json};

use super::Scheduler;
use crate::engine::learns;
use crate::night::phase::Job;
use crate::night::record::Handled;
use crate::night::schedule::Due;

/// Notices that are shown.
const NOTICES: usize = 10;

impl Scheduler {
    pub(super) fn status(&self) -> Value {
        let faults = [self.fault.as_ref(), self.generations.as_ref().err(), self.schedule.as_ref().err()];
        let fault = faults.into_iter().flatten().next();
        let state = match (&self.record.run, fault) {
            (_, Some(_)) => "stopped",
            (Some(_), None) => "running",
            (None, None) if self.record.paused => "paused",
            (None, None) => "resting",
        };
        let notices: Vec<_> = self.record.notices.iter().rev().take(NOTICES).collect();
        json!({
            "state": state,
            "fault": fault,
            "enabled": self.desk.enabled,
            "learning": self.learning(),
            "paused": self.record.paused,
            "run": self.run_status(),
            "served": {
                "ready": self.recovered.is_some(),
                "champion": self.pointer.champion,
                "previous": self.pointer.previous,
                "canary": self.pointer.canary,
                "watched": self.watched,
            },
            "generations": self.generations.as_ref().ok().and_then(|g| g.numbers().ok()),
            "jobs": self.job_status(),
            "last": self.record.past.last(),
            "notices": notices,
            "cron": match &self.cron {
                Ok(_) => "running",
                Err(why) => why,
            },
        })
    }

    /// Whether the weights of the model that serves learn, known as soon as it is loaded.
    fn learning(&self) -> Value {
        self.desk.board.hosted().map_or(
            Value::Null,
            |hosted| json!({ "weights": hosted.frozen.is_none(), "words": learns::told(hosted.frozen.as_deref()) }),
        )
    }

    fn run_status(&self) -> Value {
        let Some(run) = &self.record.run else { return Value::Null };
        let progress = self.desk.progress.borrow().clone();
        let elapsed_ms = (self.desk.clock.now_ms() - progress.began_ms).max(0);
        let left = progress.total.saturating_sub(progress.done) as i64;
        let eta_ms = (progress.done > 0).then(|| elapsed_ms * left / progress.done as i64);
        json!({
            "id": run.order.id,
            "job": run.order.job,
            "dry_run": run.order.dry_run,
            "phase": run.phase,
            "attempt": run.attempt,
            "steps": run.steps,
            "started_ms": run.order.started_ms,
            "progress": progress,
            "eta_ms": eta_ms,
        })
    }

    fn job_status(&self) -> Value {
        let Ok(schedule) = &self.schedule else { return Value::Null };
        let conditions = self.conditions();
        let mut jobs = serde_json::Map::new();
        for (job, entry) in &schedule.jobs {
            let handled = self.record.jobs.get(job).copied().unwrap_or(Handled { until_ms: conditions.now_ms });
            let (next_ms, waits) = match entry.due(handled, conditions, &self.desk.zone) {
                Due::Later { next_ms } => (next_ms, None),
                Due::Waits { due_ms, why } => (Some(due_ms), Some(why)),
                Due::Now { due_ms } => (Some(due_ms), None),
            };
            let last = self.record.past.iter().rev().find(|p| p.job == *job);
            let built = match job {
                Job::Train => "scores, selects, trains, judges and promotes",
                Job::EngramWrite => "writes the learned engram tables from verified answers",
                Job::OptimisePrompts => "searches better prompts route by route; the held-out exam decides",
                Job::Reindex => "makes the index of verified exchanges anew",
            };
            let job_status =
                json!({ "cron": entry.pattern, "next_ms": next_ms, "waits": waits, "built": built, "last": last });
            jobs.insert(job.name().to_owned(), job_status);
        }
        Value::Object(jobs)
    }
}
