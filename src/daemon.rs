//! Builds everything once, in this order: state lock, keys, pipelines, listener, actors, HTTP server. Stops it in
//! the opposite order: no new requests, replies under way, server, engine. Signals and systemd are answered here.

pub mod choice;
mod documents;
pub mod embedder;
mod exit;
mod face;
mod fleet;
mod folders;
mod forget;
pub mod judge;
mod lessons;
pub mod log;
mod model;
mod notify;
mod pause;
mod reload;
mod sessions;
mod signals;
pub mod tables;
pub mod validate;
mod vectors;

use std::ffi::OsString;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use actix_rt::{Arbiter, System};
use tokio::net::TcpListener;
use tokio::runtime::{Builder, Handle};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

pub use exit::DaemonError;
use log::LogFilter;
use signals::{Asked, Signals};

use crate::actors::embedder::EmbedEngine;
use crate::actors::inference::{Board, EXIT_TIMEOUT, EngineSpec, EngineState, Fleet, Inference, Stop};
use crate::actors::link::Link;
use crate::actors::memory::{Memory, OpenStore};
use crate::actors::orchestrator::{Orchestrator, Pipelines};
use crate::actors::scheduler::{Desk, Host, Scheduler};
use crate::actors::scorer::{Inbox, JudgeEngine, Scorer, ScorerParts};
use crate::actors::supervisor::{Budget, Exhausted, Place, supervise};
use crate::actors::trainer::{Program, Resident, Trainer};
use crate::clock::Clock;
use crate::config::{Config, Flags, Live};
use crate::documents::Documents;
use crate::embed::Examples;
use crate::engine::prefix::discard;
use crate::fair::Shares;
use crate::http::{self, HttpLimits};
use crate::keys::KeyRing;
use crate::lessons::Lessons;
use crate::meters;
use crate::night::generation::learned;
use crate::night::library::Library;
use crate::pipeline::Sources;
use crate::reply::{CANCEL_WAIT_MS, Permits, RECALLS_MAX, Replies};
use crate::store::files::create_private_dir;
use crate::store::{SledTurns, StoreError, TurnStore, private, salvage};
use crate::tools::Toolbox;
use crate::web::Web;

/// Longest wait for the state folder: what is left of a daemon that was killed a moment ago.
const LOCK_PATIENCE: Duration = Duration::from_secs(2);
/// Threads of the runtime: the engine computes elsewhere.
const WORKERS_MAX: usize = 4;
/// After the drain, how long replies that were cut may take to write their Turns.
const CUT_TIMEOUT_MS: u64 = 2_000;
/// Longest wait for the door and the engine to end.
const STOP_TIMEOUT_MS: u64 = 4_000;

/// The machine gives no threads.
const EX_OSERR: i32 = 71;
/// Longest wait for an engine that writes its kept prompts, a few gigabytes at most.
const KEEPING_TIMEOUT: Duration = Duration::from_secs(20);

/// Folder of the turn log, under the state folder.
pub const TURNS_DIR: &str = "turns";

/// What the actors and the replies share.
struct Common {
    board: Arc<Board>,
    examples: Arc<Examples>,
    lessons: Arc<Lessons>,
    documents: Arc<Documents>,
    web: Option<Arc<Web>>,
    pipelines: Arc<Pipelines>,
    clock: Clock,
    toolbox: Arc<Toolbox>,
}

/// The actors' links.
#[derive(Clone)]
pub struct Cast {
    pub inference: Link<Inference>,
    pub fleet: Arc<Fleet>,
    pub orchestrator: Link<Orchestrator>,
    pub memory: Link<Memory>,
    pub scorer: Link<Scorer>,
    pub trainer: Link<Trainer>,
    pub scheduler: Link<Scheduler>,
    /// Where kept turns wait for their verdict.
    pub inbox: Arc<Inbox>,
    /// Not started before the first of them; absent: scoring is off.
    pub judge: Option<Arc<JudgeEngine>>,
    /// Absent: the embedding model needs no engine, or there is none.
    pub embedder: Option<Arc<EmbedEngine>>,
}

