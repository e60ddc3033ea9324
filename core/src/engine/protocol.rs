//! The engine's public face: the commands it takes and the events it gives, on one page, and their frames.
//! `frame` says how they travel. The daemon writes commands to the engine's standard input and reads events from
//! its standard output; end of file ends the engine.

mod frame;

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::adapter::{AdapterFacts, Sides};
use super::backend::{ModelInfo, Offloaded};
use super::grammar::{FormStats, Grammar};
use crate::turn::{EngramChoice, EngramUse, FinishReason, Message, Sampling, Thinking, Timings, Usage};

pub use frame::{FRAME_BYTES_MAX, Frame, FrameError, encode, id_of, next_frame, read_frame, write_frame};

/// Chosen by the daemon, unique while the engine lives.
pub type RequestId = u64;

/// What the reply starts from.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Prompt {
    /// Rendered by the model's chat template; no text in it can become a control token.
    Chat(ChatInput),
    /// Plain text, no template; control tokens in it are not recognised.
    Text(String),
    /// Ids as they are.
    Ids(Vec<u32>),
    /// Texts and control tokens put together by the daemon; each text is tokenised by itself, its control tokens
    /// unrecognised.
    Parts(Vec<PromptPart>),
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PromptPart {
    Text(String),
    /// A special token by its exact text.
    Control(String),
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ChatInput {
    pub messages: Vec<Message>,
    /// OpenAI function tools, as sent.
    #[serde(default)]
    pub tools: Vec<Value>,
    #[serde(default)]
    pub thinking: Thinking,
    /// `YYYY-MM-DD`, for templates that print a date: the engine has no clock.
    #[serde(default)]
    pub date: String,
    /// End with the opening of an assistant message.
    #[serde(default)]
    pub add_generation_prompt: bool,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Generate {
    pub id: RequestId,
    pub prompt: Prompt,
    pub sampling: Sampling,
    /// Tokens of thought and answer together.
    pub max_tokens: u32,
    /// At most `STOPS_MAX` strings; the reply ends before the first that occurs in its answer.
    pub stop: Vec<String>,
    pub thinking: Thinking,
    /// Go on past the end-of-reply tokens (benchmarks).
    #[serde(default)]
    pub ignore_end: bool,
    /// Revision of the adapter that the whole reply is made with; absent: the base weights. It must be loaded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub adapter: Option<String>,
    /// Nobody waits for it: it runs while no other request does, leaves a sequence free, and gives its own back to a
    /// request that finds none. Its tokens are the same all the while.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub background: bool,
    /// Tables mixed into the answer; absent: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub engram: Option<EngramChoice>,
    /// Requests that name the same owner may begin with what was kept of each other's prompts; absent: it begins empty
    /// and leaves nothing. The reply is the same, bit by bit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prefix_owner: Option<String>,
    /// What the answer must be; absent: any text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grammar: Option<Grammar>,
}

impl Generate {
    /// A reply of the base weights as they are: no stop strings, no tables, the template's own thought. The id is the
    /// sender's to set.
    pub fn new(prompt: Prompt, sampling: Sampling, max_tokens: u32) -> Generate {
        Generate {
            id: 0,
            prompt,
            sampling,
            max_tokens,
            stop: Vec::new(),
            thinking: Thinking::Template,
            ignore_end: false,
            adapter: None,
            background: false,
            engram: None,
            prefix_owner: None,
            grammar: None,
        }
    }
}

/// Stop strings of a request.
pub const STOPS_MAX: usize = 16;
/// Longest stop string, bytes.
pub const STOP_BYTES_MAX: usize = 256;
/// Adapters loaded at once.
pub const ADAPTERS_MAX: usize = 16;
/// Bytes of a revision's name.
pub const REVISION_BYTES_MAX: usize = 128;
/// Bytes of the name of a prefix's owner.
pub const OWNER_BYTES_MAX: usize = 1_024;
/// Rows of one evaluation.
pub const EVAL_ROWS_MAX: usize = 65_536;
/// Tokens of all rows of one evaluation.
pub const EVAL_TOKENS_MAX: usize = 1 << 22;
/// Evaluations waiting or under way.
pub const EVALUATIONS_MAX: usize = 64;

/// Candidates kept at once.
pub const CANDIDATES_MAX: usize = 2;
/// Directions of one probe.
pub const PROBES_MAX: usize = 4_096;

/// A direction by its seed (see `adapter::Candidate`), and how far to go along it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Probe {
    pub seed: u64,
    /// 0: the candidate itself.
    pub size: f32,
}

/// What a candidate starts from.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CandidateStart {
    /// A with numbers from the seed, B zero: it changes nothing yet. `targets` empty = all, `last_layers` 0 = all.
    Fresh { rank: usize, seed: u64, targets: Vec<String>, last_layers: usize },
    /// An adapter that is there already.
    File { path: PathBuf, sha256: String },
}

