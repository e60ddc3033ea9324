//! What every part of the Scheduler needs: links, paths, the clock, and how far the present phase is. Shared,
//! never changed, but for the progress that it publishes.

use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use jiff::tz::TimeZone;
use serde::Serialize;
use tokio::sync::watch;

use super::host::Host;
use crate::actors::inference::{Board, Inference};
use crate::actors::link::Link;
use crate::actors::memory::Memory;
use crate::actors::orchestrator::Pipelines;
use crate::actors::scorer::Scorer;
use crate::actors::trainer::Trainer;
use crate::clock::Clock;
use crate::embed::Examples;
use crate::failpoint::Failpoint;
use crate::night::forget;
use crate::night::library::Library;
use crate::night::schedule::{Schedule, ScheduleError};
use crate::service::Forgetting;
use crate::store::files::read_bounded;
use crate::training::Step;

/// How far the present phase is.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Progress {
    pub what: String,
    pub done: usize,
    pub total: usize,
    pub began_ms: i64,
}

/// An exam file, or the places that were looked at.
pub type ExamPath = Result<PathBuf, Vec<PathBuf>>;

pub struct Desk {
    pub state_dir: PathBuf,
    pub clock: Clock,
    pub zone: TimeZone,
    pub board: Arc<Board>,
    pub inference: Link<Inference>,
    pub memory: Link<Memory>,
    pub trainer: Link<Trainer>,
    pub scorer: Link<Scorer>,
    /// Pairs of earlier nights.
    pub library: Arc<Library>,
    /// What the prompt optimisation reads, and changes by a file of the state folder.
    pub pipelines: Arc<Pipelines>,
    pub golden: ExamPath,
    pub slice: ExamPath,
    /// Folder of the engram tables that came with the model.
    pub shipped_tables: Option<PathBuf>,
    /// Where the retrieval index goes.
    pub examples: Arc<Examples>,
    /// Folders that may hold `night.yaml`, strongest first.
    pub folders: Vec<PathBuf>,
    pub failpoint: Failpoint,
    /// Jobs begin by themselves.
    pub enabled: bool,
    pub host: Host,
    pub progress: watch::Sender<Progress>,
    /// Forgettings since a selection of pairs began, where one is under way: what it read before them must not stay.
    pub forgettings: Mutex<Option<Vec<Forgetting>>>,
}

impl Desk {
    /// The folder of a run's papers.
    pub fn run_dir(&self, run: &str) -> PathBuf {
        self.state_dir.join("runs").join(run)
    }

    /// `night.yaml` as it is now.
    pub fn schedule(&self) -> Result<Schedule, ScheduleError> {
        Schedule::load(&self.folders)
    }

    /// Says what is being done, and of how much.
    pub fn begin(&self, what: &str, total: usize) {
        let began_ms = self.clock.now_ms();
        self.progress.send_replace(Progress { what: what.to_owned(), done: 0, total, began_ms });
    }

    /// One more of it is done.
    pub fn tick(&self) {
        self.progress.send_modify(|progress| progress.done += 1);
    }

    /// So many of them are done.
    pub fn reach(&self, done: usize, total: usize) {
        self.progress.send_modify(|progress| (progress.done, progress.total) = (done, total));
    }

    /// A step of training is done.
    pub fn learned(&self, step: Step) {
        if step.step <= 1 {
            self.begin("training", step.steps);
        }
        self.reach(step.step, step.steps);
    }

    pub(super) fn forgettings(&self) -> MutexGuard<'_, Option<Vec<Forgetting>>> {
        self.forgettings.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Drops the pairs of turns that are forgotten, from the library and from every run's dataset; says how many went
    /// and whether the run under way had some of them.
    pub fn forget_pairs(&self, wanted: &Forgetting, current: Option<&str>) -> Result<(usize, bool), String> {
        if let Some(since) = self.forgettings().as_mut().filter(|since| !since.contains(wanted)) {
            since.push(wanted.clone());
        }
        forget::pairs(&self.state_dir, &self.library, wanted, current)
    }

    /// Passes a named point between two steps.
    pub fn pass(&self, point: &str) -> io::Result<()> {
        self.failpoint.pass(point)
    }

    /// The hash of the served model, once an engine hosts it.
    pub async fn base(&self, patience: Duration) -> Result<(String, String), String> {
        let hosted = self.board.hosted_within(patience).await;
        let hosted = hosted.ok_or_else(|| format!("no engine serves within {} s", patience.as_secs()))?;
        Ok((hosted.model.name.clone(), hosted.model_hash.clone()))
    }
}

/// Whether the machine runs on its battery: some supply of the mains is there and none is plugged in. A machine
/// without such a supply (a desktop) is on the mains.
pub fn on_battery() -> bool {
    let Ok(supplies) = std::fs::read_dir("/sys/class/power_supply") else { return false };
    let mut mains = Vec::new();
    for supply in supplies.filter_map(Result::ok).take(64) {
        let read = |name: &str| read_bounded(&supply.path().join(name), 64).ok().flatten().unwrap_or_default();
        if read("type").trim() == "Mains" {
            mains.push(read("online").trim() == "1");
        }
    }
    !mains.is_empty() && !mains.contains(&true)
}

/// Runs work that waits for the disk away from the actors' thread.
pub async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, String> {
    tokio::task::spawn_blocking(work).await.map_err(|error| error.to_string())
}
