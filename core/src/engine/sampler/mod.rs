//! Chooses the next token of one sequence from its row of logits. It owns the request's random numbers and
//! its memory of past tokens, knows no text and no model.
//!
//! Order of work: logit bias → penalties → mixing with a table's distribution at temperature 1 → (log-probabilities
//! are reported here) → temperature → top-k → top-p → min-p → draw. With temperature 0 the likeliest token is taken, the lowest id among equals.
//! A choice that falls on a forbidden token is made again without those; every other choice is what it would have been.

mod cut;
mod likely;
pub mod mix;
mod penalties;
mod random;
#[cfg(test)]
mod tests;

use crate::engram::Proposal;
use crate::turn::Sampling;
use cut::{Candidate, Cuts};
use mix::Mixed;
use penalties::Penalties;
use random::Random;

/// Most alternatives that a request may ask to see beside the chosen token.
pub const LOGPROBS_MAX: u8 = 20;
/// Most entries of a request's logit bias.
pub const LOGIT_BIAS_MAX: usize = 1_024;

#[derive(Debug, PartialEq, thiserror::Error)]
pub enum SamplerError {
    #[error("{field} is {found} but must be {allowed}")]
    Range { field: &'static str, found: String, allowed: &'static str },
    #[error("logit_bias names token {id}, but the vocabulary has {vocab} tokens")]
    BiasToken { id: u32, vocab: usize },
    #[error("logit_bias has {found} entries, over the limit of {limit}")]
    BiasCount { found: usize, limit: usize },
    #[error("the model gave {found} for token {id}: no token can be chosen from that")]
    Logit { id: usize, found: f32 },
    #[error("no token is allowed: every logit is -inf")]
    NoToken,
    #[error("the row has {found} logits but the vocabulary {expected} tokens")]
    Row { found: usize, expected: usize },
    #[error("cannot draw a seed: {0}")]
    Seed(String),
}

/// The chosen token.
#[derive(Clone, Debug, PartialEq)]
pub struct Choice {
    pub id: u32,
    /// Natural logarithm of the token's probability after bias, penalties and mixing, before temperature and cuts;
    /// present if the request asked for log-probabilities.
    pub logprob: Option<f32>,
    /// The likeliest tokens at that point, likeliest first, as many as were asked for.
    pub top: Vec<(u32, f32)>,
    /// A table took part, and whether it changed which token is the likeliest.
    pub mixed: Option<(Mixed, bool)>,
}

#[derive(Debug)]
pub struct Sampler {
    vocab: usize,
    temperature: f32,
    cuts: Cuts,
    bias: Vec<(u32, f32)>,
    /// Never chosen while another token may be. Few.
    forbidden: Vec<u32>,
    logprobs: Option<u8>,
    penalties: Penalties,
    seed: u64,
    random: Random,
    /// Scratch: a weight a token.
    weights: Vec<f32>,
    /// Scratch: what the cuts kept.
    kept: Vec<Candidate>,
}

impl Sampler {
    /// Checks every field of `sampling`. `prompt` is what the repetition penalty looks back on.
    pub fn new(sampling: &Sampling, vocab: usize, prompt: &[u32]) -> Result<Sampler, SamplerError> {
        check(sampling, vocab)?;
        let seed = match sampling.seed {
            Some(seed) => seed,
            // 53 bits, so that a client that reads the seed as a JavaScript number can give it back.
            None => getrandom::u64().map_err(|e| SamplerError::Seed(e.to_string()))? >> 11,
        };
        Ok(Sampler {
            vocab,
            temperature: sampling.temperature,
            cuts: Cuts { top_k: sampling.top_k as usize, top_p: sampling.top_p, min_p: sampling.min_p },
            bias: sampling.logit_bias.clone(),
            forbidden: Vec::new(),
            logprobs: sampling.logprobs,
            penalties: Penalties::new(sampling, prompt),
            seed,
            random: Random::new(seed),
            weights: Vec::new(),
            kept: Vec::new(),
        })
    }

    /// Chooses none of these tokens while any other may be chosen.
    pub fn without(mut self, forbidden: Vec<u32>) -> Sampler {
        self.forbidden = forbidden;
        self
    }

