//! The second objective: right replies become likelier than the model's own wrong ones to the same questions, as in
//! SPIN (Chen et al., 2024). They also become likely at all.
//!
//! The margin is m = ln p(reply) − ln p(rejected), m₀ where training begins. A step goes down a sum of two terms. One
//! is the mean over tokens of −ln p(reply), the other the mean over compared pairs of ln(1 + exp(−β·(m − m₀))). The
//! second is the logistic loss of Rafailov et al. (2023). Without the first both replies may become unlikely (Pang et
//! al., 2024). Where no pair has a rejected reply it is the likelihood alone.

use super::pairs::Pair;
use crate::engine::gradient::{Batch, Changes, Trunk};

/// A pair of a step, and its margin where the training began, if it has one.
#[derive(Clone, Copy)]
pub struct Told<'p> {
    pub pair: &'p Pair,
    pub reference: Option<f64>,
}

/// The margin of each of the pairs `order` under the present changes; `None` for the others, and where nothing is rejected.
pub(super) fn reference(trunk: &Trunk, changes: &Changes, pairs: &[Pair], order: &[usize]) -> Vec<Option<f64>> {
    let mut reference = vec![None; pairs.len()];
    order.iter().for_each(|at| reference[*at] = margin(trunk, changes, &pairs[*at]));
    reference
}

/// ln p(reply) − ln p(rejected), nats.
fn margin(trunk: &Trunk, changes: &Changes, pair: &Pair) -> Option<f64> {
    let nats = |ids: &[u32]| {
        let mut batch = Batch::default();
        batch.push(ids, pair.scored_from, 1.0);
        trunk.loss(changes, &batch) * batch.weight()
    };
    pair.rejected.as_ref().map(|rejected| nats(rejected) - nats(&pair.ids))
}

/// Mean margin of those pairs that have one.
pub(super) fn mean_margin(trunk: &Trunk, changes: &Changes, pairs: &[&Pair]) -> Option<f64> {
    let margins: Vec<f64> = pairs.iter().filter_map(|pair| margin(trunk, changes, pair)).collect();
    (!margins.is_empty()).then(|| margins.iter().sum::<f64>() / margins.len() as f64)
}

