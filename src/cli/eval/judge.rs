//! What the commands that judge answers have in common: one engine that answers, and judges under the judge's adapter.

use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, sync_channel};
use std::time::Instant;

use anyhow::Context;
use chimere::config::{Config, Flags};
use chimere::engine::adapter::sha256_of;
use chimere::engine::host::HostLimits;
use chimere::engine::load::{Kind, Loaded};
use chimere::engine::process::{self, Running};
use chimere::engine::protocol::{Command, Event};
use chimere::eval::golden::{self, Exam, Item, Outcome};
use chimere::eval::scorer::{self, Judge, Judged, steps};
use chimere::gguf::Gguf;
use chimere::scoring::form::Asked;
use chimere::scoring::{Form, Labels, Reading};

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
    /// The judge: an adapter for that model, or a model of its own that is asked as `[judge]` of the configuration says.
    /// Default: the judge of the configuration, or nano-prm.gguf beside the model
    #[arg(long, value_name = "FILE")]
    judge: Option<PathBuf>,
    #[command(flatten)]
    pub(super) ask: Ask,
}

/// An engine and what it says.
struct Seat {
    engine: Running,
    events: Receiver<Vec<Event>>,
}

/// The model and its judge, ready.
pub(super) struct Court {
    model: Seat,
    /// Absent: the model itself judges, under the judge's adapter.
    judge: Option<Seat>,
    form: Form,
    labels: Labels,
    reading: Reading,
    pub(super) model_hash: String,
    parallel: usize,
}

impl JudgeArgs {
    pub(super) fn open(&self) -> anyhow::Result<Court> {
        let config = Config::load(&Flags::default())?;
        let (path, form) = (self.file(&config)?, config.judge);
        let gguf = Gguf::open(&path).with_context(|| format!("cannot read the judge {}", path.display()))?;
        let parallel = self.ask.parallel();
        let loaded = self.model.load(self.backend, parallel, false)?;
        let model_hash = loaded.hosted.model_hash.clone();
        if !matches!(gguf.optional::<&str>("general.type"), Ok(Some("adapter"))) {
            let model = Seat::take(loaded, parallel)?;
            let judge = self.own_engine(&path, &form)?;
            let labels = labels(&judge, &form).with_context(|| path.display().to_string())?;
            let judge = Some(Seat::take(judge, parallel)?);
            return Ok(Court { model, judge, form, labels, reading: Reading::default(), model_hash, parallel });
        }
        let reading = Reading::of_adapter(&gguf).with_context(|| path.display().to_string())?;
        let labels = labels(&loaded, &form)?;
        let model = Seat::take(loaded, parallel)?;
        model.load_adapter(path)?;
        Ok(Court { model, judge: None, form, labels, reading, model_hash, parallel })
    }

    /// The file that was named, or the judge of the configuration.
    fn file(&self, config: &Config) -> anyhow::Result<PathBuf> {
        match &self.judge {
            Some(path) => Ok(path.clone()),
            None if config.judge.asked == Asked::Nano => Ok(self.model.path()?.with_file_name("nano-prm.gguf")),
            None => config.scorer.model.clone().ok().context("no judge: name a model with --judge or scorer.model"),
        }
    }

    /// A judge that is a model of its own, with room for what it may write.
    fn own_engine(&self, path: &Path, form: &Form) -> anyhow::Result<Loaded> {
        let mut model = ModelArgs { model: Some(path.to_owned()), adapter: None, ..self.model.clone() };
        model.context += form.think_tokens;
        model.card.spare_card = true;
        model.load(Kind::Auto, self.ask.parallel(), false)
    }

    /// How an exam is asked, greedily.
    pub(super) fn exam(&self) -> Exam {
        Exam { thinking: self.ask.thinking(), parallel: self.ask.parallel(), ..Exam::default() }
    }
}

impl Court {
    pub(super) fn answer(&self, items: &[Item], exam: &Exam) -> anyhow::Result<Vec<Outcome>> {
        let bar = bar(items.len() as u64, "asking");
        let Seat { engine, events } = &self.model;
        let outcomes = golden::run(engine, events, items, exam, &mut |_| bar.inc(1))?;
        bar.finish_and_clear();
        Ok(outcomes)
    }

    pub(super) fn judge(&self, answers: &[(&Item, &Outcome)]) -> anyhow::Result<Vec<Judged>> {
        let bar = bar(steps(answers) as u64, "judging");
        let Seat { engine, events } = self.judge.as_ref().unwrap_or(&self.model);
        let adapter = self.judge.is_none().then_some(REVISION);
        let judge = Judge { form: &self.form, labels: &self.labels, reading: &self.reading, adapter };
        let step = &mut |n: usize| bar.set_position(n as u64);
        let judged = scorer::judge(engine, events, answers, judge, self.parallel, step)?;
        bar.finish_and_clear();
        Ok(judged)
    }
}

impl Seat {
    fn take(loaded: Loaded, parallel: usize) -> anyhow::Result<Seat> {
        let (to_us, events) = sync_channel(64);
        let limits = HostLimits { waiting_max: parallel, step_tokens_max: 512, ..HostLimits::default() };
        Ok(Seat { engine: process::start(loaded, limits, to_us)?, events })
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

fn labels(loaded: &Loaded, form: &Form) -> anyhow::Result<Labels> {
    form.fits(loaded.hosted.chats, loaded.hosted.model.embedding_only)?;
    Ok(form.labels(loaded.vocab.as_ref())?)
}
