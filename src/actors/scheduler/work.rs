//! What each phase of a run really does. Parts that do not exist yet say so: nothing is ever reported as done
//! that was not.

use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::desk::Desk;
use super::examine::Trial;
use super::host::Contender;
use super::paper;
use super::promote::promote;
use crate::actors::memory::List;
use crate::actors::trainer::{Take, Train};
use crate::night::generation::{Generations, Pointer};
use crate::night::phase::{Event, Phase, Run};
use crate::night::schedule::Schedule;
use crate::reply::first_turn_id;
use crate::service::{ServiceError, TurnFilter};

const ENGINE_TIMEOUT: Duration = Duration::from_secs(120);
/// Turns that a day's count looks at.
const TURNS_MAX: usize = 20_000;
const MEMORY_TIMEOUT: Duration = Duration::from_secs(60);
const DAY_MS: i64 = 24 * 3_600_000;

/// One phase of one run.
pub(super) struct Work {
    pub(super) desk: Arc<Desk>,
    pub(super) generations: Arc<Generations>,
    pub(super) schedule: Arc<Schedule>,
    pub(super) run: Run,
    pub(super) pointer: Pointer,
    pub(super) notices: Vec<String>,
    /// Runs whose papers stay.
    pub(super) known: Vec<String>,
    /// Report of the run before, for the trend.
    pub(super) before: Option<String>,
    pub(super) stop: CancellationToken,
}

/// What came of a phase; a promotion also moved the pointer.
pub(super) struct Worked {
    pub(super) event: Event,
    pub(super) pointer: Option<Pointer>,
}

impl Work {
    /// Does the phase. A stop ends all of them but the short last ones.
    pub(super) async fn run(self) -> Worked {
        let name = self.run.phase.name();
        let begun = self.desk.pass(&format!("{name}.begun"));
        let worked = match begun {
            Err(error) => failed(error.to_string()),
            Ok(()) if matches!(self.run.phase, Phase::Promote | Phase::Report) => self.work().await,
            Ok(()) => tokio::select! {
                worked = self.work() => worked,
                () = self.stop.cancelled() => {
                    just(Event::Stop { words: format!("the owner paused the night in the phase `{name}`") })
                }
            },
        };
        match self.desk.pass(&format!("{name}.done")) {
            Ok(()) => worked,
            Err(error) => failed(error.to_string()),
        }
    }

    async fn work(&self) -> Worked {
        match self.run.phase {
            Phase::Score | Phase::Select => just(self.count().await),
            Phase::Train => just(self.train().await),
            Phase::Gate => just(self.gate().await.unwrap_or_else(|words| Event::Failed { words })),
            Phase::Promote => {
                let rules = &self.schedule.canary;
                match promote(&self.desk, &self.generations, rules, &self.run, self.pointer).await {
                    Ok((generation, pointer)) => {
                        Worked { event: Event::Promoted { generation }, pointer: Some(pointer) }
                    }
                    Err(words) => failed(words),
                }
            }
            Phase::Reinforce => just(self.reinforce().await.unwrap_or_else(|words| Event::Failed { words })),
            Phase::Optimise => not_built("prompt optimisation is not built yet: no pipeline was changed"),
            Phase::Reindex => not_built("the retrieval index is not built yet: there is nothing to reindex"),
            Phase::Report => match paper::write(self).await {
                Ok(()) => just(Event::Passed { words: String::new() }),
                Err(words) => failed(words),
            },
        }
    }

    /// What the last day left to learn from.
    async fn count(&self) -> Event {
        match self.funnel().await {
            Ok(funnel) => {
                let stages: Vec<_> = funnel.iter().map(|(stage, n)| format!("{n} {stage}")).collect();
                Event::Passed { words: stages.join(", ") }
            }
            Err(words) => Event::Failed { words },
        }
    }

    /// Turns of the day before this run, and how many of them may be learned from.
    pub(super) async fn funnel(&self) -> Result<Vec<(String, u64)>, String> {
        let since = self.run.order.started_ms - DAY_MS;
        let filter = TurnFilter { after: Some(first_turn_id(since)), limit: Some(TURNS_MAX), ..TurnFilter::default() };
        let turns = self.desk.memory.send_within(List(filter), MEMORY_TIMEOUT).await;
        let turns = turns.map_err(|e| e.to_string())?.map_err(|e| e.to_string())?;
        let (mut consented, mut untainted, mut scored) = (0, 0, 0);
        for turn in turns.iter().filter(|t| t.consent) {
            consented += 1;
            if !turn.taint {
                untainted += 1;
                scored += u64::from(turn.verdict.is_some());
            }
        }
        let stages = [("turns", turns.len() as u64), ("with consent", consented), ("untainted", untainted)];
        Ok(stages.into_iter().chain([("scored", scored)]).map(|(s, n)| (s.to_owned(), n)).collect())
    }

    async fn train(&self) -> Event {
        let Some(given) = self.run.order.given.clone() else {
            return match self.desk.trainer.send(Train).await {
                Ok(Ok(())) => Event::Nothing { words: "the trainer made no candidate".to_owned() },
                Ok(Err(ServiceError::NotBuilt(words))) => Event::NotBuilt { words },
                Ok(Err(error)) => Event::Failed { words: error.to_string() },
                Err(error) => Event::Failed { words: error.to_string() },
            };
        };
        let take = Take { path: given.clone(), run: self.run.order.id.clone() };
        match self.desk.trainer.send_within(take, ENGINE_TIMEOUT).await {
            Ok(Ok(candidate)) => {
                let words = format!("candidate taken from {}", given.display());
                Event::Trained { candidate, words }
            }
            Ok(Err(words)) => Event::Failed { words },
            Err(error) => Event::Failed { words: error.to_string() },
        }
    }

    async fn gate(&self) -> Result<Event, String> {
        let candidate = self.run.candidate.as_ref().ok_or("there is no candidate")?;
        let base = self.desk.base(ENGINE_TIMEOUT).await?;
        let champion = self.pointer.champion;
        let (store, hash) = (self.generations.clone(), base.1.clone());
        let champion_asked = super::desk::blocking(move || Contender::generation(&store, champion, &hash)).await??;
        let trial =
            Trial { desk: &self.desk, schedule: &self.schedule, run: &self.run, champion, champion_asked, base };
        let verdict = trial.run(candidate).await?;
        Ok(Event::Judged { promote: verdict.promote, rule: verdict.decided_by, words: verdict.words })
    }
}

fn just(event: Event) -> Worked {
    Worked { event, pointer: None }
}

fn failed(words: String) -> Worked {
    just(Event::Failed { words })
}

fn not_built(words: &str) -> Worked {
    just(Event::NotBuilt { words: words.to_owned() })
}
