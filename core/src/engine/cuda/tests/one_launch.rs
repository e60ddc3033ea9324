//! One launch for a pass of few rows: the bits of a launch for each kernel, whatever the rows are.

use std::ops::Range;

use super::adapters::{Engine, adapter};
use super::*;
use crate::engine::adapter::{Candidate, Sides};
use crate::engine::host::Input as HostInput;
use crate::engine::protocol::{EvalRow, Probe};
use chimere_ffi::kernels::persistent::ROWS_MAX;

fn hosted(path: &Path, decode: Decode) -> Cuda {
    with(path, &CudaOptions { halves: true, decode, sequences_max: ROWS_MAX, ..options() })
}

/// The same steps on both; each step is (sequence, how many tokens) of all that take part.
fn check_steps(path: &Path, steps: &[Vec<(usize, usize)>]) {
    let mut both = [Decode::Launches, Decode::Persistent].map(|decode| hosted(path, decode));
    assert!(both[0].persistent.is_none() && both[1].persistent.is_some());
    let tokens = Random(12).tokens(400);
    let seqs: Vec<Vec<SeqId>> = both.iter_mut().map(|c| (0..ROWS_MAX).map(|_| c.open().unwrap()).collect()).collect();
    let mut at = 0;
    for (n, step) in steps.iter().enumerate() {
        let mut found = Vec::new();
        for (c, seqs) in both.iter_mut().zip(&seqs) {
            let mut from = at;
            let mut chunk = |&(seq, len): &(usize, usize)| {
                from += len;
                Chunk { seq: seqs[seq], tokens: &tokens[from - len..from], rows: Rows::All, hidden: true }
            };
            let chunks: Vec<_> = step.iter().map(&mut chunk).collect();
            let mut out = Output::default();
            c.step(&chunks, &mut out).unwrap();
            found.push((out.logits.clone(), out.hidden.clone()));
        }
        at += step.iter().map(|(_, len)| len).sum::<usize>();
        let bits = |v: &[f32]| v.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
        assert!(found[0].0.iter().all(|v| v.is_finite()), "step {n}");
        let differ = bits(&found[0].0).iter().zip(bits(&found[1].0)).filter(|(a, b)| **a != *b).count();
        assert_eq!(differ, 0, "step {n}, {step:?}: of {} logits", found[0].0.len());
        assert_eq!(bits(&found[0].1), bits(&found[1].1), "step {n}, {step:?}");
    }
}

#[test]
fn up_to_eight_rows_of_any_sequences_get_the_same_bits() {
    let file = Tiny { dtype: DType::Q8_0, layers: 4, ..Tiny::default() }.write();
    // Sequences of unlike lengths, one beyond its first page; then one token of the first 1 to 8 of them.
    let mut steps = vec![vec![(0, 70)], vec![(1, 12), (2, 33)], (3..8).map(|seq| (seq, seq)).collect()];
    steps.extend((1..=ROWS_MAX).map(|n| (0..n).map(|seq| (seq, 1)).collect::<Vec<_>>()));
    // Several tokens of a sequence.
    steps.extend([vec![(4, 4)], vec![(0, 8)], vec![(2, 2), (7, 1), (1, 5)], vec![(3, 1)]]);
    check_steps(&file.path, &steps);
}

#[cfg(feature = "llama")]
#[test]
fn the_types_of_large_models_get_the_same_bits() {
    use crate::gguf::synthetic::{Qwen35Moe, Types};
    let dir = tempfile::tempdir().unwrap();
    for (experts, dense) in [(DType::IQ3_S, DType::Q5_K), (DType::Q4_K, DType::IQ4_XS)] {
        let path = dir.path().join(format!("{experts:?}.gguf"));
        let types = Types { experts, dense, embedding: DType::Q4_K, head: Some(DType::Q6_K) };
        Qwen35Moe::small(types).build().unwrap().write(&path, 3, |_, _| {}).unwrap();
        check_steps(&path, &[vec![(0, 9)], vec![(0, 1)], vec![(1, 3)], vec![(0, 1), (1, 1)], vec![(1, 4), (0, 2)]]);
    }
}

