//! The experts' stages of a pass: the choice, and the matrices of those that were chosen, row by row or in lists. What
//! many rows make of them is added to the residual stream by the norm that comes next. Also what dense models have in
//! their place: a shared expert that nothing weighs.

use super::Run;
use crate::engine::cuda::supported::slower;
use crate::engine::cuda::weights::Matrix;
use crate::engine::model::weights::Ffn;
use chimere_ffi::gpu::GpuError;
use chimere_ffi::kernels::low::{self, Low};
use chimere_ffi::kernels::matmul::{self, Besides, Normed};
use chimere_ffi::kernels::{each, experts, route};

impl Run<'_> {
    /// Which experts each row goes to. Few rows are normalised and choose where the experts are read.
    pub(super) fn route(&mut self, i: usize) -> Result<(), GpuError> {
        if self.each(i) {
            return Ok(());
        }
        let layer = self.layer(i);
        let Ffn::Moe(moe) = &layer.ffn else { return Ok(()) };
        self.norm(&layer.post_norm)?;
        self.summed = false;
        let (m, p) = (&self.c.memory, &self.c.hp.moe);
        // The inner values of the shared expert's adapters are made beside the logits, over the same inputs.
        let shared = self.low_shared(i);
        let low = if shared.count > 0 { Low { of: [low::NONE; low::PARTS_MAX], ..shared } } else { Low::default() };
        let besides = Besides { low: self.counting(low), ..Besides::default() };
        matmul::with(&self.c.device, self.input(), &[(moe.router.weight(), m.router.at())], &besides)?;
        let a = route::Route {
            logits: m.router.at(),
            weight: m.weight.at(),
            chosen: m.chosen.at(),
            active: m.active.at(),
            start: m.start.at(),
            pairs: m.pairs.at(),
            tokens: self.rows as u32,
            experts: p.experts as u32,
            used: p.used as u32,
            pad: 0,
        };
        route::launch(&self.c.device, &a, experts::listed(self.rows, &shared).then_some(m.work.at()))
    }

    /// What the experts say, added to the residual stream now or by the norm that comes next.
    pub(super) fn experts(&mut self, i: usize) -> Result<(), GpuError> {
        if self.each(i) {
            each::launch(&self.c.device, &self.each_experts(i), &self.counting(self.low_shared(i)))?;
            self.summed = self.fuses();
            return Ok(());
        }
        let m = &self.c.memory;
        if let (Some(tier), Some(moe)) = (&self.c.tier, self.layer(i).moe()) {
            let p = &self.c.hp.moe;
            tier.bring(&self.c.device, (i, moe), (&m.start, p.experts, self.rows * p.used))?;
        }
        let (a, low, count) = (self.listed(i)?, self.low_shared(i), self.c.hp.moe.experts);
        experts::up(&self.c.device, &a, &low, count)?;
        self.pending = !experts::down(&self.c.device, &a, &low, count)?;
        self.adapt_down(i)
    }

    /// A dense model's feed-forward part: gate and up as of a shared expert, down as any matrix behind which x waits.
    pub(super) fn dense(&mut self, i: usize) -> Result<(), GpuError> {
        let layer = self.layer(i);
        let Ffn::Dense(w) = &layer.ffn else { return Ok(()) };
        self.norm(&layer.post_norm)?;
        experts::up(&self.c.device, &self.listed(i)?, &Low::default(), 0)?;
        let (h, inputs) = (&self.c.memory.h, self.c.hp.moe.shared_width);
        self.add(
            &w.down,
            matmul::Input { x: h.x.at(), halves: h.halves.at(), inputs, tokens: self.rows },
            Low::default(),
        )
    }

    /// The experts over lists of the rows that chose each.
    fn listed(&self, i: usize) -> Result<experts::Experts, GpuError> {
        let (m, (routed, shared), joint) = (&self.c.memory, self.matrices(i), self.joint(i)?);
        let input = self.input();
        Ok(experts::Experts {
            routed,
            shared,
            active: m.active.at(),
            start: m.start.at(),
            pairs: m.pairs.at(),
            x: input.x,
            halves: input.halves,
            h: m.h.x.at(),
            hh: m.h.halves.at(),
            y: m.y.at(),
            weight: m.weight.at(),
            residual: self.x.at(),
            chosen: m.chosen.at(),
            work: m.work.at(),
            inputs: self.c.hp.width as u32,
            tokens: self.rows as u32,
            used: self.c.hp.moe.used as u32,
            stride: self.c.sizes.inner as u32,
            joint,
        })
    }

    /// Whether each row chooses and reads its own experts, which no adapter changes and which all lie on the card.
    fn each(&self, i: usize) -> bool {
        let few = self.rows <= each::TOKENS_MAX && self.c.hp.moe.used <= each::USED_MAX;
        let floats = self.layer(i).moe().is_some_and(|moe| moe.router.packing.is_float());
        few && floats && slower(self.layer(i)).is_none() && self.c.tier.is_none() && !self.adapts_experts(i)
    }

    /// The routed experts of layer `i`, and the shared one. A dense layer's are of no width, and its matrices.
    fn matrices(&self, i: usize) -> (experts::Expert, experts::Expert) {
        let p = &self.c.hp.moe;
        let w = match &self.layer(i).ffn {
            Ffn::Moe(moe) => moe,
            Ffn::Dense(w) => {
                let shared = gated([&w.gate, &w.up, &w.down], p.shared_width);
                return (experts::Expert { width: 0, ..shared }, shared);
            }
        };
        let routed = experts::Expert {
            gate: w.gate.buffer.at(),
            up: w.up.buffer.at(),
            down: w.down.buffer.at(),
            gate_bytes: w.gate.bytes as u64,
            up_bytes: w.up.bytes as u64,
            down_bytes: w.down.bytes as u64,
            gate_packing: w.gate.packing as u32,
            up_packing: w.up.packing as u32,
            down_packing: w.down.packing as u32,
            width: p.width as u32,
            places: self.c.tier.as_ref().map_or(0, |tier| tier.places(i)),
        };
        (routed, gated([&w.shared_gate, &w.shared_up, &w.shared_down], p.shared_width))
    }

    fn each_experts(&self, i: usize) -> each::Each {
        let (m, (routed, shared), layer) = (&self.c.memory, self.matrices(i), self.layer(i));
        let (router, input) = (layer.moe().map(|moe| &moe.router), self.input());
        let (x, squares) = if self.summed { (self.x.at(), m.squares.at()) } else { (input.x, 0) };
        each::Each {
            routed,
            shared,
            router: router.map_or(0, |router| router.buffer.at()),
            x,
            halves: input.halves,
            norm: Normed { squares, weights: layer.post_norm.at(), eps: self.c.hp.rms_eps, pad: 0 },
            logits: m.router.at(),
            chosen: m.chosen.at(),
            hh: m.h.halves.at(),
            residual: self.x.at(),
            squares: self.squares(),
            arrived: m.arrived.at(),
            inputs: self.c.hp.width as u32,
            used: self.c.hp.moe.used as u32,
            experts: self.c.hp.moe.experts as u32,
            stride: self.c.sizes.inner as u32,
            tokens: self.rows as u32,
            router_packing: router.map_or(0, |router| router.packing as u32),
            ..Default::default()
        }
    }
}

/// Gate, up and down that every row goes through.
fn gated([gate, up, down]: [&Matrix; 3], width: usize) -> experts::Expert {
    experts::Expert {
        gate: gate.buffer.at(),
        up: up.buffer.at(),
        down: down.buffer.at(),
        down_bytes: down.bytes() as u64,
        gate_packing: gate.packing as u32,
        up_packing: up.packing as u32,
        down_packing: down.packing as u32,
        width: width as u32,
        ..Default::default()
    }
}
