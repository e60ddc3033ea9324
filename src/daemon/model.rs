//! Changing the served model file while the daemon lives. Replies under way finish, the engine ends, the next one
//! starts with the other file. Once that file has proved itself, the choice is written down and requests go on. What
//! cannot be hosted is not chosen, and the file before serves on; so it does after a kill at any moment.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use serde_json::{Value, json};
use tokio::sync::{oneshot, watch};

use super::choice::{Choice, of_own_release, whole, whole_here};
use super::face::link;
use super::{Cast, DaemonError, engine_spec, fleet, validate};
use crate::actors::inference::{Board, EngineSpec, EngineState, Fleet, Host, HostError, Inference};
use crate::actors::link::Link;
use crate::actors::scheduler::{Hold, HoldNight, Scheduler};
use crate::clock::Clock;
use crate::config::Config;
use crate::engine::protocol::Hosted;
use crate::gguf::{Error, Gguf, MAGIC, located};
use crate::meters;
use crate::service::{ModelWish, ServiceError};
use crate::store::files::why_not;

/// A model of hundreds of gigabytes from a slow disk; one that shows no progress is given up much earlier.
const HOST_TIMEOUT: Duration = Duration::from_secs(4 * 3_600);
/// Of what an engine said of a file, characters that are passed on.
const WHY_CHARS_MAX: usize = 400;

/// A change under way.
#[derive(Clone, Debug, Serialize)]
struct Under {
    to: PathBuf,
    /// `draining` or `loading`.
    phase: &'static str,
    began_ms: i64,
}

/// What the last change came to.
#[derive(Clone, Debug, Serialize)]
struct Outcome {
    to: PathBuf,
    accepted: bool,
    /// Why not.
    message: Option<String>,
    began_ms: i64,
    ended_ms: i64,
}

#[derive(Clone, Debug, Default)]
struct Shown {
    under: Option<Under>,
    last: Option<Outcome>,
}

/// Who changes the model.
pub(super) struct Models {
    config: Config,
    board: Arc<Board>,
    inference: Link<Inference>,
    pub(super) fleet: Arc<Fleet>,
    scheduler: Link<Scheduler>,
    clock: Clock,
    shown: watch::Sender<Shown>,
}

impl Models {
    pub(super) fn new(config: &Config, board: Arc<Board>, cast: &Cast, clock: Clock) -> Arc<Models> {
        let (inference, scheduler, fleet) = (cast.inference.clone(), cast.scheduler.clone(), cast.fleet.clone());
        Arc::new(Models {
            config: config.clone(),
            board,
            inference,
            fleet,
            scheduler,
            clock,
            shown: watch::Sender::default(),
        })
    }

    fn configured(&self) -> &Path {
        self.config.model.as_deref().unwrap_or(Path::new(""))
    }

    /// Whether the served model is called so.
    pub(super) fn hosted_as(&self, name: &str) -> bool {
        self.board.hosted().is_some_and(|hosted| hosted.model.name == name)
    }

    fn before(&self) -> Option<PathBuf> {
        Choice::in_force(&self.config.state_dir, self.configured()).map(|choice| choice.before)
    }

    /// What is served, what was, and what is being done about it.
    pub(super) fn show(&self) -> Value {
        let Shown { under, last } = self.shown.borrow().clone();
        let progress = match self.board.state() {
            EngineState::Loading { progress } => Some(progress),
            _ => None,
        };
        let hosted = self.board.hosted();
        let change = under.map(|under| {
            let mut change = json!(under);
            change["progress"] = json!(progress);
            change
        });
        json!({
            "file": self.board.file().map(|file| whole(&file)),
            "model": hosted.as_ref().map(|hosted| &hosted.model.name),
            "model_hash": hosted.as_ref().map(|hosted| &hosted.model_hash),
            "defaults": hosted.as_ref().map(|hosted| defaults(hosted)),
            "configured": whole(self.configured()),
            "before": self.before(),
            "change": change,
            "last": last,
            "further": fleet::show(&self.fleet),
        })
    }

