//! First-order gradients of low-rank changes through the whole trunk of `qwen35moe`, on the processor, in f32.
//!
//! Owns the weights in a form that can be multiplied both ways. It runs in a process of its own beside the serving
//! engine, which never shares numbers with it: what it learns is an adapter file. The forward pass is that of
//! `engine::model`; each layer file states the formulas that it differentiates.

mod attention;
mod batch;
mod delta;
mod dense;
mod experts;
mod gdn;
mod linear;
mod ops;
#[cfg(test)]
mod tests;

use std::mem::take;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use chimere_ffi::cpu::{Pool, argmax, rms_norm_into, softmax};

use super::model::weights::{Ffn, Layer, Mixer, Weights};
use super::model::{HParams, ModelError};
use crate::gguf::Files;
pub use batch::Batch;

use dense::{Dense, DensePacker};
pub use linear::{Change, Changes};
use linear::{Linear, Tools};
use ops::rms_norm_back;

/// Rows of logits held at once.
const HEAD_ROWS: usize = 64;

/// How much an objective rises with the loss of each sequence.
enum Slopes<'s> {
    Same(f64),
    /// Told the losses first.
    Of(&'s mut dyn FnMut(&[f64]) -> Vec<f64>),
}

/// A model to learn changes of.
pub struct Trunk {
    hp: HParams,
    weights: Weights<Dense>,
    pool: Pool,
    /// First layer that takes a change: below it nothing has a gradient.
    lowest: usize,
}

/// What one layer keeps between the passes.
struct Kept {
    /// Residual stream before the mixer and before the experts.
    x: Vec<f32>,
    middle: Vec<f32>,
    /// The same, normed.
    n: Vec<f32>,
    n2: Vec<f32>,
    mixer: MixerKept,
    experts: experts::Kept,
}

/// A part of a batch on its way through the layers.
struct Part {
    batch: Batch,
    /// Its first sequence's place in the whole batch.
    first: usize,
    /// Residual stream behind the last layer.
    x: Vec<f32>,
    kept: Vec<Kept>,
    /// Of each of its sequences.
    nats: Vec<f64>,
}

impl Part {
    fn all(batch: &Batch) -> Vec<Part> {
        let parts = batch.parts().into_iter();
        parts.map(|(first, batch)| Part { batch, first, x: Vec::new(), kept: Vec::new(), nats: Vec::new() }).collect()
    }
}

/// Of every sequence of the batch.
fn nats(parts: &[Part]) -> Vec<f64> {
    parts.iter().flat_map(|part| part.nats.iter().copied()).collect()
}

enum MixerKept {
    Gdn(gdn::Kept),
    Attention(attention::Kept),
}

impl Trunk {
    /// Loads the model at `path`; changes will be learned for the matrices whose names `wanted` accepts.
    pub fn load(path: &Path, threads: usize, progress: &mut dyn FnMut(f32)) -> Result<Trunk, ModelError> {
        let unreadable = |e: &dyn std::fmt::Display| ModelError::Contradiction(format!("{}: {e}", path.display()));
        let (gguf, files) = Files::open(path)?;
        let hp = HParams::read(&gguf)?;
        if hp.gdn.conv_kernel != 4 {
            let found = hp.gdn.conv_kernel.to_string();
            return Err(ModelError::Value { key: "ssm.conv_kernel".into(), found, wanted: "4 for training" });
        }
        let map = Arc::new(files.map().map_err(|e| unreadable(&e))?);
        let pool = Pool::new(threads).map_err(|e| unreadable(&e))?;
        let mut weights = Weights::load(&hp, &gguf, &mut DensePacker { map }, progress)?;
        weights.mtp = None;
        Ok(Trunk { hp, weights, pool, lowest: 0 })
    }

    /// Bytes of weights held.
    pub fn bytes(&mut self) -> usize {
        let mut bytes = 4 * self.weights.embedding.len() + self.weights.head.bytes();
        self.each_linear(&mut |l| bytes += l.bytes());
        bytes
    }

