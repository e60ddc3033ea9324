//! `chimere bench`: prefill and decode rates of one or two backends on the same file, measured in turn.

#[cfg(feature = "llama")]
mod card;
mod forms;
mod load;
mod mixed;
mod server;
mod stream;
mod train;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

#[cfg(feature = "llama")]
use anyhow::Context;
use chimere::bench::{self, Case, Lane, Report, Row};
use chimere::engine::load::Kind;
#[cfg(feature = "llama")]
use chimere::gguf::synthetic::{Qwen35Moe, Types};
#[cfg(feature = "llama")]
use chimere_ffi::DType;

use super::exit::say;
use super::model_args::{ModelArgs, bar};

/// Measure prefill and decode speed, with bytes per token and the share of memory bandwidth
#[derive(clap::Args, Clone)]
pub struct Args {
    #[command(flatten)]
    model: ModelArgs,
    /// Backends to measure in turn on the same file; ratios are to the last one. `cuda` alone also prints the rates
    /// without copies to the host, the placement, and the time of each kernel
    #[arg(long, visible_alias = "device", value_delimiter = ',', default_value = "auto")]
    backend: Vec<Kind>,
    /// Sequences decoded together, one case each
    #[arg(long, value_delimiter = ',', default_value = "1,8", value_parser = clap::value_parser!(u16).range(1..=256))]
    batch: Vec<u16>,
    /// Prompt lengths of the prefill cases
    #[arg(long, value_delimiter = ',', default_value = "512", value_parser = clap::value_parser!(u32).range(1..=65536))]
    prompt: Vec<u32>,
    /// Prompt tokens before decoding, one case each
    #[arg(long, value_delimiter = ',', default_value = "64", value_parser = clap::value_parser!(u32).range(1..=1_048_576))]
    depth: Vec<u32>,
    /// Tokens decoded for each sequence in a round
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=65536))]
    tokens: u32,
    /// Rounds to count, after one that warms up
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..=1000))]
    rounds: u16,
    /// Measure layers of the 35B with random weights, too large for any cache, in FILE, which is made if it is missing. With
    /// `cuda` alone also `35b`, or the dense `27b`: all layers, made on the card without a file
    #[cfg(feature = "llama")]
    #[arg(long, value_name = "FILE", conflicts_with = "model")]
    synthetic: Option<PathBuf>,
    #[cfg(feature = "llama")]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=64), requires = "synthetic", help = "Layers of the synthetic model; every fourth is full attention [default: 4, of 35b and 27b all]")]
    layers: Option<u32>,
    /// Types of its expert matrices and of its other matrices; the output matrix is Q6_K
    #[cfg(feature = "llama")]
    #[arg(long, num_args = 2, value_names = ["EXPERTS", "DENSE"], default_values = ["IQ3_S", "Q4_K"], requires = "synthetic")]
    types: Vec<String>,
    /// Measure the cost of HTTP: streams of a daemon started for this, beside an engine alone. Both write the same
    /// replies of --tokens tokens in turn, --batch streams at once
    #[arg(long, conflicts_with_all = ["backend", "prompt", "depth", "context", "adapter"])]
    http: bool,
    /// With --http: prompts of 20 to 1,500 tokens and replies of 16 to 256, --batch streams at once: tokens per second,
    /// time to the first token and between tokens, and how soon the second turn of a chat begins
    #[arg(long, requires = "http", conflicts_with = "tokens")]
    mixed: bool,
    /// llama.cpp's `llama-server`: it gets the same requests in turn, and as many threads, sequences and positions
    #[arg(long, value_name = "FILE", requires = "mixed")]
    peer_server: Option<PathBuf>,
    /// Measure training without gradients on these pairs (as `train` reads them): time and memory of a step beside the
    /// same batch as plain inference, and the loss that a population and MeZO reach in equally many forward passes
    #[arg(long, value_name = "FILE", conflicts_with = "http")]
    train: Option<PathBuf>,
    /// Measure the cost of forms: times of a mask and of compiling, over the schemas of this file and documents that
    /// satisfy them (a line each: `{"schema": …, "documents": [ … ]}`)
    #[arg(long, value_name = "FILE", conflicts_with_all = ["http", "train", "backend", "batch", "prompt", "depth", "tokens"])]
    forms: Option<PathBuf>,
    /// Print the memory plan for a card with --vram-max free, for as many sequences of --context tokens as the largest
    /// --batch. Needs neither a card nor the file's weights
    #[cfg(feature = "llama")]
    #[arg(long, conflicts_with_all = ["http", "train", "forms"])]
    plan: bool,
    /// Perturbations of a step
    #[arg(long, default_value_t = 64, requires = "train", value_parser = clap::value_parser!(u16).range(2..=4095))]
    directions: u16,
    /// Tokens of a step's batch
    #[arg(long, default_value_t = 1536, requires = "train", value_parser = clap::value_parser!(u32).range(1..=65536))]
    step_tokens: u32,
    /// Trainings of each method
    #[arg(long, default_value_t = 5, requires = "train", value_parser = clap::value_parser!(u16).range(1..=100))]
    seeds: u16,
    /// Forward passes of a batch that each training has; 0 = no trainings
    #[arg(long, default_value_t = 650, requires = "train")]
    forwards: u32,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Layers of a synthetic file where nobody says.
