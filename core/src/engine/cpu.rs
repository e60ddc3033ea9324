//! The native backend on the processor: packed weights, a thread pool of its own, the stages of `model::stages` one
//! function each. Owns the weights, the sequences and the buffers of the model it loaded.

mod adapter;
mod attention;
mod buffers;
mod moe;
mod recurrent;
mod run;
mod sequence;
mod weights;

use super::adapter::Adapter;
use super::backend::{
    AdapterId, Backend, BackendError, Chunk, DraftChunk, Kept, ModelInfo, Output, Saved, SavedSize, SeqId, StepTokens,
};
use super::batch::CUT_TOKENS;
use super::model::passes::{Cursor, Fed, Pass};
use super::model::stages::{self, Stage};
use super::model::state::{Input, Part, Slots};
use super::model::weights::{Layer, Mixer, Weights};
use super::model::{HParams, ModelError};
use crate::gguf::{Files, Gguf};
use adapter::{ADAPTER_BYTES_MAX, Pairs};
use buffers::Buffers;
use chimere_ffi::cpu::{Forms, Gdn, Pool, Rope};
use chimere_ffi::map::Map;
use run::{Run, Source};
use sequence::{KvShape, Sequence, gdn_shape};
use std::path::Path;
use std::sync::Arc;
use weights::{CpuPacker, LayerForms, Packed, bytes_per_token};

pub use chimere_ffi::{KvType, StateType};

/// How a model is hosted.
#[derive(Clone, Copy, Debug)]
pub struct CpuOptions {
    /// Threads that compute, the caller's own among them; 1 to 64.
    pub threads: usize,
    /// Positions that one sequence may hold; 0 = as many as the model was trained for.
    pub context_tokens: usize,
    /// Sequences that can be open at once.
    pub sequences_max: usize,
    /// Precision of the KV cache: of blocks what is left of the values, as halves. All caches together take at most
    /// `sequences_max` · `context_tokens` · [`Cpu::kv_bytes_per_token`]; blocks are allocated as sequences grow.
    pub kv: KvType,
    /// Precision of the recurrent states, which take the room of floats.
    pub state: StateType,
    /// The prediction block is loaded too, if the file has one.
    pub prediction: bool,
}

impl Default for CpuOptions {
    fn default() -> Self {
        let threads = std::thread::available_parallelism().map_or(1, |n| n.get()).min(64);
        let (kv, state) = (KvType::F32, StateType::F32);
        CpuOptions { threads, context_tokens: 0, sequences_max: 16, kv, state, prediction: false }
    }
}

/// Largest number of sequences.
pub const SEQUENCES_MAX: usize = 4_096;

/// A model hosted on the processor.
pub struct Cpu {
    info: ModelInfo,
    hp: HParams,
    weights: Weights<Packed>,
    /// The recurrent kernels' own form of their parameters; `None` at attention layers.
    gdn: Vec<Option<Gdn>>,
    /// Of each main layer, then of the prediction block.
    forms: Vec<LayerForms>,
    head_forms: Forms,
    combine_forms: Forms,
    trunk: Vec<Stage>,
    prediction: Vec<Stage>,
    rope: Rope,
    kv: KvShape,
    pool: Pool,
    slots: Slots<Sequence>,
    adapters: Vec<(AdapterId, Arc<Pairs>)>,
    next_adapter: u32,
    buffers: Buffers,
    fed: Vec<Fed>,
    pass: Pass,
}

impl Cpu {
    /// Loads the model file at `path`; `progress` is called with the share of the bytes packed, 0 to 1.
    pub fn load(path: &Path, options: &CpuOptions, progress: &mut dyn FnMut(f32)) -> Result<Cpu, BackendError> {
        let cannot = |e: &dyn std::fmt::Display| BackendError::Load(format!("{}: {e}", path.display()));
        let (gguf, files) = Files::open(path).map_err(|e| cannot(&e))?;
        let map = Arc::new(files.map().map_err(|e| cannot(&e))?);
        let stem = path.file_stem().map(|s| s.to_string_lossy().into_owned()).unwrap_or_default();
        Cpu::from_map(&gguf, &map, &stem, options, progress).map_err(|e| cannot(&e))
    }

