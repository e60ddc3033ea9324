//! The native backend on an NVIDIA card: packed weights, the stages of `model::stages` as kernels, one recorded graph
//! for each number of decoding sequences. Owns the weights, the sequences and the buffers of the model it loaded.

mod adapters;
pub mod bench;
mod greedy;
mod memory;
mod offload;
mod options;
mod place;
mod profile;
mod rows;
mod run;
mod supported;
#[cfg(test)]
mod tests;
mod weights;

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use chimere_ffi::gpu::{Buffer, Device, Folders, GpuError, Recording};
use chimere_ffi::kernels::attention;

use super::adapter::Adapter;
use super::backend::{
    AdapterId, Backend, BackendError, Chunk, DraftChunk, Kept, ModelInfo, Offloaded, Output, Saved, SavedSize, SeqId,
    StepTokens,
};
use super::model::passes::{Cursor, Fed, GRID, Pass};
use super::model::stages::{self, Stage};
use super::model::state::{Input, Part, Slots};
use super::model::weights::Weights;
use super::model::{HParams, ModelError};
use crate::gguf::{Files, Gguf};
use adapters::{Adapters, Changed, Held, in_tiles};
use memory::{Memory, Sequence, Sizes, States};
use offload::Tier;
use place::place;
use rows::Left;
use run::{Run, Shape};
use supported::{alike_floats, slower_layers, supported};
use weights::{OnDevice, Source, TokenBytes, Uploader};

pub use greedy::Greedy;
pub use memory::Placement;
pub use options::CudaOptions;
pub use place::plan;

/// Rows of a pass that is recorded as a graph; more run launch by launch.
const GRAPH_ROWS_MAX: usize = 32;
/// Shapes of passes that are remembered.
const GRAPHS_MAX: usize = 5 * GRAPH_ROWS_MAX;
/// Adapters of the usual kind that room is made for: where there is plenty of memory, and at least.
const ADAPTERS: (usize, usize) = (8, 4);
/// Positions below which the context is not cut to fit the memory.
const CONTEXT_TOKENS_MIN: usize = 4096;
/// Rows of a pass, where the memory allows: at 2,048 each of 256 experts has 64 tokens to multiply its weights with.
const ROWS_MAX: usize = 2_048;
/// Tokens of a step beside replies under way: as many of them as one graph takes, and two blocks of a prompt, which cost
/// little more than the reading of the experts that one block reads as well.
const STEP_TOKENS: usize = GRAPH_ROWS_MAX + 2 * GRID;
/// Prompts are cut at multiples of so many positions: with one reply's row as many as products take at once, so that it
/// waits less than three times as long as for nothing.
const CUT: usize = 7;
/// A prompt of no more is read as a whole beside replies: a pass of so many takes as long as three of [`CUT`].
const SHORT_TOKENS: usize = 2 * GRID;
/// Rows of a short pass, whose plan is short as well.
const SHORT_ROWS_MAX: usize = 512;

/// Lists of the plan of a pass, which [`memory::Memory`] names, and words between two of them.
const PLAN_LISTS: usize = 10;
const fn plan_words(rows: usize) -> usize {
    if rows <= SHORT_ROWS_MAX { SHORT_ROWS_MAX } else { ROWS_MAX }
}

/// A model hosted on a card.
pub struct Cuda {
    info: ModelInfo,
    hp: HParams,
    trunk: Vec<Stage>,
    prediction: Vec<Stage>,
    sizes: Sizes,
    placement: Placement,
    slots: Slots<Sequence>,
    fed: Vec<Fed>,
    pass: Pass,
    /// Of passes of few rows whose shape came again. Before the buffers, whose addresses they hold.
    graphs: HashMap<Shape, Option<Recording>>,
    adapters: Adapters,
    /// Every sequence is put under one of them when it is opened.
    always: Vec<Arc<Held>>,
    /// Where some experts lie on the host.
    tier: Option<Tier>,
    weights: Weights<OnDevice>,
    /// Of the tensors in the file; absent: they were made.
    file_bytes: Option<u64>,
    memory: Memory,
    left: Left,
    states: States,
    device: Device,
}

/// A step that failed has changed some states and not others, and a card that faulted refuses every later call: there
/// is no going on after either.
fn computing(error: GpuError) -> BackendError {
    BackendError::Lost(error.to_string())
}

