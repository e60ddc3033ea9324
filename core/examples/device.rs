//! What is looked at on a machine with a card, without the rest of the daemon: `device checks`, `device agree MODEL`,
//! `device bench MODEL`, `device synthetic`. `tests/gpu/run` calls it.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use chimere_core::engine::adapter::{Adapter, AdapterError, BaseModel, Recipe};
use chimere_core::engine::backend::{Adapted, Backend, Chunk, Output, Rows};
use chimere_core::engine::cpu::{Cpu, CpuOptions};
use chimere_core::engine::cuda::{Cuda, CudaOptions, bench as measured};
use chimere_core::gguf::Gguf;
use chimere_core::gguf::synthetic::{Qwen35Moe, Types};
use chimere_core::training::recipe::TARGETS;
use chimere_ffi::gpu::{Device, Folders, PACKINGS};
use chimere_ffi::kernels::check;
use chimere_ffi::{DType, KvType, StateType};
use clap::{Parser, Subcommand};

type Outcome = Result<(), Box<dyn std::error::Error>>;

/// Those of the 35B's usual file.
const TYPES: Types =
    Types { experts: DType::IQ3_S, dense: DType::Q5_K, embedding: DType::Q4_K, head: Some(DType::Q6_K) };

/// Kernels and the CUDA backend on the card of this machine
#[derive(Parser)]
struct Cli {
    /// Folder for compiled kernels
    #[arg(long, default_value = "target/kernels")]
    cache: PathBuf,
    /// The kernels compiled for the processor, in place of a card (see kernels/emulated)
    #[arg(long)]
    emulated: Option<PathBuf>,
    #[command(subcommand)]
    command: What,
}

#[derive(Subcommand)]
enum What {
    /// Each kernel against plain arithmetic
    Checks,
    /// Logits of a model file against the processor's, teacher-forced, whole and token by token
    Agree {
        model: PathBuf,
        #[arg(long, default_value_t = 200)]
        tokens: usize,
        #[command(flatten)]
        kept: Kept,
        /// Under a random adapter of this rank, of every matrix that a night trains
        #[arg(long)]
        adapter: Option<usize>,
        /// Also against logits that another engine wrote (floats [tokens][vocabulary], as `peer logits` makes them)
        #[arg(long)]
        against: Option<PathBuf>,
    },
    /// The same of a small model with random weights of the types of large ones, made in FOLDER
    Small {
        folder: PathBuf,
        #[arg(long, default_value_t = 40)]
        tokens: usize,
        #[command(flatten)]
        kept: Kept,
        /// Under a random adapter of this rank, of every matrix that a night trains
        #[arg(long)]
        adapter: Option<usize>,
    },
    /// Rates of a model file
    Bench {
        model: PathBuf,
        #[command(flatten)]
        plan: Plan,
    },
    /// Rates of the 35B with random weights, made on the card
    Synthetic {
        #[arg(long, default_value_t = 40)]
        layers: u32,
        /// Of the experts, and of what is dense
        #[arg(long, num_args = 2, default_values = ["IQ3_S", "Q5_K"])]
        types: Vec<String>,
        /// Compare so many tokens fed whole with the same fed in pieces, in place of rates
        #[arg(long)]
        pieces: Option<usize>,
        /// Under random adapters of this rank, of every matrix that a night trains
        #[arg(long)]
        adapter: Option<usize>,
        /// How many different ones, which the sequences have in turn
        #[arg(long, default_value_t = 1)]
        adapters: u64,
        #[command(flatten)]
        plan: Plan,
    },
}

/// What keys, values and states are kept as on the card; the processor that `agree` and `small` look at keeps floats.
#[derive(clap::Args, Clone, Copy)]
struct Kept {
    /// Keys and values as f32, f16 or q8_0/q4_0 [default: f16; where numbers are compared, f32]
    #[arg(long)]
    kv: Option<KvType>,
    /// Recurrent states as f32 or bf16
    #[arg(long, default_value = "f32")]
    state: StateType,
}

impl Kept {
    /// Where numbers are compared.
    fn compared(self, cache: PathBuf, emulated: Option<PathBuf>) -> CudaOptions {
        let kv = self.kv.unwrap_or(KvType::F32);
        CudaOptions { kv, state: self.state, cache: Some(cache), emulated, ..Default::default() }
    }
}

#[derive(clap::Args)]
struct Plan {
    #[command(flatten)]
    kept: Kept,
    /// Sequences decoded together
    #[arg(long, value_delimiter = ',', default_value = "1,2,4,8,16,32")]
    batch: Vec<usize>,
    /// Tokens held before decoding
    #[arg(long, value_delimiter = ',', default_value = "512")]
    context: Vec<usize>,
    /// Prompt lengths
    #[arg(long, value_delimiter = ',', default_value = "512,2048")]
    prompt: Vec<usize>,
    /// Tokens decoded in a round
    #[arg(long, default_value_t = 100)]
    tokens: usize,
    #[arg(long, default_value_t = 5)]
    rounds: usize,
}

