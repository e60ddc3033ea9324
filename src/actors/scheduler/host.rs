//! Adapters in the serving engine: loaded before anything may ask for them, once for each engine, and dropped
//! when nothing will ask again.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use super::desk::Desk;
use super::exam::Asked;
use crate::actors::inference::{Adapt, Ask};
use crate::engine::protocol::{EvalRow, Event, Generate};
use crate::night::generation::Generations;
use crate::night::served::revision;

const LOAD_TIMEOUT: Duration = Duration::from_secs(30);
/// The divergence is measured between live steps.
const EVALUATE_TIMEOUT: Duration = Duration::from_secs(1_800);

/// Which revisions the present engine holds.
#[derive(Default)]
pub struct Host(Mutex<(u64, BTreeSet<String>)>);

impl Host {
    /// Runs `change` on the revisions of the engine of that number of starts; another engine holds none.
    fn with<T>(&self, engine: u64, change: impl FnOnce(&mut BTreeSet<String>) -> T) -> T {
        let mut held = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if held.0 != engine {
            *held = (engine, BTreeSet::new());
        }
        change(&mut held.1)
    }
}

impl Host {
    /// The engine of that number holds the adapters of these generations.
    pub(super) fn holds(&self, engine: u64, generations: &[u64]) -> bool {
        self.with(engine, |held| generations.iter().filter_map(|n| revision(*n)).all(|name| held.contains(&name)))
    }
}

/// Somebody who can be asked: the base model, or it with an adapter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Contender {
    revision: Option<String>,
    path: PathBuf,
    sha256: String,
}

impl Contender {
    /// A file under a name of its own.
    pub(super) fn new(revision: String, path: PathBuf, sha256: String) -> Contender {
        Contender { revision: Some(revision), path, sha256 }
    }

    /// A generation whose manifest is verified here; it reads the whole adapter from the disk.
    pub(super) fn generation(generations: &Generations, number: u64, base_hash: &str) -> Result<Contender, String> {
        let Some(revision) = revision(number) else {
            return Ok(Contender { revision: None, path: PathBuf::new(), sha256: String::new() });
        };
        let manifest = generations.verify(number, base_hash).map_err(|error| error.to_string())?;
        Ok(Contender::new(revision, generations.adapter(number), manifest.adapter.sha256))
    }

    /// Answers with an adapter, and not as the base model does.
    pub(super) fn adapted(&self) -> bool {
        self.revision.is_some()
    }

    /// Of the adapter's file; empty for the base model.
    pub(super) fn sha256(&self) -> &str {
        &self.sha256
    }

    /// The request, asked of this one, behind all live requests.
    pub(super) fn asks(&self, request: Generate) -> Generate {
        Generate { adapter: self.revision.clone(), background: true, ..request }
    }

    /// Makes the present engine hold the adapter.
    pub(super) async fn load(&self, desk: &Desk) -> Result<(), String> {
        let Some(revision) = &self.revision else { return Ok(()) };
        let engine = desk.board.starts();
        if desk.host.with(engine, |held| held.contains(revision)) {
            return Ok(());
        }
        let load =
            Ask::LoadAdapter { revision: revision.clone(), path: self.path.clone(), sha256: self.sha256.clone() };
        match desk.inference.send_within(load, LOAD_TIMEOUT).await {
            Ok(Ok(Event::AdapterLoaded { .. })) => {
                desk.host.with(engine, |held| held.insert(revision.clone()));
                Ok(())
            }
            Ok(Ok(Event::Failed { message, .. })) => Err(message),
            Ok(Ok(_)) => Err("the engine answered something else than was asked".to_owned()),
            Ok(Err(error)) => Err(error.to_string()),
            Err(error) => Err(error.to_string()),
        }
    }

    /// Lets the engine forget the adapter once no sequence uses it.
    pub(super) async fn unload(&self, desk: &Desk) {
        let Some(revision) = &self.revision else { return };
        let engine = desk.board.starts();
        if desk.host.with(engine, |held| held.remove(revision)) {
            let drop = Adapt::Drop { revision: revision.clone() };
            if let Err(error) = desk.inference.send_within(drop, LOAD_TIMEOUT).await {
                tracing::warn!(%error, revision, "the engine still holds an adapter");
            }
        }
    }

    /// Mean divergence of the base model's predictions from this one's on the champion's replies, nats a token.
    pub(super) async fn divergence(&self, desk: &Desk, asked: &[Asked]) -> Result<Option<f64>, String> {
        let rows: Vec<EvalRow> = asked
            .iter()
            .filter(|a| a.reply_from > 0 && a.reply_from < a.ids.len())
            .map(|a| EvalRow { ids: a.ids.clone(), scored_from: a.reply_from })
            .collect();
        if rows.is_empty() {
            return Ok(None);
        }
        let evaluate = Adapt::Evaluate { adapter: self.revision.clone(), rows, with_kl: true };
        let rows = match desk.inference.send_within(evaluate, EVALUATE_TIMEOUT).await {
            Ok(Ok(Event::Evaluated { rows, .. })) => rows,
            Ok(Ok(Event::Failed { message, .. })) => return Err(message),
            Ok(Ok(_)) => return Err("the engine answered something else than was asked".to_owned()),
            Ok(Err(error)) => return Err(error.to_string()),
            Err(error) => return Err(error.to_string()),
        };
        let tokens: f64 = rows.iter().map(|row| f64::from(row.tokens)).sum();
        let sum: f64 = rows.iter().map(|row| f64::from(row.tokens) * row.kl.unwrap_or(f64::NAN)).sum();
        Ok((tokens > 0.0).then(|| sum / tokens))
    }
}

/// Drops what the engine holds beyond these generations.
pub(super) async fn keep_only(desk: &Desk, generations: &[u64]) {
    let needed: BTreeSet<String> = generations.iter().filter_map(|n| revision(*n)).collect();
    let held = desk.host.with(desk.board.starts(), |held| held.clone());
    for name in held.difference(&needed) {
        Contender::new(name.clone(), PathBuf::new(), String::new()).unload(desk).await;
    }
}
