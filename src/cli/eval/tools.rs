//! `chimere eval tools`: what built-in tools are worth. The same items without tools, with tools offered, and with a first
//! call that has to be made.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::mpsc::{Receiver, sync_channel};

use chimere::clock::Clock;
use chimere::engine::grammar::{Calls, Function, Grammar};
use chimere::engine::host::HostLimits;
use chimere::engine::load::Kind;
use chimere::engine::process::{self, Running};
use chimere::engine::protocol::Event;
use chimere::eval::gain::Gain;
use chimere::eval::golden::{self, Exam, Item, Outcome, Score};
use chimere::eval::tools::{self, ToolItem};
use chimere::toolcall;
use chimere::tools::{CALL_TIMEOUT, TOOLS, Toolbox};
use chimere::turn::{Message, Role, Thinking, ToolCall};
use chimere::whole;
use serde::Serialize;
use serde_json::{Value, json};
use tokio::runtime::Runtime;

use super::super::exit::{cannot_write, say};
use super::super::model_args::{ModelArgs, bar};

/// Generations that may call; one more follows without tools.
const ROUNDS: usize = 2;

#[derive(clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    model: ModelArgs,
    /// Backend that computes
    #[arg(long, default_value = "auto")]
    backend: Kind,
    /// Items of each of the three families: arithmetic, units, dates
    #[arg(long, value_name = "N", default_value_t = 200, value_parser = clap::value_parser!(u16).range(1..=10_000))]
    per_family: u16,
    /// Seed of the items
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Tokens of thought before `</think>` is forced; 0 = no thought
    #[arg(long, default_value_t = 192)]
    thinking: u32,
    /// Requests at a time
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u16).range(1..=256))]
    parallel: u16,
    /// Write the result of every item under each arm to this file (JSONL)
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// As JSON
    #[arg(long)]
    json: bool,
}

/// How the items are asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Arm {
    Without,
    Offered,
    Forced,
}

/// One item under one arm.
#[derive(Serialize)]
struct Answered {
    arm: Arm,
    #[serde(flatten)]
    outcome: Outcome,
    /// Calls made, and those that gave a result.
    calls: usize,
    done: usize,
    /// The first call was the one that the item is answered by.
    right_call: bool,
}

/// An engine, the tools, and the items.
struct Examiner {
    engine: Running,
    events: Receiver<Vec<Event>>,
    items: Vec<ToolItem>,
    exam: Exam,
    toolbox: Toolbox,
    runtime: Runtime,
}

pub(super) fn run(args: Args) -> anyhow::Result<ExitCode> {
    let parallel = usize::from(args.parallel);
    let thinking = if args.thinking == 0 { Thinking::Off } else { Thinking::On { budget_tokens: args.thinking } };
    let loaded = args.model.load(args.backend, parallel, true)?;
    let (model, hash) = (loaded.hosted.model.name.clone(), loaded.hosted.model_hash.clone());
    let (to_us, events) = sync_channel(64);
    let limits = HostLimits { waiting_max: parallel, step_tokens_max: 512, ..HostLimits::default() };
    let examiner = Examiner {
        engine: process::start(loaded, limits, to_us)?,
        events,
        items: tools::items(args.per_family.into(), args.seed),
        exam: Exam { thinking, parallel, ..Exam::default() },
        toolbox: Toolbox::new(chimere::program::own()?, Clock::wall()),
        runtime: tokio::runtime::Builder::new_current_thread().enable_all().build()?,
    };
    let arms = [Arm::Without, Arm::Offered, Arm::Forced];
    let answered = arms.into_iter().map(|arm| examiner.arm(arm)).collect::<anyhow::Result<Vec<_>>>()?;
    if let Some(path) = &args.out {
        let lines = answered.iter().flatten().map(serde_json::to_string).collect::<Result<Vec<_>, _>>()?;
        std::fs::write(path, lines.join("\n") + "\n").map_err(cannot_write(path))?;
    }
    let reports: Vec<Value> = answered.iter().map(|arm| report(arm, &answered[0])).collect();
    if args.json {
        say!("{:#}", json!({"model": model, "model_hash": hash, "seed": args.seed, "arms": reports}));
    } else {
        answered.iter().for_each(|arm| print(arm, &answered[0]));
    }
    Ok(ExitCode::SUCCESS)
}

