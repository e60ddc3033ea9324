//! A reply is a run of steps: what the client hears of each kind of run, what stays hidden, and the record of it.

use std::time::Duration;

use chimere::actors::inference::Ask;
use chimere::config::RepliesConfig;
use chimere::engine::protocol::Channel;
use chimere::pipeline::Ceilings;
use chimere::service::{ReplyEvent, ReplyInput, ReplyRequest, ServiceError, StepEvent, StepsWish};
use chimere::turn::{FinishReason, Message, PromptEnd, PromptForm, Role, StepOutcome, StepRecord, Tier, Turn};
use tokio::time::{sleep, timeout};

use crate::fake::{GOOD, JUDGE, MODEL, spec};
use crate::stage::{PATIENCE, Stage, chat, collect, run};

/// Two steps: a hidden plan, and an answer that is shown it and tells what it was sent.
const RELAY: &str = "system: Be exact.\nsampling: {temperature: 0.5}\nsteps:\n  \
    - generate: {name: architect, system: You plan., instruction: Plan it., max_tokens: 7}\n  \
    - generate: {instruction: 'Follow this. {{architect}} echo'}\n";
/// Its hidden step asks nothing of its own: the engine is asked the client's question itself.
const PLAIN_FIRST: &str =
    "steps: [{generate: {name: first, max_tokens: 40}}, {generate: {instruction: '{{first}} done'}}]\n";

/// A hidden step only where a condition holds: of the tier, of the question's length, of an earlier step's words.
const FORKED: &str = "steps:\n  - generate: {name: first, instruction: Begin.}\n  \
    - branch: {name: fork, when: {tiers: [ultra], words_min: 2, asks: ['plea*'], step: first, says: [W1]},\n    \
        steps: [{generate: {name: long}}], otherwise: [{generate: {name: short}}]}\n  \
    - generate: {instruction: '{{long}}{{short}} echo'}\n";

#[test]
fn a_branch_goes_on_with_the_side_that_its_condition_says() {
    run(async {
        let stage = Stage::with_pipelines(spec(GOOD), &[("forked", FORKED)]);
        let ultra = |text: &str| ReplyRequest { tier: Some(Tier::Ultra), ..on("forked", text) };
        let cases = [
            (
                ultra("two, please"),
                "long",
                "the tier is ultra, the question has 2 words, it holds `plea*`, `first` says `W1`",
            ),
            (ultra("please"), "short", "the question has 1 word"),
            (ultra("no plan"), "short", "the question holds none of the words of `asks`"),
            (on("forked", "two, please"), "short", "the tier is quality"),
        ];
        for (n, (request, side, because)) in cases.into_iter().enumerate() {
            told(&stage, request).await;
            let turn = &stage.turns(n + 1).await[n];
            let names: Vec<&str> = turn.steps.iter().map(|step| step.name.as_str()).collect();
            assert_eq!(names, ["first", "fork", side, "answer"]);
            let fork = record(turn, "fork");
            assert_eq!((fork.decided.as_deref(), fork.because.as_deref()), (Some(side), Some(because)));
            assert_eq!((fork.completion_tokens, fork.visible), (0, false));
            let mark = |name: &str| format!("<step name=\\\"{name}\\\">");
            let sent = &turn.generations[0].content;
            assert_eq!(
                (sent.contains(&mark("long")), sent.contains(&mark("short"))),
                (side == "long", side == "short")
            );
        }
    });
}

/// The owner's ceilings: refused before the engine hears of it, with the setting's name; taken over while it runs.
#[test]
fn a_reply_that_may_cost_more_than_the_owner_allows_is_refused() {
    run(async {
        let stage = relay();
        let allow = |ceilings: Ceilings| {
            let config = RepliesConfig { ceilings, ..RepliesConfig::clone(&stage.replies.config.get()) };
            stage.replies.config.set(config);
        };
        let refused = async |request: ReplyRequest| match stage.replies.start(request).await {
            Err(ServiceError::Invalid { message, param }) => (message, param.unwrap()),
            other => panic!("{other:?}"),
        };
        // Its hidden step has 7 tokens.
        let short = || ReplyRequest { max_tokens: Some(13), ..on("relay", "Build a bridge.") };
        allow(Ceilings { tokens: Some(19), ..Ceilings::default() });
        let (message, param) = refused(short()).await;
        assert!(message.contains("20 tokens, but the configuration allows 19 (replies.tokens_max)"), "{message}");
        assert_eq!(param, "max_tokens");
        // Nobody says a length: what is left is the answer's. Without the steps it fits as well.
        told(&stage, on("relay", "Build a bridge.")).await;
        told(&stage, ReplyRequest { steps: StepsWish::None, ..short() }).await;
        allow(Ceilings { generations: Some(1), ..Ceilings::default() });
        assert_eq!(refused(short()).await.1, "n");
        assert_eq!(refused(ReplyRequest { choices: 2, ..chat("hello") }).await.1, "n");
        allow(Ceilings { tool_calls: Some(0), ..Ceilings::default() });
        let tools = ReplyRequest { built_in: Some(vec!["calculate".to_owned()]), ..chat("hello") };
        assert_eq!(refused(tools).await.1, "chimere.tools");
        told(&stage, chat("hello")).await;
        assert_eq!(stage.turns(3).await.len(), 3, "what was refused left no turn");
    });
}

