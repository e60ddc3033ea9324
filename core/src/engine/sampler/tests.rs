//! The sampler against a slow reference in f64 that sorts everything, and against its own distribution.

use std::collections::BTreeSet;

use super::cut::Depth;
use super::*;
use crate::engine::backend::Largest;

/// Logits of a made-up vocabulary: mostly low, a few high, with ties.
fn row(seed: u64, vocab: usize) -> Vec<f32> {
    let mut random = Random::new(seed);
    (0..vocab)
        .map(|_| {
            let (a, b) = (random.unit().max(1e-12), random.unit());
            let normal = (-2.0 * a.ln()).sqrt() * (std::f64::consts::TAU * b).cos();
            // Rounded so that ties occur.
            ((normal * 3.0 * 64.0).round() / 64.0) as f32
        })
        .collect()
}

/// The distribution that should be drawn from, by definition: (id, probability), any order.
fn reference(logits: &[f32], s: &Sampling) -> Vec<(u32, f64)> {
    let max = logits.iter().cloned().fold(f64::NEG_INFINITY, |m, l| m.max(f64::from(l)));
    let mut all: Vec<(u32, f64)> =
        (0u32..).zip(logits).map(|(id, &l)| (id, ((f64::from(l) - max) / f64::from(s.temperature)).exp())).collect();
    all.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
    if s.top_k > 0 {
        all.truncate(s.top_k as usize);
    }
    let total: f64 = all.iter().map(|c| c.1).sum();
    if s.top_p < 1.0 {
        let (mut mass, mut count) = (0.0, 0);
        while count < all.len() && mass < f64::from(s.top_p) * total {
            mass += all[count].1;
            count += 1;
        }
        let count = count.max(1);
        all.truncate(count);
    }
    let most = all[0].1;
    all.retain(|c| c.1 >= f64::from(s.min_p) * most);
    let total: f64 = all.iter().map(|c| c.1).sum();
    all.iter().map(|&(id, w)| (id, w / total)).collect()
}

fn kept_by(s: &Sampling, logits: &[f32]) -> BTreeSet<u32> {
    let (max, _) = likeliest(logits).unwrap();
    let mut weights = Vec::new();
    let total = cut::weigh(logits, max, s.temperature, &mut weights);
    let mut kept = Vec::new();
    Cuts { top_k: s.top_k as usize, top_p: s.top_p, min_p: s.min_p }.apply(&weights, total, &mut kept);
    kept.iter().map(|c| c.1).collect()
}

fn settings() -> Vec<Sampling> {
    let mut all = Vec::new();
    for temperature in [0.3, 0.7, 1.0, 2.0] {
        for top_k in [0, 1, 7, 40, 700] {
            for top_p in [0.0, 0.1, 0.5, 0.9, 0.95, 1.0] {
                for min_p in [0.0, 0.05, 0.5] {
                    all.push(Sampling { temperature, top_k, top_p, min_p, ..Sampling::default() });
                }
            }
        }
    }
    all
}

#[test]
fn cuts_keep_what_the_reference_keeps() {
    for vocab in [1, 2, 31, 257, 5000] {
        for seed in 0..4 {
            let logits = row(seed * 1000 + vocab as u64, vocab);
            for s in settings() {
                let expected: BTreeSet<u32> = reference(&logits, &s).iter().map(|c| c.0).collect();
                let kept = kept_by(&s, &logits);
                // Rounding may move a cut by one token of negligible difference, never by more.
                let apart: Vec<_> = expected.symmetric_difference(&kept).collect();
                assert!(apart.len() <= 1, "{s:?} vocab {vocab}: {} and {}", expected.len(), kept.len());
            }
        }
    }
}

/// Draws often with one seed and compares the counts with the reference (chi square, 0.1 % point by
/// Wilson and Hilferty's approximation).
fn distribution_agrees(s: &Sampling, logits: &[f32]) {
    draws_agree(s, logits, |sampler| sampler.sample(&mut logits.to_vec()).unwrap().id);
}

