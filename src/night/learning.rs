//! The settings of a night's learning (`scoring` and `training` in `night.yaml`), and the files that it leaves in
//! the run's folder. `selection.json` says where the data went, `training.json` what was learned from which data.

use std::collections::BTreeSet;
use std::io;
use std::path::Path;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::admission::Refusal;
use super::cluster::Cluster;
use crate::plural::{counted, noun};
use crate::store::files::{create_private_dir, read_bounded, write_durable};
use crate::training::{Method, Objective, Recipe};

pub const FORMAT: u32 = 1;
pub const SELECTION: &str = "selection.json";
pub const TRAINING: &str = "training.json";
const BYTES_MAX: u64 = 16 << 20;
/// Points of a loss curve that are kept.
pub const CURVE_MAX: usize = 60;

/// How long the judge is waited for.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Scoring {
    pub minutes_max: f64,
}

impl Default for Scoring {
    fn default() -> Self {
        Scoring { minutes_max: 60.0 }
    }
}

/// Where a training begins.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// From nothing, on this night's pairs and those of earlier nights.
    Fresh,
    /// From the champion's adapter.
    #[default]
    Continue,
}

/// How a night trains without gradients, in place of rank and rate.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Zeroth {
    /// Perturbations of a step (population).
    pub directions: usize,
    /// Of a perturbation of B.
    pub size: f32,
    pub rank: usize,
    /// Absent: the method's own.
    pub rate: Option<f32>,
    /// Layers that are changed, from the end.
    pub last_layers: usize,
    /// 0: when the pairs are through.
    pub steps_max: usize,
}

impl Default for Zeroth {
    fn default() -> Self {
        let best = Recipe::of(Method::Population, 1);
        Zeroth {
            directions: best.directions,
            size: best.size,
            rank: best.rank,
            rate: None,
            last_layers: 1,
            steps_max: 0,
        }
    }
}

/// How a night trains.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Training {
    /// With gradients by a process of its own; without them on the engine that serves.
    pub method: Method,
    pub zeroth: Zeroth,
    /// What is gone down to, with gradients.
    pub objective: Objective,
    /// How much a nat of margin counts (preference).
    pub beta: f32,
    pub mode: Mode,
    /// Pairs of earlier nights that come along, at most so many for each new one.
    pub replay: f64,
    /// Most pairs of one training, new and old.
    pub pairs_max: usize,
    /// Nights that a refused night's pairs are tried again in.
    pub retries_max: u32,
    pub rank: usize,
    /// Largest learning rate.
    pub rate: f32,
    pub epochs: usize,
    /// Adapters that are learned from one start in different orders, to keep their mean (gradient).
    pub members: usize,
    /// Tokens of a step, prompts counted.
    pub step_tokens: usize,
    pub held_out_percent: u32,
    /// 0: the processors at hand.
    pub threads: usize,
    /// Absent: the run's own.
    pub seed: Option<u64>,
    /// The training is ended above these.
    pub minutes_max: f64,
    pub memory_gib_max: f64,
}

impl Default for Training {
    fn default() -> Self {
        let recipe = Recipe::default();
        Training {
            method: Method::Gradient,
            zeroth: Zeroth::default(),
            objective: recipe.objective,
            beta: recipe.beta,
            mode: Mode::Continue,
            replay: 0.5,
            pairs_max: 4_000,
            retries_max: 2,
            rank: recipe.rank,
            rate: recipe.rate_max,
            epochs: recipe.epochs,
            members: recipe.members,
            step_tokens: recipe.step_tokens,
            held_out_percent: recipe.held_out_percent,
            threads: 0,
            seed: None,
            minutes_max: 120.0,
            memory_gib_max: 8.0,
        }
    }
}

