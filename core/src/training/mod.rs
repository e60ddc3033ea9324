//! Training of an adapter on verified pairs: reads pairs, takes the steps, says how it went. With gradients here,
//! without them by questions to an engine (`zeroth`).
//!
//! Owns no process and no clock. `chimere train` runs it in a process of its own that can be killed at any moment.
//! Until the adapter file is renamed into place nothing exists, and a candidate changes nothing that serves.

pub mod adam;
pub mod pairs;
pub mod preference;
pub mod recipe;
#[cfg(test)]
mod tests;
pub mod zeroth;

use crate::engine::adapter::{Adapter, AdapterError, BaseModel, Factors};
use crate::engine::gradient::{Batch, Change, Changes, Trunk};
use crate::engine::model::ModelError;
use adam::Adam;
use pairs::Pair;
use preference::Told;
pub use recipe::{Method, Objective, Recipe};
use serde::{Deserialize, Serialize};

#[derive(Debug, thiserror::Error)]
pub enum TrainError {
    #[error(transparent)]
    Model(#[from] ModelError),
    #[error(transparent)]
    Adapter(#[from] AdapterError),
    #[error("{found} usable pairs are too few to learn from: at least {wanted} are needed")]
    TooFew { found: usize, wanted: usize },
    #[error("no matrix of the model matches the chosen layers and targets")]
    NoTarget,
    #[error("the loss became {0} at step {1}: lower the learning rate or look at the pairs")]
    Diverged(f64, usize),
    #[error("training cannot go on from that adapter: {0}")]
    From(String),
    #[error("training was cancelled at step {0}")]
    Cancelled(usize),
    #[error("{0}")]
    Recipe(String),
    #[error("the engine: {0}")]
    Engine(String),
}

/// Pairs below which training is refused.
pub const PAIRS_MIN: usize = 8;

/// One step, as it is reported.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Step {
    pub step: usize,
    pub steps: usize,
    /// Mean loss of the step's targets before it, nats a token.
    pub loss: f64,
    pub tokens: usize,
    /// How much likelier the replies are than the rejected ones, nats a pair; absent where nothing is compared.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub margin: Option<f64>,
}

/// What a training came to.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Outcome {
    pub pairs: usize,
    /// Pairs that were kept out of training to be measured.
    pub held_out: usize,
    pub steps: Vec<Step>,
    pub tokens: usize,
    /// Loss of the pairs kept out, nats a token, before and after; absent when none were.
    pub loss_before: Option<f64>,
    pub loss_after: Option<f64>,
    /// How far the weights are moved, as `AdapterFacts::norm`.
    pub norm: f64,
    /// Pairs learned from that had a rejected reply.
    #[serde(default)]
    pub compared: usize,
    /// Margin of the pairs kept out, as in a step.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub margin_before: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub margin_after: Option<f64>,
}

/// What follows a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Onward {
    Go,
    /// No further step: what is learned by now is measured and kept.
    Finish,
    /// Nothing is kept.
    Cancel,
}

/// Learns an adapter of `trunk` from `pairs`; begins where `from` ended, if one is given. `progress` is told every step
/// and says whether to go on.
pub fn train(
    trunk: &mut Trunk,
    base: &BaseModel,
    from: Option<&Adapter>,
    pairs: &[Pair],
    recipe: &Recipe,
    progress: &mut dyn FnMut(Step) -> Onward,
) -> Result<(Adapter, Outcome), TrainError> {
    let mut random = recipe::Random::new(recipe.seed);
    let order = random.shuffled(pairs.len());
    let held_out = (pairs.len() * recipe.held_out_percent as usize / 100).min(recipe::HELD_OUT_MAX);
    if pairs.len() < PAIRS_MIN + held_out {
        return Err(TrainError::TooFew { found: pairs.len(), wanted: PAIRS_MIN + held_out });
    }
    let (kept_out, order) = order.split_at(held_out);
    let mut changes = trunk.prepare(recipe.rank, recipe.alpha, &|name| recipe.wants(name), &mut || random.uniform());
    if changes.slots.is_empty() {
        return Err(TrainError::NoTarget);
    }
    if let Some(adapter) = from {
        resume(&mut changes, adapter, recipe.alpha)?;
    }
    let exam: Vec<&Pair> = kept_out.iter().map(|i| &pairs[*i]).collect();
    let loss_before = mean_loss(trunk, &changes, &exam);
    let margin_before = preference::mean_margin(trunk, &changes, &exam);
    let reference = preference::reference(trunk, &changes, pairs, order);
    let start = changes;
    let ways: Vec<_> = (0..recipe.members.max(1)).map(|_| recipe.batches(order, pairs, &mut random)).collect();
    let total = ways.iter().map(Vec::len).sum();
    let mut way = Way { trunk, pairs, reference: &reference, recipe, steps: Vec::with_capacity(total), total };
    let mut ends = Vec::new();
    for batches in &ways {
        let mut member = start.clone();
        let whole = way.go(&mut member, batches, progress)?;
        // One that was stopped on its way is far from the others: it counts where there is nothing else.
        if whole || ends.is_empty() {
            ends.push(member);
        }
        if !whole {
            break;
        }
    }
    let (changes, steps) = (mean(ends), way.steps);
    let loss_after = mean_loss(trunk, &changes, &exam);
    let margin_after = preference::mean_margin(trunk, &changes, &exam);
    let adapter = adapter(base, &changes, recipe.alpha)?;
    let tokens = steps.iter().map(|s| s.tokens).sum();
    let norm = adapter.norm();
    let compared = order.iter().filter(|i| pairs[**i].rejected.is_some()).count();
    let losses = Outcome { loss_before, loss_after, margin_before, margin_after, ..Outcome::default() };
    Ok((adapter, Outcome { pairs: order.len(), held_out, steps, tokens, norm, compared, ..losses }))
}

