//! An answer that calls built-in tools on its way: what is run, what the client hears, what is kept, and every way in
//! which it ends.

use std::sync::Arc;
use std::time::Duration;

use chimere::clock::Clock;
use chimere::service::{ReplyEvent, ReplyInput, ReplyRequest, ServiceError, StepEvent, StepsWish};
use chimere::tools::{Tool, ToolError, Toolbox};
use chimere::turn::{CallOutcome, CallRecord, FinishReason, Message, PromptEnd, PromptForm, Role, StepOutcome, Turn};
use serde_json::{Value, json};
use tokio::time::timeout;

use crate::fake::{ENDLESS, GOOD, spec};
use crate::hostile::HOSTILE;
use crate::stage::{PATIENCE, Stage, chat, collect, run};

const PROBE: Tool = Tool {
    name: "probe",
    description: "Does as it is told.",
    parameters: || json!({"type": "object", "properties": {"do": {"type": "string"}, "with": {"type": "string"}}}),
    effects: false,
    taints: false,
    run: |_, arguments| Box::pin(probe(arguments)),
};

/// The tools of the stage: one that does as it is told, one that repeats others, one that changes something.
static TOOLS: [Tool; 3] =
    [PROBE, Tool { name: "rumour", taints: true, ..PROBE }, Tool { name: "eraser", effects: true, ..PROBE }];

async fn probe(arguments: Value) -> Result<String, ToolError> {
    let with = arguments["with"].as_str().unwrap_or_default();
    // Some texts no model could write as a part of a call.
    let hostile = with.strip_prefix('#').and_then(|n| n.parse::<usize>().ok());
    let with = hostile.map_or(with, |n| HOSTILE[n]).to_owned();
    match arguments["do"].as_str() {
        Some("hang") => std::future::pending().await,
        Some("panic") => panic!("it was told to"),
        Some("refuse") => Err(ToolError::Refused(with)),
        Some("fail") => Err(ToolError::Failed(with)),
        Some("flood") => Ok(with.repeat(100_000)),
        Some("say") => Ok(with),
        other => Err(ToolError::Arguments(format!("{other:?}"))),
    }
}

pub(crate) fn stage() -> Stage {
    with_tools(Stage::new(spec(GOOD)))
}

fn with_tools(mut stage: Stage) -> Stage {
    let replies = Arc::get_mut(&mut stage.replies).unwrap();
    replies.toolbox = Arc::new(Toolbox::of(&TOOLS, "/nonexistent".into(), Clock::wall()));
    stage
}

/// A call as the model writes it.
pub(crate) fn call(name: &str, arguments: &Value) -> String {
    format!("<tool_call>\n{}\n</tool_call>", json!({"name": name, "arguments": arguments}))
}

fn says(with: &str) -> String {
    call("probe", &json!({"do": "say", "with": with}))
}

/// A request whose replies are these, generation by generation.
pub(crate) fn script(replies: &[&str]) -> ReplyRequest {
    let built_in = Some(vec!["probe".to_owned()]);
    ReplyRequest { built_in, max_tokens: Some(1_000), ..chat(&format!("script: {}", replies.join(" | "))) }
}

/// A tool of the caller's own.
fn own(request: ReplyRequest, name: &str) -> ReplyRequest {
    let ReplyInput::Chat { messages, .. } = request.input else { panic!() };
    let tools = vec![json!({"type": "function", "function": {"name": name, "parameters": {"type": "object"}}})];
    ReplyRequest { input: ReplyInput::Chat { messages, tools }, ..request }
}

pub(crate) async fn told(stage: &Stage, request: ReplyRequest) -> Vec<ReplyEvent> {
    collect(stage.replies.start(request).await.unwrap()).await
}

/// What the client saw as text.
pub(crate) fn text(events: &[ReplyEvent]) -> String {
    let text = |event: &ReplyEvent| match event {
        ReplyEvent::Delta { text, .. } => text.clone(),
        _ => String::new(),
    };
    events.iter().map(text).collect()
}

