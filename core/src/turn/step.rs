//! The steps of a reply: as they are planned, and what is kept of them.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{Branch, Generation, QualityGate, Sampling, Thinking};

/// One step of a reply, as it is planned.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Step {
    /// Of its program alone.
    pub name: String,
    #[serde(flatten)]
    pub work: Work,
}

impl Step {
    /// What follows the conversation, of a step that writes the client's answer.
    pub fn instruction(&self) -> Option<&str> {
        match &self.work {
            Work::Answer { instruction } => Some(instruction),
            Work::Tools(terms) => Some(&terms.instruction),
            _ => None,
        }
    }
}

/// What a step does.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Work {
    /// The visible generation, under the terms of the plan.
    Answer {
        /// What follows the conversation; empty = nothing.
        instruction: String,
    },
    /// A hidden generation.
    Draft(Box<Draft>),
    /// The visible generation, which may call built-in tools before it is complete.
    Tools(ToolLoop),
    /// Judges the answer; a poor one is tried again.
    Judge(QualityGate),
    /// Goes on with one of two lists of hidden steps.
    Branch(Box<Branch>),
    /// Looks for passages of documents that bear on the question.
    Retrieve(DocumentTerms),
    /// Looks for passages of web pages that bear on the question.
    Web(WebTerms),
}

impl Work {
    /// The name of its kind, as a pipeline file writes it.
    pub fn kind(&self) -> &'static str {
        match self {
            Work::Answer { .. } | Work::Draft(_) => "generate",
            Work::Tools(_) => "tools",
            Work::Judge(_) => "judge",
            Work::Branch(_) => "branch",
            Work::Retrieve(_) => "retrieve",
            Work::Web(_) => "web",
        }
    }
}

/// The terms of a hidden generation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Draft {
    /// The whole system message; empty = none.
    pub system: String,
    /// What follows the conversation. `{{name}}` stands for the text of an earlier hidden step.
    pub instruction: String,
    pub sampling: Sampling,
    pub thinking: Thinking,
    pub max_tokens: u32,
}

/// Which passages of documents a reply is shown.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct DocumentTerms {
    /// Names or ids of collections; absent: all that the principal may read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub collections: Option<Vec<String>>,
    /// At most so many.
    pub k: u32,
    /// Most tokens of all of them together.
    pub tokens_max: u32,
}

impl Default for DocumentTerms {
    fn default() -> Self {
        DocumentTerms { collections: None, k: 4, tokens_max: 1_500 }
    }
}

/// Which passages of web pages a reply is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct WebTerms {
    /// At most so many.
    pub k: u32,
    /// Most tokens of all of them together.
    pub tokens_max: u32,
}

impl Default for WebTerms {
    fn default() -> Self {
        WebTerms { k: 4, tokens_max: 1_500 }
    }
}

/// A passage of a document or of a web page that the model was shown. Its words are not kept: they go with the document.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShownPassage {
    /// The number that it was shown under.
    pub number: u32,
    /// Empty: it is of a web page.
    pub document: String,
    /// Address of the web page; empty: it is of a document.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub url: String,
    /// Bytes of the document's text.
    pub start: u64,
    pub end: u64,
    /// Its first line, from 1.
    pub line: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub page: Option<u32>,
    /// Of a sheet, from 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub row: Option<u32>,
    /// The name of the sheet; empty: the file has none.
    #[serde(skip)]
    pub sheet: String,
    #[serde(skip)]
    pub title: String,
    #[serde(skip)]
    pub text: String,
}

/// The terms of an answer that may call built-in tools.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ToolLoop {
    /// What follows the conversation; empty = nothing.
    pub instruction: String,
    /// Names of the tools.
    pub offered: Vec<String>,
    pub limits: ToolLimits,
}

/// How far an answer may go with built-in tools.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToolLimits {
    /// Generations that may call; one more follows without built-in tools.
    pub rounds: u32,
    /// Calls of the whole reply.
    pub calls: u32,
    /// What one call may take.
    pub timeout_ms: u64,
}

impl Default for ToolLimits {
    fn default() -> Self {
        ToolLimits { rounds: 4, calls: 8, timeout_ms: 10_000 }
    }
}

