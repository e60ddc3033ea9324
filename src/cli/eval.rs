//! `chimere eval`: exact logits for comparison with references, perplexity of a text, and exams.

mod ask;
mod documents;
mod golden;
mod judge;
mod lessons;
mod quality;
mod retrieval;
mod routing;
mod scorer;
mod thought;
mod tools;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use chimere::engine::load::{Kind, Loaded};
use chimere::engine::prompt;
use chimere::engine::protocol::ChatInput;
use chimere::engine::vocab::fingerprint;
use chimere::engram::format::tokenizer_name;
use chimere::engram::{Table, shelf};
use chimere::eval::agree;
use chimere::eval::logits::Request;
use chimere::eval::perplexity::{Mixture, mixture};
use serde_json::json;

use super::exit::{EX_DATAERR, coded, note, say};
use super::model_args::{CacheArgs, ModelArgs, bar};

/// Evaluate a model: logits, perplexity, exams
#[derive(clap::Args)]
pub struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(clap::Subcommand)]
enum What {
    /// Routes of labelled prompts: macro-F1 by language, and the confusion matrix
    Routing(routing::Args),
    /// Write the logits of a token sequence: little-endian i32 in, row-major f32 out, a row a position
    Logits(LogitsArgs),
    /// Perplexity and bits per byte of a text
    Perplexity(PerplexityArgs),
    /// Compare two backends on the same file, the second with a cache of floats: perplexity, KL, top-1 and greedy texts
    Agree(AgreeArgs),
    /// Accuracy on an exam of exactly checkable items, by family, with 95 % intervals
    Golden(golden::Args),
    /// Agreement of the judge's verdicts with the exact checks, on the model's own answers to held-out items
    Scorer(judge::JudgeArgs),
    /// Gain of the quality gate: accuracy with and without it, on the same items
    Quality(quality::Args),
    /// Gain of verified exchanges as examples: accuracy without and with them, on the same items
    Retrieval(retrieval::Args),
    /// What a thought is worth: accuracy against tokens, under fixed budgets and under thoughts that end when certain
    Thought(thought::Args),
    /// What built-in tools are worth: accuracy without them, with them offered, and with a call that has to be made
    Tools(tools::Args),
    /// How well passages of documents are found on a labelled set: recall@5 and nDCG@10, by words, vectors and both
    Documents(documents::Args),
    /// What lessons are worth: facts taught by corrections, asked in other words, and neighbours that nobody taught
    Lessons(lessons::Args),
}

#[derive(clap::Args)]
struct LogitsArgs {
    #[command(flatten)]
    model: ModelArgs,
    /// Backend that computes
    #[arg(long, default_value = "auto")]
    backend: Kind,
    /// Token ids, little-endian i32
    #[arg(long)]
    tokens: PathBuf,
    /// File to write the logits to
    #[arg(long)]
    out: PathBuf,
    /// Tokens fed at a time; 0 = all at once
    #[arg(long, default_value_t = 0)]
    step: usize,
    /// Logits of the multi-token-prediction layer: n − 1 rows, row t from h_t and token t+1
    #[arg(long)]
    mtp: bool,
    /// Decode these sequences in the same steps; only the first is written
    #[arg(long, value_name = "FILE")]
    beside: Vec<PathBuf>,
    /// Print a summary as JSON
    #[arg(long)]
    json: bool,
}

#[derive(clap::Args)]
struct PerplexityArgs {
    #[command(flatten)]
    model: ModelArgs,
    /// Backend that computes
    #[arg(long, default_value = "auto")]
    backend: Kind,
    /// UTF-8 text to score
    #[arg(long)]
    text: PathBuf,
    /// Tokens scored together from an empty context
    #[arg(long, default_value_t = 512)]
    window: usize,
    /// Score with these Engram tables too
    #[arg(long, value_name = "FILE")]
    engram: Vec<PathBuf>,
    /// Greatest weights of the tables to try
    #[arg(long, value_delimiter = ',', default_value = "0.1,0.2,0.3,0.5")]
    lambda: Vec<f32>,
    /// As JSON
    #[arg(long)]
    json: bool,
}

