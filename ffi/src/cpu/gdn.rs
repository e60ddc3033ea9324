//! The gated delta rule (GDN) layer between its projections: causal convolution with SiLU, L2 norms,
//! gates, the recurrent state of 128 × 128 a value head, and the gated norm.
//!
//! Owns the state of a sequence and the order of its numbers. The recurrent step ([`super::gdn_step`]) gives a
//! token the same bits however it is fed. A layer whose state is too large for the nearer caches takes full
//! chunks of [`CHUNK`] rows of a span by the chunked form ([`super::gdn_chunk`]) instead. Both are functions of
//! the span and the state alone. Per token, head h with key head h mod key_heads:
//!
//! S ← a·S; r = Sᵀk; d = β(v − r); S ← S + k dᵀ; o = Sᵀq/√dim; y = RMSNorm(o)·weight·SiLU(z).
//!
//! Here a = exp(softplus(α + dt)·A), β = σ(b), and q and k are L2-normalised.

use super::gdn_chunk::{self, ChunkScratch};
use super::gdn_step::{convolve, step};
use super::norm;
use super::pool::{Pool, Shared1};
use crate::cache::{StateType, as_bf16};

/// Dimension of keys and values of a head.
pub(super) const DIM: usize = 128;
/// Columns of the state that are stored together: 16 kB, which stays in the first cache.
pub(super) const COLUMNS: usize = 32;
/// Rows of the chunked form; prefill is cut at multiples of it.
pub const CHUNK: usize = 64;
/// Inputs of the convolution.
pub(super) const TAPS: usize = 4;
/// Value heads of a layer from which on full chunks use the chunked form: 1 MB of state. Below, the recurrent
/// step costs prefill next to nothing.
const CHUNKED_HEADS: usize = 16;

/// Why a layer could not be described.
#[derive(Debug, thiserror::Error, PartialEq)]
pub enum GdnError {
    #[error("head dimension {0}; this build handles {DIM}")]
    HeadDim(usize),
    #[error("{what} has {got} values, {need} needed")]
    Length { what: &'static str, need: usize, got: usize },
    #[error("{values} value heads are no multiple of {keys} key heads")]
    Heads { keys: usize, values: usize },
}

/// Heads of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GdnShape {
    pub key_heads: usize,
    pub value_heads: usize,
    /// 128.
    pub head_dim: usize,
}

impl GdnShape {
    /// Channels of the convolution: q, k and v.
    pub fn channels(&self) -> usize {
        (2 * self.key_heads + self.value_heads) * self.head_dim
    }

    /// Full chunks use the chunked form: a row's last bits depend on whether it lies in one.
    pub fn chunked(&self) -> bool {
        self.value_heads >= CHUNKED_HEADS
    }
}

/// The small parameters of a layer, in f32.
#[derive(Clone)]
pub struct Gdn {
    shape: GdnShape,
    /// `[4, channels]`: tap-major, oldest first.
    conv: Vec<f32>,
    a: Vec<f32>,
    dt_bias: Vec<f32>,
    norm: Vec<f32>,
    eps: f32,
    /// Full chunks use the chunked form.
    chunked: bool,
    /// What is left of the state behind every token.
    state: StateType,
}

fn check(what: &'static str, got: usize, need: usize) -> Result<(), GdnError> {
    if got == need { Ok(()) } else { Err(GdnError::Length { what, need, got }) }
}

impl Gdn {
    /// `conv` is `[channels, 4]` as in the file, `a` (−exp(A_log)) and `dt_bias` `[value_heads]`, `norm` `[head_dim]`.
    pub fn new(
        shape: GdnShape,
        conv: &[f32],
        a: &[f32],
        dt_bias: &[f32],
        norm: &[f32],
        eps: f32,
    ) -> Result<Gdn, GdnError> {
        if shape.head_dim != DIM {
            return Err(GdnError::HeadDim(shape.head_dim));
        }
        if shape.key_heads == 0 || !shape.value_heads.is_multiple_of(shape.key_heads) {
            return Err(GdnError::Heads { keys: shape.key_heads, values: shape.value_heads });
        }
        let channels = shape.channels();
        check("the convolution", conv.len(), channels * TAPS)?;
        check("ssm_a", a.len(), shape.value_heads)?;
        check("ssm_dt", dt_bias.len(), shape.value_heads)?;
        check("ssm_norm", norm.len(), DIM)?;
        let conv = (0..TAPS * channels).map(|i| conv[i % channels * TAPS + i / channels]).collect();
        let chunked = shape.chunked();
        let state = StateType::F32;
        Ok(Gdn { shape, conv, a: a.to_vec(), dt_bias: dt_bias.to_vec(), norm: norm.to_vec(), eps, chunked, state })
    }