/// A field with its value and bounds.
pub type Range = (&'static str, f64, f64, f64);

impl Training {
    /// What the settings together cannot be: the field and why.
    pub fn refusal(&self) -> Option<(&'static str, &'static str)> {
        let compares = self.objective == Objective::Preference && self.method != Method::Gradient;
        compares.then_some(("training.objective", "is preference, which only the gradient method learns"))
    }

    /// Every number with what it may be.
    pub fn ranges(&self) -> [Range; 19] {
        let zeroth = self.zeroth;
        [
            ("training.zeroth.directions", zeroth.directions as f64, 2.0, 4_095.0),
            ("training.zeroth.size", zeroth.size.into(), 1e-7, 100.0),
            ("training.zeroth.rank", zeroth.rank as f64, 1.0, 64.0),
            ("training.zeroth.rate", zeroth.rate.unwrap_or(1.0).into(), 1e-7, 100.0),
            ("training.zeroth.last_layers", zeroth.last_layers as f64, 1.0, 1_024.0),
            ("training.zeroth.steps_max", zeroth.steps_max as f64, 0.0, 1e6),
            ("training.beta", self.beta.into(), 1e-3, 100.0),
            ("training.replay", self.replay, 0.0, 1_000.0),
            ("training.pairs_max", self.pairs_max as f64, 8.0, 100_000.0),
            ("training.retries_max", self.retries_max.into(), 0.0, 100.0),
            ("training.rank", self.rank as f64, 1.0, 64.0),
            ("training.rate", self.rate.into(), 1e-7, 1.0),
            ("training.epochs", self.epochs as f64, 1.0, 100.0),
            ("training.members", self.members as f64, 1.0, 16.0),
            ("training.step_tokens", self.step_tokens as f64, 1.0, 65_536.0),
            ("training.held_out_percent", self.held_out_percent.into(), 0.0, 50.0),
            ("training.threads", self.threads as f64, 0.0, 64.0),
            ("training.minutes_max", self.minutes_max, 0.01, 1_440.0),
            ("training.memory_gib_max", self.memory_gib_max, 0.25, 4_096.0),
        ]
    }
}

impl Training {
    /// How to train a model of `layers` layers without gradients.
    pub fn recipe(&self, layers: usize, seed: u64) -> Recipe {
        let Zeroth { directions, size, rank, rate, last_layers, steps_max } = self.zeroth;
        let best = Recipe::of(self.method, layers);
        Recipe {
            directions,
            size,
            rank,
            // alpha / rank stays 1, as it was measured.
            alpha: rank as f32,
            rate_max: rate.unwrap_or(best.rate_max),
            layer_first: layers.saturating_sub(last_layers),
            steps_max,
            epochs: self.epochs,
            step_tokens: self.step_tokens,
            held_out_percent: self.held_out_percent,
            seed,
            ..best
        }
    }
}

/// What one principal's pairs are among the others.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PrincipalPairs {
    pub principal: String,
    pub pairs: usize,
    /// Of so many that were good by themselves; 0 where nobody counted.
    #[serde(default)]
    pub offered: usize,
    /// Mean loss of the replies under the champion, nats a token, where it was measured.
    pub loss: Option<f64>,
}

impl PrincipalPairs {
    pub fn words(&self) -> String {
        let loss = self.loss.map_or(String::new(), |loss| format!(", mean loss {loss:.3} under the champion"));
        let offered = if self.offered > self.pairs { format!(" of {}", self.offered) } else { String::new() };
        let pairs = noun(&self.pairs, "pair", "pairs");
        format!("{}{offered} {pairs} vouched for by {}{loss}", self.pairs, self.principal)
    }
}

/// Where a night's data went.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Selected {
    pub format: u32,
    /// Turns of the window.
    pub turns: usize,
    pub refused: Vec<(Refusal, usize)>,
    /// Pairs of the window, of refused nights tried again, and of earlier nights.
    pub new: usize,
    pub retried: usize,
    pub replayed: usize,
    /// SHA-256 of the pairs' file.
    pub data_hash: String,
    pub principals: Vec<PrincipalPairs>,
    /// Pairs of several that teach the same words.
    #[serde(default)]
    pub clusters: Vec<Cluster>,
    /// What the owner should look at.
    #[serde(default)]
    pub flags: Vec<String>,
    /// Principals whose pairs are far stranger than everybody else's: if the gate refuses, theirs are given up.
    #[serde(default)]
    pub suspects: BTreeSet<String>,
}

impl Selected {
    pub fn pairs(&self) -> usize {
        self.new + self.retried + self.replayed
    }

    /// Turns and what became of them, for people.
    pub fn funnel(&self) -> Vec<(String, usize)> {
        let refused = self.refused.iter().map(|(why, n)| (format!("refused: {}", why.words()), *n));
        let stages = [
            ("new pairs", self.new),
            ("pairs tried again", self.retried),
            ("pairs of earlier nights", self.replayed),
            ("pairs in all", self.pairs()),
        ];
        let turns = [("turns looked at".to_owned(), self.turns)].into_iter();
        turns.chain(refused).chain(stages.map(|(stage, n)| (stage.to_owned(), n))).collect()
    }

    /// In one line; the funnel has every reason with its count.
    pub fn words(&self) -> String {
        let most = self.most_refused().map_or(String::new(), |why| format!("; most refused: {why}"));
        let Selected { turns, new, retried, replayed, .. } = self;
        let (turns, new) = (counted(*turns, "turn", "turns"), counted(*new, "new pair", "new pairs"));
        format!("{turns}: {new}, {retried} tried again, {replayed} of earlier nights{most}")
    }

