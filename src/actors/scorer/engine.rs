//! The judge's engine, beside the serving one, and what makes a judge of the model in it.

use std::path::PathBuf;
use std::time::Duration;

use serde_json::Value;
use tokio::runtime::Handle;
use tokio::sync::Mutex;

use super::judging::Haste;
use crate::actors::aside::Aside;
use crate::actors::inference::{Ask, EngineSpec, EngineState, EngineStream, InferenceError, Submit};
use crate::actors::link::LinkError;
use crate::actors::supervisor::{Budget, Place};
use crate::config::Live;
use crate::engine::protocol::{Event, Generate};
use crate::scoring::form::FormError;
use crate::scoring::{Form, JudgeError, Labels, Reading};

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
    /// How it is asked.
    pub form: Form,
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
    prepared: Mutex<Prepared>,
    /// Why the model is no judge of the configured form, where it was found to be none.
    unfit: Live<Option<String>>,
}

#[derive(Default)]
struct Prepared {
    /// The engine's life that has the adapter; 0 = none.
    life: u64,
    /// Found in its vocabulary.
    labels: Labels,
}

/// Why a turn could not be judged now.
#[derive(Debug, thiserror::Error)]
pub(super) enum EngineError {
    #[error("the judge's engine did not start: {0}")]
    Down(String),
    /// The daemon is stopping.
    #[error("the judge's engine was stopped")]
    Stopped,
    #[error(transparent)]
    Link(#[from] LinkError),
    #[error(transparent)]
    Engine(#[from] InferenceError),
    #[error(transparent)]
    Unfit(#[from] FormError),
    #[error("the judge's engine answered something else than was asked")]
    Strange,
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
        JudgeEngine { settings, aside, prepared: Mutex::default(), unfit: Live::default() }
    }

    pub fn name(&self) -> &str {
        &self.settings.name
    }

    pub(super) fn form(&self) -> &Form {
        &self.settings.form
    }

    pub(super) fn reading(&self) -> &Reading {
        &self.settings.reading
    }

    /// Starts the engine if it was not started, and waits for it. → the ids of its labels.
    pub(super) async fn ready(&self) -> Result<Labels, EngineError> {
        self.aside.owner();
        let within = Duration::from_millis(READY_TIMEOUT_MS);
        if self.aside.board().hosted_within(within).await.is_none() {
            let stopped = matches!(self.aside.board().state(), EngineState::Stopped);
            return Err(if stopped { EngineError::Stopped } else { EngineError::Down(self.aside.why()) });
        }
        let life = self.aside.board().starts();
        let mut prepared = self.prepared.lock().await;
        if prepared.life != life {
            self.load_adapter().await?;
            let labels = self.labels().await;
            if let Err(EngineError::Unfit(why)) = &labels {
                self.unfit.set(Some(why.to_string()));
            }
            *prepared = Prepared { life, labels: labels? };
            self.unfit.set(None);
        }
        Ok(prepared.labels.clone())
    }

    /// Looks for what the form needs of the model.
    async fn labels(&self) -> Result<Labels, EngineError> {
        let form = &self.settings.form;
        if let Some(hosted) = self.aside.board().hosted() {
            form.fits(hosted.chats, hosted.model.embedding_only)?;
        }
        let (good, bad) = (self.tokens(&form.good, true).await?, self.tokens(&form.bad, true).await?);
        let before = self.tokens(&form.before_label, false).await?.0;
        Ok(Labels::new(form, (&good.0, &good.1), (&bad.0, &bad.1), before)?)
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

    async fn tokens(&self, text: &str, specials: bool) -> Result<(Vec<u32>, Vec<String>), EngineError> {
        match self.ask(Ask::Tokenize { text: text.to_owned(), specials }).await? {
            Event::Tokens { ids, pieces, .. } => Ok((ids, pieces)),
            _ => Err(EngineError::Strange),
        }
    }

    async fn ask(&self, ask: Ask) -> Result<Event, EngineError> {
        Ok(self.aside.owner().send_within(ask, Duration::from_millis(SEND_TIMEOUT_MS)).await??)
    }

    pub(super) fn status(&self) -> Value {
        self.aside.status()
    }

    /// Why it can judge nothing, as far as that is known.
    pub(super) fn unfit(&self) -> Option<String> {
        (*self.unfit.get()).clone()
    }

    /// Ends the engine: the daemon is stopping.
    pub async fn stop(&self) {
        self.aside.stop().await;
    }
}
