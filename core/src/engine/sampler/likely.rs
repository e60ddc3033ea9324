//! Sampling from the largest logits of a row alone, as a device finds them. Whole rows of a large vocabulary take
//! long to bring and to look through. What is chosen is what the whole row would give, and where the largest may not
//! be enough, the whole row is asked for. Which of both happens depends on the row and the request alone, so a seed
//! gives the same text in every batch.
//!
//! Without truncation any token may be drawn. The point falls among the largest, whose order is that of ids, or
//! behind them, among all others in that order.

use crate::engine::backend::Largest;

use super::cut::{self, Candidate};
use super::{Choice, Sampler, SamplerError, pick};

/// By how much a weight that was computed may lie beside the exact one, in one direction, as a factor.
const ROUNDING: f32 = 1.0 + 1e-6;

/// Below it weights are at the limits of what a float holds.
const TEMPERATURE_MIN: f32 = 1e-3;

/// What the largest logits say.
enum Found {
    Chosen(u32),
    /// They are not enough.
    Nothing,
    /// One that is none of them, so much weight behind the first of those.
    Behind {
        point: f64,
        max: f32,
        likeliest: u32,
    },
}

impl Sampler {
    /// Whether the largest logits of a row may be enough: the temperature at which the weight of all is needed.
    pub fn needs_likeliest(&self) -> Option<f32> {
        let unlisted = match self.needs_total() {
            true => self.bias.is_empty() && self.penalties.none(),
            false => self.bias.iter().all(|(_, bias)| *bias <= 0.0) && self.penalties.only_lower(),
        };
        let greedy = self.temperature == 0.0;
        let enough = unlisted && self.logprobs.is_none() && (greedy || self.temperature >= TEMPERATURE_MIN);
        enough.then_some(if greedy { 1.0 } else { self.temperature })
    }

    /// The weight of all tokens decides.
    fn needs_total(&self) -> bool {
        self.temperature > 0.0 && self.cuts.top_k == 0 && (self.cuts.top_p < 1.0 || self.cuts.none())
    }

    /// Like [`Sampler::sample`], from the largest logits of a row, which `whole` gives if they are not enough. Only where
    /// [`Sampler::needs_likeliest`] gave the temperature that `row` was found with.
    pub fn sample_likely<E: From<SamplerError>>(
        &mut self,
        row: &Largest,
        mut whole: impl FnMut(&mut Vec<f32>) -> Result<(), E>,
    ) -> Result<Choice, E> {
        let mut logits = Vec::new();
        let id = match self.find(row)? {
            Found::Chosen(id) => id,
            Found::Nothing => {
                whole(&mut logits)?;
                return Ok(self.sample(&mut logits)?);
            }
            Found::Behind { point, max, likeliest } => {
                whole(&mut logits)?;
                super::check_row(&logits)?;
                cut::weigh(&logits, max, self.temperature, &mut self.weights);
                for (id, _) in &row.candidates {
                    if let Some(weight) = self.weights.get_mut(*id as usize) {
                        *weight = 0.0;
                    }
                }
                // Rounding alone can say that something lies there where nothing does.
                pick(self.weights.iter().copied().zip(0u32..), point).unwrap_or(likeliest)
            }
        };
        let id = match self.forbidden.contains(&id) {
            false => id,
            true => {
                if logits.is_empty() {
                    whole(&mut logits)?;
                }
                self.weigh_in(&mut logits)?;
                self.instead(id, &mut logits)
            }
        };
        self.penalties.accept(id);
        Ok(Choice { id, logprob: None, top: Vec::new(), mixed: None })
    }

    fn find(&mut self, row: &Largest) -> Result<Found, SamplerError> {
        if let Some(&(id, found)) = row.candidates.iter().find(|(_, l)| l.is_nan() || *l == f32::INFINITY) {
            return Err(SamplerError::Logit { id: id as usize, found });
        }
        let mut candidates = row.candidates.clone();
        for &(id, bias) in &self.bias {
            if let Ok(at) = candidates.binary_search_by_key(&id, |c| c.0) {
                candidates[at].1 += bias;
            }
        }
        self.penalties.apply_to(&mut candidates);
        // The first of equals has the lowest id.
        let larger = |a: (u32, f32), b: &(u32, f32)| if b.1 > a.1 { *b } else { a };
        let (likeliest, max) = candidates.iter().fold((0, f32::NEG_INFINITY), larger);
        if max == f32::NEG_INFINITY || max <= row.floor {
            return Ok(Found::Nothing);
        }
        if self.temperature == 0.0 {
            return Ok(Found::Chosen(likeliest));
        }
        let weight = |logit: f32| cut::weight(logit, max, self.temperature);
        let outside = weight(row.floor) * ROUNDING;
        let total = f64::from(row.total);
        self.kept.clear();
        self.kept.extend(candidates.iter().map(|&(id, logit)| -> Candidate { (weight(logit), id) }));
        if self.cuts.none() {
            let inside = cut::mass(&self.kept);
            let point = self.random.unit() * total.max(inside);
            return Ok(match point < inside || outside == 0.0 {
                true => Found::Chosen(pick(self.kept.iter().copied(), point).unwrap_or(likeliest)),
                false => Found::Behind { point: point - inside, max, likeliest },
            });
        }
        if !self.cuts.apply_to(&mut self.kept, outside, total) {
            return Ok(Found::Nothing);
        }
        let point = self.random.unit() * cut::mass(&self.kept);
        Ok(Found::Chosen(pick(self.kept.iter().copied(), point).unwrap_or(likeliest)))
    }
}
