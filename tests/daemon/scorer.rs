//! Every reply gets one Turn and one verdict, in the background, while clients leave and the judge is killed.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio::sync::Semaphore;

use crate::harness::{Daemon, kill};

/// Requests under way at once.
const PARALLEL: usize = 6;
/// One verdict on a busy machine.
const PATIENCE_PER_TURN: Duration = Duration::from_secs(30);

pub async fn judged_daemon(state: Arc<tempfile::TempDir>) -> Daemon {
    // Many steps together: the judge's work counts here, not how soon one verdict comes.
    let judge =
        [("CHIMERE_SCORER_ENABLED", "true"), ("CHIMERE_SCORER_THREADS", "2"), ("CHIMERE_SCORER_SEQUENCES", "16")];
    let daemon = Daemon::launch_with(state, &[], &judge);
    daemon.ready().await;
    daemon
}

/// Request `n` of a mix: plain, streamed, streamed and left, several choices, tools, without a thought.
async fn ask(url: String, n: usize, max_tokens: u32) {
    let question = format!("What is {} + {}?", n % 90 + 10, n % 7 + 2);
    let mut body =
        json!({ "messages": [{ "role": "user", "content": question }], "max_tokens": max_tokens, "seed": n });
    let kind = n % 6;
    match kind {
        1 | 2 => body["stream"] = true.into(),
        3 => body["n"] = 2.into(),
        4 => {
            let parameters = json!({ "type": "object", "properties": { "a": { "type": "integer" } } });
            body["tools"] = json!([{ "type": "function", "function": {
                "name": "add", "description": "Add numbers.", "parameters": parameters } }]);
        }
        5 => body["chat_template_kwargs"] = json!({ "enable_thinking": false }),
        _ => {}
    }
    if kind == 2 {
        body["max_tokens"] = 2_000.into();
        body["logit_bias"] = json!({ "0": -100, "2": -100 });
    }
    let mut answer =
        reqwest::Client::new().post(format!("{url}/v1/chat/completions")).json(&body).send().await.unwrap();
    assert!(answer.status().is_success(), "{}", answer.status());
    if kind == 2 {
        // Gone after the first piece.
        let _ = answer.chunk().await;
        return;
    }
    answer.text().await.unwrap();
}

pub async fn turns(daemon: &Daemon) -> Vec<Value> {
    let (mut all, mut after) = (Vec::new(), String::new());
    loop {
        let (status, page) = daemon.get(&format!("/v1/memory/turns?limit=500{after}")).await;
        assert_eq!(status, 200, "{page}");
        let page = page["data"].as_array().unwrap().clone();
        let Some(last) = page.last() else { return all };
        after = format!("&after={}", last["id"].as_str().unwrap());
        all.extend(page);
    }
}

pub async fn scorer(daemon: &Daemon) -> Value {
    daemon.get("/v1/status").await.1["actors"]["scorer"].clone()
}