    /// Prepares changes of rank `rank` for every plain matrix of the layers whose name `wanted` accepts: A drawn so
    /// that A·x has the size of x / √rank from `random` (uniform in −1 … 1), B zero, so that nothing changes yet.
    pub fn prepare(
        &mut self,
        rank: usize,
        alpha: f32,
        wanted: &dyn Fn(&str) -> bool,
        random: &mut dyn FnMut() -> f32,
    ) -> Changes {
        let mut changes = Changes { rank, scale: alpha / rank as f32, slots: Vec::new() };
        self.each_linear(&mut |l| {
            l.slot = None;
            if !wanted(&l.name) {
                return;
            }
            let (inputs, outputs) = (l.inputs(), l.outputs());
            // Uniform numbers in ±1 have variance 1/3.
            let size = (3.0 / inputs as f32).sqrt();
            let a = (0..inputs * rank).map(|_| size * random()).collect();
            l.slot = Some(changes.slots.len());
            changes.slots.push(Change { name: l.name.clone(), inputs, outputs, a, b: vec![0.0; rank * outputs] });
        });
        self.lowest = self.lowest_changed();
        changes
    }

    /// The first layer with a change; behind the last where none has one.
    fn lowest_changed(&mut self) -> usize {
        let layers = self.weights.layers.len();
        (0..layers)
            .find(|n| {
                let mut changed = false;
                Self::linears(&mut self.weights.layers[*n], &mut |l| changed |= l.slot.is_some());
                changed
            })
            .unwrap_or(layers)
    }

    /// Visits the matrices that can be changed, in the order of the layers.
    fn each_linear(&mut self, visit: &mut dyn FnMut(&mut Linear)) {
        self.weights.layers.iter_mut().for_each(|layer| Self::linears(layer, visit));
    }

    fn linears(layer: &mut Layer<Dense>, visit: &mut dyn FnMut(&mut Linear)) {
        match &mut layer.mixer {
            Mixer::Gdn(w) => [&mut w.qkv, &mut w.gate, &mut w.out].into_iter().for_each(&mut *visit),
            Mixer::Attention(w) => [&mut w.q, &mut w.k, &mut w.v, &mut w.out].into_iter().for_each(&mut *visit),
        }
        match &mut layer.ffn {
            Ffn::Moe(m) => [&mut m.shared_gate, &mut m.shared_up, &mut m.shared_down].into_iter().for_each(visit),
            Ffn::Dense(m) => [&mut m.gate, &mut m.up, &mut m.down].into_iter().for_each(visit),
        }
    }

    fn norm(&self, x: &[f32], weight: &[f32]) -> Vec<f32> {
        let (d, mut out) = (self.hp.width, vec![0.0; x.len()]);
        let rows = |t: usize, y: &mut [f32]| rms_norm_into(&x[t * d..][..d], weight, self.hp.rms_eps, y);
        linear::each_row(&self.pool, d, &mut out, rows);
        out
    }

    fn norm_back(&self, x: &[f32], weight: &[f32], dn: &[f32], dx: &mut [f32]) {
        let d = self.hp.width;
        linear::each_row(&self.pool, d, dx, |t, dx| {
            rms_norm_back(&x[t * d..][..d], weight, self.hp.rms_eps, &dn[t * d..][..d], dx);
        });
    }

    /// Mean loss of the batch's targets under `changes`, nats a unit of weight.
    pub fn loss(&self, changes: &Changes, batch: &Batch) -> f64 {
        let tools = Tools { pool: &self.pool, changes };
        let mut parts = Part::all(batch);
        self.pool.each(&mut parts, |_, part, _| {
            self.forward(tools, part);
            part.nats = self.head(tools, part, None);
        });
        nats(&parts).iter().sum::<f64>() / batch.weight().max(f64::MIN_POSITIVE)
    }

    /// Mean loss, and its gradient added to `grads`.
    pub fn gradient(&self, changes: &Changes, batch: &Batch, grads: &mut Changes) -> f64 {
        let total = batch.weight().max(f64::MIN_POSITIVE);
        self.backward(changes, batch, grads, Slopes::Same(total.recip())).iter().sum::<f64>() / total
    }

