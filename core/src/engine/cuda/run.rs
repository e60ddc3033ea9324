//! One pass as a list of launches: the stages of `model::stages`, one function each.
//!
//! Where many tokens are fed, the experts' results are added to the residual stream by the norm that comes next.

mod attention;
mod lora;

use super::adapters::{Target, Touched};
use super::memory::{HEAD_ROWS, LayerState};
use super::weights::{Matrix, OnDevice};
use super::{Cuda, plan_words};
use crate::engine::model::passes::{GRID, Span};
use crate::engine::model::stages::Stage;
use crate::engine::model::state::Part;
use crate::engine::model::weights::{Layer, Mixer};
use chimere_ffi::KvType;
use chimere_ffi::gpu::{Buffer, GpuError};
use chimere_ffi::kernels::matmul::{Besides, Normed};
use chimere_ffi::kernels::norm::{Out, Pending, Rows};
use chimere_ffi::kernels::{attention_prefill, each, embed, experts, gdn, matmul, norm, route};

/// Launches of one pass.
pub(super) struct Run<'a> {
    c: &'a Cuda,
    part: Part,
    /// Rows that are still computed, and how many somebody asked for.
    rows: usize,
    wanted: usize,
    spans: usize,
    /// Parts of spans whose attention runs on tensor cores.
    long: Vec<Long>,
    /// Bytes between two lists of the plan.
    list: usize,
    /// The residual stream: the pass's own, or that of the wanted rows.
    x: &'a Buffer,
    /// The experts' results wait to be added to it.
    pending: bool,
    /// The sums of its squares are there: who reads it next normalises it.
    summed: bool,
    /// Only the wanted rows are left.
    narrowed: bool,
    /// What the adapters of the pass change.
    touched: Touched,
}

/// The part of a span whose attention runs on tensor cores.
pub(super) struct Long {
    pub(super) span: Span,
    /// Where the plan has it: the span itself, or behind all spans.
    pub(super) index: usize,
}

/// The part of each span whose attention runs on tensor cores, for those that have one. Which rows these are is a matter of
/// the sequence alone: of how it is cut or of what shares the pass, no bit may depend.
pub(super) fn long(c: &Cuda, part: Part, spans: &[Span]) -> Vec<Long> {
    let p = &c.hp.attention;
    if c.sizes.kv == KvType::F32 || !attention_prefill::fits(p.heads, p.kv_heads, p.head_dim) {
        return Vec::new();
    }
    let mut behind = spans.len();
    let mut found = Vec::new();
    for (own, span) in spans.iter().enumerate() {
        let prompt = if part == Part::Trunk { c.slots.state(span.slot).prompt } else { 0 };
        let len = if span.position < prompt { span.len.min(prompt - span.position) } else { long_rows(span) };
        let index = if len == span.len { own } else { behind };
        if len > 0 {
            behind += usize::from(index != own);
            found.push(Long { span: Span { len, ..*span }, index });
        }
    }
    found
}

/// Leading rows that make many together, of a span of which nobody said that it is a piece of a prompt: those of whole
/// blocks of the grid, and those behind the last of them unless they are few.
fn long_rows(span: &Span) -> usize {
    let behind = (span.position + span.len) % GRID;
    let few = matmul::NARROW_TOKENS_MAX;
    let rows = if behind > few { span.len } else { span.len.saturating_sub(behind) };
    if rows > few { rows } else { 0 }
}

impl<'a> Run<'a> {
    pub(super) fn new(c: &'a Cuda, part: Part, rows: usize, wanted: usize, spans: usize) -> Run<'a> {
        let list = 4 * plan_words(rows);
        let (x, touched) = (&c.memory.x, Touched::default());
        Run {
            c,
            part,
            rows,
            wanted,
            spans,
            long: Vec::new(),
            list,
            x,
            pending: false,
            summed: false,
            narrowed: false,
            touched,
        }
    }

    /// The same run under adapters, which change these matrices.
    pub(super) fn under(self, touched: Touched) -> Run<'a> {
        Run { touched, ..self }
    }

