//! Training without gradients: which questions the engine that holds the weights gets, in which order, and what
//! follows from its answers. No clock, no pipe. The owner of the engine puts each [`Ask`] to it and hands the answer
//! back, so `chimere train` and the daemon's Trainer take the same steps.
//!
//! A step of the population looks along N random directions z from where the candidate stands, all on the same pairs:
//! θ ← θ − η/N · Σ (L(θ + ε·z_i) − mean L)/deviation L · z_i. It is one-sided and normalised as in FZOO (Dang et al.,
//! 2025), with the mean of the losses as their base. MeZO (Malladi et al., 2023) looks along one direction both ways:
//! θ ← θ − η · (L(θ + ε·z) − L(θ − ε·z))/2ε · z. Directions are seeds (`adapter::Candidate`); only B moves, prompts
//! are left out, the router is no part of an adapter.

use std::path::PathBuf;

use super::pairs::Pair;
use super::recipe::{HELD_OUT_MAX, Method, Objective, Random, Recipe, TARGETS};
use super::{Outcome, PAIRS_MIN, Step, TrainError};
use crate::engine::adapter::Sides;
use crate::engine::protocol::{CandidateStart, Command, EvalRow, Event, PROBES_MAX, Probe, RequestId};

/// What the engine is asked, in this order: begin, probe (the pairs kept out), then probe and move for each step, probe
/// again, save, drop.
#[derive(Clone, Debug, PartialEq)]
pub enum Ask {
    Begin(CandidateStart),
    Probe { probes: Vec<Probe>, rows: Vec<EvalRow> },
    Move(Vec<Probe>),
    Save(PathBuf),
    Drop,
}

impl Ask {
    /// The command that asks it of the candidate `name`.
    pub fn command(self, id: RequestId, name: &str) -> Command {
        let candidate = name.to_owned();
        match self {
            Ask::Begin(start) => Command::BeginCandidate { id, candidate, start, sides: Sides::Out },
            Ask::Probe { probes, rows } => Command::ProbeCandidate { id, candidate, probes, rows },
            Ask::Move(moves) => Command::MoveCandidate { id, candidate, moves },
            Ask::Save(path) => Command::SaveCandidate { id, candidate, path },
            Ask::Drop => Command::DropCandidate { id, candidate },
        }
    }
}

/// Where a training stands: what is asked next.
#[derive(Clone, Debug, PartialEq)]
enum At {
    Begin,
    Before,
    Step(usize),
    Move(usize, Vec<Probe>),
    After,
    Save,
    Drop,
    Done,
}

/// A training under way.
#[derive(Debug)]
pub struct Walk {
    recipe: Recipe,
    start: CandidateStart,
    out: PathBuf,
    pairs: Vec<Pair>,
    learned: usize,
    /// Rows of the pairs kept out.
    exam: Vec<EvalRow>,
    batches: Vec<Vec<usize>>,
    at: At,
    finished: bool,
    steps: Vec<Step>,
    loss_before: Option<f64>,
    loss_after: Option<f64>,
    norm: f64,
    parameters: u64,
}