    /// Loads a model whose header was read as `gguf` from the file mapped as `map`; `stem` names it if it does not
    /// name itself.
    pub fn from_map(
        gguf: &Gguf,
        map: &Arc<Map>,
        stem: &str,
        options: &CpuOptions,
        progress: &mut dyn FnMut(f32),
    ) -> Result<Cpu, ModelError> {
        let hp = HParams::read(gguf)?.with_prediction(options.prediction);
        supported(&hp, options)?;
        let pool = Pool::new(options.threads).map_err(|e| ModelError::Contradiction(e.to_string()))?;
        let weights = Weights::load(&hp, gguf, &mut CpuPacker { map, pool: &pool }, progress)?;
        let forms = weights.layers.iter().chain(weights.mtp.as_ref().map(|m| &m.layer)).map(LayerForms::of).collect();
        let mtp = weights.mtp.as_ref();
        let kv = KvShape { heads: hp.attention.kv_heads, head_dim: hp.attention.head_dim, kv: options.kv };
        let info = model_info(gguf, &hp, &weights, stem, options);
        Ok(Cpu {
            gdn: gdn_layers(&hp, &weights, options.state)?,
            forms,
            head_forms: Forms::of(&[&weights.head, mtp.and_then(|m| m.head.as_ref()).unwrap_or(&weights.head)]),
            combine_forms: Forms::of(&[mtp.map_or(&weights.head, |m| &m.projection)]),
            trunk: stages::trunk(&hp),
            prediction: stages::prediction(&hp),
            rope: hp.attention.rope(),
            kv,
            slots: Slots::new(options.sequences_max, info.context_tokens),
            adapters: Vec::new(),
            next_adapter: 0,
            buffers: Buffers::new(&hp),
            fed: Vec::new(),
            pass: Pass::default(),
            info,
            weights,
            pool,
            hp,
        })
    }

    /// Runs the checked chunks in `self.fed`, pass by pass.
    fn feed(&mut self, part: Part, source: Source<'_>, out: &mut Output) -> Result<(), BackendError> {
        let mut cursor = Cursor::default();
        while cursor.next(&self.fed, &mut self.pass) {
            let mut run = Run::new(self, source, out);
            run.all().map_err(BackendError::Compute)?;
            for span in &self.pass.spans {
                self.slots.advance(span.slot, part, span.len);
            }
        }
        Ok(())
    }
}

/// What the kernels need of a model beyond what the architecture allows.
pub(super) fn supported(hp: &HParams, options: &CpuOptions) -> Result<(), ModelError> {
    let wrong = |key: &str, found: usize, wanted: &'static str| {
        Err(ModelError::Value { key: key.into(), found: found.to_string(), wanted })
    };
    if hp.gdn.conv_kernel != 4 {
        return wrong("ssm.conv_kernel", hp.gdn.conv_kernel, "4 on this backend");
    }
    if hp.gdn.head_dim != 128 {
        return wrong("ssm.state_size", hp.gdn.head_dim, "128 on this backend");
    }
    if !hp.attention.head_dim.is_multiple_of(16) || hp.attention.head_dim > 256 {
        return wrong("attention.key_length", hp.attention.head_dim, "a multiple of 16 up to 256 on this backend");
    }
    if options.sequences_max == 0 || options.sequences_max > SEQUENCES_MAX {
        return wrong("sequences_max", options.sequences_max, "between 1 and 4096");
    }
    Ok(())
}

fn gdn_layers(hp: &HParams, weights: &Weights<Packed>, state: StateType) -> Result<Vec<Option<Gdn>>, ModelError> {
    let one = |layer: &Layer<Packed>| match &layer.mixer {
        Mixer::Attention(_) => Ok(None),
        Mixer::Gdn(w) => Gdn::new(gdn_shape(hp), &w.conv, &w.a, &w.dt_bias, &w.norm, hp.rms_eps)
            .map(|gdn| Some(gdn.keeping(state)))
            .map_err(|e| ModelError::Contradiction(e.to_string())),
    };
    weights.layers.iter().map(one).collect()
}

fn model_info(gguf: &Gguf, hp: &HParams, weights: &Weights<Packed>, stem: &str, options: &CpuOptions) -> ModelInfo {
    let trained = hp.trained_context_tokens;
    ModelInfo {
        name: gguf.optional::<&str>("general.name").ok().flatten().unwrap_or(stem).to_owned(),
        architecture: hp.architecture.clone(),
        backend: "cpu".into(),
        device: format!("{:?}, {} threads", chimere_ffi::cpu::isa::best(), options.threads),
        vocab: hp.vocab,
        width: hp.width,
        layers: hp.layers.len(),
        context_tokens: if options.context_tokens == 0 { trained } else { options.context_tokens },
        trained_context_tokens: trained,
        sequences_max: options.sequences_max,
        parameters: gguf.tensors().iter().map(|t| t.elements()).sum(),
        bytes_per_token: bytes_per_token(weights, hp.moe.used),
        mtp: hp.mtp.is_some(),
        embedding_only: false,
    }
}

