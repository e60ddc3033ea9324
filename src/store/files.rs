//! Small files that must survive a power cut: written aside, synced, renamed, and the folder synced.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// Pause between two tries for a lock.
const LOCK_RETRY: Duration = Duration::from_millis(10);

/// File of the state folder with what was typed at `chimere chat`.
pub const CHAT_HISTORY: &str = "chat_history";

/// Removes a file. False: there was none.
pub fn remove_file_if_there(path: &Path) -> io::Result<bool> {
    match fs::remove_file(path) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

/// Replaces `path` by `bytes`, readable by the owner alone. After an error the old file is still there.
pub fn write_durable(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let folder = path.parent().ok_or_else(|| io::Error::other("the path has no folder"))?;
    // A bare file name has an empty one.
    let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
    let name = path.file_name().ok_or_else(|| io::Error::other("the path has no file name"))?;
    static SERIAL: AtomicU64 = AtomicU64::new(0);
    let serial = SERIAL.fetch_add(1, Ordering::Relaxed);
    let aside = folder.join(format!(".{}.{}-{serial}", name.to_string_lossy(), std::process::id()));
    // What a process of the same number once left there goes; what is put there meanwhile is not written through.
    let _ = fs::remove_file(&aside);
    let write = || -> io::Result<()> {
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&aside)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        fs::rename(&aside, path)?;
        File::open(folder)?.sync_all()
    };
    write().inspect_err(|_| drop(fs::remove_file(&aside)))
}

/// Reads a text file of at most `bytes_max` bytes; `None` if there is none.
pub fn read_bounded(path: &Path, bytes_max: u64) -> io::Result<Option<String>> {
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let mut text = String::new();
    file.take(bytes_max + 1).read_to_string(&mut text)?;
    if text.len() as u64 > bytes_max {
        return Err(io::Error::other(format!("larger than {bytes_max} bytes")));
    }
    Ok(Some(if text.starts_with(MARK) { without_mark(&text).to_owned() } else { text }))
}

/// The mark of the byte order, which some editors and programs put before a text.
const MARK: char = '\u{feff}';

/// A text without that mark.
pub fn without_mark(text: &str) -> &str {
    text.strip_prefix(MARK).unwrap_or(text)
}

/// Folders that `ProtectHome=` of a systemd unit hides.
const HOMES: &[&str] = &["/home", "/root", "/run/user"];

/// Why a file cannot be had, for people, where that is more than that there is none. A folder on the way may not be
/// entered, the file may not be read, or home folders are hidden.
pub fn why_not(path: &Path) -> Option<String> {
    why_not_under(path, &fs::read_to_string("/proc/self/mountinfo").unwrap_or_default())
}

/// Places that are named where a file was looked for.
const PLACES_SHOWN: usize = 4;

/// Places where a file was looked for: those where there is something, each with why it cannot be had, then some others.
pub fn places(paths: &[PathBuf]) -> String {
    let (mut there, mut absent) = (Vec::new(), Vec::new());
    for path in paths {
        match why_not(path) {
            Some(why) => there.push(format!("{} (which {why})", path.display())),
            None => absent.push(path.display().to_string()),
        }
    }
    there.append(&mut absent);
    let mut seen = std::collections::HashSet::new();
    there.retain(|place| seen.insert(place.clone()));
    let more = there.len().saturating_sub(PLACES_SHOWN);
    there.truncate(PLACES_SHOWN);
    let shown = there.join(", ");
    if more > 0 { format!("{shown} and {more} other places") } else { shown }
}

/// That there is no model file, where it was looked for. Of one that somebody named: what is wrong with it.
pub fn no_model(paths: &[PathBuf]) -> String {
    match paths {
        [named] => match why_not(named) {
            Some(why) => format!("the model file {} {why}", named.display()),
            None => format!("there is no file {}", named.display()),
        },
        several => format!("there is no model file: looked for {}", places(several)),
    }
}