    /// Adds to `grads` the gradient of any objective of the sequences' losses (the weighted sums of their targets' losses,
    /// nats): `slopes` is told them, in the order of the batch, and says how much the objective rises with each.
    pub fn gradient_of(
        &self,
        changes: &Changes,
        batch: &Batch,
        grads: &mut Changes,
        slopes: &mut dyn FnMut(&[f64]) -> Vec<f64>,
    ) {
        self.backward(changes, batch, grads, Slopes::Of(slopes));
    }

    /// Parts side by side, each with a gradient of its own, joined in the order of the batch: the products of a few sequences
    /// are too small to share among many threads, and what is summed must not depend on how many there are.
    fn backward(&self, changes: &Changes, batch: &Batch, grads: &mut Changes, slopes: Slopes<'_>) -> Vec<f64> {
        let tools = Tools { pool: &self.pool, changes };
        let mut parts = Part::all(batch);
        self.pool.each(&mut parts, |_, part, _| part.kept = self.forward(tools, part));
        let slopes = match slopes {
            Slopes::Same(slope) => vec![slope; batch.spans.len()],
            Slopes::Of(told) => {
                self.pool.each(&mut parts, |_, part, _| part.nats = self.head(tools, part, None));
                told(&nats(&parts))
            }
        };
        let mut work: Vec<_> = parts.iter_mut().map(|part| (part, changes.zeros_like())).collect();
        self.pool.each(&mut work, |_, (part, grads), _| self.back(tools, part, &slopes, grads));
        work.iter().for_each(|(_, of_part)| grads.add(of_part));
        nats(&parts)
    }

    /// The residual stream of a part behind the last layer, and what the layers with a gradient keep.
    fn forward(&self, tools: Tools<'_>, part: &mut Part) -> Vec<Kept> {
        let mut x = self.embed(&part.batch);
        let mut kept = Vec::with_capacity(self.weights.layers.len());
        for (n, layer) in self.weights.layers.iter().enumerate() {
            let (next, k) = self.layer(tools, layer, &part.batch.spans, x);
            if n >= self.lowest {
                kept.push(k);
            }
            x = next;
        }
        part.x = x;
        kept
    }

    fn back(&self, tools: Tools<'_>, part: &mut Part, slopes: &[f64], grads: &mut Changes) {
        let mut dx = vec![0.0; part.x.len()];
        part.nats = self.head(tools, part, Some((&mut dx, &slopes[part.first..])));
        for (layer, kept) in self.weights.layers.iter().skip(self.lowest).zip(take(&mut part.kept)).rev() {
            self.layer_back(tools, layer, &part.batch.spans, &kept, &mut dx, grads);
        }
    }

    fn embed(&self, batch: &Batch) -> Vec<f32> {
        let d = self.hp.width;
        batch.tokens.iter().flat_map(|t| &self.weights.embedding[*t as usize * d..][..d]).copied().collect()
    }

    fn layer(&self, tools: Tools<'_>, w: &Layer<Dense>, spans: &[Range<usize>], x: Vec<f32>) -> (Vec<f32>, Kept) {
        let n = self.norm(&x, &w.norm);
        let (mut middle, mixer) = self.mix(tools, w, spans, &n);
        middle.iter_mut().zip(&x).for_each(|(y, x)| *y += x);
        let n2 = self.norm(&middle, &w.post_norm);
        let (mut out, experts) = experts::Layer { tools, p: &self.hp.moe, w: &w.ffn }.forward(&n2);
        out.iter_mut().zip(&middle).for_each(|(y, x)| *y += x);
        (out, Kept { x, middle, n, n2, mixer, experts })
    }

