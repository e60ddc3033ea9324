//! `chimere eval quality`. The model answers an exam, the judge scores the answers, and poor ones are asked again. The
//! exact checks say what keeping the judge's favourite changed.

use std::process::ExitCode;

use chimere::eval::golden::{Exam, Item, Score};
use chimere::eval::quality::{Again, Report, again, report};
use serde_json::json;

use super::super::exit::say;
use super::judge::{JudgeArgs, answered};

/// Temperature of a second answer without reflection: at 0 it would be the first one.
const RESAMPLE_TEMPERATURE: f32 = 0.7;

#[derive(clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    judge: JudgeArgs,
    /// Answers with a verdict of at most this are asked again
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u8).range(1..=5))]
    verdict_max: u8,
}

pub(super) fn run(args: Args) -> anyhow::Result<ExitCode> {
    let (items, court, ask) = (args.judge.ask.items()?, args.judge.open()?, &args.judge.ask);
    let outcomes = court.answer(&items, &args.judge.exam())?;
    let first = court.judge(&answered(&items, &outcomes))?;
    let mut arms = Vec::new();
    for (name, how, temperature) in
        [("reflection", Again::Reflect, 0.0), ("another sample", Again::Resample, RESAMPLE_TEMPERATURE)]
    {
        let (tried, asked): (Vec<usize>, Vec<Item>) =
            again(&items, &outcomes, &first, args.verdict_max, how).into_iter().unzip();
        let second = court.answer(&asked, &Exam { temperature, ..args.judge.exam() })?;
        let pairs: Vec<_> = tried.iter().map(|&at| &items[at]).zip(&second).collect();
        arms.push((name, report(&outcomes, &first, &tried, &second, &court.judge(&pairs)?)));
    }
    ask.keep(&outcomes)?;
    if ask.json {
        let arms: serde_json::Map<_, _> =
            arms.iter().map(|(name, report)| ((*name).to_owned(), json!(report))).collect();
        say!(
            "{:#}",
            json!({ "model_hash": court.model_hash, "set": ask.set, "verdict_max": args.verdict_max, "arms": arms })
        );
    } else {
        arms.iter().for_each(|(name, report)| print(name, report));
    }
    Ok(ExitCode::SUCCESS)
}

fn print(name: &str, report: &Report) {
    let percent =
        |s: &Score| format!("{:5.1} %  [{:.1}, {:.1}]  n {}", s.rate * 100.0, s.low * 100.0, s.high * 100.0, s.n);
    say!("{name}");
    say!("  without the gate     {}", percent(&report.all.without));
    say!("  with it              {}", percent(&report.all.with));
    say!("  points               {}", report.all.points());
    say!("  asked again: first   {}", percent(&report.first));
    say!("               second  {}", percent(&report.second));
    say!("               kept    {}  ({} revised)", percent(&report.kept), report.revised);
}
