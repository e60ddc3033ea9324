//! The actors: thin owners of state and deadlines. The mathematics lives in plain modules that know no actor.
//!
//! | actor | owns | receives | on error |
//! |---|---|---|---|
//! | [`inference::Inference`] | the serving engine child (a further model has an Inference of its own, [`inference::Fleet`]), the request registry, the pause lease | Submit, Ask, Adapt, Pause → Lease, Host, Wake, Rest, Stop | restart the engine with back-off; requests in flight get an error event; new ones wait or get 503 with Retry-After |
//! | [`orchestrator::Orchestrator`] | the PipelineSet, the route history | Chat, PipelinesChanged, OrchestratorStatus | the caller falls back to the default route |
//! | [`memory::Memory`] | the turn log | Append, AddFeedback, AddJudgement, Unscored, List, Forget, MemoryStatus | stop writing, keep serving, reopen after a while |
//! | [`scorer::Scorer`] | the queue of unscored turns, the judge's engine child | JudgeAnswer, ScoreBacklog, ScorerStatus | leave the turn unscored, count it, find it again in the turn log |
//! | [`trainer::Trainer`] | the candidate: a file that no reply is answered with | Take, Discard, Train, TrainerStatus | the run fails |
//! | [`scheduler::Scheduler`] | the night's phase record, the pointer to the served generation, the canary, cron | Night, HoldNight → Hold, ScheduleChanged, SchedulerStatus | what served yesterday serves on; the run is reported as failed |
//!
//! The judge and the embedding model have an auxiliary engine each ([`aside::Aside`], an Inference of its own).
//!
//! Who asks whom:
//!
//! - `reply` asks Orchestrator, Inference and Memory. Before an answer of a gated route ends, it also asks the Scorer.
//! - The Scorer's work asks Memory and its engine's owner.
//! - The Scheduler's runs ask Trainer, Inference and Memory.
//! - The Trainer asks Inference where it trains without gradients.
//! - `daemon` asks all of them for their status.
//!
//! No handler waits for another actor. Messages are sent through a [`link::Link`], never through a bare address.
//! actix's unconditional send is banned: it drops messages silently.

pub mod aside;
pub mod embedder;
pub mod inference;
pub mod link;
pub mod memory;
pub mod orchestrator;
pub mod scheduler;
pub mod scorer;
pub mod supervisor;
pub mod trainer;
