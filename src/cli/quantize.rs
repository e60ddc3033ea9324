//! `chimere quantize`: writes a model file anew with smaller tensor types.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;
use chimere::engine::defaults::carried;
use chimere::engine::load::model_hash;
use chimere::gguf::Gguf;
use chimere::quantize::{Choice, Summary, requantize};
use chimere_ffi::DType;
use indicatif::{ProgressBar, ProgressStyle};

use super::exit::say;

#[derive(clap::Args)]
pub struct Args {
    /// Model to read (GGUF)
    input: PathBuf,
    /// Model to write
    output: PathBuf,
    /// Type of the matrices; norms, router and the recurrence's small tensors stay F32
    #[arg(long = "type", value_name = "TYPE")]
    dtype: String,
    /// Another type for the tensors whose name matches, e.g. "ffn_.*_exps=IQ3_S"; the first match wins
    #[arg(long = "tensor", value_name = "REGEX=TYPE")]
    tensors: Vec<String>,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    let choice = Choice::new(&args.dtype, &args.tensors)?;
    let bar = ProgressBar::new(0);
    bar.set_style(ProgressStyle::with_template("{wide_bar} {bytes}/{total_bytes} {eta}")?);
    let summary = requantize(
        &args.input,
        &args.output,
        |t| choice.of(t),
        |done, total| {
            bar.set_length(total);
            bar.set_position(done);
        },
    )
    .with_context(|| format!("quantising {}", args.input.display()))?;
    bar.finish_and_clear();
    let defaults = keep_defaults(&args)?;
    if args.json {
        print_json(&summary)
    } else {
        print_text(&summary);
        defaults.iter().for_each(|told| say!("{told}"));
    }
    Ok(ExitCode::SUCCESS)
}

/// What the weights are asked with goes along, in a file beside the new ones. → what to say of it.
fn keep_defaults(args: &Args) -> anyhow::Result<Option<String>> {
    let hash = |path: &Path| anyhow::Ok(model_hash(path, &Gguf::open(path)?)?);
    let Some(text) = carried(&args.input, &hash(&args.input)?, &hash(&args.output)?) else { return Ok(None) };
    let beside = args.output.with_extension("defaults.json");
    let shown = beside.display();
    match File::create_new(&beside).and_then(|mut file| file.write_all(text.as_bytes())) {
        Ok(()) => Ok(Some(format!("its defaults are in {shown}"))),
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {
            Ok(Some(format!("{shown} was there before and is as it was: it holds if it names the new hash")))
        }
        Err(error) => Err(error).with_context(|| format!("writing {shown}")),
    }
}

/// Tensors written of each type.
fn counts(summary: &Summary) -> BTreeMap<DType, usize> {
    let mut counts = BTreeMap::new();
    summary.tensors.iter().for_each(|(_, _, to)| *counts.entry(*to).or_default() += 1);
    counts
}

fn print_text(summary: &Summary) {
    let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
    for (name, asked, to) in summary.tensors.iter().filter(|(_, asked, to)| asked != to) {
        say!("{name}: {to:?}, its rows are no whole {asked:?} blocks");
    }
    for (dtype, count) in counts(summary) {
        say!("{:>8} {count:>5} tensors", dtype.name());
    }
    say!(
        "{:.1} MiB -> {:.1} MiB, {:.2} bits a weight",
        mib(summary.bytes_in),
        mib(summary.bytes_out),
        summary.bits_per_weight()
    );
}

fn print_json(summary: &Summary) {
    let tensors: serde_json::Map<_, _> =
        summary.tensors.iter().map(|(name, _, to)| (name.clone(), to.name().into())).collect();
    let out = serde_json::json!({
        "bytes_in": summary.bytes_in,
        "bytes_out": summary.bytes_out,
        "bits_per_weight": summary.bits_per_weight(),
        "parameters": summary.parameters,
        "tensors": tensors,
    });
    say!("{out}");
}
