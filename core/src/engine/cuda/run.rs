//! One pass as a list of launches: the stages of `model::stages`, one function each. Mixers, experts and what adapters
//! add to them have files of their own; here is the order, the residual stream, norms and the head.

mod attention;
mod delta;
mod experts;
mod lora;

use super::adapters::{Changed, Target};
use super::memory::{HEAD_ROWS, LOW_LAUNCHES};
use super::weights::{Matrix, OnDevice};
use super::{Cuda, GRAPH_ROWS_MAX, plan_words};
use crate::engine::model::passes::{GRID, Pass, Span};
use crate::engine::model::stages::Stage;
use crate::engine::model::state::Part;
use crate::engine::model::weights::{Layer, Mixer};
use std::cell::Cell;

use chimere_ffi::KvType;
use chimere_ffi::gpu::{Buffer, GpuError};
use chimere_ffi::kernels::low::{self, Low};
use chimere_ffi::kernels::matmul::{Besides, Normed};
use chimere_ffi::kernels::norm::{Out, Pending, Rows};
use chimere_ffi::kernels::{attention_prefill, embed, matmul, norm};

/// What the launches of a pass follow from; everything else they find on the device. Passes of one shape are one recording.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Shape {
    pub(super) rows: usize,
    /// Rows that somebody asked for.
    pub(super) wanted: usize,
    pub(super) spans: usize,
    /// Parts of spans whose attention runs on tensor cores.
    pub(super) long: Vec<Long>,
    /// What the adapters of the pass change.
    pub(super) changed: Changed,
}

impl Shape {
    /// A token of each of so many sequences, all of them wanted.
    pub(super) fn decoding(rows: usize, changed: Changed) -> Shape {
        Shape { rows, wanted: rows, spans: rows, long: Vec::new(), changed }
    }
}

/// Launches of one pass.
pub(super) struct Run<'a> {
    c: &'a Cuda,
    part: Part,
    /// Rows that are still computed, and how many somebody asked for.
    rows: usize,
    wanted: usize,
    spans: usize,
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
    changed: Changed,
    /// Launches that waited for inner values of adapters, and words that each counts in.
    counted: Cell<usize>,
    words: usize,
}

/// The part of a span whose attention runs on tensor cores: its leading rows.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Long {
    /// Index of the span, and its first row.
    pub(super) own: usize,
    pub(super) start: usize,
    pub(super) len: usize,
    /// Where the plan has it: the span itself, or behind all spans.
    pub(super) index: usize,
    /// Of the first row; nothing in a pass of few rows, whose launches are the same at every position.
    pub(super) position: Option<usize>,
}

/// The part of each span whose attention runs on tensor cores, for those that have one. Which rows these are is a matter of
/// the sequence alone: of how it is cut or of what shares the pass, no bit may depend.
pub(super) fn long(c: &Cuda, part: Part, pass: &Pass) -> Vec<Long> {
    let p = &c.hp.attention;
    if c.sizes.kv == KvType::F32 || !attention_prefill::fits(p.heads, p.kv_heads, p.head_dim) {
        return Vec::new();
    }
    let mut behind = pass.spans.len();
    let mut found = Vec::new();
    for (own, span) in pass.spans.iter().enumerate() {
        let prompt = if part == Part::Trunk { c.slots.state(span.slot).prompt } else { 0 };
        let len = if span.position < prompt { span.len.min(prompt - span.position) } else { long_rows(span) };
        let index = if len == span.len { own } else { behind };
        if len > 0 {
            behind += usize::from(index != own);
            let position = (pass.rows > GRAPH_ROWS_MAX).then_some(span.position);
            found.push(Long { own, start: span.start, len, index, position });
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
    pub(super) fn new(c: &'a Cuda, part: Part, shape: &Shape) -> Run<'a> {
        let Shape { rows, wanted, spans, long, changed } = shape.clone();
        Run {
            c,
            part,
            rows,
            wanted,
            spans,
            long,
            list: 4 * plan_words(rows),
            x: &c.memory.x,
            pending: false,
            summed: false,
            narrowed: false,
            changed,
            counted: Cell::new(0),
            words: low::words(rows),
        }
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
                Stage::Dense(i) => self.dense(i)?,
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
        single && self.part == Part::Trunk && self.changed.floats.is_empty()
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

    /// Products of the normalised residual stream, with what adapters add to them.
    fn project(&mut self, i: usize, products: &[(Target, &Matrix, &Buffer)]) -> Result<(), GpuError> {
        let w = &self.layer(i).norm;
        if !self.summed {
            self.norm(w)?;
        }
        let (input, norm) = self.reading(w);
        let list: Vec<_> = products.iter().map(|(_, m, out)| (m.weight(), out.at())).collect();
        let targets: Vec<_> = products.iter().map(|(target, ..)| *target).collect();
        let low = self.low(i, &targets);
        matmul::with(&self.c.device, input, &list, &Besides { norm, low, ..Besides::default() })?;
        self.adapt(i, self.input(), products)
    }

    fn embed(&self, table: &Matrix, out: u64) -> Result<(), GpuError> {
        let m = &self.c.memory;
        let counts = LOW_LAUNCHES * self.c.hp.layers.len() * self.words;
        let a = embed::Embed {
            table: table.buffer.at(),
            tokens: m.plan.at(),
            out,
            inputs: table.cols as u32,
            packing: table.packing as u32,
            clear: m.low_arrived.at(),
            words: if self.changed.groups > 0 { counts as u32 } else { 0 },
            pad: 0,
        };
        embed::launch(&self.c.device, &a, self.rows)
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

    fn mixer_output(&mut self, i: usize) -> Result<(), GpuError> {
        let (m, hp) = (&self.c.memory, &self.c.hp);
        let (w, inputs, target) = match &self.layer(i).mixer {
            Mixer::Gdn(w) => (&w.out, hp.gdn.value_dim(), Target::GdnOut),
            Mixer::Attention(w) => (&w.out, hp.attention.heads * hp.attention.head_dim, Target::AttentionOut),
        };
        let input = matmul::Input { x: m.mixed.x.at(), halves: m.mixed.halves.at(), inputs, tokens: self.rows };
        self.add(w, input, self.low(i, &[target]))?;
        self.adapt(i, input, &[(target, w, self.x)])
    }

    /// x += w · input, and of a single row the sums that whoever reads it next normalises it with.
    fn add(&mut self, w: &Matrix, input: matmul::Input, low: Low) -> Result<(), GpuError> {
        self.summed = self.fuses() && !w.packing.is_float();
        let squares = if self.summed { self.squares() } else { 0 };
        let besides = Besides { add: true, squares, low, ..Besides::default() };
        matmul::with(&self.c.device, input, &[(w.weight(), self.x.at())], &besides)
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