#[cfg(feature = "llama")]
const SLICE_LAYERS: u32 = 4;

/// Types of a synthetic model's tensors.
#[cfg(feature = "llama")]
fn types(args: &Args) -> anyhow::Result<Types> {
    let named = |name: &String| DType::from_name(name).with_context(|| format!("{name} is no tensor type"));
    let &[experts, dense] = args.types.iter().map(named).collect::<anyhow::Result<Vec<_>>>()?.as_slice() else {
        anyhow::bail!("--types takes the experts' type and the others'");
    };
    Ok(Types { experts, dense, embedding: DType::Q4_K, head: Some(DType::Q6_K) })
}

/// Writes the synthetic model, if asked for and not there yet.
#[cfg(feature = "llama")]
fn make_synthetic(mut args: Args) -> anyhow::Result<Args> {
    let Some(path) = args.synthetic.clone() else { return Ok(args) };
    if !path.exists() {
        let progress = bar(0, "writing");
        Qwen35Moe::slice_of_35b(args.layers.unwrap_or(SLICE_LAYERS), types(&args)?).build()?.write(
            &path,
            1,
            |done, total| {
                progress.set_length(total);
                progress.set_position(done);
            },
        )?;
        progress.finish_and_clear();
    }
    args.model.model = Some(path);
    Ok(args)
}

pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    #[cfg(feature = "llama")]
    if args.plan || args.backend == [Kind::Cuda] && !args.http && args.train.is_none() {
        return card::run(&args);
    }
    #[cfg(feature = "llama")]
    let args = make_synthetic(args)?;
    let path = args.model.path()?;
    if args.http {
        return streams(&args, path);
    }
    if let Some(pairs) = args.train.clone() {
        return training(&args, pairs);
    }
    if let Some(file) = &args.forms {
        return held_to(&args, &path, file);
    }
    let batch_max = args.batch.iter().copied().max().unwrap_or(1) as usize;
    let mut lanes = Vec::new();
    for &kind in &args.backend {
        let loaded = args.model.load(kind, batch_max, false)?;
        let name = loaded.hosted.model.backend.clone();
        lanes.push(Lane { name, backend: loaded.backend });
    }
    let cases = cases(&args);
    let rounds = usize::from(args.rounds);
    let progress = bar((cases.len() * lanes.len() * (rounds + 1)) as u64, "measuring");
    let rates = bench::run(&mut lanes, &cases, rounds, &mut || progress.inc(1))?;
    progress.finish_and_clear();

    let threads = args.model.threads();
    let bytes_per_token = lanes.iter().map(|l| l.backend.info().bytes_per_token).find(|b| *b > 0).unwrap_or(0);
    let bandwidth = bench::read_bandwidth(bytes_per_token as usize, threads)
        .ok_or_else(|| anyhow::anyhow!("no memory for {bytes_per_token} bytes, to measure the bandwidth with"))?;
    let report = Report {
        model: path.display().to_string(),
        model_bytes: std::fs::metadata(&path)?.len(),
        threads,
        rounds,
        devices: lanes.iter().map(|l| (l.name.clone(), l.backend.info().device.clone())).collect(),
        bytes_per_token,
        bandwidth_bytes_per_s: bandwidth,
        rows: rows(&lanes, &cases, &rates, bytes_per_token as f64 / bandwidth),
    };
    told(&args, &report)
}

