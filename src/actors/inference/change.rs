//! Changing the served model. The engine ends and the next one hosts the other file. If that file cannot be hosted,
//! the one before is started again. Clients hear of a model only once it has proved itself.

use std::sync::Arc;

use actix::prelude::*;
use tokio::sync::oneshot;

use super::Inference;
use super::board::EngineState;
use super::child::EngineSpec;
use crate::engine::protocol::Hosted;
use crate::engine::validate::EMBEDS;

/// Hosts another model. Whoever asks holds the gate shut, so that no request is under way.
#[derive(Message)]
#[rtype(result = "Result<Arc<Hosted>, HostError>")]
pub struct Host {
    pub spec: Arc<EngineSpec>,
}

#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum HostError {
    #[error("the model is being changed already")]
    Changing,
    #[error("the daemon is stopping")]
    Stopping,
    /// The one before serves again.
    #[error("{0}")]
    Refused(String),
    #[error("{why}; and the model before it does not come up: {then}")]
    Lost { why: String, then: String },
}

/// A change that is under way.
pub(super) struct Change {
    before: Arc<EngineSpec>,
    /// An engine was told to end; the next one hosts the actor's `spec`.
    leaving: bool,
    /// Why the other model is not hosted: the one before is on its way back.
    failed: Option<String>,
    answer: oneshot::Sender<Result<Arc<Hosted>, HostError>>,
}

impl Handler<Host> for Inference {
    type Result = ResponseFuture<Result<Arc<Hosted>, HostError>>;

    fn handle(&mut self, Host { spec }: Host, context: &mut Self::Context) -> Self::Result {
        let refused = match (self.stopping, &self.change) {
            (true, _) => Some(HostError::Stopping),
            (false, Some(_)) => Some(HostError::Changing),
            (false, None) => None,
        };
        if let Some(error) = refused {
            return Box::pin(async { Err(error) });
        }
        let (answer, heard) = oneshot::channel();
        let before = std::mem::replace(&mut self.spec, spec);
        self.change = Some(Change { before, leaving: false, failed: None, answer });
        // Another model has other generations.
        self.board.withhold();
        self.replace(context);
        Box::pin(async move { heard.await.unwrap_or(Err(HostError::Stopping)) })
    }
}

impl Inference {
    /// Ends the engine, if there is one, and starts one for the present `spec`.
    fn replace(&mut self, context: &mut Context<Self>) {
        self.failures = 0;
        self.board.set(EngineState::Loading { progress: 0.0 });
        match (&mut self.change, self.commands.take()) {
            (Some(change), Some(_)) => {
                change.leaving = true;
                self.alive = None;
            }
            _ => self.launch(context),
        }
    }

    /// The engine that is spoken of was told to end for another: what it says is of no interest.
    pub(super) fn leaving(&self) -> bool {
        self.change.as_ref().is_some_and(|change| change.leaving)
    }

    /// An engine has produced a token. Whether it serves.
    pub(super) fn proven(&mut self, hosted: &Arc<Hosted>, context: &mut Context<Self>) -> bool {
        let Some(change) = &mut self.change else { return true };
        if hosted.model.embedding_only && change.failed.is_none() {
            change.failed = Some(EMBEDS.to_owned());
            self.spec = change.before.clone();
            self.replace(context);
            return false;
        }
        if let Some(change) = self.change.take() {
            let _ = change
                .answer
                .send(change.failed.map_or_else(|| Ok(hosted.clone()), |why| Err(HostError::Refused(why))));
        }
        true
    }

    /// An engine ended. Whether that belongs to the change and the next one is on its way.
    pub(super) fn changed(&mut self, message: &str, context: &mut Context<Self>) -> bool {
        let Some(change) = &mut self.change else { return false };
        if std::mem::take(&mut change.leaving) {
            self.launch(context);
            return true;
        }
        if change.failed.is_none() {
            tracing::error!(message, "the other model is not hosted: the one before is started again");
            change.failed = Some(message.to_owned());
            self.spec = change.before.clone();
            self.replace(context);
            return true;
        }
        if let Some(Change { failed: Some(why), answer, .. }) = self.change.take() {
            let _ = answer.send(Err(HostError::Lost { why, then: message.to_owned() }));
        }
        false
    }
}
