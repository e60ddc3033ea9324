//! The phase `report`: gathers what a run left, writes `runs/<run>/report.json` and the page, and lets the
//! candidate go.

use std::collections::BTreeSet;
use std::path::Path;
use std::{fs, io};

use serde::de::DeserializeOwned;

use super::desk::{Desk, blocking};
use super::examine::Examined;
use super::optimise::in_force;
use super::work::Work;
use crate::actors::trainer::Discard;
use crate::night::generation::{Generations, Pointer};
use crate::night::learning::{self, SELECTION, TRAINING};
use crate::night::page::page;
use crate::night::phase::{Job, Outcome, Run};
use crate::night::report::{self, Ancestor, Report, TrendPoint, domains, sum_up, worst};
use crate::optimise::paper::{Optimised, RouteOutcome};
use crate::store::files::{create_private_dir, read_bounded, write_durable};

pub(super) const FILE: &str = "report.json";
const PAGE: &str = "report.html";
pub(super) const BYTES_MAX: u64 = 16 << 20;
const ANCESTORS_MAX: usize = 14;
const RUNS_MAX: usize = 90;

pub(super) async fn write(work: &Work) -> Result<(), String> {
    let desk = &work.desk;
    let dir = desk.run_dir(&work.run.order.id);
    let examined = Examined::read(&dir)?;
    let report = gather(work, examined.as_ref()).await;
    let json = serde_json::to_vec_pretty(&report).map_err(|error| error.to_string())?;
    let html = page(&report);
    let keep: BTreeSet<String> = work.known.iter().cloned().chain([work.run.order.id.clone()]).collect();
    let runs = desk.state_dir.join("runs");
    let written = blocking(move || {
        create_private_dir(&dir)?;
        write_durable(&dir.join(FILE), &json)?;
        write_durable(&dir.join(PAGE), html.as_bytes())?;
        forget_old(&runs, &keep)
    });
    written.await?.map_err(|error| format!("the report was not written: {error}"))?;
    if work.run.order.job == Job::Train {
        work.file_pairs().await?;
        // The generation has its own copy; a rejected candidate is of no use to anybody.
        let _ = desk.trainer.send(Discard { run: work.run.order.id.clone() }).await;
    }
    Ok(())
}

/// Removes the oldest papers above `RUNS_MAX`, never those that the record still names.
fn forget_old(runs: &Path, keep: &BTreeSet<String>) -> io::Result<()> {
    let names = fs::read_dir(runs)?.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()));
    // Runs are named by their dates, and so the order of their names is that of time.
    let names: BTreeSet<String> = names.collect::<io::Result<_>>()?;
    let surplus = names.len().saturating_sub(RUNS_MAX);
    for name in names.difference(keep).take(surplus) {
        fs::remove_dir_all(runs.join(name))?;
    }
    Ok(())
}

async fn gather(work: &Work, examined: Option<&Examined>) -> Report {
    let (desk, run) = (&work.desk, &work.run);
    let dir = desk.run_dir(&run.order.id);
    let outcome = run.outcome.clone().unwrap_or(Outcome::Nothing { words: "nothing was done".to_owned() });
    let golden = examined.and_then(|e| sum_up(&e.golden));
    let promoted = matches!(outcome, Outcome::Promoted { .. });
    let point = golden.as_ref().map(|exam| TrendPoint {
        run: run.order.id.clone(),
        generation: work.pointer.champion,
        promoted,
        n: exam.n,
        champion: exam.champion,
        candidate: exam.candidate,
        gate: exam.champion.rate - work.schedule.gate.margin,
    });
    let before = work.before.as_ref().and_then(|run| read(&desk.run_dir(run)).ok().flatten());
    let optimised = optimised(desk, run);
    let undo = report::undo(run.order.job, &outcome, optimised.as_ref());
    Report {
        format: report::FORMAT,
        order: run.order.clone(),
        ended_ms: desk.clock.now_ms(),
        outcome,
        steps: run.steps.clone(),
        verdict: examined.map(|e| e.verdict.clone()),
        metrics: examined.map(|e| e.metrics.clone()),
        domains: examined.map(|e| domains(&e.golden)).unwrap_or_default(),
        worst: examined.map(|e| worst(&e.golden)).unwrap_or_default(),
        slice: examined.and_then(|e| sum_up(&e.slice)),
        golden,
        trend: report::trend(before.map(|r| r.trend).unwrap_or_default(), point),
        selection: read_paper(&dir, SELECTION).await,
        training: read_paper(&dir, TRAINING).await,
        engram: super::reinforce::read(&desk.run_dir(&run.order.id)),
        optimised,
        lineage: lineage(&work.generations, &work.pointer, examined),
        undo,
        notices: work.notices.clone(),
    }
}

/// What a search found. A run that failed behind a change has not written down that it made it.
fn optimised(desk: &Desk, run: &Run) -> Option<Optimised> {
    let mut found = Optimised::read(&desk.run_dir(&run.order.id)).ok().flatten()?;
    let set = desk.pipelines.current();
    for route in &mut found.routes {
        if set.get(&route.route).is_some_and(|pipeline| in_force(pipeline, &run.order.id)) {
            route.outcome = RouteOutcome::Changed;
        }
    }
    Some(found)
}

/// A paper that the run left; a damaged one is as good as none.
async fn read_paper<T: DeserializeOwned + Send + 'static>(dir: &Path, name: &'static str) -> Option<T> {
    let dir = dir.to_owned();
    let read = blocking(move || learning::read(&dir, name)).await.and_then(|read| read);
    read.inspect_err(|error| tracing::warn!(error, "a file of the run is not shown in its report")).ok().flatten()
}

/// The served generation and those that it came from.
fn lineage(generations: &Generations, pointer: &Pointer, examined: Option<&Examined>) -> Vec<Ancestor> {
    let Some(base_hash) = examined.map(|e| e.base_hash.as_str()) else { return Vec::new() };
    let mut next = pointer.canary.map_or(pointer.champion, |c| c.generation);
    let mut line = Vec::new();
    while next > 0 && line.len() < ANCESTORS_MAX {
        let Ok(manifest) = generations.verify(next, base_hash) else { break };
        line.push(Ancestor::of(&manifest));
        next = manifest.parent;
    }
    line
}

/// The report in a run's folder.
pub(super) fn read(run_dir: &Path) -> Result<Option<Report>, String> {
    let text = read_bounded(&run_dir.join(FILE), BYTES_MAX).map_err(|error| error.to_string())?;
    text.map(|text| serde_json::from_str(&text).map_err(|error| format!("{FILE} is damaged: {error}"))).transpose()
}
