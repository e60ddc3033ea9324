//! A stage for the cast: links to real actors over a scripted engine and a store in a temporary folder.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use chimere::actors::inference::{Board, EngineSpec, EngineState, Inference};
use chimere::actors::link::Link;
use chimere::actors::memory::{List, Memory, OpenStore};
use chimere::actors::orchestrator::{Orchestrator, Pipelines};
use chimere::actors::scorer::{Inbox, JudgeEngine, JudgeSettings, Scorer, ScorerParts};
use chimere::actors::supervisor::{Budget, Place, supervise};
use chimere::clock::Clock;
use chimere::config::{Live, RepliesConfig};
use chimere::failpoint::Failpoint;
use chimere::pipeline::Sources;
use chimere::reply::{Permits, Replies};
use chimere::scoring::{Form, Reading};
use chimere::service::{Principal, ReplyEvent, ReplyInput, ReplyRequest, SamplingOverrides, Scope, TurnFilter};
use chimere::store::{Piece, SledTurns, StoreError, TurnStore};
use chimere::tools::Toolbox;
use chimere::turn::{Message, Role, Turn};
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;

use crate::shelf::{Guard, Shelf};

/// What is waited for comes at once on an idle machine; only a test that fails waits for so long on a busy one.
pub const PATIENCE: Duration = Duration::from_secs(180);

/// Nobody lists the turn log while this is so.
struct Unreadable(Arc<AtomicBool>);

impl Guard for Unreadable {
    fn listed(&self, _: &TurnFilter) -> Option<Result<Piece<Vec<Turn>>, StoreError>> {
        let unreadable = self.0.load(Ordering::SeqCst);
        unreadable.then(|| Err(StoreError::Disk("the disk gives nothing".to_owned())))
    }
}

pub struct Stage {
    pub inbox: Arc<Inbox>,
    pub scorer: Option<Link<Scorer>>,
    pub board: Arc<Board>,
    pub replies: Arc<Replies>,
    /// Holds the turn log, and is removed after the test.
    /// Nobody lists the turn log while it is so.
    pub unreadable: Arc<AtomicBool>,
    _state: tempfile::TempDir,
}

pub fn budget() -> Budget {
    Budget { restarts_max: 3, window: Duration::from_secs(60) }
}

impl Stage {
    pub fn new(spec: EngineSpec) -> Stage {
        Stage::with(spec, |_| {})
    }

    /// Must run inside a `LocalSet`: the actors live on its thread.
    pub fn with(spec: EngineSpec, change: impl FnOnce(&mut RepliesConfig)) -> Stage {
        Stage::build(spec, change, Inbox::new(64), &[])
    }

    /// With pipelines of its own beside the shipped ones: the name of each and its file without the head.
    pub fn with_pipelines(spec: EngineSpec, pipelines: &[(&str, &str)]) -> Stage {
        Stage::build(spec, |_| {}, Inbox::new(64), pipelines)
    }

    /// Starts a Scorer whose judge follows a script.
    pub fn judged_by(&mut self, script: &str) {
        self.judged_with(script, Reading::default());
    }

    /// The same, whose words are read in this way.
    pub fn judged_with(&mut self, script: &str, reading: Reading) {
        let settings = JudgeSettings {
            spec: crate::fake::spec(script),
            name: "scripted".to_owned(),
            reading,
            form: Form::default(),
            budget: budget(),
            adapter: None,
        };
        let judge = JudgeEngine::new(settings, Place::Here, tokio::runtime::Handle::current());
        let memory = self.replies.memory.clone();
        let parts = ScorerParts { judge: Ok(Arc::new(judge)), inbox: self.inbox.clone(), memory, clock: Clock::wall() };
        let told = Arc::new(watch::Sender::new(None));
        self.scorer = Some(supervise("scorer", Place::Here, budget(), told, move || Scorer::new(parts.clone())));
        // Replies that are under way go on without it.
        if let Some(replies) = Arc::get_mut(&mut self.replies) {
            replies.scorer.clone_from(&self.scorer);
        }
    }

    /// Breaks replies at a point.
    pub fn breaks_at(&mut self, point: &str) {
        Arc::get_mut(&mut self.replies).expect("no reply is under way").failpoint = Failpoint::parse(point);
    }