    /// The reason that refused most turns, with their number.
    pub fn most_refused(&self) -> Option<String> {
        let (why, count) = self.refused.iter().max_by_key(|(_, count)| *count)?;
        Some(format!("{} ({count})", why.words()))
    }
}

/// What came of a training.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Trained {
    pub format: u32,
    #[serde(default)]
    pub method: Method,
    pub mode: Mode,
    /// The generation whose adapter it began from; 0 = from nothing.
    pub from: u64,
    pub seed: u64,
    pub data_hash: String,
    /// SHA-256 of the adapter.
    pub sha256: String,
    pub pairs: usize,
    /// Lines that the trainer could not use.
    pub left_out: usize,
    pub steps: usize,
    pub tokens: usize,
    pub held_out: usize,
    /// Loss of the pairs kept out, nats a token.
    pub loss_before: Option<f64>,
    pub loss_after: Option<f64>,
    /// Pairs that were compared with a rejected reply, and the margin over it of those kept out, nats.
    #[serde(default)]
    pub compared: usize,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub margin_before: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub margin_after: Option<f64>,
    /// Step and loss of the step before it was taken, thinned.
    pub curve: Vec<(usize, f64)>,
    pub seconds: f64,
}

impl Trained {
    pub fn words(&self) -> String {
        let loss = match (self.loss_before, self.loss_after) {
            (Some(before), Some(after)) => {
                let held_out = counted(self.held_out, "pair", "pairs");
                format!("; loss of {held_out} kept out {before:.4} before, {after:.4} after")
            }
            _ => String::new(),
        };
        let margin = match (self.margin_before, self.margin_after) {
            (Some(before), Some(after)) => {
                format!("; margin over rejected replies {before:.2} before, {after:.2} after")
            }
            _ => String::new(),
        };
        let (pairs, steps) = (counted(self.pairs, "pair", "pairs"), counted(self.steps, "step", "steps"));
        format!("{pairs} in {steps}, {:.0} s{loss}{margin}", self.seconds)
    }
}

/// At most `CURVE_MAX` points of a curve, the first and the last among them, each the mean of its neighbourhood.
pub fn thinned(losses: &[f64]) -> Vec<(usize, f64)> {
    let points = losses.len().min(CURVE_MAX);
    let part = |n: usize| n * losses.len() / points.max(1);
    let mean = |part: &[f64]| part.iter().sum::<f64>() / part.len().max(1) as f64;
    (0..points).map(|n| (part(n) + 1, mean(&losses[part(n)..part(n + 1)]))).collect()
}

/// Writes one of the two papers.
pub fn write<T: Serialize>(run_dir: &Path, name: &str, paper: &T) -> io::Result<()> {
    create_private_dir(run_dir)?;
    write_durable(&run_dir.join(name), &serde_json::to_vec_pretty(paper)?)
}

/// Reads one of the two papers; `None` where there is none.
pub fn read<T: DeserializeOwned>(run_dir: &Path, name: &str) -> Result<Option<T>, String> {
    let text = read_bounded(&run_dir.join(name), BYTES_MAX).map_err(|error| format!("{name}: {error}"))?;
    text.map(|text| serde_json::from_str(&text).map_err(|error| format!("{name} is damaged: {error}"))).transpose()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_curve_is_thinned_and_a_short_one_is_kept() {
        assert_eq!(thinned(&[2.0, 1.0]), [(1, 2.0), (2, 1.0)]);
        assert_eq!(thinned(&[]), []);
        let long: Vec<f64> = (0..600).map(|n| f64::from(600 - n)).collect();
        let curve = thinned(&long);
        assert_eq!((curve.len(), curve[0].0, curve[59].0), (CURVE_MAX, 1, 591));
        assert!(curve.is_sorted_by(|a, b| a.1 > b.1));
    }

    #[test]
    fn the_papers_come_back_and_say_themselves_in_a_line() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(read::<Selected>(dir.path(), SELECTION).unwrap(), None);
        let selected = Selected {
            format: FORMAT,
            turns: 9,
            refused: vec![(Refusal::NoConsent, 1), (Refusal::Unscored, 4)],
            new: 3,
            retried: 1,
            ..Selected::default()
        };
        write(dir.path(), SELECTION, &selected).unwrap();
        assert_eq!(read(dir.path(), SELECTION).unwrap(), Some(selected.clone()));
        let words = selected.words();
        assert!(words.starts_with("9 turns: 3 new pairs, 1 tried again, 0 of"), "{words}");
        assert!(words.ends_with("of earlier nights; most refused: without a verdict (4)"), "{words}");
        std::fs::write(dir.path().join(SELECTION), "{").unwrap();
        assert!(read::<Selected>(dir.path(), SELECTION).unwrap_err().contains("damaged"));
    }
}
