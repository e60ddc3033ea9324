//! The life of an engine's process: how it is started, written to, listened to and ended.

use std::process::Stdio;
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncWriteExt, BufReader};
use tokio::process::{Child, ChildStdin, Command as Process};
use tokio::sync::mpsc;
use tokio::time::timeout;

use super::child::EngineSpec;

/// An engine whose pipe ended is killed after this, and one told to end that has nothing to write.
pub const EXIT_TIMEOUT: Duration = Duration::from_secs(3);
/// Longest line of the engine's log, bytes; the rest of a longer one is cut into lines of this size.
const LOG_LINE_BYTES_MAX: u64 = 8 << 10;

pub(super) fn spawn(spec: &EngineSpec) -> std::io::Result<Child> {
    Process::new(&spec.program)
        .args(&spec.args)
        .arg("--model")
        .arg(&spec.model)
        // systemd hears the daemon alone, and an engine needs no key.
        .env_remove("NOTIFY_SOCKET")
        .env_remove("WATCHDOG_USEC")
        .env_remove("WATCHDOG_PID")
        .env_remove("CHIMERE_KEY")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        // A group of its own: Ctrl-C in a terminal must reach the daemon, which drains, and not the engine.
        .process_group(0)
        .kill_on_drop(true)
        .spawn()
}

/// Takes the exit status, killing the process where it does not end by itself.
pub(super) async fn reap(child: &mut Child, patience: Duration) -> String {
    let status = match timeout(patience, child.wait()).await {
        Ok(status) => status,
        Err(_) => {
            let _ = child.start_kill();
            child.wait().await
        }
    };
    status.map_or_else(|error| error.to_string(), |status| status.to_string())
}

pub(super) async fn write_all(mut stdin: ChildStdin, mut queue: mpsc::Receiver<Vec<u8>>) {
    while let Some(frame) = queue.recv().await {
        // A failed write means a dead engine, which the reading side reports.
        if stdin.write_all(&frame).await.is_err() || stdin.flush().await.is_err() {
            return;
        }
    }
}

pub(super) async fn log_lines(stderr: impl AsyncRead + Unpin) {
    let mut reader = BufReader::new(stderr);
    let mut line = Vec::new();
    loop {
        line.clear();
        let mut limited = tokio::io::AsyncReadExt::take(&mut reader, LOG_LINE_BYTES_MAX);
        match limited.read_until(b'\n', &mut line).await {
            Ok(0) | Err(_) => return,
            Ok(_) => {
                let text = String::from_utf8_lossy(&line);
                tracing::info!(target: "chimere::engine", "{}", text.trim_end());
            }
        }
    }
}
