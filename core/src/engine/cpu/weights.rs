//! What the CPU makes of the file's tensors: matrices packed for its instruction set, embeddings read in place.

use crate::engine::model::ModelError;
use crate::engine::model::weights::{Ffn, Format, Layer, Mixer, Packer, Tensor, Weights};
use chimere_ffi::DType;
use chimere_ffi::cpu::{Experts, Forms, Matrix, Pool, dequantize};
use chimere_ffi::map::Map;
use std::borrow::Cow;
use std::ops::Range;
use std::sync::Arc;

/// Packs tensors with all threads of the pool.
pub(super) struct CpuPacker<'a> {
    pub(super) map: &'a Arc<Map>,
    pub(super) pool: &'a Pool,
}

/// The weights as this backend holds them.
#[derive(Debug)]
pub(super) struct Packed;

impl Format for Packed {
    type Vector = Vec<f32>;
    type Matrix = Matrix;
    type Experts = Experts;
    type Table = Table;
}

/// Rows of an embedding, left in the mapped file and converted one by one.
#[derive(Debug)]
pub(super) struct Table {
    map: Arc<Map>,
    dtype: DType,
    /// Place of the whole table in the file, and bytes of one row.
    range: Range<u64>,
    row_bytes: usize,
}

impl Table {
    /// Bytes of one row.
    pub(super) fn row_bytes(&self) -> usize {
        self.row_bytes
    }

    /// Converts row `i` to f32.
    pub(super) fn row(&self, i: usize, out: &mut [f32]) -> Result<(), String> {
        let start = self.range.start + (i * self.row_bytes) as u64;
        let bytes = self.map.slice(start..start + self.row_bytes as u64).ok_or("the file became shorter")?;
        dequantize(self.dtype, bytes, out).map_err(|e| e.to_string())
    }
}

impl<'a> CpuPacker<'a> {
    fn bytes(&self, t: &Tensor<'_>) -> Result<Cow<'a, [u8]>, ModelError> {
        self.map.prefetch(t.range.clone());
        t.bytes(|range| self.map.slice(range))
    }
}

fn unusable(t: &Tensor<'_>, reason: impl ToString) -> ModelError {
    ModelError::Tensor { name: t.name.into(), reason: reason.to_string() }
}

impl Packer for CpuPacker<'_> {
    type Format = Packed;

    fn vector(&mut self, t: Tensor<'_>) -> Result<Vec<f32>, ModelError> {
        let mut out = vec![0.0; t.cols * t.rows];
        dequantize(t.dtype, &self.bytes(&t)?, &mut out).map_err(|e| unusable(&t, e))?;
        Ok(out)
    }

    fn matrix(&mut self, t: Tensor<'_>) -> Result<Matrix, ModelError> {
        Matrix::pack_on(self.pool, t.dtype, t.rows, t.cols, &self.bytes(&t)?).map_err(|e| unusable(&t, e))
    }

    /// Kept in f32 whatever the file has: it is small, and an error here sends a token to another expert.
    fn router(&mut self, experts: Tensor<'_>, shared: Tensor<'_>) -> Result<Matrix, ModelError> {
        let mut bytes = Vec::new();
        let rows = experts.rows + shared.rows;
        for t in [&experts, &shared] {
            let mut values = vec![0.0_f32; t.cols * t.rows];
            dequantize(t.dtype, &self.bytes(t)?, &mut values).map_err(|e| unusable(t, e))?;
            bytes.extend(values.iter().flat_map(|v| v.to_ne_bytes()));
        }
        Matrix::pack(DType::F32, rows, experts.cols, &bytes).map_err(|e| unusable(&experts, e))
    }

    fn experts(&mut self, t: Tensor<'_>) -> Result<Experts, ModelError> {
        Experts::pack_on(self.pool, t.dtype, t.experts, t.rows, t.cols, &self.bytes(&t)?).map_err(|e| unusable(&t, e))
    }

    fn table(&mut self, t: Tensor<'_>) -> Result<Table, ModelError> {
        let row_bytes = t.dtype.row_bytes(t.cols).ok_or_else(|| unusable(&t, "its rows are no whole blocks"))?;
        Ok(Table { map: Arc::clone(self.map), dtype: t.dtype, range: t.range, row_bytes })
    }
}

/// The quantised forms of activations that each group of products needs, worked out once.
pub(super) struct LayerForms {
    /// Of the mixer's input and of its output projection.
    pub(super) input: Forms,
    pub(super) output: Forms,
    /// Of the router, the experts and the shared expert, or of what a dense layer has in their place.
    pub(super) ffn: Forms,
}

impl LayerForms {
    pub(super) fn of(layer: &Layer<Packed>) -> LayerForms {
        let (input, output) = match &layer.mixer {
            Mixer::Gdn(g) => (Forms::of(&[&g.qkv, &g.gate, &g.alpha, &g.beta]), Forms::of(&[&g.out])),
            Mixer::Attention(a) => (Forms::of(&[&a.q, &a.k, &a.v]), Forms::of(&[&a.out])),
        };
        let ffn = match &layer.ffn {
            Ffn::Moe(m) => {
                let shared = Forms::of(&[&m.router, &m.shared_gate, &m.shared_up]);
                shared | Forms::of_experts(&m.gate) | Forms::of_experts(&m.up)
            }
            Ffn::Dense(m) => Forms::of(&[&m.gate, &m.up]),
        };
        LayerForms { input, output, ffn }
    }
}

/// Bytes of weights that one token at batch 1 reads, the prediction block not counted.
pub(super) fn bytes_per_token(w: &Weights<Packed>, experts_used: usize) -> u64 {
    let layers: usize = w.layers.iter().map(|l| layer_bytes(l, experts_used)).sum();
    (w.embedding.row_bytes() + layers + 4 * w.output_norm.len() + w.head.bytes()) as u64
}

fn layer_bytes(layer: &Layer<Packed>, used: usize) -> usize {
    let (mixer, vectors) = match &layer.mixer {
        Mixer::Gdn(g) => (
            g.qkv.bytes() + g.gate.bytes() + g.alpha.bytes() + g.beta.bytes() + g.out.bytes(),
            g.conv.len() + g.a.len() + g.dt_bias.len() + g.norm.len(),
        ),
        Mixer::Attention(a) => {
            (a.q.bytes() + a.k.bytes() + a.v.bytes() + a.out.bytes(), a.q_norm.len() + a.k_norm.len())
        }
    };
    let ffn = match &layer.ffn {
        Ffn::Moe(m) => {
            let routed = (m.gate.bytes() + m.up.bytes() + m.down.bytes()) * used;
            routed + m.shared_gate.bytes() + m.shared_up.bytes() + m.shared_down.bytes() + m.router.bytes()
        }
        Ffn::Dense(m) => m.gate.bytes() + m.up.bytes() + m.down.bytes(),
    };
    mixer + ffn + 4 * (vectors + layer.norm.len() + layer.post_norm.len())
}
