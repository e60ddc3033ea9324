//! `chimere train`: learns an adapter from a file of verified pairs. The night runs the same command as a child.

mod here;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::Context;
use chimere::engine::adapter::{self, AdapterFacts, BaseModel};
use chimere::engine::gradient::Trunk;
use chimere::engine::learns;
use chimere::engine::load::{self, Kind, model_hash};
use chimere::gguf::Gguf;
use chimere::plural::counted;
use chimere::training::pairs::{Pair, Pairs};
use chimere::training::zeroth::Walk;
use chimere::training::{self, Method, Objective, Onward, Outcome, Recipe, Step, pairs, recipe};
use indicatif::ProgressBar;
use serde_json::json;

pub use here::{Here, SEQUENCES};

use super::exit::{EX_DATAERR, coded, end_with_input, note, say};
use super::model_args::{ModelArgs, bar};

/// Train an adapter on verified pairs, on the processor
///
/// `gradient` goes through the whole trunk and is worth three to five points on questions like the pairs (nano/effect). `population` and
/// `mezo` only ever evaluate, on an engine and its quantised weights, without a backward pass: expect half a point at
/// most, for some eighty times the work. Ctrl-C ends a training and leaves no file; FILE is written whole, at the end.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    model: ModelArgs,
    /// Pairs, JSON lines: {"messages", "reply"} or {"prompt_ids", "reply_ids"}, with "weight" if not 1, and "rejected" or
    /// "rejected_ids" where a worse reply is known
    #[arg(long, value_name = "FILE")]
    pairs: PathBuf,
    /// Adapter to write (GGUF)
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
    /// Method that finds the direction of a step
    #[arg(long, value_enum, default_value = "gradient")]
    method: Method,
    /// What a step improves: `preference` also makes each reply likelier than its line's "rejected" one (method gradient)
    #[arg(long, value_enum, default_value = "likelihood")]
    objective: Objective,
    /// Weight of that margin, for each nat of it
    #[arg(long, default_value_t = Recipe::default().beta)]
    beta: f32,
    /// Rank of the factors; default: 16; without gradients 4
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=64))]
    rank: Option<u16>,
    /// B·(A·x) is multiplied by alpha / rank; default: the rank
    #[arg(long)]
    alpha: Option<f32>,
    /// First layer that is changed; default: 2, without gradients the last one
    #[arg(long)]
    layer_first: Option<usize>,
    /// Matrices that are changed; default: mixers and shared expert. The router is none of them
    #[arg(long, value_name = "NAME", value_parser = recipe::TARGETS, value_delimiter = ',')]
    targets: Vec<String>,
    /// Largest learning rate; default: 0.002; population 0.1, mezo 0.3
    #[arg(long)]
    rate: Option<f32>,
    /// Perturbations of a step (method population)
    #[arg(long, default_value_t = Recipe::default().directions as u16, value_parser = clap::value_parser!(u16).range(2..=4095))]
    directions: u16,
    /// Size of a perturbation of B (without gradients)
    #[arg(long, default_value_t = Recipe::default().size)]
    size: f32,
    /// Tokens of a step, prompts counted
    #[arg(long, default_value_t = Recipe::default().step_tokens)]
    step_tokens: usize,
    /// Passes over the pairs
    #[arg(long, default_value_t = Recipe::default().epochs as u16, value_parser = clap::value_parser!(u16).range(1..=1000))]
    epochs: u16,
    /// Adapters to learn one after the other, from one start in different orders; their mean is kept
    #[arg(long, default_value_t = Recipe::default().members as u16, value_parser = clap::value_parser!(u16).range(1..=16))]
    members: u16,
    /// End after this many steps; 0 = when the pairs are through
    #[arg(long, default_value_t = 0)]
    steps: usize,
    /// Take no further step after this many minutes, and keep the result
    #[arg(long, value_name = "MINUTES", value_parser = minutes)]
    minutes_max: Option<f64>,
    /// Share of the pairs that is held out for measuring, per cent
    #[arg(long, default_value_t = Recipe::default().held_out_percent, value_parser = clap::value_parser!(u32).range(0..=50))]
    held_out: u32,
    #[arg(long, default_value_t = Recipe::default().seed)]
    seed: u64,
    /// Adapter to go on from, of the same rank, alpha and matrices
    #[arg(long, value_name = "FILE")]
    from: Option<PathBuf>,
    /// A JSON line for every step and for the outcome
    #[arg(long)]
    json: bool,
    /// Run at the lowest priority, and end when standard input ends
    #[arg(long)]
    background: bool,
    /// With --background: keep the priority that it was started with
    #[arg(long, requires = "background")]
    keep_priority: bool,
    /// Most address space; the process ends before it takes more
    #[arg(long, value_name = "MIB", value_parser = clap::value_parser!(u64).range(64..))]
    memory_max: Option<u64>,
}

