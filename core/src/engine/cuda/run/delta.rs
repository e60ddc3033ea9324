//! The stages of a pass that keep a recurrent state: projections and the delta rule, of few rows and of many.

use super::{Run, with_targets};
use crate::engine::cuda::adapters::Target;
use crate::engine::cuda::memory::LayerState;
use crate::engine::cuda::weights::OnDevice;
use crate::engine::model::weights::{Gdn as Weights, Mixer};
use chimere_ffi::gpu::{Buffer, GpuError};
use chimere_ffi::kernels::{gdn, matmul};

impl Run<'_> {
    /// What goes into the recurrent mix.
    pub(super) fn gdn_project(&mut self, i: usize) -> Result<(), GpuError> {
        let layer = self.layer(i);
        let Mixer::Gdn(w) = &layer.mixer else { return Ok(()) };
        let m = &self.c.memory;
        let products = [(&w.qkv, &m.qkv), (&w.gate, &m.z), (&w.alpha, &m.alpha), (&w.beta, &m.beta)];
        let targets = [Target::Qkv, Target::Z, Target::Alpha, Target::Beta];
        self.project(i, &with_targets(targets, products))
    }

    /// The recurrent mix, by the kernel for so many rows.
    pub(super) fn gdn_mix(&mut self, i: usize) -> Result<(), GpuError> {
        let (Mixer::Gdn(w), LayerState::Gdn { state, window }) = (&self.layer(i).mixer, &self.c.states.layers[i])
        else {
            return Ok(());
        };
        let (device, kept) = (&self.c.device, self.c.sizes.state);
        match self.rows > matmul::NARROW_TOKENS_MAX {
            true => gdn::walk(device, kept, &self.many(w, state, window), self.spans),
            false => gdn::launch(device, kept, &self.few(w, state, window), self.spans),
        }
    }

    fn many(&self, w: &Weights<OnDevice>, state: &Buffer, window: &Buffer) -> gdn::Walk {
        let (m, p) = (&self.c.memory, &self.c.hp.gdn);
        gdn::Walk {
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
        }
    }

    fn few(&self, w: &Weights<OnDevice>, state: &Buffer, window: &Buffer) -> gdn::Gdn {
        let (m, p) = (&self.c.memory, &self.c.hp.gdn);
        gdn::Gdn {
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
        }
    }
}
