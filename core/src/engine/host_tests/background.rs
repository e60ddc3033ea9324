//! Background requests, teacher-forced scores and candidates: what runs between live steps and gives way to them.

use super::super::evaluate::Evaluations;
use super::*;

#[test]
fn background_requests_leave_a_sequence_free_and_give_theirs_to_live_ones() {
    let mut rig = Rig::start(4, 64, Duration::from_millis(1));
    for id in 100..132 {
        rig.submit(id, vec![41 + id as u32 % 5; 100], 17, None, true);
    }
    rig.until(|e| matches!(e, Event::Token(t) if t.id == 102));
    assert_eq!(rig.seen_by_backend.lock().unwrap().open_max, 3);
    // Four live requests at once need all four sequences: they are served from the next step on, each step.
    rig.hold();
    let before = rig.seen_by_backend.lock().unwrap().steps.len();
    for id in 1..=4 {
        rig.generate(id, vec![0], 10);
    }
    rig.go_on();
    for id in 1..=4 {
        rig.until(ended(id));
        assert_eq!(rig.tokens_of(id), (1..=10).collect::<Vec<_>>());
    }
    for step in &rig.seen_by_backend.lock().unwrap().steps[before..before + 10] {
        assert_eq!(step.iter().filter(|token| **token < 10).count(), 4, "{step:?}");
    }
    // Whoever was interrupted goes on where it stood: nothing is said twice, nothing is lost.
    for id in 100..132 {
        rig.until(ended(id));
        let first = 41 + id as u32 % 5;
        assert_eq!(rig.tokens_of(id), (1..=17).map(|n| first + n).collect::<Vec<_>>(), "request {id}");
        let started = rig.seen.iter().filter(|e| matches!(e, Event::Started { id: i, .. } if *i == id)).count();
        assert_eq!(started, 1);
    }
}

fn scores(rig: &Rig, id: u64) -> Option<Vec<RowScore>> {
    rig.seen.iter().find_map(|e| match e {
        Event::Evaluated { id: i, rows } if *i == id => Some(rows.clone()),
        _ => None,
    })
}

#[test]
fn evaluations_score_each_token_under_the_ones_before_it() {
    let mut rig = Rig::start(3, 8, Duration::ZERO);
    rig.load(100, "gen-1", 1);
    // Counting by one is what the base weights expect, by two what the adapter expects.
    let ones = EvalRow { ids: (0..39).collect(), scored_from: 30 };
    let twos = EvalRow { ids: (0..19).map(|n| 2 * n).collect(), scored_from: 1 };
    let rows = vec![ones, twos];
    for (id, adapter, with_kl) in [(1, None, true), (2, Some("gen-1"), true), (3, Some("gen-1"), false)] {
        let adapter = adapter.map(str::to_owned);
        rig.send(Command::Evaluate { id, adapter, rows: rows.clone(), with_kl });
    }
    rig.send(Command::Evaluate { id: 4, adapter: Some("none".to_owned()), rows: rows.clone(), with_kl: false });
    rig.send(Command::Evaluate { id: 5, adapter: None, rows: Vec::new(), with_kl: false });
    for id in [1, 2, 3, 5] {
        rig.until(|e| matches!(e, Event::Evaluated { id: i, .. } if *i == id));
    }
    assert!(matches!(rig.failure_of(4), Some((FailureKind::Invalid, _))));
    let sum = 9f64.exp() + 63.0;
    let (sure, lost) = (sum.ln() - 9.0, sum.ln());
    let kl = (9f64.exp() - 1.0) / sum * 9.0;
    for (id, likely, divergence) in [(1, 0, Some(0.0)), (2, 1, Some(kl)), (3, 1, None)] {
        let scores = scores(&rig, id).unwrap();
        for (row, (score, tokens)) in scores.iter().zip([9, 18]).enumerate() {
            let each = if row == likely { sure } else { lost };
            assert_eq!((score.tokens, score.top1), (tokens, if row == likely { tokens } else { 0 }), "{id} {row}");
            assert!((score.nll - f64::from(tokens) * each).abs() < 1e-4 * (1.0 + score.nll), "{score:?} {each}");
            match (score.kl, divergence) {
                (Some(found), Some(wanted)) => {
                    assert!((found - wanted).abs() < 1e-4 * (1.0 + wanted), "{found} {wanted}")
                }
                (found, wanted) => assert_eq!(found, wanted),
            }
        }
    }
}

#[test]
fn evaluations_yield_to_live_requests_can_be_cancelled_and_fail_alone() {
    let mut rig = Rig::start(4, 8, Duration::from_millis(1));
    let rows = |first: u32, n: usize| vec![EvalRow { ids: vec![first; 3000], scored_from: 1 }; n];
    rig.hold();
    rig.send(Command::Evaluate { id: 100, adapter: None, rows: rows(7, 6), with_kl: false });
    // Half a minute's work, which is cancelled before.
    rig.send(Command::Evaluate { id: 101, adapter: None, rows: rows(8, 600), with_kl: false });
    for id in 1..=4 {
        rig.generate(id, vec![1], 20);
    }
    rig.go_on();
    for id in 1..=4 {
        rig.until(ended(id));
    }
    assert!(scores(&rig, 100).is_none(), "3,000 tokens a row take longer than 20 steps");
    rig.send(Command::Cancel { id: 101 });
    rig.until(ended(101));
    rig.until(|e| matches!(e, Event::Evaluated { id: 100, .. }));
    let found = scores(&rig, 100).unwrap();
    assert!(found.len() == 6 && found.iter().all(|s| s.tokens == 2999 && s == &found[0]));
    let bad = vec![EvalRow { ids: vec![1, POISON, 1], scored_from: 1 }];
    rig.send(Command::Evaluate { id: 102, adapter: None, rows: bad, with_kl: false });
    rig.generate(5, vec![1], 20);
    rig.until(ended(102));
    rig.until(ended(5));
    assert!(matches!(rig.failure_of(102), Some((FailureKind::Internal, _))));
    assert_eq!(rig.tokens_of(5).len(), 20);
}

