//! One Turn on every path of a reply, and what the client is told.

use std::time::Duration;

use chimere::engine::protocol::Channel;
use chimere::reply::Runs;
use chimere::service::{EngramWish, ReplyEvent, ReplyInput, ReplyRequest, RunSummary, SamplingOverrides, ServiceError};
use chimere::turn::{EngramChoice, FinishReason, Message, Role};
use tokio::time::{sleep, timeout};

use crate::fake::{GOOD, LATE_TOKENS, MODEL, SILENT, spec};
use crate::stage::{PATIENCE, Stage, chat, collect, run, run_with};

fn text(events: &[ReplyEvent], wanted: Channel) -> String {
    let text = events.iter().filter_map(|e| match e {
        ReplyEvent::Delta { channel, text, .. } if *channel == wanted => Some(text.as_str()),
        _ => None,
    });
    text.collect()
}

#[test]
fn a_reply_is_started_streamed_and_done_and_its_turn_is_kept() {
    run(async {
        let stage = Stage::new(spec(GOOD));
        let events = collect(stage.replies.start(chat("think")).await.unwrap()).await;
        let ReplyEvent::Started { plan, model, .. } = &events[0] else { panic!("{events:?}") };
        assert_eq!((plan.route.as_str(), model.as_str()), ("default", MODEL));
        assert_eq!((text(&events, Channel::Thinking), text(&events, Channel::Answer)), ("w0 ".into(), "w1 w2 ".into()));
        let ReplyEvent::Done { usage, generations, .. } = events.last().unwrap() else { panic!("{events:?}") };
        assert_eq!((usage.prompt_tokens, usage.cached_tokens, usage.completion_tokens), (3, 1, 3));
        // The Turn is there by the time `Done` is.
        let turns = stage.turns(1).await;
        let turn = &turns[0];
        assert_eq!(turn.id, plan.turn);
        assert_eq!(turn.generations, *generations);
        assert_eq!(
            (turn.generations[0].thinking_ids.as_slice(), turn.generations[0].reply_ids.as_slice()),
            (&[100][..], &[101, 102][..])
        );
        assert_eq!(
            (turn.prompt_ids.as_slice(), turn.principal.as_str(), turn.consent, turn.taint),
            (&[1, 2, 3][..], "tester", true, false)
        );
        assert_eq!((turn.model_hash.as_str(), turn.conversation.as_str()), ("m", plan.turn.0.as_str()));
        assert_eq!(turn.messages.last().unwrap().content, "think");
    });
}

#[test]
fn a_client_that_leaves_frees_the_engine_and_leaves_its_turn() {
    run(async {
        let stage = Stage::new(spec(GOOD));
        stage.ready().await;
        for prompt in ["hang", "endless"] {
            // More tokens than the engine gives while anything here is late.
            let request = ReplyRequest { max_tokens: Some(4_000), ..chat(prompt) };
            let mut events = stage.replies.start(request).await.unwrap();
            // The one waits in the engine for good, the other is under way.
            let begun = |event: &ReplyEvent| match prompt {
                "hang" => *event == ReplyEvent::Queued,
                _ => matches!(event, ReplyEvent::Delta { .. }),
            };
            while !begun(&timeout(PATIENCE, events.recv()).await.unwrap().unwrap()) {}
            drop(events);
            let turns = stage.turns(if prompt == "hang" { 1 } else { 2 }).await;
            let generation = &turns.last().unwrap().generations[0];
            assert_eq!(generation.finish_reason, FinishReason::Aborted);
            assert_eq!(prompt == "endless", generation.usage.completion_tokens > 0);
        }
        timeout(PATIENCE, stage.replies.idle()).await.expect("a reply is still under way");
    });
}

/// What a reply cost counts, however late the engine says so.
#[test]
fn nothing_is_lost_of_what_a_reply_cost_whose_client_left() {
    run(async {
        let stage = Stage::new(spec(GOOD));
        stage.ready().await;
        let request = ReplyRequest { max_tokens: Some(4_000), ..chat("late end") };
        let mut events = stage.replies.start(request).await.unwrap();
        while !matches!(timeout(PATIENCE, events.recv()).await.unwrap().unwrap(), ReplyEvent::Delta { .. }) {}
        drop(events);
        let turn = stage.turns(1).await.remove(0);
        let (step, usage) = (&turn.steps[0], &turn.generations[0].usage);
        assert_eq!(turn.generations[0].finish_reason, FinishReason::Aborted);
        assert!(usage.completion_tokens >= LATE_TOKENS && step.completion_tokens >= LATE_TOKENS, "{step:?}");
        // It had not heard that it began.
        drop(stage.replies.start(chat("late start")).await.unwrap());
        let turn = stage.turns(2).await.remove(1);
        assert_eq!(turn.steps[0].prompt_tokens, 3, "{:?}", turn.steps[0]);
        timeout(PATIENCE, stage.replies.idle()).await.expect("a reply is still under way");
    });
}