fn minutes(text: &str) -> Result<f64, String> {
    let found: f64 = text.parse().map_err(|_| format!("{text} is no number"))?;
    if found > 0.0 && found <= 10_080.0 { Ok(found) } else { Err("must be above 0 and at most a week".into()) }
}

impl Args {
    /// How to train a model of `layers` layers.
    fn recipe(&self, layers: usize) -> Recipe {
        let best = Recipe::of(self.method, layers);
        let rank = self.rank.map_or(best.rank, usize::from);
        Recipe {
            objective: self.objective,
            beta: self.beta,
            rank,
            alpha: self.alpha.unwrap_or(rank as f32),
            layer_first: self.layer_first.unwrap_or(best.layer_first),
            targets: self.targets.clone(),
            rate_max: self.rate.unwrap_or(best.rate_max),
            step_tokens: self.step_tokens,
            epochs: usize::from(self.epochs),
            members: usize::from(self.members),
            steps_max: self.steps,
            held_out_percent: self.held_out,
            seed: self.seed,
            directions: self.directions.into(),
            size: self.size,
            ..best
        }
    }
}

pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    if let Some(mib) = args.memory_max {
        chimere_ffi::limits::bound_address_space(mib.saturating_mul(1 << 20))?;
    }
    if args.background {
        if !args.keep_priority {
            // Before the first thread: they inherit it.
            chimere_ffi::limits::lower_priority()?;
        }
        // Whoever holds the other end is gone: nobody waits for the adapter.
        end_with_input();
    }
    anyhow::ensure!(
        args.beta > 0.0 && args.beta <= 100.0,
        "--beta is {}, but must be above 0 and at most 100",
        args.beta
    );
    anyhow::ensure!(args.model.adapter.is_none(), "--adapter is not for training: --from names what it goes on from");
    let path = args.model.path()?;
    let header = Gguf::open(&path).with_context(|| format!("cannot read the model {}", path.display()))?;
    if let Some(why) = learns::frozen_file(&header) {
        return Err(coded(EX_DATAERR, learns::refused(&why)));
    }
    let (vocab, template) = load::text(&header, chimere::program::own().ok())?;
    let read = pairs::read(&args.pairs, vocab.as_ref(), template.as_ref(), args.objective)?;
    for (line, reason) in &read.refused {
        note!("{}:{line}: left out: {reason}", args.pairs.display());
    }
    let watch = Watch::new(&args);
    let refused = read.refused.len();
    let (outcome, facts) = match args.method {
        Method::Gradient => with_gradients(&args, &path, &header, &read, &watch)?,
        Method::Population | Method::Mezo => without(&args, read, &watch)?,
    };
    let seconds = watch.began.elapsed().as_secs_f64();
    if args.json {
        let said = json!({"outcome": outcome, "adapter": facts, "refused": refused, "seconds": seconds});
        say!("{said}");
        return Ok(ExitCode::SUCCESS);
    }
    let (pairs, steps) = (counted(outcome.pairs, "pair", "pairs"), counted(outcome.steps.len(), "step", "steps"));
    say!("{pairs} in {steps}, {}, {seconds:.1} s", counted(outcome.tokens, "token", "tokens"));
    let losses: Vec<f64> = outcome.steps.iter().map(|step| step.loss).collect();
    // A dozen points of the curve, each the mean of its neighbourhood.
    let part = losses.len().div_ceil(12).max(1);
    let means: Vec<f64> = losses.chunks(part).map(|part| part.iter().sum::<f64>() / part.len() as f64).collect();
    let curve: Vec<String> = means.iter().map(|loss| format!("{loss:.4}")).collect();
    say!("loss of the steps, {part} to a number: {}", curve.join(" "));
    if let (Some(before), Some(after)) = (outcome.loss_before, outcome.loss_after) {
        let held_out = counted(outcome.held_out, "pair", "pairs");
        say!("loss of {held_out} kept out: {before:.4} before, {after:.4} after");
    }
    if let (Some(before), Some(after)) = (outcome.margin_before, outcome.margin_after) {
        say!("margin over the rejected replies: {before:.3} nats before, {after:.3} after");
    }
    say!("{} ({} bytes, sha256 {})", args.out.display(), facts.bytes, facts.sha256);
    Ok(ExitCode::SUCCESS)
}