    /// Puts another file in the place of the served one. `drain`: how long replies under way may take to finish. With
    /// `wait` the answer is what came of it, else that it began.
    pub(super) async fn change(
        self: &Arc<Self>,
        wish: ModelWish,
        drain: Duration,
        wait: bool,
    ) -> Result<Value, ServiceError> {
        let conflict = |why: String| Err(ServiceError::Conflict(why));
        let to = match wish {
            ModelWish::File(path) => path,
            ModelWish::Load(name) => return self.load(&name, wait).await,
            ModelWish::Unload(name) => return self.unload(&name, wait).await,
            ModelWish::Before => match self.before() {
                Some(path) => of_own_release(&path, &whole_here(self.configured())),
                None => {
                    return conflict(
                        "no other model was served before: `chimere model swap FILE` names one".to_owned(),
                    );
                }
            },
        };
        let to = self.judged(to).await?;
        let hold = match self.scheduler.send(HoldNight).await.map_err(|error| link(&error))? {
            Ok(hold) => hold,
            Err(why) => return conflict(format!("{why}: change the model when that is over")),
        };
        if matches!(self.board.state(), EngineState::Paused(_)) {
            return conflict("the engine is paused, and replies under way with it: resume it first".to_owned());
        }
        let began_ms = self.clock.now_ms();
        let under = Under { to: to.clone(), phase: "draining", began_ms };
        self.shown.send_modify(|shown| shown.under = Some(under));
        let (told, heard) = oneshot::channel();
        let step = Step { models: self.clone(), to, began_ms, _hold: hold, ended: None };
        // A task of its own: a client that leaves must not leave it half done.
        tokio::spawn(async move { drop(told.send(step.run(drain).await)) });
        match wait {
            true => heard.await.unwrap_or_else(|_| Err(ServiceError::Internal("the change broke off".to_owned()))),
            false => Ok(self.show()),
        }
    }

    /// Looks at a file before anything is given up for it, as the engine would.
    async fn judged(&self, path: PathBuf) -> Result<PathBuf, ServiceError> {
        let config = self.config.clone();
        // The engine that serves gives its memory back before the next one begins.
        let freed_bytes = self.board.engine_pid().map_or(0, validate::held_bytes);
        let work = move || {
            let file = vet(&path)?;
            let program = crate::program::own().map_err(|error| ServiceError::Internal(error.to_string()))?;
            match validate::judge(&config, &file, Some(&program), freed_bytes) {
                Ok(_) => Ok(file),
                Err(why) => Err(refused(&path, &told(without_path(&file, &why)))),
            }
        };
        tokio::task::spawn_blocking(work).await.map_err(|error| ServiceError::Internal(error.to_string()))?
    }

    async fn host(&self, file: PathBuf) -> Result<Arc<Hosted>, ServiceError> {
        let spec =
            engine_spec(&self.config, file.clone()).map_err(|error| ServiceError::Internal(error.to_string()))?;
        let hosted = self.inference.send_within(Host { spec: Arc::new(spec) }, HOST_TIMEOUT).await;
        hosted.map_err(|error| link(&error))?.map_err(|error| match error {
            HostError::Refused(why) => {
                let why = told(without_path(&file, &why));
                let message = format!("`{}` cannot be hosted: {why}; the model before serves again", file.display());
                ServiceError::Invalid { message, param: Some("path".to_owned()) }
            }
            HostError::Changing => ServiceError::Conflict(error.to_string()),
            HostError::Stopping => ServiceError::Unavailable { message: error.to_string(), retry_after_s: 5 },
            HostError::Lost { .. } => {
                let retry_after_s = self.board.retry_after_s();
                ServiceError::Unavailable { message: told(&error.to_string()), retry_after_s }
            }
        })
    }
}

/// A change from its beginning to its end, whatever that is.
struct Step {
    models: Arc<Models>,
    to: PathBuf,
    began_ms: i64,
    /// The night stands still meanwhile.
    _hold: Hold,
    ended: Option<Result<(), String>>,
}

impl Step {
    async fn run(mut self, drain: Duration) -> Result<Value, ServiceError> {
        let changed = self.replace(drain).await;
        self.ended = Some(changed.as_ref().map(drop).map_err(ToString::to_string));
        let models = self.models.clone();
        // It is over before anybody hears of it.
        drop(self);
        changed.map(|()| models.show())
    }

    async fn replace(&self, drain: Duration) -> Result<(), ServiceError> {
        let Step { models, to, .. } = self;
        let before = models.board.file();
        let shut = models.board.gate.shut(drain).await;
        models.shown.send_modify(|shown| shown.under.iter_mut().for_each(|under| under.phase = "loading"));
        let hosted = models.host(to.clone()).await?;
        if let Err(error) = self.write(before.clone()).await {
            // What would not outlive the daemon does not serve.
            if let Some(before) = before {
                models.host(before).await?;
            }
            let message =
                format!("the choice cannot be written to the state folder ({error}): the model before serves");
            return Err(ServiceError::Internal(message));
        }
        drop(shut);
        tracing::info!(file = %to.display(), model = hosted.model.name, "another model is served");
        Ok(())
    }

    /// The next start serves the new file.
    async fn write(&self, before: Option<PathBuf>) -> std::io::Result<()> {
        let (config, to) = (self.models.config.clone(), self.to.clone());
        let (configured, now_ms) = (self.models.configured().to_owned(), self.models.clock.now_ms());
        let work = move || {
            config.failpoint.pass("model.proven")?;
            // The same file again changes nothing about the way back.
            let last = Choice::in_force(&config.state_dir, &configured).map(|choice| choice.before);
            let other = before.map(|path| whole(&path)).filter(|path| *path != whole(&to));
            let before = other.or(last).unwrap_or_else(|| whole(&configured));
            Choice::new(&configured, to, before, now_ms).save(&config.state_dir)
        };
        tokio::task::spawn_blocking(work).await.map_err(std::io::Error::other)?
    }
}

