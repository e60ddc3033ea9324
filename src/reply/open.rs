//! What comes before the first step of a reply: the engine that answers, the session, the plan.

use tokio::sync::mpsc;
use tokio::time::Instant;

use super::Replies;
use super::budget::Budget;
use super::choice::Choice;
use super::preview::Terms;
use super::record::Opening;
use super::run::{Asked, ReplyRun, record};
use super::seat::Seat;
use super::session::Held;
use super::sink::Sink;
use super::stops::{StepError, Stop, Stops};
use crate::engine::grammar::{Grammar, NotEnforced};
use crate::engine::protocol::Prompt;
use crate::pipeline::cost;
use crate::service::{PlanSummary, ReplyEvent, ReplyInput, ReplyRequest, RunSummary, ServiceError, StepsWish};
use crate::store::new_turn_id;
use crate::toolcall::Format;
use crate::turn::{Plan, Step, Work};

/// The kind of what a run does before its first step.
const WAITING: &str = "waiting";

/// What an opening needs, once its model takes requests.
struct Ready {
    seat: Seat,
    /// The generation that answers.
    generation: u64,
    terms: Terms,
}

/// A reply that is ready to run, and what its client is told first.
pub(super) async fn open(
    replies: &Replies,
    mut request: ReplyRequest,
    client: mpsc::Sender<ReplyEvent>,
    began: Instant,
) -> Result<(ReplyRun<'_>, ReplyEvent), StepError> {
    // Before its turn has an id: ids are in the order in which turns of a session go on from one another.
    let session = replies.resume(&mut request).await?;
    let now_ms = replies.clock.now_ms();
    let mut opening = Opening::new(new_turn_id(now_ms), now_ms, &request);
    // Listed before its engine is waited for, which may take long.
    let (registered, cancelled) = replies.runs.enter(waiting(&opening, &request));
    let ready = tokio::select! {
        biased;
        () = client.closed() => return Err(StepError::Stopped(Stop::ClientGone)),
        () = cancelled.cancelled() => return Err(StepError::Stopped(Stop::Cancelled)),
        () = replies.cut.cancelled() => return Err(StepError::Stopped(Stop::Stopping)),
        ready = ready(replies, &mut request, &opening) => ready?,
    };
    let Ready { seat, generation, terms: Terms { plan, examples, no_lessons } } = ready;
    (opening.generation, opening.examples) = (generation, examples);
    let (hosted, model) = (seat.hosted.clone(), seat.name.clone());
    let format = Format::named(&hosted.calls).unwrap_or(Format::generic());
    leave_calls(&mut request, hosted.holds_calls, format)?;
    opening.formed = request.grammar.is_some();
    let offered = tools_of(&plan, request.choices)?;
    let worst = cost(&plan, request.choices);
    replies.config.get().ceilings.check(worst)?;
    let form = request.grammar.as_ref().map(|grammar| match grammar {
        Grammar::Json(_) => "response_format",
        Grammar::Calls(_) => "tools",
    });
    let seed = plan.sampling.seed.unwrap_or(0);
    let logprobs = plan.sampling.logprobs.is_some();
    let number = replies.next_call(&plan, &opening.principal);
    let mut choices: Vec<Choice> = (0..request.choices)
        .map(|i| Choice::new(i, seed.wrapping_add(i.into()), logprobs, &plan.tools, format).from_number(number))
        .collect();
    choices.iter_mut().for_each(|choice| (choice.form, choice.one_call) = (form, request.one_tool_call));
    choices.iter_mut().for_each(|choice| choice.built_in.clone_from(&offered));
    if request.grammar.as_ref().is_some_and(Grammar::answers_in_form) {
        choices.iter_mut().for_each(Choice::has_form);
    }
    if request.prompt_logprobs {
        choices.iter_mut().for_each(Choice::tell_every_token);
    }
    let steers = |name: &&'static str| hosted.steered_by.iter().any(|own| own == name);
    let without_effect = request.thought_parameters.iter().copied().filter(|name| !steers(name)).collect();
    let config = replies.config.get();
    let started = ReplyEvent::Started {
        plan: PlanSummary {
            turn: opening.id.clone(),
            route: plan.route.clone(),
            because: plan.because.clone(),
            tier: plan.tier,
            pipeline_version: plan.pipeline_version.clone(),
            adapter_revision: opening.generation,
            examples: opening.examples.clone(),
            lessons: plan.notes.iter().map(|note| note.lesson.clone()).collect(),
            no_lessons,
            session: session.as_ref().map(Held::told).map(Box::new),
            not_enforced: request.not_enforced,
            without_effect,
        },
        model: model.clone(),
        fingerprint: fingerprint(&hosted.model_hash),
        created_unix_s: replies.clock.now_ms() / 1_000,
    };
    registered.planned(&plan, &model, &worst);
    let stops = Stops {
        cancelled,
        client: client.clone(),
        cut: replies.cut.clone(),
        seat,
        deadline: began + config.reply_timeout,
        limit_s: config.reply_timeout.as_secs(),
    };
    let run = ReplyRun {
        replies,
        stops: stops.into(),
        sink: Sink { client, stall: config.client_stall_timeout, opening: None, behind: Vec::new(), queued: false },
        budget: Budget::new(worst),
        registered,
        asked: Asked {
            prompt: match request.input {
                ReplyInput::Text(text) => Some(Prompt::Text(text)),
                ReplyInput::Marked(text) => Some(Prompt::Marked(text)),
                ReplyInput::Ids(ids) => Some(Prompt::Ids(ids)),
                ReplyInput::Chat { .. } => None,
            },
            grammar: request.grammar,
            form_terms: request.form_terms,
            prompt_logprobs: request.prompt_logprobs,
            streamed: request.streamed,
            step_events: request.steps == StepsWish::Events,
        },
        opening,
        plan,
        hosted,
        model,
        session,
        choices,
        answered: false,
        under_way: None,
        judgement: None,
        ahead: Default::default(),
        trace: Vec::new(),
        evidence: Vec::new(),
        record: record(&Step { name: String::new(), work: Work::Answer { instruction: String::new() } }),
    };
    Ok((run, started))
}