impl Walk {
    /// Plans a training of a model of `layers` layers; it begins at `from` (an adapter and the SHA-256 of its file), or
    /// from nothing, and leaves its adapter at `out`.
    pub fn new(
        recipe: &Recipe,
        pairs: Vec<Pair>,
        layers: usize,
        from: Option<(PathBuf, String)>,
        out: PathBuf,
    ) -> Result<Walk, TrainError> {
        let wrong = |what: &str| Err(TrainError::Recipe(what.to_owned()));
        if recipe.method == Method::Gradient {
            return wrong("the engine takes no gradients");
        }
        if recipe.objective != Objective::Likelihood {
            return wrong("the preference objective needs the gradient method");
        }
        if recipe.directions < 2 || recipe.directions >= PROBES_MAX || !(recipe.size > 0.0 && recipe.size.is_finite()) {
            return wrong("a population has 2 to 4095 directions, and a perturbation is above 0");
        }
        if pairs.iter().any(|pair| pair.weight != 1.0) {
            return wrong("pairs have weights, which only the gradient method knows");
        }
        let mut random = Random::new(recipe.seed);
        let order = random.shuffled(pairs.len());
        let held_out = (pairs.len() * recipe.held_out_percent as usize / 100).min(HELD_OUT_MAX);
        if pairs.len() < PAIRS_MIN + held_out {
            return Err(TrainError::TooFew { found: pairs.len(), wanted: PAIRS_MIN + held_out });
        }
        let (kept_out, order) = order.split_at(held_out);
        let batches = recipe.batches(order, &pairs, &mut random);
        let start = match from {
            Some((path, sha256)) => CandidateStart::File { path, sha256 },
            None => CandidateStart::Fresh {
                rank: recipe.rank,
                seed: recipe.seed,
                targets: match recipe.targets.as_slice() {
                    [] => TARGETS.map(str::to_owned).to_vec(),
                    chosen => chosen.to_vec(),
                },
                last_layers: match layers.saturating_sub(recipe.layer_first) {
                    0 => return Err(TrainError::NoTarget),
                    last => last,
                },
            },
        };
        let exam = kept_out.iter().map(|i| row(&pairs[*i])).collect();
        Ok(Walk {
            recipe: recipe.clone(),
            start,
            out,
            learned: order.len(),
            exam,
            batches,
            pairs,
            at: At::Begin,
            finished: false,
            steps: Vec::new(),
            loss_before: None,
            loss_after: None,
            norm: 0.0,
            parameters: 0,
        })
    }

    /// What the engine is to be asked now; `None` when the adapter is on the disk and the candidate forgotten.
    pub fn ask(&self) -> Option<Ask> {
        Some(match &self.at {
            At::Begin => Ask::Begin(self.start.clone()),
            At::Before | At::After => {
                Ask::Probe { probes: vec![Probe { seed: 0, size: 0.0 }], rows: self.exam.clone() }
            }
            At::Step(n) => Ask::Probe {
                probes: self.probes(*n),
                rows: self.batches[*n].iter().map(|i| row(&self.pairs[*i])).collect(),
            },
            At::Move(_, moves) => Ask::Move(moves.clone()),
            At::Save => Ask::Save(self.out.clone()),
            At::Drop => Ask::Drop,
            At::Done => return None,
        })
    }

    /// Takes the engine's answer to what [`ask`](Self::ask) said; a step that it completes is returned.
    pub fn take(&mut self, answer: &Event) -> Result<Option<Step>, TrainError> {
        match (std::mem::replace(&mut self.at, At::Done), answer) {
            (_, Event::Failed { message, .. }) => Err(TrainError::Engine(message.clone())),
            (At::Begin, Event::CandidateStands { parameters, .. }) => {
                self.parameters = *parameters;
                self.at = if self.exam.is_empty() { self.following(0) } else { At::Before };
                Ok(None)
            }
            (At::Before, Event::CandidateProbed { losses, .. }) => {
                self.loss_before = losses.first().copied().flatten();
                self.at = self.following(0);
                Ok(None)
            }
            (At::Step(n), Event::CandidateProbed { losses, .. }) => {
                let (loss, moves) = self.weigh(n, losses)?;
                let batch = self.batches[n].iter().map(|i| self.pairs[*i].ids.len());
                let step = Step { step: n + 1, steps: self.batches.len(), loss, tokens: batch.sum(), margin: None };
                self.steps.push(step);
                self.at = At::Move(n, moves);
                Ok(Some(step))
            }
            (At::Move(n, _), Event::CandidateStands { norm, .. }) => {
                self.norm = *norm;
                self.at = self.following(n + 1);
                Ok(None)
            }
            (At::After, Event::CandidateProbed { losses, .. }) => {
                self.loss_after = losses.first().copied().flatten();
                self.at = At::Save;
                Ok(None)
            }
            (At::Save, Event::CandidateSaved { facts, .. }) => {
                self.norm = facts.norm;
                self.at = At::Drop;
                Ok(None)
            }
            (At::Drop, Event::CandidateStands { .. }) => Ok(None),
            (at, event) => Err(TrainError::Engine(format!("an answer that fits no question: {event:?} to {at:?}"))),
        }
    }

