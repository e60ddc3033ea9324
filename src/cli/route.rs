//! `chimere route "text"`: which route a text takes, and why. It reads the pipeline files itself, or asks the daemon that
//! is named by --url or `CHIMERE_URL`.

use std::io::Read;
use std::process::ExitCode;

use chimere::config::Config;
use chimere::pipeline::{PipelineSet, Routing, Sources};
use chimere::turn::{Message, Role};
use serde_json::{Value, json};

use super::client::{Target, printable};
use super::exit::{EX_CONFIG, EX_DATAERR, coded, note, say};
use super::night::with_client;
use super::serve::Place;

/// Text read from standard input.
const BYTES_MAX: u64 = 16 << 20;

/// Tell which route a text takes, why, and how close the others came
///
/// It reads the pipeline files of the configuration. With --url or CHIMERE_URL that daemon says the route and the reason,
/// without how close the others came.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    place: Place,
    #[command(flatten)]
    target: Target,
    /// The text; `-` reads standard input
    text: String,
}

pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    let text = if args.text == "-" { from_input()? } else { args.text };
    if args.target.at.named().is_some() {
        return with_client(args.place, &args.target.at, async |client| {
            let body = json!({ "messages": [{ "role": "user", "content": text }] });
            let shown = client.post("/apply-template", &body).await?;
            tell(&shown["x_chimere"], client.address(), args.target.json);
            Ok(ExitCode::SUCCESS)
        });
    }
    let set = pipelines(args.place)?;
    let routing = set.read(&[Message::new(Role::User, text)]);
    if args.target.json {
        say!(
            "{:#}",
            json!({
                "route": routing.choice.route, "because": routing.choice.because, "scores": routing.reading.scores,
                "guess": routing.guess, "unsure": routing.unsure(), "would_vote": !routing.unsure().is_empty(),
            })
        );
    } else {
        print(&routing);
    }
    Ok(ExitCode::SUCCESS)
}

/// What a daemon says.
fn tell(terms: &Value, address: &str, as_json: bool) {
    if as_json {
        say!("{:#}", json!({ "route": terms["route"], "because": terms["because"] }));
        return;
    }
    let text = |name: &str| printable(terms[name].as_str().unwrap_or_default());
    say!("{}: {}", text("route"), text("because"));
    note!("So the daemon at {address}. Without --url and CHIMERE_URL this shows how close other routes came.");
}

/// The pipelines that a daemon of this configuration would have.
pub(super) fn pipelines(place: Place) -> anyhow::Result<PipelineSet> {
    let config = Config::load(&place.flags())?;
    let ceilings = config.replies.ceilings;
    let sources = Sources { shipped: config.pipelines.shipped, overlay: Some(config.pipelines.overlay) };
    let set = PipelineSet::load(&sources).and_then(|set| set.within(&ceilings));
    set.map_err(|error| coded(EX_CONFIG, error.to_string()))
}

fn from_input() -> anyhow::Result<String> {
    let mut bytes = Vec::new();
    std::io::stdin().take(BYTES_MAX + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > BYTES_MAX {
        return Err(coded(EX_DATAERR, format!("standard input has more than {} MiB of text", BYTES_MAX >> 20)));
    }
    String::from_utf8(bytes).map_err(|_| coded(EX_DATAERR, "standard input is no UTF-8 text".to_owned()))
}

fn print(routing: &Routing) {
    let Routing { choice, reading, guess } = routing;
    say!("{}: {}", choice.route, choice.because);
    for score in reading.scores.iter().filter(|score| score.pieces > 0) {
        say!("  rules  {:<12} {:>3}    {}", score.route, score.pieces, score.because);
    }
    for one in guess {
        say!("  guess  {:<12} {:>3.0} %", one.route, one.probability * 100.0);
    }
    let unsure = routing.unsure();
    match unsure.is_empty() {
        true => say!("sure: no other route comes close"),
        false => say!("unsure: {} are close", unsure.join(", ")),
    }
}
