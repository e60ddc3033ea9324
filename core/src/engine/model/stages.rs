//! The forward pass as a list of stages. Every native backend runs this list, one function a stage, so that two
//! backends can be compared stage by stage.
//!
//! T rows (all tokens of a pass, sequence after sequence), D width, C convolution channels, Hv value heads, Dv
//! values of them together. H query heads, G KV heads, h their size, E experts, K of them used, V vocabulary.
//! Buffers are row-major f32; `x` is the residual stream.

use super::hparams::{HParams, LayerKind};

/// One stage; the number is the layer, where the prediction block counts as the layer after the last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// x [T, D] ← rows of the embedding.
    Embed,
    /// Prediction block only: x [T, D] ← projection · [norm(embedding of token t+1) ; norm(h_t)].
    Combine,
    /// n = norm(x); qkv [T, C], z [T, Dv], α [T, Hv], β [T, Hv] ← their matrices · n.
    GdnProject(usize),
    /// y [T, Dv] ← gated delta rule over qkv, z, α, β; advances each sequence's convolution window and state.
    ///
    /// Per value head, with key head = head mod key heads: c = SiLU(conv(qkv)); q, k L2-normalised, q/√d;
    /// a = exp(softplus(α + dt_bias)·A); S ← a·S; δ = sigmoid(β)·(v − Sᵀk); S ← S + k δᵀ; o = Sᵀq;
    /// y = norm(o)·SiLU(z). Source: Yang et al., "Gated Delta Networks" (2024), equation 10.
    GdnMix(usize),
    /// n = norm(x); q|gate [T, H·2h], k [T, G·h], v [T, G·h] ← their matrices · n.
    AttentionProject(usize),
    /// q ← rope(norm(q)) per head; rope(norm(k)) and v are written to the sequence's KV cache.
    AttentionCache(usize),
    /// y [T, H·h] ← softmax(q·k/√h over positions up to the row's own)·v, times sigmoid(gate).
    AttentionMix(usize),
    /// In the last layer: keeps only the rows that somebody asked for. x and the mixer's buffers shrink to them.
    Narrow(usize),
    /// x += out · y.
    MixerOutput(usize),
    /// n = norm(x); p = softmax(router · n) over all E; the K largest, renormalised; shared gate = sigmoid of the
    /// router's last output.
    Route(usize),
    /// x += Σ p_e · down_e(SiLU(gate_e n) · up_e n) + shared gate · shared(n).
    Experts(usize),
    /// In a dense model, in place of these two: n = norm(x); x += down · (SiLU(gate n) · up n).
    Dense(usize),
    /// logits [rows asked for, V] ← head · norm(x).
    Head,
}

/// The stages of the trunk, in order.
pub fn trunk(hp: &HParams) -> Vec<Stage> {
    let mut list = vec![Stage::Embed];
    let last = hp.layers.len() - 1;
    for (i, kind) in hp.layers.iter().enumerate() {
        push_layer(&mut list, hp, i, *kind, i == last);
    }
    list.push(Stage::Head);
    list
}

/// The stages of the prediction block, in order; empty where the file has none.
pub fn prediction(hp: &HParams) -> Vec<Stage> {
    if hp.mtp.is_none() {
        return Vec::new();
    }
    let mut list = vec![Stage::Combine];
    push_layer(&mut list, hp, hp.layers.len(), LayerKind::Attention, true);
    list.push(Stage::Head);
    list
}

/// In the last layer a row that nobody asked for has done its part once the sequence's state knows it.
fn push_layer(list: &mut Vec<Stage>, hp: &HParams, i: usize, kind: LayerKind, last: bool) {
    match kind {
        LayerKind::Gdn => {
            list.extend([Stage::GdnProject(i), Stage::GdnMix(i)]);
            list.extend(last.then_some(Stage::Narrow(i)));
        }
        LayerKind::Attention => {
            list.extend([Stage::AttentionProject(i), Stage::AttentionCache(i)]);
            list.extend(last.then_some(Stage::Narrow(i)));
            list.push(Stage::AttentionMix(i));
        }
    }
    list.push(Stage::MixerOutput(i));
    match hp.is_dense() {
        true => list.push(Stage::Dense(i)),
        false => list.extend([Stage::Route(i), Stage::Experts(i)]),
    }
}
