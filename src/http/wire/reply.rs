//! Whole replies as JSON: `chat.completion` and `text_completion` objects, and the pieces that stream chunks
//! share with them.

use serde::Serialize;
use serde_json::{Value, json};

use super::chat::Form;
use super::sources;
use crate::engine::protocol::{PromptToken, TokenLogprob};
use crate::http::error::ApiError;
use crate::http::reply::Whole;
use crate::service::{Logprob, PlanSummary};
use crate::turn::{CallOutcome, FinishReason, Generation, HiddenUsage, Quality, StepRecord, ToolCall, Usage};
use crate::whole;

/// What stands at the head of a reply and of each of its chunks.
#[derive(Clone, Debug)]
pub(crate) struct Head {
    pub(crate) plan: PlanSummary,
    pub(crate) model: String,
    pub(crate) created_unix_s: i64,
    pub(crate) fingerprint: String,
}

impl Head {
    /// The turn's id under OpenAI's prefix, so that a reply leads back to its turn.
    pub(crate) fn id(&self, prefix: &str) -> String {
        format!("{prefix}-{}", self.plan.turn.0.trim_start_matches("turn-"))
    }
}

/// One choice of a finished reply.
#[derive(Clone, Debug, Default)]
pub(crate) struct Choice {
    pub(crate) thinking: String,
    /// Tokens of the prompt, where their logprobs were asked for.
    pub(crate) prompt: Vec<PromptToken>,
    pub(crate) content: String,
    /// Of the tokens of the thought, and of the answer.
    pub(crate) thought_logprobs: Vec<Logprob>,
    pub(crate) logprobs: Vec<Logprob>,
    pub(crate) tool_calls: Vec<ToolCall>,
    pub(crate) reason: Option<FinishReason>,
}

/// OpenAI's word for the end; an end that is none for the client is an error instead.
pub(crate) fn finish_reason(
    reason: Option<FinishReason>,
    generation: Option<&Generation>,
) -> Result<&'static str, ApiError> {
    match reason {
        Some(FinishReason::Stop) => Ok("stop"),
        Some(FinishReason::Length) => Ok("length"),
        Some(FinishReason::ToolCalls) => Ok("tool_calls"),
        Some(FinishReason::Aborted) => Err(ApiError::unavailable("the reply was aborted", 1).code("reply_aborted")),
        Some(FinishReason::Error) | None => {
            let why = generation.and_then(|g| g.error.clone());
            Err(ApiError::internal(why.unwrap_or_else(|| "the engine failed while it was replying".to_owned())))
        }
    }
}

pub(crate) fn usage(usage: &Usage) -> Value {
    json!({
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
        "completion_tokens_details": {"reasoning_tokens": usage.thinking_tokens},
    })
}

/// What a reply says of itself at its end.
pub(crate) struct Told<'a> {
    pub(crate) generations: &'a [Generation],
    pub(crate) steps: &'a [StepRecord],
    pub(crate) kept: Option<bool>,
}

