//! The Trainer owns the candidate: a file under `candidates/<run>/` that no reply is ever answered with. It is
//! taken from a file that was made elsewhere; training itself does not exist yet, and says so.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use actix::prelude::*;
use serde_json::{Value, json};

use crate::night::inspect::{ADAPTER_BYTES_MAX, hash_file};
use crate::night::phase::Candidate;
use crate::service::ServiceError;
use crate::store::files::create_private_dir;

const FOLDER: &str = "candidates";
const FILE: &str = "adapter.gguf";

/// Trains a candidate.
#[derive(Message)]
#[rtype(result = "Result<(), ServiceError>")]
pub struct Train;

/// Takes a copy of an adapter file as the candidate of a run.
#[derive(Message)]
#[rtype(result = "Result<Candidate, String>")]
pub struct Take {
    pub path: PathBuf,
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
    /// The run whose candidate is there.
    candidate: Option<String>,
}

impl Trainer {
    pub fn new(state_dir: &Path) -> Self {
        Trainer { folder: state_dir.join(FOLDER), candidate: None }
    }
}

impl Actor for Trainer {
    type Context = Context<Self>;
}

impl Handler<Train> for Trainer {
    type Result = Result<(), ServiceError>;

    fn handle(&mut self, _: Train, _: &mut Self::Context) -> Self::Result {
        Err(ServiceError::NotBuilt("training is not built yet: no candidate was made".to_owned()))
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

/// Copies the adapter into the folder `to`, synced, and says what was copied.
fn copy(path: &Path, to: &Path) -> Result<Candidate, String> {
    let work = || -> io::Result<Candidate> {
        let source = File::open(path)?;
        let meta = source.metadata()?;
        if !meta.is_file() || meta.len() > ADAPTER_BYTES_MAX {
            return Err(io::Error::other(format!("it is no file of at most {ADAPTER_BYTES_MAX} bytes")));
        }
        if to.exists() {
            fs::remove_dir_all(to)?;
        }
        create_private_dir(to)?;
        let path = to.join(FILE);
        let mut copy = File::create(&path)?;
        io::copy(&mut source.take(ADAPTER_BYTES_MAX), &mut copy)?;
        copy.sync_all()?;
        File::open(to)?.sync_all()?;
        let (sha256, _) = hash_file(&path)?;
        Ok(Candidate { path, sha256 })
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
        MessageResult(json!({ "state": "not_built", "candidate": self.candidate }))
    }
}