/// A running daemon.
pub struct Daemon {
    /// For work that goes on when its client has left.
    own: Weak<Daemon>,
    /// As in force; what changes while it runs is in `reload`.
    config: Live<Config>,
    flags: Flags,
    log: LogFilter,
    limits: Arc<Live<HttpLimits>>,
    reloaded: watch::Sender<reload::Outcome>,
    cast: Cast,
    board: Arc<Board>,
    replies: Arc<Replies>,
    keys: watch::Sender<Arc<KeyRing>>,
    /// The file that a request read last; the outer `None`: none yet.
    keys_file: Mutex<reload::KeysFile>,
    lease: pause::LeaseHolder,
    embedding: vectors::Places,
    reading: documents::Places,
    folders: folders::Folders,
    models: Arc<model::Models>,
    clock: Clock,
    started_ms: i64,
}

/// Runs the daemon until it is told to stop or cannot go on.
pub fn run(config: Config, flags: Flags, log: LogFilter) -> Result<(), DaemonError> {
    let workers = std::thread::available_parallelism().map_or(2, usize::from).clamp(2, WORKERS_MAX);
    let system = System::with_tokio_rt(move || {
        let built = Builder::new_multi_thread().worker_threads(workers).enable_all().build();
        // Nothing runs yet, and the closure has no other way to fail.
        built.unwrap_or_else(|error| {
            let _ = writeln!(std::io::stderr(), "chimere: cannot start threads: {error}");
            std::process::exit(EX_OSERR)
        })
    });
    system.block_on(serve(config, flags, log))
}

async fn serve(config: Config, flags: Flags, log: LogFilter) -> Result<(), DaemonError> {
    let _ = http::install_recorder()?;
    meters::describe();
    let _lock = private::take(&config.state_dir, LOCK_PATIENCE)?;
    let keys = KeyRing::load(&config.state_dir)?;
    if keys.is_empty() && !config.http.listen.ip().is_loopback() {
        return Err(DaemonError::Open(config.http.listen));
    }
    create_private_dir(&config.pipelines.overlay)?;
    create_private_dir(&tables::own_folder(&config))?;
    let sources =
        Sources { shipped: config.pipelines.shipped.clone(), overlay: Some(config.pipelines.overlay.clone()) };
    let pipelines = Arc::new(Pipelines::load(sources, config.replies.ceilings)?);
    let model = config.model.clone().map_err(DaemonError::NoModel)?;
    let listener = TcpListener::bind(config.http.listen)
        .await
        .map_err(|source| DaemonError::Listen { listen: config.http.listen, source })?;
    let spec = Arc::new(model::first_spec(&config, model)?);
    let exhausted = Arc::new(watch::Sender::new(None));
    let board = Arc::new(Board::default());
    board.set_shelf(tables::scan(&config));
    // Nobody answers before the generation that served yesterday is verified and loaded.
    board.withhold();
    let clock = config.clock_offset.clone().map_or_else(Clock::wall, Clock::moved_by);
    let embedding = embedder::open(&config);
    let examples = Arc::new(tables::examples(&config, embedding.embedder));
    let toolbox = Arc::new(Toolbox::new(crate::program::own()?, clock.clone()));
    let lessons = Arc::new(Lessons::open(&config.state_dir));
    let documents = Arc::new(Documents::open(&config.state_dir));
    let web = Web::configured(&config).map_err(DaemonError::Web)?;
    let common = Common { board, examples, lessons, documents, web, pipelines, clock, toolbox };
    let cast = Cast { embedder: embedding.engine, ..cast(&config, &spec, &common, &exhausted)? };
    let daemon = Daemon::new(config, flags, log, cast, common, keys);
    daemon.live(listener, exhausted.subscribe()).await
}

