//! The loop before the learning, with adapters whose worth is known: gate, canary, swap, rollback, resumption.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use chimere::actors::link::Link;
use chimere::actors::memory::Append;
use chimere::actors::orchestrator::Pipelines;
use chimere::actors::scheduler::{Desk, Host, Night, Scheduler};
use chimere::actors::scorer::{Scorer, ScorerParts};
use chimere::actors::supervisor::{Place, supervise};
use chimere::actors::trainer::{Program, Resident, Trainer};
use chimere::clock::Clock;
use chimere::failpoint::{Failpoint, JUDGING};
use chimere::gguf::Layout;
use chimere::night::library::Library;
use chimere::night::phase::Job;
use chimere::night::schedule::SHIPPED;
use chimere::pipeline::Sources;
use chimere::reply::new_turn_id;
use chimere::service::{NightCommand, ReplyEvent, ReplyRequest, ServiceError};
use chimere::turn::{Turn, Vote};
use chimere_ffi::DType;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::{Instant, sleep};

use crate::fake::{GOOD, spec};
use crate::inference::kill;
use crate::stage::{PATIENCE, Stage, budget, chat, collect, run};

/// Every item of an exam, three domains in turn.
const ITEMS: usize = 210;

/// The fake engine's model hash.
const BASE: &str = "m";

/// What an adapter file says of itself.
pub(crate) struct Made {
    pub(crate) right: u32,
    pub(crate) kl: f32,
    pub(crate) fill: f32,
    pub(crate) base: &'static str,
    pub(crate) rank: u64,
}

pub(crate) const GOOD_ADAPTER: Made = Made { right: 75, kl: 0.01, fill: 0.001, base: BASE, rank: 2 };

pub(crate) fn write_adapter(path: &Path, made: &Made) {
    let mut layout = Layout::new();
    for (key, value) in [("general.type", "adapter"), ("adapter.type", "lora"), ("chimere.base_hash", made.base)] {
        layout.set(key, value).unwrap();
    }
    layout.set("adapter.lora.alpha", 4.0f32).unwrap();
    layout.set("chimere.rank", 2u32).unwrap();
    layout.set("test.right", made.right).unwrap();
    layout.set("test.kl", made.kl).unwrap();
    let pair = [("blk.0.attn_q.weight.lora_a", [8, made.rank]), ("blk.0.attn_q.weight.lora_b", [made.rank, 6])];
    pair.iter().for_each(|(name, dims)| layout.tensor(name, DType::F32, dims).unwrap());
    let mut writer = layout.create(path).unwrap();
    for (name, dims) in pair {
        let bytes: Vec<u8> = (0..dims[0] * dims[1]).flat_map(|_| made.fill.to_le_bytes()).collect();
        writer.write(name, &bytes).unwrap();
    }
    writer.finish().unwrap();
}

fn write_exam(path: &Path, name: &str) {
    write_items(path, name, 0);
}

/// Items that are numbered from `first` on.
pub fn write_items(path: &Path, name: &str, first: usize) {
    let line = |n: usize| {
        json!({
            "id": format!("{name}-{n}"), "domain": format!("d{}", n % 3), "family": "f", "max_tokens": 3,
            "messages": [{ "role": "user", "content": format!("item {}", first + n) }],
            "check": { "kind": "exact", "value": "right" },
        })
    };
    let lines: Vec<String> = (0..ITEMS).map(|n| line(n).to_string()).collect();
    std::fs::write(path, lines.join("\n")).unwrap();
}