    /// The same layer over states of this type. What is rounded behind every token goes token by token.
    pub fn keeping(self, state: StateType) -> Gdn {
        Gdn { chunked: self.chunked && state == StateType::F32, state, ..self }
    }

    /// Heads of the layer.
    pub fn shape(&self) -> GdnShape {
        self.shape
    }
}

/// The recurrent state of one sequence in one layer.
#[derive(Clone)]
pub struct GdnState {
    /// The last three inputs of the convolution `[3, channels]`, oldest first.
    conv: Vec<f32>,
    /// `[value_head][column block][key 128][32 columns]`.
    heads: Vec<f32>,
}

impl GdnState {
    /// The state before the first token.
    pub fn new(shape: GdnShape) -> GdnState {
        GdnState { conv: vec![0.0; (TAPS - 1) * shape.channels()], heads: vec![0.0; shape.value_heads * DIM * DIM] }
    }

    /// Back to the state before the first token.
    pub fn reset(&mut self) {
        self.conv.fill(0.0);
        self.heads.fill(0.0);
    }

    /// Bytes of memory, and of the saved form.
    pub fn bytes(&self) -> usize {
        4 * (self.conv.len() + self.heads.len())
    }

    /// The same of any state of this shape.
    pub fn bytes_of(shape: GdnShape) -> usize {
        4 * ((TAPS - 1) * shape.channels() + shape.value_heads * DIM * DIM)
    }

    /// Appends the state as bytes.
    pub fn save(&self, to: &mut Vec<u8>) {
        for values in [&self.conv, &self.heads] {
            let at = to.len();
            to.resize(at + 4 * values.len(), 0);
            to[at..].as_chunks_mut().0.iter_mut().zip(values).for_each(|(b, v)| *b = v.to_le_bytes());
        }
    }

    /// Takes the state that [`GdnState::save`] wrote; false, and nothing taken, if these are not as many bytes.
    pub fn restore(&mut self, bytes: &[u8]) -> bool {
        let (values, rest) = bytes.as_chunks();
        if !rest.is_empty() || values.len() != self.conv.len() + self.heads.len() {
            return false;
        }
        self.conv.iter_mut().chain(&mut self.heads).zip(values).for_each(|(v, b)| *v = f32::from_le_bytes(*b));
        true
    }
}

/// Rows of one sequence in a call.
pub struct GdnSpan<'a> {
    /// First row, and number of rows.
    pub start: usize,
    pub len: usize,
    pub state: &'a mut GdnState,
}

/// The projections of T rows.
#[derive(Clone, Copy)]
pub struct GdnRows<'a> {
    /// `[T, channels]`: q, k, v before the convolution.
    pub qkv: &'a [f32],
    /// `[T, value_heads·dim]`.
    pub z: &'a [f32],
    /// `[T, value_heads]`, as projected.
    pub alpha: &'a [f32],
    pub beta: &'a [f32],
}

/// Buffers of [`gdn`], one set a thread, reusable from layer to layer.
#[derive(Default)]
pub struct GdnScratch(Vec<Buffers>);

impl GdnScratch {
    /// Empty buffers; they grow to the number of threads.
    pub fn new() -> GdnScratch {
        GdnScratch::default()
    }
}

/// Rows of one head for up to [`CHUNK`] tokens.
pub(super) struct Buffers {
    pub(super) q: Vec<f32>,
    pub(super) k: Vec<f32>,
    pub(super) v: Vec<f32>,
    pub(super) o: Vec<f32>,
    /// Log of the decay, and β, of each token.
    pub(super) log_decay: [f32; CHUNK],
    pub(super) beta: [f32; CHUNK],
    pub(super) chunk: ChunkScratch,
}

impl Default for Buffers {
    fn default() -> Self {
        let rows = || vec![0.0; CHUNK * DIM];
        Buffers {
            q: rows(),
            k: rows(),
            v: rows(),
            o: rows(),
            log_decay: [0.0; CHUNK],
            beta: [0.0; CHUNK],
            chunk: ChunkScratch::new(),
        }
    }
}

