//! `chimere pipeline list | reset`: the routes of a running daemon, and the way back from an optimised prompt to the shipped one.

use std::process::ExitCode;

use clap::Subcommand;
use serde_json::{Value, json};

use super::client::{Where, printable};
use super::exit::say;
use super::night::with_client;
use super::serve::Place;

/// Routes and their prompts: list them, reset an optimised one
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
}

pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    with_client(args.place, &args.target, async |client| {
        match args.command {
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
            format!("; optimised: {difference:+.1} points [{low:+.1}, {high:+.1}] on {} questions", from["items"])
        }
        None => String::new(),
    };
    format!("{:<10} version {:<24} {}{optimised}", text("route"), text("version"), text("description"))
}
