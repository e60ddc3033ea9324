//! The engine loop over tiny models on both native backends. A reply is the same, bit by bit, whatever was kept of
//! its prompt. No reply waits while a prompt is read.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use chimere_ffi::gpu::build_emulated;

use super::adapter::{Adapter, BaseModel, Recipe};
use super::backend::*;
use super::control::{ReplyControl, ReplyLimits};
use super::cpu::{Cpu, CpuOptions};
use super::cuda::{Cuda, CudaOptions};
use super::host::{Host, HostLimits, Input};
use super::host_tests::{END, Letters};
use super::model::tiny::{Random, Tiny};
use super::prefix::PrefixLimits;
use super::protocol::{Command, Event};
use super::revisions::Arrived;
use super::sampler::Sampler;
use super::slot::Prepared;
use crate::gguf::Gguf;
use crate::turn::{Sampling, Thinking};

const CONTEXT_TOKENS: usize = 512;
/// The emulated card is slow, and a busy machine slower.
const PATIENCE: Duration = Duration::from_secs(1_200);
/// Snapshots wherever they may lie.
const KEEP: PrefixLimits = PrefixLimits { bytes_max: 1 << 30, gain_tokens_min: 64, stride_tokens: 128 };

fn on_processor(path: &Path) -> Box<dyn Backend> {
    on_processor_with(path, CONTEXT_TOKENS)
}

fn on_processor_with(path: &Path, context_tokens: usize) -> Box<dyn Backend> {
    let options = CpuOptions { threads: 2, context_tokens, sequences_max: 4, ..Default::default() };
    Box::new(Cpu::load(path, &options, &mut |_| {}).unwrap())
}

#[cfg_attr(not(feature = "llama"), allow(dead_code))]
fn on_card(path: &Path) -> Box<dyn Backend> {
    on_card_with(path, CudaOptions::default())
}

#[cfg_attr(not(feature = "llama"), allow(dead_code))]
fn on_card_in_few_bytes(path: &Path) -> Box<dyn Backend> {
    use super::cpu::{KvType, StateType};
    on_card_with(path, CudaOptions { kv: KvType::Q8Q4, state: StateType::Bf16, ..Default::default() })
}

#[cfg_attr(not(feature = "llama"), allow(dead_code))]
fn on_card_with(path: &Path, options: CudaOptions) -> Box<dyn Backend> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let emulated = Some(build_emulated(&root.join("kernels"), &root.join("target")).unwrap());
    let (context_tokens, sequences_max) = (CONTEXT_TOKENS, 4);
    let options = CudaOptions { threads: 2, context_tokens, sequences_max, emulated, ..options };
    Box::new(Cuda::load(path, &options, &mut |_| {}).unwrap())
}

/// A token, the bits of its likelihood, and the next likeliest with theirs.
type Said = (u32, u32, Vec<(u32, u32)>);

/// What a request got, and how much was kept.
#[derive(Debug, Default, PartialEq)]
struct Answer {
    tokens: Vec<Said>,
    cached: u32,
}

#[derive(Clone, Copy, Default)]
struct Ask<'a> {
    seed: Option<u64>,
    owner: Option<&'a str>,
    adapter: Option<&'a str>,
    tokens: u32,
}

struct Rig {
    vocab: usize,
    inputs: SyncSender<Input>,
    events: Receiver<Vec<Event>>,
    seen: Vec<Event>,
    thread: Option<JoinHandle<Result<(), BackendError>>>,
}

impl Rig {
    fn start(backend: Box<dyn Backend>, prefixes: PrefixLimits, step_tokens_max: usize) -> Rig {
        let limits = HostLimits { waiting_max: 64, step_tokens_max, prefixes };
        let vocab = backend.info().vocab;
        let host = Host::new(backend, Arc::new(Letters), limits);
        let (inputs, from_us) = sync_channel(64);
        let (to_us, events) = sync_channel(1 << 16);
        let thread = std::thread::spawn(move || host.run(&from_us, &to_us));
        Rig { vocab, inputs, events, seen: Vec::new(), thread: Some(thread) }
    }

