//! What the Inference actor publishes: the engine's state as immutable snapshots for those that wait on it.
//! This engine status outlives the actor's lives.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::timeout;

use super::child::EngineSpec;
use super::gate::Gate;
use crate::engine::protocol::{EngineStats, Event, Hosted, RequestId};
use crate::engram::fit::unfit;
use crate::engram::shelf::Shelf;
use crate::meters;
use crate::night::served::Served;

/// Where the engine is in its life.
#[derive(Clone, Debug, PartialEq)]
pub enum EngineState {
    /// The process is being started or reads the model, 0 … 1.
    Loading { progress: f32 },
    /// It produced a token.
    Ready(Arc<Hosted>),
    /// At a token boundary, under a lease; new requests queue in the engine.
    Paused(Arc<Hosted>),
    /// It ended; the next start is due after `pause`.
    Restarting { pause: Duration, message: String },
    /// It was never ready and will not be: the daemon exits, where this is the serving engine.
    Failed { message: String, fatal: bool },
    /// There is none until somebody asks for its model.
    Unloaded,
    /// The daemon is stopping.
    Stopped,
}

impl EngineState {
    pub fn hosted(&self) -> Option<Arc<Hosted>> {
        match self {
            EngineState::Ready(hosted) | EngineState::Paused(hosted) => Some(hosted.clone()),
            _ => None,
        }
    }

    pub fn name(&self) -> &'static str {
        match self {
            EngineState::Loading { .. } => "loading",
            EngineState::Ready(_) => "ready",
            EngineState::Paused(_) => "paused",
            EngineState::Restarting { .. } => "restarting",
            EngineState::Failed { .. } => "failed",
            EngineState::Unloaded => "unloaded",
            EngineState::Stopped => "stopped",
        }
    }
}

pub struct Board {
    /// Held shut while the model is changed.
    pub gate: Gate,
    /// How the engine is started that was ready last.
    served: Mutex<Option<Arc<EngineSpec>>>,
    state: watch::Sender<EngineState>,
    stats: watch::Sender<EngineStats>,
    next_id: AtomicU64,
    was_ready: AtomicBool,
    /// No engine is wanted.
    asleep: AtomicBool,
    starts: AtomicU64,
    /// Signs of life from engines, ever.
    beats: AtomicU64,
    /// Process id of the engine, 0 = none.
    pid: AtomicU64,
    load_ms: AtomicU64,
    /// The Engram tables that may be served.
    shelf: watch::Sender<Arc<Shelf>>,
    /// What the engine said of each table: its size, or why it cannot have it.
    tables: Mutex<BTreeMap<String, Value>>,
    /// The metrics tell of this engine.
    metered: bool,
    roll: watch::Sender<Option<Roll>>,
    /// When a live reply last began or ended, Unix milliseconds.
    live_ms: AtomicI64,
}

/// Which generation answers, and for which engine (by its number of starts) its adapters are loaded.
#[derive(Clone, Copy)]
struct Roll {
    /// `None`: the base model, which every engine holds.
    engine: Option<u64>,
    served: Served,
}

impl Default for Board {
    fn default() -> Self {
        Board {
            gate: Gate::default(),
            served: Mutex::default(),
            state: watch::Sender::new(EngineState::Loading { progress: 0.0 }),
            stats: watch::Sender::new(EngineStats::default()),
            next_id: AtomicU64::new(1),
            was_ready: AtomicBool::new(false),
            asleep: AtomicBool::new(false),
            starts: AtomicU64::new(0),
            beats: AtomicU64::new(0),
            pid: AtomicU64::new(0),
            load_ms: AtomicU64::new(1_000),
            shelf: watch::Sender::new(Arc::default()),
            tables: Mutex::default(),
            metered: true,
            roll: watch::Sender::new(Some(Roll { engine: None, served: Served::default() })),
            live_ms: AtomicI64::new(0),
        }
    }
}

impl Board {
    /// For an engine beside the serving one, of which the metrics of the serving engine must not speak.
    pub fn aside() -> Board {
        Board { metered: false, ..Board::default() }
    }

    /// For an engine beside the serving one that is not started before somebody wants it.
    pub fn asleep_aside() -> Board {
        let (asleep, state) = (AtomicBool::new(true), watch::Sender::new(EngineState::Unloaded));
        Board { asleep, state, ..Board::aside() }
    }

    pub(super) fn asleep(&self) -> bool {
        self.asleep.load(Ordering::Relaxed)
    }

    pub(super) fn sleep(&self) {
        self.asleep.store(true, Ordering::Relaxed);
    }

    /// An engine is wanted, and has to prove itself as the first one had to; false: it was wanted already.
    pub(super) fn wake(&self) -> bool {
        self.was_ready.store(false, Ordering::Relaxed);
        self.asleep.swap(false, Ordering::Relaxed)
    }

