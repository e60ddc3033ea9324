//! The daemon as the HTTP server sees it: one trait, its requests and answers, principals and the scopes of their
//! keys. The server knows nothing behind it; the daemon implements it over its actors. Dropping the receiver of a
//! reply cancels the reply.

mod documents;
mod error;
mod forget;
mod lessons;
mod listed;
mod night;
mod session;
mod steps;

use std::path::PathBuf;
use std::sync::Arc;

use futures_util::future::BoxFuture;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::sync::mpsc;

use crate::engine::grammar::{FormTerms, Grammar, NotEnforced};
use crate::engine::protocol::{Channel, EmbedInput, Hosted, PromptToken, TokenLogprob};
use crate::lessons::Lesson;
use crate::turn::{
    EngramChoice, FinishReason, Generation, Message, Plan, PromptForm, StepRecord, Thinking, ThoughtPolicy, Tier,
    ToolCall, TurnId, Usage,
};

pub use documents::{
    DocumentAnswer, DocumentCommand, DocumentsWish, FolderState, ListedCollection, NewDocument, Shelved, Taught,
    WebWish,
};
pub use error::ServiceError;
pub use forget::{Forgetting, Forgotten};
pub use lessons::{CORRECTION_CHARS_MAX, FeedbackKept, FeedbackRequest, LessonCommand, NoLessons};
pub use listed::{Listed, TurnText};
pub use night::NightCommand;
pub use session::{SESSION_NAME_BYTES_MAX, SESSION_NAMES, Session, SessionAt, is_session_name};
pub use steps::{RunSummary, StepEvent, StepsWish};

/// What a key may do. A route asks for exactly one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Scope {
    /// Chats, completions, embeddings, and the key's own turns and sessions.
    Chat,
    /// `/metrics`, `/v1/status` and the state of the night.
    Metrics,
    /// Everything, for everybody's turns: it includes the other scopes.
    Admin,
}

/// Name of whoever asks from this machine while there is no key.
pub const OWNER: &str = "owner";

/// Who asks. Without any key configured, a loopback client is the owner.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Principal {
    pub name: String,
    pub scopes: Vec<Scope>,
    /// May turns of this principal be learned from, unless the request says otherwise.
    pub consent: bool,
}

impl Principal {
    /// May this principal use a route of `scope`? Admin includes the others.
    pub fn may(&self, scope: Scope) -> bool {
        self.scopes.iter().any(|&own| own == scope || own == Scope::Admin)
    }
}

/// Which client on this machine is the owner while there is no key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LoopbackOwner {
    /// One of the daemon's own user, or root; anyone where the system does not say whose a connection is.
    #[default]
    SameUser,
    Anyone,
    /// Nobody: a key must be made first.
    Never,
}

impl LoopbackOwner {
    pub fn parse(text: &str) -> Option<LoopbackOwner> {
        match text {
            "same_user" => Some(LoopbackOwner::SameUser),
            "anyone" => Some(LoopbackOwner::Anyone),
            "never" => Some(LoopbackOwner::Never),
            _ => None,
        }
    }
}

/// Sampling fields that the client really sent; the rest comes from the pipeline.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SamplingOverrides {
    pub temperature: Option<f32>,
    pub top_p: Option<f32>,
    pub top_k: Option<u32>,
    pub min_p: Option<f32>,
    pub repetition_penalty: Option<f32>,
    pub frequency_penalty: Option<f32>,
    pub presence_penalty: Option<f32>,
    pub seed: Option<u64>,
    pub logit_bias: Vec<(u32, f32)>,
    pub logprobs: Option<u8>,
}

/// What a request says of Engram tables.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum EngramWish {
    /// Nothing: the pipeline decides.
    #[default]
    Pipeline,
    Off,
    Use(EngramChoice),
}

/// What to reply to.
#[derive(Clone, Debug, PartialEq)]
pub enum ReplyInput {
    /// Goes through the Orchestrator.
    Chat {
        messages: Vec<Message>,
        tools: Vec<Value>,
    },
    /// `/v1/completions`: no pipeline, no template.
    Text(String),
    /// The same; control tokens in it are read as such.
    Marked(String),
    Ids(Vec<u32>),
}