/// A text to be scored: each of `ids[scored_from..]` under the tokens before it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EvalRow {
    pub ids: Vec<u32>,
    /// At least 1: the first token has nothing before it.
    pub scored_from: usize,
}

/// What one row got.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RowScore {
    /// Sum of the negative log-likelihoods of the scored tokens, nats.
    pub nll: f64,
    /// Tokens scored.
    pub tokens: u32,
    /// Of them, those that were the likeliest.
    pub top1: u32,
    /// Mean over the scored tokens of KL(base weights ‖ adapter), nats; absent unless asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kl: Option<f64>,
}

/// A variant with an id says it first: `frame::id_of` looks for it there.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Command {
    Generate(Box<Generate>),
    /// Ends a request at the next token boundary with `Finished { reason: Aborted }`. Unknown ids are ignored.
    Cancel {
        id: RequestId,
    },
    /// Stops decoding at the next token boundary; requests keep their state and new ones queue.
    Pause,
    /// Allowed while paused.
    Resume,
    Tokenize {
        id: RequestId,
        text: String,
        specials: bool,
    },
    Detokenize {
        id: RequestId,
        ids: Vec<u32>,
    },
    ApplyTemplate {
        id: RequestId,
        chat: ChatInput,
    },
    /// Reads an adapter, checks it against the model and keeps it under a name. `sha256` is that of the file, in
    /// lower-case hex; a file that has another one is refused. Loading the same content twice is no error.
    LoadAdapter {
        id: RequestId,
        revision: String,
        path: PathBuf,
        sha256: String,
    },
    /// Takes no new request for a revision; told as `AdapterDropped` once the last one under it has ended.
    DropAdapter {
        id: RequestId,
        revision: String,
    },
    /// Scores texts, between the steps of live requests. Can be cancelled.
    Evaluate {
        id: RequestId,
        /// Absent: the base weights.
        #[serde(default)]
        adapter: Option<String>,
        rows: Vec<EvalRow>,
        /// Also the divergence from the base weights, at twice the work.
        with_kl: bool,
    },
    /// Maps an Engram table and gives it its name for the requests after this; the ones under way keep what they
    /// have. `digest` is what must be found in the file.
    LoadTable {
        id: RequestId,
        name: String,
        path: PathBuf,
        digest: String,
    },
    /// Takes a table's name away; the requests under way keep it until they end.
    DropTable {
        id: RequestId,
        name: String,
    },
    /// Makes a candidate for training without gradients; told as `CandidateStands`.
    BeginCandidate {
        id: RequestId,
        candidate: String,
        start: CandidateStart,
        #[serde(default)]
        sides: Sides,
    },
    /// Losses of a candidate as it stands when this arrives, each along one direction, between the steps of live
    /// requests. One direction at two opposite sizes is MeZO; many at one size with size 0 among them is a one-sided
    /// population. Can be cancelled.
    ProbeCandidate {
        id: RequestId,
        candidate: String,
        probes: Vec<Probe>,
        rows: Vec<EvalRow>,
    },
    /// Moves a candidate along directions; told as `CandidateStands`.
    MoveCandidate {
        id: RequestId,
        candidate: String,
        moves: Vec<Probe>,
    },
    /// Writes a candidate as an adapter file; told as `CandidateSaved` once it is on the disk.
    SaveCandidate {
        id: RequestId,
        candidate: String,
        path: PathBuf,
    },
    /// Forgets a candidate and ends its probes; told as `CandidateStands` for the last time.
    DropCandidate {
        id: RequestId,
        candidate: String,
    },
    /// Drops the prompt prefixes kept for an owner, or everybody's where none is named; also of requests under way nothing
    /// more is kept. Told as `PrefixesForgotten`; requests sent after this find nothing.
    ForgetPrefixes {
        id: RequestId,
        #[serde(default)]
        owner: Option<String>,
    },
    /// Asks for `Stats`.
    Stats {
        id: RequestId,
    },
    /// Finishes at once; what runs is aborted.
    Exit,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Channel {
    Thinking,
    Answer,
}

/// Logprob of the chosen token and of the likeliest ones, after bias and penalties, before temperature.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TokenLogprob {
    pub id: u32,
    pub text: String,
    pub bytes: Vec<u8>,
    pub logprob: f32,
}

