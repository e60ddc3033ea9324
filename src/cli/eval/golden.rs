//! `chimere eval golden`: accuracy on an exam of exactly checkable items.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::mpsc::sync_channel;
use std::time::Instant;

use anyhow::Context;
use chimere::engine::host::HostLimits;
use chimere::engine::load::Kind;
use chimere::engine::process;
use chimere::engine::process::Running;
use chimere::engine::protocol::Command;
use chimere::engram::Table;
use chimere::engram::blend::LAMBDA_DEFAULT;
use chimere::eval::golden::{self, Exam, Outcome, Score};
use chimere::turn::{EngramChoice, EngramUse};
use serde_json::json;

use super::super::exit::say;
use super::super::model_args::{ModelArgs, bar};
use super::ask::Ask;
use super::engram_tables;

#[derive(clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    model: ModelArgs,
    /// Backend that computes
    #[arg(long, default_value = "auto")]
    backend: Kind,
    #[command(flatten)]
    ask: Ask,
    /// Mix these Engram tables into the answers
    #[arg(long, value_name = "FILE")]
    engram: Vec<PathBuf>,
    /// Greatest weight of the tables
    #[arg(long, default_value_t = LAMBDA_DEFAULT)]
    lambda: f32,
    /// Mix them into the thoughts too, which the daemon never does
    #[arg(long)]
    engram_thought: bool,
}

pub(super) fn run(args: Args) -> anyhow::Result<ExitCode> {
    let (items, parallel, thinking) = (args.ask.items()?, args.ask.parallel(), args.ask.thinking());
    let loaded = args.model.load(args.backend, parallel, true)?;
    let (model, hash) = (loaded.hosted.model.name.clone(), loaded.hosted.model_hash.clone());
    let tables = engram_tables(&args.engram, &loaded)?;
    let (to_us, events) = sync_channel(64);
    let engine = process::start(
        loaded,
        HostLimits { waiting_max: parallel, step_tokens_max: 512, ..HostLimits::default() },
        to_us,
    )?;
    let engram = exam_tables(&args, &tables, &engine)?;
    let bar = bar(items.len() as u64, "asking");
    let outcomes =
        golden::run(&engine, &events, &items, &Exam { thinking, parallel, engram, ..Exam::default() }, &mut |_| {
            bar.inc(1)
        })?;
    bar.finish_and_clear();
    args.ask.keep(&outcomes)?;
    let total = Score::of(outcomes.iter().filter(|o| o.passed).count(), outcomes.len());
    if args.ask.json {
        let report = json!({
            "model": model, "model_hash": hash, "set": args.ask.set, "total": total,
            "engram": exam_engram(&outcomes), "families": golden::scores(&outcomes, |o| &o.family), "domains": golden::scores(&outcomes, |o| &o.domain),
        });
        say!("{report:#}");
    } else {
        print_scores(&outcomes, &total);
    }
    Ok(ExitCode::SUCCESS)
}

/// Gives the engine the tables of an exam; no tables, no choice.
fn exam_tables(args: &Args, tables: &[Table], engine: &Running) -> anyhow::Result<Option<EngramChoice>> {
    for (n, (path, table)) in (0u64..).zip(args.engram.iter().zip(tables)) {
        let (name, digest) = (table.meta().name.clone(), table.digest());
        let load = Command::LoadTable { id: u64::MAX - n, name, path: path.clone(), digest };
        engine.commands.send((load, Instant::now())).context("the engine ended")?;
    }
    Ok((!tables.is_empty()).then(|| EngramChoice {
        tables: tables.iter().map(|t| t.meta().name.clone()).collect(),
        lambda_max: args.lambda,
        in_thought: args.engram_thought,
        required: true,
        passages: Vec::new(),
    }))
}

/// What tables did in all replies together.
fn exam_engram(outcomes: &[Outcome]) -> serde_json::Value {
    let sum = |field: fn(&EngramUse) -> u32| -> u64 {
        outcomes.iter().filter_map(|o| o.engram.as_ref()).map(|e| u64::from(field(e))).sum()
    };
    json!({
        "lookups": sum(|e| e.lookups), "skipped": sum(|e| e.skipped), "hits": sum(|e| e.hits),
        "mixed": sum(|e| e.mixed), "changed": sum(|e| e.changed),
    })
}

fn print_scores(outcomes: &[Outcome], total: &Score) {
    let line = |name: &str, s: &Score| {
        say!(
            "{name:<24} {:>5} of {:>5}  {:5.1} %  [{:.1}, {:.1}]",
            s.passed,
            s.n,
            s.rate * 100.0,
            s.low * 100.0,
            s.high * 100.0
        );
    };
    for (name, score) in golden::scores(outcomes, |o| &o.family) {
        line(&name, &score);
    }
    say!("");
    for (name, score) in golden::scores(outcomes, |o| &o.domain) {
        line(&name, &score);
    }
    line("all", total);
}
