//! The step loop over a counting model: each token is followed by its successor, and `POISON` breaks the step.

mod background;
mod likelihood;
mod shares;

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
/// Feeding this id loses the device.
const FATAL: u32 = 900;
pub(super) const END: u32 = 63;
/// What is waited for comes at once on an idle machine; only a test that fails waits for so long on a busy one.
const PATIENCE: Duration = Duration::from_secs(180);

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
    replays: bool,
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

    fn replays(&self) -> bool {
        self.replays
    }

    fn held(&self, seq: SeqId) -> usize {
        self.last.get(&seq.0).map_or(0, Vec::len)
    }

    fn step(&mut self, batch: &[Chunk<'_>], out: &mut Output) -> Result<(), BackendError> {
        std::thread::sleep(self.step_time);
        out.clear();
        if batch.iter().any(|c| c.tokens.contains(&FATAL)) {
            return Err(BackendError::Lost("a fault".to_owned()));
        }
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
                Rows::Last | Rows::Likeliest { .. } => 1,
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

pub(super) struct Letters;

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
    thread: Option<JoinHandle<Result<(), BackendError>>>,
}

fn counting(sequences_max: usize, step_time: Duration, seen: Arc<Mutex<Seen>>) -> Counting {
    Counting {
        info: info(sequences_max),
        last: HashMap::new(),
        opened: 0,
        step_time,
        adapters: Vec::new(),
        under: HashMap::new(),
        seen,
        replays: true,
    }
}

impl Rig {
    fn start(sequences_max: usize, waiting_max: usize, step_time: Duration) -> Rig {
        let backend = counting(sequences_max, step_time, Arc::default());
        Rig::over(backend, waiting_max)
    }

    fn over(backend: Counting, waiting_max: usize) -> Rig {
        let seen_by_backend = backend.seen.clone();
        let limits = HostLimits { waiting_max, step_tokens_max: 64, ..HostLimits::default() };
        let host = Host::new(Box::new(backend), Arc::new(Letters), limits);
        let (inputs, from_us) = sync_channel(64);
        let (to_us, events) = sync_channel(4096);
        let thread = std::thread::spawn(move || host.run(&from_us, &to_us));
        Rig { seen_by_backend, inputs, events, seen: Vec::new(), thread: Some(thread) }
    }

    fn generate(&self, id: u64, ids: Vec<u32>, max_tokens: u32) {
        self.submit(id, ids, max_tokens, None, false);
    }

    fn submit(&self, id: u64, ids: Vec<u32>, max_tokens: u32, adapter: Option<&str>, background: bool) {
        let job = Rig::job(id, ids, max_tokens, None);
        let job = Prepared { adapter: adapter.map(str::to_owned), background, ..job };
        self.inputs.send(Input::Prepared(Box::new(job))).unwrap();
    }

    /// `logprobs`: of the prompt's tokens too.
    fn job(id: u64, ids: Vec<u32>, max_tokens: u32, logprobs: Option<u8>) -> Prepared {
        let sampling = Sampling { temperature: 0.0, logprobs, ..Sampling::default() };
        let limits = ReplyLimits { max_tokens, stop: &[], thinking: Thinking::Template, ignore_end: true };
        Prepared {
            id,
            seed: 0,
            sampler: Sampler::new(&sampling, VOCAB, &ids).unwrap(),
            control: ReplyControl::new(&Letters, limits, false).unwrap(),
            ids,
            engram: None,
            constraint: None,
            received: Instant::now(),
            adapter: None,
            background: false,
            principal: String::new(),
            prefix_owner: None,
            prompt_logprobs: logprobs.is_some(),
        }
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
            let events = self.events.recv_timeout(PATIENCE).unwrap();
            self.seen.extend(events);
        }
    }

    /// Nothing is computed from here to `go_on`: what is sent meanwhile is there together, however late this thread is.
    fn hold(&mut self) {
        self.seen.retain(|e| !matches!(e, Event::Paused));
        self.send(Command::Pause);
        self.until(|e| matches!(e, Event::Paused));
    }

    fn go_on(&self) {
        self.send(Command::Resume);
    }

    /// A request that ends when it is told to: the odd numbers, over and over.
    fn endless(&mut self, id: u64) {
        if !self.seen.iter().any(|e| matches!(e, Event::AdapterLoaded { revision, .. } if revision == "odd")) {
            self.load(999, "odd", 1);
            self.until(|e| matches!(e, Event::AdapterLoaded { .. }));
        }
        self.submit(id, vec![1], 1_000_000, Some("odd"), false);
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
fn a_lost_device_ends_the_loop_and_everybody_hears() {
    let mut rig = Rig::start(2, 8, Duration::from_millis(1));
    rig.endless(1);
    rig.until(|e| matches!(e, Event::Token(_)));
    rig.generate(2, vec![FATAL], 25);
    rig.generate(3, vec![3], 25);
    for id in [1, 2, 3] {
        let told = |e: &Event| matches!(e, Event::Failed { id: told, kind: FailureKind::Internal, message } if *told == id && message.contains("device was lost"));
        rig.until(told);
    }
    let ended = rig.thread.take().unwrap().join().unwrap();
    assert!(matches!(ended, Err(BackendError::Lost(_))), "{ended:?}");
}

#[test]
fn pause_holds_every_request_and_resume_goes_on_where_it_stood() {
    let mut rig = Rig::start(4, 8, Duration::from_millis(1));
    rig.endless(1);
    rig.until(|e| matches!(e, Event::Token(_)));
    rig.hold();
    let before = rig.tokens_of(1).len();
    rig.generate(2, vec![1], 3);
    rig.send(Command::Pause);
    rig.until(|e| matches!(e, Event::Refused { .. }));
    std::thread::sleep(Duration::from_millis(30));
    rig.send(Command::Stats { id: 9 });
    rig.until(|e| matches!(e, Event::Stats { stats, .. } if stats.paused && stats.waiting == 1 && stats.running == 1));
    assert_eq!(rig.tokens_of(1).len(), before);
    rig.go_on();
    rig.until(ended(2));
    rig.send(Command::Cancel { id: 1 });
    rig.until(ended(1));
    let told = rig.tokens_of(1);
    assert!(told.len() >= before + 3, "{} tokens, {before} before", told.len());
    assert!(told.iter().enumerate().all(|(n, token)| *token == (2 * n as u32 + 3) % VOCAB as u32), "{told:?}");
    rig.send(Command::Resume);
    rig.until(|e| matches!(e, Event::Refused { command, state } if command == "Resume" && state == "Running"));
}

#[test]
fn cancel_ends_a_running_and_a_waiting_request() {
    let mut rig = Rig::start(1, 8, Duration::from_millis(1));
    rig.endless(1);
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
    rig.endless(1);
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
    rig.hold();
    rig.submit(1, vec![1], 1_000, Some("a"), false);
    rig.send(Command::DropAdapter { id: 300, revision: "a".to_owned() });
    rig.load(301, "a", 1);
    rig.until(|e| matches!(e, Event::AdapterLoaded { id: 301, .. }));
    rig.go_on();
    rig.until(ended(300));
    rig.submit(2, vec![1], 3, Some("a"), false);
    rig.until(ended(2));
    assert_eq!(rig.tokens_of(2), [3, 5, 7]);
}