    pub(super) fn metered(&self) -> bool {
        self.metered
    }

    pub fn watch(&self) -> watch::Receiver<EngineState> {
        self.state.subscribe()
    }

    pub fn state(&self) -> EngineState {
        self.state.borrow().clone()
    }

    pub fn hosted(&self) -> Option<Arc<Hosted>> {
        self.state.borrow().hosted()
    }

    /// Waits for an engine that takes requests.
    pub async fn hosted_within(&self, deadline: Duration) -> Option<Arc<Hosted>> {
        let mut state = self.watch();
        let over = |s: &EngineState| matches!(s, EngineState::Stopped | EngineState::Failed { .. });
        let wait = state.wait_for(|s| s.hosted().is_some() || over(s));
        timeout(deadline, wait).await.ok()?.ok()?.hosted()
    }

    /// Seconds after which a refused client may try again.
    pub fn retry_after_s(&self) -> u32 {
        let load_ms = self.load_ms.load(Ordering::Relaxed);
        let pause_ms = match &*self.state.borrow() {
            EngineState::Restarting { pause, .. } => pause.as_millis() as u64,
            _ => 0,
        };
        (load_ms + pause_ms).div_ceil(1_000).clamp(1, 600) as u32
    }

    /// Whether any engine was ready since the daemon started, or since it was woken last.
    pub fn was_ready(&self) -> bool {
        self.was_ready.load(Ordering::Relaxed)
    }

    /// The file that is served, once an engine was ready.
    pub fn file(&self) -> Option<PathBuf> {
        self.served_spec().map(|spec| spec.model.clone())
    }