/// Names of the calls that the client was told of, and how often it heard of an end.
fn calls_and_ends(events: &[ReplyEvent]) -> (Vec<String>, usize) {
    let name = |event: &ReplyEvent| match event {
        ReplyEvent::ToolBegin { name, call, .. } => Some(format!("{call} {name}")),
        _ => None,
    };
    let ended = |event: &&ReplyEvent| matches!(event, ReplyEvent::ChoiceFinished { .. });
    (events.iter().filter_map(name).collect(), events.iter().filter(ended).count())
}

pub(crate) async fn turn(stage: &Stage, count: usize) -> Turn {
    stage.turns(count).await.remove(count - 1)
}

pub(crate) fn records(turn: &Turn) -> &[CallRecord] {
    &turn.steps[0].calls
}

pub(crate) fn outcomes(turn: &Turn) -> Vec<CallOutcome> {
    records(turn).iter().map(|call| call.outcome).collect()
}

#[test]
fn a_call_is_run_and_only_the_text_beside_it_is_told() {
    run(async {
        let stage = stage();
        let first = format!("Let me see.\n{}", says("39.1"));
        let request = ReplyRequest { steps: StepsWish::Events, ..script(&[&first, "echo"]) };
        let events = told(&stage, request).await;
        let seen = text(&events);
        let (before, given) = seen.split_at(seen.find('{').unwrap_or_default());
        assert!(before.trim() == "Let me see." && before.ends_with("\n\n"), "{seen}");
        let given: Value = serde_json::from_str(given).unwrap();
        assert_eq!(given["tools"], json!(["probe"]));
        let messages = given["messages"].as_array().unwrap();
        let [.., asked, answered] = messages.as_slice() else { panic!("{messages:?}") };
        assert_eq!((asked["role"].as_str(), asked["content"].as_str()), (Some("assistant"), Some("Let me see.")));
        assert_eq!(asked["tool_calls"][0]["name"], "probe");
        assert_eq!((answered["role"].as_str(), answered["content"].as_str()), (Some("tool"), Some("39.1")));
        assert_eq!(answered["tool_call_id"], asked["tool_calls"][0]["id"]);
        assert_eq!(calls_and_ends(&events), (Vec::new(), 1));
        // Whoever asked to hear of steps hears of the call.
        let steps = events.iter().filter_map(|event| match event {
            ReplyEvent::Step(step) => Some(match &**step {
                StepEvent::Began { kind, .. } => format!("{kind} began"),
                StepEvent::Calling { name, .. } => format!("calling {name}"),
                StepEvent::Called(call) => format!("{} {}", call.outcome.name(), call.result),
                StepEvent::Ended(step) => format!("ended, {} calls", step.calls.len()),
            }),
            _ => None,
        });
        assert_eq!(steps.collect::<Vec<_>>(), ["tools began", "calling probe", "done 39.1", "ended, 1 calls"]);
        let turn = turn(&stage, 1).await;
        let record = &records(&turn)[0];
        assert_eq!((record.name.as_str(), record.bytes, &record.arguments["with"]), ("probe", 4, &json!("39.1")));
        assert!(!turn.taint && turn.called_tools() && turn.generations[0].content == seen);
        assert_eq!(turn.steps[0].decided.as_deref(), Some("1 call in 1 round"));
        // The reply's own tokens are those of the last generation; all are counted.
        let pieces = first.chars().count().div_ceil(9) as u32;
        assert_eq!((turn.steps[0].prompt_tokens, turn.steps[0].completion_tokens), (6, pieces + 1));
        assert_eq!(turn.generations[0].usage.completion_tokens, 1);
        assert_eq!(turn.tools.len(), 1, "what the model was shown");
    });
}

#[test]
fn without_a_call_the_reply_is_as_without_tools() {
    run(async {
        let stage = stage();
        let events = told(&stage, script(&["Just so."])).await;
        assert_eq!((text(&events).as_str(), calls_and_ends(&events).1), ("Just so.", 1));
        let turn = turn(&stage, 1).await;
        assert!(!turn.called_tools() && turn.steps[0].decided.is_none());
        assert_eq!(turn.generations[0].finish_reason, FinishReason::Stop);
    });
}

