//! The engine loop: owns the model and every admitted request, and is in exactly one state.
//!
//! - `Running`: admits, steps, samples. Takes every command but `Resume`.
//! - `Paused`: keeps every request where it stands (a token boundary), queues new ones. Takes every command but
//!   `Pause`.
//! - `Finished`: nothing more; what ran was aborted.
//!
//! A command that the state does not allow is refused by name. One request's failure ends that request alone.
//! Background work (requests marked so, evaluations) is admitted while no live request waits and one sequence stays
//! free. A live request that finds no free sequence takes the one of the youngest background work. If there is none, the
//! youngest reply of a key with two more gives way.

mod background;
mod embed;
mod ending;
mod prefixes;
mod rows;
mod shares;

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TryRecvError};
use std::time::{Duration, Instant};

use super::adapter::Candidate;
use super::backend::{AdapterId, Backend, BackendError, Budget, Output, StepTokens};
use super::batch::{self, Demand, Share};
use super::evaluate::{self, Evaluations};
use super::grammar::FormCounts;
use super::prefix::{Keeper, PrefixLimits, Prefixes};
use super::probe::Candidates;
use super::protocol::{Command, EngineStats, Event, FailureKind, RequestId};
use super::revisions::{Arrived, Revisions};
use super::slot::{Prepared, Slot};
use super::vocab::Vocab;
use crate::fair::Rounds;

/// What reaches the step loop, in the order the daemon sent it.
pub enum Input {
    Prepared(Box<Prepared>),
    /// An adapter that was read and checked.
    Adapter(Box<Arrived>),
    Candidate {
        id: RequestId,
        name: String,
        candidate: Box<Candidate>,
    },
    /// A text for an embedding model, as ids.
    Embed {
        id: RequestId,
        ids: Vec<u32>,
    },
    /// A command that needs the loop: cancel, pause, resume, stats, exit, drop, evaluate, forget, candidates.
    Command(Command),
}

/// Limits of the loop.
#[derive(Clone, Copy, Debug, Default)]
pub struct HostLimits {
    /// Requests waiting for a sequence, live and background each; more are refused as busy.
    pub waiting_max: usize,
    /// Tokens fed in one step while a reply is being written, prompts and decoding together; 0 = what suits the backend.
    /// So a reply waits for no more than so many tokens of somebody's prompt between two of its own.
    pub step_tokens_max: usize,
    pub prefixes: PrefixLimits,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Running,
    Paused,
    Finished,
}

/// Events are handed over a step at a time.
pub type Events = SyncSender<Vec<Event>>;

pub struct Host {
    backend: Box<dyn Backend>,
    vocab: Arc<dyn Vocab>,
    limits: HostLimits,
    state: State,
    /// Live requests without a sequence, new and suspended.
    waiting: VecDeque<Slot>,
    /// Which key got a sequence when.
    rounds: Rounds,
    /// Whose prompts were read when.
    reads: Rounds,
    /// Background requests without a sequence, new and suspended.
    background: VecDeque<Slot>,
    slots: Vec<Slot>,
    evaluations: Evaluations,
    candidates: Candidates,
    revisions: Revisions,
    prefixes: Prefixes,
    /// Where they outlive this engine.
    keeper: Option<Keeper>,
    /// By a daemon that waits for the end. Where it died its successor may be here already.
    told_to_exit: bool,
    output: Output,
    stats: EngineStats,
    /// Counted where forms are compiled.
    forms: Arc<FormCounts>,
    /// Why the loop cannot go on.
    lost: Option<BackendError>,
}

impl Host {
    pub fn new(backend: Box<dyn Backend>, vocab: Arc<dyn Vocab>, mut limits: HostLimits) -> Host {
        if backend.saved_size().is_some_and(|size| size.block == 0) {
            // Nothing is shared by two snapshots of a prompt: only those that are worth the most are taken.
            limits.prefixes.stride_tokens = usize::MAX;
        }
        if backend.saved_size().is_none() {
            tracing::info!("no prompt is kept with this model: `cached_tokens` is 0 in every reply");
        }
        Host {
            backend,
            vocab,
            limits,
            state: State::Running,
            waiting: VecDeque::new(),
            rounds: Rounds::default(),
            reads: Rounds::default(),
            background: VecDeque::new(),
            slots: Vec::new(),
            evaluations: Evaluations::default(),
            candidates: Candidates::default(),
            revisions: Revisions::default(),
            prefixes: Prefixes::new(limits.prefixes),
            keeper: None,
            told_to_exit: false,
            output: Output::default(),
            stats: EngineStats::default(),
            forms: Arc::default(),
            lost: None,
        }
    }

