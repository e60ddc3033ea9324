//! How a command ends. Results go to standard output while somebody reads them. An error is one clear line,
//! with the exit code of sysexits.h that fits it.

use std::fmt;
use std::io::{self, ErrorKind, Write};
use std::path::Path;
use std::process::ExitCode;

use chimere::config::ConfigError;
use chimere::daemon::DaemonError;
use chimere::engine::adapter::AdapterError;
use chimere::engine::backend::BackendError;
use chimere::engine::load::LoadError;
use chimere::engine::vocab::VocabError;
use chimere::engram::format::EngramError;
use chimere::eval::golden::GoldenError;
use chimere::eval::logits::Error as LogitsError;
use chimere::keys::KeyError;
use chimere::store::StoreError;
use chimere::store::files::LockError;
use chimere::training::TrainError;
use chimere::training::pairs::PairsError;

/// A wrong command line.
pub const EX_USAGE: u8 = 64;
/// A file, a name or a question that cannot be used.
pub const EX_DATAERR: u8 = 65;
/// A file that is not there.
pub const EX_NOINPUT: u8 = 66;
/// No daemon answers, or something stands in the way of one; a device that cannot be used.
pub const EX_UNAVAILABLE: u8 = 69;
/// A fault of the program itself.
pub const EX_SOFTWARE: u8 = 70;
/// A file that cannot be made.
pub const EX_CANTCREAT: u8 = 73;
/// Reading or writing failed.
pub const EX_IOERR: u8 = 74;
/// It may work later.
pub const EX_TEMPFAIL: u8 = 75;
/// Not allowed.
pub const EX_NOPERM: u8 = 77;
/// A configuration that cannot be used.
pub const EX_CONFIG: u8 = 78;

/// An error whose exit code is known where it arises.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub struct Coded {
    code: u8,
    message: String,
}

/// An error that ends the program with `code`.
pub fn coded(code: u8, message: impl Into<String>) -> anyhow::Error {
    Coded { code, message: message.into() }.into()
}

/// Why a file that the caller named cannot be written.
pub fn cannot_write(path: &Path) -> impl FnOnce(io::Error) -> anyhow::Error {
    move |error| {
        let full = matches!(error.kind(), ErrorKind::StorageFull | ErrorKind::QuotaExceeded);
        coded(if full { EX_IOERR } else { EX_CANTCREAT }, format!("cannot write {}: {error}", path.display()))
    }
}

/// Ends this process as soon as standard input ends: it is held by whoever this process is for.
pub fn end_with_input() {
    std::thread::spawn(|| {
        let _ = io::copy(&mut io::stdin().lock(), &mut io::sink());
        std::process::exit(i32::from(EX_TEMPFAIL));
    });
}

/// Writes a line of a result to standard output.
macro_rules! say {
    ($($arg:tt)*) => { $crate::cli::exit::print_line(format_args!($($arg)*)) };
}
pub(super) use say;

/// Ends the program when the line cannot be written: a reader that has left (`| head`) has all that it wanted.
pub fn print_line(line: fmt::Arguments<'_>) {
    if let Err(error) = writeln!(io::stdout().lock(), "{line}") {
        if error.kind() != ErrorKind::BrokenPipe {
            note_line(format_args!("chimere: standard output: {error}"));
            std::process::exit(EX_IOERR.into());
        }
        std::process::exit(0);
    }
}

/// Writes a line to standard error: what went wrong, or what is being done.
macro_rules! note {
    ($($arg:tt)*) => { $crate::cli::exit::note_line(format_args!($($arg)*)) };
}
pub(super) use note;

/// That nobody reads it is no reason to stop (`eprintln!` panics then).
pub fn note_line(line: fmt::Arguments<'_>) {
    let _ = writeln!(io::stderr().lock(), "{line}");
}

/// Says what went wrong and returns the code for it.
pub fn report(error: &anyhow::Error) -> ExitCode {
    if error.downcast_ref::<io::Error>().is_some_and(|e| e.kind() == ErrorKind::BrokenPipe) {
        return ExitCode::SUCCESS;
    }
    note_line(format_args!("chimere: {}", explain(error)));
    ExitCode::from(code_of(error))
}

/// The error and its causes, each said once.
fn explain(error: &anyhow::Error) -> String {
    error.chain().fold(String::new(), |said, cause| match cause.to_string() {
        cause if said.is_empty() => cause,
        cause if said.contains(&cause) => said,
        cause => format!("{said}: {cause}"),
    })
}

