//! `chimere check`: is everything that a start would read in order?

use std::path::PathBuf;
use std::process::ExitCode;

use chimere::config::{Config, Environment, Flags};

use super::serve::EX_CONFIG;

/// Check the configuration, the pipelines, the model's header and the keys, without starting anything
#[derive(clap::Args)]
pub struct Args {
    /// Configuration file, instead of /etc/chimere/config.toml and the user's own
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Folder of everything that is kept
    #[arg(long, value_name = "DIR")]
    state_dir: Option<PathBuf>,
    /// Model file (GGUF)
    #[arg(long, value_name = "FILE")]
    model: Option<PathBuf>,
    /// As JSON
    #[arg(long)]
    json: bool,
}

pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    let flags = Flags { config: args.config, listen: None, state_dir: args.state_dir, model: args.model };
    let findings = Config::check_in(&flags, &Environment::of_process());
    if args.json {
        println!("{}", serde_json::to_string_pretty(&findings)?);
    } else {
        for finding in &findings {
            println!("{} {:<10} {}", if finding.good { "ok  " } else { "BAD " }, finding.what, finding.message);
        }
    }
    let good = findings.iter().all(|finding| finding.good);
    Ok(if good { ExitCode::SUCCESS } else { ExitCode::from(EX_CONFIG) })
}
