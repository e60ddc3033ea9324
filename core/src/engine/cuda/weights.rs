//! What the device holds of the file's tensors: matrices packed for its kernels, everything else as floats.

use std::ops::Range;
use std::sync::Arc;

use chimere_ffi::cpu::dequantize;
use chimere_ffi::file;
use chimere_ffi::gpu::{Buffer, Device, GpuError};
use chimere_ffi::kernels::load::{Loader, Matrices};
use chimere_ffi::kernels::matmul::Weight;
use chimere_ffi::kernels::{Packing, fill};

use super::memory::Sizes;
use super::offload::{Split, is_experts};
use crate::engine::model::HParams;
use crate::engine::model::ModelError;
use crate::engine::model::weights::{EMBEDDING, Ffn, Format, HEAD, Mixer, Packer, Tensor, Weights};
use crate::gguf::{Files, Gguf, TensorInfo};

/// The weights as this backend holds them.
#[derive(Debug)]
pub(super) struct OnDevice;

impl Format for OnDevice {
    type Vector = Buffer;
    type Matrix = Matrix;
    type Experts = Experts;
    type Table = Matrix;
}

/// A packed matrix. A tied embedding shares its memory with the head.
#[derive(Clone, Debug)]
pub(super) struct Matrix {
    pub(super) buffer: Arc<Buffer>,
    pub(super) packing: Packing,
    pub(super) rows: usize,
    pub(super) cols: usize,
}

impl Matrix {
    pub(super) fn weight(&self) -> Weight {
        Weight { at: self.buffer.at(), packing: self.packing, rows: self.rows }
    }

    pub(super) fn bytes(&self) -> usize {
        self.packing.bytes(self.rows, self.cols)
    }
}

/// One packed matrix after the other.
#[derive(Debug)]
pub(super) struct Experts {
    /// All of them; or those kept on the card, then its slots.
    pub(super) buffer: Buffer,
    /// The others, on the host.
    pub(super) home: Option<Buffer>,
    pub(super) packing: Packing,
    /// Of one matrix.
    pub(super) bytes: usize,
}

/// Where the values come from.
pub(super) enum Source<'a> {
    Files(&'a Files),
    /// Random ones, made on the device.
    Random,
}

/// Packs tensors and copies them to the device.
pub(super) struct Uploader<'a> {
    device: &'a Device,
    source: Source<'a>,
    threads: usize,
    /// Absent: every expert lies on the card.
    split: Option<Split>,
    /// The embedding lies in the host's memory.
    host_embedding: bool,
    /// Absent: values are not from a file.
    loader: Option<Loader>,
    ahead: file::Ahead,
    /// The embedding, in case the head is the same tensor.
    embedding: Option<(String, Matrix)>,
    seed: u32,
}

/// How a tensor of the file lies on the device; a vector as floats.
fn packing_of(t: &TensorInfo) -> Packing {
    match t.dims() {
        [_] => Packing::F32,
        _ => Packing::of(t.dtype, t.row_len() as usize),
    }
}

/// Bytes of a tensor once packed.
fn bytes_of(t: &TensorInfo) -> u64 {
    let dims = t.dims();
    let rows = dims.get(1).copied().unwrap_or(1) as usize;
    let count = dims.get(2).copied().unwrap_or(1);
    packing_of(t).bytes(rows, t.row_len() as usize) as u64 * count
}

/// Bytes that the tensors which are loaded take once packed: routed experts, and everything else.
pub(super) fn packed_bytes(file: &Gguf, hp: &HParams) -> (u64, u64) {
    let used = file.tensors().iter().filter(|t| hp.reads(&t.name));
    let (experts, dense): (Vec<_>, Vec<_>) = used.partition(|t| is_experts(t));
    (experts.into_iter().map(bytes_of).sum(), dense.into_iter().map(bytes_of).sum())
}

/// Bytes of an embedding that the head does not share: single rows of it are read, so it may lie in the host's memory.
pub(super) fn own_embedding_bytes(file: &Gguf) -> u64 {
    let own = file.find(EMBEDDING).filter(|_| file.find(HEAD).is_some());
    own.map_or(0, bytes_of)
}

/// One bit for each packing among the tensors which are loaded; floats are always among them.
pub(super) fn packings(file: &Gguf, hp: &HParams) -> u32 {
    let used = file.tensors().iter().filter(|t| hp.reads(&t.name));
    used.fold(0b111, |mask, t| mask | 1 << packing_of(t) as u32)
}

fn unusable(t: &Tensor<'_>, reason: impl ToString) -> ModelError {
    ModelError::Tensor { name: t.name.into(), reason: reason.to_string() }
}

/// A tensor's packing, and the bytes of one of its matrices.
fn checked(t: &Tensor<'_>) -> Result<(Packing, usize), ModelError> {
    let packing = Packing::of(t.dtype, t.cols);
    match t.cols % packing.inputs() {
        0 => Ok((packing, packing.bytes(t.rows, t.cols))),
        _ => Err(unusable(t, "its rows are no whole blocks")),
    }
}

