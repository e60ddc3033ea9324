//! The Orchestrator owns the pipelines and decides each chat's route and plan. A set that cannot be loaded
//! never replaces one that could; the mistake is shown in the status.

use std::collections::BTreeMap;
use std::sync::Arc;

use actix::prelude::*;
use serde_json::{Value, json};
use tokio::sync::watch;

use crate::config::Live;
use crate::meters;
use crate::pipeline::{Ceilings, DEFAULT_ROUTE, PipelineSet, Sources, Wishes, plan};
use crate::service::ServiceError;
use crate::turn::{Message as ChatMessage, Plan};

const MAILBOX_MAX: usize = 1_024;

/// A chat to be planned.
#[derive(Message)]
#[rtype(result = "Result<Plan, ServiceError>")]
pub struct Chat {
    pub messages: Vec<ChatMessage>,
    /// Asked for by name: an unknown one is the client's mistake.
    pub route: Option<String>,
    pub wishes: Wishes,
}

/// Files changed, or someone asks for a reload. → the error that kept the old set.
#[derive(Message)]
#[rtype(result = "Result<usize, String>")]
pub struct PipelinesChanged;

#[derive(Message)]
#[rtype(result = "Value")]
pub struct OrchestratorStatus;

/// The last good set and why a newer one was refused; shared by the lives of the actor.
pub struct Pipelines {
    sources: Sources,
    /// What files may ask for, from the next reading on.
    pub ceilings: Live<Ceilings>,
    current: watch::Sender<Arc<PipelineSet>>,
    refused: watch::Sender<Option<String>>,
}

impl Pipelines {
    pub fn load(sources: Sources, ceilings: Ceilings) -> Result<Self, crate::pipeline::PipelineError> {
        let set = Arc::new(PipelineSet::load(&sources)?.within(&ceilings)?);
        let ceilings = Live::new(ceilings);
        Ok(Pipelines { sources, ceilings, current: watch::Sender::new(set), refused: watch::Sender::new(None) })
    }

    pub fn current(&self) -> Arc<PipelineSet> {
        self.current.borrow().clone()
    }

    pub fn sources(&self) -> &Sources {
        &self.sources
    }

    /// Reads the files again. → how many, or the error that kept the old set.
    pub fn reload(&self) -> Result<usize, String> {
        let loaded = PipelineSet::load(&self.sources).and_then(|set| set.within(&self.ceilings.get()));
        meters::reloaded("pipelines", loaded.is_ok());
        match loaded {
            Ok(set) => {
                let count = set.all().count();
                tracing::info!(pipelines = count, "pipelines reloaded");
                self.current.send_replace(Arc::new(set));
                self.refused.send_replace(None);
                Ok(count)
            }
            Err(error) => {
                let message = error.to_string();
                tracing::error!(message, "pipelines not reloaded: the last good ones stay");
                self.refused.send_replace(Some(message.clone()));
                Err(message)
            }
        }
    }
}

pub struct Orchestrator {
    pipelines: Arc<Pipelines>,
    /// Chats by route since this life began.
    taken: BTreeMap<String, u64>,
}

impl Orchestrator {
    pub fn new(pipelines: Arc<Pipelines>) -> Self {
        Orchestrator { pipelines, taken: BTreeMap::new() }
    }
}

/// Plans a chat with a set: also what callers do when the Orchestrator does not answer.
pub fn plan_chat(set: &PipelineSet, chat: Chat) -> Result<Plan, ServiceError> {
    let choice = match &chat.route {
        None => set.route(&chat.messages),
        Some(route) => crate::intent::Choice { route: route.clone(), because: "the request asked for it".to_owned() },
    };
    let pipeline = set.get(&choice.route).ok_or_else(|| {
        let known: Vec<_> = set.all().map(|p| p.name.as_str()).collect();
        ServiceError::Invalid {
            message: format!("there is no route `{}`: the routes are {}", choice.route, known.join(", ")),
            param: Some("chimere.route".to_owned()),
        }
    })?;
    plan(pipeline, choice.because, chat.messages, chat.wishes)
}

impl Actor for Orchestrator {
    type Context = Context<Self>;

    fn started(&mut self, context: &mut Self::Context) {
        context.set_mailbox_capacity(MAILBOX_MAX);
    }
}

impl Handler<Chat> for Orchestrator {
    type Result = Result<Plan, ServiceError>;

    fn handle(&mut self, chat: Chat, _: &mut Self::Context) -> Self::Result {
        let plan = plan_chat(&self.pipelines.current(), chat)?;
        *self.taken.entry(plan.route.clone()).or_default() += 1;
        meters::route_taken(&plan.route);
        Ok(plan)
    }
}

impl Handler<PipelinesChanged> for Orchestrator {
    type Result = Result<usize, String>;

    fn handle(&mut self, _: PipelinesChanged, _: &mut Self::Context) -> Self::Result {
        self.pipelines.reload()
    }
}

impl Handler<OrchestratorStatus> for Orchestrator {
    type Result = MessageResult<OrchestratorStatus>;

    fn handle(&mut self, _: OrchestratorStatus, _: &mut Self::Context) -> Self::Result {
        let set = self.pipelines.current();
        let routes: Vec<Value> = set
            .all()
            .map(|p| {
                json!({
                    "route": p.name,
                    "version": p.version,
                    "description": p.description,
                    "default": p.name == DEFAULT_ROUTE,
                    "taken": self.taken.get(&p.name).copied().unwrap_or(0),
                    "optimised": p.provenance,
                })
            })
            .collect();
        let refused = self.pipelines.refused.borrow().clone();
        MessageResult(json!({ "routes": routes, "files": set.sources, "refused": refused }))
    }
}