#[derive(clap::Args)]
struct AgreeArgs {
    #[command(flatten)]
    model: ModelArgs,
    /// Backend under test
    #[arg(long, default_value = "cpu")]
    backend: Kind,
    /// Backend to agree with
    #[arg(long, default_value = "llama")]
    reference: Kind,
    /// Model file of the reference, with the same vocabulary, such as one that `quantize --type F32` wrote [default: the
    /// same file]
    #[arg(long, value_name = "FILE")]
    reference_model: Option<PathBuf>,
    /// UTF-8 text for the teacher-forced part
    #[arg(long)]
    text: Option<PathBuf>,
    /// Tokens scored together from an empty context
    #[arg(long, default_value_t = 512)]
    window: usize,
    /// Tokens fed to the tested backend at a time; 0 = a window, or a prompt, at once
    #[arg(long, default_value_t = 0)]
    step: usize,
    /// The same for the reference
    #[arg(long, default_value_t = 0)]
    reference_step: usize,
    /// Exam file whose first items are the prompts of the free-running part
    #[arg(long, value_name = "FILE")]
    prompts: Option<PathBuf>,
    /// Most prompts of the free-running part
    #[arg(long, default_value_t = 50)]
    prompts_max: usize,
    /// Tokens generated greedily after each prompt
    #[arg(long, default_value_t = 200)]
    tokens: usize,
    /// As JSON
    #[arg(long)]
    json: bool,
}

pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    match args.what {
        What::Routing(args) => routing::run(args),
        What::Logits(args) => logits(args),
        What::Perplexity(args) => score(args),
        What::Agree(args) => compare(args),
        What::Golden(args) => golden::run(args),
        What::Scorer(args) => scorer::run(args),
        What::Quality(args) => quality::run(args),
        What::Retrieval(args) => retrieval::run(args),
        What::Thought(args) => thought::run(args),
        What::Tools(args) => tools::run(args),
        What::Documents(args) => documents::run(args),
        What::Lessons(args) => lessons::run(args),
    }
}

fn score(args: PerplexityArgs) -> anyhow::Result<ExitCode> {
    let text = std::fs::read_to_string(&args.text).with_context(|| format!("cannot read {}", args.text.display()))?;
    let mut loaded = args.model.load(args.backend, 1, true)?;
    let mut ids = Vec::new();
    loaded.vocab.encode(&text, false, &mut ids)?;
    if ids.len() < 2 {
        let message = format!("{} has fewer than two tokens: there is nothing to score", args.text.display());
        return Err(coded(EX_DATAERR, message));
    }
    let bar = bar(ids.len() as u64, "scoring");
    let tables = engram_tables(&args.engram, &loaded)?;
    let views: Vec<_> = tables.iter().map(|t| t.view()).collect();
    let lambdas = if views.is_empty() { &[][..] } else { &args.lambda };
    let mixture = mixture(loaded.backend.as_mut(), &ids, args.window, &views, lambdas, &mut |n| bar.inc(n as u64))?;
    let score = &mixture.alone;
    bar.finish_and_clear();
    let bits_per_byte = score.nats_per_token / std::f64::consts::LN_2 * ids.len() as f64 / text.len() as f64;
    if args.json {
        let mut value = serde_json::to_value(&mixture)?;
        value["bits_per_byte"] = json!(bits_per_byte);
        value["backend"] = json!(loaded.hosted.model.backend);
        say!("{value:#}");
    } else {
        say!(
            "perplexity {:.4} ± {:.4} ({} tokens, windows of {}), {:.4} bits per byte, backend {}",
            score.perplexity,
            score.perplexity * score.standard_error,
            score.tokens,
            args.window,
            bits_per_byte,
            loaded.hosted.model.backend
        );
        print_arms(&mixture);
    }
    Ok(ExitCode::SUCCESS)
}

/// Tables made for this model's tokenizer.
fn engram_tables(paths: &[PathBuf], loaded: &Loaded) -> anyhow::Result<Vec<Table>> {
    let wanted = fingerprint(loaded.vocab.as_ref());
    let read = |path: &PathBuf| -> anyhow::Result<Table> {
        let table = shelf::read(path).with_context(|| path.display().to_string())?;
        anyhow::ensure!(
            *table.fingerprint() == wanted,
            "{}: made for the tokenizer {}, but this model has {}",
            path.display(),
            tokenizer_name(table.fingerprint()),
            tokenizer_name(&wanted)
        );
        Ok(table)
    };
    paths.iter().map(read).collect()
}

fn print_arms(mixture: &Mixture) {
    for arm in &mixture.arms {
        say!(
            "  λ ≤ {:.2}: perplexity {:.4}, gain {:+.5} nats [{:+.5}, {:+.5}], mean λ of hits {:.3}",
            arm.lambda,
            arm.perplexity,
            arm.gain_nats,
            arm.gain_low,
            arm.gain_high,
            arm.lambda_mean
        );
    }
    if !mixture.arms.is_empty() {
        say!(
            "  contexts known for {:.2} % of the tokens; the filter alone answered {:.2} % of {} lookups",
            100.0 * mixture.hit_share,
            100.0 * mixture.skipped_share,
            mixture.lookups
        );
    }
}

