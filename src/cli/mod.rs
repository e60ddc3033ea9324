//! The command line: one file a subcommand, each with its arguments and a `run`. Results go to standard
//! output, everything else to standard error. Exit codes follow sysexits where one fits.

use std::io::Write;
use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};

mod adapter;
mod bench;
mod chat;
mod check;
mod client;
mod doctor;
mod documents;
mod engine;
mod engram;
mod eval;
mod exit;
mod keys;
mod lessons;
mod memory;
mod model;
mod model_args;
mod night;
mod owner;
mod pipeline;
mod port;
#[cfg(feature = "llama")]
mod quantize;
mod read_document;
mod route;
mod salvage;
mod serve;
mod serving;
mod session;
mod simulate;
mod tools;
mod top;
mod train;

use exit::EX_USAGE;

#[derive(Parser)]
#[command(name = "chimere", version, about, long_about = LONG_ABOUT, propagate_version = true)]
struct Cli {
    #[command(subcommand)]
    command: Cmd,
}

const LONG_ABOUT: &str = "Chimère serves a language model on this machine to a household or a team, over an \
OpenAI-compatible HTTP endpoint. The model is any GGUF file that this program or llama.cpp can host; a small one, nano, \
comes with it.\n\nStart with `chimere serve` (or `chimere serve --model FILE.gguf`), then `chimere chat` in another \
terminal.";

#[derive(Subcommand)]
enum Cmd {
    /// Serve the model over HTTP
    Serve(serve::Args),
    /// API keys: add, list, renew, revoke
    Keys(keys::Args),
    /// Tell which route a text takes, and why
    Route(route::Args),
    /// Remembered replies: list, export, forget
    Memory(memory::Args),
    /// What people taught: list, show, add, edit, share, forget
    Lessons(lessons::Args),
    /// Files to read from: add, list, search, remove, share
    Documents(documents::Args),
    /// Named conversations: list, show, save, fork, delete
    Session(session::Args),
    /// Nightly jobs: run, status, report, pause, resume
    Night(night::Args),
    /// Serve an earlier generation of learned weights again
    Rollback(night::RollbackArgs),
    /// Served model and further models: show, swap, back, load, unload
    Model(model::Args),
    /// Routes and their prompts: list, reset, schema, check, run
    Pipeline(pipeline::Args),
    /// Built-in tools: list them, run one
    Tools(tools::Args),
    /// Talk to the daemon
    Chat(chat::Args),
    /// Watch a running daemon: load, speed, latency, the night
    Top(top::Args),
    /// Check the configuration, the pipelines and the model
    Check(check::Args),
    /// Measure prefill and decode speed, with bytes per token and the share of memory bandwidth
    Bench(bench::Args),
    /// Engram tables: build, learn, merge, decay, revoke, show, list
    Engram(engram::Args),
    /// Evaluate a model: logits, perplexity, agreement of two backends, exams
    Eval(eval::Args),
    /// LoRA adapters: show and check one, make a random one for tests
    Adapter(adapter::Args),
    /// Examine this machine and its daemon: processor, card, memory, model, state folder, port, nights
    Doctor(doctor::Args),
    /// Host one model and speak frames over standard input and output (started by the daemon)
    Engine(engine::Args),
    /// Write a new turn log from the sound records of a damaged one (started by the daemon)
    #[command(hide = true)]
    Salvage(salvage::Args),
    /// Read a PDF, DOCX or XLSX file apart from the daemon (started by the daemon)
    #[command(hide = true)]
    ReadDocument(read_document::Args),
    /// Train an adapter on verified pairs
    Train(train::Args),
    /// Simulate a week of users and nights on a real daemon in accelerated time
    Simulate(Box<simulate::Args>),
    /// Quantize a model file to smaller tensor types
    #[cfg(feature = "llama")]
    Quantize(quantize::Args),
    /// Print shell completions
    Completions {
        /// Shell to complete for
        shell: clap_complete::Shell,
    },
}

/// Parses the arguments and runs the subcommand; every error is one clear line.
pub fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            let asked_for_help = !error.use_stderr();
            let _ = error.print();
            return if asked_for_help { ExitCode::SUCCESS } else { ExitCode::from(EX_USAGE) };
        }
    };
    match run(cli.command) {
        Ok(code) => code,
        Err(error) => exit::report(&error),
    }
}

fn run(command: Cmd) -> anyhow::Result<ExitCode> {
    match command {
        Cmd::Serve(args) => serve::run(args),
        Cmd::Keys(args) => keys::run(args),
        Cmd::Route(args) => route::run(args),
        Cmd::Memory(args) => memory::run(args),
        Cmd::Documents(args) => documents::run(args),
        Cmd::Lessons(args) => lessons::run(args),
        Cmd::Session(args) => session::run(args),
        Cmd::Night(args) => night::run(args),
        Cmd::Rollback(args) => night::roll_back(args),
        Cmd::Model(args) => model::run(args),
        Cmd::Pipeline(args) => pipeline::run(args),
        Cmd::Tools(args) => tools::run(args),
        Cmd::Chat(args) => chat::run(args),
        Cmd::Top(args) => top::run(args),
        Cmd::Check(args) => check::run(args),
        Cmd::Train(args) => train::run(args),
        Cmd::Simulate(args) => simulate::run(*args),
        Cmd::Bench(args) => bench::run(args),
        Cmd::Engram(args) => engram::run(args),
        Cmd::Eval(args) => eval::run(args),
        Cmd::Adapter(args) => adapter::run(args),
        Cmd::Doctor(args) => doctor::run(args),
        Cmd::Engine(args) => engine::run(args),
        Cmd::Salvage(args) => salvage::run(args),
        Cmd::ReadDocument(args) => read_document::run(args),
        #[cfg(feature = "llama")]
        Cmd::Quantize(args) => quantize::run(args),
        Cmd::Completions { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "chimere", &mut script);
            std::io::stdout().write_all(&script)?;
            Ok(ExitCode::SUCCESS)
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    /// Two options of one name in a command are found nowhere else: a release build takes one of them silently.
    #[test]
    fn every_command_is_well_formed() {
        super::Cli::command().debug_assert();
    }
}
