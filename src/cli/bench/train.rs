//! `chimere bench --train`: what a step of training without gradients costs beside plain inference over the same batch.
//! Also how far a population and MeZO come in equally many forward passes. All run in one engine, in turn.

use std::fmt;
use std::fs;
use std::path::PathBuf;
use std::time::Instant;

use anyhow::{Context, bail};
use chimere::bench::{Interval, Rates};
use chimere::engine::load::{self, Kind};
use chimere::engine::protocol::{Command, EvalRow, Event, Probe};
use chimere::gguf::Gguf;
use chimere::training::pairs::{self, Pair};
use chimere::training::zeroth::{Ask, Walk};
use chimere::training::{Method, Objective, Outcome, Recipe};
use serde::Serialize;

use crate::cli::model_args::ModelArgs;
use crate::cli::train::{Here, SEQUENCES};

/// Name of the candidate in the engine.
const CANDIDATE: &str = "bench";
/// Share of the pairs kept out to be measured, per cent.
const HELD_OUT_PERCENT: u32 = 20;

/// What to measure.
pub struct Plan {
    pub model: ModelArgs,
    pub pairs: PathBuf,
    pub directions: usize,
    pub step_tokens: usize,
    pub rounds: usize,
    pub seeds: u64,
    /// Forward passes of a batch that each method has in a training; 0 = no trainings.
    pub forwards: usize,
}

/// One step of a population beside the evaluation of as many copies of its batch under the base weights.
#[derive(Debug, Serialize)]
pub struct Cost {
    pub rows: usize,
    pub tokens: usize,
    /// Medians over the rounds.
    pub plain_tokens_per_s: f64,
    pub step_tokens_per_s: f64,
    /// The step's rate to the plain one of the same round.
    pub speed: Interval,
    /// Most memory that this process held, bytes: through the plain batch, which came first, and then through the step.
    pub plain_peak_bytes: u64,
    pub step_peak_bytes: u64,
}

/// The trainings of one method.
#[derive(Debug, Serialize)]
pub struct Way {
    pub method: Method,
    pub steps: usize,
    pub rate: f32,
    /// Loss of the pairs kept out, nats a token, one value a seed.
    pub before: Vec<f64>,
    pub after: Vec<f64>,
    pub change: Interval,
    pub seconds: f64,
}

#[derive(Debug, Serialize)]
pub struct Report {
    pub model: String,
    pub threads: usize,
    pub rounds: usize,
    pub pairs: usize,
    pub directions: usize,
    pub cost: Cost,
    pub forwards: usize,
    pub ways: Vec<Way>,
    /// The population's change less that of MeZO, same pairs and seed.
    pub ahead: Option<Interval>,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Report { model, threads, rounds, pairs, directions, cost, forwards, ways, ahead } = self;
        let mb = |bytes: u64| bytes as f64 / 1e6;
        let Interval { mean, low, high, least, most } = cost.speed;
        writeln!(f, "model      {model}, {threads} threads, {pairs} pairs, {rounds} rounds in turn")?;
        writeln!(
            f,
            "step       {directions} directions and the candidate itself, {} rows, {} tokens\n",
            cost.rows, cost.tokens
        )?;
        writeln!(f, "{:<12} {:>12} {:>14}", "", "tokens/s", "peak memory")?;
        writeln!(f, "{:<12} {:>12.0} {:>11.1} MB", "plain batch", cost.plain_tokens_per_s, mb(cost.plain_peak_bytes))?;
        writeln!(f, "{:<12} {:>12.0} {:>11.1} MB", "step", cost.step_tokens_per_s, mb(cost.step_peak_bytes))?;
        writeln!(
            f,
            "{:<12} {:>12} {:>13.2} ×   speed [95 %] {low:.3} to {high:.3}, rounds {least:.3} to {most:.3}",
            "ratio",
            format!("{mean:.3} ×"),
            cost.step_peak_bytes as f64 / cost.plain_peak_bytes.max(1) as f64
        )?;
        if ways.is_empty() {
            return Ok(());
        }
        writeln!(
            f,
            "\n{forwards} forward passes of a batch each; loss of the pairs kept out, nats a token, {} seeds",
            ways[0].after.len()
        )?;
        writeln!(
            f,
            "{:<12} {:>6} {:>9} {:>9} {:>28} {:>8}",
            "method", "steps", "before", "after", "change [95 %]", "seconds"
        )?;
        for way in ways {
            let mean = |list: &[f64]| list.iter().sum::<f64>() / list.len() as f64;
            let change = format!("{:+.5} [{:+.5}, {:+.5}]", way.change.mean, way.change.low, way.change.high);
            let name = format!("{:?}", way.method).to_lowercase();
            let (before, after) = (mean(&way.before), mean(&way.after));
            writeln!(f, "{name:<12} {:>6} {before:>9.5} {after:>9.5} {change:>28} {:>8.0}", way.steps, way.seconds)?;
        }
        let Some(ahead) = ahead else { return Ok(()) };
        writeln!(f, "population less mezo, by seed: {:+.5} [{:+.5}, {:+.5}]", ahead.mean, ahead.low, ahead.high)
    }
}

