//! What the daemon tells the engine: what a reply starts from, and the commands.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::RequestId;
use crate::engine::adapter::Sides;
use crate::engine::grammar::{FormTerms, Grammar};
use crate::turn::{EngramChoice, Message, Sampling, Thinking, ThoughtPolicy};

/// What the reply starts from.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Prompt {
    /// Rendered by the model's chat template; no text in it can become a control token.
    Chat(ChatInput),
    /// Plain text, no template; control tokens in it are not recognised.
    Text(String),
    /// Text whose control tokens are recognised, for whoever writes a whole prompt.
    Marked(String),
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

/// What an embedding model is asked about.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EmbedInput {
    Text(String),
    /// Ids of its own vocabulary, without the file's marks around them.
    Ids(Vec<u32>),
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
    /// End within the last message, the assistant's, so that the reply goes on with it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub continue_final: bool,
    /// Variables for the template, beside its usual ones.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub arguments: Map<String, Value>,
    /// `reasoning_effort`, for templates that print it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub effort: Option<String>,
    /// How the reply begins, put behind that opening as plain text: the model goes on from there.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reply_begins: String,
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
    /// What the model's certainty changes in its thought; absent: nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub thought: Option<ThoughtPolicy>,
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
    /// Who waits for it: sequences are shared out fairly between all who do. Empty: the daemon itself.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub principal: String,
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
    #[serde(default, skip_serializing_if = "FormTerms::is_plain")]
    pub form_terms: FormTerms,
    /// How likely each token of the prompt was is told too (`PromptRead`). Its sequence begins empty then.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub prompt_logprobs: bool,
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
            thought: None,
            ignore_end: false,
            adapter: None,
            background: false,
            principal: String::new(),
            engram: None,
            prefix_owner: None,
            grammar: None,
            form_terms: FormTerms::default(),
            prompt_logprobs: false,
        }
    }
}

/// Stop strings of a request.
pub const STOPS_MAX: usize = 16;
/// Longest stop string, characters, and the bytes that these may take.
pub const STOP_CHARS_MAX: usize = 256;
pub const STOP_BYTES_MAX: usize = 4 * STOP_CHARS_MAX;
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
    /// Asks an embedding model for the vector of a text; told as `Embedded`. A text of more tokens than the model reads of
    /// one fails, unless it may be `cut`.
    Embed {
        id: RequestId,
        input: EmbedInput,
        #[serde(default)]
        cut: bool,
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