fn why_not_under(path: &Path, mounts: &str) -> Option<String> {
    let denied = |error: &io::Error| error.kind() == io::ErrorKind::PermissionDenied;
    let why = match fs::metadata(path) {
        Ok(file) if !file.is_file() => return Some("is not a file".to_owned()),
        Ok(_) => match File::open(path) {
            Err(error) if denied(&error) => "is there, but this user may not read it".to_owned(),
            Err(error) => format!("cannot be opened: {error}"),
            Ok(_) => return None,
        },
        Err(error) if denied(&error) => {
            let folder = path.ancestors().skip(1).find(|folder| fs::metadata(folder).is_ok())?;
            format!("cannot be reached: this user may not enter {}", folder.display())
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound && path.is_symlink() => {
            return Some("is a link to what does not exist".to_owned());
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
        Err(error) => format!("cannot be looked at: {error}"),
    };
    let hidden = HOMES.iter().find(|home| path.starts_with(home) && is_hidden(home, mounts)).map(|home| {
        format!(
            "ProtectHome= of the systemd unit hides {home}: put the file elsewhere, or name its folder in a drop-in \
             (BindReadOnlyPaths=)"
        )
    });
    let said = [Some(why).filter(|why| !why.is_empty()), hidden].into_iter().flatten().collect::<Vec<_>>().join("; ");
    Some(said).filter(|said| !said.is_empty())
}

/// Is something empty mounted over a folder? A line has the mounted root fourth and the place fifth; behind ` - ` the kind.
fn is_hidden(place: &str, mounts: &str) -> bool {
    mounts.lines().any(|line| {
        let fields: Vec<&str> = line.split(' ').collect();
        let empty = fields.get(3).is_some_and(|root| root.contains("inaccessible")) || line.contains(" - tmpfs ");
        fields.get(4) == Some(&place) && empty
    })
}

/// Makes the state folder, closed to other users.
pub fn create_private_dir(path: &Path) -> io::Result<()> {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(path)
}

/// Held while a file is read, changed and written again, so that of two changes at once none is lost. Released when
/// dropped, also by a kill.
#[derive(Debug)]
pub struct ChangeLock {
    _file: File,
}

impl ChangeLock {
    /// Locks by a file beside `path`, waiting at most `patience` for who holds it.
    pub fn take(path: &Path, patience: Duration) -> io::Result<ChangeLock> {
        let file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(path.with_extension("lock"))?;
        if !locked(&file, patience)? {
            let message = format!("another process is changing it, for {} s already", patience.as_secs());
            return Err(io::Error::new(io::ErrorKind::TimedOut, message));
        }
        Ok(ChangeLock { _file: file })
    }
}

/// Locks the file, waiting at most `patience` for who holds it; whether it could be had.
pub(super) fn locked(file: &File, patience: Duration) -> io::Result<bool> {
    let began = Instant::now();
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(true),
            Err(TryLockError::WouldBlock) if began.elapsed() < patience => thread::sleep(LOCK_RETRY),
            Err(TryLockError::WouldBlock) => return Ok(false),
            Err(TryLockError::Error(error)) => return Err(error),
        }
    }
}

/// Holds the state folder for one process. Released when dropped, also by a kill.
#[derive(Debug)]
pub struct StateLock {
    _file: File,
}

/// Who holds a state folder, or held it last.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// Its number, as it wrote it down.
    pub process: String,
    /// The folder is held now.
    pub held: bool,
    /// It is, by a process that there is.
    pub alive: bool,
}

#[derive(Debug, thiserror::Error)]
pub enum LockError {
    #[error("the state folder is in use by process {0}: stop that daemon, or name another --state-dir")]
    Held(String),
    #[error("cannot use the state folder {}: {source}; name another --state-dir", path.display())]
    Io { path: PathBuf, source: io::Error },
}