impl Drop for Step {
    fn drop(&mut self) {
        let ended = self.ended.take().unwrap_or_else(|| Err("the change broke off".to_owned()));
        let (accepted, message) = (ended.is_ok(), ended.err());
        meters::reloaded("model", accepted);
        if let Some(message) = &message {
            tracing::error!(file = %self.to.display(), message, "the model was not changed");
        }
        let (to, began_ms, ended_ms) = (self.to.clone(), self.began_ms, self.models.clock.now_ms());
        let last = Some(Outcome { to, accepted, message, began_ms, ended_ms });
        self.models.shown.send_replace(Shown { under: None, last });
    }
}

fn invalid(message: String) -> ServiceError {
    ServiceError::Invalid { message, param: Some("path".to_owned()) }
}

fn refused(path: &Path, why: &str) -> ServiceError {
    invalid(format!("`{}` cannot be hosted: {why}; the model before serves on", path.display()))
}

/// A reason that begins with the file that is named already.
fn without_path<'a>(path: &Path, why: &'a str) -> &'a str {
    let shown = path.display().to_string();
    why.strip_prefix(&shown).and_then(|rest| rest.strip_prefix(": ")).unwrap_or(why)
}

/// Where the numbers come from that the model is asked with, and why not from the file beside it.
fn defaults(hosted: &Hosted) -> Value {
    json!({ "source": hosted.defaults.source, "unused": hosted.defaults.unused })
}

/// The model's first file. Of what is no model file it is told what stands in the way, and nothing of what it holds.
fn vet(path: &Path) -> Result<PathBuf, ServiceError> {
    if !path.is_absolute() {
        return Err(invalid("`path` must begin with `/`: the daemon has a folder of its own".to_owned()));
    }
    let file = located(path).ok().and_then(|file| file.canonicalize().ok()).filter(|file| file.is_file());
    let header = file.map(|file| (Gguf::open(&file), file));
    let unread = |error: &Error| matches!(error, Error::Read { .. } | Error::ReadAt { .. } | Error::Magic { .. });
    match header {
        Some((Ok(_), file)) => Ok(file),
        // It begins as a model does.
        Some((Err(error), file)) if !unread(&error) && begins_as_model(&file) => {
            Err(refused(path, &told(&error.to_string())))
        }
        _ => {
            let why = hindrance(path).unwrap_or_else(|| "is no GGUF file".to_owned());
            Err(invalid(format!("`{}` is no model file (GGUF) that the daemon can read: it {why}", path.display())))
        }
    }
}

/// What stands in the way of a model at `path`, as the end of a sentence; `None`: it begins as one.
pub(super) fn hindrance(path: &Path) -> Option<String> {
    let file = match located(path) {
        Ok(file) => file,
        Err(Error::NoModel { .. }) => return Some("is a folder without a model file (.gguf)".to_owned()),
        Err(Error::SeveralModels { found, names, .. }) => {
            return Some(format!("is a folder of {found} models ({names}): name one of them"));
        }
        Err(Error::Read { source, .. }) => return Some(format!("is a folder that cannot be read: {source}")),
        Err(error) => return Some(format!("cannot be used: {error}")),
    };
    let absent = std::fs::symlink_metadata(&file).is_err_and(|error| error.kind() == ErrorKind::NotFound);
    match why_not(&file) {
        Some(why) if absent => Some(format!("does not exist: {why}")),
        Some(why) => Some(why),
        None if absent => Some("does not exist".to_owned()),
        None => (!begins_as_model(&file)).then(|| "is no GGUF file".to_owned()),
    }
}

fn begins_as_model(file: &Path) -> bool {
    let mut magic = [0; MAGIC.len()];
    let read = std::fs::File::open(file).and_then(|mut file| std::io::Read::read_exact(&mut file, &mut magic));
    read.is_ok() && magic == MAGIC
}

/// What an engine said of a file: short, and without anything that steers a terminal.
fn told(why: &str) -> String {
    why.chars().filter(|c| !c.is_control()).take(WHY_CHARS_MAX).collect()
}

/// How the engine is started at first: with the file that was chosen, and with the configured one where that is gone.
pub(super) fn first_spec(config: &Config, configured: PathBuf) -> Result<EngineSpec, DaemonError> {
    let spec = engine_spec(config, configured.clone())?;
    match Choice::in_force(&config.state_dir, &configured).map(|choice| choice.path) {
        Some(path) if path != whole(&configured) => {
            tracing::info!(file = %path.display(), "a model that was chosen in the place of the configured one");
            let path = of_own_release(&path, &whole_here(&configured));
            Ok(EngineSpec { instead: Some(Arc::new(spec)), ..engine_spec(config, path)? })
        }
        _ => Ok(spec),
    }
}
