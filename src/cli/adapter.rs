//! `chimere adapter`: what a LoRA adapter holds, and adapters of random numbers for tests.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;
use chimere::engine::adapter::{self, BaseModel, HEAD, Recipe, TARGETS, target_of};
use chimere::engine::load::model_hash;
use chimere::gguf::Gguf;
use serde_json::json;

use super::exit::say;
use super::model_args::model_file;

/// LoRA adapters: check one, make a random one for tests
#[derive(clap::Args)]
pub struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(clap::Subcommand)]
enum What {
    /// Check an adapter against its base model and print what it changes
    Show(ShowArgs),
    /// Write an adapter of random numbers: a testing aid, it teaches the model nothing
    Random(RandomArgs),
}

#[derive(clap::Args)]
struct ShowArgs {
    /// Adapter file (GGUF)
    file: PathBuf,
    /// Model that it belongs to; default: the one the daemon would serve
    #[arg(long, value_name = "FILE")]
    base: Option<PathBuf>,
    /// As JSON
    #[arg(long)]
    json: bool,
}

#[derive(clap::Args)]
struct RandomArgs {
    /// File to write
    out: PathBuf,
    /// Model that it is for; default: the one the daemon would serve
    #[arg(long, value_name = "FILE")]
    base: Option<PathBuf>,
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..=64))]
    rank: u16,
    /// Size of the change relative to the usual size of a weight; 0.05 is mild, 1 wrecks the model
    #[arg(long, default_value_t = 0.05)]
    scale: f32,
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Matrices to change, e.g. attn_q,ssm_out or output; default: all that an adapter may change
    #[arg(long, value_delimiter = ',')]
    targets: Vec<String>,
    /// Change only this many layers, counted from the last; 0 = all
    #[arg(long, default_value_t = 0)]
    last_layers: u16,
}

pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    match args.what {
        What::Show(args) => show(&args),
        What::Random(args) => random(args),
    }
}

/// The base model that was named, or the one that the daemon would serve.
fn base(named: Option<&Path>) -> anyhow::Result<BaseModel> {
    let path = model_file(named)?;
    let header = Gguf::open(&path)?;
    let hash = model_hash(&path, &header).with_context(|| format!("cannot read {}", path.display()))?;
    Ok(BaseModel::new(&header, &hash))
}

fn show(args: &ShowArgs) -> anyhow::Result<ExitCode> {
    let base = base(args.base.as_deref())?;
    let (adapter, bytes, sha256) = adapter::read(&args.file, &base)?;
    let facts = adapter.facts(bytes, &sha256);
    let mut targets: BTreeMap<&str, usize> = BTreeMap::new();
    for factors in &adapter.factors {
        *targets.entry(target_of(&factors.tensor).unwrap_or_default()).or_default() += 1;
    }
    if args.json {
        say!("{:#}", json!({ "facts": facts, "targets": targets, "digest": adapter.digest() }));
        return Ok(ExitCode::SUCCESS);
    }
    say!("rank {}, alpha {}, {} parameters in {bytes} bytes", facts.rank, facts.alpha, facts.parameters);
    say!("norm of the change {:.4}", facts.norm);
    say!("base model {}", facts.base_hash);
    say!("SHA-256 {sha256}");
    for (target, count) in targets {
        say!("{target:<16} {count} matrices");
    }
    Ok(ExitCode::SUCCESS)
}

fn random(args: RandomArgs) -> anyhow::Result<ExitCode> {
    let head = HEAD.trim_end_matches(".weight");
    if let Some(unknown) = args.targets.iter().find(|t| *t != head && !TARGETS.contains(&t.as_str())) {
        anyhow::bail!("{unknown} is no matrix that an adapter may change: choose from {}, {head}", TARGETS.join(", "));
    }
    let base = base(args.base.as_deref())?;
    let recipe = Recipe {
        rank: args.rank.into(),
        scale: args.scale,
        seed: args.seed,
        targets: args.targets,
        last_layers: args.last_layers.into(),
    };
    let (bytes, sha256) = recipe.make(&base)?.write(&args.out)?;
    say!("{}: {bytes} bytes, SHA-256 {sha256}", args.out.display());
    Ok(ExitCode::SUCCESS)
}
