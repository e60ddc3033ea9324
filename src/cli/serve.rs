//! `chimere serve`: the daemon in the foreground.

use std::process::ExitCode;

use chimere::config::{Config, Flags};
use chimere::daemon;
use chimere::failpoint::Failpoint;

use super::exit::{EX_CONFIG, coded, end_with_input};
use super::owner::refuse_daemon_of_root;

/// Where the configuration comes from; every flag is optional
#[derive(clap::Args, Clone, Debug, Default)]
pub struct Place {
    /// Configuration file, instead of /etc/chimere/config.toml and the user's own
    #[arg(long, global = true, value_name = "FILE")]
    pub config: Option<std::path::PathBuf>,
    /// Address and port to listen on [default: 127.0.0.1:8377]
    #[arg(long, global = true, value_name = "ADDR")]
    pub listen: Option<String>,
    /// Folder for everything that the daemon keeps
    #[arg(long, global = true, value_name = "DIR")]
    pub state_dir: Option<std::path::PathBuf>,
}

impl Place {
    pub fn flags(self) -> Flags {
        Flags { config: self.config, listen: self.listen, state_dir: self.state_dir, ..Flags::default() }
    }
}

/// Serve the model over HTTP
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    place: Place,
    /// Model file (GGUF) [default: the installation's nano model]
    #[arg(long, value_name = "FILE")]
    model: Option<std::path::PathBuf>,
    /// Stop at this point of the night (`NAME`), or let the disk be full there (`NAME=full`); for tests
    #[arg(long, hide = true, value_name = "NAME")]
    failpoint: Option<String>,
    /// Another argument for the serving engine; for tests
    #[arg(long = "engine-arg", hide = true, value_name = "ARG", allow_hyphen_values = true)]
    engine_args: Vec<String>,
    /// File with the milliseconds to add to this daemon's clock; for `chimere simulate`
    #[arg(long, hide = true, value_name = "FILE")]
    clock_offset: Option<std::path::PathBuf>,
    /// File of a made-up internet, in place of the real one; for tests
    #[arg(long, hide = true, value_name = "FILE")]
    internet: Option<std::path::PathBuf>,
    /// End at once when standard input ends; for `chimere simulate`
    #[arg(long, hide = true)]
    end_with_input: bool,
}

pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    if args.end_with_input {
        end_with_input();
    }
    let failpoint = args.failpoint.as_deref().map(Failpoint::parse).unwrap_or_default();
    let Args { engine_args, clock_offset, internet, model, .. } = args;
    let flags = Flags { model, failpoint, engine_args, clock_offset, internet, ..args.place.flags() };
    let config = Config::load(&flags)?;
    refuse_daemon_of_root(&config)?;
    let log = daemon::log::install(&config.log).map_err(|error| coded(EX_CONFIG, error.to_string()))?;
    for name in &config.unknown_variables {
        tracing::warn!(name, "this environment variable has no effect: no setting has its name");
    }
    daemon::run(config, flags, log)?;
    Ok(ExitCode::SUCCESS)
}
