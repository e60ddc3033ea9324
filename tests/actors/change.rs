//! Another model in the place of the present one, with engines that behave and engines that do not.

use std::sync::Arc;

use chimere::actors::inference::{EngineSpec, EngineState, Host, HostError, Stop};
use chimere::night::served::Served;
use chimere::service::{ReplyEvent, ServiceError};

use crate::fake::{DIES, FATAL, GOOD, SILENT, TOKENLESS, spec};
use crate::inference::kill;
use crate::stage::{PATIENCE, Stage, chat, collect, run};

/// What came of hosting `spec`; the error of a link is the actor's death.
async fn host(stage: &Stage, spec: EngineSpec) -> Result<(), HostError> {
    let hosted = stage.replies.inference.send_within(Host { spec: Arc::new(spec) }, PATIENCE).await;
    // As the Scheduler does, who is not on this stage.
    stage.board.serve(stage.board.starts(), Served::default());
    hosted.unwrap().map(drop)
}

fn file(stage: &Stage) -> String {
    stage.board.file().unwrap().file_name().unwrap().to_string_lossy().into_owned()
}

/// A scripted engine of a file of that name.
fn of(script: &str, file: &str) -> EngineSpec {
    EngineSpec { model: file.into(), ..spec(script) }
}

async fn answered(stage: &Stage) -> bool {
    matches!(collect(stage.replies.start(chat("hello")).await.unwrap()).await.last(), Some(ReplyEvent::Done { .. }))
}

#[test]
fn what_does_not_prove_itself_gives_way_to_the_model_before() {
    run(async {
        let stage = Stage::new(of(GOOD, "one.gguf"));
        stage.ready().await;
        for (script, why) in [
            (FATAL, "the file is no model"),
            (DIES, "the engine process ended"),
            (TOKENLESS, "the model loaded but gives no token"),
        ] {
            let refused = host(&stage, of(script, "two.gguf")).await.unwrap_err();
            assert!(matches!(&refused, HostError::Refused(said) if said.contains(why)), "{script}: {refused:?}");
            assert!(answered(&stage).await, "{script}");
            assert_eq!(file(&stage), "one.gguf");
        }
        host(&stage, of(GOOD, "two.gguf")).await.unwrap();
        assert!(answered(&stage).await);
        assert_eq!(file(&stage), "two.gguf");
        // From now on it is the one that comes back.
        kill(stage.board.engine_pid().unwrap());
        stage.state(|s| matches!(s, EngineState::Restarting { .. })).await;
        assert!(answered(&stage).await);
        assert_eq!(file(&stage), "two.gguf");
    });
}

#[test]
fn a_model_before_that_is_gone_too_is_said_and_tried_again() {
    run(async {
        let folder = tempfile::tempdir().unwrap();
        let shell = folder.path().join("shell");
        std::os::unix::fs::symlink("/bin/sh", &shell).unwrap();
        let stage = Stage::new(EngineSpec { program: shell.clone(), ..spec(GOOD) });
        stage.ready().await;
        std::fs::remove_file(&shell).unwrap();
        let lost = host(&stage, spec(FATAL)).await.unwrap_err();
        let HostError::Lost { why, then } = lost else { panic!("{lost:?}") };
        assert!(why.contains("no model") && then.contains("cannot start"), "{why}; {then}");
        std::os::unix::fs::symlink("/bin/sh", &shell).unwrap();
        assert!(answered(&stage).await, "it came up again by itself");
    });
}

#[test]
fn a_model_that_never_comes_up_at_the_start_gives_way_to_another() {
    run(async {
        for script in [FATAL, DIES] {
            let instead = Some(Arc::new(of(GOOD, "configured.gguf")));
            let stage = Stage::new(EngineSpec { instead, ..of(script, "chosen.gguf") });
            assert!(answered(&stage).await, "{script}");
            assert_eq!(file(&stage), "configured.gguf");
        }
    });
}

#[test]
fn one_change_at_a_time_and_none_of_a_daemon_that_stops() {
    run(async {
        let stage = Stage::new(spec(GOOD));
        stage.ready().await;
        // The second is asked for while the first engine is on its way out.
        let (first, second) = tokio::join!(host(&stage, spec(GOOD)), host(&stage, spec(GOOD)));
        assert_eq!((first, second), (Ok(()), Err(HostError::Changing)));
        let stopping = async { stage.replies.inference.send_within(Stop, PATIENCE).await.unwrap() };
        let hosting = stage.replies.inference.send_within(Host { spec: Arc::new(spec(SILENT)) }, PATIENCE);
        let (_, ()) = tokio::join!(
            async {
                tokio::select! {
                    _ = hosting => {}
                    _ = stage.state(|s| matches!(s, EngineState::Stopped)) => {}
                }
            },
            stopping
        );
        stage.state(|s| matches!(s, EngineState::Stopped)).await;
        assert_eq!(host(&stage, spec(GOOD)).await, Err(HostError::Stopping));
    });
}

#[test]
fn replies_wait_at_the_gate_and_are_cut_when_they_take_too_long() {
    run(async {
        let stage = Stage::new(spec(GOOD));
        stage.ready().await;
        let hanging = stage.replies.start(chat("hang")).await.unwrap();
        let shut = stage.board.gate.shut(std::time::Duration::from_millis(1)).await;
        let cut = collect(hanging).await;
        let Some(ReplyEvent::Failed(ServiceError::Unavailable { message, .. })) = cut.last() else { panic!("{cut:?}") };
        assert!(message.contains("being changed"), "{message}");
        let waiting = tokio::task::spawn_local({
            let replies = stage.replies.clone();
            async move { collect(replies.start(chat("hello")).await.unwrap()).await }
        });
        host(&stage, spec(GOOD)).await.unwrap();
        assert!(!waiting.is_finished());
        drop(shut);
        assert!(matches!(waiting.await.unwrap().last(), Some(ReplyEvent::Done { .. })));
        // Both have their Turn.
        stage.turns(2).await;
    });
}