/// Measures; `progress` is told after each round and each training.
pub fn run(plan: &Plan, progress: &mut dyn FnMut()) -> anyhow::Result<Report> {
    let path = plan.model.path()?;
    let (vocab, template) = load::text(&Gguf::open(&path)?, chimere::program::own().ok())?;
    let pairs = pairs::read(&plan.pairs, vocab.as_ref(), template.as_ref(), Objective::Likelihood)?.list;
    let longest = pairs.iter().map(|pair| pair.ids.len()).max().context("the file has no pair that can be used")?;
    let loaded = ModelArgs { context: longest as u32, adapters: true, ..plan.model.clone() };
    let loaded = loaded.load(Kind::Auto, SEQUENCES, false)?;
    let layers = loaded.hosted.model.layers;
    let mut engine = Here::start(loaded)?;
    let cost = cost(plan, &mut engine, &pairs, layers, progress)?;
    let mut ways = Vec::new();
    if plan.forwards > 0 {
        // In turn, seed by seed.
        let mut trained: [(Vec<Outcome>, f64); 2] = Default::default();
        for seed in 1..=plan.seeds {
            for (method, done) in [Method::Population, Method::Mezo].into_iter().zip(&mut trained) {
                let began = Instant::now();
                done.0.push(train(&mut engine, &recipe(plan, method, layers, seed), &pairs, layers)?);
                done.1 += began.elapsed().as_secs_f64();
                progress();
            }
        }
        for (method, (outcomes, seconds)) in [Method::Population, Method::Mezo].into_iter().zip(trained) {
            ways.push(way(&recipe(plan, method, layers, 1), outcomes, seconds)?);
        }
    }
    let changes = |way: &Way| way.after.iter().zip(&way.before).map(|(a, b)| a - b).collect::<Vec<f64>>();
    let ahead = match ways.as_slice() {
        [population, mezo] => {
            let apart = changes(population).iter().zip(changes(mezo)).map(|(p, m)| p - m).collect();
            Some(Rates(apart).interval())
        }
        _ => None,
    };
    let (model, threads) = (path.display().to_string(), plan.model.threads());
    let (rounds, directions, forwards) = (plan.rounds, plan.directions, plan.forwards);
    Ok(Report { model, threads, rounds, pairs: pairs.len(), directions, cost, forwards, ways, ahead })
}

fn recipe(plan: &Plan, method: Method, layers: usize, seed: u64) -> Recipe {
    let each = if method == Method::Mezo { 2 } else { plan.directions + 1 };
    Recipe {
        directions: plan.directions,
        step_tokens: plan.step_tokens,
        steps_max: (plan.forwards / each).max(1),
        epochs: usize::MAX,
        held_out_percent: HELD_OUT_PERCENT,
        seed,
        ..Recipe::of(method, layers)
    }
}

/// Where a training leaves its adapter, until it is counted.
struct Out(PathBuf);

impl Out {
    fn new() -> Out {
        Out(std::env::temp_dir().join(format!("chimere-bench-{}.gguf", std::process::id())))
    }
}

