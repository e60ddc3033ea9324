//! Further models, each with an engine of its own. A request that names a model starts its engine. The engine ends
//! after a while without requests, or when another model needs its place. There are never more engines than places;
//! requests wait for a place, first come, first served. The end of such an engine never touches the serving one.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt};
use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep_until, timeout, timeout_at};

use super::{Ask, Board, EngineSpec, EngineState, Inference, InferenceError, Pass, Rest, Shut, Stop, Wake};
use crate::actors::link::{Link, LinkError};
use crate::actors::supervisor::{Budget, Place, supervise};
use crate::engine::protocol::{Event, Hosted};
use crate::engine::validate::EMBEDS;
use crate::meters;

/// An engine that was told to end is killed long before this.
const END_TIMEOUT: Duration = Duration::from_secs(30);
const SEND_TIMEOUT: Duration = Duration::from_secs(10);
/// A file that could not be loaded is not tried again so soon.
const FAILED_FOR: Duration = Duration::from_secs(10);
/// How often it is looked whose time is over, at least and at most.
const LOOK_MIN: Duration = Duration::from_millis(50);
const LOOK_MAX: Duration = Duration::from_secs(1);

/// What further models may take.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct FleetLimits {
    /// Engines at once.
    pub loaded_max: usize,
    /// One that nobody asks for so long ends; `None`: only where its place is needed.
    pub idle: Option<Duration>,
    /// Longest wait of a request for its model.
    pub wait: Duration,
}

/// Why a model does not answer.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum FleetError {
    #[error("the model `{name}` cannot be loaded: {why}")]
    Failed { name: String, why: String, retry_after_s: u32 },
    #[error(
        "every place for a further model ({0}) is taken by one that is being asked: try again later, or raise models.loaded_max"
    )]
    Full(usize),
    #[error("the model `{0}` is still being loaded: try again later")]
    Late(String),
    #[error(transparent)]
    Link(#[from] LinkError),
}

/// A further model, loaded or not.
pub struct Berth {
    /// Under which it is asked for; the first one is its own.
    pub names: Vec<String>,
    pub file: PathBuf,
    pub board: Arc<Board>,
    pub inference: Link<Inference>,
    /// Held as long as there is an engine.
    place: Mutex<Option<OwnedSemaphorePermit>>,
    /// One loads, the others wait for that.
    loading: tokio::sync::Mutex<()>,
    /// When somebody came or left last.
    used: Mutex<Instant>,
    failed: Mutex<Option<(Instant, String)>>,
}

/// The same model answers for as long as this is held.
pub struct Visit {
    pub berth: Arc<Berth>,
    pub pass: Pass,
}

pub struct Fleet {
    berths: Vec<Arc<Berth>>,
    limits: FleetLimits,
    places: Arc<Semaphore>,
    /// A place went to a model. Whoever looked while it was in nobody's hands saw nobody to wait for, and looks again.
    settled: watch::Sender<()>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Berth {
    fn used(&self) -> Instant {
        *lock(&self.used)
    }

    fn touch(&self) {
        *lock(&self.used) = Instant::now();
    }

    fn loaded(&self) -> bool {
        lock(&self.place).is_some()
    }

    /// Since nobody asked for it.
    pub fn idle(&self) -> Duration {
        self.used().elapsed()
    }

    fn failure(&self) -> Option<FleetError> {
        let failed = lock(&self.failed);
        let (since, why) = failed.as_ref()?;
        let left = FAILED_FOR.checked_sub(since.elapsed())?;
        let retry_after_s = left.as_secs() as u32 + 1;
        Some(FleetError::Failed { name: self.names[0].clone(), why: why.clone(), retry_after_s })
    }
}

impl Drop for Visit {
    fn drop(&mut self) {
        self.berth.touch();
    }
}

/// Without a model.
impl Default for Fleet {
    fn default() -> Fleet {
        Fleet {
            berths: Vec::new(),
            limits: FleetLimits::default(),
            places: Arc::new(Semaphore::new(0)),
            settled: watch::Sender::new(()),
        }
    }
}

impl Fleet {
    /// The models by their names (one at least each) and how their engines are started. None is.
    pub fn new(
        models: Vec<(Vec<String>, EngineSpec)>,
        limits: FleetLimits,
        place: &Place,
        budget: Budget,
        runtime: &Handle,
    ) -> Fleet {
        let berth = |(names, spec): (Vec<String>, EngineSpec)| {
            let (board, file) = (Arc::new(Board::asleep_aside()), spec.model.clone());
            let (spec, shared, runtime) = (Arc::new(spec), board.clone(), runtime.clone());
            // Its own end is told nowhere: a daemon that loses a further model goes on serving.
            let unheard = Arc::new(watch::Sender::new(None));
            let inference = supervise("further model", place.clone(), budget, unheard, move || {
                Inference::new(spec.clone(), shared.clone(), runtime.clone())
            });
            let (place, loading, failed) = Default::default();
            Arc::new(Berth { names, file, board, inference, place, loading, used: Mutex::new(Instant::now()), failed })
        };
        let places = Arc::new(Semaphore::new(limits.loaded_max));
        Fleet { berths: models.into_iter().map(berth).collect(), limits, places, settled: watch::Sender::new(()) }
    }