#[derive(Clone, Debug, PartialEq)]
pub struct ReplyRequest {
    pub principal: Principal,
    pub input: ReplyInput,
    /// Absent = the served model; another name is an error.
    pub model: Option<String>,
    pub conversation: Option<String>,
    /// Goes on with this session and moves it to the new turn; begins it where there is none.
    pub session: Option<String>,
    /// Asks for a route by name instead of the cascade.
    pub route: Option<String>,
    pub tier: Option<Tier>,
    pub thinking: Option<Thinking>,
    /// What the model's certainty changes in its thought, instead of what the pipeline says; one without a rule: nothing.
    pub thought: Option<ThoughtPolicy>,
    /// The parameters by which the client asks for that.
    pub thought_parameters: Vec<&'static str>,
    pub prompt: PromptForm,
    pub sampling: SamplingOverrides,
    pub max_tokens: Option<u32>,
    pub stop: Vec<String>,
    /// Choices, 1 … `CHOICES_MAX`.
    pub choices: u32,
    /// Consent for this turn alone. It can only be withdrawn: the turn is learned from when the principal
    /// consents and this is not false.
    pub consent: Option<bool>,
    pub engram: EngramWish,
    /// Judge the answer before the reply ends, and try a poor one again. Absent: the pipeline decides.
    pub quality_gate: Option<bool>,
    pub steps: StepsWish,
    /// What the answer must be; absent: any text.
    pub grammar: Option<Grammar>,
    pub form_terms: FormTerms,
    /// What the client's schemas ask beyond that.
    pub not_enforced: Vec<NotEnforced>,
    /// Logprobs also of the prompt's tokens, and of the token that ends the reply.
    pub prompt_logprobs: bool,
    /// Built-in tools that the answer may call; absent: those of the route.
    pub built_in: Option<Vec<String>>,
    /// Of the calls that a choice makes the first counts alone.
    pub one_tool_call: bool,
    /// Lessons that bear on the question are shown.
    pub recall: bool,
    pub documents: DocumentsWish,
    /// Whether it is shown passages of web pages.
    pub web: WebWish,
    /// The client shows text as it comes: what was told cannot be taken back.
    pub streamed: bool,
}

pub const CHOICES_MAX: u32 = 8;

/// What the Orchestrator decided, returned to the client as `x_chimere`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PlanSummary {
    pub turn: TurnId,
    pub route: String,
    pub because: String,
    pub tier: Tier,
    pub pipeline_version: String,
    pub adapter_revision: u64,
    /// Verified exchanges that the model was shown.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub examples: Vec<ShownExample>,
    /// Lessons that the model was shown.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub lessons: Vec<String>,
    /// Why it was shown none, where that was nobody's choice.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub no_lessons: Option<NoLessons>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<Box<SessionUse>>,
    /// Keywords of the request's schemas that were left to the model.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub not_enforced: Vec<NotEnforced>,
    /// Parameters of the thought that do nothing on this model.
    #[serde(skip)]
    pub without_effect: Box<[&'static str]>,
}

/// The session that a reply belongs to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionUse {
    pub name: String,
    /// Messages of the session that were put in front of the request's.
    pub messages: usize,
}

/// A verified exchange that was put before the conversation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ShownExample {
    /// Absent: somebody else's, shown because several had the same.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub turn: Option<TurnId>,
    /// Likeness of its question to the one asked.
    pub score: f32,
}

