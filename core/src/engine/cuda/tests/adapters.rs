//! Adapters on the emulated device. They give the processor's numbers, and neighbours and batches change nothing. Also
//! the room that they lie in, and a population's steps through the engine loop.

use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;

use super::super::adapters::standard_bytes;
use super::super::weights::packed_bytes;
use super::*;
use crate::engine::adapter::{self, Adapter, BaseModel, Candidate, Recipe, Sides, TARGETS};
use crate::engine::backend::{AdapterId, SeqId};
use crate::engine::host::{Host, HostLimits, Input as HostInput};
use crate::engine::host_tests::Letters;
use crate::engine::protocol::{Command, EvalRow, Event, Probe};
use crate::training::pairs::Pair;
use crate::training::recipe::{Method, Recipe as TrainingRecipe, TARGETS as TRAINED};
use crate::training::zeroth::{Ask, Walk};

pub(super) fn adapter(path: &Path, rank: usize, targets: &[&str], seed: u64) -> Adapter {
    let base = BaseModel::new(&Gguf::open(path).unwrap(), "hash");
    let targets = targets.iter().map(|t| (*t).to_owned()).collect();
    Recipe { rank, scale: 0.3, seed, targets, last_layers: 0 }.make(&base).unwrap()
}

/// As [`logits`], under an adapter.
fn under(backend: &mut dyn Backend, adapter: Option<AdapterId>, tokens: &[u32], step: usize) -> Vec<f32> {
    let seq = backend.open().unwrap();
    adapter.into_iter().for_each(|a| backend.adapt(seq, a).unwrap());
    let (mut all, mut out) = (Vec::new(), Output::default());
    for tokens in tokens.chunks(if step == 0 { tokens.len() } else { step }) {
        backend.step(&[Chunk { seq, tokens, rows: Rows::All, hidden: false }], &mut out).unwrap();
        all.extend_from_slice(&out.logits);
    }
    backend.close(seq);
    all
}

#[test]
fn every_target_gives_the_processor_s_numbers_and_pieces_those_of_the_whole() {
    let file = Tiny::default().write();
    let (mut ours, mut theirs) = (cuda(&file.path), cpu(&file.path));
    let (all, v) = (Random(1).tokens(36), VOCAB as usize);
    let few = &all[..9];
    let base = logits(&mut ours, few, 0);
    // Each alone over few tokens; all of them over as many as take the kernels for many.
    let each = TARGETS.into_iter().chain(["output"]).map(|target| (vec![target], few));
    for (targets, tokens) in each.chain([(Vec::new(), &all[..])]) {
        let adapter = adapter(&file.path, 5, &targets, 1);
        let (a, b) = (ours.load_adapter(&adapter).unwrap(), theirs.load_adapter(&adapter).unwrap());
        let whole = under(&mut ours, Some(a), tokens, 0);
        assert!(kl(&base, &whole[..9 * v], v)[8] > 1e-7, "{targets:?} changes nothing");
        let apart = *kl(&under(&mut theirs, Some(b), tokens, 0), &whole, v).last().unwrap();
        assert!(apart < FLOATS_KL_MAX, "{targets:?}: {apart:e}");
        // Four and one: the kernels for few rows and for one.
        let pieces = under(&mut ours, Some(a), &few[..5], 4);
        assert!(pieces == whole[..5 * v], "{targets:?}: fed in pieces: other bits");
        ours.drop_adapter(a);
        theirs.drop_adapter(b);
    }
    assert!(base == logits(&mut ours, few, 0), "after the drop");
}