/// A busy engine gives its account late. The session, which stays where it was, does not wait for that.
#[test]
fn a_session_is_free_as_soon_as_its_reply_is_broken_off() {
    run(async {
        let stage = Stage::new(spec(GOOD));
        stage.ready().await;
        let ask = |text: &str| ReplyRequest { session: Some("work".to_owned()), max_tokens: Some(4_000), ..chat(text) };
        let first = collect(stage.replies.start(ask("hello")).await.unwrap()).await;
        let ReplyEvent::Started { plan, .. } = &first[0] else { panic!("{first:?}") };
        let mut ids = vec![plan.turn.clone()];
        for cancels in [false, true] {
            let mut events = stage.replies.start(ask("late end")).await.unwrap();
            let begun = timeout(PATIENCE, events.recv()).await.unwrap().unwrap();
            let ReplyEvent::Started { plan, .. } = begun else { panic!("{begun:?}") };
            ids.push(plan.turn.clone());
            while !matches!(timeout(PATIENCE, events.recv()).await.unwrap().unwrap(), ReplyEvent::Delta { .. }) {}
            assert!(stage.replies.sessions.refuse("tester", "work").is_err());
            match cancels {
                true => assert!(stage.replies.runs.cancel(Some("tester"), &plan.turn)),
                false => events.close(),
            }
            let free = async {
                while stage.replies.sessions.refuse("tester", "work").is_err() {
                    tokio::task::yield_now().await;
                }
            };
            timeout(PATIENCE, free).await.expect("the session is still held");
            let listed: Vec<_> = stage.replies.runs.list(None).into_iter().map(|run| run.id).collect();
            assert_eq!(listed, [plan.turn], "the engine's account is still waited for");
            // The next question is taken beside it, and both turns are kept.
            let next = collect(stage.replies.start(ask("hello again")).await.unwrap()).await;
            let ReplyEvent::Started { plan, .. } = &next[0] else { panic!("{next:?}") };
            let session = plan.session.as_ref().unwrap();
            assert_eq!((session.name.as_str(), session.messages), ("work", 2 * (1 + usize::from(cancels))));
            ids.push(plan.turn.clone());
        }
        let turns = stage.turns(5).await;
        assert_eq!(turns.iter().map(|turn| turn.id.clone()).collect::<Vec<_>>(), ids);
        let cut: Vec<_> = turns.iter().map(|turn| turn.generations[0].finish_reason == FinishReason::Aborted).collect();
        assert_eq!(cut, [false, true, false, true, false]);
        let last = turns.last().unwrap();
        let gone_on = last.messages.iter().any(|message| message.content == "late end");
        assert!(!gone_on, "what broke off is no part of the session: {:?}", last.messages);
        timeout(PATIENCE, stage.replies.idle()).await.expect("a reply is still under way");
        assert!(stage.replies.sessions.refuse("tester", "work").is_ok());
    });
}

/// Nobody knows whether the session moved: the reply is whole, and says so.
#[test]
fn a_turn_log_that_does_not_answer_in_time_leaves_unknown_what_became_of_the_turn() {
    run_with(1, async {
        let stage = Stage::new(spec(GOOD));
        for session in [None, Some("work".to_owned())] {
            stage.replies.append_timeout.set(PATIENCE);
            // More than the events that wait for a reader: the answer does not end before it is read.
            let long = format!("script: {}", "spoken word ".repeat(250));
            let mut events = stage.replies.start(ReplyRequest { session, ..chat(&long) }).await.unwrap();
            let first = timeout(PATIENCE, events.recv()).await.unwrap().unwrap();
            assert!(matches!(first, ReplyEvent::Started { .. }), "{first:?}");
            // The one thread of the disk is held until the end of the reply was heard.
            let (let_go, held) = std::sync::mpsc::channel::<()>();
            let disk = tokio::task::spawn_blocking(move || held.recv());
            stage.replies.append_timeout.set(Duration::from_millis(1));
            let events = collect(events).await;
            let_go.send(()).unwrap();
            disk.await.unwrap().unwrap();
            let Some(ReplyEvent::Done { kept, .. }) = events.last() else { panic!("{events:?}") };
            assert_eq!(*kept, None);
        }
    });
}

