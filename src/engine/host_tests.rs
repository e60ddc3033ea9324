//! The step loop over a counting model: each token is followed by its successor, and `POISON` breaks the step.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::backend::{Backend, BackendError, Chunk, ModelInfo, Output, Rows, SeqId};
use super::control::{ReplyControl, ReplyLimits};
use super::host::{Host, HostLimits, Input};
use super::protocol::{Command, Event, FailureKind};
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
    last: HashMap<u32, (usize, u32)>,
    opened: u32,
    step_time: Duration,
}

impl Backend for Counting {
    fn info(&self) -> &ModelInfo {
        &self.info
    }

    fn open(&mut self) -> Result<SeqId, BackendError> {
        self.opened += 1;
        self.last.insert(self.opened, (0, 0));
        Ok(SeqId(self.opened))
    }

    fn close(&mut self, seq: SeqId) {
        self.last.remove(&seq.0);
    }

    fn held(&self, seq: SeqId) -> usize {
        self.last.get(&seq.0).map_or(0, |s| s.0)
    }

    fn step(&mut self, batch: &[Chunk<'_>], out: &mut Output) -> Result<(), BackendError> {
        std::thread::sleep(self.step_time);
        out.clear();
        if batch.iter().any(|c| c.tokens.contains(&POISON)) {
            return Err(BackendError::Compute("poisoned".to_owned()));
        }
        for chunk in batch {
            let last = chunk.tokens[chunk.tokens.len() - 1];
            let state = self.last.get_mut(&chunk.seq.0).ok_or(BackendError::UnknownSequence(chunk.seq.0))?;
            *state = (state.0 + chunk.tokens.len(), last);
            if chunk.rows != Rows::None {
                let start = out.logits.len();
                out.logits.resize(start + VOCAB, 0.0);
                out.logits[start + (last as usize + 1) % VOCAB] = 9.0;
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

fn info(sequences_max: usize) -> ModelInfo {
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

struct Rig {
    inputs: SyncSender<Input>,
    events: Receiver<Vec<Event>>,
    seen: Vec<Event>,
    thread: Option<JoinHandle<()>>,
}

impl Rig {
    fn start(sequences_max: usize, waiting_max: usize, step_time: Duration) -> Rig {
        let backend = Counting { info: info(sequences_max), last: HashMap::new(), opened: 0, step_time };
        let host = Host::new(Box::new(backend), Arc::new(Letters), HostLimits { waiting_max, step_tokens_max: 64 });
        let (inputs, from_us) = sync_channel(64);
        let (to_us, events) = sync_channel(4096);
        let thread = std::thread::spawn(move || host.run(&from_us, &to_us));
        Rig { inputs, events, seen: Vec::new(), thread: Some(thread) }
    }

    fn generate(&self, id: u64, ids: Vec<u32>, max_tokens: u32) {
        let sampling = Sampling { temperature: 0.0, ..Sampling::default() };
        let limits = ReplyLimits { max_tokens, stop: &[], thinking: Thinking::Template, ignore_end: true };
        let job = Prepared {
            id,
            seed: 0,
            sampler: Sampler::new(&sampling, VOCAB, &ids).unwrap(),
            control: ReplyControl::new(&Letters, limits, false).unwrap(),
            ids,
            received: Instant::now(),
        };
        self.inputs.send(Input::Prepared(Box::new(job))).unwrap();
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
    rig.generate(3, vec![1], 5);
    rig.until(ended(3));
    assert!(rig.seen.iter().any(|e| matches!(e, Event::Failed { id: 3, kind: FailureKind::Busy, .. })));
    rig.send(Command::Exit);
    rig.until(ended(1));
    rig.until(ended(2));
    assert_eq!(rig.finish_of(1), Some(FinishReason::Aborted));
}