    fn mix(&self, tools: Tools<'_>, w: &Layer<Dense>, spans: &[Range<usize>], n: &[f32]) -> (Vec<f32>, MixerKept) {
        let eps = self.hp.rms_eps;
        match &w.mixer {
            Mixer::Gdn(w) => {
                let (y, kept) = gdn::Layer { tools, p: &self.hp.gdn, w, eps, spans }.forward(n);
                (y, MixerKept::Gdn(kept))
            }
            Mixer::Attention(w) => {
                let (y, kept) = attention::Layer { tools, p: &self.hp.attention, w, eps, spans }.forward(n);
                (y, MixerKept::Attention(kept))
            }
        }
    }

    /// `dx` is the gradient of the layer's output and becomes that of its input.
    fn layer_back(
        &self,
        tools: Tools<'_>,
        w: &Layer<Dense>,
        spans: &[Range<usize>],
        kept: &Kept,
        dx: &mut [f32],
        grads: &mut Changes,
    ) {
        let dn2 = experts::Layer { tools, p: &self.hp.moe, w: &w.ffn }.backward(&kept.n2, &kept.experts, dx, grads);
        self.norm_back(&kept.middle, &w.post_norm, &dn2, dx);
        let eps = self.hp.rms_eps;
        let dn = match (&w.mixer, &kept.mixer) {
            (Mixer::Gdn(w), MixerKept::Gdn(k)) => {
                gdn::Layer { tools, p: &self.hp.gdn, w, eps, spans }.backward(&kept.n, k, dx, grads)
            }
            (Mixer::Attention(w), MixerKept::Attention(k)) => {
                attention::Layer { tools, p: &self.hp.attention, w, eps, spans }.backward(&kept.n, k, dx, grads)
            }
            // A layer's kind does not change between its passes.
            _ => return,
        };
        self.norm_back(&kept.x, &w.norm, &dn, dx);
    }

    /// Weighted sum of the losses of the targets of each sequence of a part; with `back`, the gradient of their sum by `slopes`, which is
    /// written where targets are.
    fn head(&self, tools: Tools<'_>, part: &Part, mut back: Option<(&mut Vec<f32>, &[f64])>) -> Vec<f64> {
        let (d, v, x) = (self.hp.width, self.hp.vocab, &part.x);
        let mut nats = vec![0.0; part.batch.spans.len()];
        // The head takes no change: nothing is added to these.
        let mut none = Changes { rank: 0, scale: 0.0, slots: Vec::new() };
        for targets in part.batch.targets().chunks(HEAD_ROWS) {
            let rows: Vec<f32> = targets.iter().flat_map(|t| &x[t.row * d..][..d]).copied().collect();
            let normed = self.norm(&rows, &self.weights.output_norm);
            let mut logits = tools.forward(&self.weights.head, &normed);
            let slopes = back.as_ref().map(|(_, slopes)| *slopes);
            let mut lost: Vec<_> = logits.chunks_exact_mut(v).zip(targets).map(|row| (row, 0.0)).collect();
            self.pool.each(&mut lost, |_, ((row, t), loss), _| {
                *loss = softmax_loss(row, t.token as usize);
                let Some(slopes) = slopes else { return };
                let slope = t.weight * slopes[t.sequence] as f32;
                row.iter_mut().for_each(|p| *p *= slope);
                row[t.token as usize] -= slope;
            });
            lost.iter().for_each(|((_, t), loss)| nats[t.sequence] += f64::from(t.weight) * loss);
            drop(lost);
            let Some((dx, _)) = &mut back else { continue };
            let mut dnormed = vec![0.0; normed.len()];
            tools.backward(&self.weights.head, &normed, &logits, &mut dnormed, &mut none);
            let mut drows = vec![0.0; rows.len()];
            self.norm_back(&rows, &self.weights.output_norm, &dnormed, &mut drows);
            for (t, row) in targets.iter().zip(drows.chunks_exact(d)) {
                dx[t.row * d..][..d].copy_from_slice(row);
            }
        }
        nats
    }
}

/// −ln p of the target; leaves the probabilities in `row`.
fn softmax_loss(row: &mut [f32], target: usize) -> f64 {
    let best = argmax(row);
    let behind = f64::from(row[best] - row[target]);
    softmax(row);
    // Of the likeliest token, whose probability never vanishes.
    behind - f64::from(row[best]).ln()
}