/// Leaves to a model the calls that it may choose to make and that no form of its can hold, and says so. Calls without a
/// mark cannot be told from an answer that is JSON: a request for either is refused.
fn leave_calls(request: &mut ReplyRequest, holds_calls: bool, format: &Format) -> Result<(), ServiceError> {
    let Some(Grammar::Calls(calls)) = &request.grammar else { return Ok(()) };
    let reason = "this model has no token for tool calls, so `strict` holds only where `tool_choice` forces a call";
    let told = NotEnforced { path: "tools".to_owned(), reason: reason.to_owned() };
    if !holds_calls && request.form_terms.later.take().is_some() {
        request.not_enforced.push(told);
        return Ok(());
    }
    if holds_calls || calls.required {
        return Ok(());
    }
    if calls.answer.is_some() {
        if !format.first().mark().is_empty() {
            return Ok(());
        }
        let message = "this model writes calls as JSON without a mark, so `response_format` and `tools` exclude each \
                       other: leave one of them out, or say `tool_choice` \"none\" or \"required\"";
        return Err(ServiceError::Invalid { message: message.to_owned(), param: Some("response_format".to_owned()) });
    }
    request.grammar = None;
    request.not_enforced.push(told);
    Ok(())
}

/// Waits for the model that a request wants, and plans the request for it.
async fn ready(replies: &Replies, request: &mut ReplyRequest, opening: &Opening) -> Result<Ready, ServiceError> {
    let seat = replies.seat(request.model.as_deref()).await?;
    let mut generation = 0;
    if seat.serving() {
        // An engine that has just started is waited for with its adapters: the base model is not what was being served.
        let served = replies.board.served_within(replies.config.get().start_timeout).await;
        generation = served.choose(&opening.conversation_key(request));
    }
    let terms = replies.terms(request, &seat).await?;
    Ok(Ready { seat, generation, terms })
}

/// A run of which nothing is known but what was asked.
fn waiting(opening: &Opening, request: &ReplyRequest) -> RunSummary {
    RunSummary {
        id: opening.id.clone(),
        principal: opening.principal.clone(),
        route: request.route.clone().unwrap_or_default(),
        model: request.model.clone().unwrap_or_default(),
        began_ms: opening.time_ms,
        step: 0,
        steps: 0,
        kind: WAITING.to_owned(),
        name: String::new(),
        generations_max: 0,
        tokens_max: 0,
    }
}

/// The built-in tools that an answer may call. They are called for one answer alone.
fn tools_of(plan: &Plan, choices: u32) -> Result<Vec<String>, ServiceError> {
    let offered = plan.steps.iter().find_map(|step| match &step.work {
        Work::Tools(terms) => Some(terms.offered.clone()),
        _ => None,
    });
    if offered.is_some() && choices != 1 {
        let message = "built-in tools are called for one answer: n must be 1, or `chimere.tools` empty";
        return Err(ServiceError::Invalid { message: message.to_owned(), param: Some("n".to_owned()) });
    }
    Ok(offered.unwrap_or_default())
}

/// Tells one set of weights from another, as OpenAI's field of that name does.
fn fingerprint(model_hash: &str) -> String {
    let hash: String = model_hash.chars().filter(char::is_ascii_alphanumeric).take(16).collect();
    format!("fp_{hash}")
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::engine::grammar::{Calls, Function};
    use crate::reply::record::tests::request;

    #[test]
    fn calls_that_no_form_can_hold_are_left_to_the_model_and_that_is_said() {
        let function = Function { name: "f".to_owned(), parameters: Value::Null, strict: true };
        let calls = |required: bool, answer: Option<Value>| {
            let functions = vec![function.clone()];
            Grammar::Calls(Calls { functions, required, single: false, several: false, answer })
        };
        let bare = Format::named("llama").unwrap();
        for (grammar, holds_calls, format, left) in [
            (calls(false, None), false, Format::generic(), true),
            (calls(false, None), true, Format::generic(), false),
            (calls(true, None), false, bare, false),
            (calls(false, Some(json!({}))), false, Format::generic(), false),
            (Grammar::Json(json!({})), false, bare, false),
        ] {
            let mut asked = request(true, None);
            asked.grammar = Some(grammar.clone());
            leave_calls(&mut asked, holds_calls, format).unwrap();
            assert_eq!((asked.grammar.is_none(), asked.not_enforced.len()), (left, usize::from(left)), "{grammar:?}");
            assert!(asked.not_enforced.iter().all(|told| told.path == "tools" && told.reason.contains("`strict`")));
        }
        // What would hold behind a forced call of a built-in tool.
        for holds_calls in [true, false] {
            let mut asked = request(true, None);
            asked.grammar = Some(calls(true, None));
            asked.form_terms.later = Some(Box::new(calls(false, None)));
            leave_calls(&mut asked, holds_calls, Format::generic()).unwrap();
            assert_eq!(asked.form_terms.later.is_some(), holds_calls);
            assert!(asked.grammar.is_some() && asked.not_enforced.len() == usize::from(!holds_calls));
        }
        let mut either = request(true, None);
        either.grammar = Some(calls(false, Some(json!({}))));
        let refused = leave_calls(&mut either, false, bare).unwrap_err();
        assert!(
            matches!(&refused, ServiceError::Invalid { param: Some(p), .. } if p == "response_format"),
            "{refused}"
        );
    }
}