fn draws_agree(s: &Sampling, logits: &[f32], draw: impl Fn(&mut Sampler) -> u32) {
    const DRAWS: usize = 20_000;
    let expected = reference(logits, s);
    let mut sampler = Sampler::new(&Sampling { seed: Some(11), ..s.clone() }, logits.len(), &[]).unwrap();
    let mut counts = vec![0f64; logits.len()];
    for _ in 0..DRAWS {
        counts[draw(&mut sampler) as usize] += 1.0;
    }
    let allowed: BTreeSet<u32> = expected.iter().map(|c| c.0).collect();
    for (id, &n) in counts.iter().enumerate() {
        assert!(n == 0.0 || allowed.contains(&(id as u32)), "{s:?} drew token {id}, which is cut");
    }
    // Cells that expect fewer than five are put together.
    let (mut chi, mut cells, mut few) = (0.0, 0.0, (0.0, 0.0));
    for &(id, p) in &expected {
        let (found, hope) = (counts[id as usize], p * DRAWS as f64);
        if hope < 5.0 {
            few = (few.0 + found, few.1 + hope);
        } else {
            chi += (found - hope).powi(2) / hope;
            cells += 1.0;
        }
    }
    if few.1 >= 5.0 {
        chi += (few.0 - few.1).powi(2) / few.1;
        cells += 1.0;
    }
    let free = f64::max(cells - 1.0, 1.0);
    let limit = free * (1.0 - 2.0 / (9.0 * free) + 3.09 * (2.0 / (9.0 * free)).sqrt()).powi(3);
    assert!(chi <= limit, "{s:?}: chi square {chi} over {limit}");
}

#[test]
fn draws_follow_the_distribution() {
    let logits = row(3, 300);
    let base = Sampling::default();
    distribution_agrees(&base, &logits);
    distribution_agrees(&Sampling { temperature: 0.5, ..base.clone() }, &logits);
    distribution_agrees(&Sampling { top_p: 0.8, ..base.clone() }, &logits);
    distribution_agrees(&Sampling { top_k: 5, temperature: 1.5, ..base.clone() }, &logits);
    distribution_agrees(&Sampling { min_p: 0.1, ..base.clone() }, &logits);
    distribution_agrees(&Sampling { temperature: 0.7, top_k: 40, top_p: 0.9, min_p: 0.02, ..base }, &logits);
}

/// The largest logits of a row, `count` of them and those that equal the last, as a device finds them.
fn largest(logits: &[f32], count: usize, temperature: f32) -> Largest {
    let mut sorted = logits.to_vec();
    sorted.sort_by(|a, b| b.total_cmp(a));
    let (max, floor) = (sorted[0], if logits.len() <= count { f32::NEG_INFINITY } else { sorted[count - 1] });
    let total: f64 = logits.iter().map(|l| f64::from((l - max) / temperature).exp()).sum();
    let candidates = (0u32..).zip(logits.iter().copied()).filter(|(_, l)| *l >= floor).collect();
    Largest { candidates, floor, total: total as f32 }
}

/// What is chosen from the largest logits, and whether the row was asked for.
fn from_largest(sampler: &mut Sampler, row: &Largest, logits: &[f32]) -> (u32, bool) {
    let mut asked = false;
    let whole = |all: &mut Vec<f32>| -> Result<(), SamplerError> {
        asked = true;
        all.extend_from_slice(logits);
        Ok(())
    };
    let id = sampler.sample_likely(row, whole).unwrap().id;
    (id, asked)
}

#[test]
fn the_largest_logits_give_the_token_of_the_whole_row() {
    let greedy = Sampling { temperature: 0.0, ..Sampling::default() };
    let penalised = |s: &Sampling| Sampling {
        presence_penalty: 1.5,
        repetition_penalty: 1.1,
        logit_bias: vec![(0, -3.0), (0, -1.0)],
        ..s.clone()
    };
    let cut = settings().into_iter().filter(|s| s.top_k > 0 || s.top_p < 1.0 || s.min_p > 0.0);
    let all: Vec<_> = cut.chain([greedy]).flat_map(|s| [penalised(&s), s]).collect();
    for vocab in [1, 31, 500, 3000] {
        let (mut alone, mut tried) = (0, 0);
        for s in &all {
            let s = Sampling { seed: Some(5), ..s.clone() };
            let mut whole = Sampler::new(&s, vocab, &[3, 9]).unwrap();
            let mut narrow = Sampler::new(&s, vocab, &[3, 9]).unwrap();
            let Some(temperature) = narrow.needs_likeliest() else { continue };
            for seed in 0..3 {
                let logits = row(seed * 77 + vocab as u64, vocab);
                let expected = whole.sample(&mut logits.clone()).unwrap().id;
                let (id, asked) = from_largest(&mut narrow, &largest(&logits, 60, temperature), &logits);
                assert_eq!(id, expected, "{s:?} of {vocab}");
                // Both choose alike where that token is forbidden.
                if vocab > 31 {
                    let new = || Sampler::new(&s, vocab, &[3, 9]).unwrap().without(vec![id]);
                    let other = new().sample(&mut logits.clone()).unwrap().id;
                    let (found, _) = from_largest(&mut new(), &largest(&logits, 60, temperature), &logits);
                    assert!(found != id && other != id, "{s:?} of {vocab}");
                    assert_eq!(found, other, "{s:?} of {vocab}");
                }
                (alone, tried) = (alone + u32::from(!asked), tried + 1);
            }
        }
        assert!(alone * 2 > tried && (vocab < 500 || alone < tried), "{alone} of {tried} without the row of {vocab}");
    }
}

