//! Argument → subcommand → exit code.

#![forbid(unsafe_code)]

mod cli;

fn main() -> std::process::ExitCode {
    chimere::program::name_process("chimere");
    cli::main()
}
