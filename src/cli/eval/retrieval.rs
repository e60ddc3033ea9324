//! `chimere eval retrieval`: an exam without and with verified exchanges as examples, paired.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::mpsc::sync_channel;

use chimere::embed::model::FILE;
use chimere::embed::{Index, Static};
use chimere::engine::host::HostLimits;
use chimere::engine::load::Kind;
use chimere::engine::process;
use chimere::eval::gain::Gain;
use chimere::eval::golden::{self, Exam, Item, Outcome, Score};
use chimere::eval::retrieval::{self, Report, Shown};
use chimere::simulate::pool;
use chimere::turn::Retrieve;
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
    #[command(flatten)]
    ask: Ask,
    /// Questions with verified answers (JSONL, plain or gzip; nano/traffic/README.md)
    #[arg(long, value_name = "FILE", default_value = "nano/traffic/week.jsonl.gz")]
    exchanges: PathBuf,
    /// Embedding model; default: nano-embed.gguf beside the model
    #[arg(long, value_name = "FILE")]
    embed_model: Option<PathBuf>,
    /// Most examples that are shown for a question
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..=8))]
    k: u16,
    /// Smallest likeness of an example's question
    #[arg(long, default_value_t = 0.6)]
    min_score: f32,
    /// Most tokens of all examples of a question
    #[arg(long, default_value_t = 512)]
    tokens_max: u32,
}

pub(super) fn run(args: Args) -> anyhow::Result<ExitCode> {
    let (items, parallel, thinking) = (args.ask.items()?, args.ask.parallel(), args.ask.thinking());
    let path = match &args.embed_model {
        Some(path) => path.clone(),
        None => args.model.path()?.with_file_name(FILE),
    };
    let embedder = Static::open(&path)?;
    let index = retrieval::index(&embedder, &pool::read(&args.exchanges)?);
    let loaded = args.model.load(args.backend, parallel, true)?;
    let (hash, context) = (loaded.hosted.model_hash.clone(), loaded.hosted.model.context_tokens);
    let wanted = Retrieve { k: args.k.into(), min_score: args.min_score, tokens_max: args.tokens_max };
    let shown: Vec<Shown> =
        items.iter().map(|item| retrieval::shown(&embedder, &index, item, &wanted, context)).collect();
    let (to_us, events) = sync_channel(64);
    let engine = process::start(
        loaded,
        HostLimits { waiting_max: parallel, step_tokens_max: 512, ..HostLimits::default() },
        to_us,
    )?;
    let answer = |items: &[Item]| -> anyhow::Result<Vec<Outcome>> {
        let bar = bar(items.len() as u64, "asking");
        let exam = Exam { thinking, parallel, ..Exam::default() };
        let outcomes = golden::run(&engine, &events, items, &exam, &mut |_| bar.inc(1))?;
        bar.finish_and_clear();
        Ok(outcomes)
    };
    let without = answer(&items)?;
    let asked: Vec<Item> = shown.iter().map(|shown| shown.item.clone()).collect();
    let with = answer(&asked)?;
    args.ask.keep(&with)?;
    let report = retrieval::report(index.examples().len(), &shown, &without, &with);
    if args.ask.json {
        say!("{:#}", json!({ "model_hash": hash, "set": args.ask.set, "retrieve": wanted, "report": report }));
    } else {
        print(&report, &index);
    }
    Ok(ExitCode::SUCCESS)
}

fn print(report: &Report, index: &Index) {
    say!(
        "{} verified exchanges; {} items were shown {} of them",
        index.examples().len(),
        report.helped,
        report.examples
    );
    line("all items", &report.all);
    line("shown examples", &report.shown);
    report.domains.iter().for_each(|(name, gain)| line(name, gain));
}

fn line(name: &str, gain: &Gain) {
    let percent = |score: &Score| 100.0 * score.rate;
    say!(
        "{name:<16} n {:>5}  without {:5.1} %  with {:5.1} %  points {}",
        gain.with.n,
        percent(&gain.without),
        percent(&gain.with),
        gain.points()
    );
}
