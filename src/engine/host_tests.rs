//! The step loop over a counting model: each token is followed by its successor, and `POISON` breaks the step.

use std::collections::HashMap;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::adapter::{Adapter, Candidate, Factors, Shape, Sides};
use super::backend::{AdapterId, Backend, BackendError, Chunk, ModelInfo, Output, Rows, SeqId};
use super::control::{ReplyControl, ReplyLimits};
use super::host::{Host, HostLimits, Input};
use super::protocol::{Command, EvalRow, Event, FailureKind, Probe, RowScore};
use super::revisions::Arrived;
use super::sampler::Sampler;
use super::slot::Prepared;
use super::vocab::{TokenKind, Vocab, VocabError};
use crate::turn::{FinishReason, Sampling, Thinking};

const VOCAB: usize = 64;
/// Feeding this id fails the step.
const POISON: u32 = 40;
const END: u32 = 63;

struct Counting {
    info: ModelInfo,
    /// What each sequence holds.
    last: HashMap<u32, Vec<u32>>,
    opened: u32,
    step_time: Duration,
    /// Adapter n adds n to every step of the counting.
    adapters: Vec<(AdapterId, u32)>,
    under: HashMap<u32, u32>,
    seen: Arc<Mutex<Seen>>,
}

/// What the backend saw.
#[derive(Default)]
struct Seen {
    open_max: usize,
    /// Tokens of each step: live and background can be told apart by their ids.
    steps: Vec<Vec<u32>>,
}

impl Backend for Counting {
    fn info(&self) -> &ModelInfo {
        &self.info
    }

    fn open(&mut self) -> Result<SeqId, BackendError> {
        self.opened += 1;
        self.last.insert(self.opened, Vec::new());
        let mut seen = self.seen.lock().unwrap();
        seen.open_max = seen.open_max.max(self.last.len());
        Ok(SeqId(self.opened))
    }

    fn close(&mut self, seq: SeqId) {
        self.last.remove(&seq.0);
        self.under.remove(&seq.0);
    }

    fn load_adapter(&mut self, adapter: &Adapter) -> Result<AdapterId, BackendError> {
        self.opened += 1;
        let id = AdapterId(self.opened);
        // The tests say what it adds by its first value of B, or by its rank.
        let add = adapter.factors.first().map_or(adapter.rank as f32, |f| f.b[0]);
        self.adapters.push((id, add as u32));
        Ok(id)
    }

    fn drop_adapter(&mut self, adapter: AdapterId) {
        self.adapters.retain(|(id, _)| *id != adapter);
    }

    fn adapt(&mut self, seq: SeqId, adapter: AdapterId) -> Result<(), BackendError> {
        let found = self.adapters.iter().find(|(id, _)| *id == adapter);
        self.under.insert(seq.0, found.ok_or(BackendError::UnknownAdapter(adapter.0))?.1);
        Ok(())
    }

    fn held(&self, seq: SeqId) -> usize {
        self.last.get(&seq.0).map_or(0, Vec::len)
    }