    fn send(&self, id: u64, ids: &[u32], ask: Ask<'_>) {
        self.inputs.send(self.job(id, ids, ask)).unwrap();
    }

    fn command(&self, command: Command) {
        self.inputs.send(Input::Command(command)).unwrap();
    }

    fn job(&self, id: u64, ids: &[u32], ask: Ask<'_>) -> Input {
        let temperature = if ask.seed.is_some() { 1.0 } else { 0.0 };
        let sampling = Sampling { temperature, seed: ask.seed, logprobs: Some(3), ..Sampling::default() };
        let limits = ReplyLimits { max_tokens: ask.tokens, stop: &[], thinking: Thinking::Template, ignore_end: true };
        let job = Prepared {
            id,
            ids: ids.to_vec(),
            seed: 0,
            sampler: Sampler::new(&sampling, self.vocab, ids).unwrap(),
            control: ReplyControl::new(&Letters, limits, false).unwrap(),
            engram: None,
            constraint: None,
            received: Instant::now(),
            adapter: ask.adapter.map(str::to_owned),
            background: false,
            principal: ask.owner.unwrap_or_default().to_owned(),
            prefix_owner: ask.owner.map(str::to_owned),
            prompt_logprobs: false,
        };
        Input::Prepared(Box::new(job))
    }

    fn until(&mut self, wanted: impl Fn(&Event) -> bool) {
        while !self.seen.iter().any(&wanted) {
            let events = self.events.recv_timeout(PATIENCE).unwrap();
            self.seen.extend(events);
        }
    }

    fn answer(&mut self, id: u64) -> Answer {
        self.until(|e| matches!(e, Event::Finished { id: i, .. } | Event::Failed { id: i, .. } if *i == id));
        let mut answer = Answer::default();
        for event in &self.seen {
            match event {
                Event::Token(t) if t.id == id => {
                    let top = t.top.iter().map(|l| (l.id, l.logprob.to_bits())).collect();
                    let own = t.logprob.as_ref().map_or(0, |l| l.logprob.to_bits());
                    answer.tokens.push((t.token, own, top));
                }
                Event::Started { id: i, cached_tokens, .. } if *i == id => answer.cached = *cached_tokens,
                Event::Finished { id: i, usage, .. } if *i == id => assert_eq!(usage.cached_tokens, answer.cached),
                Event::Failed { id: i, message, .. } if *i == id => panic!("{message}"),
                _ => {}
            }
        }
        answer
    }

    fn ask(&mut self, id: u64, ids: &[u32], ask: Ask<'_>) -> Answer {
        self.send(id, ids, ask);
        self.answer(id)
    }

