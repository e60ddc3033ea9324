//! Files of kinds that are hard to read, read in a process apart. A PDF or an archive of a stranger may loop, crash its
//! reader or ask for any memory. The process bounds its own memory and computing time, and opens nothing once it has begun.

use std::io::{self, Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use super::read::{self, Kind, ReadError, Reading};
use super::{FILE_BYTES_MAX, KINDS};

/// The subcommand of our program.
pub const COMMAND: &str = "read-document";
/// Memory of the process: so much, and so many times the file.
const MEMORY_BYTES: u64 = 1 << 30;
const MEMORY_FILES: u64 = 4;
/// What it may compute, and how long it may take on a busy machine.
const CPU_S_MAX: u64 = 30;
const TIMEOUT: Duration = Duration::from_secs(300);
/// The most that it may say: a text, its blocks, its headings.
const SAID_BYTES_MAX: u64 = 256 << 20;
/// Stack to read on: parts of a PDF are followed by recursion.
const STACK_BYTES: usize = 64 << 20;
const POLL: Duration = Duration::from_millis(5);

/// Reads a file of this kind: here, or by `program read-document` in a process of its own.
pub fn read(program: &Path, kind: Kind, bytes: &[u8]) -> Result<Reading, ReadError> {
    if !kind.is_read_apart() {
        return read::read(kind, bytes);
    }
    let no_reader = |error: io::Error| ReadError::NoReader(error.to_string());
    let mut child = Command::new(program)
        .args([COMMAND, end_of(kind)])
        .env_clear()
        .current_dir("/")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .map_err(no_reader)?;
    let (stdin, stdout) = (child.stdin.take(), child.stdout.take());
    let (status, said) = thread::scope(|scope| {
        // One that does not read is killed below, which ends both threads; one that died is judged by its status.
        scope.spawn(move || stdin.map(|mut stdin| give(&mut stdin, bytes)));
        let said = scope.spawn(move || heard(stdout));
        let status = ended(&mut child);
        (status, said.join().unwrap_or_default())
    });
    let Some(status) = status.map_err(no_reader)? else {
        return Err(ReadError::Ended(format!("it took longer than {} s", TIMEOUT.as_secs())));
    };
    if !status.success() {
        return Err(ReadError::Ended(why(status)));
    }
    let strange = |_| ReadError::Ended("its reader said nothing that can be used".to_owned());
    let reading = serde_json::from_slice::<Result<Reading, ReadError>>(&said).map_err(strange)??;
    // What hostile bytes may have taken over is believed in nothing that could harm here.
    if sound(&reading) { Ok(reading) } else { Err(ReadError::Ended("its reader said nothing that fits".to_owned())) }
}

/// The end of names of a kind.
fn end_of(kind: Kind) -> &'static str {
    KINDS.iter().find(|(known, ..)| *known == kind).and_then(|(_, _, ends)| ends.first().copied()).unwrap_or_default()
}

/// The file behind its length, so that half of one is not taken for a whole one.
fn give(to: &mut impl Write, bytes: &[u8]) -> io::Result<()> {
    to.write_all(&(bytes.len() as u64).to_le_bytes())?;
    to.write_all(bytes)
}

fn heard(from: Option<impl Read>) -> Vec<u8> {
    let mut said = Vec::new();
    if let Some(from) = from {
        let _ = from.take(SAID_BYTES_MAX).read_to_end(&mut said);
    }
    said
}

/// How a child ended; `None`: it was ended for its time.
fn ended(child: &mut Child) -> io::Result<Option<ExitStatus>> {
    let began = Instant::now();
    loop {
        match child.try_wait()? {
            Some(status) => return Ok(Some(status)),
            None if began.elapsed() > TIMEOUT => {
                child.kill()?;
                child.wait()?;
                return Ok(None);
            }
            None => thread::sleep(POLL),
        }
    }
}

/// What ended a child, as its signal tells.
fn why(status: ExitStatus) -> String {
    const ABORTED: i32 = 6;
    const KILLED: i32 = 9;
    const SEGMENT: i32 = 11;
    match status.signal() {
        Some(KILLED) => format!("it takes more than {CPU_S_MAX} s of computing, or the machine has no memory left"),
        Some(ABORTED | SEGMENT) => "it takes more memory than a reader gets, or is nested too deep".to_owned(),
        _ => format!("its reader ended with {status}"),
    }
}

/// Do its blocks lie in its text, in their order?
fn sound(reading: &Reading) -> bool {
    let text = &reading.text;
    let fits = |block: &read::Block| {
        block.start <= block.end && text.is_char_boundary(block.start) && text.is_char_boundary(block.end)
    };
    reading.blocks.iter().all(fits) && reading.blocks.windows(2).all(|two| two[0].end <= two[1].start)
}

/// The process apart: reads one file of the kind that `end` names on `input`, and says on `output` what it read.
pub fn serve(end: &str, mut input: impl Read, mut output: impl Write) -> io::Result<()> {
    let known = KINDS.iter().find(|(kind, _, ends)| kind.is_read_apart() && ends.contains(&end));
    let kind = known.map(|(kind, ..)| *kind).ok_or_else(|| io::Error::other("no kind that is read apart"))?;
    let mut length = [0; 8];
    input.read_exact(&mut length)?;
    let length = u64::from_le_bytes(length).min(FILE_BYTES_MAX);
    chimere_ffi::limits::bound_address_space(MEMORY_BYTES + MEMORY_FILES * length)?;
    chimere_ffi::limits::bound_cpu_time(CPU_S_MAX)?;
    // Whoever asks the model something goes first.
    let _ = chimere_ffi::limits::lower_priority();
    let mut bytes = vec![0; length as usize];
    input.read_exact(&mut bytes)?;
    drop(input);
    chimere_ffi::limits::open_nothing()?;
    let work = move || read::read(kind, &bytes);
    let read = thread::Builder::new().stack_size(STACK_BYTES).spawn(work)?.join();
    let failed = || ReadError::Damaged { kind: end.to_uppercase(), why: "its reader failed on it".to_owned() };
    serde_json::to_writer(&mut output, &read.unwrap_or_else(|_| Err(failed())))?;
    output.flush()
}