    pub(super) fn served_spec(&self) -> Option<Arc<EngineSpec>> {
        self.served.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The engine that was started so is ready.
    pub(super) fn set_served(&self, spec: Arc<EngineSpec>, hosted: Arc<Hosted>) {
        *self.served.lock().unwrap_or_else(PoisonError::into_inner) = Some(spec);
        self.set(EngineState::Ready(hosted));
    }

    /// Grows with every sign of life of an engine.
    pub fn beats(&self) -> u64 {
        self.beats.load(Ordering::Relaxed)
    }

    /// Engine processes started, ever: tells one life from the next.
    pub fn starts(&self) -> u64 {
        self.starts.load(Ordering::Relaxed)
    }

    pub fn engine_pid(&self) -> Option<u32> {
        Some(self.pid.load(Ordering::Relaxed) as u32).filter(|pid| *pid != 0)
    }

    /// Nothing is said of who answers until `serve` is called.
    pub fn withhold(&self) {
        self.roll.send_replace(None);
    }

    pub fn withheld(&self) -> bool {
        self.roll.borrow().is_none()
    }

    /// What is said of who answers holds for another engine than the present one.
    pub fn behind(&self) -> bool {
        self.roll.borrow().is_none_or(|roll| roll.engine.is_some_and(|engine| engine != self.starts()))
    }

    /// From now on these generations answer; `engine` is the one that holds their adapters.
    pub fn serve(&self, engine: u64, served: Served) {
        let base = served.champion == 0 && served.canary.is_none();
        self.roll.send_replace(Some(Roll { engine: (!base).then_some(engine), served }));
    }

    /// Who answers, by an engine that can. Where nobody says so in time, the base model does: serving never
    /// waits for a night that cannot be read.
    pub async fn served_within(&self, deadline: Duration) -> Served {
        let mut roll = self.roll.subscribe();
        let known = roll.wait_for(|roll| roll.is_some_and(|r| r.engine.is_none_or(|engine| engine == self.starts())));
        let found = timeout(deadline, known).await.ok().and_then(|found| *found.ok()?);
        found.map(|roll| roll.served).unwrap_or_else(|| {
            tracing::warn!("no generation is named as served: the base model answers");
            Served::default()
        })
    }

    /// Who answers at present, as far as it is said.
    pub fn served(&self) -> Option<Served> {
        self.roll.borrow().map(|roll| roll.served)
    }

    /// A live reply began or ended.
    pub fn touch(&self, now_ms: i64) {
        self.live_ms.fetch_max(now_ms, Ordering::Relaxed);
    }

    /// Since a live reply last began or ended, milliseconds. A clock that was ahead and was set back counts from then on:
    /// a reply in the future would keep the machine busy until that time has come.
    pub fn idle_ms(&self, now_ms: i64) -> i64 {
        let live_ms = self.live_ms.fetch_min(now_ms, Ordering::Relaxed);
        now_ms - live_ms.min(now_ms)
    }

    pub fn status(&self) -> Value {
        let state = self.state();
        let stats = *self.stats.borrow();
        let mut status = json!({
            "state": state.name(),
            "pid": self.engine_pid(),
            "starts": self.starts.load(Ordering::Relaxed),
            "stats": stats,
        });
        let detail = match &state {
            EngineState::Loading { progress } => json!({ "progress": progress }),
            EngineState::Ready(hosted) | EngineState::Paused(hosted) => json!({ "hosted": **hosted }),
            EngineState::Restarting { pause, message } => {
                json!({ "next_start_ms": pause.as_millis() as u64, "message": message })
            }
            EngineState::Failed { message, .. } => json!({ "message": message }),
            EngineState::Unloaded | EngineState::Stopped => json!({}),
        };
        if let (Value::Object(status), Value::Object(detail)) = (&mut status, detail) {
            status.extend(detail);
        }
        status
    }

    /// The tables that may be served now.
    pub fn shelf(&self) -> Arc<Shelf> {
        self.shelf.borrow().clone()
    }

    pub(super) fn watch_shelf(&self) -> watch::Receiver<Arc<Shelf>> {
        self.shelf.subscribe()
    }

    /// Other tables may be served. Requests that are submitted from now on come after them.
    pub fn set_shelf(&self, shelf: Shelf) {
        self.shelf.send_replace(Arc::new(shelf));
    }

    /// The tables that may be served, those that may not and why, and what the engine holds.
    pub fn table_status(&self) -> Value {
        let shelf = self.shelf();
        let held = self.tables.lock().map(|t| json!(*t)).unwrap_or_default();
        json!({ "tables": shelf.tables, "refused": shelf.refused, "engine": held })
    }

    /// The engine's answer about a table.
    pub(super) fn table(&self, name: String, event: Event) {
        let Ok(mut tables) = self.tables.lock() else { return };
        match event {
            Event::TableLoaded { contexts, entries, .. } => {
                tracing::info!(name, contexts, entries, "engram table loaded");
                tables.insert(name, json!({ "contexts": contexts, "entries": entries }));
            }
            Event::Failed { message, .. } => {
                let shelf = self.shelf();
                let listed = shelf.tables.iter().find(|table| table.name == name);
                let unfit = self.hosted().zip(listed).and_then(|(hosted, table)| unfit(table, &hosted.tokenizer_hash));
                let message = match (unfit, listed) {
                    // That comes with every other model.
                    (Some(why), Some(table)) if table.shipped => {
                        tracing::info!(name, why, "engram table not used");
                        why
                    }
                    (why, _) => {
                        let message = why.unwrap_or(message);
                        tracing::warn!(name, message, "engram table not loaded");
                        message
                    }
                };
                tables.insert(name, json!({ "error": message }));
            }
            _ => drop(tables.remove(&name)),
        }
    }

    pub(super) fn next_id(&self) -> RequestId {
        self.next_id.fetch_add(1, Ordering::Relaxed)
    }

    pub(super) fn set(&self, state: EngineState) {
        if self.metered {
            meters::engine_ready(matches!(state, EngineState::Ready(_)));
        }
        if let EngineState::Ready(hosted) = &state {
            self.was_ready.store(true, Ordering::Relaxed);
            self.load_ms.store(hosted.load_ms, Ordering::Relaxed);
        }
        self.state.send_replace(state);
    }

    pub(super) fn set_stats(&self, stats: EngineStats) {
        if self.metered {
            meters::engine_load(&stats);
        }
        let before = self.stats.send_replace(stats);
        if self.metered {
            meters::shares(&stats, &before);
            meters::forms(&stats.forms, &before.forms);
            if let Some(now) = &stats.offloaded {
                meters::experts(now, &before.offloaded.unwrap_or_default());
            }
        }
    }

    pub(super) fn beat(&self) {
        self.beats.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn started(&self, pid: Option<u32>) {
        self.starts.fetch_add(1, Ordering::Relaxed);
        self.pid.store(pid.unwrap_or(0).into(), Ordering::Relaxed);
        // Figures that are read before it told any.
        self.set_stats(EngineStats::default());
    }

    /// Nobody talks to the engine of that process id any more; another may have been started meanwhile. This is said
    /// before anyone hears that their request was lost: who tries again at once waits for the next engine.
    pub(super) fn ended(&self, pid: Option<u32>, message: &str) {
        let pid = u64::from(pid.unwrap_or(0));
        if self.pid.compare_exchange(pid, 0, Ordering::Relaxed, Ordering::Relaxed).is_err() {
            return;
        }
        self.set_stats(EngineStats::default());
        if self.hosted().is_some() {
            self.set(EngineState::Restarting { pause: Duration::ZERO, message: message.to_owned() });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_is_idle_again_after_a_clock_that_ran_ahead() {
        let board = Board::default();
        board.touch(1_000);
        board.touch(9_000_000);
        assert_eq!(board.idle_ms(9_000_500), 500);
        // The clock is put right.
        assert_eq!(board.idle_ms(2_000), 0);
        assert_eq!(board.idle_ms(62_000), 60_000);
        board.touch(70_000);
        assert_eq!(board.idle_ms(70_001), 1);
    }
}
