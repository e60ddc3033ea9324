//! Scoring as the daemon does it.

use std::sync::Arc;

use crate::harness::Daemon;

#[tokio::test]
async fn without_a_judge_turns_stay_unscored_and_the_status_says_why() {
    let state = Arc::new(tempfile::tempdir().unwrap());
    let missing = [("CHIMERE_SCORER_ENABLED", "true"), ("CHIMERE_SCORER_ADAPTER", "/nonexistent/prm.gguf")];
    let daemon = Daemon::launch_with(state, &[], &missing);
    daemon.ready().await;
    daemon.chat("What is 17 + 25?").await;
    let (_, status) = daemon.get("/v1/status").await;
    let scorer = &status["actors"]["scorer"];
    assert_eq!((scorer["state"].as_str(), scorer["scored"].as_u64()), (Some("off"), Some(0)), "{scorer}");
    assert!(scorer["message"].as_str().unwrap().contains("/nonexistent/prm.gguf"), "{scorer}");
    assert!(daemon.judges().is_empty());
}