impl Daemon {
    fn new(config: Config, flags: Flags, log: LogFilter, cast: Cast, common: Common, keys: KeyRing) -> Arc<Self> {
        let Common { board, examples, lessons, documents, web, pipelines, clock, toolbox } = common;
        let replies = Arc::new(Replies {
            inference: cast.inference.clone(),
            orchestrator: cast.orchestrator.clone(),
            memory: cast.memory.clone(),
            sessions: Arc::default(),
            withheld: Arc::default(),
            runs: Arc::default(),
            inbox: cast.inbox.clone(),
            scorer: Some(cast.scorer.clone()),
            board: board.clone(),
            fleet: cast.fleet.clone(),
            examples,
            lessons,
            documents,
            web,
            recalls: Arc::new(Semaphore::new(RECALLS_MAX)),
            pipelines,
            failpoint: config.failpoint.clone(),
            config: Live::new(config.replies.clone()),
            append_timeout: Live::new(config.memory.append_timeout),
            clock: clock.clone(),
            toolbox,
            permits: Arc::new(Permits::new(config.replies.requests_max)),
            draining: CancellationToken::new(),
            cut: CancellationToken::new(),
        });
        Arc::new_cyclic(|own| Daemon {
            own: own.clone(),
            limits: Arc::new(Live::new(http_limits(&config))),
            folders: folders::Folders::new(&config.folders),
            models: model::Models::new(&config, board.clone(), &cast, clock.clone()),
            config: Live::new(config),
            flags,
            log,
            reloaded: watch::Sender::default(),
            cast,
            board,
            replies,
            keys_file: Mutex::default(),
            keys: watch::Sender::new(Arc::new(keys)),
            lease: pause::LeaseHolder::default(),
            embedding: vectors::Places::default(),
            reading: documents::Places::default(),
            started_ms: clock.now_ms(),
            clock,
        })
    }

    /// Serves until a signal or a failure, then drains.
    async fn live(
        self: Arc<Self>,
        listener: TcpListener,
        mut exhausted: watch::Receiver<Option<&'static str>>,
    ) -> Result<(), DaemonError> {
        let mut signals = Signals::new()?;
        let closing = CancellationToken::new();
        let door = tokio::spawn(http::serve(listener, self.clone(), self.limits.clone(), closing.clone()));
        let (config, fleet) = (self.config.get(), self.cast.fleet.clone());
        tracing::info!(listen = %config.http.listen, state_dir = %config.state_dir.display(), "started");
        let background = [
            tokio::spawn(notify::report(self.board.clone())),
            tokio::spawn(notify::watchdog(self.cast.clone(), self.board.clone(), config.engine.stall_timeout)),
            tokio::spawn(self.clone().follow_files()),
            tokio::spawn(async move { fleet.tend().await }),
            tokio::spawn(embedder::renew(self.replies.examples.clone())),
            tokio::spawn(documents::tend(self.clone())),
            tokio::spawn(folders::follow(self.clone())),
        ];
        let mut engine = self.board.watch();
        let end = loop {
            tokio::select! {
                stop = signals.next() => match stop {
                    Asked::Stop => break Ok(()),
                    Asked::Reload => self.reload().await,
                },
                failed = engine.wait_for(|state| matches!(state, EngineState::Failed { .. })) => {
                    break Err(hosting_error(failed.map(|state| state.clone()).ok()));
                }
                spent = exhausted.wait_for(Option::is_some) => {
                    break Err(DaemonError::Exhausted(spent.ok().and_then(|name| *name).unwrap_or("an actor")));
                }
            }
        };
        notify::stopping();
        self.drain(door, closing, signals).await;
        background.iter().for_each(JoinHandle::abort);
        end
    }

    /// Lets replies under way finish, within `drain_timeout` or until a second signal.
    async fn drain<T>(&self, door: JoinHandle<T>, closing: CancellationToken, mut signals: Signals) {
        let (running, drain_timeout) = (self.replies.running(), self.config.get().drain_timeout);
        tracing::info!(running, timeout_ms = drain_timeout.as_millis(), "draining");
        self.replies.draining.cancel();
        closing.cancel();
        let told_again = async { while signals.next().await == Asked::Reload {} };
        tokio::select! {
            _ = timeout(drain_timeout, self.replies.idle()) => {}
            () = told_again => tracing::warn!("told to stop again: replies under way are cut"),
        }
        self.replies.cut.cancel();
        let _ = timeout(Duration::from_millis(CUT_TIMEOUT_MS), self.replies.idle()).await;
        let stop = Duration::from_millis(STOP_TIMEOUT_MS);
        let mut door = door;
        if timeout(stop, &mut door).await.is_err() {
            door.abort();
        }
        if let Some(judge) = &self.cast.judge {
            judge.stop().await;
        }
        if let Some(embedder) = &self.cast.embedder {
            embedder.stop().await;
        }
        self.cast.fleet.stop(stop).await;
        let _ = self.cast.inference.send_within(Stop, stop).await;
        let mut state = self.board.watch();
        let ended = state.wait_for(|s| matches!(s, EngineState::Stopped | EngineState::Failed { .. }));
        let keeps = self.config.get().engine.snapshots_on_disk;
        let _ = timeout(if keeps { stop + KEEPING_TIMEOUT } else { stop }, ended).await;
        tracing::info!("stopped");
    }
}

