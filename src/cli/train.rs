//! `chimere train`: learns an adapter from a file of verified pairs. The night runs the same command as a child.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use chimere::engine::adapter::{self, BaseModel};
use chimere::engine::gradient::Trunk;
use chimere::engine::load::{self, model_hash};
use chimere::gguf::Gguf;
use chimere::training::{self, Recipe, Step, pairs, recipe};
use serde_json::json;

use super::exit::{EX_TEMPFAIL, note, say};
use super::model_args::{ModelArgs, bar};

/// Learn an adapter from verified pairs (first-order LoRA through the whole trunk, on the processor)
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    model: ModelArgs,
    /// Pairs, JSON lines: {"messages", "reply"} or {"prompt_ids", "reply_ids"}, with "weight" if not 1
    #[arg(long, value_name = "FILE")]
    pairs: PathBuf,
    /// Adapter to write (GGUF)
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
    #[arg(long, default_value_t = Recipe::default().rank as u16, value_parser = clap::value_parser!(u16).range(1..=64))]
    rank: u16,
    /// What B·(A·x) is multiplied by is alpha / rank
    #[arg(long, default_value_t = Recipe::default().alpha)]
    alpha: f32,
    /// First layer that is changed
    #[arg(long, default_value_t = Recipe::default().layer_first)]
    layer_first: usize,
    /// Matrices that are changed; default: mixers and shared expert
    #[arg(long, value_name = "NAME", value_parser = recipe::TARGETS, value_delimiter = ',')]
    targets: Vec<String>,
    /// Largest learning rate
    #[arg(long, default_value_t = Recipe::default().rate_max)]
    rate: f32,
    /// Tokens of a step, prompts counted
    #[arg(long, default_value_t = Recipe::default().step_tokens)]
    step_tokens: usize,
    /// Passes over the pairs
    #[arg(long, default_value_t = Recipe::default().epochs as u16, value_parser = clap::value_parser!(u16).range(1..=100))]
    epochs: u16,
    /// End after this many steps; 0 = when the pairs are through
    #[arg(long, default_value_t = 0)]
    steps: usize,
    /// Share of the pairs kept out to be measured, per cent
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
    /// Leave the machine to everybody else, and end when standard input ends
    #[arg(long)]
    background: bool,
    /// End rather than take more address space than this
    #[arg(long, value_name = "MIB", value_parser = clap::value_parser!(u64).range(64..))]
    memory_max: Option<u64>,
}

impl Args {
    fn recipe(&self) -> Recipe {
        Recipe {
            rank: usize::from(self.rank),
            alpha: self.alpha,
            layer_first: self.layer_first,
            targets: self.targets.clone(),
            rate_max: self.rate,
            step_tokens: self.step_tokens,
            epochs: usize::from(self.epochs),
            steps_max: self.steps,
            held_out_percent: self.held_out,
            seed: self.seed,
            ..Recipe::default()
        }
    }
}

pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    if let Some(mib) = args.memory_max {
        chimere_ffi::limits::bound_address_space(mib.saturating_mul(1 << 20))?;
    }
    if args.background {
        // Before the first thread: they inherit it.
        chimere_ffi::limits::lower_priority()?;
        std::thread::spawn(end_with_input);
    }
    let path = args.model.path()?;
    let header = Gguf::open(&path).with_context(|| format!("cannot read the model {}", path.display()))?;
    let base = BaseModel::new(&header, &model_hash(&path, &header)?);
    let (vocab, template) = load::text(&path, &header, std::env::current_exe().ok())?;
    let read = pairs::read(&args.pairs, vocab.as_ref(), template.as_ref())?;
    for (line, reason) in &read.refused {
        note!("{}:{line}: left out: {reason}", args.pairs.display());
    }
    let loading = bar(1000, "loading");
    let from = args.from.as_deref().map(|from| adapter::read(from, &base).map(|(adapter, ..)| adapter)).transpose()?;
    let mut trunk = Trunk::load(&path, args.model.threads(), &mut |done| loading.set_position((done * 1000.0) as u64))?;
    loading.finish_and_clear();
    let training = bar(0, "training");
    let began = std::time::Instant::now();
    let trained = training::train(&mut trunk, &base, from.as_ref(), &read.list, &args.recipe(), &mut |step| {
        training.set_length(step.steps as u64);
        training.set_position(step.step as u64);
        report(&step, args.json);
        true
    });
    training.finish_and_clear();
    let (adapter, outcome) = trained?;
    let (bytes, sha256) = adapter.write(&args.out)?;
    let seconds = began.elapsed().as_secs_f64();
    if args.json {
        let facts = adapter.facts(bytes, &sha256);
        say!("{}", json!({"outcome": outcome, "adapter": facts, "refused": read.refused.len(), "seconds": seconds}));
        return Ok(ExitCode::SUCCESS);
    }
    say!("{} pairs in {} steps, {} tokens, {seconds:.1} s", outcome.pairs, outcome.steps.len(), outcome.tokens);
    if let (Some(before), Some(after)) = (outcome.loss_before, outcome.loss_after) {
        say!("loss of {} pairs kept out: {before:.4} before, {after:.4} after", outcome.held_out);
    }
    say!("{} ({bytes} bytes, sha256 {sha256})", args.out.display());
    Ok(ExitCode::SUCCESS)
}

/// Whoever holds the other end of standard input is gone: nobody waits for the adapter.
fn end_with_input() {
    let _ = std::io::copy(&mut std::io::stdin().lock(), &mut std::io::sink());
    std::process::exit(i32::from(EX_TEMPFAIL));
}

fn report(step: &Step, json: bool) {
    if json {
        say!("{}", json!(step));
    }
}