fn unusable(error: GpuError) -> BackendError {
    BackendError::Device(error.to_string())
}

impl Cuda {
    /// Loads the model at `path`, in one file or several, onto the first card.
    pub fn load(path: &Path, options: &CudaOptions, progress: &mut dyn FnMut(f32)) -> Result<Cuda, BackendError> {
        let cannot = |e: &dyn std::fmt::Display| BackendError::Load(format!("{}: {e}", path.display()));
        let (gguf, files) = Files::open(path).map_err(|e| cannot(&e))?;
        // What cannot be hosted here is said before a card is looked for.
        let hp = read(&gguf, options).map_err(|e| cannot(&e))?;
        let device = device(&gguf, &hp, options)?;
        let stem = path.file_stem().map(|s| s.to_string_lossy().into_owned()).unwrap_or_default();
        Cuda::on(device, &gguf, Source::Files(&files), &stem, options, progress)
    }

    /// A model of this header with random weights, made on the first card.
    pub fn random(gguf: &Gguf, options: &CudaOptions, progress: &mut dyn FnMut(f32)) -> Result<Cuda, BackendError> {
        let hp = read(gguf, options).map_err(|e| BackendError::Load(e.to_string()))?;
        Cuda::on(device(gguf, &hp, options)?, gguf, Source::Random, "random", options, progress)
    }

    fn on(
        device: Device,
        gguf: &Gguf,
        source: Source<'_>,
        stem: &str,
        options: &CudaOptions,
        progress: &mut dyn FnMut(f32),
    ) -> Result<Cuda, BackendError> {
        let refused = |e: ModelError| BackendError::Load(format!("{stem}: {e}"));
        let hp = read(gguf, options).map_err(refused)?;
        let (sizes, placement) = place(device.free_bytes().map_err(unusable)?, gguf, &hp, options)?;
        tracing::info!(%placement, context = sizes.context, kernels = device.facts().kernels, "placement");
        let from_file = matches!(source, Source::Files(_));
        let file_bytes = from_file.then(|| gguf.tensors().iter().map(|t| t.bytes()).sum());
        let mut uploader = Uploader::new(&device, source, options.threads, &sizes);
        let weights = Weights::load(&hp, gguf, &mut uploader, progress).map_err(refused)?;
        // The memory that bytes went through is given back, once they are there.
        drop(uploader);
        let layers = weights.layers.iter().chain(weights.mtp.as_ref().map(|m| &m.layer));
        layers.clone().enumerate().try_for_each(|(i, layer)| alike_floats(i, layer)).map_err(refused)?;
        if let Some(reason) = slower_layers(layers) {
            tracing::warn!(%reason, "some layers run slower than the others");
        }
        let tier = sizes.split.map(|split| Tier::new(&device, &weights, hp.moe.experts, split));
        Ok(Cuda {
            tier: tier.transpose().map_err(unusable)?,
            trunk: stages::trunk(&hp),
            prediction: stages::prediction(&hp),
            slots: Slots::new(options.sequences_max, sizes.context),
            fed: Vec::new(),
            pass: Pass::default(),
            graphs: HashMap::new(),
            always: Vec::new(),
            adapters: Adapters::new(&device, hp.layers.len(), sizes.sequences, sizes.adapters).map_err(unusable)?,
            left: Left::new(hp.vocab),
            memory: Memory::new(&device, &hp, &sizes).map_err(unusable)?,
            states: States::new(&device, &hp, &sizes).map_err(unusable)?,
            info: model_info(gguf, &hp, &weights, stem, &device, &sizes),
            weights,
            file_bytes,
            device,
            placement,
            sizes,
            hp,
        })
    }

    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Bytes of weights that the launches of a kernel read for one token, by its family.
    fn weight_bytes_of(&self, kernel: &str) -> Option<u64> {
        let bytes = TokenBytes::of(&self.weights, self.hp.moe.used);
        let families = [
            ("matmul", bytes.dense),
            ("experts_up", bytes.up),
            ("each_up", bytes.up),
            ("experts_down", bytes.down),
            ("each_down", bytes.down),
        ];
        families.iter().find(|(family, _)| kernel.starts_with(family)).map(|(_, bytes)| *bytes)
    }

    /// How the device's memory is divided.
    pub fn placement(&self) -> &Placement {
        &self.placement
    }