/// A scripted trainer: it takes two steps and leaves a copy of `learned.gguf` of the state folder. `slow` there makes
/// it wait for its end, `broken` makes it fail.
fn trainer(state: &Path) -> Program {
    let script = r#"
        while [ $# -gt 0 ]; do case $1 in --out) out=$2;; --pairs) pairs=$2;; esac; shift; done
        [ -e "$STATE/broken" ] && { echo "the pairs are no good" >&2; exit 1; }
        lines=$(wc -l < "$pairs")
        echo '{"step":1,"steps":2,"loss":2.0,"tokens":50}'
        [ -e "$STATE/slow" ] && exec cat
        echo '{"step":2,"steps":2,"loss":1.0,"tokens":50}'
        cp "$STATE/learned.gguf" "$out"
        steps='{"step":1,"steps":2,"loss":2.0,"tokens":50},{"step":2,"steps":2,"loss":1.0,"tokens":50}'
        losses='"loss_before":2.0,"loss_after":1.0,"norm":1.0'
        outcome="{\"pairs\":$lines,\"held_out\":0,\"steps\":[$steps],\"tokens\":100,$losses}"
        echo "{\"outcome\":$outcome,\"refused\":0,\"seconds\":1.0,\"adapter\":{}}"
    "#;
    let script = format!("STATE='{}'\n{script}", state.display());
    // Whose tokenizer reads the pairs where no child does.
    let model = concat!(env!("CARGO_MANIFEST_DIR"), "/nano/nano.gguf").into();
    Program { path: "/bin/sh".into(), args: vec!["-c".into(), script.into(), "trainer".into()], model }
}

/// A stage with a Trainer and a Scheduler on a state folder that outlives it.
pub(crate) struct NightStage {
    pub(crate) stage: Stage,
    pub(crate) scheduler: Link<Scheduler>,
    pub(crate) state: Arc<tempfile::TempDir>,
    pub(crate) pipelines: Arc<Pipelines>,
    /// The daemon's clock, Unix milliseconds.
    pub(crate) now: Arc<AtomicI64>,
}

#[derive(Default)]
pub(crate) struct Options {
    pub(crate) failpoint: Failpoint,
    pub(crate) enabled: bool,
    /// Changes of `night.yaml`: from, to.
    pub(crate) changes: Vec<(&'static str, &'static str)>,
}

pub(crate) fn folder() -> Arc<tempfile::TempDir> {
    let state = tempfile::tempdir().unwrap();
    write_exam(&state.path().join("golden.jsonl"), "golden");
    write_exam(&state.path().join("slice.jsonl"), "slice");
    Arc::new(state)
}

impl NightStage {
    pub(crate) async fn new(state: &Arc<tempfile::TempDir>, options: Options) -> NightStage {
        let mut text = SHIPPED.replace("items_min: 200", "items_min: 50");
        for (from, to) in &options.changes {
            assert!(text.contains(from), "{from}");
            text = text.replace(from, to);
        }
        let pipelines = state.path().join("pipelines");
        std::fs::create_dir_all(&pipelines).unwrap();
        std::fs::write(pipelines.join("night.yaml"), text).unwrap();
        let sources = Sources { shipped: None, overlay: Some(pipelines.clone()) };
        let own = Arc::new(Pipelines::load(sources).unwrap());
        let stage = Stage::with(spec(GOOD), |config| config.requests_max = 64);
        stage.board.withhold();
        // 1 March 2026, noon UTC.
        let now = Arc::new(AtomicI64::new(1_772_366_400_000));
        let read = now.clone();
        let told = Arc::new(watch::Sender::new(None));
        let folder = state.path().to_owned();
        let program = trainer(state.path());
        let resident = Resident { inference: stage.replies.inference.clone(), board: stage.board.clone() };
        let trainer = supervise("trainer", Place::Here, budget(), told.clone(), move || {
            Trainer::new(&folder, program.clone(), resident.clone())
        });
        let parts = ScorerParts {
            judge: Err("no judge on this stage".to_owned()),
            inbox: stage.inbox.clone(),
            memory: stage.replies.memory.clone(),
            clock: Clock::wall(),
        };
        let scorer = supervise("scorer", Place::Here, budget(), told.clone(), move || Scorer::new(parts.clone()));
        let desk = Arc::new(Desk {
            state_dir: state.path().to_owned(),
            clock: Clock::from_fn(move || read.load(Ordering::Relaxed)),
            zone: jiff::tz::TimeZone::UTC,
            board: stage.board.clone(),
            inference: stage.replies.inference.clone(),
            memory: stage.replies.memory.clone(),
            trainer,
            scorer,
            library: Arc::new(Library::new(state.path())),
            pipelines: own.clone(),
            golden: Ok(state.path().join("golden.jsonl")),
            slice: Ok(state.path().join("slice.jsonl")),
            shipped_tables: None,
            examples: Arc::default(),
            folders: vec![pipelines],
            failpoint: options.failpoint,
            enabled: options.enabled,
            host: Host::default(),
            progress: watch::Sender::new(Default::default()),
        });
        let scheduler = supervise("scheduler", Place::Here, budget(), told, move || Scheduler::new(desk.clone()));
        let night = NightStage { stage, scheduler, state: state.clone(), now, pipelines: own };
        night.until(|status| status["served"]["ready"] == true).await;
        night
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.state.path().join(name)
    }

    pub(crate) async fn tell(&self, command: NightCommand) -> Result<Value, ServiceError> {
        self.scheduler.send_within(Night(command), PATIENCE).await.unwrap()
    }

    pub(crate) async fn status(&self) -> Value {
        self.tell(NightCommand::Status).await.unwrap()
    }

    pub(crate) async fn until(&self, wanted: impl Fn(&Value) -> bool) -> Value {
        let end = Instant::now() + PATIENCE;
        loop {
            let status = self.status().await;
            if wanted(&status) {
                return status;
            }
            assert!(Instant::now() < end, "{status:#}");
            sleep(Duration::from_millis(20)).await;
        }
    }

    async fn begin(&self, made: &Made, dry_run: bool) -> String {
        let path = self.path("candidate.gguf");
        write_adapter(&path, made);
        let command = NightCommand::RunNow { job: Job::Train, candidate: Some(path), dry_run };
        self.tell(command).await.unwrap()["run"].as_str().unwrap().to_owned()
    }

    /// Judges an adapter and returns the report.
    async fn night(&self, made: &Made) -> Value {
        let id = self.begin(made, false).await;
        self.report(&id).await
    }

    pub(crate) async fn report(&self, id: &str) -> Value {
        self.until(|status| status["run"].is_null() && status["last"]["id"] == id).await;
        self.tell(NightCommand::Report { run: Some(id.to_owned()) }).await.unwrap()
    }

    /// What is served, byte for byte.
    fn served(&self) -> (Option<Vec<u8>>, Vec<String>) {
        let generations = std::fs::read_dir(self.path("generations")).unwrap();
        let mut names: Vec<_> = generations.map(|e| e.unwrap().file_name().to_string_lossy().into_owned()).collect();
        names.sort();
        (std::fs::read(self.path("served.json")).ok(), names)
    }

    /// Puts turns of a revision into the log, as if they had been answered and scored a moment ago.
    async fn turns(&self, revision: u64, count: usize, verdict: u8, vote: Option<Vote>) {
        let replies = &self.stage.replies;
        let events = collect(replies.start(chat("hello")).await.unwrap()).await;
        assert!(matches!(events.last(), Some(ReplyEvent::Done { .. })));
        let filter = chimere::service::TurnFilter::default();
        let model = replies.memory.send(chimere::actors::memory::List(filter)).await.unwrap().unwrap().remove(0);
        for _ in 0..count {
            let time_ms = self.now.fetch_add(10, Ordering::Relaxed);
            let feedback = vote.map(|vote| chimere::turn::Feedback {
                time_ms,
                principal: "tester".into(),
                vote: Some(vote),
                correction: None,
                judgement: None,
            });
            let turn = Turn {
                id: new_turn_id(time_ms + 1),
                time_ms,
                adapter_revision: revision,
                verdict: Some(verdict),
                feedback: feedback.into_iter().collect(),
                ..model.clone()
            };
            replies.memory.send(Append(Box::new(turn))).await.unwrap().unwrap();
        }
    }

    /// The revision that a reply is labelled with; every word of it must carry the same.
    pub(crate) async fn ask(&self, conversation: &str) -> u64 {
        let request = ReplyRequest { conversation: Some(conversation.to_owned()), ..chat("hello") };
        labelled(collect(self.stage.replies.start(request).await.unwrap()).await)
    }
}

fn labelled(events: Vec<ReplyEvent>) -> u64 {
    assert!(matches!(events.last(), Some(ReplyEvent::Done { .. })), "{events:?}");
    let mut revision = None;
    for event in events {
        match event {
            ReplyEvent::Started { plan, .. } => revision = Some(plan.adapter_revision),
            ReplyEvent::Delta { text, .. } => {
                for word in text.split_whitespace() {
                    let said = word.split_once("@gen-").map_or(0, |(_, n)| n.parse().unwrap());
                    assert_eq!(Some(said), revision, "{word}");
                }
            }
            _ => {}
        }
    }
    revision.unwrap()
}

#[test]
fn a_better_adapter_comes_in_by_its_canary_and_serves() {
    run(async {
        let night = NightStage::new(&folder(), Options::default()).await;
        assert_eq!(night.ask("a").await, 0);
        let report = night.night(&GOOD_ADAPTER).await;
        assert!(report["outcome"]["promoted"]["generation"] == 1, "{report:#}");
        assert!(report["golden"]["difference"]["low"].as_f64().unwrap() > 0.0);
        assert_eq!(report["lineage"][0]["generation"], 1);
        let served = &night.status().await["served"];
        assert_eq!((&served["champion"], &served["canary"]["percent"]), (&json!(0), &json!(5)));
        // One conversation keeps its revision, and some have the new one.
        let mut seen = std::collections::BTreeMap::new();
        for n in 0..60 {
            let name = format!("conversation {n}");
            let revision = night.ask(&name).await;
            assert_eq!(night.ask(&name).await, revision);
            *seen.entry(revision).or_insert(0) += 1;
        }
        assert!(seen[&0] > 40 && seen.get(&1).is_some_and(|n| *n < 20), "{seen:?}");
        night.turns(1, 50, 4, None).await;
        night.until(|status| status["served"]["canary"]["percent"] == 50).await;
        night.turns(1, 200, 4, None).await;
        let status = night.until(|status| status["served"]["champion"] == 1).await;
        assert!(status["served"]["canary"].is_null() && status["served"]["previous"] == 0);
        assert_eq!(night.ask("a").await, 1);
        // Every turn is labelled too.
        let turns = night.stage.replies.memory.send(chimere::actors::memory::List(Default::default()));
        assert!(turns.await.unwrap().unwrap().iter().any(|t| t.adapter_revision == 1));
    });
}

/// T1: whatever is wrong with a candidate, it is refused, and not a byte of what is served changes.
#[test]
fn catastrophic_candidates_are_refused_and_change_nothing() {
    run(async {
        let night = NightStage::new(&folder(), Options { changes: vec![NO_STAGES], ..Options::default() }).await;
        night.night(&GOOD_ADAPTER).await;
        let served = night.served();
        assert_eq!(night.ask("a").await, 1);
        for (made, rule) in [
            (Made { right: 20, ..GOOD_ADAPTER }, "overall"),
            (Made { right: 75, ..GOOD_ADAPTER }, "improvement"),
            (Made { fill: f32::NAN, ..GOOD_ADAPTER }, "file"),
            (Made { base: "another model", ..GOOD_ADAPTER }, "file"),
            (Made { rank: 3, ..GOOD_ADAPTER }, "file"),
            (Made { fill: 10.0, ..GOOD_ADAPTER }, "update_norm"),
            (Made { kl: 3.0, ..GOOD_ADAPTER }, "divergence"),
            (Made { kl: f32::NAN, ..GOOD_ADAPTER }, "divergence"),
        ] {
            let report = night.night(&made).await;
            assert_eq!(report["outcome"]["rejected"]["rule"], rule, "{:#}", report["outcome"]);
            assert_eq!(night.served(), served);
        }
        std::fs::write(night.path("nonsense"), "GGUF").unwrap();
        for name in ["nonsense", "absent"] {
            let candidate = Some(night.path(name));
            let command = NightCommand::RunNow { job: Job::Train, candidate, dry_run: false };
            let id = night.tell(command).await.unwrap()["run"].as_str().unwrap().to_owned();
            let outcome = night.report(&id).await["outcome"].clone();
            assert!(outcome["promoted"].is_null(), "{outcome}");
        }
        assert_eq!(night.served(), served);
        assert_eq!(night.ask("a").await, 1);
        assert!(!night.path("candidates").join("x").exists());
    });
}

/// Without stages a promotion answers everything at once.
pub(crate) const NO_STAGES: (&str, &str) =
    ("  stages:\n    - {percent: 5, scored_turns: 50}\n    - {percent: 50, scored_turns: 200}\n", "  stages: []\n");

#[test]
fn an_alarm_of_the_canary_rolls_back_by_itself() {
    run(async {
        let night = NightStage::new(&folder(), Options::default()).await;
        night.night(&GOOD_ADAPTER).await;
        night.turns(0, 60, 4, None).await;
        night.turns(1, 20, 1, Some(Vote::Down)).await;
        let status = night.until(|status| status["served"]["canary"].is_null()).await;
        assert_eq!(status["served"]["champion"], 0);
        assert!(status["notices"].to_string().contains("low verdicts: 20 of 20"), "{}", status["notices"]);
        for n in 0..30 {
            assert_eq!(night.ask(&format!("conversation {n}")).await, 0);
        }
    });
}

#[test]
fn a_canary_that_is_not_proved_in_time_goes_back() {
    run(async {
        let night = NightStage::new(&folder(), Options::default()).await;
        night.night(&GOOD_ADAPTER).await;
        night.now.fetch_add(24 * 3_600_000, Ordering::Relaxed);
        let status = night.until(|status| status["served"]["canary"].is_null()).await;
        assert!(status["notices"].to_string().contains("not proved before the next night"), "{status:#}");
        // A second night while a canary is out ends that canary first.
        night.night(&GOOD_ADAPTER).await;
        let report = night.night(&Made { right: 80, ..GOOD_ADAPTER }).await;
        assert_eq!(report["outcome"]["promoted"]["generation"], 3, "{report:#}");
        let served = night.status().await["served"].clone();
        assert_eq!((&served["champion"], &served["canary"]["generation"]), (&json!(0), &json!(3)));
    });
}

#[test]
fn a_dry_run_a_second_run_and_a_pause_promote_nothing() {
    run(async {
        let night = NightStage::new(&folder(), Options::default()).await;
        let before = night.served();
        let id = night.begin(&GOOD_ADAPTER, true).await;
        let second = NightCommand::RunNow { job: Job::Reindex, candidate: None, dry_run: false };
        assert!(matches!(night.tell(second).await, Err(ServiceError::Busy { .. })), "never two at once");
        assert!(night.report(&id).await["outcome"]["would_promote"].is_object());
        assert_eq!(night.served(), before);
        let id = night.begin(&GOOD_ADAPTER, false).await;
        night.until(|status| status["run"]["phase"] == "gate").await;
        night.tell(NightCommand::Pause).await.unwrap();
        assert!(night.report(&id).await["outcome"]["stopped"].is_object());
        assert_eq!(night.served(), before);
        assert_eq!(night.status().await["state"], "paused");
        night.tell(NightCommand::Resume).await.unwrap();
        assert_eq!(night.status().await["state"], "resting");
    });
}

#[test]
fn jobs_begin_by_the_daemons_clock_once_and_say_what_is_missing() {
    run(async {
        // The exams here are too small for a search of prompts.
        let changes = vec![("items_min: 60", "items_min: 1000")];
        let options = Options { enabled: true, changes, ..Options::default() };
        let night = NightStage::new(&folder(), options).await;
        sleep(Duration::from_millis(1_500)).await;
        assert!(night.status().await["last"].is_null(), "nothing is due at noon");
        // Three in the morning, and nobody spoke for hours.
        night.now.fetch_add(15 * 3_600_000, Ordering::Relaxed);
        let status = night.until(|status| status["last"]["job"] == "train").await;
        assert!(status["last"]["outcome"]["nothing"].is_object(), "{status:#}");
        // A clock that is set back a little runs nothing again.
        night.now.fetch_sub(60_000, Ordering::Relaxed);
        sleep(Duration::from_millis(2_500)).await;
        // The jobs of Monday and of every six hours were caught up meanwhile, and the night was not run again.
        let status = night.status().await;
        assert_eq!(status["jobs"]["train"]["last"]["id"], "2026-03-02");
        for job in ["optimise_prompts", "reindex"] {
            assert!(status["jobs"][job]["last"]["outcome"]["nothing"].is_object(), "{status:#}");
        }
        night.now.fetch_add(3_700_000, Ordering::Relaxed);
        let status = night.until(|status| status["last"]["job"] == "engram_write").await;
        assert!(status["last"]["outcome"]["nothing"].is_object(), "{status:#}");
        assert_eq!(status["jobs"]["train"]["last"]["id"], "2026-03-02");
    });
}

/// T3 without the kill: the disk fills up at each point, and what serves is the state before or after.
#[test]
fn a_full_disk_at_any_point_leaves_before_or_after() {
    for point in JUDGING {
        run(async move {
            let state = folder();
            let failpoint = Failpoint::parse(&format!("{point}=full"));
            let changes = vec![NO_STAGES];
            let night =
                NightStage::new(&state, Options { failpoint, changes: changes.clone(), ..Options::default() }).await;
            let id = night.begin(&GOOD_ADAPTER, false).await;
            night.until(|status| status["run"].is_null()).await;
            let revision = night.ask("a").await;
            drop(night);
            // A new life finds the same, and can do the same night to its end.
            let night = NightStage::new(&state, Options { changes, ..Options::default() }).await;
            let status = night.until(|status| status["run"].is_null()).await;
            let now = night.ask("a").await;
            assert!(now == revision || (revision == 0 && now == 1), "{point}: {revision} and then {now}, {status:#}");
            let report = night.night(&Made { right: 90, ..GOOD_ADAPTER }).await;
            assert!(report["outcome"]["promoted"].is_object(), "{point} {id}: {report:#}");
        });
    }
}

#[test]
fn another_engine_answers_with_the_same_generation() {
    run(async {
        let night = NightStage::new(&folder(), Options { changes: vec![NO_STAGES], ..Options::default() }).await;
        night.night(&GOOD_ADAPTER).await;
        for _ in 0..3 {
            kill(night.stage.board.engine_pid().unwrap());
            night.stage.state(|s| !matches!(s, chimere::actors::inference::EngineState::Ready(_))).await;
            assert_eq!(night.ask("a").await, 1);
        }
    });
}

/// T10: 50 streams, 100 swaps; no stream breaks, and every reply is of the one revision that it is labelled with.
#[test]
fn a_hundred_swaps_under_fifty_streams_break_none() {
    run(async {
        let night = NightStage::new(&folder(), Options { changes: vec![NO_STAGES], ..Options::default() }).await;
        night.night(&GOOD_ADAPTER).await;
        night.night(&Made { right: 90, ..GOOD_ADAPTER }).await;
        assert_eq!(night.ask("a").await, 2);
        let done = Arc::new(std::sync::atomic::AtomicBool::new(false));
        let ended = Arc::new(AtomicI64::new(0));
        let streams: Vec<_> = (0..50)
            .map(|n| {
                let (replies, done, ended) = (night.stage.replies.clone(), done.clone(), ended.clone());
                tokio::task::spawn_local(async move {
                    let mut seen = Vec::new();
                    while !done.load(Ordering::Relaxed) {
                        let conversation = Some(format!("c{n}"));
                        let request = ReplyRequest { conversation, max_tokens: Some(40), ..chat("endless") };
                        seen.push(labelled(collect(replies.start(request).await.unwrap()).await));
                        ended.fetch_add(1, Ordering::Relaxed);
                    }
                    seen
                })
            })
            .collect();
        let mut slowest = 0;
        for swap in 0..100u64 {
            let answer = night.tell(NightCommand::Rollback { generation: Some(swap % 3) }).await.unwrap();
            // Some replies end, and begin anew under the generation that now serves.
            let before = ended.load(Ordering::Relaxed);
            while ended.load(Ordering::Relaxed) < before + 5 {
                sleep(Duration::from_millis(1)).await;
            }
            slowest = slowest.max(answer["took_ms"].as_u64().unwrap());
            assert_eq!(answer["champion"], swap % 3);
        }
        done.store(true, Ordering::Relaxed);
        let mut seen = std::collections::BTreeMap::new();
        for stream in streams {
            stream.await.unwrap().into_iter().for_each(|revision| *seen.entry(revision).or_insert(0) += 1);
        }
        println!("replies by revision: {seen:?}; slowest swap {slowest} ms");
        assert!(seen.len() == 3, "{seen:?}");
        assert!(slowest < 1_000, "a rollback took {slowest} ms");
    });
}