/// A file is read by the ceilings in force; the last good ones stay.
#[test]
fn a_file_that_asks_for_more_than_the_owner_allows_is_not_taken() {
    run(async {
        let stage = relay();
        let pipelines = &stage.replies.pipelines;
        pipelines.ceilings.set(Ceilings { generations: Some(1), ..Ceilings::default() });
        let refused = pipelines.reload().unwrap_err();
        assert!(refused.contains("2 generations, but the configuration allows 1"), "{refused}");
        assert!(pipelines.current().get("relay").is_some());
        pipelines.ceilings.set(Ceilings::default());
        pipelines.reload().unwrap();
    });
}

fn relay() -> Stage {
    Stage::with_pipelines(spec(GOOD), &[("relay", RELAY), ("first", PLAIN_FIRST)])
}

fn on(route: &str, text: &str) -> ReplyRequest {
    ReplyRequest { route: Some(route.to_owned()), ..chat(text) }
}

/// The names of the events, in order; of a choice's with its number.
fn names(events: &[ReplyEvent]) -> Vec<String> {
    let name = |event: &ReplyEvent| match event {
        ReplyEvent::Started { .. } => "started".to_owned(),
        ReplyEvent::Queued => "queued".to_owned(),
        ReplyEvent::Delta { choice, text, .. } => format!("{choice} {}", text.trim()),
        ReplyEvent::ChoiceFinished { choice, .. } => format!("{choice} finished"),
        ReplyEvent::Revised { choice, .. } => format!("{choice} revised"),
        ReplyEvent::Done { .. } => "done".to_owned(),
        other => format!("{other:?}"),
    };
    events.iter().map(name).collect()
}

async fn told(stage: &Stage, request: ReplyRequest) -> Vec<ReplyEvent> {
    collect(stage.replies.start(request).await.unwrap()).await
}

fn record<'a>(turn: &'a Turn, name: &str) -> &'a StepRecord {
    turn.steps.iter().find(|step| step.name == name).unwrap_or_else(|| panic!("no `{name}`: {:?}", turn.steps))
}

#[test]
fn the_events_of_a_plain_reply_of_several_choices_and_of_a_judged_one() {
    run(async {
        let mut stage = Stage::new(spec(GOOD));
        stage.judged_by(JUDGE);
        let plain = ["started", "queued", "0 w0", "0 w1", "0 w2", "0 finished", "done"];
        assert_eq!(names(&told(&stage, chat("hello")).await), plain);
        // The choices come as they come, each in its own order.
        let two = names(&told(&stage, ReplyRequest { choices: 2, ..chat("hello") }).await);
        let of = |choice: &str| two.iter().filter(|name| name.starts_with(choice)).cloned().collect::<Vec<_>>();
        assert_eq!(of("0"), ["0 w0", "0 w1", "0 w2", "0 finished"]);
        assert_eq!(of("1"), ["1 w0", "1 w1", "1 w2", "1 finished"]);
        assert_eq!((two.len(), two[0].as_str(), two.last().unwrap().as_str()), (11, "started", "done"));
        assert_eq!(two.iter().filter(|name| *name == "queued").count(), 1);
        let judged = |text| ReplyRequest { quality_gate: Some(true), ..chat(text) };
        let revised = [&plain[..6], &["0 revised", "0 finished", "done"]].concat();
        assert_eq!(names(&told(&stage, judged("plain")).await), revised);
        assert_eq!(names(&told(&stage, judged("stubborn")).await), plain);
        // The record of each: what was generated is counted, seen or not.
        let turns = stage.turns(4).await;
        let kinds = |turn: &Turn| turn.steps.iter().map(|s| (s.kind.clone(), s.outcome)).collect::<Vec<_>>();
        let answered = || ("generate".to_owned(), StepOutcome::Done);
        assert_eq!(kinds(&turns[0]), [answered()]);
        let two = record(&turns[1], "answer");
        assert_eq!((two.prompt_tokens, two.completion_tokens, two.visible), (6, 6, true));
        assert_eq!(two.model.as_deref(), Some(MODEL));
        for turn in &turns[2..] {
            assert_eq!(kinds(turn), [answered(), ("judge".to_owned(), StepOutcome::Done)]);
            let judge = record(turn, "judge");
            assert_eq!((judge.prompt_tokens, judge.completion_tokens), (3, 3), "{judge:?}");
        }
        assert_eq!(record(&turns[2], "judge").decided.as_deref(), Some("revised: verdicts 1, 5"));
        assert_eq!((record(&turns[2], "judge").visible, record(&turns[3], "judge").visible), (true, false));
    });
}

