//! A reply is a run of steps, in a task of its own. `open` makes its plan, and `run` is its life. `steps` has a file for
//! each kind of step, and `generate` is the one way to tokens. A reply leaves exactly one Turn, on every path. `Done` is
//! only said when the Turn is flushed.

mod budget;
mod choice;
mod documents;
mod examples;
mod generate;
mod logprobs;
mod open;
mod permits;
mod preview;
mod recall;
mod record;
mod registry;
mod run;
mod seat;
mod session;
mod sink;
mod steps;
mod stops;
mod withheld;

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Semaphore, mpsc, oneshot};
use tokio_util::sync::CancellationToken;

pub use generate::CANCEL_WAIT_MS;
pub use permits::Permits;
pub use recall::RECALLS_MAX;
pub use registry::Runs;
pub use seat::refused;
pub use session::UnderWay;
pub use withheld::Withheld;

use crate::actors::inference::{Board, Fleet, Inference, Pass};
use crate::actors::link::Link;
use crate::actors::memory::Memory;
use crate::actors::orchestrator::{Chat, Orchestrator, Pipelines, plan_chat};
use crate::actors::scorer::{Inbox, Scorer};
use crate::clock::Clock;
use crate::config::{Live, RepliesConfig};
use crate::documents::Documents;
use crate::embed::Examples;
use crate::engine::protocol::Hosted;
use crate::engram::fit::{is_learned, unfit};
use crate::engram::learned::{NAME, own_name};
use crate::failpoint::Failpoint;
use crate::lessons::Lessons;
use crate::meters;
use crate::pipeline::{Wishes, plain_plan};
use crate::service::{
    CHOICES_MAX, ReplyEvent, ReplyInput, ReplyRequest, SESSION_NAMES, ServiceError, WebWish, is_session_name,
};
use crate::tools::Toolbox;
use crate::turn::Plan;
use crate::web::Web;

/// Events on their way to the client.
const EVENTS_MAX: usize = 256;
/// Longest wait for a plan before the default route is taken. A busy machine may hold a plan up for a moment, and must
/// not change the route by that.
const PLAN_TIMEOUT_MS: u64 = 5_000;
/// Why a request is not answered, or not to its end, while another model takes the place of the present one.
const CHANGING: &str = "the served model is being changed";
/// Why the daemon begins nothing more.
const STOPPING: &str = "the daemon is stopping";
/// Longest name of a conversation, bytes: 128 characters.
const CONVERSATION_BYTES_MAX: usize = 512;
/// Tokens of a reply where nobody says how many: so many, and half of the context at most.
const REPLY_TOKENS_MAX: u32 = 8_192;

/// What every reply needs, shared by all.
pub struct Replies {
    pub inference: Link<Inference>,
    pub orchestrator: Link<Orchestrator>,
    pub memory: Link<Memory>,
    /// The sessions that a reply is under way in.
    pub sessions: Arc<UnderWay>,
    /// Calls of built-in tools that clients were not told of.
    pub withheld: Arc<Withheld>,
    /// The replies under way.
    pub runs: Arc<Runs>,
    /// Where kept turns wait for their verdict.
    pub inbox: Arc<Inbox>,
    /// Judges an answer before its reply ends; absent: there is no judge.
    pub scorer: Option<Link<Scorer>>,
    pub board: Arc<Board>,
    /// Further models, by name.
    pub fleet: Arc<Fleet>,
    /// Verified exchanges, for the pipelines that show some.
    pub examples: Arc<Examples>,
    pub lessons: Arc<Lessons>,
    pub documents: Arc<Documents>,
    /// Absent: no search engine is configured.
    pub web: Option<Arc<Web>>,
    /// One permit for each search for lessons.
    pub recalls: Arc<Semaphore>,
    /// For the time when the Orchestrator does not answer.
    pub pipelines: Arc<Pipelines>,
    pub config: Live<RepliesConfig>,
    /// Longest wait for a Turn to be flushed.
    pub append_timeout: Live<Duration>,
    pub clock: Clock,
    /// The built-in tools.
    pub toolbox: Arc<Toolbox>,
    /// `reply.judge`: before the quality gate asks its judge.
    pub failpoint: Failpoint,
    /// One permit for each reply under way.
    pub permits: Arc<Permits>,
    /// No new replies.
    pub draining: CancellationToken,
    /// Replies under way end now.
    pub cut: CancellationToken,
}