fn main() -> ExitCode {
    match run(Cli::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn run(cli: Cli) -> Outcome {
    match cli.command {
        What::Checks => checks(&cli.cache, cli.emulated.as_deref()),
        What::Agree { model, tokens, kept, adapter, against } => {
            agree(&model, tokens, adapter, against.as_deref(), kept.compared(cli.cache, cli.emulated))
        }
        What::Small { folder, tokens, kept, adapter } => {
            let path = folder.join("small.gguf");
            let shape = Qwen35Moe {
                width: 1_024,
                heads: 8,
                head_dim: 256,
                experts: 12,
                experts_used: 4,
                expert_width: 512,
                ..Qwen35Moe::small(TYPES)
            };
            shape.build()?.write(&path, 3, |_, _| {})?;
            agree(&path, tokens, adapter, None, kept.compared(cli.cache, cli.emulated))
        }
        What::Bench { model, plan } => {
            let options = hosting(&plan, cli.cache);
            let began = Instant::now();
            let cuda = Cuda::load(&model, &options, &mut |_| {})?;
            bench(cuda, &plan, began.elapsed().as_secs_f64())
        }
        What::Synthetic { layers, types, pieces: count, adapter, adapters, plan } => {
            let named = |name: &String| DType::from_name(name).ok_or_else(|| format!("no type is called {name}"));
            let (experts, dense) = (named(&types[0])?, named(&types[1])?);
            let (header, len) = Qwen35Moe::slice_of_35b(layers, Types { experts, dense, ..TYPES }).build()?.header();
            let gguf = Gguf::read(&header[..], len)?;
            let options = hosting(&plan, cli.cache);
            let began = Instant::now();
            let mut cuda = Cuda::random(&gguf, &options, &mut |_| {})?;
            if let Some(rank) = adapter {
                let make = |seed| random_adapter(&gguf, rank, &TARGETS, seed);
                cuda.always(&(1..=adapters).map(make).collect::<Result<Vec<_>, _>>()?)?;
            }
            match count {
                Some(count) => pieces(&mut cuda, count),
                None => bench(cuda, &plan, began.elapsed().as_secs_f64()),
            }
        }
    }
}

impl Plan {
    fn plan(&self) -> measured::Plan {
        measured::Plan {
            batches: self.batch.clone(),
            contexts: self.context.clone(),
            prompts: self.prompt.clone(),
            tokens: self.tokens,
            rounds: self.rounds,
        }
    }
}

fn hosting(plan: &Plan, cache: PathBuf) -> CudaOptions {
    let (Kept { kv, state }, plan) = (plan.kept, plan.plan());
    CudaOptions {
        context_tokens: plan.context_tokens(),
        sequences_max: plan.sequences(),
        kv: kv.unwrap_or(KvType::F16),
        state,
        cache: Some(cache),
        ..Default::default()
    }
}

fn checks(cache: &Path, emulated: Option<&Path>) -> Outcome {
    let began = Instant::now();
    let device = match emulated {
        Some(library) => Device::emulated(library, None)?,
        None => Device::open(PACKINGS, &Folders { cache: Some(cache), shipped: None }, None)?,
    };
    println!("{device:?}, ready in {:.1} s", began.elapsed().as_secs_f64());
    let findings = check::all(&device)?;
    for f in &findings {
        let verdict = if f.good() { "ok" } else { "BAD" };
        println!("{verdict:4} {:10} {:32} {:9.1e} of {:.0e}", f.kernel, f.what, f.error, f.limit);
    }
    match findings.iter().filter(|f| !f.good()).count() {
        0 => Ok(()),
        n => Err(format!("{n} checks failed").into()),
    }
}

fn random_adapter(gguf: &Gguf, rank: usize, targets: &[&str], seed: u64) -> Result<Adapter, AdapterError> {
    let targets = targets.iter().map(|t| (*t).to_owned()).collect();
    Recipe { rank, scale: 0.05, seed, targets, last_layers: 0 }.make(&BaseModel::new(gguf, ""))
}

fn ids(vocab: usize, count: usize, seed: usize) -> Vec<u32> {
    let id =
        |i: usize| ((i as u64 * 31 + seed as u64 * 7_919).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 33) % vocab as u64;
    (0..count).map(|i| id(i) as u32).collect()
}

/// Logits of every position, fed `step` tokens at a time.
fn logits(backend: &mut dyn Backend, tokens: &[u32], step: usize) -> Result<Vec<f32>, Box<dyn std::error::Error>> {
    let seq = backend.open()?;
    let (mut all, mut out) = (Vec::new(), Output::default());
    for tokens in tokens.chunks(step) {
        backend.step(&[Chunk { seq, tokens, rows: Rows::All, hidden: false }], &mut out)?;
        all.extend_from_slice(&out.logits);
    }
    backend.close(seq);
    Ok(all)
}

fn log_softmax(row: &[f32]) -> Vec<f64> {
    let max = row.iter().fold(f64::MIN, |m, v| m.max(f64::from(*v)));
    let sum: f64 = row.iter().map(|v| (f64::from(*v) - max).exp()).sum();
    row.iter().map(|v| f64::from(*v) - max - sum.ln()).collect()
}

/// How far `ours` is from `reference`, both [tokens][vocab].
fn print_divergence(from: &str, reference: &[f32], ours: &[f32], vocab: usize) {
    let tokens = ours.len() / vocab;
    let (mut sum, mut top, mut differ, mut clear) = (0.0_f64, 0.0_f64, 0, 0);
    for (a, b) in reference.chunks(vocab).zip(ours.chunks(vocab)) {
        let (p, q) = (log_softmax(a), log_softmax(b));
        let kl: f64 = p.iter().zip(&q).map(|(p, q)| p.exp() * (p - q)).sum();
        (sum, top) = (sum + kl, top.max(kl));
        let (mine, best) = (chimere_ffi::cpu::argmax(b), chimere_ffi::cpu::argmax(a));
        if mine != best {
            differ += 1;
            clear += usize::from(p[best] - p[mine] > 0.1);
        }
    }
    println!(
        "KL from {from}: mean {:.2e}, largest {top:.2e}; top-1 differs at {differ} of {tokens}, {clear} of them clear (over 0.1 nat)",
        sum / tokens as f64
    );
}

fn agree(model: &Path, tokens: usize, rank: Option<usize>, against: Option<&Path>, options: CudaOptions) -> Outcome {
    let context = (tokens + 1).next_multiple_of(64);
    let options = CudaOptions { context_tokens: context, sequences_max: 2, ..options };
    let began = Instant::now();
    let ours = Cuda::load(model, &options, &mut |_| {})?;
    println!(
        "{} on {}: loaded in {:.2} s; {}",
        model.display(),
        ours.info().device,
        began.elapsed().as_secs_f64(),
        ours.placement()
    );
    let cpu = CpuOptions { context_tokens: context, sequences_max: 2, kv: KvType::F32, ..Default::default() };
    let theirs = Cpu::load(model, &cpu, &mut |_| {})?;
    let (mut ours, mut theirs): (Box<dyn Backend>, Box<dyn Backend>) = (Box::new(ours), Box::new(theirs));
    if let Some(rank) = rank {
        let adapter = random_adapter(&Gguf::open(model)?, rank, &TARGETS, 1)?;
        (ours, theirs) = (Box::new(Adapted::new(ours, &adapter)?), Box::new(Adapted::new(theirs, &adapter)?));
    }
    let vocab = ours.info().vocab;
    let list = ids(vocab, tokens, 1);
    let (whole, reference) = (logits(ours.as_mut(), &list, tokens)?, logits(theirs.as_mut(), &list, tokens)?);
    print_divergence("the processor", &reference, &whole, vocab);
    if let Some(file) = against {
        let bytes = std::fs::read(file)?;
        let theirs: Vec<f32> = bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect();
        if theirs.len() != whole.len() {
            return Err(format!("{} holds {} values, not {}", file.display(), theirs.len(), whole.len()).into());
        }
        print_divergence(&file.display().to_string(), &theirs, &whole, vocab);
    }
    for step in [1, 7, 64] {
        let same = logits(ours.as_mut(), &list, step)?.iter().zip(&whole).all(|(a, b)| a.to_bits() == b.to_bits());
        println!("fed {step} at a time: {}", if same { "the same bits" } else { "OTHER BITS" });
    }
    Ok(())
}

/// Tokens fed whole against the same in pieces: the kernels for many tokens against those for few.
fn pieces(cuda: &mut Cuda, tokens: usize) -> Outcome {
    let vocab = cuda.info().vocab;
    let list = ids(vocab, tokens, 1);
    let whole = logits(cuda, &list, tokens)?;
    for step in [1, 20, 64, 100] {
        let other = logits(cuda, &list, step)?;
        let (mut same, mut sum, mut top) = (0, 0.0_f64, 0.0_f64);
        for (a, b) in whole.chunks(vocab).zip(other.chunks(vocab)) {
            let (p, q) = (log_softmax(a), log_softmax(b));
            let kl: f64 = p.iter().zip(&q).map(|(p, q)| p.exp() * (p - q)).sum();
            (sum, top) = (sum + kl, top.max(kl));
            same += usize::from(a.iter().zip(b).all(|(a, b)| a.to_bits() == b.to_bits()));
        }
        let mean = sum / tokens as f64;
        println!("fed {step} at a time: {same} of {tokens} rows the same; KL mean {mean:.2e}, largest {top:.2e}");
    }
    Ok(())
}

fn bench(mut cuda: Cuda, plan: &Plan, load_seconds: f64) -> Outcome {
    println!("{}", measured::run(&mut cuda, &plan.plan(), load_seconds, &mut || {})?);
    Ok(())
}