#[test]
fn sequences_under_different_adapters_share_steps_bit_for_bit() {
    for dtype in [DType::F32, DType::Q8_0] {
        let file = Tiny { dtype, ..Tiny::default() }.write();
        let mut c = with(&file.path, &CudaOptions { sequences_max: 4, kv: KvType::F16, ..options() });
        let one = c.load_adapter(&adapter(&file.path, 5, &[], 1)).unwrap();
        let second = adapter(&file.path, 9, &["ssm_out", "attn_q", "ffn_up_exps", "ffn_down_exps"], 2);
        let two = c.load_adapter(&second).unwrap();
        // Wholly zero: what was added must be nothing at all.
        let mut nothing = adapter(&file.path, 3, &["attn_k", "ffn_gate_shexp", "ffn_down_exps"], 3);
        nothing.factors.iter_mut().for_each(|f| f.b.fill(0.0));
        let nothing = c.load_adapter(&nothing).unwrap();
        let mut random = Random(9);
        let texts = [random.tokens(10), random.tokens(5), random.tokens(35), random.tokens(6)];
        let whom = [None, Some(one), Some(two), Some(nothing)];
        let alone: Vec<_> = (0..4).map(|i| under(&mut c, whom[i], &texts[i], 0)).collect();
        assert!(alone[3] == logits(&mut c, &texts[3], 0), "{dtype:?}: an adapter of zeros");
        #[cfg(feature = "llama")]
        if dtype == DType::Q8_0 {
            let mut theirs = exact(&file.path);
            let id = theirs.load_adapter(&second).unwrap();
            check_close(&under(&mut theirs, Some(id), &texts[2], 0), &alone[2], VOCAB as usize);
        }
        let seqs = whom.map(|whom| {
            let seq = c.open().unwrap();
            whom.into_iter().for_each(|a| c.adapt(seq, a).unwrap());
            seq
        });
        // All but the last token, in another order; then the last, as a step of decoding.
        let chunk = |i: usize| {
            let tokens = &texts[i][..texts[i].len() - 1];
            Chunk { seq: seqs[i], tokens, rows: Rows::All, hidden: false }
        };
        let split = |i: usize| alone[i].split_at(alone[i].len() - VOCAB as usize);
        let mut out = Output::default();
        c.step(&[chunk(3), chunk(1), chunk(0), chunk(2)], &mut out).unwrap();
        assert!(out.logits == [3, 1, 0, 2].map(|i| split(i).0).concat(), "{dtype:?}: prefill");
        // Dropped, its room asked for by another, and still theirs.
        c.drop_adapter(one);
        c.load_adapter(&adapter(&file.path, 5, &[], 7)).unwrap();
        let last = |i: usize| Chunk { tokens: &texts[i][texts[i].len() - 1..], rows: Rows::Last, ..chunk(i) };
        c.step(&[0, 1, 2, 3].map(last), &mut out).unwrap();
        assert!(out.logits == [0, 1, 2, 3].map(|i| split(i).1).concat(), "{dtype:?}: decode");
        seqs.iter().for_each(|s| c.close(*s));
    }
}

/// Of packed weights the factors are tiles of halves, which a probe's must not be.
#[test]
fn factors_in_tiles_give_the_numbers_of_floats_and_the_same_bits_in_pieces() {
    let file = Tiny { dtype: DType::Q8_0, ..Tiny::default() }.write();
    let mut c = with(&file.path, &CudaOptions { kv: KvType::F16, ..options() });
    let (tokens, v) = (Random(12).tokens(40), VOCAB as usize);
    let base = logits(&mut c, &tokens, 0);
    let shared = ["ffn_gate_shexp", "ffn_up_shexp", "ffn_down_shexp"];
    let mixers = ["attn_q", "attn_k", "attn_v", "attn_output", "attn_qkv", "attn_gate", "ssm_out"];
    for (rank, targets) in [(5, &mixers[..]), (40, &shared[..]), (17, &shared[2..]), (33, &TRAINED[..])] {
        let adapter = adapter(&file.path, rank, targets, 4);
        let (tiles, floats) = (c.load_adapter(&adapter).unwrap(), c.load_probe(&adapter).unwrap());
        let whole = under(&mut c, Some(tiles), &tokens, 0);
        let apart = kl(&under(&mut c, Some(floats), &tokens, 0), &whole, v);
        let moved = kl(&base, &whole, v);
        let (apart, moved) = (apart[apart.len() / 2], moved[moved.len() / 2]);
        assert!(apart < 1e-4 && apart < moved / 20.0, "rank {rank}, {targets:?}: {apart:e} apart, {moved:e} moved");
        for (step, len) in [(1, 6), (3, 9), (7, 14), (20, 40)] {
            let pieces = under(&mut c, Some(tiles), &tokens[..len], step);
            assert!(pieces == whole[..len * v], "rank {rank}, {targets:?}: fed {step} at a time: other bits");
        }
        c.drop_adapter(tiles);
        c.drop_adapter(floats);
    }
    assert!(base == logits(&mut c, &tokens, 0), "after the drop");
}