    /// The same run, which knows where long spans lie.
    pub(super) fn with(self, long: Vec<Long>) -> Run<'a> {
        Run { long, ..self }
    }

    /// Launches every stage up to the head; the residual stream of the wanted rows.
    pub(super) fn all(&mut self) -> Result<&'a Buffer, GpuError> {
        let c = self.c;
        let stages = match self.part {
            Part::Trunk => &c.trunk,
            Part::Prediction => &c.prediction,
        };
        for stage in stages {
            match *stage {
                Stage::Embed => self.embed(&c.weights.embedding, c.memory.x.at())?,
                Stage::Combine => self.combine()?,
                Stage::GdnProject(i) => self.gdn_project(i)?,
                Stage::GdnMix(i) => self.gdn_mix(i)?,
                Stage::AttentionProject(i) => self.attention_project(i)?,
                Stage::AttentionCache(i) => self.attention_cache(i)?,
                Stage::AttentionMix(i) => self.attention_mix(i)?,
                // Rows are dropped behind the mixer's output, where the residual stream is all that is left of them.
                Stage::Narrow(_) | Stage::Head => {}
                Stage::MixerOutput(i) => {
                    self.mixer_output(i)?;
                    if stages.contains(&Stage::Narrow(i)) {
                        self.narrow()?;
                    }
                }
                Stage::Route(i) => self.route(i)?,
                Stage::Experts(i) => self.experts(i)?,
            }
            if self.rows == 0 {
                break;
            }
        }
        Ok(self.x)
    }

    fn layer(&self, i: usize) -> &'a Layer<OnDevice> {
        match (self.c.weights.layers.get(i), &self.c.weights.mtp) {
            (None, Some(mtp)) => &mtp.layer,
            _ => &self.c.weights.layers[i],
        }
    }

    fn input(&self) -> matmul::Input {
        let input = &self.c.memory.input;
        matmul::Input { x: input.x.at(), halves: input.halves.at(), inputs: self.c.hp.width, tokens: self.rows }
    }

    fn product(&self, input: matmul::Input, products: &[(&Matrix, &Buffer)], add: bool) -> Result<(), GpuError> {
        let list: Vec<_> = products.iter().map(|(m, out)| (m.weight(), out.at())).collect();
        matmul::launch(&self.c.device, input, &list, add)
    }

    /// Whether whoever reads the residual stream normalises it: a single row, and no adapter that reads it too.
    fn fuses(&self) -> bool {
        let single = self.rows == 1 && matmul::normalises(self.c.hp.width);
        single && self.part == Part::Trunk && self.touched.is_empty()
    }

    /// Where the sums of the residual stream's squares go, if they are of use.
    fn squares(&self) -> u64 {
        if self.fuses() { self.c.memory.squares.at() } else { 0 }
    }

    /// The normalised residual stream: as it is and how to normalise it, where the sums of its squares are there, or as
    /// `norm` left it.
    fn reading(&self, w: &Buffer) -> (matmul::Input, Normed) {
        if !self.summed {
            return (self.input(), Normed::default());
        }
        let squares = self.c.memory.squares.at();
        let norm = Normed { squares, weights: w.at(), eps: self.c.hp.rms_eps, pad: 0 };
        (matmul::Input { x: self.x.at(), ..self.input() }, norm)
    }

    /// Products of the normalised residual stream.
    fn project(&mut self, w: &Buffer, products: &[(&Matrix, &Buffer)]) -> Result<(), GpuError> {
        if !self.summed {
            self.norm(w)?;
            return self.product(self.input(), products, false);
        }
        let (input, norm) = self.reading(w);
        let list: Vec<_> = products.iter().map(|(m, out)| (m.weight(), out.at())).collect();
        matmul::few(&self.c.device, input, &list, &Besides { norm, ..Besides::default() })
    }

    fn embed(&self, table: &Matrix, out: u64) -> Result<(), GpuError> {
        let tokens = self.c.memory.plan.at();
        embed::launch(&self.c.device, table.buffer.at(), table.packing, tokens, self.rows, table.cols, out)
    }

    /// n = norm(x), after what waits was added to x.
    fn norm(&mut self, w: &Buffer) -> Result<(), GpuError> {
        let (m, used) = (&self.c.memory, self.c.hp.moe.used);
        let pending = self.pending.then(|| Pending { y: m.y.at(), weight: m.weight.at(), used });
        self.pending = false;
        let rows = Rows { x: self.x.at(), tokens: self.rows, width: self.c.hp.width, pending };
        norm::launch(&self.c.device, rows, w.at(), self.c.hp.rms_eps, m.input.out(self.c.hp.width))
    }

    /// x ← projection · [norm(embedding) ; norm(hidden)]; the hidden states were uploaded into `narrow`.
    fn combine(&mut self) -> Result<(), GpuError> {
        let Some(mtp) = &self.c.weights.mtp else { return Ok(()) };
        let (m, d, eps) = (&self.c.memory, self.c.hp.width, self.c.hp.rms_eps);
        self.embed(mtp.embedding.as_ref().unwrap_or(&self.c.weights.embedding), m.x.at())?;
        for (x, w, at) in [(&m.x, &mtp.embedding_norm, 0), (&m.narrow, &mtp.hidden_norm, 4 * d)] {
            let rows = Rows { x: x.at(), tokens: self.rows, width: d, pending: None };
            let out = Out { n: m.combined.x.from(at), stride: 2 * d, halves: 0 };
            norm::launch(&self.c.device, rows, w.at(), eps, out)?;
        }
        if !mtp.projection.packing.is_float() {
            norm::halve(&self.c.device, m.combined.x.at(), self.rows, 2 * d, m.combined.halves.at())?;
        }
        let input =
            matmul::Input { x: m.combined.x.at(), halves: m.combined.halves.at(), inputs: 2 * d, tokens: self.rows };
        self.product(input, &[(&mtp.projection, &m.x)], false)
    }

    fn gdn_project(&mut self, i: usize) -> Result<(), GpuError> {
        let layer = self.layer(i);
        let Mixer::Gdn(w) = &layer.mixer else { return Ok(()) };
        let m = &self.c.memory;
        let products = [(&w.qkv, &m.qkv), (&w.gate, &m.z), (&w.alpha, &m.alpha), (&w.beta, &m.beta)];
        self.project(&layer.norm, &products)?;
        let targets = [Target::Qkv, Target::Z, Target::Alpha, Target::Beta];
        self.adapt(i, self.input(), &with_targets(targets, products))
    }

    fn gdn_mix(&mut self, i: usize) -> Result<(), GpuError> {
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
    pub(super) fn gdn(&self, i: usize) -> Option<gdn::Gdn> {
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

    fn mixer_output(&mut self, i: usize) -> Result<(), GpuError> {
        let (m, hp) = (&self.c.memory, &self.c.hp);
        let (w, inputs, target) = match &self.layer(i).mixer {
            Mixer::Gdn(w) => (&w.out, hp.gdn.value_dim(), Target::GdnOut),
            Mixer::Attention(w) => (&w.out, hp.attention.heads * hp.attention.head_dim, Target::AttentionOut),
        };
        let input = matmul::Input { x: m.mixed.x.at(), halves: m.mixed.halves.at(), inputs, tokens: self.rows };
        self.summed = self.fuses() && !w.packing.is_float();
        if self.summed {
            let besides = Besides { add: true, squares: self.squares(), ..Besides::default() };
            return matmul::few(&self.c.device, input, &[(w.weight(), self.x.at())], &besides);
        }
        self.product(input, &[(w, self.x)], true)?;
        self.adapt(i, input, &[(target, w, self.x)])
    }

    fn narrow(&mut self) -> Result<(), GpuError> {
        if self.wanted == self.rows {
            return Ok(());
        }
        self.rows = self.wanted;
        if self.rows == 0 {
            return Ok(());
        }
        let m = &self.c.memory;
        let rows = m.plan.from(3 * self.list);
        norm::gather(&self.c.device, self.x.at(), rows, self.rows, self.c.hp.width, m.narrow.at())?;
        (self.x, self.narrowed, self.summed) = (&m.narrow, true, false);
        Ok(())
    }

    fn route(&mut self, i: usize) -> Result<(), GpuError> {
        let layer = self.layer(i);
        if !self.summed || !self.each(i) {
            self.norm(&layer.post_norm)?;
            self.summed = false;
        }
        if self.each(i) {
            return each::route(&self.c.device, &self.each_experts(i));
        }
        let (m, p) = (&self.c.memory, &self.c.hp.moe);
        self.product(self.input(), &[(&layer.moe.router, &m.router)], false)?;
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
        route::launch(&self.c.device, &a, m.work.at())
    }

    fn experts(&mut self, i: usize) -> Result<(), GpuError> {
        if self.each(i) {
            each::launch(&self.c.device, &self.each_experts(i))?;
            self.summed = self.fuses();
            return Ok(());
        }
        let (m, (routed, shared), joint) = (&self.c.memory, self.matrices(i), self.joint(i)?);
        if let Some(tier) = &self.c.tier {
            let p = &self.c.hp.moe;
            tier.bring(&self.c.device, (i, self.layer(i)), (&m.start, p.experts, self.rows * p.used))?;
        }
        let input = self.input();
        let a = experts::Experts {
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
        };
        let count = self.c.hp.moe.experts;
        experts::up(&self.c.device, &a, count)?;
        self.pending = !experts::down(&self.c.device, &a, count)?;
        self.adapt_down(i)
    }

    /// Whether each row chooses and reads its own experts, which no adapter changes and which all lie on the card.
    fn each(&self, i: usize) -> bool {
        let few = self.rows <= each::TOKENS_MAX && self.c.hp.moe.used <= each::USED_MAX;
        let floats = self.layer(i).moe.router.packing.is_float();
        few && floats && self.c.sizes.packed && self.c.tier.is_none() && !self.adapts_experts(i)
    }

    /// The routed experts of layer `i`, and the shared one.
    pub(super) fn matrices(&self, i: usize) -> (experts::Expert, experts::Expert) {
        let (w, p) = (&self.layer(i).moe, &self.c.hp.moe);
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
        let shared = experts::Expert {
            gate: w.shared_gate.buffer.at(),
            up: w.shared_up.buffer.at(),
            down: w.shared_down.buffer.at(),
            gate_packing: w.shared_gate.packing as u32,
            up_packing: w.shared_up.packing as u32,
            down_packing: w.shared_down.packing as u32,
            width: p.shared_width as u32,
            ..Default::default()
        };
        (routed, shared)
    }

    fn each_experts(&self, i: usize) -> each::Each {
        let (m, (routed, shared), layer) = (&self.c.memory, self.matrices(i), self.layer(i));
        let (router, (input, norm)) = (&layer.moe.router, self.reading(&layer.post_norm));
        each::Each {
            routed,
            shared,
            router: router.buffer.at(),
            x: input.x,
            halves: input.halves,
            norm,
            logits: m.router.at(),
            hh: m.h.halves.at(),
            residual: self.x.at(),
            squares: self.squares(),
            inputs: self.c.hp.width as u32,
            used: self.c.hp.moe.used as u32,
            experts: self.c.hp.moe.experts as u32,
            stride: self.c.sizes.inner as u32,
            tokens: self.rows as u32,
            router_packing: router.packing as u32,
        }
    }

    /// The norm before the head, over all rows left.
    pub(super) fn head_norm(&mut self) -> Result<(), GpuError> {
        let w = &self.c.weights;
        let norm = match (self.part, &w.mtp) {
            (Part::Prediction, Some(m)) => &m.output_norm,
            _ => &w.output_norm,
        };
        self.norm(norm)
    }

    /// Logits of the wanted rows `first ..`, at most [`HEAD_ROWS`] of them; how many.
    pub(super) fn head(&self, first: usize) -> Result<usize, GpuError> {
        let (w, m, d) = (&self.c.weights, &self.c.memory, self.c.hp.width);
        let head = match (self.part, &w.mtp) {
            (Part::Prediction, Some(mtp)) => mtp.head.as_ref().unwrap_or(&w.head),
            _ => &w.head,
        };
        let count = HEAD_ROWS.min(self.rows - first);
        let mut input = self.input();
        input.x += (4 * first * d) as u64;
        input.halves += (2 * first * d) as u64;
        input.tokens = count;
        self.product(input, &[(head, &m.logits)], false)?;
        self.adapt_head(first, input, head.rows)?;
        Ok(count)
    }
}

/// Products with what adapters call their matrices.
fn with_targets<'b, const N: usize>(
    targets: [Target; N],
    products: [(&'b Matrix, &'b Buffer); N],
) -> [(Target, &'b Matrix, &'b Buffer); N] {
    std::array::from_fn(|n| (targets[n], products[n].0, products[n].1))
}