pub fn code_of(error: &anyhow::Error) -> u8 {
    if let Some(coded) = error.chain().find_map(|cause| cause.downcast_ref::<Coded>()) {
        return coded.code;
    }
    if let Some(daemon) = error.chain().find_map(|cause| cause.downcast_ref::<DaemonError>()) {
        return daemon.code();
    }
    if error.chain().any(|cause| cause.is::<ConfigError>()) {
        return EX_CONFIG;
    }
    if let Some(io) = error.chain().find_map(|cause| cause.downcast_ref::<io::Error>()) {
        return match io.kind() {
            ErrorKind::NotFound => EX_NOINPUT,
            ErrorKind::PermissionDenied => EX_NOPERM,
            ErrorKind::InvalidData => EX_DATAERR,
            _ => EX_IOERR,
        };
    }
    let device = |e: &BackendError| matches!(e, BackendError::Device(_) | BackendError::Lost(_));
    let without = |e: &LoadError| matches!(e, LoadError::Backend(e) if device(e));
    if error.chain().any(|e| e.downcast_ref().is_some_and(device) || e.downcast_ref().is_some_and(without)) {
        return EX_UNAVAILABLE;
    }
    let any = |is: fn(&(dyn std::error::Error + 'static)) -> bool| error.chain().any(is);
    if any(|e| e.is::<LockError>()) {
        EX_TEMPFAIL
    } else if any(|e| e.is::<StoreError>()) {
        EX_IOERR
    } else if any(|e| {
        e.is::<chimere::gguf::Error>() || e.is::<LoadError>() || e.is::<GoldenError>() || e.is::<KeyError>()
    }) || any(|e| e.is::<AdapterError>() || e.is::<EngramError>() || of_quantize(e))
        || any(|e| e.is::<LogitsError>() || e.is::<TrainError>() || e.is::<PairsError>() || e.is::<VocabError>())
    {
        EX_DATAERR
    } else {
        1
    }
}

#[cfg(feature = "llama")]
fn of_quantize(error: &(dyn std::error::Error + 'static)) -> bool {
    error.is::<chimere::quantize::Error>()
}

/// A build without the library quantises nothing.
#[cfg(not(feature = "llama"))]
fn of_quantize(_: &(dyn std::error::Error + 'static)) -> bool {
    false
}

#[cfg(test)]
mod tests {
    use anyhow::Context;

    use super::*;

    fn io_error(kind: ErrorKind) -> anyhow::Error {
        io::Error::from(kind).into()
    }

    #[test]
    fn the_code_says_what_kind_of_error_it_was() {
        for (error, code) in [
            (coded(EX_NOPERM, "no"), 77),
            (coded(EX_NOPERM, "no").context("while asking"), 77),
            (io_error(ErrorKind::NotFound).context("cannot read x"), 66),
            (io_error(ErrorKind::PermissionDenied), 77),
            (io_error(ErrorKind::StorageFull), 74),
            (cannot_write(Path::new("x"))(ErrorKind::NotFound.into()), 73),
            (cannot_write(Path::new("x"))(ErrorKind::StorageFull.into()).context("exporting"), 74),
            (ConfigError::NoStateDir.into(), 78),
            (LockError::Held("7".into()).into(), 75),
            (DaemonError::NoModel(Vec::new()).into(), 66),
            (KeyError::Name.into(), 65),
            (AdapterError::Empty.into(), 65),
            (BackendError::Device("no driver".into()).into(), 69),
            (LoadError::from(BackendError::Device("no driver".into())).into(), 69),
            (LoadError::from(BackendError::Load("bad".into())).into(), 65),
            (anyhow::Error::from(VocabError::TooLong { bytes: 2, limit: 1 }).context("text.txt"), 65),
            (StoreError::Disk("full".into()).into(), 74),
            (anyhow::anyhow!("something else"), 1),
        ] {
            assert_eq!(code_of(&error), code, "{error:#}");
        }
    }

    #[test]
    fn a_cause_that_was_said_is_not_repeated() {
        let inner = io::Error::other("disk on fire");
        let error = Err::<(), _>(inner).context("cannot read x: disk on fire").context("quantising").unwrap_err();
        assert_eq!(explain(&error), "quantising: cannot read x: disk on fire");
    }
}