    /// The seed in use, given or drawn.
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// Takes a token that was not sampled (forced by a control policy) into account.
    pub fn accept(&mut self, id: u32) {
        self.penalties.accept(id);
    }

    /// Chooses a token and takes it into account. The row is changed in place (bias, penalties).
    pub fn sample(&mut self, logits: &mut [f32]) -> Result<Choice, SamplerError> {
        self.sample_with(logits, None)
    }

    /// Like `sample`, with a table's proposal and its greatest weight mixed in.
    pub fn sample_with(&mut self, logits: &mut [f32], table: Option<(&Proposal, f32)>) -> Result<Choice, SamplerError> {
        if logits.len() != self.vocab {
            return Err(SamplerError::Row { found: logits.len(), expected: self.vocab });
        }
        self.weigh_in(logits)?;
        let (mut max, mut likeliest) = self::likeliest(logits)?;
        let mixed =
            table.and_then(|(proposal, lambda)| mix::mix(logits, proposal, lambda, &self.bias, &mut self.weights));
        let mixed = match mixed {
            None => None,
            Some(mixed) => {
                let alone = likeliest;
                (max, likeliest) = self::likeliest(logits)?;
                Some((mixed, likeliest != alone))
            }
        };
        let id = self.once(logits, max, likeliest);
        let id = self.instead(id, logits);
        let (logprob, top) = self.report(logits, max, id);
        self.penalties.accept(id);
        Ok(Choice { id, logprob, top, mixed })
    }

    /// Checks a row of the model and puts bias and penalties on it.
    fn weigh_in(&self, logits: &mut [f32]) -> Result<(), SamplerError> {
        check_row(logits)?;
        for &(id, bias) in &self.bias {
            if let Some(logit) = logits.get_mut(id as usize) {
                *logit += bias;
            }
        }
        self.penalties.apply(logits);
        Ok(())
    }

    /// Chooses, whatever is forbidden.
    fn once(&mut self, logits: &[f32], max: f32, likeliest: u32) -> u32 {
        if self.temperature == 0.0 { likeliest } else { self.draw(logits, max, likeliest) }
    }

    /// `id`, or, where that is forbidden, another choice from the row without what is. The row is left as it was.
    fn instead(&mut self, id: u32, logits: &mut [f32]) -> u32 {
        if !self.forbidden.contains(&id) {
            return id;
        }
        let forbidden = self.forbidden.clone();
        let kept: Vec<(u32, f32)> = forbidden.into_iter().filter_map(|f| Some((f, *logits.get(f as usize)?))).collect();
        kept.iter().for_each(|(f, _)| logits[*f as usize] = f32::NEG_INFINITY);
        // Where nothing else may be chosen, as in a form that asks for this very token, it stays.
        let id = likeliest(logits).map_or(id, |(max, likeliest)| self.once(logits, max, likeliest));
        kept.iter().for_each(|(f, logit)| logits[*f as usize] = *logit);
        id
    }

    fn draw(&mut self, logits: &[f32], max: f32, likeliest: u32) -> u32 {
        let total = cut::weigh(logits, max, self.temperature, &mut self.weights);
        let point = self.random.unit();
        if self.cuts.none() {
            let all = self.weights.iter().copied().zip(0u32..);
            return pick(all, point * total).unwrap_or(likeliest);
        }
        self.cuts.apply(&self.weights, total, &mut self.kept);
        let total = cut::mass(&self.kept);
        pick(self.kept.iter().copied(), point * total).unwrap_or(likeliest)
    }

    /// Logprob of a token under a row of the model's own logits, and the likeliest ones, where logprobs are asked for.
    pub fn likelihood(&self, logits: &[f32], id: u32) -> (Option<f32>, Vec<(u32, f32)>) {
        self.report(logits, logits.iter().copied().fold(f32::NEG_INFINITY, f32::max), id)
    }

    fn report(&self, logits: &[f32], max: f32, id: u32) -> (Option<f32>, Vec<(u32, f32)>) {
        let Some(count) = self.logprobs else { return (None, Vec::new()) };
        let mut weights = Vec::new();
        let log_sum = cut::weigh(logits, max, 1.0, &mut weights).ln();
        let logprob = |logit: f32| (f64::from(logit) - f64::from(max) - log_sum) as f32;
        // What is forbidden is no alternative, and its −∞ no JSON.
        let top = cut::largest(logits, usize::from(count)).into_iter().filter(|(l, _)| l.is_finite());
        let top = top.map(|(l, id)| (id, logprob(l))).collect();
        (logits.get(id as usize).map(|&l| logprob(l)), top)
    }
}

