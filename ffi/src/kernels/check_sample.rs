//! The largest logits of rows, against a sorted row.

use super::check::{Finding, floats};
use super::sample::{self, GROUPS, LIKELY, LIST_WORDS, LISTED_MAX, Largest, Likely};
use crate::gpu::{Device, GpuError};
use crate::samples::Random;

/// Of a row: what is wrong with what was found.
fn wrong(row: &[f32], temperature: f32, found: &Largest) -> Option<String> {
    let mut sorted: Vec<f32> = row.to_vec();
    sorted.sort_by(|a, b| b.total_cmp(a));
    let (most, bound) = (sorted[0], sorted[LIKELY.min(row.len()) - 1]);
    let total: f64 = row.iter().map(|l| f64::from((l - most) / temperature).exp()).sum();
    if found.floor == f32::INFINITY {
        return (sorted.iter().filter(|l| **l >= bound).count() <= LISTED_MAX).then(|| "nothing was found".to_owned());
    }
    let above: Vec<_> = (0u32..).zip(row.iter().copied()).filter(|(_, l)| *l >= found.floor).collect();
    if found.candidates != above {
        return Some(format!("{} found where {} reach {}", found.candidates.len(), above.len(), found.floor));
    }
    if found.floor > bound {
        return Some(format!("from {} on, where it must be {bound}", found.floor));
    }
    let far = (f64::from(found.total) / total - 1.0).abs();
    (far > 1e-5).then(|| format!("a sum of {} where it is {total}", found.total))
}

fn rows(d: &Device, vocab: usize, rows: &[Vec<f32>]) -> Result<Finding, GpuError> {
    let temperatures: Vec<f32> = (0..rows.len()).map(|i| 0.5 + 0.4 * i as f32).collect();
    let (logits, temperature) = (floats(d, &rows.concat())?, floats(d, &temperatures)?);
    let [maxes, sums] = [d.zeroed(4 * GROUPS * rows.len())?, d.zeroed(4 * GROUPS * rows.len())?];
    let list = d.zeroed(4 * LIST_WORDS * rows.len())?;
    let a = Likely {
        logits: logits.at(),
        temperature: temperature.at(),
        maxes: maxes.at(),
        sums: sums.at(),
        list: list.at(),
        vocab: vocab as u32,
        pad: 0,
    };
    // Twice: the second finds what the first has left behind.
    let mut words = vec![0; LIST_WORDS * rows.len()];
    for _ in 0..2 {
        sample::likely(d, &a, rows.len())?;
        list.read_u32(0, &mut words)?;
    }
    let lists = words.as_chunks::<LIST_WORDS>().0;
    let mut wrong = rows.iter().zip(lists).zip(&temperatures).filter_map(|((r, l), t)| wrong(r, *t, &Largest::read(l)));
    let what = wrong.next();
    Ok(Finding {
        kernel: "likely",
        error: f64::from(u8::from(what.is_some())),
        what: format!("{vocab} logits{}", what.map(|w| format!(": {w}")).unwrap_or_default()),
        limit: 0.0,
    })
}

pub(super) fn all(d: &Device) -> Result<Vec<Finding>, GpuError> {
    let mut random = Random(17);
    let mut found = Vec::new();
    for vocab in [1, 100, 1_000, 5_003, 20_000] {
        let mut row = || -> Vec<f32> { (0..vocab).map(|_| 4.0 * random.normal()).collect() };
        let (plain, mut few, mut peak) = (row(), row(), row());
        // Most are forbidden, all are alike, one group holds all the largest ones.
        few.iter_mut().enumerate().filter(|(i, _)| i % 7 != 0).for_each(|(_, l)| *l = f32::NEG_INFINITY);
        let len = vocab.min(90);
        peak[vocab - len..].iter_mut().for_each(|l| *l += 40.0);
        found.push(rows(d, vocab, &[plain, few, vec![-2.5; vocab], peak])?);
    }
    Ok(found)
}
