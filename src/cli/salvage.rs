//! `chimere salvage`: the process that reads a damaged turn log. The daemon starts it; a person rarely does.

use std::path::PathBuf;
use std::process::ExitCode;

use chimere::store::salvage::rebuild_and_tell;

use super::exit::say;

/// Make a turn log of what is sound in another
#[derive(clap::Args)]
pub struct Args {
    /// Folder of the damaged log; nothing in it is changed
    from: PathBuf,
    /// Folder of the new one
    to: PathBuf,
    /// Bytes of turns that it may hold
    bytes_max: u64,
}

pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    say!("{}", rebuild_and_tell(&args.from, &args.to, args.bytes_max));
    Ok(ExitCode::SUCCESS)
}
