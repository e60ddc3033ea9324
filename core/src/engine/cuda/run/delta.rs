//! The stages of a pass that keep a recurrent state: projections and the delta rule, of few rows and of many.

use super::{Run, with_targets};
use crate::engine::cuda::adapters::Target;
use crate::engine::cuda::memory::LayerState;
use crate::engine::model::weights::Mixer;
use chimere_ffi::gpu::GpuError;
use chimere_ffi::kernels::{gdn, matmul};

impl Run<'_> {
    pub(super) fn gdn_project(&mut self, i: usize) -> Result<(), GpuError> {
        let layer = self.layer(i);
        let Mixer::Gdn(w) = &layer.mixer else { return Ok(()) };
        let m = &self.c.memory;
        let products = [(&w.qkv, &m.qkv), (&w.gate, &m.z), (&w.alpha, &m.alpha), (&w.beta, &m.beta)];
        self.project(&layer.norm, &products)?;
        let targets = [Target::Qkv, Target::Z, Target::Alpha, Target::Beta];
        self.adapt(i, self.input(), &with_targets(targets, products))
    }

    pub(super) fn gdn_mix(&mut self, i: usize) -> Result<(), GpuError> {
        let (Mixer::Gdn(w), LayerState::Gdn { state, window }) = (&self.layer(i).mixer, &self.c.states.layers[i])
        else {
            return Ok(());
        };
        let (m, p) = (&self.c.memory, &self.c.hp.gdn);
        if self.rows > matmul::NARROW_TOKENS_MAX {
            let a = gdn::Walk {
                qkv: m.qkv.at(),
                z: m.z.at(),
                alpha: m.alpha.at(),
                beta: m.beta.at(),
                conv: w.conv.at(),
                decay: w.a.at(),
                bias: w.dt_bias.at(),
                norm: w.norm.at(),
                state: state.at(),
                window: window.at(),
                spans: m.plan.from(4 * self.list),
                slot: m.plan.from(self.list),
                position: m.plan.from(2 * self.list),
                mixed: m.convolved.at(),
                gates: m.gates.at(),
                y: m.mixed.x.at(),
                halves: m.mixed.halves.at(),
                key_heads: p.key_heads as u32,
                value_heads: p.value_heads as u32,
                channels: p.channels() as u32,
                tokens: self.rows as u32,
                eps: self.c.hp.rms_eps,
                pad: 0.0,
            };
            return gdn::walk(&self.c.device, self.c.sizes.state, &a, self.spans);
        }
        self.gdn(i).map_or(Ok(()), |a| gdn::launch(&self.c.device, self.c.sizes.state, &a, self.spans))
    }

    /// The recurrent mix of few rows.
    fn gdn(&self, i: usize) -> Option<gdn::Gdn> {
        let (Mixer::Gdn(w), LayerState::Gdn { state, window }) = (&self.layer(i).mixer, &self.c.states.layers[i])
        else {
            return None;
        };
        let (m, p) = (&self.c.memory, &self.c.hp.gdn);
        Some(gdn::Gdn {
            qkv: m.qkv.at(),
            z: m.z.at(),
            alpha: m.alpha.at(),
            beta: m.beta.at(),
            conv: w.conv.at(),
            decay: w.a.at(),
            bias: w.dt_bias.at(),
            norm: w.norm.at(),
            state: state.at(),
            window: window.at(),
            spans: m.plan.from(4 * self.list),
            y: m.mixed.x.at(),
            halves: m.mixed.halves.at(),
            key_heads: p.key_heads as u32,
            value_heads: p.value_heads as u32,
            channels: p.channels() as u32,
            eps: self.c.hp.rms_eps,
            ..Default::default()
        })
    }
}
