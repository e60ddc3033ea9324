//! `chimere eval thought`: what a thought is worth. The same items under fixed budgets, and under thoughts that end once
//! the model is certain: accuracy against tokens of thought.

use std::process::ExitCode;
use std::sync::mpsc::{Receiver, sync_channel};

use chimere::engine::host::HostLimits;
use chimere::engine::load::Kind;
use chimere::engine::process::{self, Running};
use chimere::engine::protocol::Event;
use chimere::eval::golden::{self, Exam, Item, Outcome, Score};
use chimere::turn::{BudgetForcing, ReflectionSuppression, Thinking, ThoughtEnd, ThoughtPolicy};
use serde::Serialize;
use serde_json::json;

use super::super::exit::say;
use super::super::model_args::{ModelArgs, bar};
use super::ask::Ask;

#[derive(clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    model: ModelArgs,
    /// Backend that computes
    #[arg(long, default_value = "auto")]
    backend: Kind,
    #[command(flatten)]
    ask: Ask,
    /// Fixed budgets to compare with, tokens
    #[arg(long, value_delimiter = ',', default_value = "0,16,32,48,64,96,128")]
    budgets: Vec<u32>,
    /// Certainties at which a thought ends (0 to 1), within the budget of `--thinking`
    #[arg(long, value_delimiter = ',', default_value = "0.9,0.95,0.97,0.98,0.99,0.995")]
    certainties: Vec<f32>,
    /// Tokens in a row that must be that certain
    #[arg(long, default_value_t = 8)]
    tokens: u32,
    /// Tokens that every thought has at least
    #[arg(long, default_value_t = 16)]
    tokens_min: u32,
    /// Certainties above which no sentence of a thought may begin with a word such as "Wait"
    #[arg(long, value_delimiter = ',', default_value = "0.9")]
    suppress: Vec<f32>,
}

/// What one way to bound the thought came to.
#[derive(Serialize)]
struct Arm {
    name: String,
    score: Score,
    /// Mean tokens of thought an item.
    thought_tokens: f64,
    /// Items whose thought ended because it was certain, and tokens before which words were forbidden.
    certain: usize,
    suppressed: u64,
}

impl Arm {
    fn of(name: String, outcomes: &[Outcome]) -> Arm {
        let uses = || outcomes.iter().filter_map(|o| o.thought_use);
        let tokens: u64 = outcomes.iter().map(|o| u64::from(o.tokens - o.answer_tokens)).sum();
        Arm {
            name,
            score: Score::of(outcomes.iter().filter(|o| o.passed).count(), outcomes.len()),
            thought_tokens: tokens as f64 / outcomes.len().max(1) as f64,
            certain: uses().filter(|used| used.ended == Some(ThoughtEnd::Certain)).count(),
            suppressed: uses().map(|used| u64::from(used.suppressed)).sum(),
        }
    }
}

/// An engine, and the items that it is asked in one way after another.
struct Examiner {
    engine: Running,
    events: Receiver<Vec<Event>>,
    items: Vec<Item>,
    parallel: usize,
}

impl Examiner {
    fn arm(&self, name: String, thinking: Thinking, thought: Option<ThoughtPolicy>) -> anyhow::Result<Arm> {
        let bar = bar(self.items.len() as u64, "asking");
        let exam = Exam { thinking, thought, parallel: self.parallel, ..Exam::default() };
        let outcomes = golden::run(&self.engine, &self.events, &self.items, &exam, &mut |_| bar.inc(1))?;
        bar.finish_and_clear();
        Ok(Arm::of(name, &outcomes))
    }
}

pub(super) fn run(args: Args) -> anyhow::Result<ExitCode> {
    let (items, parallel, whole) = (args.ask.items()?, args.ask.parallel(), args.ask.thinking());
    let policies = policies(&args)?;
    let loaded = args.model.load(args.backend, parallel, true)?;
    let hash = loaded.hosted.model_hash.clone();
    let (to_us, events) = sync_channel(64);
    let limits = HostLimits { waiting_max: parallel, step_tokens_max: 512, ..HostLimits::default() };
    let examiner = Examiner { engine: process::start(loaded, limits, to_us)?, events, items, parallel };
    let mut arms = vec![examiner.arm("whole".to_owned(), whole, None)?];
    for budget_tokens in args.budgets {
        let thinking = if budget_tokens == 0 { Thinking::Off } else { Thinking::On { budget_tokens } };
        arms.push(examiner.arm(format!("budget {budget_tokens}"), thinking, None)?);
    }
    for (name, policy) in policies {
        arms.push(examiner.arm(name, whole, Some(policy))?);
    }
    if args.ask.json {
        say!("{:#}", json!({ "model_hash": hash, "set": args.ask.set, "arms": arms }));
    } else {
        arms.iter().for_each(print);
    }
    Ok(ExitCode::SUCCESS)
}

/// The policies that are asked for, named.
fn policies(args: &Args) -> anyhow::Result<Vec<(String, ThoughtPolicy)>> {
    let (tokens, tokens_min) = (args.tokens, args.tokens_min);
    let forcing = args.certainties.iter().map(|&certainty_min| {
        let budget_forcing = Some(BudgetForcing { certainty_min, tokens, tokens_min });
        (format!("certain {certainty_min}"), ThoughtPolicy { budget_forcing, ..ThoughtPolicy::default() })
    });
    let suppressing = args.suppress.iter().map(|&certainty_min| {
        let reflection_suppression = Some(ReflectionSuppression { certainty_min });
        (format!("suppressed {certainty_min}"), ThoughtPolicy { reflection_suppression, ..ThoughtPolicy::default() })
    });
    let policies: Vec<_> = forcing.chain(suppressing).collect();
    for (_, policy) in &policies {
        policy.check().map_err(anyhow::Error::msg)?;
    }
    Ok(policies)
}

fn print(arm: &Arm) {
    let Score { n, rate, low, high, .. } = arm.score;
    let rate = format!("{:5.1} %  [{:.1}, {:.1}]  n {n}", rate * 100.0, low * 100.0, high * 100.0);
    let tokens = arm.thought_tokens;
    say!(
        "{:<16} {rate}  {tokens:6.1} tokens of thought  {} ended certain  {} suppressed",
        arm.name,
        arm.certain,
        arm.suppressed
    );
}
