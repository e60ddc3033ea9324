//! The largest logits of rows against the whole rows: alone and mixed with others, in a graph and in a prompt's pass.
//! Also in a step with more rows than the device keeps.

use super::*;
use crate::engine::backend::Largest;
use chimere_ffi::kernels::sample::LIKELY;

const LARGEST: Rows = Rows::Likeliest { temperature: 0.7 };

fn check(found: &Largest, row: &[f32], fetched: &[f32]) {
    assert!(row == fetched, "the row that is left is not the one that was computed");
    let mut sorted = row.to_vec();
    sorted.sort_by(|a, b| b.total_cmp(a));
    assert!(found.floor <= sorted[LIKELY.min(row.len()) - 1]);
    let above: Vec<_> = (0u32..).zip(row.iter().copied()).filter(|(_, l)| *l >= found.floor).collect();
    assert_eq!(found.candidates, above);
    let total: f64 = row.iter().map(|l| f64::from((l - sorted[0]) / 0.7).exp()).sum();
    assert!((f64::from(found.total) / total - 1.0).abs() < 1e-5, "{} where it is {total}", found.total);
}

/// Feeds each sequence its tokens in one step, of some the largest logits alone, and compares with a second step of other
/// sequences that gives whole rows.
fn compare(c: &mut Cuda, fed: &[(&[u32], Rows)]) {
    let mut step = |as_told: bool| {
        let seqs: Vec<_> = fed.iter().map(|_| c.open().unwrap()).collect();
        let rows = |rows| if as_told || rows != LARGEST { rows } else { Rows::Last };
        let chunk = |(seq, (tokens, wanted)): (&SeqId, &(&'_ [u32], Rows))| (*seq, tokens.to_vec(), rows(*wanted));
        let chunks: Vec<_> = seqs.iter().zip(fed).map(chunk).collect();
        let chunks: Vec<_> =
            chunks.iter().map(|(seq, tokens, rows)| Chunk { seq: *seq, tokens, rows: *rows, hidden: false }).collect();
        let mut out = Output::default();
        c.step(&chunks, &mut out).unwrap();
        let mut rows = vec![Vec::new(); out.likeliest.len()];
        rows.iter_mut().enumerate().for_each(|(n, row)| c.row(n, row).unwrap());
        assert!(c.row(rows.len(), &mut Vec::new()).is_err(), "a row that nobody asked for");
        seqs.into_iter().for_each(|seq| c.close(seq));
        (out, rows)
    };
    let ((found, fetched), (whole, _)) = (step(true), step(false));
    let v = VOCAB as usize;
    let (mut likeliest, mut own, mut all) = (found.likeliest.iter(), &found.logits[..], &whole.logits[..]);
    let mut fetched = fetched.iter();
    for (tokens, rows) in fed {
        let count = match rows {
            Rows::None => 0,
            Rows::All => tokens.len(),
            _ => 1,
        };
        let (here, rest) = all.split_at(count * v);
        all = rest;
        if *rows == LARGEST {
            check(likeliest.next().unwrap(), here, fetched.next().unwrap());
        } else {
            let (rows, rest) = own.split_at(count * v);
            assert!(rows == here);
            own = rest;
        }
    }
    assert!(own.is_empty() && all.is_empty() && likeliest.next().is_none());
}

#[test]
fn the_largest_logits_are_those_of_the_whole_row() {
    let file = Tiny::default().write();
    let mut c = cuda(&file.path);
    let prompt = Random(3).tokens(70);
    let one = &prompt[..1];
    compare(&mut c, &[(one, LARGEST), (&prompt[1..2], LARGEST)]);
    compare(&mut c, &[(one, LARGEST), (&prompt[1..2], Rows::Last), (&prompt[2..3], LARGEST)]);
    compare(&mut c, &[(&prompt[..9], LARGEST), (&prompt[..20], Rows::None), (one, LARGEST)]);
    // More rows than the device keeps.
    compare(&mut c, &[(one, LARGEST), (&prompt, Rows::All), (&prompt[4..7], LARGEST)]);
}
