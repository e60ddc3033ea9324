//! `chimere pipeline list | reset | schema | check | run`. Lists the routes of a running daemon and goes back from an
//! optimised prompt to the shipped one. Helps to write a file: its schema, its check, a question put to its route.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use chimere::config::Config;
use chimere::daemon::choice::served_file;
use chimere::daemon::tables;
use chimere::daemon::validate::judge;
use chimere::engram::fit::complaints;
use chimere::night::schedule::Schedule;
use chimere::pipeline::{FILE_BYTES_MAX, Pipeline, PipelineError, ProgramStep, ProgramWork, SCHEMA};
use chimere::plural::counted;
use chimere::store::files::{places, read_bounded};
use chimere::turn::ToolLimits;
use clap::Subcommand;
use serde_json::{Value, json};

use super::client::{Where, printable};
use super::exit::{EX_DATAERR, EX_NOINPUT, coded, note, say};
use super::night::with_client;
use super::serve::Place;
use super::serving::served;

/// The file beside those of the routes that is none of them.
const NIGHT: &str = "night";

/// Routes, their prompts and steps: list them, reset an optimised one, check a file, ask a route
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    place: Place,
    #[command(flatten)]
    target: Where,
    #[command(subcommand)]
    command: Cmd,
}

#[derive(Subcommand)]
enum Cmd {
    /// Print the routes, their versions and what the prompt optimisation changed
    List {
        #[arg(long)]
        json: bool,
    },
    /// Remove the file that the prompt optimisation wrote for a route: the shipped prompt answers again, at once
    Reset { route: String },
    /// Print the JSON Schema of a pipeline file
    Schema,
    /// Check a pipeline file, and print its steps and the most that they cost; night.yaml too
    Check { file: PathBuf },
    /// Put a question to a route
    Run {
        route: String,
        question: String,
        /// Print what each step did
        #[arg(long)]
        trace: bool,
    },
}

pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    let Args { place, target, command } = args;
    match &command {
        Cmd::Schema => {
            say!("{}", SCHEMA.trim_end());
            return Ok(ExitCode::SUCCESS);
        }
        Cmd::Check { file } => return check(file, &Config::load(&place.flags())?, &target),
        _ => {}
    }
    with_client(place, &target, async |client| {
        match command {
            Cmd::List { json } => {
                let status = client.get("/v1/status").await?;
                let routes = &status["actors"]["orchestrator"]["routes"];
                if json {
                    say!("{routes:#}");
                } else {
                    routes.as_array().into_iter().flatten().for_each(|route| say!("{}", line(route)));
                }
            }
            Cmd::Reset { route } => {
                let body = json!({ "command": "reset_pipeline", "route": route });
                let answer = client.post("/v1/night", &body).await?;
                let text = |field: &str| printable(answer[field].as_str().unwrap_or("none"));
                say!("{}: version {} answers (before: {})", text("route"), text("version"), text("before"));
            }
            Cmd::Run { route, question, trace } => {
                let messages = json!([{"role": "user", "content": question}]);
                let body = json!({ "messages": messages, "chimere": { "route": route } });
                let reply = client.post("/v1/chat/completions", &body).await?;
                let answer = &reply["choices"][0]["message"]["content"];
                say!("{}", printable(answer.as_str().unwrap_or_default()).trim_end());
                if trace {
                    say!("");
                    let steps = reply["x_chimere"]["trace"].as_array();
                    steps.into_iter().flatten().for_each(|step| say!("{}", traced(step)));
                }
            }
            // Asked of no daemon.
            Cmd::Schema | Cmd::Check { .. } => {}
        }
        Ok(ExitCode::SUCCESS)
    })
}

fn line(route: &Value) -> String {
    let text = |field: &str| printable(route[field].as_str().unwrap_or_default());
    let optimised = match route["optimised"].as_object() {
        Some(from) => {
            let points = |field: &str| 100.0 * from[field].as_f64().unwrap_or_default();
            let (difference, low, high) = (points("difference"), points("low"), points("high"));
            format!(
                "; optimised: {difference:+.1} points [{low:+.1}, {high:+.1}] on {}",
                counted(from["items"].as_u64().unwrap_or_default(), "question", "questions")
            )
        }
        None => String::new(),
    };
    format!("{:<10} version {:<24} {}{optimised}", text("route"), text("version"), text("description"))
}

