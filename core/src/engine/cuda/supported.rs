//! Which models the kernels can compute, beyond what the architecture allows.

use chimere_ffi::kernels::{norm, route};

use super::weights::OnDevice;
use super::{CudaOptions, SHORT_ROWS_MAX};
use crate::engine::model::weights::{Ffn, Layer};
use crate::engine::model::{HParams, ModelError};

/// What the kernels need of a model beyond what the architecture allows.
pub(super) fn supported(hp: &HParams, options: &CudaOptions) -> Result<(), ModelError> {
    let a = &hp.attention;
    let rules = [
        ("ssm.conv_kernel", hp.gdn.conv_kernel, hp.gdn.conv_kernel == 4, "4 on this backend"),
        ("ssm.state_size", hp.gdn.head_dim, hp.gdn.head_dim == 128, "128 on this backend"),
        (
            "attention.key_length",
            a.head_dim,
            a.head_dim % 32 == 0 && a.head_dim <= 256,
            "a multiple of 32 up to 256 on this backend",
        ),
        (
            "embedding_length",
            hp.width,
            hp.width <= norm::WIDTH_MAX && hp.width % 4 == 0,
            "a multiple of 4 and at most 8192 on this backend",
        ),
        ("expert_count", hp.moe.experts, hp.moe.experts <= route::EXPERTS_MAX, "at most 1024 on this backend"),
        ("expert_used_count", hp.moe.used, hp.moe.used <= route::USED_MAX, "at most 32 on this backend"),
        (
            "expert_feed_forward_length",
            hp.moe.width,
            hp.moe.width % 32 == 0 && hp.moe.shared_width % 32 == 0,
            "a multiple of 32 on this backend",
        ),
        ("sequences_max", options.sequences_max, (1..=SHORT_ROWS_MAX).contains(&options.sequences_max), "1 to 512"),
    ];
    match rules.iter().find(|r| !r.2) {
        Some((key, found, _, wanted)) => {
            Err(ModelError::Value { key: (*key).into(), found: found.to_string(), wanted })
        }
        None => Ok(()),
    }
}

/// The kernels multiply by gate and up of any two packings, but not by one of floats and another of something else.
pub(super) fn alike_floats(i: usize, layer: &Layer<OnDevice>) -> Result<(), ModelError> {
    let pairs = match &layer.ffn {
        Ffn::Moe(m) => {
            vec![("_exps", m.gate.packing, m.up.packing), ("_shexp", m.shared_gate.packing, m.shared_up.packing)]
        }
        Ffn::Dense(m) => vec![("", m.gate.packing, m.up.packing)],
    };
    match pairs.into_iter().find(|(_, gate, up)| gate != up && (gate.is_float() || up.is_float())) {
        Some((of, gate, _)) => Err(ModelError::Tensor {
            name: format!("blk.{i}.ffn_{}{of}.weight", if gate.is_float() { "gate" } else { "up" }),
            reason: "it is of 32-bit floats and the matrix that it is multiplied with is not, which this backend does not do: \
                     quantise it (`chimere quantize`), or run the file on the processor (engine.backend, --backend cpu)"
                .into(),
        }),
        None => Ok(()),
    }
}

/// What keeps a layer from the fastest kernels for its experts, or what it has in their place; `None`: nothing.
pub(super) fn slower(layer: &Layer<OnDevice>) -> Option<&'static str> {
    let m = match &layer.ffn {
        Ffn::Moe(moe) => moe,
        Ffn::Dense(m) if m.gate.packing.is_float() => return Some("gate and up of floats"),
        Ffn::Dense(m) => return (m.gate.packing != m.up.packing).then_some("gate and up of different types"),
    };
    let routed = [m.gate.packing, m.up.packing, m.down.packing];
    let shared = [m.shared_gate.packing, m.shared_up.packing, m.shared_down.packing];
    if routed.iter().any(|p| p.is_float()) {
        Some("experts of floats")
    } else if shared.iter().any(|p| p.is_float()) {
        Some("a shared expert of floats")
    } else if routed[0] != routed[1] || shared[0] != shared[1] {
        Some("gate and up of different types")
    } else {
        None
    }
}

/// The layers that run slower, and why, in one line.
pub(super) fn slower_layers<'a>(layers: impl Iterator<Item = &'a Layer<OnDevice>>) -> Option<String> {
    let found: Vec<_> = layers.enumerate().filter_map(|(i, layer)| Some((i, slower(layer)?))).collect();
    let mut reasons: Vec<_> = found.iter().map(|(_, reason)| *reason).collect();
    reasons.sort_unstable();
    reasons.dedup();
    let of = |reason: &str| {
        let layers: Vec<_> = found.iter().filter(|(_, r)| *r == reason).map(|(i, _)| i.to_string()).collect();
        format!("{reason} in layer {}", layers.join(", "))
    };
    (!reasons.is_empty()).then(|| reasons.into_iter().map(of).collect::<Vec<_>>().join("; "))
}
