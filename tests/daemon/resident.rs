//! A night without gradients, through the real daemon: the engine that serves is the one that trains, and serves all the
//! while. Stopped and killed in the middle it leaves what was.

use std::fs;

use serde_json::{Value, json};

use crate::harness::{kill, sse};
use crate::learn::{House, Open, taught};

/// So many steps that a test can look into them.
const LONG: &str = "steps_max: 4000 ";

fn settings(house: &House, steps: &str) {
    let yaml = house.state.path().join("pipelines/night.yaml");
    let mut text = fs::read_to_string(&yaml).unwrap();
    for (from, to) in [
        ("method: gradient", "method: population"),
        ("directions: 64", "directions: 4"),
        ("step_tokens: 1536", "step_tokens: 200"),
        ("epochs: 1\n", "epochs: 100\n"),
        ("steps_max: 0 ", steps),
        (LONG, steps),
    ] {
        text = text.replace(from, to);
    }
    assert!(text.contains("method: population") && text.contains(steps), "{text}");
    fs::write(&yaml, text).unwrap();
}

async fn steps(open: &Open<'_>, at_least: u64) -> u64 {
    let training = |status: &Value| {
        let progress = &status["run"]["progress"];
        progress["what"] == "training" && progress["done"].as_u64() >= Some(at_least)
    };
    open.until(training).await["run"]["progress"]["done"].as_u64().unwrap()
}

/// A reply of so many tokens, as a stream; how many pieces it came in.
async fn stream(open: &Open<'_>) -> usize {
    let body = json!({
        "messages": [{ "role": "user", "content": "Tell me about the sea." }],
        "stream": true, "max_tokens": 120, "temperature": 0,
    });
    let url = format!("{}/v1/chat/completions", open.daemon.url);
    let answer = reqwest::Client::new().post(url).bearer_auth(&open.house.owner).json(&body).send().await.unwrap();
    assert_eq!(answer.status().as_u16(), 200);
    let text = answer.text().await.unwrap();
    assert!(text.trim_end().ends_with("data: [DONE]"), "{text}");
    sse(&text).len()
}

#[tokio::test]
async fn a_resident_training_serves_all_the_while_and_leaves_what_was_when_it_is_broken_off() {
    let house = taught().await;
    settings(&house, LONG);
    let open = house.open(&[]).await;

    // Replies come between the steps, and steps go on between the replies.
    let run = open.begin(false).await;
    let before = steps(&open, 1).await;
    let mut pieces = 0;
    for _ in 0..3 {
        pieces += stream(&open).await;
    }
    let after = steps(&open, before + 1).await;
    println!("{pieces} pieces of three streams while the steps went from {before} to {after}");
    assert!(pieces > 20, "{pieces}");

    // A pause of the night ends it at once.
    let (status, answer) = open.ask(&house.owner, "/v1/night", Some(json!({ "command": "pause" }))).await;
    assert_eq!(status, 200, "{answer}");
    assert!(open.report(&run).await["outcome"]["stopped"].is_object());
    let (status, answer) = open.ask(&house.owner, "/v1/night", Some(json!({ "command": "resume" }))).await;
    assert_eq!(status, 200, "{answer}");

    // The engine dies with the candidate; the daemon goes on, and so does what served.
    let run = open.begin(false).await;
    steps(&open, 1).await;
    let engine = open.daemon.engines();
    assert_eq!(engine.len(), 1, "the judge's engine is not among them");
    kill(engine[0]);
    let failed = open.report(&run).await;
    assert_eq!(failed["outcome"]["failed"]["phase"], "train", "{failed:#}");
    let status = open.until(|status| status["served"]["ready"] == true).await;
    assert_eq!(status["served"]["champion"], 0);
    assert!(!house.state.path().join("candidates").join(&run).join("adapter.gguf").exists());

    // Left alone it comes to its end, and is judged like any other.
    drop(open);
    settings(&house, "steps_max: 3 ");
    let open = house.open(&[]).await;
    let run = open.begin(true).await;
    let report = open.report(&run).await;
    let outcome = &report["outcome"];
    assert!(outcome["would_promote"].is_object() || outcome["rejected"].is_object(), "{report:#}");
    assert_eq!((&report["training"]["method"], &report["training"]["steps"]), (&json!("population"), &json!(3)));
}