/// Waits until `count` turns are there and each has a verdict.
async fn all_scored(daemon: &Daemon, count: usize) -> Vec<Value> {
    let until = Instant::now() + PATIENCE_PER_TURN * count as u32 + Duration::from_secs(60);
    // The log is listed when the count says that it is whole: listing thousands of turns is work too.
    while scorer(daemon).await["scored"].as_u64() < Some(count as u64) {
        assert!(Instant::now() < until, "{}\n{}", scorer(daemon).await, daemon.log.lock().unwrap().join("\n"));
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
    let turns = turns(daemon).await;
    assert_eq!(turns.len(), count, "turns of {count} requests");
    assert!(turns.iter().all(|turn| turn["verdict"].is_u64()));
    turns
}

async fn mixed_requests(count: usize, kills: usize, max_tokens: u32) {
    let began = Instant::now();
    let daemon = judged_daemon(Arc::new(tempfile::tempdir().unwrap())).await;
    let gate = Arc::new(Semaphore::new(PARALLEL));
    let mut asked = Vec::new();
    for n in 0..count {
        let (permit, url) = (gate.clone().acquire_owned().await.unwrap(), daemon.url.clone());
        asked.push(tokio::spawn(async move {
            ask(url, n, max_tokens).await;
            drop(permit);
        }));
        if kills > 0 && n > 0 && n % (count / (kills + 1)).max(1) == 0 {
            daemon.judges().into_iter().for_each(kill);
        }
    }
    for task in asked {
        task.await.unwrap();
    }
    println!("{count} requests answered in {:?}", began.elapsed());
    // In the middle of what is left to judge, too.
    daemon.judges().into_iter().for_each(kill);
    let turns = all_scored(&daemon, count).await;
    let ids: BTreeSet<&str> = turns.iter().map(|turn| turn["id"].as_str().unwrap()).collect();
    assert_eq!(ids.len(), count);
    for turn in &turns {
        let judgement = &turn["judgement"];
        assert_eq!(judgement["choices"].as_array().unwrap().len(), turn["generations"].as_array().unwrap().len());
        assert_eq!(judgement["choices"][0]["verdict"], turn["verdict"]);
        assert!(judgement["judge"].as_str().unwrap().starts_with("nano-prm:"), "{judgement}");
        // No prompt of the judge is a turn, and none is in one.
        assert!(!turn.to_string().contains("<|step|>") && turn["messages"].to_string().contains("What is"), "{turn}");
    }
    let aborted = turns.iter().filter(|turn| turn["generations"][0]["finish_reason"] == "aborted").count();
    assert!(aborted > 0, "no client left in the middle");
    let status = scorer(&daemon).await;
    assert_eq!((status["scored"].as_u64(), status["failed"].as_u64()), (Some(count as u64), Some(0)), "{status}");
    assert!(status["engine"]["starts"].as_u64().unwrap() > 1, "the judge was killed and came back: {status}");
    let metrics = reqwest::get(format!("{}/metrics", daemon.url)).await.unwrap().text().await.unwrap();
    let of = |line: &str| line.rsplit(' ').next().unwrap().parse::<f64>().unwrap();
    let scored: f64 = metrics.lines().filter(|line| line.starts_with("chimere_turns_scored_total{")).map(of).sum();
    assert_eq!(scored, count as f64);
    assert_eq!(daemon.engines().len(), 1, "the serving engine was left alone");
    println!(
        "{count} requests in {:?}: {count} turns, {count} verdicts, {aborted} clients gone, {} starts of the judge",
        began.elapsed(),
        status["engine"]["starts"]
    );
}

#[tokio::test]
async fn mixed_requests_get_one_turn_and_one_verdict_each() {
    mixed_requests(48, 1, 32).await;
}

/// The long tier: `cargo test --release --test daemon two_thousand -- --ignored --nocapture`. Short answers: what is shown
/// is that each request has its Turn and its verdict, not how long an answer may be.
#[tokio::test]
#[ignore = "many minutes on two cores"]
async fn two_thousand_mixed_requests_get_one_turn_and_one_verdict_each() {
    mixed_requests(2_000, 5, 12).await;
}

#[tokio::test]
async fn what_a_killed_daemon_left_unscored_is_scored_by_the_next() {
    let state = Arc::new(tempfile::tempdir().unwrap());
    let first = Daemon::launch(state.clone(), &[]);
    first.ready().await;
    for n in 0..6 {
        ask(first.url.clone(), n * 6, 32).await;
    }
    assert_eq!(scorer(&first).await["state"], "off");
    kill(first.pid());
    drop(first);
    let second = judged_daemon(state).await;
    let turns = all_scored(&second, 6).await;
    assert!(
        turns.iter().all(|turn| turn["judgement"]["choices"][0]["steps"].as_array().is_some_and(|s| !s.is_empty()))
    );
    // Sums that nano knows by heart are mostly right, and the judge mostly says so.
    assert!(turns.iter().any(|turn| turn["verdict"].as_u64() >= Some(3)), "{turns:?}");
}

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
