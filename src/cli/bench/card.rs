//! `chimere bench --device cuda`: what a model makes of its card, of a file or of random weights made there.

use std::process::ExitCode;
use std::time::Instant;

use chimere::engine::adapter::{self, BaseModel};
use chimere::engine::cuda::bench::{Plan, run as measure};
use chimere::engine::cuda::{self, Cuda, CudaOptions, Placement};
use chimere::engine::load::model_hash;
use chimere::gguf::synthetic::{Qwen35Moe, Types};
use chimere::gguf::{Files, Gguf};
use chimere_ffi::KvType;

use super::{Args, types};
use crate::cli::exit::say;
use crate::cli::model_args::bar;

/// The whole synthetic models: name, layers, and what makes them.
type Whole = (&'static str, u32, fn(u32, Types) -> Qwen35Moe);
const WHOLE: [Whole; 2] = [("35b", 40, Qwen35Moe::slice_of_35b), ("27b", 64, Qwen35Moe::slice_of_27b)];

pub(super) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let plan = Plan {
        batches: args.batch.iter().copied().map(usize::from).collect(),
        contexts: args.depth.iter().map(|depth| *depth as usize).collect(),
        prompts: args.prompt.iter().map(|prompt| *prompt as usize).collect(),
        tokens: args.tokens as usize,
        rounds: args.rounds.into(),
    };
    // What is measured needs less as a rule; more leaves less room for experts.
    let (card, context) = (args.model.card()?, args.model.context as usize);
    let options = CudaOptions {
        threads: args.model.threads(),
        context_tokens: if args.plan { context } else { plan.context_tokens().max(context) },
        sequences_max: plan.sequences(),
        kv: args.model.cache.kv.unwrap_or(KvType::F16),
        state: args.model.cache.state,
        memory_bytes_max: card.memory_bytes_max,
        pinned_bytes_max: card.pinned_bytes_max,
        cache: card.cache,
        shipped: card.shipped,
        adapters: card.adapters,
        emulated: card.emulated,
        ..CudaOptions::default()
    };
    if args.plan {
        let placement = plan_of(args, &options)?;
        match args.json {
            true => say!("{}", serde_json::to_string_pretty(&placement)?),
            false => say!("{placement}"),
        }
        return Ok(ExitCode::SUCCESS);
    }
    let (mut cuda, seconds) = load(args, &options)?;
    let progress = bar(plan.steps() as u64, "measuring");
    let report = measure(&mut cuda, &plan, seconds, &mut || progress.inc(1))?;
    progress.finish_and_clear();
    match args.json {
        true => say!("{}", serde_json::to_string_pretty(&report)?),
        false => say!("{report}"),
    }
    Ok(ExitCode::SUCCESS)
}

/// Where everything would lie on a card with `--vram-max` free, by the file's header alone.
fn plan_of(args: &Args, options: &CudaOptions) -> anyhow::Result<Placement> {
    anyhow::ensure!(options.memory_bytes_max > 0, "--plan needs the size of the card: --vram-max 16GiB");
    match header(args)? {
        Some(gguf) => Ok(cuda::plan(&gguf, options)?),
        None => Ok(cuda::plan(&Files::open(&args.model.path()?)?.0, options)?),
    }
}

/// The header of a whole synthetic model, where one is asked for.
fn header(args: &Args) -> anyhow::Result<Option<Gguf>> {
    let named = |(name, ..): &&Whole| args.synthetic.as_deref().is_some_and(|asked| asked.as_os_str() == *name);
    let Some((_, layers, make)) = WHOLE.iter().find(named) else { return Ok(None) };
    let (header, len) = make(args.layers.unwrap_or(*layers), types(args)?).build()?.header();
    Ok(Some(Gguf::read(&header[..], len)?))
}

/// The model, and the seconds that loading it took.
fn load(args: &Args, options: &CudaOptions) -> anyhow::Result<(Cuda, f64)> {
    if let Some(gguf) = header(args)? {
        return timed(|told| Ok(Cuda::random(&gguf, options, told)?));
    }
    let args = super::make_synthetic(args.clone())?;
    let path = args.model.path()?;
    let (mut cuda, seconds) = timed(|told| Ok(Cuda::load(&path, options, told)?))?;
    if let Some(file) = &args.model.adapter {
        let (gguf, _) = Files::open(&path)?;
        let base = BaseModel::new(&gguf, &model_hash(&path, &gguf)?);
        cuda.always(&[adapter::read(file, &base)?.0])?;
    }
    Ok((cuda, seconds))
}

fn timed(load: impl FnOnce(&mut dyn FnMut(f32)) -> anyhow::Result<Cuda>) -> anyhow::Result<(Cuda, f64)> {
    let (progress, began) = (bar(1000, "loading"), Instant::now());
    let cuda = load(&mut |done| progress.set_position((done * 1000.0) as u64))?;
    let seconds = began.elapsed().as_secs_f64();
    progress.finish_and_clear();
    Ok((cuda, seconds))
}
