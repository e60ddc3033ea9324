//! The largest logits of rows, against a sorted row.

use super::check::{Finding, floats};
use super::sample::{self, Argmax, GROUPS, LARGEST_WORDS, LIKELY, LIST_WORDS, LISTED_MAX, Largest, Likely};
use crate::gpu::{Buffer, Device, GpuError};
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

/// Three steps of rows of which the first has one largest logit, the others several, none above −inf, or none that is a number.
fn argmax(d: &Device, vocab: usize, random: &mut Random) -> Result<Finding, GpuError> {
    let plain: Vec<f32> = (0..vocab).map(|_| random.normal()).collect();
    let mut equal = plain.clone();
    equal[vocab / 3] = 9.0;
    equal[vocab - 1] = 9.0;
    let mut gaps = plain.clone();
    gaps.iter_mut().step_by(2).for_each(|l| *l = f32::NAN);
    let rows = [plain, equal, vec![f32::NEG_INFINITY; vocab], gaps, vec![f32::NAN; vocab]];
    let best = |row: &[f32]| {
        (0..vocab)
            .fold(0, |best, i| if row[i] > row[best] || row[best].is_nan() && !row[i].is_nan() { i } else { best })
    };
    let wanted: Vec<u32> = rows.iter().map(|row| best(row) as u32).collect();
    let words = |n: usize| d.zeroed(4 * n * rows.len());
    let (logits, largest, token) = (floats(d, &rows.concat())?, words(LARGEST_WORDS)?, words(1)?);
    let (position, history, step) = (words(1)?, words(2)?, words(1)?);
    let a = Argmax {
        logits: logits.at(),
        largest: largest.at(),
        token: token.at(),
        position: position.at(),
        history: history.at(),
        step: step.at(),
        vocab: vocab as u32,
        steps_max: 2,
    };
    for _ in 0..3 {
        sample::argmax(d, &a, rows.len())?;
    }
    let read = |buffer: &Buffer, n: usize| -> Result<Vec<u32>, GpuError> {
        let mut words = vec![0; n * rows.len()];
        buffer.read_u32(0, &mut words)?;
        Ok(words)
    };
    // Nothing is written behind the last step that has room.
    let right = read(&token, 1)? == wanted
        && read(&history, 2)? == [&wanted[..], &wanted[..]].concat()
        && [&position, &step].iter().all(|b| read(b, 1).is_ok_and(|w| w == vec![3; rows.len()]));
    Ok(Finding { kernel: "argmax", error: f64::from(u8::from(!right)), what: format!("{vocab} logits"), limit: 0.0 })
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
        let rows = rows(d, vocab, &[plain, few, vec![-2.5; vocab], peak])?;
        found.extend([rows, argmax(d, vocab, &mut random)?]);
    }
    Ok(found)
}
