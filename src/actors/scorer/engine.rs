//! The judge's engine: a second owner of an engine child with a process, a board and restarts of its own, started when
//! it is first needed. Its end is never the daemon's.

use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::runtime::Handle;
use tokio::sync::{Mutex, watch};

use super::judging::Haste;
use crate::actors::inference::{
    Ask, Board, EngineSpec, EngineState, EngineStream, Inference, InferenceError, Stop, Submit,
};
use crate::actors::link::{Link, LinkError};
use crate::actors::supervisor::{Budget, Place, supervise};
use crate::engine::protocol::{Event, Generate};
use crate::scoring::judge::{BAD, GOOD};
use crate::scoring::{JudgeError, Labels, Reading};

/// The adapter's name inside the judge's engine.
const REVISION: &str = "judge";
/// Longest wait for the engine to load or to come back.
const READY_TIMEOUT_MS: u64 = 120_000;
const SEND_TIMEOUT_MS: u64 = 10_000;
const STOP_TIMEOUT_MS: u64 = 3_000;

/// Which judge, and how it is read.
#[derive(Clone, Debug)]
pub struct JudgeSettings {
    pub spec: EngineSpec,
    /// Written into every judgement.
    pub name: String,
    pub reading: Reading,
    pub budget: Budget,
    /// What makes a judge of the model; absent: the model is one.
    pub adapter: Option<AdapterFile>,
}

/// An adapter on disk.
#[derive(Clone, Debug, PartialEq)]
pub struct AdapterFile {
    pub path: PathBuf,
    /// Of the file, in lower-case hex.
    pub sha256: String,
}

pub struct JudgeEngine {
    settings: JudgeSettings,
    board: Arc<Board>,
    place: Place,
    runtime: Handle,
    owner: OnceLock<Link<Inference>>,
    /// The engine's life that has the adapter, and the labels found in it; 0 = none.
    prepared: Mutex<(u64, Labels)>,
}

/// Why a turn could not be judged now.
#[derive(Debug, thiserror::Error)]
pub(super) enum EngineError {
    #[error("the judge's engine did not start: {0}")]
    Down(String),
    #[error(transparent)]
    Link(#[from] LinkError),
    #[error(transparent)]
    Engine(#[from] InferenceError),
    #[error("the judge has no token `{0}`: it is no judge of this kind")]
    NoLabels(&'static str),
    #[error("the judge's adapter was refused: {0}")]
    Adapter(String),
    #[error(transparent)]
    Judge(#[from] JudgeError),
    /// It died with the turn in hand.
    #[error("the judge's engine was lost: {0}")]
    Lost(String),
}

impl JudgeEngine {
    /// `place`: the thread that its owner lives on. Nothing is started yet.
    pub fn new(settings: JudgeSettings, place: Place, runtime: Handle) -> JudgeEngine {
        JudgeEngine {
            settings,
            board: Arc::new(Board::aside()),
            place,
            runtime,
            owner: OnceLock::new(),
            prepared: Mutex::default(),
        }
    }

    pub fn name(&self) -> &str {
        &self.settings.name
    }

    pub(super) fn reading(&self) -> &Reading {
        &self.settings.reading
    }

    /// Starts the engine if it was not started, and waits for it. → the ids of its labels.
    pub(super) async fn ready(&self) -> Result<Labels, EngineError> {
        self.owner();
        let within = Duration::from_millis(READY_TIMEOUT_MS);
        if self.board.hosted_within(within).await.is_none() {
            return Err(EngineError::Down(match self.board.state() {
                EngineState::Failed { message, .. } | EngineState::Restarting { message, .. } => message,
                state => state.name().to_owned(),
            }));
        }
        let life = self.board.starts();
        let mut prepared = self.prepared.lock().await;
        if prepared.0 != life {
            self.load_adapter().await?;
            *prepared = (life, Labels { good: self.label(GOOD).await?, bad: self.label(BAD).await? });
        }
        Ok(prepared.1)
    }

    async fn load_adapter(&self) -> Result<(), EngineError> {
        let Some(AdapterFile { path, sha256 }) = self.settings.adapter.clone() else { return Ok(()) };
        let ask = Ask::LoadAdapter { revision: REVISION.to_owned(), path, sha256 };
        match self.ask(ask).await? {
            Event::AdapterLoaded { .. } => Ok(()),
            Event::Failed { message, .. } => Err(EngineError::Adapter(message)),
            _ => Err(EngineError::Adapter("the engine answered something else than was asked".to_owned())),
        }
    }

    pub(super) async fn submit(&self, mut choices: Vec<Generate>, haste: Haste) -> Result<EngineStream, EngineError> {
        // An engine of one sequence knows no background.
        let several = self.board.hosted().is_some_and(|hosted| hosted.model.sequences_max > 1);
        let background = several && haste == Haste::Background;
        choices.iter_mut().for_each(|choice| choice.background = background);
        if self.settings.adapter.is_some() {
            choices.iter_mut().for_each(|choice| choice.adapter = Some(REVISION.to_owned()));
        }
        let deadline = Duration::from_millis(SEND_TIMEOUT_MS);
        Ok(self.owner().send_within(Submit { choices }, deadline).await??)
    }

    async fn label(&self, label: &'static str) -> Result<u32, EngineError> {
        let ask = Ask::Tokenize { text: label.to_owned(), specials: true };
        match self.ask(ask).await? {
            Event::Tokens { ids, .. } if ids.len() == 1 => Ok(ids[0]),
            _ => Err(EngineError::NoLabels(label)),
        }
    }

    async fn ask(&self, ask: Ask) -> Result<Event, EngineError> {
        Ok(self.owner().send_within(ask, Duration::from_millis(SEND_TIMEOUT_MS)).await??)
    }

    fn owner(&self) -> &Link<Inference> {
        self.owner.get_or_init(|| {
            // Its own end is told nowhere: a daemon whose judge dies goes on serving.
            let unheard = Arc::new(watch::Sender::new(None));
            let (spec, board, runtime) =
                (Arc::new(self.settings.spec.clone()), self.board.clone(), self.runtime.clone());
            supervise("judge", self.place.clone(), self.settings.budget, unheard, move || {
                Inference::new(spec.clone(), board.clone(), runtime.clone())
            })
        })
    }

    pub(super) fn status(&self) -> Value {
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