impl<'a> Uploader<'a> {
    pub(super) fn new(device: &'a Device, source: Source<'a>, threads: usize, sizes: &Sizes) -> Uploader<'a> {
        let loader = matches!(source, Source::Files(_)).then(|| Loader::new(device, threads));
        if let Some(reason) = loader.as_ref().and_then(Loader::unpinned) {
            tracing::warn!(%reason, "no memory is pinned for loading, which takes longer");
        }
        let (split, host_embedding) = (sizes.split, sizes.host_embedding > 0);
        let ahead = file::Ahead::default();
        Uploader { device, source, threads, split, host_embedding, loader, ahead, embedding: None, seed: 1 }
    }

    fn bytes(&mut self, t: &Tensor<'_>) -> Result<Vec<u8>, ModelError> {
        let len = usize::try_from(t.range.end - t.range.start).map_err(|e| unusable(t, e))?;
        match self.source {
            Source::Files(files) => {
                let mut bytes = vec![0; len];
                let (file, from) = files.place(t.range.start).map_err(|e| unusable(t, e))?;
                file::read(file, from, &mut bytes, self.threads).map_err(|e| unusable(t, e))?;
                self.ahead.expect(file, from, from + len as u64);
                Ok(bytes)
            }
            Source::Random => Ok(Vec::new()),
        }
    }

    fn floats(&mut self, t: &Tensor<'_>) -> Result<Vec<f32>, ModelError> {
        let mut out = vec![0.0; t.cols * t.rows];
        match self.source {
            Source::Files(_) => dequantize(t.dtype, &self.bytes(t)?, &mut out).map_err(|e| unusable(t, e))?,
            Source::Random => self.random(t.name, &mut out),
        }
        Ok(out)
    }

    /// Values that keep a random model's activations in range and its routing varied.
    fn random(&mut self, name: &str, out: &mut [f32]) {
        let (mean, width) = match name {
            n if n.contains("norm") => (1.0, 0.0),
            n if n.ends_with("ssm_a") => (-0.5, 0.0),
            n if n.contains("conv1d") => (0.0, 0.5),
            n if n.contains("ffn_gate_inp") => (0.0, 0.05),
            _ => (0.0, 0.5),
        };
        let mut state = u64::from(self.next_seed()) | 1;
        for v in out {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            *v = mean + width * (((state >> 40) as f32) / ((1_u64 << 23) as f32) - 1.0);
        }
    }

    fn next_seed(&mut self) -> u32 {
        self.seed = self.seed.wrapping_mul(747_796_405).wrapping_add(2_891_336_453);
        self.seed
    }

    /// `count` matrices, one after the other.
    fn upload(&mut self, t: &Tensor<'_>, count: usize) -> Result<(Buffer, Packing, usize), ModelError> {
        let (packing, each) = checked(t)?;
        let on_host = self.host_embedding && t.name == EMBEDDING;
        let make = if on_host { Device::pinned } else { Device::allocate };
        let buffer = make(self.device, each * count).map_err(|e| unusable(t, e))?;
        if !self.made(t, count, &buffer)? {
            self.load(t, 0..count, &buffer)?;
        }
        Ok((buffer, packing, each))
    }

    /// Of `count` matrices those that stay, and room for the slots, on the card; the others on the host.
    fn divide(&mut self, t: &Tensor<'_>, split: Split) -> Result<Experts, ModelError> {
        let (packing, bytes) = checked(t)?;
        let make = || {
            let home = self.device.pinned(bytes * (t.experts - split.kept))?;
            Ok((self.device.zeroed(bytes * split.held())?, home))
        };
        let (buffer, home) = make().map_err(|e: GpuError| unusable(t, e))?;
        if !self.made(t, split.held(), &buffer)? {
            self.load(t, 0..split.kept, &buffer)?;
            self.load(t, split.kept..t.experts, &home)?;
        } else {
            self.made(t, t.experts - split.kept, &home)?;
        }
        Ok(Experts { buffer, home: Some(home), packing, bytes })
    }

    /// Fills a buffer of `count` matrices with random values, where a random model is made.
    fn made(&mut self, t: &Tensor<'_>, count: usize, buffer: &Buffer) -> Result<bool, ModelError> {
        let packing = Packing::of(t.dtype, t.cols);
        match self.source {
            Source::Random if packing == Packing::F32 => {
                let mut values = vec![0.0; t.rows * t.cols * count];
                self.random(t.name, &mut values);
                buffer.write_f32(0, &values).map_err(|e| unusable(t, e))?;
            }
            Source::Random => {
                let seed = self.next_seed();
                fill::weights(self.device, buffer, packing, seed).map_err(|e| unusable(t, e))?;
            }
            Source::Files(_) => return Ok(false),
        }
        Ok(true)
    }

    /// Packs some of a tensor's matrices into a buffer.
    fn load(&mut self, t: &Tensor<'_>, which: Range<usize>, buffer: &Buffer) -> Result<(), ModelError> {
        let (Source::Files(files), Some(loader)) = (&self.source, &mut self.loader) else { return Ok(()) };
        let wanted = t.dtype.row_bytes(t.cols).and_then(|bytes| bytes.checked_mul(t.rows)?.checked_mul(t.experts));
        if wanted.is_none_or(|wanted| wanted as u64 != t.pieces().iter().map(|p| p.end - p.start).sum::<u64>()) {
            return Err(unusable(t, "its size is not that of its shape"));
        }
        let (file, start) = files.place(t.range.start).map_err(|e| unusable(t, e))?;
        let from = start + t.stride * which.start as u64;
        let of = Matrices { dtype: t.dtype, rows: t.rows, cols: t.cols, count: which.len(), from, stride: t.stride };
        if of.count == 0 {
            return Ok(());
        }
        loader.load(file, &mut self.ahead, of, buffer).map_err(|e| unusable(t, e))
    }

    fn buffer(&self, t: &Tensor<'_>, values: &[f32]) -> Result<Buffer, ModelError> {
        let make = || -> Result<Buffer, GpuError> {
            let buffer = self.device.allocate(4 * values.len())?;
            buffer.write_f32(0, values)?;
            Ok(buffer)
        };
        make().map_err(|e| unusable(t, e))
    }
}

