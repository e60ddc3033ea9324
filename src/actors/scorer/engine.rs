//! The judge's engine, beside the serving one, and what makes a judge of the model in it.

use std::path::PathBuf;
use std::time::Duration;

use serde_json::Value;
use tokio::runtime::Handle;
use tokio::sync::Mutex;

use super::judging::Haste;
use crate::actors::aside::Aside;
use crate::actors::inference::{Ask, EngineSpec, EngineStream, InferenceError, Submit};
use crate::actors::link::LinkError;
use crate::actors::supervisor::{Budget, Place};
use crate::engine::protocol::{Event, Generate};
use crate::scoring::judge::{BAD, GOOD};
use crate::scoring::{JudgeError, Labels, Reading};

/// The adapter's name inside the judge's engine.
const REVISION: &str = "judge";
/// Longest wait for the engine to load or to come back.
const READY_TIMEOUT_MS: u64 = 120_000;
const SEND_TIMEOUT_MS: u64 = 10_000;

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
    aside: Aside,
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
        let aside = Aside::new("judge", settings.spec.clone(), settings.budget, place, runtime);
        JudgeEngine { settings, aside, prepared: Mutex::default() }
    }

    pub fn name(&self) -> &str {
        &self.settings.name
    }

    pub(super) fn reading(&self) -> &Reading {
        &self.settings.reading
    }

    /// Starts the engine if it was not started, and waits for it. → the ids of its labels.
    pub(super) async fn ready(&self) -> Result<Labels, EngineError> {
        self.aside.owner();
        let within = Duration::from_millis(READY_TIMEOUT_MS);
        if self.aside.board().hosted_within(within).await.is_none() {
            return Err(EngineError::Down(self.aside.why()));
        }
        let life = self.aside.board().starts();
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
        let several = self.aside.board().hosted().is_some_and(|hosted| hosted.model.sequences_max > 1);
        let background = several && haste == Haste::Background;
        choices.iter_mut().for_each(|choice| choice.background = background);
        if self.settings.adapter.is_some() {
            choices.iter_mut().for_each(|choice| choice.adapter = Some(REVISION.to_owned()));
        }
        let deadline = Duration::from_millis(SEND_TIMEOUT_MS);
        Ok(self.aside.owner().send_within(Submit { choices }, deadline).await??)
    }

    async fn label(&self, label: &'static str) -> Result<u32, EngineError> {
        let ask = Ask::Tokenize { text: label.to_owned(), specials: true };
        match self.ask(ask).await? {
            Event::Tokens { ids, .. } if ids.len() == 1 => Ok(ids[0]),
            _ => Err(EngineError::NoLabels(label)),
        }
    }

    async fn ask(&self, ask: Ask) -> Result<Event, EngineError> {
        Ok(self.aside.owner().send_within(ask, Duration::from_millis(SEND_TIMEOUT_MS)).await??)
    }

    pub(super) fn status(&self) -> Value {
        self.aside.status()
    }

    /// Ends the engine: the daemon is stopping.
    pub async fn stop(&self) {
        self.aside.stop().await;
    }
}