    /// Runs the checked chunks in `self.fed`, pass by pass; `tokens` and `hidden` of a chunk by its index.
    fn feed<'b>(
        &mut self,
        part: Part,
        tokens: impl Fn(usize) -> &'b [u32],
        hidden: impl Fn(usize) -> &'b [f32],
        out: &mut Output,
    ) -> Result<(), BackendError> {
        let mut cursor = Cursor::new(self.sizes.rows);
        let mut pass = std::mem::take(&mut self.pass);
        let mut left = std::mem::take(&mut self.left);
        left.begin(&self.fed, self.sizes.rows);
        while cursor.next(&self.fed, &mut pass) {
            let done = self.prepare(part, &pass, &tokens, &hidden).and_then(|()| self.run(part, &pass, &mut left, out));
            done.map_err(computing)?;
            for span in &pass.spans {
                self.slots.advance(span.slot, part, span.len);
            }
        }
        (self.pass, self.left) = (pass, left);
        Ok(())
    }

    /// Pages and empty states for the spans, and the plan of the pass on the device.
    fn prepare<'b>(
        &mut self,
        part: Part,
        pass: &Pass,
        tokens: impl Fn(usize) -> &'b [u32],
        hidden: impl Fn(usize) -> &'b [f32],
    ) -> Result<(), GpuError> {
        let t = plan_words(pass.rows);
        let mut plan = vec![0_u32; PLAN_LISTS * t];
        for span in &pass.spans {
            if span.position == 0 && part == Part::Trunk {
                self.states.clear(span.slot)?;
            }
            self.adapters.seat(span.slot, self.slots.state(span.slot).adapter.as_ref())?;
            self.states.grow(span.slot, self.slots.state_mut(span.slot), span.position + span.len)?;
            for (row, token) in span.rows().zip(&tokens(span.chunk)[span.tokens()]) {
                plan[row] = *token;
                plan[t + row] = span.slot as u32;
                plan[2 * t + row] = (span.position + row - span.start) as u32;
            }
            if part == Part::Prediction {
                let d = self.hp.width;
                let rows = &hidden(span.chunk)[span.offset * d..][..span.len * d];
                self.memory.narrow.write_f32(span.start * d, rows)?;
            }
        }
        let spans = pass.spans.iter().enumerate().map(|(i, span)| (i, span, span.len));
        let long = run::long(self, part, pass);
        for (i, span, len) in spans.chain(long.iter().map(|l| (l.index, &pass.spans[l.own], l.len))) {
            let words = [span.slot, span.start, len, span.position].map(|n| n as u32);
            plan[4 * t + 4 * i..][..4].copy_from_slice(&words);
        }
        for (i, wanted) in pass.wanted.iter().enumerate() {
            plan[3 * t + i] = wanted.row as u32;
        }
        self.groups(&mut plan, t, pass.rows);
        self.memory.plan.write_u32(0, &plan)
    }

    fn run(&mut self, part: Part, pass: &Pass, left: &mut Left, out: &mut Output) -> Result<(), GpuError> {
        // The prediction block runs without adapters.
        let under = pass.spans.iter().map(|span| span.slot).filter(|_| part == Part::Trunk);
        let (long, changed) = (run::long(self, part, pass), self.changed(under));
        let shape = Shape { rows: pass.rows, wanted: pass.wanted.len(), spans: pass.spans.len(), long, changed };
        let wanted = shape.wanted;
        if part == Part::Trunk && wanted > 0 && shape.rows <= GRAPH_ROWS_MAX && self.recorded(&shape)? {
            left.tell(&self.memory, &pass.wanted)?;
            if let Some(Some(graph)) = self.graphs.get(&shape) {
                graph.replay()?;
            }
            let x = if wanted == shape.rows { &self.memory.x } else { &self.memory.narrow };
            self.hidden(pass, x, out)?;
            return left.take(&self.memory, &pass.wanted, out);
        }
        let mut run = Run::new(self, part, &shape);
        let x = run.all()?;
        if wanted == 0 {
            return Ok(());
        }
        run.head_norm()?;
        self.hidden(pass, x, out)?;
        let mut first = 0;
        while first < wanted {
            let count = run.head(first)?;
            let of = &pass.wanted[first..first + count];
            if of.iter().any(|w| w.likeliest.is_some()) {
                left.tell(&self.memory, of)?;
                self.memory.likely.find(&self.device, &self.memory.logits, self.hp.vocab, count)?;
            }
            left.take(&self.memory, of, out)?;
            first += count;
        }
        Ok(())
    }

    /// Whether there is a recording of passes of this shape; made when one comes for the second time.
    fn recorded(&mut self, shape: &Shape) -> Result<bool, GpuError> {
        let Some(graph) = self.graphs.get(shape) else {
            if self.graphs.len() >= GRAPHS_MAX {
                self.graphs.retain(|shape, _| *shape == Shape::decoding(shape.rows, Changed::default()));
            }
            self.graphs.insert(shape.clone(), None);
            return Ok(false);
        };
        if graph.is_none() {
            let recording = self.device.record(|| {
                self.launches(Part::Trunk, shape)?;
                self.memory.likely.find(&self.device, &self.memory.logits, self.hp.vocab, shape.wanted)
            })?;
            self.graphs.insert(shape.clone(), Some(recording));
        }
        Ok(true)
    }

    /// Everything from tokens to logits, for a pass of which some rows are wanted, no more than one launch of the head takes.
    fn launches(&self, part: Part, shape: &Shape) -> Result<(), GpuError> {
        let mut run = Run::new(self, part, shape);
        run.all()?;
        run.head_norm()?;
        run.head(0).map(|_| ())
    }

    fn hidden(&self, pass: &Pass, x: &Buffer, out: &mut Output) -> Result<(), GpuError> {
        let d = self.hp.width;
        for (i, _) in pass.wanted.iter().enumerate().filter(|(_, w)| w.hidden) {
            let done = out.hidden.len();
            out.hidden.resize(done + d, 0.0);
            x.read_f32(i * d, &mut out.hidden[done..])?;
        }
        Ok(())
    }
}