impl Packer for Uploader<'_> {
    type Format = OnDevice;

    fn vector(&mut self, t: Tensor<'_>) -> Result<Buffer, ModelError> {
        let values = self.floats(&t)?;
        self.buffer(&t, &values)
    }

    fn matrix(&mut self, t: Tensor<'_>) -> Result<Matrix, ModelError> {
        if let Some((name, matrix)) = &self.embedding
            && name == t.name
        {
            return Ok(matrix.clone());
        }
        let (buffer, packing, _) = self.upload(&t, 1)?;
        Ok(Matrix { buffer: Arc::new(buffer), packing, rows: t.rows, cols: t.cols })
    }

    /// Kept in f32 whatever the file has: it is small, and an error here sends a token to another expert.
    fn router(&mut self, experts: Tensor<'_>, shared: Tensor<'_>) -> Result<Matrix, ModelError> {
        let mut values = self.floats(&experts)?;
        values.extend(self.floats(&shared)?);
        let buffer = Arc::new(self.buffer(&experts, &values)?);
        Ok(Matrix { buffer, packing: Packing::F32, rows: experts.rows + shared.rows, cols: experts.cols })
    }

    fn experts(&mut self, t: Tensor<'_>) -> Result<Experts, ModelError> {
        if let Some(split) = self.split {
            return self.divide(&t, split);
        }
        let (buffer, packing, bytes) = self.upload(&t, t.experts)?;
        Ok(Experts { buffer, home: None, packing, bytes })
    }

    fn table(&mut self, t: Tensor<'_>) -> Result<Matrix, ModelError> {
        let name = t.name.to_owned();
        let matrix = self.matrix(t)?;
        self.embedding.get_or_insert((name, matrix.clone()));
        Ok(matrix)
    }
}

/// Bytes of weights that one token at batch 1 reads, the prediction block not counted, by the kernels that read them.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct TokenBytes {
    /// Matrices that every token goes through, the head among them, but gate and up of a dense model.
    pub(super) dense: u64,
    /// Gate and up of the experts used, the shared one among them, or of the layers without.
    pub(super) up: u64,
    pub(super) down: u64,
    /// Norms, convolutions, a row of the embedding.
    rest: u64,
}

impl TokenBytes {
    pub(super) fn of(w: &Weights<OnDevice>, used: usize) -> TokenBytes {
        let rest = w.output_norm.len() + w.embedding.bytes() / w.embedding.rows;
        let mut sum = TokenBytes { dense: w.head.bytes() as u64, rest: rest as u64, ..TokenBytes::default() };
        for layer in &w.layers {
            let (mixer, conv) = mixer_bytes(&layer.mixer);
            let (dense, up, down) = match &layer.ffn {
                Ffn::Moe(m) => (
                    m.router.bytes(),
                    (m.gate.bytes + m.up.bytes) * used + m.shared_gate.bytes() + m.shared_up.bytes(),
                    m.down.bytes * used + m.shared_down.bytes(),
                ),
                Ffn::Dense(m) => (m.down.bytes(), m.gate.bytes() + m.up.bytes(), 0),
            };
            sum.dense += (mixer + dense) as u64;
            sum.up += up as u64;
            sum.down += down as u64;
            sum.rest += (conv + layer.norm.len() + layer.post_norm.len()) as u64;
        }
        sum
    }

    pub(super) fn total(&self) -> u64 {
        self.dense + self.up + self.down + self.rest
    }
}

/// Bytes of a mixer's matrices, and of its convolution.
fn mixer_bytes(mixer: &Mixer<OnDevice>) -> (usize, usize) {
    let sum = |matrices: &[&Matrix]| matrices.iter().map(|m| m.bytes()).sum();
    match mixer {
        Mixer::Gdn(g) => (sum(&[&g.qkv, &g.gate, &g.alpha, &g.beta, &g.out]), g.conv.len()),
        Mixer::Attention(a) => (sum(&[&a.q, &a.k, &a.v, &a.out]), 0),
    }
}
