//! Training without gradients on the engine that serves. The Trainer puts one question after another to the Inference
//! actor. The engine answers them between the steps of live replies. No reply uses the candidate: it is numbers in the
//! engine's memory until it is saved, and is lost with the engine.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;

use super::child::{Lesson, Said};
use crate::actors::inference::{Adapt, Board, Inference};
use crate::actors::link::Link;
use crate::engine::adapter;
use crate::engine::load;
use crate::engine::protocol::{Event, Hosted};
use crate::gguf::Gguf;
use crate::training::pairs::{self, Pairs};
use crate::training::zeroth::{Ask, Walk};
use crate::training::{Objective, Step};

/// Name of the candidate in the engine.
const CANDIDATE: &str = "night";
const READY_TIMEOUT: Duration = Duration::from_secs(120);
const DROP_TIMEOUT: Duration = Duration::from_secs(30);
/// What the last measurement and the writing may take beyond the time given: they are foreseen to end in time, but the
/// machine may be busier than it was, and what was learned is not thrown away for that.
const ENDING: Duration = Duration::from_secs(60);
/// Templates may recurse.
const TEXT_STACK_BYTES: usize = 64 << 20;

/// The engine that serves, and who speaks for it.
#[derive(Clone)]
pub struct Resident {
    pub inference: Link<Inference>,
    pub board: Arc<Board>,
}

impl Resident {
    /// Trains; `told` hears every step. Whatever ends it, the engine is left without the candidate.
    pub(super) async fn train(
        &self,
        model: &Path,
        lesson: &Lesson,
        stop: &CancellationToken,
        told: &(dyn Fn(Step) + Send + Sync),
    ) -> Result<Said, String> {
        let minutes = lesson.training.minutes_max;
        let limit = Duration::from_secs_f64(minutes * 60.0);
        let trained = tokio::select! {
            ended = timeout(limit + ENDING, self.walk(model, lesson, Instant::now() + limit, told)) => {
                ended.unwrap_or_else(|_| Err(format!("the training took longer than {minutes} minutes and was ended")))
            }
            () = stop.cancelled() => Err("the training was ended: the run was stopped".to_owned()),
        };
        if trained.is_err() {
            let _ = self.ask(Ask::Drop, DROP_TIMEOUT).await;
        }
        trained
    }

    async fn walk(
        &self,
        model: &Path,
        lesson: &Lesson,
        end: Instant,
        told: &(dyn Fn(Step) + Send + Sync),
    ) -> Result<Said, String> {
        let began = Instant::now();
        let hosted = self.board.hosted_within(READY_TIMEOUT).await.ok_or("the engine is not running")?;
        let (read, from) = texts(model.to_owned(), lesson.pairs.clone(), lesson.from.clone()).await?;
        let (refused, layers) = (read.refused.len(), hosted.model.layers);
        let recipe = lesson.training.recipe(layers, lesson.seed);
        let walk = Walk::new(&recipe, read.list, layers, from, lesson.out.clone());
        let mut walk = walk.map_err(|error| error.to_string())?;
        // What a training of an earlier life of this daemon may have left.
        let _ = self.ask(Ask::Drop, DROP_TIMEOUT).await;
        let mut measuring = Duration::ZERO;
        while let Some(ask) = walk.ask() {
            let asked = Instant::now();
            let answer = self.ask(ask, end + ENDING - asked).await?;
            let step = walk.take(&answer).map_err(|error| error.to_string())?;
            if let Some(step) = step {
                told(step);
            } else if walk.steps_taken() == 0 {
                within_memory(&walk, &hosted, lesson.training.memory_gib_max)?;
                measuring = measuring.max(asked.elapsed());
            }
            // The last measurement takes as long as the first did, and live replies may make it longer.
            if Instant::now() + 2 * measuring >= end {
                walk.finish();
            }
        }
        Ok(Said { outcome: walk.outcome(), refused, seconds: began.elapsed().as_secs_f64() })
    }

    async fn ask(&self, ask: Ask, patience: Duration) -> Result<Event, String> {
        let adapt = Adapt::Candidate { name: CANDIDATE.to_owned(), ask };
        let answer = self.inference.send_within(adapt, patience).await.map_err(|error| error.to_string())?;
        answer.map_err(|error| error.to_string())
    }
}

/// What a candidate takes beside the weights: its own numbers, and those of the perturbations that are under way, as they
/// are made and as the backend packs them.
fn within_memory(walk: &Walk, hosted: &Hosted, gib_max: f64) -> Result<(), String> {
    let bytes = walk.parameters() as f64 * 4.0 * (1.0 + 2.0 * hosted.model.sequences_max as f64);
    let gib = bytes / (1_u64 << 30) as f64;
    if gib <= gib_max {
        return Ok(());
    }
    Err(format!("the candidate and its perturbations take {gib:.1} GiB, over the limit of {gib_max} GiB"))
}

type Texts = (Pairs, Option<(PathBuf, String)>);

/// The pairs as ids, and the adapter to go on from with its SHA-256.
async fn texts(model: PathBuf, pairs: PathBuf, from: Option<PathBuf>) -> Result<Texts, String> {
    let (answer, read) = oneshot::channel();
    let work = move || -> Result<Texts, String> {
        let header = Gguf::open(&model).map_err(|error| error.to_string())?;
        // The engine had the template judged apart before it was ready; here it is judged in place.
        let (vocab, template) = load::text(&header, None).map_err(|error| error.to_string())?;
        let read = pairs::read(&pairs, vocab.as_ref(), template.as_ref(), Objective::Likelihood);
        let read = read.map_err(|error| error.to_string())?;
        let hashed = |path: PathBuf| adapter::sha256_of(&path).map(|(_, sha256)| (path, sha256));
        Ok((read, from.map(hashed).transpose().map_err(|error| error.to_string())?))
    };
    let thread = std::thread::Builder::new().name("trainer-text".to_owned()).stack_size(TEXT_STACK_BYTES);
    let spawned = thread.spawn(move || drop(answer.send(work())));
    spawned.map_err(|error: io::Error| format!("cannot start a thread: {error}"))?;
    read.await.unwrap_or_else(|_| Err("the pairs could not be read: a defect, which the log tells of".to_owned()))
}