#[test]
fn an_engine_that_dies_or_fails_leaves_a_turn_and_a_refusal_leaves_none() {
    run(async {
        let stage = Stage::new(spec(GOOD));
        for (prompt, turns) in [("invalid", 0), ("context", 0), ("busy", 0), ("crash", 1), ("fail", 2)] {
            let events = collect(stage.replies.start(chat(prompt)).await.unwrap()).await;
            let ReplyEvent::Failed(error) = events.last().unwrap() else { panic!("{prompt}: {events:?}") };
            let fits = match prompt {
                "invalid" => matches!(error, ServiceError::Invalid { .. }),
                "context" => matches!(error, ServiceError::Context(_)),
                "busy" => matches!(error, ServiceError::Busy { .. }),
                "crash" => matches!(error, ServiceError::Unavailable { .. }),
                _ => matches!(error, ServiceError::Internal(_)),
            };
            assert!(fits, "{prompt}: {error:?}");
            let kept = stage.turns(turns).await;
            if let Some(turn) = kept.last() {
                assert_eq!(turn.generations[0].finish_reason, FinishReason::Error);
                assert!(turn.generations[0].error.is_some());
            }
        }
    });
}

#[test]
fn several_choices_are_one_turn_with_seeds_in_a_row() {
    run(async {
        let stage = Stage::new(spec(GOOD));
        let mut request = chat("hello");
        request.choices = 3;
        request.sampling = SamplingOverrides { seed: Some(7), ..SamplingOverrides::default() };
        let events = collect(stage.replies.start(request).await.unwrap()).await;
        let finished = events.iter().filter(|e| matches!(e, ReplyEvent::ChoiceFinished { .. })).count();
        assert_eq!(finished, 3);
        let ReplyEvent::Done { usage, .. } = events.last().unwrap() else { panic!("{events:?}") };
        assert_eq!((usage.prompt_tokens, usage.completion_tokens), (3, 9));
        let turns = stage.turns(1).await;
        let seeds: Vec<_> = turns[0].generations.iter().map(|g| g.seed).collect();
        assert_eq!(seeds, [7, 8, 9]);
    });
}

#[test]
fn consent_is_withdrawn_and_what_came_from_elsewhere_taints() {
    run(async {
        let stage = Stage::new(spec(GOOD));
        let mut request = chat("q");
        request.consent = Some(false);
        request.conversation = Some("c-1".to_owned());
        let ReplyInput::Chat { messages, .. } = &mut request.input else { panic!() };
        messages.push(Message::new(Role::Tool, "42"));
        collect(stage.replies.start(request).await.unwrap()).await;
        let turn = stage.turns(1).await.remove(0);
        assert_eq!((turn.consent, turn.taint, turn.conversation.as_str()), (false, true, "c-1"));
        let mut request = chat("q");
        let passages = vec!["from elsewhere".to_owned()];
        request.engram = EngramWish::Use(EngramChoice { passages, required: true, ..EngramChoice::default() });
        collect(stage.replies.start(request).await.unwrap()).await;
        assert!(stage.turns(2).await[1].taint, "passages shaped the answer");
    });
}

#[test]
fn more_replies_than_allowed_are_refused_and_a_free_place_is_taken() {
    run(async {
        let stage = Stage::with(spec(GOOD), |c| c.requests_max = 2);
        stage.ready().await;
        let first = stage.replies.start(chat("hang")).await.unwrap();
        let _second = stage.replies.start(chat("hang")).await.unwrap();
        let third = stage.replies.start(chat("hello")).await;
        assert!(matches!(third, Err(ServiceError::Busy { retry_after_s: 1.., .. })), "{third:?}");
        drop(first);
        stage.turns(1).await;
        // Its place is free a moment after its Turn is kept.
        let freed = async {
            while stage.replies.running() > 1 {
                sleep(Duration::from_millis(5)).await;
            }
        };
        timeout(PATIENCE, freed).await.expect("the place was not given back");
        let events = collect(stage.replies.start(chat("hello")).await.unwrap()).await;
        assert!(matches!(events.last(), Some(ReplyEvent::Done { .. })));
    });
}

