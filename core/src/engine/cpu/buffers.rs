//! Activations between stages. They grow to the largest pass seen (bounded by `PASS_ROWS_MAX`) and are reused, so a
//! decode step allocates nothing.

use crate::engine::model::hparams::HParams;
use chimere_ffi::cpu::{Act, Angles, GdnScratch, MoeScratch};

/// T = rows of the pass; other letters as in `model::stages`.
pub(super) struct Buffers {
    /// Residual stream [T, D].
    pub(super) x: Vec<f32>,
    /// Normalised input of a layer's matrices [T, D].
    pub(super) input: Act,
    /// GDN: qkv [T, C], z [T, Dv], α and β [T, Hv].
    pub(super) qkv: Vec<f32>,
    pub(super) z: Vec<f32>,
    pub(super) alpha: Vec<f32>,
    pub(super) beta: Vec<f32>,
    /// Output of the GDN mixer [T, Dv].
    pub(super) gdn_out: Act,
    pub(super) gdn_scratch: GdnScratch,
    /// Attention: query and gate per head [T, H·2h], k and v [T, G·h], rotated queries [T, H·h].
    pub(super) query_gate: Vec<f32>,
    pub(super) k: Vec<f32>,
    pub(super) v: Vec<f32>,
    pub(super) q: Vec<f32>,
    /// Output of the attention mixer before its gate and after it [T, H·h].
    pub(super) mixed: Vec<f32>,
    pub(super) attention_out: Act,
    /// Rotation of each row [T].
    pub(super) angles: Vec<Angles>,
    /// Router logits with the shared expert's [T, E + 1], and its gate [T].
    pub(super) router: Vec<f32>,
    pub(super) shared: Vec<f32>,
    /// Chosen experts and their weights [T, K].
    pub(super) experts: Vec<u32>,
    pub(super) weights: Vec<f32>,
    pub(super) probabilities: Vec<f32>,
    pub(super) moe_scratch: MoeScratch,
    /// Dense: gate and up, and what of them goes to down [T, S].
    pub(super) gate: Vec<f32>,
    pub(super) up: Vec<f32>,
    pub(super) inner: Act,
    /// `[embedding ; hidden]` of the prediction block [T, 2D].
    pub(super) combined: Act,
}

impl Buffers {
    pub(super) fn new(hp: &HParams) -> Buffers {
        Buffers {
            x: Vec::new(),
            input: Act::new(hp.width),
            qkv: Vec::new(),
            z: Vec::new(),
            alpha: Vec::new(),
            beta: Vec::new(),
            gdn_out: Act::new(hp.gdn.value_dim()),
            gdn_scratch: GdnScratch::default(),
            query_gate: Vec::new(),
            k: Vec::new(),
            v: Vec::new(),
            q: Vec::new(),
            mixed: Vec::new(),
            attention_out: Act::new(hp.attention.heads * hp.attention.head_dim),
            angles: Vec::new(),
            router: Vec::new(),
            shared: Vec::new(),
            experts: Vec::new(),
            weights: Vec::new(),
            probabilities: Vec::new(),
            moe_scratch: MoeScratch::default(),
            gate: Vec::new(),
            up: Vec::new(),
            inner: Act::new(hp.moe.shared_width),
            combined: Act::new(2 * hp.width),
        }
    }
}

/// Gives `v` exactly `len` values; which ones is left open, for buffers that are written whole.
pub(super) fn set_len<T: Clone + Default>(v: &mut Vec<T>, len: usize) {
    v.resize(len, T::default());
}
