//! `chimere night run | status | report | pause | resume` and `chimere rollback`: the daemon's work on itself.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use chimere::config::Config;
use chimere::night::report::Report;
use clap::Subcommand;
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::{Value, json};

use super::client::{Client, Where, printable};
use super::exit::{EX_USAGE, coded, say};
use super::serve::Place;

const POLL: Duration = Duration::from_millis(300);

/// Nightly jobs: run one now, look at it, stop it
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    place: Place,
    #[command(flatten)]
    target: Where,
    #[command(subcommand)]
    command: Cmd,
}

/// Serve an earlier generation again, at once
#[derive(clap::Args)]
pub struct RollbackArgs {
    #[command(flatten)]
    place: Place,
    #[command(flatten)]
    target: Where,
    /// Generation to go back to; 0 is the base model [default: the one before]
    generation: Option<u64>,
}

#[derive(Subcommand)]
enum Cmd {
    /// Begin a run now and wait for its report
    #[command(override_usage = "chimere night run --now [--job JOB] [OPTIONS]")]
    Run {
        /// At any hour, whoever waits for the processor; there is no run by hand without it
        #[arg(long)]
        now: bool,
        /// Job to run: train, engram_write, optimise_prompts, reindex
        #[arg(long, default_value = "train")]
        job: String,
        /// Judge this adapter file instead of training one
        #[arg(long, value_name = "FILE")]
        candidate: Option<PathBuf>,
        /// Work and report, put nothing into use
        #[arg(long)]
        dry_run: bool,
        /// Begin and return at once
        #[arg(long)]
        detach: bool,
    },
    /// Print the run under way and the next runs
    Status {
        #[arg(long)]
        json: bool,
    },
    /// Print the report of a run: what was tried, what happened, what that means
    Report {
        /// Run to report on [default: the last one]
        run: Option<String>,
        /// Add the rules, exams, regressions, data and phases
        #[arg(long, conflicts_with = "json")]
        details: bool,
        /// Print everything as JSON
        #[arg(long)]
        json: bool,
    },
    /// Stop scheduled runs; one under way ends before it promotes
    Pause,
    /// Start runs by schedule again
    Resume,
}

pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    if let Cmd::Run { now: false, .. } = args.command {
        let message = "a run by hand begins at once and takes the processor for long: say so with `chimere night run --now`. \
             `chimere night status` tells when the next begins by itself";
        return Err(coded(EX_USAGE, message));
    }
    with_client(args.place, &args.target, async |client| execute(args.command, &client).await)
}

pub fn roll_back(args: RollbackArgs) -> anyhow::Result<ExitCode> {
    with_client(args.place, &args.target, async |client| {
        let body = json!({ "command": "rollback", "generation": args.generation });
        let answer = client.post("/v1/night", &body).await?;
        say!("generation {} serves ({} ms)", answer["champion"], answer["took_ms"]);
        Ok(ExitCode::SUCCESS)
    })
}

pub(super) fn with_client(
    place: Place,
    target: &Where,
    work: impl AsyncFnOnce(Client) -> anyhow::Result<ExitCode>,
) -> anyhow::Result<ExitCode> {
    let config = Config::load(&place.flags())?;
    let client = Client::new(target, config.http.listen)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(work(client))
}

async fn execute(command: Cmd, client: &Client) -> anyhow::Result<ExitCode> {
    match command {
        Cmd::Run { now: _, job, candidate, dry_run, detach } => {
            let candidate =
                candidate.map(|path| path.canonicalize().with_context(|| format!("--candidate {}", path.display())));
            let body = json!({
                "command": "run_now", "job": job, "candidate": candidate.transpose()?, "dry_run": dry_run,
            });
            let id = client.post("/v1/night", &body).await?["run"].as_str().unwrap_or_default().to_owned();
            if detach {
                say!("run {id} began: `chimere night status` shows it");
                return Ok(ExitCode::SUCCESS);
            }
            follow(client, &id).await?;
            print_report(client, Some(id), false).await
        }
        Cmd::Status { json } => {
            let status = client.get("/v1/night").await?;
            if json {
                say!("{status:#}")
            } else {
                say!("{}", status_text(&status))
            }
            Ok(ExitCode::SUCCESS)
        }
        Cmd::Report { run, json: true, .. } => {
            say!("{:#}", client.get(&report_path(run.as_deref())).await?);
            Ok(ExitCode::SUCCESS)
        }
        Cmd::Report { run, details, json: false } => print_report(client, run, details).await,
        Cmd::Pause => {
            client.post("/v1/night", &json!({ "command": "pause" })).await?;
            say!("paused: no run begins by itself until `chimere night resume`");
            Ok(ExitCode::SUCCESS)
        }
        Cmd::Resume => {
            client.post("/v1/night", &json!({ "command": "resume" })).await?;
            say!("no longer paused: runs begin by schedule again, if `night.enabled` is true");
            Ok(ExitCode::SUCCESS)
        }
    }
}

