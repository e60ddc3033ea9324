//! What a model makes of its card: rates of prompts and of decoding, the share of the memory's bandwidth, and the
//! time of each kernel. Everything is measured on the device that hosts the model, after a round that is not
//! counted.

mod beside;

use std::fmt;
use std::time::Instant;

use chimere_ffi::kernels::fill;
use serde::Serialize;

use super::{Cuda, Placement, computing};
use crate::engine::backend::{Backend, BackendError, Chunk, Offloaded, Output, Rows, SeqId};

pub use beside::Beside;

/// Read by each multiprocessor when the bandwidth is measured: together much more than any cache holds.
const BANDWIDTH_BYTES: usize = 8 << 20;
const BANDWIDTH_ROUNDS: usize = 5;
/// Steps of the rate with logits to the host, whose spread is small.
const HOST_STEPS_MAX: usize = 20;
/// Tokens of one sequence fed together, as a draft is verified, and how often.
const TOGETHER: [usize; 4] = [1, 2, 4, 8];
const TOGETHER_A_ROUND: usize = 4;

/// What is measured.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Sequences decoded together, one case each.
    pub batches: Vec<usize>,
    /// Tokens held before decoding, one case each.
    pub contexts: Vec<usize>,
    /// Prompt lengths, one case each.
    pub prompts: Vec<usize>,
    /// Tokens decoded in a round.
    pub tokens: usize,
    pub rounds: usize,
}

impl Plan {
    /// Positions that a sequence of the longest case holds.
    pub fn context_tokens(&self) -> usize {
        let decoded = self.contexts.iter().map(|context| context + self.tokens + 1);
        decoded.chain(self.prompts.iter().copied()).max().unwrap_or(1).next_multiple_of(64)
    }

    pub fn sequences(&self) -> usize {
        self.batches.iter().copied().max().unwrap_or(1)
    }

    /// Cases and rounds, for a progress bar.
    pub fn steps(&self) -> usize {
        (self.prompts.len() + self.contexts.len() * self.batches.len()) * (self.rounds + 1)
    }
}

/// Tokens per second over the rounds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Rate {
    pub median: f64,
    pub slowest: f64,
    pub fastest: f64,
}

impl Rate {
    fn of(mut rates: Vec<f64>) -> Rate {
        rates.sort_by(f64::total_cmp);
        let at = |i: usize| rates.get(i).copied().unwrap_or(f64::NAN);
        let (n, half) = (rates.len(), rates.len() / 2);
        let median = if n % 2 == 1 { at(half) } else { (at(half.saturating_sub(1)) + at(half)) / 2.0 };
        Rate { median, slowest: at(0), fastest: at(n.saturating_sub(1)) }
    }
}

#[derive(Clone, Debug, Serialize)]
pub struct Prefill {
    pub prompt: usize,
    pub tokens_per_s: Rate,
    /// Of the whole prompt, each launch alone.
    pub kernels: Vec<KernelTime>,
}

#[derive(Clone, Debug, Serialize)]
pub struct Decode {
    pub batch: usize,
    pub context: usize,
    /// Of all sequences, the next token chosen on the device.
    pub tokens_per_s: Rate,
    /// Fed from the host, with the largest logits of every row copied there, as the step loop samples.
    pub sampled_tokens_per_s: Rate,
    /// The same with whole rows.
    pub with_logits_tokens_per_s: Rate,
    /// At one sequence: weights read per second, as a share of the bandwidth.
    pub bandwidth_share: Option<f64>,
}

/// What the launches of a kernel take, each launched alone.
#[derive(Clone, Debug, Serialize)]
pub struct KernelTime {
    pub kernel: &'static str,
    pub launches: u32,
    pub microseconds: f64,
    /// Weights read per second, where the kernel reads any, and as a share of the bandwidth.
    pub bytes_per_s: Option<f64>,
    pub bandwidth_share: Option<f64>,
}

#[derive(Clone, Debug, Serialize)]
pub struct Report {
    pub model: String,
    pub device: String,
    /// Where the kernels are from.
    pub kernels_from: String,
    pub placement: Placement,
    /// What became of the experts that lie on the host, in everything measured; nothing where none do.
    pub offloaded: Option<Offloaded>,
    pub load_seconds: f64,
    /// Bytes of the file's tensors that were loaded per second; nothing where weights were made.
    pub load_bytes_per_s: Option<f64>,
    /// Weights that one token of one sequence reads.
    pub bytes_per_token: u64,
    /// Measured before everything else, bytes per second.
    pub read_bandwidth: f64,
    pub rounds: usize,
    pub prefill: Vec<Prefill>,
    pub decode: Vec<Decode>,
    /// Seconds of a pass over some tokens of one sequence that holds the first context, without the host.
    pub together: Vec<(usize, f64)>,
    /// What a reply waits for a token while a prompt of 8,192 tokens is read; nothing where the context is too short.
    pub beside: Vec<Beside>,
    /// What the launches of such a step take, of the fewest tokens of the prompt, at its middle.
    pub mixed: Vec<KernelTime>,
    pub kernels: Vec<KernelTime>,
    /// The same of one token of each sequence of the largest batch.
    pub crowded: Vec<KernelTime>,
}

