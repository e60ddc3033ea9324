//! One pass over the stages: embedding, prediction input, narrowing and head; the mixers and the experts are in the
//! files beside this one.

use super::Cpu;
use super::adapter::Who;
use super::buffers::{Buffers, set_len};
use super::sequence::{KvShape, Sequence};
use super::weights::{LayerForms, Packed};
use crate::engine::backend::{Chunk, DraftChunk, Output};
use crate::engine::model::HParams;
use crate::engine::model::passes::{Pass, Span};
use crate::engine::model::stages::Stage;
use crate::engine::model::state::Slots;
use crate::engine::model::weights::{Layer, Mixer, Weights};
use chimere_ffi::cpu::{Angles, Forms, Gdn, Pool, Product, Rope, matmul, matmul_adapted, rms_norm_into};

/// Where the rows of a pass come from.
#[derive(Clone, Copy)]
pub(super) enum Source<'a> {
    Trunk(&'a [Chunk<'a>]),
    Prediction(&'a [DraftChunk<'a>]),
}

impl Source<'_> {
    fn tokens(&self, span: &Span) -> &[u32] {
        let tokens = match self {
            Source::Trunk(batch) => batch[span.chunk].tokens,
            Source::Prediction(batch) => batch[span.chunk].tokens,
        };
        &tokens[span.tokens()]
    }
}

/// Everything that the stages of one pass touch.
pub(super) struct Run<'a> {
    pub(super) hp: &'a HParams,
    pub(super) weights: &'a Weights<Packed>,
    pub(super) gdn: &'a [Option<Gdn>],
    pub(super) forms: &'a [LayerForms],
    pub(super) pool: &'a Pool,
    pub(super) kv: KvShape,
    pub(super) slots: &'a mut Slots<Sequence>,
    pub(super) pass: &'a Pass,
    pub(super) b: &'a mut Buffers,
    /// Rows that are still computed: all of the pass, after `Narrow` those asked for.
    pub(super) rows: usize,
    stages: &'a [Stage],
    pub(super) rope: &'a Rope,
    head_forms: Forms,
    combine_forms: Forms,
    source: Source<'a>,
    /// The adapter of each row that is still computed.
    pub(super) who: Who,
    out: &'a mut Output,
}

impl<'a> Run<'a> {
    pub(super) fn new(cpu: &'a mut Cpu, source: Source<'a>, out: &'a mut Output) -> Run<'a> {
        Run {
            hp: &cpu.hp,
            weights: &cpu.weights,
            gdn: &cpu.gdn,
            forms: &cpu.forms,
            pool: &cpu.pool,
            kv: cpu.kv,
            slots: &mut cpu.slots,
            rows: cpu.pass.rows,
            pass: &cpu.pass,
            b: &mut cpu.buffers,
            stages: match source {
                Source::Trunk(_) => &cpu.trunk,
                Source::Prediction(_) => &cpu.prediction,
            },
            rope: &cpu.rope,
            head_forms: cpu.head_forms,
            combine_forms: cpu.combine_forms,
            source,
            who: Who::default(),
            out,
        }
    }

    /// Runs every stage; an error leaves the pass unfinished.
    pub(super) fn all(&mut self) -> Result<(), String> {
        self.angles();
        self.adapters();
        for stage in self.stages {
            self.stage(*stage)?;
            if self.rows == 0 {
                break;
            }
        }
        Ok(())
    }

    fn stage(&mut self, stage: Stage) -> Result<(), String> {
        match stage {
            Stage::Embed => self.embed()?,
            Stage::Combine => self.combine()?,
            Stage::GdnProject(i) => self.gdn_project(i),
            Stage::GdnMix(i) => self.gdn_mix(i),
            Stage::AttentionProject(i) => self.attention_project(i),
            Stage::AttentionCache(i) => self.attention_cache(i),
            Stage::AttentionMix(i) => self.attention_mix(i),
            Stage::Narrow(i) => self.narrow(i),
            Stage::MixerOutput(i) => self.mixer_output(i),
            Stage::Route(i) => self.route(i),
            Stage::Experts(i) => self.experts(i),
            Stage::Dense(i) => self.dense(i),
            Stage::Head => self.head(),
        }
        Ok(())
    }

    /// Layer `i`, where the prediction block follows the last.
    pub(super) fn layer(&self, i: usize) -> &'a Layer<Packed> {
        match (self.weights.layers.get(i), &self.weights.mtp) {
            (None, Some(mtp)) => &mtp.layer,
            _ => &self.weights.layers[i],
        }
    }

    /// The rotation of every row, shared by all attention layers.
    fn angles(&mut self) {
        self.b.angles.resize_with(self.pass.rows.max(self.b.angles.len()), Angles::default);
        for span in &self.pass.spans {
            for (i, angles) in self.b.angles[span.rows()].iter_mut().enumerate() {
                self.rope.angles(span.position + i, angles);
            }
        }
    }

