//! A disk that takes no more: the turn log stops, says so and counts what is lost, and chats go on being answered.

use std::io::{BufRead, BufReader};
use std::process::Stdio;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::harness::{Daemon, chimere, free_port, model};
use crate::people::toward;
use crate::tables::ran;

/// Largest file that the daemon may write, KiB: the log's first segment fits, not its second.
const FILE_KIB_MAX: u32 = 600;

/// A daemon that gets an error where a file would become larger than `FILE_KIB_MAX`.
fn launch() -> Daemon {
    let listen = format!("127.0.0.1:{}", free_port());
    let state = Arc::new(tempfile::tempdir().unwrap());
    let bounded = chimere();
    let program = bounded.get_program().to_owned();
    let line = format!("trap '' XFSZ; ulimit -f {FILE_KIB_MAX}; exec \"$0\" \"$@\"");
    let mut command = std::process::Command::new("bash");
    command.arg("-c").arg(line).arg(program).args(["serve", "--listen", &listen, "--state-dir"]).arg(state.path());
    command.arg("--model").arg(model());
    for (name, value) in bounded.get_envs() {
        if let Some(value) = value {
            command.env(name, value);
        }
    }
    let mut child = command.stderr(Stdio::piped()).stdout(Stdio::null()).stdin(Stdio::null()).spawn().unwrap();
    let log = Arc::new(Mutex::new(Vec::new()));
    let (lines, sink) = (BufReader::new(child.stderr.take().unwrap()), Arc::clone(&log));
    std::thread::spawn(move || lines.lines().map_while(Result::ok).for_each(|line| sink.lock().unwrap().push(line)));
    Daemon { child, url: format!("http://{listen}"), state, log }
}

/// Long corrections of a turn until one is refused; why.
async fn fill(daemon: &Daemon, turn: &str) -> Value {
    for n in 0..40 {
        let correction = format!("{n}{}", "because ".repeat(6_000));
        let (status, answer) = daemon.post("/v1/feedback", &json!({ "turn": turn, "correction": correction })).await;
        if status != 200 {
            assert!(matches!(status, 500 | 503), "{status} {answer}");
            return answer["error"]["message"].clone();
        }
    }
    Value::Null
}

#[tokio::test]
async fn chats_are_answered_and_the_loss_is_told() {
    let mut daemon = launch();
    daemon.ready().await;
    let began = Instant::now();
    let reply = daemon.chat("What is 17 + 25?").await;
    let usual = began.elapsed();
    let turn = reply["x_chimere"]["turn"].as_str().unwrap();
    let refused = fill(&daemon, turn).await;
    assert!(refused.as_str().is_some_and(|why| why.contains("turn log") || why.contains("memory")), "{refused}");
    for _ in 0..3 {
        let answer = daemon.chat("What is 17 + 25?").await;
        assert_eq!(answer["choices"][0]["message"], reply["choices"][0]["message"]);
    }
    // A session cannot go on from a reply that is not kept: it is no success.
    let chat = json!({ "messages": [{ "role": "user", "content": "Hello" }], "chimere": { "session": "trip" } });
    // The log opens again from time to time, and a small turn may still find room.
    let mut tries = 0;
    let (status, refused) = loop {
        let answer = daemon.post("/v1/chat/completions", &chat).await;
        tries += 1;
        if answer.0 != 200 || tries == 20 {
            break answer;
        }
        fill(&daemon, turn).await;
    };
    assert_eq!((status, &refused["error"]["code"]), (503, &json!("service_unavailable")), "{refused}");
    assert!(refused["error"]["message"].as_str().unwrap().contains("turn log"), "{refused}");
    // What hangs in the store holds nobody up for longer than a moment.
    let began = Instant::now();
    daemon.chat("What is 17 + 25?").await;
    assert!(began.elapsed() < Duration::from_secs(4) + 4 * usual, "{:?}, {usual:?} before", began.elapsed());
    fill(&daemon, turn).await;
    let (_, status) = daemon.get("/v1/status").await;
    assert_eq!(status["actors"]["memory"]["state"], "stopped", "{}", status["actors"]["memory"]);
    // Whoever is answered meanwhile is told that nothing is kept.
    let mut tries = 0;
    while daemon.chat("Hello").await["x_chimere"]["kept"] != false {
        tries += 1;
        assert!(tries < 20, "no reply says that it is not kept");
        fill(&daemon, turn).await;
    }
    // So is whoever asks from a terminal, and whoever looks for the reason.
    for (args, wanted) in [
        (&["chat", "Hello"][..], "this answer is not remembered: the daemon could not write it to its turn log"),
        (&["doctor", "--state-dir", "/nonexistent"], "BAD  turns      the daemon at "),
        (&["check", "--state-dir", "/nonexistent"], "Replies are answered and not remembered"),
    ] {
        let mut tries = 0;
        loop {
            let (_, said, warned) = ran(toward(&daemon, "").args(args));
            assert!(
                !warned.contains("turn log: turn log") && !said.contains("turn log is not writing: turn log"),
                "{said}"
            );
            if said.contains(wanted) || warned.contains(wanted) {
                break;
            }
            tries += 1;
            assert!(tries < 20, "{said}{warned}");
            fill(&daemon, turn).await;
        }
    }
    let page = reqwest::get(format!("{}/metrics", daemon.url)).await.unwrap().text().await.unwrap();
    let lost = page.lines().find_map(|line| line.strip_prefix("chimere_turns_lost_total ")).unwrap_or("0");
    assert!(lost.parse::<u32>().unwrap() >= 1, "{page}");
    assert!(daemon.child.try_wait().unwrap().is_none());
    assert!(daemon.log.lock().unwrap().iter().any(|line| line.contains("the turn log stopped writing")));
}
