//! Sequences, steps and errors of the backend on every architecture that writes.

use chimere::engine::backend::{Backend, BackendError, Chunk, Output, Rows};
use chimere::engine::llama::{self, Llama, LlamaOptions};
use chimere::eval::agree::{divergence, top};
use chimere::eval::logits::rows;

use crate::models::{GENERATORS, VOCAB, alone, load, make};

/// Largest KL between two ways of feeding the same tokens in f32, nats.
const KL_SAME: f64 = 1e-8;

fn prompt(len: usize, seed: u32) -> Vec<u32> {
    (0..len as u32).map(|i| (i * 37 + seed * 101 + 5) % 256).collect()
}

fn greedy(model: &mut Llama, prompt: &[u32], tokens: usize) -> Vec<u32> {
    let seq = model.open().unwrap();
    let mut out = Output::default();
    let mut feed = prompt.to_vec();
    let mut made = Vec::new();
    for _ in 0..tokens {
        model.step(&[Chunk { seq, tokens: &feed, rows: Rows::Last, hidden: false }], &mut out).unwrap();
        assert_eq!(out.logits.len(), VOCAB);
        feed = vec![top(&out.logits).0 as u32];
        made.extend(&feed);
    }
    assert_eq!(model.held(seq), prompt.len() + tokens - 1);
    model.close(seq);
    made
}

#[test]
fn every_way_of_feeding_gives_the_same_rows() {
    let _turn = alone();
    let dir = tempfile::tempdir().unwrap();
    for architecture in GENERATORS {
        let (mut model, _) = load(&make(dir.path(), architecture));
        assert_eq!(model.info().architecture, architecture);
        assert!(!model.info().embedding_only && model.info().vocab == VOCAB);
        let ids = prompt(70, 1);
        let whole = rows(&mut model, &ids, 0, false, &[]).unwrap();
        assert_eq!(whole.len(), ids.len() * VOCAB);
        assert!(whole.iter().all(|v| v.is_finite()));
        let beside = [prompt(50, 2), prompt(90, 3)];
        for (step, beside) in [(1, &[][..]), (7, &[]), (7, &beside), (1, &beside)] {
            let found = rows(&mut model, &ids, step, false, beside).unwrap();
            let pairs = whole.chunks_exact(VOCAB).zip(found.chunks_exact(VOCAB));
            let kl = pairs.map(|(a, b)| divergence(a, b)).fold(0.0, f64::max);
            println!("{architecture}: step {step}, {} beside: KL {kl:.1e}", beside.len());
            assert!(kl < KL_SAME, "{architecture}: step {step}, {} beside: KL {kl:.1e}", beside.len());
        }
    }
}

#[test]
fn a_closed_sequence_leaves_nothing_to_the_next() {
    let _turn = alone();
    let dir = tempfile::tempdir().unwrap();
    for architecture in GENERATORS {
        let (mut model, _) = load(&make(dir.path(), architecture));
        let first = greedy(&mut model, &prompt(20, 1), 24);
        greedy(&mut model, &prompt(60, 9), 24);
        assert_eq!(greedy(&mut model, &prompt(20, 1), 24), first, "{architecture}");
        assert!(first.iter().any(|t| *t != first[0]), "{architecture}: one token over and over");
    }
}

