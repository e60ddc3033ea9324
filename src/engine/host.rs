//! The step loop: owns the model and every admitted request, and is in exactly one state.
//!
//! - `Running`: admits, steps, samples. Takes every command but `Resume`.
//! - `Paused`: keeps every request where it stands (a token boundary) and queues new ones. Takes every command but
//!   `Pause`.
//! - `Finished`: nothing more; what ran was aborted.
//!
//! A command that the state does not allow is refused by name. One request's failure ends that request alone.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TryRecvError};
use std::time::{Duration, Instant};

use super::backend::{Backend, BackendError, Chunk, Output, Rows, SeqId};
use super::batch::{self, Share};
use super::protocol::{Command, EngineStats, Event, FailureKind, RequestId};
use super::slot::{Prepared, Slot};
use super::vocab::Vocab;

/// What reaches the step loop, in the order the daemon sent it.
pub enum Input {
    Prepared(Box<Prepared>),
    /// A command that needs the loop: cancel, pause, resume, stats, exit.
    Command(Command),
}

/// Limits of the loop.
#[derive(Clone, Copy, Debug)]
pub struct HostLimits {
    /// Requests waiting for a sequence; more are refused as busy.
    pub waiting_max: usize,
    /// Tokens fed in one step, prompts and decoding together.
    pub step_tokens_max: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Running,
    Paused,
    Finished,
}

/// Stands in for the sequence of a request that never got one.
const NO_SEQUENCE: SeqId = SeqId(u32::MAX);

/// Events are handed over a step at a time.
pub type Events = SyncSender<Vec<Event>>;

pub struct Host {
    backend: Box<dyn Backend>,
    vocab: Arc<dyn Vocab>,
    limits: HostLimits,
    state: State,
    waiting: VecDeque<Prepared>,
    slots: Vec<Slot>,
    output: Output,
    stats: EngineStats,
}

impl Host {
    pub fn new(backend: Box<dyn Backend>, vocab: Arc<dyn Vocab>, limits: HostLimits) -> Host {
        Host {
            backend,
            vocab,
            limits,
            state: State::Running,
            waiting: VecDeque::new(),
            slots: Vec::new(),
            output: Output::default(),
            stats: EngineStats::default(),
        }
    }

    /// Runs until `Exit`, the end of the inputs, or a reader of events that is gone.
    pub fn run(mut self, inputs: &Receiver<Input>, events: &Events) {
        let mut out = Vec::new();
        while self.state != State::Finished {
            self.receive(inputs, &mut out);
            if self.state == State::Running {
                self.admit(&mut out);
                self.step(&mut out);
            }
            if !out.is_empty() && events.send(std::mem::take(&mut out)).is_err() {
                return;
            }
        }
        self.abort_all(&mut out);
        let _ = events.send(out);
    }

    fn busy(&self) -> bool {
        self.state == State::Running && (!self.slots.is_empty() || !self.waiting.is_empty())
    }

    /// Takes every input that is there; waits for one only when there is nothing to compute.
    fn receive(&mut self, inputs: &Receiver<Input>, out: &mut Vec<Event>) {
        if !self.busy() && out.is_empty() {
            // Woken now and then only so that a lost wake-up could never hang the engine.
            match inputs.recv_timeout(Duration::from_secs(60)) {
                Ok(input) => self.take(input, out),
                Err(RecvTimeoutError::Timeout) => return,
                Err(RecvTimeoutError::Disconnected) => self.state = State::Finished,
            }
        }
        loop {
            match inputs.try_recv() {
                Ok(input) => self.take(input, out),
                Err(TryRecvError::Empty) => return,
                Err(TryRecvError::Disconnected) => {
                    self.state = State::Finished;
                    return;
                }
            }
        }
    }

    fn take(&mut self, input: Input, out: &mut Vec<Event>) {
        match input {
            Input::Prepared(job) => self.enqueue(*job, out),
            Input::Command(Command::Cancel { id }) => self.cancel(id, out),
            Input::Command(Command::Pause) if self.state == State::Running => {
                self.state = State::Paused;
                out.push(Event::Paused);
            }
            Input::Command(Command::Resume) if self.state == State::Paused => {
                self.state = State::Running;
                out.push(Event::Resumed);
            }
            Input::Command(Command::Stats { id }) => out.push(Event::Stats { id, stats: self.stats() }),
            Input::Command(Command::Exit) => self.state = State::Finished,
            Input::Command(other) => {
                let name = format!("{other:?}");
                let name = name.split([' ', '(', '{']).next().unwrap_or_default().to_owned();
                out.push(Event::Refused { command: name, state: format!("{:?}", self.state) });
            }
        }
    }

    fn enqueue(&mut self, job: Prepared, out: &mut Vec<Event>) {
        if self.waiting.len() >= self.limits.waiting_max {
            let message = format!("{} requests are already waiting: try again later", self.waiting.len());
            out.push(Event::Failed { id: job.id, kind: FailureKind::Busy, message });
        } else {
            self.waiting.push_back(job);
        }
    }

