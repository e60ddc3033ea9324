//! The engine's owner: first start, restarts, leases, stalls.

use std::time::Duration;

use chimere::actors::inference::{Ask, EngineState, InferenceError, Pause, Rest, Stop};
use chimere::engine::protocol::Event;
use chimere::service::{ReplyEvent, ServiceError};
use tokio::time::{Instant, sleep, timeout};

use crate::fake::{DIES, FATAL, GOOD, LEAVES_SLOWLY, SAYS_NO_HELLO, SILENT, STRANGER, TOKENLESS, spec};
use crate::stage::{PATIENCE, Stage, chat, collect, run};

#[test]
fn a_fatal_model_is_given_up_at_once() {
    run(async {
        let stage = Stage::new(spec(FATAL));
        let state = stage.state(|s| matches!(s, EngineState::Failed { .. })).await;
        assert_eq!(state, EngineState::Failed { message: "the file is no model".to_owned(), fatal: true });
        assert_eq!(stage.board.status()["starts"], 1);
    });
}

#[test]
fn an_engine_of_another_version_says_so_before_anything_is_misunderstood() {
    run(async {
        for (script, said) in
            [(STRANGER, "chimere 9.9.9 and speaks protocol"), (SAYS_NO_HELLO, "does not say what it speaks")]
        {
            let stage = Stage::new(spec(script));
            let state = stage.state(|s| matches!(s, EngineState::Failed { .. })).await;
            let EngineState::Failed { message, .. } = state else { panic!("{state:?}") };
            assert!(message.contains(said) && message.contains("restart the daemon"), "{message}");
            assert!(!stage.board.was_ready());
        }
    });
}

#[test]
fn an_engine_that_never_comes_up_is_tried_a_few_times() {
    run(async {
        let stage = Stage::new(spec(DIES));
        let state = stage.state(|s| matches!(s, EngineState::Failed { .. })).await;
        assert!(matches!(state, EngineState::Failed { fatal: false, .. }), "{state:?}");
        assert_eq!(stage.board.status()["starts"], 3);
        assert!(!stage.board.was_ready());
    });
}

#[test]
fn ready_means_that_a_token_came() {
    run(async {
        let stage = Stage::new(spec(TOKENLESS));
        let state = stage.state(|s| matches!(s, EngineState::Restarting { .. } | EngineState::Ready(_))).await;
        let EngineState::Restarting { message, .. } = state else { panic!("{state:?}") };
        assert!(message.contains("gives no token"), "{message}");
    });
}

#[test]
fn a_killed_engine_costs_its_requests_an_error_and_comes_back() {
    run(async {
        let stage = Stage::new(spec(GOOD));
        stage.ready().await;
        let (first, second) = (stage.replies.start(chat("hang")).await, stage.replies.start(chat("hang")).await);
        let (first, second) = (first.unwrap(), second.unwrap());
        let old = stage.board.engine_pid().unwrap();
        kill(old);
        for events in [collect(first).await, collect(second).await] {
            let last = events.last().unwrap();
            assert!(matches!(last, ReplyEvent::Failed(ServiceError::Unavailable { .. })), "{last:?}");
            // Whoever tries again at once is not sent to the dead one.
            let another = stage.board.engine_pid().is_some_and(|pid| pid != old);
            assert!(another || stage.board.hosted().is_none());
        }
        // The next one waits for the new engine and is answered.
        let events = collect(stage.replies.start(chat("hello")).await.unwrap()).await;
        assert!(matches!(events.last(), Some(ReplyEvent::Done { .. })), "{events:?}");
        assert_ne!(stage.board.engine_pid().unwrap(), old);
        stage.turns(3).await;
    });
}

#[test]
fn an_engine_that_answers_nothing_is_replaced() {
    run(async {
        let mut spec = spec(SILENT);
        spec.stall_timeout = Duration::from_secs(2);
        let stage = Stage::new(spec);
        stage.ready().await;
        let state = stage.state(|s| matches!(s, EngineState::Restarting { .. })).await;
        let EngineState::Restarting { message, .. } = state else { panic!() };
        assert!(message.contains("answered nothing"), "{message}");
        stage.ready().await;
    });
}

