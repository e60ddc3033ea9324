//! `kill -9` of the daemon at random moments: it starts again, and no acknowledged Turn is lost.

use std::collections::HashSet;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::json;

use crate::harness::{Daemon, PATIENCE, sse};

/// Without `SOAK_KILLS`.
const KILLS_DEFAULT: u64 = 100;
const CLIENTS: usize = 3;
/// Every so many kills one falls into the start, at a moment after the launch; the others fall into the work, at a moment
/// after a turn of this life was acknowledged, however long that takes on this machine.
const EARLY: u64 = 4;
const MOMENT_MS_MAX: u64 = 1_000;

#[tokio::test]
async fn no_acknowledged_turn_is_lost() {
    let kills = std::env::var("SOAK_KILLS").map_or(KILLS_DEFAULT, |n| n.parse().unwrap());
    let state = Arc::new(tempfile::tempdir().unwrap());
    let acknowledged = Arc::new(Mutex::new(HashSet::new()));
    // A fixed sequence of moments, so that a failure can be repeated as far as a race can.
    let mut random = 0x2545_F491_4F6C_DD1Du64;
    for kill in 0..kills {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        let known = acknowledged.lock().unwrap().len();
        let mut daemon = Daemon::launch(Arc::clone(&state), &[]);
        let clients: Vec<_> =
            (0..CLIENTS).map(|n| tokio::spawn(client(daemon.url.clone(), n, Arc::clone(&acknowledged)))).collect();
        let began = Instant::now();
        while kill % EARLY != 0 && acknowledged.lock().unwrap().len() == known {
            assert!(began.elapsed() < PATIENCE, "nothing is answered:\n{}", daemon.log.lock().unwrap().join("\n"));
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        tokio::time::sleep(Duration::from_millis(random % MOMENT_MS_MAX)).await;
        assert!(
            daemon.child.try_wait().unwrap().is_none(),
            "it ended by itself:\n{}",
            daemon.log.lock().unwrap().join("\n")
        );
        daemon.child.kill().unwrap();
        daemon.child.wait().unwrap();
        clients.iter().for_each(tokio::task::JoinHandle::abort);
    }
    let daemon = Daemon::launch(state, &[]);
    daemon.ready().await;
    let kept: HashSet<String> =
        daemon.export().await.iter().map(|turn| turn["id"].as_str().unwrap().to_owned()).collect();
    let acknowledged = acknowledged.lock().unwrap();
    let lost: Vec<_> = acknowledged.difference(&kept).collect();
    println!("{} acknowledged, {} kept", acknowledged.len(), kept.len());
    assert!(acknowledged.len() as u64 >= kills - kills / EARLY, "{} turns were acknowledged", acknowledged.len());
    assert!(lost.is_empty(), "{} acknowledged turns are lost", lost.len());
}

/// Chats until the daemon dies, noting each turn whose finish it was told of.
async fn client(url: String, n: usize, acknowledged: Arc<Mutex<HashSet<String>>>) {
    let body = json!({
        "messages": [{ "role": "user", "content": format!("What is {n} + 5?") }], "stream": true, "max_tokens": 12,
    });
    let client = reqwest::Client::new();
    loop {
        let answer = client.post(format!("{url}/v1/chat/completions")).json(&body).send().await;
        let Ok(answer) = answer else {
            tokio::time::sleep(Duration::from_millis(20)).await;
            continue;
        };
        let Ok(text) = answer.text().await else { continue };
        let whole = text.rfind("\n\n").map_or("", |end| &text[..end]);
        for event in sse(whole).iter().filter(|e| e["choices"][0]["finish_reason"].is_string()) {
            let turn = event["x_chimere"]["turn"].as_str().expect("the finishing chunk names the turn");
            acknowledged.lock().unwrap().insert(turn.to_owned());
        }
    }
}
