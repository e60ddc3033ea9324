//! `chimere tools list | run`: the built-in tools, without a daemon.

use std::io::{self, Read};
use std::process::ExitCode;
use std::time::Duration;

use chimere::clock::Clock;
use chimere::tools::calculate::{self, ADDRESS_SPACE_BYTES_MAX, CPU_S_MAX, EXPRESSION_BYTES_MAX};
use chimere::tools::{RESERVED, TOOLS, ToolError, Toolbox, list};
use clap::Subcommand;

use super::exit::{EX_DATAERR, EX_SOFTWARE, EX_TEMPFAIL, EX_UNAVAILABLE, coded, say};

/// Built-in tools: list them, run one
#[derive(clap::Args)]
pub struct Args {
    #[command(subcommand)]
    command: Cmd,
}

#[derive(Subcommand)]
enum Cmd {
    /// Print the tools that a pipeline or a request may allow, and the names kept for others
    List {
        #[arg(long)]
        json: bool,
    },
    /// Run one as a model's call would: `chimere tools run calculate '{"expression": "17% of 230"}'`
    Run {
        /// Name of the tool
        name: String,
        /// Its arguments, a JSON object
        #[arg(value_name = "JSON", default_value = "{}")]
        arguments: String,
        /// Time limit of the call, ms
        #[arg(long, value_name = "MS", default_value_t = 10_000, value_parser = clap::value_parser!(u64).range(1..=600_000))]
        timeout_ms: u64,
    },
    /// Calculate what stands on standard input (a throw-away process of the tool)
    #[command(hide = true)]
    Calculate,
}

pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    match args.command {
        Cmd::List { json: true } => say!("{:#}", list()),
        Cmd::List { json: false } => {
            for tool in TOOLS {
                say!("{:<18} {}", tool.name, tool.description);
            }
            for (name, part) in RESERVED {
                say!("{name:<18} not there yet: needs {part}");
            }
        }
        Cmd::Run { name, arguments, timeout_ms } => return call(&name, &arguments, Duration::from_millis(timeout_ms)),
        Cmd::Calculate => return calculate(),
    }
    Ok(ExitCode::SUCCESS)
}

fn call(name: &str, arguments: &str, deadline: Duration) -> anyhow::Result<ExitCode> {
    let toolbox = Toolbox::new(chimere::program::own()?, Clock::wall());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let result = runtime.block_on(toolbox.run(name, arguments, deadline));
    let result = result.map_err(|error| {
        let code = match error {
            ToolError::Unknown(_) | ToolError::Arguments(_) | ToolError::Refused(_) => EX_DATAERR,
            ToolError::NotBuilt { .. } | ToolError::Effects(_) => EX_UNAVAILABLE,
            ToolError::Late(_) => EX_TEMPFAIL,
            ToolError::Failed(_) => EX_SOFTWARE,
        };
        coded(code, error.to_string())
    })?;
    say!("{}", result.text);
    Ok(ExitCode::SUCCESS)
}

/// Calculates under a bounded address space and time: the result, or why there is none and exit code 1.
fn calculate() -> anyhow::Result<ExitCode> {
    chimere_ffi::limits::bound_address_space(ADDRESS_SPACE_BYTES_MAX)?;
    chimere_ffi::limits::bound_cpu_time(CPU_S_MAX)?;
    let mut expression = String::new();
    io::stdin().take(EXPRESSION_BYTES_MAX as u64 + 1).read_to_string(&mut expression)?;
    match calculate::evaluate(&expression) {
        Ok(result) => {
            say!("{result}");
            Ok(ExitCode::SUCCESS)
        }
        Err(words) => {
            say!("{words}");
            Ok(ExitCode::FAILURE)
        }
    }
}