#[test]
fn without_cuts_the_largest_logits_and_the_row_behind_them_follow_the_distribution() {
    let logits = row(3, 300);
    for temperature in [0.5, 1.0, 1.5] {
        let found = largest(&logits, 20, temperature);
        let plain = Sampling { temperature, ..Sampling::default() };
        assert_eq!(Sampler::new(&plain, 300, &[]).unwrap().needs_likeliest(), Some(temperature));
        draws_agree(&plain, &logits, |sampler| from_largest(sampler, &found, &logits).0);
    }
}

#[test]
fn whole_rows_are_needed_where_what_is_not_largest_may_rise() {
    let needs = |s: Sampling| Sampler::new(&s, 10, &[]).unwrap().needs_likeliest().is_none();
    let base = || Sampling { top_k: 5, ..Sampling::default() };
    assert!(!needs(base()) && !needs(Sampling { presence_penalty: 2.0, ..base() }));
    assert!(needs(Sampling { logit_bias: vec![(1, 0.5)], ..base() }));
    assert!(needs(Sampling { logprobs: Some(0), ..base() }));
    assert!(needs(Sampling { repetition_penalty: 0.9, ..base() }));
    assert!(needs(Sampling { frequency_penalty: -0.1, ..base() }));
    assert!(needs(Sampling { frequency_penalty: 0.1, ..Sampling::default() }), "all weights would have to be known");
    assert!(needs(Sampling { temperature: 1e-5, ..base() }));
}

#[test]
fn a_broken_row_is_an_error_and_one_without_its_largest_is_asked_for() {
    let mut sampler = Sampler::new(&Sampling { top_k: 2, ..Sampling::default() }, 4, &[]).unwrap();
    let row = |candidates: &[(u32, f32)], floor| Largest { candidates: candidates.to_vec(), floor, total: 1.0 };
    let broken = sampler.sample_likely(&row(&[(1, 2.0), (3, f32::NAN)], 0.0), |_| Err(SamplerError::NoToken));
    assert!(matches!(broken, Err(SamplerError::Logit { id: 3, .. })), "{broken:?}");
    let (id, asked) = from_largest(&mut sampler, &row(&[], f32::INFINITY), &[0.0, 0.0, 90.0, 0.0]);
    assert_eq!((id, asked), (2, true));
    let failed = sampler.sample_likely(&row(&[], f32::INFINITY), |_| Err(SamplerError::NoToken));
    assert_eq!(failed, Err(SamplerError::NoToken));
}

#[test]
fn greedy_takes_the_lowest_id_among_equals() {
    let greedy = Sampling { temperature: 0.0, ..Sampling::default() };
    let mut sampler = Sampler::new(&greedy, 4, &[]).unwrap();
    assert_eq!(sampler.sample(&mut [1.0, 5.0, 5.0, 2.0]).unwrap().id, 1);
}

#[test]
fn the_same_seed_gives_the_same_tokens() {
    let s = Sampling { seed: Some(1234), top_p: 0.95, top_k: 50, ..Sampling::default() };
    let run = |s: &Sampling| -> Vec<u32> {
        let mut sampler = Sampler::new(s, 2000, &[]).unwrap();
        (0..64).map(|i| sampler.sample(&mut row(i, 2000)).unwrap().id).collect()
    };
    assert_eq!(run(&s), run(&s));
    assert_ne!(run(&s), run(&Sampling { seed: Some(1235), ..s.clone() }));
    // Fixed for every platform and release: a change here breaks reproducible replies.
    assert_eq!(run(&s)[..8], PINNED);
}

const PINNED: [u32; 8] = [1631, 497, 1654, 40, 1350, 750, 689, 1516];