/// Where the reply came from: the plan, and what repeats it.
pub(crate) fn extension(plan: &PlanSummary, told: &Told, form: &Form) -> Value {
    let Told { generations, steps, kept } = *told;
    #[derive(Serialize)]
    struct Extension<'a> {
        #[serde(flatten)]
        plan: &'a PlanSummary,
        /// Told only where the turn log does not have the turn, or may not.
        #[serde(skip_serializing_if = "Option::is_none")]
        kept: Option<Value>,
        /// Told only of a reply that has no answer, or ended within a call of a built-in tool.
        #[serde(skip_serializing_if = "Option::is_none")]
        cut: Option<&'static str>,
        seeds: Vec<u64>,
        #[serde(skip_serializing_if = "Vec::is_empty")]
        ignored: Vec<&'static str>,
        #[serde(skip_serializing_if = "Option::is_none")]
        timings: Option<crate::turn::Timings>,
        /// What Engram tables did, choice by choice, where any was asked for.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        engram: Vec<&'a crate::turn::EngramUse>,
        /// What the policy for the thought did, choice by choice, where there was one.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        thought: Vec<crate::turn::ThoughtUse>,
        #[serde(skip_serializing_if = "Option::is_none")]
        quality: Option<Quality>,
        /// How the answer came to be, step by step.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        trace: Vec<StepRecord>,
        /// Passages of documents that the model was shown, where any were looked for.
        #[serde(skip_serializing_if = "Option::is_none")]
        sources: Option<Vec<Value>>,
        /// What of the answers stands on them.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        citations: Vec<Value>,
        /// Tokens beside those of `usage`, where there were any.
        #[serde(skip_serializing_if = "Option::is_none")]
        usage: Option<HiddenUsage>,
    }
    let extension = Extension {
        plan,
        kept: match kept {
            Some(true) => None,
            Some(false) => Some(json!(false)),
            None => Some(json!("unknown")),
        },
        cut: match generations.iter().any(cut_in_thought) {
            true => Some(CUT_IN_THOUGHT),
            false => steps.iter().any(cut_in_call).then_some(CUT_IN_CALL),
        },
        seeds: generations.iter().map(|g| g.seed).collect(),
        ignored: form.ignored.iter().chain(plan.without_effect.iter()).copied().collect(),
        timings: generations.first().map(|g| g.timings),
        engram: generations.iter().filter_map(|g| g.engram.as_ref()).collect(),
        thought: generations.iter().filter_map(|g| g.thought).collect(),
        quality: generations.iter().find_map(|g| g.quality.as_ref()).map(|q| {
            // What was not kept is in the Turn.
            let (because, verdicts) = (q.because.clone(), q.verdicts.clone());
            Quality { because, verdicts, others: Vec::new(), ..**q }
        }),
        trace: steps.iter().map(StepRecord::told).collect(),
        sources: sources::sources(steps),
        citations: sources::told(generations, steps),
        usage: Some(HiddenUsage::of(steps, generations)).filter(|hidden| hidden.total_tokens > 0),
    };
    serde_json::to_value(extension).unwrap_or(Value::Null)
}

const CUT_IN_THOUGHT: &str = "the thought took every token that the reply was allowed, and no answer was begun: \
    ask with a larger `max_tokens`, or bound the thought with `reasoning_effort` or `chat_template_kwargs`";

const CUT_IN_CALL: &str = "the reply reached its limit within a call of a built-in tool: the call was not run, and \
    nothing of it is in the answer: ask with a larger `max_tokens`";

fn cut_in_call(step: &StepRecord) -> bool {
    step.calls.iter().any(|call| call.outcome == CallOutcome::Cut)
}

fn cut_in_thought(generation: &Generation) -> bool {
    let Generation { thinking, content, tool_calls, .. } = generation;
    let silent = content.is_empty() && tool_calls.is_empty() && !thinking.is_empty();
    silent && generation.finish_reason == FinishReason::Length
}

#[derive(Serialize)]
struct TokenEntry<'a> {
    token: &'a str,
    logprob: f32,
    bytes: &'a [u8],
}

#[derive(Serialize)]
struct LogprobEntry<'a> {
    #[serde(flatten)]
    chosen: TokenEntry<'a>,
    top_logprobs: Vec<TokenEntry<'a>>,
}

/// JSON has no infinity; −9999 is what OpenAI's API says for "impossible".
fn entry(token: &TokenLogprob) -> TokenEntry<'_> {
    TokenEntry { token: &token.text, logprob: finite(token.logprob), bytes: &token.bytes }
}

fn finite(logprob: f32) -> f32 {
    if logprob.is_finite() { logprob } else { -9999.0 }
}

/// Control tokens, the end of the reply among them, stand for no bytes and are no part of the reply's text. OpenAI's
/// API does not tell of them.
pub(crate) fn is_text(logprob: &Logprob) -> bool {
    !logprob.chosen.bytes.is_empty()
}

/// The `logprobs` object of chat choices and chunks.
pub(crate) fn chat_logprobs(logprobs: &[Logprob]) -> Value {
    let content: Vec<_> = logprobs
        .iter()
        .filter(|l| is_text(l))
        .map(|l| LogprobEntry { chosen: entry(&l.chosen), top_logprobs: l.top.iter().map(entry).collect() })
        .collect();
    json!({"content": content, "refusal": null})
}

/// The older form, of completions. `offset` is the length of the text before, characters.
pub(crate) fn text_logprobs(logprobs: &[Logprob], offset: usize) -> Value {
    columns(logprobs.iter().filter(|l| is_text(l)).map(written), offset)
}

