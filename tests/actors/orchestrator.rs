//! Reloading of pipelines: the last good set stays, the mistake is shown.

use std::fs;
use std::sync::Arc;

use chimere::actors::orchestrator::{Chat, Orchestrator, OrchestratorStatus, Pipelines, PipelinesChanged};
use chimere::actors::supervisor::{Place, supervise};
use chimere::pipeline::{Sources, Watch, Wishes};
use chimere::turn::{Message, Role};
use tokio::sync::watch;
use tokio::time::timeout;

use crate::stage::{PATIENCE, budget, run};

fn code(version: &str) -> String {
    format!(
        "name: code\nversion: {version}\nthinking: {{fast_tokens: 0, quality_tokens: 0, ultra_tokens: 0}}\n\
        match: {{words: [python]}}\n"
    )
}

#[test]
fn a_bad_file_keeps_the_last_good_set_and_is_shown() {
    run(async {
        let overlay = tempfile::tempdir().unwrap();
        let sources = Sources { shipped: None, overlay: Some(overlay.path().to_owned()) };
        let pipelines = Arc::new(Pipelines::load(sources, Default::default()).unwrap());
        let (told, _exhausted) = watch::channel(None);
        let orchestrator = supervise("orchestrator", Place::Here, budget(), Arc::new(told), move || {
            Orchestrator::new(pipelines.clone())
        });
        let version = || async {
            let messages = vec![Message::new(Role::User, "a python question")];
            let wishes = Wishes { max_tokens_default: 9, ..Wishes::default() };
            let plan =
                orchestrator.send_within(Chat { messages, route: None, wishes }, PATIENCE).await.unwrap().unwrap();
            assert_eq!(plan.route, "code");
            plan.pipeline_version
        };
        let shipped = version().await;
        fs::write(overlay.path().join("code.yaml"), code("7")).unwrap();
        orchestrator.send_within(PipelinesChanged, PATIENCE).await.unwrap().unwrap();
        assert_eq!(version().await, "7+overlay");
        fs::write(overlay.path().join("code.yaml"), code("seven")).unwrap();
        let refused = orchestrator.send_within(PipelinesChanged, PATIENCE).await.unwrap().unwrap_err();
        assert!(refused.contains("code.yaml:2:"), "{refused}");
        assert_eq!(version().await, "7+overlay");
        assert_eq!(orchestrator.send_within(OrchestratorStatus, PATIENCE).await.unwrap()["refused"], refused.as_str());
        fs::remove_file(overlay.path().join("code.yaml")).unwrap();
        orchestrator.send_within(PipelinesChanged, PATIENCE).await.unwrap().unwrap();
        assert_eq!(version().await, shipped);
        let status = orchestrator.send_within(OrchestratorStatus, PATIENCE).await.unwrap();
        assert!(status["refused"].is_null());
        assert_eq!(status["routes"][0]["taken"], 4);
    });
}

#[test]
fn a_renamed_file_is_noticed() {
    run(async {
        let folder = tempfile::tempdir().unwrap();
        let (_watch, mut changes) = Watch::start(&[folder.path().to_owned()], "yaml").unwrap();
        changes.mark_unchanged();
        fs::write(folder.path().join("a.tmp"), "x").unwrap();
        fs::rename(folder.path().join("a.tmp"), folder.path().join("a.yaml")).unwrap();
        timeout(PATIENCE, changes.changed()).await.expect("the rename was not noticed").unwrap();
    });
}