impl StateLock {
    /// Who holds the folder; `None`: nobody ever did. Nothing is written.
    pub fn holder(state_dir: &Path) -> io::Result<Option<Holder>> {
        let mut file = match File::open(state_dir.join("daemon.lock")) {
            Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
                return Ok(None);
            }
            opened => opened?,
        };
        let mut process = String::new();
        (&mut file).take(32).read_to_string(&mut process)?;
        let held = match file.try_lock_shared() {
            Ok(()) => false,
            Err(TryLockError::WouldBlock) => true,
            Err(TryLockError::Error(error)) => return Err(error),
        };
        let alive = held && !process.is_empty() && Path::new("/proc").join(&process).exists();
        Ok(Some(Holder { process, held, alive }))
    }

    /// Waits at most `patience`: what a killed daemon was about to start holds its lock until it is a program of its own.
    pub fn take(state_dir: &Path, patience: Duration) -> Result<StateLock, LockError> {
        let failed = |source| LockError::Io { path: state_dir.to_owned(), source };
        if state_dir.exists() && !state_dir.is_dir() {
            return Err(failed(io::Error::other("it is a file, not a folder")));
        }
        create_private_dir(state_dir).map_err(failed)?;
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false).mode(0o600);
        let mut file = options.open(state_dir.join("daemon.lock")).map_err(failed)?;
        if locked(&file, patience).map_err(failed)? {
            file.set_len(0).and_then(|()| write!(file, "{}", std::process::id())).map_err(failed)?;
            return Ok(StateLock { _file: file });
        }
        let mut holder = String::new();
        let _ = file.take(32).read_to_string(&mut holder);
        Err(LockError::Held(if holder.is_empty() { "unknown".to_owned() } else { holder }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_replaced_whole_and_private() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        write_durable(&path, b"one").unwrap();
        write_durable(&path, b"two").unwrap();
        assert_eq!(read_bounded(&path, 3).unwrap().unwrap(), "two");
        assert!(read_bounded(&path, 2).is_err());
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "nothing is left aside");
        assert_eq!(read_bounded(&dir.path().join("none"), 3).unwrap(), None);
        fs::write(&path, "\u{feff}one").unwrap();
        assert_eq!(read_bounded(&path, 9).unwrap().unwrap(), "one");
    }

    #[test]
    fn of_many_places_those_with_something_come_first_and_each_once() {
        let dir = tempfile::tempdir().unwrap();
        let mut paths: Vec<PathBuf> = (0..9).map(|n| dir.path().join(format!("none-{}", n % 6))).collect();
        paths.push(dir.path().to_owned());
        let said = places(&paths);
        let first = format!("{} (which is not a file), {}/none-0, ", dir.path().display(), dir.path().display());
        assert!(said.starts_with(&first) && said.ends_with("none-2 and 3 other places"), "{said}");
        assert_eq!(places(&paths[..1]), paths[0].display().to_string());
    }

    #[test]
    fn the_cause_is_named_where_a_file_cannot_be_had() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().unwrap();
        let (folder, file) = (dir.path().join("shut"), dir.path().join("shut/f"));
        fs::create_dir(&folder).unwrap();
        fs::write(&file, "x").unwrap();
        assert_eq!((why_not(&file), why_not(&dir.path().join("none"))), (None, None));
        assert_eq!(why_not(&folder).as_deref(), Some("is not a file"));
        let link = dir.path().join("link");
        std::os::unix::fs::symlink(dir.path().join("none"), &link).unwrap();
        assert_eq!(why_not(&link).as_deref(), Some("is a link to what does not exist"));
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o0)).unwrap();
        // Root may enter anything.
        if let Err(error) = fs::metadata(&file) {
            let why = why_not(&file).unwrap();
            assert!(error.kind() == io::ErrorKind::PermissionDenied && why.contains("may not enter"), "{why}");
        }
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o700)).unwrap();
        let hides = "1 2 0:5 /systemd/inaccessible/dir /home ro,nosuid - tmpfs tmpfs ro";
        let why = why_not_under(Path::new("/home/nobody-there/m.gguf"), hides).unwrap();
        assert!(why.contains("ProtectHome= of the systemd unit hides /home"), "{why}");
        let disk = "1 2 8:1 / /home rw - ext4 /dev/sda1 rw";
        assert_eq!(why_not_under(Path::new("/home/nobody-there/m.gguf"), disk), None);
    }

    #[test]
    fn a_change_waits_for_the_one_before_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f.toml");
        let held = ChangeLock::take(&path, Duration::ZERO).unwrap();
        let late = ChangeLock::take(&path, Duration::from_millis(30)).unwrap_err();
        assert_eq!(late.kind(), io::ErrorKind::TimedOut);
        drop(held);
        ChangeLock::take(&path, Duration::ZERO).unwrap();
    }

    #[test]
    fn what_lies_where_a_file_is_written_aside_is_not_written_through() {
        let dir = tempfile::tempdir().unwrap();
        let (path, other) = (dir.path().join("f"), dir.path().join("other"));
        fs::write(&other, "mine").unwrap();
        for serial in 0..64 {
            let aside = dir.path().join(format!(".f.{}-{serial}", std::process::id()));
            std::os::unix::fs::symlink(&other, aside).unwrap();
        }
        write_durable(&path, b"one").unwrap();
        assert_eq!(fs::read_to_string(&other).unwrap(), "mine");
        assert_eq!(fs::read_to_string(&path).unwrap(), "one");
    }

    #[test]
    fn one_process_holds_the_state() {
        let dir = tempfile::tempdir().unwrap();
        let lock = StateLock::take(dir.path(), Duration::ZERO).unwrap();
        let error = StateLock::take(dir.path(), LOCK_RETRY).unwrap_err().to_string();
        assert!(error.contains(&format!("process {}", std::process::id())), "{error}");
        let holder = thread::spawn(move || {
            thread::sleep(5 * LOCK_RETRY);
            drop(lock);
        });
        StateLock::take(dir.path(), Duration::from_secs(60)).unwrap();
        holder.join().unwrap();
    }
}
