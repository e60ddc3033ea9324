//! Small files that must survive a power cut: written aside, synced, renamed, and the folder synced.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;

/// Replaces `path` by `bytes`, readable by the owner alone. After an error the old file is still there.
pub fn write_durable(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let folder = path.parent().ok_or_else(|| io::Error::other("the path has no folder"))?;
    // A bare file name has an empty one.
    let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
    let name = path.file_name().ok_or_else(|| io::Error::other("the path has no file name"))?;
    let aside = folder.join(format!(".{}.{}", name.to_string_lossy(), std::process::id()));
    let write = || -> io::Result<()> {
        let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&aside)?;
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
    Ok(Some(text))
}

/// Makes the state folder, closed to other users.
pub fn create_private_dir(path: &Path) -> io::Result<()> {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(path)
}

/// Holds the state folder for one process. Released when dropped, also by a kill.
#[derive(Debug)]
pub struct StateLock {
    _file: File,
}

#[derive(Debug, thiserror::Error)]
pub enum LockError {
    #[error("the state folder is in use by process {0}: stop that daemon, or name another --state-dir")]
    Held(String),
    #[error("cannot lock the state folder: {0}")]
    Io(#[from] io::Error),
}

impl StateLock {
    pub fn take(state_dir: &Path) -> Result<StateLock, LockError> {
        create_private_dir(state_dir)?;
        let path = state_dir.join("daemon.lock");
        let mut file = OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(path)?;
        match file.try_lock() {
            Ok(()) => {
                file.set_len(0)?;
                write!(file, "{}", std::process::id())?;
                Ok(StateLock { _file: file })
            }
            Err(TryLockError::WouldBlock) => {
                let mut holder = String::new();
                let _ = file.take(32).read_to_string(&mut holder);
                Err(LockError::Held(if holder.is_empty() { "unknown".to_owned() } else { holder }))
            }
            Err(TryLockError::Error(error)) => Err(error.into()),
        }
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
    }

    #[test]
    fn one_process_holds_the_state() {
        let dir = tempfile::tempdir().unwrap();
        let lock = StateLock::take(dir.path()).unwrap();
        let error = StateLock::take(dir.path()).unwrap_err().to_string();
        assert!(error.contains(&format!("process {}", std::process::id())), "{error}");
        drop(lock);
        StateLock::take(dir.path()).unwrap();
    }
}