    fn cancel(&mut self, id: RequestId, out: &mut Vec<Event>) {
        if let Some(at) = self.slots.iter().position(|s| s.id == id) {
            let event = self.slots[at].aborted();
            self.retire(at);
            out.push(event);
        } else if let Some(at) = self.waiting.iter().position(|j| j.id == id)
            && let Some(job) = self.waiting.remove(at)
        {
            out.push(Slot::new(job, NO_SEQUENCE).aborted());
        }
    }

    /// Gives waiting requests a sequence, in order of arrival, while there is one.
    fn admit(&mut self, out: &mut Vec<Event>) {
        let sequences_max = self.backend.info().sequences_max;
        while self.slots.len() < sequences_max
            && let Some(job) = self.waiting.pop_front()
        {
            match self.backend.open() {
                Ok(seq) => {
                    let started =
                        Event::Started { id: job.id, prompt_ids: job.ids.clone(), cached_tokens: 0, seed: job.seed };
                    out.push(started);
                    self.slots.push(Slot::new(job, seq));
                }
                Err(error) => {
                    let message = format!("no sequence could be opened: {error}");
                    out.push(Event::Failed { id: job.id, kind: FailureKind::Internal, message });
                }
            }
        }
    }

    /// One step for every admitted request that has something to feed.
    fn step(&mut self, out: &mut Vec<Event>) {
        let demands: Vec<_> = self.slots.iter().map(Slot::demand).collect();
        let shares = batch::plan(&demands, self.limits.step_tokens_max);
        if shares.is_empty() {
            return;
        }
        let began = Instant::now();
        if self.feed(&shares).is_ok() {
            self.harvest(&shares, out);
        } else {
            self.step_one_by_one(&shares, out);
        }
        self.stats.steps += 1;
        self.stats.step_ms_sum += began.elapsed().as_secs_f64() * 1e3;
    }

    fn feed(&mut self, shares: &[Share]) -> Result<(), BackendError> {
        let chunks: Vec<_> = shares
            .iter()
            .map(|share| {
                let slot = &self.slots[share.slot];
                Chunk { seq: slot.seq, tokens: slot.next(share.tokens), rows: share.rows, hidden: false }
            })
            .collect();
        self.backend.step(&chunks, &mut self.output)
    }

    /// Hands the rows of a step to their requests and closes those that ended.
    fn harvest(&mut self, shares: &[Share], out: &mut Vec<Event>) {
        let width = self.backend.info().vocab;
        let mut rows = self.output.logits.chunks_exact_mut(width.max(1));
        let mut ended = Vec::new();
        for share in shares {
            let slot = &mut self.slots[share.slot];
            slot.advance(share.tokens);
            if share.rows == Rows::None {
                continue;
            }
            let done = match rows.next() {
                Some(row) => slot.take_row(row, self.vocab.as_ref(), out),
                None => {
                    out.push(slot.failed(FailureKind::Internal, "the model returned no logits".to_owned()));
                    true
                }
            };
            if done {
                ended.push(share.slot);
            }
        }
        ended.sort_unstable_by(|a, b| b.cmp(a));
        for at in ended {
            self.retire(at);
        }
    }

    /// After a step that failed as a whole: each request alone, so that only the guilty one ends.
    fn step_one_by_one(&mut self, shares: &[Share], out: &mut Vec<Event>) {
        let mut guilty = Vec::new();
        let mut fed = Vec::new();
        for share in shares {
            match self.feed(std::slice::from_ref(share)) {
                Ok(()) => fed.push((*share, self.output.clone())),
                Err(error) => {
                    out.push(self.slots[share.slot].failed(FailureKind::Internal, error.to_string()));
                    guilty.push(share.slot);
                }
            }
        }
        // Rows are handed out before anything is retired, so that slot indices stay true.
        let (shares, outputs): (Vec<_>, Vec<_>) = fed.into_iter().unzip();
        self.output.clear();
        for output in outputs {
            self.output.logits.extend_from_slice(&output.logits);
        }
        let ids: Vec<_> = guilty.iter().map(|&at| self.slots[at].id).collect();
        self.harvest(&shares, out);
        for id in ids {
            if let Some(at) = self.slots.iter().position(|s| s.id == id) {
                self.retire(at);
            }
        }
    }

    fn retire(&mut self, at: usize) {
        let slot = self.slots.remove(at);
        self.stats.prompt_tokens += u64::from(slot.prompt_tokens());
        self.stats.generated_tokens += u64::from(slot.completion_tokens());
        self.backend.close(slot.seq);
    }

    fn abort_all(&mut self, out: &mut Vec<Event>) {
        while let Some(slot) = self.slots.last_mut() {
            out.push(slot.aborted());
            self.retire(self.slots.len() - 1);
        }
        for job in std::mem::take(&mut self.waiting) {
            out.push(Slot::new(job, NO_SEQUENCE).aborted());
        }
    }

    fn stats(&self) -> EngineStats {
        let live = |f: fn(&Slot) -> u32| self.slots.iter().map(|s| u64::from(f(s))).sum::<u64>();
        EngineStats {
            running: self.slots.len() as u32,
            waiting: self.waiting.len() as u32,
            paused: self.state == State::Paused,
            prompt_tokens: self.stats.prompt_tokens + live(Slot::prompt_tokens),
            generated_tokens: self.stats.generated_tokens + live(Slot::completion_tokens),
            ..self.stats
        }
    }
}
