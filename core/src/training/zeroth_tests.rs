//! Walks on a loss that is known: squared distance of B to a target, seen through the seeds that the engine sees.

use super::*;
use crate::engine::adapter::{Adapter, AdapterFacts, Candidate, Factors, Shape};

/// Answers as the engine does, for the loss ½·mean (B − target)².
struct Bowl {
    candidate: Candidate,
    /// Says what was asked, a word each.
    asked: Vec<&'static str>,
}

impl Bowl {
    fn new() -> Bowl {
        let shape = Shape { inputs: 2, outputs: 24, experts: 1 };
        let factors = Factors { tensor: "blk.0.attn_k.weight".into(), shape, a: vec![1.0; 8], b: vec![0.0; 96] };
        let (architecture, base_hash) = (String::new(), String::new());
        let adapter = Adapter { architecture, base_hash, rank: 4, alpha: 4.0, factors: vec![factors] };
        Bowl { candidate: Candidate { adapter, sides: Sides::Out }, asked: Vec::new() }
    }

    fn loss(adapter: &Adapter) -> f64 {
        let b = &adapter.factors[0].b;
        let target = |i: usize| if i.is_multiple_of(3) { 0.2 } else { -0.1 };
        b.iter().enumerate().map(|(i, v)| (f64::from(*v) - target(i)).powi(2)).sum::<f64>() / b.len() as f64 / 2.0
    }

    fn answer(&mut self, ask: Ask) -> Event {
        let stands = Event::CandidateStands { id: 1, candidate: "c".into(), parameters: 104, norm: 0.5 };
        let (word, event) = match ask {
            Ask::Begin(_) => ("begin", stands),
            Ask::Probe { probes, .. } => {
                let loss = |p: &Probe| Some(Bowl::loss(&self.candidate.perturbed(p.seed, p.size)));
                ("probe", Event::CandidateProbed { id: 1, losses: probes.iter().map(loss).collect() })
            }
            Ask::Move(moves) => {
                moves.iter().for_each(|m| self.candidate.step(m.seed, m.size));
                ("move", stands)
            }
            Ask::Save(_) => ("save", Event::CandidateSaved { id: 1, facts: AdapterFacts::default() }),
            Ask::Drop => ("drop", stands),
        };
        self.asked.push(word);
        event
    }
}

fn pairs(n: usize) -> Vec<Pair> {
    (0..n).map(|i| Pair { ids: vec![i as u32, 1, 2, 3], scored_from: 2, weight: 1.0, rejected: None }).collect()
}

fn recipe(method: Method) -> Recipe {
    Recipe { directions: 32, step_tokens: 16, epochs: 20, held_out_percent: 20, ..Recipe::of(method, 3) }
}

fn walk(recipe: &Recipe) -> Walk {
    Walk::new(recipe, pairs(20), 3, None, "out".into()).unwrap()
}

fn through(recipe: &Recipe, stop_at: usize) -> (Bowl, Outcome) {
    let (mut bowl, mut walk) = (Bowl::new(), walk(recipe));
    while let Some(ask) = walk.ask() {
        let answer = bowl.answer(ask);
        walk.take(&answer).unwrap();
        if walk.steps.len() == stop_at && !walk.finished {
            walk.finish();
        }
    }
    (bowl, walk.outcome())
}

#[test]
fn both_methods_walk_down_and_ask_in_order() {
    for (method, rate, left) in [(Method::Population, 0.05, 0.5), (Method::Mezo, 1.0, 0.8)] {
        let (bowl, outcome) = through(&Recipe { rate_max: rate, ..recipe(method) }, usize::MAX);
        let (before, after) = (outcome.loss_before.unwrap(), outcome.loss_after.unwrap());
        assert!(after < left * before, "{method:?}: {before} {after}");
        assert_eq!((outcome.pairs, outcome.held_out, outcome.steps.len()), (16, 4, 20 * 4));
        assert_eq!(outcome.tokens, 20 * 16 * 4);
        assert_eq!(bowl.asked[..4], ["begin", "probe", "probe", "move"]);
        assert_eq!(bowl.asked[bowl.asked.len() - 4..], ["move", "probe", "save", "drop"]);
        assert_eq!(bowl.asked.len(), 3 + 2 * 80 + 2);
    }
}