/// Starts the actors: those that serve, those that keep and those of the night, a thread each.
fn cast(
    config: &Config,
    spec: &Arc<EngineSpec>,
    common: &Common,
    exhausted: &Arc<Exhausted>,
) -> Result<Cast, DaemonError> {
    let place = || Place::Arbiter(Arbiter::new().handle());
    let (serving, keeping, night) = (place(), place(), place());
    let budget = Budget { restarts_max: config.actor_restarts_max, window: config.actor_restarts_window };
    let Common { board, pipelines, clock, .. } = common;
    let engine = spec.clone();
    let (spec, shared, pipelines, runtime) = (spec.clone(), board.clone(), pipelines.clone(), Handle::current());
    let (folder, bytes_max) = (config.state_dir.join(TURNS_DIR), config.memory.bytes_max);
    let reader = engine.program.clone();
    let open: OpenStore =
        Arc::new(move || Ok(Arc::new(open_turns(&folder, bytes_max, &reader)?) as Arc<dyn TurnStore>));
    let lessons = common.lessons.clone();
    let memory = supervise("memory", keeping.clone(), budget, exhausted.clone(), move || {
        Memory::new(open.clone()).with_lessons(lessons.clone())
    });
    let inbox = Arc::new(Inbox::new(config.scorer.queue_max));
    let judge = judge::engine(config);
    let scoring =
        ScorerParts { judge: judge.clone(), inbox: inbox.clone(), memory: memory.clone(), clock: clock.clone() };
    let inference = supervise("inference", serving.clone(), budget, exhausted.clone(), move || {
        Inference::new(spec.clone(), shared.clone(), runtime.clone())
    });
    // This binary again, as the trainer of the served model.
    let program = Program { path: engine.program.clone(), args: Vec::new(), low_priority: config.low_priority };
    let state_dir = config.state_dir.clone();
    let resident = Resident { inference: inference.clone(), board: board.clone() };
    let trainer = supervise("trainer", night.clone(), budget, exhausted.clone(), move || {
        Trainer::new(&state_dir, program.clone(), resident.clone())
    });
    let scorer = supervise("scorer", keeping, budget, exhausted.clone(), move || Scorer::new(scoring.clone()));
    let links = Links { inference: &inference, memory: &memory, trainer: &trainer, scorer: &scorer };
    let desk = Arc::new(desk(config, common, links));
    let fleet = Arc::new(fleet::fleet(config, &serving, budget)?);
    Ok(Cast {
        fleet,
        inbox,
        judge: judge.ok(),
        embedder: None,
        orchestrator: supervise("orchestrator", serving, budget, exhausted.clone(), move || {
            Orchestrator::new(pipelines.clone())
        }),
        scorer,
        scheduler: supervise("scheduler", night, budget, exhausted.clone(), move || Scheduler::new(desk.clone())),
        memory,
        inference,
        trainer,
    })
}

/// Opens the turn log; what is left of a damaged one is read by `program` in a process of its own.
pub fn open_turns(folder: &Path, bytes_max: u64, program: &Path) -> Result<SledTurns, StoreError> {
    salvage::open(folder, bytes_max, &|from, to, bytes_max| salvage::rebuild_apart(program, from, to, bytes_max))
}

/// Whom the Scheduler asks.
struct Links<'a> {
    inference: &'a Link<Inference>,
    memory: &'a Link<Memory>,
    trainer: &'a Link<Trainer>,
    scorer: &'a Link<Scorer>,
}

/// What the Scheduler works with.
fn desk(config: &Config, common: &Common, links: Links<'_>) -> Desk {
    Desk {
        state_dir: config.state_dir.clone(),
        clock: common.clock.clone(),
        zone: jiff::tz::TimeZone::system(),
        board: common.board.clone(),
        examples: common.examples.clone(),
        inference: links.inference.clone(),
        memory: links.memory.clone(),
        trainer: links.trainer.clone(),
        scorer: links.scorer.clone(),
        library: Arc::new(Library::new(&config.state_dir)),
        pipelines: common.pipelines.clone(),
        golden: config.night.golden.clone(),
        slice: config.night.slice.clone(),
        shipped_tables: tables::shipped_folder(config),
        folders: config.night_folders(),
        failpoint: config.failpoint.clone(),
        enabled: config.night.enabled,
        host: Host::default(),
        forgettings: Default::default(),
        progress: watch::Sender::new(Default::default()),
    }
}

