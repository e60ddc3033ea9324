//! A daemon under test: started on a free port, killed when dropped, with the requests that the tests make.

use std::fs;
use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

/// What is waited for comes at once on an idle machine; only a test that fails waits for so long on a busy one.
pub const PATIENCE: Duration = Duration::from_secs(300);

pub fn model() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("nano/nano.gguf")
}

pub fn chimere() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_chimere"));
    // Nothing of the developer's own configuration may reach a test.
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("CHIMERE_") {
            command.env_remove(name);
        }
    }
    command.env("XDG_CONFIG_HOME", "/nonexistent").current_dir(env!("CARGO_MANIFEST_DIR"));
    // A judge beside every daemon would slow every test down; those about it switch it on.
    command.env("CHIMERE_SCORER_ENABLED", "false");
    command
}

/// A port that nothing listens on. No test of this program gets it again, and no outgoing connection can: the system takes
/// theirs from 32,768 on.
pub fn free_port() -> u16 {
    static TAKEN: AtomicU32 = AtomicU32::new(0);
    const FIRST: u32 = 10_000;
    const COUNT: u32 = 20_000;
    // Another program's tests begin elsewhere.
    let start = std::process::id().wrapping_mul(7_919);
    for _ in 0..COUNT {
        let port = FIRST + (start.wrapping_add(TAKEN.fetch_add(1, Ordering::Relaxed))) % COUNT;
        if TcpListener::bind(("127.0.0.1", port as u16)).is_ok() {
            return port as u16;
        }
    }
    panic!("every port from {FIRST} on is taken");
}

pub struct Daemon {
    pub child: Child,
    pub url: String,
    pub state: Arc<tempfile::TempDir>,
    /// What it wrote to standard error, for messages of failed tests.
    pub log: Arc<Mutex<Vec<String>>>,
}

impl Daemon {
    /// Starts with a fresh state directory and waits until it is ready.
    pub async fn start(extra: &[&str]) -> Daemon {
        let daemon = Daemon::launch(Arc::new(tempfile::tempdir().unwrap()), extra);
        daemon.ready().await;
        daemon
    }

    /// Starts on an existing state directory; does not wait.
    pub fn launch(state: Arc<tempfile::TempDir>, extra: &[&str]) -> Daemon {
        Daemon::launch_with(state, extra, &[])
    }

    /// As `launch`, with variables of the environment.
    pub fn launch_with(state: Arc<tempfile::TempDir>, extra: &[&str], variables: &[(&str, &str)]) -> Daemon {
        let listen = format!("127.0.0.1:{}", free_port());
        let mut child = chimere()
            .envs(variables.iter().copied())
            .args(["serve", "--listen", &listen, "--state-dir"])
            .arg(state.path())
            .arg("--model")
            .arg(model())
            .args(extra)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let log = Arc::new(Mutex::new(Vec::new()));
        let lines = BufReader::new(child.stderr.take().unwrap());
        let sink = Arc::clone(&log);
        std::thread::spawn(move || {
            for line in lines.lines().map_while(Result::ok) {
                sink.lock().unwrap().push(line);
            }
        });
        Daemon { child, url: format!("http://{listen}"), state, log }
    }

    pub async fn ready(&self) {
        let began = Instant::now();
        while began.elapsed() < PATIENCE {
            if let Ok(answer) = reqwest::get(format!("{}/health", self.url)).await
                && answer.status().is_success()
            {
                return;
            }
            let stat = fs::read_to_string(format!("/proc/{}/stat", self.child.id())).unwrap_or_default();
            assert!(!stat.contains(") Z "), "it ended:\n{}", self.log.lock().unwrap().join("\n"));
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        panic!("not ready after {PATIENCE:?}:\n{}", self.log.lock().unwrap().join("\n"));
    }

    pub async fn post(&self, path: &str, body: &Value) -> (u16, Value) {
        let answer = reqwest::Client::new().post(format!("{}{path}", self.url)).json(body).send().await.unwrap();
        let status = answer.status().as_u16();
        (status, answer.json().await.unwrap())
    }

    /// The lines of an export. A log that was not closed may still be opening after the daemon is ready.
    pub async fn export(&self) -> Vec<Value> {
        let began = Instant::now();
        loop {
            let answer = reqwest::get(format!("{}/v1/memory/export", self.url)).await.unwrap();
            let (status, text) = (answer.status().as_u16(), answer.text().await.unwrap());
            match status {
                200 => return text.lines().map(|line| serde_json::from_str(line).unwrap()).collect(),
                503 if began.elapsed() < PATIENCE => tokio::time::sleep(Duration::from_millis(100)).await,
                _ => panic!("{status} {text}\n{}", self.log.lock().unwrap().join("\n")),
            }
        }
    }

    pub async fn get(&self, path: &str) -> (u16, Value) {
        let answer = reqwest::get(format!("{}{path}", self.url)).await.unwrap();
        let status = answer.status().as_u16();
        (status, answer.json().await.unwrap())
    }

    /// A greedy chat reply.
    pub async fn chat(&self, question: &str) -> Value {
        let body = json!({ "messages": [{ "role": "user", "content": question }], "temperature": 0 });
        let (status, reply) = self.post("/v1/chat/completions", &body).await;
        assert_eq!(status, 200, "{reply}");
        reply
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Process ids of the serving engines that this daemon started.
    pub fn engines(&self) -> Vec<u32> {
        let others = ["--background", "--validate", "read-document"];
        self.children().into_iter().filter(|pid| !others.iter().any(|other| said(*pid, other))).collect()
    }

    /// Process ids of those that read a document.
    pub fn readers(&self) -> Vec<u32> {
        self.children().into_iter().filter(|pid| said(*pid, "read-document")).collect()
    }

    /// Process ids of the judge's engines.
    pub fn judges(&self) -> Vec<u32> {
        self.children().into_iter().filter(|pid| said(*pid, "--background")).collect()
    }

    fn children(&self) -> Vec<u32> {
        let parent = self.pid().to_string();
        let mut found = Vec::new();
        for entry in fs::read_dir("/proc").unwrap().filter_map(Result::ok) {
            let Ok(pid) = entry.file_name().to_string_lossy().parse::<u32>() else { continue };
            let Ok(stat) = fs::read_to_string(entry.path().join("stat")) else { continue };
            // pid (name) state ppid …; the name may hold spaces.
            let after = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
            let mut fields = after.split_whitespace();
            let alive = fields.next() != Some("Z");
            if alive && fields.next() == Some(parent.as_str()) {
                found.push(pid);
            }
        }
        found
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Whether a process was started with this argument: the judge's engine runs in the background, and one that only judges a
/// file hosts nothing.
fn said(pid: u32, argument: &str) -> bool {
    let arguments = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    arguments.split(|byte| *byte == 0).any(|found| found == argument.as_bytes())
}

/// `kill -9`. The process may have ended by itself.
pub fn kill(pid: u32) {
    let status = Command::new("kill").args(["-9", &pid.to_string()]).stderr(Stdio::null()).status().unwrap();
    assert!(status.success() || !Path::new(&format!("/proc/{pid}")).exists());
}

/// The JSON of each `data:` line of a stream, `[DONE]` left out.
pub fn sse(text: &str) -> Vec<Value> {
    text.lines()
        .filter_map(|line| line.strip_prefix("data: "))
        .filter(|data| *data != "[DONE]")
        .map(|data| serde_json::from_str(data).unwrap())
        .collect()
}