/// Runs the layer for all spans: `out` `[T, value_heads·dim]` is ready for the output projection.
pub fn gdn(
    pool: &Pool,
    layer: &Gdn,
    rows: GdnRows<'_>,
    spans: &mut [GdnSpan<'_>],
    out: &mut [f32],
    scratch: &mut GdnScratch,
) {
    let shape = layer.shape;
    let (channels, width) = (shape.channels(), shape.value_heads * DIM);
    for s in spans.iter() {
        let end = s.start + s.len;
        assert!(
            end * channels <= rows.qkv.len() && end * width <= rows.z.len() && end * width <= out.len(),
            "the span lies inside the rows"
        );
        assert!(end * shape.value_heads <= rows.alpha.len().min(rows.beta.len()), "gates for each row");
        assert!(
            s.state.conv.len() == (TAPS - 1) * channels && s.state.heads.len() == width * DIM,
            "a state of this layer's shape"
        );
    }
    while scratch.0.len() < pool.threads() {
        scratch.0.push(Buffers::default());
    }
    let buffers = Shared1(scratch.0.as_mut_ptr());
    let to = Shared1(out.as_mut_ptr());
    let heads: Vec<Shared1<f32>> = spans.iter_mut().map(|s| Shared1(s.state.heads.as_mut_ptr())).collect();
    let spans_read = &*spans;
    let scale = 1.0 / (DIM as f32).sqrt();
    pool.run(heads.len() * shape.value_heads, |task, thread| {
        let (s, h) = (task / shape.value_heads, task % shape.value_heads);
        // SAFETY: one buffer set a thread; the state and the outputs of this span and head belong to this task.
        let (buffers, state) = unsafe {
            (&mut *buffers.at(thread), std::slice::from_raw_parts_mut(heads[s].at(h * DIM * DIM), DIM * DIM))
        };
        let span = &spans_read[s];
        for first in (0..span.len).step_by(CHUNK) {
            let n = CHUNK.min(span.len - first);
            prepare(layer, &rows, span, h, first, n, buffers);
            if n == CHUNK && layer.chunked {
                gdn_chunk::advance(state, buffers);
            } else {
                for t in 0..n {
                    let row = t * DIM..(t + 1) * DIM;
                    let (q, k, v) = (&buffers.q[row.clone()], &buffers.k[row.clone()], &buffers.v[row.clone()]);
                    let decay = buffers.log_decay[t].exp();
                    // SAFETY: `step` checks the lengths it relies on.
                    unsafe { step(state, q, k, v, decay, buffers.beta[t], &mut buffers.o[row]) };
                    if layer.state == StateType::Bf16 {
                        as_bf16(state);
                    }
                }
            }
            for t in 0..n {
                let at = (span.start + first + t) * width + h * DIM;
                // SAFETY: as above.
                let y = unsafe { std::slice::from_raw_parts_mut(to.at(at), DIM) };
                let o = &mut buffers.o[t * DIM..(t + 1) * DIM];
                o.iter_mut().for_each(|o| *o *= scale);
                norm::rms_norm_into(o, &layer.norm, layer.eps, y);
                norm::mul_silu(y, &rows.z[at..at + DIM]);
            }
        }
    });
    for s in spans.iter_mut() {
        remember(s, rows.qkv, channels);
    }
}

/// Keeps the last three inputs of the convolution.
fn remember(span: &mut GdnSpan<'_>, qkv: &[f32], channels: usize) {
    let keep = TAPS - 1;
    let new = span.len.min(keep);
    span.state.conv.copy_within(new * channels.., 0);
    let end = (span.start + span.len) * channels;
    span.state.conv[(keep - new) * channels..].copy_from_slice(&qkv[end - new * channels..end]);
}

/// Convolution, norms and gates of `n` rows of head `h`, from row `first` of the span.
fn prepare(layer: &Gdn, rows: &GdnRows<'_>, span: &GdnSpan<'_>, h: usize, first: usize, n: usize, to: &mut Buffers) {
    let shape = layer.shape;
    let channels = shape.channels();
    let key = h % shape.key_heads;
    let parts = [key * DIM, (shape.key_heads + key) * DIM, (2 * shape.key_heads + h) * DIM];
    for t in 0..n {
        let row = t * DIM..(t + 1) * DIM;
        for (part, at) in [&mut to.q, &mut to.k, &mut to.v].into_iter().zip(parts) {
            let taps: [&[f32]; TAPS] = std::array::from_fn(|j| {
                let back = TAPS - 1 - j; // this tap looks `back` rows behind row first + t
                if back <= first + t {
                    &rows.qkv[(span.start + first + t - back) * channels + at..][..DIM]
                } else {
                    &span.state.conv[(TAPS - 1 + first + t - back) * channels + at..][..DIM]
                }
            });
            let weights: [&[f32]; TAPS] = std::array::from_fn(|j| &layer.conv[j * channels + at..][..DIM]);
            convolve(&taps, &weights, &mut part[row.clone()]);
        }
        norm::l2_norm(&mut to.q[row.clone()], layer.eps);
        norm::l2_norm(&mut to.k[row], layer.eps);
        let at = (span.start + first + t) * shape.value_heads + h;
        to.log_decay[t] = norm::softplus(rows.alpha[at] + layer.dt_bias[h]) * layer.a[h];
        to.beta[t] = norm::sigmoid(rows.beta[at]);
    }
}

#[cfg(test)]
#[path = "gdn_tests.rs"]
mod tests;