#[test]
fn rounds_calls_and_repetition_end_in_a_generation_without_tools() {
    run(async {
        let stage = stage();
        let numbered: Vec<String> = (0..6).map(|n| says(&n.to_string())).collect();
        let six: Vec<&str> = numbered.iter().map(String::as_str).collect();
        // Four rounds, and a call in the generation behind them: it is neither told nor run.
        let events = told(&stage, script(&six)).await;
        assert_eq!((text(&events).as_str(), calls_and_ends(&events)), ("", (Vec::new(), 1)));
        let rounds = turn(&stage, 1).await;
        assert_eq!(outcomes(&rounds), [&[CallOutcome::Done; 4][..], &[CallOutcome::Limit]].concat());
        assert_eq!(rounds.steps[0].because.as_deref(), Some("it called on behind the limit of the tools"));
        // Eight calls of a reply: those beyond are told so.
        let many = (0..10).map(|n| says(&n.to_string())).collect::<Vec<_>>().join("\n");
        let events = told(&stage, script(&[&many, "echo"])).await;
        let given: Value = serde_json::from_str(&text(&events)).unwrap();
        assert_eq!(given["tools"], json!([]));
        let last = given["messages"].as_array().unwrap().last().unwrap();
        assert!(last["content"].as_str().unwrap().contains("8 calls are the most"), "{last}");
        let calls = turn(&stage, 2).await;
        assert_eq!(outcomes(&calls), [&[CallOutcome::Done; 8][..], &[CallOutcome::Limit; 2]].concat());
        // The same call again.
        let events = told(&stage, script(&[&says("a"), &says("b"), &says("a"), "echo"])).await;
        let given: Value = serde_json::from_str(&text(&events)).unwrap();
        assert_eq!(given["tools"], json!([]));
        let repeated = turn(&stage, 3).await;
        assert_eq!(outcomes(&repeated), [CallOutcome::Done, CallOutcome::Done, CallOutcome::Repeated]);
        assert!(records(&repeated)[2].result.contains("made before"));
    });
}

/// A call that a limit cuts off is neither told nor kept as text, wherever it is cut; the text before it is.
#[test]
fn of_a_built_in_call_that_is_cut_off_the_client_sees_nothing() {
    run(async {
        let (stage, said) = (stage(), "Wait a while.");
        let whole = format!("{said} {}", says("39.1"));
        let (mut turns, mut cut) = (0, Vec::new());
        // The engine of these tests cuts its texts into tokens of nine letters.
        for limit in 1..whole.len().div_ceil(9) {
            for with_own in [false, true] {
                let request = ReplyRequest { max_tokens: Some(limit as u32), ..script(&[&whole]) };
                let request = if with_own { own(request, "weather") } else { request };
                let events = told(&stage, request).await;
                turns += 1;
                let turn = turn(&stage, turns).await;
                let generation = &turn.generations[0];
                assert!(said.starts_with(text(&events).trim()), "{limit}: {}", text(&events));
                assert!(said.starts_with(generation.content.trim()), "{limit}: {}", generation.content);
                assert_eq!(calls_and_ends(&events), (Vec::new(), 1));
                assert_eq!(generation.finish_reason, FinishReason::Length);
                cut.extend(records(&turn).iter().map(|call| (call.name.clone(), call.outcome)));
            }
        }
        assert!(cut.contains(&("probe".to_owned(), CallOutcome::Cut)), "{cut:?}");
        // The caller's own call that is cut is no call yet, and its beginning is text.
        let weather = call("weather", &json!({"city": "Ghent"}));
        let request = ReplyRequest { max_tokens: Some(5), ..own(script(&[&weather]), "weather") };
        assert!(text(&told(&stage, request).await).contains("weather"));
    });
}

