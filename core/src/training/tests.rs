//! Training on a tiny random model. It lowers the loss of what it saw and repeats exactly. Its adapter says in the
//! serving engine what it said here.

use super::*;
use crate::engine::adapter::BaseModel;
use crate::engine::model::tiny::{Random, TempModel, Tiny};
use crate::gguf::Gguf;

fn base(file: &TempModel) -> BaseModel {
    BaseModel::new(&Gguf::open(&file.path).unwrap(), "hash")
}

fn pairs(n: usize) -> Vec<Pair> {
    let mut random = Random(5);
    let fixed = random.tokens(6);
    (0..n)
        .map(|_| {
            let prompt = random.tokens(5);
            Pair { scored_from: prompt.len(), ids: [prompt, fixed.clone()].concat(), weight: 1.0, rejected: None }
        })
        .collect()
}

fn recipe() -> Recipe {
    Recipe { rank: 4, alpha: 4.0, layer_first: 0, rate_max: 5e-3, step_tokens: 44, epochs: 3, ..Recipe::default() }
}

fn run(file: &TempModel, recipe: &Recipe, pairs: &[Pair]) -> Result<(Adapter, Outcome), TrainError> {
    let mut trunk = Trunk::load(&file.path, 2, &mut |_| {}).unwrap();
    train(&mut trunk, &base(file), None, pairs, recipe, &mut |_| Onward::Go)
}

#[test]
fn a_training_lowers_the_loss_of_pairs_it_did_not_see() {
    let file = Tiny::default().write();
    let (adapter, outcome) = run(&file, &Recipe { held_out_percent: 20, ..recipe() }, &pairs(40)).unwrap();
    let (before, after) = (outcome.loss_before.unwrap(), outcome.loss_after.unwrap());
    assert_eq!((outcome.pairs, outcome.held_out, outcome.steps.len()), (32, 8, 3 * 8));
    assert!(after < 0.7 * before, "{before} {after}");
    assert!(outcome.norm > 0.0 && (outcome.norm - adapter.norm()).abs() < 1e-12);
}

#[test]
fn the_same_seed_gives_the_same_adapter_and_another_seed_another() {
    let file = Tiny::default().write();
    let digest = |seed| run(&file, &Recipe { seed, epochs: 1, ..recipe() }, &pairs(20)).unwrap().0.digest();
    assert_eq!(digest(1), digest(1));
    assert_ne!(digest(1), digest(2));
}

#[test]
fn several_members_begin_at_one_start_and_their_mean_is_kept() {
    let file = Tiny::default().write();
    let of = |members| Recipe { members, epochs: 1, held_out_percent: 20, ..recipe() };
    let (one, alone) = run(&file, &of(1), &pairs(40)).unwrap();
    let (two, both) = run(&file, &of(2), &pairs(40)).unwrap();
    // The first of two is the one alone, and the second begins where it began.
    let losses = |steps: &[Step]| steps.iter().map(|s| s.loss).collect::<Vec<_>>();
    let n = alone.steps.len();
    assert_eq!((both.steps.len(), both.steps[2 * n - 1].step, both.steps[0].steps), (2 * n, 2 * n, 2 * n));
    assert_eq!(losses(&both.steps[..n]), losses(&alone.steps));
    assert_eq!(both.loss_before, alone.loss_before);
    assert!((both.steps[n].loss - both.steps[0].loss).abs() < 0.5 * (alone.steps[0].loss - alone.steps[n - 1].loss));
    assert!(two.digest() != one.digest() && both.loss_after < both.loss_before);
    // What was stopped in the middle of the second is the first.
    let mut trunk = Trunk::load(&file.path, 2, &mut |_| {}).unwrap();
    let mut stop = |s: Step| if s.step == n + 1 { Onward::Finish } else { Onward::Go };
    let (stopped, outcome) = train(&mut trunk, &base(&file), None, &pairs(40), &of(2), &mut stop).unwrap();
    assert_eq!((stopped.digest(), outcome.steps.len()), (one.digest(), n + 1));
}

#[test]
fn a_mean_lies_in_the_middle() {
    let file = Tiny::default().write();
    let mut trunk = Trunk::load(&file.path, 1, &mut |_| {}).unwrap();
    let changes = trunk.prepare(4, 4.0, &|name| recipe().wants(name), &mut || 0.5);
    let mut other = changes.clone();
    other.values_mut().for_each(|v| *v += 2.0);
    let middle = mean(vec![changes.clone(), other]);
    assert!(middle.values().zip(changes.values()).all(|(m, v)| (m - v - 1.0).abs() < 1e-6));
}

#[test]
fn what_cannot_be_trained_says_why() {
    let file = Tiny::default().write();
    let error = |recipe: &Recipe, n| run(&file, recipe, &pairs(n)).map(|_| ()).unwrap_err();
    assert!(matches!(error(&recipe(), 3), TrainError::TooFew { found: 3, .. }));
    assert!(matches!(error(&Recipe { layer_first: 99, ..recipe() }, 20), TrainError::NoTarget));
    assert!(matches!(error(&Recipe { rate_max: 1e30, ..recipe() }, 40), TrainError::Diverged(..)));
    let mut trunk = Trunk::load(&file.path, 1, &mut |_| {}).unwrap();
    let stopped = train(&mut trunk, &base(&file), None, &pairs(20), &recipe(), &mut |s| stop_at_two(s, Onward::Cancel));
    assert!(matches!(stopped, Err(TrainError::Cancelled(2))));
    let ended = train(&mut trunk, &base(&file), None, &pairs(20), &recipe(), &mut |s| stop_at_two(s, Onward::Finish));
    assert_eq!(ended.unwrap().1.steps.len(), 2);
}

#[test]
fn a_training_goes_on_where_another_ended() {
    let file = Tiny::default().write();
    let first = Recipe { held_out_percent: 20, epochs: 1, ..recipe() };
    let (adapter, before) = run(&file, &first, &pairs(40)).unwrap();
    let mut trunk = Trunk::load(&file.path, 2, &mut |_| {}).unwrap();
    let mut go_on = |recipe: &Recipe| {
        train(&mut trunk, &base(&file), Some(&adapter), &pairs(40), recipe, &mut |_| Onward::Go)
            .map(|(_, outcome)| outcome)
    };
    let on = go_on(&first).unwrap();
    // The same pairs are kept out: what the first ended with, the second begins with.
    let (ended, began) = (before.loss_after.unwrap(), on.loss_before.unwrap());
    assert!((ended - began).abs() < 1e-6 && on.loss_after.unwrap() < began, "{before:?} {on:?}");
    for other in [Recipe { rank: 2, ..first.clone() }, Recipe { layer_first: 1, ..first.clone() }] {
        assert!(matches!(go_on(&other), Err(TrainError::From(_))));
    }
}

fn stop_at_two(step: Step, how: Onward) -> Onward {
    if step.step < 2 { Onward::Go } else { how }
}
