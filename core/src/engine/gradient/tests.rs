//! The whole pass on a tiny random model: its loss is the serving engine's, its gradient that of the loss.

use super::*;
use crate::engine::backend::{Backend, Chunk, Output, Rows};
use crate::engine::cpu::{Cpu, CpuOptions};
use crate::engine::model::tiny::{Random, TempModel, Tiny, VOCAB};

fn trunk(file: &TempModel) -> Trunk {
    Trunk::load(&file.path, 2, &mut |_| {}).unwrap()
}

/// Sequences around the borders of chunks and of blocks of rows, prompts left out; the one of one token says nothing.
fn batch() -> Batch {
    let mut batch = Batch::default();
    let mut random = Random(3);
    for (tokens, scored_from, weight) in [(65, 12, 1.0), (20, 5, 0.5), (1, 0, 1.0), (2, 1, 2.0), (63, 50, 1.0)] {
        batch.push(&random.tokens(tokens), scored_from, weight);
    }
    batch
}

/// Changes that are not zero anywhere, so that every path has a gradient.
fn changes(trunk: &mut Trunk) -> Changes {
    let mut random = Random(11);
    let mut changes = trunk.prepare(3, 6.0, &|_| true, &mut || random.next());
    changes.values_mut().for_each(|v| *v += 0.05 * random.next());
    changes
}

#[test]
fn loss_without_a_change_is_that_of_the_serving_engine() {
    for dense in [false, true] {
        check_loss(&Tiny { dense, ..Tiny::default() }.write());
    }
}

fn check_loss(file: &TempModel) {
    let mut trunk = trunk(file);
    let none = trunk.prepare(2, 2.0, &|_| false, &mut || 0.0);
    let batch = batch();
    let mut cpu = Cpu::load(&file.path, &CpuOptions { threads: 1, ..CpuOptions::default() }, &mut |_| {}).unwrap();
    let (mut nats, mut out) = (0.0, Output::default());
    for span in &batch.spans {
        let seq = cpu.open().unwrap();
        let tokens = &batch.tokens[span.clone()];
        cpu.step(&[Chunk { seq, tokens, rows: Rows::All, hidden: false }], &mut out).unwrap();
        for (i, row) in out.logits.chunks_exact_mut(VOCAB as usize).enumerate().take(tokens.len() - 1) {
            let weight = batch.weights[span.start + i + 1];
            nats += f64::from(weight) * softmax_loss(row, tokens[i + 1] as usize);
        }
        cpu.close(seq);
    }
    let (got, want) = (trunk.loss(&none, &batch), nats / batch.weight());
    assert!((got - want).abs() < 1e-5, "{got} {want}");
}

#[test]
fn the_gradient_is_the_slope_of_the_loss() {
    for dense in [false, true] {
        check_slopes(&Tiny { dense, ..Tiny::default() }.write());
    }
}

/// Along the gradient of each change, and of all together, the loss moves as the gradient says.
fn check_slopes(file: &TempModel) {
    let mut trunk = trunk(file);
    let changes = changes(&mut trunk);
    let batch = batch();
    let mut grads = changes.zeros_like();
    let loss = trunk.gradient(&changes, &batch, &mut grads);
    assert!((loss - trunk.loss(&changes, &batch)).abs() < 1e-6);
    let names: Vec<_> = changes.slots.iter().map(|c| c.name.clone()).collect();
    assert_eq!(names.len(), 2 * 6 + 7, "{names:?}");
    for (i, name) in names.iter().enumerate() {
        for part in ["a", "b"] {
            let of = |c: &Changes| if part == "a" { c.slots[i].a.clone() } else { c.slots[i].b.clone() };
            let grad = of(&grads);
            let norm = grad.iter().map(|g| f64::from(*g).powi(2)).sum::<f64>().sqrt();
            assert!(norm > 1e-6, "{name} {part} has no gradient");
            let at = |by: f64| {
                let mut moved = changes.clone();
                let slot = &mut moved.slots[i];
                let values = if part == "a" { &mut slot.a } else { &mut slot.b };
                values.iter_mut().zip(&grad).for_each(|(v, g)| *v += (by * f64::from(*g)) as f32);
                trunk.loss(&moved, &batch)
            };
            // Where a step takes a token to another expert the loss jumps: of several steps one stays between two such places.
            let slope = |length: f64| (at(length / norm) - at(-length / norm)) / (2.0 * length / norm);
            let slopes = [4e-3, 1e-3, 3e-4, 1e-4].map(slope);
            let wanted = norm * norm;
            let near = slopes.iter().any(|slope| (slope - wanted).abs() < 0.02 * wanted + 1e-3 * norm);
            assert!(near, "{name} {part}: {slopes:?} {wanted}");
        }
    }
}

#[test]
fn sequences_of_a_batch_do_not_see_each_other() {
    let file = Tiny::default().write();
    let mut trunk = trunk(&file);
    let changes = changes(&mut trunk);
    let whole = batch();
    let mut alone = 0.0;
    for span in whole.spans.iter().filter(|span| span.len() > 1) {
        let mut one = Batch::default();
        let scored = span.clone().position(|t| whole.weights[t] != 0.0).unwrap();
        one.push(&whole.tokens[span.clone()], scored, whole.weights[span.end - 1]);
        alone += trunk.loss(&changes, &one) * one.weight();
    }
    let together = trunk.loss(&changes, &whole) * whole.weight();
    assert!((alone - together).abs() < 1e-4 * together, "{alone} {together}");
}

#[test]
fn the_number_of_threads_changes_no_bit() {
    let file = Tiny::default().write();
    let of = |threads| {
        let mut trunk = Trunk::load(&file.path, threads, &mut |_| {}).unwrap();
        let changes = changes(&mut trunk);
        let mut grads = changes.zeros_like();
        (trunk.gradient(&changes, &batch(), &mut grads), grads)
    };
    let one = of(1);
    assert_eq!(of(2), one);
    assert_eq!(of(5), one);
}

/// Below the first layer that is changed no gradient is worked out; above it nothing is different.
#[test]
fn layers_below_the_first_change_are_left_out() {
    let file = Tiny::default().write();
    let mut trunk = trunk(&file);
    let mut all = changes(&mut trunk);
    let (mut of_all, batch) = (all.zeros_like(), batch());
    let below = |name: &str| name.starts_with("blk.0.");
    all.slots.iter_mut().filter(|c| below(&c.name)).for_each(|c| c.b.fill(0.0));
    let loss = trunk.gradient(&all, &batch, &mut of_all);
    let mut some = trunk.prepare(3, 6.0, &|name| !below(name), &mut || 0.0);
    assert_eq!(trunk.lowest, 1);
    let kept = |changes: &Changes| changes.slots.iter().filter(|c| !below(&c.name)).cloned().collect::<Vec<_>>();
    some.slots = kept(&all);
    let mut of_some = some.zeros_like();
    assert_eq!(trunk.gradient(&some, &batch, &mut of_some), loss);
    assert_eq!(of_some.slots, kept(&of_all));
}
