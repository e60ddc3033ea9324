//! `chimere session list | show | save | fork | delete`: conversations that the daemon remembers under a name.
//! `chimere chat --session NAME` goes on with one.

use std::process::ExitCode;

use anyhow::Context;
use chimere::config::Config;
use chimere::service::{SESSION_NAMES, is_session_name};
use clap::Subcommand;
use serde_json::{Value, json};

use super::client::{Client, Where, printable};
use super::exit::{note, say};
use super::serve::Place;

const PATH: &str = "/v1/sessions";

/// Named conversations; `chimere chat --session NAME` begins one or goes on with it
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
    /// Print the sessions of this key
    List {
        /// As JSON
        #[arg(long)]
        json: bool,
    },
    /// Print what was said in a session
    Show {
        #[arg(value_parser = name)]
        name: String,
        /// As JSON, with the messages as a chat request takes them
        #[arg(long)]
        json: bool,
    },
    /// Set a session to a turn, to go on from there (`chimere memory list` shows turns)
    Save {
        #[arg(value_parser = name)]
        name: String,
        /// The turn after which it goes on
        #[arg(long, value_name = "ID")]
        turn: String,
        /// Move a session of that name
        #[arg(long)]
        replace: bool,
    },
    /// Begin another session where one stands now
    Fork {
        #[arg(value_parser = name)]
        from: String,
        #[arg(value_parser = name)]
        to: String,
        /// Move a session of that name
        #[arg(long)]
        replace: bool,
    },
    /// Delete a name; the turns stay until `chimere memory forget`
    Delete {
        #[arg(value_parser = name)]
        name: String,
    },
}

/// The name of a session, as an argument.
pub fn name(text: &str) -> Result<String, String> {
    if is_session_name(text) { Ok(text.to_owned()) } else { Err(format!("a session is called by {SESSION_NAMES}")) }
}

pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    let config = Config::load(&args.place.flags())?;
    let client = Client::new(&args.target, config.http.listen)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(execute(args.command, &client))?;
    Ok(ExitCode::SUCCESS)
}

async fn execute(command: Cmd, client: &Client) -> anyhow::Result<()> {
    match command {
        Cmd::List { json } => {
            let listed = client.get(PATH).await?;
            let sessions = listed["data"].as_array().context("the daemon told no list")?;
            if sessions.is_empty() {
                note!("There are no sessions. `chimere chat --session NAME` begins one.");
            }
            match json {
                true => say!("{}", serde_json::to_string_pretty(sessions)?),
                false => sessions.iter().for_each(|session| say!("{}", line(session))),
            }
        }
        Cmd::Show { name, json } => {
            let session = client.get(&format!("{PATH}/{name}")).await?;
            match json {
                true => say!("{}", serde_json::to_string_pretty(&session)?),
                false => session["messages"].as_array().into_iter().flatten().for_each(|message| {
                    say!("{}: {}", text(&message["role"]), text(&message["content"]));
                    for call in message["tool_calls"].as_array().into_iter().flatten() {
                        let function = &call["function"];
                        say!("  calls {} {}", text(&function["name"]), text(&function["arguments"]));
                    }
                }),
            }
        }
        Cmd::Save { name, turn, replace } => {
            let saved = client.post(PATH, &json!({"name": name, "turn": turn, "replace": replace})).await?;
            say!("{}", line(&saved));
        }
        Cmd::Fork { from, to, replace } => {
            let saved = client.post(PATH, &json!({"name": to, "from": from, "replace": replace})).await?;
            say!("{}", line(&saved));
        }
        Cmd::Delete { name } => {
            client.delete(&format!("{PATH}/{name}")).await?;
            say!("{name} is deleted; its turns stay until `chimere memory forget`");
        }
    }
    Ok(())
}

fn line(session: &Value) -> String {
    let updated = session["updated_ms"].as_i64().and_then(|ms| jiff::Timestamp::from_millisecond(ms).ok());
    let updated = updated.map(|time| time.to_string()).unwrap_or_default();
    format!("{}  {updated}  {}", text(&session["name"]), text(&session["turn"]))
}

fn text(value: &Value) -> String {
    printable(value.as_str().unwrap_or_default())
}