#[test]
fn wrong_requests_are_named_and_change_nothing() {
    let _turn = alone();
    let dir = tempfile::tempdir().unwrap();
    for architecture in GENERATORS {
        let (mut model, _) = load(&make(dir.path(), architecture));
        let mut out = Output::default();
        let seqs: Vec<_> = (0..4).map(|_| model.open().unwrap()).collect();
        assert!(matches!(model.open(), Err(BackendError::NoSequence(4))));
        let chunk = |seq, tokens| Chunk { seq, tokens, rows: Rows::Last, hidden: false };
        model.step(&[chunk(seqs[0], &[1, 2, 3])], &mut out).unwrap();
        let long = prompt(300, 1);
        let full = model.step(&[chunk(seqs[1], &[1]), chunk(seqs[0], &long)], &mut out);
        assert!(matches!(full, Err(BackendError::ContextFull { held: 3, fed: 300, capacity: 256 })));
        let outside = model.step(&[chunk(seqs[1], &[1]), chunk(seqs[0], &[VOCAB as u32])], &mut out);
        assert!(matches!(outside, Err(BackendError::TokenRange { token: 512, vocab: VOCAB })));
        assert_eq!((model.held(seqs[0]), model.held(seqs[1])), (3, 0));
        model.close(seqs[3]);
        assert!(matches!(model.step(&[chunk(seqs[3], &[1])], &mut out), Err(BackendError::UnknownSequence(3))));
        assert!(model.step(&[chunk(seqs[1], &[])], &mut out).is_err());
        // After all that the sequence goes on as if nothing had happened.
        model.step(&[chunk(seqs[0], &[4])], &mut out).unwrap();
        let found = out.logits.clone();
        let wanted = rows(&mut model, &[1, 2, 3, 4], 0, false, &[]).unwrap();
        assert!(divergence(&wanted[3 * VOCAB..], &found) < KL_SAME, "{architecture}");
    }
}

#[test]
fn rows_come_in_the_order_of_the_batch() {
    let _turn = alone();
    let dir = tempfile::tempdir().unwrap();
    let (mut model, _) = load(&make(dir.path(), "qwen2"));
    let (a, b, c) = (model.open().unwrap(), model.open().unwrap(), model.open().unwrap());
    let (x, y, z) = (prompt(10, 1), prompt(3, 2), prompt(5, 3));
    let mut out = Output::default();
    let batch = [
        Chunk { seq: c, tokens: &z, rows: Rows::Last, hidden: false },
        Chunk { seq: a, tokens: &x, rows: Rows::None, hidden: false },
        Chunk { seq: b, tokens: &y, rows: Rows::All, hidden: false },
    ];
    model.step(&batch, &mut out).unwrap();
    [a, b, c].into_iter().for_each(|s| model.close(s));
    let mut wanted = rows(&mut model, &z, 0, false, &[]).unwrap().split_off(4 * VOCAB);
    wanted.extend(rows(&mut model, &y, 0, false, &[]).unwrap());
    assert_eq!(wanted.len(), out.logits.len());
    for (a, b) in wanted.chunks_exact(VOCAB).zip(out.logits.chunks_exact(VOCAB)) {
        assert!(divergence(a, b) < KL_SAME);
    }
}

#[test]
fn hidden_states_and_drafts_need_a_prediction_layer() {
    let _turn = alone();
    let dir = tempfile::tempdir().unwrap();
    let (mut model, _) = load(&make(dir.path(), "qwen2"));
    let seq = model.open().unwrap();
    let chunk = Chunk { seq, tokens: &[1], rows: Rows::Last, hidden: true };
    assert!(matches!(model.step(&[chunk], &mut Output::default()), Err(BackendError::Unsupported(_))));
    let (mut model, _) = load(&make(dir.path(), "qwen35moe"));
    assert!(model.info().mtp);
    assert_eq!(rows(&mut model, &prompt(9, 1), 0, true, &[]).unwrap().len(), 8 * VOCAB);
}

/// Threads without a core to themselves hold up the others.
#[test]
fn more_threads_than_cores_are_given_up_within_a_reply() {
    let _turn = alone();
    let dir = tempfile::tempdir().unwrap();
    let cores = std::thread::available_parallelism().unwrap().get();
    let options = LlamaOptions { threads: 8 * cores, context_tokens: 256, sequences_max: 1, exact: true };
    let (mut model, _) = llama::load(&make(dir.path(), "qwen2"), &options, &mut |_| {}).unwrap();
    assert_eq!(model.threads(), 8 * cores);
    let ids = greedy(&mut model, &prompt(70, 1), 40);
    assert!(model.threads() <= cores, "{} of {} on {cores} cores", model.threads(), 8 * cores);
    let (mut alone, _) = load(&make(dir.path(), "qwen2"));
    assert_eq!(greedy(&mut alone, &prompt(70, 1), 40), ids, "how many compute changes no text");
}