#[test]
fn tokens_chosen_on_the_device_are_the_same_and_every_step_is_timed() {
    let file = Tiny { dtype: DType::Q8_0, ..Tiny::default() }.write();
    let mut found = Vec::new();
    for decode in [Decode::Launches, Decode::Persistent] {
        let mut c = hosted(&file.path, decode);
        let seqs = [c.open().unwrap(), c.open().unwrap()];
        found.push(c.greedy(&seqs, &[5, 7], 6).unwrap().tokens);
        let times = c.step_times(&seqs, &[1, 2]).unwrap();
        let count = |name: &str| times.iter().find(|t| t.step == name).map_or(0, |t| t.count);
        if decode == Decode::Launches {
            assert!(times.is_empty());
            continue;
        }
        // Three layers, one of them attention.
        let counts = [
            ("embed", 1),
            ("project, gdn", 2),
            ("project, attention", 1),
            ("gdn", 2),
            ("cache", 1),
            ("attend", 1),
            ("join", 1),
            ("mixer's output", 3),
            ("router and shared", 3),
            ("experts up", 3),
            ("experts down", 3),
            ("head", 1),
        ];
        assert_eq!(counts.map(|(name, _)| (name, count(name))), counts);
        assert_eq!(times.len(), counts.len());
        assert!(times.iter().all(|t| t.total > 0.0 && t.longest >= t.mean));
    }
    assert_eq!(found[0], found[1]);
}

#[test]
fn a_model_that_does_not_fit_is_decoded_launch_by_launch() {
    let file = Tiny::default().write();
    let c = hosted(&file.path, Decode::Persistent);
    assert!(c.persistent.is_none());
    assert_eq!(c.decodes_by(), "a launch for each kernel");
}

/// The launch knows no adapters: a pass in which a row has one goes kernel by kernel, and no recording of a pass without
/// stands for it.
#[test]
fn rows_under_an_adapter_get_the_same_bits() {
    let file = Tiny { dtype: DType::Q8_0, ..Tiny::default() }.write();
    let (changes, tokens, v) = (adapter(&file.path, 5, &[], 1), Random(3).tokens(12), VOCAB as usize);
    // Without, with, and both at once; the same tokens for both sequences.
    let steps: [(Range<usize>, &[usize]); 7] =
        [(0..6, &[0]), (0..6, &[1]), (6..7, &[0]), (6..7, &[1]), (7..8, &[0, 1]), (8..11, &[1, 0]), (11..12, &[1, 0])];
    let [apart, one] = [Decode::Launches, Decode::Persistent].map(|decode| {
        let mut c = hosted(&file.path, decode);
        assert_eq!(c.persistent.is_some(), decode == Decode::Persistent);
        let id = c.load_adapter(&changes).unwrap();
        let seqs = [c.open().unwrap(), c.open().unwrap()];
        c.adapt(seqs[1], id).unwrap();
        let (mut found, mut out) = ([const { Vec::new() }; 2], Output::default());
        for (range, who) in &steps {
            let chunk = |i: &usize| {
                let tokens = &tokens[range.clone()];
                Chunk { seq: seqs[*i], tokens, rows: Rows::All, hidden: false }
            };
            c.step(&who.iter().map(chunk).collect::<Vec<_>>(), &mut out).unwrap();
            who.iter().zip(out.logits.chunks(range.len() * v)).for_each(|(i, rows)| found[*i].extend_from_slice(rows));
        }
        let chosen = c.greedy(&seqs, &[5, 7], 3).unwrap().tokens;
        assert!(c.step_times(&seqs, &[1, 2]).unwrap().is_empty(), "what is launched kernel by kernel");
        (found, chosen)
    });
    let bits = |v: &[f32]| v.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
    for i in 0..2 {
        assert_eq!(bits(&apart.0[i]), bits(&one.0[i]), "sequence {i}");
    }
    assert_eq!(apart.1, one.1, "chosen on the device");
    let mut rows = apart.0[0].chunks(v).zip(apart.0[1].chunks(v));
    assert!(rows.len() == tokens.len() && rows.all(|(without, with)| without != with));
}

/// Rows of a few tokens that are all scored: as wide as a pass that would be one launch.
#[test]
fn probes_of_a_population_get_the_same_losses() {
    let file = Tiny { dtype: DType::Q8_0, ..Tiny::default() }.write();
    let start = adapter(&file.path, 4, &["attn_q", "ssm_out"], 3);
    let [apart, one] = [Decode::Launches, Decode::Persistent].map(|decode| {
        let engine = Engine::of(Box::new(hosted(&file.path, decode)));
        let candidate = Box::new(Candidate { adapter: start.clone(), sides: Sides::Out });
        engine.ask(HostInput::Candidate { id: 1, name: "night".to_owned(), candidate });
        let row = EvalRow { ids: Random(5).tokens(3), scored_from: 1 };
        engine.losses((0..3).map(|seed| Probe { seed, size: 0.1 }).collect(), vec![row])
    });
    assert_eq!(apart, one);
    assert!(one[0] != one[1] && one[1] != one[2] && one[0] != one[2], "{one:?}");
}
