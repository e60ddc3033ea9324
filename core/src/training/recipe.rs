//! How to train: by which method, which matrices, how far, in which order. The defaults are those of the measured
//! comparison in `nano/effect`. With gradients they are LoRA of rank 16 in all layers but the first two, and two passes
//! over the pairs.

use serde::{Deserialize, Serialize};

use super::pairs::Pair;
use crate::engine::adapter::{block_of, target_of};

/// Most pairs kept out to be measured.
pub const HELD_OUT_MAX: usize = 200;

/// How the way down is found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum Method {
    /// Gradients through the whole trunk.
    #[default]
    Gradient,
    /// The losses of many small perturbations (`zeroth`).
    Population,
    /// The slope along one random direction (`zeroth`), to compare with.
    Mezo,
}

/// What the way down leads to, with gradients.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum Objective {
    /// The replies become likelier.
    #[default]
    Likelihood,
    /// And likelier than the rejected ones, where there are any (`preference`).
    Preference,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Recipe {
    pub method: Method,
    pub objective: Objective,
    /// How much a nat of margin counts (preference).
    pub beta: f32,
    pub rank: usize,
    pub alpha: f32,
    /// First layer that is changed.
    pub layer_first: usize,
    /// Matrices that are changed, as adapters name them; empty = mixers and shared expert.
    pub targets: Vec<String>,
    /// Largest learning rate, after the warm-up; falls to zero in a straight line.
    pub rate_max: f32,
    pub warm_up_percent: u32,
    /// Longest gradient.
    pub clip: f32,
    /// Tokens of a step, prompts counted.
    pub step_tokens: usize,
    /// Passes over the pairs.
    pub epochs: usize,
    /// Adapters that are learned from one start, each in an order of its own; their mean is kept (gradient).
    pub members: usize,
    /// Steps after which training ends whatever is left; 0 = no bound.
    pub steps_max: usize,
    pub held_out_percent: u32,
    pub seed: u64,
    /// Without gradients: perturbations that a step of a population looks at, and how large one is in B.
    pub directions: usize,
    pub size: f32,
}

impl Default for Recipe {
    fn default() -> Self {
        Recipe {
            method: Method::Gradient,
            objective: Objective::Likelihood,
            beta: 0.1,
            rank: 16,
            alpha: 16.0,
            layer_first: 2,
            targets: Vec::new(),
            rate_max: 2e-3,
            warm_up_percent: 5,
            clip: 1.0,
            step_tokens: 1_536,
            epochs: 2,
            members: 1,
            steps_max: 0,
            held_out_percent: 5,
            seed: 1,
            directions: 64,
            size: 0.03,
        }
    }
}

/// Names of the matrices that can be trained: mixers and the shared expert.
pub const TARGETS: [&str; 10] = [
    "attn_q",
    "attn_k",
    "attn_v",
    "attn_output",
    "attn_qkv",
    "attn_gate",
    "ssm_out",
    "ffn_gate_shexp",
    "ffn_up_shexp",
    "ffn_down_shexp",
];

impl Recipe {
    /// The best that was measured for a method, on a model of `layers` layers: without gradients the last layer alone.
    pub fn of(method: Method, layers: usize) -> Recipe {
        let gradient = Recipe { method, ..Recipe::default() };
        let rate_max = match method {
            Method::Gradient => return gradient,
            Method::Population => 0.1,
            Method::Mezo => 0.3,
        };
        Recipe { rank: 4, alpha: 4.0, layer_first: layers.saturating_sub(1), rate_max, ..gradient }
    }

    /// Whether the matrix `name` is changed.
    pub fn wants(&self, name: &str) -> bool {
        let target = target_of(name).unwrap_or_default();
        let chosen = self.targets.is_empty() || self.targets.iter().any(|t| t == target);
        chosen && TARGETS.contains(&target) && block_of(name).is_some_and(|b| b >= self.layer_first)
    }

    /// Learning rate of step `i` of `n`.
    pub(super) fn rate(&self, i: usize, n: usize) -> f32 {
        let warm = (n * self.warm_up_percent as usize).div_ceil(100).max(1);
        let rise = (i + 1) as f32 / warm as f32;
        let fall = (n - i) as f32 / (n + 1).saturating_sub(warm).max(1) as f32;
        self.rate_max * rise.min(fall).min(1.0)
    }

    /// The pairs of every step: each epoch in an order of its own, cut where a step is full.
    pub(super) fn batches(&self, order: &[usize], pairs: &[Pair], random: &mut Random) -> Vec<Vec<usize>> {
        let mut batches: Vec<Vec<usize>> = Vec::new();
        let enough = if self.steps_max == 0 { usize::MAX } else { self.steps_max };
        for _ in 0..self.epochs {
            if batches.len() >= enough {
                break;
            }
            let mut tokens = usize::MAX;
            for at in random.shuffled(order.len()) {
                let size = pairs[order[at]].tokens();
                if tokens.saturating_add(size) > self.step_tokens {
                    batches.push(Vec::new());
                    tokens = 0;
                }
                tokens += size;
                if let Some(batch) = batches.last_mut() {
                    batch.push(order[at]);
                }
            }
        }
        batches.truncate(enough);
        batches
    }
}

/// Numbers from SplitMix64 (Steele, Lea and Flood, 2014): the same seed gives the same training on every machine.
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Random {
        Random(seed)
    }

    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Between −1 and 1.
    pub fn uniform(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1_u64 << 23) as f32 - 1.0
    }

    /// One of 0 … n − 1, n at least 1.
    pub fn below(&mut self, n: usize) -> usize {
        (self.next() % n.max(1) as u64) as usize
    }

    /// 0 … n − 1 in random order (Fisher and Yates).
    pub fn shuffled(&mut self, n: usize) -> Vec<usize> {
        let mut order: Vec<usize> = (0..n).collect();
        for i in (1..n).rev() {
            order.swap(i, self.below(i + 1));
        }
        order
    }
}
