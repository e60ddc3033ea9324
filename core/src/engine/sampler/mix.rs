//! True interpolation of the model's distribution with a table's: p = (1 − λ)·p_model + λ·p_table, at temperature 1,
//! before temperature and cuts.
//!
//! Dividing by 1 − λ changes no order and no ratio, so only the logits of the table's own tokens have to move:
//! `l' = l + ln(1 + λ/(1 − λ) · p_table/p_model)`. The softmax of the changed row is exactly the mixture.

use super::cut;
use crate::engram::Proposal;
use crate::engram::blend::LAMBDA_MAX;

/// Entropy of the model, nats, from which a table gets its full weight: a model that is sure is left alone.
pub const ENTROPY_FULL: f64 = 1.5;
/// A bias of this much is a ban (OpenAI's API): no table brings the token back.
const BAN: f32 = -100.0;

/// What was done to a row.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Mixed {
    /// The weight that the table got.
    pub lambda: f32,
    /// Entropy of the model's own distribution, nats.
    pub entropy: f64,
}

/// Mixes `proposal` into a row of logits, in place. `None`: nothing was changed.
pub fn mix(
    logits: &mut [f32],
    proposal: &Proposal,
    lambda_max: f32,
    bias: &[(u32, f32)],
    weights: &mut Vec<f32>,
) -> Option<Mixed> {
    let max = cut::max(logits);
    let banned = |id: u32| bias.iter().any(|&(b, value)| b == id && value <= BAN);
    let may = |id: u32| logits.get(id as usize).is_some_and(|l| *l > f32::NEG_INFINITY) && !banned(id);
    let allowed: f64 = proposal.candidates.iter().filter(|(id, _)| may(*id)).map(|(_, p)| f64::from(*p)).sum();
    if allowed <= 0.0 || max == f32::NEG_INFINITY {
        return None;
    }
    let total = cut::weigh(logits, max, 1.0, weights);
    let entropy = entropy(logits, max, weights, total);
    let gate = (entropy / ENTROPY_FULL).clamp(0.0, 1.0);
    let lambda = f64::from(lambda_max.clamp(0.0, LAMBDA_MAX)) * f64::from(proposal.confidence.clamp(0.0, 1.0)) * gate;
    if lambda <= 0.0 {
        return None;
    }
    let odds = lambda / (1.0 - lambda);
    let kept: Vec<(u32, f32)> = proposal.candidates.iter().copied().filter(|(id, _)| may(*id)).collect();
    for (id, p) in kept {
        if let Some(logit) = logits.get_mut(id as usize) {
            let model = f64::from(*logit - max).exp() / total;
            *logit = (f64::from(max) + ((model + odds * f64::from(p) / allowed) * total).ln()) as f32;
        }
    }
    Some(Mixed { lambda: lambda as f32, entropy })
}

/// H = ln Z − Σ p·(l − max), nats.
fn entropy(logits: &[f32], max: f32, weights: &[f32], total: f64) -> f64 {
    let mean: f64 =
        logits.iter().zip(weights).filter(|(_, w)| **w > 0.0).map(|(&l, &w)| f64::from(w) * f64::from(l - max)).sum();
    total.ln() - mean / total
}

#[cfg(test)]
mod tests {
    use super::*;

    fn softmax(row: &[f32]) -> Vec<f64> {
        let total: f64 = row.iter().map(|&l| f64::from(l).exp()).sum();
        row.iter().map(|&l| f64::from(l).exp() / total).collect()
    }

    fn proposal(candidates: &[(u32, f32)], confidence: f32) -> Proposal {
        Proposal { candidates: candidates.to_vec(), confidence, order: 5, context: 1 }
    }

    #[test]
    fn the_row_becomes_exactly_the_mixture() {
        let before = [1.0f32, -2.0, 0.5, 3.0, 0.0, -60.0];
        let table = proposal(&[(1, 0.25), (2, 0.5), (5, 0.25)], 0.8);
        let mut row = before;
        let mixed = mix(&mut row, &table, 0.5, &[], &mut Vec::new()).unwrap();
        let lambda = f64::from(mixed.lambda);
        let p_model = softmax(&before);
        let p_table = [0.0, 0.25, 0.5, 0.0, 0.0, 0.25];
        for ((found, model), table) in softmax(&row).iter().zip(&p_model).zip(p_table) {
            let wanted = (1.0 - lambda) * model + lambda * table;
            assert!((found - wanted).abs() < 1e-6, "{found} {wanted}");
        }
        let entropy: f64 = -p_model.iter().map(|p| p * p.ln()).sum::<f64>();
        assert!((mixed.entropy - entropy).abs() < 1e-5);
        assert!((lambda - 0.5 * 0.8 * entropy / ENTROPY_FULL).abs() < 1e-6);
        // What a table predicts becomes likelier, never less likely; the rest keeps its proportions.
        assert_eq!(row[3], before[3]);
        assert!(row[1] > before[1] && row[5] > before[5]);
    }

    #[test]
    fn a_sure_model_and_a_doubtful_table_are_left_alone() {
        let sure = [50.0f32, 0.0, 0.0];
        let mut row = sure;
        mix(&mut row, &proposal(&[(1, 1.0)], 1.0), 0.9, &[], &mut Vec::new());
        let moved = softmax(&row)[1];
        assert!(moved < 1e-9, "{moved}");
        let mut row = [1.0f32, 1.0];
        assert_eq!(mix(&mut row, &proposal(&[(1, 1.0)], 0.0), 0.9, &[], &mut Vec::new()), None);
        assert_eq!(mix(&mut row, &proposal(&[(1, 1.0)], 1.0), 0.0, &[], &mut Vec::new()), None);
        assert_eq!(row, [1.0, 1.0]);
    }

    #[test]
    fn what_is_forbidden_stays_so() {
        let mut row = [1.0f32, f32::NEG_INFINITY, -99.0, 1.0];
        let table = proposal(&[(1, 0.4), (2, 0.4), (3, 0.2), (77, 0.1)], 1.0);
        mix(&mut row, &table, 0.9, &[(2, -100.0)], &mut Vec::new()).unwrap();
        assert_eq!((row[1], row[2]), (f32::NEG_INFINITY, -99.0));
        assert!(row[3] > 1.0);
        let mut row = [1.0f32, f32::NEG_INFINITY];
        assert_eq!(mix(&mut row, &proposal(&[(1, 1.0)], 1.0), 0.9, &[], &mut Vec::new()), None);
    }

    #[test]
    fn a_request_cannot_ask_for_more_than_the_limit() {
        let mut row = [0.0f32; 64];
        let mixed = mix(&mut row, &proposal(&[(1, 1.0)], 1.0), 7.0, &[], &mut Vec::new()).unwrap();
        assert_eq!(mixed.lambda, LAMBDA_MAX);
        assert!(row.iter().all(|l| l.is_finite()));
    }
}