fn streams(args: &Args, model: PathBuf) -> anyhow::Result<ExitCode> {
    let (threads, rounds, batch) = (args.model.threads(), usize::from(args.rounds), args.batch.clone());
    if args.mixed {
        let plan = mixed::Plan { model, threads, batch, rounds, peer: args.peer_server.clone() };
        let servers = 1 + usize::from(plan.peer.is_some());
        let progress = bar(((plan.batch.len() + 1) * rounds * servers) as u64, "measuring");
        let report = mixed::run(&plan, &mut || progress.inc(1))?;
        progress.finish_and_clear();
        return told(args, &report);
    }
    let plan = stream::Plan { model, threads, batch, tokens: args.tokens, rounds };
    let progress = bar((plan.batch.len() * rounds) as u64, "measuring");
    let report = stream::run(&plan, &mut || progress.inc(1))?;
    progress.finish_and_clear();
    told(args, &report)
}

/// Prints a report in the form that was asked for.
fn told<R: serde::Serialize + std::fmt::Display>(args: &Args, report: &R) -> anyhow::Result<ExitCode> {
    match args.json {
        true => say!("{}", serde_json::to_string_pretty(report)?),
        false => say!("{report}"),
    }
    Ok(ExitCode::SUCCESS)
}

fn training(args: &Args, pairs: PathBuf) -> anyhow::Result<ExitCode> {
    let plan = train::Plan {
        model: args.model.clone(),
        pairs,
        directions: args.directions.into(),
        step_tokens: args.step_tokens as usize,
        rounds: args.rounds.into(),
        seeds: args.seeds.into(),
        forwards: args.forwards as usize,
    };
    let trainings = if plan.forwards > 0 { 2 * plan.seeds } else { 0 };
    let progress = bar(plan.rounds as u64 + 1 + trainings, "measuring");
    let report = train::run(&plan, &mut || progress.inc(1))?;
    progress.finish_and_clear();
    told(args, &report)
}

fn held_to(args: &Args, model: &Path, file: &Path) -> anyhow::Result<ExitCode> {
    let progress = bar(0, "measuring");
    let report = forms::run(model, file, &mut || progress.inc(1))?;
    progress.finish_and_clear();
    told(args, &report)
}

fn cases(args: &Args) -> Vec<Case> {
    let prefill = args.prompt.iter().map(|&tokens| Case::Prefill { tokens: tokens as usize });
    let decode = args.depth.iter().flat_map(|&depth| {
        let case = move |&batch: &u16| (usize::from(batch), depth as usize);
        args.batch.iter().map(case)
    });
    let decode = decode.map(|(batch, context)| Case::Decode { batch, context, tokens: args.tokens as usize });
    prefill.chain(decode).collect()
}

/// `limit_s`: seconds that reading the bytes of one token takes at full bandwidth.
fn rows(lanes: &[Lane], cases: &[Case], rates: &[Vec<bench::Rates>], limit_s: f64) -> Vec<Row> {
    let mut rows = Vec::new();
    for (case, rates) in cases.iter().zip(rates) {
        for (at, (lane, rate)) in lanes.iter().zip(rates).enumerate() {
            let peer = rates.last().filter(|_| at + 1 < lanes.len());
            let ratios = |peer: &bench::Rates| bench::Rates(rate.0.iter().zip(&peer.0).map(|(a, b)| a / b).collect());
            rows.push(Row {
                case: match case {
                    Case::Prefill { tokens } => format!("prefill {tokens}"),
                    Case::Decode { batch, context, .. } => format!("decode {batch} seq at {context}"),
                },
                backend: lane.name.clone(),
                tokens_per_s: rate.median(),
                slowest: rate.0.iter().copied().fold(f64::INFINITY, f64::min),
                fastest: rate.0.iter().copied().fold(0.0, f64::max),
                ratio_to_peer: peer.map(|p| ratios(p).median()),
                bandwidth_share: matches!(case, Case::Decode { batch: 1, .. }).then(|| rate.median() * limit_s),
            });
        }
    }
    rows
}