    /// Tells of these forms in its statistics.
    pub fn counting(mut self, forms: Arc<FormCounts>) -> Host {
        self.forms = forms;
        self
    }

    /// Runs until `Exit`, the end of the inputs, or a reader of events that is gone; an error: the device was lost.
    pub fn run(mut self, inputs: &Receiver<Input>, events: &Events) -> Result<(), BackendError> {
        let mut out = Vec::new();
        while self.state != State::Finished {
            self.receive(inputs, events, &mut out);
            if self.state == State::Running {
                self.admit(&mut out);
                self.step(&mut out);
            }
            if !out.is_empty() && events.send(std::mem::take(&mut out)).is_err() {
                break;
            }
        }
        self.abort_all(&mut out);
        let _ = events.send(out);
        if self.told_to_exit {
            self.save_prefixes();
        }
        self.lost.map_or(Ok(()), Err)
    }

    fn busy(&self) -> bool {
        let queued = self.waiting.len() + self.background.len() + self.evaluations.len() + self.candidates.len();
        self.state == State::Running && (!self.slots.is_empty() || queued > 0)
    }

    /// Takes every input that is there; waits for one only when there is nothing to compute.
    fn receive(&mut self, inputs: &Receiver<Input>, events: &Events, out: &mut Vec<Event>) {
        if !self.busy() && out.is_empty() {
            // Woken now and then only so that a lost wake-up could never hang the engine.
            match inputs.recv_timeout(Duration::from_secs(60)) {
                Ok(input) => self.take(input, events, out),
                Err(RecvTimeoutError::Timeout) => return,
                Err(RecvTimeoutError::Disconnected) => self.state = State::Finished,
            }
        }
        loop {
            match inputs.try_recv() {
                Ok(input) => self.take(input, events, out),
                Err(TryRecvError::Empty) => return,
                Err(TryRecvError::Disconnected) => {
                    self.state = State::Finished;
                    return;
                }
            }
        }
    }

    fn take(&mut self, input: Input, events: &Events, out: &mut Vec<Event>) {
        match input {
            Input::Prepared(job) => self.enqueue(*job, out),
            Input::Adapter(arrived) => self.revisions.load(*arrived, self.backend.as_mut(), out),
            // Told at once: whoever waits for this one need not wait for the others that are here.
            Input::Embed { id, ids } => drop(events.send(vec![self.embed(id, &ids)])),
            Input::Candidate { id, name, candidate } => out.push(self.candidates.begin(id, name, *candidate)),
            Input::Command(
                command @ (Command::ProbeCandidate { .. }
                | Command::MoveCandidate { .. }
                | Command::SaveCandidate { .. }
                | Command::DropCandidate { .. }),
            ) => self.candidate(command, events, out),
            Input::Command(Command::DropAdapter { id, revision }) => {
                self.revisions.discard(id, &revision, self.backend.as_mut(), out);
            }
            Input::Command(Command::Evaluate { id, adapter, rows, with_kl }) => {
                if let Err((kind, message)) = self.evaluate(id, adapter, rows, with_kl, out) {
                    out.push(Event::Failed { id, kind, message });
                }
            }
            Input::Command(Command::Cancel { id }) => self.cancel(id, out),
            Input::Command(Command::Pause) if self.state == State::Running => {
                self.state = State::Paused;
                out.push(Event::Paused);
            }
            Input::Command(Command::Resume) if self.state == State::Paused => {
                self.state = State::Running;
                out.push(Event::Resumed);
            }
            Input::Command(Command::ForgetPrefixes { id, owner }) => self.forget_prefixes(id, owner.as_deref(), out),
            Input::Command(Command::Stats { id }) => out.push(Event::Stats { id, stats: Box::new(self.stats()) }),
            Input::Command(Command::Exit) => (self.state, self.told_to_exit) = (State::Finished, true),
            Input::Command(other) => {
                let name = format!("{other:?}");
                let name = name.split([' ', '(', '{']).next().unwrap_or_default().to_owned();
                out.push(Event::Refused { command: name, state: format!("{:?}", self.state) });
            }
        }
    }