    fn step(&mut self, batch: &[Chunk<'_>], out: &mut Output) -> Result<(), BackendError> {
        std::thread::sleep(self.step_time);
        out.clear();
        if batch.iter().any(|c| c.tokens.contains(&POISON)) {
            return Err(BackendError::Compute("poisoned".to_owned()));
        }
        let fed = batch.iter().flat_map(|c| c.tokens.iter().copied()).collect();
        self.seen.lock().unwrap().steps.push(fed);
        for chunk in batch {
            let add = 1 + self.under.get(&chunk.seq.0).copied().unwrap_or(0) as usize;
            let state = self.last.get_mut(&chunk.seq.0).ok_or(BackendError::UnknownSequence(chunk.seq.0))?;
            state.extend(chunk.tokens);
            let rows = match chunk.rows {
                Rows::None => 0,
                Rows::Last => 1,
                Rows::All => chunk.tokens.len(),
            };
            for token in &chunk.tokens[chunk.tokens.len() - rows..] {
                let start = out.logits.len();
                out.logits.resize(start + VOCAB, 0.0);
                out.logits[start + (*token as usize + add) % VOCAB] = 9.0;
            }
        }
        Ok(())
    }
}

struct Letters;

impl Vocab for Letters {
    fn len(&self) -> usize {
        VOCAB
    }
    fn encode(&self, text: &str, _: bool, ids: &mut Vec<u32>) -> Result<(), VocabError> {
        ids.extend(text.bytes().map(u32::from));
        Ok(())
    }
    fn bytes(&self, id: u32) -> Vec<u8> {
        vec![b'A' + (id % 26) as u8]
    }
    fn name(&self, id: u32) -> String {
        id.to_string()
    }
    fn kind(&self, _: u32) -> TokenKind {
        TokenKind::Normal
    }
    fn special(&self, _: &str) -> Option<u32> {
        None
    }
    fn specials(&self) -> Vec<(u32, String)> {
        Vec::new()
    }
    fn ends(&self) -> &[u32] {
        &[END]
    }
    fn bos(&self) -> Option<u32> {
        None
    }
    fn template(&self) -> Option<String> {
        None
    }
}

pub(super) fn info(sequences_max: usize) -> ModelInfo {
    ModelInfo {
        name: "counting".to_owned(),
        architecture: "counting".to_owned(),
        backend: "test".to_owned(),
        device: String::new(),
        vocab: VOCAB,
        width: 1,
        layers: 0,
        context_tokens: 1 << 20,
        trained_context_tokens: 1 << 20,
        sequences_max,
        parameters: 0,
        bytes_per_token: 0,
        mtp: false,
        embedding_only: false,
    }
}

pub(super) struct Rig {
    seen_by_backend: Arc<Mutex<Seen>>,
    inputs: SyncSender<Input>,
    events: Receiver<Vec<Event>>,
    seen: Vec<Event>,
    thread: Option<JoinHandle<()>>,
}

impl Rig {
    fn start(sequences_max: usize, waiting_max: usize, step_time: Duration) -> Rig {
        let seen_by_backend = Arc::new(Mutex::new(Seen::default()));
        let backend = Counting {
            info: info(sequences_max),
            last: HashMap::new(),
            opened: 0,
            step_time,
            adapters: Vec::new(),
            under: HashMap::new(),
            seen: seen_by_backend.clone(),
        };
        let host = Host::new(Box::new(backend), Arc::new(Letters), HostLimits { waiting_max, step_tokens_max: 64 });
        let (inputs, from_us) = sync_channel(64);
        let (to_us, events) = sync_channel(4096);
        let thread = std::thread::spawn(move || host.run(&from_us, &to_us));
        Rig { seen_by_backend, inputs, events, seen: Vec::new(), thread: Some(thread) }
    }

    fn generate(&self, id: u64, ids: Vec<u32>, max_tokens: u32) {
        self.submit(id, ids, max_tokens, None, false);
    }

    fn submit(&self, id: u64, ids: Vec<u32>, max_tokens: u32, adapter: Option<&str>, background: bool) {
        let sampling = Sampling { temperature: 0.0, ..Sampling::default() };
        let limits = ReplyLimits { max_tokens, stop: &[], thinking: Thinking::Template, ignore_end: true };
        let job = Prepared {
            id,
            seed: 0,
            sampler: Sampler::new(&sampling, VOCAB, &ids).unwrap(),
            control: ReplyControl::new(&Letters, limits, false).unwrap(),
            ids,
            engram: None,
            received: Instant::now(),
            adapter: adapter.map(str::to_owned),
            background,
        };
        self.inputs.send(Input::Prepared(Box::new(job))).unwrap();
    }