/// The hyper-parameters of what is hosted, which the kernels can compute.
fn read(gguf: &Gguf, options: &CudaOptions) -> Result<HParams, ModelError> {
    let hp = HParams::read(gguf)?.with_prediction(options.prediction);
    supported(&hp, options).map(|()| hp)
}

fn device(gguf: &Gguf, hp: &HParams, options: &CudaOptions) -> Result<Device, BackendError> {
    let folders = Folders { cache: options.cache.as_deref(), shipped: options.shipped.as_deref() };
    let fault = options.fault.clone();
    let opened = match &options.emulated {
        Some(library) => Device::emulated(library, fault),
        None => Device::open(weights::packings(gguf, hp), &folders, fault),
    };
    opened.map_err(unusable)
}

fn model_info(
    gguf: &Gguf,
    hp: &HParams,
    weights: &Weights<OnDevice>,
    stem: &str,
    device: &Device,
    sizes: &Sizes,
) -> ModelInfo {
    let facts = device.facts();
    ModelInfo {
        name: gguf.optional::<&str>("general.name").ok().flatten().unwrap_or(stem).to_owned(),
        architecture: hp.architecture.clone(),
        backend: "cuda".into(),
        device: format!("{} (sm_{}{})", facts.name, facts.major, facts.minor),
        vocab: hp.vocab,
        width: hp.width,
        layers: hp.layers.len(),
        context_tokens: sizes.context,
        trained_context_tokens: hp.trained_context_tokens,
        sequences_max: sizes.sequences,
        parameters: gguf.tensors().iter().map(|t| t.elements()).sum(),
        bytes_per_token: TokenBytes::of(weights, hp.moe.used).total(),
        mtp: hp.mtp.is_some(),
        embedding_only: false,
    }
}

const _: () = assert!(attention::PAGE == GRID, "the cuts of a prefill fall between pages");

impl Backend for Cuda {
    fn info(&self) -> &ModelInfo {
        &self.info
    }

    fn open(&mut self) -> Result<SeqId, BackendError> {
        let states = &self.states;
        let seq = self.slots.open(|| states.sequence())?;
        if let Some(slot) = self.slots.find(seq) {
            self.slots.state_mut(slot).adapter = self.always.get(slot % self.always.len().max(1)).cloned();
        }
        Ok(seq)
    }

    fn close(&mut self, seq: SeqId) {
        self.slots.close(seq);
    }

    fn held(&self, seq: SeqId) -> usize {
        self.slots.held(seq)
    }