/// The same of every token: those of the prompt first, control tokens and the one that ends the reply among them.
pub(crate) fn every_token(prompt: &[PromptToken], logprobs: &[Logprob], offset: usize) -> Value {
    let read = prompt.iter().map(|token| {
        let top = if token.logprob.is_some() { alternatives(&token.top) } else { Value::Null };
        (token.text.as_str(), token.logprob.map(finite), top)
    });
    columns(read.chain(logprobs.iter().map(written)), offset)
}

/// A token's text, its logprob, and its alternatives.
type Row<'a> = (&'a str, Option<f32>, Value);

fn written(logprob: &Logprob) -> Row<'_> {
    (&logprob.chosen.text, Some(finite(logprob.chosen.logprob)), alternatives(&logprob.top))
}

fn alternatives(top: &[TokenLogprob]) -> Value {
    top.iter().map(|t| (t.text.clone(), json!(finite(t.logprob)))).collect::<serde_json::Map<_, _>>().into()
}

fn columns<'a>(rows: impl Iterator<Item = Row<'a>>, mut offset: usize) -> Value {
    let (mut tokens, mut likely, mut tops, mut offsets) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for (text, logprob, top) in rows {
        offsets.push(offset);
        offset += text.chars().count();
        tokens.push(text);
        likely.push(logprob);
        tops.push(top);
    }
    json!({"tokens": tokens, "token_logprobs": likely, "top_logprobs": tops, "text_offset": offsets})
}

pub(crate) fn tool_call(call: &ToolCall) -> Value {
    json!({
        "id": call.id,
        "type": "function",
        "function": {"name": call.name, "arguments": whole::written(&call.arguments)},
    })
}

/// A finished chat reply.
pub(crate) fn chat(reply: &Whole, form: &Form) -> Result<Value, ApiError> {
    let mut written = Vec::with_capacity(reply.choices.len());
    for (index, choice) in reply.choices.iter().enumerate() {
        let calls: Vec<_> = choice.tool_calls.iter().map(tool_call).collect();
        let mut message = json!({"role": "assistant", "content": choice.content, "refusal": null});
        if !calls.is_empty() {
            if choice.content.is_empty() {
                message["content"] = Value::Null;
            }
            message["tool_calls"] = Value::Array(calls);
        }
        if let Some(annotations) = sources::annotations(&choice.content, &reply.steps) {
            message["annotations"] = annotations;
        }
        if !choice.thinking.is_empty() {
            message["reasoning_content"] = json!(choice.thinking);
        }
        written.push(json!({
            "index": index,
            "message": message,
            "logprobs": if form.logprobs { chat_logprobs(&choice.logprobs) } else { Value::Null },
            "finish_reason": finish_reason(choice.reason, reply.generations.get(index))?,
        }));
    }
    Ok(whole(reply, form, "chatcmpl", "chat.completion", written))
}

/// A finished completion; an echo is put before its choice's text.
pub(crate) fn completion(reply: &Whole, form: &Form, echoes: &[String]) -> Result<Value, ApiError> {
    let mut written = Vec::with_capacity(reply.choices.len());
    for (index, choice) in reply.choices.iter().enumerate() {
        let echo = echoes.get(index).map_or("", String::as_str);
        let logprobs = [choice.thought_logprobs.as_slice(), &choice.logprobs].concat();
        written.push(json!({
            "index": index,
            "text": format!("{echo}{}{}", choice.thinking, choice.content),
            "logprobs": match (form.logprobs, form.every_token) {
                (false, _) => Value::Null,
                (true, false) => text_logprobs(&logprobs, echo.chars().count()),
                (true, true) => every_token(&choice.prompt, &logprobs, 0),
            },
            "finish_reason": finish_reason(choice.reason, reply.generations.get(index))?,
        }));
    }
    Ok(whole(reply, form, "cmpl", "text_completion", written))
}

fn whole(reply: &Whole, form: &Form, prefix: &str, object: &str, choices: Vec<Value>) -> Value {
    let head = &reply.head;
    json!({
        "id": head.id(prefix),
        "object": object,
        "created": head.created_unix_s,
        "model": head.model,
        "system_fingerprint": head.fingerprint,
        "choices": choices,
        "usage": usage(&reply.usage),
        "x_chimere": extension(&head.plan, &Told { generations: &reply.generations, steps: &reply.steps, kept: reply.kept }, form),
    })
}