    fn enqueue(&mut self, job: Prepared, out: &mut Vec<Event>) {
        let (id, sequences) = (job.id, self.backend.info().sequences_max);
        let mut refuse = |kind, message| out.push(Event::Failed { id, kind, message });
        if job.background && sequences < 2 {
            let message = "an engine of one sequence takes no background requests: it needs two".to_owned();
            return refuse(FailureKind::Invalid, message);
        }
        let queue = if job.background { &mut self.background } else { &mut self.waiting };
        if queue.len() >= self.limits.waiting_max {
            let message = format!("{} requests are already waiting: try again later", queue.len());
            return refuse(FailureKind::Busy, message);
        }
        match job.adapter.as_deref().map(|revision| self.revisions.enter(revision)).transpose() {
            Ok(adapter) => {
                let content = |handle| self.revisions.content(handle).unwrap_or_default().to_owned();
                queue.push_back(Slot::new(job, adapter.map(|handle| (handle, content(handle)))));
                out.push(Event::Queued { id });
            }
            Err(message) => refuse(FailureKind::Invalid, message),
        }
    }

    fn cancel(&mut self, id: RequestId, out: &mut Vec<Event>) {
        if let Some(at) = self.slots.iter().position(|s| s.id == id) {
            out.push(self.slots[at].aborted());
            return self.retire(at, out);
        }
        let queues = [&mut self.waiting, &mut self.background];
        let found = queues.into_iter().find_map(|q| q.iter().position(|s| s.id == id).and_then(|at| q.remove(at)));
        if let Some(mut slot) = found {
            out.push(slot.aborted());
            self.account(&slot);
            return self.leave(slot.adapter, out);
        }
        if self.candidates.cancel(id, &mut self.evaluations, self.backend.as_mut()) {
            return out.push(evaluate::failed(id, FailureKind::Invalid, "the probe was cancelled".to_owned()));
        }
        if let Some(adapter) = self.evaluations.cancel(id, self.backend.as_mut()) {
            out.push(evaluate::failed(id, FailureKind::Invalid, "the evaluation was cancelled".to_owned()));
            self.leave(adapter, out);
        }
    }

    /// A request that was promised `adapter` has ended.
    fn leave(&mut self, adapter: Option<AdapterId>, out: &mut Vec<Event>) {
        if let Some(adapter) = adapter {
            self.revisions.leave(adapter, self.backend.as_mut(), out);
        }
    }

    /// Sequences that nobody uses.
    fn free(&self) -> usize {
        let used = self.slots.len() + self.evaluations.sequences();
        self.backend.info().sequences_max.saturating_sub(used)
    }

    /// Gives waiting requests a sequence: live ones while one is free or can be taken from background work or from a key
    /// that has more, background ones in order of arrival, while nobody waits and one stays free.
    fn admit(&mut self, out: &mut Vec<Event>) {
        while let Some(slot) = self.next_live() {
            self.start(slot, out);
        }
        if !self.waiting.is_empty() {
            return;
        }
        while self.free() > 1
            && let Some(slot) = self.background.pop_front()
        {
            self.start(slot, out);
        }
        let free = self.free().saturating_sub(1);
        self.start_probes(free, out);
        if let Err(error) = self.evaluations.admit(free, self.backend.as_mut()) {
            self.fail_evaluations(&format!("no sequence could be opened: {error}"), out);
        }
    }

    fn start(&mut self, mut slot: Slot, out: &mut Vec<Event>) {
        match self.begin(&mut slot) {
            Ok(seq) => {
                out.extend(slot.admit(seq));
                self.slots.push(slot);
            }
            Err(error) => {
                out.push(slot.failed(FailureKind::Internal, format!("no sequence could be opened: {error}")));
                self.account(&slot);
                self.leave(slot.adapter, out);
                if matches!(error, BackendError::Lost(_)) {
                    self.lose(error, out);
                }
            }
        }
    }

