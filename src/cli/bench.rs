//! `chimere bench`: prefill and decode rates of one or two backends on the same file, measured in turn.

use std::process::ExitCode;

use chimere::bench::{self, Case, Lane, Report, Row};
use chimere::engine::load::Kind;

use super::model_args::{ModelArgs, bar};

/// Measure prefill and decode speed, with bytes per token and the share of memory bandwidth
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    model: ModelArgs,
    /// Backends to measure in turn on the same file; ratios are to the last one
    #[arg(long, value_delimiter = ',', default_value = "auto")]
    backend: Vec<Kind>,
    /// Sequences decoded together, one case each
    #[arg(long, value_delimiter = ',', default_value = "1,8", value_parser = clap::value_parser!(u16).range(1..=256))]
    batch: Vec<u16>,
    /// Prompt lengths of the prefill cases
    #[arg(long, value_delimiter = ',', default_value = "512", value_parser = clap::value_parser!(u32).range(1..=65536))]
    prompt: Vec<u32>,
    /// Prompt tokens before decoding
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=65536))]
    depth: u32,
    /// Tokens decoded for each sequence in a round
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=65536))]
    tokens: u32,
    /// Rounds counted, after one that is not
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..=1000))]
    rounds: u16,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    let path = args.model.path()?;
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
    let bandwidth = bench::read_bandwidth(bytes_per_token as usize, threads);
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
    if args.json {
        println!("{}", serde_json::to_string_pretty(&report)?);
    } else {
        print!("{report}");
    }
    Ok(ExitCode::SUCCESS)
}

fn cases(args: &Args) -> Vec<Case> {
    let prefill = args.prompt.iter().map(|&tokens| Case::Prefill { tokens: tokens as usize });
    let decode = args.batch.iter().map(|&batch| Case::Decode {
        batch: batch.into(),
        context: args.depth as usize,
        tokens: args.tokens as usize,
    });
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
