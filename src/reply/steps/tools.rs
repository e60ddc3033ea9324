//! The answer, with the built-in tools that it calls on its way. The model is shown the tools; what it calls is run, and
//! call and result follow the conversation. Then it goes on, until it calls none or a limit is reached. The last
//! generation has no built-in tools.

use std::panic::AssertUnwindSafe;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::join_all;
use tokio::time::Instant;

use super::Outcome;
use super::generate::instructed;
use crate::engine::grammar::{Calls, Function, Grammar};
use crate::engine::protocol::{Generate, Prompt};
use crate::meters;
use crate::plural::counted;
use crate::reply::choice::Choice;
use crate::reply::generate::{Spec, chat_input};
use crate::reply::run::ReplyRun;
use crate::reply::stops::StepError;
use crate::service::StepEvent;
use crate::toolcall::Half;
use crate::tools::{ToolError, Toolbox};
use crate::turn::{
    CallOutcome, CallRecord, FinishReason, Message, Note, Role, StepOutcome, ToolCall, ToolLimits, ToolLoop,
};
use crate::whole;

/// Why the loop ended, in its step's record.
const CUT: &str = "it was cut at its limit";

pub(super) async fn run(run: &mut ReplyRun<'_>, terms: &ToolLoop) -> Result<Outcome, StepError> {
    // What is said behind the conversation.
    let mut behind = Vec::new();
    let format = run.format();
    let marked = run.hosted.holds_calls || !format.first().mark().is_empty();
    let mut form = shown(run.asked.grammar.clone(), &run.plan.tools, &terms.offered, marked);
    let mut last = false;
    let mut rounds = 0;
    let because = loop {
        if let Err(error) = generate(run, &behind, &form, terms, last).await {
            broken_off(run, terms.limits);
            return Err(error);
        }
        let Some(choice) = run.choices.first_mut() else { break None };
        let (complete, cut) = (choice.complete(), choice.generation.finish_reason == FinishReason::Length);
        let (said, half) = (choice.take_built_in(), choice.take_half());
        run.record.calls.extend(half.iter().map(half_call));
        if said.tool_calls.is_empty() {
            if half.is_some() {
                break Some(CUT);
            }
            break last.then_some("a limit of the tools was reached");
        }
        if last || cut {
            let left = said.tool_calls.into_iter().map(|call| not_run(call, CallOutcome::Limit, terms.limits));
            run.record.calls.extend(left);
            break Some(if cut { CUT } else { "it called on behind the limit of the tools" });
        }
        if !complete {
            choice.go_on(&run.plan.tools, format);
        }
        rounds += 1;
        last = !answer(run, terms.limits, said, &mut behind).await? || rounds == terms.limits.rounds;
        if complete {
            break Some("the caller's own tools are called too");
        }
        form = unforced(form, run.asked.form_terms.later.as_deref());
        if last {
            form = unshown(form, &terms.offered);
        }
    };
    if let Some(choice) = run.choices.first() {
        let calls = &choice.generation.tool_calls;
        run.replies.withheld.keep(&run.opening.principal, &run.plan.messages, calls, &behind);
    }
    run.answered = true;
    let calls = run.record.calls.len();
    let (said, rounds) = (counted(calls, "call", "calls"), counted(rounds, "round", "rounds"));
    let decided = (calls > 0).then(|| format!("{said} in {rounds}"));
    Ok(Outcome { visible: true, decided, because: because.map(str::to_owned), ..Outcome::of(StepOutcome::Done) })
}

