//! The Trainer owns the candidate: a file under `candidates/<run>/` that no reply is ever answered with. It is learned
//! by a process of its own, without gradients by the engine that serves, or taken from a file that was made elsewhere.

mod child;
mod resident;

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use actix::prelude::*;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

pub use child::{Lesson, Program, Said};
pub use resident::Resident;

use crate::night::inspect::{ADAPTER_BYTES_MAX, hash_file};
use crate::night::learning::Training;
use crate::night::phase::Candidate;
use crate::store::files::create_private_dir;
use crate::training::{Method, Step};

const FOLDER: &str = "candidates";
const FILE: &str = "adapter.gguf";

/// Hears of every step.
pub type Told = Arc<dyn Fn(Step) + Send + Sync>;

/// Trains a candidate. The answer comes when it is on the disk, or when it is certain that it will not be.
#[derive(Message)]
#[rtype(result = "Result<(Candidate, Said), String>")]
pub struct Train {
    pub run: String,
    /// The dataset, as lines.
    pub pairs: PathBuf,
    /// The adapter to go on from.
    pub from: Option<PathBuf>,
    pub seed: u64,
    pub training: Training,
    pub stop: CancellationToken,
    pub told: Told,
}

/// Takes a copy of an adapter file as the candidate of a run.
#[derive(Message)]
#[rtype(result = "Result<Candidate, String>")]
pub struct Take {
    pub path: PathBuf,
    pub run: String,
}

/// The candidate that a run left on the disk, if it did.
#[derive(Message)]
#[rtype(result = "Option<Candidate>")]
pub struct Left {
    pub run: String,
}

/// The run is over: its candidate goes.
#[derive(Message)]
#[rtype(result = "()")]
pub struct Discard {
    pub run: String,
}

#[derive(Message)]
#[rtype(result = "Value")]
pub struct TrainerStatus;

pub struct Trainer {
    folder: PathBuf,
    program: Program,
    resident: Resident,
    /// The run whose candidate is there, or in the making.
    candidate: Option<String>,
    busy: Arc<AtomicBool>,
}

impl Trainer {
    pub fn new(state_dir: &Path, program: Program, resident: Resident) -> Self {
        Trainer { folder: state_dir.join(FOLDER), program, resident, candidate: None, busy: Arc::default() }
    }
}

impl Actor for Trainer {
    type Context = Context<Self>;
}

/// Says that a training runs, for as long as it lives.
struct Busy(Arc<AtomicBool>);

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Relaxed);
    }
}

impl Handler<Train> for Trainer {
    type Result = ResponseFuture<Result<(Candidate, Said), String>>;

    fn handle(&mut self, train: Train, _: &mut Self::Context) -> Self::Result {
        if self.busy.swap(true, Ordering::Relaxed) {
            return Box::pin(async { Err("a training is under way already".to_owned()) });
        }
        let busy = Busy(self.busy.clone());
        self.candidate = Some(train.run.clone());
        let (program, resident, to) = (self.program.clone(), self.resident.clone(), self.folder.join(&train.run));
        Box::pin(async move {
            let _busy = busy;
            let Train { pairs, from, seed, training, stop, told, .. } = train;
            fresh(&to).map_err(|error| format!("no room for a candidate at {}: {error}", to.display()))?;
            let lesson = Lesson { pairs, out: to.join(FILE), from, seed, training };
            // No run begins while another model takes its place.
            let model = resident.board.file().ok_or("no model is served yet")?;
            let said = match training.method {
                Method::Gradient => {
                    child::train(&program, &model, &lesson, &stop, &*told).await.map_err(|e| e.to_string())
                }
                Method::Population | Method::Mezo => resident.train(&model, &lesson, &stop, &*told).await,
            }?;
            let path = lesson.out;
            let hashed = tokio::task::spawn_blocking(move || candidate(path)).await.map_err(|e| e.to_string())?;
            let candidate = hashed.map_err(|error| format!("the trained adapter cannot be read: {error}"))?;
            Ok((candidate, said))
        })
    }
}

impl Handler<Left> for Trainer {
    type Result = ResponseFuture<Option<Candidate>>;

    fn handle(&mut self, Left { run }: Left, _: &mut Self::Context) -> Self::Result {
        let path = self.folder.join(&run).join(FILE);
        if path.is_file() {
            self.candidate = Some(run);
        }
        Box::pin(async move { tokio::task::spawn_blocking(move || candidate(path)).await.ok()?.ok() })
    }
}

impl Handler<Take> for Trainer {
    type Result = ResponseFuture<Result<Candidate, String>>;

    fn handle(&mut self, take: Take, _: &mut Self::Context) -> Self::Result {
        self.candidate = Some(take.run.clone());
        let to = self.folder.join(&take.run);
        Box::pin(async move {
            let taken = tokio::task::spawn_blocking(move || copy(&take.path, &to));
            taken.await.map_err(|error| error.to_string())?
        })
    }
}

/// An empty private folder.
fn fresh(folder: &Path) -> io::Result<()> {
    if folder.exists() {
        fs::remove_dir_all(folder)?;
    }
    create_private_dir(folder)
}

fn candidate(path: PathBuf) -> io::Result<Candidate> {
    let (sha256, _) = hash_file(&path)?;
    Ok(Candidate { path, sha256 })
}

/// Copies the adapter into the folder `to`, synced, and says what was copied.
fn copy(path: &Path, to: &Path) -> Result<Candidate, String> {
    let work = || -> io::Result<Candidate> {
        let source = File::open(path)?;
        let meta = source.metadata()?;
        if !meta.is_file() || meta.len() > ADAPTER_BYTES_MAX {
            return Err(io::Error::other(format!("it is no file of at most {ADAPTER_BYTES_MAX} bytes")));
        }
        fresh(to)?;
        let path = to.join(FILE);
        let mut copy = File::create(&path)?;
        io::copy(&mut source.take(ADAPTER_BYTES_MAX), &mut copy)?;
        copy.sync_all()?;
        File::open(to)?.sync_all()?;
        candidate(path)
    };
    work().map_err(|error| format!("cannot take {} as a candidate: {error}", path.display()))
}

impl Handler<Discard> for Trainer {
    type Result = ();

    fn handle(&mut self, Discard { run }: Discard, _: &mut Self::Context) {
        self.candidate = None;
        if let Err(error) = fs::remove_dir_all(self.folder.join(run))
            && error.kind() != io::ErrorKind::NotFound
        {
            tracing::warn!(%error, "a candidate is still on the disk");
        }
    }
}

impl Handler<TrainerStatus> for Trainer {
    type Result = MessageResult<TrainerStatus>;

    fn handle(&mut self, _: TrainerStatus, _: &mut Self::Context) -> Self::Result {
        let state = if self.busy.load(Ordering::Relaxed) { "training" } else { "idle" };
        MessageResult(json!({ "state": state, "candidate": self.candidate }))
    }
}
