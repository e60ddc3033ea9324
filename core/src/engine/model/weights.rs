//! Weights by name and shape. The names and shapes of the file occur here and nowhere else; a backend says by a
//! [`Packer`] what it makes of each tensor. Shapes are written in the order of the file: `[inputs, outputs, experts]`.

use super::ModelError;
use super::hparams::{GdnParams, HParams, LayerKind, MoeParams};
use crate::gguf::Gguf;
use chimere_ffi::DType;
use std::borrow::Cow;
use std::ops::Range;

/// The tensor in which some converters write gate and up of the experts together.
pub const FUSED_GATE_UP: &str = "ffn_gate_up_exps";

/// The table of rows that tokens begin as; and what makes logits, which the table does too where the file lacks it.
pub const EMBEDDING: &str = "token_embd.weight";
pub const HEAD: &str = "output.weight";

/// One tensor of the file, its shape already checked.
#[derive(Clone, Debug)]
pub struct Tensor<'a> {
    pub name: &'a str,
    pub dtype: DType,
    /// Values of a row: the inputs of a matrix.
    pub cols: usize,
    /// Rows of one matrix: its outputs. 1 for a vector.
    pub rows: usize,
    /// Matrices in the tensor. 1 unless it holds experts.
    pub experts: usize,
    /// Place of the data in the file, in bytes: from the first matrix to the end of the last.
    pub range: Range<u64>,
    /// Bytes from one matrix to the next, more than it has where two kinds of experts share a tensor.
    pub stride: u64,
}

impl Tensor<'_> {
    /// Where its bytes lie: in one piece, or a piece for each matrix.
    pub fn pieces(&self) -> Vec<Range<u64>> {
        let (start, end) = (self.range.start, self.range.end);
        let each = (end - start).saturating_sub(self.stride * (self.experts as u64 - 1));
        let (count, each) = if each == self.stride { (1, end - start) } else { (self.experts as u64, each) };
        (0..count).map(|i| start + i * self.stride).map(|from| from..from + each).collect()
    }

    /// Its bytes, side by side, out of a mapped file.
    pub fn bytes<'m>(&self, slice: impl Fn(Range<u64>) -> Option<&'m [u8]>) -> Result<Cow<'m, [u8]>, ModelError> {
        let outside = || ModelError::Tensor { name: self.name.into(), reason: "its data lies outside the file".into() };
        let pieces: Option<Vec<_>> = self.pieces().into_iter().map(slice).collect();
        match pieces.ok_or_else(outside)?.as_slice() {
            [one] => Ok(Cow::Borrowed(one)),
            several => Ok(Cow::Owned(several.concat())),
        }
    }
}

/// The types in which a backend holds weights.
pub trait Format {
    /// A small tensor used value by value: norms, the convolution, decay rates.
    type Vector;
    /// A matrix that multiplies activations.
    type Matrix;
    /// One matrix for each expert.
    type Experts;
    /// A matrix of which single rows are read: the embedding.
    type Table;
}

/// Makes a backend's weights out of the file's tensors.
pub trait Packer {
    type Format: Format;

