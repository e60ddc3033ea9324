//! The state folder is for the daemon's user alone: keys, conversations and documents lie in it. One that was made by hand is
//! often open to every account of the machine. A daemon closes it when it starts, or says why it does not.

use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

use chimere_ffi::limits;

use super::files::{LockError, StateLock};

/// Rights of the group and of everybody else.
const OTHERS: u32 = 0o077;
/// A folder in which each may remove only what is its own, as `/tmp`: it is meant for everybody.
const STICKY: u32 = 0o1000;
/// What a daemon keeps in its folder. A folder that holds anything else is not closed: it may be somebody's home.
const OURS: [&str; 20] = [
    "answers",
    "candidates",
    "chat_history",
    "config.toml",
    "daemon.lock",
    "documents",
    "engram",
    "examples.idx",
    "generations",
    "kernels",
    "keys.lock",
    "keys.toml",
    "library.jsonl",
    "lost+found",
    "model.json",
    "pipelines",
    "prefixes.bin",
    "runs",
    "served.json",
    "turns",
];

/// Beginnings of the names of others.
const OURS_BEGIN: [&str; 3] = ["lessons.", "night.", "turns."];

/// What came of closing a folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Closing {
    /// Nobody else could look in.
    Was,
    /// It was open, with these rights.
    Closed { before: u32 },
    /// It stays open, with these rights; why. What a daemon keeps in it was closed.
    Open { rights: u32, why: String },
}

impl Closing {
    /// Says in the log what was found.
    pub fn log(&self, folder: &Path) {
        let shown = folder.display();
        match self {
            Closing::Was => {}
            Closing::Closed { before } => tracing::warn!(
                "the state folder {shown} was open to other accounts of this machine ({before:o}): it is closed now (700)"
            ),
            Closing::Open { rights, why } => tracing::warn!(
                "the state folder {shown} is open to other accounts of this machine ({rights:o}), and stays so: {why}. \
                 What the daemon keeps in it was closed. `chmod 700 {shown}` closes the folder, --state-dir names another"
            ),
        }
    }
}

/// Holds the state folder for this process, and closes it and what is made in it from now on.
pub fn take(folder: &Path, patience: Duration) -> Result<StateLock, LockError> {
    // The log's files would be open to everybody, as the system has it.
    limits::make_private();
    let lock = StateLock::take(folder, patience)?;
    close(folder).log(folder);
    Ok(lock)
}

/// Closes the folder to everybody but its owner.
pub fn close(folder: &Path) -> Closing {
    let Ok(found) = fs::metadata(folder) else { return Closing::Was };
    let rights = found.permissions().mode() & 0o7777;
    if rights & OTHERS == 0 {
        return Closing::Was;
    }
    let closed = match stranger_in(folder) {
        Ok(_) if rights & STICKY != 0 => Err("it is a folder for everybody".to_owned()),
        Ok(Some(name)) => Err(format!("`{name}` in it is no file of a daemon")),
        Ok(None) => fs::set_permissions(folder, Permissions::from_mode(0o700)).map_err(|error| error.to_string()),
        Err(error) => Err(error.to_string()),
    };
    match closed {
        Ok(()) => Closing::Closed { before: rights },
        Err(why) => {
            close_entries(folder);
            Closing::Open { rights, why }
        }
    }
}

fn is_ours(name: &str) -> bool {
    let begins = |name: &str| OURS_BEGIN.iter().any(|ours| name.starts_with(ours));
    // `.NAME.7-0` is NAME as it was written aside, and never renamed.
    let aside = |ours: &str, name: &str| name.strip_prefix(ours).is_some_and(|rest| rest.starts_with('.'));
    match name.strip_prefix('.') {
        Some(name) => begins(name) || OURS.iter().any(|ours| aside(ours, name)),
        None => begins(name) || OURS.contains(&name),
    }
}

/// The first entry that no daemon makes.
fn stranger_in(folder: &Path) -> io::Result<Option<String>> {
    for entry in fs::read_dir(folder)? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        if !is_ours(&name) {
            return Ok(Some(name));
        }
    }
    Ok(None)
}

/// Closes what a daemon keeps in a folder that stays open. What is another user's stays as it is.
fn close_entries(folder: &Path) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        // Of a link it says nothing of the file that it leads to.
        let Ok(found) = entry.metadata() else { continue };
        let rights = found.permissions().mode() & 0o7777;
        let ours = is_ours(&entry.file_name().to_string_lossy()) && !found.is_symlink();
        if ours && rights & OTHERS != 0 {
            let _ = fs::set_permissions(entry.path(), Permissions::from_mode(rights & !OTHERS));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rights(path: &Path) -> u32 {
        fs::metadata(path).unwrap().permissions().mode() & 0o777
    }

    fn open_folder() -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        for name in ["keys.toml", "daemon.lock", ".lessons.txt.7-0"] {
            fs::write(dir.path().join(name), "x").unwrap();
            fs::set_permissions(dir.path().join(name), Permissions::from_mode(0o644)).unwrap();
        }
        fs::create_dir(dir.path().join("turns")).unwrap();
        fs::set_permissions(dir.path().join("turns"), Permissions::from_mode(0o755)).unwrap();
        fs::set_permissions(dir.path(), Permissions::from_mode(0o755)).unwrap();
        dir
    }

    #[test]
    fn a_folder_of_the_daemons_own_is_closed() {
        let dir = open_folder();
        assert_eq!(close(dir.path()), Closing::Closed { before: 0o755 });
        assert_eq!((rights(dir.path()), close(dir.path())), (0o700, Closing::Was));
        assert_eq!(close(&dir.path().join("none")), Closing::Was);
    }

    #[test]
    fn a_name_that_only_begins_as_ours_is_somebodys() {
        for ours in ["runs", "turns", "turns.damaged-1", "lessons.txt", ".served.json.7-0", ".lessons.txt.7-0"] {
            assert!(is_ours(ours), "{ours}");
        }
        for other in ["engram_photos", "runs.doc", "documents2", ".bashrc", "model.json.bak", ".runs"] {
            assert!(!is_ours(other), "{other}");
        }
    }

    #[test]
    fn a_folder_of_somebody_stays_and_what_is_ours_in_it_is_closed() {
        let dir = open_folder();
        let theirs = dir.path().join("holiday.jpg");
        fs::write(&theirs, "x").unwrap();
        fs::set_permissions(&theirs, Permissions::from_mode(0o644)).unwrap();
        let link = dir.path().join("engram");
        std::os::unix::fs::symlink(&theirs, link).unwrap();
        let found = close(dir.path());
        assert!(matches!(&found, Closing::Open { rights: 0o755, why } if why.contains("holiday.jpg")), "{found:?}");
        assert_eq!((rights(dir.path()), rights(&theirs)), (0o755, 0o644));
        assert_eq!((rights(&dir.path().join("keys.toml")), rights(&dir.path().join("turns"))), (0o600, 0o700));
        fs::remove_file(&theirs).unwrap();
        fs::set_permissions(dir.path(), Permissions::from_mode(0o1777)).unwrap();
        assert!(matches!(close(dir.path()), Closing::Open { rights: 0o1777, .. }), "as /tmp");
    }
}