impl Replies {
    /// Starts a reply. Returns when the engine has it, or why it cannot.
    pub async fn start(self: &Arc<Self>, request: ReplyRequest) -> Result<mpsc::Receiver<ReplyEvent>, ServiceError> {
        if self.draining.is_cancelled() {
            return Err(unavailable(STOPPING, 5));
        }
        check(&request)?;
        self.check_web(&request)?;
        let permit = self.permits.enter(&request.principal.name)?;
        let (events, receiver) = mpsc::channel(EVENTS_MAX);
        let (opened, opening) = oneshot::channel();
        let replies = self.clone();
        // A task of its own: a client that leaves at any moment must not take the Turn with it.
        tokio::spawn(async move {
            run::run(&replies, request, events, opened).await;
            drop(permit);
        });
        opening.await.unwrap_or_else(|_| Err(ServiceError::Internal("the reply's task failed".to_owned())))?;
        Ok(receiver)
    }

    /// Resolves when no reply is under way.
    pub async fn idle(&self) {
        self.permits.idle().await;
    }

    pub fn running(&self) -> usize {
        self.permits.held()
    }

    /// Waits in line while the model is changed, for as long as one may take to load.
    pub async fn enter(&self) -> Result<Pass, ServiceError> {
        let patience = self.fleet.wait().max(self.config.get().start_timeout);
        let pass = self.board.gate.enter(patience).await;
        pass.ok_or_else(|| unavailable(CHANGING, self.board.retry_after_s()))
    }

    /// Waits for an engine, within `start_timeout`.
    async fn hosted(&self) -> Result<Arc<Hosted>, ServiceError> {
        let wait = self.config.get().start_timeout;
        self.board.hosted_within(wait).await.ok_or_else(|| {
            let state = self.board.state();
            unavailable(&format!("the engine is {}", state.name()), self.board.retry_after_s())
        })
    }

    async fn plan(&self, request: &mut ReplyRequest, hosted: &Arc<Hosted>) -> Result<Plan, ServiceError> {
        let most = REPLY_TOKENS_MAX.min(hosted.model.context_tokens as u32 / 2).max(1);
        let mut wishes = Wishes {
            tier: request.tier,
            thinking: request.thinking,
            thought: request.thought,
            prompt: std::mem::take(&mut request.prompt),
            sampling: std::mem::take(&mut request.sampling),
            max_tokens: request.max_tokens,
            stop: std::mem::take(&mut request.stop),
            tools: Vec::new(),
            built_in: request.built_in.take(),
            engram: std::mem::take(&mut request.engram),
            quality_gate: request.quality_gate,
            steps: request.steps,
            documents: std::mem::take(&mut request.documents),
            web: request.web,
            max_tokens_default: self.config.get().max_tokens.or(hosted.defaults.max_tokens).unwrap_or(most),
            choices: request.choices,
            ceilings: self.config.get().ceilings,
            model: Some(hosted.clone()),
        };
        let ReplyInput::Chat { messages, tools } = &mut request.input else { return plain_plan(wishes) };
        wishes.tools = std::mem::take(tools);
        let messages = std::mem::take(messages);
        let chat = || Chat { messages: messages.clone(), route: request.route.clone(), wishes: wishes.clone() };
        match self.orchestrator.send_within(chat(), Duration::from_millis(PLAN_TIMEOUT_MS)).await {
            Ok(planned) => planned,
            Err(error) => {
                tracing::error!(%error, "no plan from the Orchestrator: the default route is taken");
                meters::route_fallback();
                let route = request.route.clone().or_else(|| Some(crate::pipeline::DEFAULT_ROUTE.to_owned()));
                let mut plan = plan_chat(&self.pipelines.current(), Chat { messages, route, wishes })?;
                plan.because = error.to_string();
                Ok(plan)
            }
        }
    }
}