/// One generation of the answer.
async fn generate(
    run: &mut ReplyRun<'_>,
    behind: &[Message],
    form: &Option<Grammar>,
    terms: &ToolLoop,
    last: bool,
) -> Result<(), StepError> {
    let with = |run: &ReplyRun<'_>, notes: &[Note]| {
        let mut messages = instructed(run.said(notes), &terms.instruction, &run.trace);
        messages.extend_from_slice(behind);
        let mut chat = chat_input(&run.plan, messages, run.replies.clock.date());
        if last {
            chat.tools.retain(|tool| !terms.offered.iter().any(|name| tool["function"]["name"] == name.as_str()));
        }
        chat
    };
    let (chat, _) = run.noted(run.plan.max_tokens, with).await;
    let mut choices = std::mem::take(&mut run.choices);
    for choice in &mut choices {
        choice.goes_on = !last;
        if form.as_ref().is_some_and(Grammar::answers_in_form) {
            choice.has_form();
        }
    }
    let index = choices.first().map_or(0, |choice: &Choice| choice.generation.index);
    let (grammar, mut form_terms) = (form.clone(), run.asked.form_terms.clone());
    // It was examined with the first.
    if !behind.is_empty() {
        form_terms.later = None;
    }
    let request = Generate { grammar, form_terms, ..run.request(Prompt::Chat(chat), index) };
    run.choices = run.generate(Spec { requests: vec![request], choices, shown: true }).await?.choices;
    Ok(())
}

/// Records the calls of a generation that did not come to its end: none of them was run.
fn broken_off(run: &mut ReplyRun<'_>, limits: ToolLimits) {
    let Some(choice) = run.choices.first_mut() else { return };
    let (said, half) = (choice.take_built_in(), choice.take_half());
    let whole = said.tool_calls.into_iter().map(|call| not_run(call, CallOutcome::Stopped, limits));
    run.record.calls.extend(whole.chain(half.iter().map(half_call)));
}

/// Runs the calls of a generation, side by side, and puts them and their results behind the messages. False: there are
/// to be no more.
async fn answer(
    run: &mut ReplyRun<'_>,
    limits: ToolLimits,
    said: Message,
    messages: &mut Vec<Message>,
) -> Result<bool, StepError> {
    let calls = said.tool_calls.clone();
    messages.push(said);
    let mut known: Vec<(String, serde_json::Value)> =
        run.record.calls.iter().map(|call| (call.name.clone(), call.arguments.clone())).collect();
    let mut planned = Vec::with_capacity(calls.len());
    for call in calls {
        let this = (call.name.clone(), call.arguments.clone());
        let why_not = if known.contains(&this) {
            Some(CallOutcome::Repeated)
        } else {
            (known.len() >= limits.calls as usize).then_some(CallOutcome::Limit)
        };
        known.push(this);
        tell(run, StepEvent::Calling { name: call.name.clone(), arguments: call.arguments.clone() }).await;
        planned.push((call, why_not));
    }
    let (toolbox, stops) = (run.replies.toolbox.clone(), run.stops.clone());
    let within = Duration::from_millis(limits.timeout_ms);
    let work = planned.iter().cloned().map(|(call, why_not)| {
        let toolbox = &toolbox;
        async move {
            match why_not {
                Some(why) => not_run(call, why, limits),
                None => run_one(toolbox, call, within).await,
            }
        }
    });
    let records = tokio::select! {
        records = join_all(work) => records,
        stop = stops.wait() => {
            let ended = planned.into_iter().map(|(call, _)| not_run(call, CallOutcome::Stopped, limits));
            run.record.calls.extend(ended);
            return Err(StepError::Stopped(stop));
        }
    };
    let mut more = known.len() < limits.calls as usize;
    for ((call, why_not), record) in planned.into_iter().zip(records) {
        more &= why_not.is_none();
        let result = Message {
            tool_call_id: Some(call.id),
            name: Some(call.name),
            ..Message::new(Role::Tool, record.result.clone())
        };
        messages.push(result);
        meters::tool_call(&record.name, record.outcome.name());
        tell(run, StepEvent::Called(record.clone())).await;
        run.record.calls.push(record);
    }
    Ok(more)
}

async fn tell(run: &mut ReplyRun<'_>, event: StepEvent) {
    if run.asked.step_events {
        run.sink.step(event).await;
    }
}

async fn run_one(toolbox: &Toolbox, call: ToolCall, within: Duration) -> CallRecord {
    let ToolCall { name, arguments, .. } = call;
    let began = Instant::now();
    let ran = AssertUnwindSafe(toolbox.run(&name, &whole::written(&arguments), within)).catch_unwind().await;
    let ran = ran.unwrap_or_else(|_| Err(ToolError::Failed("it panicked".to_owned())));
    let (outcome, result, bytes) = match ran {
        Ok(output) => (CallOutcome::Done, output.text, output.bytes),
        Err(error) => {
            let words = format!("error: {error}");
            (error.outcome(), words.clone(), words.len())
        }
    };
    let taints = toolbox.named(&name).is_ok_and(|tool| tool.taints);
    CallRecord { name, arguments, outcome, result, bytes, took_ms: began.elapsed().as_millis() as u64, taints }
}

