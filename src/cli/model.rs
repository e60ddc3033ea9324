//! `chimere model show | swap | back | load | unload`: which model file a running daemon serves, another one in its place,
//! and further models beside it.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Subcommand;
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::{Value, json};

use super::client::{Client, Where, printable};
use super::exit::{EX_DATAERR, coded, note, say};
use super::night::with_client;
use super::serve::Place;

const PATH: &str = "/v1/admin/model";
const POLL: Duration = Duration::from_millis(200);

/// Served model of a running daemon: show, swap, go back. Further models beside it: load, unload
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
    /// Print the served file, the one before, the result of the last change, and further models
    Show {
        /// As JSON
        #[arg(long)]
        json: bool,
    },
    /// Serve another file (GGUF), now and after a restart. Replies under way finish first and requests wait. A
    /// file that cannot be hosted changes nothing
    Swap {
        /// Model file on the daemon's machine
        file: PathBuf,
        /// Begin and return at once
        #[arg(long)]
        detach: bool,
    },
    /// Go back to the file that was served before the last change
    Back {
        /// Begin and return at once
        #[arg(long)]
        detach: bool,
    },
    /// Load a further model (models.files) before a request names it
    Load { name: String },
    /// Unload a further model once its replies under way are finished
    Unload { name: String },
}

pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    with_client(args.place, &args.target, async |client| {
        match args.command {
            Cmd::Show { json } => {
                let shown = client.get(PATH).await?;
                if json {
                    say!("{shown:#}");
                } else {
                    say!("{}", text(&shown));
                }
            }
            Cmd::Swap { file, detach } => {
                let body = json!({ "path": std::path::absolute(file)?, "wait": false });
                change(&client, &body, detach).await?;
            }
            Cmd::Load { name } => further(&client, &json!({ "load": name }), &name, "loading").await?,
            Cmd::Unload { name } => further(&client, &json!({ "unload": name }), &name, "unloading").await?,
            Cmd::Back { detach } => change(&client, &json!({ "before": true, "wait": false }), detach).await?,
        }
        Ok(ExitCode::SUCCESS)
    })
}

/// Begins a change and shows it to its end.
async fn change(client: &Client, body: &Value, detach: bool) -> anyhow::Result<()> {
    let mut shown = client.post(PATH, body).await?;
    if detach {
        say!("the change began: `chimere model show` shows it");
        return Ok(());
    }
    let began = [&shown["change"], &shown["last"]].into_iter().find(|told| !told.is_null());
    let began = began.map(|told| told["began_ms"].clone()).unwrap_or_default();
    let bar = ProgressBar::new(100);
    bar.set_style(ProgressStyle::with_template("{spinner} {msg:32} {bar:30} {percent:>3} %")?);
    while shown["change"]["began_ms"] == began {
        let change = &shown["change"];
        bar.set_message(match change["phase"].as_str() {
            Some("draining") => "replies under way finish",
            _ => "loading",
        });
        bar.set_position((change["progress"].as_f64().unwrap_or_default() * 100.0) as u64);
        tokio::time::sleep(POLL).await;
        shown = client.get(PATH).await?;
    }
    bar.finish_and_clear();
    let last = &shown["last"];
    if last["accepted"] != true {
        return Err(coded(EX_DATAERR, word(&last["message"])));
    }
    let (model, file, before) = (word(&shown["model"]), word(&shown["file"]), word(&shown["before"]));
    say!("{model} is served from {file}; `chimere model back` goes back to {before}");
    if let Some(why) = shown["defaults"]["unused"].as_str() {
        note!("chimere: {}", printable(why));
    }
    Ok(())
}

/// Loads or unloads a further model, which ends when the daemon says so.
async fn further(client: &Client, body: &Value, name: &str, doing: &'static str) -> anyhow::Result<()> {
    let spinner = ProgressBar::new_spinner().with_message(doing);
    spinner.enable_steady_tick(POLL);
    let shown = client.post(PATH, body).await;
    spinner.finish_and_clear();
    let shown = shown?;
    let models = shown["further"].as_array().into_iter().flatten();
    let model =
        models.into_iter().find(|model| model["names"].as_array().is_some_and(|all| all.contains(&json!(name))));
    say!(
        "{}: {}",
        printable(name),
        model.map_or_else(|| "unknown".to_owned(), |model| word(&model["engine"]["state"]))
    );
    Ok(())
}

fn word(value: &Value) -> String {
    value.as_str().map(printable).unwrap_or_else(|| "none".to_owned())
}

fn text(shown: &Value) -> String {
    let mut lines = Vec::new();
    for (name, key) in [("file", "file"), ("model", "model"), ("before", "before"), ("configured", "configured")] {
        lines.push(format!("{name:<10} {}", word(&shown[key])));
    }
    let (source, unused) = (&shown["defaults"]["source"], &shown["defaults"]["unused"]);
    let unused = unused.as_str().map(|why| format!("; {}", printable(why))).unwrap_or_default();
    lines.push(format!("{:<10} {}{unused}", "defaults", word(source)));
    let change = &shown["change"];
    if !change.is_null() {
        lines.push(format!("{:<10} {} ({})", "change", word(&change["to"]), word(&change["phase"])));
    }
    let last = &shown["last"];
    if !last.is_null() {
        let ended = if last["accepted"] == true { "accepted".to_owned() } else { word(&last["message"]) };
        lines.push(format!("{:<10} {}: {ended}", "last", word(&last["to"])));
    }
    for model in shown["further"].as_array().into_iter().flatten() {
        let names: Vec<String> = model["names"].as_array().into_iter().flatten().map(word).collect();
        let (state, idle_s) = (word(&model["engine"]["state"]), model["idle_ms"].as_u64().unwrap_or_default() / 1_000);
        let (names, file) = (names.join(", "), word(&model["file"]));
        lines.push(format!("{:<10} {names} ({state}, asked {idle_s} s ago): {file}", "further"));
    }
    lines.join("\n")
}
