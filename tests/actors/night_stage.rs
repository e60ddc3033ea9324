//! A stage for nights: a Trainer and a Scheduler beside the cast, and adapters and exams whose worth is known.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use chimere::actors::link::Link;
use chimere::actors::memory::{Append, List};
use chimere::actors::orchestrator::Pipelines;
use chimere::actors::scheduler::{Desk, Host, Night, Scheduler};
use chimere::actors::scorer::{Scorer, ScorerParts};
use chimere::actors::supervisor::{Place, supervise};
use chimere::actors::trainer::{Program, Resident, Trainer};
use chimere::clock::Clock;
use chimere::failpoint::Failpoint;
use chimere::gguf::Layout;
use chimere::night::library::Library;
use chimere::night::phase::Job;
use chimere::night::schedule::SHIPPED;
use chimere::pipeline::Sources;
use chimere::service::{NightCommand, ReplyEvent, ReplyRequest, ServiceError};
use chimere::store::new_turn_id;
use chimere::turn::{Turn, Vote};
use chimere_ffi::DType;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::{Instant, sleep};

use crate::fake::{GOOD, spec};
use crate::stage::{PATIENCE, Stage, budget, chat, collect};

/// Every item of an exam, three domains in turn. Its question reads like none of the routes.
const ITEMS: usize = 210;

/// The fake engine's model hash.
const BASE: &str = "m";

/// What an adapter file says of itself.
pub(crate) struct Made {
    pub(crate) right: u32,
    pub(crate) kl: f32,
    pub(crate) speed: f32,
    pub(crate) fill: f32,
    pub(crate) base: &'static str,
    pub(crate) rank: u64,
}

pub(crate) const GOOD_ADAPTER: Made = Made { right: 75, kl: 0.01, speed: 1.0, fill: 0.001, base: BASE, rank: 2 };

pub(crate) fn write_adapter(path: &Path, made: &Made) {
    let mut layout = Layout::new();
    for (key, value) in [("general.type", "adapter"), ("adapter.type", "lora"), ("chimere.base_hash", made.base)] {
        layout.set(key, value).unwrap();
    }
    layout.set("adapter.lora.alpha", 4.0f32).unwrap();
    layout.set("chimere.rank", 2u32).unwrap();
    layout.set("test.right", made.right).unwrap();
    layout.set("test.kl", made.kl).unwrap();
    layout.set("test.speed", made.speed).unwrap();
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
            "messages": [{ "role": "user", "content": format!("dinner {}", first + n) }],
            "check": { "kind": "exact", "value": "right" },
        })
    };
    let lines: Vec<String> = (0..ITEMS).map(|n| line(n).to_string()).collect();
    std::fs::write(path, lines.join("\n")).unwrap();
}

/// Without stages a promotion answers everything at once.
pub(crate) const NO_STAGES: (&str, &str) =
    ("  stages:\n    - {percent: 5, scored_turns: 50}\n    - {percent: 50, scored_turns: 200}\n", "  stages: []\n");

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
    Program { path: "/bin/sh".into(), args: vec!["-c".into(), script.into(), "trainer".into()], low_priority: true }
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
        let own = Arc::new(Pipelines::load(sources, Default::default()).unwrap());
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
            forgettings: Default::default(),
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

    pub(crate) async fn begin(&self, made: &Made, dry_run: bool) -> String {
        let path = self.path("candidate.gguf");
        write_adapter(&path, made);
        let command = NightCommand::RunNow { job: Job::Train, candidate: Some(path), dry_run };
        self.tell(command).await.unwrap()["run"].as_str().unwrap().to_owned()
    }

    /// Judges an adapter and returns the report.
    pub(crate) async fn night(&self, made: &Made) -> Value {
        let id = self.begin(made, false).await;
        self.report(&id).await
    }

    pub(crate) async fn report(&self, id: &str) -> Value {
        self.until(|status| status["run"].is_null() && status["last"]["id"] == id).await;
        self.tell(NightCommand::Report { run: Some(id.to_owned()) }).await.unwrap()
    }

    /// What is served, byte for byte.
    pub(crate) fn served(&self) -> (Option<Vec<u8>>, Vec<String>) {
        let generations = std::fs::read_dir(self.path("generations")).unwrap();
        let mut names: Vec<_> = generations.map(|e| e.unwrap().file_name().to_string_lossy().into_owned()).collect();
        names.sort();
        (std::fs::read(self.path("served.json")).ok(), names)
    }

    /// Puts turns of a revision into the log, as if they had been answered and scored a moment ago.
    pub(crate) async fn turns(&self, revision: u64, count: usize, verdict: u8, vote: Option<Vote>) {
        let changed = |turn: &mut Turn| {
            let feedback = vote.map(|vote| chimere::turn::Feedback {
                time_ms: turn.time_ms,
                principal: "tester".into(),
                vote: Some(vote),
                correction: None,
                judgement: None,
            });
            (turn.verdict, turn.feedback) = (Some(verdict), feedback.into_iter().collect());
        };
        self.log(revision, count, changed).await;
    }

    /// The same, each changed by `change`.
    pub(crate) async fn log(&self, revision: u64, count: usize, change: impl Fn(&mut Turn)) {
        let replies = &self.stage.replies;
        let events = collect(replies.start(chat("hello")).await.unwrap()).await;
        assert!(matches!(events.last(), Some(ReplyEvent::Done { .. })));
        let filter = chimere::service::TurnFilter::default();
        let model = replies.memory.send_within(List(filter), PATIENCE).await.unwrap().unwrap().remove(0);
        for _ in 0..count {
            let time_ms = self.now.fetch_add(10, Ordering::Relaxed);
            let id = new_turn_id(time_ms + 1);
            let mut turn = Turn { id, time_ms, adapter_revision: revision, ..model.clone() };
            change(&mut turn);
            replies.memory.send_within(Append(Box::new(turn)), PATIENCE).await.unwrap().unwrap();
        }
    }

    /// The revision that answers.
    pub(crate) async fn ask(&self, conversation: &str) -> u64 {
        let request = ReplyRequest { conversation: Some(conversation.to_owned()), ..chat("hello") };
        labelled(collect(self.stage.replies.start(request).await.unwrap()).await)
    }
}

/// The revision that a reply is labelled with; every word of it must carry the same.
pub(crate) fn labelled(events: Vec<ReplyEvent>) -> u64 {
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
