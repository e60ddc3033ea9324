//! `chimere lessons list | show | add | edit | share | forget`: what people taught, as a running daemon keeps it.

use std::process::ExitCode;

use anyhow::Context;
use chimere::config::Config;
use clap::Subcommand;
use serde_json::{Map, Value, json};

use super::client::{Client, Target, note_damage, printable};
use super::exit::{note, say};
use super::serve::Place;

const PATH: &str = "/v1/lessons";
/// Lessons read at once.
const PAGE: usize = 500;
/// Characters of a text that the list shows.
const SHOWN_CHARS: usize = 60;

/// What people taught: list, show, add, edit, share, forget
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    place: Place,
    #[command(flatten)]
    target: Target,
    #[command(subcommand)]
    command: Cmd,
}

#[derive(Subcommand)]
enum Cmd {
    /// Print one line a lesson, retired ones too
    List {
        /// Only lessons of this key or owner
        #[arg(long, value_name = "NAME")]
        principal: Option<String>,
    },
    /// Print a lesson
    Show { id: String },
    /// Teach by hand
    Add {
        /// The question; given twice or more, other wordings of it
        #[arg(long, required = true, value_name = "TEXT")]
        question: Vec<String>,
        /// The right answer
        #[arg(long, value_name = "TEXT")]
        answer: String,
        /// For everybody; only the owner shares
        #[arg(long)]
        share: bool,
    },
    /// Change the words of a lesson
    #[command(group = clap::ArgGroup::new("words").required(true).multiple(true).args(["question", "answer"]))]
    Edit {
        id: String,
        /// In place of all its questions
        #[arg(long, value_name = "TEXT")]
        question: Vec<String>,
        /// In place of its answer
        #[arg(long, value_name = "TEXT")]
        answer: Option<String>,
    },
    /// Show a lesson to everybody, or take that back
    Share {
        id: String,
        /// For its own principal alone again
        #[arg(long)]
        private: bool,
    },
    /// Forget a lesson; the turn that it comes from stays until `chimere memory forget`
    Forget { id: String },
}

pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    let config = Config::load(&args.place.flags())?;
    let client = Client::new(&args.target.at, config.http.listen)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(execute(args.command, &client, args.target.json))?;
    Ok(ExitCode::SUCCESS)
}

async fn execute(command: Cmd, client: &Client, json: bool) -> anyhow::Result<()> {
    match command {
        Cmd::List { principal } => {
            let lessons = all(client, principal.as_deref()).await?;
            if lessons.is_empty() {
                note!(
                    "There are no lessons. `/correct TEXT` in `chimere chat` teaches one, and `chimere lessons add`."
                );
            }
            match json {
                true => say!("{}", serde_json::to_string_pretty(&lessons)?),
                false => lessons.iter().for_each(|lesson| say!("{}", line(lesson))),
            }
        }
        Cmd::Show { id } => {
            let lesson = client.get(&address(&id)?).await?;
            match json {
                true => say!("{}", serde_json::to_string_pretty(&lesson)?),
                false => show(&lesson),
            }
        }
        Cmd::Add { question, answer, share } => {
            let sharing = if share { "shared" } else { "private" };
            let body = json!({"questions": question, "answer": answer, "sharing": sharing});
            print(&client.post(PATH, &body).await?, json);
        }
        Cmd::Edit { id, question, answer } => {
            let mut body = Map::new();
            if !question.is_empty() {
                body.insert("questions".to_owned(), json!(question));
            }
            body.extend(answer.map(|answer| ("answer".to_owned(), json!(answer))));
            print(&client.patch(&address(&id)?, &Value::Object(body)).await?, json);
        }
        Cmd::Share { id, private } => {
            let sharing = if private { "private" } else { "shared" };
            // Whose words they are may change them meanwhile.
            let seen = client.get(&address(&id)?).await?;
            if !json {
                show(&seen);
            }
            let body = json!({"sharing": sharing, "updated_ms": seen["updated_ms"]});
            print(&client.patch(&address(&id)?, &body).await?, json);
        }
        Cmd::Forget { id } => {
            let gone = client.delete(&address(&id)?).await?;
            match json {
                true => say!("{gone}"),
                false => {
                    say!("{} is forgotten", text(&gone["id"]));
                    gone["turns"].as_array().into_iter().flatten().map(text).for_each(|turn| {
                        say!("{turn} still holds the correction: `chimere memory forget --turn {turn}`");
                    });
                }
            }
        }
    }
    Ok(())
}

/// An id as a part of an address.
fn address(id: &str) -> anyhow::Result<String> {
    let mut url = reqwest::Url::parse("http://daemon")?;
    url.path_segments_mut().ok().context("an address has a path")?.extend(["v1", "lessons", id]);
    Ok(url.path().to_owned())
}

/// Every lesson that the daemon tells, page by page.
async fn all(client: &Client, principal: Option<&str>) -> anyhow::Result<Vec<Value>> {
    let mut lessons: Vec<Value> = Vec::new();
    loop {
        let mut url = reqwest::Url::parse("http://daemon/v1/lessons")?;
        url.query_pairs_mut().append_pair("limit", &PAGE.to_string());
        if let Some(principal) = principal {
            url.query_pairs_mut().append_pair("principal", principal);
        }
        if let Some(last) = lessons.last() {
            url.query_pairs_mut().append_pair("after", text(&last["id"]).as_str());
        }
        let mut page = client.get(&format!("{}?{}", url.path(), url.query().unwrap_or_default())).await?;
        let Value::Array(data) = page["data"].take() else { anyhow::bail!("the daemon told no list") };
        lessons.extend(data);
        if page["has_more"] != true {
            note_damage(&page);
            return Ok(lessons);
        }
    }
}

fn print(lesson: &Value, json: bool) {
    match json {
        true => say!("{lesson}"),
        false => say!("{}", line(lesson)),
    }
}

fn text(value: &Value) -> String {
    printable(value.as_str().unwrap_or_default())
}

/// The beginning of a text, in one line.
fn short(value: &Value) -> String {
    let text = text(value).replace(['\n', '\t'], " ");
    match text.char_indices().nth(SHOWN_CHARS) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}

fn line(lesson: &Value) -> String {
    let state = if lesson["state"] == "new" { text(&lesson["sharing"]) } else { text(&lesson["state"]) };
    let whose = lesson["principal"].as_str().map(|name| format!("{}  ", printable(name))).unwrap_or_default();
    format!(
        "{}  {whose}{state}  {}  →  {}",
        text(&lesson["id"]),
        short(&lesson["questions"][0]),
        short(&lesson["answer"])
    )
}

fn show(lesson: &Value) {
    let time = |name: &str| {
        let time = lesson[name].as_i64().and_then(|ms| jiff::Timestamp::from_millisecond(ms).ok());
        time.map(|time| time.to_string()).unwrap_or_default()
    };
    let list = |name: &str| lesson[name].as_array().into_iter().flatten().map(text).collect::<Vec<_>>();
    list("questions").iter().for_each(|question| say!("question  {question}"));
    say!("answer    {}", text(&lesson["answer"]));
    say!("known by  {}", text(&lesson["known"]));
    say!("state     {}, {}", text(&lesson["state"]), text(&lesson["sharing"]));
    if let Some(by) = lesson["retired_by"].as_str() {
        say!("replaced  {}", printable(by));
    }
    list("turns").iter().for_each(|turn| say!("from      {turn}"));
    say!("made      {}", time("created_ms"));
    say!("changed   {}", time("updated_ms"));
}
