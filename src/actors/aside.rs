//! An auxiliary engine: beside the serving one, for the judge or an embedding model. It has a process, a status and
//! restarts of its own, and starts when it is first needed. Its end never ends the daemon.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::runtime::Handle;
use tokio::sync::watch;

use super::inference::{Board, EngineSpec, EngineState, Inference, Stop};
use super::link::Link;
use super::supervisor::{Budget, Place, supervise};

const STOP_TIMEOUT_MS: u64 = 3_000;

pub struct Aside {
    name: &'static str,
    spec: Arc<EngineSpec>,
    budget: Budget,
    board: Arc<Board>,
    place: Place,
    runtime: Handle,
    owner: OnceLock<Link<Inference>>,
}

impl Aside {
    /// `place`: the thread that its owner lives on. Nothing is started yet.
    pub fn new(name: &'static str, spec: EngineSpec, budget: Budget, place: Place, runtime: Handle) -> Aside {
        let (spec, board) = (Arc::new(spec), Arc::new(Board::aside()));
        Aside { name, spec, budget, board, place, runtime, owner: OnceLock::new() }
    }

    pub fn board(&self) -> &Arc<Board> {
        &self.board
    }

    pub fn spec(&self) -> &EngineSpec {
        &self.spec
    }

    /// Who has the engine; started, if it was not.
    pub fn owner(&self) -> &Link<Inference> {
        self.owner.get_or_init(|| {
            // Its own end is told nowhere: a daemon whose second engine dies goes on serving.
            let unheard = Arc::new(watch::Sender::new(None));
            let (spec, board, runtime) = (self.spec.clone(), self.board.clone(), self.runtime.clone());
            supervise(self.name, self.place.clone(), self.budget, unheard, move || {
                Inference::new(spec.clone(), board.clone(), runtime.clone())
            })
        })
    }

    /// Why no engine takes requests at present.
    pub fn why(&self) -> String {
        match self.board.state() {
            EngineState::Failed { message, .. } | EngineState::Restarting { message, .. } => message,
            state => state.name().to_owned(),
        }
    }

    pub fn status(&self) -> Value {
        match self.owner.get() {
            Some(_) => self.board.status(),
            None => json!({ "state": "not_started" }),
        }
    }

    /// Ends the engine: the daemon is stopping.
    pub async fn stop(&self) {
        if let Some(owner) = self.owner.get() {
            let within = Duration::from_millis(STOP_TIMEOUT_MS);
            let _ = owner.send_within(Stop, within).await;
            let mut state = self.board.watch();
            let ended = state.wait_for(|s| matches!(s, EngineState::Stopped | EngineState::Failed { .. }));
            let _ = tokio::time::timeout(within, ended).await;
        }
    }
}
