//! A throw-away process of ours that examines what a stranger wrote: whatever it does to the code that reads it, it does
//! it there first. The process bounds its own memory and computing time; here it is given a last moment.

use std::ffi::OsStr;
use std::io::{self, Read, Write};
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// Bytes of what it says that are read.
const SAID_BYTES_MAX: u64 = 4_096;

/// What came of an examination.
pub(super) enum Examined {
    /// It found nothing wrong.
    Good,
    /// It found fault, in its own words; none where its limits, or what it read, ended it.
    Bad { said: String, status: ExitStatus },
    /// It did not end in time.
    Late,
}

/// Starts `program` with `arguments`. It must read `source` on its standard input, print an error on its standard
/// output, and exit with 0 only if there was none. It is ended after `timeout`.
pub(super) fn examine(program: &Path, arguments: &[&str], source: Vec<u8>, timeout: Duration) -> io::Result<Examined> {
    Ok(match ask(program, arguments, source, timeout)? {
        None => Examined::Late,
        Some((status, _)) if status.success() => Examined::Good,
        Some((status, said)) => Examined::Bad { said, status },
    })
}

/// Starts `program` with `arguments` and `source` on its standard input: how it ended, and what it said on its standard
/// output. It is ended after `timeout`, and said nothing then.
pub(super) fn ask(
    program: &Path,
    arguments: &[impl AsRef<OsStr>],
    source: Vec<u8>,
    timeout: Duration,
) -> io::Result<Option<(ExitStatus, String)>> {
    let mut child = Command::new(program)
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()?;
    if let Some(mut stdin) = child.stdin.take() {
        // A child that does not read is killed below, which ends this thread; one that died is judged by its status.
        thread::spawn(move || stdin.write_all(&source));
    }
    let started = Instant::now();
    let status = loop {
        match child.try_wait()? {
            Some(status) => break status,
            None if started.elapsed() > timeout => {
                let _ = child.kill();
                let _ = child.wait();
                return Ok(None);
            }
            None => thread::sleep(Duration::from_millis(1)),
        }
    };
    let mut said = Vec::new();
    if let Some(stdout) = child.stdout.take() {
        // What cannot be read was not said.
        let _ = stdout.take(SAID_BYTES_MAX).read_to_end(&mut said);
    }
    Ok(Some((status, String::from_utf8_lossy(&said).trim().to_owned())))
}
