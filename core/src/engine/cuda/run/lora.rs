//! What adapters add in a pass: inside the products where their factors are in tiles, else behind the products of mixers and head,
//! and inside the experts. Nothing is launched for matrices that no adapter of the pass changes.

use super::Run;
use crate::engine::cuda::adapters::{Adapters, Target};
use crate::engine::cuda::weights::Matrix;
use chimere_ffi::gpu::{Buffer, GpuError};
use chimere_ffi::kernels::lora::{self, Joint, Part, RANK_MAX, Who};
use chimere_ffi::kernels::low::{self, Low};
use chimere_ffi::kernels::matmul;

const EXPERTS: [Target; 6] =
    [Target::SharedGate, Target::SharedUp, Target::SharedDown, Target::Gate, Target::Up, Target::Down];

const SHARED: [Target; 3] = [Target::SharedGate, Target::SharedUp, Target::SharedDown];

impl Run<'_> {
    /// What adapters in tiles add to products of layer `i` over the same inputs.
    pub(super) fn low(&self, i: usize, targets: &[Target]) -> Low {
        self.counting(self.low_parts(i, targets))
    }

    /// What they add to the shared expert's gate, up and down, the inner values of the first two made by who is told where to
    /// count.
    pub(super) fn low_shared(&self, i: usize) -> Low {
        let low = self.low_parts(i, &SHARED);
        let made = low.of[..2].iter().filter(|of| **of != low::NONE).count() as u32;
        Low { count: low.count.min(made), ..low }
    }

    /// With a place of its own to count in.
    pub(super) fn counting(&self, low: Low) -> Low {
        if low.count == 0 {
            return low;
        }
        let n = self.counted.replace(self.counted.get() + 1);
        Low { arrived: self.c.memory.low_arrived.from(4 * n * self.words), ..low }
    }

    fn low_parts(&self, i: usize, targets: &[Target]) -> Low {
        let (changed, plan) = (&self.changed, &self.c.memory.plan);
        if !changed.tiles.any(i, targets) {
            return Low::default();
        }
        let rows = if self.narrowed { plan.from(3 * self.list) } else { 0 };
        let mut low = self.c.adapters.low(changed, plan.from(9 * self.list), plan.from(8 * self.list), rows);
        low.inner = self.c.memory.low_inner.at();
        for (of, target) in low.of.iter_mut().zip(targets).filter(|(_, t)| changed.tiles.at(i, **t)) {
            low.place[low.count as usize] = Adapters::place(i, *target);
            *of = low.count;
            low.count += 1;
        }
        low
    }

    /// Whose adapter each row is under, from row `first` on.
    fn who(&self, first: usize) -> Who {
        let (plan, from) = (&self.c.memory.plan, 4 * first);
        let (slot, rows) = match self.narrowed {
            true => (plan.from(self.list), plan.from(3 * self.list + from)),
            false => (plan.from(self.list + from), 0),
        };
        self.c.adapters.who(slot, rows)
    }

    /// Inner values of row `row` of all that are kept between two launches.
    fn inner(&self, row: usize) -> u64 {
        self.c.memory.inner.from(4 * row * RANK_MAX)
    }

    /// Adds to products of layer `i` over the same inputs.
    pub(super) fn adapt(
        &self,
        i: usize,
        input: matmul::Input,
        products: &[(Target, &Matrix, &Buffer)],
    ) -> Result<(), GpuError> {
        let touched = products.iter().filter(|(target, ..)| self.changed.floats.at(i, *target));
        let parts: Vec<Part> = touched
            .enumerate()
            .map(|(n, (target, w, out))| Part {
                inner: self.inner(n * input.tokens),
                out: out.at(),
                outputs: w.rows as u32,
                ..part(input, Adapters::place(i, *target))
            })
            .collect();
        self.add_parts(0, &parts)
    }

    /// Adds to the logits of the rows `first ..`.
    pub(super) fn adapt_head(&self, first: usize, input: matmul::Input, outputs: usize) -> Result<(), GpuError> {
        if !self.changed.floats.head() {
            return Ok(());
        }
        let out = self.c.memory.logits.at();
        let part =
            Part { inner: self.inner(0), out, outputs: outputs as u32, ..part(input, self.c.adapters.head_place()) };
        self.add_parts(first, &[part])
    }

    fn add_parts(&self, first: usize, parts: &[Part]) -> Result<(), GpuError> {
        if parts.is_empty() {
            return Ok(());
        }
        let who = self.who(first);
        lora::inner(&self.c.device, who, parts)?;
        lora::add(&self.c.device, who, parts)
    }

    /// Whether adapters change the experts of layer `i`.
    pub(super) fn adapts_experts(&self, i: usize) -> bool {
        self.changed.floats.any(i, &EXPERTS)
    }

    /// What is added to gate and up of layer `i`, its inner values made.
    pub(super) fn joint(&self, i: usize) -> Result<Joint, GpuError> {
        if !self.adapts_experts(i) {
            return Ok(Joint::default());
        }
        let (who, used) = (self.who(0), self.c.hp.moe.used);
        // Every pair's gate, then every pair's up; routed pairs before the shared expert's.
        let (all, routed) = (self.rows * (used + 1), self.rows * used);
        let one = |target: Target, at: usize| Part {
            inner: self.inner(at),
            ..part(self.input(), Adapters::place(i, target))
        };
        let many = |target: Target, at: usize| self.routed(Part { fan: used as u32, ..one(target, at) });
        let parts = [
            (Target::Gate, many(Target::Gate, 0)),
            (Target::Up, many(Target::Up, all)),
            (Target::SharedGate, one(Target::SharedGate, routed)),
            (Target::SharedUp, one(Target::SharedUp, all + routed)),
        ];
        let parts: Vec<Part> =
            parts.into_iter().filter(|(t, _)| self.changed.floats.at(i, *t)).map(|(_, p)| p).collect();
        if !parts.is_empty() {
            lora::inner(&self.c.device, who, &parts)?;
        }
        Ok(Joint {
            who,
            gate: self.inner(0),
            up: self.inner(all),
            gate_place: Adapters::place(i, Target::Gate),
            up_place: Adapters::place(i, Target::Up),
            shared_gate_place: Adapters::place(i, Target::SharedGate),
            shared_up_place: Adapters::place(i, Target::SharedUp),
        })
    }

    /// A part over the routed pairs.
    fn routed(&self, part: Part) -> Part {
        let used = self.c.hp.moe.used;
        Part { rows: (self.rows * used) as u32, used: used as u32, chosen: self.c.memory.chosen.at(), ..part }
    }

    /// Adds to the experts' results, which wait in `y`.
    pub(super) fn adapt_down(&self, i: usize) -> Result<(), GpuError> {
        let (m, p, width) = (&self.c.memory, &self.c.hp.moe, self.c.hp.width);
        let (stride, routed) = (self.c.sizes.inner, self.rows * p.used);
        let one = |target: Target, first: usize, inputs: usize| Part {
            x: m.h.x.from(4 * first * stride),
            inner: self.inner(first),
            out: m.y.from(4 * first * width),
            outputs: width as u32,
            inputs: inputs as u32,
            stride: stride as u32,
            ..part(self.input(), Adapters::place(i, target))
        };
        let parts = [
            (Target::Down, self.routed(one(Target::Down, 0, p.width))),
            (Target::SharedDown, one(Target::SharedDown, routed, p.shared_width)),
        ];
        let parts: Vec<Part> =
            parts.into_iter().filter(|(t, _)| self.changed.floats.at(i, *t)).map(|(_, p)| p).collect();
        self.add_parts(0, &parts)
    }
}

/// A part that reads the rows of `input`, one a token.
fn part(input: matmul::Input, place: u32) -> Part {
    Part {
        x: input.x,
        place,
        inputs: input.inputs as u32,
        stride: input.inputs as u32,
        rows: input.tokens as u32,
        fan: 1,
        used: 1,
        ..Part::default()
    }
}