    pub fn build(
        spec: EngineSpec,
        change: impl FnOnce(&mut RepliesConfig),
        inbox: Inbox,
        own: &[(&str, &str)],
    ) -> Stage {
        let state = tempfile::tempdir().unwrap();
        for (name, body) in own {
            let file = format!("name: {name}\nversion: 1\nfollow_model: true\n{body}");
            std::fs::write(state.path().join(format!("{name}.yaml")), file).unwrap();
        }
        let inbox = Arc::new(inbox);
        let told = Arc::new(watch::Sender::new(None));
        let board = Arc::new(Board::default());
        let sources = Sources { shipped: None, overlay: Some(state.path().to_owned()) };
        let pipelines = Arc::new(Pipelines::load(sources, Default::default()).unwrap());
        let folder = state.path().join("turns");
        let unreadable = Arc::new(AtomicBool::new(false));
        let of_store = unreadable.clone();
        let open: OpenStore = Arc::new(move || {
            let inner = SledTurns::open(&folder, 1 << 24)?;
            Ok(Arc::new(Shelf::new(Unreadable(of_store.clone()), inner)) as Arc<dyn TurnStore>)
        });
        let mut config = RepliesConfig {
            requests_max: 8,
            max_tokens: Some(50),
            ceilings: Default::default(),
            start_timeout: PATIENCE,
            reply_timeout: PATIENCE,
            client_stall_timeout: PATIENCE,
            model_aliases: vec!["another".to_owned()],
        };
        change(&mut config);
        let (shared_board, spec, shared) = (board.clone(), Arc::new(spec), pipelines.clone());
        let runtime = tokio::runtime::Handle::current();
        let inference: Link<Inference> = supervise("inference", Place::Here, budget(), told.clone(), move || {
            Inference::new(spec.clone(), shared_board.clone(), runtime.clone())
        });
        let orchestrator =
            supervise("orchestrator", Place::Here, budget(), told.clone(), move || Orchestrator::new(shared.clone()));
        let memory = supervise("memory", Place::Here, budget(), told, move || Memory::new(open.clone()));
        let replies = Arc::new(Replies {
            inference,
            orchestrator,
            memory,
            sessions: Arc::default(),
            withheld: Arc::default(),
            runs: Arc::default(),
            inbox: inbox.clone(),
            scorer: None,
            board: board.clone(),
            fleet: Arc::default(),
            examples: Arc::default(),
            lessons: Arc::default(),
            documents: Arc::default(),
            web: None,
            recalls: Arc::new(tokio::sync::Semaphore::new(1)),
            pipelines,
            permits: Arc::new(Permits::new(config.requests_max)),
            config: Live::new(config),
            append_timeout: Live::new(PATIENCE),
            clock: Clock::wall(),
            toolbox: Arc::new(Toolbox::new("/nonexistent".into(), Clock::wall())),
            failpoint: Failpoint::default(),
            draining: CancellationToken::new(),
            cut: CancellationToken::new(),
        });
        Stage { inbox, scorer: None, board, replies, unreadable, _state: state }
    }

    pub async fn state(&self, wanted: impl Fn(&EngineState) -> bool) -> EngineState {
        let mut state = self.board.watch();
        let found = timeout(PATIENCE, state.wait_for(|s| wanted(s))).await;
        found.expect("the engine never came to that state").unwrap().clone()
    }

    pub async fn ready(&self) {
        self.state(|s| matches!(s, EngineState::Ready(_))).await;
    }

    /// The turn log, once it holds `count` turns.
    pub async fn turns(&self, count: usize) -> Vec<Turn> {
        let until = Instant::now() + PATIENCE;
        loop {
            let turns = self.replies.memory.send_within(List(TurnFilter::default()), PATIENCE).await.unwrap().unwrap();
            if turns.len() >= count || Instant::now() > until {
                assert_eq!(turns.len(), count);
                return turns;
            }
            sleep(Duration::from_millis(10)).await;
        }
    }
}

pub fn chat(text: &str) -> ReplyRequest {
    ReplyRequest {
        principal: Principal { name: "tester".to_owned(), scopes: vec![Scope::Chat], consent: true },
        input: ReplyInput::Chat { messages: vec![Message::new(Role::User, text)], tools: Vec::new() },
        model: None,
        conversation: None,
        session: None,
        route: None,
        tier: None,
        thinking: None,
        thought: None,
        thought_parameters: Vec::new(),
        prompt: Default::default(),
        sampling: SamplingOverrides::default(),
        max_tokens: None,
        stop: Vec::new(),
        choices: 1,
        consent: None,
        engram: Default::default(),
        quality_gate: None,
        steps: Default::default(),
        grammar: None,
        form_terms: Default::default(),
        not_enforced: Vec::new(),
        one_tool_call: false,
        built_in: None,
        documents: Default::default(),
        web: Default::default(),
        prompt_logprobs: false,
        recall: true,
        streamed: false,
    }
}

/// Every event of a reply, to its end.
pub async fn collect(mut events: mpsc::Receiver<ReplyEvent>) -> Vec<ReplyEvent> {
    let mut all = Vec::new();
    while let Some(event) = timeout(PATIENCE, events.recv()).await.expect("the reply stopped") {
        all.push(event);
    }
    all
}

/// Runs a test on one thread, where the actors live.
pub fn run(test: impl Future<Output = ()>) {
    run_with(512, test);
}

/// The same, with so many threads for work that waits for the disk.
pub fn run_with(disk_threads: usize, test: impl Future<Output = ()>) {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    let runtime = builder.enable_all().max_blocking_threads(disk_threads).build().unwrap();
    runtime.block_on(tokio::task::LocalSet::new().run_until(test));
}