fn report_path(run: Option<&str>) -> String {
    // A run is named by its date and a number: nothing in it needs to be escaped.
    let plain = |run: &&str| run.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '.'));
    match run.filter(plain) {
        Some(run) => format!("/v1/night/report?run={run}"),
        None => "/v1/night/report".to_owned(),
    }
}

/// Shows the run's phases until it is over.
async fn follow(client: &Client, id: &str) -> anyhow::Result<()> {
    let bar = ProgressBar::new(1);
    bar.set_style(ProgressStyle::with_template("{spinner} {msg:32} {bar:30} {pos}/{len} {prefix}")?);
    loop {
        let status = client.get("/v1/night").await?;
        let run = &status["run"];
        if run["id"].as_str() != Some(id) {
            let begins = run.is_null() && status["last"]["id"].as_str() != Some(id);
            if !begins {
                bar.finish_and_clear();
                return Ok(());
            }
        } else {
            let number = |name: &str| run["progress"][name].as_u64().unwrap_or(0);
            let text = |value: &Value| value.as_str().map(printable).unwrap_or_default();
            let (phase, what) = (text(&run["phase"]), text(&run["progress"]["what"]));
            bar.set_message(if what == phase { phase } else { format!("{phase}: {what}") });
            bar.set_prefix(run["eta_ms"].as_u64().map(left).unwrap_or_default());
            bar.set_length(number("total").max(1));
            bar.set_position(number("done"));
        }
        tokio::time::sleep(POLL).await;
    }
}

/// Time that is left, for people.
fn left(ms: u64) -> String {
    match ms / 1000 {
        s @ 0..90 => format!("{s} s left"),
        s => format!("{} min left", s.div_ceil(60)),
    }
}

async fn print_report(client: &Client, run: Option<String>, details: bool) -> anyhow::Result<ExitCode> {
    let report: Report = serde_json::from_value(client.get(&report_path(run.as_deref())).await?)
        .context("the report is not readable")?;
    let text = if details { report.render() } else { report.render_brief() };
    say!("{}", printable(text.trim_end()));
    Ok(ExitCode::SUCCESS)
}

fn status_text(status: &Value) -> String {
    let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), printable);
    let mut lines = vec![format!("night     {}", text(&status["state"]))];
    let mut line = |name: &str, said: String| lines.push(format!("{name:<9} {said}"));
    if let Some(fault) = status["fault"].as_str() {
        line("fault", printable(fault));
    }
    let served = &status["served"];
    let canary = match served["canary"]["generation"].as_u64() {
        Some(n) => format!(", generation {n} answers {} % as a canary", served["canary"]["percent"]),
        None => String::new(),
    };
    line("serves", format!("generation {}{canary}", served["champion"]));
    if let Some(words) = status["learning"]["words"].as_str() {
        line("learning", printable(words));
    }
    let run = &status["run"];
    if !run.is_null() {
        let progress = &run["progress"];
        let said = format!(
            "{}, phase {}, {} of {}",
            text(&run["id"]),
            text(&run["phase"]),
            progress["done"],
            progress["total"]
        );
        line("run", said);
    }
    if status["last"].is_object() {
        let last = &status["last"];
        let outcome = last["outcome"].as_object().and_then(|o| o.iter().next());
        let (kind, words) = outcome.map(|(kind, said)| (kind.clone(), text(&said["words"]))).unwrap_or_default();
        line("last", format!("{}: {kind}: {words}", text(&last["id"])));
    }
    for (name, job) in status["jobs"].as_object().into_iter().flatten() {
        let next = job["next_ms"].as_i64().and_then(|ms| jiff::Timestamp::from_millisecond(ms).ok());
        let next = next.map(|t| t.to_zoned(jiff::tz::TimeZone::system()).strftime("%a %F %H:%M").to_string());
        let off = if status["enabled"] == json!(true) { "" } else { " (off: night.enabled is false)" };
        let said = format!("{name}: {}{off}; {}", next.unwrap_or_default(), text(&job["built"]));
        line("job", said);
    }
    for notice in status["notices"].as_array().into_iter().flatten() {
        line("note", text(notice));
    }
    lines.join("\n")
}