/// The steps of a training.
struct Way<'a> {
    trunk: &'a Trunk,
    pairs: &'a [Pair],
    /// What each pair's replies are compared from (`preference`).
    reference: &'a [Option<f64>],
    recipe: &'a Recipe,
    steps: Vec<Step>,
    /// How many there will be, of all members.
    total: usize,
}

impl Way<'_> {
    /// Takes one member from where it is through `batches`; says whether it came to their end.
    fn go(
        &mut self,
        member: &mut Changes,
        batches: &[Vec<usize>],
        progress: &mut dyn FnMut(Step) -> Onward,
    ) -> Result<bool, TrainError> {
        let mut adam = Adam::new(member);
        for (i, chosen) in batches.iter().enumerate() {
            let told = |at: &usize| Told { pair: &self.pairs[*at], reference: self.reference[*at] };
            let of_step: Vec<Told<'_>> = chosen.iter().map(told).collect();
            let mut grads = member.zeros_like();
            let (loss, margin) = preference::gradient(self.trunk, member, &of_step, self.recipe.beta, &mut grads);
            let tokens = of_step.iter().map(|t| t.pair.tokens()).sum();
            let step = Step { step: self.steps.len() + 1, steps: self.total, loss, tokens, margin };
            if !loss.is_finite() {
                return Err(TrainError::Diverged(loss, step.step));
            }
            adam.step(member, &grads, self.recipe.rate(i, batches.len()), self.recipe.clip);
            self.steps.push(step);
            match progress(step) {
                Onward::Go => {}
                Onward::Finish => return Ok(i + 1 == batches.len()),
                Onward::Cancel => return Err(TrainError::Cancelled(step.step)),
            }
        }
        Ok(true)
    }
}

/// The mean of changes of the same shapes, of which there is one at least.
fn mean(mut members: Vec<Changes>) -> Changes {
    let count = members.len() as f32;
    let mut sum = members.swap_remove(0);
    members.iter().for_each(|member| sum.add(member));
    // One stays as it is, to the bit.
    sum.values_mut().for_each(|v| *v /= count);
    sum
}

/// Mean loss over the pairs' targets.
fn mean_loss(trunk: &Trunk, changes: &Changes, pairs: &[&Pair]) -> Option<f64> {
    let (mut nats, mut weight) = (0.0, 0.0);
    for pair in pairs {
        let mut batch = Batch::default();
        batch.push(&pair.ids, pair.scored_from, 1.0);
        nats += trunk.loss(changes, &batch) * batch.weight();
        weight += batch.weight();
    }
    (weight > 0.0).then(|| nats / weight)
}

/// Sets the changes to what an adapter of the same matrices, rank and alpha holds.
fn resume(changes: &mut Changes, adapter: &Adapter, alpha: f32) -> Result<(), TrainError> {
    let refuse = |why: String| Err(TrainError::From(why));
    if (adapter.rank, adapter.alpha) != (changes.rank, alpha) {
        let (rank, its_alpha) = (adapter.rank, adapter.alpha);
        return refuse(format!("its rank is {rank} and its alpha {its_alpha}, not {} and {alpha}", changes.rank));
    }
    if adapter.factors.len() != changes.slots.len() {
        return refuse(format!("it changes {} matrices, not {}", adapter.factors.len(), changes.slots.len()));
    }
    for change in &mut changes.slots {
        match adapter.factors.iter().find(|f| f.tensor == change.name) {
            Some(f) if (f.shape.inputs, f.shape.outputs) == (change.inputs, change.outputs) => {
                change.a = transposed(&f.a, change.inputs);
                change.b = transposed(&f.b, adapter.rank);
            }
            _ => return refuse(format!("it does not change {}", change.name)),
        }
    }
    Ok(())
}

/// The changes as an adapter of `base`.
fn adapter(base: &BaseModel, changes: &Changes, alpha: f32) -> Result<Adapter, AdapterError> {
    let rank = changes.rank;
    let one = |change: &Change| {
        let shape = base.shape(&change.name).ok_or_else(|| AdapterError::Tensor {
            name: change.name.clone(),
            reason: "the base model has no such matrix that an adapter may change".into(),
        })?;
        Ok(Factors {
            tensor: change.name.clone(),
            shape,
            a: transposed(&change.a, rank),
            b: transposed(&change.b, change.outputs),
        })
    };
    let mut factors = changes.slots.iter().map(one).collect::<Result<Vec<_>, AdapterError>>()?;
    factors.sort_by(|x, y| x.tensor.cmp(&y.tensor));
    Ok(Adapter { architecture: base.architecture.clone(), base_hash: base.hash.clone(), rank, alpha, factors })
}

/// `[rows, cols]` → `[cols, rows]`.
fn transposed(values: &[f32], cols: usize) -> Vec<f32> {
    (0..cols).flat_map(|c| values.iter().skip(c).step_by(cols)).copied().collect()
}