    pub fn berths(&self) -> &[Arc<Berth>] {
        &self.berths
    }

    /// Longest wait of a request for a model to be loaded.
    pub fn wait(&self) -> Duration {
        self.limits.wait
    }

    pub fn find(&self, name: &str) -> Option<&Arc<Berth>> {
        self.berths.iter().find(|berth| berth.names.iter().any(|own| own == name))
    }

    /// Waits for a model to be loaded, within `wait`, and keeps it so for the visit.
    pub async fn visit(&self, berth: &Arc<Berth>) -> Result<(Visit, Arc<Hosted>), FleetError> {
        let deadline = Instant::now() + self.limits.wait;
        let late = || FleetError::Late(berth.names[0].clone());
        berth.touch();
        let pass = berth.board.gate.enter(self.limits.wait).await.ok_or_else(late)?;
        let visit = Visit { berth: berth.clone(), pass };
        if let Some(hosted) = berth.board.hosted() {
            return Ok((visit, hosted));
        }
        let _one = timeout_at(deadline, berth.loading.lock()).await.map_err(|_| late())?;
        match berth.board.hosted() {
            Some(hosted) => Ok((visit, hosted)),
            None => self.load(berth, deadline).await.map(|hosted| (visit, hosted)),
        }
    }

    /// Whoever calls holds `loading` and a pass.
    async fn load(&self, berth: &Arc<Berth>, deadline: Instant) -> Result<Arc<Hosted>, FleetError> {
        if let Some(failure) = berth.failure() {
            return Err(failure);
        }
        if !berth.loaded() {
            let place = self.place(deadline).await?;
            self.settle(berth, place);
            meters::models_loaded(self.loaded());
            tracing::info!(model = berth.names[0], file = %berth.file.display(), "a further model is loaded");
        }
        berth.inference.send_within(Wake, SEND_TIMEOUT).await?;
        let left = deadline.saturating_duration_since(Instant::now());
        let why = match berth.board.hosted_within(left).await {
            Some(hosted) if !hosted.model.embedding_only => {
                meters::model_load("ready");
                return Ok(hosted);
            }
            Some(_) => EMBEDS.to_owned(),
            None => match berth.board.state() {
                EngineState::Failed { message, .. } => message,
                _ => {
                    meters::model_load("late");
                    return Err(FleetError::Late(berth.names[0].clone()));
                }
            },
        };
        tracing::error!(model = berth.names[0], why, "a further model cannot be loaded");
        meters::model_load("failed");
        *lock(&berth.failed) = Some((Instant::now(), why));
        drop(self.end(berth, "failed").await);
        Err(berth.failure().unwrap_or_else(|| FleetError::Late(berth.names[0].clone())))
    }

    /// A place for an engine: a free one, that of the model which nobody has asked for longest, or the first that
    /// becomes free.
    async fn place(&self, deadline: Instant) -> Result<OwnedSemaphorePermit, FleetError> {
        let full = || FleetError::Full(self.limits.loaded_max);
        let mut settled = self.settled.subscribe();
        // One place in the line, however often it is looked.
        let mut free = std::pin::pin!(self.places.clone().acquire_owned());
        loop {
            settled.mark_unchanged();
            if let Some(free) = free.as_mut().now_or_never() {
                return free.map_err(|_| full());
            }
            let mut loaded: Vec<_> = self.berths.iter().filter(|berth| berth.loaded()).collect();
            loaded.sort_by_key(|berth| berth.used());
            let mut leaving: FuturesUnordered<_> =
                loaded.iter().map(|berth| async { (*berth, berth.board.gate.shut_empty().await) }).collect();
            let idle = loaded.iter().find_map(|berth| Some((*berth, berth.board.gate.try_shut()?)));
            let (berth, shut) = match idle {
                Some(idle) => idle,
                None => tokio::select! {
                    free = free.as_mut() => return free.map_err(|_| full()),
                    Some(emptied) = leaving.next() => emptied,
                    Ok(()) = settled.changed() => continue,
                    () = sleep_until(deadline) => return Err(full()),
                },
            };
            drop(leaving);
            if let Some(place) = self.unload(berth, shut, "room").await {
                return Ok(place);
            }
        }
    }

