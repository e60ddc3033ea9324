//! `chimere chat` at a terminal: what a person types, Ctrl-C included, and what becomes of it. `script` gives the
//! terminal.

use std::io::{Read, Write};
use std::process::{Child, ChildStdin, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::harness::{Daemon, PATIENCE, chimere};

/// What follows each prompt: the cursor is put behind its two characters.
const PROMPT: &str = "\u{1b}[2C";

/// A chat under way; everything it ever wrote.
struct Terminal {
    child: Child,
    keys: ChildStdin,
    screen: Arc<Mutex<Vec<u8>>>,
    /// How much of the screen was looked at.
    seen: usize,
}

impl Terminal {
    fn open(daemon: &Daemon) -> Terminal {
        // `exec`: a shell in between would hear Ctrl-C as well.
        let chat = format!(
            "exec {} chat --temperature 0 --url {} --state-dir {}",
            env!("CARGO_BIN_EXE_chimere"),
            daemon.url,
            daemon.state.path().display()
        );
        // The surroundings of `chimere()`, around another program.
        let mut command = std::process::Command::new("script");
        command.args(["--quiet", "--return", "--command", &chat, "/dev/null"]).env("TERM", "xterm");
        for (name, value) in chimere().get_envs() {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let screen = Arc::new(Mutex::new(Vec::new()));
        let (sink, mut out) = (Arc::clone(&screen), child.stdout.take().unwrap());
        std::thread::spawn(move || {
            let mut buffer = [0u8; 4096];
            while let Ok(n @ 1..) = out.read(&mut buffer) {
                sink.lock().unwrap().extend_from_slice(&buffer[..n]);
            }
        });
        let keys = child.stdin.take().unwrap();
        Terminal { child, keys, screen, seen: 0 }
    }

    fn press(&mut self, keys: &str) {
        self.keys.write_all(keys.as_bytes()).unwrap();
        self.keys.flush().unwrap();
    }

    /// Types keys and waits until `wanted` stands on the new part of the screen.
    fn type_until(&mut self, keys: &str, wanted: &str) {
        self.press(keys);
        self.until(wanted);
    }

    fn until(&mut self, wanted: &str) {
        let began = Instant::now();
        loop {
            let new = self.screen.lock().unwrap()[self.seen..].to_vec();
            if let Some(at) = new.windows(wanted.len()).position(|seen| seen == wanted.as_bytes()) {
                self.seen += at + wanted.len();
                return;
            }
            assert!(began.elapsed() < PATIENCE, "no {wanted:?} in {:?}", String::from_utf8_lossy(&new));
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Types keys, waits until `wanted` stands on the screen and then for the next prompt.
    fn ask(&mut self, keys: &str, wanted: &str) {
        self.type_until(keys, wanted);
        self.until(PROMPT);
    }

    /// Leaves with Ctrl-D.
    fn leave(mut self) {
        self.press("\u{4}");
        assert!(self.child.wait().unwrap().success());
    }
}

/// Waits until the status is as wanted.
async fn until(daemon: &Daemon, what: &str, wanted: impl Fn(&Value) -> bool) {
    let began = Instant::now();
    while !wanted(&daemon.get("/v1/status").await.1) {
        assert!(began.elapsed() < PATIENCE, "{what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// The engine has a request, whether it has begun or not.
fn taken(status: &Value) -> bool {
    let stats = &status["engine"]["stats"];
    stats["running"].as_u64().unwrap_or(0) + stats["waiting"].as_u64().unwrap_or(0) > 0
}

#[tokio::test]
async fn a_conversation_at_a_terminal() {
    let daemon = Daemon::start(&[]).await;
    let mut terminal = Terminal::open(&daemon);
    terminal.until("/help for help");
    terminal.until(PROMPT);
    terminal.ask("/help\r", "Ctrl-C stops the answer");
    terminal.ask("What is 17 + 25?\r", "42.");
    terminal.ask("/stats\r", "finish stop");
    terminal.ask("/dance\r", "unknown command /dance");
    // What there is not is refused at once, with what there is.
    terminal.ask("/route nope\r", "there is no route `nope`: the routes are code");
    terminal.ask("/route\r", "route: as the pipeline decides");
    terminal.ask("/route kine\r", "route: kine");
    terminal.ask("/route auto\r", "route: as the pipeline decides");
    terminal.ask("/model nope\r", "there is no model `nope`: the models are nano");
    terminal.ask("/model\r", "in use: the served model");
    terminal.ask("/model nano\r", "model: nano");
    terminal.ask("/model auto\r", "model: as the pipeline decides");
    terminal.ask("/think off\r", "thought: off");
    // Typed faster than it is read: nothing is lost between two prompts.
    terminal.press("/think on\r/think 7\r/think off\r");
    for wanted in ["thought: on", "thought: at most 7 tokens", "thought: off"] {
        terminal.until(wanted);
    }
    terminal.until(PROMPT);
    // Lines between quotes are one message.
    for line in ["\"\"\"\r", "What is\r", "17 + 25?\r"] {
        terminal.ask(line, "…");
    }
    terminal.ask("\"\"\"\r", "42.");
    // Ctrl-C ends the answer and nothing else; the engine is paused, so that it cannot be too late.
    terminal.ask("/new\r", "a new conversation");
    assert_eq!(daemon.post("/v1/admin/pause", &json!({})).await.0, 200);
    terminal.press("What is 9 + 5?\r");
    // A reply that the engine has not taken leaves no turn.
    until(&daemon, "the engine has the question", taken).await;
    terminal.ask("\u{3}", "[stopped]");
    // Resumed before the daemon hears of it, the engine might answer to the end.
    until(&daemon, "no reply is under way", |status| status["replies"]["running"] == 0).await;
    assert_eq!(daemon.post("/v1/admin/resume", &json!({})).await.0, 200);
    terminal.ask("/stats\r", "finish aborted");
    terminal.ask("/retry\r", "14.");
    // The first question of this conversation once more, from the history.
    terminal.ask("\u{1b}[A\u{1b}[A\u{1b}[A\r", "14.");
    terminal.leave();

    let history = std::fs::read_to_string(daemon.state.path().join("chat_history")).unwrap();
    assert!(history.contains("What is 17 + 25?") && history.contains("What is\\n17 + 25?"), "{history}");
    let (_, turns) = daemon.get("/v1/memory/turns").await;
    let turns = turns["data"].as_array().unwrap();
    let reasons: Vec<_> = turns.iter().map(|t| t["generations"][0]["finish_reason"].as_str().unwrap()).collect();
    assert_eq!(reasons.iter().filter(|reason| **reason == "aborted").count(), 1, "{reasons:?}");
    assert_eq!(reasons.len(), 5);
    // What got no answer is no part of the conversation.
    let last = turns.last().unwrap()["messages"].as_array().unwrap();
    let said: Vec<_> = last.iter().filter(|m| m["role"] != "system").map(|m| m["role"].as_str().unwrap()).collect();
    assert_eq!(said, ["user", "assistant", "user"], "{last:?}");
}

#[tokio::test]
async fn a_session_is_changed_to_and_left_at_a_terminal() {
    let daemon = Daemon::start(&[]).await;
    let mut terminal = Terminal::open(&daemon);
    terminal.until(PROMPT);
    terminal.ask("/session\r", "session: none");
    terminal.ask("/session a/b\r", "a session is called by");
    terminal.ask("/session sums\r", "session: sums");
    terminal.ask("/retry\r", "there is nothing");
    terminal.ask("What is 17 + 25?\r", "42.");
    // What was answered is remembered, and not asked a second time under the same name.
    terminal.ask("/retry\r", "the session remembers");
    // A small model may copy a number out of what was said.
    terminal.ask("What is 9 + 5?\r", "The answer is");
    terminal.ask("/new\r", "a new conversation, in no session");
    terminal.ask("What is 17 + 25?\r", "42.");
    terminal.leave();
    let (_, told) = daemon.get("/v1/sessions/sums").await;
    let said: Vec<_> = told["messages"].as_array().unwrap().iter().map(|m| m["content"].as_str().unwrap()).collect();
    assert_eq!((said.len(), said[0], said[2]), (4, "What is 17 + 25?", "What is 9 + 5?"), "{told}");
}

#[tokio::test]
async fn an_answer_is_rated_and_a_cut_one_says_so_at_a_terminal() {
    let daemon = Daemon::start(&[]).await;
    let mut terminal = Terminal::open(&daemon);
    terminal.until(PROMPT);
    for early in ["/good\r", "/correct 42.\r"] {
        terminal.ask(early, "there is no answer in this conversation yet");
    }
    terminal.ask("/tokens 4\r", "most tokens of an answer: 4");
    terminal.ask("What is 17 + 25?\r", "limit of 4 tokens: /tokens N allows more, /retry asks again]");
    terminal.ask("/tokens auto\r", "as the pipeline decides");
    terminal.ask("/retry\r", "42.");
    terminal.ask("/good\r", "vote recorded for turn-");
    terminal.ask("What is 9 + 5?\r", "The answer is");
    terminal.ask("/bad\r", "vote recorded for turn-");
    // A correction of several lines, as a message may have them.
    terminal.ask("/correct It is\\\r", "…");
    terminal.ask("14.\r", "kept as lesson-");
    // One that was broken off leaves nothing behind it.
    terminal.ask("/correct \"\"\"no\r", "…");
    terminal.type_until("\u{3}", PROMPT);
    terminal.ask("/new\r", "a new conversation");
    terminal.ask("/bad\r", "there is no answer in this conversation yet");
    terminal.ask("What is 17 + 25?\r", "42.");
    terminal.ask("What is 9 + 5?\r", "[shown lesson-");
    let (_, turns) = daemon.get("/v1/memory/turns").await;
    let turns = turns["data"].as_array().unwrap().clone();
    let said: Vec<_> = turns
        .iter()
        .map(|t| t["feedback"].as_array().into_iter().flatten().map(|f| (f["vote"].clone(), f["correction"].clone())))
        .map(Vec::from_iter)
        .collect();
    let none = serde_json::Value::Null;
    let bad = vec![(json!("down"), none.clone()), (none.clone(), json!("It is\n14."))];
    assert_eq!(said, [vec![], vec![(json!("up"), none)], bad, vec![], vec![]], "{turns:?}");
    // What was forgotten meanwhile cannot be rated.
    let last = turns[4]["id"].as_str().unwrap();
    let gone = reqwest::Client::new().delete(format!("{}/v1/memory/turns?turn={last}", daemon.url)).send().await;
    assert_eq!(gone.unwrap().status().as_u16(), 200);
    terminal.ask("/good\r", "is not in the log");
    terminal.leave();
}