    fn vector(&mut self, tensor: Tensor<'_>) -> Result<Vector<Self>, ModelError>;
    fn matrix(&mut self, tensor: Tensor<'_>) -> Result<Matrix<Self>, ModelError>;
    /// One matrix whose outputs are those of the first tensor, then those of the second.
    fn router(&mut self, experts: Tensor<'_>, shared: Tensor<'_>) -> Result<Matrix<Self>, ModelError>;
    fn experts(&mut self, tensor: Tensor<'_>) -> Result<Experts<Self>, ModelError>;
    fn table(&mut self, tensor: Tensor<'_>) -> Result<Table<Self>, ModelError>;
}

type Vector<P> = <<P as Packer>::Format as Format>::Vector;
type Matrix<P> = <<P as Packer>::Format as Format>::Matrix;
type Experts<P> = <<P as Packer>::Format as Format>::Experts;
type Table<P> = <<P as Packer>::Format as Format>::Table;

/// A whole model. D = width, V = vocabulary.
pub struct Weights<F: Format> {
    /// `token_embd` [D, V].
    pub embedding: F::Table,
    pub layers: Vec<Layer<F>>,
    /// `output_norm` [D].
    pub output_norm: F::Vector,
    /// `output` [D, V], or `token_embd` again where the file has none (tied).
    pub head: F::Matrix,
    pub mtp: Option<Mtp<F>>,
}

/// One layer: x += mixer(norm(x)); x += ffn(norm(x)).
pub struct Layer<F: Format> {
    /// `attn_norm` [D].
    pub norm: F::Vector,
    pub mixer: Mixer<F>,
    /// `post_attention_norm` [D].
    pub post_norm: F::Vector,
    pub ffn: Ffn<F>,
}

impl<F: Format> Layer<F> {
    /// Its experts, unless the model is dense.
    pub fn moe(&self) -> Option<&Moe<F>> {
        match &self.ffn {
            Ffn::Moe(moe) => Some(moe),
            Ffn::Dense(_) => None,
        }
    }
}

/// The feed-forward part: of one kind in all layers of a model.
pub enum Ffn<F: Format> {
    Moe(Moe<F>),
    Dense(Gated<F>),
}

/// A feed-forward part without experts: down · (SiLU(gate · n) · up · n). S = its width.
pub struct Gated<F: Format> {
    /// `ffn_gate` [D, S].
    pub gate: F::Matrix,
    /// `ffn_up` [D, S].
    pub up: F::Matrix,
    /// `ffn_down` [S, D].
    pub down: F::Matrix,
}

pub enum Mixer<F: Format> {
    Gdn(Gdn<F>),
    Attention(Attention<F>),
}

/// Gated DeltaNet. C = channels, Hv = value heads, d = head size, Dv = Hv·d.
pub struct Gdn<F: Format> {
    /// `attn_qkv` [D, C]: outputs are queries, keys, values.
    pub qkv: F::Matrix,
    /// `attn_gate` [D, Dv].
    pub gate: F::Matrix,
    /// `ssm_alpha` [D, Hv].
    pub alpha: F::Matrix,
    /// `ssm_beta` [D, Hv].
    pub beta: F::Matrix,
    /// `ssm_conv1d` [taps, C].
    pub conv: F::Vector,
    /// `ssm_a` [Hv]: −exp(A_log).
    pub a: F::Vector,
    /// `ssm_dt.bias` [Hv].
    pub dt_bias: F::Vector,
    /// `ssm_norm` [d].
    pub norm: F::Vector,
    /// `ssm_out` [Dv, D].
    pub out: F::Matrix,
}

/// Gated attention. H = query heads, G = KV heads, h = head size.
pub struct Attention<F: Format> {
    /// `attn_q` [D, H·2h]: for each head h query values, then h gate values.
    pub q: F::Matrix,
    /// `attn_k` [D, G·h].
    pub k: F::Matrix,
    /// `attn_v` [D, G·h].
    pub v: F::Matrix,
    /// `attn_q_norm` [h].
    pub q_norm: F::Vector,
    /// `attn_k_norm` [h].
    pub k_norm: F::Vector,
    /// `attn_output` [H·h, D].
    pub out: F::Matrix,
}

/// Mixture of experts with one shared expert. E = experts, F = their width, S = width of the shared one.
pub struct Moe<F: Format> {
    /// [D, E + 1]: `ffn_gate_inp` [D, E], and as last output `ffn_gate_inp_shexp` [D], whose product with the input
    /// is ONE gate for the whole shared expert.
    pub router: F::Matrix,
    /// `ffn_gate_exps` [D, F, E], or the first F rows of `ffn_gate_up_exps` [D, 2F, E].
    pub gate: F::Experts,
    /// `ffn_up_exps` [D, F, E], or the other F rows.
    pub up: F::Experts,
    /// `ffn_down_exps` [F, D, E].
    pub down: F::Experts,
    /// `ffn_gate_shexp` [D, S].
    pub shared_gate: F::Matrix,
    /// `ffn_up_shexp` [D, S].
    pub shared_up: F::Matrix,
    /// `ffn_down_shexp` [S, D].
    pub shared_down: F::Matrix,
}

/// The multi-token-prediction block, an attention layer behind a projection of `[embedding ; hidden]`.
pub struct Mtp<F: Format> {
    /// `nextn.enorm` [D], of the embedding of token t+1.
    pub embedding_norm: F::Vector,
    /// `nextn.hnorm` [D], of the trunk's hidden state of position t before the final norm.
    pub hidden_norm: F::Vector,
    /// `nextn.eh_proj` [2D, D], the embedding's half first.
    pub projection: F::Matrix,
    pub layer: Layer<F>,
    /// `nextn.shared_head_norm` [D], or `output_norm` where the file has none.
    pub output_norm: F::Vector,
    /// `nextn.embed_tokens` [D, V] where it differs from the trunk's.
    pub embedding: Option<F::Table>,
    /// `nextn.shared_head_head` [D, V] where it differs from the trunk's.
    pub head: Option<F::Matrix>,
}

/// Looks tensors up by name, checks their shapes and reports progress in bytes.
struct Reader<'a, P> {
    file: &'a Gguf,
    packer: &'a mut P,
    progress: &'a mut dyn FnMut(f32),
    bytes_done: u64,
    bytes_total: u64,
}

impl<F: Format> Weights<F> {
    /// Packs every tensor of the model; `progress` is called with the share of the bytes done, 0 to 1.
    pub fn load<P: Packer<Format = F>>(
        hp: &HParams,
        file: &Gguf,
        packer: &mut P,
        progress: &mut dyn FnMut(f32),
    ) -> Result<Weights<F>, ModelError> {
        let read = file.tensors().iter().filter(|t| hp.reads(&t.name));
        let bytes_total = read.map(|t| t.bytes()).sum::<u64>().max(1);
        let mut r = Reader { file, packer, progress, bytes_done: 0, bytes_total };
        let (d, v) = (hp.width, hp.vocab);
        let embedding = r.table(EMBEDDING, d, v)?;
        let layers = (0..hp.layers.len()).map(|i| r.layer(hp, i, hp.layers[i])).collect::<Result<_, _>>()?;
        let output_norm = r.vector("output_norm.weight", d)?;
        let head = if r.has(HEAD) { HEAD } else { EMBEDDING };
        let head = r.matrix(head, d, v)?;
        let mtp = hp.mtp.map(|i| r.mtp(hp, i)).transpose()?;
        (r.progress)(1.0);
        Ok(Weights { embedding, layers, output_norm, head, mtp })
    }
}

impl<P: Packer> Reader<'_, P> {
    fn has(&self, name: &str) -> bool {
        self.file.find(name).is_some()
    }

    /// The tensor `name`, which must have the shape `[cols, rows, experts]` (trailing ones may be left out).
    fn find<'n>(&mut self, name: &'n str, shape: [usize; 3]) -> Result<Tensor<'n>, ModelError> {
        let mut wanted: Vec<u64> = shape.iter().map(|n| *n as u64).collect();
        trim(&mut wanted);
        let Some(info) = self.file.find(name) else {
            return Err(ModelError::Missing { name: name.into(), wanted });
        };
        let mut found = info.dims().to_vec();
        trim(&mut found);
        if found != wanted {
            return Err(ModelError::Shape { name: name.into(), wanted, found });
        }
        if !info.dtype.is_native() {
            let reason = format!("its type {} is computed by the library only", info.dtype.name());
            return Err(ModelError::Tensor { name: name.into(), reason });
        }
        (self.progress)((self.bytes_done as f64 / self.bytes_total as f64).min(1.0) as f32);
        self.bytes_done += info.bytes();
        let [cols, rows, experts] = shape;
        let (range, stride) = (info.range.clone(), info.bytes() / experts.max(1) as u64);
        Ok(Tensor { name, dtype: info.dtype, cols, rows, experts, range, stride })
    }