/// A pass under more adapters than it has rows left behind its last mixer.
#[test]
fn rows_that_are_dropped_leave_the_others_their_adapters() {
    let file = Tiny { dtype: DType::Q8_0, ..Tiny::default() }.write();
    let mut c = with(&file.path, &CudaOptions { sequences_max: 6, kv: KvType::F16, ..options() });
    let adapters: Vec<_> =
        (0..6).map(|seed| c.load_adapter(&adapter(&file.path, 5, &TRAINED, seed)).unwrap()).collect();
    let tokens = Random(13).tokens(3);
    let alone: Vec<_> = adapters.iter().map(|a| under(&mut c, Some(*a), &tokens, 0)).collect();
    let seqs: Vec<_> = adapters
        .iter()
        .map(|a| {
            let seq = c.open().unwrap();
            c.adapt(seq, *a).unwrap();
            seq
        })
        .collect();
    let rows = |i: usize| if i >= 4 { Rows::Last } else { Rows::None };
    let chunk = |(i, seq): (usize, &SeqId)| Chunk { seq: *seq, tokens: &tokens, rows: rows(i), hidden: false };
    let mut out = Output::default();
    c.step(&seqs.iter().enumerate().map(chunk).collect::<Vec<_>>(), &mut out).unwrap();
    let wanted: Vec<f32> = [4, 5].into_iter().flat_map(|i: usize| alone[i][2 * VOCAB as usize..].to_vec()).collect();
    assert!(out.logits == wanted && alone[4] != alone[5], "the numbers of others' adapters");
}

#[test]
fn an_adapter_is_chosen_first_and_room_that_is_full_says_so() {
    let file = Tiny::default().write();
    let mut c = cuda(&file.path);
    let wide = adapter(&file.path, 40, &["attn_qkv", "attn_gate", "ssm_out", "ffn_up_shexp"], 1);
    let id = c.load_adapter(&wide).unwrap();
    let seq = c.open().unwrap();
    c.step(&[Chunk { seq, tokens: &[1], rows: Rows::None, hidden: false }], &mut Output::default()).unwrap();
    assert!(matches!(c.adapt(seq, id), Err(BackendError::TooLate(_))));
    let other = c.open().unwrap();
    assert!(matches!(c.adapt(other, AdapterId(77)), Err(BackendError::UnknownAdapter(77))));
    c.adapt(other, id).unwrap();
    // As many as there is room for.
    let mut more = Vec::new();
    let refused = loop {
        match c.load_adapter(&wide) {
            Ok(id) => more.push(id),
            Err(error) => break error,
        }
    };
    let words = refused.to_string();
    let BackendError::AdapterRoom { needed, free, room } = refused else { panic!("{words}") };
    assert!(!more.is_empty() && free < needed && needed < room && words.contains("drop one first"), "{words}");
    assert!(c.placement().adapters as usize > room);
    // What a sequence uses is no room for others yet.
    c.drop_adapter(id);
    assert!(c.load_adapter(&wide).is_err());
    c.close(other);
    c.load_adapter(&wide).unwrap();
    c.drop_adapter(more[0]);
    c.load_adapter(&wide).unwrap();
    let mut foreign = adapter(&file.path, 2, &["attn_q"], 1);
    foreign.factors[0].tensor = "blk.9.attn_q.weight".to_owned();
    assert!(c.load_adapter(&foreign).unwrap_err().to_string().contains("no such layer"));
}