    /// One step for every admitted request that has something to feed, evaluations after the others.
    fn step(&mut self, out: &mut Vec<Event>) {
        let live = self.slots.iter().map(|slot| slot.demand(self.reads.served(&slot.principal)));
        let demands: Vec<_> = live.chain(self.evaluations.demands()).collect();
        let mut shares = batch::plan(&demands, &self.budget(&demands));
        if self.backend.finds_likeliest() {
            shares.iter_mut().for_each(|share| self.ask_likeliest(share));
        }
        if shares.is_empty() {
            return;
        }
        self.read(&demands, &shares);
        let began = Instant::now();
        match self.feed(&shares) {
            Ok(()) => {
                let output = std::mem::take(&mut self.output);
                let fed: Vec<_> = shares.iter().map(|s| (*s, self.rows_of(s))).collect();
                self.output = self.harvest(&fed, output, out);
            }
            Err(error @ BackendError::Lost(_)) => self.lose(error, out),
            Err(_) => self.step_one_by_one(&shares, out),
        }
        self.keep_prefixes(out);
        self.stats.steps += 1;
        self.stats.step_ms_sum += began.elapsed().as_secs_f64() * 1e3;
    }

    fn budget(&self, demands: &[Demand]) -> Budget {
        let mut suits = self.backend.step_tokens();
        if self.limits.step_tokens_max > 0 {
            suits = StepTokens { beside: self.limits.step_tokens_max, a_reply: None, short: 0, ..suits };
        }
        let live = || demands.iter().filter(|d| !d.background);
        suits.budget(live().filter(|d| d.decoding).count(), live().filter(|d| d.short(suits.short)).count())
    }

    fn feed(&mut self, shares: &[Share]) -> Result<(), BackendError> {
        let mut chunks = Vec::with_capacity(shares.len());
        for share in shares {
            match self.slots.get(share.slot) {
                Some(slot) => chunks.extend(slot.chunk(share)),
                None => chunks.extend(self.evaluations.chunks(share.slot - self.slots.len(), share)),
            }
        }
        self.backend.step(&chunks, &mut self.output)
    }

    fn retire(&mut self, at: usize, out: &mut Vec<Event>) {
        let slot = self.slots.remove(at);
        self.account(&slot);
        if let Some(seq) = slot.seq {
            self.backend.close(seq);
        }
        self.leave(slot.adapter, out);
    }

    /// What a request that ended cost.
    fn account(&mut self, slot: &Slot) {
        if slot.began() {
            self.stats.prompt_tokens += u64::from(slot.prompt_tokens());
            self.stats.generated_tokens += u64::from(slot.completion_tokens());
        }
    }

    fn stats(&self) -> EngineStats {
        let running = self.slots.iter().filter(|s| s.background).count();
        // A suspended request has cost what it had written.
        let began = || self.slots.iter().chain(&self.waiting).chain(&self.background).filter(|s| s.began());
        let live = |f: fn(&Slot) -> u32| began().map(|s| u64::from(f(s))).sum::<u64>();
        EngineStats {
            running: self.slots.len() as u32,
            waiting: self.waiting.len() as u32,
            paused: self.state == State::Paused,
            prompt_tokens: self.stats.prompt_tokens + live(Slot::prompt_tokens),
            generated_tokens: self.stats.generated_tokens + live(Slot::completion_tokens),
            adapters: self.revisions.len() as u32,
            background: (self.background.len() + running + self.evaluations.len() + self.candidates.len()) as u32,
            resident_bytes: resident_bytes(),
            snapshots: self.prefixes.len() as u32,
            snapshot_bytes: self.prefixes.bytes(),
            forms: self.forms.told(),
            offloaded: self.backend.offloaded(),
            ..self.stats
        }
    }
}

/// Memory that this process holds, model included; 0 where the system does not say.
fn resident_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let kib =
        status.lines().find_map(|line| line.strip_prefix("VmRSS:")?.split_whitespace().next()?.parse::<u64>().ok());
    kib.unwrap_or(0) << 10
}
