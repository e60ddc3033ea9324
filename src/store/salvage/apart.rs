//! The salvage in a process of its own. Whatever damaged files do to the code that reads them, they do it there.

use std::io::Read;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::{REPORT_BYTES_MAX, Salvage, StoreError, rebuild};

/// Longest time that a salvage may take.
const TIMEOUT: Duration = Duration::from_secs(1_800);
const POLL: Duration = Duration::from_millis(10);

/// As `rebuild`, by `program salvage` in a process of its own: whatever these files make of it, the daemon goes on.
pub fn rebuild_apart(program: &Path, from: &Path, to: &Path, bytes_max: u64) -> Result<Salvage, StoreError> {
    let mut child = Command::new(program)
        .arg("salvage")
        .args([from, to])
        .arg(bytes_max.to_string())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|error| StoreError::Disk(format!("{} cannot be started: {error}", program.display())))?;
    let began = Instant::now();
    let status = loop {
        match child.try_wait().map_err(StoreError::from_io)? {
            Some(status) => break status,
            None if began.elapsed() > TIMEOUT => {
                let _ = child.kill();
                let _ = child.wait();
                return Err(StoreError::Broken("it could not be read in half an hour".to_owned()));
            }
            None => std::thread::sleep(POLL),
        }
    };
    let mut said = String::new();
    if let Some(stdout) = child.stdout.take() {
        // It ended, and what it says fits in a pipe.
        stdout.take(REPORT_BYTES_MAX).read_to_string(&mut said).map_err(StoreError::from_io)?;
    }
    match serde_json::from_str(&said) {
        Ok(Outcome::Done(salvage)) => Ok(salvage),
        Ok(Outcome::Disk(why)) => Err(StoreError::Disk(why)),
        Err(_) if was_ended(status) => {
            Err(StoreError::Disk(format!("the process that reads the damaged log was ended: {status}")))
        }
        Err(_) => Err(StoreError::Broken(format!("the process that reads it ended with {status}"))),
    }
}

/// Ended from outside, as a service is stopped with all its processes, or for want of memory: that says nothing of the
/// files, and the next opening tries again.
fn was_ended(status: ExitStatus) -> bool {
    const HANGUP: i32 = 1;
    const INTERRUPT: i32 = 2;
    const KILL: i32 = 9;
    const TERMINATE: i32 = 15;
    matches!(status.signal(), Some(HANGUP | INTERRUPT | KILL | TERMINATE))
}

/// What the process apart says.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Outcome {
    Done(Salvage),
    /// No fault of the old log.
    Disk(String),
}

/// The process apart: one line for `rebuild_apart`.
pub fn rebuild_and_tell(from: &Path, to: &Path, bytes_max: u64) -> String {
    let outcome = match rebuild(from, to, bytes_max) {
        Ok(salvage) => Outcome::Done(salvage),
        // Who reads it says of what it is.
        Err(StoreError::Disk(why)) => Outcome::Disk(why),
        Err(error) => Outcome::Disk(error.to_string()),
    };
    serde_json::to_string(&outcome).unwrap_or_default()
}