#[test]
fn a_card_too_small_for_adapters_takes_them_only_where_none_are_announced() {
    let file = Tiny::default().write();
    let gguf = Gguf::open(&file.path).unwrap();
    let hp = HParams::read(&gguf).unwrap();
    let free = device().free_bytes().unwrap();
    // Nothing may lie on the host: experts would leave the card for adapters.
    let mut small = CudaOptions { pinned_bytes_max: 1, ..options() };
    let mut announced = CudaOptions { adapters: true, ..small.clone() };
    let (_, plenty) = place(free, &gguf, &hp, &announced).unwrap();
    assert!(plenty.adapters > 8 * standard_bytes(&gguf) as u64 && plenty.to_string().contains("adapters"));
    let bare = Placement::new(&hp, &Sizes::new(&hp, &small, SHORT_ROWS_MAX, 0), packed_bytes(&gguf, &hp), 0).total();
    (small.memory_bytes_max, announced.memory_bytes_max) = (bare, bare);
    assert_eq!(place(free, &gguf, &hp, &small).unwrap().0.adapters, 0);
    let refused = place(free, &gguf, &hp, &announced).err().unwrap().to_string();
    assert!(refused.contains("adapters") && refused.contains("fewer sequences"), "{refused}");
    let mut c = with(&file.path, &small);
    let refused = c.load_adapter(&adapter(&file.path, 2, &["attn_q"], 1)).unwrap_err();
    assert!(matches!(refused, BackendError::AdapterRoom { free: 0, room: 0, .. }), "{refused}");
}

/// A step loop on a thread of its own.
pub(super) struct Engine {
    inputs: SyncSender<HostInput>,
    events: Receiver<Vec<Event>>,
    thread: Option<JoinHandle<()>>,
}

impl Engine {
    pub(super) fn of(backend: Box<dyn Backend>) -> Engine {
        let limits = HostLimits { waiting_max: 4, step_tokens_max: 256, ..HostLimits::default() };
        let host = Host::new(backend, Arc::new(Letters), limits);
        let (inputs, from_us) = sync_channel(8);
        let (to_us, events) = sync_channel(64);
        let thread = Some(std::thread::spawn(move || host.run(&from_us, &to_us).unwrap()));
        Engine { inputs, events, thread }
    }

    /// The answer to the only question under way.
    pub(super) fn ask(&self, input: HostInput) -> Event {
        self.inputs.send(input).unwrap();
        let answer = self.events.recv().unwrap().remove(0);
        assert!(!matches!(answer, Event::Failed { .. }), "{answer:?}");
        answer
    }

    pub(super) fn losses(&self, probes: Vec<Probe>, rows: Vec<EvalRow>) -> Vec<f64> {
        let command = Command::ProbeCandidate { id: 1, candidate: "night".to_owned(), probes, rows };
        match self.ask(HostInput::Command(command)) {
            Event::CandidateProbed { losses, .. } => losses.into_iter().map(Option::unwrap).collect(),
            other => panic!("{other:?}"),
        }
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        let _ = self.inputs.send(HostInput::Command(Command::Exit));
        let ended = self.thread.take().unwrap().join();
        assert!(ended.is_ok() || std::thread::panicking());
    }
}

/// A step is θ ← θ − η·(L − mean)/deviation along each direction. The losses of both backends agree to some 1e-6 nats (two
/// orders of summing floats), a population's deviate by 1e-3 and more, so steps agree to 1e-3 of their length.
const STEPS_APART_MAX: f64 = 1e-2;
/// Nats a token.
const LOSSES_APART_MAX: f64 = 2e-5;

