//! Every change of who serves: promotion, the canary's stages, rollback, and the recovery after a start. The
//! order is always the same: verify on disk, load in the engine, replace the pointer file, and only then tell
//! the replies.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::sleep;

use super::desk::{Desk, blocking};
use super::examine::Examined;
use super::host::{Contender, keep_only};
use crate::night::canary;
use crate::night::generation::{Canary, Generations, Pointer};
use crate::night::learning::{self, TRAINING, Trained};
use crate::night::manifest::{FORMAT, Manifest};
use crate::night::phase::Run;
use crate::night::served::Served;

const ENGINE_TIMEOUT: Duration = Duration::from_secs(60);
/// Engines that may be lost under a promotion, or under one question of a writing.
pub(super) const TRIES: usize = 3;
pub(super) const RETRY_PAUSE: Duration = Duration::from_millis(500);
/// No engine has this number of starts.
const NO_ENGINE: u64 = u64::MAX;

/// Makes the candidate of a run a generation and begins its canary; with no stages it answers everything at
/// once. A run that was interrupted in here goes on where it was.
pub(super) async fn promote(
    desk: &Desk,
    generations: &Arc<Generations>,
    rules: &canary::Rules,
    run: &Run,
    pointer: Pointer,
) -> Result<(u64, Pointer), String> {
    let found = Examined::read(&desk.run_dir(&run.order.id))?.ok_or("what the gate found is gone from the disk")?;
    let candidate = run.candidate.clone().ok_or("there is no candidate")?;
    if !found.verdict.promote {
        return Err("the gate did not let this candidate through".to_owned());
    }
    if let Some(done) = pointed(generations, run, &pointer, &found.base_hash) {
        return Ok((done, pointer));
    }
    if pointer.champion != found.champion {
        let (now, then) = (pointer.champion, found.champion);
        return Err(format!("generation {now} serves, but the candidate was compared with {then}"));
    }
    let papers = desk.run_dir(&run.order.id);
    let trained: Option<Trained> = blocking(move || learning::read(&papers, TRAINING)).await??;
    let mut manifest = manifest(generations, run, &pointer, &found)?;
    if let Some(trained) = trained.filter(|trained| trained.sha256 == candidate.sha256) {
        manifest.data_hash = trained.data_hash;
        manifest.seeds = vec![trained.seed];
        (manifest.metrics.loss_before, manifest.metrics.loss_after) = (trained.loss_before, trained.loss_after);
    }
    let number = manifest.generation;
    let (store, points) = (generations.clone(), desk.failpoint.clone());
    let build = move || store.build(&candidate.path, &manifest, &|point| points.pass(point));
    blocking(build).await?.map_err(|error| error.to_string())?;
    let contender = contender(generations, number, &found.base_hash).await?;
    load(desk, &contender).await?;
    desk.pass("promote.loaded").map_err(|error| error.to_string())?;
    let now = desk.clock.now_ms();
    let next = match rules.stages.first() {
        Some(stage) => {
            let canary = Canary { generation: number, stage: 0, percent: stage.percent, began_ms: now, stage_ms: now };
            Pointer { canary: Some(canary), ..pointer }
        }
        None => Pointer { champion: number, canary: None, previous: pointer.champion, ..pointer },
    };
    point(desk, generations, &next).await?;
    desk.pass("promote.pointed").map_err(|error| error.to_string())?;
    let store = generations.clone();
    match blocking(move || store.prune(&next)).await? {
        Ok(old) if !old.is_empty() => tracing::info!(?old, "old generations were removed"),
        Ok(_) => {}
        Err(error) => tracing::warn!(%error, "old generations were not removed"),
    }
    keep_only(desk, &[next.champion, next.previous, number]).await;
    Ok((number, next))
}

/// The generation that this run made and the pointer names already.
fn pointed(generations: &Generations, run: &Run, pointer: &Pointer, base_hash: &str) -> Option<u64> {
    let own = |n: &u64| generations.verify(*n, base_hash).is_ok_and(|m| m.run == run.order.id);
    pointer.served().into_iter().filter(|n| *n > 0).find(own)
}

