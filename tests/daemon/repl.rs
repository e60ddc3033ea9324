//! `chimere chat` at a terminal: what a person types, Ctrl-C included, and what becomes of it. `script` gives the
//! terminal.

use std::io::{Read, Write};
use std::process::{Child, ChildStdin, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::harness::{Daemon, chimere};

const PATIENCE: Duration = Duration::from_secs(60);

/// A chat under way; everything it ever wrote.
struct Terminal {
    child: Child,
    keys: ChildStdin,
    screen: Arc<Mutex<String>>,
    /// How much of the screen was looked at.
    seen: usize,
}

impl Terminal {
    fn open(daemon: &Daemon) -> Terminal {
        let chat = format!(
            "{} chat --url {} --state-dir {}",
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
        let screen = Arc::new(Mutex::new(String::new()));
        let (sink, mut out) = (Arc::clone(&screen), child.stdout.take().unwrap());
        std::thread::spawn(move || {
            let mut buffer = [0u8; 4096];
            while let Ok(n @ 1..) = out.read(&mut buffer) {
                sink.lock().unwrap().push_str(&String::from_utf8_lossy(&buffer[..n]));
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
            let new = self.screen.lock().unwrap()[self.seen..].to_owned();
            if let Some(at) = new.find(wanted) {
                self.seen += at + wanted.len();
                return;
            }
            assert!(began.elapsed() < PATIENCE, "no {wanted:?} in {new:?}");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Leaves with Ctrl-D.
    fn leave(mut self) {
        self.press("\u{4}");
        assert!(self.child.wait().unwrap().success());
    }
}

#[tokio::test]
async fn a_conversation_at_a_terminal() {
    let daemon = Daemon::start(&[]).await;
    let mut terminal = Terminal::open(&daemon);
    terminal.until("/help for help");
    terminal.type_until("/help\r", "Ctrl-C stops the answer");
    terminal.type_until("What is 17 + 25?\r", "42.");
    terminal.type_until("/stats\r", "finish stop");
    terminal.type_until("/dance\r", "unknown command /dance");
    terminal.type_until("/think off\r", "thought: off");
    // Lines between quotes are one message.
    for line in ["\"\"\"\r", "What is\r", "17 + 25?\r"] {
        terminal.type_until(line, "…");
    }
    terminal.type_until("\"\"\"\r", "42.");
    // Ctrl-C ends the answer and nothing else.
    terminal.type_until("/new\r", "a new conversation");
    terminal.type_until("Tell me a very long story about the sea.\r", "sea.\u{1b}[?2004l\r\n");
    std::thread::sleep(Duration::from_millis(50));
    terminal.type_until("\u{3}", "[stopped]");
    terminal.type_until("/think auto\r", "as the pipeline decides");
    terminal.type_until("What is 2 + 3?\r", "5.");
    // The last question again, from the history.
    terminal.type_until("\u{1b}[A\r", "5.");
    terminal.leave();

    let history = std::fs::read_to_string(daemon.state.path().join("chat_history")).unwrap();
    assert!(history.contains("What is 17 + 25?") && history.contains("What is\\n17 + 25?"), "{history}");
    let (_, turns) = daemon.get("/v1/memory/turns").await;
    let turns = turns["data"].as_array().unwrap();
    let reasons: Vec<_> = turns.iter().map(|t| t["generations"][0]["finish_reason"].as_str().unwrap()).collect();
    assert_eq!(reasons.iter().filter(|reason| **reason == "aborted").count(), 1, "{reasons:?}");
    assert_eq!(reasons.len(), 5);
    // The stopped question and its answer so far belong to the conversation.
    let last = turns.last().unwrap()["messages"].as_array().unwrap();
    assert!(last.iter().any(|m| m["content"].as_str().unwrap().contains("long story")), "{last:?}");
}
