//! Pipelines are replaced a hundred times while fifty clients read replies. Every reply is whole, and follows one
//! version from its first token to its last.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio::task::JoinHandle;

use crate::harness::{Daemon, PATIENCE};

const STREAMS: usize = 50;
const RELOADS: u64 = 100;
/// Every so many files is a broken one.
const BROKEN: u64 = 10;

/// The tokens of a reply by this version.
fn tokens(version: u64) -> u64 {
    3 + version % 9
}

/// Puts the file in place as an editor does: whole, by a rename.
fn write(folder: &Path, version: u64) {
    let text = match version % BROKEN {
        0 => "name: turning\nversion: [\n".to_owned(),
        _ => format!("name: turning\nversion: {version}\nfollow_model: true\nmax_tokens: {}\n", tokens(version)),
    };
    fs::write(folder.join("turning.part"), text).unwrap();
    fs::rename(folder.join("turning.part"), folder.join("turning.yaml")).unwrap();
}

/// Waits until the daemon has read the file of this version.
async fn read(daemon: &Daemon, version: u64) {
    let began = Instant::now();
    loop {
        let (_, status) = daemon.get("/v1/status").await;
        let orchestrator = &status["actors"]["orchestrator"];
        let now = match version % BROKEN {
            0 => orchestrator["refused"].is_string(),
            _ => {
                let mut routes = orchestrator["routes"].as_array().into_iter().flatten();
                routes.any(|r| r["route"] == "turning" && number(r["version"].as_str().unwrap()) == version)
            }
        };
        if now {
            return;
        }
        assert!(began.elapsed() < PATIENCE, "version {version} was not read: {orchestrator}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// The number of a version as the daemon tells it, "7+overlay" being 7.
fn number(version: &str) -> u64 {
    version.split('+').next().unwrap().parse().unwrap()
}

/// One stream to its end: the version that it names, and its tokens.
async fn stream(client: &reqwest::Client, url: &str, asked: usize) -> (u64, u64) {
    let body = json!({
        "messages": [{ "role": "user", "content": format!("Tell me of the number {asked}.") }],
        "stream": true, "stream_options": { "include_usage": true }, "chimere": { "route": "turning" },
        "logit_bias": { "0": -100, "2": -100 },
    });
    let answer = client.post(format!("{url}/v1/chat/completions")).json(&body).send().await.unwrap();
    assert_eq!(answer.status().as_u16(), 200);
    let text = answer.text().await.unwrap();
    let data: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix("data: ")).collect();
    assert_eq!(data.last(), Some(&"[DONE]"), "{text}");
    let pieces: Vec<Value> = data.iter().filter_map(|line| serde_json::from_str(line).ok()).collect();
    assert!(pieces.iter().all(|piece| piece.get("error").is_none()), "{text}");
    let told =
        |get: &dyn Fn(&Value) -> Option<u64>| pieces.iter().rev().find_map(get).unwrap_or_else(|| panic!("{text}"));
    let version = told(&|piece| piece["x_chimere"]["pipeline_version"].as_str().map(number));
    (version, told(&|piece| piece["usage"]["completion_tokens"].as_u64()))
}

/// Reads one stream after another until `over`. What each said.
fn reader(url: String, first: usize, over: Arc<AtomicBool>) -> JoinHandle<Vec<(u64, u64)>> {
    tokio::spawn(async move {
        let client = reqwest::Client::new();
        let mut told = Vec::new();
        while told.is_empty() || !over.load(Ordering::Relaxed) {
            told.push(stream(&client, &url, first + told.len()).await);
        }
        told
    })
}

#[tokio::test]
async fn a_hundred_reloads_break_none_of_fifty_streams() {
    let state = Arc::new(tempfile::tempdir().unwrap());
    let folder = state.path().join("pipelines");
    fs::create_dir(&folder).unwrap();
    write(&folder, 1);
    let daemon = Daemon::launch(state, &[]);
    daemon.ready().await;
    read(&daemon, 1).await;
    let over = Arc::new(AtomicBool::new(false));
    let readers: Vec<_> = (0..STREAMS).map(|n| reader(daemon.url.clone(), 1_000 * n, over.clone())).collect();
    for version in 2..2 + RELOADS {
        write(&folder, version);
        read(&daemon, version).await;
    }
    over.store(true, Ordering::Relaxed);
    let mut seen = std::collections::BTreeSet::new();
    for reader in readers {
        for (version, count) in reader.await.unwrap() {
            assert_eq!(count, tokens(version), "a reply of version {version}");
            seen.insert(version);
        }
    }
    // Replies were begun under most of them, and none under a broken file.
    assert!(seen.len() as u64 > RELOADS / 4, "only {seen:?}");
    assert!(seen.iter().all(|version| version % BROKEN != 0), "{seen:?}");
}