fn compare(args: AgreeArgs) -> anyhow::Result<ExitCode> {
    anyhow::ensure!(
        args.text.is_some() || args.prompts.is_some(),
        "nothing to compare: give --text, --prompts or both"
    );
    let mut tested = args.model.load(args.backend, 1, true)?;
    // The reference keeps floats, whatever the other keeps.
    let model = args.reference_model.clone().or_else(|| args.model.model.clone());
    let exact = ModelArgs { cache: CacheArgs::default(), model, ..args.model.clone() };
    let mut reference = exact.load(args.reference, 1, true)?;
    if fingerprint(tested.vocab.as_ref()) != fingerprint(reference.vocab.as_ref()) {
        return Err(coded(EX_DATAERR, "the two files have different vocabularies: their logits cannot be compared"));
    }
    let mut report = json!({ "backend": tested.hosted.model.backend, "reference": reference.hosted.model.backend });
    if let Some(path) = &args.text {
        let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
        let mut ids = Vec::new();
        tested.vocab.encode(&text, false, &mut ids)?;
        let bar = bar(ids.len() as u64, "scoring");
        let (ours, theirs) = (tested.backend.as_mut(), reference.backend.as_mut());
        let forced = agree::forced(ours, theirs, &ids, args.window, steps(&args), &mut |n| bar.inc(n as u64))?;
        report["forced"] = serde_json::to_value(forced)?;
        bar.finish_and_clear();
    }
    if let Some(path) = &args.prompts {
        report["free"] = serde_json::to_value(free_runs(&args, path, &mut tested, &mut reference)?)?;
    }
    if args.json {
        say!("{report:#}");
    } else {
        print_agreement(&report);
    }
    Ok(ExitCode::SUCCESS)
}

fn steps(args: &AgreeArgs) -> agree::Steps {
    agree::Steps { tested: args.step, reference: args.reference_step }
}

fn free_runs(
    args: &AgreeArgs,
    prompts: &std::path::Path,
    tested: &mut Loaded,
    reference: &mut Loaded,
) -> anyhow::Result<Vec<agree::FreeRun>> {
    let items = chimere::eval::golden::read(prompts)?;
    let template = tested.template.take().context("the model has no chat template")?;
    let bar = bar(items.len().min(args.prompts_max) as u64, "writing");
    let mut runs = Vec::new();
    for (index, item) in items.iter().take(args.prompts_max).enumerate() {
        let chat = ChatInput {
            messages: item.messages.clone(),
            tools: item.tools.clone(),
            add_generation_prompt: true,
            ..ChatInput::default()
        };
        let ids = prompt::render(tested.vocab.as_ref(), &template, &chat)?.ids;
        let (ours, theirs) = (tested.backend.as_mut(), reference.backend.as_mut());
        runs.push(agree::free_run(ours, theirs, index, &ids, args.tokens, steps(args))?);
        bar.inc(1);
    }
    bar.finish_and_clear();
    Ok(runs)
}

fn print_agreement(report: &serde_json::Value) {
    if let Some(forced) = report.get("forced").and_then(|f| f.as_object()) {
        say!("teacher-forced, {} against {}:", report["backend"], report["reference"]);
        for (name, value) in forced {
            say!("  {name:<22} {value}");
        }
    }
    if let Some(free) = report.get("free").and_then(|f| f.as_array()) {
        let diverged: Vec<_> = free.iter().filter(|r| !r["diverged_at"].is_null()).collect();
        say!("free-running: {} of {} greedy texts differ", diverged.len(), free.len());
        for run in diverged {
            say!(
                "  prompt {:>3} at token {:>3}, margin {:.4} nat",
                run["prompt"],
                run["diverged_at"],
                run["margin"].as_f64().unwrap_or(0.0)
            );
        }
    }
}

fn logits(args: LogitsArgs) -> anyhow::Result<ExitCode> {
    let mut loaded = args.model.load_with(args.backend, 1 + args.beside.len(), (true, args.mtp))?;
    let request = Request { tokens: args.tokens, out: args.out, step: args.step, mtp: args.mtp, beside: args.beside };
    let rows = chimere::eval::logits::run(loaded.backend.as_mut(), &request)?;
    let (vocab, backend) = (loaded.hosted.model.vocab, &loaded.hosted.model.backend);
    match args.json {
        true => say!("{:#}", json!({ "rows": rows, "vocab": vocab, "backend": backend, "out": request.out })),
        false => note!("{rows} rows of {vocab} logits"),
    }
    Ok(ExitCode::SUCCESS)
}
