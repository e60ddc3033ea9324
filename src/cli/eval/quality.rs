//! `chimere eval quality`: the model answers an exam, the judge scores the answers, poor ones are asked again, and the
//! exact checks say what keeping the judge's favourite changed.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::mpsc::sync_channel;

use anyhow::Context;
use chimere::engine::host::HostLimits;
use chimere::engine::load::Kind;
use chimere::engine::process;
use chimere::eval::golden::{self, Exam, Item, Outcome, Score};
use chimere::eval::quality::{Again, Gain, again, gain};
use chimere::eval::scorer::{self, Judge, Judged, steps};
use chimere::gguf::Gguf;
use chimere::scoring::Reading;
use serde_json::json;

use super::super::exit::say;
use super::super::model_args::{ModelArgs, bar};
use super::ask::Ask;
use super::scorer::{REVISION, labels, load_adapter};

/// Temperature of a second answer without reflection: at 0 it would be the first one.
const RESAMPLE_TEMPERATURE: f32 = 0.7;

#[derive(clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    model: ModelArgs,
    #[arg(long, default_value = "auto")]
    backend: Kind,
    /// The judge's adapter for that model; default: nano-prm.gguf beside it
    #[arg(long, value_name = "FILE")]
    adapter: Option<PathBuf>,
    #[command(flatten)]
    ask: Ask,
    /// Answers with a verdict of at most this are asked again
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u8).range(1..=5))]
    verdict_max: u8,
}

pub(super) fn run(args: Args) -> anyhow::Result<ExitCode> {
    let (items, parallel, thinking) = (args.ask.items()?, args.ask.parallel(), args.ask.thinking());
    let adapter = match args.adapter {
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
    load_adapter(&engine, &events, adapter)?;
    let answer = |items: &[Item], temperature: f32| -> anyhow::Result<Vec<Outcome>> {
        let bar = bar(items.len() as u64, "asking");
        let exam = Exam { thinking, parallel, temperature, ..Exam::default() };
        let outcomes = golden::run(&engine, &events, items, &exam, &mut |_| bar.inc(1))?;
        bar.finish_and_clear();
        Ok(outcomes)
    };
    let judge = |answers: &[(&Item, &Outcome)]| -> anyhow::Result<Vec<Judged>> {
        let bar = bar(steps(answers) as u64, "judging");
        let judge = Judge { labels, reading: &reading, adapter: Some(REVISION) };
        let judged = scorer::judge(&engine, &events, answers, judge, parallel, &mut |n| bar.set_position(n as u64))?;
        bar.finish_and_clear();
        Ok(judged)
    };
    let outcomes = answer(&items, 0.0)?;
    let first: Vec<_> = items.iter().zip(&outcomes).filter(|(_, outcome)| outcome.error.is_none()).collect();
    let first = judge(&first)?;
    let mut arms = Vec::new();
    for (name, how, temperature) in
        [("reflection", Again::Reflect, 0.0), ("another sample", Again::Resample, RESAMPLE_TEMPERATURE)]
    {
        let (tried, asked): (Vec<usize>, Vec<Item>) =
            again(&items, &outcomes, &first, args.verdict_max, how).into_iter().unzip();
        let second = answer(&asked, temperature)?;
        let pairs: Vec<_> = tried.iter().map(|&at| &items[at]).zip(&second).collect();
        arms.push((name, gain(&outcomes, &first, &tried, &second, &judge(&pairs)?)));
    }
    args.ask.keep(&outcomes)?;
    if args.ask.json {
        let arms: serde_json::Map<_, _> = arms.iter().map(|(name, gain)| ((*name).to_owned(), json!(gain))).collect();
        say!("{:#}", json!({ "model_hash": hash, "set": args.ask.set, "verdict_max": args.verdict_max, "arms": arms }));
    } else {
        arms.iter().for_each(|(name, gain)| print(name, gain));
    }
    Ok(ExitCode::SUCCESS)
}

fn print(name: &str, gain: &Gain) {
    let percent =
        |s: &Score| format!("{:5.1} %  [{:.1}, {:.1}]  n {}", s.rate * 100.0, s.low * 100.0, s.high * 100.0, s.n);
    say!("{name}");
    say!("  without the gate     {}", percent(&gain.without));
    say!("  with it              {}", percent(&gain.with));
    say!(
        "  points               {:+.2}  [{:+.2}, {:+.2}]  {} won, {} lost",
        100.0 * gain.difference,
        100.0 * gain.low,
        100.0 * gain.high,
        gain.wins,
        gain.losses
    );
    say!("  asked again: first   {}", percent(&gain.first));
    say!("               second  {}", percent(&gain.second));
    say!("               kept    {}  ({} revised)", percent(&gain.kept), gain.revised);
}