/// Reads a file as the daemon would, and says what its program is.
fn check(file: &Path, config: &Config, target: &Where) -> anyhow::Result<ExitCode> {
    let (place, ceilings) = (file.display().to_string(), &config.replies.ceilings);
    let text = read_bounded(file, FILE_BYTES_MAX)?.ok_or_else(|| coded(EX_NOINPUT, not_there(file, config)))?;
    let stem = file.file_stem().and_then(|stem| stem.to_str()).unwrap_or_default();
    if stem == NIGHT {
        let schedule = Schedule::parse(&text, &place).map_err(|error| coded(EX_DATAERR, error.to_string()))?;
        let jobs = counted(schedule.jobs.len(), "job", "jobs");
        say!("{NIGHT}: no route, but the schedule of the nights; version {}, {jobs}", schedule.version);
        return Ok(ExitCode::SUCCESS);
    }
    let read = Pipeline::parse(&text, &place, stem, false)
        .and_then(|pipeline| ceilings.check_file(&pipeline, &place).map(|()| pipeline));
    let wrong = |error: PipelineError| match Schedule::parse(&text, &place) {
        Ok(_) => format!("{place} is no route, but a schedule of nights: its name must be {NIGHT}.yaml"),
        Err(_) => error.to_string(),
    };
    let pipeline = read.map_err(|error| coded(EX_DATAERR, wrong(error)))?;
    let steps = counted(pipeline.program.steps.len(), "step", "steps");
    say!("{}: version {}, {steps}", pipeline.name, pipeline.version);
    pipeline.program.steps.iter().for_each(|step| tell(step, ""));
    say!("at most {} beside the answer", counted(pipeline.program.hidden_tokens(), "hidden token", "hidden tokens"));
    warn_of_tables(&pipeline, config, target);
    Ok(ExitCode::SUCCESS)
}

/// What to name in the place of a file that is not there: a route is no file.
fn not_there(file: &Path, config: &Config) -> String {
    let (shown, name) = (file.display(), file.file_stem().unwrap_or_default());
    let folders = [Some(config.pipelines.overlay.clone()), config.pipelines.shipped.clone()];
    let folders: Vec<PathBuf> = folders.into_iter().flatten().collect();
    let of_route = folders.iter().map(|folder| folder.join(name).with_extension("yaml")).find(|path| path.is_file());
    match of_route {
        Some(path) => format!("{shown} is not there: name a file, as `chimere pipeline check {}`", path.display()),
        None => format!("{shown} is not there: name a file; those of the routes lie in {}", places(&folders)),
    }
}

/// The file may be right, and its tables not for the served model: the answers would go without them.
fn warn_of_tables(pipeline: &Pipeline, config: &Config, target: &Where) {
    if pipeline.engram.is_none() {
        return;
    }
    let served = served(target, config).transpose().unwrap_or_else(|unsaid| {
        note!("chimere: the tables are looked at for the configured model: {}", unsaid.why);
        None
    });
    let file = served.map(|served| served.file).or_else(|| served_file(config).ok());
    let program = chimere::program::own().ok();
    let judged = file.and_then(|file| judge(config, &file, program.as_deref(), 0).ok());
    let tokenizer = judged.and_then(|judged| judged.tokenizer);
    for complaint in complaints(pipeline, &tables::look(config), tokenizer.as_deref()) {
        note!("chimere: warning: {complaint}");
    }
}

/// A step of a program, in a line; those of a branch below it.
fn tell(step: &ProgramStep, margin: &str) {
    let what = match &step.work {
        ProgramWork::Answer(_) => "generate, visible".to_owned(),
        ProgramWork::Tools(_, allowed, limits) => {
            let (tools, ToolLimits { calls, rounds, .. }) = (allowed.join(", "), limits);
            let (calls, rounds) = (counted(*calls, "call", "calls"), counted(*rounds, "round", "rounds"));
            format!("tools, visible: {tools}; at most {calls} in {rounds}")
        }
        ProgramWork::Draft(_, tokens) => format!("generate, hidden, at most {}", counted(*tokens, "token", "tokens")),
        ProgramWork::Branch(when, ..) => format!("branch: where {when}"),
        ProgramWork::Retrieve(terms) => {
            format!("retrieve, at most {} of documents", counted(terms.k, "passage", "passages"))
        }
        ProgramWork::Web(terms) => format!("web, at most {} of web pages", counted(terms.k, "passage", "passages")),
        ProgramWork::Judge(gated) => {
            format!("judge, at most {}", counted(gated.gate.retries, "more answer", "more answers"))
        }
    };
    say!("  {margin}{:<16} {what}", step.name);
    if let ProgramWork::Branch(_, steps, otherwise) = &step.work {
        for (side, name) in [(steps, "then"), (otherwise, "otherwise")].into_iter().filter(|(side, _)| !side.is_empty())
        {
            say!("  {margin}  {name}");
            side.iter().for_each(|step| tell(step, &format!("{margin}    ")));
        }
    }
}

/// A step of a reply, in a line.
fn traced(step: &Value) -> String {
    let text = |field: &str| printable(step[field].as_str().unwrap_or_default());
    let seen = if step["visible"] == true { "shown" } else { "hidden" };
    let said = ["decided", "because"].map(text).into_iter().filter(|text| !text.is_empty()).collect::<Vec<_>>();
    format!(
        "{:<16} {:<9} {:<9} {seen:<6} {:>6} + {:>5} tokens {:>7} ms  {}",
        text("name"),
        text("kind"),
        text("outcome"),
        step["prompt_tokens"],
        step["completion_tokens"],
        step["took_ms"],
        said.join("; ")
    )
    .trim_end()
    .to_owned()
}