/// Progress of a reply, in order. After `Done` or `Failed` nothing follows.
#[derive(Clone, Debug, PartialEq)]
pub enum ReplyEvent {
    /// The plan is made and the request is with the engine.
    Started {
        plan: PlanSummary,
        model: String,
        /// Tells one set of weights from another.
        fingerprint: String,
        created_unix_s: i64,
    },
    /// Tokens of a choice's prompt and how likely they were, where that was asked for.
    PromptRead {
        choice: u32,
        tokens: Vec<PromptToken>,
    },
    /// The engine has found every choice good: what fails from here on is no fault of the request.
    Queued,
    /// Text of one choice, with the tokens that made it where logprobs were asked for.
    Delta {
        choice: u32,
        channel: Channel,
        text: String,
        logprobs: Vec<Logprob>,
    },
    ToolBegin {
        choice: u32,
        call: u32,
        id: String,
        name: String,
    },
    ToolArguments {
        choice: u32,
        call: u32,
        delta: String,
    },
    /// A choice is complete. The Turn is durable only at `Done`, and so a client is told of the finish there.
    ChoiceFinished {
        choice: u32,
        reason: FinishReason,
        tool_calls: Vec<ToolCall>,
    },
    /// A better answer replaces the one told so far, and the end of the choice is told again. A client that has shown the
    /// first one shows this one after it, marked as a revision.
    Revised {
        choice: u32,
        generation: Box<Generation>,
        /// Of its answer, where they were asked for.
        logprobs: Vec<Logprob>,
    },
    /// A step begins or has ended, where the client asked to hear of it.
    Step(Box<StepEvent>),
    /// Every choice is complete and the Turn is flushed, where it could be.
    Done {
        /// Of the answers that stand.
        usage: Usage,
        generations: Vec<Generation>,
        steps: Vec<StepRecord>,
        /// The turn log has the Turn. `None`: not known, it did not answer in time.
        kept: Option<bool>,
    },
    Failed(ServiceError),
}

#[derive(Clone, Debug, PartialEq)]
pub struct Logprob {
    pub chosen: TokenLogprob,
    pub top: Vec<TokenLogprob>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TurnFilter {
    /// This one turn only.
    pub turn: Option<TurnId>,
    pub principal: Option<String>,
    pub conversation: Option<String>,
    pub since_ms: Option<i64>,
    pub limit: Option<usize>,
    pub after: Option<TurnId>,
    /// From the newest back; what comes `after` a turn is older then.
    pub newest_first: bool,
}

/// Texts in one request for embeddings.
pub const EMBED_TEXTS_MAX: usize = 2_048;

/// Texts as vectors.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Embedded {
    pub model: String,
    /// One for each text, one long; zero for a text without a token.
    pub vectors: Vec<Vec<f32>>,
    /// Windows that each text was read in.
    pub windows: Vec<u32>,
    /// Tokens of all texts, as the embedding model counts them.
    pub tokens: u32,
}

/// What texts are embedded for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EmbedFor {
    /// Each as it stands; one that is too long is read in windows.
    Texts,
    /// The first is what the others are compared with; of one that is too long the beginning counts.
    Ranking,
}

/// The embedding model.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct EmbedModel {
    pub name: String,
    /// Other names that it answers to.
    pub aliases: Vec<String>,
    pub architecture: String,
    /// Values of a vector.
    pub width: usize,
    /// Tokens of a text that it reads.
    pub tokens_max: usize,
    /// `ready`; of one with an engine of its own also `loading`, `restarting`, `failed`.
    pub state: &'static str,
}

/// A further model: beside the served one, with an engine of its own while requests name it.
#[derive(Clone, Debug, PartialEq)]
pub struct FurtherModel {
    pub name: String,
    /// `unloaded`, `loading`, `ready`, `restarting` …
    pub state: &'static str,
    /// While it is loaded.
    pub hosted: Option<Arc<Hosted>>,
}

/// What a model would read, and under which terms it would answer.
#[derive(Clone, Debug, PartialEq)]
pub struct ShownPrompt {
    pub text: String,
    pub ids: Vec<u32>,
    pub plan: Plan,
}

/// Ids of a text, and the text that each stands for.
pub type TokenPieces = (Vec<u32>, Vec<String>);