    /// An adapter that makes the model count by `1 + step`.
    fn load(&self, id: u64, revision: &str, step: usize) {
        let adapter = Adapter {
            architecture: String::new(),
            base_hash: String::new(),
            rank: step,
            alpha: 1.0,
            factors: Vec::new(),
        };
        let facts = Box::new(adapter.facts(1, &format!("{step}")));
        let arrived = Arrived { id, revision: revision.to_owned(), adapter, facts };
        self.inputs.send(Input::Adapter(Box::new(arrived))).unwrap();
    }

    fn failure_of(&self, id: u64) -> Option<(FailureKind, &str)> {
        self.seen.iter().find_map(|e| match e {
            Event::Failed { id: i, kind, message } if *i == id => Some((*kind, message.as_str())),
            _ => None,
        })
    }

    fn send(&self, command: Command) {
        self.inputs.send(Input::Command(command)).unwrap();
    }

    /// Waits until an event satisfies `wanted`; everything seen is kept.
    fn until(&mut self, wanted: impl Fn(&Event) -> bool) {
        while !self.seen.iter().any(&wanted) {
            let events = self.events.recv_timeout(Duration::from_secs(10)).unwrap();
            self.seen.extend(events);
        }
    }

    fn finish_of(&self, id: u64) -> Option<FinishReason> {
        self.seen.iter().find_map(|e| match e {
            Event::Finished { id: i, reason, .. } if *i == id => Some(*reason),
            _ => None,
        })
    }

