//! The records that travel between the parts: a chat request, its plan, and the turn that is kept. Plain data.

mod branch;
mod quality;
mod said;
mod step;
mod thought;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::engine::grammar::NotEnforced;

pub use branch::{Branch, Condition};
pub use quality::{Quality, QualityOutcome};
pub use step::{
    CallOutcome, CallRecord, DocumentTerms, Draft, HiddenUsage, ShownPassage, Step, StepOutcome, StepRecord,
    ToolLimits, ToolLoop, WebStage, WebTerms, Work,
};
pub use thought::{BudgetForcing, ReflectionSuppression, THOUGHT_TOKENS_MAX, ThoughtEnd, ThoughtPolicy, ThoughtUse};

/// Identifier of a turn: time-ordered, unguessable, shown to clients as `turn-…`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct TurnId(pub String);

/// What the id of a reply begins with in the place of its turn's `turn-`.
const REPLY_PREFIXES: [&str; 2] = ["chatcmpl-", "cmpl-"];

impl TurnId {
    /// The turn that a client means: by its own id, or by the id of its reply.
    pub fn named(id: &str) -> TurnId {
        let of_reply = REPLY_PREFIXES.iter().find_map(|prefix| id.strip_prefix(prefix));
        TurnId(of_reply.map_or_else(|| id.to_owned(), |rest| format!("turn-{rest}")))
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    System,
    User,
    Assistant,
    Tool,
}

/// One call of a tool, as the model made it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ToolCall {
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub id: String,
    pub name: String,
    /// A JSON object.
    pub arguments: Value,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Message {
    pub role: Role,
    #[serde(default)]
    pub content: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reasoning_content: Option<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tool_calls: Vec<ToolCall>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool_call_id: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
}

impl Message {
    pub fn new(role: Role, content: impl Into<String>) -> Self {
        Message {
            role,
            content: content.into(),
            reasoning_content: None,
            tool_calls: Vec::new(),
            tool_call_id: None,
            name: None,
        }
    }
}

/// How tokens are chosen. Every field has the meaning of the OpenAI API, or of llama.cpp where that has none.
/// `Default` is greedy-free neutral sampling: temperature 1, nothing cut, no penalty.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Sampling {
    /// 0 = greedy.
    pub temperature: f32,
    pub top_p: f32,
    /// 0 = off.
    pub top_k: u32,
    pub min_p: f32,
    /// 1 = off; divides positive and multiplies negative logits of seen tokens.
    pub repetition_penalty: f32,
    pub frequency_penalty: f32,
    pub presence_penalty: f32,
    /// Tokens of prompt and reply that the repetition penalty looks back on; 0 = the whole context. Frequency
    /// and presence count the reply's own tokens, all of them.
    pub penalty_window_tokens: u32,
    /// Absent = drawn at random and reported.
    pub seed: Option<u64>,
    /// Token id and what is added to its logit, −100 … 100.
    pub logit_bias: Vec<(u32, f32)>,
    /// Report the chosen token's logprob and this many alternatives (0 … 20).
    pub logprobs: Option<u8>,
}

impl Default for Sampling {
    fn default() -> Self {
        Sampling {
            temperature: 1.0,
            top_p: 1.0,
            top_k: 0,
            min_p: 0.0,
            repetition_penalty: 1.0,
            frequency_penalty: 0.0,
            presence_penalty: 0.0,
            penalty_window_tokens: 64,
            seed: None,
            logit_bias: Vec::new(),
            logprobs: None,
        }
    }
}

/// Whether the model thinks before it answers, and for how long.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Thinking {
    /// The prompt ends with a closed, empty thought.
    Off,
    /// The prompt opens a thought; after `budget_tokens` of it `</think>` is forced.
    On { budget_tokens: u32 },
    /// Whatever the template does by itself.
    #[default]
    Template,
}

/// How a prompt ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PromptEnd {
    /// With the opening of an assistant's message.
    #[default]
    Opened,
    /// Behind the last message.
    Closed,
    /// Within the last message, the assistant's: the reply goes on with it.
    Within,
}

