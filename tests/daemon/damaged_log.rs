//! A turn log that the disk damaged: the daemon comes up on it and serves, says what was lost, and keeps the rest.

use std::fs;
use std::time::Instant;

use chimere::turn::TurnId;
use serde_json::Value;

use crate::harness::{Daemon, PATIENCE, kill};
use crate::people::{exchange, installation, put};

const TURNS: usize = 120;

#[tokio::test]
async fn a_daemon_serves_on_a_damaged_log_and_says_what_was_lost() {
    let (state, _, like) = installation(&[]).await;
    let turns: Vec<_> =
        (0..TURNS).map(|n| exchange(&like, "owner", (&format!("Question {n}?"), "Answer."), 1)).collect();
    put(state.path(), &turns);
    let db = state.path().join("turns/db");
    // One bit of one question. Pages are written more than once: every copy of it is hit.
    let place =
        |bytes: &[u8], from: usize| bytes[from..].windows(12).position(|w| w == b"Question 50?").map(|at| from + at);
    let mut bytes = fs::read(&db).unwrap();
    let mut from = 0;
    while let Some(at) = place(&bytes, from) {
        bytes[at] ^= 1;
        from = at + 1;
    }
    assert!(from > 0);
    fs::write(&db, bytes).unwrap();

    let daemon = Daemon::launch(state.clone(), &[]);
    daemon.ready().await;
    let status = writing(&daemon).await;
    assert_eq!(status["turns"], TURNS, "one of them, and one of the installation: {status}");
    assert_eq!(status["salvage"]["turns_lost"], 1, "{status}");
    let lost = turns[50].id.clone();
    let named: Vec<TurnId> = serde_json::from_value(status["salvage"]["lost"].clone()).unwrap();
    assert_eq!(named, [lost], "{status}");
    assert!(daemon.log.lock().unwrap().iter().any(|line| line.contains("the turn log was damaged")));
    // It keeps what is said from here on, also when it is killed.
    daemon.chat("Hello").await;
    kill(daemon.pid());
    drop(daemon);
    let daemon = Daemon::launch(state, &[]);
    daemon.ready().await;
    let status = writing(&daemon).await;
    assert_eq!(status["turns"], TURNS + 1, "{status}\n{}", daemon.log.lock().unwrap().join("\n"));
}

/// What memory says of itself once the log is open.
async fn writing(daemon: &Daemon) -> Value {
    let began = Instant::now();
    loop {
        let status = daemon.get("/v1/status").await.1["actors"]["memory"].clone();
        if status["state"] == "writing" {
            return status;
        }
        assert!(began.elapsed() < PATIENCE, "{status}\n{}", daemon.log.lock().unwrap().join("\n"));
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
}