impl Examiner {
    /// Every item, round by round: what was called is run, and the item is asked again with call and result behind it.
    fn arm(&self, arm: Arm) -> anyhow::Result<Vec<Answered>> {
        let definitions: Vec<Value> = TOOLS.iter().map(|tool| tool.definition()).collect();
        let mut asked: Vec<Item> = self.items.iter().map(|made| made.item.clone()).collect();
        if arm != Arm::Without {
            asked.iter_mut().for_each(|item| item.tools.clone_from(&definitions));
        }
        let blank = |item: &Item| Answered { arm, outcome: Outcome::blank(item), calls: 0, done: 0, right_call: false };
        let mut answered: Vec<Answered> = asked.iter().map(blank).collect();
        let mut open: Vec<usize> = (0..asked.len()).collect();
        let bar = bar(asked.len() as u64, "asking");
        for round in 0..=ROUNDS {
            let last = round == ROUNDS;
            let mut items: Vec<Item> = open.iter().map(|&at| asked[at].clone()).collect();
            if last {
                items.iter_mut().for_each(|item| item.tools.clear());
            }
            let grammar = (arm == Arm::Forced && round == 0).then(|| forced(&definitions));
            let exam = Exam { grammar, ..self.exam.clone() };
            let outcomes = golden::run(&self.engine, &self.events, &items, &exam, &mut |_| ())?;
            let mut still = Vec::new();
            for (&at, outcome) in open.iter().zip(outcomes) {
                let (content, calls) = toolcall::parse(&outcome.reply, &items[0].tools);
                let entry = &mut answered[at];
                if !calls.is_empty() && !last && outcome.error.is_none() {
                    entry.right_call |= entry.calls == 0 && same(&calls, &self.items[at].call);
                    entry.calls += calls.len();
                    entry.done += self.answer(&mut asked[at].messages, &content, calls);
                    still.push(at);
                } else {
                    bar.inc(1);
                }
                let tokens = entry.outcome.tokens + outcome.tokens;
                entry.outcome = Outcome { tokens, ..outcome };
            }
            open = still;
            if open.is_empty() {
                break;
            }
        }
        bar.finish_and_clear();
        Ok(answered)
    }

    /// Runs calls and puts them and their results behind the messages; how many gave one.
    fn answer(&self, messages: &mut Vec<Message>, content: &str, calls: Vec<ToolCall>) -> usize {
        let said = Message { tool_calls: calls.clone(), ..Message::new(Role::Assistant, content.trim()) };
        messages.push(said);
        let mut done = 0;
        for call in calls {
            let arguments = whole::written(&call.arguments);
            let run = self.toolbox.run(&call.name, &arguments, CALL_TIMEOUT);
            let text = match self.runtime.block_on(run) {
                Ok(output) => {
                    done += 1;
                    output.text
                }
                Err(error) => format!("error: {error}"),
            };
            let (tool_call_id, name) = (Some(call.id), Some(call.name));
            messages.push(Message { tool_call_id, name, ..Message::new(Role::Tool, text) });
        }
        done
    }
}

/// One call of any of the tools, and nothing else.
fn forced(definitions: &[Value]) -> Grammar {
    let function = |definition: &Value| {
        let function = &definition["function"];
        let name = function["name"].as_str().unwrap_or_default().to_owned();
        Function { name, parameters: function["parameters"].clone(), strict: false }
    };
    Grammar::Calls(Calls {
        functions: definitions.iter().map(function).collect(),
        required: true,
        single: true,
        several: false,
        answer: None,
    })
}

fn same(calls: &[ToolCall], right: &ToolCall) -> bool {
    calls.first().is_some_and(|call| call.name == right.name && call.arguments == right.arguments)
}

fn report(arm: &[Answered], without: &[Answered]) -> Value {
    let outcomes: Vec<Outcome> = arm.iter().map(|answered| answered.outcome.clone()).collect();
    let name = arm.first().map(|answered| answered.arm);
    json!({"arm": name, "gain": gain(arm, without), "families": golden::scores(&outcomes, |o| &o.family),
        "called": counted(arm, |a| a.calls > 0), "calls": arm.iter().map(|a| a.calls).sum::<usize>(),
        "done": arm.iter().map(|a| a.done).sum::<usize>(), "right_call": counted(arm, |a| a.right_call),
        "tokens_mean": arm.iter().map(|a| f64::from(a.outcome.tokens)).sum::<f64>() / arm.len().max(1) as f64})
}

fn counted(arm: &[Answered], of: fn(&Answered) -> bool) -> usize {
    arm.iter().filter(|answered| of(answered)).count()
}

fn gain(arm: &[Answered], without: &[Answered]) -> Gain {
    Gain::of(without.iter().zip(arm).map(|(before, after)| (before.outcome.passed, after.outcome.passed)))
}

fn print(arm: &[Answered], without: &[Answered]) {
    let gain = gain(arm, without);
    let percent = |score: &Score| {
        let Score { n, rate, low, high, .. } = score;
        format!("{:5.1} %  [{:.1}, {:.1}]  n {n}", rate * 100.0, low * 100.0, high * 100.0)
    };
    let name = format!("{:?}", arm.first().map_or(Arm::Without, |answered| answered.arm)).to_lowercase();
    let called = counted(arm, |a| a.calls > 0);
    say!("{name:<10} {}  {}  {called} called", percent(&gain.with), gain.points());
    let outcomes: Vec<Outcome> = arm.iter().map(|answered| answered.outcome.clone()).collect();
    for (family, score) in golden::scores(&outcomes, |o| &o.family) {
        say!("  {family:<10} {}", percent(&score));
    }
}
