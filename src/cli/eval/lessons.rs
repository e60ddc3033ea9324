//! `chimere eval lessons`: facts are taught through a daemon of its own by bare corrections, and asked in other words with
//! and without recall. With `--short` it counts which short lessons are recalled, without a model.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{ExitCode, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use chimere::config::Environment;
use chimere::eval::golden::Score;
use chimere::eval::lessons::short::{self, Half};
use chimere::eval::lessons::{Asked, FACTS_MAX, Fact, household, report};
use futures_util::stream::{self, StreamExt, TryStreamExt};
use serde_json::{Value, json};
use tokio::process::{Child, Command};

use super::super::client::{Client, Where};
use super::super::exit::{cannot_write, say};
use super::super::port;

/// Longest wait for a daemon that loads its model.
const READY_TIMEOUT: Duration = Duration::from_secs(600);
const LOOK: Duration = Duration::from_millis(100);
/// Tokens of an answer, and of one that is corrected.
const ANSWER_TOKENS: u32 = 48;
const WRONG_TOKENS: u32 = 4;
/// Questions under way at once.
const PARALLEL: usize = 4;
const CHAT: &str = "/v1/chat/completions";

#[derive(clap::Args)]
pub(super) struct Args {
    /// Model file [default: the configured one]
    #[arg(long, value_name = "FILE")]
    model: Option<PathBuf>,
    /// Facts that are taught
    #[arg(long, default_value_t = FACTS_MAX as u16, value_parser = clap::value_parser!(u16).range(1..=FACTS_MAX as i64))]
    facts: u16,
    /// Neighbours that are asked, of all kinds
    #[arg(long, default_value_t = 160, value_parser = clap::value_parser!(u16).range(1..=160))]
    neighbours: u16,
    /// Write every question with its replies to this file (JSONL)
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Count which of the shipped short lessons are recalled in other words, without a model
    #[arg(long, conflicts_with_all = ["model", "facts", "neighbours", "out"])]
    short: bool,
    /// As JSON
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: Args) -> anyhow::Result<ExitCode> {
    if args.short {
        return count(args.json);
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    runtime.block_on(measure(args))
}

/// Both halves of the short lessons, a row for all languages, for English and for the others.
fn count(json: bool) -> anyhow::Result<ExitCode> {
    let items = short::items()?;
    let mut rows = short::count(&items, Half::Development)?;
    rows.extend(short::count(&items, Half::HeldOut)?);
    if json {
        say!("{:#}", json!(rows));
        return Ok(ExitCode::SUCCESS);
    }
    for row in &rows {
        let half = if row.half == Half::HeldOut { "held out" } else { "development" };
        say!("{half}, {} lessons, {}", row.lessons, row.languages);
        share("  other wordings that find their lesson", &row.found);
        share("  neighbours shown a lesson", &row.neighbours);
    }
    Ok(ExitCode::SUCCESS)
}

fn share(name: &str, score: &Score) {
    let [rate, low, high] = [score.rate, score.low, score.high].map(|share| 100.0 * share);
    say!("{name:<42} {rate:5.1} %  [{low:.1}, {high:.1}]  n {}", score.n);
}

async fn measure(args: Args) -> anyhow::Result<ExitCode> {
    let folder = Folder::make()?;
    let (_daemon, client) = daemon(&folder.0, args.model.as_deref()).await?;
    let made = household(args.facts.into(), args.neighbours.into());
    for fact in &made.facts {
        teach(&client, fact).await?;
    }
    let held = made.facts.iter().enumerate().flat_map(|(n, fact)| fact.held_out.iter().map(move |q| (Some(n), q)));
    let questions = held.chain(made.neighbours.iter().map(|question| (None, question)));
    let asking = questions.map(|(fact, question)| ask(&client, fact, question.clone()));
    let asked: Vec<Asked> = stream::iter(asking).buffered(PARALLEL).try_collect().await?;
    if let Some(path) = &args.out {
        let lines: Result<Vec<String>, _> = asked.iter().map(serde_json::to_string).collect();
        std::fs::write(path, lines?.join("\n") + "\n").map_err(cannot_write(path))?;
    }
    let report = report(&made.facts, &asked);
    if args.json {
        say!("{:#}", json!(report));
        return Ok(ExitCode::SUCCESS);
    }
    say!("{} facts taught by corrections", report.facts);
    share("right in other words without lessons", &report.without);
    share("right in other words with lessons", &report.with);
    share("shown a lesson", &report.shown);
    share("neighbours answered with a taught value", &report.spill_with);
    share("the same without lessons", &report.spill_without);
    share("neighbours shown a lesson", &report.neighbours_shown);
    Ok(ExitCode::SUCCESS)
}

async fn teach(client: &Client, fact: &Fact) -> anyhow::Result<()> {
    let reply = chat(client, &fact.question, WRONG_TOKENS, false).await?;
    let correction = json!({ "turn": reply["x_chimere"]["turn"], "correction": fact.answer });
    let kept = client.post("/v1/feedback", &correction).await?;
    anyhow::ensure!(kept["lesson"].is_string(), "the correction of `{}` made no lesson: {kept}", fact.question);
    Ok(())
}

async fn chat(client: &Client, question: &str, max_tokens: u32, recall: bool) -> anyhow::Result<Value> {
    let body = json!({
        "messages": [{ "role": "user", "content": question }],
        "temperature": 0,
        "max_tokens": max_tokens,
        "enable_thinking": false,
        "chimere": { "lessons": if recall { "recall" } else { "none" } },
    });
    client.post(CHAT, &body).await
}

async fn ask(client: &Client, fact: Option<usize>, question: String) -> anyhow::Result<Asked> {
    let text = |reply: &Value| reply["choices"][0]["message"]["content"].as_str().unwrap_or_default().to_owned();
    let without = chat(client, &question, ANSWER_TOKENS, false).await?;
    let with = chat(client, &question, ANSWER_TOKENS, true).await?;
    let shown = with["x_chimere"]["lessons"].as_array().map_or(0, Vec::len);
    Ok(Asked { fact, without: text(&without), with: text(&with), question, shown })
}

/// A folder that goes when the measurement ends.
struct Folder(PathBuf);

impl Folder {
    fn make() -> anyhow::Result<Folder> {
        let path = std::env::temp_dir().join(format!("chimere-lessons-{}", std::process::id()));
        chimere::store::files::create_private_dir(&path).with_context(|| path.display().to_string())?;
        Ok(Folder(path))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A daemon with an empty state, without a judge and without nights, that ends with this process.
async fn daemon(folder: &Path, model: Option<&Path>) -> anyhow::Result<(Child, Client)> {
    let listen = port::free()?;
    let (config, log) = (folder.join("config.toml"), folder.join("daemon.log"));
    std::fs::write(&config, "[scorer]\nenabled = false\n[night]\nenabled = false\n")?;
    let mut command = std::process::Command::new(chimere::program::own()?);
    // Nothing of the caller's own settings may reach it, but where the model is.
    for (name, _) in Environment::of_process().chimere {
        if name != "CHIMERE_MODEL_PATH" {
            command.env_remove(name);
        }
    }
    command.args(["serve", "--end-with-input", "--listen", &listen.to_string()]);
    command.arg("--config").arg(&config).arg("--state-dir").arg(folder.join("state"));
    if let Some(model) = model {
        command.arg("--model").arg(model);
    }
    command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::from(File::create(&log)?));
    let mut child = Command::from(command).kill_on_drop(true).spawn().context("cannot start a daemon")?;
    let client = Client::new(&Where { url: None, key: None }, listen)?;
    let began = Instant::now();
    while client.get("/health").await.is_err() {
        if let Some(status) = child.try_wait()? {
            bail!("the daemon ended while it started ({status}):\n{}", std::fs::read_to_string(&log)?);
        }
        if began.elapsed() > READY_TIMEOUT {
            bail!("the daemon was not ready within {} s", READY_TIMEOUT.as_secs());
        }
        tokio::time::sleep(LOOK).await;
    }
    Ok((child, client))
}