/// The record of a call that was not run to its end, and what the model is told of it.
fn not_run(call: ToolCall, outcome: CallOutcome, limits: ToolLimits) -> CallRecord {
    let result = match outcome {
        CallOutcome::Repeated => {
            "error: the same call was made before and its result is above: answer with it, no more tools can be called"
                .to_owned()
        }
        CallOutcome::Limit => {
            format!(
                "error: not run, {}: answer with what there is",
                counted(limits.calls, "call is the most", "calls are the most")
            )
        }
        _ => String::new(),
    };
    let ToolCall { name, arguments, .. } = call;
    CallRecord { name, arguments, outcome, bytes: result.len(), result, took_ms: 0, taints: false }
}

/// The record of a call that was cut off: nothing of it was told or run.
fn half_call(half: &Half) -> CallRecord {
    CallRecord {
        name: half.name.clone().unwrap_or_default(),
        arguments: serde_json::Value::Null,
        outcome: CallOutcome::Cut,
        result: String::new(),
        bytes: 0,
        took_ms: 0,
        taints: false,
    }
}

/// A form that leaves room for calls of the tools that are offered. `marked`: calls can be told from JSON of a form; else
/// the form comes first.
fn shown(form: Option<Grammar>, tools: &[serde_json::Value], offered: &[String], marked: bool) -> Option<Grammar> {
    let functions = tools.iter().filter_map(|tool| {
        let function = &tool["function"];
        let name = function["name"].as_str().filter(|name| offered.iter().any(|own| own == name))?.to_owned();
        Some(Function { name, parameters: function["parameters"].clone(), strict: false })
    });
    let mut calls = match form? {
        Grammar::Json(answer) if !marked => return Some(Grammar::Json(answer)),
        Grammar::Json(answer) => {
            let functions = Vec::new();
            Calls { functions, required: false, single: false, several: false, answer: Some(answer) }
        }
        Grammar::Calls(calls) if calls.required => return Some(Grammar::Calls(calls)),
        Grammar::Calls(calls) => calls,
    };
    for function in functions {
        if calls.functions.iter().all(|there| there.name != function.name) {
            calls.functions.push(function);
        }
    }
    Some(Grammar::Calls(calls))
}

/// A call that had to be made has been made: what follows is held to `later`.
fn unforced(form: Option<Grammar>, later: Option<&Grammar>) -> Option<Grammar> {
    match form? {
        Grammar::Calls(calls) if calls.required => later.cloned(),
        other => Some(other),
    }
}

/// The form without the built-in tools.
fn unshown(form: Option<Grammar>, offered: &[String]) -> Option<Grammar> {
    match form? {
        Grammar::Calls(mut calls) => {
            calls.functions.retain(|function| !offered.contains(&function.name));
            match calls.functions.is_empty() {
                true => calls.answer.map(Grammar::Json),
                false => Some(Grammar::Calls(calls)),
            }
        }
        json => Some(json),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn behind_a_forced_call_what_was_asked_besides_holds() {
        let function = |name: &str, strict: bool| Function {
            name: name.to_owned(),
            parameters: json!({"type": "object"}),
            strict,
        };
        let calls = |functions: Vec<Function>, required: bool| {
            Grammar::Calls(Calls { functions, required, single: false, several: false, answer: None })
        };
        let forced = calls(vec![function("built_in", false)], true);
        let later = calls(vec![function("own", true), function("built_in", false)], false);
        let after = unforced(Some(forced.clone()), Some(&later));
        assert_eq!(after, Some(later.clone()));
        assert_eq!(unshown(after, &["built_in".to_owned()]), Some(calls(vec![function("own", true)], false)));
        assert_eq!(unforced(Some(forced), None), None, "nothing is asked");
        let json = Grammar::Json(json!({}));
        assert_eq!(unforced(Some(json.clone()), Some(&later)), Some(json));
        assert_eq!(unforced(Some(later.clone()), None), Some(later));
    }
}