/// What a request says of its prompt beside the messages.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PromptForm {
    #[serde(default)]
    pub end: PromptEnd,
    /// Variables for the chat template, as the client named them.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub arguments: Map<String, Value>,
    /// `reasoning_effort`, for templates that print it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub effort: Option<String>,
}

/// Which Engram tables a reply may use, and how much they may weigh.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct EngramChoice {
    pub tables: Vec<String>,
    /// Most that the tables together may weigh in p = (1 − λ)·p_model + λ·p_table.
    pub lambda_max: f32,
    /// Texts whose own n-grams help this reply alone; they are forgotten with it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub passages: Vec<String>,
    /// Mix in thoughts too. For measurements: no door of the daemon offers it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub in_thought: bool,
    /// The request named the tables: one that is not loaded is an error. A pipeline's are left out then.
    #[serde(default)]
    pub required: bool,
}

/// Verified exchanges whose question is like the one asked, put before the conversation as examples.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Retrieve {
    /// At most so many.
    pub k: usize,
    /// Least likeness of the questions, 0 to 1.
    pub min_score: f32,
    /// Most tokens of all examples together, as the embedding model counts them.
    #[serde(default = "example_tokens")]
    pub tokens_max: u32,
}

fn example_tokens() -> u32 {
    512
}

/// What Engram tables did in a reply.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct EngramUse {
    pub tables: Vec<String>,
    /// Contexts looked up, of all orders and tables, and how many of them the filter answered alone.
    pub lookups: u32,
    pub skipped: u32,
    /// Tokens of the answer for which a table knew the context.
    pub hits: u32,
    /// Tokens for which a table's distribution was mixed in, and where that changed the likeliest token.
    pub mixed: u32,
    pub changed: u32,
    /// Mean weight of the table where it was mixed in.
    pub lambda_mean: f32,
}

/// Why a reply ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FinishReason {
    Stop,
    Length,
    ToolCalls,
    /// The client left or cancelled.
    Aborted,
    /// The engine failed while it was generating.
    Error,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    pub prompt_tokens: u32,
    pub cached_tokens: u32,
    pub completion_tokens: u32,
    /// Part of `completion_tokens` spent in the thought.
    pub thinking_tokens: u32,
}

/// Milliseconds of one generation, on the engine's own clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Timings {
    pub queued_ms: f64,
    pub prefill_ms: f64,
    pub decode_ms: f64,
}

/// Answer tier: how much work a reply deserves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Tier {
    Fast,
    #[default]
    Quality,
    Ultra,
}

impl Tier {
    pub fn name(self) -> &'static str {
        match self {
            Tier::Fast => "fast",
            Tier::Quality => "quality",
            Tier::Ultra => "ultra",
        }
    }
}

/// When a finished answer is judged before its reply ends, and tried again where the judge thinks little of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct QualityGate {
    /// A verdict of at most this (1 … 4) asks for another attempt.
    pub verdict_max: u8,
    /// Attempts after the first.
    pub retries: u32,
    /// For judging and trying again, all together; then the best answer so far stands.
    pub timeout_ms: u64,
}

impl Default for QualityGate {
    fn default() -> Self {
        QualityGate { verdict_max: 2, retries: 1, timeout_ms: 20_000 }
    }
}

/// What the Orchestrator decided for one request.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    pub route: String,
    /// Which rule of the cascade picked the route, for people.
    pub because: String,
    pub tier: Tier,
    /// Version of the pipeline file, and whether an overlay replaced it.
    pub pipeline_version: String,
    /// System prompt, demonstrations and the client's messages, in order.
    pub messages: Vec<Message>,
    /// How many of `messages`, behind the system's, show the model how to answer and are no part of the conversation.
    #[serde(default)]
    pub examples: u32,
    pub tools: Vec<Value>,
    pub sampling: Sampling,
    pub thinking: Thinking,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub thought: Option<ThoughtPolicy>,
    pub max_tokens: u32,
    pub stop: Vec<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub engram: Option<EngramChoice>,
    /// What is done, in order.
    pub steps: Vec<Step>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retrieve: Option<Retrieve>,
    /// Lessons may be shown.
    #[serde(default)]
    pub recall: bool,
    /// Lessons that the model is shown with the question; no part of the conversation.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<Note>,
    #[serde(default)]
    pub prompt: PromptForm,
}