/// Sum of the weights of a row at temperature 1 (the likeliest token has the weight 1), and the entropy of its
/// distribution in nats. `None` where no logit is finite.
pub fn entropy(logits: &[f32], weights: &mut Vec<f32>) -> Option<(f64, f64)> {
    let max = cut::max(logits);
    if !max.is_finite() {
        return None;
    }
    let total = cut::weigh(logits, max, 1.0, weights);
    // H = ln Z − Σ w·(l − max) / Z; a weight of 0 adds nothing, whatever its logit.
    let distance = |(&l, &w): (&f32, &f32)| if w > 0.0 { f64::from(w) * f64::from(l - max) } else { 0.0 };
    let mean = logits.iter().zip(weights.iter()).map(distance).sum::<f64>() / total;
    Some((total, total.ln() - mean))
}

/// The largest logit and the lowest id that has it.
fn likeliest(logits: &[f32]) -> Result<(f32, u32), SamplerError> {
    let max = cut::max(logits);
    if max == f32::NEG_INFINITY {
        return Err(SamplerError::NoToken);
    }
    let id = logits.iter().position(|&l| l == max).ok_or(SamplerError::NoToken)?;
    Ok((max, id as u32))
}

/// NaN and +inf come from a broken computation; -inf is a token that something forbade.
fn check_row(logits: &[f32]) -> Result<(), SamplerError> {
    // Without a branch inside the chunk, the comparison is vectorised.
    let broken = |chunk: &[f32]| chunk.iter().fold(false, |found, &l| found | (l.is_nan() | (l == f32::INFINITY)));
    match logits.chunks(64).any(broken) {
        false => Ok(()),
        true => {
            let id = logits.iter().position(|l| l.is_nan() || *l == f32::INFINITY).unwrap_or_default();
            Err(SamplerError::Logit { id, found: logits[id] })
        }
    }
}

/// The candidate in whose share of the total weight `point` lies.
fn pick(candidates: impl Iterator<Item = Candidate>, point: f64) -> Option<u32> {
    let mut reached = 0f64;
    let mut last = None;
    for (weight, id) in candidates.filter(|&(w, _)| w > 0.0) {
        reached += f64::from(weight);
        last = Some(id);
        if point < reached {
            break;
        }
    }
    last
}

fn check(sampling: &Sampling, vocab: usize) -> Result<(), SamplerError> {
    let range = |field, value: f32, ok: bool, allowed| match ok {
        true => Ok(()),
        false => Err(SamplerError::Range { field, found: value.to_string(), allowed }),
    };
    let s = sampling;
    range("temperature", s.temperature, (0.0..=10.0).contains(&s.temperature), "from 0 to 10")?;
    range("top_p", s.top_p, (0.0..=1.0).contains(&s.top_p), "from 0 to 1")?;
    range("min_p", s.min_p, (0.0..=1.0).contains(&s.min_p), "from 0 to 1")?;
    let repetition = s.repetition_penalty;
    range("repetition_penalty", repetition, (0.01..=10.0).contains(&repetition), "from 0.01 to 10")?;
    range("frequency_penalty", s.frequency_penalty, (-2.0..=2.0).contains(&s.frequency_penalty), "from -2 to 2")?;
    range("presence_penalty", s.presence_penalty, (-2.0..=2.0).contains(&s.presence_penalty), "from -2 to 2")?;
    let logprobs = s.logprobs.unwrap_or(0);
    range("logprobs", f32::from(logprobs), logprobs <= LOGPROBS_MAX, "from 0 to 20")?;
    if s.logit_bias.len() > LOGIT_BIAS_MAX {
        return Err(SamplerError::BiasCount { found: s.logit_bias.len(), limit: LOGIT_BIAS_MAX });
    }
    for &(id, bias) in &s.logit_bias {
        range("logit_bias", bias, (-100.0..=100.0).contains(&bias), "from -100 to 100")?;
        if id as usize >= vocab {
            return Err(SamplerError::BiasToken { id, vocab });
        }
    }
    Ok(())
}