#[test]
fn a_hidden_step_is_read_by_the_answer_behind_the_question_and_seen_by_nobody() {
    run(async {
        let stage = relay();
        let mut request = on("relay", "Build a bridge.");
        request.sampling.seed = Some(7);
        let ReplyInput::Chat { messages, .. } = &mut request.input else { panic!() };
        messages.insert(0, Message::new(Role::System, "Be kind."));
        let events = told(&stage, request).await;
        let shown: Vec<&ReplyEvent> =
            events.iter().filter(|event| matches!(event, ReplyEvent::Delta { .. } | ReplyEvent::Queued)).collect();
        assert!(matches!(shown[0], ReplyEvent::Queued), "{events:?}");
        let ReplyEvent::Delta { channel: Channel::Answer, text, .. } = shown[1] else { panic!("{events:?}") };
        let sent: Vec<Message> = serde_json::from_str(text).unwrap();
        let sent: Vec<(Role, &str)> = sent.iter().map(|m| (m.role, m.content.as_str())).collect();
        let evidence = "<step name=\"architect\">\nw0 w1 w2\n</step>";
        assert_eq!(
            sent,
            [
                (Role::System, "Be exact.\n\nBe kind."),
                (Role::User, format!("Build a bridge.\n\nFollow this. {evidence} echo").as_str()),
            ]
        );
        let turn = stage.turns(1).await.remove(0);
        let (plan, answer) = (record(&turn, "architect"), record(&turn, "answer"));
        assert_eq!((plan.visible, plan.text.as_str(), plan.completion_tokens), (false, "w0 w1 w2 ", 3));
        assert!(answer.visible && answer.text.is_empty());
        // What was said is what the client said and saw.
        assert_eq!(turn.messages.last().unwrap().content, "Build a bridge.");
        assert_eq!((turn.generations.len(), turn.generations[0].seed), (1, 7));
        let ReplyEvent::Done { usage, .. } = events.last().unwrap() else { panic!("{events:?}") };
        assert_eq!((usage.prompt_tokens, usage.completion_tokens), (3, 3), "the hidden ones are not the reply's");
    });
}

#[test]
fn several_choices_share_their_hidden_steps_and_none_leaves_them_out() {
    run(async {
        let stage = relay();
        told(&stage, ReplyRequest { choices: 2, ..on("relay", "q") }).await;
        told(&stage, ReplyRequest { steps: StepsWish::None, quality_gate: Some(true), ..on("relay", "q") }).await;
        let turns = stage.turns(2).await;
        assert_eq!(turns[0].steps.iter().map(|s| s.completion_tokens).collect::<Vec<_>>(), [3, 6]);
        assert_eq!(turns[1].steps.iter().map(|s| s.name.as_str()).collect::<Vec<_>>(), ["answer"]);
        assert_eq!(turns[1].generations[0].content, "w0 w1 w2 ");
    });
}

