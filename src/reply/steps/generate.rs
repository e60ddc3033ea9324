//! A generation: the client's answer, or a hidden text that later steps may be shown.

use super::Outcome;
use crate::engine::protocol::{ChatInput, Generate, Prompt};
use crate::lessons::note;
use crate::pipeline::fill;
use crate::reply::choice::Choice;
use crate::reply::generate::{Generated, Spec, chat_input};
use crate::reply::run::ReplyRun;
use crate::reply::stops::StepError;
use crate::turn::{Draft, FinishReason, Message, Note, Role, StepOutcome, StepRecord, Thinking};

/// The client's answer, as many times as it asked for one.
pub(super) async fn answer(run: &mut ReplyRun<'_>, instruction: &str) -> Result<Outcome, StepError> {
    let (prompt, notes) = match run.asked.prompt.take() {
        Some(prompt) => (prompt, Vec::new()),
        None => {
            let chat = |run: &ReplyRun<'_>, notes: &[Note]| {
                let messages = instructed(run.said(notes), instruction, &run.trace);
                chat_input(&run.plan, messages, run.replies.clock.date())
            };
            let (chat, notes) = run.noted(run.plan.max_tokens, chat).await;
            (Prompt::Chat(chat), notes)
        }
    };
    let choices = std::mem::take(&mut run.choices);
    let requests = choices.iter().map(|choice| Generate {
        grammar: run.asked.grammar.clone(),
        form_terms: run.asked.form_terms.clone(),
        prompt_logprobs: run.asked.prompt_logprobs,
        ..run.request(prompt.clone(), choice.generation.index)
    });
    let requests = requests.collect();
    run.choices = run.generate(Spec { requests, choices, shown: true }).await?.choices;
    run.answered = true;
    Ok(Outcome { visible: true, because: shown(&notes), ..Outcome::of(StepOutcome::Done) })
}

/// Which lessons the answer was shown, for the trace.
pub(super) fn shown(notes: &[Note]) -> Option<String> {
    let ids: Vec<&str> = notes.iter().map(|note| note.lesson.as_str()).collect();
    (!ids.is_empty()).then(|| format!("shown {}", ids.join(", ")))
}

/// A hidden text.
pub(super) async fn draft(run: &mut ReplyRun<'_>, draft: &Draft) -> Result<Outcome, StepError> {
    let mut sampling = draft.sampling.clone();
    // Other dice than the answer's, whose seed is the client's own.
    sampling.seed = run.plan.sampling.seed.map(|seed| seed.wrapping_add((run.trace.len() as u64 + 1) << 32));
    let thinking = if run.hosted.thinks { draft.thinking } else { Thinking::Template };
    let with = |run: &ReplyRun<'_>, notes: &[Note]| ChatInput {
        messages: instructed(conversation(run, &draft.system, notes), &draft.instruction, &run.trace),
        tools: Vec::new(),
        thinking,
        ..chat_input(&run.plan, Vec::new(), run.replies.clock.date())
    };
    let (chat, _) = run.noted(draft.max_tokens, with).await;
    let choice = Choice::new(0, sampling.seed.unwrap_or(0), false, &[], run.format());
    let request = run.bare(Prompt::Chat(chat), sampling, thinking, draft.max_tokens);
    let spec = Spec { requests: vec![request], choices: vec![choice], shown: false };
    let Generated { choices, .. } = run.generate(spec).await?;
    let cut = choices.iter().any(|choice| choice.generation.finish_reason == FinishReason::Length);
    let text = choices.into_iter().next().map(|choice| choice.generation.content).unwrap_or_default();
    let because = cut.then(|| "it was cut at its limit".to_owned());
    Ok(Outcome { because, text, ..Outcome::of(StepOutcome::Done) })
}

/// What was said so far, under a system message of the step's own; without examples of answers.
fn conversation(run: &ReplyRun<'_>, system: &str, notes: &[Note]) -> Vec<Message> {
    let own = run.plan.messages.iter().take_while(|m| m.role == Role::System).count();
    let said = run.plan.messages.iter().skip(own + run.plan.examples as usize).cloned();
    let system = (!system.is_empty()).then(|| Message::new(Role::System, system));
    let mut messages: Vec<Message> = system.into_iter().chain(said).collect();
    // What the answer is shown: a draft without it would speak against it.
    note::show(&mut messages, notes);
    messages.extend(run.evidence.iter().cloned());
    messages
}

/// The conversation with the step's instruction behind it, and in that the texts of the steps it names. They stand with
/// what the user said and never in the system message: a text cannot tell the model what to do.
pub(in crate::reply) fn instructed(
    mut messages: Vec<Message>,
    instruction: &str,
    trace: &[StepRecord],
) -> Vec<Message> {
    if instruction.is_empty() {
        return messages;
    }
    let text = fill(instruction, |name| trace.iter().find(|step| step.name == name).map(evidence).unwrap_or_default());
    match messages.last_mut() {
        // Templates want user and assistant in turn.
        Some(last) if last.role == Role::User => last.content = format!("{}\n\n{text}", last.content),
        _ => messages.push(Message::new(Role::User, text)),
    }
    messages
}

/// A step's text, marked as what it is. It cannot end its own mark.
fn evidence(step: &StepRecord) -> String {
    format!("<step name=\"{}\">\n{}\n</step>", step.name, step.text.trim().replace("</step", "<\\/step"))
}