#[test]
fn a_lease_pauses_and_its_drop_resumes() {
    run(async {
        let stage = Stage::new(spec(GOOD));
        stage.ready().await;
        let inference = &stage.replies.inference;
        let lease = inference.send_within(Pause, PATIENCE).await.unwrap().unwrap();
        assert!(matches!(stage.board.state(), EngineState::Paused(_)));
        assert_eq!(inference.send_within(Pause, PATIENCE).await.unwrap().unwrap_err(), InferenceError::Leased);
        // Requests queue meanwhile.
        let mut events = stage.replies.start(chat("hello")).await.unwrap();
        assert!(matches!(events.recv().await, Some(ReplyEvent::Started { .. })));
        assert_eq!(events.recv().await, Some(ReplyEvent::Queued));
        assert!(timeout(Duration::from_millis(100), events.recv()).await.is_err());
        assert!(!lease.lost());
        drop(lease);
        assert!(matches!(collect(events).await.last(), Some(ReplyEvent::Done { .. })));
        stage.ready().await;
        drop(inference.send_within(Pause, PATIENCE).await.unwrap().unwrap());
    });
}

#[test]
fn a_lease_outlives_the_engine() {
    run(async {
        let stage = Stage::new(spec(GOOD));
        stage.ready().await;
        let lease = stage.replies.inference.send_within(Pause, PATIENCE).await.unwrap().unwrap();
        kill(stage.board.engine_pid().unwrap());
        stage.state(|s| matches!(s, EngineState::Restarting { .. })).await;
        stage.state(|s| matches!(s, EngineState::Paused(_))).await;
        drop(lease);
        stage.ready().await;
    });
}

/// What the daemon does not understand costs the request that it is about, and no other.
#[test]
fn a_strange_answer_fails_its_own_request() {
    run(async {
        let stage = Stage::new(spec(GOOD));
        stage.ready().await;
        let other = stage.replies.start(chat("hang")).await.unwrap();
        let strange = collect(stage.replies.start(chat("strange")).await.unwrap()).await;
        let last = strange.last();
        assert!(
            matches!(last, Some(ReplyEvent::Failed(ServiceError::Internal(why))) if why.contains("understand")),
            "{last:?}"
        );
        let answered = collect(stage.replies.start(chat("hello")).await.unwrap()).await;
        assert!(matches!(answered.last(), Some(ReplyEvent::Done { .. })), "{answered:?}");
        assert_eq!(stage.board.status()["starts"], 1, "the engine lives");
        drop(other);
    });
}

#[test]
fn questions_are_answered() {
    run(async {
        let stage = Stage::new(spec(GOOD));
        let early = stage.replies.inference.send_within(Ask::Detokenize { ids: vec![104] }, PATIENCE).await.unwrap();
        assert!(matches!(early, Err(InferenceError::NotRunning(_))), "{early:?}");
        stage.ready().await;
        let answer = stage
            .replies
            .inference
            .send_within(Ask::Detokenize { ids: vec![104, 105] }, PATIENCE)
            .await
            .unwrap()
            .unwrap();
        assert!(matches!(answer, Event::Text { text, .. } if text == "hi"));
    });
}

#[test]
fn a_stopped_engine_is_gone_and_stays_gone() {
    run(async {
        let stage = Stage::new(spec(GOOD));
        stage.ready().await;
        let pid = stage.board.engine_pid().unwrap();
        stage.replies.inference.send_within(Stop, PATIENCE).await.unwrap();
        stage.state(|s| matches!(s, EngineState::Stopped)).await;
        let (process, until) = (format!("/proc/{pid}"), Instant::now() + PATIENCE);
        while std::path::Path::new(&process).exists() {
            assert!(Instant::now() < until, "{process} is still there");
            sleep(Duration::from_millis(10)).await;
        }
        assert!(stage.replies.start(chat("hello")).await.is_err());
    });
}

/// The daemon leaves when it hears `Stopped`, and what is left of the engine ends with it.
#[test]
fn stopped_is_said_when_the_engine_is_gone_and_not_before() {
    run(async {
        for rests in [false, true] {
            let stage = Stage::new(spec(LEAVES_SLOWLY));
            stage.ready().await;
            let process = format!("/proc/{}", stage.board.engine_pid().unwrap());
            if rests {
                // Told to end once already, it is neither ready nor gone.
                stage.replies.inference.send_within(Rest, PATIENCE).await.unwrap();
                stage.state(|s| matches!(s, EngineState::Restarting { .. })).await;
            }
            stage.replies.inference.send_within(Stop, PATIENCE).await.unwrap();
            stage.state(|s| matches!(s, EngineState::Stopped)).await;
            assert!(!std::path::Path::new(&process).exists(), "{process} is still there");
        }
    });
}

/// `kill -9`.
pub fn kill(pid: u32) {
    let status = std::process::Command::new("kill").args(["-9", &pid.to_string()]).status().unwrap();
    assert!(status.success());
}