#[test]
fn a_run_is_listed_with_its_step_and_worst_cost_and_whoever_it_is_for_can_end_it() {
    run(async {
        let stage = relay();
        stage.ready().await;
        let mut events = stage.replies.start(on("first", "hang")).await.unwrap();
        while timeout(PATIENCE, events.recv()).await.unwrap().unwrap() != ReplyEvent::Queued {}
        let runs = &stage.replies.runs;
        let all = runs.list(None);
        let [one] = all.as_slice() else { panic!("{all:?}") };
        assert_eq!((one.principal.as_str(), one.step, one.steps, one.name.as_str()), ("tester", 1, 2, "first"));
        assert_eq!((one.generations_max, one.tokens_max), (2, 40 + 50));
        assert!(runs.list(Some("somebody")).is_empty() && !runs.cancel(Some("somebody"), &one.id));
        assert!(runs.cancel(Some("tester"), &one.id));
        let events = collect(events).await;
        assert!(matches!(events.last(), Some(ReplyEvent::Failed(ServiceError::Cancelled(_)))), "{events:?}");
        let turn = stage.turns(1).await.remove(0);
        assert_eq!((turn.id, turn.steps[0].outcome), (one.id.clone(), StepOutcome::Stopped));
        assert_eq!(
            (turn.generations[0].finish_reason, turn.generations[0].error.clone()),
            (FinishReason::Aborted, None)
        );
        // Its place is free a moment after its Turn is kept.
        let freed = async {
            while !runs.list(None).is_empty() {
                sleep(Duration::from_millis(5)).await;
            }
        };
        timeout(PATIENCE, freed).await.expect("the run is still listed");
    });
}

#[test]
fn whoever_asks_hears_of_each_step_behind_the_beginning() {
    run(async {
        let stage = relay();
        let events = told(&stage, ReplyRequest { steps: StepsWish::Events, ..on("relay", "q") }).await;
        let steps = events.iter().filter_map(|event| match event {
            ReplyEvent::Step(step) => Some(match &**step {
                StepEvent::Began { name, .. } => format!("{name} began"),
                StepEvent::Ended(step) => format!("{} ended {}", step.name, step.text),
                other => format!("{other:?}"),
            }),
            _ => None,
        });
        assert_eq!(
            steps.collect::<Vec<_>>(),
            ["architect began", "architect ended ", "answer began", "answer ended "],
            "in order, and without what is hidden"
        );
        assert!(matches!((&events[0], &events[1]), (ReplyEvent::Started { .. }, ReplyEvent::Step(_))), "{events:?}");
    });
}

#[test]
fn a_reply_that_goes_on_with_the_last_message_has_no_room_for_steps() {
    run(async {
        let stage = relay();
        let begun = || {
            let mut request = on("relay", "q");
            request.prompt = PromptForm { end: PromptEnd::Within, ..PromptForm::default() };
            request
        };
        let error = stage.replies.start(begun()).await.unwrap_err();
        assert!(matches!(&error, ServiceError::Invalid { param: Some(p), .. } if p == "chimere.steps"), "{error:?}");
        told(&stage, ReplyRequest { steps: StepsWish::None, ..begun() }).await;
        stage.turns(1).await;
    });
}

#[test]
fn whatever_befalls_a_hidden_step_leaves_one_turn_or_is_a_refusal() {
    run(async {
        let stage = relay();
        for (text, turns) in [("invalid", 0), ("context", 0), ("crash", 1), ("fail", 2)] {
            let events = told(&stage, on("first", text)).await;
            assert!(matches!(events.last(), Some(ReplyEvent::Failed(_))), "{text}: {events:?}");
            if let Some(turn) = stage.turns(turns).await.last() {
                let step = &turn.steps[0];
                assert_eq!((turn.steps.len(), step.outcome), (1, StepOutcome::Failed), "{text}: {step:?}");
                assert_eq!(turn.generations[0].finish_reason, FinishReason::Error);
                assert!(turn.generations[0].error.is_some());
            }
        }
        // A client that leaves in a hidden step.
        let mut events = stage.replies.start(on("first", "hang")).await.unwrap();
        while timeout(PATIENCE, events.recv()).await.unwrap().unwrap() != ReplyEvent::Queued {}
        // What the engine says later comes behind its word that the step began.
        stage.replies.inference.send_within(Ask::Detokenize { ids: vec![104] }, PATIENCE).await.unwrap().unwrap();
        drop(events);
        let turn = stage.turns(3).await.remove(2);
        assert_eq!((turn.steps[0].outcome, turn.steps[0].prompt_tokens), (StepOutcome::Stopped, 3));
        assert_eq!(turn.generations[0].finish_reason, FinishReason::Aborted);
    });
}
