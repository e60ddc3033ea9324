//! `chimere check`: is everything that a start would read in order, and where does each setting come from?

use std::path::PathBuf;
use std::process::ExitCode;

use chimere::config::check::{Finding, Looked};
use chimere::config::settings::Setting;
use chimere::config::{Config, Environment, Flags};
use serde_json::json;

use super::client::{Target, Where, printable};
use super::exit::{EX_CONFIG, say};
use super::serve::Place;
use super::serving::{served, told};

/// Check the configuration, the pipelines, the model's header and the keys, without starting anything, and print every
/// setting with its origin; the flags are those of `serve`
///
/// A daemon that runs is asked which model it serves; --model looks at another file.
///
/// It looks at the values of tensors up to 4 MiB: norms, biases, routers. A value that is no number in a larger tensor
/// shows when the model is loaded, or as an error of a reply.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    place: Place,
    #[command(flatten)]
    target: Target,
    /// Model file (GGUF)
    #[arg(long, value_name = "FILE")]
    model: Option<PathBuf>,
}

pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    let flags = Flags { model: args.model, ..args.place.flags() };
    let environment = Environment::of_process();
    let findings = Config::check_in(&flags, &environment, &look(&flags, &args.target.at)?);
    // A configuration that cannot be read is among the findings.
    let settings = Config::load_in(&flags, &environment).map(|config| config.settings).unwrap_or_default();
    if args.target.json {
        say!("{:#}", json!({ "findings": findings, "settings": settings }));
    } else {
        print_findings(&findings);
        print_settings(&settings);
    }
    Ok(if all_good(&findings) { ExitCode::SUCCESS } else { ExitCode::from(EX_CONFIG) })
}

/// What is looked at beside the configuration: our program, and what a daemon serves where no file was named.
pub fn look(flags: &Flags, target: &Where) -> anyhow::Result<Looked> {
    let config = Config::load(flags).ok();
    let told = config.as_ref().and_then(|config| told(target, config));
    let served = config.filter(|_| flags.model.is_none()).and_then(|config| served(target, &config));
    let named = target.named().is_some() || target.shown().is_some();
    Ok(Looked { program: Some(chimere::program::own()?), served, told, named })
}

pub fn all_good(findings: &[Finding]) -> bool {
    findings.iter().all(|finding| finding.good)
}

pub fn print_findings(findings: &[Finding]) {
    for finding in findings {
        // A daemon's words are in it, and names of files.
        let message = printable(&finding.message);
        say!("{} {:<10} {message}", if finding.good { "ok  " } else { "BAD " }, finding.what);
    }
}

fn print_settings(settings: &[Setting]) {
    if settings.is_empty() {
        return;
    }
    let width = |of: fn(&Setting) -> &str| settings.iter().map(|s| of(s).chars().count()).max().unwrap_or(0).min(48);
    let (keys, values) = (width(|s| &s.key), width(|s| &s.value));
    say!("\nSettings; * = a running daemon takes a change over on SIGHUP, the others need a restart");
    for Setting { key, value, origin, live } in settings {
        // A text of several lines stays one row.
        let value = value.replace('\n', "\\n");
        say!("{} {key:<keys$} = {value:<values$}  {origin}", if *live { '*' } else { ' ' });
    }
}