impl Backend for Cpu {
    fn info(&self) -> &ModelInfo {
        &self.info
    }

    fn open(&mut self) -> Result<SeqId, BackendError> {
        self.slots.open(|| Sequence::new(&self.hp))
    }

    fn close(&mut self, seq: SeqId) {
        self.slots.close(seq);
    }

    fn held(&self, seq: SeqId) -> usize {
        self.slots.held(seq)
    }

    fn load_adapter(&mut self, adapter: &Adapter) -> Result<AdapterId, BackendError> {
        let pairs = Pairs::pack(adapter, self.hp.layers.len())?;
        let taken = self.adapters.iter().map(|(_, p)| p.bytes).sum::<usize>();
        let (needed, room) = (pairs.bytes, ADAPTER_BYTES_MAX);
        if needed > room - taken {
            return Err(BackendError::AdapterRoom { needed, free: room - taken, room });
        }
        let id = AdapterId(self.next_adapter);
        self.next_adapter = self.next_adapter.wrapping_add(1);
        self.adapters.push((id, Arc::new(pairs)));
        Ok(id)
    }

    fn drop_adapter(&mut self, adapter: AdapterId) {
        self.adapters.retain(|(id, _)| *id != adapter);
    }

    fn adapt(&mut self, seq: SeqId, adapter: AdapterId) -> Result<(), BackendError> {
        let pairs = self.adapters.iter().find(|(id, _)| *id == adapter);
        let pairs = pairs.ok_or(BackendError::UnknownAdapter(adapter.0))?.1.clone();
        let slot = self.slots.find(seq).ok_or(BackendError::UnknownSequence(seq.0))?;
        if self.slots.held(seq) > 0 {
            return Err(BackendError::TooLate(seq.0));
        }
        self.slots.state_mut(slot).adapter = Some(pairs);
        Ok(())
    }

    fn step(&mut self, batch: &[Chunk<'_>], out: &mut Output) -> Result<(), BackendError> {
        out.clear();
        self.fed.clear();
        for c in batch {
            let input = Input { seq: c.seq, tokens: c.tokens, rows: c.rows, hidden: c.hidden };
            self.slots.check(Part::Trunk, self.hp.vocab, input, &mut self.fed)?;
        }
        self.feed(Part::Trunk, Source::Trunk(batch), out)
    }

    /// A prompt is read as fast by 64 as by 512, and by 16 a tenth slower, so one reply need not wait for more.
    fn step_tokens(&self) -> StepTokens {
        let cut = if Sequence::saved_size(&self.hp, self.kv).grid == 1 { 16 } else { CUT_TOKENS };
        StepTokens { beside: 256, a_reply: Some(16), short: 0, alone: 0, cut }
    }

    fn saved_size(&self) -> Option<SavedSize> {
        Some(Sequence::saved_size(&self.hp, self.kv))
    }

    fn save(&mut self, seq: SeqId, first: usize) -> Result<Saved, BackendError> {
        let size = Sequence::saved_size(&self.hp, self.kv);
        let (slot, blocks) = self.slots.whole(seq, first, size)?;
        Ok(self.slots.state(slot).save(self.hp.layers.len(), blocks, size))
    }

    fn restore(&mut self, seq: SeqId, kept: &Kept<'_>) -> Result<(), BackendError> {
        let slot = self.slots.empty(seq, kept, Sequence::saved_size(&self.hp, self.kv))?;
        self.slots.state_mut(slot).restore(self.hp.layers.len(), self.kv, kept);
        self.slots.advance(slot, Part::Trunk, kept.tokens);
        Ok(())
    }

    fn draft(&mut self, batch: &[DraftChunk<'_>], out: &mut Output) -> Result<(), BackendError> {
        out.clear();
        self.fed.clear();
        if self.hp.mtp.is_none() {
            return Err(BackendError::Unsupported("multi-token prediction of a model without a prediction block"));
        }
        for c in batch {
            if c.hidden.len() != c.tokens.len() * self.hp.width {
                return Err(BackendError::Compute(format!(
                    "{} hidden values for {} tokens of width {}",
                    c.hidden.len(),
                    c.tokens.len(),
                    self.hp.width
                )));
            }
            let input = Input { seq: c.seq, tokens: c.tokens, rows: c.rows, hidden: false };
            self.slots.check(Part::Prediction, self.hp.vocab, input, &mut self.fed)?;
        }
        self.feed(Part::Prediction, Source::Prediction(batch), out)
    }
}

#[cfg(test)]
mod tests;