/// In the counting model an adapter's first B value, rounded, is what it adds to the step.
#[test]
fn a_population_is_probed_moved_and_saved_between_live_steps() {
    let mut rig = Rig::start(4, 8, Duration::ZERO);
    let factors = Factors {
        tensor: "blk.0.attn_k.weight".to_owned(),
        shape: Shape { inputs: 1, outputs: 64, experts: 1 },
        a: vec![1.0],
        b: vec![1.0; 64],
    };
    let adapter =
        Adapter { architecture: String::new(), base_hash: String::new(), rank: 1, alpha: 1.0, factors: vec![factors] };
    let candidate = Candidate { adapter, sides: Sides::Out };
    let up = (0..99).find(|seed| candidate.perturbed(*seed, 1.0).factors[0].b[0] > 1.0).unwrap();
    let send = |rig: &Rig, id, name: &str| {
        let input = Input::Candidate { id, name: name.to_owned(), candidate: Box::new(candidate.clone()) };
        rig.inputs.send(input).unwrap();
    };
    for (id, name) in [(1, "a"), (2, "a"), (3, "b"), (4, "c")] {
        send(&rig, id, name);
    }
    rig.until(ended(4));
    assert!(matches!(rig.failure_of(2), Some((FailureKind::Invalid, m)) if m.contains("candidate a exists")));
    assert!(matches!(rig.failure_of(4), Some((FailureKind::Busy, _))));
    // Twos are likeliest at 1, threes at 2, ones at 0: each direction finds its own.
    let rows = |step: u32| vec![EvalRow { ids: (0..20).map(|n| n * step).collect(), scored_from: 5 }];
    let probe = |id, step, sizes: &[f32]| Command::ProbeCandidate {
        id,
        candidate: "a".to_owned(),
        probes: sizes.iter().map(|size| Probe { seed: up, size: *size }).collect(),
        rows: rows(step),
    };
    rig.generate(50, vec![1], 20);
    rig.send(probe(10, 2, &[0.0, 1.0, -1.0, 1.0, 1.0, 0.0, -1.0, -1.0]));
    rig.until(|e| matches!(e, Event::CandidateProbed { id: 10, .. }));
    rig.until(ended(50));
    let losses = |rig: &Rig, wanted| {
        rig.seen.iter().find_map(|e| match e {
            Event::CandidateProbed { id, losses } if *id == wanted => Some(losses.clone()),
            _ => None,
        })
    };
    let found = losses(&rig, 10).unwrap();
    let low: Vec<bool> = found.iter().map(|l| l.unwrap() < 1.0).collect();
    assert_eq!(low, [true, false, false, false, false, true, false, false]);
    rig.send(Command::MoveCandidate { id: 11, candidate: "a".to_owned(), moves: vec![Probe { seed: up, size: 1.0 }] });
    rig.send(probe(12, 3, &[0.0, -1.0]));
    rig.until(|e| matches!(e, Event::CandidateProbed { id: 12, .. }));
    assert_eq!(losses(&rig, 12).unwrap().iter().map(|l| l.unwrap() < 1.0).collect::<Vec<_>>(), [true, false]);

    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("saved.gguf");
    rig.send(Command::SaveCandidate { id: 13, candidate: "a".to_owned(), path: path.clone() });
    rig.until(|e| matches!(e, Event::CandidateSaved { id: 13, .. }));
    assert!(path.metadata().unwrap().len() > 256);
    rig.send(Command::SaveCandidate { id: 14, candidate: "a".to_owned(), path: dir.path().join("none/x.gguf") });
    rig.until(ended(14));
    // Cancelled, refused, forgotten, before any of it is done.
    rig.hold();
    rig.send(probe(15, 1, &[0.0; 4096]));
    rig.send(Command::Cancel { id: 15 });
    rig.until(ended(15));
    rig.send(probe(16, 1, &[f32::NAN]));
    rig.send(probe(17, 1, &[]));
    rig.send(probe(21, 1, &[0.0; 4096]));
    rig.send(Command::DropCandidate { id: 18, candidate: "a".to_owned() });
    rig.send(probe(19, 1, &[0.0]));
    for id in [16, 17, 19, 21] {
        rig.until(ended(id));
    }
    assert!(matches!(rig.failure_of(21), Some((FailureKind::Invalid, m)) if m.contains("cancelled")));
    rig.go_on();
    rig.send(Command::Stats { id: 20 });
    rig.until(|e| matches!(e, Event::Stats { id: 20, stats } if stats.background == 0 && stats.running == 0));
}

/// A row that cannot be put under its adapter gives its sequences back: rows after it find as many as before.
#[test]
fn rows_that_find_no_adapter_keep_no_sequence() {
    let mut backend = counting(4, Duration::ZERO, Arc::default());
    let row = EvalRow { ids: vec![1; 8], scored_from: 1 };
    for id in 0..5 {
        let mut evaluations = Evaluations::default();
        evaluations.push(id, Some(AdapterId(9)), Arc::new(vec![row.clone(); 2]), true);
        assert!(evaluations.admit(4, &mut backend).is_err());
        assert_eq!((backend.last.len(), evaluations.sequences(), evaluations.wanted()), (0, 0, 4));
    }
}
