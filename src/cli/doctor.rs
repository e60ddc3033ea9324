//! `chimere doctor`: what this machine offers and what would stand in the way of serving, on one screen.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::ExitCode;

use chimere_ffi::access::may_fill;
use chimere_ffi::gpu::{compiler_version, first_card, shipped_architectures};

use chimere::config::check::{Finding, Looked};
use chimere::config::{Config, Environment, Flags};
use chimere::daemon::choice::served_file;
use chimere::daemon::embedder;
use chimere::daemon::validate::judge;
use chimere::engine::machine::available_bytes;
use chimere::gguf::Gguf;

use super::check::{all_good, look, print_findings};
use super::client::Target;
use super::exit::{EX_UNAVAILABLE, say};
use super::serve::Place;

mod running;

/// Examine this machine and its daemon: processor, card, memory, model, state folder, port, nights. The flags are those of `serve`
///
/// A daemon that runs is asked which model it serves; --model looks at another file.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    place: Place,
    #[command(flatten)]
    target: Target,
    /// Model file (GGUF)
    #[arg(long, value_name = "FILE")]
    model: Option<std::path::PathBuf>,
}

pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    let flags = Flags { model: args.model, ..args.place.flags() };
    let looked = look(&flags, &args.target.at)?;
    let mut findings = vec![processor(), gpu(&flags), memory_of(&flags, &looked)];
    findings.extend(Config::check_in(&flags, &Environment::of_process(), &looked));
    if let Ok(config) = Config::load(&flags) {
        findings.push(state(&config.state_dir));
        findings.extend(running::look(&config, &args.target.at));
    }
    if args.target.json {
        say!("{}", serde_json::to_string_pretty(&findings)?);
    } else {
        print_findings(&findings);
    }
    Ok(if all_good(&findings) { ExitCode::SUCCESS } else { ExitCode::from(EX_UNAVAILABLE) })
}

fn found(what: &'static str, good: bool, message: impl Into<String>) -> Finding {
    Finding { what, good, message: message.into() }
}

fn processor() -> Finding {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let info = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let field = |name: &str| {
        let line = info.lines().find(|line| line.starts_with(name))?;
        line.split_once(':').map(|(_, value)| value.trim().to_owned())
    };
    let flags = field("flags").unwrap_or_default();
    let has: Vec<&str> = ["avx2", "fma", "f16c", "avx_vnni", "avx512bw", "avx512vbmi", "avx512_vnni", "amx_int8"]
        .into_iter()
        .filter(|name| flags.split(' ').any(|flag| flag == *name))
        .collect();
    let name = field("model name").unwrap_or_else(|| std::env::consts::ARCH.to_owned());
    found("processor", true, format!("{name}, {cores} cores; {}", has.join(" ")))
}

/// The card that `engine.backend = "auto"` would take, or why there is none.
fn gpu(flags: &Flags) -> Finding {
    let shipped = Config::load(flags).ok().and_then(|config| config.engine.kernels);
    let shipped = shipped.map(|folder| shipped_architectures(&folder)).unwrap_or_default();
    let kernels = match shipped.is_empty() {
        true => "no compiled kernels".to_owned(),
        false => {
            let names: Vec<_> = shipped.iter().map(|arch| format!("sm_{arch}")).collect();
            format!("compiled kernels for {}", names.join(", "))
        }
    };
    let compiler = compiler_version().map_or("no NVRTC".to_owned(), |(major, minor)| format!("NVRTC {major}.{minor}"));
    let card = match first_card() {
        Ok(card) => {
            let gb = card.memory_bytes as f64 / 1e9;
            format!("{}, compute capability {}.{}, {gb:.1} GB", card.name, card.major, card.minor)
        }
        Err(error) => format!("none: {error}"),
    };
    found("gpu", true, format!("{card}; {compiler}, {kernels}"))
}

/// Whether the model and what goes with it fit into the memory that is free. Those of a daemon that serves are in it.
fn memory_of(flags: &Flags, looked: &Looked) -> Finding {
    let Some(free) = available_bytes() else {
        return found("memory", true, "this system does not say how much is free");
    };
    let free_gb = free as f64 / 1e9;
    match &looked.served {
        Some(Ok(served)) if served.here => {
            let message = format!("{free_gb:.1} GB free beside the models of the daemon at {}", served.by);
            return found("memory", true, message);
        }
        Some(Err(unsaid)) if unsaid.here => {
            let message = format!("{free_gb:.1} GB free beside the running daemon, which did not say what it holds");
            return found("memory", true, message);
        }
        _ => {}
    }
    let bytes = |path: std::path::PathBuf| Gguf::open(&path).map_or(0, |model| model.file_len());
    let needed = Config::load(flags).map_or(0, |config| {
        let embedder = embedder::file(&config).ok().map_or(0, bytes);
        let model = served_file(&config).ok().map_or(0, |path| {
            // One that cannot be hosted is among the findings; it is as large as its file at least.
            judge(&config, &path, looked.program.as_deref(), 0)
                .map_or_else(|_| bytes(path), |judged| judged.needs_bytes)
        });
        model + embedder
    });
    let gb = |bytes: u64| bytes as f64 / 1e9;
    let message = format!("{:.1} GB free, the models need about {:.1} GB", gb(free), gb(needed));
    let next = ": end other programs, or serve a smaller model, or a smaller `engine.context_tokens`";
    found("memory", needed <= free, if needed <= free { message } else { message + next })
}

/// Nothing is written: a daemon may live there, or none may ever.
fn state(folder: &Path) -> Finding {
    let shown = folder.display();
    let no = |path: &Path, error: std::io::Error| {
        let next = "change its owner or its rights, or name another with --state-dir";
        found("state", false, format!("{shown} cannot be written: {}: {error}: {next}", path.display()))
    };
    match fs::metadata(folder) {
        Ok(meta) if !meta.is_dir() => {
            found("state", false, format!("{shown} is no folder: name another with --state-dir"))
        }
        Ok(meta) if meta.permissions().mode() & 0o077 != 0 => {
            found("state", false, format!("{shown} is open to other users of this machine: chmod 700 {shown}"))
        }
        Ok(_) => match may_fill(folder) {
            Ok(()) => found("state", true, format!("{shown} can be written")),
            Err(error) => no(folder, error),
        },
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            // It is made in the nearest folder that there is.
            let whole = std::path::absolute(folder).unwrap_or_else(|_| folder.to_owned());
            let above = whole.ancestors().skip(1).find(|above| above.exists()).unwrap_or(Path::new("/"));
            match may_fill(above) {
                Ok(()) => found("state", true, format!("{shown} is not there yet; the first start makes it")),
                Err(error) => no(above, error),
            }
        }
        Err(error) => no(folder, error),
    }
}
