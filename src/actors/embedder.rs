//! The engine of a hosted embedding model, beside the serving one: started with the daemon, kept running, asked for one
//! text at a time. What it says is believed only while the file is the one that was read at the start: the index holds
//! vectors of that one.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use serde_json::Value;
use tokio::runtime::Handle;
use tokio::sync::Semaphore;
use tokio::time::timeout;

use super::aside::Aside;
use super::inference::{Ask, EMBED_TIMEOUT_MS, EngineSpec, EngineState, InferenceError};
use super::link::LinkError;
use super::supervisor::{Budget, Place};
use crate::embed::embedder::{Host, HostFacts, Terms, Unembedded, Vector};
use crate::engine::protocol::{EmbedInput, Event, FailureKind};

/// Texts that the engine has in hand, one computed and one tokenised; more wait here, where waiting ends with whoever
/// waits.
const IN_HAND_MAX: usize = 2;
/// The same of those that replies wait for, which so stand behind few others.
const FIRST_MAX: usize = 16;

/// Which model, and what its file was when the daemon started.
#[derive(Clone, Debug)]
pub struct EmbedSettings {
    pub spec: EngineSpec,
    pub budget: Budget,
    pub facts: HostFacts,
    /// As the engine tells it of the file that it has read.
    pub model_hash: String,
}

pub struct EmbedEngine {
    aside: Aside,
    facts: HostFacts,
    model_hash: String,
    places: Arc<Semaphore>,
    first: Arc<Semaphore>,
}

impl EmbedEngine {
    /// `place`: the thread that its owner lives on. Nothing is started yet.
    pub fn new(settings: EmbedSettings, place: Place, runtime: Handle) -> EmbedEngine {
        let EmbedSettings { spec, budget, facts, model_hash } = settings;
        let aside = Aside::new("embedder", spec, budget, place, runtime);
        let [places, first] = [IN_HAND_MAX, FIRST_MAX].map(|places| Arc::new(Semaphore::new(places)));
        EmbedEngine { aside, facts, model_hash, places, first }
    }

    /// Starts the engine; does not wait for it.
    pub fn start(&self) {
        self.aside.owner();
    }

    /// Ends the engine: the daemon is stopping.
    pub async fn stop(&self) {
        self.aside.stop().await;
    }

    fn down(&self, message: String) -> Unembedded {
        Unembedded::Down { message, retry_after_s: self.aside.board().retry_after_s() }
    }

    /// Whether the engine takes texts, and of the right model.
    fn takes(&self) -> Result<(), Unembedded> {
        let file = self.aside.spec().model.display();
        match self.aside.board().state() {
            EngineState::Ready(hosted) | EngineState::Paused(hosted) if hosted.model_hash != self.model_hash => Err(
                Unembedded::Never(format!("{file} is another file than when the daemon started: restart the daemon")),
            ),
            EngineState::Ready(_) | EngineState::Paused(_) => Ok(()),
            EngineState::Failed { message, .. } => Err(Unembedded::Never(format!("{file}: {message}"))),
            _ => Err(self.down(self.aside.why())),
        }
    }

    /// Asks the engine. The question keeps its place until it is answered, also where nobody waits any more: so the engine
    /// never has more in hand.
    async fn ask(&self, ask: Ask, within: Duration, first: bool) -> Result<Event, Unembedded> {
        let places = if first { &self.first } else { &self.places };
        let asked = async {
            self.takes()?;
            let failed = |why: String| Unembedded::Failed(why);
            let place = places.clone().acquire_owned().await.map_err(|error| failed(error.to_string()))?;
            let owner = self.aside.owner().clone();
            let answer = tokio::spawn(async move {
                let _place = place;
                owner.send_within(ask, Duration::from_millis(EMBED_TIMEOUT_MS)).await
            });
            match answer.await.map_err(|error| failed(error.to_string()))? {
                Ok(Ok(event)) => Ok(event),
                Ok(Err(InferenceError::Late(ms))) => Err(Unembedded::Late(ms.into())),
                Ok(Err(InferenceError::NotRunning(message))) => Err(self.down(message)),
                Ok(Err(error @ (InferenceError::Busy | InferenceError::Leased))) => Err(self.down(error.to_string())),
                Err(LinkError::Late { waited_ms, .. }) => Err(Unembedded::Late(waited_ms.into())),
                Err(error @ (LinkError::Down { .. } | LinkError::Died { .. })) => Err(self.down(error.to_string())),
            }
        };
        match timeout(within, asked).await.unwrap_or(Err(Unembedded::Late(within.as_millis())))? {
            Event::Failed { kind: FailureKind::Context, message, .. } => {
                Err(Unembedded::Refused { at: 0, why: message })
            }
            Event::Failed { kind: FailureKind::Invalid | FailureKind::Form, message, .. } => {
                Err(Unembedded::Refused { at: 0, why: format!("cannot be embedded: {message}") })
            }
            Event::Failed { kind: FailureKind::Busy, message, .. } => Err(self.down(message)),
            Event::Failed { message, .. } => Err(Unembedded::Failed(message)),
            event => Ok(event),
        }
    }
}

fn strange() -> Unembedded {
    Unembedded::Failed("its engine answered something else than was asked".to_owned())
}

impl Host for EmbedEngine {
    fn facts(&self) -> &HostFacts {
        &self.facts
    }

    fn ready(&self, within: Duration) -> BoxFuture<'_, Result<(), Unembedded>> {
        Box::pin(async move {
            self.aside.board().hosted_within(within).await;
            self.takes()
        })
    }

    fn embed(&self, input: EmbedInput, terms: Terms) -> BoxFuture<'_, Result<Vector, Unembedded>> {
        let Terms { cut, within, first } = terms;
        Box::pin(async move {
            match self.ask(Ask::Embed { input, cut }, within, first).await? {
                Event::Embedded { vector, tokens, .. } if vector.len() == self.facts.width => {
                    Ok(Vector { values: vector, tokens, windows: 1 })
                }
                Event::Embedded { vector, .. } => {
                    let (found, said) = (vector.len(), self.facts.width);
                    Err(Unembedded::Failed(format!("it gives vectors of {found} values, and its file says {said}")))
                }
                _ => Err(strange()),
            }
        })
    }

    fn tokens(&self, text: String, within: Duration) -> BoxFuture<'_, Result<Vec<u32>, Unembedded>> {
        Box::pin(async move {
            match self.ask(Ask::Tokenize { text, specials: false }, within, false).await? {
                Event::Tokens { ids, .. } => Ok(ids),
                _ => Err(strange()),
            }
        })
    }

    fn state(&self) -> &'static str {
        self.aside.board().state().name()
    }

    fn status(&self) -> Value {
        self.aside.status()
    }
}
