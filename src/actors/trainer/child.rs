//! The trainer's process: `chimere train` as a child of lowered priority that ends when its daemon does. Its lines
//! become progress; it is killed when the run is stopped or its time is up.

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use serde::Deserialize;
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, BufReader};
use tokio::process::Command;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::night::learning::Training;
use crate::training::{Objective, Outcome, Step};

/// Longest line, bytes: the last one holds every step.
const LINE_BYTES_MAX: u64 = 16 << 20;
/// Of standard error, what is kept for a message: its end.
const ERROR_LINES_MAX: usize = 20;
const ERROR_LINE_BYTES_MAX: u64 = 64 << 10;

/// What to start.
#[derive(Clone, Debug)]
pub struct Program {
    pub path: PathBuf,
    /// Before the arguments of the training.
    pub args: Vec<OsString>,
    /// It gets the processor when nobody else wants it.
    pub low_priority: bool,
}

/// One training.
#[derive(Clone, Debug)]
pub struct Lesson {
    /// The dataset, as lines.
    pub pairs: PathBuf,
    /// Where the adapter is written.
    pub out: PathBuf,
    /// The adapter to go on from.
    pub from: Option<PathBuf>,
    pub seed: u64,
    pub training: Training,
}

/// What the child said at its end.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct Said {
    pub outcome: Outcome,
    /// Lines of the dataset that it could not use.
    pub refused: usize,
    pub seconds: f64,
}

#[derive(Debug, thiserror::Error)]
pub enum ChildError {
    #[error("the trainer cannot be started: {0}")]
    Start(io::Error),
    #[error("the trainer was ended: {0}")]
    Ended(&'static str),
    #[error("the trainer took longer than {0} minutes and was ended")]
    Late(f64),
    #[error("the trainer failed: {0}")]
    Failed(String),
}

impl Lesson {
    fn args(&self, model: &Path) -> Vec<OsString> {
        let Training {
            rank, rate, epochs, members, step_tokens, held_out_percent, threads, memory_gib_max, beta, ..
        } = self.training;
        let objective = match self.training.objective {
            Objective::Likelihood => "likelihood",
            Objective::Preference => "preference",
        };
        let mut args: Vec<OsString> = vec!["train".into(), "--background".into(), "--json".into()];
        let mut flag = |name: &str, value: OsString| args.extend([name.into(), value]);
        flag("--model", model.into());
        flag("--pairs", self.pairs.clone().into());
        flag("--out", self.out.clone().into());
        if let Some(from) = &self.from {
            flag("--from", from.into());
        }
        // alpha / rank stays 1, as it was measured.
        for (name, value) in [
            ("--seed", self.seed.to_string()),
            ("--objective", objective.to_owned()),
            ("--beta", beta.to_string()),
            ("--rank", rank.to_string()),
            ("--alpha", rank.to_string()),
            ("--rate", rate.to_string()),
            ("--epochs", epochs.to_string()),
            ("--members", members.to_string()),
            ("--step-tokens", step_tokens.to_string()),
            ("--held-out", held_out_percent.to_string()),
            ("--memory-max", ((memory_gib_max * 1024.0) as u64).to_string()),
        ] {
            flag(name, value.into());
        }
        if threads > 0 {
            flag("--threads", threads.to_string().into());
        }
        args
    }
}

/// Trains an adapter of `model`; `told` hears every step.
pub async fn train(
    program: &Program,
    model: &Path,
    lesson: &Lesson,
    stop: &CancellationToken,
    told: &(dyn Fn(Step) + Send + Sync),
) -> Result<Said, ChildError> {
    let mut child = Command::new(&program.path)
        .args(&program.args)
        .args(lesson.args(model))
        .args((!program.low_priority).then_some("--keep-priority"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .map_err(ChildError::Start)?;
    // Its end tells the child that nobody waits any more; so it is held to the last.
    let _alive = child.stdin.take();
    let (out, err) = (child.stdout.take(), child.stderr.take());
    let talk = async {
        let (said, errors) = tokio::join!(listen(out, told), complaints(err));
        let status = child.wait().await.map_err(|error| ChildError::Failed(error.to_string()))?;
        match said {
            Ok(Some(said)) if status.success() => Ok(said),
            Ok(_) if errors.is_empty() => Err(ChildError::Failed(format!("it ended with {status}"))),
            Ok(_) => Err(ChildError::Failed(errors)),
            Err(error) => Err(ChildError::Failed(error)),
        }
    };
    let minutes = lesson.training.minutes_max;
    // Dropped in the middle, the child is killed.
    tokio::select! {
        ended = timeout(Duration::from_secs_f64(minutes * 60.0), talk) => match ended {
            Ok(ended) => ended,
            Err(_) => Err(ChildError::Late(minutes)),
        },
        () = stop.cancelled() => Err(ChildError::Ended("the run was stopped")),
    }
}

/// Steps as they come, and the last word.
async fn listen(
    out: Option<impl AsyncRead + Unpin>,
    told: &(dyn Fn(Step) + Send + Sync),
) -> Result<Option<Said>, String> {
    let Some(out) = out else { return Ok(None) };
    let mut lines = BufReader::new(out);
    let mut said = None;
    let mut line = Vec::new();
    loop {
        line.clear();
        let read = (&mut lines).take(LINE_BYTES_MAX).read_until(b'\n', &mut line).await;
        if read.map_err(|error| error.to_string())? == 0 {
            return Ok(said);
        }
        if let Ok(step) = serde_json::from_slice::<Step>(&line) {
            told(step);
        } else {
            let last = serde_json::from_slice::<Said>(&line);
            said = Some(last.map_err(|error| format!("it said something that is not understood: {error}"))?);
        }
    }
}

/// The end of what it complained of; the rest is read and dropped, so that it never waits.
async fn complaints(err: Option<impl AsyncRead + Unpin>) -> String {
    let Some(err) = err else { return String::new() };
    let mut lines = BufReader::new(err);
    let mut kept = std::collections::VecDeque::new();
    let mut line = Vec::new();
    loop {
        line.clear();
        let read = (&mut lines).take(ERROR_LINE_BYTES_MAX).read_until(b'\n', &mut line).await;
        if !matches!(read, Ok(1..)) {
            return Vec::from(kept).join("; ");
        }
        let text = String::from_utf8_lossy(&line).trim().to_owned();
        tracing::debug!(line = text, "trainer");
        if kept.len() == ERROR_LINES_MAX {
            kept.pop_front();
        }
        kept.push_back(text);
    }
}