#[test]
fn a_population_goes_where_it_goes_on_the_processor() {
    let file = Tiny::default().write();
    let base = BaseModel::new(&Gguf::open(&file.path).unwrap(), "hash");
    let start = adapter(&file.path, 4, &["attn_q", "ssm_out", "ffn_gate_shexp", "ffn_down_shexp"], 3);
    let pair = |n: u64| Pair { ids: Random(n).tokens(9), scored_from: 5, weight: 1.0, rejected: None };
    let pairs: Vec<Pair> = (0..10).map(pair).collect();
    let recipe = TrainingRecipe {
        directions: 3,
        step_tokens: 18,
        steps_max: 2,
        held_out_percent: 10,
        ..TrainingRecipe::of(Method::Population, 3)
    };
    let dir = tempfile::tempdir().unwrap();
    let backends: [(&str, Box<dyn Backend>); 2] =
        [("cuda", Box::new(cuda(&file.path))), ("cpu", Box::new(cpu(&file.path)))];
    let ends = backends.map(|(name, backend)| {
        let engine = Engine::of(backend);
        let path = dir.path().join(name);
        let mut walk = Walk::new(&recipe, pairs.clone(), 3, None, path.clone()).unwrap();
        let candidate = Candidate { adapter: start.clone(), sides: Sides::Out };
        while let Some(ask) = walk.ask() {
            let input = match ask {
                Ask::Begin(_) => {
                    let candidate = Box::new(candidate.clone());
                    HostInput::Candidate { id: 1, name: "night".to_owned(), candidate }
                }
                ask => HostInput::Command(ask.command(1, "night")),
            };
            walk.take(&engine.ask(input)).unwrap();
        }
        let outcome = walk.outcome();
        assert_eq!(outcome.steps.len(), 2);
        (adapter::read(&path, &base).unwrap().0, outcome)
    });
    let [(ours, on_card), (theirs, on_processor)] = ends;
    let losses = |o: &crate::training::Outcome| {
        let steps = o.steps.iter().map(|s| s.loss);
        steps.chain([o.loss_before.unwrap(), o.loss_after.unwrap()]).collect::<Vec<f64>>()
    };
    let apart = losses(&on_card).iter().zip(losses(&on_processor)).fold(0.0_f64, |m, (a, b)| m.max((a - b).abs()));
    let distance = |a: &Adapter, b: &Adapter| {
        let pairs = a.factors.iter().zip(&b.factors).flat_map(|(a, b)| a.b.iter().zip(&b.b));
        pairs.map(|(a, b)| f64::from(a - b).powi(2)).sum::<f64>().sqrt()
    };
    let (way, between) = (distance(&start, &theirs), distance(&ours, &theirs));
    assert!(way > 0.1 && between < STEPS_APART_MAX * way, "{way} gone, {between:e} apart");
    assert!(apart < LOSSES_APART_MAX, "{apart:e}");
}

/// Probes for which there is no room wait for those under way.
#[test]
fn a_population_larger_than_the_room_is_probed_all_the_same() {
    let file = Tiny::default().write();
    let wide = adapter(&file.path, 40, &["attn_qkv", "attn_gate", "ssm_out", "ffn_up_shexp"], 1);
    let candidate = Box::new(Candidate { adapter: wide, sides: Sides::Out });
    let many = with(&file.path, &CudaOptions { sequences_max: 16, ..options() });
    let row = |n: u64| EvalRow { ids: Random(n).tokens(6), scored_from: 2 };
    let probes: Vec<Probe> = (0..14).map(|seed| Probe { seed: seed % 7, size: 0.1 }).collect();
    let engine = Engine::of(Box::new(many));
    engine.ask(HostInput::Candidate { id: 1, name: "night".to_owned(), candidate });
    let losses = engine.losses(probes, vec![row(1)]);
    assert!(losses[..7] == losses[7..], "the same probes in other company");
    assert!(losses[1..7].iter().all(|l| l.is_finite() && *l != losses[0]));
}