#[test]
fn absent_seeds_differ_and_are_reported() {
    let seed = || Sampler::new(&Sampling::default(), 4, &[]).unwrap().seed();
    assert_ne!(seed(), seed());
    assert_eq!(Sampler::new(&Sampling { seed: Some(9), ..Sampling::default() }, 4, &[]).unwrap().seed(), 9);
}

#[test]
fn logprobs_are_those_after_bias_and_penalties_before_temperature() {
    let s = Sampling {
        temperature: 0.0,
        logit_bias: vec![(0, -50.0), (2, 1.0)],
        presence_penalty: 1.0,
        logprobs: Some(2),
        ..Sampling::default()
    };
    let mut sampler = Sampler::new(&s, 4, &[]).unwrap();
    sampler.accept(3);
    // Becomes −40, 1, 2, 1.5.
    let choice = sampler.sample(&mut [10.0, 1.0, 1.0, 2.5]).unwrap();
    let log_sum = [-40f64, 1.0, 2.0, 1.5].iter().map(|l| l.exp()).sum::<f64>().ln();
    let near = |a: f32, b: f64| (f64::from(a) - b).abs() < 1e-5;
    assert_eq!(choice.id, 2);
    assert!(near(choice.logprob.unwrap(), 2.0 - log_sum));
    assert_eq!(choice.top.iter().map(|t| t.0).collect::<Vec<_>>(), [2, 3]);
    assert!(near(choice.top[1].1, 1.5 - log_sum));
}

#[test]
fn without_a_request_no_logprobs_are_made() {
    let choice = Sampler::new(&Sampling::default(), 2, &[]).unwrap().sample(&mut [0.0, 0.0]).unwrap();
    assert_eq!((choice.logprob, choice.top), (None, vec![]));
}

#[test]
fn broken_logits_are_errors() {
    let mut sampler = Sampler::new(&Sampling::default(), 3, &[]).unwrap();
    for bad in [f32::NAN, f32::INFINITY] {
        assert!(matches!(sampler.sample(&mut [0.0, bad, 0.0]), Err(SamplerError::Logit { id: 1, .. })));
    }
    assert_eq!(sampler.sample(&mut [f32::NEG_INFINITY; 3]), Err(SamplerError::NoToken));
    assert_eq!(sampler.sample(&mut [0.0; 2]), Err(SamplerError::Row { found: 2, expected: 3 }));
    let masked = &mut [f32::NEG_INFINITY, 0.0, f32::NEG_INFINITY];
    assert_eq!(sampler.sample(masked).unwrap().id, 1);
}

#[test]
fn fields_out_of_range_are_named() {
    let base = Sampling::default;
    let bad = [
        ("temperature", Sampling { temperature: -0.1, ..base() }),
        ("temperature", Sampling { temperature: f32::NAN, ..base() }),
        ("temperature", Sampling { temperature: f32::INFINITY, ..base() }),
        ("top_p", Sampling { top_p: 1.5, ..base() }),
        ("min_p", Sampling { min_p: -1.0, ..base() }),
        ("repetition_penalty", Sampling { repetition_penalty: 0.0, ..base() }),
        ("frequency_penalty", Sampling { frequency_penalty: 3.0, ..base() }),
        ("presence_penalty", Sampling { presence_penalty: -3.0, ..base() }),
        ("logprobs", Sampling { logprobs: Some(21), ..base() }),
        ("logit_bias", Sampling { logit_bias: vec![(0, 101.0)], ..base() }),
        ("logit_bias", Sampling { logit_bias: vec![(9, 0.0)], ..base() }),
        ("logit_bias", Sampling { logit_bias: vec![(0, 0.0); LOGIT_BIAS_MAX + 1], ..base() }),
    ];
    for (field, s) in bad {
        let message = Sampler::new(&s, 9, &[]).map(|_| ()).unwrap_err().to_string();
        assert!(message.starts_with(field), "{message}");
    }
}

#[test]
fn extreme_settings_still_choose() {
    for s in [
        Sampling { temperature: 1e-30, ..Sampling::default() },
        Sampling { temperature: 10.0, top_p: 0.0, ..Sampling::default() },
        Sampling { top_k: u32::MAX, top_p: f32::MIN_POSITIVE, min_p: 1.0, ..Sampling::default() },
    ] {
        let mut sampler = Sampler::new(&s, 1000, &[5]).unwrap();
        let mut logits = row(1, 1000);
        logits[77] = 1e30;
        assert_eq!(sampler.sample(&mut logits).unwrap().id, 77, "{s:?}");
    }
}