    /// Takes no further step: what is learned by now is measured and saved.
    pub fn finish(&mut self) {
        self.finished = true;
        if matches!(self.at, At::Step(_)) {
            self.at = self.following(self.batches.len());
        }
    }

    pub fn steps_taken(&self) -> usize {
        self.steps.len()
    }

    /// Values of the candidate's factors, once it stands.
    pub fn parameters(&self) -> u64 {
        self.parameters
    }

    /// What it came to.
    pub fn outcome(self) -> Outcome {
        Outcome {
            pairs: self.learned,
            held_out: self.exam.len(),
            tokens: self.steps.iter().map(|s| s.tokens).sum(),
            steps: self.steps,
            loss_before: self.loss_before,
            loss_after: self.loss_after,
            norm: self.norm,
            ..Outcome::default()
        }
    }

    fn following(&self, step: usize) -> At {
        match step < self.batches.len() && !self.finished {
            true => At::Step(step),
            false if self.exam.is_empty() => At::Save,
            false => At::After,
        }
    }

    /// The directions of step `n`, the candidate itself first.
    fn probes(&self, n: usize) -> Vec<Probe> {
        let mut random = Random::new(self.recipe.seed ^ (n as u64 + 1).wrapping_mul(0xd1b5_4a32_d192_ed03));
        let size = self.recipe.size;
        let here = Probe { seed: 0, size: 0.0 };
        if self.recipe.method == Method::Mezo {
            let seed = random.next();
            return vec![Probe { seed, size }, Probe { seed, size: -size }];
        }
        let directions = (0..self.recipe.directions).map(|_| Probe { seed: random.next(), size });
        [here].into_iter().chain(directions).collect()
    }

    /// The loss of step `n` and how far to go along each of its directions.
    fn weigh(&self, n: usize, losses: &[Option<f64>]) -> Result<(f64, Vec<Probe>), TrainError> {
        let diverged = TrainError::Diverged(f64::NAN, n + 1);
        let probes = self.probes(n);
        let rate = f64::from(self.recipe.rate(n, self.batches.len()));
        if losses.len() != probes.len() {
            return Err(TrainError::Engine(format!("{} losses to {} probes", losses.len(), probes.len())));
        }
        if self.recipe.method == Method::Mezo {
            let (Some(up), Some(down)) = (losses[0], losses[1]) else { return Err(diverged) };
            let slope = (up - down) / (2.0 * f64::from(self.recipe.size));
            return Ok(((up + down) / 2.0, vec![Probe { seed: probes[0].seed, size: (-rate * slope) as f32 }]));
        }
        let Some(here) = losses[0] else { return Err(diverged) };
        // A perturbation under which the model gives no number says nothing of where to go.
        let found: Vec<(u64, f64)> =
            probes.iter().zip(losses).skip(1).filter_map(|(p, l)| Some((p.seed, (*l)?))).collect();
        if 2 * found.len() < probes.len() {
            return Err(diverged);
        }
        let count = found.len() as f64;
        let mean = found.iter().map(|(_, l)| l).sum::<f64>() / count;
        let variance = found.iter().map(|(_, l)| (l - mean).powi(2)).sum::<f64>() / (count - 1.0);
        let each = rate / (count * variance.sqrt().max(DEVIATION_MIN));
        let moves = found.iter().map(|(seed, l)| Probe { seed: *seed, size: (-each * (l - mean)) as f32 });
        Ok((here, moves.collect()))
    }
}

/// Below it losses are equal to rounding, and their order is chance.
const DEVIATION_MIN: f64 = 1e-9;

fn row(pair: &Pair) -> EvalRow {
    EvalRow { ids: pair.ids.clone(), scored_from: pair.scored_from }
}

#[cfg(test)]
#[path = "zeroth_tests.rs"]
mod tests;