impl Drop for Out {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

fn train(engine: &mut Here, recipe: &Recipe, pairs: &[Pair], layers: usize) -> anyhow::Result<Outcome> {
    let out = Out::new();
    let mut walk = Walk::new(recipe, pairs.to_vec(), layers, None, out.0.clone())?;
    while let Some(ask) = walk.ask() {
        let answer = engine.ask(|id| ask.command(id, CANDIDATE))?;
        walk.take(&answer)?;
    }
    Ok(walk.outcome())
}

fn way(recipe: &Recipe, outcomes: Vec<Outcome>, seconds: f64) -> anyhow::Result<Way> {
    let losses = |of: fn(&Outcome) -> Option<f64>| outcomes.iter().map(of).collect::<Option<Vec<f64>>>();
    let before = losses(|o| o.loss_before).context("no pair was kept out")?;
    let after = losses(|o| o.loss_after).context("no pair was kept out")?;
    let change = Rates(after.iter().zip(&before).map(|(a, b)| a - b).collect()).interval();
    let steps = outcomes.first().map_or(0, |o| o.steps.len());
    Ok(Way { method: recipe.method, steps, rate: recipe.rate_max, before, after, change, seconds })
}

/// A step and the plain batch in turn, whoever went second going first in the next round.
fn cost(
    plan: &Plan,
    engine: &mut Here,
    pairs: &[Pair],
    layers: usize,
    progress: &mut dyn FnMut(),
) -> anyhow::Result<Cost> {
    let mut batch: Vec<EvalRow> = Vec::new();
    for pair in pairs {
        let full = batch.iter().map(|row| row.ids.len()).sum::<usize>() + pair.ids.len() > plan.step_tokens;
        if full && !batch.is_empty() {
            break;
        }
        batch.push(EvalRow { ids: pair.ids.clone(), scored_from: pair.scored_from });
    }
    let recipe = recipe(plan, Method::Population, layers, 1);
    let begin = Walk::new(&recipe, pairs.to_vec(), layers, None, Out::new().0.clone())?.ask();
    let begin = begin.context("nothing to begin with")?;
    sound(engine.ask(|id| begin.command(id, CANDIDATE))?)?;
    let copies = plan.directions + 1;
    let tokens = copies * batch.iter().map(|row| row.ids.len()).sum::<usize>();
    let (mut plain, mut step, mut peaks) = (Rates::default(), Rates::default(), [0, 0]);
    for round in 0..=plan.rounds {
        for way in if round % 2 == 0 { [0, 1] } else { [1, 0] } {
            forget_peak();
            let began = Instant::now();
            match way {
                0 => evaluate(engine, &batch, copies)?,
                _ => take_step(engine, &batch, plan.directions, round, recipe.size)?,
            }
            let rate = tokens as f64 / began.elapsed().as_secs_f64();
            if round == 0 {
                // Only here is the plain batch's memory free of what a step left to the allocator.
                peaks[way] = peak();
            } else {
                [&mut plain, &mut step][way].0.push(rate);
            }
        }
        progress();
    }
    sound(engine.ask(|id| Ask::Drop.command(id, CANDIDATE))?)?;
    let ratios = step.0.iter().zip(&plain.0).map(|(step, plain)| step / plain).collect();
    Ok(Cost {
        rows: copies * batch.len(),
        tokens,
        plain_tokens_per_s: plain.median(),
        step_tokens_per_s: step.median(),
        speed: Rates(ratios).interval(),
        plain_peak_bytes: peaks[0],
        step_peak_bytes: peaks[1],
    })
}

fn evaluate(engine: &mut Here, batch: &[EvalRow], copies: usize) -> anyhow::Result<()> {
    let rows = std::iter::repeat_n(batch, copies).flatten().cloned().collect();
    sound(engine.ask(|id| Command::Evaluate { id, adapter: None, rows, with_kl: false })?)
}

/// Probes and moves, as far as the losses would take it: nowhere, so that every round does the same work.
fn take_step(engine: &mut Here, batch: &[EvalRow], directions: usize, round: usize, size: f32) -> anyhow::Result<()> {
    let seeds = (0..directions as u64).map(|n| (round as u64) << 32 | n);
    let probes: Vec<Probe> = seeds.clone().map(|seed| Probe { seed, size }).collect();
    let probes = [vec![Probe { seed: 0, size: 0.0 }], probes].concat();
    let rows = batch.to_vec();
    sound(engine.ask(|id| Ask::Probe { probes, rows }.command(id, CANDIDATE))?)?;
    let moves = seeds.map(|seed| Probe { seed, size: 0.0 }).collect();
    sound(engine.ask(|id| Ask::Move(moves).command(id, CANDIDATE))?)
}

fn sound(event: Event) -> anyhow::Result<()> {
    match event {
        Event::Failed { message, .. } => bail!("the engine: {message}"),
        _ => Ok(()),
    }
}

/// Makes the present memory the most that was held (Linux).
fn forget_peak() {
    let _ = fs::write("/proc/self/clear_refs", "5");
}

/// The most memory held since then, bytes; 0 where the system does not say.
fn peak() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let kib =
        status.lines().find_map(|line| line.strip_prefix("VmHWM:")?.split_whitespace().next()?.parse::<u64>().ok());
    kib.unwrap_or(0) << 10
}
