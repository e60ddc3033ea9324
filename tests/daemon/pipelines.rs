//! Pipelines. The cascade picks a route, and an overlay in the state directory wins while the daemon runs. A bad file
//! keeps the last good set and says why.

use std::fs;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::harness::{Daemon, PATIENCE};

async fn plan_of(daemon: &Daemon, question: &str) -> Value {
    daemon.chat(question).await["x_chimere"].clone()
}

/// Asks until the reply's plan satisfies `wanted`: a reload takes a moment.
async fn until(daemon: &Daemon, question: &str, wanted: impl Fn(&Value) -> bool) -> Value {
    let began = Instant::now();
    loop {
        let plan = plan_of(daemon, question).await;
        if wanted(&plan) {
            return plan;
        }
        assert!(began.elapsed() < PATIENCE, "still {plan}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// Why the newest files were not taken, once they were looked at.
async fn refused(daemon: &Daemon) -> String {
    let began = Instant::now();
    loop {
        let (_, status) = daemon.get("/v1/status").await;
        if let Some(message) = status["actors"]["orchestrator"]["refused"].as_str() {
            return message.to_owned();
        }
        assert!(began.elapsed() < PATIENCE, "not refused: {status}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn words_pick_the_route_and_a_request_may_name_one() {
    let daemon = Daemon::start(&[]).await;
    for (question, route) in [
        ("Hello!", "default"),
        ("Write a Python function that adds two numbers.", "code"),
        ("Which exercise strengthens the hamstrings?", "kine"),
        ("Which vulnerability does CVE-2021-44228 name?", "cyber"),
    ] {
        assert_eq!(plan_of(&daemon, question).await["route"], route, "{question}");
    }
    let body = json!({ "messages": [{ "role": "user", "content": "Hello!" }], "x_chimere": { "route": "research" } });
    let (status, reply) = daemon.post("/v1/chat/completions", &body).await;
    assert_eq!(status, 200, "{reply}");
    assert_eq!(reply["x_chimere"]["route"], "research");
}

#[tokio::test]
async fn an_overlay_wins_at_once_and_a_bad_one_changes_nothing() {
    let daemon = Daemon::start(&[]).await;
    let overlay = daemon.state.path().join("pipelines");
    fs::create_dir_all(&overlay).unwrap();
    let before = plan_of(&daemon, "Hello!").await;
    let shipped = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/pipelines/default.yaml")).unwrap();
    let changed = shipped.replace("version: 1", "version: 77");
    assert_ne!(shipped, changed);

    fs::write(overlay.join("default.yaml"), &changed).unwrap();
    let after =
        until(&daemon, "Hello!", |plan| plan != &before && plan["pipeline_version"] != before["pipeline_version"])
            .await;
    assert!(after["pipeline_version"].as_str().unwrap().contains("77"), "{after}");

    fs::write(overlay.join("default.yaml"), "name: default\nversion: [\n").unwrap();
    let refused = refused(&daemon).await;
    assert!(refused.contains("pipelines/default.yaml:"), "the error names file and line: {refused}");
    assert_eq!(plan_of(&daemon, "Hello!").await["pipeline_version"], after["pipeline_version"]);

    fs::remove_file(overlay.join("default.yaml")).unwrap();
    until(&daemon, "Hello!", |plan| plan["pipeline_version"] == before["pipeline_version"]).await;
}