    fn load(&mut self, id: u64, revision: &str, adapter: Adapter) {
        let facts = Box::new(adapter.facts(1, revision));
        self.inputs.send(Input::Adapter(Box::new(Arrived { id, revision: revision.into(), adapter, facts }))).unwrap();
        self.until(|e| matches!(e, Event::AdapterLoaded { id: i, .. } if *i == id));
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

/// A conversation of three turns, each the one before and more, and one that parts from it within the second. A message
/// ends in each.
fn prompts() -> [Vec<u32>; 4] {
    let mut words: Vec<u32> = Random(21).tokens(290).iter().map(|t| t % END).collect();
    for at in [70, 139, 215, 280] {
        words[at] = END;
    }
    let other = Random(22).tokens(100).into_iter().map(|t| t % END);
    let mut parted: Vec<u32> = words[..130].iter().copied().chain(other).collect();
    parted[200] = END;
    [words[..150].to_vec(), words[..230].to_vec(), words.clone(), parted]
}

/// Asks them by turns, and what was kept is to change nothing; returns how many tokens were kept each time.
fn same_bits(
    path: &Path,
    backend: fn(&Path) -> Box<dyn Backend>,
    prompts: &[Vec<u32>],
    seeds: &[Option<u64>],
) -> Vec<u32> {
    let mut cold = Rig::start(backend(path), PrefixLimits::default(), 0);
    let mut warm = Rig::start(backend(path), KEEP, 24);
    let (mut id, mut kept) = (0, Vec::new());
    for prompt in prompts {
        for &seed in seeds {
            id += 1;
            let ask = Ask { seed, owner: Some("me"), tokens: 4, ..Ask::default() };
            let (without, with) = (cold.ask(id, prompt, ask), warm.ask(id, prompt, ask));
            assert_eq!(without.cached, 0);
            assert_eq!(without.tokens, with.tokens, "{} tokens, {} kept", prompt.len(), with.cached);
            kept.push(with.cached);
        }
    }
    kept
}

#[test]
fn nobody_else_finds_what_was_kept() {
    let file = Tiny::default().write();
    let mut rig = Rig::start(on_processor(&file.path), KEEP, 0);
    let prompt = &prompts()[1];
    let mine = rig.ask(1, prompt, Ask { owner: Some("me"), tokens: 4, ..Ask::default() });
    for (id, owner) in [(2, Some("you")), (3, None)] {
        assert_eq!(rig.ask(id, prompt, Ask { owner, tokens: 4, ..Ask::default() }), mine);
    }
    let again = rig.ask(4, prompt, Ask { owner: Some("me"), tokens: 4, ..Ask::default() });
    assert_eq!((mine.cached, again.cached), (0, 216));
}

/// With what a sequence held kept aside, where it can be saved at any token and where it rarely can, and without.
#[test]
fn replies_that_gave_way_to_another_key_are_the_same_bits() {
    for tiny in [Tiny::default(), Tiny { value_heads: 16, ..Tiny::default() }] {
        let (file, prompt) = (tiny.write(), &prompts()[0]);
        for limits in [PrefixLimits::default(), KEEP] {
            // The replies are long enough to be under way still when the other key asks.
            let backend = on_processor_with(&file.path, 2 * CONTEXT_TOKENS);
            let ids = 2..2 + backend.info().sequences_max as u64;
            let mut rig = Rig::start(backend, limits, 24);
            let long = Ask { seed: Some(3), owner: Some("me"), tokens: 750, ..Ask::default() };
            let alone = rig.ask(1, prompt, long).tokens;
            ids.clone().for_each(|id| rig.send(id, prompt, long));
            rig.until(|e| matches!(e, Event::Token(t) if t.id == ids.end - 1));
            for id in 50..56 {
                rig.ask(id, prompt, Ask { owner: Some("you"), tokens: 2, ..Ask::default() });
            }
            ids.for_each(|id| assert_eq!(rig.answer(id).tokens, alone, "request {id}"));
            rig.command(Command::Stats { id: 99 });
            rig.until(|e| matches!(e, Event::Stats { stats, .. } if stats.suspended > 0));
        }
    }
}

/// Messages end at 71, 140 and 216 of the first two prompts, and at 281 of the third; the fourth parts at 130.
#[test]
fn replies_on_the_processor_are_the_same_bits_whatever_was_kept() {
    let kept = same_bits(&Tiny::default().write().path, on_processor, &prompts(), &[None, Some(5)]);
    assert_eq!(kept, [0, 140, 140, 216, 216, 281, 71, 201]);
    // By the chunked form, which sees blocks of 64 tokens.
    let chunked = Tiny { value_heads: 16, ..Tiny::default() };
    let kept = same_bits(&chunked.write().path, on_processor, &prompts(), &[None, Some(5)]);
    assert_eq!(kept, [0, 128, 128, 192, 192, 256, 128, 192]);
}

/// Quantised, with heads whose attention of many tokens runs on tensor cores, over a cache of halves, and of blocks with
/// states in bf16.
#[cfg(feature = "llama")]
#[test]
fn replies_on_a_card_are_the_same_bits_whatever_was_kept() {
    use crate::gguf::synthetic::{Qwen35Moe, Types};
    use chimere_ffi::DType;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("small.gguf");
    let types = Types { experts: DType::Q8_0, dense: DType::Q8_0, embedding: DType::Q8_0, head: Some(DType::Q8_0) };
    Qwen35Moe::small(types).build().unwrap().write(&path, 3, |_, _| {}).unwrap();
    // A message ends at 71. One rig reads a prompt at once, the other sixteen tokens at a time.
    let words = &prompts()[2];
    for card in [on_card, on_card_in_few_bytes] {
        assert_eq!(same_bits(&path, card, &[words[..110].to_vec(), words[..90].to_vec()], &[Some(5)]), [0, 71]);
    }
}

#[test]
fn what_was_kept_under_one_adapter_serves_no_other() {
    let file = Tiny::default().write();
    let base = BaseModel::new(&Gguf::open(&file.path).unwrap(), "hash");
    let adapter = |seed| Recipe { rank: 3, scale: 0.5, seed, targets: Vec::new(), last_layers: 0 }.make(&base).unwrap();
    let (mut cold, mut warm) = (
        Rig::start(on_processor(&file.path), PrefixLimits::default(), 0),
        Rig::start(on_processor(&file.path), KEEP, 0),
    );
    for rig in [&mut cold, &mut warm] {
        rig.load(100, "one", adapter(1));
        rig.load(101, "two", adapter(2));
    }
    let prompt = &prompts()[0];
    let mut said = Vec::new();
    for (id, (adapter, kept)) in
        [(None, 0), (Some("one"), 0), (Some("two"), 0), (Some("one"), 140), (None, 140), (Some("two"), 140)]
            .into_iter()
            .enumerate()
    {
        let ask = Ask { owner: Some("me"), adapter, tokens: 3, ..Ask::default() };
        let (without, with) = (cold.ask(id as u64, prompt, ask), warm.ask(id as u64, prompt, ask));
        assert_eq!((&without.tokens, kept), (&with.tokens, with.cached), "{adapter:?}");
        said.push(with.tokens);
    }
    assert!(said[0] != said[1] && said[1] != said[2] && said[0] != said[2], "the adapters do something");
}

#[test]
fn what_is_forgotten_is_read_again_and_what_was_under_way_leaves_nothing() {
    let file = Tiny::default().write();
    let mut rig = Rig::start(on_processor(&file.path), KEEP, 0);
    let (prompt, mine) = (&prompts()[1], Ask { owner: Some("me"), tokens: 2, ..Ask::default() });
    let yours = Ask { owner: Some("you"), ..mine };
    let said = rig.ask(1, prompt, mine).tokens;
    rig.ask(2, prompt, yours);
    assert_eq!([rig.ask(3, prompt, mine).cached, rig.ask(4, prompt, yours).cached], [216, 216]);
    // Asked before it is forgotten, and read after that: nothing is computed while the loop is paused.
    let other = &prompts()[3];
    rig.command(Command::Pause);
    rig.send(5, other, mine);
    rig.command(Command::ForgetPrefixes { id: 6, owner: Some("me".to_owned()) });
    rig.command(Command::Resume);
    rig.until(|e| matches!(e, Event::PrefixesForgotten { id: 6, snapshots } if *snapshots > 0));
    assert_eq!(rig.answer(5).cached, 0);
    assert_eq!([rig.ask(7, other, mine).cached, rig.ask(8, other, mine).cached], [0, 201], "only what came after it");
    let again = rig.ask(9, prompt, mine);
    assert_eq!((again.tokens, rig.ask(10, prompt, yours).cached), (said, 216), "nobody else's");
    rig.command(Command::ForgetPrefixes { id: 11, owner: None });
    assert_eq!([rig.ask(12, prompt, mine).cached, rig.ask(13, prompt, yours).cached], [0, 0], "everybody's");
}

/// Tokens of each chunk of a step.
type Steps = Arc<Mutex<Vec<Vec<usize>>>>;
/// What arrives as soon as two replies are being written, and where it arrives.
type Later = Arc<Mutex<Option<(SyncSender<Input>, Input)>>>;

/// A model that notes what it is fed, and wants few tokens beside replies and many alone.
struct Watched {
    model: Box<dyn Backend>,
    steps: Steps,
    later: Later,
    suits: StepTokens,
}

impl Backend for Watched {
    fn info(&self) -> &ModelInfo {
        self.model.info()
    }
    fn open(&mut self) -> Result<SeqId, BackendError> {
        self.model.open()
    }
    fn close(&mut self, seq: SeqId) {
        self.model.close(seq);
    }
    fn held(&self, seq: SeqId) -> usize {
        self.model.held(seq)
    }
    fn step_tokens(&self) -> StepTokens {
        self.suits
    }
    fn step(&mut self, batch: &[Chunk<'_>], out: &mut Output) -> Result<(), BackendError> {
        let fed: Vec<usize> = batch.iter().map(|c| c.tokens.len()).collect();
        if fed == [1, 1]
            && let Some((to, input)) = self.later.lock().unwrap().take()
        {
            to.send(input).unwrap();
        }
        self.steps.lock().unwrap().push(fed);
        self.model.step(batch, out)
    }
}

#[test]
fn replies_get_a_token_in_every_step_while_a_long_prompt_is_read() {
    let file = Tiny::default().write();
    let long: Vec<u32> = Random(3).tokens(300).iter().map(|t| t % END).collect();
    for (a_reply, step_tokens_max, wanted) in [
        (None, 0, &[128, 128, 44][..]),
        (None, 66, &[64, 64, 64, 64, 44]),
        // As much as the second of two replies is worth, but one cut at least, and what the owner says in spite of it.
        (Some(128), 0, &[128, 128, 44]),
        (Some(8), 0, &[64, 64, 64, 64, 44]),
        (Some(8), 130, &[128, 128, 44]),
    ] {
        let (steps, later) = (Steps::default(), Later::default());
        let (model, own) = (on_processor(&file.path), (steps.clone(), later.clone()));
        let suits = StepTokens { beside: 130, a_reply, short: 0, alone: 400, cut: 64 };
        let watched = Watched { model, steps: own.0, later: own.1, suits };
        let mut rig = Rig::start(Box::new(watched), PrefixLimits::default(), step_tokens_max);
        let alone = rig.ask(1, &long, Ask { tokens: 1, ..Ask::default() });
        assert_eq!(steps.lock().unwrap()[..], [[300]], "nobody waits: it is read at once");
        *later.lock().unwrap() = Some((rig.inputs.clone(), rig.job(4, &long, Ask { tokens: 1, ..Ask::default() })));
        // Both begin in the same step, however late this thread is.
        rig.command(Command::Pause);
        for id in [2, 3] {
            rig.send(id, &[id as u32, 7], Ask { tokens: 20, ..Ask::default() });
        }
        rig.command(Command::Resume);
        assert_eq!(rig.answer(4).tokens, alone.tokens, "its numbers do not depend on how it is cut");
        for id in [2, 3] {
            assert_eq!(rig.answer(id).tokens.len(), 20);
        }
        let steps = steps.lock().unwrap();
        assert_eq!(steps[1..3], [vec![2, 2], vec![1, 1]]);
        let reading: Vec<Vec<usize>> = wanted.iter().map(|tokens| vec![1, 1, *tokens]).collect();
        assert_eq!(steps[3..3 + wanted.len()], reading);
        assert!(steps[3 + wanted.len()..].iter().all(|step| *step == [1, 1]), "{steps:?}");
    }
}

/// A model that takes nothing that was kept while it is told so, and opens no sequence behind so many.
struct Frail {
    model: Box<dyn Backend>,
    refuses: Arc<AtomicBool>,
    opens: usize,
}

impl Backend for Frail {
    fn info(&self) -> &ModelInfo {
        self.model.info()
    }
    fn open(&mut self) -> Result<SeqId, BackendError> {
        self.opens = self.opens.checked_sub(1).ok_or(BackendError::Unsupported("another sequence"))?;
        self.model.open()
    }
    fn close(&mut self, seq: SeqId) {
        self.model.close(seq);
    }
    fn held(&self, seq: SeqId) -> usize {
        self.model.held(seq)
    }
    fn step(&mut self, batch: &[Chunk<'_>], out: &mut Output) -> Result<(), BackendError> {
        self.model.step(batch, out)
    }
    fn saved_size(&self) -> Option<SavedSize> {
        self.model.saved_size()
    }
    fn save(&mut self, seq: SeqId, first: usize) -> Result<Saved, BackendError> {
        self.model.save(seq, first)
    }
    fn restore(&mut self, seq: SeqId, kept: &Kept<'_>) -> Result<(), BackendError> {
        // Half of it may be there.
        self.model.restore(seq, kept)?;
        match self.refuses.load(Ordering::SeqCst) {
            true => Err(BackendError::Unsupported("what was kept")),
            false => Ok(()),
        }
    }
}

#[test]
fn what_was_kept_and_cannot_be_put_back_is_read_again_and_kept_anew() {
    let file = Tiny::default().write();
    let refuses = Arc::new(AtomicBool::new(false));
    let frail = Frail { model: on_processor(&file.path), refuses: refuses.clone(), opens: usize::MAX };
    let mut rig = Rig::start(Box::new(frail), KEEP, 0);
    let prompt = &prompts()[2];
    let mine = Ask { owner: Some("me"), tokens: 4, ..Ask::default() };
    let (first, second) = (rig.ask(1, prompt, mine), rig.ask(2, prompt, mine));
    assert!(first.cached == 0 && second.cached > 0, "{} {}", first.cached, second.cached);
    refuses.store(true, Ordering::SeqCst);
    let third = rig.ask(3, prompt, mine);
    assert_eq!((third.cached, third.tokens), (0, first.tokens.clone()));
    refuses.store(false, Ordering::SeqCst);
    let fourth = rig.ask(4, prompt, mine);
    assert_eq!((fourth.cached, fourth.tokens), (second.cached, first.tokens));
}

/// Background work that gave way has cost what it had read and written, also where it gets no sequence any more.
#[test]
fn a_request_that_cannot_go_on_is_accounted() {
    let file = Tiny::default().write();
    let (model, refuses) = (on_processor(&file.path), Arc::new(AtomicBool::new(false)));
    let sequences = model.info().sequences_max;
    let frail = Frail { model, refuses, opens: sequences + 1 };
    let mut rig = Rig::start(Box::new(frail), PrefixLimits::default(), 0);
    let Input::Prepared(mut job) = rig.job(1, &[1, 2, 3], Ask { tokens: 400, ..Ask::default() }) else { panic!() };
    job.background = true;
    rig.inputs.send(Input::Prepared(job)).unwrap();
    rig.until(|e| matches!(e, Event::Token(token) if token.id == 1));
    rig.command(Command::Pause);
    let others = 2..=sequences as u64 + 1;
    others.clone().for_each(|id| rig.send(id, &[4, 5], Ask { tokens: 3, ..Ask::default() }));
    rig.command(Command::Resume);
    rig.until(|e| matches!(e, Event::Failed { id: 1, message, .. } if message.contains("no sequence")));
    others.for_each(|id| drop(rig.answer(id)));
    rig.command(Command::Stats { id: 90 });
    rig.until(|e| matches!(e, Event::Stats { id: 90, .. }));
    let found = rig.seen.iter().find_map(|e| match e {
        Event::Stats { id: 90, stats } => Some((stats.prompt_tokens, stats.generated_tokens)),
        _ => None,
    });
    let written = rig.seen.iter().filter(|e| matches!(e, Event::Token(_))).count() as u64;
    assert_eq!(found, Some((3 + 2 * sequences as u64, written)));
}