    fn load_adapter(&mut self, adapter: &Adapter) -> Result<AdapterId, BackendError> {
        let layers = &self.weights.layers;
        self.adapters.load(adapter, |layer, target| layers.get(layer).is_some_and(|l| in_tiles(l, target)))
    }

    fn load_probe(&mut self, adapter: &Adapter) -> Result<AdapterId, BackendError> {
        self.adapters.load(adapter, |_, _| false)
    }

    fn drop_adapter(&mut self, adapter: AdapterId) {
        self.adapters.discard(adapter);
    }

    fn adapt(&mut self, seq: SeqId, adapter: AdapterId) -> Result<(), BackendError> {
        let held = self.adapters.find(adapter).ok_or(BackendError::UnknownAdapter(adapter.0))?;
        let slot = self.slots.find(seq).ok_or(BackendError::UnknownSequence(seq.0))?;
        if self.slots.held(seq) > 0 {
            return Err(BackendError::TooLate(seq.0));
        }
        self.slots.state_mut(slot).adapter = Some(held);
        Ok(())
    }

    fn step(&mut self, batch: &[Chunk<'_>], out: &mut Output) -> Result<(), BackendError> {
        out.clear();
        self.fed.clear();
        for c in batch {
            let input = Input { seq: c.seq, tokens: c.tokens, rows: c.rows, hidden: c.hidden };
            self.slots.check(Part::Trunk, self.hp.vocab, input, &mut self.fed)?;
        }
        self.feed(Part::Trunk, |i| batch[i].tokens, |_| &[], out)
    }

    fn begin_prompt(&mut self, seq: SeqId, end: usize) {
        if let Some(slot) = self.slots.find(seq) {
            self.slots.state_mut(slot).prompt = end;
        }
    }

    fn finds_likeliest(&self) -> bool {
        true
    }

    fn row(&mut self, n: usize, logits: &mut Vec<f32>) -> Result<(), BackendError> {
        self.left.row(&self.memory, n, logits)
    }

    fn step_tokens(&self) -> StepTokens {
        StepTokens { beside: STEP_TOKENS, a_reply: Some(CUT), short: SHORT_TOKENS, alone: self.sizes.rows, cut: CUT }
    }

    fn offloaded(&self) -> Option<Offloaded> {
        // A device that failed says so at the next step.
        self.tier.as_ref().and_then(|tier| tier.offloaded().ok())
    }

    fn saved_size(&self) -> Option<SavedSize> {
        Some(self.states.saved_size(self.hp.layers.len()))
    }

    fn save(&mut self, seq: SeqId, first: usize) -> Result<Saved, BackendError> {
        let (slot, blocks) = self.slots.whole(seq, first, self.states.saved_size(self.hp.layers.len()))?;
        self.states.save(self.hp.layers.len(), slot, self.slots.state(slot), blocks).map_err(computing)
    }

    fn restore(&mut self, seq: SeqId, kept: &Kept<'_>) -> Result<(), BackendError> {
        let layers = self.hp.layers.len();
        let slot = self.slots.empty(seq, kept, self.states.saved_size(layers))?;
        self.states.restore(layers, slot, self.slots.state_mut(slot), kept).map_err(computing)?;
        self.slots.advance(slot, Part::Trunk, kept.tokens);
        Ok(())
    }

    fn draft(&mut self, batch: &[DraftChunk<'_>], out: &mut Output) -> Result<(), BackendError> {
        out.clear();
        self.fed.clear();
        if self.hp.mtp.is_none() {
            return Err(BackendError::Unsupported(
                "multi-token prediction of a model whose prediction block is not loaded",
            ));
        }
        for c in batch {
            if c.hidden.len() != c.tokens.len() * self.hp.width {
                let (found, tokens, width) = (c.hidden.len(), c.tokens.len(), self.hp.width);
                return Err(BackendError::Compute(format!(
                    "{found} hidden values for {tokens} tokens of width {width}"
                )));
            }
            let input = Input { seq: c.seq, tokens: c.tokens, rows: c.rows, hidden: false };
            self.slots.check(Part::Prediction, self.hp.vocab, input, &mut self.fed)?;
        }
        self.feed(Part::Prediction, |i| batch[i].tokens, |i| batch[i].hidden, out)
    }
}
