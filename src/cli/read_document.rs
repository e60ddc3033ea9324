//! `chimere read-document`: the process that reads one file of a kind that is hard to read. The daemon starts it; a person
//! rarely does.

use std::io::{self, BufWriter};
use std::process::ExitCode;

use chimere::documents::apart;

/// Read the file on standard input, behind its length, and print its text as JSON
#[derive(clap::Args)]
pub struct Args {
    /// The end of its name
    kind: String,
}

pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    apart::serve(&args.kind, io::stdin().lock(), BufWriter::new(io::stdout().lock()))?;
    Ok(ExitCode::SUCCESS)
}
