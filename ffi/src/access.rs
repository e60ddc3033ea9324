//! What this process may do with a file, asked without doing it.

use std::ffi::CString;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Whether this process may make files in a folder; the error says why not.
pub fn may_fill(folder: &Path) -> io::Result<()> {
    let path = CString::new(folder.as_os_str().as_bytes())?;
    // SAFETY: faccessat only reads the string behind the pointer, which ends with a zero and lives for the call.
    let code = unsafe { libc::faccessat(libc::AT_FDCWD, path.as_ptr(), libc::W_OK | libc::X_OK, libc::AT_EACCESS) };
    if code == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Bytes that this user may still write to the disk of a file or folder.
pub fn free_bytes(path: &Path) -> io::Result<u64> {
    let path = CString::new(path.as_os_str().as_bytes())?;
    let mut disk = std::mem::MaybeUninit::<libc::statvfs>::zeroed();
    // SAFETY: statvfs reads the string, which ends with a zero, and writes one struct; both live for the call.
    let code = unsafe { libc::statvfs(path.as_ptr(), disk.as_mut_ptr()) };
    if code != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: every bit pattern of the struct's numbers is one of them, and the call has filled it.
    let disk = unsafe { disk.assume_init() };
    Ok(u64::try_from(u128::from(disk.f_bavail) * u128::from(disk.f_frsize)).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_asked_without_a_trace() {
        let folder = tempfile::tempdir().unwrap();
        may_fill(folder.path()).unwrap();
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
        assert_eq!(may_fill(&folder.path().join("none")).unwrap_err().kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn a_disk_says_how_much_is_free() {
        let folder = tempfile::tempdir().unwrap();
        assert!(free_bytes(folder.path()).unwrap() > 0);
        assert_eq!(free_bytes(&folder.path().join("none")).unwrap_err().kind(), io::ErrorKind::NotFound);
    }
}