/// The daemon, as its servers see it. Every method has a deadline of its own.
pub trait Service: Send + Sync + 'static {
    /// Starts a reply. Errors before the first event come back here.
    fn reply(&self, request: ReplyRequest) -> BoxFuture<'_, Result<mpsc::Receiver<ReplyEvent>, ServiceError>>;

    /// The hosted model, once it can produce a token.
    fn hosted(&self) -> Option<Arc<Hosted>>;
    /// Names beside its own that the hosted model answers to.
    fn aliases(&self) -> Vec<String>;
    /// Models that requests may name beside the hosted one, loaded or not, by name.
    fn further_models(&self) -> Vec<FurtherModel>;

    fn tokenize(&self, text: String, specials: bool) -> BoxFuture<'_, Result<TokenPieces, ServiceError>>;
    fn detokenize(&self, ids: Vec<u32>) -> BoxFuture<'_, Result<String, ServiceError>>;
    /// The prompt that a chat request would be answered from.
    fn prompt(&self, request: ReplyRequest) -> BoxFuture<'_, Result<ShownPrompt, ServiceError>>;

    /// The embedding model, where there is one.
    fn embed_model(&self) -> Option<EmbedModel>;
    /// Texts to vectors by the embedding model.
    fn embed(
        &self,
        model: Option<String>,
        texts: Vec<EmbedInput>,
        purpose: EmbedFor,
    ) -> BoxFuture<'_, Result<Embedded, ServiceError>>;

    /// Actor states, engine state, queues, pipelines: the body of `/v1/status`.
    fn status(&self) -> BoxFuture<'_, Result<Value, ServiceError>>;

    fn feedback(
        &self,
        principal: Principal,
        feedback: FeedbackRequest,
    ) -> BoxFuture<'_, Result<FeedbackKept, ServiceError>>;
    /// Lessons that the principal may see, or the one that the command is about.
    fn lessons(
        &self,
        principal: Principal,
        command: LessonCommand,
    ) -> BoxFuture<'_, Result<Vec<Arc<Lesson>>, ServiceError>>;
    /// Documents and collections that the principal may read or change.
    fn documents(
        &self,
        principal: Principal,
        command: DocumentCommand,
    ) -> BoxFuture<'_, Result<DocumentAnswer, ServiceError>>;
    /// What is wrong with the files of one of them, as this principal may know it.
    fn damage(&self, of: Taught, principal: &Principal) -> Option<String>;
    fn turns(&self, filter: TurnFilter) -> BoxFuture<'_, Result<Listed, ServiceError>>;
    /// Forgets by filter; returns what was removed.
    fn forget(&self, filter: TurnFilter) -> BoxFuture<'_, Result<Forgotten, ServiceError>>;

    /// Replies under way, oldest first; without a principal everybody's.
    fn runs(&self, principal: Option<&str>) -> Vec<RunSummary>;
    /// Ends one of them: its client is told, and its turn kept.
    fn cancel_run(&self, principal: Option<&str>, id: &TurnId) -> Result<(), ServiceError>;

    /// The sessions of a principal, by name.
    fn sessions(&self, principal: String) -> BoxFuture<'_, Result<Vec<Session>, ServiceError>>;
    /// A session and what was said in it.
    fn session(&self, principal: String, name: String) -> BoxFuture<'_, Result<(Session, Vec<Message>), ServiceError>>;
    /// Sets a session to a turn; one of that name is moved only where it may be replaced.
    fn save_session(
        &self,
        principal: String,
        name: String,
        at: SessionAt,
        replace: bool,
    ) -> BoxFuture<'_, Result<Session, ServiceError>>;
    /// Deletes a session's name; its turns stay in the log.
    fn delete_session(&self, principal: String, name: String) -> BoxFuture<'_, Result<(), ServiceError>>;

    /// Pause and resume of the engine, and the night's commands: answers `NotBuilt` where nothing stands behind.
    fn night(&self, command: NightCommand) -> BoxFuture<'_, Result<Value, ServiceError>>;
    fn pause(&self) -> BoxFuture<'_, Result<(), ServiceError>>;
    fn resume(&self) -> BoxFuture<'_, Result<(), ServiceError>>;

    /// Which model file is served, which was before, and the change under way.
    fn model(&self) -> Value;
    /// Changes the served model file, or loads or unloads a further model. With `wait` the answer is the result.
    fn change_model(&self, wish: ModelWish, wait: bool) -> BoxFuture<'_, Result<Value, ServiceError>>;

    /// Who holds this key (`None` = no Authorization header), coming from a loopback address or not.
    fn authenticate(&self, bearer: Option<&str>, loopback: bool) -> Result<Principal, AuthError>;

    /// True while the daemon accepts new requests (false: draining).
    fn accepting(&self) -> bool;
}

/// Which model file is to be served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ModelWish {
    /// On the daemon's machine.
    File(PathBuf),
    /// The one before the last change.
    Before,
    /// Load a further model before a request names it.
    Load(String),
    /// Unload a further model once its replies under way are finished.
    Unload(String),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AuthError {
    #[error("no API key was given: send `Authorization: Bearer KEY`, or ask the owner for one")]
    Missing,
    #[error("the API key is not known or was revoked")]
    Unknown,
}