/// Adds the gradient of the objective to `grads`; returns the mean loss of the replies, nats a token, and the mean margin.
pub(super) fn gradient(
    trunk: &Trunk,
    changes: &Changes,
    pairs: &[Told<'_>],
    beta: f32,
    grads: &mut Changes,
) -> (f64, Option<f64>) {
    if pairs.iter().all(|told| told.reference.is_none()) {
        let mut batch = Batch::default();
        pairs.iter().for_each(|told| batch.push(&told.pair.ids, told.pair.scored_from, told.pair.weight));
        return (trunk.gradient(changes, &batch, grads), None);
    }
    let mut found = Objective::default();
    trunk.gradient_of(changes, &batch(pairs), grads, &mut |nats| {
        found = objective(pairs, beta.into(), nats);
        found.slopes.clone()
    });
    (found.loss, Some(found.margin))
}

/// The replies, and behind each one the rejected one it is compared with.
fn batch(pairs: &[Told<'_>]) -> Batch {
    let mut batch = Batch::default();
    for Told { pair, reference } in pairs {
        batch.push(&pair.ids, pair.scored_from, 1.0);
        if let (Some(rejected), Some(_)) = (&pair.rejected, reference) {
            batch.push(rejected, pair.scored_from, 1.0);
        }
    }
    batch
}

/// The objective at given losses of the sequences of [`batch`], and how much it rises with each.
#[derive(Default)]
struct Objective {
    value: f64,
    slopes: Vec<f64>,
    /// Of the replies, nats a token, and of the compared pairs.
    loss: f64,
    margin: f64,
}

fn objective(pairs: &[Told<'_>], beta: f64, nats: &[f64]) -> Objective {
    let tokens = |pair: &Pair| (pair.ids.len() - pair.scored_from) as f64 * f64::from(pair.weight);
    let weight: f64 = pairs.iter().map(|told| tokens(told.pair)).sum();
    let compared = pairs.iter().filter(|told| told.reference.is_some()).count().max(1) as f64;
    let mut found = Objective::default();
    let mut nats = nats.iter();
    for Told { pair, reference } in pairs {
        let own = f64::from(pair.weight);
        let reply = nats.next().copied().unwrap_or_default();
        found.loss += own * reply / weight;
        found.slopes.push(own / weight);
        let Some(reference) = reference else { continue };
        let margin = nats.next().copied().unwrap_or_default() - reply;
        let gained = beta * (margin - reference);
        // ln(1 + e^−x), without overflow on either side.
        found.value += own * ((-gained).max(0.0) + (-gained.abs()).exp().ln_1p()) / compared;
        found.margin += margin / compared;
        let pull = own * beta / (1.0 + gained.exp()) / compared;
        if let Some(slope) = found.slopes.last_mut() {
            *slope += pull;
        }
        found.slopes.push(-pull);
    }
    found.value += found.loss;
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::model::tiny::{Random, Tiny};

    fn pairs() -> Vec<Pair> {
        let mut random = Random(7);
        let mut pair = |weight: f32, compared: bool| {
            let prompt = random.tokens(8);
            let mut with = |n: usize| [prompt.clone(), random.tokens(n)].concat();
            Pair { ids: with(12), rejected: compared.then(|| with(9)), scored_from: 8, weight }
        };
        vec![pair(1.0, true), pair(1.0, false), pair(2.0, true)]
    }

    /// Along the gradient the objective moves as the gradient says, and nowhere else is it known: central differences.
    #[test]
    fn the_gradient_is_the_slope_of_the_objective() {
        let file = Tiny::default().write();
        let mut trunk = Trunk::load(&file.path, 2, &mut |_| {}).unwrap();
        let mut random = Random(11);
        let mut changes = trunk.prepare(3, 6.0, &|_| true, &mut || random.next());
        changes.values_mut().for_each(|v| *v += 0.05 * random.next());
        let pairs = pairs();
        // As if the training had begun elsewhere, so that the margins have moved.
        let begun = [Some(-1.5), None, Some(2.0)];
        let told: Vec<Told<'_>> = pairs.iter().zip(begun).map(|(pair, reference)| Told { pair, reference }).collect();
        let beta = 0.7;
        let value = |changes: &Changes| {
            let nats: Vec<f64> = {
                let all = batch(&told);
                let one = |span: &std::ops::Range<usize>| {
                    let mut one = Batch::default();
                    one.push(&all.tokens[span.clone()], 8, 1.0);
                    trunk.loss(changes, &one) * one.weight()
                };
                all.spans.iter().map(one).collect()
            };
            objective(&told, beta.into(), &nats).value
        };
        let mut grads = changes.zeros_like();
        let (loss, margin) = gradient(&trunk, &changes, &told, beta, &mut grads);
        assert!(loss > 0.0 && margin.is_some());
        let norm = grads.values().map(|g| f64::from(*g).powi(2)).sum::<f64>().sqrt();
        let at = |by: f64| {
            let mut moved = changes.clone();
            moved.values_mut().zip(grads.values()).for_each(|(v, g)| *v += (by * f64::from(*g)) as f32);
            value(&moved)
        };
        // Where a step takes a token to another expert the loss jumps: of several steps one stays between two such places.
        let slopes = [1e-3, 3e-4, 1e-4, 3e-5].map(|length| {
            let step = length / norm;
            (at(step) - at(-step)) / (2.0 * step)
        });
        let near = slopes.iter().any(|slope| (slope - norm * norm).abs() < 0.02 * norm * norm);
        assert!(near, "{slopes:?} {}", norm * norm);
        // And along the part that only the rejected replies pull at: without them the gradient is another.
        let plain: Vec<Told<'_>> = pairs.iter().map(|pair| Told { pair, reference: None }).collect();
        let mut likelihood = changes.zeros_like();
        gradient(&trunk, &changes, &plain, beta, &mut likelihood);
        let apart: f64 = grads.values().zip(likelihood.values()).map(|(a, b)| f64::from(a - b).powi(2)).sum();
        assert!(apart.sqrt() > 0.05 * norm, "{apart}");
    }

    #[test]
    fn slopes_are_those_of_the_value() {
        let pairs = pairs();
        let begun = [Some(0.5), None, Some(-3.0)];
        let told: Vec<Told<'_>> = pairs.iter().zip(begun).map(|(pair, reference)| Told { pair, reference }).collect();
        let nats = [20.0, 23.0, 31.0, 18.0, 12.0];
        let found = objective(&told, 0.4, &nats);
        for (i, wanted) in found.slopes.iter().enumerate() {
            let at = |by: f64| {
                let mut moved = nats;
                moved[i] += by;
                objective(&told, 0.4, &moved).value
            };
            let slope = (at(1e-4) - at(-1e-4)) / 2e-4;
            assert!((slope - wanted).abs() < 1e-7, "{i}: {slope} {wanted}");
        }
        assert_eq!(found.margin, (3.0 - 6.0) / 2.0);
        // Far out it is a straight line and does not overflow.
        assert!(objective(&told, 1.0, &[2e3, 0.0, 0.0, 2e3, 0.0]).value.is_finite());
    }
}