/// Measures `cuda`, which took `load_seconds` to load; `progress` is told after each round.
pub fn run(
    cuda: &mut Cuda,
    plan: &Plan,
    load_seconds: f64,
    progress: &mut dyn FnMut(),
) -> Result<Report, BackendError> {
    let info = cuda.info().clone();
    let read_bandwidth = bandwidth(cuda)?;
    let mut prefill = Vec::new();
    for &prompt in &plan.prompts {
        let rates = (0..=plan.rounds).map(|_| prompt_rate(cuda, prompt).inspect(|_| progress()));
        let rates = rates.collect::<Result<Vec<_>, _>>()?;
        let kernels = prompt_kernels(cuda, prompt)?;
        prefill.push(Prefill { prompt, tokens_per_s: Rate::of(rates[1..].to_vec()), kernels });
    }
    let mut decode = Vec::new();
    for &context in &plan.contexts {
        for &batch in &plan.batches {
            let [device, sampled, whole] = decode_rates(cuda, (batch, context), plan, progress)?;
            let share = device.median * info.bytes_per_token as f64 / read_bandwidth;
            decode.push(Decode {
                batch,
                context,
                tokens_per_s: device,
                sampled_tokens_per_s: sampled,
                with_logits_tokens_per_s: whole,
                bandwidth_share: (batch == 1).then_some(share),
            });
        }
    }
    Ok(Report {
        model: info.name,
        device: info.device,
        kernels_from: cuda.device().facts().kernels.clone(),
        placement: *cuda.placement(),
        load_seconds,
        load_bytes_per_s: cuda.file_bytes.map(|bytes| bytes as f64 / load_seconds),
        bytes_per_token: info.bytes_per_token,
        read_bandwidth,
        rounds: plan.rounds,
        prefill,
        decode,
        together: together(cuda, plan)?,
        beside: beside::waits(cuda, plan)?,
        mixed: beside::launches(cuda, plan)?,
        kernels: kernels(cuda, plan, 1, read_bandwidth)?,
        crowded: kernels(cuda, plan, plan.sequences(), read_bandwidth)?,
        // After everything else.
        offloaded: cuda.offloaded(),
    })
}

/// Bytes per second that the device reads, in a buffer of its own.
fn bandwidth(cuda: &Cuda) -> Result<f64, BackendError> {
    let device = cuda.device();
    let free = device.free_bytes().map_err(computing)?;
    let bytes = (BANDWIDTH_BYTES * device.facts().processors as usize).min(free as usize / 2);
    let measure = || fill::read_bandwidth(device, &device.zeroed(bytes)?, BANDWIDTH_ROUNDS);
    measure().map_err(computing)
}

/// Ids that differ, so that routing sees ordinary variety.
fn ids(vocab: usize, count: usize, seed: usize) -> Vec<u32> {
    let mix = |i: usize| (i as u64 * 31 + seed as u64 * 7_919).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 33;
    (0..count).map(|i| (mix(i) % vocab as u64) as u32).collect()
}

fn prompt_rate(cuda: &mut Cuda, prompt: usize) -> Result<f64, BackendError> {
    let tokens = ids(cuda.info().vocab, prompt, 3);
    let seq = cuda.open()?;
    let mut out = Output::default();
    let began = Instant::now();
    cuda.step(&[Chunk { seq, tokens: &tokens, rows: Rows::Last, hidden: false }], &mut out)?;
    let rate = prompt as f64 / began.elapsed().as_secs_f64();
    cuda.close(seq);
    Ok(rate)
}

fn prompt_kernels(cuda: &mut Cuda, prompt: usize) -> Result<Vec<KernelTime>, BackendError> {
    let tokens = ids(cuda.info().vocab, prompt, 3);
    let seq = cuda.open()?;
    let chunk = Chunk { seq, tokens: &tokens, rows: Rows::Last, hidden: false };
    let found = cuda.profile_step(&[chunk], &mut Output::default())?;
    cuda.close(seq);
    Ok(times(found))
}