/// Whether adapters are put on the served model: the night makes them, or made one that is served.
fn adapters_wanted(config: &Config) -> bool {
    config.night.enabled || learned(&config.state_dir).unwrap_or(false)
}

/// What an engine of this configuration is started with, beside its model.
fn engine_args(config: &Config) -> Vec<OsString> {
    let engine = &config.engine;
    let mut args = vec!["engine".into()];
    let mut flag = |name: &str, value: String| args.extend([name.into(), value.into()]);
    flag("--backend", engine.backend.clone());
    flag("--vram-max", engine.vram_bytes_max.to_string());
    flag("--pinned-max", engine.pinned_bytes_max.to_string());
    flag("--threads", engine.threads.to_string());
    flag("--context", engine.context_tokens.map_or(0, usize::from).to_string());
    flag("--sequences", engine.sequences.to_string());
    if let Some(tokens) = engine.step_tokens {
        flag("--step-tokens", tokens.to_string());
    }
    if engine.kv != "auto" {
        flag("--kv", engine.kv.clone());
    }
    flag("--state", engine.state.clone());
    flag("--snapshots-max", engine.snapshot_bytes_max.to_string());
    if engine.snapshots_on_disk {
        flag("--snapshots-file", config.prefixes_file().display().to_string());
    }
    // Every admitted reply may wait, with all its choices.
    let waiting = Shares::most(config.replies.requests_max) * crate::service::CHOICES_MAX as usize;
    flag("--waiting", waiting.min(4_096).to_string());
    args.extend(["--kernels".into(), config.kernels_cache().into_os_string()]);
    if let Some(folder) = &engine.kernels {
        args.extend(["--shipped-kernels".into(), folder.clone().into_os_string()]);
    }
    // What the night learns are adapters.
    args.extend(adapters_wanted(config).then(|| "--adapters".into()));
    args.extend(config.engine_args.iter().map(OsString::from));
    args
}

/// This binary again, as an engine of the file `model`.
fn engine_spec(config: &Config, model: PathBuf) -> Result<EngineSpec, DaemonError> {
    let engine = &config.engine;
    if !engine.snapshots_on_disk {
        // Of a time when they were kept there.
        discard(&config.prefixes_file())?;
    }
    Ok(EngineSpec {
        program: crate::program::own()?,
        args: engine_args(config),
        model,
        instead: None,
        load_timeout: engine.load_timeout,
        stall_timeout: engine.stall_timeout,
        exit_timeout: if engine.snapshots_on_disk { KEEPING_TIMEOUT } else { EXIT_TIMEOUT },
        first_start_attempts: engine.first_start_attempts,
    })
}

fn http_limits(config: &Config) -> HttpLimits {
    let ms = |duration: Duration| duration.as_millis() as u64;
    HttpLimits {
        host_names: config.http.hosts.clone(),
        origins: config.http.origins.clone(),
        loopback_owner: config.http.loopback_owner,
        connections_max: config.http.connections_max,
        connections_per_ip_max: config.http.connections_per_address_max,
        header_timeout_ms: ms(config.http.header_timeout),
        body_progress_timeout_ms: ms(config.http.body_timeout),
        idle_timeout_ms: ms(config.http.idle_timeout),
        write_timeout_ms: ms(config.http.write_timeout),
        body_bytes_max: config.http.body_bytes_max,
        file_bytes_max: config.file_bytes_max,
        // The replies' own deadlines end them first, with their Turns.
        drain_timeout_ms: ms(config.drain_timeout) + CUT_TIMEOUT_MS,
        reply_silence_timeout_ms: ms(config.replies.reply_timeout) + CANCEL_WAIT_MS + CUT_TIMEOUT_MS,
        ..HttpLimits::default()
    }
}

fn hosting_error(state: Option<EngineState>) -> DaemonError {
    match state {
        Some(EngineState::Failed { message, fatal: true }) => DaemonError::BadModel(message),
        Some(EngineState::Failed { message, .. }) => DaemonError::EngineDies(message),
        _ => DaemonError::EngineDies("its state was lost".to_owned()),
    }
}