fn manifest(generations: &Generations, run: &Run, pointer: &Pointer, found: &Examined) -> Result<Manifest, String> {
    let adapter = found.adapter.clone().ok_or("the gate did not see the adapter")?;
    // A build that a kill interrupted after its rename keeps its number.
    let own = |n: &u64| generations.verify(*n, &found.base_hash).is_ok_and(|m| m.run == run.order.id);
    let numbers = generations.numbers().map_err(|error| error.to_string())?;
    let generation = match numbers.into_iter().rev().take(1).find(own) {
        Some(number) => number,
        None => generations.next_number(pointer).map_err(|error| error.to_string())?,
    };
    Ok(Manifest {
        format: FORMAT,
        generation,
        parent: pointer.champion,
        base_model: found.base_model.clone(),
        base_hash: found.base_hash.clone(),
        adapter,
        data_hash: String::new(),
        seeds: vec![run.order.seed],
        code_version: env!("CARGO_PKG_VERSION").to_owned(),
        run: run.order.id.clone(),
        created_ms: run.order.started_ms,
        metrics: found.metrics.clone(),
        verdict: found.verdict.words.clone(),
    })
}

/// A verified generation, read from the disk away from the actors' thread.
async fn contender(generations: &Arc<Generations>, number: u64, base_hash: &str) -> Result<Contender, String> {
    let (store, hash) = (generations.clone(), base_hash.to_owned());
    blocking(move || Contender::generation(&store, number, &hash)).await?
}

/// Loads a generation in the engine, or in the successor of one that dies meanwhile.
async fn load(desk: &Desk, contender: &Contender) -> Result<(), String> {
    let mut loaded = contender.load(desk).await;
    for _ in 1..TRIES {
        if loaded.is_ok() {
            break;
        }
        sleep(RETRY_PAUSE).await;
        desk.base(ENGINE_TIMEOUT).await?;
        loaded = contender.load(desk).await;
    }
    loaded
}

/// Replaces the pointer file, then tells the replies. An engine that died meanwhile holds nothing: its successor is
/// recovered before anybody is answered.
pub(super) async fn point(desk: &Desk, generations: &Arc<Generations>, next: &Pointer) -> Result<(), String> {
    let (_, base_hash) = desk.base(ENGINE_TIMEOUT).await?;
    let (store, pointer) = (generations.clone(), *next);
    let written = blocking(move || store.point(&base_hash, &pointer)).await?;
    written.map_err(|error| format!("the pointer file was not replaced, nothing changed: {error}"))?;
    let engine = desk.board.starts();
    let held = desk.host.holds(engine, &next.served());
    desk.board.serve(if held { engine } else { NO_ENGINE }, Served::of(next));
    tracing::info!(champion = next.champion, canary = ?next.canary, "the served generation changed");
    Ok(())
}

/// Back to `wanted`, or to the one before: a canary ends and its champion serves on; without a canary, the
/// champion's predecessor. Returns the new pointer.
pub(super) async fn roll_back(
    desk: &Desk,
    generations: &Arc<Generations>,
    pointer: Pointer,
    wanted: Option<u64>,
) -> Result<Pointer, String> {
    let target = wanted.unwrap_or(if pointer.canary.is_some() { pointer.champion } else { pointer.previous });
    let (_, base_hash) = desk.base(ENGINE_TIMEOUT).await?;
    load(desk, &contender(generations, target, &base_hash).await?).await?;
    let previous = match target {
        same if same == pointer.champion => pointer.previous,
        0 => 0,
        _ => generations.verify(target, &base_hash).map_or(0, |m| m.parent),
    };
    let next = Pointer { champion: target, canary: None, previous, ..pointer };
    point(desk, generations, &next).await?;
    Ok(next)
}

/// What an engine that came up can answer with.
pub(super) struct Recovered {
    /// The pointer file as it was read.
    pub(super) read: Option<Pointer>,
    /// The base model that it is of.
    pub(super) base_hash: String,
    /// What of it can be served, and why not all.
    pub(super) pointer: Pointer,
    pub(super) why: Option<String>,
}

/// After an engine has started: verifies what the pointer names and loads it. What cannot be served is passed over, and
/// the reason comes back.
pub(super) async fn recover(desk: &Desk, generations: &Arc<Generations>) -> Result<Recovered, String> {
    let (_, base_hash) = desk.base(ENGINE_TIMEOUT).await?;
    let (store, hash) = (generations.clone(), base_hash.clone());
    let found = blocking(move || (store.pointer(&hash).ok().flatten(), store.servable(&hash))).await?;
    let (read, (mut pointer, mut why)) = found;
    for number in pointer.served() {
        let loaded = match contender(generations, number, &base_hash).await {
            Ok(contender) => load(desk, &contender).await,
            Err(error) => Err(error),
        };
        let Err(error) = loaded else { continue };
        why = Some(format!("generation {number} cannot be served: {error}"));
        pointer.canary = None;
        if number == pointer.champion {
            pointer.champion = 0;
            break;
        }
    }
    Ok(Recovered { read, base_hash, pointer, why })
}
