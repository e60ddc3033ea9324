//! What the commands that judge answers have in common: one engine that answers, and judges under the judge's adapter.

use std::path::PathBuf;
use std::sync::mpsc::{Receiver, sync_channel};
use std::time::Instant;

use anyhow::Context;
use chimere::engine::adapter::sha256_of;
use chimere::engine::host::HostLimits;
use chimere::engine::load::{Kind, Loaded};
use chimere::engine::process::{self, Running};
use chimere::engine::protocol::{Command, Event};
use chimere::eval::golden::{self, Exam, Item, Outcome};
use chimere::eval::scorer::{self, Judge, Judged, steps};
use chimere::gguf::Gguf;
use chimere::scoring::judge::{BAD, GOOD};
use chimere::scoring::{Labels, Reading};

use super::super::model_args::{ModelArgs, bar};
use super::ask::Ask;

/// Name of the judge's adapter inside the engine.
const REVISION: &str = "judge";

#[derive(clap::Args)]
pub(super) struct JudgeArgs {
    #[command(flatten)]
    model: ModelArgs,
    #[arg(long, default_value = "auto")]
    backend: Kind,
    /// The judge's adapter for that model; default: nano-prm.gguf beside it
    #[arg(long, value_name = "FILE")]
    judge: Option<PathBuf>,
    #[command(flatten)]
    pub(super) ask: Ask,
}

/// The model and its judge, ready.
pub(super) struct Court {
    engine: Running,
    events: Receiver<Vec<Event>>,
    labels: Labels,
    reading: Reading,
    pub(super) model_hash: String,
    parallel: usize,
}

impl JudgeArgs {
    pub(super) fn open(&self) -> anyhow::Result<Court> {
        let path = match &self.judge {
            Some(path) => path.clone(),
            None => self.model.path()?.with_file_name("nano-prm.gguf"),
        };
        let gguf = Gguf::open(&path).with_context(|| format!("cannot read the judge's adapter {}", path.display()))?;
        let reading = Reading::of_adapter(&gguf).with_context(|| path.display().to_string())?;
        let parallel = self.ask.parallel();
        let loaded = self.model.load(self.backend, parallel, false)?;
        let (model_hash, labels) = (loaded.hosted.model_hash.clone(), labels(&loaded)?);
        let (to_us, events) = sync_channel(64);
        let engine = process::start(
            loaded,
            HostLimits { waiting_max: parallel, step_tokens_max: 512, ..HostLimits::default() },
            to_us,
        )?;
        let court = Court { engine, events, labels, reading, model_hash, parallel };
        court.load_adapter(path)?;
        Ok(court)
    }

    /// How an exam is asked, greedily.
    pub(super) fn exam(&self) -> Exam {
        Exam { thinking: self.ask.thinking(), parallel: self.ask.parallel(), ..Exam::default() }
    }
}

impl Court {
    pub(super) fn answer(&self, items: &[Item], exam: &Exam) -> anyhow::Result<Vec<Outcome>> {
        let bar = bar(items.len() as u64, "asking");
        let outcomes = golden::run(&self.engine, &self.events, items, exam, &mut |_| bar.inc(1))?;
        bar.finish_and_clear();
        Ok(outcomes)
    }

    pub(super) fn judge(&self, answers: &[(&Item, &Outcome)]) -> anyhow::Result<Vec<Judged>> {
        let bar = bar(steps(answers) as u64, "judging");
        let judge = Judge { labels: self.labels, reading: &self.reading, adapter: Some(REVISION) };
        let step = &mut |n: usize| bar.set_position(n as u64);
        let judged = scorer::judge(&self.engine, &self.events, answers, judge, self.parallel, step)?;
        bar.finish_and_clear();
        Ok(judged)
    }

    fn load_adapter(&self, path: PathBuf) -> anyhow::Result<()> {
        let (_, sha256) = sha256_of(&path)?;
        let load = Command::LoadAdapter { id: 0, revision: REVISION.to_owned(), path, sha256 };
        self.engine.commands.send((load, Instant::now())).context("the engine ended")?;
        loop {
            for event in self.events.recv().context("the engine ended")? {
                match event {
                    Event::AdapterLoaded { .. } => return Ok(()),
                    Event::Failed { id: 0, message, .. } => anyhow::bail!("the judge's adapter was refused: {message}"),
                    _ => {}
                }
            }
        }
    }
}

/// Items with the answers that came.
pub(super) fn answered<'a>(items: &'a [Item], outcomes: &'a [Outcome]) -> Vec<(&'a Item, &'a Outcome)> {
    items.iter().zip(outcomes).filter(|(_, outcome)| outcome.error.is_none()).collect()
}

fn labels(loaded: &Loaded) -> anyhow::Result<Labels> {
    let id = |name: &str| loaded.vocab.special(name).with_context(|| format!("this model has no token `{name}`"));
    Ok(Labels { good: id(GOOD)?, bad: id(BAD)? })
}