/// A cut sorts the candidates of one bucket: a small part of the vocabulary of Qwen3.5, however flat the distribution.
#[test]
fn a_cut_sorts_a_small_part_of_a_large_vocabulary() {
    const VOCAB: usize = 248_320;
    for (name, s) in [
        ("greedy", Sampling { temperature: 0.0, ..Sampling::default() }),
        ("plain", Sampling::default()),
        ("top-p", Sampling { top_p: 0.95, ..Sampling::default() }),
        ("top-k top-p min-p", Sampling { top_k: 20, top_p: 0.95, min_p: 0.01, ..Sampling::default() }),
        ("flat top-p", Sampling { temperature: 10.0, top_p: 0.95, ..Sampling::default() }),
        ("flat top-k", Sampling { temperature: 10.0, top_k: 100_000, ..Sampling::default() }),
        ("logprobs", Sampling { logprobs: Some(20), ..Sampling::default() }),
    ] {
        let mut sampler = Sampler::new(&s, VOCAB, &[]).unwrap();
        let mut logits = row(5, VOCAB);
        if !name.starts_with("flat") {
            // As trained models do: a few hundred tokens stand out.
            (0..300).for_each(|i| logits[i * 800 + 7] += 8.0 + (i % 17) as f32);
        }
        let mut weights = Vec::new();
        let total = cut::weigh(&logits, cut::max(&logits), s.temperature.max(0.01), &mut weights);
        let all: Vec<Candidate> = weights.into_iter().zip(0u32..).filter(|c| c.0 > 0.0).collect();
        for depth in [Depth::Count(20), Depth::Count(VOCAB / 2), Depth::Mass(0.5 * total), Depth::Mass(0.95 * total)] {
            let sorted = cut::boundary(&all, depth).map_or(0, |(bucket, _)| bucket.len());
            assert!(sorted <= VOCAB / 8, "{name}: {sorted} candidates are sorted for {depth:?}");
        }
        assert!((sampler.sample(&mut logits).unwrap().id as usize) < VOCAB, "{name}");
    }
}

#[test]
fn a_forbidden_token_is_never_chosen_and_changes_no_other_draw() {
    let vocab = 300;
    for s in [
        Sampling { temperature: 0.0, ..Sampling::default() },
        Sampling { temperature: 2.0, ..Sampling::default() },
        Sampling { temperature: 2.0, top_p: 0.9, top_k: 40, logprobs: Some(3), ..Sampling::default() },
        Sampling { repetition_penalty: 1.2, logit_bias: vec![(3, -1.0)], ..Sampling::default() },
    ] {
        let s = Sampling { seed: Some(5), ..s };
        for seed in 0..200 {
            let logits = row(seed, vocab);
            let new = || Sampler::new(&s, vocab, &[]).unwrap();
            let free = new().sample(&mut logits.clone()).unwrap();
            let forbidden = vec![free.id, 7];
            let mut held = logits.clone();
            let other = new().without(forbidden.clone()).sample(&mut held).unwrap();
            assert!(!forbidden.contains(&other.id), "{s:?}");
            // Where the choice falls on another token, it is the same to the last bit.
            let elsewhere = (0..vocab as u32).find(|id| *id != free.id).unwrap();
            assert_eq!(new().without(vec![elsewhere]).sample(&mut logits.clone()).unwrap(), free);
        }
    }
}

#[test]
fn what_is_left_of_a_forbidden_choice_has_its_own_shares() {
    let logits = [1.0f32, 2.0, 0.5, 1.5];
    let mut sampler =
        Sampler::new(&Sampling { seed: Some(3), ..Sampling::default() }, 4, &[]).unwrap().without(vec![1]);
    let mut counts = [0f64; 4];
    (0..40_000).for_each(|_| counts[sampler.sample(&mut logits.to_vec()).unwrap().id as usize] += 1.0);
    let total: f64 = [1.0f64, 0.5, 1.5].iter().map(|l| l.exp()).sum();
    for (id, logit) in [(0, 1.0f64), (2, 0.5), (3, 1.5)] {
        assert!((counts[id] / 40_000.0 - logit.exp() / total).abs() < 0.01, "{counts:?}");
    }
    assert_eq!(counts[1], 0.0);
    // A form that leaves this token alone gets it.
    let forced = &mut [f32::NEG_INFINITY, 2.0, f32::NEG_INFINITY, f32::NEG_INFINITY];
    assert_eq!(sampler.sample(forced).unwrap().id, 1);
}