/// Without what they read, which depends on what the rows choose together.
fn times(mut found: Vec<(&'static str, u32, f64)>) -> Vec<KernelTime> {
    found.sort_by(|a, b| b.2.total_cmp(&a.2));
    let row = |(kernel, launches, seconds): (&'static str, u32, f64)| KernelTime {
        kernel,
        launches,
        microseconds: seconds * 1e6,
        bytes_per_s: None,
        bandwidth_share: None,
    };
    found.into_iter().map(row).collect()
}

/// `count` sequences that hold `context` tokens each.
fn filled(cuda: &mut Cuda, count: usize, context: usize) -> Result<Vec<SeqId>, BackendError> {
    let vocab = cuda.info().vocab;
    let mut out = Output::default();
    let mut seqs = Vec::with_capacity(count);
    for i in 0..count {
        let seq = cuda.open()?;
        let tokens = ids(vocab, context, i);
        cuda.step(&[Chunk { seq, tokens: &tokens, rows: Rows::None, hidden: false }], &mut out)?;
        seqs.push(seq);
    }
    Ok(seqs)
}

fn decode_rates(
    cuda: &mut Cuda,
    (batch, context): (usize, usize),
    plan: &Plan,
    progress: &mut dyn FnMut(),
) -> Result<[Rate; 3], BackendError> {
    let vocab = cuda.info().vocab;
    let mut rates = [(); 3].map(|()| Vec::new());
    for round in 0..=plan.rounds {
        let seqs = filled(cuda, batch, context)?;
        let greedy = cuda.greedy(&seqs, &ids(vocab, batch, 9), plan.tokens)?;
        seqs.iter().for_each(|s| cuda.close(*s));
        let steps = plan.tokens.min(HOST_STEPS_MAX);
        let mut to_host = |rows| -> Result<f64, BackendError> {
            let seqs = filled(cuda, batch, context)?;
            cuda.device().wait().map_err(computing)?;
            let seconds = with_logits(cuda, &seqs, steps, rows)?;
            seqs.iter().for_each(|s| cuda.close(*s));
            Ok((batch * steps) as f64 / seconds)
        };
        let (sampled, whole) = (to_host(Rows::Likeliest { temperature: 1.0 })?, to_host(Rows::Last)?);
        if round > 0 {
            let all = [(batch * plan.tokens) as f64 / greedy.seconds, sampled, whole];
            rates.iter_mut().zip(all).for_each(|(rates, rate)| rates.push(rate));
        }
        progress();
    }
    Ok(rates.map(Rate::of))
}

fn with_logits(cuda: &mut Cuda, seqs: &[SeqId], steps: usize, rows: Rows) -> Result<f64, BackendError> {
    let mut out = Output::default();
    let began = Instant::now();
    for step in 0..steps {
        let tokens = ids(cuda.info().vocab, seqs.len(), step);
        let one = |(&seq, token)| Chunk { seq, tokens: std::slice::from_ref(token), rows, hidden: false };
        let chunks: Vec<_> = seqs.iter().zip(&tokens).map(one).collect();
        cuda.step(&chunks, &mut out)?;
    }
    Ok(began.elapsed().as_secs_f64())
}

fn together(cuda: &mut Cuda, plan: &Plan) -> Result<Vec<(usize, f64)>, BackendError> {
    let context = plan.contexts.first().copied().unwrap_or(1).max(1);
    let fits = |tokens: &usize| context + tokens <= cuda.info().context_tokens;
    let sizes: Vec<usize> = TOGETHER.into_iter().filter(fits).collect();
    let mut found = Vec::new();
    for tokens in sizes {
        let seqs = filled(cuda, 1, context)?;
        let seconds = cuda.together(seqs[0], &ids(cuda.info().vocab, tokens, 5), TOGETHER_A_ROUND * plan.rounds);
        seqs.iter().for_each(|s| cuda.close(*s));
        found.push((tokens, seconds?));
    }
    Ok(found)
}

fn kernels(cuda: &mut Cuda, plan: &Plan, rows: usize, read_bandwidth: f64) -> Result<Vec<KernelTime>, BackendError> {
    let context = plan.contexts.first().copied().unwrap_or(1).max(1);
    let seqs = filled(cuda, rows, context)?;
    let mut found = cuda.profile(&seqs, &ids(cuda.info().vocab, rows, 7))?;
    seqs.iter().for_each(|s| cuda.close(*s));
    found.sort_by(|a, b| b.2.total_cmp(&a.2));
    let row = |(kernel, launches, seconds): (&'static str, u32, f64)| {
        // What several rows read together depends on what they choose.
        let bytes = cuda.weight_bytes_of(kernel).filter(|_| rows == 1);
        let bytes_per_s = bytes.map(|bytes| bytes as f64 / seconds);
        KernelTime {
            kernel,
            launches,
            microseconds: seconds * 1e6,
            bytes_per_s,
            bandwidth_share: bytes_per_s.map(|b| b / read_bandwidth),
        }
    };
    Ok(found.into_iter().map(row).collect())
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "model      {}, loaded in {:.2} s", self.model, self.load_seconds)?;
        match self.load_bytes_per_s {
            Some(rate) => writeln!(f, ", {:.2} GB/s of its file", rate / 1e9)?,
            None => writeln!(f)?,
        }
        writeln!(f, "device     {}; kernels: {}", self.device, self.kernels_from)?;
        writeln!(f, "placement  {}", self.placement)?;
        if let Some(o) = &self.offloaded {
            let (used, moved) = (o.hits + o.misses + o.direct, o.moved_bytes as f64 / 1e9);
            let share = |n: u64| 100.0 * n as f64 / used.max(1) as f64;
            let (there, brought, read) = (share(o.hits), share(o.misses), share(o.direct));
            writeln!(
                f,
                "experts    {there:.1} % of uses on the card, {brought:.1} % brought ({moved:.2} GB), {read:.1} % read on the host"
            )?;
        }
        let (bytes, read) = (self.bytes_per_token as f64 / 1e9, self.read_bandwidth / 1e9);
        writeln!(f, "reads      {bytes:.3} GB of weights a token; {read:.0} GB/s measured; {} rounds\n", self.rounds)?;
        for p in &self.prefill {
            let r = p.tokens_per_s;
            writeln!(f, "prefill {:6}: {:10.1} tokens/s ({:.1}…{:.1})", p.prompt, r.median, r.slowest, r.fastest)?;
        }
        for d in &self.decode {
            let (r, sampled, whole) =
                (d.tokens_per_s, d.sampled_tokens_per_s.median, d.with_logits_tokens_per_s.median);
            write!(
                f,
                "decode {:3} at {:6}: {:10.1} tokens/s ({:.1}…{:.1}), {sampled:.1} sampled on the host, {whole:.1} with whole rows \
                 there",
                d.batch, d.context, r.median, r.slowest, r.fastest
            )?;
            match d.bandwidth_share {
                Some(share) => writeln!(f, "; {:.0} % of the bandwidth", share * 100.0)?,
                None => writeln!(f)?,
            }
        }
        for (tokens, seconds) in &self.together {
            let share = seconds / self.together[0].1;
            writeln!(f, "{tokens} tokens of one sequence: {:.3} ms a pass, {share:.2} of one", seconds * 1e3)?;
        }
        for b in &self.beside {
            writeln!(
                f,
                "a token beside {:4} of a prompt of {}: {:.3} ms, p99 {:.3} ms, {:.2} of the quiet {:.3} ms",
                b.prompt_tokens,
                beside::PROMPT,
                b.median * 1e3,
                b.p99 * 1e3,
                b.p99 / b.quiet,
                b.quiet * 1e3
            )?;
        }
        if !self.mixed.is_empty() {
            let tokens = beside::STEPS[0];
            writeln!(f, "\na token beside {tokens} of a prompt at its middle, each launch alone:")?;
            table(f, &self.mixed)?;
        }
        if let Some(longest) = self.prefill.iter().max_by_key(|p| p.prompt) {
            writeln!(f, "\na prompt of {} tokens, each launch alone:", longest.prompt)?;
            table(f, &longest.kernels)?;
        }
        writeln!(f, "\none token of one sequence, each launch alone:")?;
        table(f, &self.kernels)?;
        writeln!(f, "\none token of each sequence of the largest batch, each launch alone:")?;
        table(f, &self.crowded)?;
        Ok(())
    }
}

fn table(f: &mut fmt::Formatter<'_>, kernels: &[KernelTime]) -> fmt::Result {
    for k in kernels {
        let each = k.microseconds / f64::from(k.launches.max(1));
        write!(f, "  {:18} {:5} × {each:7.2} µs = {:8.1} µs", k.kernel, k.launches, k.microseconds)?;
        match (k.bytes_per_s, k.bandwidth_share) {
            (Some(rate), Some(share)) => writeln!(f, " {:8.0} GB/s {:3.0} %", rate / 1e9, share * 100.0)?,
            _ => writeln!(f)?,
        }
    }
    Ok(())
}