/// One token. `text` is what became safe to show: it can lag behind the ids (a stop string or a UTF-8
/// sequence may be under way) and can be empty.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TokenEvent {
    pub id: RequestId,
    pub token: u32,
    pub channel: Channel,
    pub text: String,
    /// Forced by a control policy, not chosen by the sampler.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub forced: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub logprob: Option<TokenLogprob>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub top: Vec<TokenLogprob>,
}

/// Facts about the hosted model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Hosted {
    pub model: ModelInfo,
    /// SHA-256 over the header and samples of the tensor data: identifies the weights.
    pub model_hash: String,
    pub template_hash: String,
    /// The tokenizer's fingerprint (`engine::vocab`), hexadecimal: things made of token ids carry it.
    pub tokenizer_hash: String,
    /// The model marks thoughts with `<think>` tokens.
    pub thinks: bool,
    /// A chat template is present.
    pub chats: bool,
    pub load_ms: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct EngineStats {
    pub running: u32,
    pub waiting: u32,
    pub paused: bool,
    pub prompt_tokens: u64,
    pub generated_tokens: u64,
    pub steps: u64,
    pub step_ms_sum: f64,
    /// Memory of the engine process, weights included.
    pub resident_bytes: u64,
    /// Adapters loaded.
    #[serde(default)]
    pub adapters: u32,
    /// Background requests and evaluations, waiting or under way.
    #[serde(default)]
    pub background: u32,
    /// Prompt prefixes kept, and the bytes of all of them.
    #[serde(default)]
    pub snapshots: u32,
    #[serde(default)]
    pub snapshot_bytes: u64,
    #[serde(default)]
    pub forms: FormStats,
    /// What became of the experts that lie on the host, where some do.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub offloaded: Option<Offloaded>,
}

/// Why one request failed. The others go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FailureKind {
    /// The request cannot be served as it is: the client's mistake.
    Invalid,
    /// Prompt and reply do not fit the context.
    Context,
    /// The form that the request asks of its answer cannot be had: the client's mistake as well.
    Form,
    /// Queue full: try again later.
    Busy,
    /// The engine's own fault.
    Internal,
}

/// A variant with an id says it first, as in `Command`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Event {
    /// While the model is read, 0 … 1.
    Loading {
        progress: f32,
    },
    Ready(Box<Hosted>),
    /// The model cannot be hosted; the process exits after this.
    Fatal {
        message: String,
    },
    /// The request was found good and waits for a sequence: from here on only a failure of the engine ends it.
    Queued {
        id: RequestId,
    },
    /// The request was admitted and its prompt is being read.
    Started {
        id: RequestId,
        prompt_ids: Vec<u32>,
        cached_tokens: u32,
        seed: u64,
    },
    Token(TokenEvent),
    /// The last event of a request that was started. `text` is the held-back rest of the answer.
    Finished {
        id: RequestId,
        reason: FinishReason,
        text: String,
        stop: Option<String>,
        usage: Usage,
        timings: Timings,
        /// What tables did, where the request asked for any.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        engram: Option<Box<EngramUse>>,
    },
    /// The last event of a request or question that failed, started or not.
    Failed {
        id: RequestId,
        kind: FailureKind,
        message: String,
    },
    Paused,
    Resumed,
    Tokens {
        id: RequestId,
        ids: Vec<u32>,
        pieces: Vec<String>,
    },
    Text {
        id: RequestId,
        text: String,
    },
    AdapterLoaded {
        id: RequestId,
        revision: String,
        facts: Box<AdapterFacts>,
    },
    AdapterDropped {
        id: RequestId,
        revision: String,
    },
    /// The scores of an evaluation, in the order of its rows.
    Evaluated {
        id: RequestId,
        rows: Vec<RowScore>,
    },
    CandidateStands {
        id: RequestId,
        candidate: String,
        parameters: u64,
        /// As in `AdapterFacts`.
        norm: f64,
    },
    /// Nats a scored token for each direction, in their order; absent where the model gave no finite number.
    CandidateProbed {
        id: RequestId,
        losses: Vec<Option<f64>>,
    },
    CandidateSaved {
        id: RequestId,
        facts: AdapterFacts,
    },
    PrefixesForgotten {
        id: RequestId,
        snapshots: u32,
    },
    Stats {
        id: RequestId,
        stats: Box<EngineStats>,
    },
    TableLoaded {
        id: RequestId,
        name: String,
        contexts: u64,
        entries: u64,
    },
    TableDropped {
        id: RequestId,
        name: String,
    },
    /// A command that the present state does not allow.
    Refused {
        command: String,
        state: String,
    },
}

#[cfg(test)]
mod tests;