#[test]
fn the_callers_own_calls_end_the_reply_and_built_in_ones_are_not_told() {
    run(async {
        let stage = stage();
        let weather = call("weather", &json!({"city": "Ghent"}));
        let events = told(&stage, own(script(&[&says("1"), &weather]), "weather")).await;
        assert_eq!(calls_and_ends(&events), (vec!["0 weather".to_owned()], 1));
        // Both at once.
        let both = [says("2"), weather].join("\n");
        let events = told(&stage, own(script(&[&both, "never said"]), "weather")).await;
        assert_eq!((text(&events).as_str(), calls_and_ends(&events)), ("", (vec!["0 weather".to_owned()], 1)));
        let turns = stage.turns(2).await;
        // The client comes back with its result, and knows nothing of the other call: the model reads both.
        let mut messages = vec![Message::new(Role::User, "script: x | x | echo")];
        let made = turns[0].generations[0].tool_calls.clone();
        let result = Message { tool_call_id: Some(made[0].id.clone()), ..Message::new(Role::Tool, "sunny") };
        messages.extend([Message { tool_calls: made, ..Message::new(Role::Assistant, "") }, result]);
        let request = own(script(&[]), "weather");
        let ReplyInput::Chat { tools, .. } = request.input else { panic!() };
        let request = ReplyRequest { input: ReplyInput::Chat { messages, tools }, ..request };
        let given: Value = serde_json::from_str(&text(&told(&stage, request).await)).unwrap();
        let read = given["messages"].as_array().unwrap().iter().filter_map(|m| m["content"].as_str());
        let read: Vec<&str> = read.collect();
        assert_eq!(read, ["", "1", "", "sunny"]);
        for turn in turns {
            assert_eq!(turn.generations[0].finish_reason, FinishReason::ToolCalls);
            assert_eq!(turn.generations[0].tool_calls.len(), 1);
            assert_eq!(turn.generations[0].tool_calls[0].name, "weather");
            assert_eq!(outcomes(&turn), [CallOutcome::Done]);
        }
    });
}

#[test]
fn what_cannot_be_is_refused_before_anything_is_generated() {
    run(async {
        let stage = stage();
        let named = |name: &str| ReplyRequest { built_in: Some(vec![name.to_owned()]), ..chat("q") };
        let begun = PromptForm { end: PromptEnd::Within, ..PromptForm::default() };
        for (request, param, words) in [
            (own(named("probe"), "probe"), "tools[0].function.name", "name of a built-in tool"),
            (named("abacus"), "chimere.tools", "no tool \"abacus\""),
            (named("search_web"), "chimere.tools", "not built yet"),
            (named("eraser"), "chimere.tools", "asking the user"),
            (ReplyRequest { choices: 2, ..named("probe") }, "n", "one answer"),
            (ReplyRequest { prompt: begun, ..named("probe") }, "chimere.steps", "no built-in tools"),
        ] {
            match stage.replies.start(request).await {
                Err(ServiceError::Invalid { message, param: Some(of) }) => {
                    assert!(of == param && message.contains(words), "{of}: {message}");
                }
                other => panic!("{param}: {other:?}"),
            }
        }
        // None at all is no wish for tools, and the name is the caller's own there.
        told(&stage, own(ReplyRequest { built_in: Some(Vec::new()), choices: 2, ..chat("q") }, "probe")).await;
        stage.turns(1).await;
    });
}

