//! Adapters as this backend holds them: factors packed for its kernels, by layer and matrix.

use crate::engine::adapter::{Adapter, Factors, HEAD, block_of, target_of};
use crate::engine::backend::BackendError;
use chimere_ffi::cpu::{ExpertFactors, LowRank, Pick};
use std::sync::Arc;

/// Bytes of packed factors that all loaded adapters may take together.
pub(super) const ADAPTER_BYTES_MAX: usize = 2 << 30;

/// One adapter, packed.
#[derive(Default)]
pub(super) struct Pairs {
    layers: Vec<LayerPairs>,
    pub(super) head: Option<LowRank>,
    pub(super) bytes: usize,
}

/// What an adapter adds to the matrices of one layer.
#[derive(Default)]
pub(super) struct LayerPairs {
    pub(super) q: Option<LowRank>,
    pub(super) k: Option<LowRank>,
    pub(super) v: Option<LowRank>,
    pub(super) qkv: Option<LowRank>,
    pub(super) z: Option<LowRank>,
    pub(super) alpha: Option<LowRank>,
    pub(super) beta: Option<LowRank>,
    /// Of either mixer.
    pub(super) out: Option<LowRank>,
    shared_gate: Option<LowRank>,
    shared_up: Option<LowRank>,
    shared_down: Option<LowRank>,
    /// One for each expert.
    gate: Option<Vec<LowRank>>,
    up: Option<Vec<LowRank>>,
    down: Option<Vec<LowRank>>,
}

impl Pairs {
    /// Packs an adapter for a model of `layers` main layers.
    pub(super) fn pack(adapter: &Adapter, layers: usize) -> Result<Pairs, BackendError> {
        let mut pairs = Pairs { layers: (0..layers).map(|_| LayerPairs::default()).collect(), ..Pairs::default() };
        for factors in &adapter.factors {
            let refuse = |reason: &str| BackendError::Adapter(format!("\"{}\": {reason}", factors.tensor));
            let mut packed = pack(factors, adapter).map_err(|e| refuse(&e))?;
            pairs.bytes += packed.iter().map(LowRank::bytes).sum::<usize>();
            if factors.tensor == HEAD {
                pairs.head = packed.pop();
                continue;
            }
            let layer = block_of(&factors.tensor).and_then(|i| pairs.layers.get_mut(i));
            let layer = layer.ok_or_else(|| refuse("the model has no such layer"))?;
            let target = target_of(&factors.tensor).unwrap_or_default();
            layer.put(target, packed).ok_or_else(|| refuse("this matrix takes no adapter"))?;
        }
        Ok(pairs)
    }

    pub(super) fn layer(&self, i: usize) -> Option<&LayerPairs> {
        self.layers.get(i)
    }
}

fn pack(f: &Factors, adapter: &Adapter) -> Result<Vec<LowRank>, String> {
    let (rank, scale) = (adapter.rank, adapter.scale());
    let a = f.a.chunks_exact(rank * f.shape.inputs);
    let b = f.b.chunks_exact(rank * f.shape.outputs);
    a.zip(b)
        .map(|(a, b)| LowRank::new(rank, f.shape.inputs, f.shape.outputs, a, b, scale).map_err(|e| e.to_string()))
        .collect()
}

impl LayerPairs {
    fn put(&mut self, target: &str, mut packed: Vec<LowRank>) -> Option<()> {
        let one = match target {
            "ffn_gate_exps" => return self.gate.replace(packed).map_or(Some(()), |_| None),
            "ffn_up_exps" => return self.up.replace(packed).map_or(Some(()), |_| None),
            "ffn_down_exps" => return self.down.replace(packed).map_or(Some(()), |_| None),
            "attn_q" => &mut self.q,
            "attn_k" => &mut self.k,
            "attn_v" => &mut self.v,
            "attn_output" | "ssm_out" => &mut self.out,
            "attn_qkv" => &mut self.qkv,
            "attn_gate" => &mut self.z,
            "ssm_alpha" => &mut self.alpha,
            "ssm_beta" => &mut self.beta,
            "ffn_gate_shexp" => &mut self.shared_gate,
            "ffn_up_shexp" => &mut self.shared_up,
            "ffn_down_shexp" => &mut self.shared_down,
            _ => return None,
        };
        *one = packed.pop();
        one.is_some().then_some(())
    }

    /// The experts' part, if there is any.
    pub(super) fn experts(&self) -> Option<ExpertFactors<'_>> {
        let f = ExpertFactors {
            gate: self.gate.as_deref(),
            up: self.up.as_deref(),
            down: self.down.as_deref(),
            shared_gate: self.shared_gate.as_ref(),
            shared_up: self.shared_up.as_ref(),
            shared_down: self.shared_down.as_ref(),
        };
        let routed = f.gate.is_some() || f.up.is_some() || f.down.is_some();
        (routed || f.shared_gate.is_some() || f.shared_up.is_some() || f.shared_down.is_some()).then_some(f)
    }
}

/// The adapter of each row of a pass; empty where no row has one.
#[derive(Default)]
pub(super) struct Who(pub(super) Vec<Option<Arc<Pairs>>>);

impl Who {
    pub(super) fn any(&self) -> bool {
        !self.0.is_empty()
    }

    /// `all`, or none where no row has an adapter.
    pub(super) fn picks<'p, 'a>(&self, all: &'p [&'p Pick<'a>]) -> &'p [&'p Pick<'a>] {
        if self.any() { all } else { &[] }
    }

    /// What row `t` adds to layer `i`.
    pub(super) fn layer(&self, t: usize, i: usize) -> Option<&LayerPairs> {
        self.0.get(t)?.as_ref()?.layer(i)
    }

    /// What row `t` adds to the head.
    pub(super) fn head(&self, t: usize) -> Option<&LowRank> {
        self.0.get(t)?.as_ref()?.head.as_ref()
    }
}