impl Replies {
    /// Leaves the tables that this principal may use. One that the request named itself must be among them; what was
    /// learned for everybody comes with what was learned for this one.
    fn limit_tables(&self, plan: &mut Plan, board: &Board, principal: &str) -> Result<(), ServiceError> {
        let Some(engram) = &mut plan.engram else { return Ok(()) };
        // A further model has none: they speak of the served one's tokens.
        let shelf = board.shelf();
        let may = |name: &String| shelf.find(name, principal).is_some();
        let hosted = board.hosted();
        let other = |name: &String| unfit(shelf.find(name, principal)?, &hosted.as_ref()?.tokenizer_hash);
        let own = own_name(NAME, principal);
        if engram.tables.iter().any(|name| name == NAME) && may(&own) && !engram.tables.contains(&own) {
            engram.tables.push(own);
        }
        if let Some(unknown) = engram.tables.iter().find(|name| engram.required && !may(name)) {
            let known: Vec<&str> = shelf.tables.iter().map(|t| t.name.as_str()).filter(|n| may(&(*n).into())).collect();
            let known = match known.as_slice() {
                [] => "this model has none".to_owned(),
                known => format!("the tables are {}", known.join(", ")),
            };
            // Of what was learned of somebody, nobody else is told that there is a file.
            let refused = shelf.refused(unknown).filter(|_| !is_learned(unknown));
            return Err(ServiceError::Invalid {
                message: match refused {
                    Some(refused) => format!("the engram table `{unknown}` is refused: {}; {known}", refused.message),
                    None => format!("there is no engram table `{unknown}`: {known}"),
                },
                param: Some("chimere.engram.tables".to_owned()),
            });
        }
        if let Some(message) = engram.tables.iter().filter(|_| engram.required).find_map(other) {
            return Err(ServiceError::Invalid { message, param: Some("chimere.engram.tables".to_owned()) });
        }
        engram.tables.retain(|name| may(name) && other(name).is_none());
        if engram.tables.is_empty() && !engram.required {
            plan.engram = None;
        }
        Ok(())
    }
}

impl Replies {
    /// A request for the web needs an engine to search it by.
    fn check_web(&self, request: &ReplyRequest) -> Result<(), ServiceError> {
        if request.web != WebWish::Use || self.web.is_some() {
            return Ok(());
        }
        let message = "this daemon does not search the web: name a search engine in its configuration (`[web]`, `engine`) \
                       and start it again, or leave `chimere.web` out";
        Err(ServiceError::Invalid { message: message.to_owned(), param: Some("chimere.web".to_owned()) })
    }
}

fn check(request: &ReplyRequest) -> Result<(), ServiceError> {
    let invalid = |param: &str, message: String| Err(ServiceError::Invalid { message, param: Some(param.to_owned()) });
    if !(1..=CHOICES_MAX).contains(&request.choices) {
        return invalid("n", format!("n is {}, but must be 1 to {CHOICES_MAX}", request.choices));
    }
    if request.conversation.as_ref().is_some_and(|c| c.len() > CONVERSATION_BYTES_MAX || c.is_empty()) {
        return invalid("conversation", format!("conversation must have 1 to {CONVERSATION_BYTES_MAX} bytes"));
    }
    if let Some(name) = &request.session {
        if !is_session_name(name) {
            return invalid("chimere.session", format!("`{name}` is no name of a session: {SESSION_NAMES}"));
        }
        if request.choices != 1 {
            return invalid("n", "a session goes on with one answer: n must be 1".to_owned());
        }
    }
    match &request.input {
        ReplyInput::Chat { messages, .. } if messages.is_empty() => {
            invalid("messages", "messages must not be empty".to_owned())
        }
        ReplyInput::Ids(ids) if ids.is_empty() => invalid("prompt", "prompt must not be empty".to_owned()),
        _ => Ok(()),
    }
}

fn unavailable(message: &str, retry_after_s: u32) -> ServiceError {
    ServiceError::Unavailable { message: message.to_owned(), retry_after_s }
}