/// Within a call, and behind a whole one that waits for the end of its generation.
#[test]
fn a_reply_that_is_ended_within_a_call_has_it_in_its_record() {
    run(async {
        let stage = stage();
        let half = "<tool_call>\n{\"name\": \"probe\", \"arguments\": {\"do\": \"say\", \"with\": \"39.1 and more";
        let both = format!("Wait. {} {half}{ENDLESS}", says("a"));
        let expected = [
            vec![("probe".to_owned(), Value::Null, CallOutcome::Cut)],
            vec![
                ("probe".to_owned(), json!({"do": "say", "with": "a"}), CallOutcome::Stopped),
                ("probe".to_owned(), Value::Null, CallOutcome::Cut),
            ],
        ];
        for (at, (text, expected)) in [format!("Wait. {half}{ENDLESS}"), both].iter().zip(expected).enumerate() {
            let mut events = stage.replies.start(script(&[text])).await.unwrap();
            let mut seen = Vec::new();
            // Until it stands still within its call.
            while let Ok(Some(event)) = timeout(Duration::from_millis(500), events.recv()).await {
                seen.push(event);
            }
            let id = stage.replies.runs.list(None)[0].id.clone();
            assert!(stage.replies.runs.cancel(None, &id));
            seen.extend(collect(events).await);
            assert!(matches!(seen.last(), Some(ReplyEvent::Failed(ServiceError::Cancelled(_)))), "{seen:?}");
            assert!(!self::text(&seen).contains("tool_call"), "{seen:?}");
            let turn = turn(&stage, at + 1).await;
            let found: Vec<_> =
                records(&turn).iter().map(|c| (c.name.clone(), c.arguments.clone(), c.outcome)).collect();
            assert_eq!(found, expected);
            assert_eq!(turn.steps[0].outcome, StepOutcome::Stopped);
            assert_eq!(turn.generations[0].content.trim(), "Wait.");
        }
    });
}

#[test]
fn a_reply_can_be_ended_while_a_tool_works() {
    run(async {
        let stage = stage();
        let hang = format!("Wait. {}", call("probe", &json!({"do": "hang"})));
        let request = ReplyRequest { steps: StepsWish::Events, ..script(&[&hang, "never said"]) };
        let mut events = stage.replies.start(request).await.unwrap();
        loop {
            match timeout(PATIENCE, events.recv()).await.unwrap().unwrap() {
                ReplyEvent::Step(step) if matches!(*step, StepEvent::Calling { .. }) => break,
                _ => {}
            }
        }
        let id = stage.replies.runs.list(None)[0].id.clone();
        assert!(stage.replies.runs.cancel(None, &id));
        let events = collect(events).await;
        assert!(matches!(events.last(), Some(ReplyEvent::Failed(ServiceError::Cancelled(_)))), "{events:?}");
        let turn = turn(&stage, 1).await;
        assert_eq!((turn.steps[0].outcome, outcomes(&turn)), (StepOutcome::Stopped, vec![CallOutcome::Stopped]));
        assert_eq!(turn.generations[0].finish_reason, FinishReason::Aborted);
        assert_eq!(turn.generations[0].content.trim(), "Wait.");
    });
}

#[test]
fn an_engine_that_dies_behind_a_call_leaves_one_turn_with_the_call() {
    run(async {
        let stage = stage();
        let events = told(&stage, script(&[&says("1"), "crash"])).await;
        assert!(matches!(events.last(), Some(ReplyEvent::Failed(_))), "{events:?}");
        let turn = turn(&stage, 1).await;
        assert_eq!((turn.steps[0].outcome, outcomes(&turn)), (StepOutcome::Failed, vec![CallOutcome::Done]));
        assert_eq!(turn.generations[0].finish_reason, FinishReason::Error);
    });
}

#[test]
fn a_file_offers_tools_and_a_request_takes_others_or_none() {
    const RECKON: &str = "steps: [{tools: {allow: [date_time], rounds: 1, answer: {instruction: 'Reckon.'}}}]\n";
    run(async {
        let stage = Stage::with_pipelines(spec(GOOD), &[("reckon", RECKON)]);
        let on =
            |replies: &[&str]| ReplyRequest { route: Some("reckon".to_owned()), built_in: None, ..script(replies) };
        let weekday = call("date_time", &json!({"operation": "weekday", "date": "2024-02-29"}));
        told(&stage, on(&[&weekday, "It is. "])).await;
        let first = turn(&stage, 1).await;
        assert_eq!(records(&first)[0].result, "2024-02-29 is a Thursday.");
        assert_eq!(first.steps[0].because.as_deref(), Some("a limit of the tools was reached"));
        assert!(told(&stage, ReplyRequest { built_in: Some(Vec::new()), ..on(&[&weekday]) }).await.len() > 3);
        let none = turn(&stage, 2).await;
        assert!(none.tools.is_empty() && none.steps[0].kind == "generate");
        let error = stage.replies.start(ReplyRequest { choices: 2, ..on(&["x"]) }).await.unwrap_err();
        assert!(matches!(error, ServiceError::Invalid { param: Some(n), .. } if n == "n"));
    });
}