    /// The adapter of every row; the prediction block runs without.
    fn adapters(&mut self) {
        let adapter = |s: &Span| self.slots.state(s.slot).adapter.clone();
        if matches!(self.source, Source::Trunk(_)) && self.pass.spans.iter().any(|s| adapter(s).is_some()) {
            self.who = Who(self.pass.spans.iter().flat_map(|s| std::iter::repeat_n(adapter(s), s.len)).collect());
        }
    }

    fn embed(&mut self) -> Result<(), String> {
        let d = self.hp.width;
        set_len(&mut self.b.x, self.pass.rows * d);
        for span in &self.pass.spans {
            let rows = self.b.x[span.start * d..][..span.len * d].chunks_exact_mut(d);
            for (token, row) in self.source.tokens(span).iter().zip(rows) {
                self.weights.embedding.row(*token as usize, row)?;
            }
        }
        Ok(())
    }

    fn combine(&mut self) -> Result<(), String> {
        let (Some(mtp), Source::Prediction(batch)) = (&self.weights.mtp, self.source) else {
            return Err("the model has no prediction block".into());
        };
        let (d, eps) = (self.hp.width, self.hp.rms_eps);
        let embedding = mtp.embedding.as_ref().unwrap_or(&self.weights.embedding);
        set_len(&mut self.b.x, self.pass.rows * d);
        self.b.combined.set_rows(self.pass.rows);
        for span in &self.pass.spans {
            let hidden = batch[span.chunk].hidden[span.offset * d..].chunks_exact(d);
            for ((i, token), h) in self.source.tokens(span).iter().enumerate().zip(hidden) {
                let row = span.start + i;
                let x = &mut self.b.x[row * d..][..d];
                embedding.row(*token as usize, x)?;
                let (left, right) = self.b.combined.row_mut(row).split_at_mut(d);
                rms_norm_into(x, &mtp.embedding_norm, eps, left);
                rms_norm_into(h, &mtp.hidden_norm, eps, right);
            }
        }
        self.b.combined.quantize(self.pool, self.combine_forms);
        let out = &mut self.b.x[..];
        matmul(self.pool, &self.b.combined, &mut [Product { weight: &mtp.projection, out, add: false }]);
        Ok(())
    }

    /// Moves the wanted rows to the front of the buffers that later stages of layer `i` read.
    fn narrow(&mut self, i: usize) {
        let wanted = &self.pass.wanted;
        if wanted.len() == self.rows {
            return;
        }
        let a = &self.hp.attention;
        let (q, d) = (a.heads * a.head_dim, self.hp.width);
        let layer = self.layer(i);
        for (to, w) in wanted.iter().enumerate() {
            move_row(&mut self.b.x, d, w.row, to);
            match &layer.mixer {
                Mixer::Gdn(_) => move_row(self.b.gdn_out.data_mut(), self.hp.gdn.value_dim(), w.row, to),
                Mixer::Attention(_) => {
                    move_row(&mut self.b.q, q, w.row, to);
                    move_row(&mut self.b.query_gate, 2 * q, w.row, to);
                }
            }
        }
        if self.who.any() {
            self.who = Who(wanted.iter().map(|w| self.who.0[w.row].clone()).collect());
        }
        self.rows = wanted.len();
        self.b.x.truncate(self.rows * d);
        self.b.gdn_out.set_rows(self.rows);
    }

    fn head(&mut self) {
        let (d, v, w) = (self.hp.width, self.hp.vocab, self.weights);
        let (norm, head) = match (self.source, &w.mtp) {
            (Source::Prediction(_), Some(m)) => (&m.output_norm, m.head.as_ref().unwrap_or(&w.head)),
            _ => (&w.output_norm, &w.head),
        };
        for (x, wanted) in self.b.x.chunks_exact(d).zip(&self.pass.wanted) {
            if wanted.hidden {
                self.out.hidden.extend_from_slice(x);
            }
        }
        self.b.input.rms_norm(self.pool, &self.b.x, norm, self.hp.rms_eps, self.head_forms);
        let done = self.out.logits.len();
        self.out.logits.resize(done + self.rows * v, 0.0);
        let out = &mut self.out.logits[done..];
        let pick = |t: usize| self.who.head(t);
        let mut product = [Product { weight: head, out, add: false }];
        matmul_adapted(self.pool, &self.b.input, &mut product, self.who.picks(&[&pick]));
    }
}

/// Copies row `from` of width `d` over row `to`, which is not behind it.
fn move_row(data: &mut [f32], d: usize, from: usize, to: usize) {
    if from != to {
        data.copy_within(from * d..(from + 1) * d, to * d);
    }
}