    fn vector(&mut self, name: &str, len: usize) -> Result<Vector<P>, ModelError> {
        let t = self.find(name, [len, 1, 1])?;
        self.packer.vector(t)
    }

    fn matrix(&mut self, name: &str, cols: usize, rows: usize) -> Result<Matrix<P>, ModelError> {
        let t = self.find(name, [cols, rows, 1])?;
        self.packer.matrix(t)
    }

    fn table(&mut self, name: &str, cols: usize, rows: usize) -> Result<Table<P>, ModelError> {
        let t = self.find(name, [cols, rows, 1])?;
        self.packer.table(t)
    }

    fn experts(&mut self, name: &str, cols: usize, rows: usize, n: usize) -> Result<Experts<P>, ModelError> {
        let t = self.find(name, [cols, rows, n])?;
        self.packer.experts(t)
    }

    /// Gate and up of every expert, where one tensor has both: the rows of the gate, then those of up.
    fn gate_up(&mut self, name: &str, d: usize, p: &MoeParams) -> Result<[Experts<P>; 2], ModelError> {
        let both = self.find(name, [d, 2 * p.width, p.experts])?;
        let half = both.stride / 2;
        let mut part = |from: u64| {
            let range = both.range.start + from..both.range.end - half + from;
            self.packer.experts(Tensor { rows: p.width, range, ..both.clone() })
        };
        Ok([part(0)?, part(half)?])
    }

    fn layer(&mut self, hp: &HParams, i: usize, kind: LayerKind) -> Result<Layer<P::Format>, ModelError> {
        let name = |s: &str| format!("blk.{i}.{s}.weight");
        Ok(Layer {
            norm: self.vector(&name("attn_norm"), hp.width)?,
            mixer: match kind {
                LayerKind::Gdn => Mixer::Gdn(self.gdn(hp.width, &hp.gdn, i)?),
                LayerKind::Attention => Mixer::Attention(self.attention(hp, i)?),
            },
            post_norm: self.vector(&name("post_attention_norm"), hp.width)?,
            ffn: if hp.is_dense() {
                Ffn::Dense(self.gated(hp.width, hp.moe.shared_width, i)?)
            } else {
                Ffn::Moe(self.moe(hp.width, &hp.moe, i)?)
            },
        })
    }

