//! `chimere engine`: the process that hosts one model. The daemon starts it; a person rarely does.

use std::path::PathBuf;
use std::process::ExitCode;

#[derive(clap::Args)]
pub struct Args {
    /// Model file (GGUF)
    #[arg(long)]
    pub model: PathBuf,
}

pub fn run(_args: Args) -> anyhow::Result<ExitCode> {
    anyhow::bail!("the step loop is not linked in yet")
}