    fn tokens_of(&self, id: u64) -> Vec<u32> {
        let token = |e: &Event| match e {
            Event::Token(t) if t.id == id => Some(t.token),
            _ => None,
        };
        self.seen.iter().filter_map(token).collect()
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        let _ = self.inputs.send(Input::Command(Command::Exit));
        if let Some(thread) = self.thread.take() {
            let ended = thread.join();
            assert!(ended.is_ok() || std::thread::panicking());
        }
    }
}

fn ended(id: u64) -> impl Fn(&Event) -> bool {
    move |e| matches!(e, Event::Finished { id: i, .. } | Event::Failed { id: i, .. } if *i == id)
}

#[test]
fn sequences_decode_together_and_each_counts_for_itself() {
    let mut rig = Rig::start(4, 8, Duration::ZERO);
    for id in 0..4 {
        rig.generate(id, vec![id as u32 * 5; 100], 6);
    }
    for id in 0..4 {
        rig.until(ended(id));
        assert_eq!(rig.tokens_of(id), (1..=6).map(|n| id as u32 * 5 + n).collect::<Vec<_>>());
        assert_eq!(rig.finish_of(id), Some(FinishReason::Length));
    }
}

#[test]
fn one_failing_request_hurts_no_other() {
    let mut rig = Rig::start(4, 8, Duration::from_millis(1));
    rig.generate(1, vec![1], 25);
    rig.generate(2, vec![POISON - 5], 25);
    rig.generate(3, vec![3], 25);
    for id in [1, 2, 3] {
        rig.until(ended(id));
    }
    assert_eq!(rig.tokens_of(1), (2..=26).collect::<Vec<_>>());
    assert_eq!(rig.tokens_of(3), (4..=28).collect::<Vec<_>>());
    let failed = rig.seen.iter().find(|e| matches!(e, Event::Failed { .. })).unwrap();
    assert!(matches!(failed, Event::Failed { id: 2, kind: FailureKind::Internal, .. }), "{failed:?}");
}

#[test]
fn pause_holds_every_request_and_resume_goes_on_where_it_stood() {
    let mut rig = Rig::start(4, 8, Duration::from_millis(1));
    rig.generate(1, vec![1], 30);
    rig.until(|e| matches!(e, Event::Token(_)));
    rig.send(Command::Pause);
    rig.until(|e| matches!(e, Event::Paused));
    let before = rig.tokens_of(1).len();
    rig.generate(2, vec![1], 3);
    rig.send(Command::Pause);
    rig.until(|e| matches!(e, Event::Refused { .. }));
    std::thread::sleep(Duration::from_millis(30));
    rig.send(Command::Stats { id: 9 });
    rig.until(|e| matches!(e, Event::Stats { stats, .. } if stats.paused && stats.waiting == 1 && stats.running == 1));
    assert_eq!(rig.tokens_of(1).len(), before);
    rig.send(Command::Resume);
    rig.until(ended(1));
    rig.until(ended(2));
    assert_eq!(rig.tokens_of(1), (2..=31).collect::<Vec<_>>());
    rig.send(Command::Resume);
    rig.until(|e| matches!(e, Event::Refused { command, state } if command == "Resume" && state == "Running"));
}

#[test]
fn cancel_ends_a_running_and_a_waiting_request() {
    let mut rig = Rig::start(1, 8, Duration::from_millis(1));
    rig.generate(1, vec![1], 10_000);
    rig.generate(2, vec![1], 5);
    rig.until(|e| matches!(e, Event::Token(_)));
    rig.send(Command::Cancel { id: 2 });
    rig.until(ended(2));
    rig.send(Command::Cancel { id: 1 });
    rig.send(Command::Cancel { id: 77 });
    rig.until(ended(1));
    assert_eq!(rig.finish_of(1), Some(FinishReason::Aborted));
    assert_eq!(rig.finish_of(2), Some(FinishReason::Aborted));
    rig.generate(3, vec![1], 2);
    rig.until(ended(3));
    assert_eq!(rig.finish_of(3), Some(FinishReason::Length));
}

#[test]
fn a_full_queue_refuses_and_the_end_of_inputs_aborts() {
    let mut rig = Rig::start(1, 1, Duration::from_millis(1));
    rig.generate(1, vec![1], 10_000);
    rig.until(|e| matches!(e, Event::Started { .. }));
    rig.generate(2, vec![1], 5);
    rig.until(|e| matches!(e, Event::Queued { id: 2 }));
    rig.generate(3, vec![1], 5);
    rig.until(ended(3));
    assert!(!rig.seen.contains(&Event::Queued { id: 3 }));
    assert!(rig.seen.iter().any(|e| matches!(e, Event::Failed { id: 3, kind: FailureKind::Busy, .. })));
    rig.send(Command::Exit);
    rig.until(ended(1));
    rig.until(ended(2));
    assert_eq!(rig.finish_of(1), Some(FinishReason::Aborted));
}

#[test]
fn requests_under_different_adapters_share_steps_and_keep_to_their_own() {
    let mut rig = Rig::start(4, 8, Duration::ZERO);
    rig.load(100, "gen-1", 1);
    rig.load(101, "gen-2", 2);
    rig.submit(1, vec![10], 5, Some("gen-1"), false);
    rig.submit(2, vec![10], 5, Some("gen-2"), false);
    rig.submit(3, vec![10], 5, None, false);
    rig.submit(4, vec![10], 5, Some("gen-3"), false);
    for id in 1..=4 {
        rig.until(ended(id));
    }
    assert_eq!(rig.tokens_of(1), [12, 14, 16, 18, 20]);
    assert_eq!(rig.tokens_of(2), [13, 16, 19, 22, 25]);
    assert_eq!(rig.tokens_of(3), [11, 12, 13, 14, 15]);
    assert!(matches!(rig.failure_of(4), Some((FailureKind::Invalid, m)) if m.contains("gen-3 is not loaded")));
}

#[test]
fn an_adapter_is_dropped_when_its_last_request_has_ended() {
    let mut rig = Rig::start(1, 8, Duration::from_millis(1));
    rig.load(100, "gen-1", 1);
    rig.submit(1, vec![1], 10, Some("gen-1"), false);
    rig.submit(2, vec![1], 10, Some("gen-1"), false);
    rig.send(Command::DropAdapter { id: 101, revision: "gen-1".to_owned() });
    // Promised before the drop: served to the end. Asked after it: refused.
    rig.submit(3, vec![1], 10, Some("gen-1"), false);
    rig.until(|e| matches!(e, Event::AdapterDropped { id: 101, .. }));
    for id in [1, 2] {
        assert_eq!(rig.tokens_of(id), (1..=10).map(|n| 1 + 2 * n).collect::<Vec<_>>());
    }
    assert!(matches!(rig.failure_of(3), Some((FailureKind::Invalid, _))));
    rig.send(Command::DropAdapter { id: 102, revision: "gen-1".to_owned() });
    rig.until(ended(102));
}

#[test]
fn a_name_stands_for_one_content_and_there_are_so_many() {
    let mut rig = Rig::start(2, 8, Duration::ZERO);
    rig.load(100, "a", 1);
    rig.load(101, "a", 1);
    rig.load(102, "a", 2);
    for n in 0..16 {
        rig.load(200 + n, &format!("gen-{n}"), 1);
    }
    rig.until(ended(215));
    let loaded = |rig: &Rig, id| rig.seen.iter().any(|e| matches!(e, Event::AdapterLoaded { id: i, .. } if *i == id));
    assert!(loaded(&rig, 100) && loaded(&rig, 101) && loaded(&rig, 214));
    assert!(matches!(rig.failure_of(102), Some((FailureKind::Invalid, m)) if m.contains("another content")));
    assert!(matches!(rig.failure_of(215), Some((FailureKind::Busy, _))));
    // Loaded again while a request still holds it: the drop is off.
    rig.submit(1, vec![1], 100_000, Some("a"), false);
    rig.until(|e| matches!(e, Event::Token(t) if t.id == 1));
    rig.send(Command::DropAdapter { id: 300, revision: "a".to_owned() });
    rig.load(301, "a", 1);
    rig.until(ended(300));
    assert!(loaded(&rig, 301));
    rig.submit(2, vec![1], 3, Some("a"), false);
    rig.until(ended(2));
    assert_eq!(rig.tokens_of(2), [3, 5, 7]);
}

#[test]
fn background_requests_leave_a_sequence_free_and_give_theirs_to_live_ones() {
    let mut rig = Rig::start(4, 64, Duration::from_millis(1));
    for id in 100..132 {
        rig.submit(id, vec![41 + id as u32 % 5; 100], 17, None, true);
    }
    rig.until(|e| matches!(e, Event::Token(t) if t.id == 102));
    assert_eq!(rig.seen_by_backend.lock().unwrap().open_max, 3);
    // Four live requests at once need all four sequences: they are served from the next step on, each step.
    rig.send(Command::Pause);
    rig.until(|e| matches!(e, Event::Paused));
    let before = rig.seen_by_backend.lock().unwrap().steps.len();
    for id in 1..=4 {
        rig.generate(id, vec![0], 10);
    }
    rig.send(Command::Resume);
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
    let rows = |first: u32| vec![EvalRow { ids: vec![first; 3000], scored_from: 1 }; 6];
    rig.send(Command::Evaluate { id: 100, adapter: None, rows: rows(7), with_kl: false });
    rig.send(Command::Evaluate { id: 101, adapter: None, rows: rows(8), with_kl: false });
    for id in 1..=4 {
        rig.generate(id, vec![1], 20);
    }
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
    // Cancelled, refused, forgotten.
    rig.send(probe(15, 1, &[0.0; 4096]));
    rig.send(Command::Cancel { id: 15 });
    rig.until(ended(15));
    rig.send(probe(16, 1, &[f32::NAN]));
    rig.send(probe(17, 1, &[]));
    rig.send(Command::DropCandidate { id: 18, candidate: "a".to_owned() });
    rig.send(probe(19, 1, &[0.0]));
    for id in [16, 17, 19] {
        rig.until(ended(id));
    }
    rig.send(Command::Stats { id: 20 });
    rig.until(|e| matches!(e, Event::Stats { id: 20, stats } if stats.background == 0 && stats.running == 0));
}