/// A lesson that the model is shown, by its id.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Note {
    pub lesson: String,
    pub question: String,
    pub answer: String,
}

/// One generated choice of a reply.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Generation {
    pub index: u32,
    pub content: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub thinking: String,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tool_calls: Vec<ToolCall>,
    /// Ids of the thought, then of the reply, exactly as generated.
    pub thinking_ids: Vec<u32>,
    pub reply_ids: Vec<u32>,
    pub seed: u64,
    pub finish_reason: FinishReason,
    pub usage: Usage,
    pub timings: Timings,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub engram: Option<EngramUse>,
    /// Where the plan had a policy for the thought.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub thought: Option<ThoughtUse>,
    /// Its thought was ended because its budget was spent.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub thought_cut: bool,
    /// What of its form was left to the model, found when the form was compiled.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub not_enforced: Vec<NotEnforced>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Where the plan had a quality gate: this generation is the attempt that was kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quality: Option<Box<Quality>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Vote {
    Up,
    Down,
}

/// What the user said of a turn afterwards.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Feedback {
    pub time_ms: i64,
    pub principal: String,
    pub vote: Option<Vote>,
    pub correction: Option<String>,
    /// What the judge said of the correction.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub judgement: Option<Judgement>,
}

/// What the judge said of one choice of a reply.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ChoiceJudgement {
    pub index: u32,
    /// 1–5.
    pub verdict: u8,
    /// Calibrated probability that the choice is right, from its weakest step.
    pub p: f32,
    /// How many of `steps` are steps of the thought; the answer's follow.
    pub thought_steps: u32,
    /// Probability that each step is right, as the judge gave it, before calibration.
    pub steps: Vec<f32>,
}

/// What the judge said of a turn. Written once.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Judgement {
    /// Unix time, milliseconds.
    pub time_ms: i64,
    /// Which judge: a hash over its weights and its adapter.
    pub judge: String,
    /// In the order of the generations.
    pub choices: Vec<ChoiceJudgement>,
}

impl Judgement {
    /// The turn's verdict: that of its first choice, which most clients show alone.
    pub fn verdict(&self) -> Option<u8> {
        self.choices.first().map(|choice| choice.verdict)
    }
}

/// Everything kept of one reply. Each reply leaves exactly one. Written once; feedback and verdict are added.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Turn {
    /// Format version of this record.
    pub version: u32,
    pub id: TurnId,
    pub conversation: String,
    /// Unix time, milliseconds.
    pub time_ms: i64,
    pub principal: String,
    /// The principal allowed this turn to be learned from.
    pub consent: bool,
    /// Text from the web, files or tools took part: never training data.
    pub taint: bool,
    /// Its form was enforced (a schema, a call that had to be made): what it says is not what the model would have said.
    #[serde(default)]
    pub formed: bool,
    /// The reply goes on with the last message, which is the assistant's and was the client's.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub continued: bool,
    /// Earlier messages of the conversation were forgotten: the record has neither them nor the prompt that was read.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub redacted: bool,
    pub route: String,
    pub tier: Tier,
    pub pipeline_version: String,
    pub model: String,
    pub model_hash: String,
    pub adapter_revision: u64,
    pub template_hash: String,
    pub messages: Vec<Message>,
    /// How many of `messages`, behind the system's, are examples and no part of the conversation.
    #[serde(default)]
    pub examples: u32,
    /// Ids of the lessons that the model was shown with the question.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub lessons: Vec<String>,
    pub tools: Vec<Value>,
    pub prompt_ids: Vec<u32>,
    pub sampling: Sampling,
    pub thinking: Thinking,
    pub generations: Vec<Generation>,
    /// How the answer came to be, step by step; empty in turns of before there were steps.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub steps: Vec<StepRecord>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub feedback: Vec<Feedback>,
    /// 1–5, once the Scorer has judged it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub verdict: Option<u8>,
    /// What the verdict stands on: every choice, step by step.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub judgement: Option<Judgement>,
}