#[test]
fn wrong_requests_name_the_parameter_and_wrong_models_are_not_found() {
    run(async {
        let stage = Stage::new(spec(GOOD));
        let mut request = chat("q");
        request.sampling.temperature = Some(f32::NAN);
        let error = stage.replies.start(request).await.unwrap_err();
        assert!(matches!(&error, ServiceError::Invalid { param: Some(p), .. } if p == "temperature"), "{error:?}");
        let mut request = chat("q");
        request.route = Some("nowhere".to_owned());
        let error = stage.replies.start(request).await.unwrap_err();
        assert!(matches!(&error, ServiceError::Invalid { param: Some(p), .. } if p == "chimere.route"), "{error:?}");
        let mut request = chat("q");
        request.choices = 9;
        assert!(matches!(stage.replies.start(request).await, Err(ServiceError::Invalid { .. })));
        let mut request = chat("q");
        request.model = Some("gpt-9".to_owned());
        assert!(matches!(stage.replies.start(request).await, Err(ServiceError::NoSuchModel(_))));
        stage.turns(0).await;
    });
}

#[test]
fn a_reply_that_waits_for_its_engine_is_listed_and_can_be_ended() {
    run(async {
        // Loads, and never says that it is ready.
        let stage = Stage::new(spec(SILENT));
        let (replies, runs) = (stage.replies.clone(), stage.replies.runs.clone());
        let mut asked = tokio::task::spawn_local(async move { replies.start(chat("hello")).await });
        let one = timeout(PATIENCE, listed(&runs)).await.expect("the reply is not listed");
        assert_eq!((one.principal.as_str(), one.kind.as_str(), one.step), ("tester", "waiting", 0));
        assert!(runs.cancel(Some("tester"), &one.id));
        let told = timeout(PATIENCE, &mut asked).await.expect("the reply was not ended").unwrap();
        assert!(matches!(told, Err(ServiceError::Cancelled(_))), "{told:?}");
        timeout(PATIENCE, stage.replies.idle()).await.expect("a reply is still under way");
        // Whoever leaves while waiting frees the place as well.
        let replies = stage.replies.clone();
        let asked = tokio::task::spawn_local(async move { replies.start(chat("hello")).await });
        timeout(PATIENCE, listed(&runs)).await.expect("the reply is not listed");
        asked.abort();
        timeout(PATIENCE, stage.replies.idle()).await.expect("a reply waits for nobody");
        assert!(runs.list(None).is_empty());
        stage.turns(0).await;
    });
}

/// The first run, once there is one.
async fn listed(runs: &Runs) -> RunSummary {
    loop {
        if let Some(run) = runs.list(None).pop() {
            return run;
        }
        sleep(Duration::from_millis(5)).await;
    }
}

#[test]
fn a_cut_ends_replies_with_an_error_and_their_turns() {
    run(async {
        let stage = Stage::new(spec(GOOD));
        let events = stage.replies.start(chat("hang")).await.unwrap();
        stage.replies.draining.cancel();
        assert!(matches!(stage.replies.start(chat("x")).await, Err(ServiceError::Unavailable { .. })));
        stage.replies.cut.cancel();
        let events = collect(events).await;
        assert!(matches!(events.last(), Some(ReplyEvent::Failed(ServiceError::Unavailable { .. }))));
        stage.replies.idle().await;
        stage.turns(1).await;
    });
}

#[test]
fn a_reader_that_takes_nothing_counts_as_gone() {
    run(async {
        let stage = Stage::with(spec(GOOD), |c| {
            c.client_stall_timeout = Duration::from_millis(100);
            c.max_tokens = Some(2_000);
        });
        let _events = stage.replies.start(chat("endless")).await.unwrap();
        let turn = stage.turns(1).await.remove(0);
        assert_eq!(turn.generations[0].finish_reason, FinishReason::Aborted);
    });
}

#[test]
fn a_reply_has_a_longest_time() {
    run(async {
        let stage = Stage::with(spec(GOOD), |c| c.reply_timeout = Duration::from_millis(200));
        stage.ready().await;
        let events = collect(stage.replies.start(chat("hang")).await.unwrap()).await;
        assert!(matches!(events.last(), Some(ReplyEvent::Failed(ServiceError::Unavailable { .. }))));
        stage.turns(1).await;
    });
}