    fn gdn(&mut self, d: usize, p: &GdnParams, i: usize) -> Result<Gdn<P::Format>, ModelError> {
        let name = |s: &str| format!("blk.{i}.{s}");
        let conv = name("ssm_conv1d.weight");
        let conv = self.find(&conv, [p.conv_kernel, p.channels(), 1])?;
        Ok(Gdn {
            conv: self.packer.vector(conv)?,
            qkv: self.matrix(&name("attn_qkv.weight"), d, p.channels())?,
            gate: self.matrix(&name("attn_gate.weight"), d, p.value_dim())?,
            alpha: self.matrix(&name("ssm_alpha.weight"), d, p.value_heads)?,
            beta: self.matrix(&name("ssm_beta.weight"), d, p.value_heads)?,
            a: self.vector(&name("ssm_a"), p.value_heads)?,
            dt_bias: self.vector(&name("ssm_dt.bias"), p.value_heads)?,
            norm: self.vector(&name("ssm_norm.weight"), p.head_dim)?,
            out: self.matrix(&name("ssm_out.weight"), p.value_dim(), d)?,
        })
    }

    fn attention(&mut self, hp: &HParams, i: usize) -> Result<Attention<P::Format>, ModelError> {
        let name = |s: &str| format!("blk.{i}.{s}.weight");
        let (d, p) = (hp.width, &hp.attention);
        let (q, kv) = (p.heads * p.head_dim, p.kv_heads * p.head_dim);
        Ok(Attention {
            q: self.matrix(&name("attn_q"), d, 2 * q)?,
            k: self.matrix(&name("attn_k"), d, kv)?,
            v: self.matrix(&name("attn_v"), d, kv)?,
            q_norm: self.vector(&name("attn_q_norm"), p.head_dim)?,
            k_norm: self.vector(&name("attn_k_norm"), p.head_dim)?,
            out: self.matrix(&name("attn_output"), q, d)?,
        })
    }

    fn gated(&mut self, d: usize, width: usize, i: usize) -> Result<Gated<P::Format>, ModelError> {
        let name = |s: &str| format!("blk.{i}.{s}.weight");
        Ok(Gated {
            gate: self.matrix(&name("ffn_gate"), d, width)?,
            up: self.matrix(&name("ffn_up"), d, width)?,
            down: self.matrix(&name("ffn_down"), width, d)?,
        })
    }

    fn moe(&mut self, d: usize, p: &MoeParams, i: usize) -> Result<Moe<P::Format>, ModelError> {
        let name = |s: &str| format!("blk.{i}.{s}.weight");
        let (router, shared) = (name("ffn_gate_inp"), name("ffn_gate_inp_shexp"));
        let router = self.find(&router, [d, p.experts, 1])?;
        let shared = self.find(&shared, [d, 1, 1])?;
        let router = self.packer.router(router, shared)?;
        let fused = name(FUSED_GATE_UP);
        let [gate, up] = if self.has(&fused) {
            self.gate_up(&fused, d, p)?
        } else {
            let mut one = |s| self.experts(&name(s), d, p.width, p.experts);
            [one("ffn_gate_exps")?, one("ffn_up_exps")?]
        };
        Ok(Moe {
            router,
            gate,
            up,
            down: self.experts(&name("ffn_down_exps"), p.width, d, p.experts)?,
            shared_gate: self.matrix(&name("ffn_gate_shexp"), d, p.shared_width)?,
            shared_up: self.matrix(&name("ffn_up_shexp"), d, p.shared_width)?,
            shared_down: self.matrix(&name("ffn_down_shexp"), p.shared_width, d)?,
        })
    }

    fn mtp(&mut self, hp: &HParams, i: usize) -> Result<Mtp<P::Format>, ModelError> {
        let name = |s: &str| format!("blk.{i}.nextn.{s}.weight");
        let (d, v) = (hp.width, hp.vocab);
        let own_norm = name("shared_head_norm");
        let norm = if self.has(&own_norm) { own_norm.as_str() } else { "output_norm.weight" };
        let (embedding, head) = (name("embed_tokens"), name("shared_head_head"));
        Ok(Mtp {
            embedding_norm: self.vector(&name("enorm"), d)?,
            hidden_norm: self.vector(&name("hnorm"), d)?,
            projection: self.matrix(&name("eh_proj"), 2 * d, d)?,
            layer: self.layer(hp, i, LayerKind::Attention)?,
            output_norm: self.vector(norm, d)?,
            embedding: self.has(&embedding).then(|| self.table(&embedding, d, v)).transpose()?,
            head: self.has(&head).then(|| self.matrix(&head, d, v)).transpose()?,
        })
    }
}

/// Drops trailing extents of 1, which writers may leave out, keeping at least one.
fn trim(shape: &mut Vec<u64>) {
    while shape.len() > 1 && shape.last() == Some(&1) {
        shape.pop();
    }
}
