//! One night: its jobs begun over HTTP one after the other, waited for, and their reports fetched.

use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use chimere::night::phase::Job;
use chimere::simulate::table::{Done, Night};
use serde_json::{Value, json};

use super::super::client::{Client, printable};
use super::super::exit::{EX_TEMPFAIL, code_of};
use super::Bar;
use super::day::Town;

/// Longest wait for one job.
const JOB_TIMEOUT: Duration = Duration::from_secs(4 * 3_600);
const LOOK: Duration = Duration::from_millis(500);
/// Longest wait for a job to begin while no other one runs.
const BEGIN_TIMEOUT: Duration = Duration::from_secs(120);

/// Runs the jobs of the night after a day.
pub async fn pass(town: &Town<'_>, day: usize, night: &mut Night) -> anyhow::Result<()> {
    let began = Instant::now();
    let settings = town.settings;
    for (hour, job) in settings.arm.jobs(settings.ends_in_monday(day)) {
        town.house.wind(settings.at(day + 1, hour))?;
        night.jobs.push(run(town.owner(), job, town.bar).await?);
    }
    let status = town.owner().get("/v1/night").await?;
    let served = &status["served"];
    night.champion = served["champion"].as_u64().unwrap_or(0);
    let canary = &served["canary"];
    night.canary = canary["generation"].as_u64().zip(canary["percent"].as_u64());
    night.night_seconds = began.elapsed().as_secs_f64();
    Ok(())
}

/// The notices of the night's record that were not seen before, oldest first.
pub async fn notices(owner: &Client, seen: &mut Vec<String>) -> anyhow::Result<Vec<String>> {
    let status = owner.get("/v1/night").await?;
    let told = status["notices"].as_array().into_iter().flatten().filter_map(Value::as_str).map(printable);
    let mut told: Vec<String> = told.collect();
    told.reverse();
    // The newest few are shown: what stands behind the last one seen is new.
    let from = seen.last().and_then(|last| told.iter().rposition(|words| words == last)).map_or(0, |at| at + 1);
    let new = told.split_off(from);
    seen.extend(new.iter().cloned());
    Ok(new)
}

async fn run(owner: &Client, job: Job, bar: &Bar) -> anyhow::Result<Done> {
    let began = Instant::now();
    let run = begin(owner, job).await?;
    loop {
        let status = owner.get("/v1/night").await?;
        let now = &status["run"];
        if now["id"].as_str() == Some(&run) {
            let progress = &now["progress"];
            let what = progress["what"].as_str().or(now["phase"].as_str()).unwrap_or_default();
            let number = |name: &str| progress[name].as_u64().unwrap_or(0);
            bar.say(&format!("{}: {} {} of {}", job.name(), printable(what), number("done"), number("total")));
        } else if now.is_null() && status["last"]["id"].as_str() == Some(&run) {
            break;
        }
        if began.elapsed() > JOB_TIMEOUT {
            bail!("{} was not through after {} hours", job.name(), JOB_TIMEOUT.as_secs() / 3_600);
        }
        tokio::time::sleep(LOOK).await;
    }
    let papers = owner.get(&format!("/v1/night/report?run={run}")).await;
    let report = papers.ok().and_then(|papers| serde_json::from_value(papers).ok());
    Ok(Done { job, run, seconds: began.elapsed().as_secs_f64(), report })
}

/// Begins a run; the daemon may be about to end another one, or to go on with one that was cut off.
async fn begin(owner: &Client, job: Job) -> anyhow::Result<String> {
    let body = json!({ "command": "run_now", "job": job });
    let (began, mut idle) = (Instant::now(), Instant::now());
    loop {
        match owner.post("/v1/night", &body).await {
            Ok(answer) => return answer["run"].as_str().map(str::to_owned).context("the daemon named no run"),
            Err(error) if code_of(&error) == EX_TEMPFAIL && idle.elapsed() < BEGIN_TIMEOUT => {}
            Err(error) => return Err(error.context(format!("{} did not begin", job.name()))),
        }
        tokio::time::sleep(LOOK).await;
        if began.elapsed() < JOB_TIMEOUT && !owner.get("/v1/night").await?["run"].is_null() {
            idle = Instant::now();
        }
    }
}