    fn settle(&self, berth: &Berth, place: OwnedSemaphorePermit) {
        *lock(&berth.place) = Some(place);
        self.settled.send_replace(());
    }

    /// Ends a model's engine that nobody is asking. → its place, where it had one.
    async fn unload(&self, berth: &Berth, _shut: Shut, why: &'static str) -> Option<OwnedSemaphorePermit> {
        self.end(berth, why).await
    }

    async fn end(&self, berth: &Berth, why: &'static str) -> Option<OwnedSemaphorePermit> {
        if !berth.loaded() {
            return None;
        }
        let told = berth.inference.send_within(Rest, SEND_TIMEOUT).await;
        let mut state = berth.board.watch();
        let gone = |state: &EngineState| matches!(state, EngineState::Unloaded | EngineState::Stopped);
        let ended = timeout(END_TIMEOUT, state.wait_for(gone)).await;
        // One that would not end keeps its place: its memory is not free.
        if told.is_err() || ended.is_err() {
            tracing::error!(model = berth.names[0], "a further model's engine does not end");
            return None;
        }
        tracing::info!(model = berth.names[0], why, "a further model is unloaded");
        meters::model_unloaded(why);
        let place = lock(&berth.place).take();
        meters::models_loaded(self.loaded());
        place
    }

    /// Unloads what nobody asks for, for as long as the daemon runs.
    pub async fn tend(&self) {
        let Some(idle) = self.limits.idle.filter(|_| !self.berths.is_empty()) else { return };
        let mut look = interval((idle / 4).clamp(LOOK_MIN, LOOK_MAX));
        look.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            look.tick().await;
            for berth in self.berths.iter().filter(|berth| berth.loaded() && berth.idle() >= idle) {
                if let Some(shut) = berth.board.gate.try_shut() {
                    drop(self.unload(berth, shut, "idle").await);
                }
            }
        }
    }

    /// Unloads a model as soon as the replies that it is writing are told. False: it was not loaded.
    pub async fn dismiss(&self, berth: &Berth) -> bool {
        let shut = berth.board.gate.shut_empty().await;
        self.unload(berth, shut, "asked").await.is_some()
    }

    /// Drops what loaded models keep of an owner's prompts, or of everybody's. → why one did not.
    pub async fn forget_prefixes(&self, owner: Option<&str>, within: Duration) -> Result<(), String> {
        for berth in self.berths.iter().filter(|berth| berth.loaded()) {
            let owner = owner.map(str::to_owned);
            let answer = berth.inference.send_within(Ask::ForgetPrefixes { owner }, within).await;
            match answer.map_err(|error| error.to_string())? {
                Ok(Event::Failed { message, .. }) => return Err(message),
                // An engine that is gone has taken them along.
                Ok(_) | Err(InferenceError::NotRunning(_)) => {}
                Err(error) => return Err(error.to_string()),
            }
        }
        Ok(())
    }

    /// Ends every engine: the daemon is stopping.
    pub async fn stop(&self, within: Duration) {
        let stop = async |berth: &Arc<Berth>| {
            let _ = berth.inference.send_within(Stop, within).await;
            let mut state = berth.board.watch();
            let _ = timeout(within, state.wait_for(|s| matches!(s, EngineState::Stopped | EngineState::Failed { .. })))
                .await;
        };
        futures_util::future::join_all(self.berths.iter().filter(|berth| berth.loaded()).map(stop)).await;
    }

    /// Models loaded or being loaded.
    pub fn loaded(&self) -> usize {
        self.berths.iter().filter(|berth| berth.loaded()).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOON: Duration = Duration::from_millis(20);
    const LONG: Duration = Duration::from_secs(60);

    #[tokio::test]
    async fn whoever_looked_while_a_place_changed_hands_looks_again() {
        let told = async {
            let limits = FleetLimits { loaded_max: 1, idle: None, wait: LONG };
            let budget = Budget { restarts_max: 1, window: LONG };
            let models = vec![(vec!["one".to_owned()], EngineSpec::none())];
            let fleet = Fleet::new(models, limits, &Place::Here, budget, &Handle::current());
            let place = fleet.places.clone().try_acquire_owned().unwrap();
            let mut waiting = std::pin::pin!(fleet.place(Instant::now() + LONG));
            assert!(timeout(SOON, &mut waiting).await.is_err(), "nobody has the only place, and it is not free");
            fleet.settle(&fleet.berths()[0], place);
            assert!(timeout(LONG / 2, waiting).await.unwrap().is_ok(), "the model that has it is asked by nobody");
            assert_eq!(fleet.loaded(), 0);
        };
        tokio::task::LocalSet::new().run_until(told).await;
    }
}