#[test]
fn a_tool_that_hangs_is_ended_and_the_model_told() {
    const QUICK: &str = "steps: [{tools: {allow: [date_time], timeout_ms: 100}}]\n";
    run(async {
        let stage = with_tools(Stage::with_pipelines(spec(GOOD), &[("quick", QUICK)]));
        let hang = call("probe", &json!({"do": "hang"}));
        let request = ReplyRequest { route: Some("quick".to_owned()), ..script(&[&hang, "done"]) };
        assert_eq!(text(&told(&stage, request).await), "done");
        let turn = turn(&stage, 1).await;
        assert_eq!(outcomes(&turn), [CallOutcome::Late]);
        assert_eq!(records(&turn)[0].result, "error: the tool took over 100 ms and was ended");
    });
}

#[test]
fn the_words_of_others_taint_the_turn() {
    run(async {
        let stage = stage();
        let rumour = call("rumour", &json!({"do": "say", "with": "they say so"}));
        let built_in = Some(vec!["rumour".to_owned()]);
        told(&stage, ReplyRequest { built_in, ..script(&[&rumour, "done"]) }).await;
        assert!(turn(&stage, 1).await.taint);
    });
}

#[test]
fn a_form_holds_the_answer_and_leaves_room_for_calls() {
    use chimere::engine::grammar::Grammar;
    run(async {
        let stage = stage();
        let schema = json!({"type": "object"});
        let held = |replies: &[&str]| ReplyRequest { grammar: Some(Grammar::Json(schema.clone())), ..script(replies) };
        let given: Value = serde_json::from_str(&text(&told(&stage, held(&["echo"])).await)).unwrap();
        let form = &given["form"]["calls"];
        assert_eq!((&form["answer"], &form["functions"][0]["name"]), (&schema, &json!("probe")), "{given}");
        // Behind the last call the form alone is left.
        let given: Value =
            serde_json::from_str(&text(&told(&stage, held(&[&says("a"), &says("a"), "echo"])).await)).unwrap();
        assert_eq!(given["form"]["json"], schema, "{given}");
        assert!(stage.turns(2).await.iter().all(|turn| turn.formed));
    });
}

#[test]
fn behind_a_forced_call_what_was_examined_with_it_holds() {
    use chimere::engine::grammar::{Calls, FormTerms, Function, Grammar};
    run(async {
        let stage = stage();
        let function =
            |name: &str| Function { name: name.to_owned(), parameters: json!({"type": "object"}), strict: true };
        let calls = |names: &[&str], required: bool| {
            let functions = names.iter().map(|name| function(name)).collect();
            Grammar::Calls(Calls { functions, required, single: false, several: false, answer: None })
        };
        let later = Some(Box::new(calls(&["probe", "weather"], false)));
        let request = ReplyRequest {
            grammar: Some(calls(&["probe"], true)),
            form_terms: FormTerms { loose: false, later },
            ..own(script(&[&says("a"), "echo"]), "weather")
        };
        let given: Value = serde_json::from_str(&text(&told(&stage, request).await)).unwrap();
        let form = &given["form"]["calls"];
        let names: Vec<&Value> = form["functions"].as_array().unwrap().iter().map(|f| &f["name"]).collect();
        assert!(names == ["probe", "weather"] && form["required"] == false, "{given}");
    });
}

#[test]
fn the_conversation_of_a_session_reads_as_the_client_saw_it() {
    run(async {
        let stage = stage();
        let request = ReplyRequest { session: Some("s".to_owned()), ..script(&[&says("1"), "One."]) };
        told(&stage, request).await;
        let said = turn(&stage, 1).await.said(0);
        let said: Vec<_> = said.iter().map(|m| (m.role, m.tool_calls.len())).collect();
        assert_eq!(said, [(Role::User, 0), (Role::Assistant, 0)]);
    });
}
