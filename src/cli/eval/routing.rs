//! `chimere eval routing`: the routes of labelled prompts by the rules, with the guess, and with a model's vote where both are
//! unsure.

mod voting;

use std::collections::BTreeSet;
use std::hint::black_box;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use anyhow::Context;
use chimere::engine::load::Kind;
use chimere::eval::routing::{self, ALL, Arm, Figure, Prompt, Voted};
use chimere::intent::{Cascade, Guess};
use chimere::simulate::pool::open;
use chimere::turn::{Message, Role};
use serde_json::json;

use super::super::exit::{cannot_write, say};
use super::super::model_args::ModelArgs;
use super::super::route::pipelines;
use super::super::serve::Place;

/// Name of the arm that requests take.
const SHIPPED: &str = "with the guess";
/// Text that routing is timed on, and how often.
const SPEED_BYTES: usize = 100_000;
const SPEED_RUNS: usize = 101;

#[derive(clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    place: Place,
    /// Labelled prompts (JSONL, plain or gzip): id, language, route, text
    #[arg(long, value_name = "FILE", default_value = "pipelines/routing/prompts.jsonl.gz")]
    prompts: PathBuf,
    /// Fit the guess to these examples instead of the shipped ones (`# ROUTE LANGUAGE WEIGHT` and lines, plain or gzip)
    #[arg(long, value_name = "FILE")]
    examples: Option<PathBuf>,
    /// Write the route of every prompt (JSONL)
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Ask the model too where rules and guess are unsure
    #[arg(long)]
    vote: bool,
    #[command(flatten)]
    model: ModelArgs,
    /// Backend that computes
    #[arg(long, default_value = "auto")]
    backend: Kind,
    /// As JSON
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: Args) -> anyhow::Result<ExitCode> {
    let mut set = pipelines(args.place)?;
    if let Some(path) = &args.examples {
        let examples = open(path).with_context(|| format!("cannot read {}", path.display()))?;
        set = set.with_guess(Guess::of(examples).with_context(|| path.display().to_string())?);
    }
    let known: BTreeSet<&str> = set.all().map(|pipeline| pipeline.name.as_str()).collect();
    let prompts = routing::read(&args.prompts, &known)?;
    let rules = set.rules();
    let words = routing::by_rules(&Cascade::new(routing::words_alone(&rules))?, &prompts);
    let cascade = Cascade::new(rules)?;
    let shipped = routing::as_shipped(&set, &prompts);
    if let Some(path) = &args.out {
        let lines: Vec<String> = shipped.iter().map(serde_json::to_string).collect::<Result<_, _>>()?;
        std::fs::write(path, lines.join("\n") + "\n").map_err(cannot_write(path))?;
    }
    let text = long_text(&prompts);
    let rules_ms = median_ms(|| cascade.read(black_box(&text)));
    let asked = [Message::new(Role::User, text)];
    let route_ms = median_ms(|| set.read(black_box(&asked)));
    let mut arms = vec![
        ("words alone", Arm::of(&words)),
        ("with file types", Arm::of(&routing::by_rules(&cascade, &prompts))),
        (SHIPPED, Arm::of(&shipped)),
    ];
    let mut voted = None;
    if args.vote {
        let loaded = args.model.load(args.backend, 1, false)?;
        let hash = loaded.hosted.model_hash.clone();
        let (routed, gain) = voting::vote(loaded, &set, &prompts, &shipped)?;
        arms.push(("with the vote", Arm::of(&routed)));
        voted = Some((hash, gain));
    }
    if args.json {
        let arms: serde_json::Map<String, serde_json::Value> = arms
            .iter()
            .map(|(name, arm)| Ok(((*name).to_owned(), serde_json::to_value(arm)?)))
            .collect::<anyhow::Result<_>>()?;
        let vote = voted.map(|(hash, gain)| json!({ "model_hash": hash, "gain": gain }));
        say!(
            "{:#}",
            json!({
                "prompts": args.prompts, "arms": arms, "rules_ms": rules_ms, "route_ms": route_ms, "text_bytes": SPEED_BYTES, "vote": vote,
            })
        );
    } else {
        arms.iter().for_each(|(name, arm)| print(name, arm));
        arms.iter().filter(|(name, _)| *name == SHIPPED).for_each(|(_, arm)| print_confusion(arm, &known));
        say!("a route for {} KB of text: {route_ms:.3} ms, of it rules {rules_ms:.3} ms", SPEED_BYTES / 1_000);
        if let Some((_, gain)) = &voted {
            print_vote(gain);
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// All prompts, again and again, of `SPEED_BYTES`.
fn long_text(prompts: &[Prompt]) -> String {
    let mut text = String::new();
    for prompt in prompts.iter().cycle() {
        text += &prompt.text;
        text.push('\n');
        if text.len() >= SPEED_BYTES {
            break;
        }
    }
    text.truncate(text.floor_char_boundary(SPEED_BYTES));
    text
}

fn median_ms<T>(work: impl Fn() -> T) -> f64 {
    let mut times: Vec<f64> = (0..SPEED_RUNS)
        .map(|_| {
            let began = Instant::now();
            black_box(work());
            began.elapsed().as_secs_f64() * 1_000.0
        })
        .collect();
    times.sort_by(f64::total_cmp);
    times[SPEED_RUNS / 2]
}

fn print(name: &str, arm: &Arm) {
    say!("{name}");
    let all = arm.figures.get_key_value(ALL);
    for (language, figure) in arm.figures.iter().filter(|(language, _)| *language != ALL).chain(all) {
        let Figure { n, right, unsure, macro_f1, low, high } = figure;
        say!("  {language:<5} n {n:>4}  macro-F1 {macro_f1:.3} [{low:.3}, {high:.3}]  {right} right, {unsure} unsure");
    }
}

fn print_vote(gain: &Voted) {
    let Voted { unsure, missed, median_ms, worth } = gain;
    say!("the vote on {} unsure prompts: points {}", unsure.with.n, unsure.points());
    say!("  {missed} votes missed, median {median_ms:.0} ms; worth it: {}", if *worth { "yes" } else { "no" });
}

/// A row a label, a column a route taken.
fn print_confusion(arm: &Arm, routes: &BTreeSet<&str>) {
    let columns: String = routes.iter().map(|route| format!(" {route:>10}")).collect();
    say!("{:<12}{columns}         F1", "label");
    for (label, taken) in &arm.confusion {
        let counts: String =
            routes.iter().map(|route| format!(" {:>10}", taken.get(*route).copied().unwrap_or(0))).collect();
        say!("{label:<12}{counts}      {:.3}", arm.f1.get(label).copied().unwrap_or_default());
    }
}
