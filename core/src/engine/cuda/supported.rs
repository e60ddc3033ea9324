//! Which models the kernels can compute, beyond what the architecture allows.

use chimere_ffi::kernels::{Packing, norm, route};

use super::weights::OnDevice;
use super::{CudaOptions, SHORT_ROWS_MAX};
use crate::engine::model::weights::Layer;
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

/// The kernel that multiplies by gate and up reads one packing.
pub(super) fn one_packing(i: usize, layer: &Layer<OnDevice>) -> Result<(), ModelError> {
    let m = &layer.moe;
    let same = |a: Packing, b: Packing| a == b;
    if same(m.gate.packing, m.up.packing) && same(m.shared_gate.packing, m.shared_up.packing) {
        return Ok(());
    }
    Err(ModelError::Tensor {
        name: format!("blk.{i}.ffn_up_exps.weight"),
        reason: "it is of another type than its gate, which this backend does not multiply by".into(),
    })
}

pub(super) fn packed_experts(layer: &Layer<OnDevice>) -> bool {
    let m = &layer.moe;
    let shared = [&m.shared_gate, &m.shared_up, &m.shared_down];
    [&m.gate, &m.up, &m.down].iter().all(|e| !e.packing.is_float()) && shared.iter().all(|e| !e.packing.is_float())
}
