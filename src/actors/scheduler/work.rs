//! What each phase of a run really does. Parts that do not exist yet say so: nothing is ever reported as done
//! that was not.

use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::desk::{Desk, blocking};
use super::examine::Trial;
use super::host::Contender;
use super::paper;
use super::promote::promote;
use crate::engine::learns;
use crate::night::generation::{Generations, Pointer};
use crate::night::phase::{Event, Job, Phase, Run};
use crate::night::schedule::Schedule;

const ENGINE_TIMEOUT: Duration = Duration::from_secs(120);

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
                // The stop first: what it ends has failed at the same moment.
                biased;
                () = self.stop.cancelled() => {
                    just(Event::Stop { words: format!("stopped in the phase `{name}`") })
                }
                worked = self.work() => worked,
            },
        };
        match self.desk.pass(&format!("{name}.done")) {
            Ok(()) => worked,
            Err(error) => failed(error.to_string()),
        }
    }

    async fn work(&self) -> Worked {
        if let Some(words) = self.learns_nothing() {
            return just(Event::Nothing { words });
        }
        match self.run.phase {
            Phase::Score => done(self.score().await),
            Phase::Select => done(self.select().await),
            Phase::Train => done(self.train().await),
            Phase::Gate => done(self.gate().await),
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
            Phase::Weigh => just(self.weigh().await.unwrap_or_else(|words| Event::Failed { words })),
            Phase::Optimise => just(self.optimise().await.unwrap_or_else(|words| Event::Failed { words })),
            Phase::Reindex => just(self.reindex().await.unwrap_or_else(|words| Event::Failed { words })),
            Phase::Report => match paper::write(self).await {
                Ok(()) => just(Event::Passed { words: String::new() }),
                Err(words) => failed(words),
            },
        }
    }

    /// Why a night that trains is over before it begins: nothing could come of it.
    fn learns_nothing(&self) -> Option<String> {
        // Verdicts are of use to tables all the same.
        let before = matches!(self.run.phase, Phase::Select | Phase::Train);
        let hosted = self.desk.board.hosted().filter(|_| before && self.run.order.job == Job::Train)?;
        hosted.frozen.as_deref().map(learns::refused)
    }

    async fn gate(&self) -> Result<Event, String> {
        let candidate = self.run.candidate.as_ref().ok_or("there is no candidate")?;
        let base = self.desk.base(ENGINE_TIMEOUT).await?;
        let champion = self.pointer.champion;
        let champion_asked = self.champion(&base.1).await?;
        let trial =
            Trial { desk: &self.desk, schedule: &self.schedule, run: &self.run, champion, champion_asked, base };
        let verdict = trial.run(candidate).await?;
        Ok(Event::Judged { promote: verdict.promote, rule: verdict.decided_by, words: verdict.words })
    }

    /// The generation that serves, to be asked; it is not loaded yet.
    pub(super) async fn champion(&self, base_hash: &str) -> Result<Contender, String> {
        let (store, hash, champion) = (self.generations.clone(), base_hash.to_owned(), self.pointer.champion);
        blocking(move || Contender::generation(&store, champion, &hash)).await?
    }
}

fn just(event: Event) -> Worked {
    Worked { event, pointer: None }
}

fn done(event: Result<Event, String>) -> Worked {
    just(event.unwrap_or_else(|words| Event::Failed { words }))
}

fn failed(words: String) -> Worked {
    just(Event::Failed { words })
}