#[test]
fn the_same_seed_takes_the_same_way_and_another_another() {
    let end = |seed| through(&Recipe { seed, ..recipe(Method::Population) }, 5).0.candidate.adapter.digest();
    assert_eq!(end(1), end(1));
    assert_ne!(end(1), end(2));
}

#[test]
fn a_walk_that_is_told_to_finish_measures_and_saves() {
    let (bowl, outcome) = through(&recipe(Method::Population), 3);
    assert_eq!(outcome.steps.len(), 3);
    assert!(outcome.loss_after.is_some());
    assert_eq!(bowl.asked[bowl.asked.len() - 3..], ["probe", "save", "drop"]);
}

#[test]
fn a_population_moves_as_the_formula_says() {
    let recipe = Recipe { directions: 3, ..recipe(Method::Population) };
    let walk = walk(&recipe);
    let probes = walk.probes(4);
    assert_eq!((probes.len(), probes[0].size, probes[1].size), (4, 0.0, recipe.size));
    let (loss, moves) = walk.weigh(4, &[Some(9.0), Some(1.0), Some(2.0), Some(6.0)]).unwrap();
    assert_eq!(loss, 9.0);
    // Mean 3, deviation √7.
    let each = f64::from(recipe.rate(4, walk.batches.len())) / 3.0 / 7f64.sqrt();
    for (found, (probe, height)) in moves.iter().zip(probes[1..].iter().zip([-2.0, -1.0, 3.0])) {
        assert_eq!(found.seed, probe.seed);
        assert!((f64::from(found.size) + each * height).abs() < 1e-8, "{found:?}");
    }
    // One without a number is left out, most without one are the end.
    assert_eq!(walk.weigh(4, &[Some(9.0), None, Some(2.0), Some(6.0)]).unwrap().1.len(), 2);
    assert!(matches!(walk.weigh(4, &[Some(9.0), None, None, Some(6.0)]), Err(TrainError::Diverged(_, 5))));
    assert!(matches!(walk.weigh(4, &[None, Some(1.0), Some(2.0), Some(6.0)]), Err(TrainError::Diverged(_, 5))));
    // Losses that do not differ move nothing.
    assert!(walk.weigh(4, &[Some(1.0); 4]).unwrap().1.iter().all(|m| m.size == 0.0));
}

#[test]
fn what_cannot_be_walked_says_why() {
    let error = |recipe: &Recipe, pairs| Walk::new(recipe, pairs, 3, None, "out".into()).map(|_| ()).unwrap_err();
    let good = recipe(Method::Population);
    assert!(matches!(error(&good, pairs(3)), TrainError::TooFew { found: 3, .. }));
    assert!(matches!(error(&Recipe { layer_first: 9, ..good.clone() }, pairs(20)), TrainError::NoTarget));
    for wrong in [
        Recipe { method: Method::Gradient, ..good.clone() },
        Recipe { objective: Objective::Preference, ..good.clone() },
        Recipe { directions: 1, ..good.clone() },
        Recipe { size: 0.0, ..good.clone() },
    ] {
        assert!(matches!(error(&wrong, pairs(20)), TrainError::Recipe(_)), "{wrong:?}");
    }
    let heavy = pairs(20).into_iter().map(|pair| Pair { weight: 2.0, ..pair }).collect();
    assert!(matches!(error(&good, heavy), TrainError::Recipe(why) if why.contains("weights")));
    let mut walk = walk(&good);
    let failed = Event::Failed { id: 1, kind: crate::engine::protocol::FailureKind::Busy, message: "full".into() };
    assert!(matches!(walk.take(&failed), Err(TrainError::Engine(why)) if why == "full"));
    assert!(walk.ask().is_none());
}
