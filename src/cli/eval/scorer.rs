//! `chimere eval scorer`: the model answers held-out items, the judge scores the answers, the exact checks say who was
//! right.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::mpsc::{Receiver, sync_channel};
use std::time::Instant;

use anyhow::Context;
use chimere::engine::adapter::sha256_of;
use chimere::engine::host::HostLimits;
use chimere::engine::load::{Kind, Loaded};
use chimere::engine::process;
use chimere::engine::process::Running;
use chimere::engine::protocol::{Command, Event};
use chimere::eval::golden::{self, Exam, Score};
use chimere::eval::scorer::{self, Agreement, Judge, agreement, steps};
use chimere::gguf::Gguf;
use chimere::scoring::judge::{BAD, GOOD};
use chimere::scoring::measure::Auc;
use chimere::scoring::{Labels, Reading};
use serde_json::json;

use super::super::exit::say;
use super::super::model_args::{ModelArgs, bar};
use super::ask::Ask;

#[derive(clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    model: ModelArgs,
    #[arg(long, default_value = "auto")]
    backend: Kind,
    /// The judge's adapter for that model; default: nano-prm.gguf beside it
    #[arg(long, value_name = "FILE")]
    judge: Option<PathBuf>,
    #[command(flatten)]
    ask: Ask,
}

/// Name of the judge's adapter inside this engine.
pub(super) const REVISION: &str = "judge";

pub(super) fn run(args: Args) -> anyhow::Result<ExitCode> {
    let (items, parallel, thinking) = (args.ask.items()?, args.ask.parallel(), args.ask.thinking());
    let adapter = match args.judge {
        Some(path) => path,
        None => args.model.path()?.with_file_name("nano-prm.gguf"),
    };
    let gguf =
        Gguf::open(&adapter).with_context(|| format!("cannot read the judge's adapter {}", adapter.display()))?;
    let reading = Reading::of_adapter(&gguf).with_context(|| adapter.display().to_string())?;
    let loaded = args.model.load(args.backend, parallel, false)?;
    let (hash, labels) = (loaded.hosted.model_hash.clone(), labels(&loaded)?);
    let (to_us, events) = sync_channel(64);
    let engine = process::start(loaded, HostLimits { waiting_max: parallel, step_tokens_max: 512 }, to_us)?;
    let answering = bar(items.len() as u64, "asking");
    let outcomes = golden::run(&engine, &events, &items, &Exam { thinking, parallel, ..Exam::default() }, &mut |_| {
        answering.inc(1)
    })?;
    answering.finish_and_clear();
    load_adapter(&engine, &events, adapter)?;
    let answers: Vec<_> = items.iter().zip(&outcomes).filter(|(_, outcome)| outcome.error.is_none()).collect();
    let judging = bar(steps(&answers) as u64, "judging");
    let judge = Judge { labels, reading: &reading, adapter: Some(REVISION) };
    let judged = scorer::judge(&engine, &events, &answers, judge, parallel, &mut |n| judging.set_position(n as u64))?;
    judging.finish_and_clear();
    args.ask.keep(&judged)?;
    let found = agreement(&judged);
    if args.ask.json {
        let unjudged = outcomes.len() - judged.len();
        say!("{:#}", json!({ "model_hash": hash, "set": args.ask.set, "unjudged": unjudged, "agreement": found }));
    } else {
        print(&found, outcomes.len() - judged.len());
    }
    Ok(ExitCode::SUCCESS)
}

pub(super) fn load_adapter(engine: &Running, events: &Receiver<Vec<Event>>, path: PathBuf) -> anyhow::Result<()> {
    let (_, sha256) = sha256_of(&path)?;
    let load = Command::LoadAdapter { id: 0, revision: REVISION.to_owned(), path, sha256 };
    engine.commands.send((load, Instant::now())).context("the engine ended")?;
    loop {
        for event in events.recv().context("the engine ended")? {
            match event {
                Event::AdapterLoaded { .. } => return Ok(()),
                Event::Failed { id: 0, message, .. } => anyhow::bail!("the judge's adapter was refused: {message}"),
                _ => {}
            }
        }
    }
}

pub(super) fn labels(loaded: &Loaded) -> anyhow::Result<Labels> {
    let id = |name: &str| loaded.vocab.special(name).with_context(|| format!("this model has no token `{name}`"));
    Ok(Labels { good: id(GOOD)?, bad: id(BAD)? })
}

fn print(found: &Agreement, unjudged: usize) {
    let percent =
        |s: &Score| format!("{:5.1} %  [{:.1}, {:.1}]  n {}", s.rate * 100.0, s.low * 100.0, s.high * 100.0, s.n);
    let area = |a: &Option<Auc>| match a {
        Some(a) => format!("{:.3} [{:.3}, {:.3}]  {} right, {} wrong", a.auc, a.low, a.high, a.right, a.wrong),
        None => "too few of one kind".to_owned(),
    };
    say!("answers judged         {} ({unjudged} not)", found.n);
    say!("AUC                    {}", area(&found.auc));
    say!("calibration error      {:.3} (Brier {:.3})", found.calibration.ece, found.calibration.brier);
    say!("right answers passed   {}", percent(&found.right_passed));
    say!("wrong answers passed   {}", percent(&found.wrong_passed));
    for (verdict, score) in (1..).zip(&found.calibration.by_verdict) {
        say!("right at verdict {verdict}     {}", percent(score));
    }
    for (domain, auc) in &found.domains {
        say!("AUC {domain:<18} {}", area(auc));
    }
}