fn with_gradients(
    args: &Args,
    path: &Path,
    header: &Gguf,
    read: &Pairs,
    watch: &Watch,
) -> anyhow::Result<(Outcome, AdapterFacts)> {
    let base = BaseModel::new(header, &model_hash(path, header)?);
    let loading = bar(1000, "loading");
    let from = args.from.as_deref().map(|from| adapter::read(from, &base).map(|(adapter, ..)| adapter)).transpose()?;
    let mut trunk = Trunk::load(path, args.model.threads(), &mut |done| loading.set_position((done * 1000.0) as u64))?;
    loading.finish_and_clear();
    let recipe = args.recipe(0);
    let trained = training::train(&mut trunk, &base, from.as_ref(), &read.list, &recipe, &mut |step| watch.step(&step));
    watch.bar.finish_and_clear();
    let (adapter, outcome) = trained?;
    let (bytes, sha256) = adapter.write(&args.out)?;
    Ok((outcome, adapter.facts(bytes, &sha256)))
}

/// Name of the candidate in the engine.
const CANDIDATE: &str = "train";

fn without(args: &Args, read: Pairs, watch: &Watch) -> anyhow::Result<(Outcome, AdapterFacts)> {
    let longest = read.list.iter().map(|pair: &Pair| pair.ids.len()).max().unwrap_or(1);
    let loaded = ModelArgs { context: longest as u32, adapters: true, ..args.model.clone() };
    let loaded = loaded.load(Kind::Auto, SEQUENCES, false)?;
    let layers = loaded.hosted.model.layers;
    let from = args.from.as_deref().map(|from| Ok::<_, anyhow::Error>((from.into(), adapter::sha256_of(from)?.1)));
    let mut walk = Walk::new(&args.recipe(layers), read.list, layers, from.transpose()?, args.out.clone())?;
    let mut engine = Here::start(loaded)?;
    let mut facts = None;
    while let Some(ask) = walk.ask() {
        let answer = engine.ask(|id| ask.command(id, CANDIDATE))?;
        if let chimere::engine::protocol::Event::CandidateSaved { facts: saved, .. } = &answer {
            facts = Some(saved.clone());
        }
        if let Some(step) = walk.take(&answer)?
            && watch.step(&step) == Onward::Finish
        {
            walk.finish();
        }
    }
    watch.bar.finish_and_clear();
    Ok((walk.outcome(), facts.context("the engine did not say what it saved")?))
}

/// Shows how far a training is, and says when its time is up.
struct Watch {
    began: Instant,
    minutes_max: Option<f64>,
    json: bool,
    bar: ProgressBar,
}

impl Watch {
    fn new(args: &Args) -> Watch {
        Watch { began: Instant::now(), minutes_max: args.minutes_max, json: args.json, bar: bar(0, "training") }
    }

    fn step(&self, step: &Step) -> Onward {
        self.bar.set_length(step.steps as u64);
        self.bar.set_position(step.step as u64);
        self.bar.set_message(format!("loss {:.4}", step.loss));
        if self.json {
            say!("{}", json!(step));
        }
        match self.minutes_max {
            Some(minutes) if self.began.elapsed() >= Duration::from_secs_f64(minutes * 60.0) => Onward::Finish,
            _ => Onward::Go,
        }
    }
}