/// What came of a call of a built-in tool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CallOutcome {
    Done,
    /// Its arguments could not be meant.
    Arguments,
    /// What it asked for cannot be had.
    Refused,
    /// It took too long.
    Late,
    Failed,
    /// The same call was made before: it was not run again.
    Repeated,
    /// It was over a limit, and not run.
    Limit,
    /// The reply was ended meanwhile.
    Stopped,
    /// The reply reached its limit within it: it is not whole, and was not run.
    Cut,
}

impl CallOutcome {
    pub fn name(self) -> &'static str {
        match self {
            CallOutcome::Done => "done",
            CallOutcome::Arguments => "arguments",
            CallOutcome::Refused => "refused",
            CallOutcome::Late => "late",
            CallOutcome::Failed => "failed",
            CallOutcome::Repeated => "repeated",
            CallOutcome::Limit => "limit",
            CallOutcome::Stopped => "stopped",
            CallOutcome::Cut => "cut",
        }
    }
}

/// One call of a built-in tool, as it was made and answered.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CallRecord {
    pub name: String,
    pub arguments: Value,
    pub outcome: CallOutcome,
    /// What the model was told.
    pub result: String,
    /// Bytes of the result, with what was cut off.
    pub bytes: usize,
    pub took_ms: u64,
    /// The result is the words of others.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub taints: bool,
}

/// A part of a step with a deadline of its own.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WebStage {
    pub name: String,
    /// `done`, `late` (what was there by its deadline was used), `failed` or `skipped`.
    pub outcome: String,
    pub took_ms: u64,
    /// What came of it, for people.
    pub told: String,
}

/// How a step ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StepOutcome {
    Done,
    /// There was nothing for it to do.
    Skipped,
    /// It could not decide, and left everything as it was.
    Abstained,
    Failed,
    /// Somebody or something ended the reply.
    Stopped,
}

impl StepOutcome {
    pub fn name(self) -> &'static str {
        match self {
            StepOutcome::Done => "done",
            StepOutcome::Skipped => "skipped",
            StepOutcome::Abstained => "abstained",
            StepOutcome::Failed => "failed",
            StepOutcome::Stopped => "stopped",
        }
    }
}

/// What is kept of one step.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StepRecord {
    pub kind: String,
    pub name: String,
    pub outcome: StepOutcome,
    /// Who generated; absent: nobody did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// Tokens of its generations: each choice is counted, and each attempt. The judge's own tokens are not.
    pub prompt_tokens: u32,
    pub completion_tokens: u32,
    pub took_ms: u64,
    /// The client saw its text.
    pub visible: bool,
    /// What it decided, and why, for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub decided: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub because: Option<String>,
    /// What a hidden step wrote. A client is not told of it.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub text: String,
    /// Calls of built-in tools, in their order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub calls: Vec<CallRecord>,
    /// Passages of documents and web pages that the model was shown, in their order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub passages: Vec<ShownPassage>,
    /// The stages of a search of the web.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub stages: Vec<WebStage>,
}

impl StepRecord {
    /// What a client is told of it.
    pub fn told(&self) -> StepRecord {
        StepRecord { text: String::new(), ..self.clone() }
    }
}

/// Tokens of a reply that its client does not see.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HiddenUsage {
    pub prompt_tokens: u32,
    pub completion_tokens: u32,
    pub total_tokens: u32,
}

impl HiddenUsage {
    /// Everything that the steps generated, less the answers that stand.
    pub fn of(steps: &[StepRecord], answers: &[Generation]) -> HiddenUsage {
        let all = |of: fn(&StepRecord) -> u32| steps.iter().map(of).sum::<u32>();
        let seen = |of: fn(&Generation) -> u32| answers.iter().map(of).sum::<u32>();
        let prompt_tokens = all(|s| s.prompt_tokens).saturating_sub(seen(|g| g.usage.prompt_tokens));
        let completion_tokens = all(|s| s.completion_tokens).saturating_sub(seen(|g| g.usage.completion_tokens));
        HiddenUsage { prompt_tokens, completion_tokens, total_tokens: prompt_tokens + completion_tokens }
    }
}
