//! The files of a simulation: what is asked, and by which exams it is judged. They never share a question.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{BufRead, Read};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail, ensure};
use chimere::config::{Config, Flags};
use chimere::daemon::DaemonError;
use chimere::eval::golden;
use chimere::simulate::pool::{self, Question};
use chimere::store::files::create_private_dir;
use chimere::turn::Message;

use super::Args;

/// Order of the part of an exam that is taken.
const SEED: u64 = 1;
/// How a packed file begins.
const GZIP: [u8; 2] = [0x1f, 0x8b];
/// Most bytes of the held-out text.
const TEXT_BYTES_MAX: u64 = 1 << 20;

pub struct Files {
    pub model: PathBuf,
    pub golden: PathBuf,
    pub slice: PathBuf,
    pub week: Vec<Question>,
    /// Asked on every day, and read by no gate.
    pub trend: Vec<Question>,
    pub traffic: Vec<Question>,
    pub text: Option<String>,
}

/// Finds and reads all of them; parts of a foreign exam are written to `folder`.
pub fn files(args: &Args, folder: &Path) -> anyhow::Result<Files> {
    let config =
        Config::load(&Flags { model: args.model.clone(), state_dir: Some(folder.join("state")), ..Flags::default() })?;
    let model = config.model.map_err(DaemonError::NoModel)?.canonicalize()?;
    let shipped = |found: Result<PathBuf, Vec<PathBuf>>, flag: &str| {
        found.map_err(|_| anyhow::anyhow!("no exam found: give {flag}"))
    };
    let beside = |name: &str| config.night.golden.as_ref().ok().and_then(|golden| Some(golden.parent()?.join(name)));
    let shipped_week = || golden::files("week").iter().filter_map(|file| beside(file)).find(|path| path.is_file());
    let (golden, slice, week) = match (&args.golden, &args.week) {
        (Some(golden), None) => {
            let [gate, slice, week] = deal(golden, folder)?;
            (gate, args.slice.clone().unwrap_or(slice), week)
        }
        (golden, week) => (
            golden.clone().map_or_else(|| shipped(config.night.golden.clone(), "--golden"), Ok)?,
            args.slice.clone().map_or_else(|| shipped(config.night.slice.clone(), "--slice"), Ok)?,
            week.clone().or_else(shipped_week).context("no exam found: give --week")?,
        ),
    };
    let traffic =
        match args.traffic.clone().or_else(|| beside("../traffic/week.jsonl.gz").filter(|path| path.is_file())) {
            Some(path) => path,
            None => bail!("no week of traffic found: give --traffic (JSONL, plain or gzip)"),
        };
    // Side by side under their usual names: the daemon's admission of pairs looks for all three there.
    let exams = folder.join("exams");
    create_private_dir(&exams)?;
    let (golden, trend) = apart(&golden, &exams, args.trend_items as usize)?;
    let (slice, week) = (beside_it(&slice, &exams, "slice")?, beside_it(&week, &exams, "week")?);
    let files = Files {
        trend,
        week: pool::some_of(pool::read(&week)?, args.week_items as usize, SEED),
        traffic: pool::read(&traffic)?,
        text: args.text.as_deref().map(text).transpose()?,
        model,
        golden,
        slice,
    };
    disjoint(&files)?;
    Ok(files)
}

fn text(path: &Path) -> anyhow::Result<String> {
    let read = chimere::store::files::read_bounded(path, TEXT_BYTES_MAX).with_context(|| path.display().to_string())?;
    read.with_context(|| format!("{} is not there", path.display()))
}

/// The gate's exam, less `most` questions that are asked every day instead.
fn apart(from: &Path, exams: &Path, most: usize) -> anyhow::Result<(PathBuf, Vec<Question>)> {
    if most == 0 {
        return Ok((beside_it(from, exams, "golden")?, Vec::new()));
    }
    let trend = pool::some_of(pool::read(from)?, most, SEED);
    let taken: BTreeSet<&str> = trend.iter().map(|q| q.item.id.as_str()).collect();
    let mut rest = String::new();
    for (line, question) in lines(from)? {
        if !taken.contains(question.item.id.as_str()) {
            rest += &line;
            rest.push('\n');
        }
    }
    ensure!(!rest.is_empty(), "{} has no more than {most} questions: none are left for the gate", from.display());
    let to = exams.join("golden.jsonl");
    std::fs::write(&to, rest).with_context(|| to.display().to_string())?;
    Ok((to, trend))
}

/// Copies an exam, packed or plain as it is, under its usual name.
fn beside_it(from: &Path, exams: &Path, name: &str) -> anyhow::Result<PathBuf> {
    let mut start = [0; 2];
    let read =
        File::open(from).and_then(|mut file| file.read(&mut start)).with_context(|| from.display().to_string())?;
    let packed = read == start.len() && start == GZIP;
    let to = exams.join(format!("{name}.jsonl{}", if packed { ".gz" } else { "" }));
    if from != to {
        std::fs::copy(from, &to).with_context(|| to.display().to_string())?;
    }
    Ok(to)
}

/// The lines of an exam with their questions.
fn lines(path: &Path) -> anyhow::Result<Vec<(String, Question)>> {
    let questions = pool::read(path)?;
    let lines = pool::open(path)?.lines().collect::<Result<Vec<_>, _>>()?;
    Ok(lines.into_iter().filter(|line| !line.trim().is_empty()).zip(questions).collect())
}

/// Deals somebody else's exam into three files of the folder.
fn deal(path: &Path, folder: &Path) -> anyhow::Result<[PathBuf; 3]> {
    let dealt = pool::deal(lines(path)?, path)?;
    let names = ["gate", "slice", "week"].map(|name| folder.join(format!("dealt-{name}.jsonl")));
    for (name, part) in names.iter().zip(&dealt) {
        let text: Vec<&str> = part.iter().map(|(line, _)| line.as_str()).collect();
        std::fs::write(name, text.join("\n") + "\n").with_context(|| name.display().to_string())?;
    }
    Ok(names)
}

/// No question of the week exam is asked by a user or read by the gate.
fn disjoint(files: &Files) -> anyhow::Result<()> {
    let said = |messages: &[Message]| messages.iter().map(|m| m.content.trim().to_lowercase()).collect::<Vec<_>>();
    let week: BTreeSet<Vec<String>> = files.week.iter().map(|q| said(&q.item.messages)).collect();
    let shared = |questions: &[Question]| {
        questions.iter().find(|q| week.contains(&said(&q.item.messages))).map(|q| q.item.id.clone())
    };
    for (what, found) in [
        ("the traffic", shared(&files.traffic)),
        ("the gate's exam", shared(&pool::read(&files.golden)?)),
        ("the slice", shared(&pool::read(&files.slice)?)),
    ] {
        ensure!(
            found.is_none(),
            "{what} asks what the week exam asks ({}): figures would mean nothing",
            found.unwrap_or_default()
        );
    }
    Ok(())
}
