//! Who waits how long for somebody else's prompt, by a clock that a scripted model moves.

use std::sync::atomic::{AtomicU64, Ordering};

use super::*;

/// Microseconds of a step of so many replies and tokens of prompts.
type Cost = fn(u64, u64) -> u64;

/// The first token and the number of tokens of each chunk, and the time when the step was done.
type Step = (Vec<(u32, usize)>, u64);
type Steps = Arc<Mutex<Vec<Step>>>;

/// A counting model whose steps take what a script says. Requests arrive while it computes.
struct Script {
    model: Counting,
    cost: Cost,
    suits: StepTokens,
    now: Arc<AtomicU64>,
    steps: Steps,
    /// What comes during which step.
    arrive: Mutex<Vec<(usize, Input)>>,
    to: SyncSender<Input>,
}

impl Backend for Script {
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
    fn load_adapter(&mut self, adapter: &Adapter) -> Result<AdapterId, BackendError> {
        self.model.load_adapter(adapter)
    }
    fn adapt(&mut self, seq: SeqId, adapter: AdapterId) -> Result<(), BackendError> {
        self.model.adapt(seq, adapter)
    }
    fn step_tokens(&self) -> StepTokens {
        self.suits
    }
    fn step(&mut self, batch: &[Chunk<'_>], out: &mut Output) -> Result<(), BackendError> {
        let mut steps = self.steps.lock().unwrap();
        let mut arrive = self.arrive.lock().unwrap();
        while let Some(at) = arrive.iter().position(|(step, _)| *step <= steps.len()) {
            self.to.send(arrive.remove(at).1).unwrap();
        }
        let rows = batch.iter().filter(|c| c.tokens.len() == 1 && self.held(c.seq) > 0).count() as u64;
        let tokens = batch.iter().map(|c| c.tokens.len() as u64).sum::<u64>() - rows;
        let took = (self.cost)(rows, tokens);
        let done = self.now.fetch_add(took, Ordering::SeqCst) + took;
        steps.push((batch.iter().map(|c| (c.tokens[0], c.tokens.len())).collect(), done));
        self.model.step(batch, out)
    }
}

const BOUND_MS: u64 = 100;

/// Times of steps as a script has them.
#[derive(Clone, Copy)]
struct Device {
    cost: Cost,
    suits: StepTokens,
    /// Longest step in milliseconds: the bound, or what the smallest piece takes.
    longest: f64,
}

/// A thousand tokens in the bound, and a few cost nearly as much as many.
const CARD: Device = Device {
    cost: |rows, tokens| 2_000 + 200 * rows + if tokens > 0 { 10_000 + 80 * tokens } else { 0 },
    suits: StepTokens { most: 2_048, short: 128, cut: 7 },
    longest: 101.0,
};
/// A hundred tokens in the bound.
const PROCESSOR: Device = Device {
    cost: |rows, tokens| 5_000 * rows + 1_000 * tokens,
    suits: StepTokens { most: 256, short: 64, cut: 16 },
    longest: 101.0,
};
/// The smallest piece takes longer than the bound.
const SLOW: Device = Device {
    cost: |rows, tokens| 20_000 * rows + 5_000 * tokens,
    suits: StepTokens { most: 256, short: 64, cut: 64 },
    longest: 341.0,
};

/// A loop over such a model, and what it notes.
fn scripted(device: Device, step_ms_max: u64, arrive: Vec<(usize, Input)>) -> (Rig, Steps) {
    let (inputs, from_us) = sync_channel(256);
    let (now, steps) = (Arc::new(AtomicU64::new(0)), Steps::default());
    let model = counting(32, Duration::ZERO, Arc::default());
    let seen_by_backend = model.seen.clone();
    let (arrive, to) = (Mutex::new(arrive), inputs.clone());
    let Device { cost, suits, .. } = device;
    let script = Script { model, cost, suits, now: now.clone(), steps: steps.clone(), arrive, to };
    let limits = HostLimits { waiting_max: 64, step_ms_max, ..HostLimits::default() };
    let clock = move || Duration::from_micros(now.load(Ordering::SeqCst));
    let host = Host::new(Box::new(script), Arc::new(Letters), limits).by(Box::new(clock));
    let (to_us, events) = sync_channel(1 << 16);
    let thread = std::thread::spawn(move || host.run(&from_us, &to_us));
    (Rig { seen_by_backend, inputs, events, seen: Vec::new(), thread: Some(thread) }, steps)
}

/// A request whose prompt is one token, over and over; its reply counts on from there.
fn request(id: u64, token: u32, prompt: usize, max_tokens: u32) -> Input {
    Input::Prepared(Box::new(Rig::job(id, vec![token; prompt], max_tokens, None)))
}

/// What prompts are made of.
const LONG: u32 = 20;
const SHORT: u32 = 30;

/// Tokens of such prompts in a step. What replies count comes one by one.
fn reads(step: &Step, token: u32) -> usize {
    step.0.iter().filter(|(first, tokens)| *first == token && *tokens > 1).map(|(_, tokens)| tokens).sum()
}

/// How long steps took, in milliseconds.
fn times(steps: &[Step]) -> Vec<f64> {
    steps.windows(2).map(|pair| (pair[1].1 - pair[0].1) as f64 / 1e3).collect()
}

#[test]
fn a_short_question_waits_for_the_step_under_way_and_no_longer() {
    // So many at once, and how long the last of them takes when it is alone.
    for (device, many, alone) in [(CARD, 20, 13.6), (PROCESSOR, 1, 20.0), (SLOW, 1, 100.0)] {
        let arrive = (0..many).map(|n| (40, request(10 + n, SHORT, 20, 3))).collect();
        let (mut rig, steps) = scripted(device, BOUND_MS, arrive);
        rig.inputs.send(request(1, LONG, 60_000, 3)).unwrap();
        (0..many).for_each(|n| rig.until(ended(10 + n)));
        rig.until(ended(1));
        let steps = steps.lock().unwrap();
        assert!(times(&steps).into_iter().skip(10).all(|took| took <= device.longest));
        let last = steps.iter().rposition(|step| reads(step, SHORT) > 0).unwrap();
        let waited = (steps[last].1 - steps[39].1) as f64 / 1e3;
        let most = alone + 1.5 * device.longest;
        assert!(waited <= most, "{many} of 20 tokens waited {waited} ms, where {most} are allowed");
        assert_eq!(rig.tokens_of(1), [21, 22, 23], "its numbers are what they were");
    }
}

#[test]
fn a_long_prompt_comes_to_its_end_however_many_short_ones_come() {
    for device in [CARD, PROCESSOR] {
        // Each step one comes that could fill two.
        let filling = if device.suits.cut == 7 { 2_000 } else { 200 };
        let arrive = (20..140).map(|n| (n, request(n as u64, SHORT, filling, 1))).collect();
        let (mut rig, steps) = scripted(device, BOUND_MS, arrive);
        rig.inputs.send(request(1, LONG, 60_000, 1)).unwrap();
        (20..140).for_each(|n| rig.until(ended(n)));
        let steps = steps.lock().unwrap();
        let own: Vec<usize> = (40..120).filter(|at| reads(&steps[*at], LONG) > 0).collect();
        assert!((20..40).contains(&own.len()), "{} of 80 steps", own.len());
        assert!(own.windows(2).all(|pair| pair[1] - pair[0] <= 5), "{own:?}");
    }
}

#[test]
fn a_reply_keeps_half_of_its_speed_and_stands_still_no_longer_than_the_bound() {
    for device in [CARD, PROCESSOR, SLOW] {
        let (mut rig, steps) = scripted(device, BOUND_MS, vec![(60, request(2, LONG, 30_000, 1))]);
        rig.load(999, "odd", 1);
        rig.submit(1, vec![1], 400, Some("odd"), false);
        rig.until(ended(1));
        let (began, quiet) = (60, (device.cost)(1, 0) as f64 / 1e3);
        let steps = steps.lock().unwrap();
        let beside = times(&steps[began..400]);
        let read: usize = steps[began..400].iter().map(|step| reads(step, LONG)).sum();
        assert!(beside.iter().all(|took| *took <= device.longest), "{beside:?}");
        let mean = beside.iter().sum::<f64>() / beside.len() as f64;
        assert!(mean <= 2.15 * quiet && read > 500, "{mean} ms where {quiet}; {read} tokens were read");
        assert_eq!(rig.tokens_of(1), (1..=400).map(|n| (1 + 2 * n) % VOCAB as u32).collect::<Vec<_>>());
    }
}

#[test]
fn without_a_bound_a_long_prompt_takes_whole_steps() {
    let (mut rig, steps) = scripted(CARD, 0, Vec::new());
    rig.inputs.send(request(1, LONG, 6_000, 1)).unwrap();
    rig.until(ended(1));
    let steps = steps.lock().unwrap();
    assert_eq!(steps.iter().map(|step| reads(step, LONG)).collect::<Vec<_>>(), [2_044, 2_044, 1_912]);
}
