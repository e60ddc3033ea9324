//! What the engine tells the daemon: tokens, facts about the hosted model, counts, failures.

use serde::{Deserialize, Serialize};

use super::RequestId;
use crate::engine::adapter::AdapterFacts;
use crate::engine::backend::{ModelInfo, Offloaded};
use crate::engine::defaults::ModelDefaults;
use crate::engine::grammar::{FormStats, NotEnforced};
use crate::turn::{EngramUse, FinishReason, ThoughtUse, Timings, Usage};

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

/// A token of a prompt, and how likely it was behind those before it, by the model's own logits.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PromptToken {
    pub id: u32,
    pub text: String,
    pub bytes: Vec<u8>,
    /// Absent of the first token, which has nothing before it.
    pub logprob: Option<f32>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub top: Vec<TokenLogprob>,
}

fn holds() -> bool {
    true
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
    /// The parameters of a request that change its thought.
    #[serde(default)]
    pub steered_by: Vec<String>,
    /// How it writes calls: a name of `toolcall`'s table.
    #[serde(default)]
    pub calls: String,
    /// A call that it chooses to make can be held to a form: a token opens it.
    #[serde(default = "holds")]
    pub holds_calls: bool,
    /// A chat template is present.
    pub chats: bool,
    /// Why its weights learn nothing at night; absent: they learn, as adapters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub frozen: Option<String>,
    pub load_ms: u64,
    /// What it is asked with where nobody says.
    #[serde(default)]
    pub defaults: ModelDefaults,
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
    /// Sequences taken from a reply for another key's request, and replies that got one again since.
    #[serde(default)]
    pub suspended: u64,
    #[serde(default)]
    pub resumed: u64,
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
    /// The model's chat template cannot show the messages: the client's mistake as well.
    Messages,
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
    /// The first frame: what the engine speaks, and the version of its program.
    Hello {
        protocol: u32,
        version: String,
    },
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
        /// What of its form is left to the model, found when the form was compiled.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        not_enforced: Vec<NotEnforced>,
    },
    /// More of the prompt was read, of a request that asked for its logprobs: all its tokens, in order, in some events.
    PromptRead {
        id: RequestId,
        tokens: Vec<PromptToken>,
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
        /// What the policy for the thought did, where the request had one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        thought: Option<ThoughtUse>,
    },
    /// The last event of a request or question that failed, started or not.
    Failed {
        id: RequestId,
        kind: FailureKind,
        message: String,
    },
    Paused,
    Resumed,
    /// A conversation as the model would read it.
    Rendered {
        id: RequestId,
        text: String,
        ids: Vec<u32>,
    },
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
    /// One long; all zero for a text without a token.
    Embedded {
        id: RequestId,
        vector: Vec<f32>,
        /// Tokens that were read, the file's marks around a text among them.
        tokens: u32,
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
